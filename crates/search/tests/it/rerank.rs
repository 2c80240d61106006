//! The exact stage against its definition: read everything, score everything, sort.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use base::{Error, Result};
use memory::{PoolConfig, SlotPool};
use os::Rate;
use proptest::prelude::*;
use search::rerank::{
    Address, BLOCK_BYTES, CandidateChunks, ChunkProgress, NextQuery, QuerySource, Records,
    RerankCandidate, RerankQuery, RerankResult, Scorer, SearchLimits, Searcher, SharedCaches, all,
};
use storage::page::{PAGE_BYTES, Packer};
use storage::{
    DaxMedium, DramMedium, FaultMedium, FaultPlan, Medium, MmapMedium, Read, Reader, Sealed,
    UringMedium,
};

/// Source of unique file ids.
static FILES: AtomicU64 = AtomicU64::new(1 << 40);

/// File in memory that may allow reads in place.
#[derive(Debug)]
struct Bytes {
    id: u64,
    bytes: Vec<u8>,
    in_place: bool,
}

impl Sealed for Bytes {
    fn id(&self) -> u64 {
        self.id
    }

    fn bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        buffer.copy_from_slice(&self.bytes[offset as usize..][..buffer.len()]);
        Ok(())
    }

    fn in_place(&self) -> Option<&[u8]> {
        self.in_place.then_some(&self.bytes)
    }
}

#[derive(Debug)]
struct Segment {
    file: Arc<dyn Sealed>,
    places: Vec<Address>,
    start: u64,
}

impl Records for Segment {
    fn file(&self) -> &Arc<dyn Sealed> {
        &self.file
    }

    fn locate(&self, row: u32) -> Option<Address> {
        self.places.get(row as usize).copied()
    }

    fn pages_start(&self) -> Option<u64> {
        Some(self.start)
    }
}

/// Pages before those with records, as in a segment.
const START_PAGES: u64 = 2;

/// Returns a record: its score and some bytes.
fn record(score: u8, bytes: usize) -> Vec<u8> {
    let mut record = vec![score; bytes + 1];
    record.iter_mut().enumerate().skip(1).for_each(|(at, byte)| *byte = at as u8);
    record
}

fn segment(records: &[(u8, usize)], damaged: &[usize], in_place: bool) -> Segment {
    let mut packer = Packer::new();
    let mut pages = vec![0; START_PAGES as usize * PAGE_BYTES];
    let start = pages.len() as u64;
    let placed: Vec<_> =
        records.iter().map(|&(score, bytes)| packer.push(&record(score, bytes)).unwrap()).collect();
    packer.finish(&mut pages).unwrap();
    let places: Vec<Address> = placed
        .iter()
        .map(|placed| Address {
            offset: start + u64::from(placed.page) * PAGE_BYTES as u64,
            bytes: u32::from(placed.pages) * PAGE_BYTES as u32,
            slot: placed.slot,
        })
        .collect();
    for &at in damaged {
        let records_at = start as usize;
        let byte = records_at + at % (pages.len() - records_at);
        pages[byte] ^= 1 << (at % 8);
    }
    let id = FILES.fetch_add(1, Ordering::Relaxed);
    Segment { file: Arc::new(Bytes { id, bytes: pages, in_place }), places, start }
}

impl Segment {
    fn is_damaged(&self, row: u32) -> bool {
        let Address { offset, bytes, .. } = self.places[row as usize];
        let mut page = vec![0; bytes as usize];
        self.file.read_at(offset, &mut page).is_err()
            || storage::page::RecordPage::open(&page).is_err()
    }
}

/// Reader that completes reads in any order, some late, and fails reads of bad offsets.
struct Shuffled {
    depth: usize,
    reads: Vec<(u64, Arc<dyn Sealed>, u64, usize)>,
    seed: u64,
    /// Offsets whose reads fail.
    bad: Vec<u64>,
    submitted: Arc<AtomicU64>,
}

impl Shuffled {
    fn random(&mut self, below: usize) -> usize {
        self.seed = self.seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.seed >> 33) as usize % below.max(1)
    }
}

impl Reader for Shuffled {
    fn room(&self) -> usize {
        self.depth - self.reads.len()
    }

    fn in_flight(&self) -> usize {
        self.reads.len()
    }

    fn submit(&mut self, read: Read<'_>) -> Result<()> {
        assert!(
            self.room() > 0 && read.offset.is_multiple_of(4096) && read.bytes.is_multiple_of(4096)
        );
        self.submitted.fetch_add(1, Ordering::Relaxed);
        self.reads.push((read.tag, read.file.clone(), read.offset, read.bytes));
        Ok(())
    }

    fn complete(&mut self, wait: usize, each: &mut dyn FnMut(u64, Result<&[u8]>)) -> Result<usize> {
        let most = self.reads.len();
        let count = wait.min(most).max(self.random(most + 1));
        for _ in 0..count {
            let at = self.random(self.reads.len());
            let (tag, file, offset, bytes) = self.reads.swap_remove(at);
            if self.bad.iter().any(|bad| (offset..offset + bytes as u64).contains(bad)) {
                each(tag, Err(Error::data_loss("the device has lost it")));
            } else {
                let mut buffer = vec![0; bytes];
                file.read_at(offset, &mut buffer).unwrap();
                each(tag, Ok(&buffer));
            }
        }
        Ok(count)
    }
}

/// Scores by the first byte. The coarse score is a bound if `bounded`.
#[derive(Clone, Copy)]
struct First {
    bounded: bool,
}

impl Scorer for First {
    type Scratch = ();

    fn scratch(&self) {}

    fn score(&self, record: &[u8], _scratch: &mut ()) -> Result<f32> {
        assert!(record.iter().enumerate().skip(1).all(|(at, &byte)| byte == at as u8));
        record
            .first()
            .map(|&score| f32::from(score))
            .ok_or_else(|| Error::data_loss("an empty record"))
    }

    fn bound(&self, coarse: f32) -> f32 {
        if self.bounded { coarse } else { f32::INFINITY }
    }
}

/// Candidates in chunks, some of them late.
struct Pieces {
    left: VecDeque<Vec<RerankCandidate>>,
    asked: usize,
}

impl CandidateChunks for Pieces {
    fn next(&mut self, out: &mut Vec<RerankCandidate>, wait: bool) -> ChunkProgress {
        self.asked += 1;
        if !wait && self.asked.is_multiple_of(2) {
            return ChunkProgress::Later;
        }
        match self.left.pop_front() {
            Some(chunk) => {
                out.extend(chunk);
                ChunkProgress::More
            }
            None => ChunkProgress::End,
        }
    }
}

struct Queue<'a>(VecDeque<RerankQuery<'a, First>>, BTreeMap<u64, RerankResult>);

impl<'a> QuerySource<'a, First> for Queue<'a> {
    fn next(&mut self, wait: bool) -> NextQuery<'a, First> {
        if !wait && self.0.len().is_multiple_of(2) && !self.0.is_empty() {
            return NextQuery::Later;
        }
        self.0.pop_front().map_or(NextQuery::End, NextQuery::Query)
    }

    fn answer(&mut self, tag: u64, ranked: RerankResult) {
        assert!(self.1.insert(tag, ranked).is_none(), "a query is answered once");
    }
}

/// Scores and lengths of a segment's records, damaged positions, and true if it is in memory.
type RawSegment = (Vec<(u8, usize)>, Vec<usize>, bool);
/// Segment, row, and coarse score above the score.
type RawCandidate = (usize, usize, u8);
/// Hits by segment, row and score; unreadable rows.
type Definition = (Vec<(u32, u32, f32)>, BTreeSet<(u32, u32)>);

#[derive(Clone, Debug)]
struct Case {
    segments: Vec<RawSegment>,
    /// Queries: k, candidates as numbers to be reduced to the range, chunk length.
    queries: Vec<(usize, Vec<RawCandidate>, usize)>,
    bounded: bool,
    limits: (usize, usize, usize),
    /// Bytes of the caches: none, some for records, some for blocks too.
    cache: u64,
    bad: Option<usize>,
    seed: u64,
}

fn cases() -> impl Strategy<Value = Case> {
    // Short records, and now and then one of several pages.
    let size = prop_oneof![9 => 0usize..700, 1 => 4000usize..12000];
    let records = proptest::collection::vec((0u8..12, size), 1..120);
    let damaged = proptest::collection::vec(any::<usize>().prop_map(|at| at >> 8), 0..3);
    let segments = proptest::collection::vec((records, damaged, any::<bool>()), 1..3);
    let candidates = proptest::collection::vec((0usize..3, 0usize..150, 0u8..4), 0..120);
    let queries = proptest::collection::vec((0usize..20, candidates, 1usize..60), 1..6);
    let limits = (1usize..5, 1usize..20, 1usize..40);
    let bad = proptest::option::of(0usize..60);
    let cache = prop_oneof![Just(0u64), Just(1 << 20), Just(8 << 20)];
    (segments, queries, any::<bool>(), limits, cache, bad, any::<u64>()).prop_map(
        |(segments, queries, bounded, limits, cache, bad, seed)| Case {
            segments,
            queries,
            bounded,
            limits,
            cache,
            bad,
            seed,
        },
    )
}

fn limits((queries, query_in_flight, in_flight): (usize, usize, usize)) -> SearchLimits {
    SearchLimits { queries, query_in_flight, in_flight, ..SearchLimits::default() }
}

fn candidates(case: &Case, segments: &[Segment], raw: &[RawCandidate]) -> Vec<RerankCandidate> {
    raw.iter()
        .map(|&(segment, row, slack)| {
            let segment = segment % segments.len();
            let row = row % segments[segment].places.len();
            let coarse = f32::from(case.segments[segment].0[row].0) + f32::from(slack);
            RerankCandidate { segment: segment as u32, row: row as u32, coarse }
        })
        .collect()
}

/// Returns the expected hits by (segment, row, score), and the unreadable rows.
fn naive(
    case: &Case,
    segments: &[Segment],
    candidates: &[RerankCandidate],
    k: usize,
    bad: &[u64],
) -> Definition {
    let mut hits = Vec::new();
    let mut lost = BTreeSet::new();
    let rows: BTreeSet<(u32, u32)> = candidates.iter().map(|c| (c.segment, c.row)).collect();
    for (segment, row) in rows {
        let own = &segments[segment as usize];
        let Address { offset, bytes, .. } = own.places[row as usize];
        let unreadable = own.file.in_place().is_none()
            && bad.iter().any(|bad| (offset..offset + u64::from(bytes)).contains(bad));
        if unreadable || own.is_damaged(row) {
            lost.insert((segment, row));
        } else {
            hits.push((segment, row, f32::from(case.segments[segment as usize].0[row as usize].0)));
        }
    }
    hits.sort_by(|a, b| b.2.total_cmp(&a.2).then((a.0, a.1).cmp(&(b.0, b.1))));
    hits.truncate(k);
    (hits, lost)
}

fn check(case: &Case) -> Result<(), TestCaseError> {
    let segments: Vec<Segment> = case
        .segments
        .iter()
        .map(|(records, damaged, in_place)| segment(records, damaged, *in_place))
        .collect();
    let shared_segments: Arc<[Arc<dyn Records>]> = case
        .segments
        .iter()
        .zip(&segments)
        .map(|(_, own)| {
            Arc::new(Segment {
                file: own.file.clone(),
                places: own.places.clone(),
                start: own.start,
            }) as Arc<dyn Records>
        })
        .collect();
    let limits = limits(case.limits);
    let bad: Vec<u64> =
        case.bad.iter().map(|page| (START_PAGES + *page as u64) * 4096 + 5).collect();
    let reader = Shuffled {
        depth: limits.in_flight,
        reads: Vec::new(),
        seed: case.seed,
        bad: bad.clone(),
        submitted: Arc::default(),
    };
    let shared = Arc::new(SharedCaches::new(case.cache, 400));
    let mut searcher = Searcher::new(Box::new(reader), limits, shared).unwrap();
    let scorer = First { bounded: case.bounded };
    let queries = case.queries.iter().enumerate().map(|(tag, (k, raw, chunk))| {
        let candidates = candidates(case, &segments, raw);
        let left = candidates.chunks(*chunk).map(<[_]>::to_vec).collect();
        RerankQuery {
            tag: tag as u64,
            scorer,
            segments: shared_segments.clone(),
            k: *k,
            candidates: Box::new(Pieces { left, asked: tag }) as Box<dyn CandidateChunks>,
            deadline: None,
        }
    });
    // Twice, so that the second pass finds a warm cache and verified pages.
    let mut queue = Queue(queries.collect(), BTreeMap::new());
    searcher.run(&mut queue).unwrap();
    prop_assert_eq!(queue.1.len(), case.queries.len());
    for (tag, (k, raw, _)) in case.queries.iter().enumerate() {
        let candidates = candidates(case, &segments, raw);
        let (wanted, lost) = naive(case, &segments, &candidates, *k, &bad);
        let again = RerankQuery {
            tag: 0,
            scorer,
            segments: shared_segments.clone(),
            k: *k,
            candidates: all(candidates),
            deadline: None,
        };
        for ranked in [&queue.1[&(tag as u64)], &searcher.one(again).unwrap()] {
            let hits: Vec<_> =
                ranked.hits.iter().map(|(c, score)| (c.segment, c.row, *score)).collect();
            prop_assert_eq!(&hits, &wanted);
            let named: BTreeSet<_> =
                ranked.damaged.iter().map(|d| (d.candidate.segment, d.candidate.row)).collect();
            prop_assert!(named.is_subset(&lost));
            prop_assert_eq!(ranked.partial, !named.is_empty());
            prop_assert!(ranked.damaged.iter().all(|d| d.page.is_some()));
            if !case.bounded && *k > 0 && ranked.damaged_count < 64 {
                prop_assert_eq!(&named, &lost);
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]
    #[test]
    fn equals_reading_and_sorting_everything(case in cases()) {
        check(&case)?;
    }
}

fn one_query(
    segment: Segment,
    candidates: Vec<RerankCandidate>,
    k: usize,
    scorer: First,
) -> RerankQuery<'static, First> {
    let segments: Arc<[Arc<dyn Records>]> = Arc::new([Arc::new(segment) as Arc<dyn Records>]);
    RerankQuery { tag: 0, scorer, segments, k, candidates: all(candidates), deadline: None }
}

fn searcher(limits: SearchLimits, submitted: &Arc<AtomicU64>) -> Searcher {
    let depth = limits.in_flight;
    let reader = Shuffled {
        depth,
        reads: Vec::new(),
        seed: 7,
        bad: Vec::new(),
        submitted: submitted.clone(),
    };
    Searcher::new(Box::new(reader), limits, Arc::new(SharedCaches::new(0, 400))).unwrap()
}

fn rows(rows: impl Iterator<Item = u32>, coarse: impl Fn(u32) -> f32) -> Vec<RerankCandidate> {
    rows.map(|row| RerankCandidate { segment: 0, row, coarse: coarse(row) }).collect()
}

#[test]
fn neighbouring_pages_share_a_read() {
    let submitted = Arc::default();
    // Nine records of 400 bytes per page: 90 rows are ten pages, read at once.
    let own = segment(&[(1, 400); 90], &[], false);
    let candidates = rows(0..90, |_| 0.0);
    let ranked = searcher(SearchLimits::default(), &submitted)
        .one(one_query(own, candidates, 5, First { bounded: false }))
        .unwrap();
    assert_eq!((ranked.reads, ranked.scored), (1, 90));
    assert_eq!(submitted.load(Ordering::Relaxed), 1);
}

#[test]
fn records_below_the_bound_are_skipped() {
    let submitted = Arc::default();
    let records: Vec<(u8, usize)> = (0..200).map(|row| (200 - row as u8, 3000)).collect();
    let own = segment(&records, &[], false);
    // The coarse score is the score itself, so after the first ten no row can become a hit.
    let candidates = rows(0..200, |row| (200 - row) as f32);
    let limits =
        SearchLimits { query_in_flight: 4, joined_bytes_max: 0, ..SearchLimits::default() };
    let ranked = searcher(limits, &submitted)
        .one(one_query(own, candidates, 10, First { bounded: true }))
        .unwrap();
    assert_eq!(ranked.hits.len(), 10);
    assert_eq!(ranked.hits.first().unwrap().1, 200.0);
    assert!(ranked.reads < 25, "{} reads", ranked.reads);
    assert_eq!(ranked.scored + ranked.skipped, 200);
    assert!(!ranked.partial);
}

#[test]
fn cached_records_are_not_read_again() {
    let submitted = Arc::default();
    // One record per page and no neighbours: reads worth caching.
    let own = segment(&[(1, 3000); 60], &[], false);
    let limits = SearchLimits { joined_bytes_max: 0, ..SearchLimits::default() };
    let reader = Shuffled {
        depth: limits.in_flight,
        reads: Vec::new(),
        seed: 1,
        bad: Vec::new(),
        submitted,
    };
    let shared = Arc::new(SharedCaches::new(1 << 20, 1000));
    let mut searcher = Searcher::new(Box::new(reader), limits, shared.clone()).unwrap();
    let segments: Arc<[Arc<dyn Records>]> = Arc::new([Arc::new(own) as Arc<dyn Records>]);
    let mut ask = || {
        let scorer = First { bounded: false };
        let segments = segments.clone();
        let candidates = all(rows(0..60, |_| 0.0));
        searcher
            .one(RerankQuery { tag: 0, scorer, segments, k: 9, candidates, deadline: None })
            .unwrap()
    };
    let cold = ask();
    let warm = ask();
    assert_eq!(cold.hits, warm.hits);
    assert_eq!((cold.cached, warm.cached, warm.reads), (0, 60, 0));
    assert_eq!(shared.cache_stats().unwrap().hits, 60);
}

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
            .one(RerankQuery {
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

#[test]
fn a_deadline_makes_the_result_partial() {
    let submitted = Arc::default();
    let own = segment(&[(3, 100); 50], &[], false);
    let mut candidates = rows(0..50, |_| 0.0);
    candidates.push(RerankCandidate { segment: 9, row: 0, coarse: 0.0 });
    candidates.push(RerankCandidate { segment: 0, row: 50, coarse: 0.0 });
    let mut query = one_query(own, candidates, 3, First { bounded: false });
    query.deadline = Some(Instant::now());
    let ranked = searcher(SearchLimits::default(), &submitted).one(query).unwrap();
    assert!(ranked.late && ranked.partial);
    assert_eq!(ranked.damaged.iter().filter(|damage| damage.page.is_none()).count(), 2);
}

/// Fails as a whole after some reads.
struct Dying(Shuffled);

impl Reader for Dying {
    fn room(&self) -> usize {
        self.0.room()
    }

    fn in_flight(&self) -> usize {
        self.0.in_flight()
    }

    fn submit(&mut self, read: Read<'_>) -> Result<()> {
        self.0.submit(read)
    }

    fn complete(
        &mut self,
        _wait: usize,
        _each: &mut dyn FnMut(u64, Result<&[u8]>),
    ) -> Result<usize> {
        Err(Error::internal("the ring is gone"))
    }
}

#[test]
fn a_failed_queue_answers_all_queries() {
    let limits = SearchLimits::default();
    let reader = Dying(Shuffled {
        depth: limits.in_flight,
        reads: Vec::new(),
        seed: 1,
        bad: Vec::new(),
        submitted: Arc::default(),
    });
    let mut searcher =
        Searcher::new(Box::new(reader), limits, Arc::new(SharedCaches::new(0, 400))).unwrap();
    let query = || {
        let own = segment(&[(3, 100); 50], &[], false);
        one_query(own, rows(0..50, |_| 0.0), 3, First { bounded: false })
    };
    let mut queue = Queue(VecDeque::from([query()]), BTreeMap::new());
    assert!(searcher.is_sound());
    assert!(searcher.run(&mut queue).is_err());
    assert!(queue.1[&0].partial && !searcher.is_sound());
    assert!(searcher.one(query()).is_err_and(|error| error.message().contains("make another")));
}

/// Writes records with these scores to a medium.
fn written(medium: &dyn Medium, scores: &[u8]) -> Segment {
    let records: Vec<(u8, usize)> =
        scores.iter().enumerate().map(|(at, &score)| (score, 200 + at % 7 * 90)).collect();
    let made = segment(&records, &[], true);
    let mut writer = medium.create("segment").unwrap();
    writer.append(made.file.in_place().unwrap()).unwrap();
    writer.persist().unwrap();
    medium.persist_names().unwrap();
    Segment { file: medium.open("segment").unwrap(), ..made }
}

fn volatile() -> DramMedium {
    let config =
        PoolConfig { bytes_max: 8 << 20, huge_pages: false, fault_rate: Rate::unlimited() };
    DramMedium::new(SlotPool::new(config).unwrap(), None).unwrap()
}

/// Returns the result of a query for all rows, as (row, score).
fn ask_all(medium: &dyn Medium, own: &Segment, k: usize, limits: SearchLimits) -> RerankResult {
    let reader = medium.reader(limits.reader_options()).unwrap();
    let mut searcher =
        Searcher::new(reader, limits, Arc::new(SharedCaches::new(1 << 20, 400))).unwrap();
    let file = own.file.clone();
    let places = own.places.clone();
    let candidates = rows(0..places.len() as u32, |_| 0.0);
    let same = Segment { file, places, start: own.start };
    searcher.one(one_query(same, candidates, k, First { bounded: false })).unwrap()
}

#[test]
fn all_media_give_equal_results() {
    let scores: Vec<u8> = (0..900u32).map(|row| (row * 37 % 251) as u8).collect();
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| dir.path().join(name);
    let mut media: Vec<Box<dyn Medium>> = vec![
        Box::new(volatile()),
        Box::new(MmapMedium::new(place("mmap")).unwrap()),
        Box::new(DaxMedium::new(place("dax"), true).unwrap()),
        Box::new(UringMedium::plain(place("plain")).unwrap()),
    ];
    match UringMedium::new(place("nvme")) {
        Ok(medium) => media.push(Box::new(medium)),
        Err(error) => eprintln!("skipped: {error}"),
    }
    let mut wanted: Vec<(u32, f32)> =
        scores.iter().enumerate().map(|(row, &score)| (row as u32, f32::from(score))).collect();
    wanted.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    wanted.truncate(40);
    for medium in media {
        let own = written(medium.as_ref(), &scores);
        let ranked = ask_all(medium.as_ref(), &own, 40, SearchLimits::default());
        let hits: Vec<(u32, f32)> =
            ranked.hits.iter().map(|(hit, score)| (hit.row, *score)).collect();
        assert_eq!(hits, wanted, "{}", medium.kind());
        assert!(!ranked.partial, "{}", medium.kind());
    }
}

/// Two pages are damaged in each way and their rows reported; all others are ranked.
#[test]
fn device_faults_lose_only_their_pages() {
    for seed in 0..24 {
        let scores: Vec<u8> = (0..700u32).map(|row| (row * 91 % 250) as u8).collect();
        let rates = FaultPlan {
            seed,
            read_errors: 15,
            short_reads: 15,
            torn_pages: 15,
            bit_flips: 15,
            reorder: true,
            ..FaultPlan::default()
        };
        let medium = FaultMedium::new(Arc::new(volatile()), rates).unwrap();
        let own = written(&medium, &scores);
        let lost: BTreeSet<u32> = (0..700).filter(|&row| own.is_damaged(row)).collect();
        let mut wanted: Vec<u32> = (0..700).filter(|row| !lost.contains(row)).collect();
        wanted.sort_by_key(|&row| (std::cmp::Reverse(scores[row as usize]), row));
        wanted.truncate(30);
        let limits = SearchLimits { query_in_flight: 1 + seed as usize, ..SearchLimits::default() };
        let ranked = ask_all(&medium, &own, 30, limits);
        let hits: Vec<u32> = ranked.hits.iter().map(|(hit, _)| hit.row).collect();
        assert_eq!(hits, wanted);
        assert_eq!(ranked.damaged_count as usize, lost.len());
        assert!(ranked.damaged.iter().all(|damage| lost.contains(&damage.candidate.row)));
        assert_eq!(ranked.partial, !lost.is_empty());
    }
}
