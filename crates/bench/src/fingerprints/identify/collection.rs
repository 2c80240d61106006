//! The gallery as a collection on disk, searched on search threads as the server does.

use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::Instant;

use base::{Error, Result};
use coarse::Metric;
use loadgen::run_folder::RunFolder;
use loadgen::stats::ratio;
use matching::index::EdgeQuery;
use matching::{Graph, MatchOptions, Probe, Scratch};
use os::Rate;
use search::Scorer;
use search::collection::{PRINT_CANDIDATES_MAX, PrintQuery, QueryHits, SearchThread};
use search::points::{NewPoint, PointId};
use search::registry::{CollectionSettings, NamedCollection, Registry, RegistryOptions};
use search::segment::RecordKind;
use serde::Serialize;

use super::gallery::Gallery;
use super::queries::EnrolledQuery;
use crate::settle::{QUIET_TIMES, SETTLE_MAX, flush_and_settle, settle, upsert};

/// Name of the collection.
const NAME: &str = "prints";
/// Number of dimensions of an embedding. No query of a print reads embeddings.
const DIMS: usize = 8;
/// Number of points written at once.
const BATCH: usize = 1000;
/// Number of hits of a query.
const HITS: usize = 10;
/// Number of queries that run before the measured ones and create the readers of the threads.
const WARM_QUERIES: usize = 4;
/// Memory limit of a collection without prints.
const MEMORY_BYTES: u64 = 1 << 30;
/// Addition to the memory limit for each print.
const MEMORY_BYTES_PER_PRINT: u64 = 1024;

/// Latency of lone queries by the number of search threads.
#[derive(Clone, Debug, Serialize)]
pub(super) struct CollectionLatency {
    /// Seconds to write, flush and merge all prints.
    pub(super) fill_s: f64,
    pub(super) segments: usize,
    /// Number of prints that a query compares exactly, at most.
    pub(super) candidates: usize,
    /// Share of queries whose finger came first, with one search thread.
    pub(super) rank1_one_thread: f64,
    /// Share of queries whose finger came first, with all search threads.
    pub(super) rank1_all_threads: f64,
    pub(super) p50_one_thread_ms: f64,
    pub(super) p95_one_thread_ms: f64,
    /// Number of all search threads: one a core, and at least two.
    pub(super) threads: usize,
    pub(super) p50_all_threads_ms: f64,
    pub(super) p95_all_threads_ms: f64,
    /// Parts that threads other than the query's own did, in the run with all search threads.
    pub(super) helped: u64,
}

/// Scores records against a query.
#[derive(Clone)]
struct PrintScorer(Arc<Probe>);

impl Scorer for PrintScorer {
    type Scratch = Scratch;

    fn scratch(&self) -> Scratch {
        Scratch::new()
    }

    fn score(&self, record: &[u8], scratch: &mut Scratch) -> Result<f32> {
        matching::score(&self.0, record, scratch)
    }
}

/// Fills a collection below `parent` and measures the queries on one search thread and on all.
///
/// # Errors
/// The errors of the collection; `DeadlineExceeded` if it does not settle.
pub(super) fn measure(
    parent: &Path,
    gallery: &Gallery,
    trials: &[EnrolledQuery<'_>],
    penetration: f64,
) -> Result<CollectionLatency> {
    let name = format!("millpond-bench-identify-{}", std::process::id());
    let folder = RunFolder::new(parent.join(name));
    let candidates = candidates(gallery.len(), penetration);
    let started = Instant::now();
    let settled = {
        let registry = open(options(folder.path(), gallery, 1))?;
        let named = fill(&registry, gallery)?;
        flush_and_settle(&named)?
    };
    let fill_s = (settled.since - started).as_secs_f64();
    let threads = std::thread::available_parallelism().map_or(1, usize::from).max(2);
    let one = measure_lone_queries(options(folder.path(), gallery, 1), trials, candidates)?;
    let all = measure_lone_queries(options(folder.path(), gallery, threads), trials, candidates)?;
    Ok(CollectionLatency {
        fill_s,
        segments: settled.segments,
        candidates,
        rank1_one_thread: one.rank1(),
        rank1_all_threads: all.rank1(),
        p50_one_thread_ms: one.quantile(0.5),
        p95_one_thread_ms: one.quantile(0.95),
        threads,
        p50_all_threads_ms: all.quantile(0.5),
        p95_all_threads_ms: all.quantile(0.95),
        helped: all.helped,
    })
}

/// Returns the number of candidates of a query.
fn candidates(prints: usize, penetration: f64) -> usize {
    ((prints as f64 * penetration / 100.0) as usize).clamp(1, PRINT_CANDIDATES_MAX)
}

fn options(directory: &Path, gallery: &Gallery, threads: usize) -> RegistryOptions {
    RegistryOptions {
        memory_bytes: MEMORY_BYTES + gallery.len() as u64 * MEMORY_BYTES_PER_PRINT,
        threads,
        background_rate: Rate::unlimited(),
        quiet: QUIET_TIMES,
        ..RegistryOptions::new(directory)
    }
}

fn open(options: RegistryOptions) -> Result<Arc<Registry>> {
    let registry = Registry::open(options)?;
    if registry.wait_open(SETTLE_MAX) {
        Ok(registry)
    } else {
        Err(Error::deadline("the collection does not open"))
    }
}

/// Creates the collection and writes all prints. The id of a print is its row.
fn fill(registry: &Registry, gallery: &Gallery) -> Result<Arc<NamedCollection>> {
    let settings = CollectionSettings {
        records: RecordKind::Fingerprint,
        ..CollectionSettings::new(DIMS, Metric::L2)
    };
    let named = registry.create(NAME, settings)?;
    let payload = serde_json::Map::new();
    let rows: Vec<usize> = (0..gallery.len()).collect();
    for rows in rows.chunks(BATCH) {
        let embeddings: Vec<[f32; DIMS]> = rows.iter().map(|&row| embedding(row)).collect();
        let points: Vec<NewPoint<'_>> = rows
            .iter()
            .zip(&embeddings)
            .map(|(&row, embedding)| NewPoint {
                id: PointId::Number(row as u64),
                embedding,
                record: gallery.record(row),
                payload: &payload,
            })
            .collect();
        upsert(&named, &points)?;
    }
    Ok(named)
}

/// Returns different vectors for different rows.
fn embedding(row: usize) -> [f32; DIMS] {
    let mixed = (row as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    std::array::from_fn(|at| (mixed >> (7 * at) & 0xff) as f32)
}

/// Times of queries, one at a time.
struct LoneQueries {
    /// Milliseconds, ascending.
    times: Vec<f64>,
    /// Number of queries whose finger came first.
    first: usize,
    /// Parts that other threads did.
    helped: u64,
}

impl LoneQueries {
    fn rank1(&self) -> f64 {
        ratio(self.first as f64, self.times.len() as f64)
    }

    fn quantile(&self, part: f64) -> f64 {
        let at = (self.times.len().saturating_sub(1) as f64 * part).round() as usize;
        self.times.get(at).copied().unwrap_or(0.0)
    }
}

/// Opens the collection and runs all queries, one at a time.
fn measure_lone_queries(
    options: RegistryOptions,
    trials: &[EnrolledQuery<'_>],
    candidates: usize,
) -> Result<LoneQueries> {
    let registry = open(options)?;
    let named = registry.get(NAME)?;
    settle(&named)?;
    for trial in trials.iter().take(WARM_QUERIES) {
        run_query(&registry, &named, &trial.query.graph, candidates)?;
    }
    let before = registry.stats().helped;
    let mut times = Vec::with_capacity(trials.len());
    let mut first = 0;
    for trial in trials {
        let started = Instant::now();
        let found = run_query(&registry, &named, &trial.query.graph, candidates)?;
        times.push(started.elapsed().as_secs_f64() * 1e3);
        if found.partial {
            return Err(Error::internal("a result of the collection is partial"));
        }
        first += usize::from(found.hits.first().map(|hit| hit.id) == Some(trial.row.into()));
    }
    times.sort_by(f64::total_cmp);
    Ok(LoneQueries { times, first, helped: registry.stats().helped - before })
}

/// Runs one query on a search thread, as the server does.
fn run_query(
    registry: &Registry,
    named: &Arc<NamedCollection>,
    graph: &Graph,
    candidates: usize,
) -> Result<QueryHits> {
    let (sender, answer) = mpsc::channel();
    let graph = graph.clone();
    let work = move |named: &NamedCollection, thread: &mut SearchThread| {
        let edges = EdgeQuery::new(&graph);
        let query = PrintQuery { edges: &edges, k: HITS, candidates, filter: None, deadline: None };
        let scorer = PrintScorer(Arc::new(Probe::new(&graph, MatchOptions::default())));
        // The receiver is dropped only if the benchmark has failed.
        let _ = sender.send(named.collection().identify(thread, &query, &scorer));
    };
    registry.submit(named, Box::new(work))?;
    answer.recv().map_err(|_| Error::internal("a query was dropped"))?
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fingerprints::Impression;
    use crate::fingerprints::identify::queries::trials;
    use matching::synthetic;

    #[test]
    fn a_collection_of_the_gallery_identifies_fingers() {
        let impression = |finger: u64, copy: u64| {
            let graph = synthetic::distorted(&synthetic::impression(finger), copy);
            Impression::new("made up".into(), finger.to_string(), graph)
        };
        let impressions: Vec<Impression> = (0..5)
            .flat_map(|finger| (1..3).map(move |copy| (finger, copy)))
            .map(|(finger, copy)| impression(finger, copy))
            .collect();
        let gallery = Gallery::new(&impressions, 300).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let registry = open(RegistryOptions::for_tests(directory.path())).unwrap();
        let named = fill(&registry, &gallery).unwrap();
        named.collection().flush().unwrap();
        assert_eq!(named.collection().count(), 305);
        let asked = trials(&impressions, None).unwrap();
        let first = asked.iter().filter(|trial| {
            let found =
                run_query(&registry, &named, &trial.query.graph, candidates(305, 10.0)).unwrap();
            assert!(found.compared <= 30 && !found.partial, "{found:?}");
            let hit = found.hits.first().map(|hit| hit.id);
            hit == Some(u64::from(trial.row))
        });
        assert!(first.count() >= 2);
        let times = LoneQueries { times: vec![1.0, 2.0, 9.0], first: 0, helped: 0 };
        assert_eq!((times.quantile(0.5), times.quantile(0.95)), (2.0, 9.0));
        let measured = super::measure(directory.path(), &gallery, &asked, 10.0).unwrap();
        assert_eq!(measured.candidates, 30);
        assert!(measured.rank1_one_thread >= 0.4, "{measured:?}");
        assert_eq!(measured.rank1_one_thread, measured.rank1_all_threads);
        assert_eq!((candidates(10, 1.0), candidates(1 << 30, 50.0)), (1, PRINT_CANDIDATES_MAX));
    }
}
