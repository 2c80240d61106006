//! Lists of a root for keys that may use some collections.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use axum::body::Body;
use http::{HeaderMap, HeaderValue, Request, header};
use serde_json::json;
use transport::access::{
    AccessPolicy, BrowserSessions, Caller, CollectionScope, CorsPolicy, KeyGrant, KeyRing, KeyRole,
    KeySources, Operation,
};

use crate::root_support::TestRoot;

/// Returns the rights of a key for collections whose names begin with "pub".
fn grant(root: &TestRoot) -> KeyGrant {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("keys.toml");
    let hash = blake3::hash(b"k").to_hex();
    let entry = "role = \"read\"\ncollections = [\"pub*\"]";
    std::fs::write(&file, format!("[[keys]]\nname = \"k\"\nhash = \"blake3:{hash}\"\n{entry}\n"))
        .unwrap();
    let sources = KeySources { file: Some(&file), api_key: None, admin_key: None };
    let policy = AccessPolicy {
        host: IpAddr::V4(Ipv4Addr::LOCALHOST),
        allowed_hosts: Vec::new(),
        allow_remote_admin: false,
        keys: KeyRing::read(sources).unwrap().map(Arc::new),
        cors: CorsPolicy::default(),
        metrics: root.metrics.clone(),
    };
    let key = HeaderValue::from_static("Bearer k");
    let headers = HeaderMap::from_iter([(header::AUTHORIZATION, key)]);
    let caller = Caller { peer: None, headers: &headers };
    let list = Operation { collections: CollectionScope::Names, ..Operation::new(KeyRole::Read) };
    policy.authorize(caller, BrowserSessions::Ignored, &list).unwrap().unwrap()
}

/// Returns a root with the collections "c" and "public".
fn two_collections() -> TestRoot {
    let root = TestRoot::with_collection(1, "Dot");
    root.view.update(|view| {
        let mut own = view.collections["c"].clone();
        own.name = "public".to_owned();
        own.id = "public".to_owned();
        view.collections.insert(own.name.clone(), own);
    });
    root
}

#[tokio::test]
async fn keys_read_no_points_of_another_collection() {
    let root = two_collections();
    let grant = grant(&root);
    let lookup = json!({"query": 1, "lookup_from": {"collection": "c"}});
    let unknown = json!({"query": 1, "lookup_from": {"collection": "pub-2"}});
    let inner = json!({"query": [1, 2], "prefetch": lookup});
    let grouped = json!({"query": [1, 2], "group_by": "a", "with_lookup": "c"});
    for (path, body, status) in [
        ("query", &lookup, 403),
        ("query", &inner, 403),
        ("query", &unknown, 404),
        ("query/batch", &json!({"searches": [lookup]}), 403),
        ("query/groups", &grouped, 403),
    ] {
        let path = format!("/collections/public/points/{path}");
        let mut request = Request::post(path).body(Body::from(body.to_string())).unwrap();
        request.extensions_mut().insert(grant.clone());
        let refused = root.send_request(request).await;
        assert_eq!(refused.status, status, "{body}: {}", refused.json);
    }
}

#[tokio::test]
async fn keys_see_their_collections() {
    let root = two_collections();
    let grant = grant(&root);
    for (path, list) in [("/collections", "collections"), ("/cluster/v1/view", "collections")] {
        let request = |grant: Option<KeyGrant>| {
            let mut request = Request::get(path).body(Body::empty()).unwrap();
            if let Some(grant) = grant {
                request.extensions_mut().insert(grant);
            }
            request
        };
        let all = root.send_request(request(None)).await;
        assert_eq!(all.result()[list].as_array().unwrap().len(), 2, "{path}");
        let own = root.send_request(request(Some(grant.clone()))).await;
        let own = own.result()[list].as_array().unwrap();
        assert_eq!((own.len(), &own[0]["name"]), (1, &json!("public")), "{path}");
    }
}

#[tokio::test]
async fn keys_see_their_aliases_of_a_collection() {
    let root = two_collections();
    root.view.update(|view| {
        let mut changes = (*view.changes).clone();
        for alias in ["pub-alias", "other"] {
            changes.aliases.insert(alias.to_owned(), "public".to_owned());
        }
        view.changes = Arc::new(changes);
    });
    let mut request = Request::get("/collections/public/aliases").body(Body::empty()).unwrap();
    request.extensions_mut().insert(grant(&root));
    let own = root.send_request(request).await;
    let own = own.result()["aliases"].as_array().unwrap();
    assert_eq!((own.len(), &own[0]["alias_name"]), (1, &json!("pub-alias")));
}
