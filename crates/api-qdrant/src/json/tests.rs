use base::ErrorKind;
use proptest::prelude::*;
use search::coarse::Metric;
use search::points::{PointId, PointSelection, UpsertMode};
use search::registry::{CollectionSettings, MediumChoice};
use serde_json::{Map, Value, json};

use crate::examples::ExampleRule;
use crate::fusion::Fusion;

use super::*;

mod filters;

fn read<T: for<'a> Deserialize<'a>>(value: &Value) -> Result<T> {
    parse(value.to_string().as_bytes())
}

fn object(value: Value) -> Map<String, Value> {
    value.as_object().unwrap().clone()
}

/// Returns the kind and the message of the error that `value` is refused with.
fn refused<T: for<'a> Deserialize<'a> + std::fmt::Debug>(value: &Value) -> (ErrorKind, String) {
    let error = read::<T>(value).unwrap_err();
    (error.kind(), error.message().to_owned())
}

const UUID: &str = "5c56c793-69f3-4fbf-87e6-c4bf54c28c26";

fn uuid() -> PointId {
    UUID.parse().unwrap()
}

#[test]
fn a_wrong_id_is_refused_with_its_path() {
    let spellings =
        json!([format!("{{{UUID}}}"), format!("urn:uuid:{UUID}"), UUID.replace('-', "")]);
    assert_eq!(read::<Vec<PointId>>(&spellings).unwrap(), [uuid(); 3]);
    assert_eq!(read::<Vec<PointId>>(&json!([7, UUID])).unwrap(), [PointId::Number(7), uuid()]);
    for wrong in [
        json!([-1]),
        json!([1.5]),
        json!(["seven"]),
        json!(["7"]),
        json!([null]),
        json!([u64::MAX]),
    ] {
        let (kind, message) = refused::<Vec<PointId>>(&wrong);
        assert_eq!(kind, ErrorKind::InvalidArgument);
        assert!(message.contains("[0]") && message.contains("UUID"), "{message}");
    }
}

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
    // The name "" is no name, which LangChain writes.
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
            "points[1].vector: Not existing vector name",
        ),
        (json!([1, "x"]), ErrorKind::InvalidArgument, "points[1].vector[1]"),
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
    assert!(upsert(uneven, "").message().contains("do not go together"));
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
fn queries_by_several_vectors_are_read() {
    let target = |value: Value| {
        read::<QueryRequest>(&json!({ "query": value })).map(|request| request.query.unwrap())
    };
    let rule = |query| match target(query).unwrap() {
        VectorQuery::Examples(examples) => {
            let counts = (examples.positive.len(), examples.negative.len());
            (examples.rule, examples.target.is_some(), counts)
        }
        other => panic!("{other:?}"),
    };
    let best = json!({"recommend": {"negative": [1], "strategy": "best_score"}});
    assert_eq!(rule(best), (ExampleRule::BestScore, false, (0, 1)));
    let sum = json!({"recommend": {"positive": [1, 2], "strategy": "sum_scores"}});
    assert_eq!(rule(sum), (ExampleRule::SumScores, false, (2, 0)));
    let pair = json!({"positive": 1, "negative": [0.5]});
    let discover = json!({"discover": {"target": 7, "context": [pair, pair]}});
    assert_eq!(rule(discover), (ExampleRule::Discover, true, (2, 2)));
    let alone = json!({"discover": {"target": 7, "context": null}});
    assert_eq!(rule(alone), (ExampleRule::Discover, true, (0, 0)));
    assert_eq!(rule(json!({ "context": pair })), (ExampleRule::Context, false, (1, 1)));
    assert_eq!(target(json!({"sample": "random"})).unwrap(), VectorQuery::Sample);
}

#[test]
fn queries_are_read_in_every_form() {
    let target = |value: Value| {
        read::<QueryRequest>(&json!({ "query": value })).map(|request| request.query.unwrap())
    };
    let vector = || VectorInput::Vector(vec![1.0, 0.5]);
    assert_eq!(target(json!([1, 0.5])).unwrap(), VectorQuery::Nearest(vector()));
    assert_eq!(
        target(json!({"nearest": [1, 0.5], "mmr": null})).unwrap(),
        VectorQuery::Nearest(vector())
    );
    assert_eq!(
        target(json!(7)).unwrap(),
        VectorQuery::Nearest(VectorInput::Id(PointId::Number(7)))
    );
    let uuid = VectorQuery::Nearest(VectorInput::Id(uuid()));
    assert_eq!(target(json!(UUID)).unwrap(), uuid);
    assert_eq!(target(json!({ "nearest": UUID })).unwrap(), uuid);
    let recommend =
        target(json!({"recommend": {"positive": [7, [1, 0.5]], "negative": null}})).unwrap();
    let positive = vec![VectorInput::Id(PointId::Number(7)), vector()];
    assert_eq!(recommend, VectorQuery::Recommend { positive, negative: Vec::new() });
    let diverse = target(json!({"nearest": [1, 0.5], "mmr": {"diversity": 0.25}})).unwrap();
    assert_eq!(diverse, VectorQuery::Mmr { target: vector(), diversity: 0.25, candidates: None });
    assert!(target(json!({"nearest": [1, 0.5], "mmr": {"diversity": 2}})).is_err());
    let ranks = |constant, weights| VectorQuery::Fuse(Fusion::ReciprocalRank { constant, weights });
    assert_eq!(target(json!({"fusion": "rrf"})).unwrap(), ranks(None, None));
    let weighted = target(json!({"rrf": {"k": 60, "weights": [1, 0.5]}})).unwrap();
    assert_eq!(weighted, ranks(Some(60), Some(vec![1.0, 0.5])));
    let scores = target(json!({"fusion": "dbsf"})).unwrap();
    assert_eq!(scores, VectorQuery::Fuse(Fusion::DistributionBased));
    for wrong in [
        json!({"fusion": "max"}),
        json!({"rrf": {"k": 0}}),
        json!({"rrf": {"weights": [-1]}}),
        json!({"rrf": {"other": 1}}),
    ] {
        assert!(target(wrong).is_err());
    }
    for unsupported in [
        json!({"relevance_feedback": {}}),
        json!({"formula": {"custom": {}}}),
        json!({"nearest": {"image": "x", "model": "m"}}),
        json!({"nearest": {"text": "x", "model": "m"}}),
        json!({"indices": [1], "values": [1]}),
        json!([[1.0], [2.0]]),
        json!({"discover": {"target": {"text": "x", "model": "m"}}}),
        json!({"context": {"positive": [[1.0]], "negative": 1}}),
    ] {
        assert_eq!(
            target(unsupported.clone()).unwrap_err().kind(),
            ErrorKind::Unimplemented,
            "{unsupported}"
        );
    }
    for wrong in [
        json!({}),
        json!("x"),
        json!(-1),
        json!({"nearest": true}),
        json!({"recommend": {}}),
        json!({"recommend": {"strategy": "best_score"}}),
        json!({"recommend": {"positive": [1], "strategy": "best"}}),
        json!({"discover": {}}),
        json!({"discover": {"target": 1, "context": [{"positive": 1}]}}),
        json!({"context": []}),
        json!({"context": null}),
        json!({"sample": "first"}),
        json!({"nearest": 1, "defaults": {}}),
        json!({"nearest": 1, "formula": 2}),
        json!({"formula": true}),
        json!({"formula": "$score[x]"}),
        json!({"formula": {"sqrt": "n", "exp": 1}}),
        json!({"formula": {"max": []}}),
        json!({"formula": {"div": {"left": 1}}}),
        json!({"formula": {"lin_decay": {"x": 1, "scale": 0}}}),
        json!({"formula": {"exp_decay": {"x": 1, "midpoint": 1}}}),
        json!({"formula": {"datetime": "soon"}}),
        json!({"formula": {"geo_distance": {"origin": {"lon": 200, "lat": 0}, "to": "a"}}}),
        json!({"formula": 1, "defaults": {"$score": "x"}}),
        json!({"formula": {"sum": vec![1; 1024]}}),
    ] {
        assert_eq!(
            target(wrong.clone()).unwrap_err().kind(),
            ErrorKind::InvalidArgument,
            "{wrong}"
        );
    }
}

#[test]
fn queries_have_defaults() {
    let request: QueryRequest = read(&json!({})).unwrap();
    assert_eq!((request.limit(), request.offset(), request.query.is_none()), (10, 0, true));
    let nulls = json!({"prefetch": null, "using": null, "params": null, "limit": null, "filter": null, "lookup_from": null});
    assert_eq!(read::<QueryRequest>(&nulls).unwrap(), request);
    let one = json!({"prefetch": {"query": [1.0], "limit": 100, "using": "v",
                                   "params": {"quantization": {"rescore": false, "oversampling": 2}, "hnsw_ef": 9}}});
    let request: QueryRequest = read(&one).unwrap();
    assert_eq!((request.prefetch[0].limit(), request.prefetch[0].using.as_str()), (100, "v"));
    let params = &request.prefetch[0].params;
    let quantization = params.quantization.as_ref().unwrap();
    assert_eq!(
        (quantization.rescore, quantization.oversampling, params.hnsw_ef),
        (Some(false), Some(2.0), Some(9))
    );
    let nested =
        json!({"prefetch": [{"prefetch": {"query": 1, "limit": 7}, "query": 2}], "query": 3});
    let request: QueryRequest = read(&nested).unwrap();
    assert_eq!(request.prefetch[0].prefetch[0].limit(), 7);
    assert!(request.check_prefetches().is_ok());
}

#[test]
fn prefetches_have_a_maximum_and_a_query_that_ranks_them() {
    let problem = |body: Value| {
        read::<QueryRequest>(&body).unwrap().check_prefetches().unwrap_err().message().to_owned()
    };
    let inner = json!({"query": 1, "prefetch": vec![json!({"query": 2}); 7]});
    assert!(problem(json!({"prefetch": vec![inner; 9], "query": 3})).contains("more than 64"));
    let unranked = json!({"prefetch": [{"query": 1}, {"prefetch": {"query": 2}}], "query": 3});
    let message = problem(unranked);
    assert!(message.contains("prefetch[1]") && message.contains("query is needed"), "{message}");
    let message = problem(json!({"prefetch": {"query": {"fusion": "rrf"}}, "query": 3}));
    assert!(message.contains("prefetch[0]") && message.contains("needs prefetches"), "{message}");
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
    let deep = Value::String(".a".repeat(1_000_000));
    assert!(refused::<WithPayload>(&json!([deep])).1.contains("more than 64 steps"));
    assert!(refused::<WithPayload>(&json!({"only": []})).1.contains("expected"));
    assert!(read::<WithVector>(&json!(["v"])).unwrap().includes("v").unwrap());
    assert!(!read::<WithVector>(&json!([])).unwrap().includes("v").unwrap());
    let other = read::<WithVector>(&json!(["v", "w"])).unwrap().includes("v").unwrap_err();
    assert_eq!(other.kind(), ErrorKind::InvalidArgument);
    assert!(other.message().contains("Not existing vector name error: \"w\""), "{other}");
}

#[test]
fn a_collection_has_one_vector() {
    let settings =
        |value: Value| read::<CreateCollection>(&value).and_then(|create| create.settings());
    let expected = |name: &str| CollectionSettings {
        vector_name: name.into(),
        ..CollectionSettings::new(4, Metric::Dot)
    };
    assert_eq!(
        settings(json!({"vectors": {"size": 4, "distance": "Dot", "on_disk": true}})).unwrap(),
        expected("")
    );
    assert_eq!(
        settings(json!({"vectors": {"": {"size": 4, "distance": "Dot"}}})).unwrap(),
        expected("")
    );
    // A vector may be called "size".
    assert_eq!(
        settings(json!({"vectors": {"size": {"size": 4, "distance": "Dot"}}})).unwrap(),
        expected("size")
    );
    let one = json!({"size": 4, "distance": "Dot"});
    let medium = settings(json!({"vectors": one, "medium": "dram"})).unwrap().medium;
    assert_eq!(medium, Some(MediumChoice::Dram));
    let error = settings(json!({"vectors": one, "medium": "tape"})).unwrap_err();
    assert!(error.kind() == ErrorKind::InvalidArgument && error.message().contains("tape"));
    for (create, word) in [
        (json!({"vectors": {"a": one, "b": one}}), "more than one vector"),
        (json!({"vectors": one, "sparse_vectors": {"s": {}}}), "sparse_vectors"),
        (json!({"vectors": {"size": 4, "distance": "Manhattan"}}), "Manhattan"),
        (
            json!({"vectors": {"size": 4, "distance": "Dot", "multivector_config": {"comparator": "max_sim"}}}),
            "multivector",
        ),
        (json!({"vectors": {"size": 4, "distance": "Dot", "datatype": "uint8"}}), "datatype"),
        (json!({"vectors": one, "sharding_method": "custom"}), "sharding_method"),
    ] {
        let error = settings(create).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unimplemented, "{error}");
        assert!(error.message().contains(word), "{error}");
    }
    for create in [json!({}), json!({"vectors": null}), json!({"vectors": {}})] {
        assert_eq!(
            settings(create).unwrap_err().kind(),
            ErrorKind::Unimplemented,
            "a collection without vectors"
        );
    }
    for create in [
        json!({"vectors": {"size": 0, "distance": "Dot"}}),
        json!({"vectors": {"size": 4, "distance": "Taxi"}}),
        json!({"vectors": {"size": 4}}),
    ] {
        assert_eq!(settings(create).unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
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
fn operations_and_selectors() {
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

#[test]
fn the_envelope_is_json() {
    let took = std::time::Duration::from_millis(2);
    let answer: Value = serde_json::from_slice(&envelope(br#"{"count":1}"#, took)).unwrap();
    assert_eq!(answer, json!({"result": {"count": 1}, "status": "ok", "time": 0.002}));
    let answer: Value = serde_json::from_slice(&error("no \"such\" thing", took)).unwrap();
    assert_eq!(answer["status"]["error"], "no \"such\" thing");
    let answer: Value = serde_json::from_slice(&version("millpond", "1")).unwrap();
    assert!(answer["version"].as_str().unwrap().starts_with("1."));
    let vector = Some(Vector::labelled("v", vec![0.1]));
    let record = PointRecord { id: PointId::Number(1), payload: None, vector, order_value: None };
    assert_eq!(serde_json::to_string(&record).unwrap(), r#"{"id":1,"vector":{"v":[0.1]}}"#);
}

#[test]
fn hints_without_effect_are_listed() {
    let hints = |rest: Value| {
        let mut body = json!({"vectors": {"size": 4, "distance": "Dot"}});
        body.as_object_mut().unwrap().extend(object(rest));
        read::<CreateCollection>(&body).and_then(|create| create.hints())
    };
    let holds = json!({"shard_number": 1, "on_disk_payload": true, "hnsw_config": null, "payload": {"memory": "cold"},
                       "vectors": {"size": 4, "distance": "Dot", "on_disk": true, "memory": "cold"},
                       "strict_mode_config": {"enabled": false}});
    assert_eq!(hints(holds).unwrap(), Map::new());
    let others = json!({"shard_number": 2, "on_disk_payload": false, "hnsw_config": {"m": 8},
                        "vectors": {"": {"size": 4, "distance": "Dot", "on_disk": false, "memory": "cached"}}});
    let names: Vec<String> = hints(others).unwrap().keys().cloned().collect();
    let expected =
        ["hnsw_config", "on_disk_payload", "shard_number", "vectors.memory", "vectors.on_disk"];
    let mut sorted = names.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, expected);
    for (wrong, word, outside) in [
        (json!({"shard_number": 0}), "shard_number", true),
        (json!({"replication_factor": 0}), "replication_factor", true),
        (json!({"write_consistency_factor": 0}), "write_consistency_factor", true),
        (json!({"vectors": {"size": 4, "distance": "Dot", "memory": "pinned"}}), "pinned", true),
        (json!({"payload": {"memory": "pinned"}}), "pinned", true),
        (json!({"shard_number": -1}), "shard_number", false),
        (json!({"on_disk_payload": "yes"}), "on_disk_payload", false),
        (json!({"shard_nubmer": 1}), "shard_nubmer", false),
        (json!({"vectors": {"size": 4, "distance": "Dot", "on_dsik": true}}), "on_dsik", false),
    ] {
        let error = hints(wrong.clone()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{wrong}: {error}");
        assert!(error.message().contains(word), "{wrong}: {error}");
        assert_eq!(is_validation(error.message()), outside, "{wrong}: {error}");
    }
    let strict = hints(json!({"strict_mode_config": {"enabled": true}})).unwrap_err();
    assert_eq!(strict.kind(), ErrorKind::Unimplemented);
    let update = json!({"params": {"replication_factor": 3, "on_disk_payload": true}, "hnsw_config": {"m": 8}});
    let update: UpdateCollection = read(&update).unwrap();
    assert_eq!(
        Value::Object(update.hints().unwrap()),
        json!({"replication_factor": 3, "hnsw_config": {"m": 8}})
    );
    assert!(read::<UpdateCollection>(&json!({"hnsw": {}})).is_err());
    let strict = |mode: Value| {
        read::<UpdateCollection>(&json!({ "strict_mode_config": mode })).unwrap().hints()
    };
    let nothing = json!({"enabled": null, "max_timeout": null});
    for off in [json!({"enabled": false, "max_timeout": 3}), json!({}), nothing, Value::Null] {
        assert_eq!(strict(off).unwrap(), Map::new());
    }
    for on in [json!({"enabled": true}), json!({"max_timeout": 3}), json!([]), json!(false)] {
        assert_eq!(strict(on).unwrap_err().kind(), ErrorKind::Unimplemented);
    }
}

#[test]
fn values_outside_their_limits_are_validation_errors() {
    let outside = [
        refused::<QueryRequest>(&json!({"query": 1, "params": {"hnsw_ef": 0}})),
        refused::<QueryRequest>(&json!({"query": 1, "limit": 0})),
        refused::<QueryRequest>(&json!({"query": {"recommend": {"negative": [1]}}})),
        refused::<ScrollRequest>(&json!({"limit": 0})),
        refused::<FacetRequest>(&json!({"key": "a", "limit": 0})),
        refused::<CountRequest>(&json!({"filter": {"must": [{"key": "a"}]}})),
    ];
    for (kind, message) in outside {
        assert_eq!(kind, ErrorKind::InvalidArgument, "{message}");
        assert!(
            message.starts_with("Validation error in JSON body: [") && is_validation(&message),
            "{message}"
        );
    }
    let index = |params: Value| {
        let index: CreateIndex = read(&json!({"field_name": "n", "field_schema": params})).unwrap();
        index.schema().map(|_| ())
    };
    assert!(is_validation(
        index(json!({"type": "integer", "lookup": false, "range": false})).unwrap_err().message()
    ));
    assert!(index(json!({"type": "integer", "lookup": false, "range": true})).is_ok());
    assert!(!is_validation(&refused::<ScrollRequest>(&json!({"limit": -1})).1));
}

#[test]
fn an_ordered_list_is_not_cut_in_silence() {
    use search::collection::IDS_MAX;
    assert!(check_ordered_limit(IDS_MAX, IDS_MAX).is_ok());
    assert!(check_ordered_limit(IDS_MAX + 1, IDS_MAX - 1).is_ok());
    let error = check_ordered_limit(IDS_MAX + 1, IDS_MAX).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}

#[test]
fn unknown_fields_are_refused() {
    for (kind, message) in [
        refused::<QueryRequest>(&json!({"query": 1, "fitler": {}})),
        refused::<QueryRequest>(&json!({"query": 1, "params": {"ef": 9}})),
        refused::<QueryRequest>(&json!({"prefetch": {"query": 1, "limits": 9}, "query": 1})),
        refused::<QueryRequest>(
            &json!({"query": {"recommend": {"positive": [1], "negatives": [2]}}}),
        ),
        refused::<ScrollRequest>(&json!({"offsets": 1})),
        refused::<CountRequest>(&json!({"filters": {}})),
        refused::<FacetRequest>(&json!({"key": "a", "filters": {}})),
        refused::<RetrieveRequest>(&json!({"ids": [], "vectors": true})),
        refused::<UpsertRequest>(&json!({"points": [{"id": 1, "vector": [1], "payloads": {}}]})),
        refused::<PointsSelector>(&json!({"points": [1], "filters": {}})),
        refused::<SetPayload>(&json!({"payload": {}, "points": [1], "keys": "a"})),
        refused::<CreateIndex>(&json!({"field_name": "a", "schema": "keyword"})),
    ] {
        assert_eq!(kind, ErrorKind::InvalidArgument, "{message}");
        assert!(message.contains("unknown field"), "{message}");
    }
    // What has no effect here and changes no answer is known.
    let known = json!({"query": 1, "params": {"indexed_only": true, "acorn": {"enable": true}}});
    assert!(read::<QueryRequest>(&known).is_ok());
    assert!(read::<CountRequest>(&json!({"exact": false})).is_ok());
    for request in [json!({"with_vectors": true}), json!({"with_vector": true})] {
        assert_eq!(
            read::<ScrollRequest>(&request).unwrap().with_vector,
            Some(WithVector::All(true))
        );
        assert_eq!(
            read::<QueryRequest>(&request).unwrap().with_vector,
            Some(WithVector::All(true))
        );
    }
}

/// JSON of the shapes that requests have, right and wrong.
fn values() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[a-z\\[\\].]{0,8}".prop_map(Value::from),
        Just(json!(UUID)),
    ];
    let names = prop::sample::select(vec![
        "must",
        "should",
        "must_not",
        "key",
        "match",
        "value",
        "any",
        "except",
        "range",
        "gt",
        "has_id",
        "is_empty",
        "points",
        "batch",
        "ids",
        "vectors",
        "vector",
        "payload",
        "payloads",
        "id",
        "query",
        "nearest",
        "recommend",
        "positive",
        "prefetch",
        "filter",
        "limit",
        "with_payload",
        "include",
        "operations",
        "upsert",
        "delete",
        "text",
        "size",
        "distance",
        "params",
        "quantization",
        "actions",
        "create_alias",
    ]);
    leaf.prop_recursive(6, 64, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::vec((names.clone(), inner), 0..5).prop_map(|fields| fields
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value))
                .collect()),
        ]
    })
}

fn all_of(body: &[u8]) {
    let _ = parse::<UpsertRequest>(body).map(|upsert| upsert.points("v"));
    let _ = parse::<CreateCollection>(body).map(|create| create.settings());
    let _ = parse::<CreateIndex>(body).map(|index| index.schema().map(|_| ()));
    let _ = parse::<WithPayload>(body)
        .map(|with_payload| with_payload.project(object(json!({"a": {"b": [1, {"c": 2}]}}))));
    let _ = (
        parse::<QueryRequest>(body),
        parse::<QueryBatchRequest>(body),
        parse::<ScrollRequest>(body),
    );
    let _ =
        (parse::<CountRequest>(body), parse::<RetrieveRequest>(body), parse::<UpdateBatch>(body));
    let _ =
        (parse::<SetPayload>(body), parse::<DeletePayload>(body), parse::<PointsSelector>(body));
    let _ = (parse::<UpdateCollection>(body), parse::<ChangeAliases>(body), parse_filter(body));
    let _ = selects_by_filter(body);
}

#[test]
fn changes_by_filter_are_recognised() {
    let is_by_filter = |body: Value| selects_by_filter(body.to_string().as_bytes());
    let filter = json!({"must": [{"key": "a", "match": {"value": 1}}]});
    assert!(is_by_filter(json!({ "filter": filter })));
    assert!(is_by_filter(json!({"payload": {"a": 1}, "filter": filter})));
    assert!(is_by_filter(json!({"operations": [
        {"upsert": {"points": []}}, {"clear_payload": {"filter": filter}},
    ]})));
    for other in [
        json!({"points": [1], "filter": null}),
        json!({"points": [1], "payload": {"filter": {"must": []}}}),
        json!({"operations": [{"upsert": {"points": [], "update_filter": filter}}]}),
        json!({"operations": 7}),
        json!("filter"),
    ] {
        assert!(!is_by_filter(other.clone()), "{other}");
    }
}

proptest! {
    #[test]
    fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        all_of(&bytes);
    }

    #[test]
    fn any_json_is_survived(value in values()) {
        all_of(value.to_string().as_bytes());
    }
}

#[test]
fn deep_nesting_is_refused() {
    for open in [r#"{"must":["#, r#"{"filter":{"must":["#, "["] {
        let deep = open.repeat(100_000);
        assert!(parse_filter(deep.as_bytes()).is_err());
        all_of(deep.as_bytes());
    }
}
