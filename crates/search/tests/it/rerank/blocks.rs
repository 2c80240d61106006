//! The cache of blocks of record files.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use base::Result;
use search::Scorer;
use search::rerank::{
    BLOCK_BYTES, CandidateChunks, ChunkProgress, Records, RerankCandidate, RerankQuery,
    RerankResult, SearchLimits, Searcher, SharedCaches, all,
};
use storage::{Read, Reader};

use super::{First, Shuffled, rows, segment};

/// Returns a searcher with a cache of blocks.
fn over_blocks<R: Reader + 'static>(
    reader: impl FnOnce(Shuffled) -> R,
) -> (Searcher, Arc<SharedCaches>) {
    let limits =
        SearchLimits { joined_bytes_max: 8192, gap_bytes_max: 0, ..SearchLimits::default() };
    let depth = limits.in_flight;
    let submitted = Arc::default();
    let shuffled = Shuffled { depth, reads: Vec::new(), seed: 3, bad: Vec::new(), submitted };
    let shared = Arc::new(SharedCaches::new(8 << 20, 400));
    (Searcher::new(Box::new(reader(shuffled)), limits, shared.clone()).unwrap(), shared)
}

/// Queries scattered rows, `times` times.
fn ask_scattered(
    searcher: &mut Searcher,
    segments: &Arc<[Arc<dyn Records>]>,
    times: usize,
) -> Vec<RerankResult> {
    let ask = |_| {
        let candidates = all(rows((0..3000).step_by(37), |_| 0.0));
        let scorer = First { bounded: false };
        searcher
            .run_one(RerankQuery {
                tag: 0,
                scorer,
                segments: segments.clone(),
                k: 30,
                candidates,
                deadline: None,
            })
            .unwrap()
    };
    (0..times).map(ask).collect()
}

fn scattered() -> Arc<[Arc<dyn Records>]> {
    let records: Vec<(u8, usize)> =
        (0..3000).map(|row| ((row * 7 % 251) as u8, 300 + row % 100)).collect();
    let own = segment(&records, &[], false);
    assert!(own.file.bytes() as usize > 4 * BLOCK_BYTES);
    Arc::new([Arc::new(own) as Arc<dyn Records>])
}

#[test]
fn cached_blocks_are_not_read_again() {
    let (mut searcher, shared) = over_blocks(|shuffled| shuffled);
    let segments = scattered();
    let answers = ask_scattered(&mut searcher, &segments, 20);
    let first = answers.first().unwrap();
    let last = answers.last().unwrap();
    assert!(first.reads > 10, "{} reads", first.reads);
    assert_eq!((last.reads, last.cached, last.scored), (0, first.scored, first.scored));
    assert!(answers.iter().all(|ranked| ranked.hits == first.hits && !ranked.partial));
    let stats = shared.block_stats().unwrap();
    let blocks = segments[0].file().bytes().div_ceil(BLOCK_BYTES as u64);
    assert_eq!((stats.blocks, stats.filled, stats.evicted), (blocks, blocks, 0));
    // A forgotten file frees its blocks.
    shared.forget(segments[0].file().id());
    assert_eq!(shared.block_stats().unwrap().blocks, 0);
}

/// Damages the largest reads, which are those of blocks, in transit.
struct Damaging(Shuffled);

impl Reader for Damaging {
    fn room(&self) -> usize {
        self.0.room()
    }

    fn in_flight(&self) -> usize {
        self.0.in_flight()
    }

    fn submit(&mut self, read: Read<'_>) -> Result<()> {
        self.0.submit(read)
    }

    fn complete(&mut self, wait: usize, each: &mut dyn FnMut(u64, Result<&[u8]>)) -> Result<usize> {
        self.0.complete(wait, &mut |tag, result| {
            let mut bytes = result.unwrap().to_vec();
            if bytes.len() == SearchLimits::default().read_bytes_max {
                bytes.iter_mut().step_by(1000).for_each(|byte| *byte ^= 4);
            }
            each(tag, Ok(&bytes));
        })
    }
}

#[test]
fn a_block_damaged_in_transit_is_read_again() {
    let segments = scattered();
    let whole = ask_scattered(&mut over_blocks(|shuffled| shuffled).0, &segments, 1);
    let (mut searcher, shared) = over_blocks(Damaging);
    for ranked in ask_scattered(&mut searcher, &segments, 20) {
        assert_eq!(
            (&ranked.hits, ranked.partial, ranked.scored),
            (&whole[0].hits, false, whole[0].scored)
        );
    }
    let stats = shared.block_stats().unwrap();
    assert!(stats.filled > 4 && stats.evicted > 0, "{stats:?}");
}

/// Counts of one query.
#[derive(Default)]
struct QueryCounts {
    scored: AtomicUsize,
    /// Maximum candidates that were fetched and not scored yet.
    waiting_max: AtomicUsize,
}

/// Scorer that counts.
struct CountingScorer(Arc<QueryCounts>);

impl Scorer for CountingScorer {
    type Scratch = ();

    fn scratch(&self) {}

    fn score(&self, _: &[u8], _: &mut ()) -> Result<f32> {
        self.0.scored.fetch_add(1, Ordering::Relaxed);
        Ok(1.0)
    }
}

/// Candidates in chunks of eight.
struct CountedChunks {
    candidates: Vec<RerankCandidate>,
    fetched: usize,
    counts: Arc<QueryCounts>,
    unscored_max: u64,
}

impl CandidateChunks for CountedChunks {
    fn next(&mut self, out: &mut Vec<RerankCandidate>, _wait: bool) -> ChunkProgress {
        let end = self.candidates.len().min(self.fetched + 8);
        out.extend_from_slice(&self.candidates[self.fetched..end]);
        self.fetched = end;
        let waiting = end - self.counts.scored.load(Ordering::Relaxed);
        self.counts.waiting_max.fetch_max(waiting, Ordering::Relaxed);
        if end < self.candidates.len() { ChunkProgress::More } else { ChunkProgress::End }
    }

    fn unscored_max(&self) -> u64 {
        self.unscored_max
    }
}

#[test]
fn cached_records_limit_the_candidates_that_wait() {
    let (mut searcher, _) = over_blocks(|shuffled| shuffled);
    let segments = scattered();
    ask_scattered(&mut searcher, &segments, 20);
    let counts = Arc::<QueryCounts>::default();
    let one_pass = rows((0..3000).step_by(37), |_| 0.0);
    let candidates: Vec<RerankCandidate> = (0..10).flat_map(|_| one_pass.clone()).collect();
    let count = candidates.len();
    let unscored_max = u64::MAX;
    let source = CountedChunks { candidates, fetched: 0, counts: counts.clone(), unscored_max };
    let query = RerankQuery {
        tag: 0,
        scorer: CountingScorer(counts.clone()),
        segments,
        k: 30,
        candidates: Box::new(source),
        deadline: None,
    };
    let ranked = searcher.run_one(query).unwrap();
    assert_eq!((ranked.scored, ranked.cached, ranked.reads), (count as u64, count as u64, 0));
    // 64 cached records, and the 64 reads that are planned at once.
    let waiting_max = counts.waiting_max.load(Ordering::Relaxed);
    assert!(waiting_max < 200, "{waiting_max} of {count} candidates waited");
}

#[test]
fn a_source_limits_its_candidates_without_scores() {
    let (mut searcher, _) = over_blocks(|shuffled| shuffled);
    let segments = scattered();
    for unscored_max in [1, 16, 30] {
        let counts = Arc::<QueryCounts>::default();
        let candidates = rows((0..3000).step_by(37), |_| 0.0);
        let count = candidates.len() as u64;
        let source = CountedChunks { candidates, fetched: 0, counts: counts.clone(), unscored_max };
        let query = RerankQuery {
            tag: 0,
            scorer: CountingScorer(counts.clone()),
            segments: segments.clone(),
            k: 30,
            candidates: Box::new(source),
            deadline: None,
        };
        assert_eq!(searcher.run_one(query).unwrap().scored, count);
        // A chunk has eight candidates.
        let waiting_max = counts.waiting_max.load(Ordering::Relaxed) as u64;
        assert!(waiting_max < unscored_max + 8, "{waiting_max} of {unscored_max}");
    }
}
