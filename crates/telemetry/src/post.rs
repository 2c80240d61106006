//! Posts exports to a collector over HTTP.

use std::sync::Arc;
use std::time::Duration;

use base::{Error, Result};
use prost::Message;
use ureq::tls::{RootCerts, TlsConfig};

use crate::collector_lookup;
use crate::exporter::TraceExportConfig;
use crate::generated::ExportTraceServiceResponse;

/// Maximum bytes of a collector's answer that are read.
const ANSWER_BYTES_MAX: u64 = 64 << 10;
/// Longest wait that a collector can request.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(30);

/// Outcome of one export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PostOutcome {
    /// The collector accepted the export, except for some spans.
    Accepted {
        /// Number of spans that the collector rejected.
        rejected: u64,
        /// Reason of the collector, or a warning.
        message: String,
    },
    /// The export may be tried again.
    Retry {
        /// The wait that the collector requests.
        after: Option<Duration>,
        /// Reason of the failure.
        reason: String,
    },
    /// The collector refuses this export.
    Refused(String),
}

/// Transport of encoded exports.
pub(crate) trait Post: Send {
    /// Sends one export and waits for the answer.
    fn post(&mut self, body: &[u8]) -> PostOutcome;
}

/// Transport by HTTP.
pub(crate) struct HttpPost {
    agent: ureq::Agent,
    url: String,
    /// The URL without user, password and query, for the log.
    shown: String,
    headers: Vec<(String, String)>,
}

impl HttpPost {
    /// Creates a sender.
    ///
    /// # Errors
    /// `InvalidArgument` for an address that is not `http[s]://HOST[:PORT]/PATH`, or for a header
    /// that HTTP does not allow.
    pub(crate) fn new(config: &TraceExportConfig) -> Result<HttpPost> {
        let url = config.url.clone();
        let parsed: ureq::http::Uri = url
            .parse()
            .map_err(|error| Error::invalid("the address of the collector").caused_by(error))?;
        if !matches!(parsed.scheme_str(), Some("http" | "https")) || parsed.host().is_none() {
            return Err(Error::invalid(
                "the address of the collector must be http://HOST:PORT or https://HOST:PORT",
            ));
        }
        let shown = without_secrets(&parsed);
        let mut request = ureq::http::Request::builder().uri(&url);
        for (name, value) in &config.headers {
            request = request.header(name, value);
        }
        request.body(()).map_err(|error| {
            // The value may be a secret, so the message does not show it.
            Error::invalid("the headers of the collector").caused_by(error)
        })?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = TlsConfig::builder()
            .root_certs(RootCerts::PlatformVerifier)
            .unversioned_rustls_crypto_provider(provider)
            .build();
        let client = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .proxy(None)
            // A followed redirect would be a GET without the spans, and have the headers' secrets.
            .max_redirects(0)
            .timeout_global(Some(config.timeout))
            .tls_config(tls)
            .user_agent(concat!("millpond/", env!("CARGO_PKG_VERSION")))
            .build();
        let agent = collector_lookup::agent(client);
        Ok(HttpPost { agent, url, shown, headers: config.headers.clone() })
    }

    fn try_post(&self, body: &[u8]) -> std::result::Result<PostOutcome, ureq::Error> {
        let mut request = self.agent.post(&self.url);
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        let mut response = request.header("content-type", "application/x-protobuf").send(body)?;
        let status = response.status().as_u16();
        let after = response.headers().get("retry-after");
        let after = after.and_then(|value| value.to_str().ok()?.trim().parse().ok());
        let answer = response.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_vec();
        Ok(outcome(status, after, &answer.unwrap_or_default()))
    }
}

impl Post for HttpPost {
    fn post(&mut self, body: &[u8]) -> PostOutcome {
        let failed = |error: ureq::Error| PostOutcome::Retry {
            after: None,
            reason: format!("{}: {error}", self.shown),
        };
        self.try_post(body).unwrap_or_else(failed)
    }
}

/// Returns the text of a URL without user, password and query.
fn without_secrets(url: &ureq::http::Uri) -> String {
    let scheme = url.scheme_str().unwrap_or_default();
    let host = url.host().unwrap_or_default();
    let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
    format!("{scheme}://{host}{port}{}", url.path())
}

/// Returns the meaning of an answer. OTLP names the statuses after which a client tries again.
fn outcome(status: u16, after: Option<u64>, answer: &[u8]) -> PostOutcome {
    let reason = format!("the collector answered {status}");
    match status {
        200..300 => {
            let partial = ExportTraceServiceResponse::decode(answer)
                .ok()
                .and_then(|response| response.partial_success)
                .unwrap_or_default();
            PostOutcome::Accepted {
                rejected: u64::try_from(partial.rejected_spans).unwrap_or(0),
                message: partial.error_message,
            }
        }
        429 | 502..=504 => {
            let after = after.map(|seconds| Duration::from_secs(seconds).min(RETRY_AFTER_MAX));
            PostOutcome::Retry { after, reason }
        }
        _ => PostOutcome::Refused(reason),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;

    use super::*;
    use crate::generated::ExportTracePartialSuccess;

    fn config(url: &str) -> TraceExportConfig {
        TraceExportConfig::new(url)
    }

    #[test]
    fn statuses_have_otlps_meaning() {
        let all = PostOutcome::Accepted { rejected: 0, message: String::new() };
        assert_eq!(outcome(200, None, b""), all);
        assert_eq!(outcome(202, None, b"{}"), all, "an answer that is not a message");
        let partial = ExportTracePartialSuccess { rejected_spans: 3, error_message: "old".into() };
        let partial = ExportTraceServiceResponse { partial_success: Some(partial) };
        let some = PostOutcome::Accepted { rejected: 3, message: "old".into() };
        assert_eq!(outcome(200, None, &partial.encode_to_vec()), some);
        for status in [429, 502, 503, 504] {
            let wait = |after| match outcome(status, after, b"") {
                PostOutcome::Retry { after, .. } => after,
                other => panic!("{status}: {other:?}"),
            };
            assert_eq!(wait(None), None);
            assert_eq!(wait(Some(2)), Some(Duration::from_secs(2)));
            assert_eq!(wait(Some(9999)), Some(RETRY_AFTER_MAX));
        }
        for status in [301, 400, 401, 404, 500] {
            assert!(matches!(outcome(status, None, b""), PostOutcome::Refused(_)), "{status}");
        }
    }

    #[test]
    fn addresses_and_headers_are_checked() {
        for wrong in ["", "localhost:4318", "grpc://host:4317", "http://", "http://a b"] {
            assert!(HttpPost::new(&config(wrong)).is_err(), "{wrong}");
        }
        assert!(HttpPost::new(&config("http://127.0.0.1:4318/v1/traces")).is_ok());
        let mut secret = config("http://127.0.0.1:4318/v1/traces");
        secret.headers.push(("authorization".into(), "line\nbreak".into()));
        let error = HttpPost::new(&secret).err().unwrap();
        assert!(!error.message().contains("break"), "{error}");
    }

    #[test]
    fn a_redirect_is_refused() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/v1/traces", listener.local_addr().unwrap());
        let collector = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 4096]).unwrap();
            let answer = b"HTTP/1.1 301 x\r\nlocation: /login\r\ncontent-length: 0\r\n\r\n";
            stream.write_all(answer).unwrap();
        });
        let outcome = HttpPost::new(&config(&url)).unwrap().post(b"");
        collector.join().unwrap();
        assert_eq!(outcome, PostOutcome::Refused("the collector answered 301".into()));
    }

    #[test]
    fn the_name_of_a_collector_is_looked_up() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let collector = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 4096]).unwrap();
            stream.write_all(b"HTTP/1.1 200 x\r\ncontent-length: 0\r\n\r\n").unwrap();
        });
        let url = format!("http://localhost:{port}/v1/traces");
        let outcome = HttpPost::new(&config(&url)).unwrap().post(b"");
        collector.join().unwrap();
        assert_eq!(outcome, PostOutcome::Accepted { rejected: 0, message: String::new() });
    }

    #[test]
    fn an_absent_collector_is_tried_again() {
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mut post = HttpPost::new(&config(&format!("http://{free}/v1/traces"))).unwrap();
        assert!(matches!(post.post(b""), PostOutcome::Retry { after: None, .. }));
    }

    #[test]
    fn the_log_shows_no_secret_of_the_address() {
        let shown = |url: &str| HttpPost::new(&config(url)).unwrap().shown;
        let secret = "https://me:s3cret@collector.example:4318/v1/traces?token=s3cret";
        assert_eq!(shown(secret), "https://collector.example:4318/v1/traces");
        for plain in ["http://localhost:4318/v1/traces", "http://[::1]:4318/v1/traces"] {
            assert_eq!(shown(plain), plain);
        }
    }
}
