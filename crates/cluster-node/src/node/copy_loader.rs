//! Loads the local copy of a shard from the store.

use std::sync::Arc;

use base::{Error, ErrorKind, Result};
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
    /// entries before it, or a snapshot must be as new as the present copy.
    ///
    /// # Errors
    /// `DataLoss` if the store does not have all data of the shard; the errors of the store and of
    /// the registry.
    pub(super) async fn load(&self, floor: LogFloor, applied: EntryNumber) -> Result<OpenedShard> {
        let missing = self.missing_entry(floor, applied).await?;
        let from = missing.map_or(floor.entry, |_| floor.entry.max(applied));
        let restored = snapshot::restore(&self.services, &self.key, &self.record, from).await?;
        if let Some(named) = restored {
            return Ok(OpenedShard { named, floor });
        }
        if let Some(number) = missing {
            return Err(Error::data_loss(format!(
                "entry {number} of the log of shard {} is missing, and there is no snapshot that is \
                 as new as the local copy; restore the cluster's store from a copy",
                self.key
            )));
        }
        // The restore may have waited long for its turn.
        let floor = self.log.floor().await?;
        if floor.entry > EntryNumber::default() {
            return Err(Error::data_loss(format!(
                "the log of shard {} begins at entry {}, and there is no snapshot of what was before; restore the \
                 cluster's store from a copy",
                self.key, floor.entry
            )));
        }
        self.services.local.remove(&self.key).await?;
        let named = self.services.local.create(&self.key, &self.record).await?;
        let empty = named.clone();
        blocking(move || local::store_position(&empty, FollowPosition::default())).await?;
        Ok(OpenedShard { named, floor })
    }

    /// Returns an entry that the present copy has applied and the log should have, and that is
    /// missing or damaged. Checks the first entry and the last one. In a store that lost its data,
    /// both are missing, and the log looks like a new one.
    ///
    /// # Errors
    /// The store's error.
    async fn missing_entry(
        &self,
        floor: LogFloor,
        applied: EntryNumber,
    ) -> Result<Option<EntryNumber>> {
        let last = applied.0.checked_sub(1).map(EntryNumber);
        let Some(last) = last.filter(|last| *last >= floor.entry) else { return Ok(None) };
        for number in [floor.entry, last] {
            let is_missing = match self.log.read(number).await {
                Ok(Some(_)) => false,
                // A snapshot may have raised the floor since it was read.
                Ok(None) => self.log.floor().await?.entry <= number,
                Err(error) if error.kind() == ErrorKind::DataLoss => true,
                Err(error) => return Err(error),
            };
            if is_missing {
                return Ok(Some(number));
            }
        }
        Ok(None)
    }
}
