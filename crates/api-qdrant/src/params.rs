//! Parameters of the query string, and parts of their parsers that a cluster's roots share.

use std::fmt::Display;
use std::time::Duration;

use axum::extract::Query;
use base::{Error, Result};
use http::Uri;

use crate::json;

/// Parameters of a request's query string. `ordering` and `consistency` are checked only, because
/// every write is durable before its response, and there are no replicas.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct RequestParams {
    /// The client's time limit.
    pub(crate) timeout: Option<Duration>,
    /// True if the client waits for the change. A change of absent points then fails.
    pub(crate) wait: bool,
}

impl RequestParams {
    /// Reads the query string of `uri`.
    ///
    /// # Errors
    /// `InvalidArgument` for an unknown parameter, with its name, and for a malformed value.
    pub(crate) fn parse(uri: &Uri) -> Result<RequestParams> {
        let pairs = Query::<Vec<(String, String)>>::try_from_uri(uri)
            .map_err(|error| Error::invalid("the query string cannot be read").caused_by(error))?;
        let mut params = RequestParams::default();
        for (name, value) in &pairs.0 {
            match name.as_str() {
                "wait" => {
                    check_word(name, value, &["true", "false"])?;
                    params.wait = value == "true";
                }
                "ordering" => check_word(name, value, &["weak", "medium", "strong"])?,
                "consistency" if value.bytes().all(|byte| byte.is_ascii_digit()) => {
                    from_one(name, value)?;
                }
                "consistency" => check_word(name, value, &["majority", "quorum", "all"])?,
                "timeout" => params.timeout = Some(Duration::from_secs(from_one(name, value)?)),
                other => {
                    return Err(Error::invalid(format!(
                        "query parameter \"{}\" is unknown; there are wait, ordering, consistency and timeout",
                        excerpt(other)
                    )));
                }
            }
        }
        Ok(params)
    }
}

/// Returns the start of a client's text, for a message.
pub fn excerpt(text: &str) -> String {
    text.chars().take(64).collect()
}

/// Returns the error for the parameter `name` whose value is not `expected`.
pub fn malformed(name: &str, value: &str, expected: impl Display) -> Error {
    Error::invalid(format!("query parameter {name}: \"{}\" is not {expected}", excerpt(value)))
}

/// Checks that the value of the parameter `name` is one of `words`.
///
/// # Errors
/// `InvalidArgument` with the words.
pub fn check_word(name: &str, value: &str, words: &[&str]) -> Result<()> {
    if words.contains(&value) {
        return Ok(());
    }
    Err(malformed(name, value, format_args!("one of {}", words.join(", "))))
}

/// Reads the value of the parameter `name`, a whole number from 1.
///
/// # Errors
/// `InvalidArgument` for another value. The error for 0 is one of [`json::is_validation`].
pub fn from_one(name: &str, value: &str) -> Result<u64> {
    match value.parse() {
        Ok(0) => Err(json::parameter_out_of_limits(name, "value 0 invalid, must be 1 or larger")),
        Ok(number) => Ok(number),
        Err(_) => Err(malformed(name, value, "a whole number from 1")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(query: &str) -> Result<RequestParams> {
        RequestParams::parse(&format!("/collections/c/points?{query}").parse().unwrap())
    }

    #[test]
    fn known_parameters_are_read() {
        for query in ["", "wait=false&ordering=strong", "consistency=majority", "consistency=2"] {
            assert_eq!(parse(query).unwrap(), RequestParams::default(), "{query}");
        }
        let timeout = Some(Duration::from_secs(7));
        assert_eq!(parse("timeout=7&wait=true").unwrap(), RequestParams { timeout, wait: true });
        assert_eq!(
            parse("timeout=18446744073709551615").unwrap().timeout.unwrap().as_secs(),
            u64::MAX
        );
    }

    #[test]
    fn other_parameters_are_refused_by_name() {
        for (query, word) in [
            ("wiat=true", "\"wiat\""),
            ("wait=true&limit=3", "\"limit\""),
            ("wait=yes", "wait"),
            ("wait=", "wait"),
            ("ordering=loose", "ordering"),
            ("consistency=some", "consistency"),
            ("consistency=", "consistency"),
            ("timeout=soon", "timeout"),
            ("timeout=-1", "timeout"),
        ] {
            let error = parse(query).unwrap_err();
            assert!(error.message().contains(word), "{query}: {error}");
            assert!(!json::is_validation(error.message()), "{query}: {error}");
        }
        for query in ["timeout=0", "consistency=0"] {
            assert!(json::is_validation(parse(query).unwrap_err().message()), "{query}");
        }
    }
}
