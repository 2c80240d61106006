//! Announcements of new entries to the holders of their shards. Small entries are passed on with
//! the announcement, so holders apply them without a read of the log. For larger entries, holders
//! receive only the number, and read the log at once instead of at their next poll. A lost
//! announcement costs freshness only.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use base::{Error, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use cluster::{EntryBody, EntryNumber, LogEntry};
use cluster_log::Batch;
use cluster_log::codec::{decode_entry, encode_entry};
use http_client::HttpAnswer;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use super::services::NodeServices;
use crate::types::ShardKey;

/// Time in which entries are gathered for one announcement.
const GATHER: Duration = Duration::from_millis(2);
/// Longest time of one announcement.
const TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum announcements to one node at the same time. With answers within 64 ms, none is left out.
const RUNNING_MAX: usize = 32;
/// Maximum bytes of an entry that is passed on.
const PASSED_BYTES_MAX: usize = 64 << 10;
/// Maximum entries of a shard that are passed on with one announcement.
const PASSED_MAX: usize = 8;
/// Maximum nodes that are remembered because they refuse this node's announcements.
const REFUSING_MAX: usize = 1024;
/// Maximum characters of a node's answer in the log.
const ANSWER_CHARS_MAX: usize = 200;
/// Path of the announcements.
pub(super) const PATH: &str = "/cluster/v1/appended";

/// Body of an announcement, by the id of the collection and by shard.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct AppendedEntries {
    /// The newest entry.
    pub(super) entries: BTreeMap<String, BTreeMap<u32, u64>>,
    /// Entries that are passed on, in base64, by number.
    #[serde(default)]
    passed: BTreeMap<String, BTreeMap<u32, BTreeMap<u64, String>>>,
}

impl AppendedEntries {
    /// Takes the entries of a shard that are passed on. One that cannot be read is left out: the
    /// holder reads the log.
    pub(super) fn take_passed(
        &mut self,
        collection: &str,
        shard: u32,
    ) -> BTreeMap<EntryNumber, LogEntry<Batch>> {
        let texts = self.passed.get_mut(collection).and_then(|shards| shards.remove(&shard));
        let read = |(number, text): (u64, String)| match decoded(&text) {
            Ok(entry) => Some((EntryNumber(number), entry)),
            Err(error) => {
                tracing::warn!(
                    collection, shard, number, %error,
                    "an entry that the owner sent cannot be read; it is read from the store"
                );
                None
            }
        };
        texts.unwrap_or_default().into_iter().filter_map(read).collect()
    }
}

fn decoded(text: &str) -> Result<LogEntry<Batch>> {
    let bytes = STANDARD.decode(text);
    let bytes = bytes.map_err(|error| Error::invalid("it is not base64").caused_by(error))?;
    decode_entry(&Bytes::from(bytes))
}

/// Announces entries that this node appended.
#[derive(Clone)]
pub(super) struct EntryHints {
    pending: Arc<PendingHints>,
}

/// Entries that are not announced yet, at most one for each shard.
#[derive(Default)]
struct PendingHints {
    shards: Mutex<BTreeMap<ShardKey, PendingShard>>,
    wake: Notify,
}

#[derive(Default)]
struct PendingShard {
    newest: EntryNumber,
    passed: BTreeMap<u64, String>,
}

impl EntryHints {
    pub(super) fn new() -> EntryHints {
        EntryHints { pending: Arc::default() }
    }

    /// Announces an acknowledged entry soon.
    pub(super) fn appended(&self, key: &ShardKey, number: EntryNumber, entry: &LogEntry<Batch>) {
        let text = encoded(entry);
        let mut shards = self.pending.shards.lock();
        let pending = shards.entry(key.clone()).or_default();
        pending.newest = number.max(pending.newest);
        if let Some(text) = text.filter(|_| pending.passed.len() < PASSED_MAX) {
            pending.passed.insert(number.0, text);
        }
        drop(shards);
        self.pending.wake.notify_one();
    }

    /// Sends announcements until the task is dropped.
    pub(super) async fn run(self, services: Arc<NodeServices>) {
        let refusing = Arc::<RefusingNodes>::default();
        let running = Arc::<RunningAnnouncements>::default();
        loop {
            self.pending.wake.notified().await;
            tokio::time::sleep(GATHER).await;
            let shards = std::mem::take(&mut *self.pending.shards.lock());
            for (address, body) in by_holder(&services, &shards) {
                let Some(announcement) = running.begin(&address) else {
                    tracing::debug!(address, "a slow holder reads the log at its next poll");
                    continue;
                };
                let Ok(body) = serde_json::to_vec(&body) else { continue };
                let client = services.client.clone();
                let refusing = refusing.clone();
                tokio::spawn(async move {
                    let _announcement = announcement;
                    match client
                        .post_for_small_answer(&address, PATH, Bytes::from(body), TIMEOUT)
                        .await
                    {
                        Ok(answer) => refusing.log(&address, &answer),
                        Err(error) => log_late(&address, &error),
                    }
                });
            }
        }
    }
}

/// Logs that a node has not received an announcement.
fn log_late(address: &str, error: &Error) {
    tracing::debug!(address, %error, "a holder reads the log at its next poll");
}

/// Announcements that wait for an answer, by the address of their node. A node that does not answer
/// would otherwise hold the entries of a second.
#[derive(Default)]
struct RunningAnnouncements(Mutex<BTreeMap<String, usize>>);

impl RunningAnnouncements {
    /// Begins an announcement. Returns `None` if too many to this node wait.
    fn begin(self: &Arc<Self>, address: &str) -> Option<RunningAnnouncement> {
        let mut running = self.0.lock();
        let count = running.entry(address.to_owned()).or_default();
        if *count >= RUNNING_MAX {
            return None;
        }
        *count += 1;
        Some(RunningAnnouncement { running: self.clone(), address: address.to_owned() })
    }
}

/// An announcement that waits for an answer.
struct RunningAnnouncement {
    running: Arc<RunningAnnouncements>,
    address: String,
}

impl Drop for RunningAnnouncement {
    fn drop(&mut self) {
        let mut running = self.running.0.lock();
        let Some(count) = running.get_mut(&self.address) else { return };
        *count -= 1;
        if *count == 0 {
            running.remove(&self.address);
        }
    }
}

/// Addresses of the nodes that refuse this node's announcements: it has another key, or no TLS.
#[derive(Default)]
struct RefusingNodes(Mutex<BTreeSet<String>>);

impl RefusingNodes {
    /// Logs the answer of a node that begins to refuse this node's requests. Such a node and this
    /// one cannot use each other's shards, and nothing else shows that.
    fn log(&self, address: &str, answer: &HttpAnswer) {
        let status = answer.status;
        if self.record(address, status) {
            let text = String::from_utf8_lossy(&answer.body);
            let text: String = text.chars().take(ANSWER_CHARS_MAX).collect();
            let remedy = match status {
                401 => "start all nodes of the cluster with the same --api-key",
                _ => {
                    "the answer has the reason, such as --tls-cert or --allowed-hosts of that node"
                }
            };
            tracing::warn!(
                address,
                status,
                answer = text,
                remedy,
                "a node refuses the requests of this node, so writes to some shards fail"
            );
        } else if status >= 400 {
            tracing::debug!(address, status, "a holder reads the log at its next poll");
        }
    }

    /// Records the status of a node's answer. Returns true if the node begins to refuse requests.
    fn record(&self, address: &str, status: u16) -> bool {
        let mut refusing = self.0.lock();
        if !matches!(status, 400 | 401 | 403) {
            // Other errors do not show that the node accepts requests. If they alternate with
            // refusals, there is one warning.
            if status < 400 {
                refusing.remove(address);
            }
            return false;
        }
        if refusing.len() >= REFUSING_MAX {
            refusing.clear();
        }
        refusing.insert(address.to_owned())
    }
}

/// Returns the text of an entry that is passed on; `None` if it is large.
fn encoded(entry: &LogEntry<Batch>) -> Option<String> {
    let EntryBody::Writes(batch) = &entry.body else { return None };
    let is_small = batch.bytes() <= PASSED_BYTES_MAX;
    let bytes = is_small.then(|| encode_entry(entry).ok()).flatten()?;
    Some(STANDARD.encode(bytes))
}

/// Returns the announcements for each node that follows one of the logs, by the node's address.
fn by_holder(
    services: &NodeServices,
    shards: &BTreeMap<ShardKey, PendingShard>,
) -> BTreeMap<String, AppendedEntries> {
    let view = services.view.current();
    let mut sent: BTreeMap<String, AppendedEntries> = BTreeMap::new();
    for (key, pending) in shards {
        let copies = view.by_id(&key.collection).map_or(0, |record| record.copies);
        let wanted = view.wanted_holders(key, copies);
        for node in view.nodes.values() {
            if node.serves(key) || wanted.contains(&node.name) {
                let AppendedEntries { entries, passed } =
                    sent.entry(node.address.clone()).or_default();
                let collection = key.collection.to_string();
                let newest = entries.entry(collection.clone()).or_default();
                newest.insert(key.shard.0, pending.newest.0);
                if !pending.passed.is_empty() {
                    let shards = passed.entry(collection).or_default();
                    shards.insert(key.shard.0, pending.passed.clone());
                }
            }
        }
    }
    sent
}

#[cfg(test)]
mod tests {
    use cluster::{Epoch, WriterId};

    use super::*;

    fn entry(text: Bytes) -> LogEntry<Batch> {
        let body = EntryBody::Writes(Batch::from(vec![text]));
        LogEntry { epoch: Epoch(3), writer: WriterId(7), body }
    }

    #[test]
    fn small_entries_are_passed_on_and_large_ones_announced() {
        let (hints, key) = (EntryHints::new(), ShardKey::new("c", 1));
        let large = Bytes::from(vec![b' '; PASSED_BYTES_MAX + 1]);
        hints.appended(&key, EntryNumber(8), &entry(Bytes::from_static(b"{}")));
        hints.appended(&key, EntryNumber(9), &entry(large));
        for number in 10..30 {
            hints.appended(&key, EntryNumber(number), &entry(Bytes::from_static(b"{}")));
        }
        let shards = hints.pending.shards.lock();
        assert_eq!(shards[&key].newest, EntryNumber(29));
        let passed: Vec<u64> = shards[&key].passed.keys().copied().collect();
        assert_eq!(passed, [8, 10, 11, 12, 13, 14, 15, 16]);
    }

    #[test]
    fn a_node_that_refuses_requests_is_logged_once() {
        let refusing = RefusingNodes::default();
        let record = |status| refusing.record("a:1", status);
        assert_eq!([200, 401, 401, 400].map(record), [false, true, false, false]);
        assert!(refusing.record("b:1", 403), "another node");
        assert_eq!([503, 401].map(record), [false, false], "it did not accept the key");
        assert_eq!([200, 401].map(record), [false, true], "it accepted the key meanwhile");
        for port in 0..2 * REFUSING_MAX {
            assert!(refusing.record(&format!("c:{port}"), 401));
        }
        assert!(refusing.0.lock().len() <= REFUSING_MAX);
    }

    #[test]
    fn few_announcements_wait_for_one_node() {
        let running = Arc::<RunningAnnouncements>::default();
        let mut waiting: Vec<_> = (0..RUNNING_MAX).map(|_| running.begin("a:1").unwrap()).collect();
        assert!(running.begin("a:1").is_none());
        assert!(running.begin("b:1").is_some(), "another node");
        waiting.pop();
        let again = running.begin("a:1");
        assert!(again.is_some() && running.begin("a:1").is_none());
        drop((waiting, again));
        assert!(running.0.lock().is_empty());
    }

    #[test]
    fn passed_entries_survive_encoding() {
        let sent = entry(Bytes::from_static(b"{\"upsert\":1}"));
        let passed = BTreeMap::from([(4, encoded(&sent).unwrap())]);
        let passed = BTreeMap::from([("c".to_owned(), BTreeMap::from([(2, passed)]))]);
        let body = AppendedEntries { passed, ..AppendedEntries::default() };
        let text = serde_json::to_string(&body).unwrap();
        let mut read: AppendedEntries = serde_json::from_str(&text).unwrap();
        let came = read.take_passed("c", 2);
        assert_eq!(came, BTreeMap::from([(EntryNumber(4), sent)]));
        assert!(read.take_passed("c", 2).is_empty() && read.take_passed("d", 1).is_empty());
        // A node of an earlier build passes none on.
        let older = serde_json::from_str::<AppendedEntries>(r#"{"entries":{"c":{"2":4}}}"#);
        assert!(older.unwrap().take_passed("c", 2).is_empty());
        let wrong = text.replacen("TUlMTFB", "TUlMTFA", 1);
        assert_ne!(wrong, text);
        let mut wrong: AppendedEntries = serde_json::from_str(&wrong).unwrap();
        assert!(wrong.take_passed("c", 2).is_empty());
    }
}
