//! State of a shard that requests and the follower share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use base::{Error, Result};
use cluster::{AppliedReadStep, CertainHolders, EntryNumber, StalledServiceChange};
use parking_lot::Mutex;
use search::registry::NamedCollection;
use tokio::sync::{Notify, watch};

use super::{PAUSE_MAX, PAUSE_MIN};
use crate::node::copy_damage::CopyDamage;
use crate::node::offered::OfferedEntries;
use crate::node::stall::CopyStall;
use crate::types::ShardKey;

/// Time that a read waits for the entry that it needs before the log is read for it. A writer
/// passes an entry on a moment after it acknowledges the entry.
const PASSED_WAIT: Duration = Duration::from_millis(10);

/// State of a shard that requests and the follower share.
pub(in crate::node) struct HolderState {
    /// Next entry to apply.
    pub(super) applied: watch::Sender<EntryNumber>,
    /// Number of the newest read of the log's end that a request waits for.
    pub(super) end_reads_wanted: AtomicU64,
    /// Number of the newest read that reached the log's end and applied all entries before it.
    pub(super) end_reads_done: watch::Sender<u64>,
    /// Wakes the follower before its next poll.
    pub(super) wake: Notify,
    /// Entries that their writer passed on.
    pub(in crate::node) offered: OfferedEntries,
    /// True once the end of the log was reached, until the local collection is replaced. A stalled
    /// copy changes it too. It stays behind the end, and only its service begins or ends.
    pub(super) caught_up: AtomicBool,
    /// Grows when the local collection is opened again.
    generation: AtomicU64,
    /// Local collection that is followed and read.
    pub(super) followed: Mutex<Option<Arc<NamedCollection>>>,
    /// Damage of the local copy.
    pub(in crate::node) damage: CopyDamage,
    /// Stall of the local copy, which cannot apply its log.
    pub(in crate::node) stall: CopyStall,
}

impl HolderState {
    pub(super) fn new() -> HolderState {
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
            stall: CopyStall::default(),
        }
    }

    /// Returns true if the shard has reached the end of its log once.
    pub(in crate::node) fn is_caught_up(&self) -> bool {
        self.caught_up.load(Ordering::Acquire)
    }

    /// Returns a number that grows when the local collection is opened again. An answer counts only
    /// if it is the same before and after.
    pub(in crate::node) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Checks that the local collection was neither replaced nor opened again since the generation
    /// was read.
    ///
    /// # Errors
    /// `Unavailable` with retry advice if it was.
    pub(in crate::node) fn check_generation(&self, key: &ShardKey, generation: u64) -> Result<()> {
        // A copy is replaced before the follower notices it, and the new copy is behind. Without a
        // copy, the holder has ended, but its task may run for another moment.
        let is_replaced = self.followed.lock().as_ref().is_none_or(|named| named.removed());
        if self.generation() == generation && !is_replaced {
            return Ok(());
        }
        let message = format!("the shard {key} was opened again meanwhile");
        Err(Error::unavailable(message).with_retry_after(PAUSE_MIN))
    }

    /// Drops the local collection, which is then opened again. No read is served until the end of
    /// the log is reached again.
    pub(super) fn reopen(&self) {
        // Under this lock, because `decide_stalled` serves a copy only while it is followed.
        let mut followed = self.followed.lock();
        self.caught_up.store(false, Ordering::Release);
        self.generation.fetch_add(1, Ordering::AcqRel);
        self.applied.send_replace(EntryNumber::default());
        self.stall.resume();
        *followed = None;
    }

    /// Begins to follow the log with a local collection that has applied the entries before `next`.
    pub(super) fn follow(&self, named: &Arc<NamedCollection>, next: EntryNumber) {
        *self.followed.lock() = Some(named.clone());
        self.applied.send_replace(next);
    }

    /// Decides on the use of a damaged copy.
    pub(in crate::node) fn decide_damaged(&self, view: &CertainHolders<'_>) {
        if self.damage.decide(view, Instant::now()) {
            self.wake.notify_one();
        }
    }

    /// Decides at `now` on the service of a stalled copy. Returns the change, or `None` if it
    /// stays in service, or out of it.
    pub(in crate::node) fn decide_stalled(
        &self,
        view: &CertainHolders<'_>,
        now: Instant,
    ) -> Option<StalledServiceChange> {
        let followed = self.followed.lock();
        // Until all segments are open, answers would lack points.
        let is_open =
            |named: &Arc<NamedCollection>| !named.removed() && !named.collection().opening();
        followed.as_ref().filter(|named| is_open(named))?;
        let change = self.stall.decide(view, self.is_caught_up(), now)?;
        self.caught_up.store(change == StalledServiceChange::Serve, Ordering::Release);
        Some(change)
    }

    /// Returns the next entry to apply.
    pub(in crate::node) fn applied(&self) -> EntryNumber {
        *self.applied.borrow()
    }

    /// Reads the log soon, because a writer has appended `entry`.
    pub(in crate::node) fn announce(&self, entry: EntryNumber) {
        if self.applied() <= entry {
            self.wake.notify_one();
        }
    }

    /// Waits until the entry `entry` is applied.
    ///
    /// # Errors
    /// `Unavailable` with a retry delay at `deadline`, and at once if the copy is stalled: another
    /// holder may have the entry.
    pub(in crate::node) async fn wait_applied(
        &self,
        entry: EntryNumber,
        deadline: Instant,
    ) -> Result<()> {
        let mut applied = self.applied.subscribe();
        let reached = tokio::time::timeout(PASSED_WAIT, applied.wait_for(|next| *next > entry));
        if reached.await.is_ok() {
            return Ok(());
        }
        let reason = self.stall.reason();
        match AppliedReadStep::of(self.applied(), entry, reason.is_some()) {
            AppliedReadStep::Answer => return Ok(()),
            AppliedReadStep::Refuse => return Err(lacks_changes(&reason.unwrap_or_default())),
            AppliedReadStep::Wait => {}
        }
        self.announce(entry);
        let reached = applied.wait_for(|next| *next > entry);
        check_reached(tokio::time::timeout_at(deadline.into(), reached).await.is_ok())
    }

    /// Checks that the copy is not stalled.
    ///
    /// # Errors
    /// `Unavailable` with a retry delay if it is.
    fn check_stall(&self) -> Result<()> {
        self.stall.reason().map_or(Ok(()), |reason| Err(lacks_changes(&reason)))
    }

    /// Returns true if the log's end is to be read although the writer passes its entries on. This
    /// is so if requests wait for it, or if the copy was not at the end yet. It is also so if the
    /// copy has the mark of a stalled one, which ends there.
    pub(super) fn wants_end_read(&self) -> bool {
        !self.is_caught_up()
            || self.stall.is_marked()
            || self.end_reads_wanted.load(Ordering::Acquire) > *self.end_reads_done.borrow()
    }

    /// Requests a read of the log to its end, and waits until all changes that were acknowledged
    /// before this call are applied.
    ///
    /// # Errors
    /// As [`HolderState::wait_applied`].
    pub(in crate::node) async fn wait_end(&self, deadline: Instant) -> Result<()> {
        self.check_stall()?;
        let end_read = self.end_reads_wanted.fetch_add(1, Ordering::AcqRel) + 1;
        self.wake.notify_one();
        let mut done = self.end_reads_done.subscribe();
        let reached = done.wait_for(|newest| *newest >= end_read);
        check_reached(tokio::time::timeout_at(deadline.into(), reached).await.is_ok())
    }
}

/// Returns the error of a read that needs a change which a stalled copy lacks.
fn lacks_changes(reason: &str) -> Error {
    let message = format!("the shard lacks changes of its log: {reason}");
    Error::unavailable(message).with_retry_after(PAUSE_MAX)
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
