//! Removes a backup, and objects that no other backup needs.

use std::time::Duration;

use backup::{BackupContext, BackupId, BackupProgress};
use base::{ErrorKind, Result};
use os::{Pacer, Rate};

use super::{ClusterBackups, ShardOfSet};
use crate::node::local::blocking;
use crate::types::CollectionRecord;

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

    /// Removes a backup that may be damaged: first its description, then its copies.
    async fn remove(&self, collection: &str, id: &BackupId) -> Result<()> {
        let _turn = self.turn().await?;
        let set = match self.get(collection, id).await {
            Err(error) if error.kind() == ErrorKind::DataLoss => {
                return self.remove_damaged(collection, id).await;
            }
            set => set?,
        };
        // If the removal stops, a later backup finds the rest.
        self.begin(&set.record, id).await?;
        // First, so that no half of a backup is listed.
        self.objects.remove(&self.set_key(collection, id)).await?;
        self.discard(&set.record, id, Duration::ZERO).await?;
        self.end(&set.record.name, id).await
    }

    /// Removes a backup whose description is damaged. The copies are those of a collection that
    /// has the name or has other backups under it. If there is none, the copies of shards and
    /// originals stay.
    async fn remove_damaged(&self, collection: &str, id: &BackupId) -> Result<()> {
        let mut records: Vec<CollectionRecord> =
            self.list(collection).await?.into_iter().map(|set| set.record).collect();
        records.extend(self.view.current().collections.get(collection).cloned());
        records.sort_by(|one, other| one.id.cmp(&other.id));
        records.dedup_by(|one, other| one.id == other.id);
        tracing::warn!(
            collection, %id, collections = records.len(),
            "a snapshot with a damaged description is removed, with its copies of these collections"
        );
        if let Some(first) = records.first() {
            self.begin(first, id).await?;
        }
        self.objects.remove(&self.set_key(collection, id)).await?;
        for record in &records {
            self.discard(record, id, Duration::ZERO).await?;
        }
        self.end(collection, id).await
    }

    /// Removes the snapshot of a shard, if there is one. An object stays for `grace` after it was
    /// written.
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
