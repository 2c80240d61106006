//! The key of a request, by which a rollout assigns it to a version.

use base::{Error, Result};
use http::HeaderMap;
use lifecycle::RequestKey;

/// Header, and metadata of gRPC, with the key.
const HEADER: &str = "x-request-key";

/// Returns the key in the headers of a request.
///
/// # Errors
/// `InvalidArgument` for several keys or one that is too long.
pub fn of_headers(headers: &HeaderMap) -> Result<Option<RequestKey>> {
    let mut keys = headers.get_all(HEADER).iter();
    let Some(key) = keys.next() else { return Ok(None) };
    if keys.next().is_some() {
        return Err(Error::invalid(format!("the request has several headers {HEADER}; send one")));
    }
    RequestKey::new(key.as_bytes())
}

/// Returns the key in a parameter, or else the key in the headers.
///
/// # Errors
/// `InvalidArgument` for a key that is too long.
pub fn of_parameter(parameter: &str, header: Option<RequestKey>) -> Result<Option<RequestKey>> {
    Ok(RequestKey::new(parameter.as_bytes())?.or(header))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_one_key() {
        let mut headers = HeaderMap::new();
        assert_eq!(of_headers(&headers).unwrap(), None);
        headers.append(HEADER, "a".parse().unwrap());
        let header = of_headers(&headers).unwrap();
        assert_eq!(header, RequestKey::new(b"a").unwrap());
        assert_eq!(of_parameter("", header.clone()).unwrap(), header);
        assert_eq!(of_parameter("b", header).unwrap(), RequestKey::new(b"b").unwrap());
        headers.append(HEADER, "b".parse().unwrap());
        assert!(of_headers(&headers).is_err());
    }
}
