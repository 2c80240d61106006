//! Original images in the backups of a collection.
//!
//! Below `originals/COLLECTION-ID` in the store of backups, each part has a directory, as
//! [`backup::back_up_objects`] writes it. A part has the originals of the images whose ids begin
//! with the same two characters. Backups of a collection share the originals that they have in
//! common.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use backup::{BackupContext, BackupId, BackupList, BackupProgress, BackupStore, ObjectDirectory};
use base::{Error, Result};
use model_store::SmallObjects;
use os::{Pacer, Rate};
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

use super::remove::delete_if_there;
use super::{ClusterBackups, REQUEST_TIMEOUT};
use crate::node::local::{at_low_priority, blocking};
use crate::node::services::shard_log;
use crate::node::snapshot::StopTransferOnDrop;
use crate::types::{CollectionRecord, ShardKey};

/// Parts that are copied at the same time.
const PARTS_AT_ONCE: usize = 8;
/// Maximum parts of a collection: two hexadecimal digits.
pub(super) const PARTS_MAX: usize = 256;
/// Maximum characters of the name of a part.
const PART_CHARS_MAX: usize = 8;

/// Original images of a backup.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OriginalsBackup {
    /// Number of originals.
    pub count: u64,
    /// Bytes of all originals.
    pub bytes: u64,
    /// Names of the parts.
    pub parts: Vec<String>,
}

impl OriginalsBackup {
    /// Checks the names of the parts, which become parts of keys.
    ///
    /// # Errors
    /// `DataLoss` for a name that no backup writes.
    pub(super) fn check(&self) -> Result<()> {
        let is_name = |part: &String| {
            (1..=PART_CHARS_MAX).contains(&part.len())
                && part.bytes().all(|byte| byte.is_ascii_alphanumeric())
        };
        if self.parts.len() > PARTS_MAX || !self.parts.iter().all(is_name) {
            return Err(Error::data_loss(
                "the description of the backup has wrong names of originals",
            ));
        }
        Ok(())
    }
}

/// A part that is copied between a collection and a backup.
#[derive(Clone)]
struct PartCopy {
    direction: CopyDirection,
    /// Originals of the collection.
    collection: BackupStore,
    /// Backups of originals.
    backups: BackupStore,
    id: BackupId,
    pacer: Arc<Pacer>,
    progress: Arc<BackupProgress>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CopyDirection {
    BackUp,
    Restore,
}

impl PartCopy {
    /// Copies a part on a thread that may block.
    async fn run(self, part: String) -> Result<BackupList> {
        let work = move || {
            let PartCopy { collection, backups, id, pacer, progress, .. } = &self;
            let context = BackupContext { store: backups, pacer, progress };
            let directory = ObjectDirectory { store: collection, name: &part };
            backup::block_on(async {
                match self.direction {
                    CopyDirection::BackUp => {
                        backup::back_up_objects(&context, directory, &part, id).await
                    }
                    CopyDirection::Restore => {
                        backup::restore_objects(&context, &part, id, directory).await
                    }
                }
            })
        };
        at_low_priority("copying original images", work).await
    }
}

impl ClusterBackups {
    /// Backs up the originals of a collection of images.
    ///
    /// # Errors
    /// `TooLarge` for too many originals; `DataLoss` if the cluster's store is a directory that is
    /// not mounted any more; the errors of the stores.
    pub(super) async fn back_up_originals(
        &self,
        record: &CollectionRecord,
        id: &BackupId,
    ) -> Result<OriginalsBackup> {
        let collection = self.originals_of(record);
        let parts = self.parts_of(record).await?;
        let copy = self.part_copy(CopyDirection::BackUp, collection, &record.id, id);
        let lists = copy_parts(&copy, parts).await?;
        // Checked after the listings: a directory that is not mounted any more has no originals.
        shard_log(&self.cluster, &ShardKey::new(&record.id, 0)).check_marker().await?;
        let mut originals = OriginalsBackup::default();
        for list in lists {
            originals.count += list.files.len() as u64;
            originals.bytes += list.bytes();
            originals.parts.push(list.collection);
        }
        originals.parts.sort();
        Ok(originals)
    }

    /// Writes the originals of a backup of the collection `from` as the originals of the new
    /// collection `to`.
    ///
    /// # Errors
    /// `DataLoss` for damaged or missing originals; the errors of the stores.
    pub(super) async fn restore_originals(
        &self,
        originals: &OriginalsBackup,
        from: &CollectionRecord,
        id: &BackupId,
        to: &CollectionRecord,
    ) -> Result<()> {
        let collection = self.originals_of(to);
        let copy = self.part_copy(CopyDirection::Restore, collection, &from.id, id);
        copy_parts(&copy, originals.parts.clone()).await.map(drop)
    }

    /// Removes a backup of originals. Originals that no other backup of the collection needs are
    /// removed too, unless they are younger than `grace`.
    ///
    /// # Errors
    /// The store's error.
    pub(super) async fn delete_originals(
        &self,
        collection: &str,
        id: &BackupId,
        grace: Duration,
    ) -> Result<()> {
        let parts = self.objects.directories(&format!("originals/{collection}")).await?;
        let store = self.originals_backups(collection);
        let id = id.clone();
        let work = move || {
            // Removals are not paced.
            let pacer = Pacer::new(Rate::unlimited());
            let progress = BackupProgress::default();
            let context = BackupContext { store: &store, pacer: &pacer, progress: &progress };
            backup::block_on(async {
                for part in &parts {
                    delete_if_there(&context, part, &id, grace).await?;
                }
                Ok(())
            })
        };
        blocking(work).await
    }

    /// Returns the names of the parts of a collection's originals.
    async fn parts_of(&self, record: &CollectionRecord) -> Result<Vec<String>> {
        let objects = SmallObjects::new(self.cluster.place().clone(), REQUEST_TIMEOUT);
        let names = objects.directories(&format!("data/{}", record.originals_space())).await?;
        if names.len() <= PARTS_MAX {
            Ok(names)
        } else {
            Err(Error::data_loss(format!(
                "the originals of the collection have {} directories, and at most {PARTS_MAX} are known",
                names.len()
            )))
        }
    }

    fn part_copy(
        &self,
        direction: CopyDirection,
        collection: BackupStore,
        backed_up: &str,
        id: &BackupId,
    ) -> PartCopy {
        PartCopy {
            direction,
            collection,
            backups: self.originals_backups(backed_up),
            id: id.clone(),
            pacer: self.pacer.clone(),
            progress: Arc::default(),
        }
    }

    /// Returns the originals of a collection in the cluster's store.
    fn originals_of(&self, record: &CollectionRecord) -> BackupStore {
        self.cluster.below(&format!("data/{}", record.originals_space()))
    }

    /// Returns the backups of the originals of the collection with the id `collection`.
    fn originals_backups(&self, collection: &str) -> BackupStore {
        self.originals.below(collection)
    }
}

/// Copies parts, some at the same time. If the future is dropped, the threads end at their next
/// step.
async fn copy_parts(copy: &PartCopy, parts: Vec<String>) -> Result<Vec<BackupList>> {
    let _stop = StopTransferOnDrop(copy.progress.clone());
    let mut waiting = VecDeque::from(parts);
    let mut running = JoinSet::new();
    let mut lists = Vec::new();
    loop {
        while running.len() < PARTS_AT_ONCE
            && let Some(part) = waiting.pop_front()
        {
            running.spawn(copy.clone().run(part));
        }
        let Some(done) = running.join_next().await else { return Ok(lists) };
        lists.push(done.map_err(|error| Error::internal(error.to_string()))??);
    }
}

#[cfg(test)]
mod tests {
    use base::ErrorKind;

    use super::*;

    #[test]
    fn names_of_parts_are_checked() {
        let check = |parts: &[&str]| {
            let parts = parts.iter().map(|part| (*part).to_owned()).collect();
            OriginalsBackup { parts, ..OriginalsBackup::default() }.check()
        };
        assert!(check(&["0a", "ff"]).is_ok());
        for wrong in ["", "..", "a/b", "123456789", "é"] {
            assert_eq!(check(&["0a", wrong]).unwrap_err().kind(), ErrorKind::DataLoss, "{wrong}");
        }
        assert!(check(&["0a"; PARTS_MAX + 1]).is_err());
    }
}
