//! `bench audio`: a long recording through a recogniser, with an increasing number of threads.
//!
//! Each figure is of a `millpond audio` process, as a user would run it: (a) engine threads against
//! threads inside an operator, (b) resident memory over the whole recording against the same
//! program with the system's allocator, (c) the same model and recording through its Python
//! package.

mod child;
mod long_audio;
mod memory;
mod python;
mod report;
mod sweep;

use std::path::{Path, PathBuf};
use std::time::Duration;

use base::{Error, Result};
use clap::{Args, ValueEnum};

use crate::report::{BenchReport as _, SYSTEM_BINARY};
use child::{ChildJob, ChildRun, ThreadSetting};
use loadgen::BenchEnv;
use loadgen::machine::NoiseWatch;
use loadgen::report::StepProgress;
use memory::AllocatorMemory;
use python::Reference;
use report::{AudioReport, PythonComparison};
use sweep::SweepRun;

/// Maximum length of a recording in minutes: a day.
const MINUTES_MAX: u32 = 1440;
/// Default for the minutes of the recording that the sweep and the comparison with Python take.
/// Recognisers with a state cut a recording into pieces of some minutes that run in parallel. With
/// few pieces, the remainder at the end would hide the effect of a thread.
const SWEEP_MINUTES: u32 = 64;
/// Ratio to the fastest pair of the sweep from which a pair is not measured again.
const SLOW_FACTOR: f64 = 8.0;
/// Maximum number of rounds.
const ROUNDS_MAX: usize = 100;
/// Maximum number of thread counts of one kind.
const COUNTS_MAX: usize = 16;
/// Maximum number of threads of one kind.
const THREADS_MAX: usize = 256;
/// Minutes of the recording with --quick.
const QUICK_MINUTES: u32 = 1;

/// Measure a long recording: speed by number of threads, memory over time, and the speed of the
/// Python package.
///
/// The recording is made of real clips and kept in the cache. The part sweep compares numbers of
/// threads with numbers of threads inside an operator. If there are no more threads than cores, a
/// run may use only as many cores as it has threads, decoding included. The part memory measures
/// resident memory during the whole recording, and compares this program with the same program
/// built without jemalloc. The part python runs the same model and recording through the model's
/// Python package, on one thread and one core. Loading is never counted.
///
/// Goals: with 2 threads and more, one thread inside an operator is the fastest. The time never
/// rises with more threads, up to the number of cores. Two threads are at least 1.85 times as fast
/// as one. Memory grows by at most 3 % from minute 10 to the end, and its peak and mean are not
/// above those with the system's allocator. Millpond is at least 1.3 times as fast as the Python
/// package.
#[derive(Args, Clone, Debug)]
pub(crate) struct BenchAudioArgs {
    /// Length of the recording in minutes
    #[arg(long, default_value_t = 120)]
    pub(crate) minutes: u32,
    /// Minutes of it that the sweep and the comparison with Python take [default: at most 64]
    #[arg(long, value_name = "MINUTES")]
    pub(crate) sweep_minutes: Option<u32>,
    /// Recogniser to run
    #[arg(long, value_name = "NAME", default_value = "vad")]
    pub(crate) recogniser: String,
    /// Directory of recognisers [default: as for `millpond audio`]
    #[arg(long, value_name = "DIR")]
    pub(crate) recognisers: Option<PathBuf>,
    /// Numbers of engine threads
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8")]
    pub(crate) threads: Vec<usize>,
    /// Numbers of threads inside an operator
    #[arg(long, value_delimiter = ',', default_value = "1,2,4")]
    pub(crate) intra: Vec<usize>,
    /// Rounds of the sweep and of the comparison with Python; each figure is the median over them
    #[arg(long, default_value_t = 3)]
    pub(crate) rounds: usize,
    /// Parts to measure
    #[arg(long, value_enum, value_delimiter = ',', default_value = "sweep,memory,python")]
    pub(crate) parts: Vec<AudioPart>,
    /// Directory of clips to make the recording of [default: .cache/audio/clips, where `make
    /// recognisers` puts them]
    #[arg(long, value_name = "DIR")]
    pub(crate) clips: Option<PathBuf>,
    /// Python with the recognisers' packages [default: .venv-audio/bin/python, which `make
    /// recognisers` makes]
    #[arg(long, value_name = "PATH")]
    pub(crate) python: Option<PathBuf>,
    /// This program built without jemalloc [default: target/system/release/millpond, which `make
    /// bench-audio` builds]
    #[arg(long, value_name = "PATH")]
    pub(crate) system_binary: Option<PathBuf>,
    /// One minute, one round, few threads: a test of the program; the figures mean nothing
    #[arg(long)]
    pub(crate) quick: bool,
    /// Write the figures as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Write figures and charts as a page
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
    /// Write the charts as PNG images into this directory
    #[arg(long, value_name = "DIR")]
    pub(crate) png: Option<PathBuf>,
}

/// Parts of the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum AudioPart {
    /// Threads against threads inside an operator.
    Sweep,
    /// Memory over time, by allocator.
    Memory,
    /// The same through the Python package.
    Python,
}

impl BenchAudioArgs {
    /// Applies `--quick` and checks the arguments.
    fn resolved(&self) -> Result<BenchAudioArgs> {
        let mut args = self.clone();
        if args.quick {
            args.minutes = args.minutes.min(QUICK_MINUTES);
            args.rounds = 1;
            args.threads = vec![1, 2];
            args.intra = vec![1, 2];
        }
        let sweep = args.sweep_minutes.unwrap_or(SWEEP_MINUTES).min(args.minutes);
        args.sweep_minutes = Some(sweep);
        if !(1..=MINUTES_MAX).contains(&args.minutes) || sweep == 0 {
            return Err(Error::invalid(format!(
                "--minutes and --sweep-minutes must be 1 to {MINUTES_MAX}"
            )));
        }
        if !(1..=ROUNDS_MAX).contains(&args.rounds) {
            return Err(Error::invalid(format!("--rounds must be 1 to {ROUNDS_MAX}")));
        }
        for (name, counts) in [("threads", &args.threads), ("intra", &args.intra)] {
            let distinct =
                counts.iter().enumerate().all(|(place, count)| !counts[..place].contains(count));
            let fits = counts.iter().all(|count| (1..=THREADS_MAX).contains(count));
            if !(1..=COUNTS_MAX).contains(&counts.len()) || !distinct || !fits {
                return Err(Error::invalid(format!(
                    "--{name} must be up to {COUNTS_MAX} different numbers of 1 to {THREADS_MAX}"
                )));
            }
        }
        Ok(args)
    }

    fn sweep_minutes(&self) -> u32 {
        self.sweep_minutes.unwrap_or(SWEEP_MINUTES).min(self.minutes)
    }

    fn wants(&self, part: AudioPart) -> bool {
        self.parts.contains(&part)
    }
}

struct AudioSetup<'a> {
    args: &'a BenchAudioArgs,
    env: &'a BenchEnv,
    /// The whole recording.
    recording: PathBuf,
    /// The beginning of the recording, for the sweep.
    short: PathBuf,
    cores: usize,
}

/// Runs `bench audio`.
///
/// # Errors
/// Returns an error if an argument is out of range, there are no clips or no recogniser, or a run
/// fails. If the other program or Python is missing, its figures are left out with a message.
pub(crate) fn run(args: &BenchAudioArgs, env: &BenchEnv) -> Result<()> {
    let args = args.resolved()?;
    let watch = NoiseWatch::start();
    let clips = long_audio::clips_dir(env, args.clips.as_deref())?;
    let (short, count) = long_audio::make(env, &clips, args.sweep_minutes())?;
    let recording = if args.wants(AudioPart::Memory) {
        long_audio::make(env, &clips, args.minutes)?.0
    } else {
        short.clone()
    };
    let cores = loadgen::machine::cores();
    let setup = AudioSetup { args: &args, env, recording, short, cores };
    let cells = if args.wants(AudioPart::Sweep) { setup.sweep()? } else { Vec::new() };
    let MemoryFigures { jemalloc, system } =
        if args.wants(AudioPart::Memory) { setup.memory()? } else { MemoryFigures::default() };
    let against = if args.wants(AudioPart::Python) { setup.python()? } else { None };
    let measured = report::AudioFigures { cells, jemalloc, system, against, clips: count, cores };
    let report = AudioReport::new(&args, measured, watch.context(None));
    report.finish(args.json.as_deref())?;
    if let Some(path) = &args.report {
        loadgen::report::write_file(path, report.html()?.as_bytes())?;
    }
    args.png.as_deref().map_or(Ok(()), |dir| report.write_png(dir))
}

/// Memory of a run with each allocator. `None` if the allocator was not measured.
#[derive(Default)]
struct MemoryFigures {
    jemalloc: Option<AllocatorMemory>,
    system: Option<AllocatorMemory>,
}

impl AudioSetup<'_> {
    fn job<'b>(&'b self, program: &'b Path, recording: &'b Path, minutes: u32) -> ChildJob<'b> {
        ChildJob {
            env: self.env,
            program,
            recogniser: &self.args.recogniser,
            recognisers: self.args.recognisers.as_deref(),
            recording,
            length: Duration::from_secs(u64::from(minutes) * 60),
        }
    }

    fn short_job(&self) -> ChildJob<'_> {
        self.job(&self.env.millpond, &self.short, self.args.sweep_minutes())
    }

    /// Runs all rounds of all pairs.
    fn sweep(&self) -> Result<Vec<sweep::SweepCell>> {
        let args = self.args;
        let pairs = |round| sweep::order(&args.threads, &args.intra, self.cores, round);
        let progress = StepProgress::new((args.rounds * pairs(0).len()) as u64);
        let job = self.short_job();
        progress.say("one run that is not counted");
        job.run(ThreadSetting { threads: 1, intra: 1, cores: None })?;
        let mut measured: Vec<SweepRun> = Vec::new();
        for round in 0..args.rounds {
            for threads in pairs(round) {
                if round > 0 && sweep::is_slow(&measured, threads, SLOW_FACTOR) {
                    progress.step();
                    continue;
                }
                progress.say(format!(
                    "round {} of {}, {} threads, {} inside",
                    round + 1,
                    args.rounds,
                    threads.threads,
                    threads.intra
                ));
                let ran = job.run(threads)?;
                measured.push(SweepRun { threads, seconds: ran.seconds, cpu_s: ran.cpu_s });
                progress.step();
            }
        }
        Ok(sweep::cells(&pairs(0), &measured, self.cores))
    }

    /// Measures the memory of this program, and of the program with the system's allocator if there
    /// is one.
    fn memory(&self) -> Result<MemoryFigures> {
        let progress = StepProgress::new(2);
        let one = |program: &Path, name: &str| -> Result<Option<AllocatorMemory>> {
            progress.say(format!("{} minutes with {name}", self.args.minutes));
            let threads = ThreadSetting { threads: self.cores, intra: 1, cores: None };
            let ran = self.job(program, &self.recording, self.args.minutes).run(threads)?;
            progress.step();
            Ok(AllocatorMemory::of(&ran, f64::from(self.args.minutes)))
        };
        let jemalloc = one(&self.env.millpond, "jemalloc")?;
        let other = self.args.system_binary.clone().or_else(|| self.env.in_checkout(SYSTEM_BINARY));
        let Some(other) = other else {
            progress.line(&format!(
                "memory with the system's allocator is left out: no {SYSTEM_BINARY}; run `make bench-audio`, or give \
                 --system-binary PATH"
            ));
            return Ok(MemoryFigures { jemalloc, system: None });
        };
        let system = one(&other, "the system's allocator")?;
        Ok(MemoryFigures { jemalloc, system })
    }

    /// Runs this program and the package in turn, on one thread and one core.
    fn python(&self) -> Result<Option<PythonComparison>> {
        let args = self.args;
        let progress = StepProgress::new(2 * args.rounds as u64);
        let reference = match Reference::find(self.env, args.python.as_deref()) {
            Ok(reference) => reference,
            Err(error) => {
                progress.line(&format!("the comparison with Python is left out: {error}"));
                return Ok(None);
            }
        };
        let mut ours: Vec<ChildRun> = Vec::new();
        let mut theirs = Vec::new();
        for round in 0..args.rounds {
            progress.say(format!("round {} of {}, one thread", round + 1, args.rounds));
            ours.push(self.short_job().run(ThreadSetting {
                threads: 1,
                intra: 1,
                cores: Some(1),
            })?);
            progress.step();
            progress.say(format!("round {} of {}, Python", round + 1, args.rounds));
            theirs.push(reference.run(&args.recogniser, &self.short, 1)?);
            progress.step();
        }
        Ok(Some(PythonComparison::new(&ours, &theirs)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn parse(text: &str) -> Result<BenchAudioArgs> {
        crate::arguments::parse::<BenchAudioArgs>(text.split_whitespace())?.resolved()
    }

    #[test]
    fn defaults_are_the_published_ones() {
        let args = parse("").unwrap();
        assert_eq!((args.minutes, args.sweep_minutes(), args.rounds), (120, 64, 3));
        assert_eq!(
            (args.threads.as_slice(), args.intra.as_slice()),
            (&[1, 2, 4, 8][..], &[1, 2, 4][..])
        );
        assert_eq!(args.parts, [AudioPart::Sweep, AudioPart::Memory, AudioPart::Python]);
        assert_eq!(parse("--minutes 3").unwrap().sweep_minutes(), 3);
        assert_eq!(parse("--quick").unwrap().threads, [1, 2]);
    }

    #[test]
    fn arguments_out_of_range_are_refused() {
        for wrong in [
            "--minutes 0",
            "--minutes 9999",
            "--rounds 0",
            "--threads 0",
            "--threads 1,1",
            "--intra 999",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
