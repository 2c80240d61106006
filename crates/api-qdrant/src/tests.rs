//! Tests of the handlers without HTTP, and what they share.

mod order_and_groups;
mod payload_filters;
mod restarts;
mod searches;
mod settings;
mod writes;

use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{HeaderMap, header};
use search::collection::SearchThread;
use search::points::PointSelection;
use search::registry::{NamedCollection, Registry, RegistryOptions};
use serde_json::{Value, json};

use crate::call::CallContext;
use crate::response_memory::ResponseMemory;
use crate::*;

/// A registry whose handlers are called without HTTP.
struct Bench {
    registry: Option<Arc<Registry>>,
    directory: tempfile::TempDir,
}

fn context(collection: &str, item: &str) -> CallContext {
    let deadline = Instant::now() + Duration::from_secs(60);
    let images = Arc::new(MarkedImages);
    let (collection, item) = (collection.into(), item.into());
    CallContext {
        collection,
        item,
        deadline,
        wait: true,
        images,
        grant: None,
        collections: None,
        shard_call: None,
        memory: ResponseMemory::new(&transport::ByteBudget::new(1 << 30, Arc::default())),
    }
}

/// Collections with a mark in their extra data hold images.
struct MarkedImages;

impl ImageCollections for MarkedImages {
    fn holds_images(&self, named: &NamedCollection) -> bool {
        named.settings().extra.get("images").is_some()
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

fn open(directory: &std::path::Path) -> Arc<Registry> {
    Registry::open(RegistryOptions::for_tests(directory)).unwrap()
}

impl Bench {
    fn new() -> Bench {
        let directory = tempfile::tempdir().unwrap();
        Bench { registry: Some(open(directory.path())), directory }
    }

    fn registry(&self) -> &Arc<Registry> {
        self.registry.as_ref().unwrap()
    }

    /// Opens the registry again, as after a restart of the process.
    fn restart(&mut self) {
        drop(self.registry.take());
        self.registry = Some(open(self.directory.path()));
        assert!(self.registry().wait_open(Duration::from_secs(30)));
    }

    fn write<T: serde::Serialize>(
        &self,
        work: fn(&Registry, &CallContext, &[u8]) -> base::Result<T>,
        collection: &str,
        body: &Value,
    ) -> base::Result<Value> {
        let done = work(self.registry(), &context(collection, ""), body.to_string().as_bytes())?;
        Ok(serde_json::to_value(done).unwrap())
    }

    fn read<T: serde::Serialize + Send + 'static>(
        &self,
        work: fn(&NamedCollection, &mut SearchThread, &CallContext, &[u8]) -> base::Result<T>,
        collection: &str,
        body: &Value,
    ) -> base::Result<Value> {
        self.read_in(context("", ""), work, collection, body)
    }

    fn read_in<T: serde::Serialize + Send + 'static>(
        &self,
        context: CallContext,
        work: fn(&NamedCollection, &mut SearchThread, &CallContext, &[u8]) -> base::Result<T>,
        collection: &str,
        body: &Value,
    ) -> base::Result<Value> {
        let named = self.registry().get(collection)?;
        let (sender, receiver) = std::sync::mpsc::channel();
        let body = body.to_string().into_bytes();
        let collections = Some(self.registry().lookup());
        let context = CallContext { collections, ..context };
        let job = move |named: &NamedCollection, thread: &mut SearchThread| {
            sender.send(work(named, thread, &context, &body)).unwrap();
        };
        self.registry().submit(&named, Box::new(job))?;
        Ok(serde_json::to_value(receiver.recv().unwrap()?).unwrap())
    }

    fn create(&self, name: &str, size: usize, distance: &str) {
        let body = json!({"vectors": {"size": size, "distance": distance}});
        assert_eq!(self.write(collections::create, name, &body).unwrap(), true);
    }

    fn ids(&self, collection: &str, query: &Value) -> Vec<Value> {
        let found = self.read(query::query, collection, query).unwrap();
        found["points"].as_array().unwrap().iter().map(|point| point["id"].clone()).collect()
    }
}

const UUID: &str = "5c56c793-69f3-4fbf-87e6-c4bf54c28c26";

fn three(bench: &Bench, distance: &str) {
    bench.create("c", 2, distance);
    let points = json!({"points": [
        {"id": 1, "vector": [3, 4], "payload": {"n": 1}},
        {"id": 2, "vector": [0, 2], "payload": {"n": 2}},
        {"id": UUID, "vector": [-1, 0]},
    ]});
    assert_eq!(bench.write(update::upsert, "c", &points).unwrap()["status"], "completed");
}

fn messages(described: &Value) -> Vec<&str> {
    described["warnings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["message"].as_str().unwrap())
        .collect()
}

#[test]
fn only_clients_get_the_version() {
    let with = |name: header::HeaderName, value: &'static str| {
        let mut headers = HeaderMap::new();
        headers.insert(name, http::HeaderValue::from_static(value));
        version(&headers, "millpond", "1").is_some()
    };
    assert!(with(header::USER_AGENT, "python-client/1.20.0 python/3.11.4"));
    assert!(with(header::ACCEPT, "application/json"));
    assert!(with(header::USER_AGENT, "python-requests/2.32.3"));
    assert!(!with(header::USER_AGENT, "curl/8.1") && !with(header::ACCEPT, "*/*"));
}
