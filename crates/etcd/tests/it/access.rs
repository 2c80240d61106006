//! The client of etcd against a real etcd with TLS and with users.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use base::ErrorKind;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use etcd::testing::{EtcdServer, EtcdTls, WAIT_MAX};
use etcd::{Etcd, EtcdUser, LeaseId};
use http_client::testing::Authority;
use http_client::{HttpClient, HttpRequest, TlsPeer};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use transport::access::Secret;

const USER: &str = "mill";
const PASSWORD: &str = "p\"assword/of ü";
const ROOT: &str = "root";
/// Tries to read the reason of a refusal.
const TRIES_MAX: usize = 20;

fn user(name: &str, password: &str) -> EtcdUser {
    EtcdUser { name: name.to_owned(), password: Secret(password.to_owned()) }
}

/// Calls etcd's gateway as an operator. `token` is that of a login.
async fn operate(server: &EtcdServer, path: &str, body: Value, token: Option<&str>) -> Value {
    let mut headers = http::HeaderMap::new();
    if let Some(token) = token {
        headers.insert(http::header::AUTHORIZATION, token.parse().unwrap());
    }
    let request = HttpRequest {
        method: http::Method::POST,
        path,
        headers,
        body: Bytes::from(body.to_string()),
    };
    let answer = server.http_client().send(&server.address(), request, WAIT_MAX).await.unwrap();
    assert_eq!(answer.status, 200, "{path}: {}", String::from_utf8_lossy(&answer.body));
    serde_json::from_slice(&answer.body).unwrap()
}

/// Makes the user, who may use the keys that begin with `millpond/`, and enables users. Returns the
/// token of the administrator.
async fn enable_users(server: &EtcdServer) -> String {
    let role = json!({ "name": "millpond", "perm": {
        "permType": "READWRITE",
        "key": STANDARD.encode("millpond/"),
        "range_end": STANDARD.encode("millpond0"),
    }});
    for (path, body) in [
        ("/v3/auth/role/add", json!({ "name": ROOT })),
        ("/v3/auth/user/add", json!({ "name": ROOT, "password": ROOT })),
        ("/v3/auth/user/grant", json!({ "user": ROOT, "role": ROOT })),
        ("/v3/auth/role/add", json!({ "name": "millpond" })),
        ("/v3/auth/role/grant", role),
        ("/v3/auth/user/add", json!({ "name": USER, "password": PASSWORD })),
        ("/v3/auth/user/grant", json!({ "user": USER, "role": "millpond" })),
        ("/v3/auth/enable", json!({})),
    ] {
        operate(server, path, body, None).await;
    }
    let login = json!({ "name": ROOT, "password": ROOT });
    let login = operate(server, "/v3/auth/authenticate", login, None).await;
    login["token"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn etcd_is_verified_by_its_issuer() {
    let server = EtcdServer::start_with(Some(EtcdTls::new(false))).await;
    let etcd = server.client();
    etcd.put("a", b"1", LeaseId(0)).await.unwrap();
    assert_eq!(etcd.get("a").await.unwrap().unwrap().value, "1");

    let other = Authority::new("other").client(TlsPeer::Etcd, None);
    let other = HttpClient::with_tls(None, other);
    let etcd = Etcd::new(&[server.endpoint()], other).unwrap();
    let error = etcd.get("a").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let wanted = format!("the certificate of {} is not signed by an issuer in", server.address());
    assert!(error.message().contains(&wanted), "{error}");
    assert!(error.message().ends_with("--cluster-etcd-ca"), "{error}");

    let by_name = format!("https://localhost:{}", server.address().split_once(':').unwrap().1);
    let etcd = Etcd::new(&[by_name], server.http_client()).unwrap();
    let error = etcd.get("a").await.unwrap_err();
    assert!(error.message().contains("localhost as a DNS name"), "{error}");

    let plain = [server.endpoint().replace("https", "http")];
    let etcd = Etcd::new(&plain, HttpClient::new(None)).unwrap();
    let error = etcd.get("a").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.message().contains(&server.address()), "{error}");
    assert!(error.message().ends_with("write https:// in --cluster-etcd"), "{error}");
}

/// Returns why etcd refuses a client. If the client writes its request after etcd has closed the
/// connection, it does not read the reason, so it tries again.
async fn refusal(etcd: &Etcd) -> String {
    for _ in 0..TRIES_MAX {
        let error = etcd.get("a").await.unwrap_err();
        if !error.message().contains("cannot be reached") {
            return error.message().to_owned();
        }
    }
    panic!("etcd closes each connection without a reason");
}

#[tokio::test]
async fn etcd_may_require_a_certificate() {
    let server = EtcdServer::start_with(Some(EtcdTls::new(true))).await;
    server.client().put("a", b"1", LeaseId(0)).await.unwrap();
    let trusting = server.authority().client(TlsPeer::Etcd, None);
    let etcd = Etcd::new(&[server.endpoint()], HttpClient::with_tls(None, trusting)).unwrap();
    let error = refusal(&etcd).await;
    assert!(error.contains("--cluster-etcd-cert FILE"), "{error}");
    let other = Authority::new("other");
    let stranger = other.issue("stranger", &["a"]);
    let stranger = server.authority().client(TlsPeer::Etcd, Some(stranger));
    let etcd = Etcd::new(&[server.endpoint()], HttpClient::with_tls(None, stranger)).unwrap();
    let error = refusal(&etcd).await;
    assert!(error.contains("refuses the certificate"), "{error}");
}

#[tokio::test]
async fn a_user_logs_in_and_again_if_its_token_ends() {
    let server = EtcdServer::start_with(Some(EtcdTls::new(false))).await;
    let without = server.client();
    let unused = without.clone().with_user(user(USER, PASSWORD));
    let error = unused.get("millpond/a").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::FailedPrecondition);
    assert!(error.message().contains("leave out MILLPOND_ETCD_USER"), "{error}");

    let administrator = enable_users(&server).await;
    let error = without.get("millpond/a").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    assert!(error.message().contains("set MILLPOND_ETCD_USER"), "{error}");
    let error = without.clone().with_user(user(USER, "wrong")).get("millpond/a").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    assert!(error.message().contains("MILLPOND_ETCD_PASSWORD"), "{error}");

    let etcd = without.with_user(user(USER, PASSWORD));
    let lease = etcd.grant(Duration::from_secs(60)).await.unwrap();
    let revision = etcd.create("millpond/a", b"1", lease).await.unwrap().unwrap();
    assert!(etcd.keep_alive(lease).await.unwrap());
    assert_eq!(etcd.revision("millpond/").await.unwrap(), revision);
    let error = etcd.get("other").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    assert!(error.message().contains("keys that begin with millpond"), "{error}");

    // A change of the password ends the tokens of the user.
    let change = json!({ "name": USER, "password": PASSWORD });
    operate(&server, "/v3/auth/user/changepw", change, Some(&administrator)).await;
    let read = tokio::join!(etcd.get("millpond/a"), etcd.range("millpond/"));
    assert_eq!(read.0.unwrap().unwrap().create_revision, revision);
    assert_eq!(read.1.unwrap().entries.len(), 1);
    etcd.revoke(lease).await.unwrap();
    assert_eq!(etcd.get("millpond/a").await.unwrap(), None);
    // Now the login with the old password fails too.
    let change = json!({ "name": USER, "password": "another" });
    operate(&server, "/v3/auth/user/changepw", change, Some(&administrator)).await;
    let error = etcd.get("millpond/a").await.unwrap_err();
    assert!(error.message().contains("MILLPOND_ETCD_PASSWORD"), "{error}");
    assert!(!error.message().contains(PASSWORD), "{error}");
}

/// An etcd with users that closes the connections of some requests. An etcd that lost its data lets
/// such requests wait, which would take longer here.
struct CuttingEtcd {
    client: Etcd,
    logins: Arc<AtomicUsize>,
}

impl CuttingEtcd {
    /// Starts one that does not answer requests with tokens that have the text `cut`.
    async fn start(cut: &'static str) -> CuttingEtcd {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let logins = Arc::new(AtomicUsize::new(0));
        let counted = logins.clone();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                tokio::spawn(answer_requests(stream, cut, counted.clone()));
            }
        });
        let client = Etcd::new(&[endpoint], HttpClient::new(None)).unwrap();
        CuttingEtcd { client: client.with_user(user(USER, PASSWORD)), logins }
    }

    fn logins(&self) -> usize {
        self.logins.load(Ordering::Relaxed)
    }
}

/// Answers the requests of a connection, until one has a token with the text `cut`. The end of a
/// lease is refused, as by an etcd without a leader.
async fn answer_requests(mut stream: TcpStream, cut: &'static str, logins: Arc<AtomicUsize>) {
    let mut request = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let Ok(read @ 1..) = stream.read(&mut buffer).await else { return };
        request.extend_from_slice(&buffer[..read]);
        // The body is a JSON object.
        if !request.ends_with(b"}") {
            continue;
        }
        let text = String::from_utf8_lossy(&request).into_owned();
        request.clear();
        let mut status = "200 OK";
        let body = if text.contains("/v3/auth/authenticate") {
            let login = logins.fetch_add(1, Ordering::Relaxed) + 1;
            json!({ "token": format!("token.{login}") })
        } else if text.contains(cut) {
            return;
        } else if text.contains("/v3/lease/revoke") {
            status = "503 Service Unavailable";
            json!({ "code": 14, "message": "etcdserver: no leader" })
        } else {
            json!({ "header": { "revision": "7" } })
        };
        let body = body.to_string();
        let answer = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        stream.write_all(answer.as_bytes()).await.unwrap();
    }
}

#[tokio::test]
async fn an_unanswered_token_is_replaced() {
    let etcd = CuttingEtcd::start("token.1").await;
    let error = etcd.client.revision("a").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert_eq!(etcd.client.revision("a").await.unwrap(), 7);
    assert_eq!(etcd.logins(), 2);
}

#[tokio::test]
async fn an_etcd_that_does_not_answer_gets_few_logins() {
    let etcd = CuttingEtcd::start("token.").await;
    for _ in 0..5 {
        let error = etcd.client.revision("a").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
    assert_eq!(etcd.logins(), 2);
}

#[tokio::test]
async fn an_answered_token_stays() {
    let etcd = CuttingEtcd::start("no token").await;
    let error = etcd.client.revoke(LeaseId(1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert_eq!(etcd.client.revision("a").await.unwrap(), 7);
    assert_eq!(etcd.logins(), 1);
}
