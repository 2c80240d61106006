use std::sync::Arc;
use std::time::{Duration, Instant};

use base::ErrorKind;
use http::{HeaderMap, header};
use search::collection::SearchThread;
use search::registry::{MediumChoice, NamedCollection, Registry, RegistryOptions};
use serde_json::{Value, json};

use crate::call::CallContext;
use crate::*;

/// A registry whose handlers are called without HTTP.
struct Bench {
    registry: Option<Arc<Registry>>,
    directory: tempfile::TempDir,
}

fn context(collection: &str, item: &str) -> CallContext {
    let deadline = Instant::now() + Duration::from_secs(60);
    let images = Arc::new(MarkedImages);
    CallContext { collection: collection.into(), item: item.into(), deadline, images, grant: None }
}

/// Collections with a mark in their extra data hold images.
struct MarkedImages;

impl ImageCollections for MarkedImages {
    fn holds_images(&self, named: &NamedCollection) -> bool {
        named.settings().extra.get("images").is_some()
    }

    fn remove<'a>(&'a self, _: &'a str) -> BoxFuture<'a, base::Result<bool>> {
        Box::pin(async { Ok(false) })
    }
}

fn open(directory: &std::path::Path) -> Arc<Registry> {
    let options = RegistryOptions {
        threads: 1,
        memory_bytes: 256 << 20,
        cache_bytes: 0,
        medium: MediumChoice::Mmap,
        ..RegistryOptions::new(directory)
    };
    Registry::open(options).unwrap()
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
        let named = self.registry().get(collection)?;
        let (sender, receiver) = std::sync::mpsc::channel();
        let body = body.to_string().into_bytes();
        let job = move |named: &NamedCollection, thread: &mut SearchThread| {
            sender.send(work(named, thread, &context("", ""), &body)).unwrap();
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

#[test]
fn damaged_segments_are_named_and_abandoned() {
    let mut bench = Bench::new();
    three(&bench, "Cosine");
    bench.registry().get("c").unwrap().collection().flush().unwrap();
    let describe = |bench: &Bench| bench.read(describe::describe, "c", &Value::Null).unwrap();
    let healthy = describe(&bench);
    assert_eq!((&healthy["status"], &healthy["warnings"]), (&json!("green"), &json!([])));
    let segments = |bench: &Bench| bench.read(describe::segments, "c", &Value::Null).unwrap();
    let whole = segments(&bench);
    let segment = &whole["segments"][0];
    assert_eq!(
        (&segment["rows"], &segment["deleted"], &segment["open"]),
        (&json!(3), &json!(0), &json!(true))
    );
    assert!(segment["bytes"].as_u64().unwrap() > 0);
    assert_eq!(
        (&whole["unflushed_points"], &whole["flushes"], &whole["damaged"]),
        (&json!(0), &json!(1), &json!([]))
    );
    let memory = |name: &str| whole["memory"][name].as_u64().unwrap();
    assert!(memory("used_bytes") <= memory("peak_bytes"));
    assert!(memory("peak_bytes") <= memory("limit_bytes"));
    let give_up = |bench: &Bench, name: &str| {
        collections::give_up(bench.registry(), &context("c", name), b"")
    };

    drop(bench.registry.take());
    let files = walkdir(bench.directory.path());
    let file = files
        .iter()
        .find(|path| path.file_name().unwrap().to_string_lossy().starts_with("segment-"));
    let file = file.unwrap();
    let mut bytes = std::fs::read(file).unwrap();
    bytes[..4096].fill(0);
    std::fs::write(file, bytes).unwrap();
    bench.restart();
    let name = file.file_name().unwrap().to_str().unwrap();
    let damaged = describe(&bench);
    assert_eq!(damaged["status"], "red");
    assert!(damaged["warnings"][0]["message"].as_str().unwrap().starts_with(name), "{damaged}");

    let status = segments(&bench);
    assert_eq!((&status["damaged_count"], &status["partial"]), (&json!(1), &json!(true)));
    assert_eq!(status["damaged"][0]["file"], name);
    assert_eq!(status["segments"][0]["open"], false);

    assert_eq!(give_up(&bench, "segment-9").unwrap_err().kind(), ErrorKind::NotFound);
    assert!(give_up(&bench, name).unwrap());
    for _ in 0..2 {
        let given_up = describe(&bench);
        assert_eq!((&given_up["status"], &given_up["warnings"]), (&json!("green"), &json!([])));
        assert_eq!(given_up["points_count"], 0);
        bench.restart();
    }
}

/// All files below `directory`.
fn walkdir(directory: &std::path::Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { walkdir(&path) } else { vec![path] }).collect()
}

#[test]
fn scores_and_thresholds_follow_the_distance() {
    for (distance, threshold, scores, ids) in [
        ("Cosine", 0.1, vec![1.0, 0.8], vec![json!(2), json!(1)]),
        ("Dot", 0.0, vec![8.0, 4.0, 0.0], vec![json!(1), json!(2), json!(UUID)]),
        ("Euclid", 2.5, vec![0.0, 5f32.sqrt()], vec![json!(2), json!(UUID)]),
    ] {
        let bench = Bench::new();
        three(&bench, distance);
        let query = json!({"query": [0, 2], "score_threshold": threshold});
        let found = bench.read(query::query, "c", &query).unwrap();
        let points = found["points"].as_array().unwrap();
        assert_eq!(
            points.iter().map(|it| it["id"].clone()).collect::<Vec<_>>(),
            ids,
            "{distance}: {found}"
        );
        for (point, expected) in points.iter().zip(scores) {
            assert!(
                (point["score"].as_f64().unwrap() as f32 - expected).abs() < 1e-5,
                "{distance}: {found}"
            );
        }
    }
}

#[test]
fn cosine_vectors_are_normalised() {
    let bench = Bench::new();
    three(&bench, "Cosine");
    let got = bench
        .read(retrieve::fetch, "c", &json!({"ids": [1, 5, UUID], "with_vector": true}))
        .unwrap();
    assert_eq!(got.as_array().unwrap().len(), 2);
    assert_eq!(got[0]["vector"], json!([0.6f32, 0.8f32]));
    assert_eq!((&got[1]["id"], &got[1]["vector"]), (&json!(UUID), &json!([-1.0, 0.0])));
}

#[test]
fn examples_are_no_hits_and_prefetches_limit_hits() {
    let bench = Bench::new();
    three(&bench, "Cosine");
    assert_eq!(bench.ids("c", &json!({"query": 1})), [json!(2), json!(UUID)]);
    assert_eq!(
        bench.ids("c", &json!({"query": {"recommend": {"positive": [1], "negative": [2]}}})),
        [json!(UUID)]
    );
    // The nearest two of the prefetch, ranked by another vector.
    let query = json!({"prefetch": {"query": [1, 1], "limit": 2}, "query": [-1, 0.1], "limit": 5});
    assert_eq!(bench.ids("c", &query), [json!(2), json!(1)]);
    let query = json!({"prefetch": {"query": [1, 1], "limit": 2}, "query": [-1, 0.1],
                       "filter": {"must_not": [{"has_id": [1]}]}});
    assert_eq!(
        bench.ids("c", &query),
        [json!(UUID), json!(2)],
        "the outer filter holds for the prefetch"
    );
    assert_eq!(
        bench.ids("c", &json!({"filter": {"must": [{"key": "n", "range": {"gte": 1}}]}})),
        [json!(1), json!(2)]
    );
}

#[test]
fn prefetches_have_prefetches() {
    let bench = Bench::new();
    three(&bench, "Cosine");
    let nearest = |values: [i32; 2], limit: usize| json!({"query": values, "limit": limit});
    let first = nearest([1, 1], 2);
    assert_eq!(bench.ids("c", &first), [json!(1), json!(2)]);
    let mut second = nearest([-1, 0], 1);
    second["prefetch"] = first.clone();
    // The third point is nearer, but the first prefetch did not find it.
    let query = json!({"prefetch": second, "query": [1, 0]});
    assert_eq!(bench.ids("c", &query), [json!(2)]);
    let fused =
        json!({"query": {"fusion": "rrf"}, "prefetch": [first, nearest([-1, 0], 1)], "limit": 2});
    assert_eq!(bench.ids("c", &fused), [json!(1), json!(UUID)]);
    let query = json!({"prefetch": fused, "query": [-1, 0]});
    assert_eq!(bench.ids("c", &query), [json!(UUID), json!(1)]);
    let diverse = json!({"query": {"nearest": [1, 1], "mmr": {"diversity": 1.0, "candidates_limit": 3}},
                         "limit": 2});
    assert_eq!(bench.ids("c", &diverse), [json!(1), json!(UUID)]);
    let query =
        json!({"prefetch": diverse, "query": {"order_by": {"key": "n", "direction": "desc"}}});
    assert_eq!(bench.ids("c", &query), [json!(1)], "the other has no number");
}

#[test]
fn errors_name_the_field() {
    let bench = Bench::new();
    three(&bench, "Dot");
    let kind = |query: Value| bench.read(query::query, "c", &query).unwrap_err();
    for (query, expected, words) in [
        (json!({"query": [1]}), ErrorKind::InvalidArgument, "expected dim: 2, got 1"),
        (json!({"query": [1, 2], "using": "v"}), ErrorKind::InvalidArgument, "vector name"),
        (json!({"query": [1, 2], "limit": 0}), ErrorKind::InvalidArgument, "limit"),
        (json!({"query": 77}), ErrorKind::NotFound, "77"),
        (
            json!({"query": {"recommend": {"positive": [[1]]}}}),
            ErrorKind::InvalidArgument,
            "expected dim",
        ),
        (json!({"prefetch": {"query": [1, 2]}}), ErrorKind::InvalidArgument, "query is needed"),
        (
            json!({"prefetch": {"query": [1]}, "query": [1, 2]}),
            ErrorKind::InvalidArgument,
            "prefetch[0]",
        ),
        (json!({"query": {"fusion": "rrf"}}), ErrorKind::InvalidArgument, "needs prefetches"),
        (
            json!({"prefetch": {"query": [1, 2]}, "query": {"rrf": {"weights": [1, 2]}}}),
            ErrorKind::InvalidArgument,
            "one for each",
        ),
        (
            json!({"prefetch": {"query": [1, 2], "prefetch": {"query": [1]}}, "query": [1, 2]}),
            ErrorKind::InvalidArgument,
            "prefetch[0]: prefetch[0]",
        ),
    ] {
        let error = kind(query.clone());
        assert_eq!(error.kind(), expected, "{query}: {error}");
        assert!(error.message().contains(words), "{query}: {error}");
    }
    let batch = json!({"searches": [{"query": [1, 2]}, {"query": [1]}]});
    assert!(bench.read(query::batch, "c", &batch).unwrap_err().message().contains("searches[1]"));
    let large = json!({"points": [{"id": 1u64 << 63, "vector": [1, 2]}]});
    assert!(bench.write(update::upsert, "c", &large).unwrap_err().message().contains("too large"));
    let again = json!({"vectors": {"size": 2, "distance": "Dot"}});
    assert_eq!(
        bench.write(collections::create, "c", &again).unwrap_err().kind(),
        ErrorKind::AlreadyExists
    );
    let absent = bench.write(update::upsert, "absent", &json!({"points": []})).unwrap_err();
    assert_eq!(absent.kind(), ErrorKind::NotFound);
}

#[test]
fn points_and_settings_survive_a_restart() {
    let mut bench = Bench::new();
    three(&bench, "Euclid");
    bench
        .write(collections::index, "c", &json!({"field_name": "n", "field_schema": "integer"}))
        .unwrap();
    bench.write(collections::update, "c", &json!({"metadata": {"a": 1, "b": 2}})).unwrap();
    bench.write(collections::update, "c", &json!({"metadata": {"a": null, "c": 3}})).unwrap();
    // Members of other interfaces stay.
    bench
        .registry()
        .get("c")
        .unwrap()
        .change_extra(|extra| {
            extra["images"] = json!({"kind": "photo"});
            Ok(())
        })
        .unwrap();
    bench
        .write(
            collections::index,
            "c",
            &json!({"field_name": "m", "field_schema": {"type": "keyword"}}),
        )
        .unwrap();
    let alias =
        json!({"actions": [{"create_alias": {"alias_name": "other", "collection_name": "c"}}]});
    bench.write(collections::change_aliases, "", &alias).unwrap();
    bench.write(update::set_payload, "c", &json!({"payload": {"x": 1}, "points": [UUID]})).unwrap();
    bench
        .write(
            update::delete,
            "c",
            &json!({"filter": {"must": [{"key": "n", "match": {"value": 2}}]}}),
        )
        .unwrap();
    bench.restart();
    let info = bench.read(describe::describe, "other", &Value::Null).unwrap();
    assert_eq!((&info["points_count"], &info["status"]), (&json!(2), &json!("green")));
    assert_eq!(info["config"]["params"]["vectors"], json!({"size": 2, "distance": "Euclid"}));
    assert_eq!(info["config"]["metadata"], json!({"b": 2, "c": 3}));
    assert_eq!(info["payload_schema"]["n"]["data_type"], "integer");
    assert_eq!(info["payload_schema"]["m"]["data_type"], "keyword");
    assert_eq!(
        bench.registry().get("c").unwrap().settings().extra["images"],
        json!({"kind": "photo"})
    );
    let page = bench.read(retrieve::scroll, "c", &json!({"limit": 1})).unwrap();
    assert_eq!((&page["points"][0]["id"], &page["next_page_offset"]), (&json!(1), &json!(UUID)));
    let page = bench.read(retrieve::scroll, "c", &json!({"limit": 1, "offset": UUID})).unwrap();
    assert_eq!(
        (&page["points"][0]["payload"], &page["next_page_offset"]),
        (&json!({"x": 1}), &Value::Null)
    );
    assert_eq!(bench.read(retrieve::count, "c", &json!({})).unwrap(), json!({"count": 2}));
    let facet = |request: Value| bench.read(retrieve::facet, "c", &request);
    assert_eq!(facet(json!({"key": "x"})).unwrap(), json!({"hits": [{"value": 1, "count": 1}]}));
    assert_eq!(facet(json!({"key": "none", "exact": true})).unwrap(), json!({"hits": []}));
    for (wrong, word) in [
        (json!({"key": ""}), "key"),
        (json!({"key": "x", "limit": 0}), "limit"),
        (json!({}), "key"),
    ] {
        let error = facet(wrong).unwrap_err();
        assert!(
            error.kind() == ErrorKind::InvalidArgument && error.message().contains(word),
            "{error}"
        );
    }
}

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
fn examples_are_bounded_and_read_together() {
    let bench = Bench::new();
    three(&bench, "Cosine");
    let recommend = |count: usize| json!({"query": {"recommend": {"positive": vec![1; count], "negative": [[0, 1], 2]}}});
    assert_eq!(bench.ids("c", &recommend(1022)), [json!(UUID)]);
    let error = bench.read(query::query, "c", &recommend(1023)).unwrap_err();
    assert!(
        error.kind() == ErrorKind::InvalidArgument && error.message().contains("1024"),
        "{error}"
    );
    let mixed = json!({"query": {"recommend": {"positive": [1, 77, 2]}}});
    assert_eq!(bench.read(query::query, "c", &mixed).unwrap_err().kind(), ErrorKind::NotFound);
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
fn hints_without_effect_are_warned_of() {
    let bench = Bench::new();
    let create = json!({"vectors": {"size": 2, "distance": "Dot", "on_disk": true}, "hnsw_config": {"m": 32},
                        "shard_number": 3, "on_disk_payload": true,
                        "quantization_config": {"scalar": {"type": "int8"}}});
    bench.write(collections::create, "c", &create).unwrap();
    bench
        .write(collections::update, "c", &json!({"optimizers_config": {"indexing_threshold": 0}}))
        .unwrap();
    bench
        .write(collections::index, "c", &json!({"field_name": "n", "field_schema": "integer"}))
        .unwrap();
    let described = bench.read(describe::describe, "c", &Value::Null).unwrap();
    let config = &described["config"];
    assert_eq!(
        (&config["hnsw_config"]["m"], &config["quantization_config"]),
        (&json!(16), &Value::Null)
    );
    assert!(config["optimizer_config"].get("indexing_threshold").is_none(), "{config}");
    assert_eq!(
        (&config["params"]["shard_number"], &config["wal_config"]["wal_capacity_mb"]),
        (&json!(1), &json!(32))
    );
    let messages = messages(&described);
    for name in ["hnsw_config", "shard_number", "quantization_config", "optimizers_config"] {
        assert!(messages.iter().any(|message| message.contains(name)), "{name}: {messages:?}");
    }
    assert_eq!(messages.len(), 4, "what holds is not warned of: {messages:?}");
}

#[test]
fn an_indexed_field_counts_its_points() {
    let bench = Bench::new();
    three(&bench, "Dot");
    bench
        .write(collections::index, "c", &json!({"field_name": "n", "field_schema": "integer"}))
        .unwrap();
    let points = |bench: &Bench| {
        bench.read(describe::describe, "c", &Value::Null).unwrap()["payload_schema"]["n"].clone()
    };
    assert_eq!(points(&bench), json!({"data_type": "integer", "points": 2}), "and no params");
    bench.registry().get("c").unwrap().collection().flush().unwrap();
    assert_eq!(points(&bench)["points"], 2);
    bench.write(update::delete, "c", &json!({"points": [1]})).unwrap();
    assert_eq!(points(&bench)["points"], 1);
}

#[test]
fn filters_and_facets_are_equal_before_and_after_a_flush() {
    let bench = Bench::new();
    bench.create("c", 2, "Dot");
    let points = json!({"points": [
        {"id": 1, "vector": [1, 1], "payload": {"d": "2024-06-15T12:00:00Z", "t": ["x", "y"], "n": null}},
        {"id": 2, "vector": [1, 1], "payload": {"d": "2023-01-01", "t": "x", "n": 2}},
        {"id": 3, "vector": [1, 1], "payload": {"t": [], "n": [1, null], "long": "z".repeat(600)}},
        {"id": UUID, "vector": [1, 1], "payload": {"n": 1.5, "t": ["y"]}},
    ]});
    bench.write(update::upsert, "c", &points).unwrap();
    let is = |key: &str, value: Value| json!({"key": key, "match": {"value": value}});
    let filters = [
        (json!({"key": "d", "range": {"gte": "2024-01-01"}}), 1),
        (json!({"key": "d", "range": {"lt": "2024-01-01T00:00:00Z"}}), 1),
        (json!({"key": "t", "values_count": {"gte": 2}}), 1),
        (json!({"key": "t", "values_count": {"lt": 1}}), 1),
        (json!({"is_null": {"key": "n"}}), 2),
        (json!({"key": "n", "is_null": false}), 2),
        (json!({"is_empty": {"key": "d"}}), 2),
        (json!({"key": "n", "range": {"gt": 1, "lte": 2}}), 2),
        (json!({"key": "t", "match": {"except": ["x"]}}), 2),
        (is("long", json!("z".repeat(600))), 1),
        (is("long", json!("y".repeat(600))), 0),
        (
            json!({"min_should": {"conditions": [is("t", json!("x")), is("t", json!("y"))], "min_count": 2}}),
            1,
        ),
        (json!({"must": [is("t", json!("x")), {"has_id": [2, UUID]}]}), 1),
    ];
    let check = || {
        for (filter, expected) in &filters {
            let request = json!({"filter": {"must": [filter]}});
            let counted = bench.read(retrieve::count, "c", &request).unwrap();
            assert_eq!(counted, json!({"count": expected}), "{filter}");
        }
        let facet = bench.read(retrieve::facet, "c", &json!({"key": "t"})).unwrap();
        assert_eq!(facet["hits"], json!([{"value": "x", "count": 2}, {"value": "y", "count": 2}]));
        let some = json!({"key": "n", "filter": {"must": [is("t", json!("x"))]}});
        let facet = bench.read(retrieve::facet, "c", &some).unwrap();
        assert_eq!(facet["hits"], json!([{"value": 2, "count": 1}]));
    };
    check();
    bench.registry().get("c").unwrap().collection().flush().unwrap();
    check();
    let described = bench.read(describe::describe, "c", &Value::Null).unwrap();
    let schema = |key: &str| described["payload_schema"][key].clone();
    assert_eq!(schema("d"), json!({"data_type": "datetime", "points": 2}));
    assert_eq!(schema("t"), json!({"data_type": "keyword", "points": 3}));
    assert_eq!(schema("n"), json!({"data_type": "float", "points": 3}));
    assert_eq!(messages(&described), Vec::<&str>::new());
    assert!(described["payload_schema"].get("__millpond_id").is_none(), "{described}");
    let stats = bench.registry().stats().filters;
    assert!(stats.indexed >= 10 && stats.verified >= 1, "{stats:?}");
}

/// Points on a line, each with a number, a date, a colour and a shelf.
fn shelves(bench: &Bench) {
    bench.create("shelves", 2, "Euclid");
    let point = |id: i64| {
        let shelf =
            if id == 7 { json!(["a", "b"]) } else { json!(["a", "b", "c"][id as usize % 3]) };
        let n = if id % 4 == 0 { json!(-id) } else { json!(id as f64 / 2.0) };
        let day = format!("2024-06-{:02}", 30 - id);
        json!({"id": id, "vector": [id, 0], "payload": {"shelf": shelf, "n": n, "day": day, "even": id % 2 == 0}})
    };
    let points: Vec<Value> = (1..=12).map(point).collect();
    bench.write(update::upsert, "shelves", &json!({ "points": points })).unwrap();
}

/// Runs `check` on the memtable, then on a segment, then on both.
fn on_every_level(check: impl Fn(&Bench)) {
    let bench = Bench::new();
    shelves(&bench);
    check(&bench);
    let flush = || bench.registry().get("shelves").unwrap().collection().flush().unwrap();
    flush();
    check(&bench);
    let again = json!({"id": 12, "vector": [12, 0],
                       "payload": {"shelf": "a", "n": -12, "day": "2024-06-18", "even": true}});
    bench.write(update::upsert, "shelves", &json!({ "points": [again] })).unwrap();
    check(&bench);
    flush();
    check(&bench);
}

#[test]
fn points_are_ordered_by_numbers_and_dates() {
    let page = |bench: &Bench, body: Value| bench.read(retrieve::scroll, "shelves", &body).unwrap();
    let list = |page: &Value, member: &str| -> Vec<Value> {
        page["points"].as_array().unwrap().iter().map(|point| point[member].clone()).collect()
    };
    on_every_level(|bench| {
        let first = page(bench, json!({"order_by": "n", "limit": 4, "with_payload": false}));
        assert_eq!(list(&first, "id"), [json!(12), json!(8), json!(4), json!(1)]);
        assert_eq!(list(&first, "order_value"), [json!(-12), json!(-8), json!(-4), json!(0.5)]);
        assert_eq!(first["next_page_offset"], Value::Null);
        let order = json!({"key": "n", "direction": "desc", "start_from": 3});
        let even = json!({"must": [{"key": "even", "match": {"value": true}}]});
        let last = page(bench, json!({"order_by": order, "limit": 3, "filter": even}));
        assert_eq!(list(&last, "id"), [json!(6), json!(2), json!(4)]);
        let order = json!({"key": "day", "start_from": "2024-06-20T00:00:00Z"});
        let days = page(bench, json!({"order_by": order, "limit": 3}));
        assert_eq!(list(&days, "id"), [json!(10), json!(9), json!(8)]);
        assert_eq!(list(&days, "order_value")[0], json!(1_718_841_600_000_000_i64));
        for key in ["shelf", "none"] {
            assert!(list(&page(bench, json!({ "order_by": key })), "id").is_empty(), "{key}");
        }
        let query = json!({"query": {"order_by": {"key": "n", "direction": "desc"}}, "limit": 2, "offset": 1});
        let found = bench.read(query::query, "shelves", &query).unwrap();
        assert_eq!(list(&found, "id"), [json!(10), json!(9)]);
        assert_eq!(list(&found, "order_value"), [json!(5.0), json!(4.5)]);
    });
    let bench = Bench::new();
    shelves(&bench);
    for (body, words) in [
        (json!({"order_by": "n", "offset": 3}), "start_from"),
        (json!({"order_by": ""}), "names no field"),
        (json!({"order_by": {"key": "n", "direction": "up"}}), "asc or desc"),
        (json!({"order_by": {"key": "n", "start_from": "soon"}}), "a number or a date"),
    ] {
        let error = bench.read(retrieve::scroll, "shelves", &body).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{body}");
        assert!(error.message().contains(words), "{error}");
    }
}

#[test]
fn hits_are_grouped_by_a_field() {
    let groups = |bench: &Bench, body: Value| -> Vec<(Value, Vec<Value>)> {
        let found = bench.read(groups::query, "shelves", &body).unwrap();
        let group = |group: &Value| {
            let hits = group["hits"].as_array().unwrap();
            (group["id"].clone(), hits.iter().map(|hit| hit["id"].clone()).collect())
        };
        found["groups"].as_array().unwrap().iter().map(group).collect()
    };
    let of = |value: &str, ids: &[i64]| (json!(value), ids.iter().map(|id| json!(id)).collect());
    on_every_level(|bench| {
        let body = json!({"query": [0, 0], "group_by": "shelf", "group_size": 3});
        let expected: [(Value, Vec<Value>); 3] =
            [of("b", &[1, 4, 7]), of("c", &[2, 5, 8]), of("a", &[3, 6, 7])];
        assert_eq!(groups(bench, body), expected);
        // The nearest points are all of one shelf, so that the others need searches of their own.
        let near = json!({"must": [{"key": "shelf", "match": {"any": ["b", "c"]}}]});
        let body = json!({"query": [7, 0], "group_by": "shelf", "group_size": 1, "limit": 2, "filter": near});
        assert_eq!(groups(bench, body), [of("a", &[7]), of("b", &[7])]);
        let body = json!({"query": [13, 0], "group_by": "shelf", "group_size": 4, "limit": 1});
        assert_eq!(groups(bench, body), [of("a", &[12, 9, 7, 6])]);
        for key in ["even", "none"] {
            let body = json!({"query": [0, 0], "group_by": key});
            assert!(groups(bench, body).is_empty(), "{key}");
        }
    });
    let bench = Bench::new();
    shelves(&bench);
    for (body, kind, words) in [
        (json!({"query": [0, 0]}), ErrorKind::InvalidArgument, "group_by"),
        (json!({"query": [0, 0], "group_by": ""}), ErrorKind::InvalidArgument, "group_by"),
        (
            json!({"query": [0, 0], "group_by": "n", "limit": 9999}),
            ErrorKind::InvalidArgument,
            "1024 groups",
        ),
        (
            json!({"query": [0, 0], "group_by": "n", "offset": 1}),
            ErrorKind::InvalidArgument,
            "offset",
        ),
        (
            json!({"query": [0, 0], "group_by": "n", "with_lookup": "other"}),
            ErrorKind::Unimplemented,
            "with_lookup: this field",
        ),
        (
            json!({"query": {"nearest": [0, 0], "mmr": {}}, "group_by": "n"}),
            ErrorKind::Unimplemented,
            "mmr",
        ),
    ] {
        let error = bench.read(groups::query, "shelves", &body).unwrap_err();
        assert_eq!(error.kind(), kind, "{body}: {error}");
        assert!(error.message().contains(words), "{error}");
    }
}

#[test]
fn a_high_limit_returns_all_points() {
    let bench = Bench::new();
    three(&bench, "Dot");
    assert_eq!(bench.ids("c", &json!({"query": [0, 2], "limit": u64::MAX})).len(), 3);
    assert_eq!(bench.ids("c", &json!({"query": [0, 2], "limit": u64::MAX, "offset": 1})).len(), 2);
}

#[test]
fn the_hits_of_a_batch_are_bounded() {
    let bench = Bench::new();
    three(&bench, "Dot");
    let batch = |query: Value| {
        let searches = vec![json!({"query": query, "limit": 1025}); 1024];
        bench.read(query::batch, "c", &json!({ "searches": searches }))
    };
    let found = batch(json!([0, 2])).unwrap();
    assert_eq!(found.as_array().unwrap().len(), 1024, "there are three points only");
    let error = batch(json!({"order_by": "n"})).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.message().contains("1049600 hits together"), "{error}");
}

#[test]
fn uuids_match_in_every_spelling() {
    let bench = Bench::new();
    bench.create("c", 2, "Dot");
    let points = json!({"points": [{"id": 1, "vector": [1, 1], "payload": {"u": UUID.to_uppercase()}},
                                   {"id": 2, "vector": [1, 1], "payload": {"u": "other"}}]});
    bench.write(update::upsert, "c", &points).unwrap();
    let urn = format!("urn:uuid:{UUID}");
    let count = |matching: Value| {
        let filter = json!({"filter": {"must": [{"key": "u", "match": matching}]}});
        bench.read(retrieve::count, "c", &filter).unwrap()["count"].clone()
    };
    assert_eq!(count(json!({ "value": urn })), 0);
    bench
        .write(collections::index, "c", &json!({"field_name": "u", "field_schema": "uuid"}))
        .unwrap();
    assert_eq!(count(json!({ "value": urn })), 1);
    assert_eq!(count(json!({ "any": [urn, "none"] })), 1);
    assert_eq!(count(json!({ "except": [urn] })), 1);
}

#[test]
fn an_alias_is_no_name_for_a_collection() {
    let bench = Bench::new();
    bench.create("c", 2, "Dot");
    let alias = json!({"actions": [{"create_alias": {"alias_name": "a", "collection_name": "c"}}]});
    bench.write(collections::change_aliases, "", &alias).unwrap();
    let body = json!({"vectors": {"size": 2, "distance": "Dot"}});
    let kind = |name: &str| bench.write(collections::create, name, &body).unwrap_err().kind();
    assert_eq!((kind("a"), kind("c")), (ErrorKind::InvalidArgument, ErrorKind::AlreadyExists));
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
