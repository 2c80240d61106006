//! The file of keys.
//!
//! The file holds hashes, so that it does not show keys. A key has 256 random bits, so its hash
//! needs no salt and no slow function.

use std::collections::HashSet;
use std::path::Path;

use base::{Error, Result};
use serde::Deserialize;

use super::key::{AccessKey, KeyValidity};
use super::limits::{KeyLimits, KeyQuota};
use super::names::NameRule;
use super::role::KeyRole;

/// Largest file of keys.
const FILE_BYTES_MAX: u64 = 16 << 20;
/// Maximum keys of a file. Each has series of metrics.
const KEYS_MAX: usize = 10_000;
/// Longest name of a key, which is a label of metrics.
const NAME_BYTES_MAX: usize = 128;
/// Prefix of a hash, which names its function.
const BLAKE3: &str = "blake3:";

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
    cpu_seconds_per_minute: Option<f64>,
}

impl KeyEntry {
    /// Checks an entry of the file and converts it.
    fn key(self) -> Result<AccessKey> {
        let name = self.name;
        let wrong = |why: String| Error::invalid(format!("key \"{name}\": {why}"));
        if name.is_empty() || name.len() > NAME_BYTES_MAX || name.chars().any(char::is_control) {
            return Err(wrong(format!(
                "a name has 1 to {NAME_BYTES_MAX} bytes and no control characters"
            )));
        }
        let hex = self.hash.strip_prefix(BLAKE3).unwrap_or(&self.hash);
        let hash = blake3::Hash::from_hex(hex).map_err(|error| {
            wrong(
                "hash is not \"blake3:\" and 64 hexadecimal digits; `millpond keys new` makes one"
                    .into(),
            )
            .with_source(error)
        })?;
        for (setting, limit) in [
            ("requests-per-second", self.requests_per_second),
            ("cpu-seconds-per-minute", self.cpu_seconds_per_minute),
        ] {
            if let Some(limit) = limit
                && !(limit > 0.0 && limit.is_finite())
            {
                return Err(wrong(format!("{setting} is {limit}; it must be above 0")));
            }
        }
        Ok(AccessKey {
            hash,
            role: self.role,
            models: self.models.map(NameRule::patterns),
            collections: self.collections.map(NameRule::patterns),
            collections_only: false,
            validity: KeyValidity::WhileListed,
            limits: KeyLimits::new(KeyQuota {
                requests_per_second: self.requests_per_second,
                cpu_seconds_per_minute: self.cpu_seconds_per_minute,
            }),
            name: name.into(),
        })
    }
}

/// Reads the file at `path`.
///
/// # Errors
/// `InvalidArgument` with file, line and key, or the error of the read.
pub(super) fn read(path: &Path) -> Result<Vec<AccessKey>> {
    let failed = |error: std::io::Error| Error::io(path, &error);
    let wrong = |why: &dyn std::fmt::Display| Error::invalid(format!("{}: {why}", path.display()));
    let meta = std::fs::metadata(path).map_err(failed)?;
    // A pipe has its keys once, and the file is read again.
    if !meta.is_file() {
        let why = "not a regular file; the server reads it again, so write the keys to a file";
        return Err(wrong(&why));
    }
    if meta.len() > FILE_BYTES_MAX {
        return Err(wrong(&"the file of keys is larger than 16 MiB"));
    }
    let text = std::fs::read_to_string(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::InvalidData => wrong(&"not UTF-8"),
        _ => failed(error),
    })?;
    parse(&text).map_err(|error| wrong(&error.message()))
}

/// Parses the text of a file.
///
/// # Errors
/// `InvalidArgument` with line and key.
pub(super) fn parse(text: &str) -> Result<Vec<AccessKey>> {
    let file: KeyFile = toml::from_str(text).map_err(|error| Error::invalid(error.to_string()))?;
    if file.keys.len() > KEYS_MAX {
        return Err(Error::invalid(format!(
            "the file has {} keys, and at most {KEYS_MAX} are taken",
            file.keys.len()
        )));
    }
    let mut names = HashSet::new();
    let mut hashes = HashSet::new();
    let mut keys: Vec<AccessKey> = Vec::with_capacity(file.keys.len());
    for entry in file.keys {
        let key = entry.key()?;
        if !names.insert(key.name.clone()) {
            return Err(Error::invalid(format!("two keys are named \"{}\"", key.name)));
        }
        if !hashes.insert(*key.hash.as_bytes()) {
            return Err(Error::invalid(format!(
                "key \"{}\": another key has the same hash",
                key.name
            )));
        }
        keys.push(key);
    }
    Ok(keys)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn entry(name: &str, key: &str, rest: &str) -> String {
        let hash = blake3::hash(key.as_bytes()).to_hex();
        format!("[[keys]]\nname = \"{name}\"\nhash = \"blake3:{hash}\"\n{rest}\n")
    }

    #[test]
    fn keys_of_a_pipe_are_refused() {
        let error = read(Path::new("/dev/null")).err().unwrap();
        assert_eq!(error.kind(), base::ErrorKind::InvalidArgument);
        assert!(error.message().starts_with("/dev/null: not a regular file"), "{error}");
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keys.toml");
        std::fs::write(&path, b"# \xff").unwrap();
        assert_eq!(read(&path).err().unwrap().kind(), base::ErrorKind::InvalidArgument);
        std::fs::write(&path, "").unwrap();
        assert!(read(&path).unwrap().is_empty());
    }

    #[test]
    fn mistakes_name_the_key() {
        let wrong = |text: &str, wanted: &str| {
            let error = parse(text).err().unwrap();
            assert!(error.message().contains(wanted), "{error}");
        };
        let read = "role = \"read\"";
        wrong("[[keys]]\nname = \"a\"\nhash = \"12\"\nrole = \"read\"", "key \"a\": hash is not");
        wrong(&entry("a", "k", "role = \"root\""), "unknown variant `root`");
        wrong(&entry("a", "k", &format!("{read}\nrate = 1")), "unknown field `rate`");
        wrong(&entry("a", "k", &format!("{read}\nrequests-per-second = 0")), "above 0");
        wrong(&entry("a", "k", &format!("{read}\ncpu-seconds-per-minute = nan")), "above 0");
        wrong(&entry("", "k", read), "1 to 128 bytes");
        wrong(&(entry("a", "k", read) + &entry("a", "l", read)), "two keys");
        wrong(&(entry("a", "k", read) + &entry("b", "k", read)), "same hash");
        let many: String =
            (0..=KEYS_MAX).map(|n| entry(&format!("k{n}"), &n.to_string(), read)).collect();
        wrong(&many, "10001 keys");
    }

    #[test]
    fn an_entry_becomes_a_key() {
        let text = entry("a", "k", "role = \"infer\"\nmodels = [\"rank*\"]\ncollections = []");
        let keys = parse(&text).unwrap();
        assert_eq!((&*keys[0].name, keys[0].role), ("a", KeyRole::Infer));
        assert_eq!(keys[0].models, Some(vec![NameRule::Pattern("rank*".into())]));
        assert_eq!(keys[0].collections, Some(Vec::new()));
        assert!(parse("").unwrap().is_empty());
    }
}
