//! Origins whose pages may use the API from a browser (CORS, the Fetch standard).
//!
//! No answer allows credentials, so a browser sends no cookie and no password of its own with such
//! a request. A page sends a key in a header that it sets itself.

use axum::Router;
use axum::extract::Request;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use base::{Error, Result};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};

/// Methods of the API.
const METHODS: &str = "GET, POST, PUT, PATCH, DELETE";
/// Headers that a page may set. Qdrant's client for JavaScript sets `user-agent`.
const REQUEST_HEADERS: &str = "content-type, content-encoding, authorization, api-key, grpc-timeout, \
                               inference-header-content-length, traceparent, tracestate, x-request-key, \
                               x-min-coverage, user-agent";
/// Headers of answers that a listed page may read. The standard lets every page read some others.
const EXPOSED_HEADERS: &str = "inference-header-content-length, retry-after, www-authenticate";
/// Seconds for which a browser keeps the answer to a preflight request.
const PREFLIGHT_SECONDS: &str = "600";
/// Origins that may be listed.
const ORIGINS_MAX: usize = 256;

/// Origins whose pages may use the API.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CorsPolicy {
    /// Only this server's own pages.
    #[default]
    Closed,
    /// All pages.
    Any,
    /// Pages of the listed origins, as browsers write them.
    Listed(Vec<String>),
}

impl CorsPolicy {
    /// Returns the policy of a list of origins, or of `*`.
    ///
    /// # Errors
    /// `InvalidArgument` if a text is not an origin, or if `*` is not the only one.
    pub fn parse(origins: &[String]) -> Result<CorsPolicy> {
        match origins {
            [] => Ok(CorsPolicy::Closed),
            [any] if any == "*" => Ok(CorsPolicy::Any),
            _ if origins.len() > ORIGINS_MAX => {
                Err(Error::invalid(format!("more than {ORIGINS_MAX} origins are listed")))
            }
            _ => Ok(CorsPolicy::Listed(origins.iter().map(|o| origin(o)).collect::<Result<_>>()?)),
        }
    }

    /// Returns true if the request's page is of a listed origin. `*` lists none. It lets pages use
    /// the API, but does not make them the operator's.
    pub(super) fn lists(&self, headers: &HeaderMap) -> bool {
        let CorsPolicy::Listed(origins) = self else { return false };
        let shown = headers.get(header::ORIGIN).map(HeaderValue::as_bytes);
        shown.is_some_and(|shown| origins.iter().any(|listed| listed.as_bytes() == shown))
    }

    /// Answers preflight requests to paths for which `covers` is true, and adds this policy's
    /// headers to their other answers.
    pub fn guard(&self, routes: Router, covers: fn(&str) -> bool) -> Router {
        if *self == CorsPolicy::Closed {
            return routes;
        }
        let policy = self.clone();
        routes.layer(middleware::from_fn(move |request: Request, next: Next| {
            let policy = policy.clone();
            async move {
                if covers(request.uri().path()) {
                    policy.answer(request, next).await
                } else {
                    next.run(request).await
                }
            }
        }))
    }

    /// Answers a preflight request itself, and adds the headers of CORS to other responses.
    async fn answer(&self, request: Request, next: Next) -> Response {
        let preflight =
            request.method() == Method::OPTIONS && request.headers().contains_key(header::ORIGIN);
        let allowed = self.allowed(request.headers());
        let mut response =
            if preflight { StatusCode::OK.into_response() } else { next.run(request).await };
        let headers = response.headers_mut();
        if matches!(self, CorsPolicy::Listed(_)) {
            // A cache must not give the answer for one origin to another.
            headers.append(header::VARY, HeaderValue::from_static("origin"));
        }
        let Some(allowed) = allowed else { return response };
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, allowed);
        let texts: &[(HeaderName, &'static str)] = if preflight {
            &[
                (header::ACCESS_CONTROL_ALLOW_METHODS, METHODS),
                (header::ACCESS_CONTROL_ALLOW_HEADERS, REQUEST_HEADERS),
                (header::ACCESS_CONTROL_MAX_AGE, PREFLIGHT_SECONDS),
            ]
        } else {
            &[(header::ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED_HEADERS)]
        };
        for (name, text) in texts {
            headers.insert(name.clone(), HeaderValue::from_static(text));
        }
        response
    }

    /// Returns the origin that the answer names. `None` refuses the page.
    fn allowed(&self, headers: &HeaderMap) -> Option<HeaderValue> {
        match self {
            CorsPolicy::Any => Some(HeaderValue::from_static("*")),
            _ if self.lists(headers) => headers.get(header::ORIGIN).cloned(),
            _ => None,
        }
    }
}

/// Returns an origin as browsers write it: in lower case, without the scheme's own port.
fn origin(text: &str) -> Result<String> {
    let wrong = |why: &str| {
        Error::invalid(format!(
            "\"{text}\" is not an origin: {why}; give scheme, host and port only, as in https://app.example or \
             http://localhost:3000"
        ))
    };
    if text == "*" {
        return Err(wrong("* cannot be listed with others"));
    }
    let lower = text.to_ascii_lowercase();
    let (scheme, authority) = lower.split_once("://").ok_or_else(|| wrong("it has no scheme"))?;
    let graphic = lower.bytes().all(|byte| byte.is_ascii_graphic());
    if scheme.is_empty() || authority.is_empty() || !graphic {
        return Err(wrong("a part is empty or not ASCII"));
    }
    if authority.contains(['/', '?', '#', '@', '*', ',', '"']) {
        return Err(wrong("it has more than scheme, host and port"));
    }
    let own_port = match scheme {
        "http" => ":80",
        "https" => ":443",
        _ => return Ok(lower),
    };
    Ok(format!("{scheme}://{}", authority.strip_suffix(own_port).unwrap_or(authority)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(origins: &[&str]) -> Result<CorsPolicy> {
        CorsPolicy::parse(&origins.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn origins_are_written_as_browsers_do() {
        assert_eq!(parse(&[]).unwrap(), CorsPolicy::Closed);
        assert_eq!(parse(&["*"]).unwrap(), CorsPolicy::Any);
        let listed = ["HTTPS://App.Example:443", "http://localhost:3000", "http://[::1]:80"];
        let wanted = ["https://app.example", "http://localhost:3000", "http://[::1]"];
        assert_eq!(parse(&listed).unwrap(), CorsPolicy::Listed(wanted.map(str::to_owned).to_vec()));
        for wrong in ["app.example", "https://", "null", "https://a/", "https://*.a", "https://a b"]
        {
            assert!(parse(&[wrong]).is_err(), "{wrong}");
        }
        assert!(parse(&["*", "https://a"]).unwrap_err().message().contains("with others"));
        assert!(parse(&vec!["http://a"; ORIGINS_MAX + 1]).is_err());
    }

    #[test]
    fn only_listed_origins_count_as_the_operators() {
        let page = |origin: &'static str| {
            HeaderMap::from_iter([(header::ORIGIN, HeaderValue::from_static(origin))])
        };
        let policy = parse(&["https://app.example"]).unwrap();
        assert!(policy.lists(&page("https://app.example")));
        for other in
            ["http://app.example", "https://app.example:8443", "https://app.example.evil", "null"]
        {
            assert!(!policy.lists(&page(other)), "{other}");
            assert_eq!(policy.allowed(&page(other)), None);
        }
        assert!(!policy.lists(&HeaderMap::new()));
        assert!(!CorsPolicy::Any.lists(&page("https://app.example")));
        assert_eq!(CorsPolicy::Any.allowed(&HeaderMap::new()).unwrap(), "*");
    }
}
