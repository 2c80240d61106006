//! Flush: builds a segment from the oldest memtable.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use base::{Error, ErrorKind, Result};
use coarse::{BuildThreads, BuildVectors};

use super::inner::{Collection, PendingFile, wait_for_last_references};
use super::manifest::new_uuid;
use super::names::CollectionFile;
use super::options::headroom_bytes;
use super::stall::Urgency;
use super::state::{CollectionState, SegmentContent, SegmentSlot, SegmentView};
use crate::budget::BudgetReservation;
use crate::deletes::Deletes;
use crate::ingest::{Memtable, MemtableRow};
use crate::payload_index::SpareIndexMemory;
use crate::segment::{self, RowSource, Segment, SegmentPlan, WrittenSegment};

/// Rows whose embeddings are passed on at once.
const SCANNED_ROWS: usize = 256;
/// A flush takes at most this part of the free memory for a payload index, because new points need
/// memory too.
const SPARE_SHARE: u64 = 8;

/// Rows of a memtable that were live when the flush began.
struct MemtableSource {
    rows: Vec<(u32, Arc<MemtableRow>)>,
    /// Rows that were deleted when the flush began.
    deletes: Deletes,
}

impl MemtableSource {
    fn row(&self, row: u32) -> Result<&MemtableRow> {
        let found = self.rows.get(row as usize);
        found
            .map(|(_, row)| &**row)
            .ok_or_else(|| Error::internal(format!("there is no row {row} to flush")))
    }
}

impl BuildVectors for MemtableSource {
    fn rows(&self) -> usize {
        self.rows.len()
    }

    fn scan(&self, each: &mut dyn FnMut(&[f32]) -> Result<()>) -> Result<()> {
        let mut vectors = Vec::new();
        for rows in self.rows.chunks(SCANNED_ROWS) {
            vectors.clear();
            rows.iter().for_each(|(_, row)| vectors.extend_from_slice(&row.embedding));
            each(&vectors)?;
        }
        Ok(())
    }

    fn gather(&self, rows: &[u32], out: &mut Vec<f32>) -> Result<()> {
        rows.iter().try_for_each(|&row| {
            out.extend_from_slice(&self.row(row)?.embedding);
            Ok(())
        })
    }

    fn id(&self, row: u32) -> u64 {
        self.row(row).map_or(u64::MAX, |row| row.id)
    }
}

impl RowSource for MemtableSource {
    fn record(&mut self, row: u32, out: &mut Vec<u8>) -> Result<()> {
        out.extend_from_slice(&self.row(row)?.record);
        Ok(())
    }

    fn payload(&mut self, row: u32, out: &mut Vec<u8>) -> Result<()> {
        out.extend_from_slice(&self.row(row)?.payload);
        Ok(())
    }
}

impl Collection {
    /// Returns the time after which the flush of the oldest memtable is late, or `None` if there is
    /// nothing to flush.
    fn due(&self, state: &CollectionState) -> Option<Instant> {
        // The next memtable was created when this one was full.
        state.memtables.get(1).map(|next| next.begun() + self.options.flush_wait)
    }

    /// Flushes at full speed if writers or a full memtable have waited too long for the flush of
    /// low priority. Writers of other collections with the same [`super::Resources`] count too.
    /// Returns false if there was no such wait. For a thread of ordinary priority.
    ///
    /// # Errors
    /// As [`Collection::flush_oldest`].
    pub fn flush_if_stalled(&self) -> Result<bool> {
        let is_due = || self.due(&self.state()).is_some_and(|due| Instant::now() >= due);
        Ok((self.stall.is_escalated() || is_due()) && self.flush_once(Urgency::Escalated)?)
    }

    /// Flushes the oldest frozen memtable. If there is none and the log has failed, freezes the
    /// active one, which the next call flushes. Returns false if there is nothing to do, or if the
    /// escalated flush takes over. Reads and writes continue meanwhile. After a failure the
    /// memtable is kept and searched as before.
    ///
    /// # Errors
    /// The error of the medium. `ResourceExhausted` if queries still hold memory reserved for
    /// flushes.
    pub(super) fn flush_once(&self, urgency: Urgency) -> Result<bool> {
        let mut headroom = self.flushing.lock();
        let state = self.state();
        let Some(due) = self.due(&state) else {
            if self.replace_failed_log()? {
                return Ok(true);
            }
            // Files of an earlier flush or merge may still have to be published.
            return if self.files.unpublished.load(Ordering::Relaxed) {
                self.publish().map(|()| true)
            } else {
                Ok(false)
            };
        };
        let deadline = (urgency == Urgency::Paced).then_some(due);
        if !self.may_flush(deadline) {
            return self.check_open().map(|()| false);
        }
        let memtable = state.memtables[0].clone();
        let full_since = due - self.options.flush_wait;
        drop(state);
        headroom.refill(headroom_bytes(self.memtable_bytes));
        let rows = memtable.live().map(|(at, row)| (at, row.clone())).collect();
        let source = MemtableSource { rows, deletes: memtable.deletes().clone() };
        drop(memtable);
        let outcome = self.flush_memtable(source, &mut headroom, deadline);
        // Kept also after a failure, because the next try needs as much memory and other work would
        // take it.
        headroom.refill(headroom_bytes(self.memtable_bytes));
        if outcome.as_ref().is_err_and(|error| error.kind() == ErrorKind::Cancelled) {
            return self.check_open().map(|()| false);
        }
        if outcome.is_ok() {
            self.record_flush_time(full_since.elapsed());
        }
        let mut health = self.health.lock();
        health.flush_error = outcome.as_ref().err().cloned();
        health.flushes += u64::from(outcome.is_ok());
        drop(health);
        self.events.notify();
        outcome.map(|()| true)
    }

    /// Records how long a flush took after its memtable was full. A long flush that no writer
    /// waited for is not a useful measurement, and is ignored.
    fn record_flush_time(&self, took: Duration) {
        let mut known = self.flush_time.lock();
        if self.stall.is_escalated() || took < *known {
            // A merge at the same time will slow the next flush down again.
            *known = took.max((*known + took) / 2);
        }
    }

    /// Writes the rows of the oldest memtable as a segment, and replaces the memtable by it.
    /// `headroom` is the memory that is reserved for flushes. A flush with a deadline stops if it
    /// is late.
    fn flush_memtable(
        &self,
        mut source: MemtableSource,
        headroom: &mut BudgetReservation,
        deadline: Option<Instant>,
    ) -> Result<()> {
        if source.rows.is_empty() {
            self.live.lock().flushed(None);
            return self.publish();
        }
        let number = self.new_file_number();
        let pending = self.pending_file(CollectionFile::Segment(number));
        let uuid = new_uuid();
        let rows = source.rows.len() as u64;
        let needed = self.options.segment_form().working_bytes(rows);
        let working = headroom.split(needed, "flush")?;
        let spare = SpareIndexMemory::new(&self.budget, SPARE_SHARE);
        let threads = BuildThreads {
            count: self.options.build_threads,
            should_continue: &|| self.may_flush(deadline),
        };
        let written =
            self.write_segment(&pending, uuid, &mut source, spare.as_ref(), threads, &|bytes| {
                self.flush_step(bytes, deadline)
            });
        drop(spare);
        headroom.join(working);
        let written = written?;
        headroom.refill(headroom_bytes(self.memtable_bytes));
        let opened =
            self.open_written(&pending, || headroom.split(headroom.bytes(), &pending.name))?;
        let numbers: Vec<u32> = source.rows.iter().map(|(at, _)| *at).collect();
        self.filters.warm(&opened, &self.budget);
        let others: Vec<SegmentView> =
            self.state().open().map(|(_, _, view)| view.clone()).collect();
        self.preload_new(&opened, &others, &|bytes| self.flush_step(bytes, deadline));
        drop(others);
        let places = written.rows();
        let known_deletes = std::mem::replace(&mut source.deletes, Deletes::none(0));
        // Queries that hold the old state keep its rows alive. This thread releases its own
        // references.
        drop(source);
        let segment = Arc::new(opened);
        let rows = written.order.len() as u32;
        let mut deletes = Deletes::none(rows);
        // Queries wait for this lock and this thread may have low priority, so only new deletes are
        // processed under it.
        let mut live = self.live.lock();
        let memtable: Arc<Memtable> = live.state.memtables[0].clone();
        for at in memtable.deletes().since(&known_deletes) {
            let place = numbers.binary_search(&at).ok().and_then(|from| places.get(from));
            if let Some(&row) = place {
                deletes.insert(row);
            }
        }
        let view = SegmentView::new(segment, Arc::new(deletes));
        live.flushed(Some(SegmentSlot { number, uuid, rows, content: SegmentContent::Open(view) }));
        drop(live);
        self.update_merge_backlog();
        let published = self.publish();
        wait_for_last_references([&memtable]);
        published
    }

    /// Writes a segment. Removes the file after an error. `spare` is memory for the payload index,
    /// in addition to the working memory of every segment.
    pub(super) fn write_segment(
        &self,
        pending: &PendingFile<'_>,
        uuid: [u8; 16],
        source: &mut dyn RowSource,
        spare: Option<&SpareIndexMemory>,
        threads: BuildThreads<'_>,
        step: segment::IoStep<'_>,
    ) -> Result<WrittenSegment> {
        let rows = source.rows() as u64;
        let index_bytes = self.options.segment_form().payload_index_bytes(rows);
        let plan = SegmentPlan {
            settings: self.options.shape.settings(),
            records: self.options.records,
            kind: self.options.kind,
            threads,
            uuid,
            index_bytes,
            index_spare: spare,
        };
        let written = segment::write(&*self.medium, &pending.name, &plan, source, step);
        self.disk.changed();
        if written.is_err() {
            pending.remove();
        }
        written
    }

    /// Opens a segment that was just written, and removes the file after an error.
    pub(super) fn open_written(
        &self,
        pending: &PendingFile<'_>,
        memory: impl FnOnce() -> Result<crate::budget::BudgetReservation>,
    ) -> Result<Segment> {
        let file = self.medium.open(&pending.name);
        let codes = self.codes_options(None);
        let opened =
            file.and_then(|file| Segment::open_with(file, &pending.name, memory()?, &codes));
        if opened.is_err() {
            pending.remove();
        }
        opened
    }
}
