//! Removes a backup, and objects that no other backup needs.

use std::time::Duration;

use backup::{BackupContext, BackupId, BackupProgress};
use base::{ErrorKind, Result};
use os::{Pacer, Rate};

use super::{ClusterBackups, ShardOfSet};
use crate::node::local::blocking;

impl ClusterBackups {
    /// Removes a backup of a collection, and objects that no other one needs.
    ///
    /// # Errors
    /// `NotFound` if there is none; the store's error.
    pub async fn delete(&self, collection: &str, id: &BackupId) -> Result<()> {
        let removed = self.remove(collection, id).await;
        self.count("delete", &removed);
        removed
    }

    async fn remove(&self, collection: &str, id: &BackupId) -> Result<()> {
        let _turn = self.turn().await?;
        let set = self.get(collection, id).await?;
        // If the removal stops, a later backup finds the rest.
        self.begin(&set.record, id).await?;
        // First, so that no half of a backup is listed.
        self.objects.remove(&self.set_key(collection, id)).await?;
        self.discard(&set.record, id, Duration::ZERO).await?;
        self.end(&set.record.name, id).await
    }

    pub(super) async fn delete_snapshot(
        &self,
        shard: &ShardOfSet<'_>,
        grace: Duration,
    ) -> Result<()> {
        let store = self.shards.clone();
        let name = shard.key.local_name();
        let id = shard.id.clone();
        let removed = blocking(move || {
            // Removals are not paced.
            let pacer = Pacer::new(Rate::unlimited());
            let progress = BackupProgress::default();
            let context = BackupContext { store: &store, pacer: &pacer, progress: &progress };
            backup::block_on(delete_if_there(&context, &name, &id, grace))
        });
        removed.await
    }
}

/// Removes a backup if it is there, and objects that no other one needs. An object stays for
/// `grace` after it was written.
///
/// # Errors
/// As [`backup::delete`].
pub(super) async fn delete_if_there(
    context: &BackupContext<'_>,
    name: &str,
    id: &BackupId,
    grace: Duration,
) -> Result<()> {
    match backup::delete(context, name, id, grace).await {
        // A backup that was stopped has objects and no list.
        Err(error) if error.kind() == ErrorKind::NotFound => {
            backup::remove_unused(context, name, grace).await.map(drop)
        }
        removed => removed.map(drop),
    }
}
