//! A run of `millpond audio` in a child process: its time without loading, its use of the
//! processor, and its memory over time.

use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use base::{Error, Result};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::Deserialize;

use crate::report::read_json;
use loadgen::BenchEnv;
use loadgen::machine::{rss_kb_of, usage_of};
use loadgen::process::{end_with_us, let_go};

const POLL: Duration = Duration::from_millis(20);
/// Time between two samples of the child's memory.
pub(super) const SAMPLE_INTERVAL: Duration = Duration::from_millis(500);
/// Maximum number of samples: thirteen hours of them.
const SAMPLES_MAX: usize = 100_000;
/// Maximum time of a run beyond the recording's length.
const LOAD_MAX: Duration = Duration::from_secs(600);
/// Bytes of a failed child's output that an error shows.
const OUTPUT_BYTES_SHOWN: usize = 2000;

/// Arguments of a run.
#[derive(Clone, Debug)]
pub(super) struct ChildJob<'a> {
    pub(super) env: &'a BenchEnv,
    /// The program to run.
    pub(super) program: &'a Path,
    pub(super) recogniser: &'a str,
    pub(super) recognisers: Option<&'a Path>,
    pub(super) recording: &'a Path,
    /// Length of the recording. It bounds the time of the run.
    pub(super) length: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ThreadSetting {
    pub(super) threads: usize,
    pub(super) intra: usize,
    /// Number of cores that the child may use, or `None` for all.
    pub(super) cores: Option<usize>,
}

/// Timing that the child prints.
#[derive(Clone, Debug, Deserialize)]
struct Timing {
    load_s: Option<f64>,
    files: Vec<FileTiming>,
}

#[derive(Clone, Debug, Deserialize)]
struct FileTiming {
    seconds: f64,
    cpu_s: f64,
    audio_s: f64,
    partial: bool,
}

/// Result of a run.
#[derive(Clone, Debug)]
pub(super) struct ChildRun {
    /// Seconds of work, without loading.
    pub(super) seconds: f64,
    /// Processor seconds of the work.
    pub(super) cpu_s: f64,
    /// Seconds of loading.
    pub(super) load_s: f64,
    /// Start and end of each label in seconds.
    pub(super) labels: Vec<(f64, f64)>,
    /// Seconds since the start of the process, and resident memory in MiB.
    pub(super) samples: Vec<(f64, f64)>,
    /// Peak resident memory in MiB, as the kernel counts it.
    pub(super) peak_mb: f64,
}

impl ChildJob<'_> {
    /// Runs the child to its end.
    ///
    /// # Errors
    /// Returns an error if the child cannot be started, fails, does not end in time, or did not
    /// read the whole recording.
    pub(super) fn run(&self, threads: ThreadSetting) -> Result<ChildRun> {
        let dir = self.env.cache_dir.join("run").join("audio");
        std::fs::create_dir_all(&dir).map_err(|e| Error::io(&dir, &e))?;
        let place = |name: &str| dir.join(name);
        let timing = place("timing.json");
        let labels = place("labels.txt");
        let log = place("log.txt");
        let mut command = Command::new(self.program);
        command
            .args(["audio", "--recogniser", self.recogniser, "--format", "audacity"])
            .args([
                "--threads",
                &threads.threads.to_string(),
                "--intra-op",
                &threads.intra.to_string(),
            ])
            .arg("--cache-dir")
            .arg(&self.env.cache_dir)
            .arg("--timing")
            .arg(&timing)
            .arg("--output")
            .arg(&labels);
        if let Some(cores) = threads.cores {
            command.args(["--cores", &cores.to_string()]);
        }
        let explicit = [
            ("--onnxruntime", self.env.onnxruntime.explicit.as_deref()),
            ("--libtorch", self.env.libtorch.explicit.as_deref()),
            ("--recognisers", self.recognisers),
        ];
        for (flag, value) in explicit {
            command.args(value.iter().flat_map(|value| [OsStr::new(flag), value.as_os_str()]));
        }
        command.arg(self.recording);
        let watched = run_to_end(command, &log, self.length + LOAD_MAX)?;
        let timing: Timing = read_json(&timing)?;
        let file = timing.files.first().ok_or_else(|| Error::internal("the run timed no file"))?;
        if file.partial || (file.audio_s - self.length.as_secs_f64()).abs() > 1.0 {
            let heard =
                format!("{:.1} s of {:.1} s were heard", file.audio_s, self.length.as_secs_f64());
            return Err(Error::data_loss(format!("{heard}; {}", last_output(&log))));
        }
        Ok(ChildRun {
            seconds: file.seconds,
            cpu_s: file.cpu_s,
            load_s: timing.load_s.unwrap_or(0.0),
            labels: read_labels(&labels)?,
            samples: watched.samples,
            peak_mb: watched.peak_mb,
        })
    }
}

/// Memory of a child: samples over time, and the peak.
struct ChildUsage {
    samples: Vec<(f64, f64)>,
    peak_mb: f64,
}

/// A child that is killed when this is dropped.
struct ChildGuard(Child);

impl Drop for ChildGuard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
        let_go(self.0.id());
    }
}

/// Runs a command to its end, and samples its memory. Writes its error output to `log`.
///
/// # Errors
/// Returns an error if the command cannot be started, fails, or runs longer than `timeout`.
fn run_to_end(mut command: Command, log: &Path, timeout: Duration) -> Result<ChildUsage> {
    let file = File::create(log).map_err(|e| Error::io(log, &e))?;
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file);
    let started = Instant::now();
    let program = PathBuf::from(command.get_program());
    let mut child = ChildGuard(command.spawn().map_err(|e| Error::io(&program, &e))?);
    end_with_us(child.0.id());
    let mut seen = ChildUsage { samples: Vec::new(), peak_mb: 0.0 };
    let mut due = SAMPLE_INTERVAL;
    loop {
        match child.0.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(seen),
            Ok(Some(status)) => {
                let name = program.display();
                return Err(Error::internal(format!(
                    "{name} ended with {status}; {}",
                    last_output(log)
                )));
            }
            Ok(None) if started.elapsed() < timeout => {}
            _ => {
                return Err(Error::deadline(format!(
                    "{} does not end; {}",
                    program.display(),
                    last_output(log)
                )));
            }
        }
        let elapsed = started.elapsed();
        if elapsed >= due && seen.samples.len() < SAMPLES_MAX {
            due += SAMPLE_INTERVAL;
            // Zero if the child has just ended.
            let resident = rss_kb_of(child.0.id()) as f64 / 1024.0;
            if resident > 0.0 {
                seen.samples.push((elapsed.as_secs_f64(), resident));
                seen.peak_mb = seen.peak_mb.max(usage_of(child.0.id()).peak_rss_kb as f64 / 1024.0);
            }
        }
        std::thread::sleep(POLL);
    }
}

/// Returns the end of a child's output.
pub(super) fn last_output(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let start = text.len().saturating_sub(OUTPUT_BYTES_SHOWN);
    let start = (start..text.len()).find(|&at| text.is_char_boundary(at)).unwrap_or(text.len());
    format!("it said: {}", text.get(start..).unwrap_or_default().trim().replace('\n', "; "))
}

/// Reads start and end of each label of a track: three columns, separated by tabs.
fn read_labels(path: &Path) -> Result<Vec<(f64, f64)>> {
    let text = std::fs::read_to_string(path).map_err(|e| Error::io(path, &e))?;
    let label = |line: &str| {
        let mut columns = line.split('\t');
        Some((columns.next()?.parse().ok()?, columns.next()?.parse().ok()?))
    };
    // A line that begins with a backslash belongs to the label before it.
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('\\'));
    lines
        .map(|line| {
            label(line).ok_or_else(|| Error::internal(format!("\"{line}\" is not a label")))
        })
        .collect()
}

/// Runs `start` while this thread, and every process that it starts, may use only the first `count`
/// cores.
///
/// # Errors
/// Returns an error if the system refuses, and the errors of `start`.
pub(super) fn on_cores<T>(count: usize, start: impl FnOnce() -> Result<T>) -> Result<T> {
    let refused = |e: rustix::io::Errno| Error::internal("the cores cannot be chosen").caused_by(e);
    let before = sched_getaffinity(None).map_err(refused)?;
    let mut first = CpuSet::new();
    (0..CpuSet::MAX_CPU)
        .filter(|&core| before.is_set(core))
        .take(count.max(1))
        .for_each(|core| first.set(core));
    sched_setaffinity(None, &first).map_err(refused)?;
    let started = start();
    sched_setaffinity(None, &before).map_err(refused)?;
    started
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_tracks_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("labels.txt");
        std::fs::write(&path, "0.5\t1.25\tspeech\n\\\t100\t200\n2\t3\tspeech\n").unwrap();
        assert_eq!(read_labels(&path).unwrap(), [(0.5, 1.25), (2.0, 3.0)]);
        std::fs::write(&path, "soon\tlater\tx\n").unwrap();
        assert!(read_labels(&path).is_err());
    }

    #[test]
    fn a_child_is_watched_and_its_output_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let shell = |script: &str| {
            let mut command = Command::new("/bin/sh");
            command.args(["-c", script]);
            run_to_end(command, &log, Duration::from_secs(60))
        };
        // Much longer than the time between samples, as the watch may lose its core.
        let seen = shell("sleep 3").unwrap();
        assert!(!seen.samples.is_empty() && seen.peak_mb > 0.0);
        let error = shell("echo no model >&2; exit 3").err().unwrap();
        assert!(error.message().contains("it said: no model"), "{error}");
        let mut command = Command::new("/bin/sleep");
        command.arg("60");
        assert!(
            run_to_end(command, &log, Duration::from_millis(50))
                .err()
                .unwrap()
                .message()
                .contains("does not end")
        );
    }

    #[test]
    fn cores_are_restored() {
        let count = || sched_getaffinity(None).unwrap().count();
        let before = count();
        assert_eq!(on_cores(1, || Ok(count())).unwrap(), 1);
        assert_eq!(count(), before);
    }
}
