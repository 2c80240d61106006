//! Tokens as Qdrant takes them: JSON Web Tokens, signed with the API key by HMAC-SHA256.
//!
//! Claims that restrict a token are honoured, or the token is refused by the claim's name.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use base::{Error, Result};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::hmac;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::key::{AccessKey, KeyValidity};
use super::limits::KeyLimits;
use super::names::NameRule;
use super::role::KeyRole;

/// Longest token in bytes.
const TOKEN_BYTES_MAX: usize = 16 << 10;
/// Maximum collections of a token.
const COLLECTIONS_MAX: usize = 256;
/// Longest part of a subject in the name of a token.
const SUBJECT_CHARS_MAX: usize = 64;
/// Difference of the clocks of signer and server.
const CLOCK_LEEWAY: Duration = Duration::from_secs(30);
/// Claims that restrict nothing here. They are names for people, and fields for other receivers.
const IGNORED: [&str; 4] = ["iss", "aud", "iat", "jti"];

#[derive(Deserialize)]
struct TokenHeader {
    alg: String,
    #[serde(default)]
    crit: Option<Value>,
}

#[derive(Deserialize)]
struct TokenClaims {
    exp: Option<u64>,
    nbf: Option<u64>,
    #[serde(default)]
    access: TokenAccess,
    sub: Option<String>,
    subject: Option<String>,
    #[serde(flatten)]
    others: Map<String, Value>,
}

/// Rights of a token.
#[derive(Deserialize)]
#[serde(untagged)]
enum TokenAccess {
    Global(String),
    Collections(Vec<CollectionAccess>),
}

impl Default for TokenAccess {
    /// Returns the access of a token without the claim. It is that of the key that signed the
    /// token, as in Qdrant.
    fn default() -> TokenAccess {
        TokenAccess::Global("m".to_owned())
    }
}

#[derive(Deserialize)]
struct CollectionAccess {
    collection: String,
    access: String,
    #[serde(flatten)]
    others: Map<String, Value>,
}

/// Reads tokens that are signed with one key.
pub(super) struct TokenReader {
    secret: hmac::Key,
    /// Role of the key.
    role: KeyRole,
    /// Limits of the key, which its tokens share.
    limits: Arc<KeyLimits>,
}

impl std::fmt::Debug for TokenReader {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("TokenReader").field("role", &self.role).finish_non_exhaustive()
    }
}

fn refused(why: impl std::fmt::Display) -> Error {
    Error::denied(format!("the token (JWT) is not accepted: {why}"))
}

impl TokenReader {
    /// Creates the reader of tokens that are signed with `secret`, the text of `key`.
    pub(super) fn new(secret: &str, key: &AccessKey) -> TokenReader {
        TokenReader {
            secret: hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes()),
            role: key.role,
            limits: key.limits.clone(),
        }
    }

    /// Returns the rights of a token, or `None` if `text` does not have the form of a token.
    ///
    /// # Errors
    /// `PermissionDenied` with the reason why the token is not accepted.
    pub(super) fn read(&self, text: &[u8], now: SystemTime) -> Option<Result<AccessKey>> {
        let text = std::str::from_utf8(text).ok()?;
        let (signed, signature) = text.rsplit_once('.')?;
        let (header, claims) = signed.split_once('.')?;
        let header: TokenHeader = serde_json::from_slice(&decoded(header)?).ok()?;
        let claims = decoded(claims)?;
        let signature = decoded(signature)?;
        if text.len() > TOKEN_BYTES_MAX {
            return Some(Err(refused(format!("it is longer than {TOKEN_BYTES_MAX} bytes"))));
        }
        Some(self.check(&header, signed, &signature).and_then(|()| {
            let claims: TokenClaims = serde_json::from_slice(&claims)
                .map_err(|error| refused(format!("its claims cannot be read: {error}")))?;
            claims.check_time(now)?;
            self.rights(text, claims)
        }))
    }

    fn check(&self, header: &TokenHeader, signed: &str, signature: &[u8]) -> Result<()> {
        if header.alg != "HS256" {
            return Err(refused("its algorithm is not HS256"));
        }
        if header.crit.is_some() {
            return Err(refused("the header \"crit\" is not supported"));
        }
        hmac::verify(&self.secret, signed.as_bytes(), signature)
            .map_err(|_| refused("it is not signed with this server's API key"))
    }

    /// Returns the rights of a valid token. They are those of Qdrant's claim `access`. Tokens that
    /// were made for collections have no models.
    fn rights(&self, text: &str, claims: TokenClaims) -> Result<AccessKey> {
        claims.check_names()?;
        let subject = claims.subject.or(claims.sub).unwrap_or_default();
        let subject: String =
            subject.chars().filter(|c| !c.is_control()).take(SUBJECT_CHARS_MAX).collect();
        let name = match subject.as_str() {
            "" => "token".to_owned(),
            subject => format!("token {subject}"),
        };
        let mut key = AccessKey {
            name: name.into(),
            hash: blake3::hash(text.as_bytes()),
            role: self.role,
            models: None,
            collections: None,
            collections_only: false,
            validity: KeyValidity::Until(claims.exp),
            limits: self.limits.clone(),
        };
        match claims.access {
            TokenAccess::Global(access) => match access.as_str() {
                "m" => {}
                "r" => {
                    key.role = KeyRole::Read;
                    // Qdrant has no models, so its tokens were not made to run any.
                    key.models = Some(Vec::new());
                }
                other => return Err(unknown_access(other)),
            },
            TokenAccess::Collections(list) => {
                key.collections = Some(rules(list)?);
                key.role = KeyRole::Write;
                key.models = Some(Vec::new());
                key.collections_only = true;
            }
        }
        Ok(key)
    }
}

impl TokenClaims {
    fn check_time(&self, now: SystemTime) -> Result<()> {
        check_end(self.exp, now)?;
        let now = base::unix_time(now);
        let early = |nbf: u64| now.saturating_add(CLOCK_LEEWAY) < Duration::from_secs(nbf);
        if self.nbf.is_some_and(early) {
            return Err(refused("it is not valid yet"));
        }
        Ok(())
    }

    fn check_names(&self) -> Result<()> {
        let known = |name: &String| IGNORED.contains(&name.as_str());
        let present = self.others.iter().filter(|(_, value)| !value.is_null());
        match present.map(|(name, _)| name).find(|name| !known(name)) {
            Some(name) => Err(refused(format!("the claim \"{}\" is not supported", plain(name)))),
            None => Ok(()),
        }
    }
}

/// Checks that a token which ends at `exp`, in seconds since the epoch, has not expired at `now`.
///
/// # Errors
/// `PermissionDenied` if it has.
pub(super) fn check_end(exp: Option<u64>, now: SystemTime) -> Result<()> {
    let now = base::unix_time(now);
    let is_past = |exp| now > Duration::from_secs(exp).saturating_add(CLOCK_LEEWAY);
    if exp.is_some_and(is_past) { Err(refused("it has expired")) } else { Ok(()) }
}

/// Returns the rules of a token's collections.
fn rules(list: Vec<CollectionAccess>) -> Result<Vec<NameRule>> {
    if list.len() > COLLECTIONS_MAX {
        return Err(refused(format!("it names more than {COLLECTIONS_MAX} collections")));
    }
    let mut names = HashSet::new();
    let mut rules = Vec::with_capacity(list.len());
    for entry in list {
        let CollectionAccess { collection, access, others } = entry;
        if let Some((name, _)) = others.iter().find(|(_, value)| !value.is_null()) {
            return Err(refused(format!(
                "\"{}\" of the claim \"access\" is not supported",
                plain(name)
            )));
        }
        let writes = match access.as_str() {
            "r" => false,
            "rw" => true,
            other => return Err(unknown_access(other)),
        };
        if !names.insert(collection.clone()) {
            return Err(refused(format!("it names collection {} twice", plain(&collection))));
        }
        rules.push(NameRule::Exact { name: collection, writes });
    }
    Ok(rules)
}

fn unknown_access(access: &str) -> Error {
    refused(format!("the access \"{}\" is not supported", plain(access)))
}

/// Returns a name of the token for a message.
fn plain(name: &str) -> String {
    name.escape_debug().take(SUBJECT_CHARS_MAX).collect()
}

fn decoded(part: &str) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(part).ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::time::UNIX_EPOCH;

    use serde_json::json;

    use super::super::key::KeyGrant;
    use super::super::role::{CollectionScope, Operation};
    use super::*;

    const NOW: u64 = 1_700_000_000;

    fn signed(header: Value, claims: Value, secret: &str) -> String {
        let part = |value: Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let text = format!("{}.{}", part(header), part(claims));
        let secret = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
        let signature = URL_SAFE_NO_PAD.encode(hmac::sign(&secret, text.as_bytes()));
        format!("{text}.{signature}")
    }

    fn read(claims: Value) -> Result<KeyGrant> {
        read_text(&signed(json!({"alg": "HS256", "typ": "JWT"}), claims, "secret")).unwrap()
    }

    fn read_text(text: &str) -> Option<Result<KeyGrant>> {
        let key = AccessKey::of_flag("--api-key", "secret", KeyRole::Write);
        let now = UNIX_EPOCH + Duration::from_secs(NOW);
        let read = TokenReader::new("secret", &key).read(text.as_bytes(), now);
        read.map(|token| token.map(|key| KeyGrant(Arc::new(key))))
    }

    fn operation(role: KeyRole, collections: CollectionScope) -> Operation {
        Operation { collections, ..Operation::new(role) }
    }

    #[test]
    fn a_token_of_a_collection_does_not_create_it() {
        let token = read(json!({ "access": [{ "collection": "a", "access": "rw" }] })).unwrap();
        assert!(token.check_create("a").is_err());
        assert!(read(json!({})).unwrap().check_create("a").is_ok());
    }

    /// The example of RFC 7515, appendix A.1: a foreign signer's signature is accepted.
    #[test]
    fn a_known_signature_is_verified() {
        let text = "eyJ0eXAiOiJKV1QiLA0KICJhbGciOiJIUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFt\
                    cGxlLmNvbS9pc19yb290Ijp0cnVlfQ.dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk";
        let secret = "AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ-EstJQLr_T-1qS0gZH75aKtMN3Yj0iPS4hcgUuTwjAzZr1Z9CAow";
        let secret = URL_SAFE_NO_PAD.decode(secret).unwrap();
        let key = AccessKey::of_flag("--api-key", "", KeyRole::Write);
        let reader = TokenReader {
            secret: hmac::Key::new(hmac::HMAC_SHA256, &secret),
            role: key.role,
            limits: key.limits,
        };
        let error = reader.read(text.as_bytes(), UNIX_EPOCH + Duration::from_secs(NOW));
        assert!(error.unwrap().unwrap_err().message().contains("expired"));
        let early = reader.read(text.as_bytes(), UNIX_EPOCH + Duration::from_secs(1_300_000_000));
        assert!(early.unwrap().unwrap_err().message().contains("example.com/is_root"));
    }

    #[test]
    fn collections_are_read_or_written() {
        let access =
            json!([{"collection": "a", "access": "r"}, {"collection": "b*", "access": "rw"}]);
        let grant = read(json!({"access": access, "exp": NOW, "sub": "team"})).unwrap();
        assert_eq!(grant.name(), "token team");
        let points = |name: &str| CollectionScope::Points(name.into());
        let allowed = |role, scope| grant.check(&operation(role, scope)).is_ok();
        use KeyRole::{Admin, Infer, Read, Write};
        assert!(allowed(Read, points("a")) && !allowed(Write, points("a")));
        assert!(allowed(Read, points("b*")) && allowed(Write, points("b*")));
        assert!(!allowed(Read, points("bc")), "names are not patterns");
        assert!(!allowed(Write, CollectionScope::Whole("b*".into())));
        assert!(allowed(Read, CollectionScope::Names) && !allowed(Read, CollectionScope::Server));
        assert!(!allowed(Admin, CollectionScope::Server) && !allowed(Write, CollectionScope::Any));
        assert!(!allowed(Infer, CollectionScope::Server) && !grant.sees_model("m"));
        assert!(grant.sees_collection("a") && !grant.sees_collection("c"));
    }

    #[test]
    fn global_access() {
        let reads = read(json!({"access": "r"})).unwrap();
        assert_eq!((reads.role(), reads.sees_model("m")), (KeyRole::Read, false));
        let manages = read(json!({"access": "m", "iat": 1})).unwrap();
        assert_eq!((manages.role(), manages.sees_model("m")), (KeyRole::Write, true));
        assert_eq!(read(json!({})).unwrap().role(), KeyRole::Write);
    }

    #[test]
    fn refusals_name_the_reason() {
        let wrong = |claims: Value, wanted: &str| {
            let error = read(claims).unwrap_err();
            assert!(error.message().contains(wanted), "{error}");
        };
        wrong(json!({"exp": NOW - 31}), "expired");
        wrong(json!({"nbf": NOW + 31}), "not valid yet");
        wrong(json!({"exp": "soon"}), "cannot be read");
        wrong(json!({"access": "x"}), "access \"x\"");
        wrong(json!({"access": [{"collection": "a", "access": "prw"}]}), "access \"prw\"");
        let payload = json!([{"collection": "a", "access": "r", "payload": {"k": 1}}]);
        wrong(json!({"access": payload}), "\"payload\" of the claim");
        let twice =
            json!([{"collection": "a", "access": "r"}, {"collection": "a", "access": "rw"}]);
        wrong(json!({"access": twice}), "twice");
        let many = |count: usize| {
            let entry = |n: usize| json!({"collection": format!("c{n}"), "access": "r"});
            json!({"access": (0..count).map(entry).collect::<Vec<_>>()})
        };
        wrong(many(COLLECTIONS_MAX + 1), "more than 256 collections");
        assert!(read(many(COLLECTIONS_MAX)).is_ok());
        wrong(json!({"sub": "x".repeat(TOKEN_BYTES_MAX)}), "longer than 16384 bytes");
        let exists = json!({"collection": "users", "matches": [{"key": "id", "value": 1}]});
        wrong(json!({"value_exists": exists}), "claim \"value_exists\"");
        assert!(read(json!({"exp": NOW - 30, "nbf": NOW + 30, "value_exists": null})).is_ok());
    }

    #[test]
    fn only_signed_tokens_count() {
        let (header, claims) = (json!({"alg": "HS256"}), json!({"access": "m"}));
        let message = |header: &Value, secret: &str| {
            let text = signed(header.clone(), claims.clone(), secret);
            read_text(&text).unwrap().unwrap_err().message().to_owned()
        };
        assert!(message(&header, "other").contains("not signed"));
        assert!(message(&json!({"alg": "none"}), "secret").contains("HS256"));
        assert!(message(&json!({"alg": "HS256", "crit": ["b64"]}), "secret").contains("crit"));
        for text in ["", "a.b", "a.b.c", "mp_key", "....", "e30.e30.e30"] {
            assert!(read_text(text).is_none(), "{text}");
        }
        let good = signed(header, claims.clone(), "secret");
        let (start, _) = good.rsplit_once('.').unwrap();
        assert!(read_text(&format!("{start}.")).unwrap().is_err());
    }
}
