//! Copy of a backup of a shard from one store into another.

use std::sync::Arc;

use backup::{BackupContext, BackupCopy, BackupId, BackupList, BackupProgress, BackupStore};
use base::Result;
use os::Pacer;
use search::registry::CollectionSettings;

use crate::node::local::at_low_priority;
use crate::node::snapshot::StopTransferOnDrop;

/// A [`BackupCopy`] for another thread.
pub(super) struct OwnedCopy {
    pub(super) from: BackupStore,
    pub(super) collection: String,
    pub(super) backup: BackupId,
    pub(super) to: BackupStore,
    pub(super) name: String,
    pub(super) id: BackupId,
}

impl OwnedCopy {
    /// Copies the backup on a thread of its own. If the future is dropped, the thread ends at its
    /// next step.
    pub(super) async fn run(
        self,
        pacer: Arc<Pacer>,
        change: impl FnOnce(&mut CollectionSettings) + Send + 'static,
    ) -> Result<BackupList> {
        let progress = Arc::new(BackupProgress::default());
        let _stop = StopTransferOnDrop(progress.clone());
        at_low_priority("copying a snapshot", move || {
            let context = BackupContext { store: &self.from, pacer: &pacer, progress: &progress };
            let copy = BackupCopy {
                collection: &self.collection,
                backup: &self.backup,
                to: &self.to,
                name: &self.name,
                id: &self.id,
            };
            backup::block_on(backup::copy(&context, &copy, change))
        })
        .await
    }
}
