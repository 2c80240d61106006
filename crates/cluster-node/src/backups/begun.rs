//! Backups that were begun and not finished, such as backups of a node that was killed.
//!
//! `begun/COLLECTION/ID` has the record of the collection, from before the first copy until the
//! backup has its description. So a later backup finds and removes the remains of a stopped one.

use std::time::{Duration, SystemTime};

use backup::BackupId;
use base::{Error, Result};
use object_store::path::Path as Key;

use super::{ClusterBackups, GRACE, ShardOfSet};
use crate::node::catalog::check_record;
use crate::types::CollectionRecord;

/// Maximum bytes of the record of a collection.
const RECORD_BYTES_MAX: u64 = 1 << 20;

impl ClusterBackups {
    /// Notes that a backup was begun.
    ///
    /// # Errors
    /// The store's error.
    pub(super) async fn begin(&self, record: &CollectionRecord, id: &BackupId) -> Result<()> {
        let text = serde_json::to_vec(record)
            .map_err(|error| Error::internal(format!("the record of a collection: {error}")))?;
        self.put(&self.begun_key(&record.name, id), text).await
    }

    /// Checks that a backup still has its note. Without it, another node has removed the copies of
    /// the backup as those of a stopped one: this node was stopped for a day, or a clock is wrong.
    ///
    /// # Errors
    /// `Unavailable` without the note; the store's error.
    pub(super) async fn check_begun(&self, collection: &str, id: &BackupId) -> Result<()> {
        match self.objects.read(&self.begun_key(collection, id), RECORD_BYTES_MAX).await? {
            Some(_) => Ok(()),
            None => Err(Error::unavailable(
                "another node removed the copies of this backup, because it began more than a day ago by that node's \
                 clock; compare the clocks of the nodes, and try again",
            )),
        }
    }

    /// Removes the note of a backup.
    ///
    /// # Errors
    /// The store's error.
    pub(super) async fn end(&self, collection: &str, id: &BackupId) -> Result<()> {
        self.objects.remove(&self.begun_key(collection, id)).await
    }

    /// Removes the copies of a backup that failed. If that fails too, a later backup does it.
    pub(super) async fn discard_failed(&self, record: &CollectionRecord, id: &BackupId) {
        // A later backup continues with the copies, unless the collection is gone.
        let is_known = self.view.current().by_id(&record.id).is_some();
        let grace = if is_known { GRACE } else { Duration::ZERO };
        let discarded = async {
            self.discard(record, id, grace).await?;
            self.end(&record.name, id).await
        };
        if let Err(error) = discarded.await {
            tracing::warn!(collection = record.name, %id, %error, "the copies of a failed backup are removed later");
        }
    }

    /// Removes the copies of backups of a collection that were begun more than `grace` ago and have
    /// no description. Returns the number of these backups. A damaged note is logged and stays.
    ///
    /// # Errors
    /// The store's error.
    pub(super) async fn remove_abandoned(
        &self,
        collection: &str,
        grace: Duration,
    ) -> Result<usize> {
        let described = self.ids(&format!("sets/{collection}")).await?;
        let mut abandoned = 0;
        for id in self.ids(&format!("begun/{collection}")).await? {
            let age = SystemTime::now().duration_since(id.created().into()).unwrap_or_default();
            if age < grace {
                continue;
            }
            let note =
                self.objects.read(&self.begun_key(collection, &id), RECORD_BYTES_MAX).await?;
            if let Some(note) = note
                && !described.contains(&id)
            {
                let record = match read_note(&note) {
                    Ok(record) => record,
                    Err(error) => {
                        tracing::error!(collection, %id, %error, "the note of a backup is damaged");
                        continue;
                    }
                };
                self.discard(&record, &id, Duration::ZERO).await?;
                abandoned += 1;
                tracing::info!(collection, %id, "the files of a stopped backup were removed");
            }
            self.end(collection, &id).await?;
        }
        Ok(abandoned)
    }

    /// Removes the copies that belong to a backup, and objects that no other one needs. An object
    /// stays for `grace` after it was written.
    ///
    /// # Errors
    /// The store's error.
    pub(super) async fn discard(
        &self,
        record: &CollectionRecord,
        id: &BackupId,
        grace: Duration,
    ) -> Result<()> {
        let collection = &record.name;
        let log = self.objects.place().below(&format!("logs/{collection}/{id}"));
        for part in log.list().await? {
            self.objects.remove(&part.location).await?;
        }
        for key in record.shard_keys() {
            self.delete_snapshot(&ShardOfSet { key: &key, collection, id }, grace).await?;
        }
        self.delete_originals(&record.id, id, grace).await
    }

    fn begun_key(&self, collection: &str, id: &BackupId) -> Key {
        self.objects.key(&format!("begun/{collection}/{id}"))
    }
}

fn read_note(text: &[u8]) -> Result<CollectionRecord> {
    let record: CollectionRecord =
        serde_json::from_slice(text).map_err(|error| Error::data_loss(error.to_string()))?;
    check_record(&record)?;
    Ok(record)
}
