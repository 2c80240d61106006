//! A small blocking HTTP client for a running server, in plain text or with TLS.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use loadgen::port::{Spoken, spoken};
use serde_json::Value;
use ureq::tls::{Certificate, ClientCert, PemItem, PrivateKey, RootCerts, TlsConfig};

use crate::environment;
use crate::exit::{CommandError, CommandResult};

/// Default address of a server.
const URL_DEFAULT: &str = "http://127.0.0.1:8501";
/// Timeout for connecting.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// Timeout for a whole response: a load may take minutes.
const ANSWER_MAX: Duration = Duration::from_secs(3600);
/// Maximum size of a response.
const ANSWER_BYTES_MAX: u64 = 1 << 30;
/// Maximum number of characters shown of a response that is not JSON.
const EXCERPT_CHARS_MAX: usize = 200;

/// Address of the server.
#[derive(Args, Clone, Debug)]
pub(crate) struct ServerArgs {
    /// The server's HTTP address, http:// or https:// [default: http://127.0.0.1:8501]
    #[arg(long, value_name = "URL", alias = "server")]
    pub(crate) url: Option<String>,
    /// Certificates that https:// trusts (PEM) [default: those of the system]
    #[arg(long, value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,
    /// Certificate and private key (PEM, in one file) for a server that requires one
    #[arg(long, value_name = "FILE")]
    pub(crate) client_cert: Option<PathBuf>,
}

/// A client of one server.
pub(crate) struct HttpClient {
    agent: ureq::Agent,
    base: String,
    key: Option<String>,
}

/// Body of a [`HttpClient::call`].
#[derive(Clone, Copy)]
pub(crate) enum RequestContent<'a> {
    /// Nothing.
    None,
    /// JSON.
    Json(&'a Value),
    /// Bytes whose type the server detects.
    Bytes(&'a [u8]),
    /// JSON of `json_bytes`, followed by raw tensors.
    Tensors { json_bytes: usize, body: &'a [u8] },
}

/// A response with any status.
pub(crate) struct HttpReply {
    pub(crate) status: u16,
    /// Requested delay before the next attempt.
    pub(crate) retry_after: Option<Duration>,
    /// `Inference-Header-Content-Length`, if binary tensors follow the JSON.
    pub(crate) json_bytes: Option<usize>,
    /// The body.
    pub(crate) body: Vec<u8>,
}

impl HttpReply {
    /// Returns the body as JSON.
    ///
    /// # Errors
    /// Returns the server's own message if the status is not 2xx.
    pub(crate) fn json(&self) -> CommandResult<Value> {
        parse_json(self.good()?)
    }

    /// Returns the body.
    ///
    /// # Errors
    /// As [`HttpReply::json`].
    pub(crate) fn good(&self) -> CommandResult<&[u8]> {
        if (200..300).contains(&self.status) {
            Ok(&self.body)
        } else {
            Err(refusal(self.status, &self.body))
        }
    }

    /// Returns the server's error message.
    pub(crate) fn error(&self) -> String {
        error_text(&self.body)
    }
}

impl HttpClient {
    /// Creates a client for `--url`, the environment's server or the default one.
    ///
    /// # Errors
    /// Returns a usage error for an address that is not `http[s]://HOST[:PORT]`, and for
    /// certificates that cannot be read.
    pub(crate) fn new(args: &ServerArgs) -> CommandResult<HttpClient> {
        let url = args
            .url
            .clone()
            .or_else(|| environment::URL.text())
            .unwrap_or_else(|| URL_DEFAULT.to_owned());
        let base = match url.split_once("://") {
            None => format!("http://{url}"),
            Some(("http" | "https", _)) => url,
            Some(("grpcs", rest)) => {
                return Err(CommandError::usage(format!("--url {url}: this command speaks HTTP"))
                    .hint(format!("give the server's HTTP port, as in https://{rest}")));
            }
            Some((scheme, rest)) => {
                return Err(CommandError::usage(format!(
                    "--url {url}: this command does not speak {scheme}"
                ))
                .hint(format!("give the server's HTTP port, as in http://{rest}")));
            }
        };
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .proxy(None)
            .timeout_connect(Some(CONNECT_MAX))
            .timeout_global(Some(ANSWER_MAX))
            .tls_config(tls(args)?)
            .user_agent(concat!("millpond/", env!("CARGO_PKG_VERSION")))
            .build();
        Ok(HttpClient {
            agent: config.into(),
            base: base.trim_end_matches('/').to_owned(),
            key: environment::API_KEY.text(),
        })
    }

    /// Sets the key that every request sends, in place of MILLPOND_API_KEY.
    pub(crate) fn with_key(self, key: Option<String>) -> HttpClient {
        HttpClient { key: key.or(self.key), ..self }
    }

    /// Returns the server's address.
    pub(crate) fn base(&self) -> &str {
        &self.base
    }

    /// Sends `content` to `path` by `method` ("GET", "PUT", ...) and returns any response.
    ///
    /// # Errors
    /// Returns an error if the server cannot be reached.
    pub(crate) fn call(
        &self,
        method: &str,
        path: &str,
        content: RequestContent<'_>,
    ) -> CommandResult<HttpReply> {
        let mut request =
            ureq::http::Request::builder().method(method).uri(format!("{}{path}", self.base));
        if let Some(key) = &self.key {
            request = request.header("api-key", key);
        }
        let wrong = |error: ureq::http::Error| {
            CommandError::usage(format!("cannot ask for {path}: {error}"))
        };
        let answer = match content {
            RequestContent::None => self.agent.run(request.body(()).map_err(wrong)?),
            RequestContent::Json(value) => {
                let request = request.header("content-type", "application/json");
                self.agent.run(request.body(value.to_string()).map_err(wrong)?)
            }
            RequestContent::Bytes(bytes) => {
                let request = request.header("content-type", "application/octet-stream");
                self.agent.run(request.body(bytes).map_err(wrong)?)
            }
            RequestContent::Tensors { json_bytes, body } => {
                let request = request
                    .header("content-type", "application/octet-stream")
                    .header("inference-header-content-length", json_bytes.to_string());
                self.agent.run(request.body(body).map_err(wrong)?)
            }
        };
        let mut response = answer.map_err(|error| self.unreachable(&error))?;
        let number = |name: &str| -> Option<u64> {
            response.headers().get(name)?.to_str().ok()?.parse().ok()
        };
        let retry_after = number("retry-after").map(Duration::from_secs);
        let json_bytes =
            number("inference-header-content-length").and_then(|bytes| bytes.try_into().ok());
        let body = response.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_vec();
        Ok(HttpReply {
            status: response.status().as_u16(),
            retry_after,
            json_bytes,
            body: body.map_err(|error| self.unreachable(&error))?,
        })
    }

    /// GETs `path` and parses the response.
    ///
    /// # Errors
    /// Returns the server's own message, or the reason why it could not be reached.
    pub(crate) fn get(&self, path: &str) -> CommandResult<Value> {
        self.call("GET", path, RequestContent::None)?.json()
    }

    /// POSTs JSON to `path` and parses the response. An empty one is null.
    ///
    /// # Errors
    /// As [`HttpClient::get`].
    pub(crate) fn post(&self, path: &str, body: &Value) -> CommandResult<Value> {
        let reply = self.call("POST", path, RequestContent::Json(body))?;
        if reply.good()?.is_empty() { Ok(Value::Null) } else { reply.json() }
    }

    fn unreachable(&self, error: &ureq::Error) -> CommandError {
        let authority = self.base.split_once("://").map_or(self.base.as_str(), |(_, rest)| rest);
        let authority = authority.split('/').next().unwrap_or_default();
        // A port of another protocol drops the connection. Asking for its protocol explains that.
        if !refused(error) && spoken(authority) == Some(Spoken::Http2) {
            return CommandError::failed(format!(
                "{authority} is a gRPC port: it does not speak HTTP/1.1"
            ))
            .hint(
                "give the server's HTTP port with --url; it is 8501 by default, and 8500 is gRPC's",
            );
        }
        let text = error.to_string();
        if let Some((_, reason)) = text.split_once("invalid peer certificate: ") {
            return CommandError::failed(format!(
                "the certificate of {authority} is not trusted: {reason}"
            ))
            .hint(
                "give its issuer's certificate (PEM) with --ca FILE or MILLPOND_CA, and an address that it names",
            );
        }
        if text.contains("InvalidContentType") {
            return CommandError::failed(format!("{authority} does not speak TLS"))
                .hint(format!("give its address as http://{authority}"));
        }
        let reason = match error {
            ureq::Error::Io(_) if refused(error) => "no program listens there".to_owned(),
            error => error.to_string(),
        };
        CommandError::failed(format!("no answer from {}: {reason}", self.base))
            .hint("start one with `millpond serve DIR`, or give the address of another with --url")
    }
}

/// Returns the settings of TLS, which trusts the certificates of `--ca`, or those of the system.
fn tls(args: &ServerArgs) -> CommandResult<TlsConfig> {
    let ca = args.ca.clone().or_else(|| environment::CA.path());
    let roots = match &ca {
        None => RootCerts::PlatformVerifier,
        Some(path) => RootCerts::Specific(Arc::new(PemFile::read("--ca", path)?.certificates)),
    };
    let client = match &args.client_cert {
        None => None,
        Some(path) => {
            let PemFile { certificates, key } = PemFile::read("--client-cert", path)?;
            let key = key.ok_or_else(|| {
                CommandError::usage(format!(
                    "--client-cert {}: no private key is in it; append it to the certificate",
                    path.display()
                ))
            })?;
            Some(ClientCert::new_with_certs(&certificates, key))
        }
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    Ok(TlsConfig::builder()
        .root_certs(roots)
        .client_cert(client)
        .unversioned_rustls_crypto_provider(provider)
        .build())
}

/// Content of a PEM file.
struct PemFile {
    certificates: Vec<Certificate<'static>>,
    key: Option<PrivateKey<'static>>,
}

impl PemFile {
    /// Reads the file of `flag`.
    ///
    /// # Errors
    /// Returns a usage error for a file without a certificate.
    fn read(flag: &str, path: &Path) -> CommandResult<PemFile> {
        let wrong = |why: &dyn std::fmt::Display| {
            CommandError::usage(format!("{flag} {}: {why}", path.display()))
        };
        let text = std::fs::read(path).map_err(|error| wrong(&error))?;
        let mut file = PemFile { certificates: Vec::new(), key: None };
        for item in ureq::tls::parse_pem(&text) {
            match item.map_err(|error| wrong(&error))? {
                PemItem::Certificate(certificate) => file.certificates.push(certificate),
                PemItem::PrivateKey(key) => file.key = Some(key),
                _ => {}
            }
        }
        match file.certificates.is_empty() {
            true => Err(wrong(&"no certificate in PEM form is in it")),
            false => Ok(file),
        }
    }
}

/// Returns true if no program listens at the address.
fn refused(error: &ureq::Error) -> bool {
    use std::io::ErrorKind;
    matches!(error, ureq::Error::HostNotFound)
        || matches!(error, ureq::Error::Io(error) if error.kind() == ErrorKind::ConnectionRefused)
}

fn refusal(status: u16, body: &[u8]) -> CommandError {
    let text = error_text(body);
    let failure = CommandError::failed(format!("the server answered {status}: {text}"));
    match status {
        401 => failure.hint("give the server's key with --api-key or MILLPOND_API_KEY"),
        403 if text.contains("admin key") => {
            failure.hint("give the server's key with --admin-key or MILLPOND_ADMIN_KEY")
        }
        _ => failure,
    }
}

/// Returns the message of an error response, which both protocols put under "error".
fn error_text(body: &[u8]) -> String {
    let message = serde_json::from_slice::<Value>(body)
        .ok()
        .and_then(|json| json.get("error").and_then(Value::as_str).map(str::to_owned));
    message
        .unwrap_or_else(|| String::from_utf8_lossy(body).chars().take(EXCERPT_CHARS_MAX).collect())
}

fn parse_json(body: &[u8]) -> CommandResult<Value> {
    serde_json::from_slice(body).map_err(|_| {
        CommandError::failed(format!("the answer is not JSON: {}", error_text(body)))
            .hint("is --url a Millpond server?")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        let base = |url: &str| {
            HttpClient::new(&ServerArgs { url: Some(url.into()), ca: None, client_cert: None })
                .map(|client| client.base)
        };
        assert_eq!(base("10.0.0.1:80").unwrap(), "http://10.0.0.1:80");
        assert_eq!(base("http://h:1/").unwrap(), "http://h:1");
        assert!(base("grpc://h:1").is_err());
        assert_eq!(base("https://h:1").unwrap(), "https://h:1");
        assert!(base("grpcs://h:1").is_err());
    }

    #[test]
    fn messages_of_errors() {
        assert_eq!(error_text(br#"{"error":"no such model"}"#), "no such model");
        assert_eq!(error_text(b"gone"), "gone");
    }
}
