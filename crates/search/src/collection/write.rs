//! Changes: into the log, into memory, and acknowledged when the log is durable.

use std::sync::Arc;
use std::time::{Duration, Instant};

use base::{Error, ErrorKind, Result};
use storage::log::{LOG_BYTES_MAX, Log};

use super::inner::{CollectionInner, LogWriter, lock};
use super::names::CollectionFile;
use super::options::{PAYLOAD_BYTES_MAX, RECORD_BYTES_MAX};
use super::stall::Urgency;
use super::state::LiveState;
use crate::coarse::{Metric, SQUARE_MAX};
use crate::ingest::{LoggedOp, MEMTABLE_ROWS_MAX, MemtableRow, Op, PointRef, StoredPoint, row_bytes};

/// Parts that wait to be sealed while another one is written to.
pub(super) const FROZEN_MAX: usize = 1;
/// A part may fill up in so many times the time in which those before it were sealed: too much costs little, as nobody is slowed
/// down once that is done, and with too little it is full before.
const MARGIN: f64 = 1.5;
/// A change is slowed down by so much at most.
const SLOWED_MAX: Duration = Duration::from_secs(1);
/// When a write that found no room is advised to come again.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Logs that may be kept because the list that would do without them cannot be published.
const LOGS_MAX: usize = 16;
/// However small a part may be, a log is at least so long before a new one is begun.
const LOG_BYTES_MIN: u64 = 64 << 10;

/// Changes that are in memory and in the log, which is not durable yet.
#[must_use = "what is not committed may be lost"]
pub struct Applied(Option<(Arc<Log>, u64)>);

impl Applied {
    /// Waits until they are durable; threads that wait at the same time share one flush.
    ///
    /// # Errors
    /// What the medium says. The changes may then survive or not.
    pub fn commit(self) -> Result<()> {
        self.0.map_or(Ok(()), |(log, number)| log.commit(number))
    }
}

/// What a change does that finds no room in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RoomPolicy {
    /// Waits for it, which hurries sealing.
    Wait,
    /// Gives up at once.
    Refuse,
}

/// What became of a change.
enum WriteOutcome {
    /// It is in memory, and in this log under this number.
    Done(Arc<Log>, u64),
    /// Not now; once something is sealed it may go.
    NoRoom(Error),
}

impl CollectionInner {
    /// Applies changes in order and waits until all are durable. Where one fails, those before it may have been applied,
    /// and none is acknowledged.
    pub(super) fn write(&self, ops: &[Op<'_>]) -> Result<()> {
        self.apply(ops, RoomPolicy::Wait)?.commit()
    }

    /// Waits while a part fills up faster than the one before it is sealed.
    pub(super) fn throttle(&self) {
        let give_up_at = Instant::now() + SLOWED_MAX;
        let mut slowed = false;
        loop {
            let seen = self.events.count();
            let Some(due) = self.next_write() else { return };
            let now = Instant::now();
            if now >= due.min(give_up_at) || self.go_on().is_err() {
                return;
            }
            if !slowed {
                slowed = true;
                if self.stall.record_slowdown() {
                    // Those who hurry do not know yet.
                    self.events.notify();
                    continue;
                }
            }
            self.events.wait_past(seen, due.min(give_up_at));
        }
    }

    /// When the next change may come at the earliest; `None` where no part waits to be sealed.
    fn next_write(&self) -> Option<Instant> {
        let flush_time = *lock(&self.flush_time);
        let live = lock(&self.live);
        if live.state.memtables.len() <= FROZEN_MAX {
            return None;
        }
        let memtable = live.active();
        let filled = memtable.bytes() as f64 / self.options.memtable_bytes.max(1) as f64;
        Some(memtable.begun() + flush_time.mul_f64(MARGIN * filled.min(1.0)))
    }

    /// Applies changes in order, to the log and to memory. They are acknowledged by [`Applied::commit`], which need not
    /// be called under a lock that keeps changes in order.
    pub(super) fn apply(&self, ops: &[Op<'_>], room: RoomPolicy) -> Result<Applied> {
        self.check_room(ops)?;
        for op in ops {
            self.check(op)?;
        }
        let mut last: Option<(Arc<Log>, u64)> = None;
        for op in ops {
            let (log, number) = self.write_one(op, room)?;
            if let Some((before, number)) = last.take().filter(|(before, _)| !Arc::ptr_eq(before, &log)) {
                before.commit(number)?;
            }
            last = Some((log, number));
        }
        Ok(Applied(last))
    }

    /// Refuses what can never be written.
    fn check(&self, op: &Op<'_>) -> Result<()> {
        let Op::Upsert(PointRef { id, embedding, record, payload }) = op else { return Ok(()) };
        let dims = self.options.shape.dims;
        if embedding.len() != dims || embedding.iter().any(|value| !value.is_finite()) {
            let values = embedding.len();
            return Err(Error::invalid(format!(
                "point {id}: its embedding has {values} values, not {dims} finite numbers"
            )));
        }
        self.check_length(*id, embedding)?;
        for (what, bytes, max) in
            [("record", record.len(), RECORD_BYTES_MAX), ("payload", payload.len(), PAYLOAD_BYTES_MAX)]
        {
            if bytes > max {
                return Err(Error::too_large(format!(
                    "point {id}: its {what} has {bytes} bytes, {max} at most"
                )));
            }
        }
        let object = payload.is_empty()
            || serde_json::from_slice::<serde_json::Map<String, serde_json::Value>>(payload).is_ok();
        if !object {
            return Err(Error::invalid(format!("point {id}: its payload is not a JSON object")));
        }
        let bytes = row_bytes(dims, record.len(), payload.len());
        if bytes > self.options.memtable_bytes {
            return Err(Error::too_large(format!(
                "point {id}: {bytes} bytes are more than the {} for unflushed points; raise the collection's memory \
                 budget",
                self.options.memtable_bytes
            )));
        }
        Ok(())
    }

    /// Refuses what is finite, but whose products with others are not, or whose direction is lost to rounding: no index can
    /// be made of it.
    fn check_length(&self, id: u64, embedding: &[f32]) -> Result<()> {
        let square: f64 = embedding.iter().map(|value| f64::from(*value) * f64::from(*value)).sum();
        let cosine = self.options.shape.metric == Metric::Cosine;
        let least = if cosine { f64::from(f32::MIN_POSITIVE) } else { 0.0 };
        if square == 0.0 || (least..=f64::from(SQUARE_MAX)).contains(&square) {
            return Ok(());
        }
        let (length, least, most) = (square.sqrt(), least.sqrt(), f64::from(SQUARE_MAX).sqrt());
        Err(Error::invalid(format!(
            "point {id}: its embedding has the length {length:.1e}, and one from {least:.1e} to {most:.1e} can be \
             compared; scale it"
        )))
    }

    fn write_one(&self, op: &Op<'_>, room: RoomPolicy) -> Result<(Arc<Log>, u64)> {
        let mut frame = Vec::new();
        op.encode(&mut frame);
        let deadline = Instant::now() + self.options.room_wait;
        let mut asked = false;
        // One wait, however often it is told of something: what other collections do must not begin it anew.
        let mut pending_deletes = None;
        loop {
            let mut seen = self.events.count();
            let refusal = match self.try_write(op, &frame)? {
                WriteOutcome::Done(log, number) => return Ok((log, number)),
                WriteOutcome::NoRoom(refusal) => refusal,
            };
            if !self.options.background && !self.outside {
                self.flush_oldest(Urgency::Escalated)?;
                continue;
            }
            self.go_on()?;
            if self.outside && !asked {
                // Those who seal for all collections may not know yet that memory is short.
                asked = true;
                self.events.notify();
                seen += 1;
            }
            if room == RoomPolicy::Refuse {
                return Err(refusal.with_retry_after(RETRY_AFTER));
            }
            pending_deletes.get_or_insert_with(|| self.stall.wait());
            if !self.events.wait_past(seen, deadline) {
                self.stall.refuse();
                return Err(refusal.with_retry_after(RETRY_AFTER));
            }
        }
    }

    fn try_write(&self, op: &Op<'_>, frame: &[u8]) -> Result<WriteOutcome> {
        let mut writer = lock(&self.writer);
        if let Some(slot) = lock(&self.live).full_pending_deletes() {
            let name = CollectionFile::Segment(slot.number).name();
            return Err(Error::precondition(format!(
                "{name} cannot be opened and too much was changed since; put its file back from a \
                 copy and start anew, or give it up"
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
        let mut live = lock(&self.live);
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

    /// Room for a point in the active part, or in a new one. The inner error is for a refusal that may pass.
    fn reserve(&self, writer: &mut LogWriter, point: &PointRef<'_>) -> Result<Result<MemtableRow>> {
        let bytes = row_bytes(self.options.shape.dims, point.record.len(), point.payload.len());
        let (full, memtable_bytes, memtables) = {
            let live = lock(&self.live);
            (self.is_full(&live, bytes), live.active().bytes(), live.state.memtables.len())
        };
        if full {
            if memtables > FROZEN_MAX {
                return Ok(Err(self.no_room()));
            }
            self.freeze(writer)?;
        }
        let held = match self.budget.reserve(bytes, "a point") {
            Ok(held) => held,
            // Sealing turns rows into codes, which frees memory; but not for a handful of rows.
            Err(refusal) if full || memtables > FROZEN_MAX => return Ok(Err(refusal)),
            Err(refusal) if memtable_bytes >= self.options.memtable_bytes / 4 => {
                self.freeze(writer)?;
                return Ok(Err(refusal));
            }
            // Others may have much that can be sealed.
            Err(refusal) if self.outside => return Ok(Err(refusal)),
            Err(refusal) => return Err(refusal),
        };
        let mut embedding: Box<[f32]> = point.embedding.into();
        self.options.shape.encoding.round(&mut embedding);
        let (record, payload) = (point.record.into(), point.payload.into());
        Ok(Ok(MemtableRow { id: point.id, embedding, record, payload, held }))
    }

    fn is_full(&self, live: &LiveState, bytes: u64) -> bool {
        let memtable = live.active();
        memtable.rows() >= MEMTABLE_ROWS_MAX
            || (memtable.rows() > 0 && memtable.bytes() + bytes > self.options.memtable_bytes)
    }

    /// Takes a change into the log, or into a new one where the log has failed or is long enough.
    fn append(&self, writer: &mut LogWriter, frame: &[u8], id: u64) -> Result<Result<(Arc<Log>, u64)>> {
        self.ensure_log(writer)?;
        let mut refusal = Error::internal("there is no log");
        for _ in 0..2 {
            let Some((_, log)) = writer.logs.last() else { break };
            let can_freeze = lock(&self.live).state.memtables.len() <= FROZEN_MAX;
            if log.bytes() < self.log_bytes_max() || !can_freeze {
                refusal = match log.append_keyed(frame, id) {
                    Ok(number) => return Ok(Ok((log.clone(), number))),
                    Err(error) if error.kind() == ErrorKind::InvalidArgument => return Err(error),
                    Err(error) => error,
                };
            }
            if !can_freeze {
                let full = log.failure().filter(|error| error.kind() == ErrorKind::StorageFull);
                // Sealing makes way for another log, once there is room; waiting for it would only keep callers.
                let background = self.options.background || self.outside;
                return match full.filter(|_| background) {
                    Some(error) => Err(error),
                    None => Ok(Err(refusal)),
                };
            }
            self.freeze(writer)?;
        }
        Err(refusal)
    }

    /// A log is read whole at the start, in memory that is set aside for sealing. One of only removals ends by this. The
    /// points of a part fit in one log with what it holds besides.
    fn log_bytes_max(&self) -> u64 {
        (self.options.memtable_bytes / 4 * 5).clamp(LOG_BYTES_MIN, LOG_BYTES_MAX / 2)
    }

    fn no_room(&self) -> Error {
        let why = lock(&self.health).flush_error.clone();
        let why = why.map_or_else(String::new, |error| format!(" (sealing failed: {error})"));
        Error::exhausted(format!(
            "{} of unsealed points wait to be sealed{why}; write more slowly",
            base::units::format_bytes(self.options.memtable_bytes)
        ))
    }

    /// Ends the active part; what comes now goes to a new one with a log of its own.
    pub(super) fn freeze(&self, writer: &mut LogWriter) -> Result<()> {
        let number = *writer.unused.get_or_insert_with(|| self.number());
        let opened = Log::open(&self.medium, &CollectionFile::Log(number).name());
        lock(&self.health).write_error = opened.as_ref().err().cloned();
        let (log, _) = opened?;
        writer.unused = None;
        writer.logs.push((number, Arc::new(log)));
        lock(&self.live).freeze(number);
        self.events.notify();
        Ok(())
    }

    /// A change that a log held, where it is one to this collection.
    ///
    /// # Errors
    /// `DataLoss` where it is not.
    pub(super) fn decoded(&self, frame: &[u8]) -> Result<LoggedOp> {
        let change = LoggedOp::decode(frame)?;
        match &change {
            LoggedOp::Upsert(point) if point.embedding.len() != self.options.shape.dims => {
                Err(Error::data_loss(format!("point {} has {} dimensions", point.id, point.embedding.len())))
            }
            _ => Ok(change),
        }
    }

    /// Makes a change again that a log held, at the start. `log` is the number of that log.
    ///
    /// # Errors
    /// What sealing says, where that is needed to have room, and `ResourceExhausted` where there is none.
    pub(super) fn replay(&self, log: u64, change: LoggedOp) -> Result<()> {
        let point = match change {
            LoggedOp::Delete(id) => {
                lock(&self.live).delete(id);
                return Ok(());
            }
            LoggedOp::Upsert(point) => point,
        };
        let StoredPoint { id, embedding, record, payload } = point;
        let bytes = row_bytes(embedding.len(), record.len(), payload.len());
        let full = self.is_full(&lock(&self.live), bytes);
        if full {
            match self.flush_down_to(FROZEN_MAX) {
                // Without room for segments the points stay in memory, as long as that has room.
                Err(error) if error.kind() != ErrorKind::StorageFull => return Err(error),
                _ => {}
            }
            lock(&self.live).freeze(log);
        }
        let held = match self.budget.reserve(bytes, "a point of the log") {
            Ok(held) => held,
            Err(_) => {
                lock(&self.live).freeze(log);
                self.flush_down_to(1)?;
                self.budget.reserve(bytes, "a point of the log")?
            }
        };
        let mut embedding = embedding.into_boxed_slice();
        self.options.shape.encoding.round(&mut embedding);
        let row = MemtableRow { id, embedding, record: record.into(), payload: payload.into(), held };
        let completed = lock(&self.live).upsert(row);
        completed.into_iter().for_each(|block| block.sketch());
        Ok(())
    }

    /// Seals until there are so many parts, the active one included.
    pub(super) fn flush_down_to(&self, memtables: usize) -> Result<()> {
        while lock(&self.live).state.memtables.len() > memtables {
            self.flush_oldest(Urgency::Escalated)?;
        }
        Ok(())
    }
}
