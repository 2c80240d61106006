//! Filters and facets of payload fields.

use base::ErrorKind;
use serde_json::{Value, json};

use super::{Bench, UUID, messages, three};
use crate::{collections, describe, retrieve, update};

/// The slices are those of Qdrant's Python client.
#[test]
fn slices_divide_all_points() {
    let bench = Bench::new();
    three(&bench, "Dot");
    let check = || {
        for (index, id) in
            [(0, None), (1, Some(json!(UUID))), (3, Some(json!(1))), (4, Some(json!(2)))]
        {
            let slice = json!({"slice": {"total": 5, "index": index}});
            let request = json!({"filter": {"must": [slice]}});
            let found = bench.read(retrieve::scroll, "c", &request).unwrap();
            let points = found["points"].as_array().unwrap().iter();
            let ids: Vec<Value> = points.map(|point| point["id"].clone()).collect();
            assert_eq!(ids, Vec::from_iter(id), "{index}");
            let others = json!({"filter": {"must_not": [slice]}});
            let counted = bench.read(retrieve::count, "c", &others).unwrap();
            assert_eq!(counted["count"], 3 - ids.len(), "{index}");
        }
    };
    check();
    bench.registry().get("c").unwrap().collection().flush().unwrap();
    check();
}

#[test]
fn filters_and_facets_are_equal_before_and_after_a_flush() {
    let bench = Bench::new();
    bench.create("c", 2, "Dot");
    let points = json!({"points": [
        {"id": 1, "vector": [1, 1], "payload": {"d": "2024-06-15T12:00:00Z", "t": ["x", "y"], "n": null}},
        {"id": 2, "vector": [1, 1], "payload": {"d": "2023-01-01", "t": "x", "n": 2, "e": null}},
        {"id": 3, "vector": [1, 1], "payload": {"t": [], "n": [1, null], "e": [null], "long": "z".repeat(600)}},
        {"id": UUID, "vector": [1, 1], "payload": {"n": 1.5, "t": ["y"]}},
    ]});
    bench.write(update::upsert, "c", &points).unwrap();
    let is = |key: &str, value: Value| json!({"key": key, "match": {"value": value}});
    let filters = [
        (json!({"key": "d", "range": {"gte": "2024-01-01"}}), 1),
        (json!({"key": "d", "range": {"lt": "2024-01-01T00:00:00Z"}}), 1),
        (json!({"key": "t", "values_count": {"gte": 2}}), 1),
        (json!({"key": "t", "values_count": {"lt": 1}}), 1),
        (json!({"is_null": {"key": "n"}}), 2),
        (json!({"key": "n", "is_null": false}), 2),
        (json!({"is_empty": {"key": "d"}}), 2),
        (json!({"is_empty": {"key": "e"}}), 3),
        (json!({"key": "n", "range": {"gt": 1, "lte": 2}}), 2),
        (json!({"key": "t", "match": {"except": ["x"]}}), 2),
        (is("long", json!("z".repeat(600))), 1),
        (is("long", json!("y".repeat(600))), 0),
        (
            json!({"min_should": {"conditions": [is("t", json!("x")), is("t", json!("y"))], "min_count": 2}}),
            1,
        ),
        (json!({"must": [is("t", json!("x")), {"has_id": [2, UUID]}]}), 1),
    ];
    let check = || {
        for (filter, expected) in &filters {
            let request = json!({"filter": {"must": [filter]}});
            let counted = bench.read(retrieve::count, "c", &request).unwrap();
            assert_eq!(counted, json!({"count": expected}), "{filter}");
        }
        let facet = bench.read(retrieve::facet, "c", &json!({"key": "t"})).unwrap();
        assert_eq!(facet["hits"], json!([{"value": "x", "count": 2}, {"value": "y", "count": 2}]));
        let some = json!({"key": "n", "filter": {"must": [is("t", json!("x"))]}});
        let facet = bench.read(retrieve::facet, "c", &some).unwrap();
        assert_eq!(facet["hits"], json!([{"value": 2, "count": 1}]));
    };
    check();
    bench.registry().get("c").unwrap().collection().flush().unwrap();
    check();
    let described = bench.read(describe::describe, "c", &Value::Null).unwrap();
    let schema = |key: &str| described["payload_schema"][key].clone();
    assert_eq!(schema("d"), json!({"data_type": "datetime", "points": 2}));
    assert_eq!(schema("t"), json!({"data_type": "keyword", "points": 3}));
    assert_eq!(schema("n"), json!({"data_type": "float", "points": 3}));
    assert_eq!(messages(&described), Vec::<&str>::new());
    assert!(described["payload_schema"].get("__millpond_id").is_none(), "{described}");
    let stats = bench.registry().stats().filters;
    assert!(stats.indexed >= 10 && stats.verified >= 1, "{stats:?}");
}

#[test]
fn uuids_match_in_every_spelling() {
    let bench = Bench::new();
    bench.create("c", 2, "Dot");
    let points = json!({"points": [{"id": 1, "vector": [1, 1], "payload": {"u": UUID.to_uppercase()}},
                                   {"id": 2, "vector": [1, 1], "payload": {"u": "other"}}]});
    bench.write(update::upsert, "c", &points).unwrap();
    let urn = format!("urn:uuid:{UUID}");
    let count = |matching: Value| {
        let filter = json!({"filter": {"must": [{"key": "u", "match": matching}]}});
        bench.read(retrieve::count, "c", &filter).unwrap()["count"].clone()
    };
    assert_eq!(count(json!({ "value": urn })), 0);
    bench
        .write(collections::index, "c", &json!({"field_name": "u", "field_schema": "uuid"}))
        .unwrap();
    assert_eq!(count(json!({ "value": urn })), 1);
    assert_eq!(count(json!({ "any": [urn, "none"] })), 1);
    assert_eq!(count(json!({ "except": [urn] })), 1);
}

#[test]
fn texts_are_split_as_the_declared_index_says() {
    let bench = Bench::new();
    bench.create("c", 2, "Dot");
    let texts = ["C++ in depth", "Plain C", "depths of the sea"];
    let points: Vec<Value> = (1..)
        .zip(texts)
        .map(|(id, text)| json!({"id": id, "vector": [1, 1], "payload": {"t": text}}))
        .collect();
    bench.write(update::upsert, "c", &json!({ "points": points })).unwrap();
    let count = |condition: Value| {
        let filter = json!({"filter": {"must": [condition]}});
        bench.read(retrieve::count, "c", &filter).map(|found| found["count"].clone())
    };
    let text = |text: &str| count(json!({"key": "t", "match": {"text": text}}));
    let index = |params: Value| {
        let index = json!({"field_name": "t", "field_schema": params});
        bench.write(collections::index, "c", &index).unwrap();
    };
    assert_eq!(text("c").unwrap(), 2);
    assert_eq!(text("depth").unwrap(), 1);
    index(json!({"type": "text", "tokenizer": "whitespace"}));
    assert_eq!(text("c").unwrap(), 1);
    assert_eq!(text("c++").unwrap(), 1);
    index(json!({"type": "text", "tokenizer": "prefix", "min_token_len": 3}));
    assert_eq!(text("DEPTH").unwrap(), 2);
    assert_eq!(text("de").unwrap(), 0);
    let phrase = count(json!({"key": "t", "match": {"phrase": "in depth"}})).unwrap_err();
    assert_eq!(phrase.kind(), ErrorKind::Unimplemented);
    index(json!({"type": "text", "tokenizer": "multilingual"}));
    assert_eq!(text("c").unwrap_err().kind(), ErrorKind::Unimplemented);
    assert_eq!(count(json!({"has_vector": ""})).unwrap(), 3);
    assert_eq!(count(json!({"has_vector": "other"})).unwrap(), 0);
}
