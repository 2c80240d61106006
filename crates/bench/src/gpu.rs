//! `bench gpu`: the coarse filter on the GPU beside the processor.
//!
//! Three arms search the same vectors with the same queries. They use all rows on the GPU, all rows
//! on the processor, and the clustered index on the processor. The first two compute the same
//! costs, so their hits must be equal. Hits are scored by codes alone, because reading exact
//! vectors costs the same in every arm.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use base::{Error, Result};
use clap::Args;
use coarse::device::{self, GpuOptions};
use coarse::{
    BuildThreads, BuiltIndex, Coarse, CoarseBuild, CoarseHit, CoarseKind, CoarseRequest,
    CoarseScratch, Metric, build, open,
};
use loadgen::BenchEnv;
use loadgen::machine::{NoiseWatch, RunContext};
use loadgen::println;
use loadgen::report::{StepProgress, TextTable};
use loadgen::stats::{median, ratio};
use serde::Serialize;

use crate::report::BenchReport;
use crate::vectors::VectorData;

/// Queries of a call, in the order of the report.
const BATCHES: [usize; 4] = [1, 8, 64, 256];
/// Hits of a query.
const HITS: [usize; 2] = [10, 1000];
/// Threads that search at once, each with one query a call.
const THREADS: [usize; 4] = [1, 2, 4, 16];
/// Calls that are timed in each arm and setting: at least this many.
const CALLS_MIN: usize = 3;
/// Longest time of a setting in an arm, after [`CALLS_MIN`] calls.
const TIME: Duration = Duration::from_millis(500);
/// Maximum values that are generated: 16 GB of memory.
const VALUES_MAX: usize = 4 << 30;

/// Compare the coarse filter on the GPU and on the processor.
///
/// This needs an NVIDIA GPU, its driver and NVRTC. Vectors are generated. The arms compare all rows
/// on the GPU, compare all rows on one core, and search the clustered index on one core. Times are
/// medians of a call, divided by its queries.
#[derive(Args, Clone, Debug)]
pub(crate) struct GpuBenchArgs {
    /// Vectors to search
    #[arg(long, default_value_t = 1_000_000)]
    pub(crate) rows: usize,
    /// Dimensions of a vector
    #[arg(long, default_value_t = 128)]
    pub(crate) dims: usize,
    /// Keep the codes in pinned host memory instead of the GPU's memory
    #[arg(long)]
    pub(crate) pinned: bool,
    /// Threads that build the indexes
    #[arg(long, default_value_t = 2)]
    pub(crate) threads: usize,
    /// Write the figures as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

/// JSON of `bench gpu`.
#[derive(Debug, Serialize)]
struct GpuReport {
    gpu: String,
    rows: usize,
    dims: usize,
    pinned: bool,
    /// Bytes of codes that the GPU reads for each pass over the rows.
    code_bytes: u64,
    upload_s: f64,
    /// Share of the true ten nearest among the ten hits, by codes alone.
    flat_recall: f64,
    clustered_recall: f64,
    settings: Vec<SettingReport>,
    concurrent: Vec<ConcurrentReport>,
    /// Number of queries whose hits differ between the GPU and the processor.
    different: u64,
    /// Number of rankings that the GPU could not do.
    fallbacks: u64,
    #[serde(flatten)]
    context: RunContext,
}

/// Times of one number of queries a call and hits a query, in microseconds a query.
#[derive(Debug, Serialize)]
struct SettingReport {
    batch: usize,
    hits: usize,
    gpu_us: f64,
    flat_us: f64,
    clustered_us: f64,
    /// Time of all rows on one core, in times on the GPU.
    flat_ratio: f64,
    /// Time of the clustered index on one core, in times on the GPU.
    clustered_ratio: f64,
    /// Bytes of codes compared a second on the GPU, in gigabytes: all rows for each query.
    gpu_gb_per_s: f64,
}

/// Rates of several threads that search at once with one query a call.
#[derive(Debug, Serialize)]
struct ConcurrentReport {
    threads: usize,
    gpu_per_s: f64,
    clustered_per_s: f64,
}

/// The three indexes over the same vectors.
struct GpuArms {
    gpu: Box<dyn Coarse>,
    flat: BuiltIndex,
    clustered: BuiltIndex,
    upload_s: f64,
}

/// Runs `bench gpu`.
///
/// # Errors
/// `InvalidArgument` for wrong arguments, `NotFound` without a GPU, `Internal` if answers differ.
pub(crate) fn run(args: &GpuBenchArgs, _env: &BenchEnv) -> Result<()> {
    args.check()?;
    let watch = NoiseWatch::start();
    let settings = BATCHES.len() * HITS.len();
    let progress = StepProgress::new((settings + THREADS.len() + 2) as u64);
    progress.say("vectors and their nearest neighbours");
    let data = VectorData::generated(args.rows, args.dims);
    progress.step();
    progress.say("indexes");
    // The GPU must not be open yet, or the index for the processor would use it.
    let flat = args.build(CoarseKind::Flat, &data)?;
    let clustered = args.build(CoarseKind::Auto, &data)?;
    let gpu = device::start(&args.options())?;
    let arms = GpuArms::open(flat, clustered)?;
    progress.line(&format!("{gpu}: {} rows of {} dimensions", args.rows, args.dims));
    progress.step();
    let mut report = GpuReport {
        gpu,
        rows: args.rows,
        dims: args.dims,
        pinned: args.pinned,
        code_bytes: args.rows as u64 * args.dims as u64,
        upload_s: arms.upload_s,
        flat_recall: recall(&arms.flat, &data)?,
        clustered_recall: recall(&arms.clustered, &data)?,
        settings: Vec::new(),
        concurrent: Vec::new(),
        different: 0,
        fallbacks: 0,
        context: watch.context(None),
    };
    for hits in HITS {
        for batch in BATCHES {
            let queries = &data.queries[..batch * args.dims];
            report.different += arms.different(queries, hits)?;
            report.settings.push(arms.measure(queries, hits, report.code_bytes)?);
            progress.step();
        }
    }
    for threads in THREADS {
        report.concurrent.push(ConcurrentReport {
            threads,
            gpu_per_s: rate(&*arms.gpu, &data, threads)?,
            clustered_per_s: rate(&*arms.clustered.index, &data, threads)?,
        });
        progress.step();
    }
    drop(progress);
    report.fallbacks = device::counters().fallbacks;
    report.context = watch.context(None);
    report.finish(args.json.as_deref())
}

impl GpuBenchArgs {
    fn check(&self) -> Result<()> {
        let values = self.rows.checked_mul(self.dims).filter(|values| *values <= VALUES_MAX);
        if self.rows < HITS[1] || self.dims == 0 || values.is_none() {
            return Err(Error::invalid(format!(
                "--rows must be at least {}, and --rows times --dims 1 to {VALUES_MAX}",
                HITS[1]
            )));
        }
        if !(1..=256).contains(&self.threads) {
            return Err(Error::invalid("--threads must be 1 to 256"));
        }
        Ok(())
    }

    fn options(&self) -> GpuOptions {
        if self.pinned {
            GpuOptions { device_bytes_max: 0, pinned_bytes_max: u64::MAX, ..GpuOptions::default() }
        } else {
            GpuOptions::default()
        }
    }

    fn build(&self, kind: CoarseKind, data: &VectorData) -> Result<BuiltIndex> {
        let plan = CoarseBuild {
            vectors: &data.base,
            dims: data.dims,
            metric: Metric::L2,
            threads: BuildThreads::of(self.threads),
            seed: 1,
        };
        build(kind, &plan)
    }
}

impl GpuArms {
    /// Opens a copy of the flat index, which copies its codes to the GPU.
    fn open(flat: BuiltIndex, clustered: BuiltIndex) -> Result<GpuArms> {
        let started = Instant::now();
        let sections = flat.index.sections();
        let sections: Vec<(u32, &[u8])> =
            sections.iter().map(|(kind, bytes)| (*kind, &**bytes)).collect();
        let gpu = open(&sections)?;
        let counters = device::counters();
        if counters.device_bytes + counters.pinned_bytes == 0 {
            return Err(Error::invalid(
                "the codes were not copied to the GPU: too few rows, or not enough memory for them",
            ));
        }
        Ok(GpuArms { gpu, flat, clustered, upload_s: started.elapsed().as_secs_f64() })
    }

    /// Returns the number of queries whose hits differ between the GPU and the processor.
    fn different(&self, queries: &[f32], hits: usize) -> Result<u64> {
        let gpu = search(&*self.gpu, queries, hits)?;
        let flat = search(&*self.flat.index, queries, hits)?;
        Ok(gpu.iter().zip(&flat).filter(|(gpu, flat)| gpu != flat).count() as u64)
    }

    /// Measures the time of one batch on the GPU and on both indexes of the processor. `code_bytes`
    /// is the size of the codes that the GPU reads.
    fn measure(&self, queries: &[f32], hits: usize, code_bytes: u64) -> Result<SettingReport> {
        let batch = queries.len() / self.gpu.dims();
        let gpu_us = time_us(&*self.gpu, queries, hits)?;
        let flat_us = time_us(&*self.flat.index, queries, hits)?;
        let clustered_us = time_us(&*self.clustered.index, queries, hits)?;
        Ok(SettingReport {
            batch,
            hits,
            gpu_us,
            flat_us,
            clustered_us,
            flat_ratio: ratio(flat_us, gpu_us),
            clustered_ratio: ratio(clustered_us, gpu_us),
            gpu_gb_per_s: ratio(code_bytes as f64 / 1e3, gpu_us),
        })
    }
}

fn search(index: &dyn Coarse, queries: &[f32], hits: usize) -> Result<Vec<Vec<CoarseHit>>> {
    let mut out = Vec::new();
    let request = CoarseRequest::best(hits);
    index.search_many(queries, &request, &mut CoarseScratch::default(), &mut out)?;
    Ok(out)
}

/// Returns the median time of a call, divided by its queries, in microseconds.
fn time_us(index: &dyn Coarse, queries: &[f32], hits: usize) -> Result<f64> {
    let mut scratch = CoarseScratch::default();
    let mut out = Vec::new();
    let mut times = Vec::new();
    let request = CoarseRequest::best(hits);
    index.search_many(queries, &request, &mut scratch, &mut out)?;
    let started = Instant::now();
    while times.len() < CALLS_MIN || started.elapsed() < TIME {
        let call = Instant::now();
        index.search_many(queries, &request, &mut scratch, &mut out)?;
        times.push(call.elapsed().as_secs_f64() * 1e6);
    }
    Ok(median(times) / (queries.len() / index.dims()) as f64)
}

/// Returns the queries a second of `threads` threads with one query a call.
fn rate(index: &dyn Coarse, data: &VectorData, threads: usize) -> Result<f64> {
    let work = || {
        let mut scratch = CoarseScratch::default();
        let mut out = Vec::new();
        let mut done = 0_u64;
        let started = Instant::now();
        let request = CoarseRequest::best(HITS[0]);
        for query in data.queries.chunks_exact(data.dims).cycle() {
            if started.elapsed() >= TIME {
                break;
            }
            index.search(query, &request, &mut scratch, &mut out)?;
            done += 1;
        }
        Ok(done as f64 / started.elapsed().as_secs_f64())
    };
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let rates = running.into_iter().map(|thread| {
            thread.join().unwrap_or_else(|_| Err(Error::internal("a searching thread panicked")))
        });
        rates.sum()
    })
}

/// Returns the share of the true nearest that `index` finds with its own settings.
fn recall(index: &BuiltIndex, data: &VectorData) -> Result<f64> {
    let found = search(&*index.index, &data.queries, HITS[0])?;
    let same = found.iter().zip(&data.truth).map(|(hits, truth)| {
        let row = |hit: &CoarseHit| index.order[hit.row as usize];
        hits.iter().filter(|hit| truth.contains(&row(hit))).count()
    });
    Ok(same.sum::<usize>() as f64 / (HITS[0] * data.truth.len()) as f64)
}

impl BenchReport for GpuReport {
    fn print(&self) {
        println!("{}", self.context);
        println!(
            "{}: {} rows of {} dimensions, {:.0} MB of codes in {} memory, copied in {:.1} s",
            self.gpu,
            self.rows,
            self.dims,
            self.code_bytes as f64 / 1e6,
            if self.pinned { "pinned host" } else { "device" },
            self.upload_s
        );
        println!(
            "recall@10 by codes alone: {:.4} of all rows, {:.4} of the clustered index",
            self.flat_recall, self.clustered_recall
        );
        let mut table = TextTable::new(&[
            "queries a call",
            "hits",
            "GPU us",
            "all rows us",
            "clustered us",
            "all rows / GPU",
            "clustered / GPU",
            "GPU GB/s",
        ]);
        for row in &self.settings {
            table.row([
                row.batch.to_string(),
                row.hits.to_string(),
                format!("{:.1}", row.gpu_us),
                format!("{:.1}", row.flat_us),
                format!("{:.1}", row.clustered_us),
                format!("{:.2}", row.flat_ratio),
                format!("{:.2}", row.clustered_ratio),
                format!("{:.0}", row.gpu_gb_per_s),
            ]);
        }
        println!("\n{table}");
        let mut table = TextTable::new(&["threads", "GPU queries/s", "clustered queries/s"]);
        for row in &self.concurrent {
            table.row([
                row.threads.to_string(),
                format!("{:.0}", row.gpu_per_s),
                format!("{:.0}", row.clustered_per_s),
            ]);
        }
        println!("{table}");
        println!("hits that differ: {}; fallbacks: {}", self.different, self.fallbacks);
    }

    fn verdict(&self) -> Result<()> {
        match self.different {
            0 => Ok(()),
            count => Err(Error::internal(format!(
                "{count} queries have other hits on the GPU than on the processor"
            ))),
        }
    }
}
