//! A collection on disk, filled with generated vectors and searched by one query at a time. Figures
//! are the recall, the latency by number of search threads, the memory, and the time to open it.
//!
//! # Data
//! A row belongs to one of [`CLUSTERS`] clusters. Its vector is the centre, whose values are normal
//! with deviation 1, plus normal noise with deviation [`NOISE`]. Queries are made
//! like rows. Everything follows from the numbers of rows, so nothing is stored, and the exact
//! neighbours are found while the rows are made.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use base::{Error, ErrorKind, Result};
use coarse::Metric;
use os::Rate;
use search::codes::CodesPlace;
use search::collection::{CollectionQuery, Merging, QueryHits, SearchThread};
use search::points::{NewPoint, PointId};
use search::registry::{CollectionSettings, NamedCollection, Registry, RegistryOptions};
use serde::{Deserialize, Serialize};

use super::VectorsArgs;
use super::disk_peers::{DiskPeerOutcomes, announcement};
use super::peers::Peers;
use crate::report::{BenchReport, read_json};
use crate::settle::{QUIET_TIMES, SETTLE_MAX, flush_and_settle, settle, upsert};
use loadgen::disk_space::{check_space, is_in_memory};
use loadgen::machine::{NoiseWatch, RunContext};
use loadgen::println;
use loadgen::report::write_json;
use loadgen::run_folder::RunFolder;

/// Number of clusters of the generated rows.
const CLUSTERS: u64 = 4096;
/// Deviation of rows from the centre of their cluster, in deviations of the centres.
const NOISE: f32 = 0.6;
/// Number of queries with known neighbours.
const QUERIES: usize = 1000;
/// First queries, which fill caches of the processor and readers of threads, and choose the
/// settings of other engines. They are not timed.
pub(super) const WARM_UP: usize = 100;
/// Times that the timed queries are repeated.
const REPEATS: usize = 3;
/// Number of rows written at once.
const BATCH: u64 = 1000;
/// Number of hits of a query.
const HITS: usize = 10;
/// Bytes of a row on disk beside its vector.
const ROW_BYTES: u64 = 64;
/// Disk space of the collection while it is merged, as a multiple of that of the rows.
const OWN_COPIES: u64 = 3;
/// Disk space of the files of another engine and its index, as a multiple of that of the rows.
const PEER_COPIES: u64 = 4;
/// Time without codes that move to memory after which none moves.
const SETTLED: Duration = Duration::from_secs(3);

/// Size and limits of the collection.
pub(super) struct CollectionPlan<'a> {
    pub(super) directory: &'a Path,
    pub(super) rows: u64,
    pub(super) dims: usize,
    /// Memory limit of the collection.
    pub(super) memory_bytes: u64,
    /// Place of the codes of segments.
    pub(super) codes: CodesPlace,
    /// Number of threads that build indexes.
    pub(super) build_threads: usize,
    /// Numbers of search threads to measure.
    pub(super) threads: Vec<usize>,
    /// Number of segments of similar size that are merged into one.
    pub(super) merge_segments: usize,
    /// True to keep the collection, and to read the file of [`FilledCollection::file`] instead of
    /// filling.
    pub(super) keep: bool,
}

/// Measured figures.
#[derive(Clone, Debug, Serialize)]
pub(super) struct CollectionFigures {
    pub(super) rows: u64,
    pub(super) dims: usize,
    pub(super) memory_limit_mb: f64,
    /// Recall of the default effort for 10 hits.
    pub(super) recall: f64,
    /// Median latency of a lone query that was never asked before, by search threads.
    pub(super) p50_ms: BTreeMap<usize, f64>,
    /// 95th percentile of the same.
    pub(super) p95_ms: BTreeMap<usize, f64>,
    /// Median latency of the same queries when they are repeated, and caches have all data that
    /// they read.
    pub(super) repeated_p50_ms: BTreeMap<usize, f64>,
    /// Parts of queries that a second thread did, by search threads.
    pub(super) helped: BTreeMap<usize, u64>,
    /// Time to write, flush and merge all rows; `None` if an interrupted run had written some.
    pub(super) build_s: Option<f64>,
    pub(super) segments: usize,
    pub(super) segment_rows: Vec<u32>,
    /// Time from opening the collection to the first answer, with the fewest search threads.
    pub(super) ready_s: f64,
    /// Time until the codes that fit into memory are in memory too.
    pub(super) codes_s: f64,
    /// Bytes of codes that queries read from the medium.
    pub(super) codes_on_medium_mb: f64,
    /// Largest resident memory of the process after its queries, over the numbers of threads.
    pub(super) rss_mb: f64,
    /// Largest use of the collection's own memory.
    pub(super) memory_peak_mb: f64,
}

/// JSON of `bench vectors --memory`.
#[derive(Debug, Serialize)]
struct CollectionReport<'a> {
    /// False if the run continues after this report was written.
    complete: bool,
    /// True if the files were in memory, on a tmpfs. Then no figure is that of a disk.
    files_in_memory: bool,
    #[serde(flatten)]
    figures: &'a CollectionFigures,
    #[serde(flatten)]
    peers: &'a DiskPeerOutcomes,
    #[serde(flatten)]
    context: RunContext,
}

impl CollectionFigures {
    /// Prints the figures for people.
    fn print(&self) {
        println!(
            "{} rows of {} dimensions in {} segments, {}, {:.0} MB resident of {:.0} MB",
            self.rows,
            self.dims,
            self.segments,
            self.build_s.map_or_else(
                || "built in several runs".to_owned(),
                |seconds| format!("built in {seconds:.0} s")
            ),
            self.rss_mb,
            self.memory_limit_mb
        );
        println!(
            "recall@{HITS} {:.4}, ready in {:.2} s, codes in {:.2} s, {:.0} MB of them on the medium",
            self.recall, self.ready_s, self.codes_s, self.codes_on_medium_mb
        );
        for (threads, p50) in &self.p50_ms {
            println!(
                "{threads} search threads: p50 {p50:.3} ms, p95 {:.3} ms, repeated p50 {:.3} ms, {} \
                 parts helped",
                self.p95_ms[threads], self.repeated_p50_ms[threads], self.helped[threads]
            );
        }
    }
}

impl BenchReport for CollectionReport<'_> {
    /// Prints the outcomes of the other engines. Our figures are printed before these engines run,
    /// which can take hours.
    fn print(&self) {
        self.peers.print();
    }
}

/// Measures the collection in a directory below `parent`, and then the other engines in another
/// one. Removes the directory at the end unless `--keep` is set.
///
/// # Errors
/// As [`measure`] and [`Peers::find`].
pub(super) fn run(args: &VectorsArgs, memory_bytes: u64, parent: &Path) -> Result<()> {
    let watch = NoiseWatch::start();
    // An unknown name of an engine is refused before the measurement, which can take hours.
    let peers = Peers::find(args)?;
    let name = if args.keep {
        format!("{}x{}", args.rows, args.dims)
    } else {
        std::process::id().to_string()
    };
    let directory = parent.join(format!("millpond-bench-vectors-{name}"));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = [1, 2, 4, 8, 16].into_iter().filter(|threads| *threads <= cores.max(2)).collect();
    let plan = CollectionPlan {
        directory: &directory,
        rows: args.rows as u64,
        dims: args.dims,
        memory_bytes,
        codes: args.codes.place(),
        build_threads: args.threads,
        threads,
        merge_segments: args.merge_segments as usize,
        keep: args.keep,
    };
    check_disk(&plan, parent, &peers)?;
    println!("{}", announcement(&peers, args));
    let files_in_memory = is_in_memory(parent);
    if files_in_memory {
        println!(
            "{} is a file system in memory, so these are no figures of a disk; --dir names another directory",
            parent.display()
        );
    }
    let removed = (!args.keep).then(|| RunFolder::new(directory.clone()));
    let MeasuredCollection { figures, truth } = measure(&plan, &|line| println!("{line}"))?;
    drop(removed);
    figures.print();
    let folder = parent.join(format!("millpond-bench-vectors-peers-{}", std::process::id()));
    let json = args.json.as_deref();
    let write_unfinished = |peers: &DiskPeerOutcomes| {
        let context = watch.context(None);
        CollectionReport { complete: false, files_in_memory, figures: &figures, peers, context }
            .write_unfinished(json)
    };
    // A file that cannot be written ends the run before the other engines, which can take hours.
    write_unfinished(&DiskPeerOutcomes::default())?;
    let peers = DiskPeerOutcomes::measure(&peers, args, &plan, &truth, &folder, &mut |outcomes| {
        if let Err(error) = write_unfinished(outcomes) {
            println!("{}", error.message());
        }
    });
    let context = watch.context(None);
    CollectionReport { complete: true, files_in_memory, figures: &figures, peers: &peers, context }
        .finish(json)
}

/// Checks the space for the collection, and then for the rows and one index of another engine.
fn check_disk(plan: &CollectionPlan<'_>, parent: &Path, peers: &Peers) -> Result<()> {
    let row_bytes = 4 * plan.dims as u64 + ROW_BYTES;
    // A collection of an earlier run has its bytes already.
    let own = if plan.directory.exists() { 0 } else { OWN_COPIES };
    let copies = if peers.engines.is_empty() { own } else { PEER_COPIES };
    let remedy = "choose fewer --rows, or another --dir";
    check_space(parent, plan.rows * row_bytes * copies, remedy)
}

/// Generator of reproducible rows.
pub(super) struct RowMaker {
    dims: usize,
    centres: Vec<f32>,
}

/// Returns a well mixed number (the finaliser of splitmix64).
fn mix(value: u64) -> u64 {
    let mixed = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

/// Returns a nearly normal number of deviation 1: the sum of four uniform ones of 16 bits.
fn normal(bits: u64) -> f32 {
    let sum: u64 = (0..4).map(|part| bits >> (16 * part) & 0xffff).sum();
    (sum as f32 / 65_536.0 - 2.0) * 1.732
}

impl RowMaker {
    pub(super) fn new(dims: usize) -> RowMaker {
        let centres = (0..CLUSTERS * dims as u64).map(|at| normal(mix(at))).collect();
        RowMaker { dims, centres }
    }

    /// Appends row `row`.
    pub(super) fn push(&self, row: u64, out: &mut Vec<f32>) {
        let seed = mix(row ^ 0x5EED << 40);
        let cluster = (seed % CLUSTERS) as usize;
        let centre = &self.centres[cluster * self.dims..][..self.dims];
        out.extend((seed..).zip(centre).map(|(seed, middle)| middle + NOISE * normal(mix(seed))));
    }

    /// Returns the queries, row by row.
    pub(super) fn queries(&self) -> Vec<f32> {
        let mut queries = Vec::with_capacity(QUERIES * self.dims);
        (0..QUERIES as u64).for_each(|query| self.push(u64::MAX / 2 + query, &mut queries));
        queries
    }
}

/// Nearest rows of a query so far.
struct NearestRows(Vec<(f32, u64)>);

impl NearestRows {
    fn offer(&mut self, distance: f32, row: u64) {
        if self.0.len() == HITS && distance >= self.0[HITS - 1].0 {
            return;
        }
        let place = self.0.partition_point(|(other, _)| *other <= distance);
        self.0.insert(place, (distance, row));
        self.0.truncate(HITS);
    }
}

/// Collection that holds all rows.
#[derive(Debug, Serialize, Deserialize)]
struct FilledCollection {
    /// Seconds to fill it; `None` if a run that was interrupted had begun.
    build_s: Option<f64>,
    /// Nearest rows of each query.
    truth: Vec<Vec<u64>>,
}

impl FilledCollection {
    /// Returns the file beside the collection that says that it is complete.
    fn file(plan: &CollectionPlan<'_>) -> PathBuf {
        plan.directory.with_extension("json")
    }

    /// Reads the file of an earlier run, or fills the collection.
    fn prepare(
        plan: &CollectionPlan<'_>,
        maker: &RowMaker,
        queries: &[f32],
        say: &dyn Fn(&str),
    ) -> Result<FilledCollection> {
        let file = FilledCollection::file(plan);
        if plan.keep && file.exists() {
            say(&format!("the collection of an earlier run is used: {}", file.display()));
            let filled: FilledCollection = read_json(&file)?;
            if filled.truth.len() != QUERIES {
                return Err(Error::precondition(format!(
                    "{} is of a version with other queries; remove it and {}",
                    file.display(),
                    plan.directory.display()
                )));
            }
            return Ok(filled);
        }
        if !plan.keep {
            // Another process with the same number may have left its directory.
            let _ = std::fs::remove_dir_all(plan.directory);
        }
        let build_s = fill(plan, maker, say)?;
        let filled = FilledCollection { build_s, truth: true_nearest(plan, maker, queries, say) };
        if plan.keep {
            write_json(&file, &filled)?;
        }
        Ok(filled)
    }
}

/// Figures of a collection, and the nearest rows of each query.
struct MeasuredCollection {
    figures: CollectionFigures,
    truth: Vec<Vec<u64>>,
}

/// Fills a collection and measures it.
///
/// # Errors
/// The errors of the collection; `DeadlineExceeded` if it does not settle.
fn measure(plan: &CollectionPlan<'_>, say: &dyn Fn(&str)) -> Result<MeasuredCollection> {
    let maker = RowMaker::new(plan.dims);
    let queries = maker.queries();
    let FilledCollection { build_s, truth } =
        FilledCollection::prepare(plan, &maker, &queries, say)?;
    let mut figures = CollectionFigures {
        rows: plan.rows,
        dims: plan.dims,
        memory_limit_mb: plan.memory_bytes as f64 / 1e6,
        recall: 0.0,
        p50_ms: BTreeMap::new(),
        p95_ms: BTreeMap::new(),
        repeated_p50_ms: BTreeMap::new(),
        helped: BTreeMap::new(),
        build_s,
        segments: 0,
        segment_rows: Vec::new(),
        ready_s: 0.0,
        codes_s: 0.0,
        codes_on_medium_mb: 0.0,
        rss_mb: 0.0,
        memory_peak_mb: 0.0,
    };
    for &threads in &plan.threads {
        search(plan, threads, &queries, &truth, &mut figures)?;
        say(&format!("{threads} threads: p50 {:.3} ms", figures.p50_ms[&threads]));
    }
    Ok(MeasuredCollection { figures, truth })
}

/// Opens the collections of `plan`, and waits until they are ready.
fn open(plan: &CollectionPlan<'_>, threads: usize) -> Result<Arc<Registry>> {
    let registry = Registry::open(RegistryOptions {
        memory_bytes: plan.memory_bytes,
        cache_bytes: 0,
        threads,
        codes: plan.codes,
        build_threads: plan.build_threads,
        background_rate: Rate::unlimited(),
        quiet: QUIET_TIMES,
        merging: Merging { fan_in: plan.merge_segments, ..Merging::default() },
        ..RegistryOptions::new(plan.directory)
    })?;
    if registry.wait_open(SETTLE_MAX) {
        Ok(registry)
    } else {
        Err(Error::deadline("the collection does not open"))
    }
}

/// Writes the rows that a run which was interrupted has not written, and waits for flushes and
/// merges. Returns the time of all that in seconds, or `None` if an earlier run has written rows.
fn fill(plan: &CollectionPlan<'_>, maker: &RowMaker, say: &dyn Fn(&str)) -> Result<Option<f64>> {
    let started = Instant::now();
    let registry = open(plan, 1)?;
    let named = open_or_create(&registry, plan)?;
    // Rows are written in the order of their numbers.
    let written = named.collection().count();
    if written > 0 {
        say(&format!("{written} rows are there from a run that was interrupted"));
    }
    let payload = serde_json::Map::new();
    let mut vectors = Vec::new();
    for first in (0..plan.rows).step_by(BATCH as usize) {
        let rows = first..plan.rows.min(first + BATCH);
        if rows.end <= written {
            continue;
        }
        vectors.clear();
        rows.clone().for_each(|row| maker.push(row, &mut vectors));
        let points: Vec<NewPoint<'_>> = rows
            .clone()
            .zip(vectors.chunks_exact(plan.dims))
            .map(|(row, embedding)| NewPoint {
                id: PointId::Number(row),
                embedding,
                record: &[],
                payload: &payload,
            })
            .collect();
        upsert(&named, &points)?;
        if first.is_multiple_of(1000 * BATCH) {
            say(&format!("{first} rows written"));
        }
    }
    let settled = flush_and_settle(&named)?;
    Ok((written == 0).then(|| (settled.since - started).as_secs_f64()))
}

/// Returns the nearest rows of each query. All rows are compared, after the collection was filled,
/// so that the time to fill it does not include this.
fn true_nearest(
    plan: &CollectionPlan<'_>,
    maker: &RowMaker,
    queries: &[f32],
    say: &dyn Fn(&str),
) -> Vec<Vec<u64>> {
    say("comparing all rows with the queries");
    let mut nearest: Vec<NearestRows> = (0..QUERIES).map(|_| NearestRows(Vec::new())).collect();
    let mut vectors = Vec::new();
    for first in (0..plan.rows).step_by(BATCH as usize) {
        let rows = first..plan.rows.min(first + BATCH);
        vectors.clear();
        rows.clone().for_each(|row| maker.push(row, &mut vectors));
        for (nearest, query) in nearest.iter_mut().zip(queries.chunks_exact(plan.dims)) {
            let vectors = rows.clone().zip(vectors.chunks_exact(plan.dims));
            vectors.for_each(|(row, vector)| nearest.offer(kernels::float::l2(query, vector), row));
        }
        if first.is_multiple_of(1000 * BATCH) {
            say(&format!("{first} rows compared"));
        }
    }
    nearest.into_iter().map(|rows| rows.0.into_iter().map(|(_, row)| row).collect()).collect()
}

fn open_or_create(registry: &Registry, plan: &CollectionPlan<'_>) -> Result<Arc<NamedCollection>> {
    match registry.get("vectors") {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            registry.create("vectors", CollectionSettings::new(plan.dims, Metric::L2))
        }
        found => found,
    }
}

fn codes_on_medium(named: &NamedCollection) -> u64 {
    let status = named.collection().status();
    status.segments.iter().map(|segment| segment.codes_on_medium).sum()
}

/// Waits until the codes that fit into memory are in memory. Returns the time of the last change.
fn wait_for_codes(named: &NamedCollection) -> Instant {
    let deadline = Instant::now() + SETTLE_MAX;
    let mut seen = codes_on_medium(named);
    let mut since = Instant::now();
    while seen > 0 && since.elapsed() < SETTLED && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
        let now = codes_on_medium(named);
        if now != seen {
            (seen, since) = (now, Instant::now());
        }
    }
    since
}

/// Opens the collection and runs the queries with `threads` search threads. Adds their times and
/// their recall to `figures`.
fn search(
    plan: &CollectionPlan<'_>,
    threads: usize,
    queries: &[f32],
    truth: &[Vec<u64>],
    figures: &mut CollectionFigures,
) -> Result<()> {
    let started = Instant::now();
    let registry = open(plan, threads)?;
    let named = registry.get("vectors")?;
    // The time of the other engines ends with an answer, too.
    search_on_thread(&registry, &named, &queries[..plan.dims])?;
    if figures.p50_ms.is_empty() {
        figures.ready_s = started.elapsed().as_secs_f64();
    }
    figures.codes_s = wait_for_codes(&named).duration_since(started).as_secs_f64();
    // Another number of threads or limit of memory may begin merges, which are not measured here.
    settle(&named)?;
    let (warm_up, timed) = queries.split_at(WARM_UP * plan.dims);
    for query in warm_up.chunks_exact(plan.dims) {
        search_on_thread(&registry, &named, query)?;
    }
    let (mut first, mut repeated) = (QueryTimes::default(), QueryTimes::default());
    let mut found = 0;
    for round in 0..=REPEATS {
        let times = if round == 0 { &mut first } else { &mut repeated };
        for (query, truth) in timed.chunks_exact(plan.dims).zip(&truth[WARM_UP..]) {
            let started = Instant::now();
            let hits = search_on_thread(&registry, &named, query)?;
            times.0.push(started.elapsed().as_secs_f64() * 1e3);
            found += hits.hits.iter().filter(|hit| truth.contains(&hit.id)).count();
        }
    }
    figures.p50_ms.insert(threads, first.percentile(50));
    figures.p95_ms.insert(threads, first.percentile(95));
    figures.repeated_p50_ms.insert(threads, repeated.percentile(50));
    figures.recall = found as f64 / ((REPEATS + 1) * (QUERIES - WARM_UP) * HITS) as f64;
    let stats = registry.stats();
    figures.helped.insert(threads, stats.helped);
    figures.memory_peak_mb = figures.memory_peak_mb.max(stats.memory.peak as f64 / 1e6);
    let status = named.collection().status();
    figures.codes_on_medium_mb = codes_on_medium(&named) as f64 / 1e6;
    figures.segments = status.segments.len();
    figures.segment_rows = status.segments.iter().map(|segment| segment.rows).collect();
    let rss_mb = os::process::resident_bytes(std::process::id()).unwrap_or(0) as f64 / 1e6;
    figures.rss_mb = figures.rss_mb.max(rss_mb);
    Ok(())
}

/// Latencies in milliseconds.
#[derive(Default)]
struct QueryTimes(Vec<f64>);

impl QueryTimes {
    /// Returns a percentile. There is at least one latency.
    fn percentile(&mut self, percent: usize) -> f64 {
        self.0.sort_by(f64::total_cmp);
        self.0[self.0.len() * percent / 100]
    }
}

/// Asks one query as the server does: on a search thread.
fn search_on_thread(
    registry: &Registry,
    named: &Arc<NamedCollection>,
    query: &[f32],
) -> Result<QueryHits> {
    let (sender, answer) = mpsc::channel();
    let query = query.to_vec();
    let work = move |named: &NamedCollection, thread: &mut SearchThread| {
        let query = CollectionQuery::nearest(&query, HITS);
        // The receiver is dropped only if the benchmark has failed.
        let _ = sender.send(named.collection().nearest(thread, &query));
    };
    registry.submit(named, Box::new(work))?;
    answer.recv().map_err(|_| Error::internal("a query was dropped"))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_fill_in_one_run_has_a_build_time() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("collection");
        let plan = |rows| CollectionPlan {
            directory: &directory,
            rows,
            dims: 3,
            memory_bytes: 100_000_000,
            codes: CodesPlace::Auto,
            build_threads: 1,
            threads: vec![1],
            merge_segments: 4,
            keep: true,
        };
        let maker = RowMaker::new(3);
        let queries = maker.queries();
        // A run that is killed after these rows leaves no file beside the collection.
        assert!(fill(&plan(1500), &maker, &|_| {}).unwrap().is_some());
        let filled = FilledCollection::prepare(&plan(2500), &maker, &queries, &|_| {}).unwrap();
        assert_eq!((filled.build_s, filled.truth.len()), (None, QUERIES));
        assert!(filled.truth.iter().all(|rows| rows.len() == HITS));
        assert!(filled.truth.iter().flatten().any(|row| *row >= 1500));
        let again = FilledCollection::prepare(&plan(2500), &maker, &queries, &|_| {}).unwrap();
        assert_eq!((again.build_s, again.truth), (None, filled.truth));
    }
}
