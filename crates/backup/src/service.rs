//! The thread of backups. It handles one request after the other, and makes the backups of the
//! schedule.
//!
//! One thread does all work on the store, so that a server's own backups and removals never run at
//! the same time.

mod config;
mod request;
mod scheduled;
mod work;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use base::{Error, ErrorKind, Result};
use crossbeam_channel::{Sender, TrySendError, bounded};
use metrics::{KindLabels, Metrics};
use os::Pacer;
use parking_lot::Mutex;
use search::registry::{CollectionSettings, ListedState, Registry, check_name, is_version_of};
use serde_json::Value;
use tokio::sync::oneshot;

use crate::restore::RestoreTarget;
use crate::store::{BackupStore, StoredLists};

pub use config::{BackupConfig, RegistryAccess};
pub use request::{BackupJob, BackupJobState, BackupRequest, SubmittedJob};

/// Maximum requests that wait for the thread.
const WAITING_MAX: usize = 16;
/// Finished requests that are remembered.
const FINISHED_MAX: usize = 64;
/// Retry delay for a refused request.
const RETRY_AFTER: Duration = Duration::from_secs(10);

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

/// Running thread of a [`BackupService`], and the queue of its requests.
struct BackupThread {
    queue: Sender<QueuedJob>,
    thread: JoinHandle<()>,
}

/// Backups of a server. The thread starts with the first request, or at once if there is a
/// schedule.
pub struct BackupService {
    shared: Arc<ServiceShared>,
    thread: Mutex<Option<BackupThread>>,
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

    /// Returns the collection of a name or an alias. A name without a collection stays, since
    /// backups of removed collections are kept.
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
    /// [`BackupStore::readable_lists`].
    pub async fn lists(&self, collection: &str) -> Result<StoredLists> {
        let stored = self.store()?.readable_lists(collection).await?;
        if stored.lists.is_empty() && stored.unreadable.is_empty() {
            self.registry()?.get(collection)?;
        }
        Ok(stored)
    }

    /// Checks that a collection of `settings` may be restored as `target`.
    ///
    /// # Errors
    /// `FailedPrecondition` if another collection has the same original images; `InvalidArgument`
    /// if their directory cannot be that of a collection.
    pub fn check_originals(
        &self,
        registry: &Registry,
        settings: &CollectionSettings,
        target: &RestoreTarget,
    ) -> Result<()> {
        self.shared.check_originals(registry, settings, &target.name)
    }

    /// Returns the name of the directory of original images in `settings`. It is the name of the
    /// collection that they were put into. Returns `None` if the settings are not of images.
    pub fn originals_of(&self, settings: &CollectionSettings) -> Option<String> {
        (self.shared.config.originals)(settings)
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
                TrySendError::Full(_) => Error::exhausted(format!(
                    "{WAITING_MAX} backups and restores are waiting; try again later"
                ))
                .with_retry_after(RETRY_AFTER),
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
        let Some(BackupThread { queue, thread }) = self.thread.lock().take() else { return };
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

fn start_thread(shared: &Arc<ServiceShared>) -> Result<BackupThread> {
    let (queue, requests) = bounded(WAITING_MAX);
    let shared = shared.clone();
    let run = move || {
        os::thread::enter_low_priority("backing up");
        shared.work(&requests);
    };
    Ok(BackupThread { queue, thread: os::thread::spawn("backup", run)? })
}

impl ServiceShared {
    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// Returns the store of backups. Opens it at the first call.
    ///
    /// # Errors
    /// `FailedPrecondition` if the server has none; the error of its opening.
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

    /// Checks that no other collection has the original images of a collection with `settings`.
    /// Otherwise the removal of one would remove the images of both. The versions of a collection
    /// that rebuilds have made share their images, and a removal keeps those of the other versions.
    fn check_originals(
        &self,
        registry: &Registry,
        settings: &CollectionSettings,
        name: &str,
    ) -> Result<()> {
        let Some(space) = (self.config.originals)(settings) else { return Ok(()) };
        // Another spelling of a directory, such as "photos/", would be that of another collection.
        check_name(&space)
            .map_err(|error| error.context("the directory of original images in the settings"))?;
        let are_versions =
            |other: &str| is_version_of(name, &space) && is_version_of(other, &space);
        for listed in registry.list().into_iter().filter(|listed| listed.name != name) {
            let ListedState::Ready(named) = listed.state else { continue };
            if are_versions(&listed.name) {
                continue;
            }
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
    use std::sync::atomic::AtomicUsize;
    use std::time::Instant;

    use search::Metric;
    use search::registry::RegistryOptions;

    use super::scheduled::{DoneBackups, ScheduledOutcome};
    use super::*;
    use crate::create::BackupExtent;
    use crate::transfer::{BackupContext, BackupProgress};

    struct NoRegistry;

    impl RegistryAccess for NoRegistry {
        fn open_registry(&self) -> Result<Arc<Registry>> {
            Err(Error::precondition("there are no collections"))
        }

        fn open_already(&self) -> Option<Arc<Registry>> {
            None
        }
    }

    /// Holds up each request until the sender is dropped.
    struct BlockedRegistry(crossbeam_channel::Receiver<()>);

    impl RegistryAccess for BlockedRegistry {
        fn open_registry(&self) -> Result<Arc<Registry>> {
            let _ = self.0.recv();
            NoRegistry.open_registry()
        }

        fn open_already(&self) -> Option<Arc<Registry>> {
            None
        }
    }

    /// Panics in each run of the schedule. Counts the runs.
    #[derive(Default)]
    struct PanickingRegistry(AtomicUsize);

    impl RegistryAccess for PanickingRegistry {
        fn open_registry(&self) -> Result<Arc<Registry>> {
            NoRegistry.open_registry()
        }

        fn open_already(&self) -> Option<Arc<Registry>> {
            self.0.fetch_add(1, Ordering::SeqCst);
            panic!("a test");
        }
    }

    #[test]
    fn originals_are_in_the_directory_of_one_collection() {
        let directory = tempfile::tempdir().unwrap();
        let registry = Registry::open(RegistryOptions::for_tests(directory.path())).unwrap();
        let of = |space: &str| CollectionSettings {
            extra: serde_json::json!({ "originals": space }),
            ..CollectionSettings::new(4, Metric::L2)
        };
        registry.create("photos.v1", of("photos")).unwrap();
        let config = BackupConfig {
            originals: |settings| Some(settings.extra.get("originals")?.as_str()?.to_owned()),
            ..BackupConfig::default()
        };
        let service = BackupService::new(config, Arc::new(NoRegistry), Arc::default());
        let target = |name: &str| RestoreTarget { name: name.to_owned(), replaces: true };
        let check_as = |name, space| service.check_originals(&registry, &of(space), &target(name));
        let check = |space| check_as("other", space);
        assert!(check("free").is_ok());
        // A rebuild leaves the old version beside the new one.
        assert!(check_as("photos.v2", "photos").is_ok());
        for name in ["photos", "photos.v", "photos.v2x", "photos2.v2"] {
            let error = check_as(name, "photos").unwrap_err();
            assert_eq!(error.kind(), ErrorKind::FailedPrecondition, "{name}");
        }
        assert_eq!(check("photos").unwrap_err().kind(), ErrorKind::FailedPrecondition);
        // The store of originals ignores empty parts of a path.
        for space in ["photos/", "/photos", "photos//", "photos/5c", "", ".", "..", "./photos"] {
            let error = check(space).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{space}");
        }
    }

    #[test]
    fn a_panic_ends_one_run_of_the_schedule() {
        let directory = tempfile::tempdir().unwrap();
        let config = BackupConfig {
            place: Some(directory.path().to_str().unwrap().to_owned()),
            every: Some(Duration::from_millis(1)),
            ..BackupConfig::default()
        };
        let access = Arc::new(PanickingRegistry::default());
        let service = BackupService::new(config, access.clone(), Arc::default());
        service.start().unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        while access.0.load(Ordering::SeqCst) < 2 {
            assert!(Instant::now() < until, "the thread has ended");
            std::thread::sleep(Duration::from_millis(1));
        }
        service.shutdown();
    }

    #[test]
    fn a_panic_ends_one_scheduled_backup() {
        let config = BackupConfig::default();
        let service = BackupService::new(config, Arc::new(NoRegistry), Arc::default());
        let job = service.shared.begin_scheduled("c").unwrap();
        let work = || panic!("a test");
        let outcome = service.shared.run_scheduled(job.number, "c", work, || false);
        assert_eq!(outcome, ScheduledOutcome::Failed);
        let BackupJobState::Ended(Err(error)) = service.job(job.number).unwrap().state else {
            panic!("the job has not failed");
        };
        assert_eq!(error.kind(), ErrorKind::Internal);
    }

    #[test]
    fn a_backup_of_a_removed_collection_does_not_count_as_failed() {
        let metrics = Arc::<Metrics>::default();
        let service =
            BackupService::new(BackupConfig::default(), Arc::new(NoRegistry), metrics.clone());
        let labels = metrics::BackupWorkLabels { work: "backup", outcome: "failed" };
        let run = |is_removed: bool| {
            let job = service.shared.begin_scheduled("c").unwrap();
            let work = || Err(Error::data_loss("a file is missing"));
            let outcome = service.shared.run_scheduled(job.number, "c", work, || is_removed);
            (outcome, metrics.backups.work.get_or_create(&labels).get())
        };
        assert_eq!(run(true), (ScheduledOutcome::Removed, 0));
        assert_eq!(run(false), (ScheduledOutcome::Failed, 1));
    }

    /// A registry that is open.
    struct OpenRegistry(Arc<Registry>);

    impl RegistryAccess for OpenRegistry {
        fn open_registry(&self) -> Result<Arc<Registry>> {
            Ok(self.0.clone())
        }

        fn open_already(&self) -> Option<Arc<Registry>> {
            Some(self.0.clone())
        }
    }

    #[test]
    fn the_next_try_backs_up_collections_that_failed() {
        let directory = tempfile::tempdir().unwrap();
        let registry = Registry::open(RegistryOptions::for_tests(directory.path())).unwrap();
        registry.create("c", CollectionSettings::new(4, Metric::L2)).unwrap();
        // The store is not a directory yet.
        let places = tempfile::tempdir().unwrap();
        let place = places.path().join("store");
        std::fs::write(&place, "").unwrap();
        let config = BackupConfig {
            place: Some(place.to_str().unwrap().to_owned()),
            ..BackupConfig::default()
        };
        let access = Arc::new(OpenRegistry(registry));
        let service = BackupService::new(config, access, Arc::default());
        let (_queue, requests) = bounded(1);
        let mut done = DoneBackups::new();
        assert!(service.shared.back_up_all(&requests, None, &mut done).failed);
        std::fs::remove_file(&place).unwrap();
        std::fs::create_dir(&place).unwrap();
        let every = Duration::from_secs(24 * 3600);
        assert!(!service.shared.back_up_all(&requests, Some(every), &mut done).failed);
        assert_eq!(service.jobs().len(), 1);
        // Its backup is young now.
        let pass = service.shared.back_up_all(&requests, Some(every), &mut DoneBackups::new());
        assert!(pass.pause(every) > every / 2);
        assert_eq!(service.jobs().len(), 1);
        // A collection that has not changed can lack a young backup.
        std::fs::remove_dir_all(&place).unwrap();
        std::fs::create_dir(&place).unwrap();
        let pass = service.shared.back_up_all(&requests, Some(every), &mut done);
        assert!(pass.pause(every) > every / 2);
        assert_eq!(service.jobs().len(), 1, "it is not backed up again before it is due");
    }

    #[test]
    fn a_backup_of_a_removed_collection_names_the_cause() {
        let directory = tempfile::tempdir().unwrap();
        let registry = Registry::open(RegistryOptions::for_tests(directory.path())).unwrap();
        let named = registry.create("c", CollectionSettings::new(4, Metric::L2)).unwrap();
        assert!(registry.remove("c").unwrap());
        let places = tempfile::tempdir().unwrap();
        let config = BackupConfig {
            place: Some(places.path().to_str().unwrap().to_owned()),
            ..BackupConfig::default()
        };
        let service = BackupService::new(config, Arc::new(OpenRegistry(registry)), Arc::default());
        let store = service.store().unwrap();
        let progress = BackupProgress::default();
        let context = BackupContext { store: &store, pacer: service.pacer(), progress: &progress };
        let error = service.shared.back_up(&context, &named, BackupExtent::Missing).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert_eq!(error.to_string(), "collection \"c\" was removed or replaced during its backup");
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

    #[test]
    fn waiting_and_remembered_requests_are_bounded() {
        let (blocked, gate) = bounded(0);
        let access = Arc::new(BlockedRegistry(gate));
        let service = BackupService::new(BackupConfig::default(), access, Arc::default());
        let verify = || BackupRequest::Verify { collection: "c".to_owned(), backup: None };
        let first = service.submit(verify()).unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        while !matches!(service.job(first.number).unwrap().state, BackupJobState::Running) {
            assert!(Instant::now() < until, "the first request does not begin");
            std::thread::sleep(Duration::from_millis(1));
        }
        let waiting: Vec<_> = (0..WAITING_MAX).map(|_| service.submit(verify()).unwrap()).collect();
        let error = service.submit(verify()).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::ResourceExhausted);
        assert_eq!(error.retry_after(), Some(RETRY_AFTER));
        assert_eq!(service.jobs().len(), 1 + WAITING_MAX, "the refused one is not remembered");
        let refused = KindLabels { kind: "backup_queue" };
        assert_eq!(service.shared.metrics.refused.get_or_create(&refused).get(), 1);
        drop(blocked);
        assert!(waiting.into_iter().all(|job| job.outcome.blocking_recv().unwrap().is_err()));
        let last: Vec<u64> = (0..FINISHED_MAX)
            .map(|_| {
                let job = service.submit(verify()).unwrap();
                assert!(job.outcome.blocking_recv().unwrap().is_err());
                job.number
            })
            .collect();
        let remembered: Vec<u64> = service.jobs().iter().map(|job| job.number).collect();
        assert_eq!(remembered, last);
        service.shutdown();
    }
}
