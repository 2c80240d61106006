//! The collections of a cluster, as a root reads and changes them.

use api_qdrant::BoxFuture;
use base::Result;

use crate::changes::CatalogChanges;
use crate::types::CollectionRecord;

/// The records of the cluster's collections.
pub trait CollectionCatalog: Send + Sync {
    /// Creates a collection. Returns false if there is one of this name.
    ///
    /// # Errors
    /// The store's error.
    fn create<'a>(&'a self, record: &'a CollectionRecord) -> BoxFuture<'a, Result<bool>>;

    /// Removes a collection. Returns false if there is none of this name.
    ///
    /// # Errors
    /// The store's error.
    fn remove<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<bool>>;

    /// Removes a collection unless the one of its name has another id. Returns false if it is not
    /// there.
    ///
    /// # Errors
    /// The store's error; `DataLoss` for a record that cannot be read, which stays.
    fn remove_own<'a>(&'a self, record: &'a CollectionRecord) -> BoxFuture<'a, Result<bool>>;

    /// Returns true if the store has this record under its name. Another root may have removed the
    /// collection a moment ago, and created another one of its name.
    ///
    /// # Errors
    /// The store's error.
    fn is_current<'a>(&'a self, record: &'a CollectionRecord) -> BoxFuture<'a, Result<bool>>;

    /// Makes a change of the newest aliases and changes of collections. `change` may be called
    /// several times, if other nodes make changes too. Returns the number of the version, which
    /// grows with each change.
    ///
    /// # Errors
    /// Errors of `change`, and the store's.
    fn change<'a>(
        &'a self,
        change: &'a (dyn Fn(&CatalogChanges) -> Result<CatalogChanges> + Send + Sync),
    ) -> BoxFuture<'a, Result<u64>>;

    /// Returns true once the collections were read from the store. Before that, an absent
    /// collection may still exist.
    fn is_loaded(&self) -> bool;

    /// Reads the collections once more, and returns when the view has them. Ends without them if
    /// the store fails.
    fn read_again(&self) -> BoxFuture<'_, ()>;
}
