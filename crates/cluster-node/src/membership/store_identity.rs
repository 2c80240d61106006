//! Identity of a cluster's store.
//!
//! An object of the store has a random id, which the first node registers in etcd. A node whose
//! store has another id than the cluster in etcd does not join. It would see no write that the
//! other nodes acknowledge, and they would see none of its own. Nor does a node whose store belongs
//! to another cluster of the same etcd: the nodes of both would take each log from each other.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base::{Error, ErrorKind, Result};
use etcd::LeaseId;
use model_store::{SmallObjects, StorePlace};
use object_store::path::Path as Key;
use tokio::sync::OnceCell;
use tracing::{info, warn};

use super::keys::{ClusterKeys, StoreValue};
use super::state::MemberState;
use crate::types::new_id;

/// Name of the object that holds the identity.
pub(crate) const IDENTITY: &str = "identity";
/// Maximum bytes of the object that holds the identity.
pub(crate) const IDENTITY_BYTES_MAX: u64 = 256;
/// Longest time of one request to the store.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// The identity of a store, which is read once.
#[derive(Debug)]
pub(super) struct StoreIdentity {
    objects: SmallObjects,
    id: OnceCell<String>,
    /// True once the log says that the cluster of the store is not checked.
    is_unchecked_logged: AtomicBool,
}

impl StoreIdentity {
    /// Creates the identity of the store in `place`. Does not connect.
    pub(super) fn new(place: StorePlace) -> StoreIdentity {
        StoreIdentity {
            objects: SmallObjects::new(place, REQUEST_TIMEOUT),
            id: OnceCell::new(),
            is_unchecked_logged: AtomicBool::new(false),
        }
    }

    /// Returns the id if it has been read.
    pub(super) fn known(&self) -> Option<&str> {
        self.id.get().map(String::as_str)
    }

    /// Returns the id. Creates it if the store has none.
    ///
    /// # Errors
    /// The store's error; `DataLoss` if the object is damaged.
    async fn id(&self) -> Result<&str> {
        self.id.get_or_try_init(|| self.read_or_create()).await.map(String::as_str)
    }

    /// Reads the identity of the store. Creates it if there is none.
    async fn read_or_create(&self) -> Result<String> {
        let key = self.objects.key(IDENTITY);
        if let Some(bytes) = self.objects.read(&key, IDENTITY_BYTES_MAX).await? {
            return decode(&key, &bytes);
        }
        // Another node may create the object at the same moment, so it is read again.
        self.objects.create(&key, new_id().into_bytes()).await?;
        let created = self.objects.read(&key, IDENTITY_BYTES_MAX).await?;
        let created = created.ok_or_else(|| {
            Error::unavailable(format!(
                "{}: object {key} is missing after its creation",
                self.objects.place().shown()
            ))
        })?;
        decode(&key, &created)
    }
}

impl MemberState {
    /// Registers the store as that of this cluster, or checks that it is. If the user of etcd may
    /// use the keys of the cluster alone, the node joins without the check for other clusters.
    ///
    /// # Errors
    /// `FailedPrecondition` if etcd has the id of another store, or another cluster for this store.
    /// `Unavailable` if etcd or the store does not answer. Otherwise the store's error.
    pub(super) async fn check_store(&self) -> Result<()> {
        let own = self.store.id().await?;
        // First, so that a refused node registers nothing.
        let checked = self.check_cluster_of_store(own).await;
        self.unless_denied(checked)?;
        self.register_store(own).await?;
        let registered = self.register_cluster_of_store(own).await;
        self.unless_denied(registered)
    }

    /// Registers this cluster as that of the store `id`.
    ///
    /// # Errors
    /// As [`MemberState::check_cluster_of_store`].
    async fn register_cluster_of_store(&self, id: &str) -> Result<()> {
        let path = ClusterKeys::cluster_of_store(id);
        let value = self.keys.prefix().as_bytes();
        if self.etcd.create(&path, value, LeaseId(0)).await?.is_none() {
            // Another cluster may have registered it meanwhile.
            self.check_cluster_of_store(id).await?;
        }
        Ok(())
    }

    /// Accepts that the user of etcd may not use the key of the store, and logs it once. Earlier
    /// versions used no keys outside the cluster's, so a user may have the rights for these alone.
    fn unless_denied(&self, checked: Result<()>) -> Result<()> {
        match checked {
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                if !self.store.is_unchecked_logged.swap(true, Ordering::Relaxed) {
                    warn!(
                        node = self.name, %error,
                        "etcd is not searched for another cluster that uses the same store"
                    );
                }
                Ok(())
            }
            checked => checked,
        }
    }

    /// Checks that etcd names no other cluster for the store `id`.
    ///
    /// # Errors
    /// `FailedPrecondition` if it does; etcd's error.
    async fn check_cluster_of_store(&self, id: &str) -> Result<()> {
        let path = ClusterKeys::cluster_of_store(id);
        let Some(entry) = self.etcd.get(&path).await? else { return Ok(()) };
        if entry.value == self.keys.prefix().as_bytes() {
            return Ok(());
        }
        let other = String::from_utf8_lossy(&entry.value);
        Err(Error::precondition(format!(
            "the store {id} at {} belongs to another cluster, whose keys in etcd begin with {other} \
             (key {path}); correct --cluster-name, or choose another --cluster-store; if that cluster \
             does not use this store any more, delete the key; if one of two stores is a copy of the \
             other, give the copy an id of its own, as docs/cluster.md says",
            self.store.objects.place().shown()
        )))
    }

    /// Registers the id of the store in etcd, or compares it with the registered one.
    async fn register_store(&self, own: &str) -> Result<()> {
        let path = self.keys.store();
        // The key belongs to no lease, so it outlives all nodes.
        let value = StoreValue::encode(own);
        if self.etcd.create(&path, &value, LeaseId(0)).await?.is_some() {
            info!(key = path, id = own, "the store of the cluster is registered in etcd");
            return Ok(());
        }
        let Some(entry) = self.etcd.get(&path).await? else {
            return Err(Error::unavailable(format!("the key {path} in etcd was just removed")));
        };
        let registered = StoreValue::decode(&entry).map(|value| value.id);
        let registered = registered.ok_or_else(|| {
            Error::data_loss(format!(
                "the key {path} in etcd has an unreadable value; delete the key, then a node \
                 registers its store again"
            ))
        })?;
        self.compare_store(&registered)
    }

    /// Compares the id that etcd has with the id of this node's store.
    ///
    /// # Errors
    /// `FailedPrecondition` if they differ.
    pub(super) fn compare_store(&self, registered: &str) -> Result<()> {
        let own = self.store.known().unwrap_or("unknown");
        if own == registered {
            return Ok(());
        }
        Err(Error::precondition(format!(
            "the cluster in etcd has the store {registered} (key {}), but {} is the store {own}; \
             choose another --cluster-name, or correct --cluster-store; if the cluster moved to \
             this store, stop all of its nodes and delete the key",
            self.keys.store(),
            self.store.objects.place().shown()
        )))
    }
}

/// Reads the content of the object.
fn decode(key: &Key, bytes: &[u8]) -> Result<String> {
    let text = std::str::from_utf8(bytes).unwrap_or_default().trim();
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return Ok(text.to_owned());
    }
    Err(Error::data_loss(format!(
        "object {key}: its content is not the id of a store; write into it the id that the key \
         of the cluster's store in etcd has"
    )))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use backup::BackupStore;
    use base::ErrorKind;
    use object_store::memory::InMemory;

    use super::*;

    fn in_memory() -> StorePlace {
        StorePlace::new(Arc::new(InMemory::new()), "cluster", "memory")
    }

    #[tokio::test]
    async fn an_id_is_created_once_a_store() {
        let place = in_memory();
        let nodes = [(); 4].map(|()| StoreIdentity::new(place.clone()));
        assert_eq!(nodes[0].known(), None);
        let [first, second, third, fourth] = &nodes;
        let (first, second, third) = tokio::join!(first.id(), second.id(), third.id());
        let first = first.unwrap();
        assert_eq!((second.unwrap(), third.unwrap()), (first, first));
        assert_eq!(fourth.id().await.unwrap(), first);
        assert_eq!(fourth.known(), Some(first));
        assert_ne!(StoreIdentity::new(in_memory()).id().await.unwrap(), first);
    }

    #[tokio::test]
    async fn a_copied_store_has_the_same_id() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().to_str().unwrap();
        let store = BackupStore::open(path, &[]).unwrap();
        let original = StoreIdentity::new(store.place().clone());
        let id = original.id().await.unwrap();
        let place = in_memory();
        let objects = SmallObjects::new(place.clone(), REQUEST_TIMEOUT);
        let bytes = std::fs::read(directory.path().join(IDENTITY)).unwrap();
        assert!(objects.create(&objects.key(IDENTITY), bytes).await.unwrap());
        assert_eq!(StoreIdentity::new(place).id().await.unwrap(), id);
    }

    #[tokio::test]
    async fn a_damaged_identity_is_not_replaced() {
        for content in ["", " \n", "a b", "\u{e9}"] {
            let place = in_memory();
            let objects = SmallObjects::new(place.clone(), REQUEST_TIMEOUT);
            let bytes = content.as_bytes().to_vec();
            objects.create(&objects.key(IDENTITY), bytes).await.unwrap();
            let error = StoreIdentity::new(place).id().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::DataLoss, "{content:?}");
            assert!(error.message().contains("cluster/identity"), "{error}");
        }
        let key = Key::from("identity");
        assert_eq!(decode(&key, b"0a1B\n").unwrap(), "0a1B");
    }
}
