//! Sessions of browsers that have logged in with a key.
//!
//! A cookie holds a random text, not the key. The server keeps the hash of that text, and the hash
//! of the key.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use base::{Error, Result};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::{SecureRandom, SystemRandom};

/// Maximum open sessions.
const SESSIONS_MAX: usize = 1024;
/// Maximum open sessions of one key. A further one ends the oldest.
const SESSIONS_OF_KEY_MAX: usize = 16;
/// Random bytes of a session.
const ID_BYTES: usize = 32;
/// Time after which a login ends, used or not.
pub const SESSION_LIFETIME: Duration = Duration::from_secs(12 * 3600);
/// Retry advice if there are too many sessions.
const RETRY_AFTER: Duration = Duration::from_secs(60);

/// The text by which a browser is recognised.
#[derive(Clone, PartialEq, Eq)]
pub struct SessionId(String);

impl SessionId {
    /// Returns the session of a cookie's value.
    pub(crate) fn of_cookie(text: &str) -> SessionId {
        SessionId(text.to_owned())
    }

    /// Returns the value of the cookie.
    pub fn cookie(&self) -> &str {
        &self.0
    }

    fn hash(&self) -> [u8; 32] {
        *blake3::hash(self.0.as_bytes()).as_bytes()
    }
}

impl std::fmt::Debug for SessionId {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("...")
    }
}

/// A session, which ends some time after it was opened.
#[derive(Clone, Copy, Debug)]
struct BrowserSession {
    /// Hash of the key.
    key: [u8; 32],
    opened: Instant,
}

impl BrowserSession {
    fn is_open(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.opened) < SESSION_LIFETIME
    }
}

/// Open sessions by the hash of their text.
#[derive(Debug, Default)]
pub(super) struct Sessions(Mutex<HashMap<[u8; 32], BrowserSession>>);

impl Sessions {
    fn lock(&self) -> MutexGuard<'_, HashMap<[u8; 32], BrowserSession>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a session for the key of this hash.
    ///
    /// # Errors
    /// `Unavailable` with retry advice if too many are open. `Internal` without random bytes.
    pub(super) fn open(&self, key: [u8; 32]) -> Result<SessionId> {
        self.open_at(key, Instant::now())
    }

    /// Opens a session at `now`, and ends the oldest one of the key if it has too many.
    fn open_at(&self, key: [u8; 32], now: Instant) -> Result<SessionId> {
        let mut bytes = [0; ID_BYTES];
        let filled = SystemRandom::new().fill(&mut bytes);
        filled.map_err(|_| Error::internal("the system gives no random bytes"))?;
        let id = SessionId(URL_SAFE_NO_PAD.encode(bytes));
        let mut sessions = self.lock();
        sessions.retain(|_, session| session.is_open(now));
        let own = sessions.iter().filter(|(_, session)| session.key == key);
        if own.clone().count() >= SESSIONS_OF_KEY_MAX {
            let oldest = own.min_by_key(|(_, session)| session.opened).map(|(id, _)| *id);
            oldest.and_then(|oldest| sessions.remove(&oldest));
        }
        if sessions.len() >= SESSIONS_MAX {
            let text = format!("{SESSIONS_MAX} sessions are open already; try again later");
            return Err(Error::unavailable(text).with_retry_after(RETRY_AFTER));
        }
        sessions.insert(id.hash(), BrowserSession { key, opened: now });
        Ok(id)
    }

    /// Returns the hash of the session's key, if the session is open.
    pub(super) fn find(&self, id: &SessionId) -> Option<[u8; 32]> {
        self.find_at(id, Instant::now())
    }

    fn find_at(&self, id: &SessionId, now: Instant) -> Option<[u8; 32]> {
        let session = *self.lock().get(&id.hash())?;
        session.is_open(now).then_some(session.key)
    }

    pub(super) fn close(&self, id: &SessionId) {
        self.lock().remove(&id.hash());
    }

    pub(super) fn count(&self) -> usize {
        let now = Instant::now();
        self.lock().values().filter(|session| session.is_open(now)).count()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn sessions_end() {
        let sessions = Sessions::default();
        let now = Instant::now();
        let id = sessions.open_at([1; 32], now).unwrap();
        assert_eq!(id.cookie().len(), 43);
        assert_eq!(sessions.find_at(&id, now), Some([1; 32]));
        assert_eq!(sessions.find_at(&id, now + SESSION_LIFETIME), None);
        assert_eq!(sessions.find(&SessionId::of_cookie("other")), None);
        sessions.close(&id);
        assert_eq!((sessions.find(&id), sessions.count()), (None, 0));
    }

    #[test]
    fn sessions_are_bounded() {
        let sessions = Sessions::default();
        let start = Instant::now();
        let at = |second| start + Duration::from_secs(second);
        let ids: Vec<_> = (0..=SESSIONS_OF_KEY_MAX as u64)
            .map(|second| sessions.open_at([0; 32], at(second)).unwrap())
            .collect();
        assert_eq!(sessions.find(&ids[0]), None, "the oldest one ends");
        assert!(ids[1..].iter().all(|id| sessions.find(id).is_some()));
        let key = |number: usize| {
            let mut key = [1; 32];
            key[..8].copy_from_slice(&number.to_le_bytes());
            key
        };
        for number in sessions.count()..SESSIONS_MAX {
            sessions.open_at(key(number), at(20)).unwrap();
        }
        let error = sessions.open_at([2; 32], at(20)).unwrap_err();
        assert!(error.retry_after().is_some(), "{error}");
        let late = start + SESSION_LIFETIME + Duration::from_secs(60);
        assert!(sessions.open_at([2; 32], late).is_ok(), "expired sessions are removed");
    }
}
