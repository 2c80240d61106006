//! Uploads and recoveries of snapshots that a root refuses before it reads an archive.

use std::sync::atomic::Ordering;

use http::Method;
use serde_json::{Value, json};

use crate::root_support::{Answer, TestRoot};

#[tokio::test]
async fn an_upload_needs_a_free_name_and_possible_shards() {
    let root = TestRoot::with_collection(2, "Dot");
    let taken = root.post("snapshots/upload", &Value::Null).await;
    assert_eq!(taken.status, 409);
    assert!(taken.json["status"]["error"].as_str().unwrap().contains("alias"));
    for (query, word) in [
        ("shard_number=0", "shard_number"),
        ("replication_factor=9", "replication_factor"),
        ("shards=3", "shards"),
    ] {
        let wrong = root.post(&format!("snapshots/upload?{query}"), &Value::Null).await;
        assert_eq!(wrong.status, 400, "{query}");
        assert!(wrong.json["status"]["error"].as_str().unwrap().contains(word), "{query}");
    }
    let checksum = root.post("snapshots/upload?checksum=00", &Value::Null).await;
    assert_eq!(checksum.status, 501);
}

#[tokio::test]
async fn a_recovery_names_refused_parameters() {
    let root = TestRoot::with_collection(2, "Dot");
    let location = "file:///tmp/docs.snapshot";
    for (field, status) in [("checksum", 501), ("api_key", 501), ("snapshot", 400)] {
        let body = json!({ "location": location, field: "00" });
        let refused = root.put("snapshots/recover", &body).await;
        assert_eq!(refused.status, status, "{field}");
        assert!(refused.json["status"]["error"].as_str().unwrap().contains(field));
    }
    let taken = root.put("snapshots/recover", &json!({ "location": location })).await;
    assert_eq!(taken.status, 409);
}

/// Returns true if the error says that the name is taken.
fn names_taken_name(refused: &Answer) -> bool {
    refused.json["status"]["error"].as_str().unwrap().contains("already")
}

#[tokio::test]
async fn the_name_of_a_collection_that_another_root_removed_is_free() {
    let root = TestRoot::with_collection(2, "Dot");
    root.removed.store(true, Ordering::Relaxed);
    let location = json!({"location": "file:///tmp/docs.snapshot"});
    let refused = root.put("snapshots/recover", &location).await;
    assert!(!names_taken_name(&refused), "this root has no backups");
    assert!(root.view.source().current().collections.is_empty());
}

#[tokio::test]
async fn the_name_of_an_alias_that_another_root_removed_is_free() {
    let root = TestRoot::with_collection(2, "Dot");
    root.serve("a", "127.0.0.1:1", &[0, 1]);
    let create = json!({"create_alias": {"alias_name": "live", "collection_name": "c"}});
    let actions = json!({ "actions": [create] });
    root.send(Method::POST, "/collections/aliases", &actions).await.result();
    let location = json!({"location": "file:///tmp/docs.snapshot"});
    let path = "/collections/live/snapshots/recover";
    assert!(names_taken_name(&root.send(Method::PUT, path, &location).await));
    root.removed_aliases.store(true, Ordering::Relaxed);
    let refused = root.send(Method::PUT, path, &location).await;
    assert!(!names_taken_name(&refused), "this root has no backups");
}
