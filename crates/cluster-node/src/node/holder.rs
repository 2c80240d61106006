//! A shard that this node holds: its local collection, and the task that follows its log.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use base::{Error, ErrorKind, Result};
use cluster::EntryNumber;
use metrics::KindLabels;
use search::registry::NamedCollection;
use search::segment::Quarantined;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

use super::apply::{ApplyPriority, apply};
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

    /// Checks that the local collection was not opened again since the generation was read.
    ///
    /// # Errors
    /// `Unavailable` with retry advice if it was.
    pub(super) fn check_generation(&self, key: &ShardKey, generation: u64) -> Result<()> {
        if self.generation() == generation {
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

impl ShardFollower {
    async fn run(mut self) {
        let mut pause = PAUSE_MIN;
        loop {
            let began = Instant::now();
            if let Err(error) = self.follow().await {
                tracing::warn!(shard = %self.key, %error, "a shard is opened again");
            }
            self.state.reopen();
            self.services.serving_changed();
            pause = if began.elapsed() > PAUSE_MAX { PAUSE_MIN } else { pause };
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
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
        self.state.applied.send_replace(position.next);
        let mut pause = PAUSE_MIN;
        loop {
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
            if let Some(loss) = self.loss_to_repair(&progress.named)
                && self.store_answers().await
            {
                return Err(Error::data_loss(format!("the local copy is damaged: {loss}")));
            }
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
                    self.reached_end(end_read);
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

    async fn apply(&mut self, progress: &FollowProgress, batch: &cluster_log::Batch) -> Result<()> {
        let is_behind = !self.state.is_caught_up();
        let priority = ApplyPriority::of(is_behind, progress.opened_at.elapsed());
        let turn = if is_behind { self.services.catch_up_turn().await } else { None };
        let applied = apply(&progress.named, batch, priority).await;
        drop(turn);
        let applied = match applied {
            Err(error) if error.kind() == ErrorKind::DataLoss => {
                tracing::error!(shard = %self.key, %error, "the local copy is damaged and is replaced");
                self.remove_damaged().await?;
                return Err(error);
            }
            applied => applied?,
        };
        let metrics = &self.services.metrics;
        metrics.entries.inc();
        for (kind, count) in [("applied", applied.made), ("skipped", applied.skipped)] {
            metrics.operations.get_or_create(&KindLabels { kind }).inc_by(count);
        }
        Ok(())
    }

    /// Removes the local collection once it may be replaced. Damage stopped an operation of the
    /// log, so the collection is not served.
    async fn remove_damaged(&mut self) -> Result<()> {
        self.state.reopen();
        self.services.serving_changed();
        tokio::time::sleep(self.until_replacement()).await;
        self.services.local.remove(&self.key).await?;
        self.replaced = Some(Instant::now());
        Ok(())
    }

    fn reached_end(&self, end_read: u64) {
        self.state.end_reads_done.send_if_modified(|done| {
            let newer = *done < end_read;
            *done = end_read.max(*done);
            newer
        });
        if !self.state.caught_up.swap(true, Ordering::AcqRel) {
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

    /// Returns the damage of the local collection, if it is to be replaced because of it.
    fn loss_to_repair(&self, named: &NamedCollection) -> Option<Quarantined> {
        named.collection().loss().filter(|_| self.until_replacement().is_zero())
    }

    /// Returns the time until the local collection may be replaced because of damage.
    fn until_replacement(&self) -> Duration {
        let since = self.replaced.map(|at| at.elapsed());
        since.map_or(Duration::ZERO, |since| REPLACE_INTERVAL.saturating_sub(since))
    }

    /// Returns true if the store answers, so that a damaged collection can be replaced. Otherwise
    /// the collection is served until the next try.
    async fn store_answers(&mut self) -> bool {
        // A step does not show it: the writer may have passed the entry on.
        let Err(error) = self.log.floor().await else { return true };
        tracing::error!(shard = %self.key, %error, "the damaged local copy cannot be replaced now");
        self.replaced = Some(Instant::now());
        false
    }

    /// Returns the local collection: the present one, or one loaded from the store. A damaged one
    /// is replaced. If that fails, it is served until the next try.
    async fn open(&mut self) -> Result<OpenedShard> {
        let floor = self.log.floor().await?;
        let mut damaged = None;
        if let Some(named) = self.present().await? {
            match local::position(&named) {
                Some(position) if position.next >= floor.entry => {
                    let Some(loss) = self.loss_to_repair(&named) else {
                        return Ok(OpenedShard { named, floor });
                    };
                    tracing::error!(shard = %self.key, %loss, "the local copy is damaged and is replaced");
                    damaged = Some(named);
                }
                _ => self.services.local.remove(&self.key).await?,
            }
        }
        let loaded = self.load(floor).await;
        if damaged.is_some() {
            // At the end: a try may take longer than the interval.
            self.replaced = Some(Instant::now());
        }
        match (loaded, damaged) {
            (Err(error), Some(named)) if !named.removed() => {
                tracing::error!(shard = %self.key, %error, "the damaged local copy cannot be replaced now");
                Ok(OpenedShard { named, floor })
            }
            (loaded, _) => loaded,
        }
    }

    /// Loads the local collection from the store: from a snapshot, or an empty one if the log has
    /// all entries. Takes the place of the present one.
    async fn load(&self, floor: LogFloor) -> Result<OpenedShard> {
        let restored = snapshot::restore(&self.services, &self.key, &self.record, floor).await?;
        if let Some(named) = restored {
            return Ok(OpenedShard { named, floor });
        }
        if floor.entry > EntryNumber::default() {
            return Err(Error::data_loss(format!(
                "the log of shard {} begins at entry {}, and there is no snapshot of what was before; restore the \
                 cluster's store from a copy",
                self.key, floor.entry
            )));
        }
        self.services.local.remove(&self.key).await?;
        let named = self.services.local.create(&self.key, &self.record).await?;
        let empty = named.clone();
        blocking(move || local::store_position(&empty, FollowPosition::default())).await?;
        Ok(OpenedShard { named, floor })
    }

    /// Returns the local collection if there is one. Removes a damaged one, since the store has all
    /// of it. Other errors, such as too little memory, may pass.
    async fn present(&self) -> Result<Option<Arc<NamedCollection>>> {
        match self.services.local.find(&self.key) {
            Err(error) if error.kind() == ErrorKind::DataLoss => {
                tracing::error!(shard = %self.key, %error, "the local copy is damaged and is replaced");
                self.services.local.remove(&self.key).await?;
                Ok(None)
            }
            found => found,
        }
    }
}

/// Waits until the segments of a collection are open, for at most [`POLL_INTERVAL`].
async fn wait_open(named: &NamedCollection) {
    let until = Instant::now() + POLL_INTERVAL;
    while named.collection().opening() && Instant::now() < until {
        tokio::time::sleep(OPENING_CHECK).await;
    }
}

/// An open local collection, and the floor of its log.
struct OpenedShard {
    named: Arc<NamedCollection>,
    floor: LogFloor,
}

impl From<&mut FollowProgress> for snapshot::SnapshotSource {
    fn from(progress: &mut FollowProgress) -> snapshot::SnapshotSource {
        snapshot::SnapshotSource { named: progress.named.clone(), recorded: progress.recorded }
    }
}

#[cfg(test)]
#[path = "holder_tests.rs"]
mod tests;
