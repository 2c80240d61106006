//! The loop of the thread: performs requests, counts them and keeps their outcomes.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use base::{Error, ErrorKind, Result};
use crossbeam_channel::{Receiver, RecvTimeoutError};
use metrics::{BackupWorkLabels, KindLabels};
use model_store::block_on;
use search::registry::{NamedCollection, Registry};
use serde::Serialize;
use serde_json::Value;

use super::scheduled::{DoneBackups, SchedulePass};
use super::{BackupJob, BackupJobState, BackupRequest, FINISHED_MAX, QueuedJob, ServiceShared};
use crate::create::{BackupExtent, BackupReport, create_with_room};
use crate::prune::{delete, prune};
use crate::restore::restore;
use crate::store::BackupStore;
use crate::transfer::{BackupContext, BackupProgress};
use crate::verify::verify;

/// Longest time from the start to the first check for collections whose backup is due.
const FIRST_CHECK_MAX: Duration = Duration::from_secs(600);

impl ServiceShared {
    /// Performs the requests and the backups of the schedule until the queue is closed.
    pub(super) fn work(&self, requests: &Receiver<QueuedJob>) {
        // The first check is early and compares the age of backups, since a server may be restarted
        // more often than backups are due.
        let mut due = self.config.every.map(|every| Instant::now() + every.min(FIRST_CHECK_MAX));
        let mut young = self.config.every;
        let mut done = DoneBackups::new();
        loop {
            let received = match due {
                None => requests.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(due) => requests.recv_deadline(due),
            };
            match received {
                Ok(job) => self.run(job),
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {
                    let pass = catch_panic(|| Ok(self.back_up_all(requests, young, &mut done)));
                    let pass = pass.unwrap_or_else(|error| {
                        tracing::error!(%error, "the scheduled backups have failed");
                        SchedulePass::failure()
                    });
                    // The next try skips the collections whose backup did not fail.
                    young = self.config.every.filter(|_| pass.failed);
                    due = self.config.every.map(|every| Instant::now() + pass.pause(every));
                }
            }
        }
    }

    /// Performs a job and records its result. A panic becomes an error. Does nothing if the job is
    /// not listed any more.
    pub(super) fn run(&self, queued: QueuedJob) {
        let QueuedJob { number, outcome } = queued;
        let Some((request, progress)) = self.begin(number) else { return };
        let result = catch_panic(|| self.perform(&request, &progress));
        if let Err(error) = &result {
            let work = request.work();
            let collection = request.collection();
            tracing::error!(work, collection, %error, "work on a backup has failed");
        }
        self.count(request.work(), &result);
        self.end(number, result.clone());
        // The caller may have disconnected.
        let _ = outcome.send(result);
    }

    fn begin(&self, number: u64) -> Option<(BackupRequest, Arc<BackupProgress>)> {
        let mut table = self.table.lock();
        let job = table.jobs.iter_mut().find(|job| job.number == number)?;
        job.state = BackupJobState::Running;
        Some((job.request.clone(), job.progress.clone()))
    }

    /// Records the result of a job. Removes the oldest finished jobs from the list if they are too
    /// many.
    pub(super) fn end(&self, number: u64, result: Result<Value>) {
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

    /// Counts finished work in the metrics.
    pub(super) fn count(&self, work: &'static str, result: &Result<Value>) {
        let outcome = if result.is_ok() { "ok" } else { "failed" };
        let backups = &self.metrics.backups;
        backups.work.get_or_create(&BackupWorkLabels { work, outcome }).inc();
        if work == "backup" {
            let now = base::unix_time(SystemTime::now());
            backups.time.get_or_create(&KindLabels { kind: outcome }).set(now.as_secs_f64());
        }
    }

    /// Performs one request. Returns its report as JSON.
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
                check_known(&store, &registry, collection)?;
                report(&block_on(prune(&context, collection, policy, self.config.grace))?)
            }
            BackupRequest::Delete { collection, backup } => {
                report(&block_on(delete(&context, collection, backup, self.config.grace))?)
            }
            BackupRequest::Clone { .. } => Err(Error::internal("a copy needs no store")),
        }
    }

    /// Makes a backup and counts its bytes in the metrics.
    pub(super) fn back_up(
        &self,
        context: &BackupContext<'_>,
        named: &NamedCollection,
        extent: BackupExtent,
    ) -> Result<BackupReport> {
        let made = block_on(create_with_room(context, named, extent, self.config.grace));
        let made = made.map_err(|error| backup_error(named, error))?;
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
}

/// Checks that a name is that of a collection, or that the store has its backups or their objects.
///
/// # Errors
/// `NotFound`; the store's error.
fn check_known(store: &BackupStore, registry: &Registry, name: &str) -> Result<()> {
    let is_stored = async {
        let has_lists = !store.ids(name).await?.is_empty();
        Ok::<_, Error>(has_lists || !store.objects(name).await?.is_empty())
    };
    if !block_on(is_stored)? {
        registry.get(name)?;
    }
    Ok(())
}

/// Returns the error of a backup of `named` that has failed with `error`. The missing files of a
/// removed or replaced collection are no damage.
fn backup_error(named: &NamedCollection, error: Error) -> Error {
    if !named.removed() || error.kind() == ErrorKind::Cancelled {
        return error;
    }
    let name = named.name();
    let message = format!("collection {name:?} was removed or replaced during its backup");
    Error::not_found(message).with_source(error)
}

/// Does work on a backup. A panic becomes an error, so that it ends this work only.
///
/// # Errors
/// Those of `work`; `Internal` after a panic.
pub(super) fn catch_panic<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(work))
        .unwrap_or_else(|_| Err(Error::internal("the work on a backup ended in a panic")))
}

pub(super) fn report(report: &impl Serialize) -> Result<Value> {
    serde_json::to_value(report).map_err(|error| Error::internal("a report").caused_by(error))
}
