//! Collections whose holders this root has seen or waits for.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use cluster_node::{ClusterView, CollectionRecord};
use parking_lot::RwLock;

/// Time in which requests wait for the holders of a collection that this root has never seen with
/// all of its holders. It begins with the first such request.
const UNSEEN_HOLDERS_WAIT_MAX: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug)]
enum Holders {
    /// Each shard had a holder once.
    Seen,
    /// Requests wait until then.
    Awaited(Instant),
}

/// Collections whose holders this root has seen or waits for, by id.
///
/// A new collection appears in the views of the roots at different times, and its holders may
/// appear after the collection. A shard that loses its holders later needs minutes, for which no
/// request waits.
#[derive(Debug, Default)]
pub(super) struct ServedCollections(RwLock<HashMap<String, Holders>>);

impl ServedCollections {
    /// Returns the time until which a request should wait for the holders of a collection; `None`
    /// if it should not wait.
    pub(super) fn wait_end(
        &self,
        record: &CollectionRecord,
        view: &ClusterView,
    ) -> Option<Instant> {
        let known = self.0.read().get(&record.id).copied();
        match known {
            Some(Holders::Seen) => return None,
            Some(Holders::Awaited(end)) if Instant::now() >= end => return None,
            _ => {}
        }
        let mut collections = self.0.write();
        if view.unserved_shards(record) == 0 {
            collections.insert(record.id.clone(), Holders::Seen);
            return None;
        }
        if known.is_none() {
            collections.retain(|id, _| view.by_id(id).is_some());
        }
        let awaited = Holders::Awaited(Instant::now() + UNSEEN_HOLDERS_WAIT_MAX);
        match *collections.entry(record.id.clone()).or_insert(awaited) {
            Holders::Seen => None,
            Holders::Awaited(end) => Some(end),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use cluster_node::NodeInfo;
    use serde_json::Value;

    use super::*;

    fn record(id: &str) -> CollectionRecord {
        CollectionRecord {
            name: id.to_owned(),
            id: id.to_owned(),
            shards: 2,
            copies: 1,
            create: Value::Null,
            images: None,
        }
    }

    fn serve(view: &mut ClusterView, shards: &[u32]) {
        let serving = BTreeMap::from([("a".to_owned(), shards.iter().copied().collect())]);
        let node = NodeInfo { name: "n".to_owned(), serving, ..NodeInfo::default() };
        view.nodes.insert(node.name.clone(), node);
    }

    #[test]
    fn a_collection_is_awaited_until_all_of_its_shards_were_seen() {
        let mut view = ClusterView::default();
        let record = record("a");
        view.collections.insert("a".to_owned(), record.clone());
        let served = ServedCollections::default();
        serve(&mut view, &[0]);
        let end = served.wait_end(&record, &view);
        assert!(end.is_some_and(|end| end <= Instant::now() + UNSEEN_HOLDERS_WAIT_MAX));
        assert_eq!(served.wait_end(&record, &view), end, "the time begins once");
        serve(&mut view, &[0, 1]);
        assert_eq!(served.wait_end(&record, &view), None);
        serve(&mut view, &[1]);
        assert_eq!(served.wait_end(&record, &view), None, "it had its holders");
    }

    #[test]
    fn removed_collections_are_forgotten() {
        let mut view = ClusterView::default();
        let served = ServedCollections::default();
        for id in ["a", "b"] {
            view.collections = BTreeMap::from([(id.to_owned(), record(id))]);
            assert!(served.wait_end(&record(id), &view).is_some());
        }
        assert_eq!(served.0.read().len(), 1);
    }
}
