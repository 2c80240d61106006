//! Settings, indexes and aliases of collections.

use base::ErrorKind;
use serde_json::{Value, json};

use super::{Bench, messages, three};
use crate::{collections, describe, retrieve, update};

#[test]
fn hints_without_effect_are_warned_of() {
    let bench = Bench::new();
    let create = json!({"vectors": {"size": 2, "distance": "Dot", "on_disk": true}, "hnsw_config": {"m": 32},
                        "shard_number": 3, "on_disk_payload": true,
                        "quantization_config": {"scalar": {"type": "int8"}}});
    bench.write(collections::create, "c", &create).unwrap();
    bench
        .write(collections::update, "c", &json!({"optimizers_config": {"indexing_threshold": 0}}))
        .unwrap();
    bench
        .write(collections::index, "c", &json!({"field_name": "n", "field_schema": "integer"}))
        .unwrap();
    let described = bench.read(describe::describe, "c", &Value::Null).unwrap();
    let config = &described["config"];
    assert_eq!(
        (&config["hnsw_config"]["m"], &config["quantization_config"]),
        (&json!(16), &Value::Null)
    );
    assert!(config["optimizer_config"].get("indexing_threshold").is_none(), "{config}");
    assert_eq!(
        (&config["params"]["shard_number"], &config["wal_config"]["wal_capacity_mb"]),
        (&json!(1), &json!(32))
    );
    let messages = messages(&described);
    for name in ["hnsw_config", "shard_number", "quantization_config", "optimizers_config"] {
        assert!(messages.iter().any(|message| message.contains(name)), "{name}: {messages:?}");
    }
    assert_eq!(messages.len(), 4, "what holds is not warned of: {messages:?}");
}

#[test]
fn an_indexed_field_counts_its_points() {
    let bench = Bench::new();
    three(&bench, "Dot");
    bench
        .write(collections::index, "c", &json!({"field_name": "n", "field_schema": "integer"}))
        .unwrap();
    let points = |bench: &Bench| {
        bench.read(describe::describe, "c", &Value::Null).unwrap()["payload_schema"]["n"].clone()
    };
    assert_eq!(points(&bench), json!({"data_type": "integer", "points": 2}), "and no params");
    bench.registry().get("c").unwrap().collection().flush().unwrap();
    assert_eq!(points(&bench)["points"], 2);
    bench.write(update::delete, "c", &json!({"points": [1]})).unwrap();
    assert_eq!(points(&bench)["points"], 1);
}

#[test]
fn a_description_reads_no_payload_of_a_field_without_an_index() {
    let bench = Bench::new();
    bench.create("c", 2, "Dot");
    // More fields than a segment indexes.
    let payload: serde_json::Map<String, Value> =
        (0..70).map(|number| (format!("f{number:02}"), json!(number))).collect();
    let points = json!({"points": [{"id": 1, "vector": [1, 1], "payload": payload}]});
    bench.write(update::upsert, "c", &points).unwrap();
    for field in ["f00", "f69"] {
        let index = json!({"field_name": field, "field_schema": "integer"});
        bench.write(collections::index, "c", &index).unwrap();
    }
    bench.registry().get("c").unwrap().collection().flush().unwrap();
    let scanned = || bench.registry().stats().filters.scanned;
    let before = scanned();
    let described = bench.read(describe::describe, "c", &Value::Null).unwrap();
    let schema = &described["payload_schema"];
    assert_eq!((&schema["f00"]["points"], &schema["f69"]["points"]), (&json!(1), &json!(0)));
    assert_eq!(scanned(), before);
    let count = json!({"filter": {"must": [{"key": "f69", "match": {"value": 69}}]}});
    assert_eq!(bench.read(retrieve::count, "c", &count).unwrap(), json!({"count": 1}));
    assert_eq!(scanned(), before + 1, "a filter on it reads payloads");
}

#[test]
fn an_index_has_parameters_of_its_type_only() {
    let bench = Bench::new();
    bench.create("c", 2, "Dot");
    let declare = |field: &str, schema: Value| {
        let index = json!({"field_name": field, "field_schema": schema});
        bench.write(collections::index, "c", &index)
    };
    for (field, schema) in [
        ("", json!("keyword")),
        ("\"a", json!("keyword")),
        ("a", json!({"type": "keyword", "tenant": true})),
    ] {
        let error = declare(field, schema).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{field}: {error}");
    }
    declare("a", json!({"type": "keyword", "is_tenant": true, "on_disk": true})).unwrap();
    let described = bench.read(describe::describe, "c", &Value::Null).unwrap();
    assert_eq!(described["payload_schema"]["a"]["params"]["is_tenant"], true);
    let expected = "payload_schema.a.is_tenant was requested and has no effect on this server";
    assert_eq!(messages(&described), [expected]);
}

#[test]
fn no_collection_is_created_with_the_name_of_an_alias() {
    let bench = Bench::new();
    bench.create("c", 2, "Dot");
    let alias = json!({"actions": [{"create_alias": {"alias_name": "a", "collection_name": "c"}}]});
    bench.write(collections::change_aliases, "", &alias).unwrap();
    let body = json!({"vectors": {"size": 2, "distance": "Dot"}});
    let error = |name: &str| bench.write(collections::create, name, &body).unwrap_err();
    assert_eq!(error("a").kind(), ErrorKind::InvalidArgument);
    assert_eq!(error("c").kind(), ErrorKind::AlreadyExists);
    // LlamaIndex searches the message for these words, and continues with the collection.
    assert!(error("c").message().contains("already exists"), "{}", error("c"));
}
