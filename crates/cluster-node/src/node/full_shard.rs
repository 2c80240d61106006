//! Writes to a shard whose holders all have full disks: the owner refuses them after
//! `cluster::FULL_SHARD_DELAY`. Data of a new collection is written without an owner, and is
//! refused at once.

use std::time::{Duration, Instant};

use base::{Error, Result};
use cluster::{DECISION_AGE_MAX, FullShardTimer};

use crate::types::{ClusterView, CollectionRecord, NodeInfo, ShardKey};

/// Retry advice for a refused write. An owner sees within about a second that a holder has applied
/// the log again.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// Refusal of the writes of a shard whose log this node writes.
#[derive(Default)]
pub(super) struct FullShard {
    timer: FullShardTimer,
    refusal: Option<FullDiskRefusal>,
}

struct FullDiskRefusal {
    /// Error of writes.
    error: Error,
    /// Time of the last view in which all holders were stalled.
    confirmed: Instant,
}

impl FullShard {
    /// Records a view at `now`. `holders` are the nodes that should hold the shard or serve it.
    /// They are empty if the view is not certain.
    pub(super) fn record(&mut self, key: &ShardKey, holders: &[&NodeInfo], now: Instant) {
        let is_full = self.timer.record(holders.iter().map(|node| node.is_stalled(key)), now);
        if !is_full {
            if self.refusal.take().is_some() {
                tracing::info!(shard = %key, "the owner of the log accepts writes again");
            }
            return;
        }
        // The holders may be other nodes than at the last view.
        let error = full_holders(key, holders);
        if self.refusal.is_none() {
            tracing::error!(shard = %key, %error, "the owner of the log refuses writes");
        }
        self.refusal = Some(FullDiskRefusal { error, confirmed: now });
    }

    /// Returns true if the last certain view showed a holder that can apply the log.
    pub(super) fn is_idle(&self) -> bool {
        self.refusal.is_none() && self.timer == FullShardTimer::default()
    }

    /// Checks that writes are not refused at `now`. A refusal ends if no view has confirmed it for
    /// [`DECISION_AGE_MAX`], because the owner may wait for etcd, and a holder may have space
    /// again.
    ///
    /// # Errors
    /// `StorageFull` with retry advice if all holders have had full disks for a while.
    pub(super) fn check(&self, now: Instant) -> Result<()> {
        if let Some(FullDiskRefusal { error, confirmed }) = &self.refusal
            && now.saturating_duration_since(*confirmed) <= DECISION_AGE_MAX
        {
            return Err(error.clone());
        }
        Ok(())
    }
}

/// Checks that each shard of a new collection gets a holder without a stalled copy. A stalled copy
/// of any shard shows that the disk of its node is full.
///
/// # Errors
/// `StorageFull` with retry advice for the first shard without one.
pub(crate) fn check_new_holders(view: &ClusterView, record: &CollectionRecord) -> Result<()> {
    let is_full = |node: &&NodeInfo| !node.stalled.is_empty();
    // Placement, which takes hashes, is skipped while no disk is full.
    if !view.nodes.values().any(|node| is_full(&node)) {
        return Ok(());
    }
    for key in record.shard_keys() {
        let holders = view.present_holders(&key, record.copies);
        if !holders.is_empty() && holders.iter().all(is_full) {
            return Err(full_holders(&key, &holders));
        }
    }
    Ok(())
}

/// Returns the error of a write that no holder could apply.
fn full_holders(key: &ShardKey, holders: &[&NodeInfo]) -> Error {
    let names: Vec<&str> = holders.iter().map(|node| node.name.as_str()).collect();
    let message = format!(
        "all holders of shard {key} have full disks: {}; free space on one of them, or add a search node",
        names.join(", ")
    );
    Error::storage_full(message).with_retry_after(RETRY_AFTER)
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use base::ErrorKind;
    use cluster::FULL_SHARD_DELAY;
    use cluster_log::was_not_made;

    use super::*;
    use crate::types::Roles;

    const COPIES: u32 = 2;

    fn shards() -> BTreeMap<String, BTreeSet<u32>> {
        BTreeMap::from([("1".to_owned(), BTreeSet::from([0]))])
    }

    /// Adds a search node that holds the shard `1/0`.
    fn add(view: &mut ClusterView, name: &str, is_stalled: bool) {
        let stalled = if is_stalled { shards() } else { BTreeMap::new() };
        let node = NodeInfo {
            name: name.to_owned(),
            roles: Roles { search: true, ..Roles::default() },
            weight: 1,
            serving: shards(),
            damaged: stalled.clone(),
            stalled,
            ..NodeInfo::default()
        };
        view.nodes.insert(name.to_owned(), node);
    }

    #[test]
    fn a_shard_without_space_on_any_holder_takes_no_writes() {
        let key = ShardKey::new("1", 0);
        let start = Instant::now();
        let later = start + FULL_SHARD_DELAY;
        let mut view = ClusterView::default();
        add(&mut view, "a", true);
        add(&mut view, "b", true);
        let mut full = FullShard::default();
        assert!(full.is_idle());
        full.record(&key, &view.present_holders(&key, COPIES), start);
        assert!(full.check(start).is_ok() && !full.is_idle());
        full.record(&key, &view.present_holders(&key, COPIES), later);
        let error = full.check(later).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StorageFull);
        assert!(error.message().contains("1/0000 have full disks: a, b;"), "{error}");
        assert!(error.retry_after().is_some() && was_not_made(&error));
        full.record(&key, &[], later);
        assert!(full.check(later).is_ok(), "the view is not certain");
        full.record(&key, &view.present_holders(&key, COPIES), later);
        assert!(full.check(later).is_err());
        add(&mut view, "b", false);
        full.record(&key, &view.present_holders(&key, COPIES), later);
        assert!(full.check(later).is_ok() && full.is_idle(), "one of them has space");
    }

    #[test]
    fn a_new_holder_may_have_space() {
        let key = ShardKey::new("1", 0);
        let start = Instant::now();
        let mut view = ClusterView::default();
        add(&mut view, "a", true);
        let mut full = FullShard::default();
        full.record(&key, &view.present_holders(&key, COPIES), start);
        // It restores its copy, and serves the shard later.
        add(&mut view, "b", false);
        view.nodes.get_mut("b").unwrap().serving.clear();
        let later = start + FULL_SHARD_DELAY;
        full.record(&key, &view.present_holders(&key, COPIES), later);
        assert!(full.check(later).is_ok());
    }

    #[test]
    fn a_refusal_needs_a_recent_view_and_names_its_holders() {
        let key = ShardKey::new("1", 0);
        let start = Instant::now();
        let later = start + FULL_SHARD_DELAY;
        let mut view = ClusterView::default();
        add(&mut view, "a", true);
        let mut full = FullShard::default();
        for now in [start, later] {
            full.record(&key, &view.present_holders(&key, COPIES), now);
        }
        let end = later + DECISION_AGE_MAX;
        assert!(full.check(end).is_err());
        assert!(full.check(end + Duration::from_millis(1)).is_ok(), "no view confirms it");
        view.nodes.clear();
        add(&mut view, "b", true);
        full.record(&key, &view.present_holders(&key, COPIES), end);
        assert!(full.check(end).unwrap_err().message().contains("have full disks: b;"));
    }
}
