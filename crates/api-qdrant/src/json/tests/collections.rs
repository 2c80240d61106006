//! Settings of collections, and hints for them.

use search::registry::{CollectionSettings, MediumChoice};
use search::{DIMS_MAX, Metric};

use super::*;

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
    for datatype in ["float32", "float16", "turbo4"] {
        let vectors = json!({"size": 4, "distance": "Dot", "datatype": datatype});
        assert_eq!(settings(json!({ "vectors": vectors })).unwrap(), expected(""), "{datatype}");
    }
    let one = json!({"size": 4, "distance": "Dot"});
    let medium = settings(json!({"vectors": one, "medium": "dram"})).unwrap().medium;
    assert_eq!(medium, Some(MediumChoice::Dram));
    let error = settings(json!({"vectors": one, "medium": "tape"})).unwrap_err();
    assert!(error.kind() == ErrorKind::InvalidArgument && error.message().contains("tape"));
    for (create, word) in [
        (json!({"vectors": {"a": one, "b": one}}), "more than one vector"),
        (json!({"vectors": one, "sparse_vectors": {"s": {}}}), "sparse_vectors (create"),
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
        json!({"vectors": {"size": 4, "distance": "Dot", "datatype": "float8"}}),
    ] {
        assert_eq!(settings(create).unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
}

/// A collection above the limit could not be written to or searched.
#[test]
fn a_vector_size_above_the_limit_of_search_is_refused() {
    let settings = |size: u64| {
        let create = json!({"vectors": {"size": size, "distance": "Dot"}});
        read::<CreateCollection>(&create).and_then(|create| create.settings())
    };
    let largest = u64::try_from(DIMS_MAX).unwrap();
    assert_eq!(settings(largest).unwrap().dims, DIMS_MAX);
    for size in [0, largest + 1, 65_536, u64::MAX] {
        let error = settings(size).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        assert!(is_validation(error.message()), "{error}");
        let problem = format!("vectors.size: {size} is not within 1 and {DIMS_MAX}");
        assert!(error.message().contains(&problem), "{error}");
    }
}

#[test]
fn a_request_with_only_a_replication_factor_is_recognised() {
    for (request, factor, only) in [
        (json!({"params": {"replication_factor": 3}}), Some(3), true),
        (json!({"params": {"replication_factor": 3, "on_disk_payload": null}}), Some(3), true),
        (json!({"params": {"replication_factor": 3}, "metadata": {}}), Some(3), true),
        (json!({"params": {"replication_factor": 3, "on_disk_payload": true}}), Some(3), false),
        (json!({"params": {"replication_factor": 3}, "metadata": {"n": 1}}), Some(3), false),
        (json!({"params": {"replication_factor": 3}, "hnsw_config": {"m": 8}}), Some(3), false),
        (json!({"params": {"on_disk_payload": true}}), None, false),
        (json!({}), None, false),
    ] {
        let update: UpdateCollection = read(&request).unwrap();
        assert_eq!(update.sets_only_replication_factor(), only, "{request}");
        assert_eq!(update.replication_factor(), factor, "{request}");
    }
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
                        "vectors": {"": {"size": 4, "distance": "Dot", "on_disk": false, "memory": "cached",
                                         "datatype": "float16"}}});
    let names: Vec<String> = hints(others).unwrap().keys().cloned().collect();
    let expected = [
        "hnsw_config",
        "on_disk_payload",
        "shard_number",
        "vectors.datatype",
        "vectors.memory",
        "vectors.on_disk",
    ];
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
