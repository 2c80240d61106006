//! One turn of an arm: a number of queries in several threads, and its cost.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Instant;

use base::{Error, Result};
use rustix::time::ClockId;
use search::Scorer;
use search::rerank::{NextQuery, QuerySource, Records, RerankQuery, RerankResult, Searcher, all};
use serde::{Deserialize, Serialize};

use super::scorer::clock_ns;
use super::subject::{TierPosition, TierQuery};
use loadgen::stats::Latencies;

const HITS: usize = 10;

/// Order of the parent to an arm.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct TurnOrder {
    /// Stream of the queries. All arms get the same queries of a stream, each once, since a
    /// repeated query would find its records in the cache. Streams count from 1; 0 warms the cache.
    pub(super) stream: u64,
    /// Number of queries.
    pub(super) queries: usize,
    /// Number of queries that a thread has at a time.
    pub(super) clients: usize,
    /// Number of rounds of spinning for each record instead of the matcher.
    pub(super) spin_rounds: Option<u64>,
}

/// Figures of a turn.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct TurnResult {
    pub(super) seconds: f64,
    pub(super) queries: usize,
    pub(super) p50_ms: f64,
    pub(super) p99_ms: f64,
    /// Processor time of the whole process.
    pub(super) cpu_us: f64,
    /// Number of candidates scored.
    pub(super) scored: u64,
    pub(super) cached: u64,
    pub(super) reads: u64,
    pub(super) read_bytes: u64,
    pub(super) rss_mb: f64,
    /// Number of queries whose record was among the hits.
    pub(super) found: usize,
    pub(super) partial: usize,
    /// Digest of each query's hits and scores.
    pub(super) digests: Vec<u64>,
}

/// A thread that takes queries by a shared counter, and measures the time from a query's arrival to
/// its answer.
struct AnswerThread<'q, S, F> {
    queries: &'q [TierQuery],
    segments: &'q Arc<[Arc<dyn Records>]>,
    scorer: &'q F,
    next: &'q AtomicUsize,
    end: usize,
    /// Time at which each unanswered query was taken.
    taken: BTreeMap<u64, Instant>,
    answers: Vec<TurnAnswer>,
    scorers: std::marker::PhantomData<S>,
}

impl<'q, S: Scorer, F: Fn(usize) -> S> QuerySource<'q, S> for AnswerThread<'q, S, F> {
    fn next(&mut self, _wait: bool) -> NextQuery<'q, S> {
        let at = self.next.fetch_add(1, Ordering::Relaxed);
        let Some(query) = self.queries.get(at).filter(|_| at < self.end) else {
            return NextQuery::End;
        };
        self.taken.insert(at as u64, Instant::now());
        NextQuery::Query(RerankQuery {
            tag: at as u64,
            scorer: (self.scorer)(at),
            segments: self.segments.clone(),
            k: HITS,
            candidates: all(query.candidates.clone()),
            deadline: None,
        })
    }

    fn answer(&mut self, tag: u64, ranked: RerankResult) {
        let ms = self.taken.remove(&tag).map_or(0.0, |taken| taken.elapsed().as_secs_f64() * 1e3);
        self.answers.push(TurnAnswer { query: tag as usize, ms, ranked });
    }
}

/// Answer to one query of a turn.
struct TurnAnswer {
    /// Position of the query among the queries of the turn.
    query: usize,
    /// Milliseconds from the query's arrival to its answer.
    ms: f64,
    ranked: RerankResult,
}

/// Queries and segments of a turn.
pub(super) struct QueryStage<'q> {
    pub(super) queries: &'q [TierQuery],
    pub(super) segments: &'q Arc<[Arc<dyn Records>]>,
}

/// Answers `count` queries with these searchers, one thread each.
///
/// # Errors
/// Returns an error if a reader fails.
pub(super) fn take_turn<S: Scorer>(
    stage: &QueryStage<'_>,
    searchers: &mut [Searcher],
    count: usize,
    scorer: &(impl Fn(usize) -> S + Sync),
) -> Result<TurnResult> {
    let next = AtomicUsize::new(0);
    let barrier = Barrier::new(searchers.len() + 1);
    let mut answers = Vec::new();
    let mut turn = TurnResult { queries: count, ..TurnResult::default() };
    std::thread::scope(|scope| {
        let work = |searcher: &mut Searcher| -> Result<Vec<TurnAnswer>> {
            let first = AtomicUsize::new(0);
            let source = |next, end| AnswerThread {
                queries: stage.queries,
                segments: stage.segments,
                scorer,
                next,
                end,
                taken: BTreeMap::new(),
                answers: Vec::new(),
                scorers: std::marker::PhantomData::<S>,
            };
            // One query first, so that the thread's ring and scratch are made before the clock
            // starts.
            let outcome = searcher.run(&mut source(&first, 1.min(count)));
            barrier.wait();
            outcome?;
            let mut source = source(&next, count);
            searcher.run(&mut source)?;
            Ok(source.answers)
        };
        let threads: Vec<_> =
            searchers.iter_mut().map(|searcher| scope.spawn(move || work(searcher))).collect();
        barrier.wait();
        let start = Instant::now();
        let cpu = clock_ns(ClockId::ProcessCPUTime);
        for thread in threads {
            answers.extend(thread.join().map_err(|_| Error::internal("a thread panicked"))??);
        }
        turn.seconds = start.elapsed().as_secs_f64();
        turn.cpu_us = (clock_ns(ClockId::ProcessCPUTime) - cpu) as f64 / 1e3;
        Ok::<(), Error>(())
    })?;
    summarise(stage, answers, &mut turn)?;
    Ok(turn)
}

/// Adds the answers of a turn to its figures.
fn summarise(
    stage: &QueryStage<'_>,
    mut answers: Vec<TurnAnswer>,
    turn: &mut TurnResult,
) -> Result<()> {
    answers.sort_by_key(|answer| answer.query);
    let mut latencies = Latencies::default();
    for TurnAnswer { query, ms, ranked } in &answers {
        latencies.record(std::time::Duration::from_secs_f64(ms / 1e3));
        turn.scored += ranked.scored;
        turn.cached += ranked.cached;
        turn.reads += ranked.reads;
        turn.read_bytes += ranked.read_bytes;
        turn.partial += usize::from(ranked.partial);
        let target = stage.queries.get(*query).map(|query| query.target);
        let mut positions =
            ranked.hits.iter().map(|(hit, _)| TierPosition { segment: hit.segment, row: hit.row });
        turn.found += usize::from(positions.any(|position| Some(position) == target));
        let mut hasher = DefaultHasher::new();
        ranked
            .hits
            .iter()
            .for_each(|(hit, score)| (hit.segment, hit.row, score.to_bits()).hash(&mut hasher));
        turn.digests.push(hasher.finish());
    }
    turn.p50_ms = latencies.quantile_ms(0.5);
    turn.p99_ms = latencies.quantile_ms(0.99);
    turn.rss_mb = os::process::memory()?.rss as f64 / f64::from(1 << 20);
    Ok(())
}
