//! Operations that are made again after later ones, as a holder does after a restart.

use std::cell::Cell;

use image_features::apply::{apply_image_operation, is_image_operation};
use image_features::testing::{element, image, open, photos, points, with_original};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use search::registry::NamedCollection;
use serde_json::{Value, json};

use crate::operations::UUID;

/// Maximum operations of a case.
const OPERATIONS_MAX: usize = 8;
const CASES: u32 = 32;

fn id() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(json!(UUID)),
        Just(json!("5c56c793-69f3-8fbf-87e6-c4bf54c28c27")),
        Just(json!(3)),
    ]
}

/// Members of features that may be missing.
fn members() -> impl Strategy<Value = Value> {
    let name = prop::option::of("[a-c]{0,2}");
    let side = prop::option::of(0_u32..3);
    (name, side.clone(), side, prop::option::of(0..3)).prop_map(|(name, width, height, own)| {
        let mut members = json!({});
        let mut add = |key: &str, value: Option<Value>| {
            if let Some(value) = value {
                members[key] = value;
            }
        };
        add("name", name.map(Value::from));
        add("width", width.map(Value::from));
        add("height", height.map(Value::from));
        add("payload", own.map(|own| json!({ "own": own })));
        members
    })
}

fn operation() -> impl Strategy<Value = Value> {
    let features = (id(), 0..4_u64, members()).prop_map(|(id, seed, members)| {
        json!({ "put_features": { "points": [element(&id, seed, &members)] } })
    });
    // An image with an original, or one without.
    let images = (id(), 0..4_u64, prop::option::of("[a-c]{1}")).prop_map(|(id, seed, name)| {
        let payload =
            name.map_or_else(|| json!({ "image": { "name": "x" } }), |name| with_original(&name));
        json!({ "put_images": { "points": [image(&id, seed, &payload)] } })
    });
    let delete =
        prop::collection::vec(id(), 1..3).prop_map(|ids| json!({ "delete": { "points": ids } }));
    let clear = id().prop_map(|id| json!({ "clear_payload": { "points": [id] } }));
    let overwrite = (id(), 0..4_u64).prop_map(
        |(id, own)| json!({ "overwrite_payload": { "points": [id], "payload": { "own": own } } }),
    );
    prop_oneof![4 => features, 3 => images, 1 => delete, 1 => clear, 1 => overwrite]
}

fn apply(named: &NamedCollection, operations: &[Value]) {
    for operation in operations {
        let text = operation.to_string();
        let applied = if is_image_operation(text.as_bytes()) {
            apply_image_operation(named, text.as_bytes())
        } else {
            api_qdrant::apply_operation(named, text.as_bytes())
        };
        applied.unwrap();
    }
}

#[test]
fn operations_made_again_lead_to_the_same_points() {
    let directory = tempfile::tempdir().unwrap();
    let registry = open(directory.path());
    let create = || photos().create_shard(&registry, "c.0000", 3, "s").unwrap();
    let operations = prop::collection::vec(operation(), 1..=OPERATIONS_MAX);
    let cases = (operations, any::<prop::sample::Index>(), any::<prop::sample::Index>());
    let mut runner =
        TestRunner::new(Config { cases: CASES, failure_persistence: None, ..Config::default() });
    let seen = Cell::new(0);
    let outcome = runner.run(&cases, |(operations, first, second)| {
        let once = create();
        apply(&once, &operations);
        let wanted = points(&once);
        seen.set(seen.get() + wanted.len());
        // The holder has made the first `made` operations, and begins again at `again`.
        let ends = operations.len() + 1;
        let (made, again) = (first.index(ends), second.index(ends));
        let (made, again) = (made.max(again), made.min(again));
        // All of them, and again a part.
        apply(&once, &operations[again..]);
        let twice = points(&once);
        registry.remove("c.0000").unwrap();
        prop_assert_eq!(&twice, &wanted);
        let restarted = create();
        apply(&restarted, &operations[..made]);
        apply(&restarted, &operations[again..]);
        let after = points(&restarted);
        registry.remove("c.0000").unwrap();
        prop_assert_eq!(&after, &wanted);
        Ok(())
    });
    outcome.unwrap();
    // The cases are not empty.
    assert!(seen.get() > CASES as usize, "{}", seen.get());
}
