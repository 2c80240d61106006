//! Collections after a restart, and damaged files.

use base::ErrorKind;
use serde_json::{Value, json};

use super::{Bench, UUID, context, three};
use crate::{collections, describe, retrieve, update};

#[test]
fn damaged_segments_are_named_and_abandoned() {
    let mut bench = Bench::new();
    three(&bench, "Cosine");
    bench.registry().get("c").unwrap().collection().flush().unwrap();
    let describe = |bench: &Bench| bench.read(describe::describe, "c", &Value::Null).unwrap();
    let healthy = describe(&bench);
    assert_eq!((&healthy["status"], &healthy["warnings"]), (&json!("green"), &json!([])));
    let segments = |bench: &Bench| bench.read(describe::segments, "c", &Value::Null).unwrap();
    let whole = segments(&bench);
    let segment = &whole["segments"][0];
    assert_eq!(
        (&segment["rows"], &segment["deleted"], &segment["open"]),
        (&json!(3), &json!(0), &json!(true))
    );
    assert!(segment["bytes"].as_u64().unwrap() > 0);
    assert_eq!(
        (&whole["unflushed_points"], &whole["flushes"], &whole["damaged"]),
        (&json!(0), &json!(1), &json!([]))
    );
    let memory = |name: &str| whole["memory"][name].as_u64().unwrap();
    assert!(memory("used_bytes") <= memory("peak_bytes"));
    assert!(memory("peak_bytes") <= memory("limit_bytes"));
    let give_up = |bench: &Bench, name: &str| {
        collections::give_up(bench.registry(), &context("c", name), b"")
    };

    drop(bench.registry.take());
    let files = walkdir(bench.directory.path());
    let file = files
        .iter()
        .find(|path| path.file_name().unwrap().to_string_lossy().starts_with("segment-"));
    let file = file.unwrap();
    let mut bytes = std::fs::read(file).unwrap();
    bytes[..4096].fill(0);
    std::fs::write(file, bytes).unwrap();
    bench.restart();
    let name = file.file_name().unwrap().to_str().unwrap();
    let damaged = describe(&bench);
    assert_eq!(damaged["status"], "red");
    assert!(damaged["warnings"][0]["message"].as_str().unwrap().starts_with(name), "{damaged}");

    let status = segments(&bench);
    assert_eq!((&status["damaged_count"], &status["partial"]), (&json!(1), &json!(true)));
    assert_eq!(status["damaged"][0]["file"], name);
    assert_eq!(status["segments"][0]["open"], false);

    assert_eq!(give_up(&bench, "segment-9").unwrap_err().kind(), ErrorKind::NotFound);
    assert!(give_up(&bench, name).unwrap());
    for _ in 0..2 {
        let given_up = describe(&bench);
        assert_eq!((&given_up["status"], &given_up["warnings"]), (&json!("green"), &json!([])));
        assert_eq!(given_up["points_count"], 0);
        bench.restart();
    }
}

/// All files below `directory`.
fn walkdir(directory: &std::path::Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { walkdir(&path) } else { vec![path] }).collect()
}

#[test]
fn points_and_settings_survive_a_restart() {
    let mut bench = Bench::new();
    three(&bench, "Euclid");
    bench
        .write(collections::index, "c", &json!({"field_name": "n", "field_schema": "integer"}))
        .unwrap();
    bench.write(collections::update, "c", &json!({"metadata": {"a": 1, "b": 2}})).unwrap();
    bench.write(collections::update, "c", &json!({"metadata": {"a": null, "c": 3}})).unwrap();
    // Members of other interfaces stay.
    bench
        .registry()
        .get("c")
        .unwrap()
        .change_extra(|extra| {
            extra["images"] = json!({"kind": "photo"});
            Ok(())
        })
        .unwrap();
    bench
        .write(
            collections::index,
            "c",
            &json!({"field_name": "m", "field_schema": {"type": "keyword"}}),
        )
        .unwrap();
    let alias =
        json!({"actions": [{"create_alias": {"alias_name": "other", "collection_name": "c"}}]});
    bench.write(collections::change_aliases, "", &alias).unwrap();
    bench.write(update::set_payload, "c", &json!({"payload": {"x": 1}, "points": [UUID]})).unwrap();
    bench
        .write(
            update::delete,
            "c",
            &json!({"filter": {"must": [{"key": "n", "match": {"value": 2}}]}}),
        )
        .unwrap();
    bench.restart();
    let info = bench.read(describe::describe, "other", &Value::Null).unwrap();
    assert_eq!((&info["points_count"], &info["status"]), (&json!(2), &json!("green")));
    assert_eq!(info["config"]["params"]["vectors"], json!({"size": 2, "distance": "Euclid"}));
    assert_eq!(info["config"]["metadata"], json!({"b": 2, "c": 3}));
    assert_eq!(info["payload_schema"]["n"]["data_type"], "integer");
    assert_eq!(info["payload_schema"]["m"]["data_type"], "keyword");
    assert_eq!(
        bench.registry().get("c").unwrap().settings().extra["images"],
        json!({"kind": "photo"})
    );
    let page = bench.read(retrieve::scroll, "c", &json!({"limit": 1})).unwrap();
    assert_eq!((&page["points"][0]["id"], &page["next_page_offset"]), (&json!(1), &json!(UUID)));
    let page = bench.read(retrieve::scroll, "c", &json!({"limit": 1, "offset": UUID})).unwrap();
    assert_eq!(
        (&page["points"][0]["payload"], &page["next_page_offset"]),
        (&json!({"x": 1}), &Value::Null)
    );
    assert_eq!(bench.read(retrieve::count, "c", &json!({})).unwrap(), json!({"count": 2}));
    let facet = |request: Value| bench.read(retrieve::facet, "c", &request);
    assert_eq!(facet(json!({"key": "x"})).unwrap(), json!({"hits": [{"value": 1, "count": 1}]}));
    assert_eq!(facet(json!({"key": "none", "exact": true})).unwrap(), json!({"hits": []}));
    for (wrong, word) in [
        (json!({"key": ""}), "key"),
        (json!({"key": "x", "limit": 0}), "limit"),
        (json!({}), "key"),
    ] {
        let error = facet(wrong).unwrap_err();
        assert!(
            error.kind() == ErrorKind::InvalidArgument && error.message().contains(word),
            "{error}"
        );
    }
}
