//! Measurement of points by a server of its own, whose settings for the model change from slice to
//! slice.
//!
//! Points with the same number of threads inside a run share one loaded session. They are one model
//! directory, which gets the settings of the measured point. So further points cost no memory, and
//! none is faster only because of its session's position in memory. The server has its default
//! arguments, with a worker a core. The threads of a point are in its settings, exactly as they
//! will be in the model's.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::{Error, ErrorKind, NamedTensor, Result, TensorSpec};
use bytes::Bytes;

use super::journal::{Measurer, Slice, SliceKey};
use super::load::StatusOnly;
use super::space::{TunePoint, sizes};
use super::subject::TuneSubject;
use super::write;
use loadgen::BenchEnv;
use loadgen::cache;
use loadgen::drive::{DrivePlan, Judge, Judgement, LoadLoop, RequestSample, SampleSink, drive};
use loadgen::process::{ServerPlan, ServerProcess, interrupted};
use loadgen::settings;
use loadgen::stats::Latencies;
use loadgen::wire::{Api, ModelEndpoint};
use parking_lot::Mutex;

/// Time between the plan and its start, in which connections are made.
const LEAD_IN: Duration = Duration::from_millis(15);
/// Further time before the start for each client.
const LEAD_IN_PER_CLIENT: Duration = Duration::from_micros(300);
/// Time of requests that are not counted.
const WARM_UP: Duration = Duration::from_millis(25);
/// Wait for the last answers.
const DRAIN: Duration = Duration::from_secs(5);
/// Number of clients that send the first requests to a new session.
const FIRST_CLIENTS: usize = 8;
/// Time for which they send these requests.
const FIRST_TIME: Duration = Duration::from_millis(100);
/// Queue of a server: longer than the number of clients.
const QUEUE: usize = 1024;

/// A server for points, started when needed.
pub(super) struct Servers<'a> {
    env: &'a BenchEnv,
    subject: &'a TuneSubject,
    cores: usize,
    requests: Vec<Vec<NamedTensor>>,
    running: Option<ServerProcess>,
    /// Sessions by their threads inside a run, or the reason why there is none.
    served: BTreeMap<usize, std::result::Result<TunedModel, String>>,
    /// Points that the server refused, with its reasons.
    refused: HashMap<TunePoint, String>,
    /// End of the time charged to the budget so far.
    charged: Instant,
}

/// The model of a running server.
struct TunedModel {
    /// Name of the model of the server.
    name: String,
    /// Directory of the model.
    dir: PathBuf,
    /// Point whose settings the server has.
    current: TunePoint,
    /// True if the server has answered a request.
    exercised: bool,
}

impl<'a> Servers<'a> {
    /// Creates the measurer without a server. `send` must be called before any measurement.
    pub(super) fn new(env: &'a BenchEnv, subject: &'a TuneSubject, cores: usize) -> Servers<'a> {
        Servers {
            env,
            subject,
            cores: cores.max(1),
            requests: Vec::new(),
            running: None,
            served: BTreeMap::new(),
            refused: HashMap::new(),
            charged: Instant::now(),
        }
    }

    /// Returns the model's inputs, from a server that serves `point`.
    ///
    /// # Errors
    /// `Unavailable` if the model cannot be served at all, with the server's reason.
    pub(super) fn inputs(&mut self, point: TunePoint) -> Result<Vec<TensorSpec>> {
        match self.name_of(point)? {
            Ok(name) => self.model_endpoint(name)?.inputs(),
            Err(why) => Err(Error::unavailable(format!("the model cannot be served: {why}"))),
        }
    }

    /// Sets the requests that are sent in turn from now on.
    pub(super) fn send(&mut self, requests: Vec<Vec<NamedTensor>>) {
        self.requests = requests;
    }

    /// Ends the server.
    ///
    /// # Errors
    /// If it does not end well.
    pub(super) fn stop(&mut self) -> Result<()> {
        self.served.clear();
        self.running.take().map_or(Ok(()), ServerProcess::stop)
    }

    fn server(&self) -> Result<&ServerProcess> {
        self.running.as_ref().ok_or_else(|| Error::internal("no server was started"))
    }

    fn model_endpoint(&self, model: String) -> Result<ModelEndpoint> {
        Ok(ModelEndpoint { endpoint: self.server()?.grpc(), api: Api::Oip, model })
    }

    /// Starts a server with a session for each number of threads inside a run.
    fn start(&mut self) -> Result<()> {
        let root = run_dir(self.env);
        cache::create_empty_dir(&root)?;
        let mut sessions = Vec::new();
        for intra_op in sizes(self.cores) {
            let current = TunePoint::sync(self.cores / intra_op, intra_op);
            let name = format!("intra-{intra_op}");
            let dir = root.join(&name);
            self.subject.link(&dir, &write::with_point(&self.subject.settings, &current)?)?;
            sessions.push(TunedModel { name, dir, current, exercised: false });
        }
        let name = format!("tune-{}", self.subject.name);
        let plan = ServerPlan { detached: true, ..ServerPlan::new(name, self.arguments(&root)) };
        let server = ServerProcess::start(self.env, &plan)?;
        for session in sessions {
            let ready = server.page(&format!("/v2/models/{}/ready", session.name));
            let intra_op = session.current.intra_op;
            let served = ready.map_err(|_| self.reason(&server, &session.name)).map(|_| session);
            self.served.insert(intra_op, served);
        }
        self.running = Some(server);
        Ok(())
    }

    /// Returns the arguments of a server with the models in `root`.
    fn arguments(&self, root: &Path) -> Vec<String> {
        let mut args = vec![root.display().to_string()];
        let workers = self.cores.to_string();
        let queue = QUEUE.to_string();
        for (flag, value) in [
            ("--threads", workers.as_str()),
            ("--queue", &queue),
            ("--load-rate", "unlimited"),
            ("--fault-rate", "unlimited"),
            ("--load-retries", "0"),
            ("--poll", settings::POLL),
            ("--log", "warn"),
        ] {
            args.extend([flag.to_owned(), value.to_owned()]);
        }
        args
    }

    /// Returns the server's reason for not serving a model.
    fn reason(&self, server: &ServerProcess, model: &str) -> String {
        let log = std::fs::read_to_string(server.log()).unwrap_or_default();
        let line = log.lines().rev().find(|line| line.contains(&format!("model={model} ")));
        let line = line.or_else(|| log.lines().rev().find(|line| line.contains("ERROR")));
        line.unwrap_or("it says nothing about it").trim().to_owned()
    }

    /// Applies the settings of `point`. Returns the name under which it is served, or the reason
    /// why it is not.
    fn name_of(&mut self, point: TunePoint) -> Result<std::result::Result<String, String>> {
        if self.running.is_none() {
            self.start()?;
        }
        if let Some(why) = self.refused.get(&point) {
            return Ok(Err(why.clone()));
        }
        let server =
            self.running.as_ref().ok_or_else(|| Error::internal("no server was started"))?;
        let served = match self.served.get_mut(&point.intra_op) {
            Some(Ok(served)) => served,
            Some(Err(why)) => return Ok(Err(why.clone())),
            None => return Err(Error::internal("a point has threads that no session has")),
        };
        if served.current != point {
            let text = |point: &TunePoint| write::with_point(&self.subject.settings, point);
            match settings::apply(server, &served.name, &served.dir, &text(&point)?) {
                Ok(()) => served.current = point,
                Err(error) if error.kind() == ErrorKind::FailedPrecondition => {
                    settings::put(&served.dir, &text(&served.current)?)?;
                    self.refused.insert(point, error.message().to_owned());
                    return Ok(Err(error.message().to_owned()));
                }
                Err(error) => return Err(error),
            }
        }
        // The first runs of a session are slow, because they set up its memory.
        let first = !self.requests.is_empty() && !std::mem::replace(&mut served.exercised, true);
        let name = served.name.clone();
        if first {
            self.run(&name, FIRST_CLIENTS, FIRST_TIME)?;
        }
        Ok(Ok(name))
    }

    /// Measures the model `name` with `clients` clients for `time`, after a warm-up.
    fn run(&self, name: &str, clients: usize, time: Duration) -> Result<Slice> {
        let target = self.model_endpoint(name.to_owned())?;
        let encoded = target.encode(&self.requests)?;
        let window = Arc::new(ProbeWindow::new(WARM_UP, WARM_UP + time));
        let mut plan = DrivePlan::new(
            target.endpoint.clone(),
            encoded.template,
            Arc::<[Bytes]>::from(encoded.bodies),
            LoadLoop::Closed { clients },
            WARM_UP + time,
        );
        plan.start = Instant::now()
            + LEAD_IN
            + LEAD_IN_PER_CLIENT * u32::try_from(clients).unwrap_or(u32::MAX);
        plan.drain = DRAIN;
        let judge: Arc<dyn Judge> = Arc::new(StatusOnly);
        let sink: Arc<dyn SampleSink> = window.clone();
        drive(&plan, &judge, &sink)?;
        Ok(window.slice())
    }
}

impl Measurer for Servers<'_> {
    fn measure(&mut self, key: &SliceKey) -> Result<Slice> {
        stop_if_interrupted()?;
        let mut slice = match self.name_of(key.point)? {
            Err(why) => Slice { failed: 1, refused: Some(why), ..Slice::default() },
            Ok(name) => self.run(&name, key.clients, Duration::from_millis(key.millis))?,
        };
        let now = Instant::now();
        slice.seconds = (now - self.charged).as_secs_f64();
        self.charged = now;
        Ok(slice)
    }
}

impl Drop for Servers<'_> {
    fn drop(&mut self) {
        // A failed start leaves it.
        let _ = cache::remove(&run_dir(self.env));
    }
}

fn run_dir(env: &BenchEnv) -> PathBuf {
    env.cache_dir.join("run").join(format!("tune-{}", std::process::id()))
}

/// Ends the search between two slices after an interrupt.
fn stop_if_interrupted() -> Result<()> {
    if interrupted() { Err(Error::cancelled("interrupted")) } else { Ok(()) }
}

/// Counts of answers that came within a window, and latencies of requests that were due within it.
/// A latency counts even if its answer came after the window. Otherwise the slowest would be
/// missing.
struct ProbeWindow {
    from: Duration,
    to: Duration,
    inner: Mutex<InWindow>,
}

/// Counts of a [`ProbeWindow`].
#[derive(Default)]
struct InWindow {
    answers: u64,
    failed: u64,
    failure: Option<String>,
    latencies: Latencies,
}

impl ProbeWindow {
    fn new(from: Duration, to: Duration) -> ProbeWindow {
        ProbeWindow { from, to, inner: Mutex::default() }
    }

    fn slice(&self) -> Slice {
        let inside = self.inner.lock();
        let summary = inside.latencies.summary();
        Slice {
            qps: inside.answers as f64 / (self.to - self.from).as_secs_f64().max(1e-9),
            p50_ms: summary.p50_ms,
            p99_ms: summary.p99_ms,
            n: summary.n,
            failed: inside.failed,
            failure: inside.failure.clone(),
            ..Slice::default()
        }
    }
}

impl SampleSink for ProbeWindow {
    fn record(&self, sample: RequestSample, reason: Option<&str>) {
        let mut inside = self.inner.lock();
        if sample.verdict == Judgement::Failed {
            inside.failed += 1;
            if inside.failure.is_none() {
                inside.failure = reason.map(str::to_owned);
            }
            return;
        }
        let within = |at: Duration| (self.from..self.to).contains(&at);
        inside.answers += u64::from(within(sample.due + sample.latency));
        if within(sample.due) {
            inside.latencies.record(sample.latency);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_count_when_they_come_and_latency_when_it_was_due() {
        let ms = Duration::from_millis;
        let window = ProbeWindow::new(ms(100), ms(200));
        let record = |due, latency, verdict| {
            window.record(
                RequestSample { due: ms(due), latency: ms(latency), verdict, version: 0 },
                (verdict == Judgement::Failed).then_some("too large"),
            );
        };
        record(50, 60, Judgement::Right);
        record(150, 20, Judgement::Right);
        record(190, 900, Judgement::Right);
        record(10, 20, Judgement::Right);
        record(150, 1, Judgement::Failed);
        let slice = window.slice();
        assert_eq!((slice.qps, slice.n, slice.failed), (20.0, 2, 1));
        assert_eq!(slice.failure.as_deref(), Some("too large"));
        assert!((slice.p99_ms - 900.0).abs() < 1.0);
    }
}
