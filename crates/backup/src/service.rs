//! The thread that works on backups: takes one request after the other, and makes the backups of
//! the schedule.
//!
//! One thread does all work on the store, so that a server's own backups and removals never meet.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use base::{Error, ErrorKind, Result};
use chrono::Utc;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TrySendError, bounded};
use metrics::{BackupMetrics, BackupWorkLabels, KindLabels, Metrics};
use model_store::block_on;
use os::{Pacer, Rate};
use parking_lot::Mutex;
use search::registry::{CollectionSettings, ListedState, NamedCollection, Registry, check_name};
use serde::Serialize;
use serde_json::Value;
use tokio::sync::oneshot;

use crate::create::{BackupExtent, BackupReport, create};
use crate::list::{BackupId, BackupList};
use crate::policy::RetentionPolicy;
use crate::prune::{delete, prune};
use crate::restore::{RestoreTarget, restore};
use crate::store::BackupStore;
use crate::transfer::{BackupContext, BackupProgress};
use crate::verify::verify;

/// Maximum requests that wait for the thread.
const WAITING_MAX: usize = 16;
/// Longest time from the start to the first look for collections whose backup is due.
const FIRST_LOOK: Duration = Duration::from_secs(600);
/// Finished requests that are remembered.
const FINISHED_MAX: usize = 64;
/// Retry delay for a refused request.
const RETRY_AFTER: Duration = Duration::from_secs(10);
/// Default time for which an object that no list names is kept.
const GRACE: Duration = Duration::from_secs(24 * 3600);
/// Default rate of reads and transfers.
const RATE: u64 = 64 << 20;

/// Access to the registry, which may not be open yet.
pub trait RegistryAccess: Send + Sync {
    /// Returns the registry, and opens it if it is not open yet.
    ///
    /// # Errors
    /// `FailedPrecondition` if the server has no collections; errors of the file system.
    fn open_registry(&self) -> Result<Arc<Registry>>;

    /// Returns the registry if it is open.
    fn open_already(&self) -> Option<Arc<Registry>>;
}

/// Settings of backups.
#[derive(Clone)]
pub struct BackupConfig {
    /// Directory or URL of the store; `None` if there is none.
    pub place: Option<String>,
    /// Names and values of the store provider's variables, in lower case.
    pub options: Vec<(String, String)>,
    /// Limit of the bytes per second that are read, sent and received.
    pub rate: Rate,
    /// Interval of the backups of all collections; `None` makes none.
    pub every: Option<Duration>,
    /// Backups that stay after a backup of the schedule; without a rule all stay.
    pub keep: RetentionPolicy,
    /// Time for which an object that no list names is kept.
    pub grace: Duration,
    /// Returns the name of the directory of original images that belong to a collection, if any.
    pub originals: fn(&CollectionSettings) -> Option<String>,
}

impl Default for BackupConfig {
    fn default() -> BackupConfig {
        BackupConfig {
            place: None,
            options: Vec::new(),
            rate: Rate::per_second(RATE),
            every: None,
            keep: RetentionPolicy::default(),
            grace: GRACE,
            originals: |_| None,
        }
    }
}

/// Request for work on backups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BackupRequest {
    /// Backs up a collection.
    Backup {
        /// Name or alias.
        collection: String,
        /// Extent.
        extent: BackupExtent,
    },
    /// Restores a backup.
    Restore {
        /// Name of the collection that was backed up.
        collection: String,
        /// Backup; `None` is the newest.
        backup: Option<BackupId>,
        /// Restored collection.
        target: RestoreTarget,
    },
    /// Copies a collection within this machine.
    Clone {
        /// Name or alias.
        collection: String,
        /// Name of the copy.
        to: String,
    },
    /// Compares objects with their checksums.
    Verify {
        /// Name of the collection that was backed up.
        collection: String,
        /// Backup; `None` is all of them.
        backup: Option<BackupId>,
    },
    /// Removes backups by a policy.
    Prune {
        /// Name of the collection that was backed up.
        collection: String,
        /// Backups that stay.
        policy: RetentionPolicy,
    },
    /// Removes a backup.
    Delete {
        /// Name of the collection that was backed up.
        collection: String,
        /// Backup.
        backup: BackupId,
    },
}

impl BackupRequest {
    /// Returns the name of the work.
    pub fn work(&self) -> &'static str {
        match self {
            BackupRequest::Backup { .. } => "backup",
            BackupRequest::Restore { .. } => "restore",
            BackupRequest::Clone { .. } => "clone",
            BackupRequest::Verify { .. } => "verify",
            BackupRequest::Prune { .. } => "prune",
            BackupRequest::Delete { .. } => "delete",
        }
    }

    /// Returns the name of the collection.
    pub fn collection(&self) -> &str {
        match self {
            BackupRequest::Backup { collection, .. }
            | BackupRequest::Restore { collection, .. }
            | BackupRequest::Clone { collection, .. }
            | BackupRequest::Verify { collection, .. }
            | BackupRequest::Prune { collection, .. }
            | BackupRequest::Delete { collection, .. } => collection,
        }
    }
}

/// State of a request.
#[derive(Clone, Debug)]
pub enum BackupJobState {
    /// The job waits for the thread.
    Waiting,
    /// The job is being worked on.
    Running,
    /// The job has ended with this report or error.
    Ended(Result<Value>),
}

/// A request and its state.
#[derive(Clone, Debug)]
pub struct BackupJob {
    /// Number since the start of the server, from 1.
    pub number: u64,
    /// Request.
    pub request: BackupRequest,
    /// State.
    pub state: BackupJobState,
    /// Progress.
    pub progress: Arc<BackupProgress>,
}

/// An accepted request.
pub struct SubmittedJob {
    /// Number, for [`BackupService::job`].
    pub number: u64,
    /// Receives the outcome. The work continues if this is dropped.
    pub outcome: oneshot::Receiver<Result<Value>>,
}

struct QueuedJob {
    number: u64,
    outcome: oneshot::Sender<Result<Value>>,
}

#[derive(Default)]
struct JobTable {
    next: u64,
    jobs: VecDeque<BackupJob>,
}

struct ServiceShared {
    config: BackupConfig,
    access: Arc<dyn RegistryAccess>,
    metrics: Arc<Metrics>,
    pacer: Pacer,
    store: Mutex<Option<BackupStore>>,
    table: Mutex<JobTable>,
    /// True once the thread should end. No backup of the schedule begins after that.
    stopping: AtomicBool,
}

struct WorkThread {
    queue: Sender<QueuedJob>,
    thread: JoinHandle<()>,
}

/// Backups of a server. The thread starts with the first request, or at once if there is a
/// schedule.
pub struct BackupService {
    shared: Arc<ServiceShared>,
    thread: Mutex<Option<WorkThread>>,
}

impl BackupService {
    /// Creates the service. Does not open anything.
    pub fn new(
        config: BackupConfig,
        access: Arc<dyn RegistryAccess>,
        metrics: Arc<Metrics>,
    ) -> BackupService {
        let pacer = Pacer::new(config.rate);
        let shared = ServiceShared {
            config,
            access,
            metrics,
            pacer,
            store: Mutex::default(),
            table: Mutex::default(),
            stopping: AtomicBool::new(false),
        };
        BackupService { shared: Arc::new(shared), thread: Mutex::default() }
    }

    /// Opens the store and starts the thread if there is a schedule.
    ///
    /// # Errors
    /// As [`BackupStore::open`].
    pub fn start(&self) -> Result<()> {
        if self.shared.config.every.is_none() {
            return Ok(());
        }
        self.store()?;
        self.with_queue(|_| Ok(()))
    }

    /// Returns the store.
    ///
    /// # Errors
    /// `FailedPrecondition` if the server has none; the errors of [`BackupStore::open`].
    pub fn store(&self) -> Result<BackupStore> {
        self.shared.store()
    }

    /// Returns the limit of the rate, for transfers of a caller.
    pub fn pacer(&self) -> &Pacer {
        &self.shared.pacer
    }

    /// Returns the registry.
    ///
    /// # Errors
    /// As [`RegistryAccess::open_registry`].
    pub fn registry(&self) -> Result<Arc<Registry>> {
        self.shared.access.open_registry()
    }

    /// Returns the names and values of the store provider's variables.
    pub fn store_options(&self) -> &[(String, String)] {
        &self.shared.config.options
    }

    /// Returns the collection that a name or an alias stands for. A name without a collection
    /// stays, since backups of removed collections are kept.
    ///
    /// # Errors
    /// `InvalidArgument` for a name that no collection has; as [`RegistryAccess::open_registry`].
    pub fn resolve(&self, name: &str) -> Result<String> {
        check_name(name)?;
        let registry = self.registry()?;
        let aliases = registry.aliases();
        let found = aliases.into_iter().find(|(alias, _)| alias == name);
        Ok(found.map_or_else(|| name.to_owned(), |(_, collection)| collection))
    }

    /// Returns the lists of a collection's backups, oldest first.
    ///
    /// # Errors
    /// `NotFound` if there is neither a collection nor a backup of the name; as
    /// [`BackupStore::lists`].
    pub async fn lists(&self, collection: &str) -> Result<Vec<BackupList>> {
        let lists = self.store()?.lists(collection).await?;
        if lists.is_empty() {
            self.registry()?.get(collection)?;
        }
        Ok(lists)
    }

    /// Checks that a collection of `settings` may be restored as `target`.
    ///
    /// # Errors
    /// `FailedPrecondition` if another collection has the same original images.
    pub fn check_originals(
        &self,
        registry: &Registry,
        settings: &CollectionSettings,
        target: &RestoreTarget,
    ) -> Result<()> {
        self.shared.check_originals(registry, settings, &target.name)
    }

    /// Returns the metrics.
    pub fn metrics(&self) -> &BackupMetrics {
        &self.shared.metrics.backups
    }

    /// Queues a request.
    ///
    /// # Errors
    /// `ResourceExhausted` with a retry delay if too many wait.
    pub fn submit(&self, request: BackupRequest) -> Result<SubmittedJob> {
        let (sender, outcome) = oneshot::channel();
        let number = {
            let mut table = self.shared.table.lock();
            table.next += 1;
            let number = table.next;
            let state = BackupJobState::Waiting;
            table.jobs.push_back(BackupJob { number, request, state, progress: Arc::default() });
            number
        };
        let queued = QueuedJob { number, outcome: sender };
        let sent = self.with_queue(|queue| {
            queue.try_send(queued).map_err(|error| match error {
                TrySendError::Full(_) => {
                    Error::exhausted(format!("{WAITING_MAX} requests for backups wait"))
                        .with_retry_after(RETRY_AFTER)
                }
                TrySendError::Disconnected(_) => Error::unavailable("the server is shutting down"),
            })
        });
        if let Err(error) = sent {
            self.shared.table.lock().jobs.retain(|job| job.number != number);
            if error.kind() == ErrorKind::ResourceExhausted {
                let labels = KindLabels { kind: "backup_queue" };
                self.shared.metrics.refused.get_or_create(&labels).inc();
            }
            return Err(error);
        }
        Ok(SubmittedJob { number, outcome })
    }

    /// Returns the requests that wait or run, and the last finished ones, oldest first.
    pub fn jobs(&self) -> Vec<BackupJob> {
        self.shared.table.lock().jobs.iter().cloned().collect()
    }

    /// Returns a request.
    ///
    /// # Errors
    /// `NotFound` for one that is not remembered.
    pub fn job(&self, number: u64) -> Result<BackupJob> {
        let table = self.shared.table.lock();
        let found = table.jobs.iter().find(|job| job.number == number).cloned();
        found.ok_or_else(|| {
            Error::not_found(format!("there is no job {number}; the last {FINISHED_MAX} are kept"))
        })
    }

    /// Ends the thread. A backup in progress ends early and is continued by the next one. Later
    /// requests are refused.
    pub fn shutdown(&self) {
        // Before the jobs are stopped, so that none begins after that.
        self.shared.stopping.store(true, Ordering::SeqCst);
        let Some(WorkThread { queue, thread }) = self.thread.lock().take() else { return };
        drop(queue);
        self.shared.table.lock().jobs.iter().for_each(|job| job.progress.stop());
        if thread.join().is_err() {
            tracing::error!("the thread of backups ended in a panic");
        }
    }

    fn with_queue<T>(&self, each: impl FnOnce(&Sender<QueuedJob>) -> Result<T>) -> Result<T> {
        let mut thread = self.thread.lock();
        if self.shared.is_stopping() {
            return Err(Error::unavailable("the server is shutting down"));
        }
        if thread.is_none() {
            *thread = Some(start_thread(&self.shared)?);
        }
        match thread.as_ref() {
            Some(thread) => each(&thread.queue),
            None => Err(Error::internal("the thread of backups was not started")),
        }
    }
}

fn start_thread(shared: &Arc<ServiceShared>) -> Result<WorkThread> {
    let (queue, requests) = bounded(WAITING_MAX);
    let shared = shared.clone();
    let run = move || {
        os::thread::enter_low_priority("backing up");
        shared.work(&requests);
    };
    let spawned = std::thread::Builder::new().name("backup".to_owned()).spawn(run);
    let thread = spawned.map_err(|error| Error::exhausted(format!("thread backup: {error}")))?;
    Ok(WorkThread { queue, thread })
}

impl ServiceShared {
    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// Does the requests and the backups of the schedule until the queue is closed.
    fn work(&self, requests: &Receiver<QueuedJob>) {
        // The first look comes early and goes by the age of backups, since a server may be
        // restarted more often than backups are due.
        let mut due = self.config.every.map(|every| Instant::now() + every.min(FIRST_LOOK));
        let mut young = self.config.every;
        loop {
            let received = match due {
                None => requests.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(due) => requests.recv_deadline(due),
            };
            match received {
                Ok(job) => self.run(job),
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {
                    self.back_up_all(requests, young.take());
                    due = self.config.every.map(|every| Instant::now() + every);
                }
            }
        }
    }

    fn run(&self, queued: QueuedJob) {
        let QueuedJob { number, outcome } = queued;
        let Some((request, progress)) = self.begin(number) else { return };
        // A panic ends this request only.
        let work = || self.perform(&request, &progress);
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work))
            .unwrap_or_else(|_| Err(Error::internal("the work on a backup ended in a panic")));
        if let Err(error) = &result {
            let (work, collection) = (request.work(), request.collection());
            tracing::error!(work, collection, %error, "work on a backup has failed");
        }
        self.count(request.work(), &result);
        self.end(number, result.clone());
        // The caller may be gone.
        let _ = outcome.send(result);
    }

    fn begin(&self, number: u64) -> Option<(BackupRequest, Arc<BackupProgress>)> {
        let mut table = self.table.lock();
        let job = table.jobs.iter_mut().find(|job| job.number == number)?;
        job.state = BackupJobState::Running;
        Some((job.request.clone(), job.progress.clone()))
    }

    fn end(&self, number: u64, result: Result<Value>) {
        let mut table = self.table.lock();
        if let Some(job) = table.jobs.iter_mut().find(|job| job.number == number) {
            job.state = BackupJobState::Ended(result);
        }
        let ended = |job: &BackupJob| matches!(job.state, BackupJobState::Ended(_));
        while table.jobs.iter().filter(|job| ended(job)).count() > FINISHED_MAX {
            if let Some(oldest) = table.jobs.iter().position(ended) {
                table.jobs.remove(oldest);
            }
        }
    }

    fn count(&self, work: &'static str, result: &Result<Value>) {
        let outcome = if result.is_ok() { "ok" } else { "failed" };
        let backups = &self.metrics.backups;
        backups.work.get_or_create(&BackupWorkLabels { work, outcome }).inc();
        if work == "backup" {
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            backups.time.get_or_create(&KindLabels { kind: outcome }).set(now.as_secs_f64());
        }
    }

    fn store(&self) -> Result<BackupStore> {
        let mut store = self.store.lock();
        if let Some(store) = store.as_ref() {
            return Ok(store.clone());
        }
        let place = self.config.place.as_deref().ok_or_else(|| {
            Error::precondition(
                "this server has no store of backups; start it with --backup-dir DIR or URL",
            )
        })?;
        let opened = BackupStore::open(place, &self.config.options)
            .map_err(|error| error.context("the store of backups cannot be opened"))?;
        Ok(store.insert(opened).clone())
    }

    fn perform(&self, request: &BackupRequest, progress: &BackupProgress) -> Result<Value> {
        let registry = self.access.open_registry()?;
        if let BackupRequest::Clone { collection, to } = request {
            return self.clone_collection(&registry, collection, to);
        }
        let store = self.store()?;
        let context = BackupContext { store: &store, pacer: &self.pacer, progress };
        let bytes = |kind: &'static str, bytes: u64| self.add_bytes(kind, bytes);
        match request {
            BackupRequest::Backup { collection, extent } => {
                let named = registry.get(collection)?;
                report(&self.back_up(&context, &named, *extent)?)
            }
            BackupRequest::Restore { collection, backup, target } => {
                let id = match backup {
                    Some(id) => id.clone(),
                    None => block_on(store.newest(collection))?,
                };
                let list = block_on(store.list(collection, &id))?;
                self.check_originals(&registry, &list.settings, &target.name)?;
                let work = restore(&context, &registry, collection, Some(&id), target);
                let restored = block_on(work)?;
                bytes("restored", restored.bytes);
                report(&restored)
            }
            BackupRequest::Verify { collection, backup } => {
                let verified = block_on(verify(&context, collection, backup.as_ref()))?;
                bytes("verified", verified.bytes);
                report(&verified)
            }
            BackupRequest::Prune { collection, policy } => {
                report(&block_on(prune(&context, collection, policy, self.config.grace))?)
            }
            BackupRequest::Delete { collection, backup } => {
                report(&block_on(delete(&context, collection, backup, self.config.grace))?)
            }
            BackupRequest::Clone { .. } => Err(Error::internal("a copy needs no store")),
        }
    }

    fn back_up(
        &self,
        context: &BackupContext<'_>,
        named: &NamedCollection,
        extent: BackupExtent,
    ) -> Result<BackupReport> {
        let made = block_on(create(context, named, extent))?;
        self.add_bytes("uploaded", made.uploaded_bytes);
        self.add_bytes("present", made.bytes.saturating_sub(made.uploaded_bytes));
        Ok(made)
    }

    fn add_bytes(&self, kind: &'static str, bytes: u64) {
        self.metrics.backups.bytes.get_or_create(&KindLabels { kind }).inc_by(bytes);
    }

    fn clone_collection(&self, registry: &Registry, from: &str, to: &str) -> Result<Value> {
        let began = Instant::now();
        let source = registry.get(from)?;
        self.check_originals(registry, &source.settings(), to)?;
        drop(source);
        let named = registry.clone_collection(from, to)?;
        Ok(serde_json::json!({
            "collection": named.name(),
            "points": named.collection().count(),
            "seconds": began.elapsed().as_secs_f64(),
        }))
    }

    /// Checks that no other collection has the original images of a collection with `settings`:
    /// removing one of the two would remove the images of both.
    fn check_originals(
        &self,
        registry: &Registry,
        settings: &CollectionSettings,
        name: &str,
    ) -> Result<()> {
        let Some(space) = (self.config.originals)(settings) else { return Ok(()) };
        for listed in registry.list().into_iter().filter(|listed| listed.name != name) {
            let ListedState::Ready(named) = listed.state else { continue };
            if (self.config.originals)(&named.settings()).as_ref() == Some(&space) {
                return Err(Error::precondition(format!(
                    "collection \"{}\" has the original images of this collection of images, and two \
                     cannot share them; remove it, or use its name with replace",
                    listed.name
                )));
            }
        }
        Ok(())
    }

    /// Backs up all collections that have changed, and removes backups by the policy. Leaves out
    /// collections with a backup that is younger than `young`. Requests that arrive meanwhile are
    /// handled between two collections.
    fn back_up_all(&self, requests: &Receiver<QueuedJob>, young: Option<Duration>) {
        let Some(registry) = self.access.open_already() else { return };
        let store = match self.store() {
            Ok(store) => store,
            Err(error) => return tracing::error!(%error, "no backups are made"),
        };
        for listed in registry.list() {
            let ListedState::Ready(named) = listed.state else { continue };
            while let Ok(job) = requests.try_recv() {
                self.run(job);
            }
            if let Some(age) = young
                && let Ok(ids) = block_on(store.ids(&listed.name))
                && ids.iter().max().is_some_and(|newest| newest.age(Utc::now()) < age)
            {
                continue;
            }
            let Some(progress) = self.begin_scheduled(&listed.name) else { return };
            let context =
                BackupContext { store: &store, pacer: &self.pacer, progress: &progress.progress };
            let result = self.back_up_scheduled(&context, &named);
            if let Err(error) = &result {
                if error.kind() == ErrorKind::Cancelled {
                    return;
                }
                tracing::error!(collection = listed.name, %error, "a scheduled backup has failed");
            }
            self.count("backup", &result);
            self.end(progress.number, result);
        }
    }

    /// Adds a backup of the schedule to the table. Returns `None` if the thread should end.
    fn begin_scheduled(&self, collection: &str) -> Option<BackupJob> {
        let mut table = self.table.lock();
        // Under the lock: a shutdown then finds the job in the table and stops it.
        if self.is_stopping() {
            return None;
        }
        table.next += 1;
        let job = BackupJob {
            number: table.next,
            request: BackupRequest::Backup {
                collection: collection.to_owned(),
                extent: BackupExtent::Changed,
            },
            state: BackupJobState::Running,
            progress: Arc::default(),
        };
        table.jobs.push_back(job.clone());
        Some(job)
    }

    fn back_up_scheduled(
        &self,
        context: &BackupContext<'_>,
        named: &NamedCollection,
    ) -> Result<Value> {
        let made = self.back_up(context, named, BackupExtent::Changed)?;
        if self.config.keep != RetentionPolicy::default() && !made.unchanged {
            block_on(prune(context, named.name(), &self.config.keep, self.config.grace))?;
        }
        report(&made)
    }
}

fn report(report: &impl Serialize) -> Result<Value> {
    serde_json::to_value(report).map_err(|error| Error::internal(format!("a report: {error}")))
}

impl std::fmt::Debug for BackupService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BackupService")
            .field("place", &self.shared.config.place)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct NoRegistry;

    impl RegistryAccess for NoRegistry {
        fn open_registry(&self) -> Result<Arc<Registry>> {
            Err(Error::precondition("there are no collections"))
        }

        fn open_already(&self) -> Option<Arc<Registry>> {
            None
        }
    }

    #[test]
    fn a_stopped_service_begins_nothing() {
        let config = BackupConfig::default();
        let service = BackupService::new(config, Arc::new(NoRegistry), Arc::default());
        let verify = || BackupRequest::Verify { collection: "c".to_owned(), backup: None };
        assert!(service.submit(verify()).is_ok());
        service.shutdown();
        let error = service.submit(verify()).err();
        assert_eq!(error.map(|error| error.kind()), Some(ErrorKind::Unavailable));
        assert_eq!(service.jobs().len(), 1);
        assert!(service.shared.begin_scheduled("c").is_none());
    }
}
