//! Loads the local copy of a shard from the store.

use std::sync::Arc;

use base::{Error, Result};
use cluster::EntryNumber;
use cluster_log::{FollowPosition, LogFloor, ShardLog};
use search::registry::NamedCollection;

use super::local::{self, blocking};
use super::services::NodeServices;
use super::snapshot;
use crate::types::{CollectionRecord, ShardKey};

/// An open local collection, and the floor of its log.
pub(super) struct OpenedShard {
    pub(super) named: Arc<NamedCollection>,
    pub(super) floor: LogFloor,
}

/// Source of the local copy of a shard.
pub(super) struct CopyLoader {
    pub(super) services: Arc<NodeServices>,
    pub(super) record: CollectionRecord,
    pub(super) key: ShardKey,
    pub(super) log: ShardLog,
}

impl CopyLoader {
    /// Loads the local collection from the store: from a snapshot, or an empty one if the log has
    /// all entries. It takes the place of the present one, which stays until then, and after an
    /// error.
    ///
    /// `applied` is the next entry of the present copy; 0 without a copy. The log must have the
    /// entries before it, if there is no snapshot.
    ///
    /// # Errors
    /// `DataLoss` if the store does not have all data of the shard; the errors of the store and of
    /// the registry.
    pub(super) async fn load(&self, floor: LogFloor, applied: EntryNumber) -> Result<OpenedShard> {
        let restored = snapshot::restore(&self.services, &self.key, &self.record, floor).await?;
        if let Some(named) = restored {
            return Ok(OpenedShard { named, floor });
        }
        if floor.entry > EntryNumber::default() {
            return Err(Error::data_loss(format!(
                "the log of shard {} begins at entry {}, and there is no snapshot of what was before; restore the \
                 cluster's store from a copy",
                self.key, floor.entry
            )));
        }
        self.check_log(applied).await?;
        self.services.local.remove(&self.key).await?;
        let named = self.services.local.create(&self.key, &self.record).await?;
        let empty = named.clone();
        blocking(move || local::store_position(&empty, FollowPosition::default())).await?;
        Ok(OpenedShard { named, floor })
    }

    /// Checks that the log begins at entry 0 and has the last entry that the present copy has
    /// applied. In a store that lost its data, both are missing, and the log looks like a new one.
    ///
    /// # Errors
    /// `DataLoss` that names the missing entry; the store's error.
    async fn check_log(&self, applied: EntryNumber) -> Result<()> {
        let Some(last) = applied.0.checked_sub(1) else { return Ok(()) };
        for number in [EntryNumber::default(), EntryNumber(last)] {
            if self.log.read(number).await?.is_none() {
                return Err(Error::data_loss(format!(
                    "entry {number} of the log of shard {} is missing, and there is no snapshot; restore the \
                     cluster's store from a copy",
                    self.key
                )));
            }
        }
        Ok(())
    }
}
