//! Turning the oldest part into a segment.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use base::{Error, ErrorKind, Result};

use super::catalog::new_uuid;
use super::hurry::Pace;
use super::inner::{Busy, Inner, lock, outlive};
use super::names::File;
use super::state::{Content, Slot, State, View};
use crate::budget::Reservation;
use crate::coarse::Crew;
use crate::deletes::Deletes;
use crate::ingest::{Part, Row};
use crate::segment::{self, Plan, RowSource, Segment, Written};

/// The rows of a part that were alive when sealing began.
struct PartSource {
    rows: Vec<(u32, Arc<Row>)>,
    /// Those that were not.
    gone: Deletes,
}

impl PartSource {
    fn row(&self, row: u32) -> Result<&Row> {
        let found = self.rows.get(row as usize);
        found.map(|(_, row)| &**row).ok_or_else(|| Error::internal(format!("there is no row {row} to seal")))
    }
}

impl RowSource for PartSource {
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

impl Inner {
    /// When the oldest part of a state has waited for too long; `None` where there is none to seal.
    fn due(&self, state: &State) -> Option<Instant> {
        // The next one began as it was full.
        state.parts.get(1).map(|next| next.begun() + self.options.seal_wait)
    }

    /// For a thread that does not give way: seals where writers wait, or a part has waited for too long; false where that is
    /// not so, or there is nothing to seal.
    pub(super) fn seal_in_hurry(&self) -> Result<bool> {
        let is_due = || self.due(&self.state()).is_some_and(|due| Instant::now() >= due);
        Ok((self.hurry.is_on() || is_due()) && self.seal_oldest(Pace::Full)?)
    }

    /// Seals the oldest part that takes no more changes; false where there is none, or it is left to a thread that hurries.
    /// While it works, everything else goes on. Where it fails, the part stays and is searched as before.
    ///
    /// # Errors
    /// What the medium says, `ResourceExhausted` where memory set aside for it is still held by queries.
    pub(super) fn seal_oldest(&self, pace: Pace) -> Result<bool> {
        let mut headroom = lock(&self.sealing);
        let state = self.state();
        let Some(due) = self.due(&state) else {
            // What was sealed or merged before may still have to be published.
            return if self.unpublished.load(Ordering::Relaxed) {
                self.publish().map(|()| true)
            } else {
                Ok(false)
            };
        };
        let left = (pace == Pace::Gentle).then_some(due);
        if !self.keeps(left) {
            return self.go_on().map(|()| false);
        }
        let (part, full_since) = (state.parts[0].clone(), due - self.options.seal_wait);
        drop(state);
        headroom.refill(self.options.headroom_bytes());
        let rows = part.live().map(|(at, row)| (at, row.clone())).collect();
        let source = PartSource { rows, gone: part.deletes().clone() };
        drop(part);
        let outcome = self.seal_part(source, &mut headroom, left);
        // Also after a failure: the next try needs as much, and others would take it.
        headroom.refill(self.options.headroom_bytes());
        if outcome.as_ref().is_err_and(|error| error.kind() == ErrorKind::Cancelled) {
            return self.go_on().map(|()| false);
        }
        if outcome.is_ok() {
            self.sealed_in(full_since.elapsed());
        }
        let mut noted = lock(&self.noted);
        noted.seal_error = outcome.as_ref().err().cloned();
        noted.seals += u64::from(outcome.is_ok());
        drop(noted);
        self.events.tell();
        outcome.map(|()| true)
    }

    /// A part was sealed so long after it was full. What took its time because nobody waited says nothing.
    fn sealed_in(&self, took: Duration) {
        let mut known = lock(&self.sealed_in);
        if self.hurry.is_on() || took < *known {
            // A merge beside it makes the next one take longer again.
            *known = took.max((*known + took) / 2);
        }
    }

    fn seal_part(
        &self,
        mut source: PartSource,
        headroom: &mut Reservation,
        left: Option<Instant>,
    ) -> Result<()> {
        if source.rows.is_empty() {
            lock(&self.live).sealed(None);
            return self.publish();
        }
        let number = self.number();
        let busy = self.busy(File::Segment(number));
        let uuid = new_uuid();
        let rows = source.rows() as usize;
        let needed = segment::working_bytes(rows as u64, self.options.shape.dims);
        let working = headroom.split(needed, "sealing")?;
        let crew = Crew { threads: self.options.build_threads, go_on: &|| self.keeps(left) };
        let written =
            self.write_segment(&busy, uuid, &mut source, crew, &|bytes| self.seal_step(bytes, left));
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
        let part: Arc<Part> = live.state.parts[0].clone();
        for at in part.deletes().since(&gone) {
            let place = numbers.binary_search(&at).ok().and_then(|from| places.get(from));
            if let Some(&row) = place {
                deletes.insert(row);
            }
        }
        let view = View::new(segment, Arc::new(deletes));
        live.sealed(Some(Slot { number, uuid, rows, content: Content::Open(view) }));
        drop(live);
        let published = self.publish();
        outlive(&part);
        published
    }

    /// Writes a segment; where that fails nothing is left of it.
    pub(super) fn write_segment(
        &self,
        busy: &Busy<'_>,
        uuid: [u8; 16],
        source: &mut dyn RowSource,
        crew: Crew<'_>,
        step: segment::Step<'_>,
    ) -> Result<Written> {
        let plan = Plan { settings: self.options.shape.settings(), kind: self.options.kind, crew, uuid };
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
        busy: &Busy<'_>,
        memory: impl FnOnce() -> Result<crate::budget::Reservation>,
    ) -> Result<Segment> {
        let file = self.medium.open(&busy.name);
        let opened = file.and_then(|file| Segment::open_with(file, &busy.name, memory()?));
        if opened.is_err() {
            busy.remove();
        }
        opened
    }
}
