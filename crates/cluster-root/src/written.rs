//! Last entry of each shard that later reads at this root must see.

use std::collections::HashMap;

use cluster_node::{ClusterView, ShardKey};
use parking_lot::Mutex;

/// Last entry of each shard that this root wrote, or that an owner named when it refused a write of
/// this root. Reads wait until their holder has applied it.
#[derive(Debug, Default)]
pub(super) struct WrittenEntries(Mutex<HashMap<ShardKey, u64>>);

impl WrittenEntries {
    /// Records the number of an entry that later reads must see. If the shard is new, forgets the
    /// collections that are not in `view`.
    pub(super) fn record(&self, key: &ShardKey, entry: u64, view: &ClusterView) {
        let mut entries = self.0.lock();
        if let Some(last) = entries.get_mut(key) {
            *last = entry.max(*last);
            return;
        }
        entries.retain(|known, _| view.by_id(&known.collection).is_some());
        entries.insert(key.clone(), entry);
    }

    /// Returns the number of the last entry; 0 if this root knows none.
    pub(super) fn last(&self, key: &ShardKey) -> u64 {
        self.0.lock().get(key).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use cluster_node::CollectionRecord;

    #[test]
    fn the_largest_entry_of_a_live_collection_is_kept() {
        let mut view = ClusterView::default();
        let record = |id: &str| CollectionRecord {
            name: id.to_owned(),
            id: id.to_owned(),
            shards: 2,
            copies: 1,
            create: Value::Null,
            images: None,
        };
        view.collections.insert("a".to_owned(), record("a"));
        let written = WrittenEntries::default();
        let key = ShardKey::new("a", 0);
        written.record(&key, 5, &view);
        written.record(&key, 3, &view);
        assert_eq!((written.last(&key), written.last(&ShardKey::new("a", 1))), (5, 0));
        view.collections.remove("a");
        view.collections.insert("b".to_owned(), record("b"));
        written.record(&ShardKey::new("b", 0), 1, &view);
        assert_eq!((written.last(&key), written.last(&ShardKey::new("b", 0))), (0, 1));
    }
}
