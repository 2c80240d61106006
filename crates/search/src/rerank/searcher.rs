//! The loop of a re-rank thread.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use base::{Error, Result};
use storage::{Read, Reader};

use super::Scorer;
use super::fill::{BlockRead, Filler, is_fill};
use super::flight::{Buffers, Flight};
use super::limits::{SearchLimits, SharedCaches};
use super::query::{NextQuery, QuerySource, RerankQuery, RerankResult};
use super::reads::Reads;

/// Records scored between two looks at what else there is to do.
const STEP: usize = 8;
/// Buffers kept for records that were read.
const BUFFERS_MAX: usize = 1024;

/// Scores candidates for one thread.
///
/// Several queries are under way at a time, and the oldest always goes first: the others only fill the time in which
/// it waits for reads. So a query's answer comes hardly later than if it were alone, and the processor does not wait
/// for the device. What is read is copied out of the reader's buffers at once, so that the next reads can start before
/// any of it is scored.
pub struct Searcher {
    reader: Box<dyn Reader>,
    limits: SearchLimits,
    shared: Arc<SharedCaches>,
    reads: Reads,
    filler: Filler,
    buffers: Buffers,
    serial: u64,
    /// Whether the reader's queue has failed: reads may come that nobody knows any more.
    broken: bool,
}

impl Searcher {
    /// A searcher that reads through `reader`, which was made with [`SearchLimits::reader_options`].
    ///
    /// # Errors
    /// `InvalidArgument` for limits out of range.
    pub fn new(reader: Box<dyn Reader>, limits: SearchLimits, shared: Arc<SharedCaches>) -> Result<Searcher> {
        limits.check()?;
        Ok(Searcher {
            reader,
            limits,
            shared,
            reads: Reads::default(),
            filler: Filler::default(),
            buffers: Vec::new(),
            serial: 0,
            broken: false,
        })
    }

    /// Answers the queries of `source` until it ends.
    ///
    /// # Errors
    /// What the reader says where its queue fails. The queries under way are then answered as partial first, and the
    /// searcher is of no further use: make another.
    pub fn run<'a, S: Scorer>(&mut self, source: &mut dyn QuerySource<'a, S>) -> Result<()> {
        if self.broken {
            return Err(Error::precondition("the reader of this searcher has failed; make another searcher"));
        }
        let mut run =
            SearcherRun { searcher: self, flights: VecDeque::new(), scratch: None, ended: false, scored: 0 };
        let outcome = run.go(source);
        if outcome.is_err() {
            run.abandon(source);
            self.reads.clear();
            self.filler.clear();
            self.broken = true;
            return outcome;
        }
        // Reads whose queries did not wait for them.
        if self.reader.in_flight() > 0 {
            self.broken = true;
            let filler = &mut self.filler;
            let blocks = self.shared.blocks.as_ref();
            self.reader.complete(usize::MAX, &mut |tag, result| {
                if is_fill(tag) {
                    filler.arrive(tag, result, blocks);
                }
            })?;
            self.broken = false;
        }
        self.reads.clear();
        // What is left of a block waits for nobody, and would keep a file that may be gone.
        self.filler.clear();
        Ok(())
    }

    /// Whether it can go on: its reader has not failed, and owes nothing.
    pub fn is_sound(&self) -> bool {
        !self.broken && self.reader.in_flight() == 0
    }

    /// Answers one query.
    ///
    /// # Errors
    /// As [`Searcher::run`].
    pub fn one<'a, S: Scorer>(&mut self, query: RerankQuery<'a, S>) -> Result<RerankResult> {
        struct One<'a, S: Scorer>(Option<RerankQuery<'a, S>>, Option<RerankResult>);
        impl<'a, S: Scorer> QuerySource<'a, S> for One<'a, S> {
            fn next(&mut self, _wait: bool) -> NextQuery<'a, S> {
                self.0.take().map_or(NextQuery::End, NextQuery::Query)
            }
            fn answer(&mut self, _tag: u64, ranked: RerankResult) {
                self.1 = Some(ranked);
            }
        }
        let mut one = One(Some(query), None);
        self.run(&mut one)?;
        one.1.ok_or_else(|| Error::internal("a query was not answered"))
    }
}

struct SearcherRun<'s, 'a, S: Scorer> {
    searcher: &'s mut Searcher,
    /// The oldest first.
    flights: VecDeque<Flight<'a, S>>,
    scratch: Option<S::Scratch>,
    /// Whether the source has ended.
    ended: bool,
    /// Records scored since the reader was last looked at.
    scored: usize,
}

impl<'a, S: Scorer> SearcherRun<'_, 'a, S> {
    fn go(&mut self, source: &mut dyn QuerySource<'a, S>) -> Result<()> {
        loop {
            self.admit(source);
            if self.flights.is_empty() {
                if self.ended {
                    return Ok(());
                }
                continue;
            }
            let submitted = self.submit();
            if submitted || self.is_time_to_look() {
                self.reap(0)?;
            }
            let scored = self.score();
            self.answer(source);
            if scored == 0 && !self.flights.is_empty() {
                self.wait()?;
            }
        }
    }

    fn admit(&mut self, source: &mut dyn QuerySource<'a, S>) {
        while !self.ended && self.flights.len() < self.searcher.limits.queries {
            match source.next(self.flights.is_empty()) {
                NextQuery::Query(query) => {
                    let scratch = &mut self.scratch;
                    scratch.get_or_insert_with(|| query.scorer.scratch());
                    self.searcher.serial += 1;
                    let flight = Flight::new(self.searcher.serial, query, &self.searcher.shared);
                    self.flights.push_back(flight);
                }
                NextQuery::Later => break,
                NextQuery::End => self.ended = true,
            }
        }
    }

    /// Queues reads, the oldest query's first. Whether there were any.
    fn submit(&mut self) -> bool {
        let Searcher { reader, limits, shared, reads, filler, buffers, .. } = &mut *self.searcher;
        let mut submitted = false;
        for flight in &mut self.flights {
            flight.gather(limits, reads, false);
            if !flight.wants_reads(limits) {
                continue;
            }
            while flight.may_read(limits) && reader.room() > 0 && reader.in_flight() < limits.in_flight {
                let Some((tag, extent)) = flight.next_read(shared, reads, filler) else { break };
                submitted = true;
                let Some(records) = flight.query.segments.get(extent.segment as usize) else { continue };
                let offset = extent.offset;
                let bytes = extent.bytes as usize;
                let outcome = reader.submit(Read { file: records.file(), offset, bytes, tag });
                if let Err(error) = outcome
                    && let Some(read) = reads.end(tag)
                {
                    flight.arrive(read, Err(error), shared, buffers);
                }
            }
        }
        self.submit_fill() || submitted
    }

    /// Queues reads of the block that is to be cached, behind those of queries. Whether there were any.
    fn submit_fill(&mut self) -> bool {
        let Searcher { reader, limits, shared, filler, .. } = &mut *self.searcher;
        let mut submitted = false;
        while !filler.is_idle() && reader.room() > 0 && reader.in_flight() < limits.in_flight {
            let Some(BlockRead { tag, file, offset, bytes }) = filler.next_part(limits.read_bytes_max) else {
                break;
            };
            submitted = true;
            if let Err(error) = reader.submit(Read { file: &file, offset, bytes, tag }) {
                filler.arrive(tag, Err(error), shared.blocks.as_ref());
            }
        }
        submitted
    }

    /// Whether to see what was read, though nothing is to be submitted: a look is a system call.
    fn is_time_to_look(&self) -> bool {
        self.scored >= STEP
            && self.searcher.reader.in_flight() > 0
            && self.flights.front().is_some_and(|oldest| oldest.in_flight > 0 && oldest.arrived() < STEP)
    }

    /// Takes in what was read; waits for `wait` reads.
    fn reap(&mut self, wait: usize) -> Result<()> {
        self.scored = 0;
        let Searcher { reader, shared, reads, filler, buffers, .. } = &mut *self.searcher;
        let flights = &mut self.flights;
        reader.complete(wait, &mut |tag, result| {
            if is_fill(tag) {
                return filler.arrive(tag, result, shared.blocks.as_ref());
            }
            let Some(read) = reads.end(tag) else { return };
            if let Some(flight) = flights.iter_mut().find(|flight| flight.serial == read.flight) {
                flight.arrive(read, result, shared, buffers);
            }
        })?;
        Ok(())
    }

    /// Scores a few records of the oldest query that has any. How many.
    fn score(&mut self) -> usize {
        let Some(flight) = self.flights.iter_mut().find(|flight| flight.ready() > 0) else { return 0 };
        let Some(scratch) = self.scratch.as_mut() else { return 0 };
        let Searcher { shared, buffers, .. } = &mut *self.searcher;
        let mut count = 0;
        while count < STEP && flight.score_one(shared, buffers, scratch) {
            count += 1;
        }
        buffers.truncate(BUFFERS_MAX);
        self.scored += count;
        count
    }

    /// Hands out the answers that are ready.
    fn answer(&mut self, source: &mut dyn QuerySource<'a, S>) {
        if self.flights.iter().any(|flight| flight.query.deadline.is_some()) {
            let now = Instant::now();
            self.flights.iter_mut().for_each(|flight| flight.expire(now));
        }
        while let Some(at) = self.flights.iter().position(|flight| flight.is_done(&self.searcher.reads)) {
            if let Some(flight) = self.flights.remove(at) {
                let (tag, ranked) = flight.finish(&self.searcher.reads);
                source.answer(tag, ranked);
            }
        }
    }

    /// Nothing can be scored: waits for a read, or where none is in flight, for candidates.
    fn wait(&mut self) -> Result<()> {
        if self.searcher.reader.in_flight() > 0 {
            return self.reap(1);
        }
        let Searcher { limits, reads, .. } = &mut *self.searcher;
        if let Some(flight) = self.flights.iter_mut().find(|flight| flight.expects_more()) {
            flight.gather(limits, reads, true);
        }
        Ok(())
    }

    /// Answers what is under way with what there is.
    fn abandon(&mut self, source: &mut dyn QuerySource<'a, S>) {
        for mut flight in self.flights.drain(..) {
            flight.give_up();
            let (tag, mut ranked) = flight.finish(&Reads::default());
            ranked.partial = true;
            source.answer(tag, ranked);
        }
    }
}
