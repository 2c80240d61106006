//! Marks of new collections whose data is written before their record.
//!
//! `data/ID/prepared` is there from the first write of a restore or an import. The removal of data
//! without a record removes this mark first, and then reads the records again. A node that adds the
//! record reads the mark again afterwards. A node may have been stopped for hours before it adds
//! the record. It then finds that the mark is missing, or the removal finds its record and keeps
//! the data.

use base::{Error, Result};
use model_store::SmallObjects;
use object_store::path::Path as Key;

use super::{ClusterBackups, REQUEST_TIMEOUT};
use crate::node::full_shard::check_new_holders;
use crate::types::CollectionRecord;

/// Maximum bytes of a mark, which is empty.
const MARK_BYTES_MAX: u64 = 1024;

/// Returns the key of the mark of the collection `id`. `objects` are those of the cluster's store.
pub(crate) fn prepared_key(objects: &SmallObjects, id: &str) -> Key {
    objects.key(&format!("data/{id}/prepared"))
}

impl ClusterBackups {
    /// Marks a new collection whose data is about to be written.
    ///
    /// # Errors
    /// `StorageFull` with retry advice if all holders of a shard would have full disks: none of
    /// them could apply the data. The store's error.
    pub(super) async fn prepare(&self, record: &CollectionRecord) -> Result<()> {
        check_new_holders(&self.view.current(), record)?;
        let objects = self.cluster_objects();
        objects.create(&prepared_key(&objects, &record.id), Vec::<u8>::new()).await.map(drop)
    }

    /// Checks that the data of a new collection is there. The caller checks it before and after it
    /// adds the record to the catalog.
    ///
    /// # Errors
    /// `FailedPrecondition` if the data is being removed; the store's error.
    pub async fn check_prepared(&self, record: &CollectionRecord) -> Result<()> {
        let objects = self.cluster_objects();
        if objects.read(&prepared_key(&objects, &record.id), MARK_BYTES_MAX).await?.is_some() {
            return Ok(());
        }
        Err(Error::precondition(format!(
            "this node was stopped for more than an hour before it added collection \"{}\", and its data was \
             removed meanwhile; recover the snapshot again",
            record.name
        )))
    }

    fn cluster_objects(&self) -> SmallObjects {
        SmallObjects::new(self.cluster.place().clone(), REQUEST_TIMEOUT)
    }
}
