//! Keeps local copies of stores in step with them.
//!
//! Each store has its own pace. It is listed every poll while something changes, and then half as
//! often at each step down to once a minute. It is listed at once if [`ListingRequests`] requests
//! it. A failure is logged and tried again at the same pace. The copies continue to serve. Several
//! stores are checked at the same time, so that a store that does not answer delays no other one.

mod checks;
mod first_copy;
mod follower;
mod listing_requests;
mod pace;
mod repair;
mod room;
mod slot;
mod unfinished;
mod unused;
mod usage;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use base::{Error, Result};
use lifecycle::{SourceReport, VersionPolicy};
use metrics::{KindLabels, StoreMetrics};
use os::{Pacer, Rate};
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::fetch::RunningFetches;
use crate::options::StoreOptions;
use crate::place::{StorePlace, block_on, without_secrets};
pub use first_copy::FirstCopy;
use follower::{Follower, SyncContext, SyncOutcome};
use listing_requests::ListingQueue;
pub use listing_requests::ListingRequests;
use slot::StoreSlot;
use usage::CacheUsage;

/// Time between two checks of the configuration.
const CONFIG_POLL: Duration = Duration::from_secs(1);
/// Time between two searches for copies of stores that no server follows.
const UNUSED_POLL: Duration = Duration::from_secs(3600);
/// Longest wait of a stop for the thread.
const STOP_WAIT_MAX: Duration = Duration::from_secs(10);

/// Returns true if a version of a model in a directory of models is in use, so that its files must
/// stay.
pub type InUse = Box<dyn Fn(&Path, &str, u64) -> bool + Send>;
/// Returns true if a version of a model has failed. Its copy may be damaged, and an earlier version
/// should serve.
pub type HasFailed = Box<dyn Fn(&str, u64) -> bool + Send>;
/// Returns the stores to follow.
pub type Sources = Box<dyn Fn() -> Vec<StoreSource> + Send>;

/// Stores that could not be opened, by directory of models.
pub(crate) type UnopenedStores = BTreeMap<PathBuf, UnopenedStore>;

/// A store that could not be opened.
pub(crate) struct UnopenedStore {
    /// URL without secrets.
    shown: Arc<str>,
    reason: String,
    /// Models whose names are configured.
    models: Vec<Arc<str>>,
}

/// Connections of a mirror with the server.
pub struct MirrorHooks {
    /// Stores to follow.
    pub sources: Sources,
    /// Versions whose files must stay.
    pub in_use: InUse,
    /// Failed versions. Their copies are checked, and earlier versions are copied too.
    pub has_failed: HasFailed,
    /// Called with the state of the copies when it changes.
    pub report: Box<dyn Fn(SourceReport) + Send>,
}

/// A store to copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreSource {
    /// URL of a directory of models, or of one model.
    pub url: Arc<str>,
    /// Directory of the copied models: [`crate::watched_dir`], or its parent for one model.
    pub models_dir: PathBuf,
    /// Name of the model if the URL is the directory of one.
    pub model: Option<Arc<str>>,
    /// Versions that should serve.
    pub policy: VersionPolicy,
    /// Other policies by name of the model. A model's own settings file wins over both.
    pub policies: BTreeMap<Arc<str>, VersionPolicy>,
}

/// Settings of a mirror.
#[derive(Clone, Debug)]
pub struct MirrorConfig {
    /// Directory of the copies of all stores: the directory `stores` in the directory that
    /// [`crate::watched_dir`] takes.
    pub stores_dir: PathBuf,
    /// Time for which the copies of a store stay after no server follows it any more.
    pub keep_unused: Duration,
    /// Options of all providers.
    pub options: StoreOptions,
    /// Shortest time between two listings.
    pub poll: Duration,
    /// Time for which the listing of a version without a manifest must stay the same.
    pub settle: Duration,
    /// Maximum bytes of all copies.
    pub bytes_max: u64,
    /// Rate of fetching and copying in bytes per second. 0 is unlimited.
    pub rate: u64,
}

/// Local copies of stores. One thread works on all of them.
pub struct StoreMirror {
    context: SyncContext,
    stores: MirroredStores,
}

/// The followed stores, and the connections with the server that concern all of them.
struct MirroredStores {
    slots: Vec<StoreSlot>,
    sources: Sources,
    report_to: Box<dyn Fn(SourceReport) + Send>,
    first_copy: watch::Sender<FirstCopy>,
    requests: ListingRequests,
    queue: ListingQueue,
    /// The last report, which is not repeated.
    reported: SourceReport,
}

/// A mirror that follows its stores until it is dropped or stopped.
pub struct MirrorThread {
    stop: watch::Sender<bool>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl StoreMirror {
    /// Opens the caches of `sources`. Does not connect.
    ///
    /// # Errors
    /// `InvalidArgument` for a URL that no store has, `FailedPrecondition` if another process uses
    /// a cache. Also I/O errors.
    pub fn open(config: MirrorConfig, sources: &[StoreSource]) -> Result<StoreMirror> {
        let places = sources.iter().map(|source| StorePlace::open(&source.url, &config.options));
        let places = places.collect::<Result<Vec<_>>>()?;
        StoreMirror::with_places(config, sources.iter().cloned().zip(places).collect())
    }

    /// Opens the caches of `places`, which are stores with an open client. If several sources name
    /// the same store, the first is followed.
    ///
    /// # Errors
    /// As [`StoreMirror::open`].
    pub fn with_places(
        config: MirrorConfig,
        places: Vec<(StoreSource, StorePlace)>,
    ) -> Result<StoreMirror> {
        let usage = CacheUsage::default();
        let mut slots: Vec<StoreSlot> = Vec::new();
        for (source, place) in places {
            if slots.iter().all(|other| other.source.models_dir != source.models_dir) {
                slots.push(StoreSlot::new(Follower::open(source, place, config.poll)?, &usage));
            }
        }
        let first_copy = match slots.iter().find(|slot| !slot.is_synced()) {
            Some(slot) => FirstCopy::Running(slot.label.clone()),
            None => FirstCopy::Done,
        };
        let (requests, queue) = ListingRequests::new();
        let rate = if config.rate == 0 { Rate::unlimited() } else { Rate::per_second(config.rate) };
        Ok(StoreMirror {
            context: SyncContext {
                config,
                pacer: Pacer::new(rate),
                metrics: StoreMetrics::default(),
                in_use: Box::new(|_, _, _| false),
                has_failed: Box::new(|_, _| false),
                unopened: RefCell::default(),
                usage,
                fetches: RunningFetches::default(),
            },
            stores: MirroredStores {
                slots,
                sources: Box::new(Vec::new),
                report_to: Box::new(|_| {}),
                first_copy: watch::Sender::new(first_copy),
                requests,
                queue,
                reported: SourceReport::default(),
            },
        })
    }

    /// Checks every store once, whether it is due or not. For tests.
    ///
    /// # Errors
    /// Returns the error of the first store that cannot be listed.
    pub fn sync_now(&mut self) -> Result<bool> {
        let mut pending = false;
        for at in 0..self.stores.slots.len() {
            pending |= block_on(self.sync(at))?.pending;
        }
        Ok(!pending)
    }

    /// Returns the requests for listings, which [`StoreMirror::follow`] answers.
    pub fn listing_requests(&self) -> ListingRequests {
        self.stores.requests.clone()
    }

    /// Returns the counts of bytes, listings and failures by store.
    pub fn metrics(&self) -> &StoreMetrics {
        &self.context.metrics
    }

    /// Starts the thread `store`. It makes the first copies, then follows the stores of `hooks`.
    /// Adds the metrics so far to `metrics` and continues there.
    ///
    /// # Errors
    /// `ResourceExhausted` if the thread cannot be started.
    pub fn follow(mut self, hooks: MirrorHooks, metrics: StoreMetrics) -> Result<MirrorThread> {
        for slot in &self.stores.slots {
            self.context.metrics.add_to(&metrics, &slot.label);
        }
        self.context.metrics = metrics;
        self.context.in_use = hooks.in_use;
        self.context.has_failed = hooks.has_failed;
        self.stores.sources = hooks.sources;
        self.stores.report_to = hooks.report;
        let (stop, stopped) = watch::channel(false);
        let work = move || {
            os::thread::enter_low_priority("fetching models");
            if let Err(error) = block_on(self.run(stopped)) {
                tracing::error!(%error, "models in object stores are not followed any more");
            }
        };
        let thread = os::thread::spawn("store", work)?;
        Ok(MirrorThread { stop, thread: Mutex::new(Some(thread)) })
    }

    /// Copies the first versions, then follows the stores until the mirror is stopped.
    ///
    /// # Errors
    /// The error of a first copy that can never succeed.
    async fn run(mut self, mut stopped: watch::Receiver<bool>) -> Result<()> {
        let work = async {
            self.copy_first().await?;
            self.follow_all().await;
            Ok::<(), Error>(())
        };
        tokio::select! {
            result = work => result,
            _ = stopped.wait_for(|stop| *stop) => Ok(()),
        }
    }

    /// Lists the store at this position, and copies the changes. No other check runs meanwhile.
    async fn sync(&mut self, at: usize) -> Result<SyncOutcome> {
        let StoreMirror { context, stores } = self;
        let slot = &mut stores.slots[at];
        let Some(follower) = &mut slot.follower else { return Ok(SyncOutcome::default()) };
        let result = follower.poll(context).await;
        slot.update();
        stores.note_check(context);
        result
    }
}

impl MirroredStores {
    /// Updates the metrics and reports the state of the copies after a check.
    fn note_check(&mut self, context: &SyncContext) {
        let level = |kind, bytes: u64| {
            let gauge = &context.metrics.cache_bytes;
            gauge.get_or_create(&KindLabels { kind }).set(bytes.try_into().unwrap_or(i64::MAX));
        };
        level("used", context.usage.total());
        level("max", context.config.bytes_max);
        self.report(context);
    }

    /// Reports the state of the copies if it has changed.
    fn report(&mut self, context: &SyncContext) {
        let mut errors = BTreeMap::new();
        let mut unfinished = BTreeMap::new();
        let mut unlisted = BTreeMap::new();
        for StoreSlot { label, state, .. } in &self.slots {
            errors.extend(state.errors.clone());
            unfinished.extend(state.unfinished.clone());
            unlisted.extend(state.unlisted.clone().map(|error| (label.clone(), error)));
        }
        for store in context.unopened.borrow().values() {
            errors.extend(store.models.iter().map(|model| (model.clone(), store.reason.clone())));
            unlisted.insert(store.shown.clone(), store.reason.clone());
        }
        let complete = matches!(*self.first_copy.borrow(), FirstCopy::Done);
        let report = SourceReport { complete, errors, unfinished, unlisted };
        if report != self.reported {
            self.reported = report.clone();
            (self.report_to)(report);
        }
    }

    /// Follows `sources` from now on. One that cannot be opened is logged and tried again. Of a
    /// store that is named twice, the first source counts.
    fn set_sources(&mut self, context: &SyncContext, mut sources: Vec<StoreSource>) {
        let mut dirs: BTreeSet<PathBuf> = BTreeSet::new();
        // The settings would otherwise change twice a second, and each change lists the store.
        sources.retain(|source| dirs.insert(source.models_dir.clone()));
        let is_followed = |slot: &StoreSlot| dirs.contains(&slot.source.models_dir);
        let (kept, removed): (Vec<StoreSlot>, Vec<StoreSlot>) =
            self.slots.drain(..).partition(is_followed);
        self.slots = kept;
        context.unopened.borrow_mut().retain(|dir, _| dirs.contains(dir));
        self.forget(context, &removed);
        // There may be thousands of stores, and this runs once a second.
        let dirs = self.slots.iter().map(|slot| slot.source.models_dir.clone());
        let positions: HashMap<PathBuf, usize> = dirs.zip(0..).collect();
        for source in sources {
            if let Some(&at) = positions.get(&source.models_dir) {
                self.slots[at].set_source(source);
                continue;
            }
            let opened = StorePlace::open(&source.url, &context.config.options)
                .and_then(|place| Follower::open(source.clone(), place, context.config.poll));
            match opened {
                Ok(follower) => {
                    context.unopened.borrow_mut().remove(&source.models_dir);
                    self.slots.push(StoreSlot::new(follower, &context.usage));
                }
                Err(error) => context.note_unopened(source, &error),
            }
        }
        // A model that is served from another place now must not show the error of its store.
        self.report(context);
    }

    /// Removes the metrics and the bytes of stores that are not followed any more.
    fn forget(&self, context: &SyncContext, removed: &[StoreSlot]) {
        for StoreSlot { source, label, .. } in removed {
            context.usage.remove(&source.models_dir);
            // The same URL can be followed for another model.
            if self.slots.iter().all(|slot| slot.label != *label) {
                context.metrics.forget_store(label);
            }
        }
    }
}

impl SyncContext {
    /// Notes the error of a store that cannot be opened. Logs the first one, not one every second.
    fn note_unopened(&self, source: StoreSource, error: &Error) {
        let shown: Arc<str> = without_secrets(&source.url).into();
        let store = UnopenedStore {
            shown: shown.clone(),
            reason: format!("its object store cannot be opened: {}", error.message()),
            models: source.model.iter().chain(source.policies.keys()).cloned().collect(),
        };
        if self.unopened.borrow_mut().insert(source.models_dir, store).is_none() {
            tracing::error!(store = %shown, %error, "a store cannot be opened");
        }
    }
}

impl MirrorThread {
    /// Stops following and waits for the thread, for at most 10 s. A call into a file system that
    /// does not answer cannot be stopped. The fetched part of a version is kept.
    pub fn stop(&self) {
        self.stop_until(Instant::now() + STOP_WAIT_MAX);
    }

    fn stop_until(&self, deadline: Instant) {
        // Fails only if the thread has ended.
        let _ = self.stop.send(true);
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            os::thread::join_until(thread, deadline);
        }
    }
}

impl Drop for MirrorThread {
    fn drop(&mut self) {
        self.stop();
    }
}

impl StoreSource {
    /// Describes the store at `url`, which `dir` mirrors. `model` is the name of the model if the
    /// URL is the directory of one. Then `dir` is that model's directory.
    pub fn new(url: &Arc<str>, dir: &Path, model: Option<Arc<str>>) -> StoreSource {
        let models_dir = if model.is_some() { dir.parent().unwrap_or(dir) } else { dir };
        StoreSource {
            url: url.clone(),
            models_dir: models_dir.to_owned(),
            model,
            policy: VersionPolicy::default(),
            policies: BTreeMap::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_waits_for_a_limit() {
        // A file system that does not answer before the end of the test.
        let (end, ending) = std::sync::mpsc::channel::<()>();
        let call = move || {
            let _ = ending.recv();
        };
        let thread = os::thread::spawn("store", call).unwrap();
        let stop = watch::channel(false).0;
        let mirror = MirrorThread { stop, thread: Mutex::new(Some(thread)) };
        mirror.stop_until(Instant::now() + Duration::from_millis(20));
        assert!(mirror.thread.lock().is_none());
        drop(end);
    }

    fn config() -> MirrorConfig {
        MirrorConfig {
            stores_dir: PathBuf::new(),
            keep_unused: Duration::MAX,
            options: StoreOptions::default(),
            poll: Duration::from_secs(3600),
            settle: Duration::ZERO,
            bytes_max: u64::MAX,
            rate: 0,
        }
    }

    #[test]
    fn a_check_of_a_store_reads_no_copies_of_others() {
        let dir = tempfile::tempdir().unwrap();
        let places = ["a", "b"].map(|name| {
            let url: Arc<str> = format!("s3://b/{name}").into();
            let memory = Arc::new(object_store::memory::InMemory::new());
            let source = StoreSource::new(&url, &dir.path().join(name).join("models"), None);
            (source, StorePlace::new(memory, name, &url))
        });
        let mut mirror = StoreMirror::with_places(config(), Vec::from(places)).unwrap();
        let copy = dir.path().join("b/models/m/1");
        std::fs::create_dir_all(&copy).unwrap();
        std::fs::write(copy.join("model.onnx"), [0; 100]).unwrap();
        for (at, used) in [(0, 0), (1, 100), (0, 100)] {
            block_on(mirror.sync(at)).unwrap();
            let gauge = &mirror.metrics().cache_bytes;
            assert_eq!(gauge.get_or_create(&KindLabels { kind: "used" }).get(), used);
        }
    }

    #[test]
    fn the_first_source_of_a_store_counts() {
        let dir = tempfile::tempdir().unwrap();
        let source = |url: &str| StoreSource::new(&url.into(), &dir.path().join("c/models"), None);
        let first = source("s3://b/models");
        let memory = Arc::new(object_store::memory::InMemory::new());
        let place = StorePlace::new(memory, "models", "s3://b/models");
        let mut mirror = StoreMirror::with_places(config(), vec![(first.clone(), place)]).unwrap();
        let StoreMirror { context, stores } = &mut mirror;
        let next = |stores: &MirroredStores| stores.slots[0].follower.as_ref().unwrap().next;
        let before = next(stores);
        stores.set_sources(context, vec![first.clone(), source("s3://b/models/")]);
        assert_eq!(stores.slots.len(), 1);
        // A change of the source would list the store at once.
        assert_eq!(stores.slots[0].source, first);
        assert_eq!(next(stores), before);
    }
}
