//! A server whose models are swapped, and the requests to all of them.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use base::{Error, Result, VersionNumber};

use super::engines::EngineName;
use super::store::BenchStore;
use demo::contents::SwapContents;
use demo::traffic::Traffic;
use loadgen::BenchEnv;
use loadgen::cache;
use loadgen::cpu_group::CpuGroup;
use loadgen::drive::{DrivePlan, Judge, LoadLoop, SampleSink, drive};
use loadgen::machine::rss_kb_of;
use loadgen::process::{ServerPlan, ServerProcess};
use loadgen::schedule::Arrivals;
use loadgen::scrape::Scrape;
use loadgen::settings::SETTINGS_FILE;

/// Time between the start of a load and its first request, in which requests are encoded.
const LEAD_IN: Duration = Duration::from_millis(200);
/// Timeout of a swap. The next one waits for it.
const SWAP_TIMEOUT: Duration = Duration::from_secs(60);
/// Number of versions kept on disk.
const VERSIONS_KEPT: u64 = 2;

/// A model: its files, its requests and their answers.
pub(crate) struct SwapModel {
    /// Name under which it is served.
    pub(crate) name: String,
    pub(crate) engine: EngineName,
    pub(crate) contents: SwapContents,
    pub(crate) traffic: Arc<Traffic>,
}

/// Parameters of a server's start.
pub(crate) struct SwapServerPlan<'a> {
    /// Name of the run directory and of the log.
    pub(crate) name: String,
    /// Further arguments of `serve`.
    pub(crate) args: Vec<String>,
    /// Program to start instead of `millpond`.
    pub(crate) program: Option<PathBuf>,
    pub(crate) malloc_conf: Option<&'static str>,
    pub(crate) group: Option<&'a CpuGroup>,
    /// Store that the versions come from.
    pub(crate) store: Option<BenchStore>,
}

/// A running server, and the model directories that it watches.
pub(crate) struct SwapServer {
    pub(crate) process: ServerProcess,
    served: Vec<ServedSwapModel>,
    _store: Option<BenchStore>,
}

struct ServedSwapModel {
    model: Arc<SwapModel>,
    dir: PathBuf,
}

/// Requests to all models of a server.
pub(crate) struct SwapLoad {
    pub(crate) pace: SwapPace,
    /// Moment at which the first request is due.
    pub(crate) start: Instant,
    pub(crate) duration: Duration,
    stop: Arc<AtomicBool>,
}

/// Load of all models together.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SwapPace {
    /// Requests a second, at fixed times.
    Rate(f64),
    /// Clients that each wait for an answer.
    Clients(usize),
}

impl SwapLoad {
    pub(crate) fn new(pace: SwapPace, duration: Duration) -> SwapLoad {
        SwapLoad { pace, start: Instant::now() + LEAD_IN, duration, stop: Arc::default() }
    }

    /// Ends the load early.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

impl SwapServer {
    /// Starts a server with version 1 of each model.
    pub(crate) fn start(
        env: &BenchEnv,
        plan: SwapServerPlan<'_>,
        models: &[Arc<SwapModel>],
    ) -> Result<SwapServer> {
        let root = match &plan.store {
            Some(store) => store.dir.clone(),
            None => env.cache_dir.join("run").join(&plan.name),
        };
        cache::create_empty_dir(&root)?;
        let serve = |model: &Arc<SwapModel>| {
            let dir = root.join(&model.name);
            cache::create_empty_dir(&dir)?;
            cache::publish_link(model.contents.of(1), &dir, 1)?;
            if let Some(settings) = model.engine.settings() {
                loadgen::report::write_file(&dir.join(SETTINGS_FILE), settings.as_bytes())?;
            }
            Ok(ServedSwapModel { model: model.clone(), dir })
        };
        let served: Vec<ServedSwapModel> = models.iter().map(serve).collect::<Result<_>>()?;
        let place = |one: &ServedSwapModel| match &plan.store {
            Some(store) => format!("{name}={url}/{name}", name = one.model.name, url = store.url),
            None => format!("{}={}", one.model.name, one.dir.display()),
        };
        let mut args: Vec<String> = served.iter().map(place).collect();
        args.extend(plan.args);
        let program = plan.program;
        let malloc_conf = plan.malloc_conf;
        let variables = plan.store.as_ref().map_or_else(Vec::new, |it| it.variables.clone());
        let plan_of_process =
            ServerPlan { program, malloc_conf, variables, ..ServerPlan::new(plan.name, args) };
        let process = ServerProcess::start_in(env, &plan_of_process, plan.group)?;
        Ok(SwapServer { process, served, _store: plan.store })
    }

    /// Publishes `version` of every model.
    pub(crate) fn publish(&self, version: VersionNumber) -> Result<()> {
        self.served.iter().try_for_each(|one| {
            cache::publish_link(one.model.contents.of(version), &one.dir, version)?;
            cache::prune(&one.dir, version, VERSIONS_KEPT)
        })
    }

    /// Removes the files of `version` of every model from the page cache.
    pub(crate) fn drop_cached(&self, version: VersionNumber) -> Result<()> {
        self.served.iter().try_for_each(|one| one.model.contents.drop_cached(version))
    }

    /// Returns the number of swaps between two scrapes, of the model with the fewest swaps.
    pub(crate) fn swaps(&self, before: &Scrape, after: &Scrape) -> u64 {
        let count = |one: &ServedSwapModel| {
            let of =
                |scrape: &Scrape| scrape.sum("millpond_swaps_total", &[("model", &one.model.name)]);
            (of(after) - of(before)) as u64
        };
        self.served.iter().map(count).min().unwrap_or(0)
    }

    /// Waits until every model was swapped `swaps` times since `before`, with `poll` between two
    /// checks. Returns true if they were.
    pub(crate) fn wait_swaps(&self, before: &Scrape, swaps: u64, poll: Duration) -> Result<bool> {
        let deadline = Instant::now() + SWAP_TIMEOUT;
        loop {
            let done = self.swaps(before, &self.process.metrics()?) >= swaps;
            if done || Instant::now() > deadline {
                return Ok(done);
            }
            sleep(poll);
        }
    }

    /// Returns the resident memory in MiB without slots of the pool that no version uses.
    pub(crate) fn used_rss_mb(&self) -> Result<f64> {
        let metrics = self.process.metrics()?;
        let pool = |kind| metrics.sum("millpond_pool_bytes", &[("kind", kind)]);
        let spare_mb = (pool("backed") - pool("used")).max(0.0) / (1 << 20) as f64;
        Ok((rss_kb_of(self.process.pid()) as f64 / 1024.0 - spare_mb).max(0.0))
    }

    /// Sends requests to all models until the load ends.
    ///
    /// # Errors
    /// `Unavailable` if the server cannot be reached at the start; later failures are samples.
    pub(crate) fn drive(&self, load: &SwapLoad, sink: &Arc<dyn SampleSink>) -> Result<()> {
        let models = self.served.iter().enumerate();
        let plans: Vec<DrivePlan> =
            models.map(|(index, one)| self.plan(load, index, &one.model)).collect::<Result<_>>()?;
        std::thread::scope(|scope| {
            let start = |(plan, one): (DrivePlan, &ServedSwapModel)| {
                let judge: Arc<dyn Judge> = one.model.traffic.clone();
                scope.spawn(move || drive(&plan, &judge, sink))
            };
            let drivers: Vec<_> = plans.into_iter().zip(&self.served).map(start).collect();
            drivers.into_iter().try_for_each(|driver| {
                driver.join().unwrap_or_else(|_| Err(Error::internal("the driver panicked")))
            })
        })
    }

    /// Returns the part of the load for the model number `index`. Each model gets an equal part.
    fn plan(&self, load: &SwapLoad, index: usize, model: &SwapModel) -> Result<DrivePlan> {
        let count = self.served.len();
        let (pace, gap) = match load.pace {
            SwapPace::Rate(rate) => (
                LoadLoop::Open { arrivals: Arrivals::Fixed, rate: rate / count as f64, seed: 0 },
                Duration::from_secs_f64(1.0 / rate),
            ),
            SwapPace::Clients(clients) => {
                (LoadLoop::Closed { clients: (clients / count).max(1) }, Duration::ZERO)
            }
        };
        let endpoint = self.process.grpc();
        let (template, bodies) = model.traffic.encode(&endpoint, &model.name)?;
        let mut plan = DrivePlan::new(endpoint, template, bodies, pace, load.duration);
        // The models' requests take turns.
        plan.start = load.start + gap * u32::try_from(index).unwrap_or(u32::MAX);
        plan.stop = load.stop.clone();
        Ok(plan)
    }
}

/// Returns the bound of a load that ends with the last of `swaps` swaps.
pub(crate) fn load_time_max(swaps: usize, period: Duration) -> Duration {
    (period + SWAP_TIMEOUT) * u32::try_from(swaps).unwrap_or(u32::MAX)
}

/// Returns the program that was built with the system's allocator.
///
/// # Errors
/// `NotFound` with the remedy.
pub(crate) fn system_binary(env: &BenchEnv, given: Option<&Path>) -> Result<PathBuf> {
    let found = match given {
        Some(path) => path.exists().then(|| path.to_owned()),
        None => env.in_checkout(crate::report::SYSTEM_BINARY),
    };
    found.ok_or_else(|| {
        let wanted = given.map_or(crate::report::SYSTEM_BINARY.into(), Path::to_string_lossy);
        Error::not_found(format!(
            "no {wanted}: run `make build-system`, give --system-binary PATH, or leave out the arm glibc"
        ))
    })
}

/// Returns true if the file `program` was changed before the file `than`, so that it may lack
/// changes of the source code.
pub(crate) fn is_older(program: &Path, than: &Path) -> bool {
    let changed = |path: &Path| std::fs::metadata(path).and_then(|found| found.modified()).ok();
    matches!((changed(program), changed(than)), (Some(one), Some(other)) if one < other)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn a_program_of_an_earlier_build_is_older() {
        let dir = tempfile::tempdir().unwrap();
        let built = |name: &str, seconds: u64| {
            let path = dir.path().join(name);
            let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
            File::create(&path).unwrap().set_modified(time).unwrap();
            path
        };
        let old = built("old", 1_000_000);
        let new = built("new", 2_000_000);
        assert!(is_older(&old, &new) && !is_older(&new, &old) && !is_older(&old, &old));
        assert!(!is_older(&dir.path().join("none"), &new));
    }
}
