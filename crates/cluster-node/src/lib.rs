//! A node of a cluster of search servers: carries out the decisions of the crate `cluster`.
//!
//! Writes go to a log in an object store. Each shard of a collection has one log, one writer at a
//! time, and several holders. A holder applies the log in order to an ordinary local collection, so
//! all holders of a shard have the same points. etcd names the nodes that are alive and the writer
//! of each shard. A root sends reads to holders and writes to writers.
//!
//! # Modules
//! The crate `cluster-log` is the log in the store, its writer and its followers. `membership`
//! registers this node in etcd, and reads the other nodes and the owners. `node` follows logs,
//! takes snapshots and answers roots. `backups` copies collections. They share `types`, `changes`
//! and `collection_catalog`; `placement_cache` keeps computed placements of
//! shards. The crates `cluster-root` and `cluster-images` answer clients.
//! `waiting_writes` limits the memory of writes on a root and on an owner.
//!
//! # Invariant
//! A write is acknowledged only once it is in the log in the store and no later owner can have
//! missed it. Nothing else decides whether a write exists: neither etcd nor a local disk.

pub mod backups;
mod changes;
mod collection_catalog;
pub mod membership;
pub mod node;
mod placement_cache;
#[cfg(test)]
mod testing;
mod types;
mod waiting_writes;

/// Exposes parsers to the fuzz targets. Not part of the API.
#[doc(hidden)]
pub mod fuzzing {
    use base::Result;
    use bytes::Bytes;

    use crate::backups::{BackupSet, log_parts};
    use crate::changes::CatalogChanges;
    pub use crate::membership::fuzzing::cluster_view;
    use crate::types::CollectionRecord;

    /// Reads the record of a collection.
    ///
    /// # Errors
    /// `DataLoss` for one that no root writes.
    pub fn collection_record(bytes: &[u8]) -> Result<CollectionRecord> {
        crate::node::catalog::decode_record(bytes)
    }

    /// Reads the changes of the collections. Returns the bytes that they are written as.
    ///
    /// # Errors
    /// `DataLoss` for other bytes.
    pub fn catalog_changes(bytes: &[u8]) -> Result<Vec<u8>> {
        CatalogChanges::decode(bytes)?.encode()
    }

    /// Reads the description of a backup.
    ///
    /// # Errors
    /// `DataLoss` for other bytes, `FailedPrecondition` for those of a newer program.
    pub fn backup_set(bytes: &[u8]) -> Result<BackupSet> {
        BackupSet::decode(bytes)
    }

    /// Reads a part of a log in a backup, whose description has its checksum. Returns the number of
    /// entries.
    ///
    /// # Errors
    /// `DataLoss` for other bytes.
    pub fn log_part(bytes: &Bytes, entries: u64) -> Result<usize> {
        log_parts::decode_part(bytes, entries).map(|entries| entries.len())
    }
}

pub use changes::{CatalogChanges, CollectionChanges};
pub use collection_catalog::CollectionCatalog;
pub use types::{
    ClusterView, CollectionRecord, NodeInfo, Owner, PROTOCOL, PlacementCache, Roles, ShardKey,
    StoreAccess, ViewSource, ViewUpdater, check_known_ids, new_id,
};
pub use waiting_writes::{WaitingMemory, WaitingWrites};
