//! Parsers of this module for fuzz targets.

use std::time::{Duration, UNIX_EPOCH};

use base::Result;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::hmac;

use super::key::AccessKey;
use super::key_file;
use super::role::KeyRole;
use super::tokens::TokenReader;

const SECRET: &str = "a secret that no input contains";
/// Time at which tokens are read, in seconds since the epoch.
const NOW: Duration = Duration::from_secs(1_700_000_000);

/// Parses a file of keys.
///
/// # Errors
/// The errors of the parser.
pub fn key_file(text: &str) -> Result<()> {
    key_file::parse(text).map(drop)
}

/// Returns true if `text` is accepted as a token.
pub fn token(text: &[u8]) -> bool {
    let key = AccessKey::of_flag("key", SECRET, KeyRole::Write);
    matches!(TokenReader::new(SECRET, &key).read(text, UNIX_EPOCH + NOW), Some(Ok(_)))
}

/// Signs `claims` and returns true if the token is accepted.
pub fn signed_token(claims: &[u8]) -> bool {
    let header = URL_SAFE_NO_PAD.encode(r#"{"alg":"HS256"}"#);
    let text = format!("{header}.{}", URL_SAFE_NO_PAD.encode(claims));
    let secret = hmac::Key::new(hmac::HMAC_SHA256, SECRET.as_bytes());
    let signature = URL_SAFE_NO_PAD.encode(hmac::sign(&secret, text.as_bytes()));
    token(format!("{text}.{signature}").as_bytes())
}
