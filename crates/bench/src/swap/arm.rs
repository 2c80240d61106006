//! One round of one arm: a server of its own, traffic on schedule, and swaps (or the control arm's
//! burner).

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use base::units::MIB;
use base::{Error, Result, VersionNumber};
use serde::Serialize;

use super::models::SwapModels;
use super::server::{SwapLoad, SwapModel, SwapPace, SwapServer, SwapServerPlan, load_time_max};
use super::store::{self, BenchStore};
use super::timeline::Timeline;
use super::{SwapArgs, SwapArm};
use crate::burner::burn_idle;
use loadgen::BenchEnv;
use loadgen::cache::{self, TemporaryDir};
use loadgen::cpu_group::CpuGroup;
use loadgen::disk_space::check_space;
use loadgen::drive::{RequestSample, SampleSink};
use loadgen::machine::{Noise, NoiseWatch};
use loadgen::samples::{KeptSamples, SampleLog, Tally};
use loadgen::scrape::Scrape;
use loadgen::settle::{SettleTime, settle};
use loadgen::stats::{Latencies, LatencySummary, ratio};

const CAPACITY_CLIENTS_PER_CORE: usize = 4;
/// Time of the capacity measurement after its warm-up.
const CAPACITY_TIME: Duration = Duration::from_secs(5);
/// Time of requests before the measurement.
const WARM_UP: Duration = Duration::from_secs(1);
/// Time between two checks for the end of a swap. None is made within its window.
const SWAP_POLL: Duration = Duration::from_millis(200);
/// Assumed rate of loading in bytes a second if no load was measured: the server's default.
const LOAD_RATE: f64 = 800e6;
/// Divisor of a model's bytes that gives the memory reserved for the changed parameters of the arm
/// delta10.
const DELTA_RESERVE_SHARE: u64 = 10;
/// Memory reserved for the unused parts of the last slots of these parameters, in bytes.
const DELTA_RESERVE_SPARE: u64 = 8 * MIB;
/// Flag of the server for the memory reserved for an incoming version.
const RESERVE_FLAG: &str = "--swap-reserve";
/// jemalloc's own defaults instead of Millpond's settings, which are part of the comparison. If
/// freed pages of the old version were kept for ten seconds as Millpond does, the next version
/// would reuse them, at a quarter of malloc's page faults.
const MALLOC_DEFAULTS: &str = "background_thread:false,dirty_decay_ms:10000,muzzy_decay_ms:0";

/// State that all rounds share.
pub(super) struct SwapSetup<'a> {
    pub(super) args: &'a SwapArgs,
    pub(super) env: &'a BenchEnv,
    pub(super) models: SwapModels,
    /// The program of the arm glibc, if it runs.
    pub(super) system_binary: Option<PathBuf>,
    /// Control group of the servers, if their processor time is limited.
    pub(super) group: Option<CpuGroup>,
}

impl SwapSetup<'_> {
    /// Starts a server of `arm`.
    fn start(&self, arm: SwapArm, name: &str) -> Result<SwapServer> {
        let models = self.models.of(arm)?;
        let home = if arm.is_naive() { "heap" } else { "pool" };
        let mut args: Vec<String> =
            ["--poll", "100ms", "--parameter-home", home].map(String::from).into();
        let given = |flag: &str| self.args.server_arg.iter().any(|arg| arg.starts_with(flag));
        if arm == SwapArm::Delta10 && self.args.engine.shares() && !given(RESERVE_FLAG) {
            let reserve = self.args.bytes / DELTA_RESERVE_SHARE + DELTA_RESERVE_SPARE;
            args.extend([RESERVE_FLAG.to_owned(), reserve.to_string()]);
        }
        args.extend(self.args.server_arg.iter().cloned());
        if arm.is_naive() {
            models.iter().try_for_each(|model| model.contents.read_ahead())?;
        }
        let store = self.store(arm, &models, &mut args)?;
        let plan = SwapServerPlan {
            name: format!("swap-{name}"),
            args,
            program: if arm == SwapArm::Glibc { self.system_binary.clone() } else { None },
            malloc_conf: (arm == SwapArm::Heap).then_some(MALLOC_DEFAULTS),
            group: self.group.as_ref(),
            store,
        };
        SwapServer::start(self.env, plan, &models)
    }
}

impl SwapSetup<'_> {
    /// Starts the store of `arm`, if it has one, and adds the arguments of its server.
    fn store(
        &self,
        arm: SwapArm,
        models: &[Arc<SwapModel>],
        args: &mut Vec<String>,
    ) -> Result<Option<BenchStore>> {
        let Some(kind) = self.args.store.filter(|_| arm == SwapArm::Store) else { return Ok(None) };
        models.iter().try_for_each(|model| store::check_published(model.contents.of(1)))?;
        let root = TemporaryDir::create(self.env.cache_dir.join("run").join("swap-store"))?;
        let copies = root.path().join("copies");
        let limit = self.args.bytes * store::CACHED_HALVES / 2;
        check_space(root.path(), limit, cache::REMEDY)?;
        args.extend(["--cache-dir".to_owned(), copies.display().to_string()]);
        args.extend(["--store-cache".to_owned(), limit.to_string()]);
        BenchStore::start(kind, self.env, root, self.args.python.as_deref()).map(Some)
    }
}

/// Time of a swap, counted from the start of the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SwapWindow {
    start: Duration,
    end: Duration,
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
    /// Number of requests beyond the maximum of samples. No latency includes them.
    pub(super) dropped_samples: u64,
    pub(super) reasons: Vec<String>,
    /// Number of swaps that the server counted.
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
    /// Parameter bytes per swap that were read from storage.
    pub(super) bytes_read: f64,
    /// Parameter bytes per swap that a live version shared.
    pub(super) bytes_shared: f64,
    pub(super) peak_rss_mb: f64,
    /// Resident memory before the first swap, without the memory reserved for an incoming version.
    pub(super) one_version_rss_mb: f64,
    /// Versions that answered, which proves that traffic reached each.
    pub(super) versions: BTreeSet<u64>,
    /// Slowest request of each window in milliseconds.
    pub(super) worst_ms: Vec<f64>,
    /// Wait before the first request. Memory that the previous arm freed can stop cores until then.
    pub(super) settled: SettleTime,
    pub(super) noise: Noise,
    #[serde(skip)]
    pub(super) timeline: Timeline,
}

fn arm_name<S: serde::Serializer>(arm: &SwapArm, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(arm.name())
}

/// Measures the answers a second of a saturated server: that of the arm pool, if that arm runs.
pub(super) fn capacity(setup: &SwapSetup<'_>) -> Result<f64> {
    let server = setup.start(setup.args.capacity_arm(), "capacity")?;
    let clients = CAPACITY_CLIENTS_PER_CORE * loadgen::machine::cores();
    let tally = Arc::new(Tally::new(WARM_UP));
    let sink: Arc<dyn SampleSink> = tally.clone();
    let load = SwapLoad::new(SwapPace::Clients(clients), WARM_UP + CAPACITY_TIME);
    server.drive(&load, &sink)?;
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
    let args = setup.args.paced(arm);
    let server = setup.start(arm, arm.name())?;
    let settled = if args.quick { SettleTime::default() } else { settle() };
    let warm_up = Arc::new(Tally::new(Duration::ZERO));
    let uncounted: Arc<dyn SampleSink> = warm_up.clone();
    server.drive(&SwapLoad::new(SwapPace::Rate(rate), WARM_UP), &uncounted)?;

    let watch = NoiseWatch::start();
    let one_version_rss_mb = server.used_rss_mb()?;
    let before = server.process.metrics()?;
    let log = Arc::new(SampleLog::default());
    let sink: Arc<dyn SampleSink> = log.clone();
    // Ended by the last swap; the bound is for a server that never finishes one.
    let bound = args.steady + load_time_max(args.swaps, args.period);
    let load = SwapLoad::new(SwapPace::Rate(rate), bound);
    let burn = Duration::from_secs_f64(burn.unwrap_or(args.bytes as f64 / LOAD_RATE));
    let windows = std::thread::scope(|scope| {
        let driver = scope.spawn(|| server.drive(&load, &sink));
        let swaps = Swaps { args: &args, arm, server: &server, before: &before, burn };
        let windows = swaps.make_swaps(load.start);
        load.stop();
        driver.join().unwrap_or_else(|_| Err(Error::internal("the driver panicked")))?;
        windows
    })?;
    let after = server.process.metrics()?;
    let noise = watch.end();
    let peak_rss_mb = server.process.usage().peak_rss_kb as f64 / 1024.0;
    let swaps = server.swaps(&before, &after);
    server.process.stop()?;
    let figures = SwapFigures {
        arm,
        before,
        after,
        swaps,
        burn,
        peak_rss_mb,
        one_version_rss_mb,
        settled,
        noise,
    };
    let mut kept = log.take();
    kept.faults.add(&warm_up.counted().faults);
    Ok(figures.round(&windows, kept))
}

/// Load beside the traffic.
struct Swaps<'a> {
    args: &'a SwapArgs,
    arm: SwapArm,
    server: &'a SwapServer,
    before: &'a Scrape,
    burn: Duration,
}

impl Swaps<'_> {
    /// Makes the arm's swaps, a period apart or as soon as the previous swap is done. Returns the
    /// window of each, counted from `start`.
    fn make_swaps(&self, start: Instant) -> Result<Vec<SwapWindow>> {
        let args = self.args;
        let mut windows = Vec::with_capacity(args.swaps);
        let mut due = args.steady;
        for swap in 0..args.swaps {
            let version = swap as VersionNumber + 2;
            if self.arm == SwapArm::Cold {
                self.server.drop_cached(version)?;
            }
            sleep((start + due).saturating_duration_since(Instant::now()));
            let mut began = start.elapsed();
            match self.arm {
                SwapArm::Control => burn_idle(self.burn)?,
                SwapArm::Store => {
                    let before = self.server.process.metrics()?;
                    self.server.publish(version)?;
                    store::wait_fetching(self.server, &before)?;
                    began = start.elapsed();
                }
                _ => self.server.publish(version)?,
            }
            sleep((start + began + args.window).saturating_duration_since(Instant::now()));
            let mut end = began + args.window;
            if self.arm != SwapArm::Control {
                let done = self.server.wait_swaps(self.before, swap as u64 + 1, SWAP_POLL)?;
                if self.arm == SwapArm::Store {
                    // A fetch can take longer than the window of a load.
                    end = end.max(start.elapsed());
                }
                if !done {
                    windows.push(SwapWindow { start: began, end });
                    break;
                }
            }
            windows.push(SwapWindow { start: began, end });
            due = began + args.period;
        }
        Ok(windows)
    }
}

/// Figures from outside the traffic.
struct SwapFigures {
    arm: SwapArm,
    before: Scrape,
    after: Scrape,
    /// Number of swaps of each model.
    swaps: u64,
    burn: Duration,
    peak_rss_mb: f64,
    one_version_rss_mb: f64,
    settled: SettleTime,
    noise: Noise,
}

impl SwapFigures {
    /// Returns the figures of a round, from its samples and the counters of the server before and
    /// after.
    fn round(self, windows: &[SwapWindow], kept: KeptSamples) -> SwapRound {
        let delta = |name: &str, labels: &[(&str, &str)]| {
            self.after.sum(name, labels) - self.before.sum(name, labels)
        };
        let swaps = delta("millpond_swaps_total", &[]);
        let each = |name: &str| ratio(delta(name, &[]), swaps);
        let step = |step| ratio(delta("millpond_swap_seconds_total", &[("step", step)]), swaps);
        let is_control = self.arm == SwapArm::Control;
        let cut = Cut::new(windows, &kept.samples);
        let starts: Vec<Duration> = windows.iter().map(|window| window.start).collect();
        SwapRound {
            arm: self.arm,
            steady: cut.steady.summary(),
            swap: cut.all_windows.summary(),
            failed: kept.faults.failed,
            wrong: kept.faults.wrong,
            dropped_samples: kept.dropped,
            reasons: kept.faults.lines(),
            swaps: self.swaps,
            load_s: if is_control { self.burn.as_secs_f64() } else { step("load") },
            warm_s: step("warm"),
            unload_s: step("unload"),
            loader_minor_faults: each("millpond_loader_minor_faults_total"),
            loader_cpu_s: each("millpond_loader_cpu_seconds_total"),
            throttled_s: delta("millpond_cpu_throttled_seconds", &[]),
            bytes_read: each("millpond_loader_read_bytes_total"),
            bytes_shared: each("millpond_loader_shared_bytes_total"),
            peak_rss_mb: self.peak_rss_mb,
            one_version_rss_mb: self.one_version_rss_mb,
            versions: kept
                .samples
                .iter()
                .map(|sample| sample.version)
                .filter(|&version| version > 0)
                .collect(),
            worst_ms: cut.windows.iter().map(|window| window.summary().max_ms).collect(),
            settled: self.settled,
            noise: self.noise,
            timeline: Timeline::new(&kept.samples, &starts),
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
    /// Sorts samples by the time at which requests were due: in each of `windows`, and everything
    /// before the first. A failed request counts with the time until it failed.
    fn new(windows: &[SwapWindow], samples: &[RequestSample]) -> Cut {
        let mut cut = Cut {
            steady: Latencies::default(),
            all_windows: Latencies::default(),
            windows: vec![Latencies::default(); windows.len()],
        };
        for sample in samples {
            let after = windows.partition_point(|window| window.start <= sample.due);
            match after.checked_sub(1) {
                None => cut.steady.record(sample.latency),
                Some(swap) if sample.due < windows[swap].end => {
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
    use loadgen::drive::Judgement;

    #[test]
    fn samples_fall_into_the_window_they_were_due_in() {
        let seconds = Duration::from_secs;
        let sample = |due: u64| RequestSample {
            due: seconds(due),
            latency: Duration::from_millis(due + 1),
            verdict: Judgement::Right,
            version: 1,
        };
        let samples: Vec<RequestSample> = (0..12).map(sample).collect();
        let window = |start| SwapWindow { start: seconds(start), end: seconds(start + 2) };
        let cut = Cut::new(&[window(3), window(8)], &samples);
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
