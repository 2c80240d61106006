//! Models from the URL of a store.

use std::process::Stdio;

use crate::program::check_error;
use crate::serve::{Server, publish};

#[test]
fn a_store_is_served_and_followed_and_survives_its_loss() {
    let dir = tempfile::tempdir().unwrap();
    publish(dir.path(), 0.5);
    let store = dir.path().join("models");
    let url = format!("file://{}", store.display());
    let cache = dir.path().join("cache");
    let arguments = [url.as_str(), "--cache-dir", cache.to_str().unwrap()];
    let status = ["models", "status", "half_plus_two"];
    let start = || Server::start_logged(&arguments, Stdio::null());

    let server = start();
    server.wait_until("version 1", &status, |run| run.code == 0 && run.stdout.contains(" 1 "));
    publish(dir.path(), 0.25);
    server.wait_until("version 2", &status, |run| run.code == 0 && run.stdout.contains(" 2 "));
    let metrics = server.metrics("/metrics");
    let label = format!("{{store=\"{url}\"}}");
    for name in ["store_fetched_bytes_total", "store_lists_total", "store_list_time_seconds"] {
        assert!(metrics.contains(&format!("millpond_{name}{label}")), "{name}: {metrics}");
    }
    assert_eq!(server.terminate(), Some(0));

    // Now a listing fails, as without a network.
    std::fs::remove_dir_all(&store).unwrap();
    std::fs::write(&store, "no directory").unwrap();
    let server = start();
    server.wait_until("version 2", &status, |run| run.code == 0 && run.stdout.contains(" 2 "));
    assert_eq!(server.terminate(), Some(0));
}

#[test]
fn a_url_without_a_store_is_refused() {
    check_error(&["serve", "ftp://host/models"], 2, "\"ftp\" is no kind of store; use s3://");
}
