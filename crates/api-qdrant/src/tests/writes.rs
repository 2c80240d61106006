//! Writes: refused ones, and payloads that become too large.

use std::sync::Arc;
use std::time::{Duration, Instant};

use base::ErrorKind;
use serde_json::{Value, json};

use super::{Bench, three};
use crate::{retrieve, update, write_threads};

#[test]
fn writes_beyond_the_queue_are_refused() {
    let writers = write_threads::WriteThreads::default();
    let (hold, held) = std::sync::mpsc::channel::<()>();
    let held = Arc::new(std::sync::Mutex::new(held));
    let made = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let mut taken = 0;
    let mut refused = 0;
    for _ in 0..write_threads::WRITES_MAX + 40 {
        let held = held.clone();
        let made = made.clone();
        let job = move || {
            let _ = held.lock().unwrap().recv();
            made.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        };
        match writers.submit(Box::new(job)) {
            Ok(()) => taken += 1,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::ResourceExhausted);
                assert!(error.retry_after().is_some());
                refused += 1;
            }
        }
    }
    assert!(refused > 0 && taken >= write_threads::WRITES_MAX);
    drop(hold);
    let deadline = Instant::now() + Duration::from_secs(60);
    while made.load(std::sync::atomic::Ordering::SeqCst) < taken && Instant::now() < deadline {
        std::thread::yield_now();
    }
    assert_eq!(made.load(std::sync::atomic::Ordering::SeqCst), taken);
}

#[test]
fn points_of_image_collections_are_not_written() {
    let bench = Bench::new();
    three(&bench, "Euclid");
    let named = bench.registry().get("c").unwrap();
    named
        .change_extra(|extra| {
            extra["images"] = json!({"kind": "photo"});
            Ok(())
        })
        .unwrap();
    let points = json!({"points": [{"id": 1, "vector": [1, 1]}]});
    let error = bench.write(update::upsert, "c", &points).unwrap_err();
    assert!(
        error.kind() == ErrorKind::FailedPrecondition && error.message().contains("/v1/images"),
        "{error}"
    );
    let batch = json!({"operations": [{"upsert": points}]});
    assert_eq!(
        bench.write(update::batch, "c", &batch).unwrap_err().kind(),
        ErrorKind::FailedPrecondition
    );
    bench.write(update::set_payload, "c", &json!({"payload": {"x": 1}, "points": [1]})).unwrap();
    let got = bench.read(retrieve::fetch, "c", &json!({"ids": [1], "with_vector": true})).unwrap();
    assert_eq!((&got[0]["payload"]["x"], &got[0]["vector"]), (&json!(1), &json!([3.0, 4.0])));
}

#[test]
fn a_payload_that_becomes_too_large_leaves_its_neighbours_alone() {
    let bench = Bench::new();
    bench.create("c", 2, "Dot");
    let large = "x".repeat(50 << 10);
    let points = json!({"points": [
        {"id": 1, "vector": [1, 0]},
        {"id": 2, "vector": [1, 0], "payload": {"large": large}},
        {"id": 3, "vector": [1, 0]},
    ]});
    let named = bench.registry().get("c").unwrap();
    let make =
        |operation: Value| crate::update::apply_operation(&named, operation.to_string().as_bytes());
    make(json!({ "upsert": points })).unwrap();
    let set = json!({"payload": {"more": "x".repeat(20 << 10)}, "points": [1, 2, 3]});
    make(json!({ "set_payload": set })).unwrap();
    let has = |id: u64| {
        let point = named.get(&search::points::PointId::Number(id)).unwrap().unwrap();
        point.payload.contains_key("more")
    };
    assert_eq!([1, 2, 3].map(has), [true, false, true]);
    assert!(make(json!({ "delete": {} })).is_err());
}
