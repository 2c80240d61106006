//! Requests and responses of the REST interface.

use std::fmt::Write;

use base::{Error, Result};
use http::Method;
use protocol::qdrant::read_consistency::Value as Level;
use protocol::qdrant::{ReadConsistency, ReadConsistencyType};
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::Value;

/// A request of the REST interface.
#[derive(Clone, Debug, PartialEq)]
pub struct RestRequest {
    /// The HTTP method.
    pub method: Method,
    /// Path and query string.
    pub path: String,
    /// The body, JSON text. Empty for none.
    pub body: Vec<u8>,
}

impl RestRequest {
    pub(crate) fn new(method: Method, path: String) -> RestRequest {
        RestRequest { method, path, body: Vec::new() }
    }

    /// Returns the request of a route below a collection.
    pub(crate) fn collection(method: Method, collection: &str, route: &str) -> RestRequest {
        RestRequest::new(method, format!("/collections/{}/{route}", segment(collection)))
    }

    /// Adds the client's time limit in seconds.
    pub(crate) fn with_timeout(self, seconds: Option<u64>) -> RestRequest {
        match seconds {
            Some(seconds) => self.with_parameter("timeout", &seconds.to_string()),
            None => self,
        }
    }

    /// Adds that the client waits for the change.
    pub(crate) fn with_wait(self, wait: Option<bool>) -> RestRequest {
        if wait == Some(true) { self.with_parameter("wait", "true") } else { self }
    }

    /// Adds the consistency that a read needs. A cluster follows it.
    ///
    /// # Errors
    /// `InvalidArgument` for an unknown level.
    pub(crate) fn with_consistency(self, needed: Option<ReadConsistency>) -> Result<RestRequest> {
        let level = match needed.and_then(|needed| needed.value) {
            None => return Ok(self),
            Some(Level::Factor(replicas)) => replicas.to_string(),
            Some(Level::Type(number)) => match ReadConsistencyType::try_from(number) {
                Ok(level) => level.as_str_name().to_lowercase(),
                Err(_) => {
                    return Err(Error::invalid(
                        "read_consistency: the interface has no such level",
                    ));
                }
            },
        };
        Ok(self.with_parameter("consistency", &level))
    }

    /// Adds a parameter of the query string. Its value needs no escapes.
    fn with_parameter(mut self, name: &str, value: &str) -> RestRequest {
        let joint = if self.path.contains('?') { '&' } else { '?' };
        self.path.push_str(&format!("{joint}{name}={value}"));
        self
    }

    pub(crate) fn with_json(self, body: &Value) -> RestRequest {
        self.with_body(body.to_string().into_bytes())
    }

    pub(crate) fn with_body(self, body: Vec<u8>) -> RestRequest {
        RestRequest { body, ..self }
    }
}

/// Returns a name as one segment of a path (RFC 3986). All bytes but the unreserved ones are
/// escaped.
pub(crate) fn segment(name: &str) -> String {
    let mut escaped = String::with_capacity(name.len());
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'~') {
            escaped.push(char::from(byte));
        } else {
            // A dot is escaped too, because the segments "." and ".." would be left out of a path.
            let _ = write!(escaped, "%{byte:02X}");
        }
    }
    escaped
}

/// JSON text of a successful response.
#[derive(Clone, Copy, Debug)]
pub struct RestResponse<'a> {
    json: &'a [u8],
}

/// The envelope of a result.
#[derive(Deserialize)]
pub(crate) struct Envelope<T> {
    pub(crate) result: T,
    /// Seconds that the server took.
    #[serde(default)]
    pub(crate) time: f64,
}

#[derive(Deserialize)]
struct PartialResult {
    #[serde(default)]
    partial: bool,
}

/// Member beside the result that a root of a cluster adds if shards gave no answer.
#[derive(Deserialize)]
struct ResponseCoverage {
    coverage: Option<IgnoredAny>,
}

impl<'a> RestResponse<'a> {
    /// Wraps the body of a response.
    pub fn new(json: &'a [u8]) -> RestResponse<'a> {
        RestResponse { json }
    }

    pub(crate) fn parse<T: DeserializeOwned>(&self) -> Result<Envelope<T>> {
        serde_json::from_slice(self.json)
            .map_err(|error| Error::internal("a response cannot be read").caused_by(error))
    }

    /// Returns true if damage or missing shards may have left points out of the result, or out of a
    /// result of a batch. Messages have no field for it.
    pub(crate) fn is_partial(&self) -> bool {
        self.lacks_shards() || self.lacks_points()
    }

    /// Returns true if shards of a cluster gave no answer. A result that is a list of points has no
    /// member for it.
    fn lacks_shards(&self) -> bool {
        // Long responses are read again only if they may say so.
        if memchr::memmem::find(self.json, COVERAGE).is_none() {
            return false;
        }
        let response = serde_json::from_slice::<ResponseCoverage>(self.json);
        response.is_ok_and(|response| response.coverage.is_some())
    }

    /// Returns true if the result, or a result of a batch, says that points may be missing.
    fn lacks_points(&self) -> bool {
        if memchr::memmem::find(self.json, PARTIAL).is_none() {
            return false;
        }
        let one = serde_json::from_slice::<Envelope<PartialResult>>(self.json);
        if let Ok(Envelope { result, .. }) = one {
            return result.partial;
        }
        // The result of a batch is a list.
        let batch = serde_json::from_slice::<Envelope<Vec<PartialResult>>>(self.json);
        batch.is_ok_and(|Envelope { result, .. }| result.iter().any(|one| one.partial))
    }
}

/// The member of a result that may lack points, in the text of a response.
const PARTIAL: &[u8] = b"\"partial\":true";
/// The name of the member with the shards that answered, in the text of a response.
const COVERAGE: &[u8] = b"\"coverage\":";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_one_segment_of_a_path() {
        assert_eq!(segment("a-b_c~1"), "a-b_c~1");
        assert_eq!(segment("a/b?c=d e"), "a%2Fb%3Fc%3Dd%20e");
        assert_eq!(segment(".."), "%2E%2E");
        assert_eq!(segment("é"), "%C3%A9");
    }

    #[test]
    fn a_partial_result_of_a_batch_is_seen() {
        let is_partial = |json: &str| RestResponse::new(json.as_bytes()).is_partial();
        assert!(is_partial(r#"{"result":{"points":[],"partial":true},"time":0.5}"#));
        assert!(is_partial(
            r#"{"result":[{"points":[]},{"points":[],"partial":true}],"time":0.5}"#
        ));
        // The members of payloads say nothing about the result.
        for json in [
            r#"{"result":{"points":[{"id":1,"payload":{"partial":true}}]},"time":0.5}"#,
            r#"{"result":[{"points":[{"id":1,"payload":{"partial":true}}]}],"time":0.5}"#,
            r#"{"result":[{"id":1,"payload":{"partial":true}}],"time":0.5}"#,
        ] {
            assert!(!is_partial(json), "{json}");
        }
    }

    #[test]
    fn a_list_without_the_points_of_a_shard_is_partial() {
        let is_partial = |json: &str| RestResponse::new(json.as_bytes()).is_partial();
        let list =
            r#"{"result":[{"id":1}],"coverage":{"shards":3,"of":4},"status":"ok","time":0.5}"#;
        assert!(is_partial(list));
        // A payload says nothing about the response.
        let payload =
            r#"{"result":[{"id":1,"payload":{"coverage":{"shards":3,"of":4}}}],"time":0}"#;
        assert!(!is_partial(payload));
    }
}
