//! One round of one arm: a server of its own, traffic on schedule, and swaps (or the control arm's
//! burner).

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use base::{Error, Result, VersionNumber};
use serde::Serialize;

use super::{EngineName, MODEL, SwapArgs, SwapArm, SwapContents, Traffic};
use crate::burner::burn_idle;
use demo::module;
use loadgen::BenchEnv;
use loadgen::cache;
use loadgen::cpu_group::CpuGroup;
use loadgen::drive::{DrivePlan, Judge, LoadLoop, RequestSample, SampleSink, drive};
use loadgen::machine::{Noise, NoiseWatch};
use loadgen::process::{ServerPlan, ServerProcess};
use loadgen::samples::{KeptSamples, SampleLog, Tally};
use loadgen::schedule::Arrivals;
use loadgen::scrape::Scrape;
use loadgen::settle::{SettleTime, settle};
use loadgen::stats::{Latencies, LatencySummary, ratio};

const CAPACITY_CLIENTS_PER_CORE: usize = 4;
/// Time of the capacity measurement after its warm-up.
const CAPACITY_TIME: Duration = Duration::from_secs(5);
/// Time of requests before the measurement.
const WARM_UP: Duration = Duration::from_secs(1);
/// Time between the server's readiness and the first request.
const LEAD_IN: Duration = Duration::from_millis(200);
/// Timeout of a swap. The next one waits for it.
const SWAP_TIMEOUT: Duration = Duration::from_secs(60);
/// Time between two checks for the end of a swap. None is made within its window.
const SWAP_POLL: Duration = Duration::from_millis(200);
/// Assumed rate of loading in bytes a second if no load was measured: the server's default.
const LOAD_RATE: f64 = 800e6;
const MODEL_FILE: &str = "millpond.toml";
/// Versions kept on disk.
const VERSIONS_KEPT: u64 = 2;

/// State that all rounds share.
pub(super) struct SwapSetup<'a> {
    pub(super) args: &'a SwapArgs,
    pub(super) env: &'a BenchEnv,
    /// Both contents in the mappable layout, if an arm needs them.
    pub(super) layouts: Option<SwapContents>,
    /// Both contents as ordinary files with everything embedded, if the heap arm needs them.
    pub(super) embedded: Option<SwapContents>,
    pub(super) traffic: Arc<Traffic>,
    /// Control group of the servers, if their processor time is limited.
    pub(super) group: Option<CpuGroup>,
}

impl SwapSetup<'_> {
    fn contents(&self, arm: SwapArm) -> Result<&SwapContents> {
        let contents = if arm == SwapArm::Heap { &self.embedded } else { &self.layouts };
        contents.as_ref().ok_or_else(|| Error::internal("the arm's models were not made"))
    }
}

/// Figures of one round.
#[derive(Clone, Debug, Serialize)]
pub(super) struct SwapRound {
    #[serde(serialize_with = "arm_name")]
    pub(super) arm: SwapArm,
    /// Latencies before the first swap.
    pub(super) steady: LatencySummary,
    /// Latencies within the window of a swap.
    pub(super) swap: LatencySummary,
    pub(super) failed: u64,
    pub(super) wrong: u64,
    pub(super) reasons: Vec<String>,
    /// Swaps that the server counted.
    pub(super) swaps: u64,
    /// Seconds per swap, from the server.
    pub(super) load_s: f64,
    pub(super) warm_s: f64,
    pub(super) unload_s: f64,
    pub(super) loader_minor_faults: f64,
    pub(super) loader_cpu_s: f64,
    /// Seconds for which a limit on processor time stopped threads in the whole round, added over
    /// cores.
    pub(super) throttled_s: f64,
    pub(super) peak_rss_mb: f64,
    /// Versions that answered, which proves that traffic reached each.
    pub(super) versions: BTreeSet<u64>,
    /// Slowest request of each window in milliseconds.
    pub(super) worst_ms: Vec<f64>,
    /// Wait before the first request, for memory that the former arm had freed.
    pub(super) settled: SettleTime,
    pub(super) noise: Noise,
}

fn arm_name<S: serde::Serializer>(arm: &SwapArm, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(arm.name())
}

/// Measures the answers a second of a pool server at saturation.
pub(super) fn capacity(setup: &SwapSetup<'_>) -> Result<f64> {
    let arm = if setup.layouts.is_none() { SwapArm::Heap } else { SwapArm::Pool };
    let server = SwapServer::start(setup, arm, "capacity")?;
    let clients = CAPACITY_CLIENTS_PER_CORE * loadgen::machine::cores();
    let tally = Arc::new(Tally::new(WARM_UP));
    server.send(setup, LoadLoop::Closed { clients }, WARM_UP + CAPACITY_TIME, tally.clone())?;
    server.process.stop()?;
    tally.counted().faultless_rate()
}

/// Runs one round of `arm` at `rate` requests a second. `burn` is the time of a pool load in
/// seconds.
pub(super) fn run(
    setup: &SwapSetup<'_>,
    arm: SwapArm,
    rate: f64,
    burn: Option<f64>,
) -> Result<SwapRound> {
    let args = setup.args;
    let server = SwapServer::start(setup, arm, arm.name())?;
    let settled = if args.quick { SettleTime::default() } else { settle() };
    let tally = Arc::new(Tally::new(Duration::ZERO));
    server.send(
        setup,
        LoadLoop::Open { arrivals: Arrivals::Fixed, rate, seed: 0 },
        WARM_UP,
        tally,
    )?;

    let watch = NoiseWatch::start();
    let before = server.process.metrics()?;
    let log = Arc::new(SampleLog::default());
    // Ended by the last swap; the bound is for a server that never finishes one.
    let bound =
        args.steady + (args.period + SWAP_TIMEOUT) * u32::try_from(args.swaps).unwrap_or(u32::MAX);
    let plan =
        server.plan(setup, LoadLoop::Open { arrivals: Arrivals::Fixed, rate, seed: 0 }, bound)?;
    let burn = Duration::from_secs_f64(burn.unwrap_or(args.bytes as f64 / LOAD_RATE));
    let starts = std::thread::scope(|scope| {
        let (judge, sink): (Arc<dyn Judge>, Arc<dyn SampleSink>) =
            (setup.traffic.clone(), log.clone());
        let driver = scope.spawn({
            let plan = &plan;
            move || drive(plan, &judge, &sink)
        });
        let starts = Swaps { setup, arm, server: &server, before: &before, burn }.make(plan.start);
        plan.stop.store(true, Ordering::Relaxed);
        driver.join().unwrap_or_else(|_| Err(Error::internal("the driver panicked")))?;
        starts
    })?;
    let after = server.process.metrics()?;
    let noise = watch.end();
    let peak_rss_mb = server.process.usage().peak_rss_kb as f64 / 1024.0;
    server.process.stop()?;
    let figures = SwapFigures { arm, before, after, burn, peak_rss_mb, settled, noise };
    Ok(figures.round(args, &starts, log.take()))
}

/// Load beside the traffic.
struct Swaps<'a> {
    setup: &'a SwapSetup<'a>,
    arm: SwapArm,
    server: &'a SwapServer,
    before: &'a Scrape,
    burn: Duration,
}

impl Swaps<'_> {
    /// Makes the arm's swaps, a period apart or as soon as the former is done. Returns the start of
    /// each, counted from `start`.
    fn make(&self, start: Instant) -> Result<Vec<Duration>> {
        let args = self.setup.args;
        let mut starts = Vec::with_capacity(args.swaps);
        let mut due = args.steady;
        for swap in 0..args.swaps {
            sleep((start + due).saturating_duration_since(Instant::now()));
            let began = start.elapsed();
            starts.push(began);
            if self.arm == SwapArm::Control {
                burn_idle(self.burn)?;
            } else {
                let version = swap as VersionNumber + 2;
                let content = self.setup.contents(self.arm)?.of(version);
                cache::publish_link(content, &self.server.model_dir, version)?;
                cache::prune(&self.server.model_dir, version, VERSIONS_KEPT)?;
            }
            sleep((start + began + args.window).saturating_duration_since(Instant::now()));
            if self.arm != SwapArm::Control
                && !self.server.wait_swaps(self.before, swap as u64 + 1)?
            {
                break;
            }
            due = began + args.period;
        }
        Ok(starts)
    }
}

/// jemalloc's own defaults instead of Millpond's settings, which are part of the comparison. If
/// freed pages of the old version were kept for ten seconds as Millpond does, the next version
/// would reuse them, at a quarter of malloc's page faults.
const MALLOC_DEFAULTS: &str = "background_thread:false,dirty_decay_ms:10000,muzzy_decay_ms:0";

/// A server of one arm, and the model directory that it watches.
struct SwapServer {
    process: ServerProcess,
    model_dir: PathBuf,
}

impl SwapServer {
    fn start(setup: &SwapSetup<'_>, arm: SwapArm, name: &str) -> Result<SwapServer> {
        let root = setup.env.cache_dir.join("run").join(format!("swap-{name}"));
        let model_dir = root.join(MODEL);
        cache::fresh(&model_dir)?;
        cache::publish_link(setup.contents(arm)?.of(1), &model_dir, 1)?;
        if setup.args.engine == EngineName::Torch {
            let path = model_dir.join(MODEL_FILE);
            loadgen::report::write_file(&path, module::settings().as_bytes())?;
        }
        if arm == SwapArm::Heap {
            setup.contents(arm)?.read_ahead()?;
        }
        let home = if arm == SwapArm::Heap { "heap" } else { "pool" };
        let mut args = vec![format!("{MODEL}={}", model_dir.display())];
        args.extend(["--poll", "100ms", "--parameter-home", home].map(String::from));
        args.extend(setup.args.server_arg.iter().cloned());
        let malloc_conf = (arm == SwapArm::Heap).then_some(MALLOC_DEFAULTS);
        let plan = ServerPlan { malloc_conf, ..ServerPlan::new(format!("swap-{name}"), args) };
        let process = ServerProcess::start_in(setup.env, &plan, setup.group.as_ref())?;
        Ok(SwapServer { process, model_dir })
    }

    fn plan(&self, setup: &SwapSetup<'_>, pace: LoadLoop, duration: Duration) -> Result<DrivePlan> {
        let endpoint = self.process.grpc();
        let (template, bodies) = setup.traffic.encode(&endpoint)?;
        let mut plan = DrivePlan::new(endpoint, template, bodies, pace, duration);
        plan.start = Instant::now() + LEAD_IN;
        plan.stop = Arc::new(AtomicBool::new(false));
        Ok(plan)
    }

    fn send(
        &self,
        setup: &SwapSetup<'_>,
        pace: LoadLoop,
        duration: Duration,
        sink: Arc<dyn SampleSink>,
    ) -> Result<()> {
        let judge: Arc<dyn Judge> = setup.traffic.clone();
        drive(&self.plan(setup, pace, duration)?, &judge, &sink)
    }

    /// Waits until the server has swapped `swaps` times since `before`. Returns true if it has.
    fn wait_swaps(&self, before: &Scrape, swaps: u64) -> Result<bool> {
        let deadline = Instant::now() + SWAP_TIMEOUT;
        loop {
            let done = delta(before, &self.process.metrics()?, "millpond_swaps_total", &[])
                >= swaps as f64;
            if done || Instant::now() > deadline {
                return Ok(done);
            }
            sleep(SWAP_POLL);
        }
    }
}

fn delta(before: &Scrape, after: &Scrape, name: &str, labels: &[(&str, &str)]) -> f64 {
    let mut all = vec![("model", MODEL)];
    all.extend_from_slice(labels);
    after.sum(name, &all) - before.sum(name, &all)
}

/// Figures from outside the traffic.
struct SwapFigures {
    arm: SwapArm,
    before: Scrape,
    after: Scrape,
    burn: Duration,
    peak_rss_mb: f64,
    settled: SettleTime,
    noise: Noise,
}

impl SwapFigures {
    fn round(self, args: &SwapArgs, starts: &[Duration], kept: KeptSamples) -> SwapRound {
        let step = |step| {
            delta(&self.before, &self.after, "millpond_swap_seconds_total", &[("step", step)])
        };
        let count = |name| delta(&self.before, &self.after, name, &[]);
        let alone = |name| self.after.sum(name, &[]) - self.before.sum(name, &[]);
        let swaps = count("millpond_swaps_total");
        let load_s = if self.arm == SwapArm::Control {
            self.burn.as_secs_f64()
        } else {
            ratio(step("load"), swaps)
        };
        let cut = Cut::new(args, starts, &kept.samples);
        SwapRound {
            arm: self.arm,
            steady: cut.steady.summary(),
            swap: cut.all_windows.summary(),
            failed: kept.faults.failed,
            wrong: kept.faults.wrong,
            reasons: kept.faults.lines(),
            swaps: swaps as u64,
            load_s,
            warm_s: ratio(step("warm"), swaps),
            unload_s: ratio(step("unload"), swaps),
            loader_minor_faults: ratio(count("millpond_loader_minor_faults_total"), swaps),
            loader_cpu_s: ratio(count("millpond_loader_cpu_seconds_total"), swaps),
            throttled_s: alone("millpond_cpu_throttled_seconds"),
            peak_rss_mb: self.peak_rss_mb,
            versions: kept
                .samples
                .iter()
                .map(|sample| sample.version)
                .filter(|&version| version > 0)
                .collect(),
            worst_ms: cut.windows.iter().map(|window| window.summary().max_ms).collect(),
            settled: self.settled,
            noise: self.noise,
        }
    }
}

/// Samples before and during swaps.
struct Cut {
    steady: Latencies,
    all_windows: Latencies,
    windows: Vec<Latencies>,
}

impl Cut {
    /// Sorts samples by the time at which requests were due: `window` from each start, and
    /// everything before the first. A failed request counts with the time until it failed.
    fn new(args: &SwapArgs, starts: &[Duration], samples: &[RequestSample]) -> Cut {
        let mut cut = Cut {
            steady: Latencies::default(),
            all_windows: Latencies::default(),
            windows: vec![Latencies::default(); starts.len()],
        };
        for sample in samples {
            let after = starts.partition_point(|start| *start <= sample.due);
            match after.checked_sub(1) {
                None => cut.steady.record(sample.latency),
                Some(swap) if sample.due < starts[swap] + args.window => {
                    cut.all_windows.record(sample.latency);
                    cut.windows[swap].record(sample.latency);
                }
                Some(_) => {}
            }
        }
        cut
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use loadgen::drive::Judgement;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: SwapArgs,
    }

    #[test]
    fn samples_fall_into_the_window_they_were_due_in() {
        let args = Cli::parse_from(["swap", "--window", "2"]).args;
        let seconds = Duration::from_secs;
        let sample = |due: u64| RequestSample {
            due: seconds(due),
            latency: Duration::from_millis(due + 1),
            verdict: Judgement::Right,
            version: 1,
        };
        let samples: Vec<RequestSample> = (0..12).map(sample).collect();
        let cut = Cut::new(&args, &[seconds(3), seconds(8)], &samples);
        assert_eq!(cut.steady.count(), 3);
        assert_eq!(cut.windows.iter().map(Latencies::count).collect::<Vec<_>>(), [2, 2]);
        assert_eq!(cut.all_windows.count(), 4);
        assert!((cut.all_windows.summary().max_ms - 10.0).abs() < 0.02);
    }

    #[test]
    fn the_burner_ends() {
        let start = Instant::now();
        burn_idle(Duration::from_millis(10)).unwrap();
        assert!(start.elapsed() >= Duration::from_millis(10));
    }
}
