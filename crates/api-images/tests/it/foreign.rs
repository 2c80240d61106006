//! Foreign bytes give errors and no panic.

use api_images::{
    ExtractedQuery, WantedImages, apply_image_operation, is_image_operation, read_features,
};
use base::ErrorKind;
use http::Method;
use image_features::testing::{element, fingers, image, open, photos, record, with_original};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use search::registry::NamedCollection;
use serde_json::{Value, json};

use crate::world::World;

const CASES: u32 = 120;

fn runner() -> TestRunner {
    TestRunner::new(Config { cases: CASES, failure_persistence: None, ..Config::default() })
}

/// Any JSON, with the names of members that are read somewhere.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        Just(json!(1e300)),
        ".{0,6}".prop_map(Value::from),
        Just(json!("AQEAAAAAAAA=")),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        let key = prop_oneof![
            "[a-z]{0,3}",
            prop::sample::select(vec![
                "points",
                "id",
                "embedding",
                "record",
                "payload",
                "image",
                "ids",
                "coarse",
                "k",
                "candidates",
                "prints",
                "shards",
                "filter",
                "must",
                "put_features",
                "put_images",
            ])
            .prop_map(str::to_owned),
        ];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(key, inner, 0..4).prop_map(|members| Value::from(
                members.into_iter().collect::<serde_json::Map<_, _>>()
            )),
        ]
    })
}

/// Replaces one value inside `valid`. The numbers of `path` decide on its position.
fn changed(mut valid: Value, path: &[prop::sample::Index], new: Value) -> Value {
    let Some((step, rest)) = path.split_first() else { return new };
    let inner = match &mut valid {
        Value::Array(elements) if !elements.is_empty() => {
            let at = step.index(elements.len());
            elements.get_mut(at)
        }
        Value::Object(members) if !members.is_empty() => {
            let at = step.index(members.len());
            members.values_mut().nth(at)
        }
        _ => return new,
    };
    if let Some(inner) = inner {
        *inner = changed(inner.take(), rest, new);
    }
    valid
}

/// A valid request with one value replaced, or any JSON.
fn almost(valid: Vec<Value>) -> impl Strategy<Value = Value> {
    let path = prop::collection::vec(any::<prop::sample::Index>(), 0..5);
    let changed = (prop::sample::select(valid), path, any_json())
        .prop_map(|(valid, path, new)| changed(valid, &path, new));
    prop_oneof![3 => changed, 1 => any_json()]
}

fn operations() -> Vec<Value> {
    let image = image(&json!(1), 1, &with_original("a"));
    let features =
        element(&json!(2), 2, &json!({ "name": "a", "payload": { "a": 1 }, "width": 3 }));
    vec![
        json!({ "put_images": { "points": [image] } }),
        json!({ "put_features": { "points": [features] } }),
    ]
}

/// Returns true if every holder gets the error.
fn is_refusal(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::InvalidArgument | ErrorKind::TooLarge | ErrorKind::AlreadyExists)
}

fn made(named: &NamedCollection, operation: &[u8]) -> Result<(), TestCaseError> {
    let _ = is_image_operation(operation);
    let outcome = apply_image_operation(named, operation);
    prop_assert!(
        outcome.as_ref().map_or_else(|error| is_refusal(error.kind()), |()| true),
        "{outcome:?}"
    );
    Ok(())
}

#[test]
fn any_operation_is_survived() {
    let directory = tempfile::tempdir().unwrap();
    let named = photos().create_shard(&open(directory.path()), "c.0000", 3, "s").unwrap();
    let cut = operations().iter().map(Value::to_string).collect::<Vec<_>>();
    let cut = (prop::sample::select(cut), any::<prop::sample::Index>())
        .prop_map(|(text, end)| text.as_bytes()[..end.index(text.len())].to_vec());
    let changed = almost(operations()).prop_map(|value| value.to_string().into_bytes());
    let bytes = prop::collection::vec(any::<u8>(), 0..40);
    runner()
        .run(&prop_oneof![5 => changed, 1 => cut, 1 => bytes], |text| made(&named, &text))
        .unwrap();
    // The valid ones are made.
    operations().iter().for_each(|valid| {
        apply_image_operation(&named, valid.to_string().as_bytes()).unwrap();
    });
}

#[test]
fn any_features_are_survived() {
    let valid = vec![json!({ "points": [element(&json!(1), 1, &json!({ "kind": "photo" }))] })];
    let wanted = WantedImages { kind: None, model: Some("colour".to_owned()) };
    runner()
        .run(&almost(valid.clone()), |body| {
            let text = body.to_string();
            let own = photos();
            for existing in [None, Some((&own, 3))] {
                let read = read_features(text.as_bytes(), "c", &wanted, existing);
                if let Err(error) = read {
                    prop_assert!(is_refusal(error.kind()), "{error:?}");
                }
            }
            let _ = ExtractedQuery::of_features(text.as_bytes());
            let _ = ExtractedQuery::of_features(body["points"][0].to_string().as_bytes());
            Ok(())
        })
        .unwrap();
    assert!(ExtractedQuery::of_features(valid[0]["points"][0].to_string().as_bytes()).is_ok());
}

#[test]
fn any_request_of_a_round_is_survived() {
    let world = World::start();
    let photo = world.shards("p", &photos(), 3, 1).named.remove(0);
    let print = world.shards("f", &fingers(), 3, 1).named.remove(0);
    for operation in operations() {
        apply_image_operation(&photo, operation.to_string().as_bytes()).unwrap();
    }
    let rank = json!({
        "record": record(&matching::synthetic::photo(1)), "width": 3, "height": 4, "k": 2, "threshold": 0.5,
        "explain": true, "candidates": { "ids": [1, 2], "coarse": [0.5, 0.25] }, "prints": null, "filter": null,
    });
    let prints = json!({
        "record": record(&matching::synthetic::fingerprint(1)), "width": 3, "height": 4, "k": 2, "threshold": 0.5,
        "explain": true, "prints": { "candidates": null, "shards": 2 }, "filter": { "must": [{ "key": "a", "match": { "value": 1 } }] },
    });
    let coarse = json!({ "embedding": [1, 2, 3], "candidates": 5, "filter": { "must": [{ "has_id": [1] }] } });
    let routes: [(&NamedCollection, &str, Value); 3] =
        [(&photo, "coarse", coarse), (&photo, "rank", rank), (&print, "rank", prints)];
    for (named, round, valid) in routes {
        let path = format!("/v1/shards/{}/{round}", named.name());
        world.good(&path, &valid);
        runner()
            .run(&almost(vec![valid]), |body| {
                let (status, answer) = world.json(Method::POST, &path, &body);
                let expected = [200, 400, 413, 501].contains(&status.as_u16());
                prop_assert!(expected, "{status} {answer}");
                Ok(())
            })
            .unwrap();
        let (status, _) = world.send(Method::POST, &path, "application/json", vec![0xff, 0x7b]);
        assert_eq!(status, 400);
    }
}
