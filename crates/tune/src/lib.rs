//! `tune`: finds the configuration with the highest throughput of a model on this machine within a
//! latency target.
//!
//! Everything but `measure` is a function of measurements and is tested against simulated ones.
//!
//! # Modules
//! * Search: `space` lists the configurations, and `search` decides which of them to measure.
//!   `probe` decides how measurements are made and `score` how they are compared.
//! * Measuring: `measure` makes measurements, and `journal` keeps them. `subject` is the model,
//!   `requests` come from files or are generated.
//! * Results: `write` and `report` present them, `chart` draws.
//! * Other servers: `load` is `bench load`, which measures any server.

mod chart;
mod journal;
pub mod load;
mod measure;
mod probe;
mod report;
mod requests;
mod score;
mod search;
mod space;
mod subject;
mod write;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::time::Duration;

use base::{Error, ErrorKind, NamedTensor, Result, units};
use clap::Args;
use engine_onnx::OnnxEngine;

use journal::MeasurementJournal;
use loadgen::BenchEnv;
use loadgen::machine::{MachineFacts, NoiseWatch, RunContext};
use loadgen::process::handle_interrupts;
use loadgen::report::{StepProgress, write_file, write_json};
use loadgen::{print, println};
use measure::Servers;
use probe::Prober;
use report::TuneSummary;
use requests::RequestSettings;
use search::{GridFound, PointSearch, TuneResult};
use space::{TunePoint, grid};
use subject::TuneSubject;

/// Minimum time of a search.
const TIME_MIN: Duration = Duration::from_secs(2);
/// Seed of all random choices in the search.
const SEED: u64 = 1;

/// Find the configuration with the highest throughput within a latency target, and write it.
///
/// Starts a server of its own on this machine, sends requests from growing numbers of clients, and
/// searches workers, batch size, max-queue-delay and threads inside a run: all of them briefly, the
/// better half for twice as long, and so on. The result is written to the model's own
/// millpond.toml; a server that serves the model applies it without a reload, except for threads
/// inside a run.
///
/// Ctrl-C stops the search and keeps its measurements: the same command resumes from there. Nothing
/// else should run on the machine meanwhile.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  millpond tune models/ctr --target-p99 10ms
  millpond tune models/recogniser --target-p99 50ms --dims x=1x3x48x320 --report recogniser.html
  millpond tune models/ctr --requests recorded/ --time 10m --no-write --json ctr.json

A file of --requests has one request in the form of `millpond infer --input FILE.json`: \
{\"inputs\": [{\"name\", \"datatype\", \"shape\", \"data\"}]}. A .jsonl file has one on each line, as a request log in \
JSON does. Generated requests have the shapes of --dims, else those of [warmup] dims in the model's millpond.toml; \
every other open size is 1. Pass real requests if the run time depends on the values, as for embeddings.")]
pub struct TuneArgs {
    /// The model's directory, which contains its numbered version directories
    #[arg(value_name = "DIR|NAME=DIR")]
    pub model: String,
    /// Target for the 99th percentile of the latency
    #[arg(long, default_value = "10ms", value_name = "TIME", value_parser = units::parse_duration)]
    pub target_p99: Duration,
    /// Time of the search
    #[arg(long, default_value = "4m", value_name = "TIME", value_parser = units::parse_duration)]
    pub time: Duration,
    /// Real requests: .json or .jsonl files, or directories of them
    #[arg(long, value_name = "FILE|DIR")]
    pub requests: Vec<PathBuf>,
    /// Shape of an input in generated requests; several for one input are used in turn
    #[arg(long, value_name = "INPUT=1x3x48x320", conflicts_with = "requests")]
    pub dims: Vec<String>,
    /// Exclusive upper bound of integers in generated inputs
    #[arg(long, value_name = "N", default_value_t = 2, conflicts_with = "requests")]
    pub index_max: u64,
    /// Write a page with a throughput-latency chart and all figures
    #[arg(long, value_name = "OUT.html")]
    pub report: Option<PathBuf>,
    /// Write the figures as JSON
    #[arg(long, value_name = "OUT")]
    pub json: Option<PathBuf>,
    /// Write the result to the model's millpond.toml (default)
    #[arg(long, overrides_with = "no_write")]
    pub write: bool,
    /// Print the result and write no file
    #[arg(long)]
    pub no_write: bool,
    /// File of measurements for resuming [default: in the cache directory]
    #[arg(long, value_name = "FILE")]
    pub state: Option<PathBuf>,
    /// Start a new search even if an interrupted one could be resumed
    #[arg(long)]
    pub fresh: bool,
    /// After the search, measure every configuration and compare the result with the best. Takes
    /// minutes
    #[arg(long)]
    pub full_grid: bool,
}

/// Runs `tune`.
///
/// # Errors
/// `InvalidArgument` for arguments that do not describe a search. `Cancelled` after an
/// interruption, with the way to resume. `Unavailable` if the model cannot be served. Also if a
/// file cannot be written.
pub fn run(args: &TuneArgs, env: &BenchEnv) -> Result<()> {
    check(args)?;
    let subject = TuneSubject::open(&args.model, env)?;
    // An interrupt ends a conversion at once, because there is nothing to keep yet.
    handle_interrupts();
    let cores = loadgen::machine::cores();
    let watch = NoiseWatch::start();
    let mut servers = Servers::new(env, &subject, cores);
    let arguments = RequestSettings {
        files: &args.requests,
        dims: &args.dims,
        index_max: args.index_max,
        settings: &subject.table,
    };
    let specs = servers.inputs(TunePoint::sync(cores, 1))?;
    let (requests, described) = requests::requests(&specs, &arguments)?;
    let grid = grid(cores, args.target_p99, requests::mergeable(&specs));
    let machine = MachineFacts::detect(
        OnnxEngine::find_library(&env.onnxruntime).ok().as_deref().and_then(library_version),
    );
    let search = identity(args, &subject, &machine, &grid, &requests);
    servers.send(requests);

    let state = args.state.clone().unwrap_or_else(|| state_path(env, &subject, &search));
    let progress = StepProgress::new(args.time.as_secs());
    let journal = MeasurementJournal::open(&mut servers, &state, search, args.fresh, &|text| {
        progress.line(text)
    })?;
    let EndedSearch { result: found, full_grid: full, journal } =
        searched(args, &grid, journal, &progress).map_err(|error| resumable(error, &state))?;
    drop(progress);
    let settings = write::with_point(&subject.text, &found.best.point)?;
    let context = RunContext { machine, noise: watch.end() };
    let summary = TuneSummary {
        model: &subject.name,
        dir: subject.dir.display().to_string(),
        version: subject.version,
        target_ms: target_ms(args),
        requests: &described,
        grid_points: grid.len(),
        found: &found,
        grid: full.as_ref(),
        context: &context,
        command: command(args),
        settings: &settings,
    };
    summary.print();
    if let Some(path) = &args.json {
        write_json(path, &summary.json())?;
    }
    if let Some(path) = &args.report {
        write_file(path, summary.html().as_bytes())?;
        println!("report: {}", path.display());
    }
    put(args, &subject, &settings, found.best.within)?;
    journal.finish();
    servers.stop()
}

fn check(args: &TuneArgs) -> Result<()> {
    if args.target_p99.is_zero() {
        return Err(Error::invalid("--target-p99 must be more than 0"));
    }
    if args.time < TIME_MIN {
        return Err(Error::invalid(format!("--time must be at least {} s", TIME_MIN.as_secs())));
    }
    Ok(())
}

/// A search that has ended, with its measurements.
struct EndedSearch<'m> {
    result: TuneResult,
    /// Result of the full grid, if it was requested.
    full_grid: Option<GridFound>,
    journal: MeasurementJournal<'m>,
}

/// Runs the search, and the full grid if it is requested.
fn searched<'m>(
    args: &TuneArgs,
    grid: &[TunePoint],
    mut journal: MeasurementJournal<'m>,
    progress: &StepProgress,
) -> Result<EndedSearch<'m>> {
    let length = args.time.as_secs();
    let watch = |spent: f64, what: &str| {
        progress.at((spent as u64).min(length), length);
        progress.say(what);
    };
    let tell = |text: &str| progress.line(text);
    let mut prober = Prober {
        journal: &mut journal,
        target_ms: target_ms(args),
        seed: SEED,
        limit_s: args.time.as_secs_f64(),
        watch: &watch,
    };
    let mut search = PointSearch { prober: &mut prober, grid, tell: &tell };
    let result = search.run()?;
    let full_grid = args.full_grid.then(|| search.full_grid(&result.best)).transpose()?;
    Ok(EndedSearch { result, full_grid, journal })
}

/// Returns the version in a library's file name, if it has one.
fn library_version(library: &Path) -> Option<String> {
    let real = std::fs::canonicalize(library).ok()?;
    real.file_name()?.to_str()?.split_once(".so.").map(|(_, version)| version.to_owned())
}

/// Returns the facts that all figures of a search have in common.
fn identity(
    args: &TuneArgs,
    subject: &TuneSubject,
    machine: &MachineFacts,
    grid: &[TunePoint],
    requests: &[Vec<NamedTensor>],
) -> serde_json::Value {
    let mut hasher = DefaultHasher::new();
    for input in requests.iter().flatten() {
        (&*input.name, input.tensor.shape(), input.tensor.dtype().name()).hash(&mut hasher);
        input.tensor.bytes().map(|bytes| &bytes[..]).hash(&mut hasher);
        input.tensor.strings().hash(&mut hasher);
    }
    grid.hash(&mut hasher);
    serde_json::json!({
        "model": subject.identity(),
        "machine": [machine.cpu, machine.cores, machine.kernel, machine.millpond, machine.onnxruntime],
        "target_ms": target_ms(args),
        "time_s": args.time.as_secs_f64(),
        "inputs": format!("{:016x}", hasher.finish()),
    })
}

fn state_path(env: &BenchEnv, subject: &TuneSubject, search: &serde_json::Value) -> PathBuf {
    let mut hasher = DefaultHasher::new();
    search.to_string().hash(&mut hasher);
    let name: String =
        subject.name.chars().map(|c| if c.is_alphanumeric() { c } else { '_' }).collect();
    env.cache_dir.join("tune").join(format!("{name}-{:016x}.jsonl", hasher.finish()))
}

/// Adds the way to resume to an interruption. Other errors stay as they are.
fn resumable(error: Error, state: &Path) -> Error {
    match error.kind() {
        ErrorKind::Cancelled => Error::cancelled(format!(
            "interrupted; the measurements are kept in {}, and the same command continues from there",
            state.display()
        )),
        _ => error,
    }
}

/// Prints the change of the settings file, and makes it. `within` is true if the settings meet the
/// target.
fn put(args: &TuneArgs, subject: &TuneSubject, settings: &str, within: bool) -> Result<()> {
    let path = subject.dir.join(write::MODEL_FILE);
    let difference = write::difference(&subject.text, settings);
    if !within {
        println!("no configuration meets the target; this one comes nearest");
    }
    if difference.is_empty() {
        println!("{} says so already", path.display());
        return Ok(());
    }
    print!("{}:\n{difference}", path.display());
    if args.no_write {
        println!("not written (--no-write)");
        return Ok(());
    }
    // A change by another program in the meantime is kept.
    if write::read(&subject.dir)? != subject.text {
        return Err(Error::precondition(format!(
            "{} was changed during the search; put the lines above into it",
            path.display()
        )));
    }
    match write::replace(&subject.dir, settings)? {
        Some(backup) => println!("written; the old file is {}", backup.display()),
        None => println!("written"),
    }
    Ok(())
}

fn target_ms(args: &TuneArgs) -> f64 {
    args.target_p99.as_secs_f64() * 1e3
}

/// Returns the command with the arguments that determine the measurements.
fn command(args: &TuneArgs) -> String {
    let mut words = vec!["millpond".to_owned(), "tune".into(), quoted(&args.model)];
    words.extend(["--target-p99".into(), format!("{}ms", target_ms(args))]);
    words.extend(["--time".into(), format!("{}s", args.time.as_secs_f64())]);
    for path in &args.requests {
        words.extend(["--requests".into(), quoted(&path.display().to_string())]);
    }
    for dims in &args.dims {
        words.extend(["--dims".into(), quoted(dims)]);
    }
    if args.requests.is_empty() && args.index_max != 2 {
        words.extend(["--index-max".into(), args.index_max.to_string()]);
    }
    words.join(" ")
}

/// Quotes a word for a shell.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=,:".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: TuneArgs,
    }

    fn args(line: &[&str]) -> TuneArgs {
        Cli::parse_from([&["tune"], line].concat()).args
    }

    #[test]
    fn the_command_can_be_typed_again() {
        let given =
            args(&["my model", "--target-p99", "2500us", "--dims", "x=1x3", "--time", "1m"]);
        assert_eq!(
            command(&given),
            "millpond tune 'my model' --target-p99 2.5ms --time 60s --dims x=1x3"
        );
        assert_eq!(quoted("it's"), r"'it'\''s'");
    }

    #[test]
    fn arguments_that_make_no_search_are_refused() {
        check(&args(&["m"])).unwrap();
        assert!(
            check(&args(&["m", "--target-p99", "0"]))
                .unwrap_err()
                .message()
                .contains("--target-p99")
        );
        assert!(
            check(&args(&["m", "--time", "1s"])).unwrap_err().message().contains("at least 2 s")
        );
        assert!(args(&["m", "--write", "--no-write"]).no_write);
    }

    #[test]
    fn an_interruption_names_the_way_to_resume() {
        let error = resumable(Error::cancelled("interrupted"), Path::new("/s"));
        assert!(error.message().contains("/s") && error.message().contains("same command"));
        assert_eq!(resumable(Error::internal("x"), Path::new("/s")).message(), "x");
    }
}
