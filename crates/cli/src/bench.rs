//! `millpond bench` and `millpond demo`. `bench load` and the demo are linked. All other benchmarks
//! are in a program of their own, `millpond-bench`, which this program starts with the same
//! arguments, as git starts `git-NAME`.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use base::ErrorKind;
use clap::{Args, Subcommand};
use command_line::environment;
use command_line::environment::{library_search, tensorflow_search, torch_search};
use command_line::exit::{CommandError, CommandResult, ExitStatus};
use demo::DemoArgs;
use loadgen::{BenchEnv, MachineArgs};
use tune::load::BenchLoadArgs;

use crate::child_process;

/// Program of all benchmarks except `load`.
const PROGRAM: &str = "millpond-bench";

/// `millpond bench load`. [`pass_on`] takes all other forms of `millpond bench` before arguments
/// are parsed.
#[derive(Args, Debug)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    command: LinkedBenchmark,
    #[command(flatten)]
    machine: MachineArgs,
}

#[derive(Debug, Subcommand)]
enum LinkedBenchmark {
    Load(BenchLoadArgs),
}

/// `millpond demo`.
#[derive(Args, Debug)]
pub(crate) struct DemoCommand {
    #[command(flatten)]
    demo: DemoArgs,
    #[command(flatten)]
    machine: MachineArgs,
}

/// Runs a linked benchmark.
pub(crate) fn run(args: &BenchArgs) -> CommandResult {
    let env = bench_env(&args.machine)?;
    match &args.command {
        LinkedBenchmark::Load(args) => {
            let tls = environment::with_ca(&args.tls, &[&args.url]);
            let api_key = environment::client_key(args.api_key.as_ref());
            finished(tune::load::run(&BenchLoadArgs { tls, api_key, ..args.clone() }, &env))
        }
    }
}

/// Runs the demo.
pub(crate) fn demo(args: &DemoCommand) -> CommandResult {
    finished(demo::run(&args.demo, demo_time()?, &bench_env(&args.machine)?))
}

/// Replaces this process by `millpond-bench` if `arguments` (without the program's name) are for
/// it.
///
/// # Errors
/// Returns an error if that program is not installed or cannot be started.
pub(crate) fn pass_on(arguments: &[OsString]) -> CommandResult {
    let word = |at: usize| arguments.get(at).and_then(|argument| argument.to_str());
    let rest = match (word(0), word(1)) {
        (Some("bench"), Some("load")) => return Ok(()),
        (Some("bench"), _) => arguments[1..].to_vec(),
        (Some("help"), Some("bench")) => [&[OsString::from("help")], &arguments[2..]].concat(),
        _ => return Ok(()),
    };
    let program = program()?;
    let error = command(&program)?.args(rest).exec();
    Err(CommandError::failed(format!("cannot start {}: {error}", program.display())))
}

/// Returns names and descriptions of the benchmarks in `millpond-bench`; none if it is not
/// installed.
pub(crate) fn benchmarks() -> Vec<(String, String)> {
    let help = || {
        let output = command(&program().ok()?).ok()?.arg("--help").output().ok()?;
        String::from_utf8(output.stdout).ok()
    };
    let text = help().unwrap_or_default();
    let lines = text.lines().skip_while(|line| *line != "Commands:").skip(1);
    lines
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.strip_prefix("  ")?.split_once(' '))
        .filter(|(name, _)| !name.is_empty() && *name != "help" && *name != "load")
        .map(|(name, about)| (name.to_owned(), about.trim().to_owned()))
        .collect()
}

/// Builds a command of `millpond-bench` with variables for this program's path and cache.
fn command(program: &Path) -> CommandResult<Command> {
    let mut command = Command::new(program);
    command.env(environment::PROGRAM.name, this_program()?);
    command.env(environment::CACHE_DIR.name, environment::cache_dir());
    Ok(command)
}

/// Finds `millpond-bench` beside this program, else in the directories of PATH.
fn program() -> CommandResult<PathBuf> {
    let beside = this_program()?.parent().map(Path::to_path_buf);
    let path = environment::PATH.path().unwrap_or_default();
    let mut places = beside.clone().into_iter().chain(std::env::split_paths(&path));
    places.find_map(|dir| Some(dir.join(PROGRAM)).filter(|file| file.is_file())).ok_or_else(|| {
        let dir = beside.unwrap_or_default();
        CommandError::failed(format!("{PROGRAM} is neither in {} nor in PATH", dir.display())).hint(format!(
            "`make build-bench` or `cargo build --release -p {PROGRAM}` builds it; `millpond bench load` needs no other program"
        ))
    })
}

fn this_program() -> CommandResult<PathBuf> {
    Ok(child_process::program()?.path().to_owned())
}

pub(crate) fn bench_env(machine: &MachineArgs) -> CommandResult<BenchEnv> {
    let program = child_process::program()?;
    Ok(BenchEnv {
        millpond: program.path().to_owned(),
        program: Some(program),
        onnxruntime: library_search(machine.onnxruntime.clone()),
        libtorch: torch_search(machine.libtorch.clone()),
        tensorflow: tensorflow_search(machine.tensorflow.clone()),
        audio_data: environment::AUDIO_DATA.path(),
        cache_dir: machine.cache_dir.clone().unwrap_or_else(environment::cache_dir),
    })
}

fn demo_time() -> CommandResult<Option<Duration>> {
    let Some(text) = environment::DEMO_SECONDS.text() else { return Ok(None) };
    let seconds = text.parse().map_err(|_| {
        CommandError::usage(format!(
            "{}={text}: it must be a number of seconds",
            environment::DEMO_SECONDS.name
        ))
    })?;
    Ok(Some(Duration::from_secs(seconds)))
}

/// Gives internal errors the exit code of wrong answers, because the user did not cause a wrong
/// answer or a crashed server.
pub(crate) fn finished(result: base::Result<()>) -> CommandResult {
    result.map_err(|error| {
        let exit = match error.kind() {
            ErrorKind::InvalidArgument => ExitStatus::Usage,
            ErrorKind::Internal | ErrorKind::DataLoss => ExitStatus::Wrong,
            _ => ExitStatus::Failed,
        };
        CommandError::from(error).with_exit(exit)
    })
}
