//! Backups that were begun and not finished, such as backups of a node that was killed.
//!
//! `begun/COLLECTION/ID` has the record of the collection, from before the first copy until the
//! backup has its description. So a later backup finds and removes the remains of a stopped one.
//!
//! A node that looks stopped may continue. So a removal first creates `abandoned/COLLECTION/ID`,
//! and then checks that there is no description. A backup writes its description, and then checks
//! that it is not abandoned. At least one of the two sees the other, so no description stays
//! without copies.
//!
//! The age of a note is by the store's clock, because the clocks of nodes may be wrong. The note of
//! a new backup shows the time of that clock.

use std::time::Duration;

use backup::BackupId;
use base::{Error, Result};
use object_store::path::Path as Key;

use super::set::SET_BYTES_MAX;
use super::{BackupSet, ClusterBackups, GRACE, ShardOfSet};
use crate::node::catalog::check_record;
use crate::types::CollectionRecord;

/// Maximum bytes of the record of a collection.
const RECORD_BYTES_MAX: u64 = 1 << 20;

impl ClusterBackups {
    /// Writes the note of a backup that begins.
    ///
    /// # Errors
    /// The store's error.
    pub(super) async fn begin(&self, record: &CollectionRecord, id: &BackupId) -> Result<()> {
        let text = serde_json::to_vec(record)
            .map_err(|error| Error::internal("the record of a collection").caused_by(error))?;
        self.put(&self.begun_key(&record.name, id), text).await
    }

    /// Checks that a backup still has its note and is not abandoned. Otherwise this node was
    /// stopped for about a day, and another node removes the copies.
    ///
    /// # Errors
    /// `Unavailable` if another node removes the copies; the store's error.
    pub(super) async fn check_begun(&self, collection: &str, id: &BackupId) -> Result<()> {
        let abandoned = self.abandoned_key(collection, id);
        let is_abandoned = self.objects.read(&abandoned, RECORD_BYTES_MAX).await?.is_some();
        // The note is read last, because a removal removes the note before its own object.
        let note = self.objects.read(&self.begun_key(collection, id), RECORD_BYTES_MAX).await?;
        if note.is_some() && !is_abandoned {
            return Ok(());
        }
        Err(Error::unavailable(
            "another node removed the copies of this backup, because it began more than a day ago; try again",
        ))
    }

    /// Stores the description of a backup whose copies are complete.
    ///
    /// # Errors
    /// As [`ClusterBackups::check_begun`]; the backup has neither description nor copies then. If
    /// the store fails, it may have both.
    pub(super) async fn describe(&self, set: &BackupSet) -> Result<()> {
        let collection = &set.record.name;
        let key = self.set_key(collection, &set.id);
        self.put(&key, set.encode()?).await?;
        // This node may have been stopped since the last check.
        let begun = self.check_begun(collection, &set.id).await;
        if begun.is_err() {
            self.objects.remove(&key).await?;
            self.discard_failed(&set.record, &set.id).await;
        }
        begun
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
        // A later backup continues with the copies, unless the collection was removed.
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

    /// Removes the copies of stopped backups of a collection. A backup was stopped if it has no
    /// description, and its note was written `grace` or more before the note of the backup `own`.
    /// Returns the number of stopped backups. A damaged note is logged and stays.
    ///
    /// # Errors
    /// `Unavailable` if the store does not list the note of `own`; the store's error.
    pub(super) async fn remove_abandoned(
        &self,
        collection: &str,
        own: &BackupId,
        grace: Duration,
    ) -> Result<usize> {
        let described = self.ids(&format!("sets/{collection}")).await?;
        let notes = self.written_times(&format!("begun/{collection}")).await?;
        let now = *notes.get(own).ok_or_else(|| {
            Error::unavailable(format!("the store does not list the note of backup {own}"))
        })?;
        let mut abandoned = 0;
        for (id, written) in notes {
            let age = now.duration_since(written).unwrap_or_default();
            if id == *own || age < grace {
                continue;
            }
            let note =
                self.objects.read(&self.begun_key(collection, &id), RECORD_BYTES_MAX).await?;
            if let Some(note) = note
                && !described.contains(&id)
            {
                let Some(record) = readable_note(&note, collection, &id) else { continue };
                if self.discard_abandoned(&record, collection, &id).await? {
                    abandoned += 1;
                    tracing::info!(collection, %id, "the files of a stopped backup were removed");
                }
            }
            self.end(collection, &id).await?;
            self.objects.remove(&self.abandoned_key(collection, &id)).await?;
        }
        Ok(abandoned)
    }

    /// Removes the copies of a stopped backup. Returns false if it has a description meanwhile.
    pub(super) async fn discard_abandoned(
        &self,
        record: &CollectionRecord,
        collection: &str,
        id: &BackupId,
    ) -> Result<bool> {
        self.objects.create(&self.abandoned_key(collection, id), Vec::<u8>::new()).await?;
        if self.objects.read(&self.set_key(collection, id), SET_BYTES_MAX).await?.is_some() {
            return Ok(false);
        }
        self.discard(record, id, Duration::ZERO).await?;
        Ok(true)
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

    fn abandoned_key(&self, collection: &str, id: &BackupId) -> Key {
        self.objects.key(&format!("abandoned/{collection}/{id}"))
    }
}

/// As [`read_note`]. Logs a damaged note of the backup `id` and returns `None`.
fn readable_note(text: &[u8], collection: &str, id: &BackupId) -> Option<CollectionRecord> {
    match read_note(text) {
        Ok(record) => Some(record),
        Err(error) => {
            tracing::error!(collection, %id, %error, "the record that a backup began is damaged");
            None
        }
    }
}

fn read_note(text: &[u8]) -> Result<CollectionRecord> {
    let record: CollectionRecord =
        serde_json::from_slice(text).map_err(|error| Error::data_loss(error.to_string()))?;
    check_record(&record)?;
    Ok(record)
}
