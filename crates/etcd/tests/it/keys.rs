//! The client of etcd against a real etcd.

use std::time::Duration;

use base::ErrorKind;
use etcd::testing::EtcdServer;
use etcd::{Etcd, LeaseId, check_name};
use http_client::HttpClient;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;

const TTL: Duration = Duration::from_secs(60);

#[tokio::test]
async fn keys_end_with_their_lease() {
    let server = EtcdServer::start().await;
    let etcd = server.client();
    let lease = etcd.grant(TTL).await.unwrap();
    etcd.put("a", &[0, 255, b'/'], lease).await.unwrap();
    let entry = etcd.get("a").await.unwrap().unwrap();
    assert_eq!((&*entry.key, &*entry.value, entry.lease), ("a", &[0, 255, b'/'][..], lease));
    assert!(etcd.keep_alive(lease).await.unwrap());
    etcd.revoke(lease).await.unwrap();
    assert_eq!(etcd.get("a").await.unwrap(), None);
    assert!(!etcd.keep_alive(lease).await.unwrap());
    etcd.revoke(lease).await.unwrap();
    let refused = etcd.put("a", b"", lease).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NotFound);
    let refused = etcd.create("a", b"", lease).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NotFound);
}

#[tokio::test]
async fn one_creation_of_a_key_succeeds() {
    let server = EtcdServer::start().await;
    let etcd = server.client();
    let lease = etcd.grant(TTL).await.unwrap();
    let mut creations = JoinSet::new();
    for value in 0..8_u8 {
        let etcd = etcd.clone();
        creations.spawn(async move { etcd.create("a", &[value], lease).await.unwrap() });
    }
    let created: Vec<i64> = creations.join_all().await.into_iter().flatten().collect();
    let entry = etcd.get("a").await.unwrap().unwrap();
    assert_eq!(created, [entry.create_revision]);

    let revision = etcd.revision("a").await.unwrap();
    assert!(!etcd.delete_if_created("a", entry.create_revision + 1).await.unwrap());
    assert_eq!(etcd.revision("a").await.unwrap(), revision);
    assert!(etcd.delete_if_created("a", entry.create_revision).await.unwrap());
    assert!(!etcd.delete_if_created("a", entry.create_revision).await.unwrap());
    let again = etcd.create("a", b"", lease).await.unwrap().unwrap();
    assert!(again > entry.create_revision);
    etcd.delete("a").await.unwrap();
    etcd.delete("a").await.unwrap();
    assert_eq!(etcd.get("a").await.unwrap(), None);
}

#[tokio::test]
async fn a_key_with_another_value_stays() {
    let server = EtcdServer::start().await;
    let etcd = server.client();
    let lease = etcd.grant(TTL).await.unwrap();
    etcd.put("a", &[0, 255], lease).await.unwrap();
    assert!(!etcd.delete_if_value("a", &[0]).await.unwrap());
    assert!(!etcd.delete_if_value("b", &[0, 255]).await.unwrap());
    assert_eq!(*etcd.get("a").await.unwrap().unwrap().value, [0, 255]);
    assert!(etcd.delete_if_value("a", &[0, 255]).await.unwrap());
    assert_eq!(etcd.get("a").await.unwrap(), None);
}

#[tokio::test]
async fn ranges_have_all_pages_in_order() {
    const KEYS: usize = 2300;
    let server = EtcdServer::start().await;
    let etcd = server.client();
    let mut writes = JoinSet::new();
    for writer in 0..10 {
        let etcd = etcd.clone();
        writes.spawn(async move {
            for at in (writer..KEYS).step_by(10) {
                let key = format!("p/{at:05}");
                etcd.put(&key, key.as_bytes(), LeaseId(0)).await.unwrap();
            }
        });
    }
    writes.join_all().await;
    for outside in ["p", "p.", "p0", "q/1"] {
        etcd.put(outside, b"", LeaseId(0)).await.unwrap();
    }
    let range = etcd.range("p/").await.unwrap();
    assert_eq!(range.revision, etcd.revision("a").await.unwrap());
    let keys: Vec<String> = range.entries.iter().map(|entry| entry.key.clone()).collect();
    let expected: Vec<String> = (0..KEYS).map(|at| format!("p/{at:05}")).collect();
    assert_eq!(keys, expected);
    assert!(range.entries.iter().all(|entry| entry.key.as_bytes() == entry.value));
    let empty = etcd.range("none/").await.unwrap();
    assert_eq!((empty.entries.len(), empty.revision), (0, range.revision));
}

#[tokio::test]
async fn endpoints_are_tried_in_turn() {
    let server = EtcdServer::start().await;
    let other = EtcdServer::start().await;
    let both = format!("{},{}", other.endpoint(), server.endpoint());
    let etcd = Etcd::new(&[both], HttpClient::new(None)).unwrap();
    etcd.put("a", b"other", LeaseId(0)).await.unwrap();
    server.client().put("a", b"server", LeaseId(0)).await.unwrap();
    assert_eq!(etcd.get("a").await.unwrap().unwrap().value, "other");
    drop(other);
    assert_eq!(etcd.get("a").await.unwrap().unwrap().value, "server");
    drop(server);
    let error = etcd.get("a").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.message().starts_with("etcd does not answer: 127.0.0.1:"), "{error}");
}

#[tokio::test]
async fn stopped_etcd_is_unavailable() {
    let server = EtcdServer::start().await;
    let etcd = server.client();
    server.pause();
    assert_eq!(etcd.revision("a").await.unwrap_err().kind(), ErrorKind::Unavailable);
    server.resume();
    etcd.revision("a").await.unwrap();
}

#[tokio::test]
async fn other_servers_are_named() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut buffer = [0; 4096];
            let _ = stream.read(&mut buffer).await;
            let answer = b"HTTP/1.1 404 x\r\ncontent-length: 9\r\n\r\nNot Found";
            stream.write_all(answer).await.unwrap();
        }
    });
    let etcd = Etcd::new(&[endpoint], HttpClient::new(None)).unwrap();
    let error = etcd.revision("a").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::FailedPrecondition);
    assert!(error.message().contains("JSON gateway"), "{error}");
}

#[test]
fn names_have_no_separators() {
    for name in ["a", "node-1.example_2", &"x".repeat(128)] {
        check_name("node", name).unwrap();
    }
    for name in ["", "a/b", "a b", "é", &"x".repeat(129)] {
        assert!(check_name("node", name).is_err(), "{name}");
    }
}
