//! The keys of a server: keys of the file, keys of flags, tokens, and sessions of browsers.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;
use base::{Error, Result};

use super::attempts::FailedAttempts;
use super::key::{AccessKey, KeyGrant, KeyValidity};
use super::key_file;
use super::limits::{KeyLimits, KeyUsage};
use super::role::KeyRole;
use super::sessions::{SessionId, Sessions};
use super::tokens::{TokenReader, check_end};
use crate::peer::Peer;

/// Name of the key of `--api-key`.
const API_KEY: &str = "--api-key";
/// Name of the key of `--admin-key`.
const ADMIN_KEY: &str = "--admin-key";

/// Keys by hash. The time of a lookup may depend on the hash, because that shows nothing of the
/// key.
type KeyMap = HashMap<[u8; 32], Arc<AccessKey>>;

/// Sources of a server's keys.
#[derive(Clone, Copy, Debug, Default)]
pub struct KeySources<'a> {
    /// File of `--keys`.
    pub file: Option<&'a Path>,
    /// Text of `--api-key`.
    pub api_key: Option<&'a str>,
    /// Text of `--admin-key`.
    pub admin_key: Option<&'a str>,
}

/// The keys of a server.
#[derive(Debug)]
pub struct KeyRing {
    path: Option<PathBuf>,
    flags: Vec<Arc<AccessKey>>,
    keys: ArcSwap<KeyMap>,
    tokens: Option<TokenReader>,
    sessions: Sessions,
    attempts: FailedAttempts,
}

impl KeyRing {
    /// Reads the keys. Returns `None` if there are no sources. The key of `--admin-key` has the
    /// rights of an administrator. The key of `--api-key` may write, and has the rights of an
    /// administrator if it is the only source. Tokens are signed with the key of `--api-key`.
    ///
    /// # Errors
    /// `InvalidArgument` with file, line and key, or the error of the read.
    pub fn read(sources: KeySources<'_>) -> Result<Option<KeyRing>> {
        let KeySources { file, api_key, admin_key } = sources;
        if file.is_none() && api_key.is_none() && admin_key.is_none() {
            return Ok(None);
        }
        let only = file.is_none() && admin_key.is_none();
        let api_role = if only { KeyRole::Admin } else { KeyRole::Write };
        let api = api_key.map(|key| Arc::new(AccessKey::of_flag(API_KEY, key, api_role)));
        let admin =
            admin_key.map(|key| Arc::new(AccessKey::of_flag(ADMIN_KEY, key, KeyRole::Admin)));
        let tokens = api_key.zip(api.as_deref());
        let tokens = tokens.map(|(secret, key)| TokenReader::new(secret, key));
        // If both are the same text, it has the rights of both.
        let flags: Vec<_> = admin.into_iter().chain(api).collect();
        let keys = file.map(key_file::read).transpose()?.unwrap_or_default();
        Ok(Some(KeyRing {
            path: file.map(Path::to_owned),
            keys: ArcSwap::from_pointee(by_hash(&flags, keys)),
            flags,
            tokens,
            sessions: Sessions::default(),
            attempts: FailedAttempts::default(),
        }))
    }

    /// Returns the path of the file.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Reads the file again. Keys of the same name continue with their use so far. Sessions of
    /// removed keys end.
    ///
    /// # Errors
    /// As [`KeyRing::read`]. The keys then stay as they are.
    pub fn reload(&self) -> Result<()> {
        let Some(path) = &self.path else { return Ok(()) };
        let mut after = key_file::read(path)?;
        let before = self.keys.load();
        let known: HashMap<&str, &Arc<AccessKey>> =
            before.values().map(|key| (&*key.name, key)).collect();
        for key in &mut after {
            if let Some(old) = known.get(&*key.name) {
                key.limits = KeyLimits::carried(&old.limits, &key.limits);
            }
        }
        self.keys.store(Arc::new(by_hash(&self.flags, after)));
        Ok(())
    }

    /// Returns the first of the shown texts that is a key or a token.
    ///
    /// # Errors
    /// `PermissionDenied` with the reason why a token is not accepted.
    pub(super) fn find<'a>(
        &self,
        shown: impl Iterator<Item = &'a [u8]>,
    ) -> Result<Option<KeyGrant>> {
        let keys = self.keys.load();
        for text in shown {
            if let Some(key) = keys.get(blake3::hash(text).as_bytes()) {
                return Ok(Some(KeyGrant(key.clone())));
            }
            let read = |tokens: &TokenReader| tokens.read(text, SystemTime::now());
            if let Some(token) = self.tokens.as_ref().and_then(read) {
                return token.map(|key| Some(KeyGrant(Arc::new(key))));
            }
        }
        Ok(None)
    }

    /// Counts a failed attempt of `peer` to show a key.
    ///
    /// # Errors
    /// The time to wait, if too many attempts from this address failed.
    pub(super) fn count_failed(&self, peer: Option<Peer>) -> Result<(), Duration> {
        self.attempts.count(peer)
    }

    /// Returns the present rights of a key whose rights were found earlier.
    ///
    /// # Errors
    /// `PermissionDenied` if the key was removed, or if the token has expired.
    pub(super) fn renewed(&self, grant: &KeyGrant) -> Result<KeyGrant> {
        match grant.0.validity {
            KeyValidity::Until(end) => check_end(end, SystemTime::now()).map(|()| grant.clone()),
            KeyValidity::WhileListed => {
                let listed = self.keys.load().get(grant.0.hash.as_bytes()).cloned();
                listed.map(KeyGrant).ok_or_else(|| {
                    Error::denied(format!(
                        "key \"{}\" was removed from this server; use another key",
                        grant.name()
                    ))
                })
            }
        }
    }

    /// Returns the rights of a session's key, if the session is open.
    pub fn session_key(&self, session: &SessionId) -> Option<KeyGrant> {
        let hash = self.sessions.find(session)?;
        self.keys.load().get(&hash).cloned().map(KeyGrant)
    }

    /// Opens a session for the key `text`.
    ///
    /// # Errors
    /// `PermissionDenied` if it is not a key. Also the errors of `Sessions::open`.
    pub fn open_session(&self, text: &str) -> Result<SessionId> {
        let hash = *blake3::hash(text.as_bytes()).as_bytes();
        if self.keys.load().contains_key(&hash) {
            self.sessions.open(hash)
        } else {
            Err(Error::denied("this is not a key of this server"))
        }
    }

    /// Ends the session, if it is open.
    pub fn close_session(&self, session: &SessionId) {
        self.sessions.close(session);
    }

    /// Returns the number of open sessions.
    pub fn sessions(&self) -> usize {
        self.sessions.count()
    }

    /// Returns the use of all keys.
    pub fn usage(&self) -> Vec<KeyUsage> {
        self.keys.load().values().map(|key| key.limits.usage(&key.name)).collect()
    }
}

/// Returns all keys by hash. Flags replace keys of the file.
fn by_hash(flags: &[Arc<AccessKey>], file: Vec<AccessKey>) -> KeyMap {
    let file = file.into_iter().map(Arc::new);
    let flags = flags.iter().rev().cloned();
    file.chain(flags).map(|key| (*key.hash.as_bytes(), key)).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::super::role::{CollectionScope, Operation};
    use super::*;

    fn ring(text: &str) -> (tempfile::TempDir, KeyRing) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keys.toml");
        std::fs::write(&path, text).unwrap();
        let ring = KeyRing::read(KeySources { file: Some(&path), ..KeySources::default() });
        (dir, ring.unwrap().unwrap())
    }

    fn entry(name: &str, key: &str, rest: &str) -> String {
        let hash = blake3::hash(key.as_bytes()).to_hex();
        format!("[[keys]]\nname = \"{name}\"\nhash = \"blake3:{hash}\"\n{rest}\n")
    }

    fn grant(ring: &KeyRing, key: &str) -> Option<KeyGrant> {
        ring.find([key.as_bytes()].into_iter()).unwrap()
    }

    #[test]
    fn rights_are_renewed_until_the_key_is_removed() {
        let (dir, ring) = ring(&entry("a", "one", "role = \"read\""));
        let before = grant(&ring, "one").unwrap();
        let replace = |text: String| {
            std::fs::write(dir.path().join("keys.toml"), text).unwrap();
            ring.reload().unwrap();
            ring.renewed(&before)
        };
        let changed = replace(entry("a", "one", "role = \"infer\"")).unwrap();
        assert_eq!((before.role(), changed.role()), (KeyRole::Read, KeyRole::Infer));
        let error = replace(entry("b", "two", "role = \"read\"")).unwrap_err();
        assert!(error.message().contains("key \"a\" was removed"), "{error}");
    }

    #[test]
    fn rights_are_renewed_until_the_token_expires() {
        let sources = KeySources { api_key: Some("api"), ..KeySources::default() };
        let ring = KeyRing::read(sources).unwrap().unwrap();
        let now = base::unix_time(SystemTime::now()).as_secs();
        let renewed = |end| {
            let mut token = AccessKey::of_flag("token", "text", KeyRole::Read);
            token.validity = KeyValidity::Until(end);
            ring.renewed(&KeyGrant(Arc::new(token))).map(|grant| grant.role())
        };
        assert_eq!(renewed(None).unwrap(), KeyRole::Read);
        assert_eq!(renewed(Some(now + 3600)).unwrap(), KeyRole::Read);
        let error = renewed(Some(now - 3600)).unwrap_err();
        assert!(error.message().contains("expired"), "{error}");
    }

    #[test]
    fn roles_and_names_are_checked() {
        let text = entry("ranker", "one", "role = \"infer\"\nmodels = [\"rank*\"]")
            + &entry("search", "two", "role = \"write\"\ncollections = [\"pub*\"]\nmodels = []")
            + &entry("root", "three", "role = \"admin\"");
        let (_dir, ring) = ring(&text);
        let allowed =
            |key: &str, operation: Operation| grant(&ring, key).unwrap().check(&operation).is_ok();
        let model =
            |name: &str| Operation { model: Some(name.into()), ..Operation::new(KeyRole::Infer) };
        let collection = |name: &str, role| Operation {
            collections: CollectionScope::Points(name.into()),
            ..Operation::new(role)
        };
        assert!(allowed("one", model("rank2")) && !allowed("one", model("other")));
        assert!(!allowed("one", collection("pub", KeyRole::Read)));
        assert!(allowed("two", collection("pub1", KeyRole::Write)));
        assert!(!allowed("two", collection("secret", KeyRole::Read)));
        assert!(!allowed("two", model("rank2")), "an empty list permits none");
        let aliases =
            Operation { collections: CollectionScope::Any, ..Operation::new(KeyRole::Write) };
        assert!(!allowed("two", aliases.clone()) && allowed("three", aliases));
        let whole = Operation {
            collections: CollectionScope::Whole("pub1".into()),
            ..Operation::new(KeyRole::Write)
        };
        assert!(allowed("two", whole) && !allowed("two", Operation::new(KeyRole::Admin)));
        assert!(allowed("three", model("any")));
        assert!(grant(&ring, "four").is_none() && grant(&ring, "").is_none());
    }

    #[test]
    fn use_and_sessions_survive_a_reload() {
        let text = entry("slow", "one", "role = \"infer\"\nrequests-per-second = 0.001");
        let (dir, ring) = ring(&text);
        grant(&ring, "one").unwrap().count_request().unwrap();
        let error = grant(&ring, "one").unwrap().count_request().unwrap_err();
        let error = error.error("slow");
        assert!(error.retry_after().unwrap() > Duration::from_secs(900), "{error}");
        let session = ring.open_session("one").unwrap();
        let path = dir.path().join("keys.toml");
        let both = text + &entry("new", "two", "role = \"read\"");
        std::fs::write(&path, &both).unwrap();
        ring.reload().unwrap();
        assert!(grant(&ring, "two").is_some());
        assert!(grant(&ring, "one").unwrap().count_request().is_err());
        assert_eq!(ring.session_key(&session).unwrap().name(), "slow");
        std::fs::write(&path, "[[keys]]\nname = 1").unwrap();
        ring.reload().unwrap_err();
        assert!(grant(&ring, "two").is_some(), "a mistake changes nothing");
        std::fs::write(&path, "").unwrap();
        ring.reload().unwrap();
        assert!(grant(&ring, "one").is_none() && ring.session_key(&session).is_none());
    }

    #[test]
    fn flags_are_keys() {
        let read = |api_key, admin_key| {
            KeyRing::read(KeySources { file: None, api_key, admin_key }).unwrap()
        };
        assert!(read(None, None).is_none());
        let role = |ring: &KeyRing, key: &str| grant(ring, key).map(|grant| grant.role());
        let api = read(Some("api"), None).unwrap();
        assert_eq!(role(&api, "api"), Some(KeyRole::Admin), "the only key may do everything");
        let both = read(Some("api"), Some("admin")).unwrap();
        assert_eq!(role(&both, "api"), Some(KeyRole::Write));
        assert_eq!(role(&both, "admin"), Some(KeyRole::Admin));
        let same = read(Some("one"), Some("one")).unwrap();
        assert_eq!(role(&same, "one"), Some(KeyRole::Admin));
        assert!(api.open_session("other").is_err());
        let names: Vec<_> = both.usage().into_iter().map(|usage| usage.name).collect();
        assert!(names.len() == 2 && names.contains(&"--api-key".into()));
    }
}
