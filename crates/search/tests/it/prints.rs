//! Queries by minutiae.

use matching::index::EdgeQuery;
use matching::{Graph, MatchOptions, Probe, Scratch, synthetic};
use search::Scorer;
use search::collection::{CollectionOptions, PrintQuery};
use search::filter::{Condition, Filter};
use search::ingest::PointRef;
use search::rerank::SearchLimits;
use search::segment::RecordKind;

use crate::points::{TestCollection, memory_medium, open, options};

/// Prints of a collection: more than a query's candidates.
const PRINTS: u64 = 900;
const CANDIDATES: usize = 30;

#[derive(Clone)]
struct Matcher(Probe);

impl Scorer for Matcher {
    type Scratch = Scratch;

    fn scratch(&self) -> Scratch {
        Scratch::new()
    }

    fn score(&self, record: &[u8], scratch: &mut Scratch) -> base::Result<f32> {
        matching::score(&self.0, record, scratch)
    }
}

fn prints() -> CollectionOptions {
    CollectionOptions { records: RecordKind::Fingerprint, ..options() }
}

fn add(collection: &TestCollection, id: u64) {
    let mut record = Vec::new();
    synthetic::impression(id).encode(&mut record);
    let payload = format!(r#"{{"even":{}}}"#, id.is_multiple_of(2));
    let embedding = [0.0; crate::points::DIMS];
    let point =
        PointRef { id, embedding: &embedding, record: &record, payload: payload.as_bytes() };
    collection.upsert(point).unwrap();
}

/// Returns a collection whose points are partly flushed.
fn filled(options: CollectionOptions) -> TestCollection {
    let collection = open(&memory_medium(), options);
    (0..PRINTS).for_each(|id| add(&collection, id));
    collection
}

/// Returns the ids of the best hits, and the number of compared points.
fn identify(
    collection: &TestCollection,
    query: &Graph,
    filter: Option<&Filter>,
) -> (Vec<u64>, u64) {
    let mut thread = collection.thread(SearchLimits::default()).unwrap();
    let edges = EdgeQuery::new(query);
    let query_of =
        PrintQuery { edges: &edges, k: 3, candidates: CANDIDATES, filter, deadline: None };
    let matcher = Matcher(Probe::new(query, MatchOptions::default()));
    let found = collection.identify(&mut thread, &query_of, &matcher).unwrap();
    assert!(!found.partial && found.damaged == 0, "{found:?}");
    assert_eq!(found.compared, found.candidates);
    (found.hits.iter().map(|hit| hit.id).collect(), found.compared)
}

/// Returns the most comparisons of a query: the candidates, at least 16 of each segment, rounded
/// up, and the unflushed points. That is less than half of the points.
fn compared_max(collection: &TestCollection) -> u64 {
    let status = collection.status();
    let most = CANDIDATES as u64 + 17 * status.segments.len() as u64 + status.unflushed;
    assert!(!status.segments.is_empty() && most < PRINTS / 2, "{status:?}");
    most
}

#[test]
fn other_impressions_are_found_with_few_comparisons() {
    let collection = filled(prints());
    let most = compared_max(&collection);
    let mut first = 0;
    for id in (0..PRINTS).step_by(90) {
        let query = synthetic::distorted(&synthetic::impression(id), id);
        let (hits, compared) = identify(&collection, &query, None);
        first += u64::from(hits.first() == Some(&id));
        assert!(compared <= most, "{compared}");
    }
    assert!(first >= 8, "{first} of 10");
}

#[test]
fn deleted_and_excluded_prints_are_not_found() {
    let collection = filled(prints());
    let query = synthetic::impression(120);
    assert_eq!(identify(&collection, &query, None).0.first(), Some(&120));
    let other = Filter { must: vec![Condition::has_id(vec![7, 9])], ..Filter::default() };
    assert_eq!(identify(&collection, &query, Some(&other)).1, 2);
    collection.delete(120).unwrap();
    assert!(!identify(&collection, &query, None).0.contains(&120));
}

#[test]
fn a_merged_segment_has_an_index() {
    let collection = filled(prints());
    let before = collection.status().segments.len();
    while collection.merge().unwrap() {}
    assert!(collection.status().segments.len() < before);
    let query = synthetic::impression(3);
    let (hits, compared) = identify(&collection, &query, None);
    assert_eq!(hits.first(), Some(&3));
    assert!(compared <= compared_max(&collection), "{compared}");
}

#[test]
fn prints_without_an_index_are_all_compared() {
    let collection = filled(options());
    let query = synthetic::impression(77);
    assert_eq!(
        identify(&collection, &query, None),
        (identify(&collection, &query, None).0, PRINTS)
    );
    assert_eq!(identify(&collection, &query, None).0.first(), Some(&77));
}

#[test]
fn an_expired_query_is_partial() {
    let collection = filled(prints());
    let mut thread = collection.thread(SearchLimits::default()).unwrap();
    let graph = synthetic::impression(1);
    let edges = EdgeQuery::new(&graph);
    let deadline = Some(std::time::Instant::now());
    let query = PrintQuery { edges: &edges, k: 3, candidates: CANDIDATES, filter: None, deadline };
    let matcher = Matcher(Probe::new(&graph, MatchOptions::default()));
    assert!(collection.identify(&mut thread, &query, &matcher).unwrap().partial);
    let query = PrintQuery { candidates: usize::MAX, ..query };
    assert!(collection.identify(&mut thread, &query, &matcher).is_err());
}
