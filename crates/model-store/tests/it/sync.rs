//! Copies of models from a store.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use base::ErrorKind;
use base::units::MIB;
use engine::fake::publish::{FakeParameter, publish};
use engine::layout::{Artifact, MANIFEST_NAME};
use lifecycle::{SourceReport, VersionPolicy};
use millpond_model_store::{
    FirstCopy, ListingRequests, ManifestDiff, MirrorConfig, MirrorHooks, MirrorThread, StoreMirror,
    StoreOptions, StorePlace, StoreSource,
};
use object_store::{ObjectStore, ObjectStoreExt};
use os::Rate;

use crate::faulty::FaultyStore;

mod refused;
mod repairs;
mod silent;
mod unused;

const DAY: Duration = Duration::from_secs(86_400);

/// A store, and the directory of its copies.
struct Setup {
    store: Arc<FaultyStore>,
    dir: tempfile::TempDir,
}

impl Setup {
    fn new() -> Setup {
        Setup { store: FaultyStore::new(), dir: tempfile::tempdir().unwrap() }
    }

    fn place(&self, prefix: &str) -> StorePlace {
        let objects: Arc<dyn ObjectStore> = self.store.clone();
        StorePlace::new(objects, prefix, &format!("s3://b/{prefix}"))
    }

    fn mirror(&self) -> StoreMirror {
        self.mirror_with(u64::MAX, VersionPolicy::Latest(1))
    }

    fn mirror_with(&self, bytes_max: u64, policy: VersionPolicy) -> StoreMirror {
        let poll = Duration::from_millis(1);
        self.open(MirrorConfig { bytes_max, ..config(poll) }, policy)
    }

    fn polling(&self, poll: Duration) -> StoreMirror {
        self.open(config(poll), VersionPolicy::Latest(1))
    }

    fn open(&self, config: MirrorConfig, policy: VersionPolicy) -> StoreMirror {
        let source = StoreSource {
            policy,
            ..StoreSource::new(&"s3://b/models".into(), &self.dir.path().join("c/models"), None)
        };
        StoreMirror::with_places(config, vec![(source, self.place("models"))]).unwrap()
    }

    /// Publishes a version with one parameter of a mebibyte for each of `seeds`, and uploads it.
    fn publish(&self, model: &str, version: u64, seeds: &[u8]) -> PathBuf {
        let local = self.dir.path().join(format!("local-{model}-{version}"));
        let parameter = |(at, seed): (usize, &u8)| {
            let values = vec![f32::from(*seed); (MIB / 4) as usize];
            FakeParameter::floats(&format!("p{at}"), &[values.len()], &values)
        };
        let parameters: Vec<_> = seeds.iter().enumerate().map(parameter).collect();
        publish(&local, &format!("graph {version}"), &parameters).unwrap();
        let place = self.place(&format!("models/{model}"));
        let never = tokio::sync::watch::channel(false).1;
        let rate = Rate::unlimited();
        millpond_model_store::upload(&place, &local, Some(version), rate, &mut |_| {}, never)
            .unwrap();
        local
    }

    fn put(&self, key: &str, content: &'static str) {
        self.run(async { drop(self.store.inner.put(&key.into(), content.into()).await.unwrap()) });
    }

    fn delete(&self, key: &str) {
        self.run(async { self.store.inner.delete(&key.into()).await.unwrap() });
    }

    fn run<T>(&self, work: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(work)
    }

    fn copy(&self, path: &str) -> PathBuf {
        self.dir.path().join("c/models").join(path)
    }

    fn reset(&self) {
        self.store.bytes.store(0, Ordering::SeqCst);
        self.store.gets.store(0, Ordering::SeqCst);
    }
}

/// A mirror whose thread runs.
struct FollowedStore {
    thread: MirrorThread,
    requests: ListingRequests,
}

impl FollowedStore {
    fn start(mirror: StoreMirror, hooks: MirrorHooks, counts: &metrics::StoreMetrics) -> Self {
        let requests = mirror.listing_requests();
        FollowedStore { thread: mirror.follow(hooks, counts.clone()).unwrap(), requests }
    }

    /// Lists the store on the thread.
    fn list(&self) {
        assert!(self.try_list());
    }

    /// Returns true if the thread has listed the store.
    fn try_list(&self) -> bool {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(self.requests.list(Duration::from_secs(60)))
    }
}

fn config(poll: Duration) -> MirrorConfig {
    MirrorConfig {
        stores_dir: PathBuf::new(),
        keep_unused: DAY,
        options: StoreOptions::default(),
        poll,
        settle: Duration::ZERO,
        bytes_max: u64::MAX,
        rate: 0,
    }
}

/// Asserts that two published versions have the same bytes.
fn assert_same(one: &Path, other: &Path) {
    let (left, right) = (Artifact::open(one).unwrap(), Artifact::open(other).unwrap());
    assert_eq!(left.manifest, right.manifest);
    let read = |path: Option<PathBuf>| std::fs::read(path.unwrap()).unwrap();
    assert!(read(left.weights()) == read(right.weights()), "the weights differ");
}

#[test]
fn a_new_version_fetches_only_changed_tensors() {
    let setup = Setup::new();
    let mut mirror = setup.mirror();
    assert!(matches!(*mirror.first_copy().borrow(), FirstCopy::Running(_)));
    let seeds: Vec<u8> = (0..20).collect();
    let local = setup.publish("m", 1, &seeds);
    mirror.copy_first_now().unwrap();
    assert!(matches!(*mirror.first_copy().borrow(), FirstCopy::Done));
    assert_same(&local, &setup.copy("m/1"));

    let mut changed = seeds.clone();
    changed[3] = 100;
    changed[17] = 101;
    let cached = Artifact::open(&local).unwrap().manifest;
    let local = setup.publish("m", 2, &changed);
    let wanted = setup.place("models/m/2").manifest().unwrap();
    let estimate = ManifestDiff::new(&cached, &wanted).fetch;
    setup.reset();
    let labels = metrics::StoreLabels { store: "s3://b/models".into() };
    let received = mirror.metrics().fetched_bytes.get_or_create_owned(&labels);
    let before = received.get();
    assert!(mirror.sync_now().unwrap());
    assert_eq!(received.get() - before, estimate.bytes);
    let reused = mirror.metrics().reused_bytes.get_or_create_owned(&labels).get();
    assert_eq!(reused, estimate.reused_bytes);
    assert_eq!(setup.store.bytes.load(Ordering::SeqCst), estimate.bytes);
    assert_eq!(setup.store.gets.load(Ordering::SeqCst), estimate.requests);
    assert_same(&local, &setup.copy("m/2"));
    let (fetched, whole) = (setup.store.bytes.load(Ordering::SeqCst), 20 * MIB);
    assert!(fetched < whole * 12 / 100, "{fetched} of {whole} bytes for 10 % of the tensors");
    // Unchanged objects are not read again.
    setup.reset();
    assert!(mirror.sync_now().unwrap());
    assert_eq!(setup.store.gets.load(Ordering::SeqCst), 0);
}

#[test]
fn a_store_that_is_named_twice_is_listed_once() {
    let setup = Setup::new();
    setup.publish("m", 1, &[1]);
    let source = sources_of(&setup)().remove(0);
    let places = vec![(source.clone(), setup.place("models")), (source, setup.place("models"))];
    let mut mirror = StoreMirror::with_places(config(Duration::from_millis(1)), places).unwrap();
    let before = setup.store.lists.load(Ordering::SeqCst);
    assert!(mirror.sync_now().unwrap());
    assert_eq!(setup.store.lists.load(Ordering::SeqCst), before + 1);
    assert!(setup.copy("m/1").exists());
}

#[test]
fn an_interrupted_fetch_continues() {
    let setup = Setup::new();
    let seeds: Vec<u8> = (0..40).collect();
    let local = setup.publish("m", 1, &seeds);
    setup.reset();
    // The manifest, the graph and two of five parts arrive.
    setup.store.gets_max.store(4, Ordering::SeqCst);
    let mut mirror = setup.mirror();
    assert!(!mirror.sync_now().unwrap());
    assert!(!setup.copy("m/1").exists(), "half a version is not visible");
    drop(mirror);

    setup.reset();
    setup.store.gets_max.store(u64::MAX, Ordering::SeqCst);
    let mut mirror = setup.mirror();
    assert!(mirror.sync_now().unwrap());
    assert_same(&local, &setup.copy("m/1"));
    let fetched = setup.store.bytes.load(Ordering::SeqCst);
    assert!(fetched < 25 * MIB, "{fetched} bytes after 16 MiB of 40 had arrived");
}

/// The process was killed after the version had been moved to the models, and the copy was removed.
#[test]
fn a_journal_without_its_files_is_not_used() {
    let setup = Setup::new();
    setup.put("models/m/1/model.onnx", "graph");
    let mut mirror = setup.mirror();
    while !mirror.sync_now().unwrap() {}
    drop(mirror);
    let cache = setup.dir.path().join("c");
    let fingerprint = std::fs::read_to_string(cache.join("records/m/1")).unwrap();
    std::fs::create_dir_all(cache.join("staging/m")).unwrap();
    let journal = format!("{fingerprint}\n0 5 model.onnx\n");
    std::fs::write(cache.join("staging/m/1.journal"), journal).unwrap();
    std::fs::remove_dir_all(setup.copy("m/1")).unwrap();
    let mut mirror = setup.mirror();
    while !mirror.sync_now().unwrap() {}
    assert_eq!(std::fs::read(setup.copy("m/1/model.onnx")).unwrap(), b"graph");
}

#[test]
fn a_version_is_complete_by_its_manifest() {
    let setup = Setup::new();
    let seeds = [1, 2];
    setup.publish("m", 1, &seeds);
    let local = setup.publish("m", 2, &seeds);
    let manifest = std::fs::read(local.join(MANIFEST_NAME)).unwrap();
    setup.delete("models/m/2/millpond.json");
    let mut mirror = setup.mirror();
    assert!(mirror.sync_now().unwrap());
    assert!(setup.copy("m/1").exists() && !setup.copy("m/2").exists());
    let manifest: &'static str = String::from_utf8(manifest).unwrap().leak();
    setup.put("models/m/2/millpond.json", manifest);
    setup.delete("models/m/2/weights.bin");
    assert!(mirror.sync_now().unwrap());
    assert!(!setup.copy("m/2").exists(), "a file of the manifest is missing");
}

#[test]
fn wrong_bytes_never_serve() {
    let setup = Setup::new();
    setup.publish("m", 1, &[1]);
    let local = setup.publish("m", 2, &[2]);
    let mut weights = std::fs::read(local.join("weights.bin")).unwrap();
    weights[5] ^= 1;
    setup.run(async {
        drop(setup.store.inner.put(&"models/m/2/weights.bin".into(), weights.into()).await);
    });
    let mut mirror = setup.mirror();
    assert!(mirror.sync_now().unwrap(), "nothing is left to do: it can never be had");
    assert!(setup.copy("m/1").exists() && !setup.copy("m/2").exists());
    assert!(mirror.metrics().failures.get_or_create(&failure("fetch")).get() == 1);
    setup.reset();
    mirror.sync_now().unwrap();
    assert_eq!(setup.store.gets.load(Ordering::SeqCst), 0, "it is not fetched again");
}

fn failure(kind: &'static str) -> metrics::StoreWorkLabels {
    metrics::StoreWorkLabels { store: "s3://b/models".into(), kind }
}

#[test]
fn other_layouts_wait_for_a_second_listing() {
    let setup = Setup::new();
    setup.put("models/m/1/model.onnx", "graph");
    setup.put("models/m/millpond.toml", "versions = \"all\"");
    let mut mirror = setup.mirror();
    assert!(!mirror.sync_now().unwrap());
    assert!(!setup.copy("m/1").exists());
    setup.put("models/m/1/model.onnx.data", "weights");
    assert!(!mirror.sync_now().unwrap(), "it changed between the two");
    assert!(mirror.sync_now().unwrap());
    assert_eq!(std::fs::read(setup.copy("m/1/model.onnx.data")).unwrap(), b"weights");
    assert!(setup.copy("m/millpond.toml").exists());
    // The settings beside the versions choose the versions.
    setup.put("models/m/2/model.onnx", "graph");
    while !mirror.sync_now().unwrap() {}
    assert!(setup.copy("m/1").exists() && setup.copy("m/2").exists());
}

/// The copy would have a part of each of the two files.
#[test]
fn a_file_that_is_replaced_during_its_fetch_is_fetched_anew() {
    // More than one request reads.
    const BYTES: usize = (8 << 20) + 5;
    let setup = Setup::new();
    let key = object_store::path::Path::from("models/m/1/model.onnx");
    let content = |byte: u8| object_store::PutPayload::from(vec![byte; BYTES]);
    setup.run(async { drop(setup.store.inner.put(&key, content(b'a')).await.unwrap()) });
    let mut mirror = setup.mirror();
    assert!(!mirror.sync_now().unwrap(), "it waits for a second listing");
    setup.reset();
    *setup.store.replacement.lock().unwrap() = Some((1, key, content(b'b')));
    assert!(!mirror.sync_now().unwrap());
    assert!(setup.store.replacement.lock().unwrap().is_none(), "it was replaced");
    assert!(!setup.copy("m/1").exists());
    while !mirror.sync_now().unwrap() {}
    assert!(std::fs::read(setup.copy("m/1/model.onnx")).unwrap() == vec![b'b'; BYTES]);
}

/// Each store needs two listings, because its version has no manifest.
#[test]
fn first_copies_of_stores_settle_at_the_same_time() {
    let setup = Setup::new();
    let sources = ["one", "two", "three"].map(|name| {
        setup.put(&format!("{name}/1/model.onnx"), "graph");
        let url: Arc<str> = format!("s3://b/{name}").into();
        let dir = setup.dir.path().join(name).join("models").join(name);
        (StoreSource::new(&url, &dir, Some(name.into())), setup.place(name))
    });
    let config = config(Duration::from_millis(1));
    let mut mirror = StoreMirror::with_places(config, Vec::from(sources)).unwrap();
    mirror.copy_first_now().unwrap();
    let listed = setup.store.listed.lock().unwrap().clone();
    let sorted = |listed: &[String]| {
        let mut listed = listed.to_vec();
        listed.sort();
        listed
    };
    // Each store is listed before any is listed again.
    let (first, second) = listed.split_at(3);
    assert_eq!(sorted(first), ["one", "three", "two"]);
    assert_eq!(sorted(second), ["one", "three", "two"]);
    assert!(setup.dir.path().join("three/models/three/1/model.onnx").exists());
}

#[test]
fn a_first_copy_does_not_wait_for_the_poll() {
    let setup = Setup::new();
    setup.put("models/m/1/model.onnx", "graph");
    let mut mirror = setup.polling(Duration::from_secs(3600));
    mirror.copy_first_now().unwrap();
    assert!(setup.copy("m/1/model.onnx").exists());
}

#[test]
fn removed_versions_are_deleted_after_two_listings() {
    let setup = Setup::new();
    setup.publish("m", 1, &[1]);
    let mut mirror = setup.mirror();
    assert!(mirror.sync_now().unwrap());
    for file in ["millpond.json", "weights.bin", "model.fake"] {
        setup.delete(&format!("models/m/1/{file}"));
    }
    assert!(!mirror.sync_now().unwrap());
    assert!(setup.copy("m/1").exists());
    assert!(mirror.sync_now().unwrap());
    assert!(!setup.copy("m").exists());
}

#[test]
fn settings_are_removed_after_two_listings() {
    let setup = Setup::new();
    setup.publish("m", 1, &[1]);
    let key = "models/m/millpond.toml";
    setup.put(key, "versions = \"1\"");
    let requests = "models/m/warmup/one.json";
    setup.put(requests, "{}");
    let mut mirror = setup.mirror();
    assert!(mirror.sync_now().unwrap());
    setup.delete(requests);
    assert!(mirror.sync_now().unwrap());
    assert!(!setup.copy("m/warmup/one.json").exists(), "other files go at once");
    // The file is replaced in two steps, and the server lists the store in between.
    setup.delete(key);
    assert!(!mirror.sync_now().unwrap());
    assert!(setup.copy("m/millpond.toml").exists());
    setup.put(key, "versions = \"1\"");
    assert!(mirror.sync_now().unwrap());
    setup.delete(key);
    assert!(!mirror.sync_now().unwrap());
    assert!(setup.copy("m/millpond.toml").exists());
    assert!(mirror.sync_now().unwrap());
    assert!(!setup.copy("m/millpond.toml").exists());
}

#[test]
fn a_restart_ends_an_interrupted_removal() {
    let setup = Setup::new();
    setup.publish("m", 1, &[1]);
    setup.mirror().copy_first_now().unwrap();
    // The process was killed while it removed version 7.
    let left = setup.dir.path().join("c/staging/.old-m-7");
    std::fs::create_dir_all(&left).unwrap();
    std::fs::write(left.join("weights.bin"), "weights").unwrap();
    setup.store.offline.store(true, Ordering::SeqCst);
    setup.mirror().sync_now().unwrap_err();
    assert!(!left.exists());
    assert!(setup.copy("m/1/millpond.json").exists());
}

#[test]
fn copies_stay_if_the_directory_of_a_url_vanishes() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("models");
    let away = dir.path().join("away");
    let parameter = FakeParameter::floats("p", &[1], &[1.0]);
    publish(&root.join("m/1"), "graph", &[parameter]).unwrap();
    let url = format!("file://{}", root.display());
    let place = StorePlace::open(&url, &[]).unwrap();
    let source = StoreSource::new(&url.into(), &dir.path().join("c/models"), None);
    let settings = config(Duration::from_millis(1));
    let mut mirror = StoreMirror::with_places(settings, vec![(source, place)]).unwrap();
    std::fs::rename(&root, &away).unwrap();
    assert_eq!(mirror.copy_first_now().unwrap_err().kind(), ErrorKind::NotFound);

    std::fs::rename(&away, &root).unwrap();
    mirror.copy_first_now().unwrap();
    std::fs::rename(&root, &away).unwrap();
    for _ in 0..3 {
        let error = mirror.sync_now().unwrap_err();
        assert!(error.message().ends_with("check the path and its permissions"), "{error}");
    }
    std::fs::write(&root, "no directory").unwrap();
    assert_eq!(mirror.sync_now().unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert!(dir.path().join("c/models/m/1/millpond.json").exists());
    std::fs::remove_file(&root).unwrap();
    std::fs::rename(&away, &root).unwrap();
    assert!(mirror.sync_now().unwrap());
}

#[test]
fn a_restart_without_a_network_has_its_copies() {
    let setup = Setup::new();
    setup.publish("m", 1, &[1]);
    setup.mirror().copy_first_now().unwrap();
    setup.store.offline.store(true, Ordering::SeqCst);
    let mut mirror = setup.mirror();
    assert!(matches!(*mirror.first_copy().borrow(), FirstCopy::Done));
    let error = mirror.sync_now().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(setup.copy("m/1/millpond.json").exists());
    // Without a copy, the start fails with the reason.
    let other = Setup { store: setup.store.clone(), dir: tempfile::tempdir().unwrap() };
    let mut mirror = other.mirror();
    assert!(mirror.copy_first_now().unwrap_err().message().contains("broke off"));
    let state = mirror.first_copy();
    let FirstCopy::Failed(error) = state.borrow().clone() else { panic!("it has failed") };
    assert!(std::error::Error::source(&error).is_some(), "{error:?}");
}

#[test]
fn the_cache_keeps_its_limit() {
    let setup = Setup::new();
    for version in 1..=3 {
        setup.publish("m", version, &[version as u8, 10 + version as u8]);
        let mut mirror = setup.mirror_with(5 * MIB, VersionPolicy::Latest(1));
        assert!(mirror.sync_now().unwrap());
        assert!(setup.copy(&format!("m/{version}")).exists());
    }
    assert!(!setup.copy("m/1").exists(), "the least recently wanted version went");
    assert!(setup.copy("m/2").exists());
    let mut mirror = setup.mirror_with(5 * MIB, VersionPolicy::All);
    assert!(!mirror.sync_now().unwrap(), "three versions do not fit");
    assert!(setup.copy("m/3").exists() && setup.copy("m/2").exists(), "wanted versions stay");
}

#[test]
fn a_quiet_store_is_listed_once_a_minute() {
    let setup = Setup::new();
    setup.publish("m", 1, &[1]);
    let mirror = setup.mirror();
    let metrics = metrics::StoreMetrics::default();
    let hooks = MirrorHooks {
        sources: Box::new(sources_of(&setup)),
        in_use: Box::new(|_, _, _| true),
        has_failed: Box::new(|_, _| false),
        report: Box::new(|_| {}),
    };
    let thread = mirror.follow(hooks, metrics);
    let thread = thread.unwrap();
    while !setup.copy("m/1").exists() {
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_millis(700));
    thread.stop();
    // From 1 ms, the pauses double: at most ten fit 700 ms, with some that a change begins anew.
    let lists = setup.store.lists.load(Ordering::SeqCst);
    assert!(lists <= 16, "{lists} listings");
}

#[test]
fn a_request_lists_before_the_poll() {
    let setup = Setup::new();
    setup.publish("m", 1, &[1]);
    let mut mirror = setup.polling(Duration::from_secs(3600));
    mirror.copy_first_now().unwrap();
    let hooks = MirrorHooks {
        sources: Box::new(sources_of(&setup)),
        in_use: Box::new(|_, _, _| true),
        has_failed: Box::new(|_, _| false),
        report: Box::new(|_| {}),
    };
    let followed = FollowedStore::start(mirror, hooks, &metrics::StoreMetrics::default());
    let local = setup.publish("m", 2, &[1, 2]);
    followed.list();
    assert_same(&local, &setup.copy("m/2"));
    followed.thread.stop();
    assert!(!followed.try_list(), "no thread answers");
}

#[test]
fn the_state_of_a_store_ends_with_its_removal() {
    let setup = Setup::new();
    setup.publish("m", 1, &[1]);
    let mut mirror = setup.mirror();
    mirror.copy_first_now().unwrap();
    setup.store.offline.store(true, Ordering::SeqCst);
    let removed = Arc::new(AtomicBool::new(false));
    let is_removed = removed.clone();
    let stores = sources_of(&setup);
    let sources = move || if is_removed.load(Ordering::SeqCst) { Vec::new() } else { stores() };
    let (reports, reported) = mpsc::channel();
    let hooks = MirrorHooks {
        sources: Box::new(sources),
        in_use: Box::new(|_, _, _| true),
        has_failed: Box::new(|_, _| false),
        report: Box::new(move |report: SourceReport| drop(reports.send(report))),
    };
    let counts = metrics::StoreMetrics::default();
    let followed = FollowedStore::start(mirror, hooks, &counts);
    followed.list();
    let failed = reported.try_iter().last().unwrap();
    assert!(failed.errors["m"].contains("broke off"), "{failed:?}");
    let labels = metrics::StoreLabels { store: "s3://b/models".into() };
    let lists = || counts.list_time.get(&labels).is_some();
    let fails = || counts.failures.get(&failure("list")).is_some();
    assert!(lists() && fails());
    removed.store(true, Ordering::SeqCst);
    // The sources may have been read just before the first request.
    followed.list();
    followed.list();
    let last = reported.try_iter().last().unwrap();
    assert!(last.complete && last.errors.is_empty(), "{last:?}");
    assert!(!lists() && !fails());
    followed.thread.stop();
}

#[test]
fn a_store_that_cannot_be_opened_is_the_reason_of_its_model() {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("c/models/m");
    let opens = Arc::new(AtomicBool::new(false));
    let is_supported = opens.clone();
    let root = format!("file://{}", dir.path().display());
    let (reports, reported) = mpsc::channel();
    let hooks = MirrorHooks {
        sources: Box::new(move || {
            let is_supported = is_supported.load(Ordering::SeqCst);
            let url = if is_supported { root.as_str() } else { "ftp://host/m" };
            vec![StoreSource::new(&url.into(), &model, Some("m".into()))]
        }),
        in_use: Box::new(|_, _, _| true),
        has_failed: Box::new(|_, _| false),
        report: Box::new(move |report: SourceReport| drop(reports.send(report))),
    };
    let mirror = StoreMirror::with_places(config(Duration::from_millis(1)), Vec::new()).unwrap();
    let followed = FollowedStore::start(mirror, hooks, &metrics::StoreMetrics::default());
    followed.list();
    let failed = reported.try_iter().last().unwrap();
    assert!(failed.errors["m"].starts_with("its object store cannot be opened: ftp://host/m: "));
    // No copy has failed.
    assert_eq!(failed.unlisted["ftp://host/m"], failed.errors["m"]);
    opens.store(true, Ordering::SeqCst);
    followed.list();
    followed.list();
    let last = reported.try_iter().last().unwrap();
    assert!(last.errors.is_empty() && last.unlisted.is_empty(), "{last:?}");
    followed.thread.stop();
}

/// Returns the report of a mirror once a listing has failed.
fn report_in_an_outage(setup: &Setup, mirror: StoreMirror) -> SourceReport {
    let reports = Arc::new(std::sync::Mutex::new(Vec::new()));
    let seen = reports.clone();
    let hooks = MirrorHooks {
        sources: Box::new(sources_of(setup)),
        in_use: Box::new(|_, _, _| true),
        has_failed: Box::new(|_, _| false),
        report: Box::new(move |report| seen.lock().unwrap().push(report)),
    };
    let followed = FollowedStore::start(mirror, hooks, &metrics::StoreMetrics::default());
    followed.list();
    setup.store.offline.store(true, Ordering::SeqCst);
    followed.list();
    followed.thread.stop();
    let reports = reports.lock().unwrap();
    reports.last().unwrap().clone()
}

#[test]
fn an_outage_is_no_problem_of_models_without_a_version() {
    let setup = Setup::new();
    setup.publish("m", 1, &[1]);
    // An upload that has not ended.
    setup.put("models/upload/1/weights.bin", "weights");
    let mut mirror = setup.polling(Duration::from_secs(3600));
    mirror.copy_first_now().unwrap();
    assert!(setup.copy("upload").exists());
    let report = report_in_an_outage(&setup, mirror);
    assert_eq!(report.errors.keys().map(|model| &**model).collect::<Vec<_>>(), ["m"]);
    assert_eq!(report.unlisted.keys().map(|url| &**url).collect::<Vec<_>>(), ["s3://b/models"]);
    assert!(report.unfinished["upload"].starts_with("version 1 is not complete in the store"));
}

fn sources_of(setup: &Setup) -> impl Fn() -> Vec<StoreSource> + Send + 'static {
    let dir = setup.dir.path().join("c/models");
    move || vec![StoreSource::new(&"s3://b/models".into(), &dir, None)]
}
