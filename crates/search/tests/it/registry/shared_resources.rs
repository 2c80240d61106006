//! Threads and memory that the collections of a registry share.

use std::sync::mpsc;

use base::ErrorKind;
use search::collection::{CollectionQuery, PointParts};
use search::points::{NewPoint, PointId};
use search::registry::{CollectionCounts, NamedCollection, RegistryOptions, TaskProgress};
use serde_json::Map;

use super::{DIMS, got, open, open_with, options, put, settings, uuid};

#[test]
fn many_small_collections_share_threads_and_memory() {
    let directory = tempfile::tempdir().unwrap();
    let registry = open(directory.path());
    for number in 0..60 {
        put(
            &registry.create(&format!("c{number}"), settings()).unwrap(),
            &[got(uuid(number), number)],
        )
        .unwrap();
    }
    let before = registry.stats();
    drop(registry);
    let registry = open(directory.path());
    let after = registry.stats();
    let ready = CollectionCounts { opening: 0, ready: 60, broken: 0 };
    assert_eq!((before.collections, after.collections), (ready, ready));
    assert!(
        after.memory.peak <= after.memory.limit && after.memory.used == before.memory.used,
        "{after:?}"
    );
    let (sender, answers) = mpsc::channel();
    for number in 0..60 {
        let sender = sender.clone();
        let work = move |named: &NamedCollection, thread: &mut _| {
            let like = got(uuid(number), number).embedding;
            let found =
                named.collection().nearest(thread, &CollectionQuery::nearest(&like, 3)).unwrap();
            let ids: Vec<u64> = found.hits.iter().map(|hit| hit.id).collect();
            sender
                .send(
                    named.resolve(&ids, PointParts::ALL).remove(0).unwrap()
                        == Some(got(uuid(number), number)),
                )
                .unwrap();
        };
        registry.submit(&registry.get(&format!("c{number}")).unwrap(), Box::new(work)).unwrap();
    }
    drop(sender);
    assert_eq!(answers.iter().filter(|right| *right).count(), 60);
    assert!(registry.stats().memory.peak <= registry.stats().memory.limit);
}

#[test]
fn full_queues_and_panics_are_survived() {
    let directory = tempfile::tempdir().unwrap();
    let registry = open_with(RegistryOptions { queue_max: 1, ..options(directory.path()) });
    let named = registry.create("c", settings()).unwrap();
    let (begun, begin) = mpsc::channel();
    let (go, wait) = mpsc::channel::<()>();
    let first = move |_: &NamedCollection, _: &mut _| {
        begun.send(()).unwrap();
        wait.recv().unwrap();
        panic!("on purpose");
    };
    registry.submit(&named, Box::new(first)).unwrap();
    begin.recv().unwrap();
    let (sender, answer) = mpsc::channel();
    registry.submit(&named, Box::new(move |_, _| sender.send(7).unwrap())).unwrap();
    let error = registry.submit(&named, Box::new(|_, _| {})).unwrap_err();
    assert!(error.kind() == ErrorKind::ResourceExhausted && error.retry_after().is_some());
    go.send(()).unwrap();
    assert_eq!(answer.recv().unwrap(), 7);
    assert_eq!(registry.stats().refused, 1);
}

#[test]
fn paused_tasks_let_others_run() {
    let directory = tempfile::tempdir().unwrap();
    let registry = open_with(options(directory.path()));
    let named = registry.create("c", settings()).unwrap();
    let (sender, order) = mpsc::channel();
    let (go, wait) = mpsc::channel::<()>();
    let (slow, mut slices) = (sender.clone(), 0);
    let sliced = move |_: &NamedCollection, _: &mut _| {
        if slices == 0 {
            wait.recv().unwrap();
        }
        slices += 1;
        slow.send("slice").unwrap();
        if slices < 3 { TaskProgress::Paused } else { TaskProgress::Done }
    };
    registry.submit_sliced(&named, Box::new(sliced)).unwrap();
    for _ in 0..6 {
        let sender = sender.clone();
        registry.submit(&named, Box::new(move |_, _| sender.send("task").unwrap())).unwrap();
    }
    drop(sender);
    go.send(()).unwrap();
    let order: Vec<&str> = order.iter().collect();
    // Four tasks between two slices, and the last slice once no task waits.
    let (task, slice) = ("task", "slice");
    assert_eq!(order, [slice, task, task, task, task, slice, task, task, slice]);
    assert_eq!(registry.stats().done, 7);
}

#[test]
fn flushes_free_the_memory_of_many_collections() {
    let directory = tempfile::tempdir().unwrap();
    let registry = open_with(RegistryOptions {
        memory_bytes: 32 << 20,
        cache_bytes: 0,
        ..options(directory.path())
    });
    let record = vec![9; 60_000];
    let embedding = [0.5; DIMS];
    let payload = Map::new();
    let mut next = 0;
    for round in 0..4 {
        for number in 0..40 {
            let name = format!("c{number}");
            let named =
                if round == 0 { registry.create(&name, settings()) } else { registry.get(&name) }
                    .unwrap();
            let points: Vec<NewPoint<'_>> = (0..6)
                .map(|_| {
                    next += 1;
                    NewPoint {
                        id: PointId::Number(next),
                        embedding: &embedding,
                        record: &record,
                        payload: &payload,
                    }
                })
                .collect();
            named.upsert(&points).unwrap();
        }
    }
    let memory = registry.stats().memory;
    assert!(memory.peak <= memory.limit, "{memory:?}");
    let counted: u64 =
        (0..40).map(|at| registry.get(&format!("c{at}")).unwrap().count(None).unwrap().count).sum();
    assert_eq!(counted, next);
}
