//! Encrypted connections with real certificates: handshakes, renewal, and clients of the wrong
//! kind.

use std::convert::Infallible;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use metrics::{KindLabels, Metrics};
use millpond_transport::{
    ConnectionLimits, HttpVersion, ListenSocket, Listener, PemSource, RequestBody, TlsFiles,
    TlsIdentity,
};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::client::TlsStream;

use super::WAIT_MAX;

const ANSWER_BYTES: usize = 5 << 20;
/// A certificate of version 1, made by openssl.
const VERSION_1_PEM: &str = "\
-----BEGIN CERTIFICATE-----
MIIBETCBuQIUJV9YHY8HvbDJVcRgQVFPQxao9G4wCgYIKoZIzj0EAwIwDDEKMAgG
A1UEAwwBYzAeFw0yNjExMjkxMzE0MTdaFw0yNjEyMDExMzE0MTdaMAwxCjAIBgNV
BAMMAWMwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAASjbGq18SSfcmiSYaM3bXkX
oSGiJk7c8cAHGMzPYPLxu4J8cXU2uWBg2Zdmln6v0Q5o/vMGOlAZ/FU6m1ogt+VU
MAoGCCqGSM49BAMCA0cAMEQCIBjh0oMRAHIf0By70dlXkTHXkQWKpDjYdpwJFNtH
akcMAiA6b5bH6XSCPZLwO/yYEnfFKOBHePS5GQFz3h6hXTrymA==
-----END CERTIFICATE-----
";

/// An authority that issues certificates.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    fn new() -> Authority {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).unwrap().pem();
        Authority { issuer: Issuer::new(params, key), pem }
    }

    /// Returns a certificate for localhost and its key.
    fn issue(&self) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        (params.signed_by(&key, &self.issuer).unwrap().pem(), key.serialize_pem())
    }

    /// Writes a new certificate to `dir`.
    fn write(&self, dir: &Path) {
        let (cert, key) = self.issue();
        std::fs::write(dir.join("cert.pem"), cert).unwrap();
        std::fs::write(dir.join("key.pem"), key).unwrap();
    }

    /// Returns the settings of a client that trusts this authority only.
    fn client(&self, alpn: &[u8], identity: Option<(String, String)>) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.pem.as_bytes()).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let mut config = match identity {
            None => builder.with_no_client_auth(),
            Some((cert, key)) => {
                let cert = CertificateDer::from_pem_slice(cert.as_bytes()).unwrap();
                let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
                builder.with_client_auth_cert(vec![cert], key).unwrap()
            }
        };
        config.alpn_protocols = vec![alpn.to_vec()];
        config
    }
}

fn files(dir: &Path) -> TlsFiles {
    let file = |name| PemSource::File(dir.join(name));
    TlsFiles { cert: file("cert.pem"), key: file("key.pem"), client_ca: None }
}

/// A listener that answers each request with [`ANSWER_BYTES`] bytes after its own body's length.
struct Served {
    address: SocketAddr,
    metrics: Arc<Metrics>,
    _stop: watch::Sender<bool>,
}

impl Served {
    async fn start(version: HttpVersion, tls: Option<Arc<TlsIdentity>>) -> Served {
        let socket = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap();
        let metrics = Arc::new(Metrics::default());
        let (stop, stopped) = watch::channel(false);
        let listener = Listener {
            name: "test",
            version,
            socket: ListenSocket::Tcp(socket),
            service: tower::service_fn(async |request: http::Request<RequestBody>| {
                let sent =
                    request.into_body().collect().await.map_or(0, |body| body.to_bytes().len());
                let mut answer = sent.to_string().into_bytes();
                answer.resize(ANSWER_BYTES, b'.');
                Ok::<_, Infallible>(http::Response::new(Full::new(Bytes::from(answer))))
            }),
            metrics: metrics.clone(),
            limits: ConnectionLimits {
                answer_window: millpond_transport::ANSWER_WINDOW,
                age_max: None,
                connections_max: 100,
                streams_max: 100,
                // Also the limit of a handshake, which one test waits for.
                header_timeout: Duration::from_secs(5),
                shutdown_grace: WAIT_MAX,
                drain_time: Duration::ZERO,
            },
            threads: None,
            tls,
        };
        tokio::spawn(listener.serve(stopped));
        Served { address, metrics, _stop: stop }
    }

    async fn handshake(&self, config: ClientConfig) -> std::io::Result<TlsStream<TcpStream>> {
        let stream = TcpStream::connect(self.address).await.unwrap();
        let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
        connector.connect("localhost".try_into().unwrap(), stream).await
    }

    /// Returns the counted connections of an outcome.
    fn count(&self, kind: &'static str) -> u64 {
        self.metrics.tls_handshakes.get_or_create(&KindLabels { kind }).get()
    }
}

fn request(bytes: usize) -> http::Request<Full<Bytes>> {
    let body = Full::new(Bytes::from(vec![b'x'; bytes]));
    http::Request::post("https://localhost/").header("host", "localhost").body(body).unwrap()
}

async fn check(response: http::Response<hyper::body::Incoming>, sent: usize) {
    assert_eq!(response.status(), 200);
    let body = response.into_body().collect().await.unwrap().to_bytes();
    assert!(body.len() == ANSWER_BYTES && body.starts_with(format!("{sent}.").as_bytes()));
}

async fn ask_http1(stream: TlsStream<TcpStream>) -> http1::SendRequest<Full<Bytes>> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    check(sender.send_request(request(3 << 20)).await.unwrap(), 3 << 20).await;
    sender
}

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(test);
}

#[test]
fn both_versions_are_served_encrypted() {
    run(async {
        let (authority, dir) = (Authority::new(), tempfile::tempdir().unwrap());
        authority.write(dir.path());
        let identity = TlsIdentity::read(files(dir.path())).unwrap();
        let served = Served::start(HttpVersion::Http1, Some(identity.clone())).await;
        let stream = served.handshake(authority.client(b"http/1.1", None)).await.unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
        let mut sender = ask_http1(stream).await;
        check(sender.send_request(request(5)).await.unwrap(), 5).await;
        let older = served.handshake(authority.client(b"http/1.0", None)).await.unwrap();
        assert_eq!(older.get_ref().1.alpn_protocol(), Some(&b"http/1.0"[..]));

        let served = Served::start(HttpVersion::Http2, Some(identity)).await;
        let stream = served.handshake(authority.client(b"h2", None)).await.unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
        let (mut sender, connection) =
            http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        for sent in [3 << 20, 5] {
            check(sender.send_request(request(sent)).await.unwrap(), sent).await;
        }
        assert_eq!(served.count("ok"), 1);
        // A client that insists on the other version is at the wrong port.
        assert!(served.handshake(authority.client(b"http/1.1", None)).await.is_err());
        assert_eq!(served.count("failed"), 1);
    });
}

#[test]
fn client_certificates_are_required() {
    run(async {
        let (authority, other) = (Authority::new(), Authority::new());
        let dir = tempfile::tempdir().unwrap();
        authority.write(dir.path());
        std::fs::write(dir.path().join("ca.pem"), &authority.pem).unwrap();
        let client_ca = Some(PemSource::File(dir.path().join("ca.pem")));
        let identity = TlsIdentity::read(TlsFiles { client_ca, ..files(dir.path()) }).unwrap();
        let served = Served::start(HttpVersion::Http1, Some(identity)).await;
        let known = authority.client(b"http/1.1", Some(authority.issue()));
        drop(ask_http1(served.handshake(known).await.unwrap()).await);
        for identity in [None, Some(other.issue())] {
            // With TLS 1.3 the client learns of it with its first read.
            let refused = match served.handshake(authority.client(b"http/1.1", identity)).await {
                Err(_) => true,
                Ok(stream) => {
                    let (mut sender, connection) =
                        http1::handshake(TokioIo::new(stream)).await.unwrap();
                    tokio::spawn(connection);
                    sender.send_request(request(1)).await.is_err()
                }
            };
            assert!(refused);
        }
        assert_eq!((served.count("ok"), served.count("failed")), (1, 2));
    });
}

#[test]
fn renewed_certificates_close_no_connection() {
    run(async {
        let (before, after) = (Authority::new(), Authority::new());
        let dir = tempfile::tempdir().unwrap();
        before.write(dir.path());
        let identity = TlsIdentity::read(files(dir.path())).unwrap();
        let served = Served::start(HttpVersion::Http1, Some(identity.clone())).await;
        let old = || served.handshake(before.client(b"http/1.1", None));
        let mut sender = ask_http1(old().await.unwrap()).await;

        let key = std::fs::read(dir.path().join("key.pem")).unwrap();
        std::fs::write(dir.path().join("key.pem"), "-----BEGIN PRIVATE KEY-----\n").unwrap();
        let error = identity.reload().unwrap_err();
        assert!(error.message().contains("key.pem"), "{error}");
        assert!(old().await.is_ok(), "the certificate before stays");
        after.write(dir.path());
        std::fs::write(dir.path().join("key.pem"), key).unwrap();
        let error = identity.reload().unwrap_err();
        assert!(error.message().contains("not the key of the first certificate"), "{error}");

        after.write(dir.path());
        identity.reload().unwrap();
        assert!(old().await.is_err());
        drop(ask_http1(served.handshake(after.client(b"http/1.1", None)).await.unwrap()).await);
        check(sender.send_request(request(1)).await.unwrap(), 1).await;
    });
}

#[test]
fn unusable_files_are_named() {
    let dir = tempfile::tempdir().unwrap();
    Authority::new().write(dir.path());
    let wrong = |content: &str, wanted: &str| {
        std::fs::write(dir.path().join("cert.pem"), content).unwrap();
        let error = TlsIdentity::read(files(dir.path())).err().unwrap();
        assert!(error.message().contains(wanted), "{error}");
    };
    wrong("", "cert.pem: no certificate in PEM form is in it");
    wrong("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "cert.pem: ");
    wrong(VERSION_1_PEM, "cert.pem: it has version 1 of X.509");
    std::fs::remove_file(dir.path().join("cert.pem")).unwrap();
    let error = TlsIdentity::read(files(dir.path())).err().unwrap();
    assert!(error.message().contains("cert.pem"), "{error}");
}

/// Sends `bytes` and returns all that the server says until it closes.
async fn said(served: &Served, bytes: &'static [u8]) -> String {
    let address = served.address;
    let talk = tokio::task::spawn_blocking(move || {
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
        stream.write_all(bytes).unwrap();
        let mut all = Vec::new();
        let _ = stream.read_to_end(&mut all);
        String::from_utf8_lossy(&all).into_owned()
    });
    talk.await.unwrap()
}

#[test]
fn clients_of_the_wrong_kind_get_the_reason() {
    run(async {
        let (authority, dir) = (Authority::new(), tempfile::tempdir().unwrap());
        authority.write(dir.path());
        let identity = TlsIdentity::read(files(dir.path())).unwrap();
        let served = Served::start(HttpVersion::Http1, Some(identity.clone())).await;
        let answer = said(&served, b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 400") && answer.contains("use https://"), "{answer}");
        assert_eq!(served.count("plaintext"), 1);
        // The handshake ends after its time.
        assert_eq!(said(&served, &[0x16, 3, 1]).await, "");
        assert_eq!(served.count("timeout"), 1);

        let served = Served::start(HttpVersion::Http2, Some(identity)).await;
        let answer = said(&served, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
        assert!(answer.contains("use https:// or grpcs://"), "{answer}");
        let stream = TokioIo::new(TcpStream::connect(served.address).await.unwrap());
        let (mut sender, connection) =
            http2::handshake(TokioExecutor::new(), stream).await.unwrap();
        tokio::spawn(connection);
        // A status ends the call: gRPC's clients repeat one that a GOAWAY alone refuses.
        let refused = sender.send_request(request(1)).await.unwrap();
        assert_eq!(refused.headers()["grpc-status"], "14");
        assert!(refused.headers()["grpc-message"].to_str().unwrap().contains("use https://"));

        for version in [HttpVersion::Http1, HttpVersion::Http2] {
            let served = Served::start(version, None).await;
            let error = served.handshake(authority.client(b"h2", None)).await.unwrap_err();
            assert!(error.to_string().contains("corrupt message"), "{error}");
            assert_eq!(served.count("tls_at_plain_port"), 1);
        }
    });
}

#[test]
fn clients_of_http2_at_an_http1_port_learn_why() {
    run(async {
        let served = Served::start(HttpVersion::Http1, None).await;
        // Older clients of gRPC read the text of an answer with status 200 only.
        for (content_type, status) in [("application/grpc", 200), ("application/json", 400)] {
            let stream = TokioIo::new(TcpStream::connect(served.address).await.unwrap());
            let (mut sender, connection) =
                http2::handshake(TokioExecutor::new(), stream).await.unwrap();
            tokio::spawn(connection);
            let mut sent = request(1);
            sent.headers_mut().insert("content-type", content_type.parse().unwrap());
            let refused = sender.send_request(sent).await.unwrap();
            assert_eq!(refused.status(), status, "{content_type}");
            assert_eq!(refused.headers()["grpc-status"], "14");
            let text = refused.headers()["grpc-message"].to_str().unwrap();
            assert!(text.starts_with("this port takes HTTP/1.1 only"), "{text}");
        }
    });
}
