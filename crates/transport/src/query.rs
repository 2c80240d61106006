//! Parameters of query strings.

use axum::extract::Query;
use axum::extract::rejection::QueryRejection;
use base::{Error, Result};

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

    use axum::http::Uri;

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
    fn flags_are_0_or_1() {
        assert_eq!(
            [None, Some("0"), Some("1"), Some("")].map(|value| query_flag("x", value).unwrap()),
            [false, false, true, true]
        );
        assert!(query_flag("x", Some("maybe")).is_err());
    }
}
