//! Parameters of the query string and headers.

use std::time::Duration;

use api_qdrant::params::{check_word, excerpt, from_one, malformed};
use axum::extract::Query;
use base::{Error, Result};
use http::{HeaderMap, Uri};
use serde::de::DeserializeOwned;
use transport::query_parameters;

/// Header with the smallest part of the shards that an answer needs, from 0 to 1. The query
/// parameter `min_coverage` takes precedence over it.
const MIN_COVERAGE_HEADER: &str = "x-min-coverage";

/// Parameters of a request. Qdrant's `ordering` has no effect, and `wait` has one on snapshots
/// only. Every write is in the log before its response, and the log orders the writes of a shard.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RootParams {
    /// False to answer before a snapshot is made or recovered.
    pub wait: bool,
    /// The client's time limit.
    pub timeout: Option<Duration>,
    /// Smallest part of the shards that an answer needs, from 0 to 1.
    pub min_coverage: f64,
    /// True if the answer must have every write that was acknowledged before the request.
    pub strong: bool,
}

impl Default for RootParams {
    fn default() -> RootParams {
        RootParams { wait: true, timeout: None, min_coverage: 0.0, strong: false }
    }
}

impl RootParams {
    /// Reads the query string of `uri` and the header `x-min-coverage`.
    ///
    /// # Errors
    /// `InvalidArgument` for an unknown parameter, with its name, and for a malformed value.
    pub(super) fn parse(uri: &Uri, headers: &HeaderMap) -> Result<RootParams> {
        let mut params = RootParams::of_headers(headers)?;
        for (name, value) in form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes()) {
            match &*name {
                "wait" => {
                    check_word(&name, &value, &["true", "false"])?;
                    params.wait = value == "true";
                }
                "ordering" => check_word(&name, &value, &["weak", "medium", "strong"])?,
                _ if params.take(&name, &value)? => {}
                other => {
                    return Err(Error::invalid(format!(
                        "query parameter \"{}\" is unknown; there are wait, ordering, consistency, \
                         timeout and min_coverage",
                        excerpt(other)
                    )));
                }
            }
        }
        Ok(params)
    }

    fn of_headers(headers: &HeaderMap) -> Result<RootParams> {
        let mut params = RootParams::default();
        if let Some(value) = headers.get(MIN_COVERAGE_HEADER) {
            params.min_coverage = part(MIN_COVERAGE_HEADER, value.to_str().unwrap_or_default())?;
        }
        Ok(params)
    }

    /// Takes a parameter that every route has. Returns false for another one.
    fn take(&mut self, name: &str, value: &str) -> Result<bool> {
        match name {
            "consistency" => self.strong = is_strong(value)?,
            "timeout" => self.timeout = Some(Duration::from_secs(from_one(name, value)?)),
            "min_coverage" => self.min_coverage = part(name, value)?,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// Query string of a route that has parameters of its own.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RouteQuery {
    /// Parameters that every route has.
    pub params: RootParams,
    /// Query string of the others.
    pub own: String,
}

impl RouteQuery {
    /// Splits the query string of `uri`, and reads the header `x-min-coverage`.
    ///
    /// # Errors
    /// `InvalidArgument` for a malformed value of a parameter that every route has.
    pub fn split(uri: &Uri, headers: &HeaderMap) -> Result<RouteQuery> {
        let mut params = RootParams::of_headers(headers)?;
        let mut own = form_urlencoded::Serializer::new(String::new());
        for (name, value) in form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes()) {
            if !params.take(&name, &value)? {
                own.append_pair(&name, &value);
            }
        }
        Ok(RouteQuery { params, own: own.finish() })
    }

    /// Reads the route's own parameters.
    ///
    /// # Errors
    /// `InvalidArgument` that names the parameter.
    pub fn route_parameters<T: DeserializeOwned>(&self) -> Result<T> {
        let uri: Uri = format!("/?{}", self.own)
            .parse()
            .map_err(|error| Error::invalid("the query string").caused_by(error))?;
        query_parameters(Query::try_from_uri(&uri)).map_err(|error| {
            let message = error.message();
            Error::invalid(format!("{message}; every route has timeout, consistency, min_coverage"))
        })
    }
}

/// Returns true if holders that lag behind may not answer. Qdrant's levels compare several
/// replicas. A holder at the end of the log gives at least the same guarantee.
fn is_strong(value: &str) -> Result<bool> {
    if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) {
        return Ok(from_one("consistency", value)? > 1);
    }
    check_word("consistency", value, &["majority", "quorum", "all", "strong"])?;
    Ok(true)
}

/// Reads a number from 0 to 1.
fn part(name: &str, value: &str) -> Result<f64> {
    let part = value.parse().ok().filter(|part| (0.0..=1.0).contains(part));
    part.ok_or_else(|| malformed(name, value, "a number from 0 to 1"))
}

#[cfg(test)]
mod tests {
    use api_qdrant::json;
    use http::HeaderValue;

    use super::*;

    fn parse(query: &str) -> Result<RootParams> {
        let uri = format!("/collections/c/points?{query}").parse().unwrap();
        RootParams::parse(&uri, &HeaderMap::new())
    }

    #[test]
    fn known_parameters_are_read() {
        for query in ["", "wait=true", "wait=true&ordering=strong", "consistency=1"] {
            assert_eq!(parse(query).unwrap(), RootParams::default(), "{query}");
        }
        for query in ["consistency=strong", "consistency=majority", "consistency=2"] {
            assert!(parse(query).unwrap().strong, "{query}");
        }
        assert!(!parse("wait=false").unwrap().wait);
        let params = parse("timeout=7&min_coverage=0.5").unwrap();
        assert_eq!((params.timeout, params.min_coverage), (Some(Duration::from_secs(7)), 0.5));
    }

    #[test]
    fn the_parameter_takes_precedence_over_the_header() {
        let headers = |value| {
            let value = HeaderValue::from_static(value);
            HeaderMap::from_iter([(http::HeaderName::from_static(MIN_COVERAGE_HEADER), value)])
        };
        let uri = |text: &str| text.parse::<Uri>().unwrap();
        let read = |path: &str, header| RootParams::parse(&uri(path), &headers(header));
        assert_eq!(read("/", "1").unwrap().min_coverage, 1.0);
        assert_eq!(read("/?min_coverage=0.25", "1").unwrap().min_coverage, 0.25);
        assert!(read("/", "all").is_err());
    }

    #[test]
    fn routes_have_parameters_of_their_own() {
        #[derive(Debug, PartialEq, serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        struct OwnParams {
            k: Option<usize>,
            filter: Option<String>,
        }
        let split = |query: &str| {
            let uri = format!("/v1/images/c/search?{query}").parse().unwrap();
            RouteQuery::split(&uri, &HeaderMap::new())
        };
        let query = split("k=5&timeout=3&filter=%7B%22a%22%3A%26%7D&consistency=all").unwrap();
        assert_eq!(
            (query.params.timeout, query.params.strong),
            (Some(Duration::from_secs(3)), true)
        );
        let own = OwnParams { k: Some(5), filter: Some("{\"a\":&}".to_owned()) };
        assert_eq!(query.route_parameters::<OwnParams>().unwrap(), own);
        for (query, word) in [("kk=1", "kk"), ("k=x", "k"), ("wait=true", "wait")] {
            let error = split(query).unwrap().route_parameters::<OwnParams>().unwrap_err();
            assert!(error.message().contains(word), "{query}: {error}");
        }
        assert!(split("min_coverage=2").is_err());
    }

    #[test]
    fn other_parameters_are_refused_by_name() {
        for (query, word) in [
            ("wiat=true", "\"wiat\""),
            ("wait=yes", "wait"),
            ("ordering=loose", "ordering"),
            ("consistency=", "consistency"),
            ("consistency=some", "consistency"),
            ("timeout=soon", "timeout"),
            ("min_coverage=2", "min_coverage"),
            ("min_coverage=NaN", "min_coverage"),
        ] {
            let error = parse(query).unwrap_err();
            assert!(error.message().contains(word), "{query}: {error}");
        }
        assert!(json::is_validation(parse("timeout=0").unwrap_err().message()));
    }
}
