//! Task that follows the log of a shard.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use base::{Error, ErrorKind, Result};
use cluster::{EntryNumber, Epoch};
use metrics::KindLabels;
use search::registry::NamedCollection;
use tokio::task::JoinSet;

use super::end_probe::EndProbe;
use super::pauses::ReopenPauses;
use super::state::HolderState;
use super::{PAUSE_MAX, PAUSE_MIN, POLL_INTERVAL};
use crate::node::apply::{AppliedBatch, ApplyPriority, apply_rest};
use crate::node::copy_loader::OpenedShard;
use crate::node::local::{self, blocking};
use crate::node::services::NodeServices;
use crate::node::snapshot::{self, SnapshotState};
use crate::node::stall::StallCause;
use crate::types::{CollectionRecord, ShardKey};
use cluster_log::{FollowPosition, FollowStep, LogFollower, ShardLog};

/// Time between two checks of a collection whose segments are being opened.
const OPENING_CHECK: Duration = Duration::from_millis(20);
/// Time between two records of the applied position.
const RECORD_INTERVAL: Duration = Duration::from_secs(1);
/// Time between two tries of an entry that stalls the copy.
const STALLED_PAUSE: Duration = Duration::from_secs(2);

/// Task of a shard.
pub(super) struct ShardFollower {
    pub(super) services: Arc<NodeServices>,
    pub(super) record: CollectionRecord,
    pub(super) key: ShardKey,
    pub(super) log: ShardLog,
    pub(super) state: Arc<HolderState>,
    pub(super) snapshots: SnapshotState,
    /// Task that replaces a damaged local collection. There is at most one, and dropping the
    /// follower ends it.
    pub(super) replacement: JoinSet<Result<()>>,
    /// End of the last try to replace a damaged local collection.
    pub(super) replaced: Option<Instant>,
    /// Probes of the log's end since the local collection was opened.
    pub(super) end_probe: EndProbe,
    /// True once the log of this process names an entry with skipped operations.
    pub(super) is_skip_logged: bool,
}

/// A step of the follower.
struct NextStep {
    step: FollowStep,
    /// True if its entry was passed on by the writer.
    passed: bool,
}

/// Progress of a follower since it opened the local collection.
pub(super) struct FollowProgress {
    pub(super) named: Arc<NamedCollection>,
    pub(super) position: FollowPosition,
    /// Time of the opening.
    pub(super) opened_at: Instant,
    /// Position that is recorded with the local collection.
    pub(super) recorded: FollowPosition,
    /// Time of the last try to record it.
    pub(super) recorded_at: Instant,
    /// True if that try found no space on the disk.
    pub(super) is_record_late: bool,
}

impl ShardFollower {
    /// Follows the log until the task is aborted. After an error, opens the local collection again.
    pub(super) async fn run(mut self) {
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
                if error.kind() == ErrorKind::StorageFull {
                    self.mark_stalled(StallCause::FullDisk, &error);
                }
            }
            self.state.reopen();
            self.services.serving_changed();
            tokio::time::sleep(pauses.take()).await;
        }
    }

    /// Opens the local collection and applies the log, until the collection has to be opened again.
    pub(super) async fn follow(&mut self) -> Result<()> {
        let OpenedShard { named, floor } = self.open().await?;
        // An end that was probed before may be too old for a copy that was not served.
        self.end_probe = EndProbe::default();
        let position = local::position(&named).unwrap_or_default();
        self.snapshots.begin_count(FollowPosition { next: floor.entry, epoch: floor.epoch });
        let opened_at = Instant::now();
        let mut progress = FollowProgress {
            named,
            position,
            opened_at,
            recorded: position,
            recorded_at: opened_at,
            is_record_late: false,
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
                Err(error) => {
                    pause = self.wait_after(&error, pause).await;
                    continue;
                }
            };
            if pause > PAUSE_MIN {
                self.state.stall.resume();
                pause = PAUSE_MIN;
            }
            match step {
                FollowStep::Entry { number, batch } => {
                    if let Some(batch) = batch {
                        self.check_fenced(&progress, follower.position().epoch).await?;
                        self.apply(&progress, &batch).await?;
                    }
                    progress.position = follower.position();
                    self.state.applied.send_replace(number.plus(1));
                    self.work_between(&mut progress).await?;
                    self.probe_end(&progress);
                    // After an entry that the writer passed on, the log's end need not be read.
                    if passed && !self.state.wants_end_read() {
                        self.wait_for_work(number.plus(1)).await;
                    }
                }
                // Answers would lack points. The log may grow meanwhile, so its end is read again.
                FollowStep::End if progress.named.collection().opening() => {
                    wait_open(&progress.named).await;
                }
                FollowStep::End => {
                    self.reached_end(end_read, &progress.named);
                    // It was for the same reads, and entries may never reach the end that it found.
                    self.end_probe = EndProbe::default();
                    self.work_between(&mut progress).await?;
                    self.wait_for_work(follower.position().next).await;
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

    /// Waits after a failed read of the log. The store may be down or refuse a key, or an entry is
    /// damaged or has a newer format. Applied entries are still served. Returns the pause after the
    /// next failure.
    async fn wait_after(&mut self, error: &Error, pause: Duration) -> Duration {
        match error.kind() {
            ErrorKind::DataLoss => self.mark_unreadable(error),
            // As before an operation of a newer version: the copy has all entries before this one.
            ErrorKind::Unimplemented => {
                self.mark_stalled(StallCause::UnknownOperation, error);
                self.state.stall.stop(Instant::now());
            }
            _ => {}
        }
        if pause == PAUSE_MIN {
            tracing::warn!(shard = %self.key, %error, "the log cannot be read and is tried again");
        }
        tokio::time::sleep(pause).await;
        (pause * 2).min(PAUSE_MAX)
    }

    /// Returns the next step: an entry that was passed on, or the next step of the log.
    async fn next_step(&self, follower: &mut LogFollower) -> Result<NextStep> {
        let next = follower.position().next;
        let mut passed = false;
        let mut is_refused = false;
        loop {
            if let Some(entry) = self.state.offered.take(next) {
                let is_taken = follower.offer(next, entry);
                passed |= is_taken;
                is_refused |= !is_taken;
            }
            // A read that is dropped costs one request to the store. The position stays. With
            // steady writes, a probe finds the end. After a refused entry, the read is not dropped:
            // any client with a key of the role write can send such entries without end.
            tokio::select! {
                biased;
                step = follower.next() => {
                    self.services.metrics.passed_entries.inc_by(u64::from(passed));
                    let step = step?;
                    // A new copy would be served without the entries after a lost one, and a marked
                    // one would lose its mark.
                    let is_checked = !self.state.is_caught_up() || self.state.stall.is_marked();
                    if step == FollowStep::End && is_checked {
                        self.log.check_end(next).await?;
                    }
                    return Ok(NextStep { step, passed });
                }
                () = self.state.offered.wait_for(next), if !is_refused => {}
            }
        }
    }

    /// Checks that the copy has read the fence of the owner whose entry of writes is next. `epoch`
    /// is that of the entry. An owner begins with a fence. So without it, the log was replaced
    /// after the copy had applied its entries, for example by an older state of the store.
    ///
    /// # Errors
    /// `DataLoss` if it has not. The position is recorded, so that the copy is compared with the
    /// log when it is opened again.
    async fn check_fenced(&self, progress: &FollowProgress, epoch: Epoch) -> Result<()> {
        let position = progress.position;
        if epoch <= position.epoch || position == FollowPosition::default() {
            return Ok(());
        }
        let named = progress.named.clone();
        blocking(move || local::store_position(&named, position)).await?;
        Err(Error::data_loss(format!(
            "entry {} of the log is of owner {}, whose first entry the local copy has not read: the \
             log is not the one that the copy has applied",
            position.next, epoch.0
        )))
    }

    /// Records that the end of the log is reached, if a probe found that end before. Begins a probe
    /// if entries arrive while the end is wanted.
    fn probe_end(&mut self, progress: &FollowProgress) {
        let next = progress.position.next;
        // Without all segments, answers would lack points.
        if !progress.named.collection().opening()
            && let Some(end_read) = self.end_probe.take_reached(&self.key, next)
        {
            self.reached_end(end_read, &progress.named);
        }
        if self.state.wants_end_read() {
            // Before the probe begins: it is for the requests until now.
            let end_read = self.state.end_reads_wanted.load(Ordering::Acquire);
            self.end_probe.begin(&self.log, next, end_read);
        }
    }

    /// Waits for a wake, the entry `next`, or the time of the next poll.
    async fn wait_for_work(&self, next: EntryNumber) {
        let woken = async {
            tokio::select! {
                () = self.state.wake.notified() => {}
                () = self.state.offered.wait_for(next) => {}
            }
        };
        let _ = tokio::time::timeout(POLL_INTERVAL, woken).await;
    }

    /// Applies an entry. A shard that is behind takes turns with others. If damage of the local
    /// collection stops the entry, the collection is served as it is until it is replaced. The
    /// entry is tried again after each try to replace it. On a full disk, the entry is tried until
    /// there is space. At an operation that only a newer version knows, the copy waits in the same
    /// way. The node that is upgraded begins with this entry.
    pub(super) async fn apply(
        &mut self,
        progress: &FollowProgress,
        batch: &cluster_log::Batch,
    ) -> Result<()> {
        let named = &progress.named;
        let mut applied = AppliedBatch::default();
        loop {
            let Err(error) = self.try_to_apply(progress, batch, &mut applied).await else { break };
            if named.removed() {
                return Err(error);
            }
            if error.kind() == ErrorKind::DataLoss {
                self.mark_damaged(error.message());
                self.wait_for_replacement(named).await;
                if named.removed() {
                    return Err(error);
                }
            } else if let Some(cause) = StallCause::of(&error) {
                self.mark_stalled(cause, &error);
                self.state.stall.stop(Instant::now());
                // The copy may be damaged too, or be replaced meanwhile.
                self.attend_to_damage(named);
                tokio::time::sleep(STALLED_PAUSE).await;
            } else {
                return Err(error);
            }
        }
        self.state.stall.resume();
        if let Some(reason) = &applied.skip_reason {
            self.log_skipped(progress.position.next, &applied, reason);
        }
        let metrics = &self.services.metrics;
        metrics.entries.inc();
        for (kind, count) in [("applied", applied.made), ("skipped", applied.skipped)] {
            metrics.operations.get_or_create(&KindLabels { kind }).inc_by(count);
        }
        Ok(())
    }

    /// Logs the skipped operations of an entry. A client that may write can cause any number, so
    /// only the first entry of a shard is a warning.
    fn log_skipped(&mut self, entry: EntryNumber, applied: &AppliedBatch, reason: &Error) {
        let AppliedBatch { skipped, .. } = applied;
        if std::mem::replace(&mut self.is_skip_logged, true) {
            tracing::debug!(shard = %self.key, %entry, skipped, %reason, "operations are skipped");
            return;
        }
        tracing::warn!(
            shard = %self.key, %entry, skipped, %reason,
            "an entry of the log has operations that no holder can make: all holders skip them \
             (millpond_cluster_operations_total counts further ones)"
        );
    }

    /// Applies the rest of an entry once, at the priority of the shard.
    async fn try_to_apply(
        &self,
        progress: &FollowProgress,
        batch: &cluster_log::Batch,
        applied: &mut AppliedBatch,
    ) -> Result<()> {
        let is_behind = !self.state.is_caught_up();
        let priority = ApplyPriority::of(is_behind, progress.opened_at.elapsed());
        let turns = is_behind.then_some(&self.services.catch_ups);
        apply_rest(&progress.named, batch, priority, turns, applied).await
    }

    /// Marks the local collection as stalled, so that the node announces the mark.
    pub(super) fn mark_stalled(&mut self, cause: StallCause, error: &Error) {
        // An end that was probed before does not end the mark: the copy may wait for hours.
        self.end_probe = EndProbe::default();
        if self.state.stall.begin(cause, error.message(), Instant::now()) {
            tracing::error!(shard = %self.key, %error, "{}", cause.text());
            self.services.serving_changed();
        }
    }

    /// Marks the local collection as one whose log cannot be read. If it is served, it may return
    /// to service after another holder has taken its place. A copy that has never reached the end
    /// of the log may lack any entries, and is not served.
    fn mark_unreadable(&mut self, error: &Error) {
        self.mark_stalled(StallCause::UnreadableLog, error);
        if self.state.is_caught_up() {
            self.state.stall.stop(Instant::now());
        }
    }

    /// Records that the copy has all entries of the log, as the read of the end number `end_read`
    /// shows. Reports a change of service if the copy was behind, damaged or stalled before.
    pub(super) fn reached_end(&self, end_read: u64, named: &NamedCollection) {
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
        let is_resumed = self.state.stall.end();
        if is_resumed {
            tracing::info!(shard = %self.key, "the local copy has all changes again");
        }
        if is_first || is_repaired || is_resumed {
            self.services.serving_changed();
        }
    }

    /// Records the position if it is due, and starts a snapshot if one is due.
    async fn work_between(&mut self, progress: &mut FollowProgress) -> Result<()> {
        let moved = progress.position != progress.recorded;
        if moved && progress.recorded_at.elapsed() >= RECORD_INTERVAL {
            let named = progress.named.clone();
            let position = progress.position;
            let stored = blocking(move || local::store_position(&named, position)).await;
            progress.recorded_at = Instant::now();
            match stored {
                Ok(()) => {
                    progress.recorded = progress.position;
                    progress.is_record_late = false;
                }
                // The copy has the changes. After a restart it applies them a second time.
                Err(error) if error.kind() == ErrorKind::StorageFull => {
                    if !progress.is_record_late {
                        tracing::warn!(
                            shard = %self.key, %error,
                            "the position in the log is recorded once the disk has space"
                        );
                    }
                    progress.is_record_late = true;
                }
                Err(error) => return Err(error),
            }
        }
        if self.takes_snapshots() {
            let services = &self.services;
            let key = &self.key;
            self.snapshots.begin_if_due(services, key, &self.record, &self.log, progress.into());
        }
        Ok(())
    }

    /// Returns true if this node is the one that takes snapshots of the shard.
    fn takes_snapshots(&self) -> bool {
        let view = self.services.view.current();
        let holder = view.snapshot_holder(&self.key, self.record.copies);
        holder.is_some_and(|holder| holder.name == self.services.name)
    }
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
