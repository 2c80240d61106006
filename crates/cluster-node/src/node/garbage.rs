//! Removal of the data of collections that were removed.
//!
//! The record of a collection is removed first, so that nodes forget it. Its logs and snapshots
//! stay for an hour: a node that did not see the removal may still read or write them. One node of
//! the cluster removes them then.
//!
//! A restore writes data before its record. If its node was stopped for an hour, it may add the
//! record at any moment, so its mark is removed first (`backups::prepared`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use base::Result;
use model_store::SmallObjects;
use object_store::{ObjectMeta, ObjectStoreExt};
use tokio_stream::StreamExt;

use super::catalog::StoreCatalog;
use super::services::NodeServices;
use crate::backups::prepared::prepared_key;
use crate::types::ClusterView;

/// Time between two scans for data without a collection.
const SCAN_INTERVAL: Duration = Duration::from_secs(600);
/// Consecutive scans that must find data without a record before it is removed. They take at least
/// an hour.
const SCANS_WITHOUT_RECORD: u32 = 7;
/// Maximum number of objects that are removed at the same time.
const REMOVED_AT_ONCE_MAX: usize = 8;
/// Longest time of a request to the store.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Removes data without a collection until the task is dropped.
pub(super) async fn run(services: Arc<NodeServices>, catalog: Arc<StoreCatalog>) {
    let mut orphans = OrphanCounts::default();
    loop {
        tokio::time::sleep(SCAN_INTERVAL).await;
        let view = services.view.current();
        if !catalog.is_whole() || !view.is_collector(&services.name) {
            orphans = OrphanCounts::default();
            continue;
        }
        match ids(&services).await {
            Ok(found) => {
                let expired = orphans.record_scan(&found, &view);
                remove_without_record(&services, &catalog, expired).await;
            }
            Err(error) => tracing::debug!(%error, "removed collections are looked for later"),
        }
    }
}

/// Removes the data of collections, after the records were read again. If there is any doubt, all
/// data stays.
async fn remove_without_record(
    services: &NodeServices,
    catalog: &StoreCatalog,
    expired: Vec<String>,
) {
    if expired.is_empty() {
        return;
    }
    let objects = SmallObjects::new(services.store.place().clone(), REQUEST_TIMEOUT);
    match without_record(&objects, || catalog.all_ids(), expired).await {
        Ok(ids) => {
            for id in ids {
                remove(services, &id).await;
            }
        }
        Err(error) => {
            tracing::warn!(%error, "the data of removed collections cannot be deleted now")
        }
    }
}

/// Returns the collections of `ids` that have no record and get none. Their marks are removed.
/// `recorded` reads the ids of all records.
///
/// # Errors
/// The store's error; the error of `recorded`.
async fn without_record<F>(
    objects: &SmallObjects,
    recorded: impl Fn() -> F,
    mut ids: Vec<String>,
) -> Result<Vec<String>>
where
    F: Future<Output = Result<BTreeSet<String>>>,
{
    let known = recorded().await?;
    ids.retain(|id| !known.contains(id));
    for id in &ids {
        objects.remove(&prepared_key(objects, id)).await?;
    }
    // A restore whose mark was there until now may have added its record.
    let known = recorded().await?;
    ids.retain(|id| !known.contains(id));
    Ok(ids)
}

/// Consecutive scans that found data without a collection, by the id of the collection.
#[derive(Debug, Default)]
struct OrphanCounts(BTreeMap<String, u32>);

impl OrphanCounts {
    /// Counts a scan that found data of the collections `ids`. Returns the ids whose data can be
    /// removed.
    fn record_scan(&mut self, ids: &BTreeSet<String>, view: &ClusterView) -> Vec<String> {
        let orphans = ids.iter().filter(|id| view.by_id(id).is_none());
        let counts = orphans.map(|id| (id.clone(), self.0.get(id).copied().unwrap_or(0) + 1));
        self.0 = counts.collect();
        let expired = self.0.iter().filter(|count| *count.1 >= SCANS_WITHOUT_RECORD);
        expired.map(|count| count.0.clone()).collect()
    }
}

/// Returns the ids of the collections that have data in the store.
async fn ids(services: &NodeServices) -> Result<BTreeSet<String>> {
    let objects = SmallObjects::new(services.store.place().clone(), REQUEST_TIMEOUT);
    Ok(objects.directories("data").await?.into_iter().collect())
}

/// Removes all data of a collection. Data that remains is removed after a later scan.
async fn remove(services: &NodeServices, id: &str) {
    let place = services.store.place();
    let prefix = place.key(&format!("data/{id}"));
    let mut objects = place.objects().list(Some(&prefix));
    let mut removed = 0_u64;
    loop {
        let mut batch: Vec<ObjectMeta> = Vec::new();
        while batch.len() < REMOVED_AT_ONCE_MAX {
            match objects.next().await {
                Some(Ok(object)) => batch.push(object),
                Some(Err(error)) => {
                    tracing::debug!(id, %error, "the data of a removed collection is removed later");
                    return;
                }
                None => break,
            }
        }
        if batch.is_empty() {
            break;
        }
        let mut running = tokio::task::JoinSet::new();
        for object in batch {
            let store = place.objects().clone();
            running.spawn(async move { store.delete(&object.location).await.is_ok() });
        }
        while let Some(done) = running.join_next().await {
            removed += u64::from(done.unwrap_or(false));
        }
    }
    if removed > 0 {
        tracing::info!(id, removed, "the data of a removed collection was removed");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use model_store::StorePlace;
    use object_store::memory::InMemory;
    use serde_json::Value;

    use super::*;
    use crate::collection_catalog::CollectionCatalog;
    use crate::types::{CollectionRecord, NodeInfo, Roles, ViewUpdater};

    fn ids(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn data_is_removed_after_enough_scans_without_a_record() {
        let mut view = ClusterView::default();
        let record = CollectionRecord {
            name: "kept".to_owned(),
            id: "1".to_owned(),
            shards: 1,
            copies: 1,
            create: Value::Null,
            images: None,
        };
        view.collections.insert("kept".to_owned(), record);
        let mut orphans = OrphanCounts::default();
        for _ in 1..SCANS_WITHOUT_RECORD {
            assert!(orphans.record_scan(&ids(&["1", "2"]), &view).is_empty());
        }
        assert_eq!(orphans.record_scan(&ids(&["1", "2"]), &view), ["2"]);
        // The count begins again if a record returns or the data is removed.
        assert!(orphans.record_scan(&ids(&["1"]), &view).is_empty());
        assert!(orphans.record_scan(&ids(&["1", "2"]), &view).is_empty());
    }

    #[tokio::test]
    async fn a_late_record_needs_its_mark() {
        let place = StorePlace::new(Arc::new(InMemory::new()), "c", "memory");
        let catalog = StoreCatalog::new(place.clone(), ViewUpdater::new());
        let objects = SmallObjects::new(place, REQUEST_TIMEOUT);
        let record = r#"{"name":"kept","id":"1","shards":1,"copies":1,"create":null}"#;
        let record: CollectionRecord = serde_json::from_str(record).unwrap();
        assert!(CollectionCatalog::create(&catalog, &record).await.unwrap());
        for id in ["1", "2"] {
            assert!(objects.create(&prepared_key(&objects, id), Vec::<u8>::new()).await.unwrap());
        }
        let expired = vec!["1".to_owned(), "2".to_owned()];
        let recorded = || catalog.all_ids();
        assert_eq!(without_record(&objects, recorded, expired).await.unwrap(), ["2"]);
        let mut marked = Vec::new();
        for id in ["1", "2"] {
            let mark = objects.read(&prepared_key(&objects, id), 1).await.unwrap();
            marked.push(mark.is_some());
        }
        assert_eq!(marked, [true, false]);
    }

    #[tokio::test]
    async fn a_record_that_is_added_meanwhile_keeps_its_data() {
        let place = StorePlace::new(Arc::new(InMemory::new()), "c", "memory");
        let objects = SmallObjects::new(place, REQUEST_TIMEOUT);
        let reads = AtomicUsize::new(0);
        let recorded = || {
            let is_added = reads.fetch_add(1, Ordering::Relaxed) > 0;
            std::future::ready(Ok(ids(if is_added { &["1"] } else { &[] })))
        };
        let expired = vec!["1".to_owned(), "2".to_owned()];
        assert_eq!(without_record(&objects, recorded, expired).await.unwrap(), ["2"]);
    }

    #[test]
    fn one_node_with_the_role_ingest_removes_data() {
        let mut view = ClusterView::default();
        for (name, ingest) in [("a", false), ("b", true), ("c", true)] {
            let node = NodeInfo {
                name: name.to_owned(),
                roles: Roles { ingest, ..Roles::default() },
                weight: 1,
                ..NodeInfo::default()
            };
            view.nodes.insert(name.to_owned(), node);
        }
        let collectors: Vec<&str> =
            ["a", "b", "c"].into_iter().filter(|name| view.is_collector(name)).collect();
        assert_eq!(collectors, ["b"]);
    }
}
