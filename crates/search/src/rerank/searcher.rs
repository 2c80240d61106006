//! Main loop of a re-rank thread.

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

/// Records scored between two checks for other work.
const STEP: usize = 8;
/// Maximum buffers kept for records.
const BUFFERS_MAX: usize = 1024;

/// Scores candidates on one thread.
///
/// Several queries are in progress, and the oldest always goes first. The others only fill the time
/// in which it waits for reads. A query is therefore hardly slower than alone, and the processor
/// does not wait for the device. Records are copied out of the reader's buffers at once, so that
/// the next reads can start before they are scored.
pub struct Searcher {
    reader: Box<dyn Reader>,
    limits: SearchLimits,
    shared: Arc<SharedCaches>,
    reads: Reads,
    filler: Filler,
    buffers: Buffers,
    /// Number of the last query.
    serial: u64,
    /// True if the reader's queue has failed. Results of unknown reads may then arrive.
    broken: bool,
}

impl Searcher {
    /// Creates a searcher that reads through `reader`, which has [`SearchLimits::reader_options`].
    ///
    /// # Errors
    /// `InvalidArgument` for limits out of range.
    pub fn new(
        reader: Box<dyn Reader>,
        limits: SearchLimits,
        shared: Arc<SharedCaches>,
    ) -> Result<Searcher> {
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
    /// The error of the reader if its queue fails. Queries in progress get partial results first,
    /// and the searcher cannot be used again.
    pub fn run<'a, S: Scorer>(&mut self, source: &mut dyn QuerySource<'a, S>) -> Result<()> {
        if self.broken {
            return Err(Error::precondition(
                "the reader of this searcher has failed; make another searcher",
            ));
        }
        let mut run = SearcherRun {
            searcher: self,
            flights: VecDeque::new(),
            scratch: None,
            ended: false,
            scored: 0,
        };
        let outcome = run.run(source);
        if outcome.is_err() {
            run.abandon(source);
            self.reads.clear();
            self.filler.clear();
            self.broken = true;
            return outcome;
        }
        // Reads that their queries did not wait for.
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
        // The rest of a block has no waiting query, and would keep a file that may be removed.
        self.filler.clear();
        Ok(())
    }

    /// Returns true if the reader of this searcher has not failed and has no reads in flight.
    pub fn is_sound(&self) -> bool {
        !self.broken && self.reader.in_flight() == 0
    }

    /// Closes files of earlier queries that nothing else holds.
    ///
    /// # Errors
    /// The error of the reader.
    pub(crate) fn close_unused_files(&mut self) -> Result<()> {
        self.reader.close_unused_files()
    }

    /// Answers one query.
    ///
    /// # Errors
    /// As [`Searcher::run`].
    pub fn run_one<'a, S: Scorer>(&mut self, query: RerankQuery<'a, S>) -> Result<RerankResult> {
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

/// The queries that a searcher works on.
struct SearcherRun<'s, 'a, S: Scorer> {
    searcher: &'s mut Searcher,
    /// Oldest first.
    flights: VecDeque<Flight<'a, S>>,
    scratch: Option<S::Scratch>,
    /// True if the source has ended.
    ended: bool,
    /// Records scored since the last check of the reader.
    scored: usize,
}

impl<'a, S: Scorer> SearcherRun<'_, 'a, S> {
    /// Runs the queries of `source` until it ends and all are answered.
    fn run(&mut self, source: &mut dyn QuerySource<'a, S>) -> Result<()> {
        loop {
            self.admit(source);
            if self.flights.is_empty() {
                if self.ended {
                    return Ok(());
                }
                continue;
            }
            let submitted = self.submit();
            if submitted || self.should_collect() {
                self.reap(0)?;
            }
            let scored = self.score();
            self.answer(source);
            if scored == 0 && !self.flights.is_empty() {
                self.wait()?;
            }
        }
    }

    /// Takes new queries from `source`, up to the limit. Waits for one if none is in progress.
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

    /// Submits reads, the oldest query's first. Returns true if there were any.
    fn submit(&mut self) -> bool {
        let Searcher { reader, limits, shared, reads, filler, buffers, .. } = &mut *self.searcher;
        let mut submitted = false;
        for flight in &mut self.flights {
            flight.gather(limits, reads, false);
            if !flight.wants_reads(limits) {
                continue;
            }
            while flight.may_read(limits)
                && reader.room() > 0
                && reader.in_flight() < limits.in_flight
            {
                let Some((tag, extent)) = flight.next_read(shared, reads, filler) else { break };
                submitted = true;
                let Some(records) = flight.query.segments.get(extent.segment as usize) else {
                    continue;
                };
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

    /// Submits reads of the block to cache, after those of queries. Returns true if there were any.
    fn submit_fill(&mut self) -> bool {
        let Searcher { reader, limits, shared, filler, .. } = &mut *self.searcher;
        let mut submitted = false;
        while !filler.is_idle() && reader.room() > 0 && reader.in_flight() < limits.in_flight {
            let Some(BlockRead { tag, file, offset, bytes }) =
                filler.next_part(limits.read_bytes_max)
            else {
                break;
            };
            submitted = true;
            if let Err(error) = reader.submit(Read { file: &file, offset, bytes, tag }) {
                filler.arrive(tag, Err(error), shared.blocks.as_ref());
            }
        }
        submitted
    }

    /// Returns true if completed reads should be collected although there is no read to submit. To
    /// collect them is a system call.
    fn should_collect(&self) -> bool {
        self.scored >= STEP
            && self.searcher.reader.in_flight() > 0
            && self
                .flights
                .front()
                .is_some_and(|oldest| oldest.in_flight > 0 && oldest.arrived() < STEP)
    }

    /// Collects completed reads, and waits for `wait` of them.
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

    /// Scores a few records of the oldest query that has any. Returns their number.
    fn score(&mut self) -> usize {
        let Some(flight) = self.flights.iter_mut().find(|flight| flight.ready() > 0) else {
            return 0;
        };
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

    /// Passes finished results to the source.
    fn answer(&mut self, source: &mut dyn QuerySource<'a, S>) {
        if self.flights.iter().any(|flight| flight.query.deadline.is_some()) {
            let now = Instant::now();
            self.flights.iter_mut().for_each(|flight| flight.expire(now));
        }
        while let Some(at) =
            self.flights.iter().position(|flight| flight.is_done(&self.searcher.reads))
        {
            if let Some(flight) = self.flights.remove(at) {
                let (tag, ranked) = flight.finish(&self.searcher.reads);
                source.answer(tag, ranked);
            }
        }
    }

    /// Waits for a read, or for candidates if none is in flight. Called if nothing can be scored.
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

    /// Ends all queries with their hits so far.
    fn abandon(&mut self, source: &mut dyn QuerySource<'a, S>) {
        for mut flight in self.flights.drain(..) {
            flight.end_early();
            let (tag, mut ranked) = flight.finish(&Reads::default());
            ranked.partial = true;
            source.answer(tag, ranked);
        }
    }
}
