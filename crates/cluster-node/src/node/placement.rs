//! Shards that this node holds. It follows the shards that placement gives it, and announces each
//! shard that has caught up. It removes a shard once other nodes hold it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cluster::{
    CertainHolders, CopyNeed, DamagedCopyUse, EntryNumber, LogEntry, StalledServiceChange,
    UnneededTimer,
};
use cluster_log::Batch;
use parking_lot::Mutex;

use super::catalog::StoreCatalog;
use super::holder::{Holder, HolderState};
use super::removals::LocalRemovals;
use super::services::NodeServices;
use super::stall::{StallCause, StallReport};
use crate::collection_catalog::CollectionCatalog;
use crate::membership::{CopyMarks, Membership};
use crate::types::{ClusterView, CollectionRecord, ShardKey, ViewSource};

/// Time between two checks of the placement. A change of the view causes further checks.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// Longest time for which a node that starts is not ready because of shards that have not caught
/// up. A broken shard must not keep the node out of service for ever, since its other shards may be
/// needed.
const CATCH_UP_MAX: Duration = Duration::from_secs(600);

/// Numbers of shards, by the id of their collection.
type ShardNumbers = BTreeMap<String, BTreeSet<u32>>;

/// The shards of this node.
pub(super) struct HeldShards {
    services: Arc<NodeServices>,
    membership: Arc<Membership>,
    catalog: Arc<StoreCatalog>,
    held: Mutex<BTreeMap<ShardKey, HeldShard>>,
    /// Local collections of shards that are not followed.
    leftovers: Mutex<BTreeMap<ShardKey, UnneededTimer>>,
    removals: Arc<LocalRemovals>,
    first_catch_up: FirstCatchUp,
}

struct HeldShard {
    holder: Holder,
    /// Time since which other nodes hold the shard instead.
    unneeded: UnneededTimer,
}

impl HeldShards {
    pub(super) fn new(
        services: Arc<NodeServices>,
        membership: Arc<Membership>,
        catalog: Arc<StoreCatalog>,
    ) -> HeldShards {
        HeldShards {
            services,
            membership,
            catalog,
            held: Mutex::default(),
            leftovers: Mutex::default(),
            removals: Arc::default(),
            first_catch_up: FirstCatchUp::default(),
        }
    }

    /// Returns the state of a shard, if this node follows it.
    pub(super) fn find(&self, key: &ShardKey) -> Option<Arc<HolderState>> {
        self.held.lock().get(key).map(|held| held.holder.state.clone())
    }

    /// Notifies the follower of a shard that a writer has appended `newest`, and gives it the
    /// entries that the writer passed on.
    pub(super) fn appended(
        &self,
        key: &ShardKey,
        newest: EntryNumber,
        passed: impl Iterator<Item = (EntryNumber, LogEntry<Batch>)>,
    ) {
        if let Some(state) = self.find(key)
            && !state.offered.add(newest, passed)
        {
            state.announce(newest);
        }
    }

    /// Returns the next entry of each shard that this node follows, and if it has caught up.
    pub(super) fn progress(&self) -> Vec<ShardProgress> {
        let held = self.held.lock();
        let progress = |shard: (&ShardKey, &HeldShard)| ShardProgress {
            shard: shard.0.clone(),
            next: shard.1.holder.state.applied(),
            caught_up: shard.1.holder.state.is_caught_up(),
            damage: shard.1.holder.state.damage.reason(),
            damaged_use: shard.1.holder.state.damage.used(),
            stalled: shard.1.holder.state.stall.report(),
        };
        held.iter().map(progress).collect()
    }

    /// Follows the placement until the task is dropped.
    pub(super) async fn run(self: Arc<HeldShards>, mut view: ViewSource, searches: bool) {
        let mut announced = ShardNumbers::new();
        loop {
            // Before the view is taken, which may get older meanwhile but not newer.
            let certain_since = self.membership.view_certain_since();
            let is_loaded = self.catalog.is_loaded() && self.membership.unjoined().is_none();
            let current = view.current();
            let is_member = current.nodes.contains_key(&self.services.name);
            if is_member && searches {
                self.start_wanted(&current);
                if is_loaded {
                    self.first_catch_up.record(&self.behind(&current), Instant::now());
                }
            }
            // If a record was not read, an absent collection may still exist.
            let is_certain = is_member && self.catalog.is_whole() && certain_since.is_some();
            self.drop_unneeded(&current, is_certain);
            if is_member {
                self.attend_to_leftovers(&current, searches, is_certain);
            }
            if let Some(requested_at) = certain_since.filter(|_| is_member) {
                self.decide_damaged(&current, requested_at);
                self.decide_stalled(&current, requested_at);
            }
            announced = self.announce(&announced);
            tokio::select! {
                () = view.changed() => {}
                () = self.services.serving.notified() => {}
                () = tokio::time::sleep(CHECK_INTERVAL) => {}
            }
        }
    }

    /// Returns the shards that this node should hold and cannot serve yet. It has not followed
    /// their log to the end, or their copy is damaged and not served.
    fn behind(&self, view: &ClusterView) -> Vec<ShardKey> {
        let held = self.held.lock();
        let is_behind = |key: &ShardKey, shard: &HeldShard| {
            let state = &shard.holder.state;
            let waits = state.damage.used().is_some_and(|used| !used.is_served());
            (waits || !state.is_caught_up()) && self.wants(view, &shard.holder.record, key)
        };
        let behind = held.iter().filter(|shard| is_behind(shard.0, shard.1));
        behind.map(|shard| shard.0.clone()).collect()
    }

    /// Returns why this node has not caught up with its shards since its start; `None` once it has,
    /// or after [`CATCH_UP_MAX`].
    pub(super) fn not_caught_up(&self) -> Option<String> {
        let behind = self.first_catch_up.reason()?;
        let held = self.held.lock();
        let stall = held.values().find_map(|shard| shard.holder.state.stall.report());
        Some(with_stall(behind, stall.as_ref()))
    }

    /// Stops all followers: at the end of the process.
    pub(super) fn stop(&self) {
        self.held.lock().clear();
    }

    /// Decides on the use of the damaged copies of this node. `view` is certain, and was requested
    /// at `requested_at` or later.
    fn decide_damaged(&self, view: &ClusterView, requested_at: Instant) {
        for (key, shard) in self.held.lock().iter() {
            let state = &shard.holder.state;
            if state.damage.used().is_some() {
                let holders = view.holder_readings(key);
                let own = &self.services.name;
                state.decide_damaged(&CertainHolders { own, holders: &holders, requested_at });
            }
        }
    }

    /// Decides on the service of the stalled copies of this node. `view` is certain, and was
    /// requested at `requested_at` or later.
    fn decide_stalled(&self, view: &ClusterView, requested_at: Instant) {
        for (key, shard) in self.held.lock().iter() {
            let state = &shard.holder.state;
            if state.stall.reason().is_none() {
                continue;
            }
            let holders = view.holder_readings(key);
            let own = &self.services.name;
            let view = CertainHolders { own, holders: &holders, requested_at };
            match state.decide_stalled(&view, Instant::now()) {
                Some(StalledServiceChange::Withdraw) => {
                    tracing::warn!(shard = %key, "other holders serve the shard until this node can apply the log");
                }
                Some(StalledServiceChange::Serve) => {
                    tracing::warn!(shard = %key, "the copy is served without its last changes, because no other node serves it");
                }
                None => {}
            }
        }
    }

    /// Announces the shards that this node serves, and the marks of damaged and stalled copies.
    /// Returns the announced shards. `announced` are those of the last call.
    fn announce(&self, announced: &ShardNumbers) -> ShardNumbers {
        let progress = self.progress();
        let metrics = &self.services.metrics;
        metrics.damaged_shards.set(count(&progress, |shard| shard.damage.is_some()));
        let has_full_disk = |shard: &ShardProgress| shard.stalls_by(StallCause::FullDisk);
        metrics.stalled_shards.set(count(&progress, has_full_disk));
        let is_outdated = |shard: &ShardProgress| shard.stalls_by(StallCause::UnknownOperation);
        metrics.outdated_shards.set(count(&progress, is_outdated));
        let marks = CopyMarks {
            damaged: numbers(progress.iter().filter(|shard| shard.is_marked())),
            // Owners refuse writes if all holders are in this list, and name full disks.
            stalled: numbers(progress.iter().filter(|shard| shard.stalls_by(StallCause::FullDisk))),
        };
        self.membership.set_marks(marks);
        let serving = numbers(progress.iter().filter(|shard| shard.is_served(announced)));
        self.membership.set_serving(serving.clone());
        serving
    }

    fn wants(&self, view: &ClusterView, record: &CollectionRecord, key: &ShardKey) -> bool {
        view.wanted_holders(key, record.copies).contains(&self.services.name)
    }

    fn start_wanted(&self, view: &ClusterView) {
        for record in view.collections.values() {
            for key in record.shard_keys().filter(|key| self.wants(view, record, key)) {
                let mut held = self.held.lock();
                if !held.contains_key(&key) && !self.removals.has(&key) {
                    held.insert(key.clone(), self.start(record, &key));
                    self.leftovers.lock().remove(&key);
                }
            }
        }
    }

    /// Starts to follow a shard.
    fn start(&self, record: &CollectionRecord, key: &ShardKey) -> HeldShard {
        let holder = Holder::start(self.services.clone(), record.clone(), key.clone());
        HeldShard { holder, unneeded: UnneededTimer::default() }
    }

    /// Ends the followers of shards that enough other nodes hold, or whose collection was removed.
    /// If the view is not certain, all stay.
    fn drop_unneeded(&self, view: &ClusterView, is_certain: bool) {
        let mut ended = Vec::new();
        let now = Instant::now();
        {
            let mut held = self.held.lock();
            for (key, shard) in held.iter_mut() {
                let wanted = view.wanted_holders(key, shard.holder.record.copies);
                let need =
                    if is_certain { self.need(view, key, &wanted) } else { CopyNeed::Unknown };
                if shard.unneeded.record(need, &wanted, now) {
                    ended.push(key.clone());
                }
            }
            for key in &ended {
                if let Some(shard) = held.remove(key) {
                    shard.holder.end();
                }
            }
        }
        for key in ended {
            tracing::info!(shard = %key, "the shard is left to other nodes");
            self.remove_local(&key);
        }
    }

    /// Returns the need of this node's copy of a shard. `wanted` are the names of the nodes that
    /// should hold copies.
    fn need(&self, view: &ClusterView, key: &ShardKey, wanted: &[String]) -> CopyNeed {
        if view.by_id(&key.collection).is_none() {
            return CopyNeed::Unneeded;
        }
        // A damaged copy of a wanted holder does not make this one unneeded.
        let serves = |name: &str| view.nodes.get(name).is_some_and(|node| node.serves_whole(key));
        CopyNeed::of(&self.services.name, wanted, serves)
    }

    /// Follows local collections of shards that an earlier process left, if not enough other nodes
    /// hold the shards. Removes the others, as [`HeldShards::drop_unneeded`] does.
    pub(super) fn attend_to_leftovers(&self, view: &ClusterView, searches: bool, is_certain: bool) {
        let Ok(shards) = self.services.local.shards() else { return };
        let now = Instant::now();
        let mut held = self.held.lock();
        let mut leftovers = self.leftovers.lock();
        leftovers.retain(|key, _| shards.contains(key));
        for key in shards {
            if held.contains_key(&key) || self.removals.has(&key) {
                continue;
            }
            let record = view.by_id(&key.collection);
            let wanted =
                record.map_or_else(Vec::new, |record| view.wanted_holders(&key, record.copies));
            let mut need = self.need(view, &key, &wanted);
            if let Some(record) = record.filter(|_| searches && need == CopyNeed::Needed) {
                tracing::info!(shard = %key, "the shard is served until other nodes hold it");
                held.insert(key.clone(), self.start(record, &key));
                leftovers.remove(&key);
                continue;
            }
            if !is_certain {
                need = CopyNeed::Unknown;
            }
            if leftovers.entry(key.clone()).or_default().record(need, &wanted, now) {
                self.remove_local(&key);
            }
        }
    }

    fn remove_local(&self, key: &ShardKey) {
        let services = self.services.clone();
        let removed = key.clone();
        self.removals.start(key, async move {
            if let Err(error) = services.local.remove(&removed).await {
                tracing::debug!(shard = %removed, %error, "the local copy is removed later");
            }
        });
    }
}

/// The first time that a node catches up with its shards, after its start.
#[derive(Default)]
struct FirstCatchUp(Mutex<CatchUpState>);

#[derive(Default)]
struct CatchUpState {
    /// Time of the first check.
    since: Option<Instant>,
    /// Shards that were behind at the last check.
    behind: Vec<ShardKey>,
    is_over: bool,
}

impl FirstCatchUp {
    /// Records the shards that are behind at `now`.
    fn record(&self, behind: &[ShardKey], now: Instant) {
        let mut state = self.0.lock();
        if state.is_over {
            return;
        }
        let since = *state.since.get_or_insert(now);
        state.behind = behind.to_vec();
        state.is_over = behind.is_empty();
        if !state.is_over && now.duration_since(since) >= CATCH_UP_MAX {
            state.is_over = true;
            tracing::error!(
                shards = behind.len(),
                first = %behind[0],
                "the node counts as ready, although shards have not reached the end of their logs"
            );
        }
    }

    /// Returns why the node has not caught up.
    fn reason(&self) -> Option<String> {
        let state = self.0.lock();
        match (state.is_over, state.behind.first()) {
            (true, _) => None,
            (false, None) => Some("the shards of this node are not known yet".to_owned()),
            (false, Some(first)) => Some(format!(
                "{} shards have not reached the end of their logs, such as {first}",
                state.behind.len()
            )),
        }
    }
}

/// Adds the reason of a stalled copy to the reason why a node has not caught up.
fn with_stall(behind: String, stall: Option<&StallReport>) -> String {
    match stall {
        Some(stall) => format!("{behind}; {}: {}", stall.cause.text(), stall.reason),
        None => behind,
    }
}

/// Progress of a shard that this node follows.
pub(super) struct ShardProgress {
    pub(super) shard: ShardKey,
    /// Next entry to apply.
    pub(super) next: EntryNumber,
    /// True if the end of the log was reached.
    pub(super) caught_up: bool,
    /// Damage of the local copy; `None` for a whole one.
    pub(super) damage: Option<String>,
    /// Use of a damaged copy.
    damaged_use: Option<DamagedCopyUse>,
    /// Reason why the local copy lacks changes of its log; `None` if it applies the log.
    pub(super) stalled: Option<StallReport>,
}

impl ShardProgress {
    /// Returns true if the copy is marked: it is damaged, or lacks changes.
    fn is_marked(&self) -> bool {
        self.damage.is_some() || self.stalled.is_some()
    }

    /// Returns true if the copy lacks changes of its log because of `cause`.
    fn stalls_by(&self, cause: StallCause) -> bool {
        self.stalled.as_ref().is_some_and(|report| report.cause == cause)
    }

    /// Returns true if the shard is to be announced. `announced` are the shards that are announced
    /// now.
    fn is_served(&self, announced: &ShardNumbers) -> bool {
        let shards = announced.get(&*self.shard.collection);
        let is_announced = shards.is_some_and(|shards| shards.contains(&self.shard.shard.0));
        self.caught_up && self.damaged_use.is_none_or(|used| used.announces(is_announced))
    }
}

/// Returns the number of shards that `is_counted` selects, for a metric.
fn count(progress: &[ShardProgress], is_counted: impl Fn(&ShardProgress) -> bool) -> i64 {
    let counted = progress.iter().filter(|shard| is_counted(shard)).count();
    i64::try_from(counted).unwrap_or(i64::MAX)
}

/// Returns the numbers of shards by their collection.
fn numbers<'a>(shards: impl IntoIterator<Item = &'a ShardProgress>) -> ShardNumbers {
    let mut numbers = ShardNumbers::new();
    for ShardProgress { shard, .. } in shards {
        numbers.entry(shard.collection.to_string()).or_default().insert(shard.shard.0);
    }
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_ready_once_its_shards_have_caught_up() {
        let start = Instant::now();
        let shards = [ShardKey::new("a", 0), ShardKey::new("a", 1)];
        let state = FirstCatchUp::default();
        assert!(state.reason().unwrap().contains("not known yet"));
        state.record(&shards, start);
        assert!(state.reason().unwrap().contains("2 shards"), "{:?}", state.reason());
        state.record(&shards[1..], start);
        assert!(state.reason().unwrap().contains("a/0001"), "{:?}", state.reason());
        state.record(&[], start);
        assert_eq!(state.reason(), None);
        // A shard that the node takes later does not make it unready again.
        state.record(&shards, start);
        assert_eq!(state.reason(), None);
    }

    #[test]
    fn a_damaged_shard_is_announced_by_its_use() {
        let announced = ShardNumbers::from([("a".to_owned(), BTreeSet::from([0]))]);
        let progress = |shard: u32, damaged_use: Option<DamagedCopyUse>| ShardProgress {
            shard: ShardKey::new("a", shard),
            next: EntryNumber(1),
            caught_up: true,
            damage: damaged_use.map(|_| "a page".to_owned()),
            damaged_use,
            stalled: None,
        };
        let is_served = |shard, used| progress(shard, used).is_served(&announced);
        assert!(is_served(1, None));
        assert!(is_served(0, Some(DamagedCopyUse::Undecided)), "it stays announced");
        assert!(!is_served(1, Some(DamagedCopyUse::Undecided)), "it was not announced");
        assert!(!is_served(0, Some(DamagedCopyUse::Withdrawn)));
        assert!(is_served(1, Some(DamagedCopyUse::Served { turns: 1 })));
        let behind = ShardProgress { caught_up: false, ..progress(0, None) };
        assert!(!behind.is_served(&announced));
        assert_eq!(numbers([&progress(0, None)]), announced);
        let full = StallReport { cause: StallCause::FullDisk, reason: "full".to_owned() };
        let stalled = ShardProgress { stalled: Some(full), ..progress(0, None) };
        assert!(stalled.is_marked() && stalled.is_served(&announced));
        assert!(stalled.stalls_by(StallCause::FullDisk));
        assert!(!stalled.stalls_by(StallCause::UnknownOperation));
        assert!(!progress(0, None).is_marked());
        assert_eq!(count(&[stalled, progress(1, None)], |shard| shard.stalled.is_some()), 1);
    }

    #[test]
    fn a_broken_shard_delays_the_node_for_a_limited_time() {
        let start = Instant::now();
        let state = FirstCatchUp::default();
        let broken = [ShardKey::new("a", 0)];
        state.record(&broken, start);
        state.record(&broken, start + CATCH_UP_MAX - Duration::from_secs(1));
        assert!(state.reason().is_some());
        state.record(&broken, start + CATCH_UP_MAX);
        assert_eq!(state.reason(), None);
    }

    #[test]
    fn a_full_disk_is_a_reason_of_a_node_that_is_behind() {
        let full = StallReport { cause: StallCause::FullDisk, reason: "1 MiB left".to_owned() };
        let reason = with_stall("1 shards are behind".to_owned(), Some(&full));
        assert!(reason.starts_with("1 shards are behind; the local disk is full"), "{reason}");
        assert!(reason.ends_with(": 1 MiB left"), "{reason}");
        assert_eq!(with_stall("1 shards are behind".to_owned(), None), "1 shards are behind");
    }
}
