//! The exact stage: reads, bounds, caches, deadlines and failures.

mod blocks;
mod definition;
mod media;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use base::{Error, Result};
use search::rerank::{
    Address, NextQuery, QuerySource, Records, RerankCandidate, RerankQuery, RerankResult, Scorer,
    SearchLimits, Searcher, SharedCaches, all,
};
use storage::page::{PAGE_BYTES, Packer};
use storage::{Read, Reader, Sealed};

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
    let candidate =
        |row| RerankCandidate { segment: 0, row, id: u64::from(row), coarse: coarse(row) };
    rows.map(candidate).collect()
}

#[test]
fn neighbouring_pages_share_a_read() {
    let submitted = Arc::default();
    // Nine records of 400 bytes per page: 90 rows are ten pages, read at once.
    let own = segment(&[(1, 400); 90], &[], false);
    let candidates = rows(0..90, |_| 0.0);
    let ranked = searcher(SearchLimits::default(), &submitted)
        .run_one(one_query(own, candidates, 5, First { bounded: false }))
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
        .run_one(one_query(own, candidates, 10, First { bounded: true }))
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
            .run_one(RerankQuery { tag: 0, scorer, segments, k: 9, candidates, deadline: None })
            .unwrap()
    };
    let cold = ask();
    let warm = ask();
    assert_eq!(cold.hits, warm.hits);
    assert_eq!((cold.cached, warm.cached, warm.reads), (0, 60, 0));
    assert_eq!(shared.cache_stats().unwrap().hits, 60);
}

#[test]
fn a_deadline_makes_the_result_partial() {
    let submitted = Arc::default();
    let own = segment(&[(3, 100); 50], &[], false);
    let mut candidates = rows(0..50, |_| 0.0);
    candidates.push(RerankCandidate { segment: 9, row: 0, id: 50, coarse: 0.0 });
    candidates.push(RerankCandidate { segment: 0, row: 50, id: 51, coarse: 0.0 });
    let mut query = one_query(own, candidates, 3, First { bounded: false });
    query.deadline = Some(Instant::now());
    let ranked = searcher(SearchLimits::default(), &submitted).run_one(query).unwrap();
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
    assert!(searcher.run_one(query()).is_err_and(|error| error.message().contains("make another")));
}
