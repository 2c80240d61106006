//! Points, their payloads and vectors, and changes of them.

use search::points::{PointSelection, UpsertMode};

use super::*;

#[test]
fn points_come_as_a_list_or_as_a_batch() {
    let rows = json!({"points": [{"id": 1, "vector": [0.1, 2], "payload": {"a": 1}},
                                 {"id": UUID, "vector": [0, -1], "payload": null}]});
    let rows: UpsertRequest = read(&rows).unwrap();
    let rows = rows.points("").unwrap();
    assert_eq!(
        rows[0],
        UpsertPoint {
            id: PointId::Number(1),
            vector: vec![0.1, 2.0],
            payload: object(json!({"a": 1}))
        }
    );
    assert_eq!(rows[1].vector, [0.0, -1.0]);
    let columns = json!({"batch": {"ids": [1, UUID], "vectors": [[0.1, 2], [0, -1]], "payloads": [{"a": 1}, null]}});
    assert_eq!(read::<UpsertRequest>(&columns).unwrap().points("").unwrap(), rows);
    let named = json!({"batch": {"ids": [1, UUID], "vectors": {"text": [[0.1, 2], [0, -1]]}, "payloads": [{"a": 1}, {}]}});
    assert_eq!(read::<UpsertRequest>(&named).unwrap().points("text").unwrap(), rows);
    // LangChain writes the name "", which means no name.
    let named = json!({"points": [{"id": 1, "vector": {"": [0.1, 2]}}]});
    assert_eq!(read::<UpsertRequest>(&named).unwrap().points("").unwrap()[0].vector, [0.1, 2.0]);
}

#[test]
fn refused_points_are_named() {
    let upsert = |value: Value, name: &str| {
        read::<UpsertRequest>(&value).and_then(|upsert| upsert.points(name)).unwrap_err()
    };
    let point =
        |vector: Value| json!({"points": [{"id": 1, "vector": [1]}, {"id": 2, "vector": vector}]});
    for (vector, kind, words) in [
        (json!([[1.0], [2.0]]), ErrorKind::Unimplemented, "points[1].vector"),
        (json!({"indices": [1], "values": [0.5]}), ErrorKind::Unimplemented, "sparse"),
        (json!({"text": "a cat", "model": "m"}), ErrorKind::Unimplemented, "text"),
        (json!({"image": "http://x/", "model": "m"}), ErrorKind::Unimplemented, "/v1/images"),
        (
            json!({"other": [1.0]}),
            ErrorKind::InvalidArgument,
            "points[1].vector: Not existing vector name error: other; the collection's vector",
        ),
        (json!([1, null]), ErrorKind::InvalidArgument, "points[1].vector[1]: null is not a number"),
        (json!([1, "x"]), ErrorKind::InvalidArgument, "points[1].vector[1]"),
        // A typed array of JavaScript.
        (json!({"0": 0.5}), ErrorKind::InvalidArgument, "points[1].vector.0: a number is not"),
        (json!({"0": 1, "1": 2}), ErrorKind::InvalidArgument, "Array.from"),
        (json!({"a": {"0": -1}}), ErrorKind::InvalidArgument, "an object is not a vector"),
        (json!(null), ErrorKind::Unimplemented, "points[1].vector: a point without a vector"),
        (json!({}), ErrorKind::Unimplemented, "points[1].vector: a point without a vector"),
    ] {
        let error = upsert(point(vector.clone()), "");
        assert_eq!(error.kind(), kind, "{vector}: {error}");
        assert!(error.message().contains(words), "{vector}: {error}");
    }
    assert!(
        upsert(json!({"points": [], "batch": null, "shard_key": "a"}), "")
            .message()
            .contains("shard_key")
    );
    assert_eq!(
        upsert(json!({"points": [], "update_mode": "insert"}), "").kind(),
        ErrorKind::InvalidArgument
    );
    let uneven = json!({"batch": {"ids": [1, 2], "vectors": [[1.0]]}});
    let error = upsert(uneven, "");
    assert!(error.message().contains("2 ids and 1 vectors do not go together"), "{error}");
    let uneven = json!({"batch": {"ids": [1], "vectors": [[1.0]], "payloads": []}});
    let error = upsert(uneven, "");
    assert!(error.message().contains("1 ids and 0 payloads do not go together"), "{error}");
    assert!(upsert(json!({}), "").message().contains("either points or batch"));
}

#[test]
fn conditions_of_upserts_are_read() {
    let condition = |mut value: Value| {
        value["points"] = json!([]);
        read::<UpsertRequest>(&value).unwrap().take_condition()
    };
    assert!(condition(json!({})).is_always());
    assert!(condition(json!({"update_mode": "upsert", "update_filter": null})).is_always());
    let insert = condition(json!({"update_mode": "insert_only"}));
    assert_eq!((insert.mode, insert.filter), (UpsertMode::InsertOnly, None));
    let update = condition(json!({"update_mode": "update_only", "update_filter": {}}));
    assert_eq!((update.mode, update.filter), (UpsertMode::UpdateOnly, Some(Filter::default())));
}

#[test]
fn new_vectors_are_read() {
    let vectors = |points: Value, name: &str| {
        read::<UpdateVectorsRequest>(&json!({ "points": points }))
            .and_then(|request| request.vectors(name))
    };
    let expected = vec![(PointId::Number(1), vec![0.5]), (uuid(), vec![1.0])];
    let plain = json!([{"id": 1, "vector": [0.5]}, {"id": UUID, "vector": {"": [1]}}]);
    assert_eq!(vectors(plain.clone(), "").unwrap(), expected);
    assert_eq!(vectors(plain, "v").unwrap_err().kind(), ErrorKind::InvalidArgument);
    let error = vectors(json!([]), "").unwrap_err();
    assert!(is_validation(error.message()), "{error}");
    let none = vectors(json!([{"id": 1, "vector": {}}]), "").unwrap_err();
    assert_eq!(none.kind(), ErrorKind::Unimplemented);
    let other = vectors(json!([{"id": 1, "vector": {"w": [1]}}]), "v").unwrap_err();
    assert!(other.message().starts_with("points[0].vector"), "{other}");
}

#[test]
fn payloads_are_projected() {
    let payload = json!({"a": {"b": 1, "c": [1, 2]}, "d": [{"e": 1, "f": 2}], "g": 3});
    let of = |wanted: Value| {
        read::<WithPayload>(&wanted).unwrap().project(object(payload.clone())).map(Value::Object)
    };
    assert_eq!(of(json!(true)), Some(payload.clone()));
    assert_eq!(of(json!(false)), None);
    assert_eq!(of(json!(["a.b", "g"])), Some(json!({"a": {"b": 1}, "g": 3})));
    assert_eq!(
        of(json!({"include": ["d[].e", "a"]})),
        Some(json!({"a": {"b": 1, "c": [1, 2]}, "d": [{"e": 1}]}))
    );
    assert_eq!(
        of(json!({"exclude": ["d[].e", "a.c"]})),
        Some(json!({"a": {"b": 1}, "d": [{"f": 2}], "g": 3}))
    );
    let deep = Value::String(format!("a{}", ".a".repeat(1_000_000)));
    assert!(refused::<WithPayload>(&json!([deep])).1.contains("more than 64 steps"));
    assert!(refused::<WithPayload>(&json!({"only": []})).1.contains("expected"));
    assert!(read::<WithVector>(&json!(["v"])).unwrap().includes("v").unwrap());
    assert!(!read::<WithVector>(&json!([])).unwrap().includes("v").unwrap());
    let other = read::<WithVector>(&json!(["v", "w"])).unwrap().includes("v").unwrap_err();
    assert_eq!(other.kind(), ErrorKind::InvalidArgument);
    assert!(other.message().contains("Not existing vector name error: \"w\""), "{other}");
}

#[test]
fn a_payload_is_replaced_as_a_whole() {
    let request =
        |key: Value| read::<SetPayload>(&json!({"payload": {}, "key": key, "points": [1]}));
    assert!(request(json!(null)).unwrap().check_overwrite().is_ok());
    let error = request(json!("b")).unwrap().check_overwrite().unwrap_err();
    assert!(error.message().contains("key"), "{error}");
}

#[test]
fn operations_and_selectors_are_parsed_or_refused() {
    let operations: UpdateBatch = read(&json!({"operations": [
        {"upsert": {"points": [{"id": 1, "vector": [1.0]}]}},
        {"delete": {"points": [1]}},
        {"set_payload": {"payload": {"a": 1}, "filter": {}, "key": "b"}},
        {"overwrite_payload": {"payload": {}, "points": [1]}},
        {"delete_payload": {"keys": ["a"], "points": [1]}},
        {"clear_payload": {"filter": {"must": []}}},
        {"update_vectors": {"points": [{"id": 1, "vector": [1.0]}], "update_filter": {}}},
    ]}))
    .unwrap();
    assert_eq!(operations.operations.len(), 7);
    let vectors = json!({"operations": [{"delete_vectors": {"points": [1], "vector": [""]}}]});
    let (kind, message) = refused::<UpdateBatch>(&vectors);
    assert_eq!(kind, ErrorKind::Unimplemented);
    assert!(message.contains("operations[0]"), "{message}");
    let both: PointsSelector = read(&json!({"points": [1], "filter": {}})).unwrap();
    assert!(both.selection().is_err());
    assert!(read::<PointsSelector>(&json!({})).unwrap().selection().is_err());
    assert_eq!(
        read::<PointsSelector>(&json!({"filter": {}})).unwrap().selection().unwrap(),
        PointSelection::Filter(Filter::default())
    );
}
