//! A shard that this node holds: its local collection, and the task that follows its log.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use base::{Error, ErrorKind, Result};
use cluster::EntryNumber;
use metrics::KindLabels;
use parking_lot::Mutex;
use search::registry::NamedCollection;
use tokio::sync::{Notify, watch};
use tokio::task::{JoinError, JoinHandle, JoinSet};

use super::apply::{AppliedBatch, ApplyPriority, apply};
use super::copy_damage::{CertainHolders, CopyDamage};
use super::copy_loader::{CopyLoader, OpenedShard};
use super::local::{self, blocking};
use super::offered::OfferedEntries;
use super::services::NodeServices;
use super::snapshot::{self, SnapshotState};
use crate::types::{CollectionRecord, ShardKey};
use cluster_log::{FollowPosition, FollowStep, LogFloor, LogFollower, ShardLog};

/// Time between two reads of the log's end if no writer announced an entry.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Time between two checks of a collection whose segments are being opened.
const OPENING_CHECK: Duration = Duration::from_millis(20);
/// Time between two records of the applied position.
const RECORD_INTERVAL: Duration = Duration::from_secs(1);
/// Time that a read waits for the entry that it needs before it has the log read. A writer passes
/// an entry on a moment after it acknowledges the entry.
const PASSED_WAIT: Duration = Duration::from_millis(10);
/// First pause after a failure. Doubled each time.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// Longest pause after a failure.
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// Longest pause while the store does not have all data of the shard, which does not change soon.
/// Each try may transfer a snapshot.
const LOSS_PAUSE_MAX: Duration = Duration::from_secs(60);
/// Shortest time from the end of a try to replace a damaged local collection to the next try. A
/// disk that damages every copy must not cause one restore after the other.
const REPLACE_INTERVAL: Duration = Duration::from_secs(600);

/// State of a shard that requests and the follower share.
pub(super) struct HolderState {
    /// Next entry to apply.
    applied: watch::Sender<EntryNumber>,
    /// Number of the newest read of the log's end that a request waits for.
    end_reads_wanted: AtomicU64,
    /// Number of the newest read that reached the log's end and applied all entries before it.
    end_reads_done: watch::Sender<u64>,
    /// Wakes the follower before its next poll.
    wake: Notify,
    /// Entries that their writer passed on.
    pub(super) offered: OfferedEntries,
    /// True once the end of the log was reached, until the local collection is replaced.
    caught_up: AtomicBool,
    /// Grows when the local collection is opened again.
    generation: AtomicU64,
    /// Local collection that is followed and read.
    followed: Mutex<Option<Arc<NamedCollection>>>,
    /// Damage of the local copy.
    pub(super) damage: CopyDamage,
}

/// A shard that this node holds. Dropping it ends the follower.
pub(super) struct Holder {
    pub(super) record: CollectionRecord,
    pub(super) state: Arc<HolderState>,
    task: JoinHandle<()>,
}

impl Holder {
    /// Starts to follow the shard's log.
    pub(super) fn start(
        services: Arc<NodeServices>,
        record: CollectionRecord,
        key: ShardKey,
    ) -> Holder {
        let state = Arc::new(HolderState::new());
        let log = ShardLog::new(services.store.place(), &key);
        let follower = ShardFollower {
            services,
            record: record.clone(),
            key,
            log,
            state: state.clone(),
            snapshots: SnapshotState::default(),
            replacement: JoinSet::new(),
            replaced: None,
        };
        Holder { record, state, task: tokio::spawn(follower.run()) }
    }

    /// Ends the follower. Reads that still run get no answer: they may find the next copy of the
    /// shard, which is behind.
    pub(super) fn end(self) {
        self.state.reopen();
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl HolderState {
    fn new() -> HolderState {
        HolderState {
            applied: watch::Sender::new(EntryNumber::default()),
            end_reads_wanted: AtomicU64::new(0),
            end_reads_done: watch::Sender::new(0),
            wake: Notify::new(),
            offered: OfferedEntries::default(),
            caught_up: AtomicBool::new(false),
            generation: AtomicU64::new(0),
            followed: Mutex::new(None),
            damage: CopyDamage::default(),
        }
    }

    /// Returns true if the shard has reached the end of its log once.
    pub(super) fn is_caught_up(&self) -> bool {
        self.caught_up.load(Ordering::Acquire)
    }

    /// Returns a number that grows when the local collection is opened again. An answer counts only
    /// if it is the same before and after.
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Checks that the local collection was neither replaced nor opened again since the generation
    /// was read.
    ///
    /// # Errors
    /// `Unavailable` with retry advice if it was.
    pub(super) fn check_generation(&self, key: &ShardKey, generation: u64) -> Result<()> {
        // A copy is replaced before the follower notices it, and the new copy is behind. Without a
        // copy, the holder has ended, but its task may run for another moment.
        let is_replaced = self.followed.lock().as_ref().is_none_or(|named| named.removed());
        if self.generation() == generation && !is_replaced {
            return Ok(());
        }
        let message = format!("the shard {key} was opened again meanwhile");
        Err(Error::unavailable(message).with_retry_after(PAUSE_MIN))
    }

    /// Serves no more reads until the end of the log is reached again.
    fn reopen(&self) {
        self.caught_up.store(false, Ordering::Release);
        self.generation.fetch_add(1, Ordering::AcqRel);
        self.applied.send_replace(EntryNumber::default());
        *self.followed.lock() = None;
    }

    /// Begins to follow the log with a local collection that has applied the entries before `next`.
    fn follow(&self, named: &Arc<NamedCollection>, next: EntryNumber) {
        *self.followed.lock() = Some(named.clone());
        self.applied.send_replace(next);
    }

    /// Decides on the use of a damaged copy.
    pub(super) fn decide_damaged(&self, view: &CertainHolders<'_>) {
        if self.damage.decide(view, Instant::now()) {
            self.wake.notify_one();
        }
    }

    /// Returns the next entry to apply.
    pub(super) fn applied(&self) -> EntryNumber {
        *self.applied.borrow()
    }

    /// Reads the log soon: a writer has appended `entry`.
    pub(super) fn announce(&self, entry: EntryNumber) {
        if self.applied() <= entry {
            self.wake.notify_one();
        }
    }

    /// Waits until the entry `entry` is applied.
    ///
    /// # Errors
    /// `Unavailable` with a retry delay at `deadline`.
    pub(super) async fn wait_applied(&self, entry: EntryNumber, deadline: Instant) -> Result<()> {
        let mut applied = self.applied.subscribe();
        let reached = tokio::time::timeout(PASSED_WAIT, applied.wait_for(|next| *next > entry));
        if reached.await.is_ok() {
            return Ok(());
        }
        self.announce(entry);
        let reached = applied.wait_for(|next| *next > entry);
        check_reached(tokio::time::timeout_at(deadline.into(), reached).await.is_ok())
    }

    /// Returns true if requests wait for a read of the log's end.
    fn wants_end_read(&self) -> bool {
        self.end_reads_wanted.load(Ordering::Acquire) > *self.end_reads_done.borrow()
    }

    /// Has the log read to its end, and waits until all changes that were acknowledged before this
    /// call are applied.
    ///
    /// # Errors
    /// `Unavailable` with a retry delay at `deadline`.
    pub(super) async fn wait_end(&self, deadline: Instant) -> Result<()> {
        let end_read = self.end_reads_wanted.fetch_add(1, Ordering::AcqRel) + 1;
        self.wake.notify_one();
        let mut done = self.end_reads_done.subscribe();
        let reached = done.wait_for(|newest| *newest >= end_read);
        check_reached(tokio::time::timeout_at(deadline.into(), reached).await.is_ok())
    }
}

/// Turns the end of a wait for the log into its outcome.
///
/// # Errors
/// `Unavailable` with a retry delay if the shard did not reach the awaited entry.
fn check_reached(reached: bool) -> Result<()> {
    if reached {
        Ok(())
    } else {
        Err(Error::unavailable("the shard did not reach the end of its log in time")
            .with_retry_after(PAUSE_MIN))
    }
}

/// Task of a shard.
struct ShardFollower {
    services: Arc<NodeServices>,
    record: CollectionRecord,
    key: ShardKey,
    log: ShardLog,
    state: Arc<HolderState>,
    snapshots: SnapshotState,
    /// Task that replaces a damaged local collection; at most one. Dropping the follower ends it.
    replacement: JoinSet<Result<()>>,
    /// End of the last try to replace a damaged local collection.
    replaced: Option<Instant>,
}

/// A step of the follower.
struct NextStep {
    step: FollowStep,
    /// True if its entry was passed on by the writer.
    passed: bool,
}

/// Progress of a follower since it opened the local collection.
struct FollowProgress {
    named: Arc<NamedCollection>,
    position: FollowPosition,
    /// Time of the opening.
    opened_at: Instant,
    /// Position that is recorded with the local collection.
    recorded: FollowPosition,
    recorded_at: Instant,
}

/// Pauses before a shard is opened again.
struct ReopenPauses {
    next: Duration,
    /// Error of the last try.
    last: Option<Error>,
}

impl ReopenPauses {
    fn new() -> ReopenPauses {
        ReopenPauses { next: PAUSE_MIN, last: None }
    }

    /// Records the error of a try, which followed the log for `followed`. Returns true if it has to
    /// be logged, because the error of the try before was another one.
    fn record(&mut self, error: &Error, followed: Duration) -> bool {
        if followed > PAUSE_MAX {
            *self = ReopenPauses::new();
        }
        let is_new = self.last.as_ref() != Some(error);
        self.last = Some(error.clone());
        is_new
    }

    /// Returns the next pause.
    fn take(&mut self) -> Duration {
        let is_loss = self.last.as_ref().is_some_and(|error| error.kind() == ErrorKind::DataLoss);
        let longest = if is_loss { LOSS_PAUSE_MAX } else { PAUSE_MAX };
        let pause = self.next.min(longest);
        self.next = pause * 2;
        pause
    }
}

impl ShardFollower {
    async fn run(mut self) {
        let mut pauses = ReopenPauses::new();
        loop {
            let began = Instant::now();
            if let Err(error) = self.follow().await {
                let is_opened = self.state.followed.lock().is_some();
                let followed = if is_opened { began.elapsed() } else { Duration::ZERO };
                if pauses.record(&error, followed) {
                    tracing::warn!(shard = %self.key, %error, "a shard is opened again");
                } else {
                    tracing::debug!(shard = %self.key, %error, "a shard is opened again");
                }
            }
            self.state.reopen();
            self.services.serving_changed();
            tokio::time::sleep(pauses.take()).await;
        }
    }

    /// Opens the local collection and applies the log, until the collection has to be opened again.
    async fn follow(&mut self) -> Result<()> {
        let OpenedShard { named, floor } = self.open().await?;
        let position = local::position(&named).unwrap_or_default();
        self.snapshots.begin_count(FollowPosition { next: floor.entry, epoch: floor.epoch });
        let opened_at = Instant::now();
        let mut progress = FollowProgress {
            named,
            position,
            opened_at,
            recorded: position,
            recorded_at: opened_at,
        };
        let mut follower = LogFollower::new(self.log.clone(), position.next, position.epoch);
        self.state.follow(&progress.named, position.next);
        let mut pause = PAUSE_MIN;
        loop {
            self.attend_to_damage(&progress.named);
            if progress.named.removed() {
                return Err(Error::unavailable("the local collection was replaced"));
            }
            let end_read = self.state.end_reads_wanted.load(Ordering::Acquire);
            let NextStep { step, passed } = match self.next_step(&mut follower).await {
                Ok(step) => step,
                // The store may be down or refuse a key, or an entry is damaged. Applied entries
                // are still served.
                Err(error) => {
                    if pause == PAUSE_MIN {
                        tracing::warn!(shard = %self.key, %error, "the log cannot be read and is tried again");
                    }
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(PAUSE_MAX);
                    continue;
                }
            };
            pause = PAUSE_MIN;
            match step {
                FollowStep::Entry { number, batch } => {
                    if let Some(batch) = batch {
                        self.apply(&progress, &batch).await?;
                    }
                    progress.position = follower.position();
                    self.state.applied.send_replace(number.plus(1));
                    self.work_between(&mut progress).await?;
                    // After an entry that the writer passed on, the log's end need not be read.
                    if passed && self.state.is_caught_up() && !self.state.wants_end_read() {
                        self.rest(number.plus(1)).await;
                    }
                }
                // Answers would lack points. The log may grow meanwhile, so its end is read again.
                FollowStep::End if progress.named.collection().opening() => {
                    wait_open(&progress.named).await;
                }
                FollowStep::End => {
                    self.reached_end(end_read, &progress.named);
                    self.work_between(&mut progress).await?;
                    self.rest(follower.position().next).await;
                }
                FollowStep::Removed(floor) => {
                    return Err(Error::unavailable(format!(
                        "entry {} was removed from the log, which begins at {}; a snapshot is restored",
                        progress.position.next, floor.entry
                    )));
                }
            }
        }
    }

    /// Returns the next step: an entry that was passed on, or the next step of the log.
    async fn next_step(&self, follower: &mut LogFollower) -> Result<NextStep> {
        let next = follower.position().next;
        let mut passed = false;
        loop {
            if let Some(entry) = self.state.offered.take(next) {
                passed |= follower.offer(next, entry);
            }
            // A read that is dropped costs one request to the store. The position stays.
            tokio::select! {
                biased;
                step = follower.next() => {
                    self.services.metrics.passed_entries.inc_by(u64::from(passed));
                    return step.map(|step| NextStep { step, passed });
                }
                () = self.state.offered.has(next) => {}
            }
        }
    }

    /// Waits for a wake, the entry `next`, or the time of the next poll.
    async fn rest(&self, next: EntryNumber) {
        let woken = async {
            tokio::select! {
                () = self.state.wake.notified() => {}
                () = self.state.offered.has(next) => {}
            }
        };
        let _ = tokio::time::timeout(POLL_INTERVAL, woken).await;
    }

    /// Applies an entry. A shard that is behind takes turns with others. If damage of the local
    /// collection stops the entry, the collection is served as it is until it is replaced. The
    /// entry is tried again after each try to replace it.
    async fn apply(&mut self, progress: &FollowProgress, batch: &cluster_log::Batch) -> Result<()> {
        let named = &progress.named;
        let applied = loop {
            match self.try_to_apply(progress, batch).await {
                Err(error) if error.kind() == ErrorKind::DataLoss && !named.removed() => {
                    self.mark_damaged(error.message());
                    self.wait_for_replacement(named).await;
                    if named.removed() {
                        return Err(error);
                    }
                }
                applied => break applied?,
            }
        };
        let metrics = &self.services.metrics;
        metrics.entries.inc();
        for (kind, count) in [("applied", applied.made), ("skipped", applied.skipped)] {
            metrics.operations.get_or_create(&KindLabels { kind }).inc_by(count);
        }
        Ok(())
    }

    /// Applies an entry once, at the priority of the shard.
    async fn try_to_apply(
        &self,
        progress: &FollowProgress,
        batch: &cluster_log::Batch,
    ) -> Result<AppliedBatch> {
        let is_behind = !self.state.is_caught_up();
        let priority = ApplyPriority::of(is_behind, progress.opened_at.elapsed());
        let turns = is_behind.then_some(&self.services.catch_ups);
        apply(&progress.named, batch, priority, turns).await
    }

    /// Marks the local collection if it lacks data, and begins its replacement once that is
    /// permitted.
    fn attend_to_damage(&mut self, named: &Arc<NamedCollection>) {
        while let Some(ended) = self.replacement.try_join_next() {
            self.record_replacement(ended);
        }
        let Some(loss) = named.collection().loss() else { return };
        self.mark_damaged(&loss.to_string());
        self.begin_replacement_if_due(named);
    }

    /// Marks the local collection as damaged, so that the node announces the mark.
    fn mark_damaged(&self, reason: &str) {
        if self.state.damage.mark(reason, Instant::now()) {
            tracing::error!(
                shard = %self.key, reason,
                "the local copy is damaged and stays until it can be replaced from the store"
            );
            self.services.serving_changed();
        }
    }

    /// Waits until a try to replace the local collection has ended.
    async fn wait_for_replacement(&mut self, named: &Arc<NamedCollection>) {
        self.begin_replacement_if_due(named);
        while self.replacement.is_empty() && !named.removed() {
            tokio::time::sleep(POLL_INTERVAL).await;
            self.begin_replacement_if_due(named);
        }
        self.end_replacement().await;
    }

    /// Begins to replace the damaged local collection beside its service, if the decision about the
    /// copy and the time since the last try permit it.
    fn begin_replacement_if_due(&mut self, named: &Arc<NamedCollection>) {
        let is_due =
            self.state.damage.may_be_replaced(Instant::now()) && self.until_replacement().is_zero();
        if !is_due || !self.replacement.is_empty() || named.removed() {
            return;
        }
        tracing::warn!(shard = %self.key, "the damaged local copy is replaced from the store");
        let loader = self.loader();
        let applied = local::position(named).unwrap_or_default().next;
        let state = self.state.clone();
        self.replacement.spawn(async move {
            let floor = loader.log.floor().await?;
            let loaded = loader.load(floor, applied).await;
            state.wake.notify_one();
            loaded.map(drop)
        });
    }

    /// Waits until the task that replaces the local collection has ended, if there is one.
    async fn end_replacement(&mut self) {
        while let Some(ended) = self.replacement.join_next().await {
            self.record_replacement(ended);
        }
    }

    /// Records the end of a try to replace the local collection. The next try comes later.
    fn record_replacement(&mut self, ended: Result<Result<()>, JoinError>) {
        self.replaced = Some(Instant::now());
        let outcome = ended.unwrap_or_else(|error| {
            Err(Error::internal(format!("the replacement ended early: {error}")))
        });
        if let Err(error) = outcome {
            tracing::error!(
                shard = %self.key, %error,
                "the damaged local copy stays, because it cannot be replaced now"
            );
        }
    }

    fn loader(&self) -> CopyLoader {
        CopyLoader {
            services: self.services.clone(),
            record: self.record.clone(),
            key: self.key.clone(),
            log: self.log.clone(),
        }
    }

    fn reached_end(&self, end_read: u64, named: &NamedCollection) {
        self.state.end_reads_done.send_if_modified(|done| {
            let newer = *done < end_read;
            *done = end_read.max(*done);
            newer
        });
        let is_first = !self.state.caught_up.swap(true, Ordering::AcqRel);
        let is_whole = named.collection().loss().is_none() && !named.removed();
        let is_repaired = is_whole && self.state.damage.clear();
        if is_repaired {
            tracing::info!(shard = %self.key, "the local copy is whole again");
        }
        if is_first || is_repaired {
            self.services.serving_changed();
        }
    }

    /// Records the position if it is due, and starts a snapshot if one is due.
    async fn work_between(&mut self, progress: &mut FollowProgress) -> Result<()> {
        let moved = progress.position != progress.recorded;
        if moved && progress.recorded_at.elapsed() >= RECORD_INTERVAL {
            let named = progress.named.clone();
            let position = progress.position;
            blocking(move || local::store_position(&named, position)).await?;
            progress.recorded = progress.position;
            progress.recorded_at = Instant::now();
        }
        if self.is_first_holder() {
            let services = &self.services;
            let key = &self.key;
            self.snapshots.begin_if_due(services, key, &self.record, &self.log, progress.into());
        }
        Ok(())
    }

    /// Returns true if this node is the one that takes snapshots of the shard.
    fn is_first_holder(&self) -> bool {
        let view = self.services.view.current();
        let holders = view.serving_holders(&self.key, self.record.copies);
        holders.first().is_some_and(|first| first.name == self.services.name)
    }

    /// Returns the time until the local collection may be replaced because of damage.
    fn until_replacement(&self) -> Duration {
        let since = self.replaced.map(|at| at.elapsed());
        since.map_or(Duration::ZERO, |since| REPLACE_INTERVAL.saturating_sub(since))
    }

    /// Returns the local collection: the present one if it can follow the log, or one loaded from
    /// the store. A damaged one that can follow the log is returned too: it is served until it is
    /// replaced. Another one stays on the disk until the loaded one takes its place.
    async fn open(&mut self) -> Result<OpenedShard> {
        // It changes the collection of this name.
        self.end_replacement().await;
        let floor = self.log.floor().await?;
        let applied = match self.present(floor)? {
            PresentCopy::Follows(named) => return Ok(OpenedShard { named, floor }),
            PresentCopy::Absent => None,
            PresentCopy::Unusable { applied } => Some(applied),
        };
        let loaded = self.loader().load(floor, applied.unwrap_or_default()).await;
        if let (Err(error), Some(_)) = (&loaded, applied)
            && error.kind() == ErrorKind::DataLoss
        {
            self.mark_damaged(error.message());
        }
        loaded
    }

    /// Returns the local collection as it is on this machine.
    ///
    /// # Errors
    /// Errors that may pass, such as too little memory.
    fn present(&self, floor: LogFloor) -> Result<PresentCopy> {
        let named = match self.services.local.find(&self.key) {
            Ok(Some(named)) => named,
            Ok(None) => return Ok(PresentCopy::Absent),
            Err(error) if error.kind() == ErrorKind::DataLoss => {
                self.mark_damaged(&format!("it cannot be opened: {}", error.message()));
                // Its position is not known. A shard that was written has the entry 0.
                return Ok(PresentCopy::Unusable { applied: EntryNumber(1) });
            }
            Err(error) => return Err(error),
        };
        let position = local::position(&named);
        if position.is_some_and(|position| position.next >= floor.entry) {
            return Ok(PresentCopy::Follows(named));
        }
        Ok(PresentCopy::Unusable { applied: position.unwrap_or_default().next })
    }
}

/// The local collection of a shard before it is opened.
enum PresentCopy {
    /// There is none.
    Absent,
    /// The log has the entries behind it.
    Follows(Arc<NamedCollection>),
    /// It cannot be opened, has no position, or is below the floor of the log.
    Unusable {
        /// Next entry of the log behind it.
        applied: EntryNumber,
    },
}

/// Waits until the segments of a collection are open, for at most [`POLL_INTERVAL`].
async fn wait_open(named: &NamedCollection) {
    let until = Instant::now() + POLL_INTERVAL;
    while named.collection().opening() && Instant::now() < until {
        tokio::time::sleep(OPENING_CHECK).await;
    }
}

impl From<&mut FollowProgress> for snapshot::SnapshotSource {
    fn from(progress: &mut FollowProgress) -> snapshot::SnapshotSource {
        snapshot::SnapshotSource { named: progress.named.clone(), recorded: progress.recorded }
    }
}

#[cfg(test)]
#[path = "holder_tests.rs"]
mod tests;
