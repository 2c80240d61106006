//! A small blocking HTTP client for a running server, in plain text or with TLS.

use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use command_line::environment;
use command_line::exit::{CommandError, CommandResult, print_note};
use loadgen::port::{PortProtocol, probe_protocol};
use loadgen::tls::{TlsArgs, explanation};
use serde_json::Value;
use ureq::Timeout;
use ureq::http::{HeaderValue, StatusCode};
use ureq::tls::{Certificate, ClientCert, PrivateKey, RootCerts, TlsConfig};

use crate::address_lookup;
use crate::server_address::ServerAddress;
use crate::unix_connector::UnixConnector;
use crate::wait_notice::WaitNotice;

/// Default address of a server.
const URL_DEFAULT: &str = "http://127.0.0.1:8501";
/// Timeout for connecting.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// Timeout for a whole response. A load may take minutes.
pub(crate) const ANSWER_MAX: Duration = Duration::from_secs(3600);
/// Timeout for a whole response to a read of a list or a state, which needs no long work.
pub(crate) const READ_MAX: Duration = Duration::from_secs(30);
/// Time of a wait after which the terminal says so.
const NOTICE_AFTER: Duration = Duration::from_secs(5);
/// Maximum size of a response.
const ANSWER_BYTES_MAX: u64 = 1 << 30;
/// Maximum number of characters shown of a response that is not JSON.
const EXCERPT_CHARS_MAX: usize = 200;

/// Address of the server.
#[derive(Args, Clone, Debug)]
pub(crate) struct ServerArgs {
    /// The server's HTTP address: http://HOST:PORT, https://HOST:PORT, or unix:PATH for the socket
    /// of --http-socket [default: http://127.0.0.1:8501]
    #[arg(long, value_name = "URL", alias = "server")]
    pub(crate) url: Option<String>,
    #[command(flatten)]
    pub(crate) tls: TlsArgs,
}

/// A client of one server.
pub(crate) struct ServerClient {
    agent: ureq::Agent,
    /// Address in messages.
    base: String,
    /// Start of the addresses of requests.
    root: String,
    /// True for a Unix socket.
    is_socket: bool,
    key: Option<String>,
    /// True if the address uses TLS and this client sends no certificate.
    is_anonymous: bool,
    /// Longest time of a read of a list or a state: [`READ_MAX`], except in tests.
    read_max: Duration,
}

/// Body of a [`ServerClient::call`].
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

    /// Returns true if the same request may succeed later. The server, or a proxy before it, was
    /// then busy or took too long.
    pub(crate) fn is_busy(&self) -> bool {
        matches!(self.status, 408 | 429 | 502 | 503 | 504)
    }
}

impl ServerClient {
    /// Creates a client for `--url`, the environment's server or the default one.
    ///
    /// # Errors
    /// Returns a usage error for an address that is not `http[s]://HOST[:PORT]` or `unix:PATH`, and
    /// for certificates that cannot be read.
    pub(crate) fn new(args: &ServerArgs) -> CommandResult<ServerClient> {
        let source = environment::URL.source("--url", args.url.is_some());
        let url = args.url.clone().or_else(|| environment::URL.text());
        let url = url.unwrap_or_else(|| URL_DEFAULT.to_owned());
        let ServerAddress { shown, root, socket } = ServerAddress::parse(source, &url)?;
        let by_tls = root.starts_with("https://");
        args.tls.check_used(by_tls).map_err(usage)?;
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .proxy(None)
            // A followed redirect would send the key to another host, and GET instead of DELETE.
            .max_redirects(0)
            .timeout_connect(Some(CONNECT_MAX))
            .timeout_global(Some(ANSWER_MAX))
            .tls_config(tls(&environment::with_ca(&args.tls, &[&root]))?)
            .user_agent(concat!("millpond/", env!("CARGO_PKG_VERSION")))
            .build();
        Ok(ServerClient {
            base: shown,
            is_socket: socket.is_some(),
            agent: match socket {
                None => address_lookup::agent(config),
                Some(path) => UnixConnector::new(path).agent(config),
            },
            root,
            key: environment::client_key(None),
            is_anonymous: by_tls && args.tls.cert.is_none(),
            read_max: READ_MAX,
        })
    }

    /// Sets the key that every request sends, instead of the key of a variable.
    pub(crate) fn with_key(self, key: Option<String>) -> ServerClient {
        ServerClient { key: key.or(self.key), ..self }
    }

    /// Returns the server's address.
    pub(crate) fn base(&self) -> &str {
        &self.base
    }

    /// Returns true if the server's address is a Unix socket, which no browser opens.
    pub(crate) fn is_socket(&self) -> bool {
        self.is_socket
    }

    /// Sends `content` to `path` by `method` ("GET", "PUT", ...) and returns any response. Waits
    /// for at most [`ANSWER_MAX`], and tells the terminal if the wait is long.
    ///
    /// # Errors
    /// Returns an error if the server cannot be reached, or if it redirects the request.
    pub(crate) fn call(
        &self,
        method: &str,
        path: &str,
        content: RequestContent<'_>,
    ) -> CommandResult<HttpReply> {
        let minutes = ANSWER_MAX.as_secs() / 60;
        let note = format!("waiting for the answer of {}, for at most {minutes} min", self.base);
        let _notice = WaitNotice::start(NOTICE_AFTER, move || print_note(&note));
        self.call_within(method, path, content, ANSWER_MAX)
    }

    /// Does the same as [`ServerClient::call`], in at most `time` and without a notice.
    ///
    /// # Errors
    /// As [`ServerClient::call`], and an error at the end of `time`.
    pub(crate) fn call_within(
        &self,
        method: &str,
        path: &str,
        content: RequestContent<'_>,
        time: Duration,
    ) -> CommandResult<HttpReply> {
        let mut request =
            ureq::http::Request::builder().method(method).uri(format!("{}{path}", self.root));
        if let Some(key) = &self.key {
            request = request.header("api-key", key_header(key)?);
        }
        let wrong = |error: ureq::http::Error| {
            CommandError::usage(format!("cannot ask for {path}: {error}"))
        };
        let answer = match content {
            RequestContent::None => self.run(request.body(()).map_err(wrong)?, time),
            RequestContent::Json(value) => {
                let request = request.header("content-type", "application/json");
                self.run(request.body(value.to_string()).map_err(wrong)?, time)
            }
            RequestContent::Bytes(bytes) => {
                let request = request.header("content-type", "application/octet-stream");
                self.run(request.body(bytes).map_err(wrong)?, time)
            }
            RequestContent::Tensors { json_bytes, body } => {
                let request = request
                    .header("content-type", "application/octet-stream")
                    .header("inference-header-content-length", json_bytes.to_string());
                self.run(request.body(body).map_err(wrong)?, time)
            }
        };
        let mut response = answer.map_err(|error| self.unreachable(&error, time))?;
        if response.status().is_redirection() {
            return Err(redirected(&response));
        }
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
            body: body.map_err(|error| self.unreachable(&error, time))?,
        })
    }

    fn run(
        &self,
        request: ureq::http::Request<impl ureq::AsSendBody>,
        time: Duration,
    ) -> Result<ureq::http::Response<ureq::Body>, ureq::Error> {
        let request = self.agent.configure_request(request).timeout_global(Some(time)).build();
        self.agent.run(request)
    }

    /// Reads the list or the state at `path` by GET, in at most [`READ_MAX`].
    ///
    /// # Errors
    /// Returns the server's own message, or the reason why it could not be reached.
    pub(crate) fn get(&self, path: &str) -> CommandResult<Value> {
        self.call_within("GET", path, RequestContent::None, self.read_max)?.json()
    }

    /// Reads the versions of all models, in at most [`READ_MAX`].
    ///
    /// # Errors
    /// As [`ServerClient::get`].
    pub(crate) fn repository_index(&self) -> CommandResult<Value> {
        let all = Value::Object(serde_json::Map::new());
        let content = RequestContent::Json(&all);
        self.call_within("POST", "/v2/repository/index", content, self.read_max)?.json()
    }

    /// Sends JSON by POST to `path` and parses the response. An empty response is null.
    ///
    /// # Errors
    /// As [`ServerClient::get`].
    pub(crate) fn post(&self, path: &str, body: &Value) -> CommandResult<Value> {
        let reply = self.call("POST", path, RequestContent::Json(body))?;
        if reply.good()?.is_empty() { Ok(Value::Null) } else { reply.json() }
    }

    /// Returns the message for a request that failed with `error`, with a remedy. `time` is the
    /// timeout of the request.
    fn unreachable(&self, error: &ureq::Error, time: Duration) -> CommandError {
        let authority = self.base.split_once("://").map_or(self.base.as_str(), |(_, rest)| rest);
        let authority = authority.split('/').next().unwrap_or_default();
        // A port of another protocol drops the connection. A check of its protocol explains that.
        if !self.is_socket
            && !refused(error)
            && probe_protocol(authority) == Some(PortProtocol::Http2)
        {
            return CommandError::failed(format!(
                "{authority} is a gRPC port: it does not speak HTTP/1.1"
            ))
            .hint(
                "give the server's HTTP port with --url; it is 8501 by default, and 8500 is gRPC's",
            );
        }
        let text = error.to_string();
        if let Some(why) = explanation(authority, &text) {
            let (what, remedy) = why.split_once("; ").unwrap_or((&why, ""));
            return CommandError::failed(what).hint(remedy);
        }
        let closed = matches!(error, ureq::Error::Io(error) if is_closed(error));
        let reason = match error {
            ureq::Error::Io(_) if refused(error) => "no program listens there".to_owned(),
            ureq::Error::Io(error) => error.to_string(),
            ureq::Error::Timeout(Timeout::Connect) => {
                format!("no connection within {} s", CONNECT_MAX.as_secs())
            }
            ureq::Error::Timeout(_) => format!("no complete response within {} s", time.as_secs()),
            error => error.to_string(),
        };
        let failure = CommandError::failed(format!("no answer from {}: {reason}", self.base));
        if matches!(error, ureq::Error::Timeout(kind) if *kind != Timeout::Connect) {
            return failure.hint(
                "a program listens there: it may be overloaded or stopped, or not be a Millpond server; \
                 see its log",
            );
        }
        // A server of TLS 1.3 refuses a client without a certificate after the client's handshake.
        if closed && self.is_anonymous {
            return failure.hint(format!(
                "if {authority} requires a certificate of its clients, give --cert FILE and --key FILE"
            ));
        }
        failure
            .hint("start one with `millpond serve DIR`, or give the address of another with --url")
    }
}

fn usage(error: base::Error) -> CommandError {
    CommandError::usage(error.message())
}

/// Returns the text or number at `key` of an answer, or "-".
pub(crate) fn text(object: &Value, key: &str) -> String {
    match object.get(key) {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Number(number)) => number.to_string(),
        _ => "-".to_owned(),
    }
}

/// Returns the header of a key.
///
/// # Errors
/// Returns a usage error for a key that no header can hold. The error does not show the key.
fn key_header(key: &str) -> CommandResult<HeaderValue> {
    HeaderValue::from_str(key).map_err(|_| {
        CommandError::usage("the key has a control character, such as the end of a line").hint(
            "check --api-key, --admin-key, MILLPOND_API_KEY and MILLPOND_ADMIN_KEY, and the line ends of their file",
        )
    })
}

/// Returns the settings of TLS, which trusts the certificates of `--ca`, or the certificates of the
/// system.
fn tls(args: &TlsArgs) -> CommandResult<TlsConfig> {
    let roots = match args.issuers().map_err(usage)? {
        None => RootCerts::PlatformVerifier,
        Some(issuers) => RootCerts::Specific(Arc::new(
            issuers.iter().map(|issuer| Certificate::from_der(issuer).to_owned()).collect(),
        )),
    };
    let client = match (args.identity().map_err(usage)?, args.key_text().map_err(usage)?) {
        (Some((chain, _)), Some(text)) => {
            let chain: Vec<_> =
                chain.iter().map(|one| Certificate::from_der(one).to_owned()).collect();
            let key = PrivateKey::from_pem(&text)
                .map_err(|error| CommandError::usage(format!("--key: {error}")))?;
            Some(ClientCert::new_with_certs(&chain, key))
        }
        _ => None,
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    Ok(TlsConfig::builder()
        .root_certs(roots)
        .client_cert(client)
        .unversioned_rustls_crypto_provider(provider)
        .build())
}

/// Returns true if the server ended the connection.
fn is_closed(error: &std::io::Error) -> bool {
    use std::io::ErrorKind;
    matches!(
        error.kind(),
        ErrorKind::BrokenPipe
            | ErrorKind::ConnectionAborted
            | ErrorKind::ConnectionReset
            | ErrorKind::UnexpectedEof
    )
}

/// Returns true if no program listens at the address.
fn refused(error: &ureq::Error) -> bool {
    use std::io::ErrorKind;
    matches!(error, ureq::Error::HostNotFound)
        || matches!(error, ureq::Error::Io(error) if error.kind() == ErrorKind::ConnectionRefused)
}

/// Returns the error for a redirect, which no command follows.
fn redirected(response: &ureq::http::Response<ureq::Body>) -> CommandError {
    let location = response.headers().get(ureq::http::header::LOCATION);
    let location = location.map(|value| String::from_utf8_lossy(value.as_bytes()));
    let place: String = location.unwrap_or_default().chars().take(EXCERPT_CHARS_MAX).collect();
    let status = response.status().as_u16();
    let what = format!("the server answered {status}: it redirects to \"{place}\"");
    CommandError::failed(what).hint(
        "requests carry keys, so no redirect is followed; give the server's own address with --url",
    )
}

/// Returns the error for a status that is not a success, with a hint for a missing key.
fn refusal(status: u16, body: &[u8]) -> CommandError {
    let mut text = error_text(body);
    if text.trim().is_empty() {
        let status = StatusCode::from_u16(status).ok();
        let reason = status.and_then(|status| status.canonical_reason());
        text = reason.unwrap_or("without a message").to_owned();
    }
    let failure = CommandError::failed(format!("the server answered {status}: {text}"));
    match status {
        401 => failure.hint(
            "set MILLPOND_API_KEY or MILLPOND_ADMIN_KEY to a key of the server; commands with --api-key or --admin-key take \
             it there too",
        ),
        // Messages of a refused admin call, and of a call that the role of the key does not permit.
        403 if text.contains("admin key") || text.ends_with("this needs admin") => failure.hint(
            "set MILLPOND_ADMIN_KEY to a key with the role admin; commands with --admin-key or --api-key take it there too",
        ),
        // Message of a server without the routes of a root.
        404 if text.starts_with("not found: /cluster/v1/") => failure.hint(
            "this server is not a node of a cluster with the role root: give the address of such a node with --url",
        ),
        _ => failure,
    }
}

/// Returns the message of an error response: `error`, or `status.error` in Qdrant's interface.
fn error_text(body: &[u8]) -> String {
    let message = serde_json::from_slice::<Value>(body).ok().and_then(|json| {
        let error = json.get("error").or_else(|| json.pointer("/status/error"))?;
        error.as_str().map(str::to_owned)
    });
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
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;

    use super::*;

    /// Sends DELETE to a server that gives `answer` to its only client and then stops listening.
    fn answered(answer: &'static [u8]) -> CommandResult<HttpReply> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 4096]).unwrap();
            stream.write_all(answer).unwrap();
        });
        let args = ServerArgs { url: Some(url), tls: TlsArgs::default() };
        let reply =
            ServerClient::new(&args)?.call("DELETE", "/v1/images/photos", RequestContent::None);
        server.join().unwrap();
        reply
    }

    #[test]
    fn a_redirect_is_not_followed() {
        let answer = b"HTTP/1.1 301 x\r\nlocation: https://other/a\r\ncontent-length: 0\r\n\r\n";
        let error = answered(answer).err().unwrap();
        let wanted = "the server answered 301: it redirects to \"https://other/a\"";
        assert_eq!(error.message(), wanted);
        assert!(format!("{error:?}").contains("no redirect is followed"), "{error:?}");
    }

    #[test]
    fn addresses_are_completed_or_refused() {
        let base = |url: &str| {
            ServerClient::new(&ServerArgs { url: Some(url.into()), tls: TlsArgs::default() })
                .map(|client| client.base)
        };
        assert_eq!(base("10.0.0.1:80").unwrap(), "http://10.0.0.1:80");
        assert_eq!(base("http://h:1/").unwrap(), "http://h:1");
        assert!(base("grpc://h:1").is_err());
        assert_eq!(base("https://h:1").unwrap(), "https://h:1");
        assert!(base("grpcs://h:1").is_err());
        for wrong in ["", " ", "unix:", "http://", "http://h:", "::1:8501", "http://h:99999"] {
            let error = base(wrong).err().unwrap();
            assert!(error.message().starts_with(&format!("--url {wrong}")), "{error:?}");
            assert!(format!("{error:?}").contains("write http://HOST:PORT"), "{error:?}");
        }
        assert_eq!(base("http://[::1]:9/api/").unwrap(), "http://[::1]:9/api");
        assert_eq!(base("unix:/run/a.sock").unwrap(), "unix:/run/a.sock");
        let tls = TlsArgs { ca: Some("/no/such/file".into()), ..TlsArgs::default() };
        for (url, wanted) in
            [("http://h:1", "--ca has no effect"), ("https://h:1", "--ca /no/such/file")]
        {
            let args = ServerArgs { url: Some(url.into()), tls: tls.clone() };
            let error = ServerClient::new(&args).err().unwrap();
            assert!(error.message().starts_with(wanted), "{}", error.message());
        }
    }

    #[test]
    fn passwords_of_addresses_are_sent_and_not_shown() {
        let client = |url: &str| {
            ServerClient::new(&ServerArgs { url: Some(url.into()), tls: TlsArgs::default() })
        };
        for url in ["http://u:s3cret@127.0.0.1:1", "u:s3cret@127.0.0.1:1"] {
            let client = client(url).ok().unwrap();
            assert_eq!(client.root, "http://u:s3cret@127.0.0.1:1");
            let error = client.call("GET", "/", RequestContent::None).err().unwrap();
            assert!(
                error.message().starts_with("no answer from http://127.0.0.1:1: "),
                "{error:?}"
            );
        }
        for wrong in ["ftp://u:s3cret@h", "http://u:#s3cret@h:1"] {
            let error = client(wrong).err().unwrap();
            assert!(!format!("{error:?}").contains("s3cret"), "{error:?}");
        }
    }

    #[test]
    fn a_key_with_a_line_end_is_named_and_not_shown() {
        let error = key_header("s3cret\r").unwrap_err();
        assert!(error.message().starts_with("the key has a control character"), "{error:?}");
        assert!(!format!("{error:?}").contains("s3cret"), "{error:?}");
    }

    #[test]
    fn a_key_of_another_certificate_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let own = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new(vec!["client".to_owned()]).unwrap();
        std::fs::write(path("cert.pem"), params.self_signed(&own).unwrap().pem()).unwrap();
        let client = |key: &rcgen::KeyPair| {
            std::fs::write(path("key.pem"), key.serialize_pem()).unwrap();
            let (cert, key) = (Some(path("cert.pem")), Some(path("key.pem")));
            let tls = TlsArgs { cert, key, ..TlsArgs::default() };
            ServerClient::new(&ServerArgs { url: Some("https://h:1".into()), tls })
        };
        assert!(client(&own).is_ok());
        let error = client(&rcgen::KeyPair::generate().unwrap()).err().unwrap();
        let wanted = "key.pem: it is not the key of the first certificate in ";
        assert!(error.message().contains(wanted), "{}", error.message());
    }

    #[test]
    fn a_closed_connection_hints_at_the_certificate() {
        let client = |url: &str| {
            ServerClient::new(&ServerArgs { url: Some(url.into()), tls: TlsArgs::default() }).ok()
        };
        // No program listens at port 1, so the protocol of the port stays unknown.
        for (url, is_hinted) in [("https://127.0.0.1:1", true), ("http://127.0.0.1:1", false)] {
            let closed = ureq::Error::Io(std::io::ErrorKind::BrokenPipe.into());
            let failure = format!("{:?}", client(url).unwrap().unreachable(&closed, READ_MAX));
            assert_eq!(failure.contains("give --cert FILE and --key FILE"), is_hinted, "{failure}");
        }
    }

    #[test]
    fn failures_of_a_connection_are_explained() {
        let args = ServerArgs { url: Some("unix:/s".into()), tls: TlsArgs::default() };
        let client = ServerClient::new(&args).ok().unwrap();
        let absent = std::io::Error::from_raw_os_error(2).into();
        for (error, wanted) in [
            (ureq::Error::Timeout(Timeout::Connect), "no connection within 10 s"),
            (ureq::Error::Timeout(Timeout::Global), "no complete response within 30 s"),
            (absent, "No such file or directory (os error 2)"),
        ] {
            let message = client.unreachable(&error, READ_MAX).message().to_owned();
            assert_eq!(message, format!("no answer from unix:/s: {wanted}"));
        }
    }

    #[test]
    fn reads_of_a_silent_server_end() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("socket");
        // The kernel accepts connections, and no program answers.
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let url = format!("unix:{}", socket.display());
        let args = ServerArgs { url: Some(url.clone()), tls: TlsArgs::default() };
        let read_max = Duration::from_secs(1);
        let client = ServerClient { read_max, ..ServerClient::new(&args).ok().unwrap() };
        for answer in [client.get("/v1/models/m"), client.repository_index()] {
            let message = answer.err().unwrap().message().to_owned();
            assert_eq!(message, format!("no answer from {url}: no complete response within 1 s"));
        }
    }

    #[test]
    fn errors_have_the_message_of_the_server_and_a_remedy() {
        assert_eq!(error_text(br#"{"error":"no such model"}"#), "no such model");
        assert_eq!(error_text(b"gone"), "gone");
        let of_qdrant = br#"{"status":{"error":"there is no node \"x\""},"time":0.1}"#;
        assert_eq!(error_text(of_qdrant), "there is no node \"x\"");
        assert_eq!(error_text(br#"{"error":{"code":1}}"#), r#"{"error":{"code":1}}"#);
        assert_eq!(refusal(502, b"").message(), "the server answered 502: Bad Gateway");
        let role = br#"{"error":"key \"a\" has the role write; this needs admin"}"#;
        let hint = |status: u16, body: &[u8]| format!("{:?}", refusal(status, body));
        assert!(hint(403, role).contains("MILLPOND_ADMIN_KEY"));
        let not_a_root = br#"{"error":"not found: /cluster/v1/view; the API is under /v2"}"#;
        assert!(hint(404, not_a_root).contains("with the role root"));
        assert!(hint(404, br#"{"error":"no such model"}"#).contains("hint: None"));
        assert!(
            !hint(403, br#"{"error":"key \"a\" has no access to model m"}"#).contains("hint: Some")
        );
    }
}
