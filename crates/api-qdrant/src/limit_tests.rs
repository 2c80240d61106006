//! Tests of limits that hold across pauses and between threads.

use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use base::ErrorKind;
use search::collection::SearchThread;
use search::points::PointSelection;
use search::registry::{NamedCollection, Registry, RegistryOptions};
use serde_json::{Value, json};

use crate::call::CallContext;
use crate::query::{BatchProgress, batch_in_steps};
use crate::response_memory::ResponseMemory;
use crate::{BoxFuture, ImageCollections, collections, update};

/// A service of images without collections of images.
struct NoImages;

impl ImageCollections for NoImages {
    fn holds_images(&self, _: &NamedCollection) -> bool {
        false
    }

    fn default_model(&self) -> Option<String> {
        None
    }

    fn remove<'a>(&'a self, _: &'a str) -> BoxFuture<'a, base::Result<bool>> {
        Box::pin(async { Ok(false) })
    }

    fn delete_points(&self, _: &str, _: &PointSelection) -> base::Result<bool> {
        Ok(false)
    }
}

fn context(collection: &str) -> CallContext {
    CallContext {
        collection: collection.into(),
        item: String::new(),
        deadline: Instant::now() + Duration::from_secs(60),
        wait: true,
        images: Arc::new(NoImages),
        grant: None,
        collections: None,
        shard_call: None,
        memory: ResponseMemory::new(&transport::ByteBudget::new(1 << 30, Arc::default())),
    }
}

fn open(directory: &std::path::Path) -> Arc<Registry> {
    Registry::open(RegistryOptions::for_tests(directory)).unwrap()
}

fn create(registry: &Registry, name: &str) -> base::Result<bool> {
    let body = json!({"vectors": {"size": 2, "distance": "Euclid"}}).to_string();
    collections::create(registry, &context(name), body.as_bytes())
}

fn upsert(registry: &Registry, points: &Value) {
    let body = json!({ "points": points }).to_string();
    update::upsert(registry, &context("c"), body.as_bytes()).unwrap();
}

#[test]
fn a_batch_continues_after_its_last_answer() {
    let directory = tempfile::tempdir().unwrap();
    let registry = open(directory.path());
    create(&registry, "c").unwrap();
    upsert(&registry, &json!([{"id": 1, "vector": [1, 0]}, {"id": 2, "vector": [2, 0]}]));
    let named = registry.get("c").unwrap();
    let (sender, receiver) = std::sync::mpsc::channel();
    let job = move |named: &NamedCollection, thread: &mut SearchThread| {
        let search = |x: f64| json!({"query": [x, 0], "limit": 1});
        let mut progress = BatchProgress::default();
        let mut run = |searches: Value| {
            let body = json!({ "searches": searches }).to_string();
            let answer =
                batch_in_steps(named, thread, &context("c"), body.as_bytes(), &mut progress);
            answer.map(|answer| serde_json::to_value(answer).unwrap())
        };
        // The second query fails, as it does if its filter pauses.
        let first = run(json!([search(1.0), {"query": 7}]));
        // The answer of the first query stays, although the first query is another one.
        let second = run(json!([search(9.0), search(2.0)]));
        sender.send((first, second)).unwrap();
    };
    registry.submit(&named, Box::new(job)).unwrap();
    let (first, second) = receiver.recv().unwrap();
    assert!(first.unwrap_err().message().contains("searches[1]"));
    let second = second.unwrap();
    let ids = |at: usize| second[at]["points"][0]["id"].clone();
    assert_eq!((ids(0), ids(1)), (json!(1), json!(2)));
}

#[test]
fn a_name_is_a_collection_or_an_alias() {
    let directory = tempfile::tempdir().unwrap();
    let registry = open(directory.path());
    create(&registry, "c").unwrap();
    for round in 0..20 {
        let name = format!("name-{round}");
        let action = json!({"create_alias": {"collection_name": "c", "alias_name": name}});
        let body = json!({"actions": [action]}).to_string();
        let start = Barrier::new(2);
        let (created, aliased) = std::thread::scope(|scope| {
            let created = scope.spawn(|| {
                start.wait();
                create(&registry, &name)
            });
            start.wait();
            let aliased = collections::change_aliases(&registry, &context(""), body.as_bytes());
            (created.join().unwrap(), aliased)
        });
        assert_ne!(created.is_ok(), aliased.is_ok(), "{created:?} {aliased:?}");
    }
}

#[test]
fn concurrent_changes_keep_a_payload_within_its_limit() {
    let directory = tempfile::tempdir().unwrap();
    let registry = open(directory.path());
    create(&registry, "c").unwrap();
    upsert(&registry, &json!([{"id": 1, "vector": [1, 0]}]));
    // One of them fits, and two do not.
    let large = "x".repeat(40 << 10);
    let start = Barrier::new(4);
    let set = |key: usize| {
        let key = format!("key-{key}");
        let body = json!({"payload": {key: large}, "points": [1]}).to_string();
        start.wait();
        update::set_payload(&registry, &context("c"), body.as_bytes()).map(drop)
    };
    let outcomes: Vec<base::Result<()>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|key| scope.spawn(move || set(key))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let refused = outcomes.iter().filter_map(|outcome| outcome.as_ref().err());
    let kinds: Vec<ErrorKind> = refused.map(base::Error::kind).collect();
    assert_eq!(kinds, [ErrorKind::TooLarge; 3]);
    let id = search::points::PointId::Number(1);
    let point = registry.get("c").unwrap().get(&id).unwrap().unwrap();
    assert_eq!(point.payload.len(), 1);
}
