//! Keys in the headers of a request.

use base::Result;
use http::{HeaderMap, HeaderName, HeaderValue, header};

use super::key::KeyGrant;
use super::key_ring::KeyRing;
use super::sessions::SessionId;

/// Header of the key in requests of Qdrant's clients.
const API_KEY: HeaderName = HeaderName::from_static("api-key");
/// Cookie of a browser's session.
pub const SESSION_COOKIE: &str = "millpond_session";

/// The part of a request that shows a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeySource {
    /// A header that no page of another site can set.
    Header,
    /// A cookie, which a browser adds to every request.
    Session,
}

/// Returns the key that a request shows, and the place of the key.
///
/// # Errors
/// `PermissionDenied` with the reason why a token is not accepted.
pub(super) fn found_key(
    keys: &KeyRing,
    headers: &HeaderMap,
) -> Result<Option<(KeyGrant, KeySource)>> {
    let password = basic_password(headers);
    let shown = shown_keys(headers).chain(password.as_deref());
    if let Some(grant) = keys.find(shown)? {
        return Ok(Some((grant, KeySource::Header)));
    }
    let session = session_of(headers).and_then(|session| keys.session_key(&session));
    Ok(session.map(|grant| (grant, KeySource::Session)))
}

/// Returns true if a request shows a key in a header, of this server or not.
pub(super) fn shows_key(headers: &HeaderMap) -> bool {
    let password = basic_password(headers);
    shown_keys(headers).chain(password.as_deref()).any(|key| !key.is_empty())
}

/// Returns the session that a request's cookie names.
pub fn session_of(headers: &HeaderMap) -> Option<SessionId> {
    let lines = headers.get_all(header::COOKIE).iter().filter_map(|line| line.to_str().ok());
    let mut cookies = lines.flat_map(|line| line.split(';')).map(str::trim);
    cookies.find_map(|cookie| {
        let (name, value) = cookie.split_once('=')?;
        (name == SESSION_COOKIE).then(|| SessionId::of_cookie(value))
    })
}

/// Returns the keys of a request: the header `api-key`, and the bearer token.
fn shown_keys(headers: &HeaderMap) -> impl Iterator<Item = &[u8]> {
    let own = headers.get(API_KEY).map(HeaderValue::as_bytes);
    own.into_iter().chain(credentials(headers, b"bearer "))
}

/// Returns the password of a client that sends a user and a password. The password is the key.
fn basic_password(headers: &HeaderMap) -> Option<Vec<u8>> {
    use base64::Engine as _;
    let text = credentials(headers, b"basic ")?;
    let text = base64::engine::general_purpose::STANDARD.decode(text).ok()?;
    let colon = text.iter().position(|byte| *byte == b':')?;
    Some(text[colon + 1..].to_vec())
}

/// Returns the text after `scheme` in the authorization of a request.
fn credentials<'a>(headers: &'a HeaderMap, scheme: &[u8]) -> Option<&'a [u8]> {
    let value = headers.get(header::AUTHORIZATION)?.as_bytes();
    let (start, rest) = value.split_at_checked(scheme.len())?;
    start.eq_ignore_ascii_case(scheme).then_some(rest)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::super::key_ring::KeySources;
    use super::*;

    fn ring() -> KeyRing {
        let sources = KeySources { api_key: Some("s3cret"), ..KeySources::default() };
        KeyRing::read(sources).unwrap().unwrap()
    }

    fn source(ring: &KeyRing, name: HeaderName, value: &str) -> Option<KeySource> {
        let mut headers = HeaderMap::new();
        headers.insert(name, HeaderValue::from_str(value).unwrap());
        found_key(ring, &headers).unwrap().map(|(_, source)| source)
    }

    #[test]
    fn the_key_may_come_in_either_header() {
        let ring = ring();
        for (name, value) in [
            (API_KEY, "s3cret"),
            (header::AUTHORIZATION, "Bearer s3cret"),
            (header::AUTHORIZATION, "bearer s3cret"),
            // "me:s3cret"
            (header::AUTHORIZATION, "Basic bWU6czNjcmV0"),
        ] {
            assert_eq!(source(&ring, name, value), Some(KeySource::Header), "{value}");
        }
        for (name, value) in [
            (API_KEY, "s3cre"),
            (API_KEY, "s3cret "),
            (API_KEY, ""),
            (header::AUTHORIZATION, "s3cret"),
            (header::AUTHORIZATION, "Basic s3cret"),
            (header::AUTHORIZATION, "Bearer"),
            (header::COOKIE, "s3cret"),
            (header::COOKIE, "millpond_session=s3cret"),
        ] {
            assert_eq!(source(&ring, name.clone(), value), None, "{name}: {value}");
        }
        assert!(found_key(&ring, &HeaderMap::new()).unwrap().is_none());
    }

    #[test]
    fn a_session_counts_as_its_key() {
        let ring = ring();
        let session = ring.open_session("s3cret").unwrap();
        let cookie = format!("a=b; {SESSION_COOKIE}={}; c=d", session.cookie());
        assert_eq!(source(&ring, header::COOKIE, &cookie), Some(KeySource::Session));
        ring.close_session(&session);
        assert_eq!(source(&ring, header::COOKIE, &cookie), None);
    }
}
