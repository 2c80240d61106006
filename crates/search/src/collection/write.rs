//! Writes to a collection. Changes go to the log and to memory, and are acknowledged once the log
//! is durable.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use base::{Error, ErrorKind, Result};
use coarse::{Metric, SQUARE_MAX};
use storage::log::{LOG_BYTES_MAX, Log};

use super::inner::{Collection, CollectionLogs};
use super::names::CollectionFile;
use super::options::RECORD_BYTES_MAX;
use super::stall::Urgency;
use super::state::LiveState;
use crate::ingest::{
    LoggedOp, MEMTABLE_ROWS_MAX, MemtableRow, Op, PointRef, StoredPoint, row_bytes,
};
use crate::points;

/// Maximum frozen memtables, in addition to the active one.
pub(super) const FROZEN_MAX: usize = 1;
/// Minimum time in which a memtable fills, in durations of a flush. Too large a factor costs
/// little, because writes are no longer slowed down once the flush is done. With too small a
/// factor, the memtable is full before that.
const FILL_TIME_MIN: f64 = 1.5;
/// Writes are slowed down from this many times `fan_in` segments of similar size that wait to be
/// merged. A query searches each of them, and their centres and ids take memory. Fewer waiting
/// segments do not slow writes. They are merged after a bulk load.
const BACKLOG_MIN: usize = 32;
/// `FILL_TIME_MIN` grows by one duration of a flush for each `BACKLOG_STEP * fan_in` waiting
/// segments beyond `BACKLOG_MIN * fan_in`.
const BACKLOG_STEP: usize = 4;
/// Maximum growth of `FILL_TIME_MIN`, in durations of a flush. Merging a row until its segment is
/// large takes several times the time of flushing it.
const BACKLOG_MARGIN_MAX: f64 = 8.0;
/// Longest slowdown of one change.
const SLOWED_MAX: Duration = Duration::from_secs(1);
/// Retry delay for a write that found no room.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Maximum logs. Their number grows if the list without them cannot be published.
const LOGS_MAX: usize = 16;
/// Minimum length of a log before a new one is started, however small a memtable is.
const LOG_BYTES_MIN: u64 = 64 << 10;

/// Changes that are in memory and in the log, but not durable yet. Each entry has a log and the
/// number of its last change.
#[must_use = "changes that are not committed may be lost"]
pub struct Applied(Vec<(Arc<Log>, u64)>);

impl Applied {
    /// Waits until the changes are durable. Threads that wait at the same time share one sync.
    ///
    /// # Errors
    /// The error of the medium. The changes may or may not survive.
    pub fn commit(self) -> Result<()> {
        self.0.into_iter().try_for_each(|(log, number)| log.commit(number))
    }
}

/// Behaviour of a change that finds no room in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RoomPolicy {
    /// Waits for room, which escalates the flush.
    Wait,
    /// Fails at once.
    Refuse,
}

/// Result of one attempt to write a change.
enum WriteOutcome {
    /// The change is in memory, and in this log under this number.
    Done(Arc<Log>, u64),
    /// No room now. There may be room after a flush.
    NoRoom(Error),
}

impl Collection {
    /// Makes several changes in order, with one sync of the log. Not a transaction. After an error
    /// or a crash, the first changes may have been made without the later ones. If memory or the
    /// disk has no room for a change, the changes before it are durable.
    ///
    /// # Errors
    /// As [`Collection::upsert`]. No change is then acknowledged.
    pub fn write(&self, ops: &[Op<'_>]) -> Result<()> {
        self.apply_in(ops, RoomPolicy::Wait)?.commit()
    }

    /// Slows the caller down, for at most one second, while memtables fill faster than they are
    /// flushed, or segments are made faster than they are merged. Many short waits replace one wait
    /// of seconds once memory is full. Call this before [`Collection::apply`] and before taking a
    /// lock.
    pub fn throttle(&self) {
        let latest = Instant::now() + SLOWED_MAX;
        let mut slowed = false;
        loop {
            let seen = self.events.count();
            let Some(due) = self.next_write() else { return };
            let now = Instant::now();
            if now >= due.min(latest) || self.check_open().is_err() {
                return;
            }
            if !slowed {
                slowed = true;
                if self.stall.record_slowdown(self.waits_for_flush()) {
                    // The thread of escalated flushes does not know yet.
                    self.events.notify();
                    continue;
                }
            }
            self.events.wait_past(seen, due.min(latest));
        }
    }

    /// Returns true if a memtable waits to be flushed.
    fn waits_for_flush(&self) -> bool {
        self.live.lock().state.memtables.len() > FROZEN_MAX
    }

    /// Returns true if a memtable waits to be flushed and the last flush did not fail. A failed
    /// flush is tried again up to half a minute later.
    fn expects_flush(&self) -> bool {
        self.waits_for_flush() && self.health.lock().flush_error.is_none()
    }

    /// Returns the earliest time for the next change, or `None` if no memtable waits to be flushed
    /// and few segments wait to be merged.
    fn next_write(&self) -> Option<Instant> {
        let flush_time = *self.flush_time.lock();
        let backlog = self.backlog_margin();
        let live = self.live.lock();
        if live.state.memtables.len() <= FROZEN_MAX && backlog == 0.0 {
            return None;
        }
        let memtable = live.active();
        let filled = memtable.bytes() as f64 / self.memtable_bytes.max(1) as f64;
        Some(memtable.begun() + flush_time.mul_f64((FILL_TIME_MIN + backlog) * filled.min(1.0)))
    }

    /// Returns the growth of the minimum time in which a memtable fills, in durations of a flush,
    /// because segments wait to be merged.
    fn backlog_margin(&self) -> f64 {
        let fan_in = self.options.merging.fan_in.max(1);
        let backlog = self.merge_backlog.load(Ordering::Relaxed);
        let beyond = backlog.saturating_sub(BACKLOG_MIN.saturating_mul(fan_in));
        (beyond as f64 / (BACKLOG_STEP * fan_in) as f64).min(BACKLOG_MARGIN_MAX)
    }

    /// Applies changes in order, to the log and to memory. [`Applied::commit`] makes them durable
    /// and may be called without the lock that keeps changes in order.
    pub(super) fn apply_in(&self, ops: &[Op<'_>], room: RoomPolicy) -> Result<Applied> {
        self.check_room(ops)?;
        for op in ops {
            self.check(op)?;
        }
        let mut last: Option<(Arc<Log>, u64)> = None;
        for op in ops {
            let (log, number) = match self.write_one(op, room) {
                Ok(written) => written,
                // Readers already see the changes before this one, so a restart must not lose them.
                Err(refusal) => {
                    return Err(match Applied(last.into_iter().collect()).commit() {
                        Ok(()) => refusal,
                        Err(failed) => refusal.caused_by(failed),
                    });
                }
            };
            if let Some((before, number)) =
                last.take().filter(|(before, _)| !Arc::ptr_eq(before, &log))
            {
                before.commit(number)?;
            }
            last = Some((log, number));
        }
        Ok(Applied(last.into_iter().collect()))
    }

    /// Returns all changes that readers see now. The caller of a change that changes nothing, for
    /// example because its point is deleted already, commits them. A crash must not undo what it
    /// has answered. If the log has failed, that is an error until a flush has saved the changes.
    pub(crate) fn visible(&self) -> Applied {
        let writer = self.writer.lock();
        let last = |(_, log): &(u64, Arc<Log>)| {
            let number = log.next().checked_sub(1).filter(|number| *number > 0)?;
            Some((log.clone(), number))
        };
        Applied(writer.logs.iter().filter_map(last).collect())
    }

    /// Refuses changes that can never be written. The error names the id that the client sent.
    fn check(&self, op: &Op<'_>) -> Result<()> {
        let Op::Upsert(point) = op else { return Ok(()) };
        self.check_point(point).map_err(|error| {
            // The internal id of a UUID is a hash, which no client knows.
            match points::decode(point.id, point.payload) {
                Ok((id, _)) => error.context(format_args!("point {id}")),
                Err(_) => error.context(format_args!("point {}", point.id)),
            }
        })
    }

    /// Refuses a point that the collection cannot store, by its embedding, record or payload.
    fn check_point(&self, point: &PointRef<'_>) -> Result<()> {
        let PointRef { embedding, record, payload, .. } = point;
        let dims = self.options.shape.dims;
        if embedding.len() != dims {
            let values = embedding.len();
            return Err(Error::invalid(format!("its embedding has {values} values, not {dims}")));
        }
        if let Some(at) = embedding.iter().position(|value| !value.is_finite()) {
            return Err(Error::invalid(format!(
                "the value at dimension {at} of its embedding is not a finite 32-bit number"
            )));
        }
        self.check_length(embedding)?;
        // Both are stored as records.
        let payload_max = self.options.payload_bytes_max.min(RECORD_BYTES_MAX);
        for (what, bytes, max) in
            [("record", record.len(), RECORD_BYTES_MAX), ("payload", payload.len(), payload_max)]
        {
            if bytes > max {
                return Err(Error::too_large(format!(
                    "its {what} has {bytes} bytes, {max} at most"
                )));
            }
        }
        let object = payload.is_empty()
            || serde_json::from_slice::<serde_json::Map<String, serde_json::Value>>(payload)
                .is_ok();
        if !object {
            return Err(Error::invalid("its payload is not a JSON object"));
        }
        let bytes = row_bytes(dims, record.len(), payload.len());
        if bytes > self.memtable_bytes {
            // Not `TooLarge`, since another machine may have another budget.
            return Err(Error::precondition(format!(
                "{bytes} bytes are more than the {} for unflushed points; raise --search-memory",
                self.memtable_bytes
            )));
        }
        Ok(())
    }

    /// Refuses finite embeddings whose products overflow, or whose direction is lost to rounding,
    /// because no index can be built from them.
    fn check_length(&self, embedding: &[f32]) -> Result<()> {
        let square: f64 = embedding.iter().map(|value| f64::from(*value) * f64::from(*value)).sum();
        let cosine = self.options.shape.metric == Metric::Cosine;
        let least = if cosine { f64::from(f32::MIN_POSITIVE) } else { 0.0 };
        if square == 0.0 || (least..=f64::from(SQUARE_MAX)).contains(&square) {
            return Ok(());
        }
        let length = square.sqrt();
        let least = least.sqrt();
        let most = f64::from(SQUARE_MAX).sqrt();
        Err(Error::invalid(format!(
            "its embedding has the length {length:.1e}, but it must be {least:.1e} to {most:.1e}; scale it"
        )))
    }

    /// Writes one change, and waits for room if `room` permits that. Returns its log and its number
    /// there, for which the caller must wait.
    fn write_one(&self, op: &Op<'_>, room: RoomPolicy) -> Result<(Arc<Log>, u64)> {
        let mut frame = Vec::new();
        op.encode(&mut frame);
        let deadline = Instant::now() + self.options.room_wait;
        let mut notified = false;
        // One wait for any number of events. Events of other collections must not restart it.
        let mut stalled = None;
        loop {
            let mut seen = self.events.count();
            let refusal = match self.try_write(op, &frame)? {
                WriteOutcome::Done(log, number) => return Ok((log, number)),
                WriteOutcome::NoRoom(refusal) => refusal,
            };
            self.check_open()?;
            // Writers and deletes of a collection wait for one lock. If each writer held it for the
            // whole wait, the last of many writers would wait for minutes.
            let in_vain = !notified && self.stall.waited_in_vain(seen) && !self.expects_flush();
            if in_vain && room == RoomPolicy::Wait {
                self.stall.refuse(seen);
                return Err(refusal.with_retry_after(RETRY_AFTER));
            }
            if !notified {
                // The threads that flush may not know yet that memory is short.
                notified = true;
                self.events.notify();
                seen += 1;
            }
            if room == RoomPolicy::Refuse {
                return Err(refusal.with_retry_after(RETRY_AFTER));
            }
            stalled.get_or_insert_with(|| self.stall.wait());
            if !self.events.wait_past(seen, deadline) {
                self.stall.refuse(seen);
                return Err(refusal.with_retry_after(RETRY_AFTER));
            }
        }
    }

    /// Writes one change to the log and to memory if there is room. `frame` is the encoded change.
    fn try_write(&self, op: &Op<'_>, frame: &[u8]) -> Result<WriteOutcome> {
        let mut writer = self.writer.lock();
        if let Some(slot) = self.live.lock().full_pending_deletes() {
            let name = CollectionFile::Segment(slot.number).name();
            return Err(Error::precondition(format!(
                "{name} cannot be opened and too much was changed since; restore its file from a \
                 copy and restart the server, or drop it with DELETE \
                 /collections/NAME/segments/{name}"
            )));
        }
        if writer.logs.len() > LOGS_MAX {
            return Ok(WriteOutcome::NoRoom(self.no_room()));
        }
        let row = match op {
            Op::Delete(_) => None,
            Op::Upsert(point) => match self.reserve(&mut writer, point)? {
                Ok(row) => Some(row),
                Err(refusal) => return Ok(WriteOutcome::NoRoom(refusal)),
            },
        };
        let (Op::Upsert(PointRef { id, .. }) | Op::Delete(id)) = op;
        let (log, number) = match self.append(&mut writer, frame, *id)? {
            Ok(appended) => appended,
            Err(refusal) => return Ok(WriteOutcome::NoRoom(refusal)),
        };
        let mut live = self.live.lock();
        let completed = match (op, row) {
            (Op::Upsert(_), Some(row)) => live.upsert(row),
            (Op::Delete(id), _) | (Op::Upsert(PointRef { id, .. }), None) => {
                live.delete(*id);
                None
            }
        };
        drop(live);
        completed.into_iter().for_each(|block| block.sketch());
        Ok(WriteOutcome::Done(log, number))
    }

    /// Reserves room for a point in the active memtable or in a new one. The inner error is a
    /// refusal that may be temporary.
    fn reserve(
        &self,
        writer: &mut CollectionLogs,
        point: &PointRef<'_>,
    ) -> Result<Result<MemtableRow>> {
        let bytes = row_bytes(self.options.shape.dims, point.record.len(), point.payload.len());
        let live = self.live.lock();
        let full = self.is_full(&live, bytes);
        let active_bytes = live.active().bytes();
        let can_freeze = live.state.memtables.len() <= FROZEN_MAX;
        drop(live);
        if full {
            if !can_freeze {
                return Ok(Err(self.no_room()));
            }
            self.freeze_active(writer)?;
        }
        let held = match self.budget.reserve_point(bytes, "a point") {
            Ok(held) => held,
            Err(refusal) => {
                // A flush turns rows into codes, which frees memory, but not for a handful of rows.
                // Other collections may have more to flush.
                if !full && can_freeze && active_bytes >= self.memtable_bytes / 4 {
                    self.freeze_active(writer)?;
                }
                return Ok(Err(refusal));
            }
        };
        let mut embedding: Box<[f32]> = point.embedding.into();
        self.options.shape.encoding.round(&mut embedding);
        let record = point.record.into();
        let payload = point.payload.into();
        Ok(Ok(MemtableRow { id: point.id, embedding, record, payload, held }))
    }

    fn is_full(&self, live: &LiveState, bytes: u64) -> bool {
        let memtable = live.active();
        memtable.rows() >= MEMTABLE_ROWS_MAX
            || (memtable.rows() > 0 && memtable.bytes() + bytes > self.memtable_bytes)
    }

    /// Appends a change to the log, or to a new one if the log has failed or is long enough.
    fn append(
        &self,
        writer: &mut CollectionLogs,
        frame: &[u8],
        id: u64,
    ) -> Result<Result<(Arc<Log>, u64)>> {
        self.ensure_log(writer)?;
        let mut refusal = Error::internal("there is no log");
        for _ in 0..2 {
            let Some((_, log)) = writer.logs.last() else { break };
            let can_freeze = self.live.lock().state.memtables.len() <= FROZEN_MAX;
            if log.bytes() < self.log_bytes_max() || !can_freeze {
                refusal = match log.append_keyed(frame, id) {
                    Ok(number) => return Ok(Ok((log.clone(), number))),
                    Err(error) if error.kind() == ErrorKind::InvalidArgument => return Err(error),
                    Err(error) => error,
                };
            }
            if !can_freeze {
                let full = log.failure().filter(|error| error.kind() == ErrorKind::StorageFull);
                // A flush makes room for another log once the disk has room. Callers do not wait.
                return match full {
                    Some(error) => Err(error),
                    None => Ok(Err(refusal)),
                };
            }
            self.freeze_active(writer)?;
        }
        Err(refusal)
    }

    /// Returns the maximum length of a log. A log is read whole at the start, in memory reserved
    /// for flushes. The limit also ends a log of deletes only. One memtable fits one log.
    fn log_bytes_max(&self) -> u64 {
        (self.memtable_bytes / 4 * 5).clamp(LOG_BYTES_MIN, LOG_BYTES_MAX / 2)
    }

    fn no_room(&self) -> Error {
        let why = self.health.lock().flush_error.clone();
        let why =
            why.map_or_else(String::new, |error| format!(" (the last flush failed: {error})"));
        Error::exhausted(format!(
            "{} of unflushed points wait to be flushed{why}; write more slowly",
            base::units::format_bytes(self.memtable_bytes)
        ))
    }

    /// Freezes the active memtable. New changes go to a new memtable with its own log.
    pub(super) fn freeze_active(&self, writer: &mut CollectionLogs) -> Result<()> {
        let number = *writer.unused.get_or_insert_with(|| self.new_file_number());
        let opened = Log::open(&self.medium, &CollectionFile::Log(number).name());
        self.health.lock().write_error = opened.as_ref().err().cloned();
        let (log, _) = opened?;
        writer.unused = None;
        writer.logs.push((number, Arc::new(log)));
        self.live.lock().freeze(number);
        self.events.notify();
        Ok(())
    }

    /// Freezes the active memtable if its log has failed before all changes were durable. No list
    /// can be published until these changes are in a segment, and maybe no write follows that would
    /// start a new log. Returns true if it did.
    ///
    /// # Errors
    /// The error of the medium.
    pub(super) fn replace_failed_log(&self) -> Result<bool> {
        let mut writer = self.writer.lock();
        let lacks = |log: &Log| log.failure().is_some() && log.durable().next < log.next();
        let has_failed = writer.logs.last().is_some_and(|(_, log)| lacks(log));
        let can_freeze = self.live.lock().state.memtables.len() <= FROZEN_MAX;
        if !has_failed || !can_freeze || self.check_open().is_err() {
            return Ok(false);
        }
        self.freeze_active(&mut writer).map(|()| true)
    }

    /// Decodes a logged change of this collection.
    ///
    /// # Errors
    /// `DataLoss` if it does not fit the collection.
    pub(super) fn decoded(&self, frame: &[u8]) -> Result<LoggedOp> {
        let change = LoggedOp::decode(frame)?;
        match &change {
            LoggedOp::Upsert(point) if point.embedding.len() != self.options.shape.dims => {
                Err(Error::data_loss(format!(
                    "point {} has {} dimensions",
                    point.id,
                    point.embedding.len()
                )))
            }
            _ => Ok(change),
        }
    }

    /// Applies a change of log number `log` again, during recovery.
    ///
    /// # Errors
    /// The error of a flush if one is needed for room, or `ResourceExhausted` if there is no room.
    pub(super) fn replay(&self, log: u64, change: LoggedOp) -> Result<()> {
        let point = match change {
            LoggedOp::Delete(id) => {
                self.live.lock().delete(id);
                return Ok(());
            }
            LoggedOp::Upsert(point) => point,
        };
        let StoredPoint { id, embedding, record, payload } = point;
        let bytes = row_bytes(embedding.len(), record.len(), payload.len());
        let full = self.is_full(&self.live.lock(), bytes);
        if full {
            match self.flush_down_to(FROZEN_MAX) {
                // On a full disk the points stay in memory while it has room.
                Err(error) if error.kind() != ErrorKind::StorageFull => return Err(error),
                _ => {}
            }
            self.live.lock().freeze(log);
        }
        let held = match self.budget.reserve(bytes, "a point of the log") {
            Ok(held) => held,
            Err(_) => {
                self.live.lock().freeze(log);
                self.flush_down_to(1)?;
                self.budget.reserve(bytes, "a point of the log")?
            }
        };
        let mut embedding = embedding.into_boxed_slice();
        self.options.shape.encoding.round(&mut embedding);
        let row =
            MemtableRow { id, embedding, record: record.into(), payload: payload.into(), held };
        let completed = self.live.lock().upsert(row);
        completed.into_iter().for_each(|block| block.sketch());
        Ok(())
    }

    /// Flushes until `memtables` are left, including the active one.
    pub(super) fn flush_down_to(&self, memtables: usize) -> Result<()> {
        while self.live.lock().state.memtables.len() > memtables {
            self.flush_once(Urgency::Escalated)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use storage::UringMedium;

    use super::*;
    use crate::budget::MemoryBudget;
    use crate::collection::{CollectionOptions, Merging, Resources};
    use crate::rerank::SharedCaches;

    const DIMS: usize = 8;
    const FAN_IN: usize = 2;

    fn add(collection: &Collection, id: u64) {
        let point = PointRef { id, embedding: &[1.0; DIMS], record: &[], payload: b"{}" };
        collection.upsert(point).unwrap();
    }

    #[test]
    fn a_second_writer_does_not_wait_in_vain() {
        let root = tempfile::tempdir().unwrap();
        let medium = Arc::new(UringMedium::plain(root.path().to_owned()).unwrap());
        let budget = MemoryBudget::new(64 << 20);
        let resources = Resources::new(budget.clone(), 1 << 20, os::Rate::unlimited()).unwrap();
        let room_wait = Duration::from_millis(1);
        let options = CollectionOptions { room_wait, ..CollectionOptions::new(DIMS, Metric::L2) };
        let shared = Arc::new(SharedCaches::new(0, 512));
        let collection = Collection::open(medium, options, &resources, shared).unwrap();
        let taken = budget.reserve(budget.free(), "a test").unwrap();
        let is_refused = |id| {
            let point = PointRef { id, embedding: &[1.0; DIMS], record: &[], payload: b"{}" };
            collection.upsert(point).is_err()
        };
        let counts = || {
            let stats = resources.stall_stats();
            (stats.waited, stats.refused)
        };
        assert!(is_refused(1));
        assert_eq!(counts(), (1, 1));
        assert!(is_refused(2));
        assert_eq!(counts(), (1, 2), "nothing has happened since");
        resources.notify();
        assert!(is_refused(3));
        assert_eq!(counts(), (2, 3), "a flush may have made room");
        drop(taken);
        assert!(!is_refused(4));
        // A memtable waits to be flushed.
        assert!(collection.freeze().unwrap());
        let _taken = budget.reserve(budget.free(), "a test").unwrap();
        assert!(is_refused(5));
        assert!(is_refused(6));
        assert_eq!(counts(), (4, 5), "its flush may end soon");
        collection.health.lock().flush_error = Some(Error::internal("a test"));
        assert!(is_refused(7));
        assert_eq!(counts(), (4, 6), "its flush has failed");
    }

    #[test]
    fn writes_wait_for_merges_that_are_far_behind() {
        let root = tempfile::tempdir().unwrap();
        let medium = Arc::new(UringMedium::plain(root.path().to_owned()).unwrap());
        let resources =
            Resources::new(MemoryBudget::new(64 << 20), 1 << 20, os::Rate::unlimited()).unwrap();
        let merging = Merging { fan_in: FAN_IN, ..Merging::default() };
        let options = CollectionOptions { merging, ..CollectionOptions::new(DIMS, Metric::L2) };
        let shared = Arc::new(SharedCaches::new(0, 512));
        let collection = Collection::open(medium, options, &resources, shared).unwrap();
        let most = BACKLOG_MIN * FAN_IN;
        for id in 0..(most + BACKLOG_STEP * FAN_IN) as u64 {
            add(&collection, id);
            let few = id as usize <= most;
            assert_eq!(collection.next_write().is_none(), few, "{id} segments wait");
            collection.flush().unwrap();
        }
        assert_eq!(collection.backlog_margin(), 1.0);
        *collection.flush_time.lock() = Duration::from_secs(3600);
        add(&collection, 1 << 20);
        assert!(collection.next_write().is_some());
        collection.throttle();
        let stats = resources.stall_stats();
        assert_eq!((stats.slowed, stats.escalated), (1, false), "a flush would not help");
        // A merge joins all segments.
        assert!(collection.merge().unwrap());
        assert_eq!((collection.backlog_margin(), collection.next_write()), (0.0, None));
        collection.throttle();
        assert_eq!(resources.stall_stats().slowed, 1);
    }
}
