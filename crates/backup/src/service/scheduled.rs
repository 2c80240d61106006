//! The backups of the schedule.

use std::sync::Arc;
use std::time::Duration;

use base::{ErrorKind, Result};
use chrono::Utc;
use crossbeam_channel::Receiver;
use model_store::block_on;
use search::registry::{ListedState, NamedCollection};
use serde_json::Value;

use super::work::report;
use super::{BackupJob, BackupJobState, BackupRequest, QueuedJob, ServiceShared};
use crate::create::BackupExtent;
use crate::policy::RetentionPolicy;
use crate::prune::prune;
use crate::transfer::BackupContext;

impl ServiceShared {
    /// Backs up all collections that have changed, and removes backups by the policy. Leaves out
    /// collections with a backup that is younger than `young`. Requests that arrive meanwhile are
    /// handled between two collections.
    pub(super) fn back_up_all(&self, requests: &Receiver<QueuedJob>, young: Option<Duration>) {
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
    pub(super) fn begin_scheduled(&self, collection: &str) -> Option<BackupJob> {
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
