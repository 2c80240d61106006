//! Announcements of new entries to the holders of their shards, which then read the log at once
//! instead of at their next poll. A lost announcement costs freshness only.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cluster::EntryNumber;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use super::services::NodeServices;
use crate::types::ShardKey;

/// Time in which entries are gathered for one announcement.
const GATHER: Duration = Duration::from_millis(5);
/// Longest time of one announcement.
const TIMEOUT: Duration = Duration::from_secs(1);
/// Path of the announcements.
pub(super) const PATH: &str = "/cluster/v1/appended";

/// Body of an announcement: the newest entry of each shard, by the id of the collection.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct AppendedEntries {
    pub(super) entries: BTreeMap<String, BTreeMap<u32, u64>>,
}

/// Announces entries that this node appended.
#[derive(Clone)]
pub(super) struct EntryHints {
    pending: Arc<PendingHints>,
}

#[derive(Default)]
struct PendingHints {
    /// Newest entry of each shard that is not announced yet; bounded by the number of shards.
    entries: Mutex<BTreeMap<ShardKey, EntryNumber>>,
    wake: Notify,
}

impl EntryHints {
    pub(super) fn new() -> EntryHints {
        EntryHints { pending: Arc::default() }
    }

    /// Announces the entry soon.
    pub(super) fn appended(&self, key: &ShardKey, entry: EntryNumber) {
        let mut entries = self.pending.entries.lock();
        let newest = entries.entry(key.clone()).or_insert(entry);
        *newest = entry.max(*newest);
        drop(entries);
        self.pending.wake.notify_one();
    }

    /// Sends announcements until the task is dropped.
    pub(super) async fn run(self, services: Arc<NodeServices>) {
        loop {
            self.pending.wake.notified().await;
            tokio::time::sleep(GATHER).await;
            let entries = std::mem::take(&mut *self.pending.entries.lock());
            for (address, body) in by_holder(&services, &entries) {
                let Ok(body) = serde_json::to_vec(&body) else { continue };
                let client = services.client.clone();
                tokio::spawn(async move {
                    let sent = client.post(&address, PATH, Bytes::from(body), TIMEOUT).await;
                    if let Err(error) = sent {
                        tracing::debug!(address, %error, "a holder reads the log at its next poll");
                    }
                });
            }
        }
    }
}

/// Returns what to announce to each node that follows one of the logs, by its address.
fn by_holder(
    services: &NodeServices,
    entries: &BTreeMap<ShardKey, EntryNumber>,
) -> BTreeMap<String, AppendedEntries> {
    let view = services.view.current();
    let mut sent: BTreeMap<String, AppendedEntries> = BTreeMap::new();
    for (key, entry) in entries {
        let copies = view.by_id(&key.collection).map_or(0, |record| record.copies);
        let wanted = view.wanted_holders(key, copies);
        for node in view.nodes.values() {
            if node.serves(key) || wanted.contains(&node.name) {
                let body = sent.entry(node.address.clone()).or_default();
                let shards = body.entries.entry(key.collection.to_string()).or_default();
                shards.insert(key.shard.0, entry.0);
            }
        }
    }
    sent
}
