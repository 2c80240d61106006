//! Models from the URL of a store.

use std::process::Stdio;

use crate::program::{check_error, run, write_model};
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
    check_error(
        &["serve", "ftp://host/models"],
        2,
        "\"ftp\" is not a supported kind of store; use s3://",
    );
}

#[test]
fn a_url_of_a_missing_directory_ends_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("file://{}/none", dir.path().display());
    let cache = dir.path().join("cache").display().to_string();
    let ended = run(&[
        "serve",
        &url,
        "--cache-dir",
        &cache,
        "--collections-dir",
        "none",
        "--http-port",
        "0",
        "--grpc-port",
        "0",
    ]);
    assert_eq!(ended.code, 3, "{ended:?}");
    assert!(ended.stderr.contains("No such file or directory (os error 2); check the path"));
}

#[test]
fn versions_are_published_to_a_store_and_compared() {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("model.onnx");
    let model = model.to_str().unwrap();
    let url = format!("file://{}/store/half_plus_two", dir.path().display());
    for (factor, version) in [(0.5, 1), (0.25, 2)] {
        write_model(model.as_ref(), factor);
        let published = run(&["publish", model, "--to", &url]);
        assert_eq!((published.code, published.stdout), (0, format!("{url}/{version}\n")));
    }
    assert!(dir.path().join("store/half_plus_two/2/millpond.json").is_file());
    check_error(&["publish", model, "--to", &url, "--version", "2"], 1, "version 2 exists");
    check_error(
        &["publish", model, "--to", &format!("{url}/3")],
        2,
        "\"3\" is a version's number, not a model's name",
    );
    check_error(
        &["publish", model, "--to", "ftp://host/m"],
        2,
        "\"ftp\" is not a supported kind of store",
    );

    let local = format!("{}/store/half_plus_two/1", dir.path().display());
    let diff = run(&["models", "diff", &local, &format!("{url}/2"), "--json"]);
    assert_eq!(diff.code, 0, "{diff:?}");
    let found: serde_json::Value = serde_json::from_str(&diff.stdout).unwrap();
    assert_eq!((&found["graph_equal"], &found["changed"]), (&false.into(), &serde_json::json!([])));
    assert!(found["fetch"]["bytes"].as_u64().unwrap() > 100, "graph and manifest: {found}");
    check_error(&["models", "diff", &local, &url], 1, "it is not a published version");
    check_error(&["models", "diff", "nowhere", &local], 1, "nowhere is not a published version");
}
