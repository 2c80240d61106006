//! The exact stage against its definition: read everything, score everything, sort.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use proptest::prelude::*;
use search::rerank::{
    Address, CandidateChunks, ChunkProgress, Records, RerankCandidate, RerankQuery, SearchLimits,
    Searcher, SharedCaches, all,
};

use super::{First, Queue, START_PAGES, Segment, Shuffled, segment};

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

fn candidates(case: &Case, segments: &[Segment], raw: &[RawCandidate]) -> Vec<RerankCandidate> {
    raw.iter()
        .map(|&(segment, row, slack)| {
            let segment = segment % segments.len();
            let row = row % segments[segment].places.len();
            let coarse = f32::from(case.segments[segment].0[row].0) + f32::from(slack);
            // Ids fall from segment to segment and from row to row.
            let id = u64::MAX - (segment * 1000 + row) as u64;
            RerankCandidate { segment: segment as u32, row: row as u32, id, coarse }
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
    // The largest segment and row have the smallest id.
    hits.sort_by(|a, b| b.2.total_cmp(&a.2).then((b.0, b.1).cmp(&(a.0, a.1))));
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
    let (queries, query_in_flight, in_flight) = case.limits;
    let limits = SearchLimits { queries, query_in_flight, in_flight, ..SearchLimits::default() };
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
        for ranked in [&queue.1[&(tag as u64)], &searcher.run_one(again).unwrap()] {
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
