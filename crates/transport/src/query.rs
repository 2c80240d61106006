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
    query.map(|Query(parameters)| parameters).map_err(|error| Error::invalid(error.body_text()))
}

/// Parses a parameter that is true or false. A parameter without a value is true, a missing one is
/// false.
///
/// # Errors
/// `InvalidArgument` for another value than `0`, `1`, `false` and `true`.
pub fn query_flag(name: &str, value: Option<&str>) -> Result<bool> {
    match value {
        None | Some("0" | "false") => Ok(false),
        Some("" | "1" | "true") => Ok(true),
        Some(other) => Err(Error::invalid(format!("{name}={other} is neither 0 nor 1"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_0_or_1() {
        assert_eq!(
            [None, Some("0"), Some("1"), Some("")].map(|value| query_flag("x", value).unwrap()),
            [false, false, true, true]
        );
        assert!(query_flag("x", Some("maybe")).is_err());
    }
}
