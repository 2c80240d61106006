//! Turning the oldest part into a segment.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use base::{Error, ErrorKind, Result};

use super::inner::{CollectionInner, PendingFile, lock, outlive};
use super::manifest::new_uuid;
use super::names::CollectionFile;
use super::stall::Urgency;
use super::state::{CollectionState, SegmentContent, SegmentSlot, SegmentView};
use crate::budget::BudgetReservation;
use crate::coarse::BuildThreads;
use crate::deletes::Deletes;
use crate::ingest::{Memtable, MemtableRow};
use crate::segment::{self, RowSource, Segment, SegmentPlan, WrittenSegment};

/// The rows of a part that were alive when sealing began.
struct MemtableSource {
    rows: Vec<(u32, Arc<MemtableRow>)>,
    /// Those that were not.
    gone: Deletes,
}

impl MemtableSource {
    fn row(&self, row: u32) -> Result<&MemtableRow> {
        let found = self.rows.get(row as usize);
        found.map(|(_, row)| &**row).ok_or_else(|| Error::internal(format!("there is no row {row} to seal")))
    }
}

impl RowSource for MemtableSource {
    fn rows(&self) -> u32 {
        self.rows.len() as u32
    }

    fn id(&self, row: u32) -> u64 {
        self.row(row).map_or(u64::MAX, |row| row.id)
    }

    fn vectors(&mut self, out: &mut Vec<f32>) -> Result<()> {
        self.rows.iter().for_each(|(_, row)| out.extend_from_slice(&row.embedding));
        Ok(())
    }

    fn record(&mut self, row: u32, out: &mut Vec<u8>) -> Result<()> {
        out.extend_from_slice(&self.row(row)?.record);
        Ok(())
    }

    fn payload(&mut self, row: u32, out: &mut Vec<u8>) -> Result<()> {
        out.extend_from_slice(&self.row(row)?.payload);
        Ok(())
    }
}

impl CollectionInner {
    /// When the oldest part of a state has waited for too long; `None` where there is none to seal.
    fn due(&self, state: &CollectionState) -> Option<Instant> {
        // The next one began as it was full.
        state.memtables.get(1).map(|next| next.begun() + self.options.flush_wait)
    }

    /// For a thread that does not give way: seals where writers wait, or a part has waited for too long; false where that is
    /// not so, or there is nothing to seal.
    pub(super) fn flush_if_stalled(&self) -> Result<bool> {
        let is_due = || self.due(&self.state()).is_some_and(|due| Instant::now() >= due);
        Ok((self.stall.is_escalated() || is_due()) && self.flush_oldest(Urgency::Escalated)?)
    }

    /// Seals the oldest part that takes no more changes; false where there is none, or it is left to a thread that hurries.
    /// While it works, everything else goes on. Where it fails, the part stays and is searched as before.
    ///
    /// # Errors
    /// What the medium says, `ResourceExhausted` where memory set aside for it is still held by queries.
    pub(super) fn flush_oldest(&self, pace: Urgency) -> Result<bool> {
        let mut headroom = lock(&self.flushing);
        let state = self.state();
        let Some(due) = self.due(&state) else {
            // What was sealed or merged before may still have to be published.
            return if self.unpublished.load(Ordering::Relaxed) {
                self.publish().map(|()| true)
            } else {
                Ok(false)
            };
        };
        let left = (pace == Urgency::Paced).then_some(due);
        if !self.keeps(left) {
            return self.go_on().map(|()| false);
        }
        let (memtable, full_since) = (state.memtables[0].clone(), due - self.options.flush_wait);
        drop(state);
        headroom.refill(self.options.headroom_bytes());
        let rows = memtable.live().map(|(at, row)| (at, row.clone())).collect();
        let source = MemtableSource { rows, gone: memtable.deletes().clone() };
        drop(memtable);
        let outcome = self.flush_memtable(source, &mut headroom, left);
        // Also after a failure: the next try needs as much, and others would take it.
        headroom.refill(self.options.headroom_bytes());
        if outcome.as_ref().is_err_and(|error| error.kind() == ErrorKind::Cancelled) {
            return self.go_on().map(|()| false);
        }
        if outcome.is_ok() {
            self.flush_time(full_since.elapsed());
        }
        let mut health = lock(&self.health);
        health.flush_error = outcome.as_ref().err().cloned();
        health.flushes += u64::from(outcome.is_ok());
        drop(health);
        self.events.notify();
        outcome.map(|()| true)
    }

    /// A part was sealed so long after it was full. What took its time because nobody waited says nothing.
    fn flush_time(&self, took: Duration) {
        let mut known = lock(&self.flush_time);
        if self.stall.is_escalated() || took < *known {
            // A merge beside it makes the next one take longer again.
            *known = took.max((*known + took) / 2);
        }
    }

    fn flush_memtable(
        &self,
        mut source: MemtableSource,
        headroom: &mut BudgetReservation,
        left: Option<Instant>,
    ) -> Result<()> {
        if source.rows.is_empty() {
            lock(&self.live).flushed(None);
            return self.publish();
        }
        let number = self.number();
        let busy = self.busy(CollectionFile::Segment(number));
        let uuid = new_uuid();
        let rows = source.rows() as usize;
        let needed = segment::working_bytes(rows as u64, self.options.shape.dims);
        let working = headroom.split(needed, "sealing")?;
        let crew = BuildThreads { threads: self.options.build_threads, go_on: &|| self.keeps(left) };
        let written =
            self.write_segment(&busy, uuid, &mut source, crew, &|bytes| self.flush_step(bytes, left));
        headroom.join(working);
        let written = written?;
        headroom.refill(self.options.headroom_bytes());
        let opened = self.open_written(&busy, || headroom.split(headroom.bytes(), &busy.name))?;
        let numbers: Vec<u32> = source.rows.iter().map(|(at, _)| *at).collect();
        self.filters.warm(&opened, &self.budget);
        let places = written.rows();
        let gone = std::mem::replace(&mut source.gone, Deletes::none(0));
        // From here on queries that hold the old state hold its rows; the part itself lets go of them.
        drop(source);
        let (segment, rows) = (Arc::new(opened), written.order.len() as u32);
        let mut deletes = Deletes::none(rows);
        // Queries wait for this lock, and this thread may be of low priority: only what changed meanwhile is looked at.
        let mut live = lock(&self.live);
        let memtable: Arc<Memtable> = live.state.memtables[0].clone();
        for at in memtable.deletes().since(&gone) {
            let place = numbers.binary_search(&at).ok().and_then(|from| places.get(from));
            if let Some(&row) = place {
                deletes.insert(row);
            }
        }
        let view = SegmentView::new(segment, Arc::new(deletes));
        live.flushed(Some(SegmentSlot { number, uuid, rows, content: SegmentContent::Open(view) }));
        drop(live);
        let published = self.publish();
        outlive(&memtable);
        published
    }

    /// Writes a segment; where that fails nothing is left of it.
    pub(super) fn write_segment(
        &self,
        busy: &PendingFile<'_>,
        uuid: [u8; 16],
        source: &mut dyn RowSource,
        crew: BuildThreads<'_>,
        step: segment::IoStep<'_>,
    ) -> Result<WrittenSegment> {
        let plan =
            SegmentPlan { settings: self.options.shape.settings(), kind: self.options.kind, crew, uuid };
        let written = segment::write(&*self.medium, &busy.name, &plan, source, step);
        self.disk.changed();
        if written.is_err() {
            busy.remove();
        }
        written
    }

    /// Opens a segment that was just written; where that fails nothing is left of it.
    pub(super) fn open_written(
        &self,
        busy: &PendingFile<'_>,
        memory: impl FnOnce() -> Result<crate::budget::BudgetReservation>,
    ) -> Result<Segment> {
        let file = self.medium.open(&busy.name);
        let opened = file.and_then(|file| Segment::open_with(file, &busy.name, memory()?));
        if opened.is_err() {
            busy.remove();
        }
        opened
    }
}
