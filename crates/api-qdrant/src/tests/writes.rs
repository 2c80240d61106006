//! Writes: refused ones, and payloads that become too large.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use base::ErrorKind;
use bytes::Bytes;
use search::registry::Registry;
use serde_json::{Value, json};

use super::{Bench, UUID, three};
use crate::call::CallContext;
use crate::write_threads::{SLOW_THREADS, SLOW_WRITES_MAX, WRITES_MAX, WriteJob, WriteThreads};
use crate::{retrieve, update};

/// Handler of a write.
type Write = fn(&Registry, &CallContext, &[u8]) -> base::Result<update::UpdateResponse>;

#[test]
fn writes_beyond_the_queue_are_refused() {
    let writers = WriteThreads::default();
    let (hold, held) = std::sync::mpsc::channel::<()>();
    let held = Arc::new(Mutex::new(held));
    let made = Arc::new(AtomicUsize::new(0));
    let mut taken = 0;
    let mut refused = 0;
    for _ in 0..WRITES_MAX + 40 {
        let held = held.clone();
        let made = made.clone();
        let run = move |_: base::Result<()>| {
            let _ = held.lock().unwrap().recv();
            made.fetch_add(1, Ordering::SeqCst);
        };
        let job = WriteJob { selection: None, deletes_images: false, run: Box::new(run) };
        match writers.submit(job) {
            Ok(()) => taken += 1,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::ResourceExhausted);
                assert!(error.retry_after().is_some());
                refused += 1;
            }
        }
    }
    assert!(refused > 0 && taken >= WRITES_MAX);
    drop(hold);
    let deadline = Instant::now() + Duration::from_secs(60);
    while made.load(Ordering::SeqCst) < taken && Instant::now() < deadline {
        std::thread::yield_now();
    }
    assert_eq!(made.load(Ordering::SeqCst), taken);
}

#[test]
fn slow_writes_leave_threads_to_other_writes() {
    let writers = WriteThreads::default();
    let (hold, held) = std::sync::mpsc::channel::<()>();
    let held = Arc::new(Mutex::new(held));
    let begun = Arc::new(AtomicUsize::new(0));
    let refused = Arc::new(AtomicUsize::new(0));
    let slow = |deletes_images: bool| {
        let held = held.clone();
        let begun = begun.clone();
        let refused = refused.clone();
        let run = move |admitted: base::Result<()>| match admitted {
            Ok(()) => {
                begun.fetch_add(1, Ordering::SeqCst);
                let _ = held.lock().unwrap().recv();
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::ResourceExhausted);
                assert!(error.retry_after().is_some());
                refused.fetch_add(1, Ordering::SeqCst);
            }
        };
        let body = if deletes_images { r#"{"points": [1]}"# } else { r#"{"filter": {}}"# };
        let selection = Some(Bytes::from_static(body.as_bytes()));
        writers.submit(WriteJob { selection, deletes_images, run: Box::new(run) }).unwrap();
    };
    let wait_until = |what: &str, holds: &dyn Fn() -> bool| {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !holds() {
            assert!(Instant::now() < deadline, "{what}");
            std::thread::yield_now();
        }
    };
    let beyond = 3;
    // One kind does not wait for the other.
    let each = SLOW_THREADS + SLOW_WRITES_MAX;
    for at in 0..2 * (each + beyond) {
        slow(at % 2 == 0);
        let (sender, receiver) = std::sync::mpsc::channel();
        let run = move |_: base::Result<()>| sender.send(()).unwrap();
        // A body without a filter at its top is that of another write.
        let selection = Some(Bytes::from_static(br#"{"points": [1]}"#));
        let job = WriteJob { selection, deletes_images: false, run: Box::new(run) };
        writers.submit(job).unwrap();
        receiver.recv_timeout(Duration::from_secs(60)).unwrap();
    }
    wait_until("writes are refused", &|| refused.load(Ordering::SeqCst) == 2 * beyond);
    wait_until("writes begin", &|| begun.load(Ordering::SeqCst) == 2 * SLOW_THREADS);
    drop(hold);
    wait_until("waiting writes run", &|| begun.load(Ordering::SeqCst) == 2 * each);
    assert_eq!(refused.load(Ordering::SeqCst), 2 * beyond);
}

#[test]
fn a_batch_that_has_made_a_change_continues_after_its_deadline() {
    let bench = Bench::new();
    three(&bench, "Euclid");
    let late = |body: Value| {
        search::collection::until(Instant::now(), || bench.write(update::batch, "c", &body))
    };
    let named = bench.registry().get("c").unwrap();
    let has = |id: u64| named.get(&search::points::PointId::Number(id)).unwrap().is_some();
    let filter = json!({"must": [{"key": "n", "match": {"value": 2}}]});
    let delete = json!({"delete": {"filter": filter}});
    let error = late(json!({"operations": [delete]})).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
    assert!(has(2));
    let first = json!({"delete": {"points": [1]}});
    late(json!({"operations": [first, delete]})).unwrap();
    assert!(!has(1) && !has(2));
}

#[test]
fn values_beyond_32_bits_are_named() {
    let bench = Bench::new();
    three(&bench, "Euclid");
    let points = json!({"points": [{"id": 9, "vector": [1, 1e39]}]});
    let error = bench.write(update::upsert, "c", &points).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    let wanted = "point 9: the value at dimension 1 of its embedding is not a finite 32-bit number";
    assert!(error.message().contains(wanted), "{error}");
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
    let error = bench.write(update::update_vectors, "c", &points).unwrap_err();
    assert!(
        error.kind() == ErrorKind::FailedPrecondition && error.message().contains("/v1/images"),
        "{error}"
    );
    bench.write(update::set_payload, "c", &json!({"payload": {"x": 1}, "points": [1]})).unwrap();
    let got = bench.read(retrieve::fetch, "c", &json!({"ids": [1], "with_vector": true})).unwrap();
    assert_eq!((&got[0]["payload"]["x"], &got[0]["vector"]), (&json!(1), &json!([3.0, 4.0])));
}

#[test]
fn changes_of_payloads_keep_the_block_of_an_image() {
    let bench = Bench::new();
    three(&bench, "Euclid");
    let named = bench.registry().get("c").unwrap();
    let mark = |extra: &mut Value| {
        extra["images"] = json!({"kind": "photo"});
        Ok(())
    };
    named.change_extra(mark).unwrap();
    let make = |operation: &Value| {
        update::apply_operation(&named, operation.to_string().as_bytes()).unwrap();
    };
    let payload = |id: u64| {
        let got = bench.read(retrieve::fetch, "c", &json!({ "ids": [id] })).unwrap();
        got[0]["payload"].clone()
    };
    let block = json!({"name": "cat.jpg", "original": "0/1.png"});
    let whole = json!({"payload": {"n": 1, "image": block}, "points": [1]});
    let kept = json!({ "image": block });
    let with_id = json!({"must": [{"has_id": [1]}]});
    let cases: [(&str, Write, Value, Value); 6] = [
        ("clear_payload", update::clear_payload, json!({"points": [1]}), kept.clone()),
        ("clear_payload", update::clear_payload, json!({ "filter": with_id }), kept.clone()),
        (
            "delete_payload",
            update::delete_payload,
            json!({"keys": ["n", "image.name", "image"], "points": [1]}),
            kept,
        ),
        (
            "overwrite_payload",
            update::overwrite_payload,
            json!({"payload": {"x": 2}, "points": [1]}),
            json!({"x": 2, "image": block}),
        ),
        (
            "overwrite_payload",
            update::overwrite_payload,
            json!({"payload": {"image": {}}, "points": [1]}),
            json!({"image": {}}),
        ),
        (
            "set_payload",
            update::set_payload,
            json!({"payload": {"image": {}}, "points": [1]}),
            json!({"n": 1, "image": {}}),
        ),
    ];
    for (name, work, body, expected) in cases {
        let operation = json!({ name: body });
        let reset = || make(&json!({ "overwrite_payload": whole }));
        reset();
        bench.write(work, "c", &body).unwrap();
        assert_eq!(payload(1), expected, "{operation}");
        reset();
        bench.write(update::batch, "c", &json!({ "operations": [operation] })).unwrap();
        assert_eq!(payload(1), expected, "{operation} in a batch");
        reset();
        make(&operation);
        assert_eq!(payload(1), expected, "{operation} in a log");
    }
    let large = json!({"image": {"name": "x".repeat(10 << 10)}});
    make(&json!({"set_payload": {"payload": large, "points": [1]}}));
    let new = json!({ "new": "y".repeat(60 << 10) });
    make(&json!({"overwrite_payload": {"payload": new, "points": [1, 2]}}));
    assert_eq!((payload(1).get("new"), payload(2)), (None, new), "only the second one fits");
}

#[test]
fn a_payload_that_becomes_too_large_fails_alone() {
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

#[test]
fn new_vectors_survive_a_restart_and_leave_payloads() {
    let mut bench = Bench::new();
    three(&bench, "Euclid");
    let vectors = json!({"points": [
        {"id": 7, "vector": [1, 1]},
        {"id": 1, "vector": [5, 6]},
        {"id": UUID, "vector": [7, 8]},
    ]});
    let error = bench.write(update::update_vectors, "c", &vectors).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.message().contains("No point with id 7"), "{error}");
    let filter = json!({"must": [{"key": "n", "match": {"value": 2}}]});
    let only = json!({"points": [{"id": 1, "vector": [9, 9]}, {"id": 2, "vector": [9, 9]}],
                      "update_filter": filter});
    let batch = json!({"operations": [{"update_vectors": only}]});
    bench.write(update::batch, "c", &batch).unwrap();
    let got = |bench: &Bench| {
        let ids = json!({"ids": [1, 2, UUID, 7], "with_vector": true});
        bench.read(retrieve::fetch, "c", &ids).unwrap()
    };
    let expected = json!([
        {"id": 1, "vector": [5.0, 6.0], "payload": {"n": 1}},
        {"id": 2, "vector": [9.0, 9.0], "payload": {"n": 2}},
        {"id": UUID, "vector": [7.0, 8.0], "payload": {}},
    ]);
    assert_eq!(got(&bench), expected);
    bench.restart();
    assert_eq!(got(&bench), expected);
}

#[test]
fn absent_points_are_an_error_for_clients_that_wait() {
    let bench = Bench::new();
    three(&bench, "Dot");
    let set = json!({"payload": {"x": 1}, "points": [7, 1, UUID]});
    let ids = json!({"points": [2, 8]});
    let vectors = json!({"points": [{"id": 9, "vector": [1, 1]}]});
    let changes: [(Write, &Value, u64); 5] = [
        (update::set_payload, &set, 7),
        (update::overwrite_payload, &set, 7),
        (update::delete_payload, &json!({"keys": ["n"], "points": [2, 8]}), 8),
        (update::clear_payload, &ids, 8),
        (update::update_vectors, &vectors, 9),
    ];
    for (work, body, id) in changes {
        let error = bench.write(work, "c", body).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{body}");
        assert!(error.message().contains(&format!("No point with id {id} found")), "{error}");
        let context = CallContext { wait: false, ..super::context("c", "") };
        work(bench.registry(), &context, body.to_string().as_bytes()).unwrap();
    }
    let got = bench.read(retrieve::fetch, "c", &json!({"ids": [1, 2, 7, 8, UUID]})).unwrap();
    let expected = json!([
        {"id": 1, "payload": {"x": 1}},
        {"id": 2, "payload": {}},
        {"id": UUID, "payload": {"x": 1}},
    ]);
    assert_eq!(got, expected, "the other points are changed");
    let batch = json!({"operations": [{"set_payload": set}]});
    let error = bench.write(update::batch, "c", &batch).unwrap_err();
    assert!(error.message().starts_with("operations[0]"), "{error}");
    let named = bench.registry().get("c").unwrap();
    let operation = json!({ "overwrite_payload": set }).to_string();
    update::apply_operation(&named, operation.as_bytes()).unwrap();
    bench.write(update::clear_payload, "c", &json!({"filter": {}})).unwrap();
}

#[test]
fn new_vectors_of_absent_points_are_no_error_in_a_log() {
    let bench = Bench::new();
    three(&bench, "Cosine");
    let named = bench.registry().get("c").unwrap();
    let make =
        |operation: Value| crate::update::apply_operation(&named, operation.to_string().as_bytes());
    let vectors = json!({"points": [{"id": 7, "vector": [1, 0]}, {"id": 1, "vector": [0, 2]}]});
    for _ in 0..2 {
        make(json!({ "update_vectors": vectors })).unwrap();
        make(json!({"delete": {"points": [2]}})).unwrap();
        make(json!({"update_vectors": {"points": [{"id": 2, "vector": [0, 1]}]}})).unwrap();
    }
    let got = bench.read(retrieve::fetch, "c", &json!({"ids": [1, 2, 7], "with_vector": true}));
    let expected = json!([{"id": 1, "vector": [0.0, 1.0], "payload": {"n": 1}}]);
    assert_eq!(got.unwrap(), expected);
}

#[test]
fn new_vectors_must_fit_and_none_are_deleted() {
    let bench = Bench::new();
    three(&bench, "Euclid");
    let kind = |work: Write, body: Value| bench.write(work, "c", &body).unwrap_err().kind();
    let vector = |vector: Value| json!({"points": [{"id": 1, "vector": vector}]});
    assert_eq!(kind(update::update_vectors, vector(json!([1]))), ErrorKind::InvalidArgument);
    assert_eq!(kind(update::update_vectors, vector(json!({}))), ErrorKind::Unimplemented);
    let delete = json!({"points": [1], "vector": [""]});
    assert_eq!(kind(update::delete_vectors, delete), ErrorKind::Unimplemented);
}

#[test]
fn upserts_follow_their_mode_and_filter() {
    let bench = Bench::new();
    three(&bench, "Euclid");
    let upsert = |options: Value, ids: &[u64], n: u64| {
        let point = |id: &u64| json!({"id": id, "vector": [n, n], "payload": {"n": n}});
        let mut body = json!({"points": ids.iter().map(point).collect::<Vec<_>>()});
        for (name, value) in options.as_object().unwrap() {
            body[name] = value.clone();
        }
        bench.write(update::upsert, "c", &body).unwrap();
        let got = bench.read(retrieve::fetch, "c", &json!({"ids": [1, 2, 3]})).unwrap();
        let points = got.as_array().unwrap().iter();
        points.map(|point| point["payload"]["n"].as_u64().unwrap()).collect::<Vec<u64>>()
    };
    assert_eq!(upsert(json!({"update_mode": "update_only"}), &[2, 3], 5), [1, 5]);
    assert_eq!(upsert(json!({"update_mode": "insert_only"}), &[2, 3], 6), [1, 5, 6]);
    let filter = json!({"must": [{"key": "n", "range": {"gte": 5}}]});
    assert_eq!(upsert(json!({ "update_filter": filter }), &[1, 2, 3], 7), [1, 7, 7]);
    let both = json!({"update_filter": filter, "update_mode": "insert_only"});
    assert_eq!(upsert(both, &[1, 2, 3], 8), [1, 7, 7]);
}
