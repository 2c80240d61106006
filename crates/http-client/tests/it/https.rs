//! The client of other nodes against a listener with TLS.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use base::ErrorKind;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use http_client::testing::Authority;
use http_client::{ClientTls, ClientTlsFiles, HttpClient, TlsPeer};
use metrics::Metrics;
use tokio::net::TcpListener;
use tokio::sync::watch;
use transport::{
    ConnectionLimits, HttpVersion, ListenSocket, Listener, PemSource, RequestBody, TlsFiles,
    TlsIdentity,
};

const WAIT: Duration = Duration::from_secs(60);
/// Tries to read the reason of a refusal.
const TRIES_MAX: usize = 20;
/// Hosts of a certificate that a client reaches by its IP address.
const LOCAL: [&str; 2] = ["localhost", "127.0.0.1"];

/// A listener that answers each request with its body. It ends with this value.
struct EchoServer {
    socket: SocketAddr,
    _stop: watch::Sender<bool>,
}

impl EchoServer {
    async fn start(tls: Option<Arc<TlsIdentity>>) -> EchoServer {
        let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap();
        let (stop, stopped) = watch::channel(false);
        let listener = Listener {
            name: "echo",
            version: HttpVersion::Http1,
            socket: ListenSocket::Tcp(socket),
            service: tower::service_fn(async |request: http::Request<RequestBody>| {
                let body = request.into_body().collect().await;
                let body = body.map_or(Bytes::new(), |body| body.to_bytes());
                Ok::<_, Infallible>(http::Response::new(Full::new(body)))
            }),
            metrics: Arc::new(Metrics::default()),
            limits: ConnectionLimits {
                answer_window: transport::ANSWER_WINDOW,
                age_max: None,
                connections_max: 100,
                streams_max: 100,
                header_timeout: WAIT,
                shutdown_grace: WAIT,
                drain_time: Duration::ZERO,
            },
            threads: None,
            tls,
        };
        tokio::spawn(listener.serve(stopped));
        EchoServer { socket: address, _stop: stop }
    }

    async fn with_tls(files: &TlsFiles) -> EchoServer {
        EchoServer::start(Some(TlsIdentity::read(files.clone()).unwrap())).await
    }

    fn address(&self) -> String {
        self.socket.to_string()
    }

    /// Sends a request. Returns the error's message if it fails.
    async fn call(&self, tls: Arc<ClientTls>) -> Result<(), String> {
        call(&HttpClient::with_tls(None, tls), &self.address()).await
    }
}

async fn call(client: &HttpClient, address: &str) -> Result<(), String> {
    match client.post(address, "/", Bytes::from("{}"), WAIT).await {
        Ok(answer) => {
            assert_eq!((answer.status, &*answer.body), (200, &b"{}"[..]));
            Ok(())
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            Err(error.message().to_owned())
        }
    }
}

#[tokio::test]
async fn servers_are_verified_by_issuer_and_host() {
    // A new authority often has the name of the one before.
    let (authority, other) = (Authority::new("same"), Authority::new("same"));
    let server = EchoServer::with_tls(&authority.server("server", &LOCAL)).await;
    let trusting = || authority.client(TlsPeer::Nodes, None);
    server.call(trusting()).await.unwrap();
    let by_name = format!("localhost:{}", server.socket.port());
    call(&HttpClient::with_tls(None, trusting()), &by_name).await.unwrap();

    let error = server.call(other.client(TlsPeer::Nodes, None)).await.unwrap_err();
    assert!(error.contains(&server.address()) && error.contains("--cluster-tls-ca"), "{error}");
    assert!(error.contains("is not signed by an issuer in"), "{error}");

    let named = EchoServer::with_tls(&authority.server("named", &["localhost"])).await;
    let by_name = format!("localhost:{}", named.socket.port());
    call(&HttpClient::with_tls(None, trusting()), &by_name).await.unwrap();
    let error = named.call(trusting()).await.unwrap_err();
    assert!(error.contains("does not name the IP address 127.0.0.1"), "{error}");
    assert!(error.ends_with("--cluster-address"), "{error}");
}

#[tokio::test]
async fn plain_and_encrypted_servers_are_told_apart() {
    let authority = Authority::new("a");
    let plain = EchoServer::start(None).await;
    let error = plain.call(authority.client(TlsPeer::Nodes, None)).await.unwrap_err();
    assert!(error.contains("does not speak TLS; start that node with --tls-cert"), "{error}");
    let server = EchoServer::with_tls(&authority.server("server", &LOCAL)).await;
    let answer = HttpClient::new(None).get(&server.address(), "/", WAIT).await.unwrap();
    let text = String::from_utf8_lossy(&answer.body).into_owned();
    assert!(answer.status == 400 && text.contains("use https://"), "{text}");
}

/// Returns why a server refuses a client. A client that writes its request after the server has
/// closed the connection does not read the reason, so it tries again.
async fn refusal(server: &EchoServer, tls: Arc<ClientTls>) -> String {
    for _ in 0..TRIES_MAX {
        let error = server.call(tls.clone()).await.unwrap_err();
        if !error.contains("cannot be reached") {
            return error;
        }
    }
    panic!("the server closes each connection without a reason");
}

#[tokio::test]
async fn nodes_show_their_certificate() {
    let (authority, other) = (Authority::new("a"), Authority::new("b"));
    let own = authority.server("server", &LOCAL);
    let strict = TlsFiles { client_ca: Some(authority.ca()), ..own };
    let server = EchoServer::with_tls(&strict).await;
    let identity = authority.issue("node", &LOCAL);
    server.call(authority.client(TlsPeer::Nodes, Some(identity))).await.unwrap();

    let error = refusal(&server, authority.client(TlsPeer::Nodes, None)).await;
    assert!(error.contains("requires a certificate of its clients"), "{error}");
    let stranger = other.issue("stranger", &LOCAL);
    let error = refusal(&server, authority.client(TlsPeer::Nodes, Some(stranger))).await;
    assert!(error.contains("refuses the certificate") && error.contains("stranger.pem"), "{error}");
}

#[tokio::test]
async fn renewed_files_count_for_new_connections() {
    let (before, after) = (Authority::new("a"), Authority::new("b"));
    let old = EchoServer::with_tls(&before.server("server", &LOCAL)).await;
    let new = EchoServer::with_tls(&after.server("server", &LOCAL)).await;
    let ca = before.path("followed.pem");
    std::fs::copy(before.path("ca.pem"), &ca).unwrap();
    let files =
        ClientTlsFiles { peer: TlsPeer::Nodes, ca: PemSource::File(ca.clone()), identity: None };
    let tls = ClientTls::read(files).unwrap();
    let client = HttpClient::with_tls(None, tls.clone());
    call(&client, &old.address()).await.unwrap();
    assert!(call(&client, &new.address()).await.is_err());

    std::fs::write(&ca, "").unwrap();
    let error = tls.reload().unwrap_err();
    assert!(error.message().contains("followed.pem: no certificate"), "{error}");
    assert!(call(&client, &new.address()).await.is_err());
    std::fs::copy(after.path("ca.pem"), &ca).unwrap();
    tls.reload().unwrap();
    call(&client, &new.address()).await.unwrap();
    // The open connection stays. A new one would be refused.
    call(&client, &old.address()).await.unwrap();
    assert!(old.call(tls).await.is_err());
}

#[test]
fn a_node_checks_its_own_certificate() {
    let (authority, other) = (Authority::new("a"), Authority::new("b"));
    let tls = authority.client(TlsPeer::Nodes, None);
    let own = authority.server("own", &["node-1.example", "10.0.0.7"]);
    tls.check_own(&own, "node-1.example:8501").unwrap();
    tls.check_own(&own, "10.0.0.7:8501").unwrap();
    let refused = |own: &TlsFiles, address: &str| {
        let error = tls.check_own(own, address).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        error.message().to_owned()
    };
    let error = refused(&own, "10.0.0.8:8501");
    assert!(
        error.contains("own.pem of this node does not name the IP address 10.0.0.8"),
        "{error}"
    );
    assert!(error.contains("10.0.0.8 as an IP address") && error.contains("--cluster-address"));
    let error = refused(&own, "node-2.example:8501");
    assert!(error.contains("node-2.example as a DNS name"), "{error}");
    let error = refused(&other.server("own", &["10.0.0.7"]), "10.0.0.7:8501");
    assert!(error.contains("--cluster-tls-ca"), "{error}");

    let error = refused(&TlsFiles { cert: authority.ca(), ..own.clone() }, "10.0.0.7:8501");
    assert!(error.contains("ca.pem of this node is that of an issuer (CA:TRUE)"), "{error}");

    let strict = TlsFiles { client_ca: Some(authority.ca()), ..own };
    tls.check_own(&strict, "10.0.0.7:8501").unwrap();
    let strict = TlsFiles { client_ca: Some(other.ca()), ..strict };
    let error = refused(&strict, "10.0.0.7:8501");
    assert!(error.contains("--tls-client-ca") && error.contains("clientAuth"), "{error}");
}

#[test]
fn unusable_files_are_named() {
    let authority = Authority::new("a");
    let files = |ca: PemSource| ClientTlsFiles { peer: TlsPeer::Nodes, ca, identity: None };
    let missing = PemSource::File(authority.path("missing.pem"));
    let error = ClientTls::read(files(missing)).unwrap_err();
    assert!(error.kind() == ErrorKind::NotFound && error.message().contains("missing.pem"));
    let (mut first, second) = (authority.issue("a", &LOCAL), authority.issue("b", &LOCAL));
    first.key = second.key;
    let mixed = ClientTlsFiles { identity: Some(first), ..files(authority.ca()) };
    let error = ClientTls::read(mixed).unwrap_err();
    assert!(error.message().contains("not the key of the first certificate in"), "{error}");
}
