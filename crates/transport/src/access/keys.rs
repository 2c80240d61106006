//! Keys in a file: who may do what, with which models and collections, and how often.
//!
//! The file holds hashes, so that it does not show keys. A key has 256 random bits: its hash needs
//! no salt and no slow function.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use base::{Error, Result};
use serde::Deserialize;

/// Largest file of keys.
const FILE_BYTES_MAX: u64 = 16 << 20;
/// Prefix of a hash, which names its function.
const BLAKE3: &str = "blake3:";

/// Rights of a key. Each role may do what those before it may.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "lowercase")]
pub enum KeyRole {
    /// Runs models and recognisers, and reads their metadata.
    Infer,
    /// Also searches collections and images, and reads metrics and pages.
    Read,
    /// Also changes collections and images.
    Write,
    /// Also loads and unloads models, enrols voices and reads folders of the server.
    Admin,
}

impl KeyRole {
    /// Returns the name in files and messages.
    pub fn name(self) -> &'static str {
        match self {
            KeyRole::Infer => "infer",
            KeyRole::Read => "read",
            KeyRole::Write => "write",
            KeyRole::Admin => "admin",
        }
    }
}

/// An operation of a request, and the names in its path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Least role that may do it.
    pub role: KeyRole,
    /// Name of the model or recogniser that the path names.
    pub model: Option<String>,
    /// Name of the collection that the path names.
    pub collection: Option<String>,
    /// True if the body may name any collection.
    pub any_collection: bool,
}

impl Operation {
    /// Returns an operation without a model and a collection.
    pub fn new(role: KeyRole) -> Operation {
        Operation { role, model: None, collection: None, any_collection: false }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyFile {
    #[serde(default)]
    keys: Vec<KeyEntry>,
}

/// `[[keys]]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct KeyEntry {
    name: String,
    hash: String,
    role: KeyRole,
    models: Option<Vec<String>>,
    collections: Option<Vec<String>>,
    requests_per_second: Option<f64>,
}

/// A key of the file, or of a flag.
#[derive(Debug)]
pub(super) struct AccessKey {
    name: String,
    hash: blake3::Hash,
    pub(super) role: KeyRole,
    /// Patterns of names; `None` permits all.
    models: Option<Vec<String>>,
    collections: Option<Vec<String>>,
    rate: Option<f64>,
    bucket: Mutex<TokenBucket>,
}

impl AccessKey {
    fn new(entry: KeyEntry) -> Result<AccessKey> {
        let name = entry.name;
        let wrong = |why: String| Error::invalid(format!("key \"{name}\": {why}"));
        let hex = entry.hash.strip_prefix(BLAKE3).unwrap_or(&entry.hash);
        let hash = blake3::Hash::from_hex(hex).map_err(|_| {
            wrong(
                "hash is not \"blake3:\" and 64 hexadecimal digits; `millpond keys new` makes one"
                    .into(),
            )
        })?;
        if let Some(rate) = entry.requests_per_second
            && !(rate > 0.0 && rate.is_finite())
        {
            return Err(wrong(format!("requests-per-second is {rate}; it must be above 0")));
        }
        Ok(AccessKey {
            hash,
            role: entry.role,
            models: entry.models,
            collections: entry.collections,
            rate: entry.requests_per_second,
            bucket: Mutex::new(TokenBucket::full(entry.requests_per_second)),
            name,
        })
    }

    /// Returns an unlimited key of a flag.
    fn of_flag(name: &str, key: &str, role: KeyRole) -> AccessKey {
        AccessKey {
            name: name.to_owned(),
            hash: blake3::hash(key.as_bytes()),
            role,
            models: None,
            collections: None,
            rate: None,
            bucket: Mutex::new(TokenBucket::full(None)),
        }
    }
}

/// Requests that a key may still make.
#[derive(Clone, Copy, Debug)]
struct TokenBucket {
    tokens: f64,
    filled: Instant,
}

impl TokenBucket {
    /// Returns a bucket for `rate` requests a second, which holds those of one second.
    fn full(rate: Option<f64>) -> TokenBucket {
        TokenBucket { tokens: rate.unwrap_or(0.0).max(1.0), filled: Instant::now() }
    }

    /// Takes one request, or returns the time until the next.
    fn take(&mut self, rate: f64, now: Instant) -> std::result::Result<(), Duration> {
        let elapsed = now.saturating_duration_since(self.filled).as_secs_f64();
        self.tokens = (self.tokens + elapsed * rate).min(rate.max(1.0));
        self.filled = self.filled.max(now);
        if self.tokens >= 1.0 {
            self.tokens -= 1.0;
            return Ok(());
        }
        Err(Duration::try_from_secs_f64((1.0 - self.tokens) / rate).unwrap_or(Duration::MAX))
    }
}

/// The keys of a server.
#[derive(Debug)]
pub struct KeyRing {
    path: PathBuf,
    flags: Vec<Arc<AccessKey>>,
    keys: ArcSwap<Vec<Arc<AccessKey>>>,
}

impl KeyRing {
    /// Reads the keys of the file `path`. `api_key` counts as a key that writes, `admin_key` as
    /// one of an administrator.
    ///
    /// # Errors
    /// `InvalidArgument` with file, line and key, or the error of the read.
    pub fn read(path: &Path, api_key: Option<&str>, admin_key: Option<&str>) -> Result<KeyRing> {
        let flag = |name, key: Option<&str>, role| {
            key.map(|key| Arc::new(AccessKey::of_flag(name, key, role)))
        };
        let flags = [
            flag("--api-key", api_key, KeyRole::Write),
            flag("--admin-key", admin_key, KeyRole::Admin),
        ];
        let keys = ArcSwap::from_pointee(read_file(path)?);
        Ok(KeyRing { path: path.to_owned(), flags: flags.into_iter().flatten().collect(), keys })
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the file again. Keys of the same name and rate keep the requests that they have left.
    ///
    /// # Errors
    /// As [`KeyRing::read`]; the keys then stay as they are.
    pub fn reload(&self) -> Result<()> {
        let after = read_file(&self.path)?;
        for key in &after {
            let before = self.keys.load();
            let same = |old: &&Arc<AccessKey>| old.name == key.name && old.rate == key.rate;
            if let Some(old) = before.iter().find(same) {
                let left = *old.bucket.lock().unwrap_or_else(PoisonError::into_inner);
                *key.bucket.lock().unwrap_or_else(PoisonError::into_inner) = left;
            }
        }
        self.keys.store(Arc::new(after));
        Ok(())
    }

    /// Returns the key of the first shown text that is one. The time does not depend on how much
    /// of a key is right: whole hashes are compared, in constant time, with all keys.
    pub(super) fn find<'a>(&self, shown: impl Iterator<Item = &'a [u8]>) -> Option<Arc<AccessKey>> {
        let keys = self.keys.load();
        let mut found = None;
        for text in shown {
            let hash = blake3::hash(text);
            for key in keys.iter().chain(&self.flags) {
                if key.hash == hash && found.is_none() {
                    found = Some(key.clone());
                }
            }
        }
        found
    }
}

fn read_file(path: &Path) -> Result<Vec<Arc<AccessKey>>> {
    let failed = |error: std::io::Error| Error::io(path, &error);
    let wrong = |why: &dyn std::fmt::Display| Error::invalid(format!("{}: {why}", path.display()));
    if std::fs::metadata(path).map_err(failed)?.len() > FILE_BYTES_MAX {
        return Err(wrong(&"the file of keys is larger than 16 MiB"));
    }
    let text = std::fs::read_to_string(path).map_err(failed)?;
    let file: KeyFile = toml::from_str(&text).map_err(|error| wrong(&error))?;
    let mut keys: Vec<Arc<AccessKey>> = Vec::new();
    for entry in file.keys {
        let key = AccessKey::new(entry).map_err(|error| wrong(&error.message()))?;
        if keys.iter().any(|other| other.name == key.name) {
            return Err(wrong(&format!("two keys are named \"{}\"", key.name)));
        }
        keys.push(Arc::new(key));
    }
    Ok(keys)
}

/// The rights of a request's key.
#[derive(Clone, Debug)]
pub struct KeyGrant(pub(super) Arc<AccessKey>);

impl KeyGrant {
    /// Returns the name of the key.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Checks role and names.
    ///
    /// # Errors
    /// `PermissionDenied`, with what the key lacks.
    pub(super) fn check(&self, operation: &Operation) -> Result<()> {
        let key = &*self.0;
        if key.role < operation.role {
            return Err(Error::denied(format!(
                "key \"{}\" has the role {}; this needs {}",
                key.name,
                key.role.name(),
                operation.role.name()
            )));
        }
        if let Some(model) = &operation.model {
            self.check_model(model)?;
        }
        match &operation.collection {
            Some(name) if !permits(key.collections.as_deref(), name) => {
                Err(Error::denied(format!("key \"{}\" may not use collection {name}", key.name)))
            }
            _ if operation.any_collection && key.collections.is_some() => Err(Error::denied(
                format!("key \"{}\" may use some collections only; this may name any", key.name),
            )),
            _ => Ok(()),
        }
    }

    /// Checks the name of a model.
    ///
    /// # Errors
    /// `PermissionDenied` if the key may not use it.
    pub fn check_model(&self, model: &str) -> Result<()> {
        match permits(self.0.models.as_deref(), model) {
            true => Ok(()),
            false => {
                Err(Error::denied(format!("key \"{}\" may not use model {model}", self.0.name)))
            }
        }
    }

    /// Counts a request.
    ///
    /// # Errors
    /// `ResourceExhausted` with the time to wait, if the key has made too many.
    pub fn count_request(&self) -> Result<()> {
        let Some(rate) = self.0.rate else { return Ok(()) };
        let mut bucket = self.0.bucket.lock().unwrap_or_else(PoisonError::into_inner);
        bucket.take(rate, Instant::now()).map_err(|wait| {
            Error::exhausted(format!(
                "key \"{}\" may make {rate} requests a second; try again later",
                self.0.name
            ))
            .with_retry_after(wait)
        })
    }
}

fn permits(patterns: Option<&[String]>, name: &str) -> bool {
    patterns.is_none_or(|patterns| patterns.iter().any(|pattern| matches(pattern, name)))
}

/// Returns true if `name` matches `pattern`, in which `*` stands for any text.
fn matches(pattern: &str, name: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(mut name) = name.strip_prefix(start) else { return false };
    let mut pieces = rest.split('*').peekable();
    while let Some(piece) = pieces.next() {
        if pieces.peek().is_none() {
            return name.ends_with(piece);
        }
        let Some(at) = name.find(piece) else { return false };
        name = &name[at + piece.len()..];
    }
    true
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn ring(text: &str) -> Result<(tempfile::TempDir, KeyRing)> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keys.toml");
        std::fs::write(&path, text).unwrap();
        KeyRing::read(&path, None, None).map(|ring| (dir, ring))
    }

    fn entry(name: &str, key: &str, rest: &str) -> String {
        let hash = blake3::hash(key.as_bytes()).to_hex();
        format!("[[keys]]\nname = \"{name}\"\nhash = \"blake3:{hash}\"\n{rest}\n")
    }

    fn grant(ring: &KeyRing, key: &str) -> Option<KeyGrant> {
        ring.find([key.as_bytes()].into_iter()).map(KeyGrant)
    }

    #[test]
    fn patterns() {
        for (pattern, name) in [
            ("a", "a"),
            ("*", ""),
            ("*", "x"),
            ("a*", "a"),
            ("a*c", "abc"),
            ("*b*", "abc"),
            ("a*b*b", "abb"),
        ] {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [
            ("a", "ab"),
            ("a*", "ba"),
            ("a*a", "a"),
            ("a*c", "abcd"),
            ("*b*", "ac"),
            ("a*b*b", "ab"),
            ("", "a"),
        ] {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
    }

    #[test]
    fn roles_and_names_are_checked() {
        let text = entry("ranker", "one", "role = \"infer\"\nmodels = [\"rank*\"]")
            + &entry("search", "two", "role = \"write\"\ncollections = [\"pub*\"]\nmodels = []")
            + &entry("root", "three", "role = \"admin\"");
        let (_dir, ring) = ring(&text).unwrap();
        let allowed =
            |key: &str, operation: Operation| grant(&ring, key).unwrap().check(&operation).is_ok();
        let model =
            |name: &str| Operation { model: Some(name.into()), ..Operation::new(KeyRole::Infer) };
        let collection =
            |name: &str, role| Operation { collection: Some(name.into()), ..Operation::new(role) };
        assert!(allowed("one", model("rank2")) && !allowed("one", model("other")));
        assert!(!allowed("one", collection("pub", KeyRole::Read)));
        assert!(allowed("two", collection("pub1", KeyRole::Write)));
        assert!(!allowed("two", collection("secret", KeyRole::Read)));
        assert!(!allowed("two", model("rank2")), "an empty list permits none");
        let aliases = Operation { any_collection: true, ..Operation::new(KeyRole::Write) };
        assert!(!allowed("two", aliases.clone()) && allowed("three", aliases));
        assert!(!allowed("two", Operation::new(KeyRole::Admin)));
        assert!(allowed("three", model("any")));
        assert!(grant(&ring, "four").is_none() && grant(&ring, "").is_none());
    }

    #[test]
    fn a_rate_holds_and_survives_a_reload() {
        let text = entry("slow", "one", "role = \"infer\"\nrequests-per-second = 0.001");
        let (dir, ring) = ring(&text).unwrap();
        grant(&ring, "one").unwrap().count_request().unwrap();
        let error = grant(&ring, "one").unwrap().count_request().unwrap_err();
        assert!(error.retry_after().unwrap() > Duration::from_secs(900), "{error}");
        std::fs::write(
            dir.path().join("keys.toml"),
            text + &entry("new", "two", "role = \"read\""),
        )
        .unwrap();
        ring.reload().unwrap();
        assert!(grant(&ring, "two").is_some());
        assert!(grant(&ring, "one").unwrap().count_request().is_err());
        std::fs::write(dir.path().join("keys.toml"), "[[keys]]\nname = 1").unwrap();
        ring.reload().unwrap_err();
        assert!(grant(&ring, "two").is_some(), "a mistake changes nothing");
    }

    #[test]
    fn buckets_fill_at_their_rate() {
        let start = Instant::now();
        let mut bucket = TokenBucket { tokens: 2.0, filled: start };
        assert!(bucket.take(2.0, start).is_ok() && bucket.take(2.0, start).is_ok());
        assert_eq!(bucket.take(2.0, start), Err(Duration::from_millis(500)));
        assert!(bucket.take(2.0, start + Duration::from_millis(500)).is_ok());
        let late = start + Duration::from_secs(100);
        assert_eq!((0..9).filter(|_| bucket.take(2.0, late).is_ok()).count(), 2, "one second's");
    }

    #[test]
    fn mistakes_name_the_key() {
        let wrong = |text: &str, wanted: &str| {
            let error = ring(text).err().unwrap();
            assert!(error.message().contains(wanted), "{error}");
        };
        wrong("[[keys]]\nname = \"a\"\nhash = \"12\"\nrole = \"read\"", "key \"a\": hash is not");
        wrong(&entry("a", "k", "role = \"root\""), "unknown variant `root`");
        wrong(&entry("a", "k", "role = \"read\"\nrate = 1"), "unknown field `rate`");
        wrong(&entry("a", "k", "role = \"read\"\nrequests-per-second = 0"), "above 0");
        wrong(
            &(entry("a", "k", "role = \"read\"") + &entry("a", "l", "role = \"read\"")),
            "two keys",
        );
    }
}
