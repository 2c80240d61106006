//! `bench batch`: the gain of merging requests, and its cost.
//!
//! One server serves a model whose `[schedule]` changes from turn to turn: each request alone,
//! requests of equal shape merged, requests of similar shape padded and merged. All turns use the
//! same loaded session, because its position in memory changes its speed by several percent. The
//! arms take turns, so that disturbances of the machine affect all of them. Clients wait for their
//! answers. Every answer is compared with that of the model run alone in this process.

mod arm;
mod point;
mod report;

use std::path::PathBuf;
use std::time::Duration;

use base::units;
use base::{Error, Result};
use clap::{Args, ValueEnum};

pub(crate) use crate::models::workload::WorkloadModel;
use crate::models::workload::{Workload, WorkloadFolders};
use crate::report::BenchReport as _;
use arm::Arms;
pub(crate) use arm::publish;
use loadgen::BenchEnv;
use loadgen::drive::CONNECTIONS_MAX;
use loadgen::machine::NoiseWatch;
use loadgen::report::StepProgress;
use point::BatchTurn;

/// Maximum number of rounds.
const ROUNDS_MAX: usize = 100;
/// Maximum number of passes.
const PASSES_MAX: usize = 100;
/// Maximum number of client counts.
const CLIENT_COUNTS_MAX: usize = 64;
/// Sizes with --quick.
const QUICK_TIME: Duration = Duration::from_millis(500);
const QUICK_CLIENTS: [usize; 2] = [1, 8];

/// Compare running requests one by one with merging them.
///
/// Arms: sync runs each request alone; async merges waiting requests of equal shape; padding also
/// merges requests of similar shape, padded to the largest, and cuts the answers back. One server
/// serves all arms of a model from one loaded session, whose schedule changes from turn to turn.
/// Clients send one item per request over gRPC on this machine. Each client waits for its answer
/// before it sends the next request.
///
/// Models: small is a ranking model whose layers exceed the L2 cache. ocr is the PP-OCR text
/// recogniser on lines of text 64 to 640 pixels wide; its answer is right if the text is the same
/// as without batching, except for spaces at both ends. conv is a convolutional network on images
/// of 224±50 pixels, with a mask that the server fills. ocr needs the files that `make bench`
/// fetches and draws.
///
/// Goals: with small and 70 clients, async has at least twice the requests per second of sync, and
/// its p99 is not above that of sync. With every model and number of clients, the better of async
/// and padding has at least 0.98 of the requests per second of sync. No answer is wrong.
#[derive(Args, Clone, Debug)]
pub(crate) struct BatchArgs {
    /// Numbers of clients
    #[arg(long, value_delimiter = ',', default_value = "1,5,10,20,30,40,50,70")]
    pub(crate) clients: Vec<usize>,
    /// Models to measure
    #[arg(long, value_enum, value_delimiter = ',', default_value = "small,ocr,conv")]
    pub(crate) models: Vec<WorkloadModel>,
    /// Arms to measure
    #[arg(long, value_enum, value_delimiter = ',', default_value = "sync,async,padding")]
    pub(crate) arms: Vec<BatchArm>,
    /// Rounds, each with a server of its own and another order of the arms
    #[arg(long, default_value_t = 3)]
    pub(crate) rounds: usize,
    /// Number of times that a round runs all arms in order and then in reverse. More short turns
    /// are better than fewer long ones, because the speed of a shared machine drifts within
    /// seconds. A figure is the mean of the rounds, and the figure of a round is the median of its
    /// turns
    #[arg(long, default_value_t = 3)]
    pub(crate) passes: usize,
    /// Time of one turn, after its warm-up
    #[arg(long, default_value = "1s", value_parser = units::parse_duration)]
    pub(crate) time: Duration,
    /// Maximum number of items in a merged batch
    #[arg(long, default_value_t = 32)]
    pub(crate) max_batch: usize,
    /// Merge and pad even if the server finds that this is not faster. Shows the cost, and checks
    /// the answers of batches that the server would not make otherwise
    #[arg(long)]
    pub(crate) always_merge: bool,
    /// One short round with 1 and 8 clients: a test of the program; the figures mean nothing
    #[arg(long)]
    pub(crate) quick: bool,
    /// Directory with the text lines in lines/ [default: .cache/demo, where `make bench` draws
    /// them]
    #[arg(long, value_name = "DIR")]
    pub(crate) assets: Option<PathBuf>,
    /// Directory with the fetched models [default: .cache/models, where `make bench` puts them]
    #[arg(long, value_name = "DIR")]
    pub(crate) models_dir: Option<PathBuf>,
    /// Further argument for the servers, e.g. --server-arg=--pin (may be given several times)
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    pub(crate) server_arg: Vec<String>,
    /// Write the figures as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

/// Way in which requests become batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum BatchArm {
    /// Each request alone.
    Sync,
    /// Requests of equal shape merged.
    Async,
    /// Requests of similar shape padded and merged.
    Padding,
}

impl BatchArm {
    /// Returns the name in JSON, tables and model names.
    pub(crate) fn name(self) -> &'static str {
        match self {
            BatchArm::Sync => "sync",
            BatchArm::Async => "async",
            BatchArm::Padding => "padding",
        }
    }
}

impl BatchArgs {
    /// Applies `--quick` and checks the arguments.
    fn resolved(&self) -> Result<BatchArgs> {
        let mut args = self.clone();
        if args.quick {
            args.rounds = 1;
            args.passes = 1;
            args.time = QUICK_TIME;
            args.clients = QUICK_CLIENTS.to_vec();
        }
        let wrong = |what: &str| Err(Error::invalid(what.to_owned()));
        if !(1..=ROUNDS_MAX).contains(&args.rounds)
            || !(1..=PASSES_MAX).contains(&args.passes)
            || args.time.is_zero()
        {
            return wrong("--rounds and --passes must be 1 to 100, --time above 0");
        }
        if !(1..=CLIENT_COUNTS_MAX).contains(&args.clients.len())
            || args.clients.iter().any(|clients| !(1..=CONNECTIONS_MAX).contains(clients))
        {
            return Err(Error::invalid(format!(
                "--clients must be 1 to {CLIENT_COUNTS_MAX} numbers of 1 to {CONNECTIONS_MAX}"
            )));
        }
        if !(1..=engine::BATCH_MAX).contains(&args.max_batch) {
            return Err(Error::invalid(format!("--max-batch must be 1 to {}", engine::BATCH_MAX)));
        }
        if !distinct(&args.clients) || !distinct(&args.models) || !distinct(&args.arms) {
            return wrong("--clients, --models and --arms must name each thing once");
        }
        Ok(args)
    }

    /// Returns the arms in order or in reverse, so that no arm always comes first.
    fn order(&self, back: bool) -> Vec<BatchArm> {
        let mut arms = self.arms.clone();
        if back {
            arms.reverse();
        }
        arms
    }

    fn measurements(&self) -> u64 {
        (self.clients.len() * self.arms.len() * self.rounds * self.passes * 2) as u64
    }
}

fn distinct<T: PartialEq>(values: &[T]) -> bool {
    values.iter().enumerate().all(|(place, value)| !values[..place].contains(value))
}

/// Runs `bench batch`.
///
/// # Errors
/// Returns an error if a server cannot be started, an argument is out of range, or a file of a
/// model is missing. Failed requests and wrong answers are figures, and make the run fail after its
/// report.
pub(crate) fn run(args: &BatchArgs, env: &BenchEnv) -> Result<()> {
    let args = args.resolved()?;
    let watch = NoiseWatch::start();
    let places = WorkloadFolders::find(env, args.assets.as_deref(), args.models_dir.as_deref());
    let mut engine_version = None;
    let mut measured = Vec::new();
    for &model in &args.models {
        let workload = prepare(model, env, &places)?;
        engine_version = Some(workload.engine_version.clone());
        let turns = measure_model(&args, env, &workload)
            .map_err(|e| e.context(format!("model {}", model.name())))?;
        measured.push((model, turns));
    }
    let report = report::BatchReport::new(&args, &measured, watch.context(engine_version));
    report.finish(args.json.as_deref())
}

fn prepare(model: WorkloadModel, env: &BenchEnv, places: &WorkloadFolders) -> Result<Workload> {
    let progress = StepProgress::new(1);
    progress.say(format!("{}: making the model and computing the right answers", model.name()));
    model.prepare(env, places)
}

/// Measures all turns of one model.
fn measure_model(args: &BatchArgs, env: &BenchEnv, workload: &Workload) -> Result<Vec<BatchTurn>> {
    let model = workload.model.name();
    let progress = StepProgress::new(args.measurements());
    let mut turns = Vec::with_capacity(args.measurements() as usize);
    for round in 0..args.rounds {
        let arms = Arms::start(args, env, workload, round)?;
        progress.say(format!("{model}: letting every arm see its requests"));
        let warm_up = arms.warm_up()?;
        let first = turns.len();
        for &clients in &args.clients {
            for arm in (0..2 * args.passes).flat_map(|turn| args.order(turn % 2 == 1)) {
                progress.say(format!("{model}, {clients} clients, {}", arm.name()));
                turns.push(arms.measure(arm, clients, args.time)?);
                progress.step();
            }
        }
        point::add_faults(&mut turns[first..], &warm_up);
        arms.stop()?;
    }
    Ok(turns)
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn parse(text: &str) -> Result<BatchArgs> {
        crate::arguments::parse::<BatchArgs>(text.split_whitespace())?.resolved()
    }

    #[test]
    fn defaults_are_the_published_ones() {
        let args = parse("").unwrap();
        assert_eq!(args.clients, [1, 5, 10, 20, 30, 40, 50, 70]);
        assert_eq!(args.models, [WorkloadModel::Small, WorkloadModel::Ocr, WorkloadModel::Conv]);
        assert_eq!(args.arms, [BatchArm::Sync, BatchArm::Async, BatchArm::Padding]);
        assert_eq!((args.rounds, args.passes, args.measurements()), (3, 3, 432));
        assert_eq!(args.time, Duration::from_secs(1));
    }

    #[test]
    fn arguments_out_of_range_are_refused() {
        for wrong in [
            "--clients 0",
            "--clients 1,1",
            "--models x",
            "--arms sync,sync",
            "--rounds 0",
            "--max-batch 0",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        assert_eq!(parse("--quick --clients 70").unwrap().clients, QUICK_CLIENTS);
    }

    #[test]
    fn the_order_can_be_reversed() {
        let args = parse("").unwrap();
        assert_eq!(args.order(false), [BatchArm::Sync, BatchArm::Async, BatchArm::Padding]);
        assert_eq!(args.order(true), [BatchArm::Padding, BatchArm::Async, BatchArm::Sync]);
    }
}
