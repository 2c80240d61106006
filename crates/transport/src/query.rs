//! Parameters of query strings.

use axum::extract::Query;
use axum::extract::rejection::QueryRejection;
use base::{Error, Result};
use http::Uri;

/// Maximum characters of a client's parameter in a message.
const NAME_SHOWN_MAX: usize = 64;

/// The parameters of a query string, or the reason why they cannot be read.
pub type QueryResult<T> = std::result::Result<Query<T>, QueryRejection>;

/// Returns the parameters of a query string.
///
/// # Errors
/// `InvalidArgument` that names the parameter.
pub fn query_parameters<T>(query: QueryResult<T>) -> Result<T> {
    let parameters = query.map(|Query(parameters)| parameters);
    parameters.map_err(|error| Error::invalid(reason(&error.body_text())))
}

/// Checks that a request has no query string, for a route without parameters.
///
/// # Errors
/// `InvalidArgument` that names the first parameter.
pub fn check_no_query(uri: &Uri) -> Result<()> {
    let query = uri.query().unwrap_or_default();
    if query.is_empty() {
        return Ok(());
    }
    let name = query.split(['=', '&']).next().unwrap_or_default();
    let shown: String = name.chars().take(NAME_SHOWN_MAX).collect();
    Err(Error::invalid(format!(
        "query string: this request has no parameters, so \"{shown}\" has no effect; leave it out"
    )))
}

/// Returns the reason for which a query string was refused, without the words of the libraries.
fn reason(text: &str) -> String {
    let reason = text.strip_prefix("Failed to deserialize query string: ").unwrap_or(text);
    let reason = reason
        .replace("invalid digit found in string", "a whole number from 0 is expected")
        .replace("invalid float literal", "a number is expected");
    format!("query string: {reason}")
}

/// Parses a parameter that is true or false. A parameter without a value is true, a missing one is
/// false.
///
/// # Errors
/// `InvalidArgument` for a value other than `0`, `1`, `false` and `true`.
pub fn query_flag(name: &str, value: Option<&str>) -> Result<bool> {
    match value {
        None | Some("0" | "false") => Ok(false),
        Some("" | "1" | "true") => Ok(true),
        Some(other) => Err(Error::invalid(format!("{name}={other} is neither 0 nor 1"))),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn a_wrong_number_is_explained() {
        let uri: Uri = "http://host/?k=-1".parse().unwrap();
        let query = Query::<BTreeMap<String, usize>>::try_from_uri(&uri);
        let error = query_parameters(query).unwrap_err();
        assert!(error.message().starts_with("query string: "), "{error}");
        assert!(error.message().ends_with("a whole number from 0 is expected"), "{error}");
        let threshold =
            reason("Failed to deserialize query string: threshold: invalid float literal");
        assert_eq!(threshold, "query string: threshold: a number is expected");
    }

    #[test]
    fn a_parameter_of_a_route_without_parameters_is_named() {
        let check = |uri: &str| check_no_query(&uri.parse().unwrap());
        assert_eq!((check("http://host/a"), check("http://host/a?")), (Ok(()), Ok(())));
        let error = check("http://host/a?threshold=0.5&b=1").unwrap_err();
        assert!(error.message().contains("so \"threshold\" has no effect"), "{error}");
    }

    #[test]
    fn flags_are_0_or_1() {
        assert_eq!(
            [None, Some("0"), Some("1"), Some("")].map(|value| query_flag("x", value).unwrap()),
            [false, false, true, true]
        );
        assert!(query_flag("x", Some("maybe")).is_err());
    }
}
