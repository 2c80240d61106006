//! Ownership of shards: the logs that this node writes.
//!
//! Placement says which node should own a shard. That node asks etcd for the ownership once no
//! other node has it, and starts a writer, which fences the log. A node that should not own a shard
//! releases it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use base::{Error, ErrorKind, Result};
use cluster::{EntryNumber, Epoch, OwnershipStep, SeenOwner, keeps_ownership, ownership_step};
use parking_lot::Mutex;

use super::full_shard::FullShard;
use super::hints::EntryHints;
use super::services::NodeServices;
use crate::membership::Membership;
use crate::types::{ClusterView, NodeInfo, ShardKey, ViewSource};
use cluster_log::{AppendOutcome, LogWrite, ShardWriter, WriterOptions};

/// Time between two checks of the ownership. A change of the view causes further checks.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Pause before this node tries to own a log again that has refused it.
const REFUSED_PAUSE: Duration = Duration::from_secs(2);

/// A log that this node writes.
struct OwnedShard {
    epoch: Epoch,
    writer: ShardWriter,
    /// Ends the task that waits for the loss.
    watch: tokio::task::AbortHandle,
    /// Refusal of writes that no holder could apply.
    full: FullShard,
}

impl Drop for OwnedShard {
    fn drop(&mut self) {
        self.watch.abort();
        self.writer.expire();
    }
}

/// Error with which etcd refused an ownership last, until it gives one. etcd may refuse all shards,
/// each half a second.
#[derive(Default)]
struct AcquireRefusal(Option<Error>);

impl AcquireRefusal {
    /// Records a refusal. Returns true if it has to be logged. It is then another one than the
    /// last, and etcd has answered. The reading of the view logs that etcd does not answer.
    fn begin(&mut self, error: &Error) -> bool {
        if error.kind() == ErrorKind::Unavailable {
            return false;
        }
        self.0.replace(error.clone()).as_ref() != Some(error)
    }
}

/// Cause of the loss of a log that this node wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LossCause {
    /// Another node owns the shard.
    OtherOwner,
    /// This node cannot read etcd, and another node has taken the shard meanwhile.
    OldView,
    /// The log refuses the owner that etcd names, because etcd has lost its data, and its epochs
    /// are too small.
    SmallEpoch,
}

/// Outcome of a write on this node.
#[derive(Debug)]
pub(super) enum OwnerWriteOutcome {
    /// The entry is in the log.
    Appended(EntryNumber),
    /// The condition of the write refused it. Entries up to this one may have written the image.
    Refused(EntryNumber),
    /// Another node owns the shard, or none, as far as is known.
    Elsewhere(Option<String>),
}

/// The logs that this node writes.
pub(super) struct OwnedShards {
    services: Arc<NodeServices>,
    membership: Arc<Membership>,
    hints: EntryHints,
    owned: Mutex<BTreeMap<ShardKey, OwnedShard>>,
    /// Shards whose writers found a newer owner.
    lost: Arc<Mutex<BTreeMap<ShardKey, Epoch>>>,
    /// Shards whose writers ended soon after their start, each with the time. They are tried again
    /// later.
    refused: Mutex<BTreeMap<ShardKey, Instant>>,
    acquire_refusal: Mutex<AcquireRefusal>,
    /// True once this node releases all shards.
    leaving: AtomicBool,
}

impl OwnedShards {
    pub(super) fn new(
        services: Arc<NodeServices>,
        membership: Arc<Membership>,
        hints: EntryHints,
    ) -> OwnedShards {
        OwnedShards {
            services,
            membership,
            hints,
            owned: Mutex::default(),
            lost: Arc::default(),
            refused: Mutex::default(),
            acquire_refusal: Mutex::default(),
            leaving: AtomicBool::new(false),
        }
    }

    /// Appends operations to a shard's log.
    ///
    /// # Errors
    /// As [`ShardWriter::append`], and `StorageFull` if the disks of all holders are full.
    pub(super) async fn write(
        &self,
        key: &ShardKey,
        write: LogWrite,
        deadline: Instant,
    ) -> Result<OwnerWriteOutcome> {
        let writer = match self.owned.lock().get(key) {
            None => None,
            Some(owned) => {
                if let Err(error) = owned.full.check(Instant::now()) {
                    self.services.metrics.full_disk_refusals.inc();
                    return Err(error);
                }
                Some(owned.writer.clone())
            }
        };
        let Some(writer) = writer else {
            let view = self.services.view.current();
            let owner = view.owners.get(key).map(|owner| owner.node.clone());
            return Ok(OwnerWriteOutcome::Elsewhere(
                owner.filter(|name| *name != self.services.name),
            ));
        };
        Ok(match writer.append(write, deadline).await? {
            AppendOutcome::Appended(entry) => OwnerWriteOutcome::Appended(entry),
            AppendOutcome::Refused(entry) => OwnerWriteOutcome::Refused(entry),
        })
    }

    /// Acquires and releases shards until the task is dropped.
    pub(super) async fn run(self: Arc<OwnedShards>, mut view: ViewSource) {
        loop {
            // Before the view is taken, which may get older meanwhile but not newer.
            let is_certain = self.membership.view_certain_since().is_some();
            let current = view.current();
            self.decide_on_full_shards(&current, is_certain);
            self.release_unwanted(&current, is_certain).await;
            self.acquire_wanted(&current).await;
            self.count_failing();
            let _ = tokio::time::timeout(CHECK_INTERVAL, view.changed()).await;
        }
    }

    /// Counts the logs whose entries the store does not take. A node that reads the store keeps
    /// such logs, so an operator must know of them.
    fn count_failing(&self) {
        let failing = self.owned.lock().values().filter(|shard| shard.writer.is_failing()).count();
        self.services.metrics.failing_logs.set(i64::try_from(failing).unwrap_or(i64::MAX));
    }

    /// Decides on the writes of shards whose holders have full disks. If the view is not certain,
    /// none are refused.
    fn decide_on_full_shards(&self, view: &ClusterView, is_certain: bool) {
        let now = Instant::now();
        for (key, shard) in self.owned.lock().iter_mut() {
            // Most shards have no stalled copy. Placement, which takes hashes, is skipped for them.
            if shard.full.is_idle() && !view.nodes.values().any(|node| node.is_stalled(key)) {
                continue;
            }
            let Some(record) = view.by_id(&key.collection) else { continue };
            let holders: Vec<&NodeInfo> =
                if is_certain { view.present_holders(key, record.copies) } else { Vec::new() };
            shard.full.record(key, &holders, now);
        }
    }

    /// Ends all writers at the end of the process. The end of the membership then releases all
    /// ownerships at once.
    pub(super) fn end_all(&self) {
        self.leaving.store(true, Ordering::Release);
        self.owned.lock().clear();
    }

    /// Ends the ownership of logs that this node has lost, or that another node should own.
    async fn release_unwanted(&self, view: &ClusterView, is_certain: bool) {
        let lost = std::mem::take(&mut *self.lost.lock());
        for (key, epoch) in lost {
            if self.end_writer(&key, epoch) {
                let cause =
                    loss_cause(&self.services.name, epoch, seen_owner(view, &key), is_certain);
                self.note_loss(&key, epoch, cause);
                self.release(&key, epoch).await;
            }
        }
        let name = &self.services.name;
        let unwanted: Vec<(ShardKey, Epoch)> = {
            let owned = self.owned.lock();
            let is_kept = |key: &ShardKey, epoch: Epoch| {
                let wanted = view.wanted_owner(key);
                keeps_ownership(name, epoch, seen_owner(view, key), wanted.as_deref())
                    && view.by_id(&key.collection).is_some()
            };
            let shards = owned.iter().filter(|shard| !is_kept(shard.0, shard.1.epoch));
            shards.map(|shard| (shard.0.clone(), shard.1.epoch)).collect()
        };
        for (key, epoch) in unwanted {
            self.end_writer(&key, epoch);
            tracing::info!(shard = %key, "the log is left to another node");
            self.release(&key, epoch).await;
        }
    }

    /// Records that the log refused this node. It is tried again after a pause, unless another node
    /// owns it.
    fn note_loss(&self, key: &ShardKey, epoch: Epoch, cause: LossCause) {
        match cause {
            LossCause::OtherOwner => {
                tracing::info!(shard = %key, "another node owns the log now");
                return;
            }
            LossCause::OldView => tracing::warn!(
                shard = %key,
                "another node has taken the log, because this node does not reach etcd"
            ),
            LossCause::SmallEpoch => tracing::error!(
                shard = %key,
                epoch = epoch.0,
                "the log did not take this node as its owner; if this is repeated, etcd lost its data: its revisions \
                 must grow above the epochs in the log"
            ),
        }
        self.refused.lock().insert(key.clone(), Instant::now());
    }

    /// Ends the writer of an ownership. Returns false if there is none.
    fn end_writer(&self, key: &ShardKey, epoch: Epoch) -> bool {
        let mut owned = self.owned.lock();
        let ends = owned.get(key).is_some_and(|shard| shard.epoch == epoch);
        if ends {
            owned.remove(key);
        }
        ends
    }

    async fn release(&self, key: &ShardKey, epoch: Epoch) {
        if let Err(error) = self.membership.release(key, epoch).await {
            tracing::debug!(shard = %key, %error, "the ownership ends with the lease");
        }
    }

    /// Acquires the shards whose owner this node should be, and releases those of another wanted
    /// owner.
    async fn acquire_wanted(&self, view: &ClusterView) {
        let name = &self.services.name;
        for key in view.collections.values().flat_map(|record| record.shard_keys()) {
            if self.leaving.load(Ordering::Acquire) {
                return;
            }
            let writes = self.owned.lock().contains_key(&key) || self.was_refused(&key);
            if writes {
                continue;
            }
            let wanted = view.wanted_owner(&key);
            match ownership_step(name, seen_owner(view, &key), wanted.as_deref()) {
                OwnershipStep::Wait => continue,
                OwnershipStep::Release(epoch) => {
                    self.release(&key, epoch).await;
                    continue;
                }
                OwnershipStep::Acquire => {}
            }
            match self.membership.acquire(&key).await {
                Ok(Some(epoch)) => {
                    *self.acquire_refusal.lock() = AcquireRefusal::default();
                    self.start(key, epoch);
                }
                Ok(None) => {}
                Err(error) => {
                    if self.acquire_refusal.lock().begin(&error) {
                        tracing::warn!(
                            shard = %key, %error,
                            "etcd refuses the ownership of a shard, so its writes wait"
                        );
                    } else {
                        tracing::debug!(shard = %key, %error, "etcd gave no ownership");
                    }
                    return;
                }
            }
        }
    }

    /// Returns true if the log refused this node a short time ago.
    fn was_refused(&self, key: &ShardKey) -> bool {
        let mut refused = self.refused.lock();
        refused.retain(|_, since| since.elapsed() < REFUSED_PAUSE);
        refused.contains_key(key)
    }

    /// Starts the writer of a shard, and a task that ends the ownership with it.
    fn start(&self, key: ShardKey, epoch: Epoch) {
        if self.leaving.load(Ordering::Acquire) {
            // The ownership ends with the lease.
            return;
        }
        let log = self.services.log(&key);
        let hints = self.hints.clone();
        let hinted = key.clone();
        let on_entry = move |number, entry| hints.appended(&hinted, number, &entry);
        let options = WriterOptions::default();
        let writer = ShardWriter::start_watched(log, epoch, options, Box::new(on_entry));
        tracing::info!(shard = %key, epoch = epoch.0, "this node writes the log");
        let watched = writer.clone();
        let lost = self.lost.clone();
        let lost_key = key.clone();
        let watch = tokio::spawn(async move {
            watched.lost().await;
            lost.lock().insert(lost_key, epoch);
        });
        let full = FullShard::default();
        let shard = OwnedShard { epoch, writer, watch: watch.abort_handle(), full };
        self.owned.lock().insert(key, shard);
    }
}

/// Returns the cause of the loss of a log that the node `name` wrote with `epoch`. `seen` is the
/// owner in the view. `is_certain` is true if the view is new.
fn loss_cause(
    name: &str,
    epoch: Epoch,
    seen: Option<SeenOwner<'_>>,
    is_certain: bool,
) -> LossCause {
    let is_named = seen.is_some_and(|owner| owner.node == name && owner.epoch == epoch);
    if !is_named {
        LossCause::OtherOwner
    } else if is_certain {
        LossCause::SmallEpoch
    } else {
        LossCause::OldView
    }
}

/// Returns the owner of a shard in the view.
fn seen_owner<'a>(view: &'a ClusterView, key: &ShardKey) -> Option<SeenOwner<'a>> {
    let owner = view.owners.get(key)?;
    Some(SeenOwner { node: &owner.node, epoch: owner.epoch })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_of_etcd_is_logged_once() {
        let full = Error::exhausted("etcd at a:1: database space exceeded");
        let mut refusal = AcquireRefusal::default();
        assert!(!refusal.begin(&Error::unavailable("etcd does not answer")));
        assert!(refusal.begin(&full));
        assert!(!refusal.begin(&full));
        assert!(!refusal.begin(&Error::unavailable("etcd does not answer")));
        assert!(!refusal.begin(&full), "etcd did not give an ownership");
        assert!(refusal.begin(&Error::denied("etcd at a:1: permission denied")));
    }

    #[test]
    fn a_loss_during_an_outage_of_etcd_is_no_lost_data() {
        let cause = |node: &str, epoch: u64, is_certain: bool| {
            let seen = SeenOwner { node, epoch: Epoch(epoch) };
            loss_cause("a", Epoch(7), Some(seen), is_certain)
        };
        assert_eq!(cause("a", 7, true), LossCause::SmallEpoch);
        assert_eq!(cause("a", 7, false), LossCause::OldView);
        assert_eq!(cause("a", 8, true), LossCause::OtherOwner, "it owns the log again");
        assert_eq!(cause("b", 9, false), LossCause::OtherOwner);
        assert_eq!(loss_cause("a", Epoch(7), None, true), LossCause::OtherOwner);
    }
}
