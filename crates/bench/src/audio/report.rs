//! The report of `bench audio`: JSON, tables, charts and goals.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use base::Result;
use serde::Serialize;

use super::BenchAudioArgs;
use super::child::ChildRun;
use super::memory::AllocatorMemory;
use super::python::{PythonRun, differ_ms};
use super::sweep::{SweepCell, seconds};
use crate::plot::{Chart, Series, page, png};
use crate::report::{BenchReport, Goal};
use loadgen::machine::RunContext;
use loadgen::println;
use loadgen::report::{TextTable, write_file};
use loadgen::stats::{median, ratio};

/// Maximum growth of memory in percent.
const GROWTH_MAX_PCT: f64 = 3.0;
/// Minimum speed-up of two threads over one.
const SCALING_MIN: f64 = 1.85;
/// Minimum speed-up over the Python package.
const SPEEDUP_MIN: f64 = 1.3;
/// Maximum distance of a label's end from the package's: the length of a window.
const DIFFER_MAX_MS: f64 = 32.0;
/// Labels are written with six digits.
const ROUNDING_MS: f64 = 0.01;
pub(super) struct AudioFigures {
    pub(super) cells: Vec<SweepCell>,
    pub(super) jemalloc: Option<AllocatorMemory>,
    pub(super) system: Option<AllocatorMemory>,
    pub(super) against: Option<PythonComparison>,
    pub(super) clips: usize,
    pub(super) cores: usize,
}

/// This program and the Python package on the same recording.
#[derive(Clone, Debug, Serialize)]
pub(super) struct PythonComparison {
    /// Medians over the rounds, without loading.
    seconds: f64,
    python_seconds: f64,
    segments: usize,
    python_segments: usize,
    #[serde(skip)]
    differ_ms: Option<f64>,
    seconds_rounds: Vec<f64>,
    python_seconds_rounds: Vec<f64>,
}

impl PythonComparison {
    pub(super) fn new(ours: &[ChildRun], theirs: &[PythonRun]) -> PythonComparison {
        let labels = ours.first().map(|ran| ran.labels.as_slice()).unwrap_or_default();
        let segments = theirs.first().map(|answer| answer.segments.as_slice()).unwrap_or_default();
        PythonComparison {
            seconds: median(ours.iter().map(|ran| ran.seconds)),
            python_seconds: median(theirs.iter().map(|answer| answer.seconds)),
            segments: labels.len(),
            python_segments: segments.len(),
            differ_ms: differ_ms(labels, segments),
            seconds_rounds: ours.iter().map(|ran| ran.seconds).collect(),
            python_seconds_rounds: theirs.iter().map(|answer| answer.seconds).collect(),
        }
    }
}

/// JSON of `bench audio`.
#[derive(Debug, Serialize)]
pub(super) struct AudioReport {
    sweep: Vec<SweepCell>,
    /// Time on one thread over time on two, with one thread inside an operator.
    scaling_2: Option<f64>,
    memory: BTreeMap<&'static str, AllocatorMemory>,
    speedup_vs_python: Option<f64>,
    segments_differ_ms: Option<f64>,
    python: Option<PythonComparison>,
    wanted: Vec<Goal>,
    setting: AudioSetting,
    #[serde(flatten)]
    context: RunContext,
}

#[derive(Debug, Serialize)]
struct AudioSetting {
    recogniser: String,
    minutes: u32,
    /// Length of the beginning of the recording that the sweep and the comparison with Python use.
    sweep_minutes: u32,
    rounds: usize,
    clips: usize,
    cores: usize,
    quick: bool,
}

impl AudioReport {
    pub(super) fn new(
        args: &BenchAudioArgs,
        figures: AudioFigures,
        context: RunContext,
    ) -> AudioReport {
        let AudioFigures { cells, jemalloc, system, against, clips, cores } = figures;
        let scaling_2 =
            seconds(&cells, 1, 1).zip(seconds(&cells, 2, 1)).map(|(one, two)| ratio(one, two));
        let speedup_vs_python = against.as_ref().map(|own| ratio(own.python_seconds, own.seconds));
        let segments_differ_ms = against.as_ref().and_then(|own| own.differ_ms);
        let mut wanted: Vec<Goal> =
            [fastest_column(&cells), never_rises(&cells, cores)].into_iter().flatten().collect();
        wanted.extend(scaling_2.filter(|_| cores >= 2).map(|value| {
            let what = "2 threads over 1: at least 1.85 times as fast";
            Goal::new(what, value, value >= SCALING_MIN)
        }));
        wanted.extend(memory_goals(jemalloc.as_ref(), system.as_ref()));
        wanted.extend(speedup_vs_python.map(|value| {
            let what = "speed against the Python package, one thread: at least 1.3 times";
            Goal::new(what, value, value >= SPEEDUP_MIN)
        }));
        wanted.extend(segments_differ_ms.map(|value| {
            let what = "labels' ends against the Python package: at most 32 ms apart";
            Goal::new(what, value, value < DIFFER_MAX_MS + ROUNDING_MS)
        }));
        let memory = [("jemalloc", jemalloc), ("system", system)];
        AudioReport {
            sweep: cells,
            scaling_2,
            memory: memory.into_iter().filter_map(|(name, memory)| Some((name, memory?))).collect(),
            speedup_vs_python,
            segments_differ_ms,
            python: against,
            wanted,
            setting: AudioSetting {
                recogniser: args.recogniser.clone(),
                minutes: args.minutes,
                sweep_minutes: args.sweep_minutes(),
                rounds: args.rounds,
                clips,
                cores,
                quick: args.quick,
            },
            context,
        }
    }

    fn text(&self) -> String {
        let setting = &self.setting;
        let mut text = format!(
            "recogniser {}, a recording of {} minutes from {} clips, {} cores; loading is not counted\n",
            setting.recogniser, setting.minutes, setting.clips, setting.cores
        );
        if !self.sweep.is_empty() {
            let _ = write!(
                text,
                "\nsweep over {} minutes, median of {} rounds\n{}",
                setting.sweep_minutes,
                setting.rounds,
                sweep_table(&self.sweep, setting.sweep_minutes)
            );
        }
        if !self.memory.is_empty() {
            let mut table =
                TextTable::new(&["memory", "peak MiB", "mean MiB", "growth %", "seconds"]);
            for (name, memory) in &self.memory {
                let figures = [memory.peak_mb, memory.mean_mb, memory.growth_pct, memory.seconds];
                let cells = figures.map(|figure| format!("{figure:.1}"));
                table.row([vec![(*name).to_owned()], cells.to_vec()].concat());
            }
            let _ = write!(text, "\nmemory over {} minutes\n{table}", setting.minutes);
        }
        if let Some(against) = &self.python {
            let _ = writeln!(
                text,
                "\none thread: {:.2} s, {} labels; Python package {:.2} s, {} labels",
                against.seconds, against.segments, against.python_seconds, against.python_segments
            );
        }
        let lines: Vec<String> = self.wanted.iter().map(Goal::to_string).collect();
        let _ = write!(text, "\n{}\n{}", lines.join("\n"), self.context);
        text
    }

    /// Returns the charts with the names of their files.
    fn charts(&self) -> Vec<(&'static str, Chart)> {
        let mut charts = Vec::new();
        if !self.sweep.is_empty() {
            charts.push((
                "processing-time",
                self.by_threads("Processing time", "seconds", |cell| cell.seconds),
            ));
            charts.push((
                "cpu-use",
                self.by_threads("CPU use", "percent of one core", |cell| cell.cpu_pct),
            ));
        }
        if !self.memory.is_empty() {
            charts.push(("memory", self.over_time()));
        }
        charts
    }

    fn by_threads(&self, what: &str, unit: &str, of: fn(&SweepCell) -> f64) -> Chart {
        let mut steps: Vec<f64> = self.sweep.iter().map(|cell| cell.threads as f64).collect();
        let mut inside: Vec<usize> = self.sweep.iter().map(|cell| cell.intra).collect();
        steps.sort_by(f64::total_cmp);
        steps.dedup();
        inside.sort_unstable();
        inside.dedup();
        let line = |intra: usize| {
            let own = self.sweep.iter().filter(|cell| cell.intra == intra);
            let mut points: Vec<(f64, f64)> =
                own.map(|cell| (cell.threads as f64, of(cell))).collect();
            points.sort_by(|one, other| one.0.total_cmp(&other.0));
            Series { name: format!("{intra} inside an operator"), points }
        };
        Chart {
            title: format!("{what} of {} minutes by engine threads", self.setting.sweep_minutes),
            x: "engine threads".into(),
            y: unit.into(),
            series: inside.into_iter().map(line).collect(),
            steps: Some(steps),
            dots: true,
            ..Chart::default()
        }
    }

    fn over_time(&self) -> Chart {
        let line = |(name, memory): (&&'static str, &AllocatorMemory)| Series {
            name: if *name == "system" {
                "the system's allocator".into()
            } else {
                (*name).to_owned()
            },
            points: memory.samples.clone(),
        };
        Chart {
            title: format!("Resident memory over {} minutes of recording", self.setting.minutes),
            x: "seconds since the start".into(),
            y: "MiB".into(),
            series: self.memory.iter().map(line).collect(),
            ..Chart::default()
        }
    }

    /// Returns figures and charts as a self-contained HTML page.
    ///
    /// # Errors
    /// `Internal` if a chart cannot be drawn.
    pub(super) fn html(&self) -> Result<String> {
        let charts: Vec<Chart> = self.charts().into_iter().map(|(_, chart)| chart).collect();
        page("millpond bench audio", "A long recording", &charts, &self.text())
    }

    /// Writes each chart as a PNG image into `dir`.
    ///
    /// # Errors
    /// Returns an error if a file cannot be written.
    pub(super) fn write_png(&self, dir: &Path) -> Result<()> {
        let write = |(name, chart): &(&str, Chart)| {
            write_file(
                &dir.join(format!("audio-{name}.png")),
                &png(std::slice::from_ref(chart), 1)?,
            )
        };
        self.charts().iter().try_for_each(write)
    }
}

impl BenchReport for AudioReport {
    fn print(&self) {
        println!("{}", self.text());
    }
}

/// Returns the goals for memory that can be judged with the allocators that were measured.
fn memory_goals(jemalloc: Option<&AllocatorMemory>, system: Option<&AllocatorMemory>) -> Vec<Goal> {
    let Some(own) = jemalloc else { return Vec::new() };
    let growth = "memory growth from minute 10 to the end: at most 3 %";
    let mut goals = vec![Goal::new(growth, own.growth_pct, own.growth_pct <= GROWTH_MAX_PCT)];
    if let Some(other) = system {
        let peak = ratio(own.peak_mb, other.peak_mb);
        let mean = ratio(own.mean_mb, other.mean_mb);
        goals.push(Goal::new("peak memory, jemalloc / system: at most 1", peak, peak <= 1.0));
        goals.push(Goal::new("mean memory, jemalloc / system: at most 1", mean, mean <= 1.0));
    }
    goals
}

fn sweep_table(cells: &[SweepCell], minutes: u32) -> TextTable {
    let mut table =
        TextTable::new(&["threads", "inside", "cores", "seconds", "cpu %", "times real time"]);
    for cell in cells {
        table.row([
            cell.threads.to_string(),
            cell.intra.to_string(),
            cell.cores.to_string(),
            format!("{:.2}", cell.seconds),
            format!("{:.0}", cell.cpu_pct),
            format!("{:.0}", ratio(f64::from(minutes) * 60.0, cell.seconds)),
        ]);
    }
    table
}

/// Judges if one thread inside an operator is the fastest for every number of engine threads from
/// two. The value is the worst ratio of its time to that of the fastest other.
fn fastest_column(cells: &[SweepCell]) -> Option<Goal> {
    let share = |cell: &SweepCell| {
        let others = cells.iter().filter(|other| other.threads == cell.threads && other.intra > 1);
        let best = others.map(|other| other.seconds).reduce(f64::min)?;
        Some((cell.threads, ratio(cell.seconds, best)))
    };
    let own: Vec<(usize, f64)> = cells
        .iter()
        .filter(|cell| cell.intra == 1 && cell.threads >= 2)
        .filter_map(share)
        .collect();
    let worst = own.iter().map(|(_, share)| *share).reduce(f64::max)?;
    let slower = own.iter().filter(|(_, share)| *share > 1.0);
    Some(Goal {
        what: "one thread inside an operator, time over the fastest other at 2 threads and more: at most 1".into(),
        value: worst,
        met: worst <= 1.0,
        not_met_at: slower
            .map(|(threads, share)| format!("{threads} threads: {share:.3}"))
            .collect(),
    })
}

/// Judges if time ever rises with the number of threads, up to one a core. The value is the worst
/// ratio to the time with the next lower number.
fn never_rises(cells: &[SweepCell], cores: usize) -> Option<Goal> {
    let share = |cell: &SweepCell| {
        let fewer =
            cells.iter().filter(|other| other.intra == cell.intra && other.threads < cell.threads);
        let before = fewer.max_by_key(|other| other.threads)?;
        Some((
            format!("{} threads, {} inside", cell.threads, cell.intra),
            ratio(cell.seconds, before.seconds),
        ))
    };
    let own: Vec<(String, f64)> =
        cells.iter().filter(|cell| cell.threads <= cores).filter_map(share).collect();
    let worst = own.iter().map(|(_, share)| *share).reduce(f64::max)?;
    let rises = own.iter().filter(|(_, share)| *share > 1.0);
    Some(Goal {
        what: "time over that with fewer threads, up to the cores: at most 1".into(),
        value: worst,
        met: worst <= 1.0,
        not_met_at: rises.map(|(place, share)| format!("{place}: {share:.3}")).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use loadgen::machine::NoiseWatch;

    fn cell(threads: usize, intra: usize, seconds: f64) -> SweepCell {
        SweepCell {
            threads,
            intra,
            seconds,
            cpu_pct: 100.0,
            cores: 2,
            seconds_rounds: vec![seconds],
        }
    }

    fn memory(peak_mb: f64, growth_pct: f64) -> AllocatorMemory {
        let samples = vec![(0.5, peak_mb / 2.0), (1.0, peak_mb)];
        AllocatorMemory { peak_mb, mean_mb: peak_mb / 2.0, growth_pct, seconds: 2.0, samples }
    }

    fn report() -> AudioReport {
        let against = PythonComparison {
            seconds: 2.0,
            python_seconds: 3.0,
            segments: 4,
            python_segments: 4,
            differ_ms: Some(1.0),
            seconds_rounds: vec![2.0],
            python_seconds_rounds: vec![3.0],
        };
        let figures = AudioFigures {
            cells: vec![
                cell(1, 1, 10.0),
                cell(2, 1, 5.2),
                cell(8, 1, 6.0),
                cell(2, 2, 6.0),
                cell(8, 2, 5.0),
            ],
            jemalloc: Some(memory(80.0, 1.0)),
            system: Some(memory(100.0, 9.0)),
            against: Some(against),
            clips: 3,
            cores: 2,
        };
        let args = super::super::tests::parse("--minutes 120").unwrap();
        AudioReport::new(&args, figures, NoiseWatch::start().context(None))
    }

    #[test]
    fn the_json_has_the_published_names() {
        let json = serde_json::to_value(report()).unwrap();
        assert_eq!(json["sweep"][1]["threads"], 2);
        assert_eq!(
            (json["sweep"][1]["seconds"].as_f64(), json["sweep"][1]["cpu_pct"].as_f64()),
            (Some(5.2), Some(100.0))
        );
        assert_eq!(json["memory"]["jemalloc"]["peak_mb"], 80.0);
        assert_eq!(json["memory"]["system"]["growth_pct"], 9.0);
        assert_eq!(json["speedup_vs_python"], 1.5);
        assert_eq!(json["segments_differ_ms"], 1.0);
        assert!((json["scaling_2"].as_f64().unwrap() - 10.0 / 5.2).abs() < 1e-9);
    }

    #[test]
    fn goals_are_judged() {
        let report = report();
        let met: Vec<bool> = report.wanted.iter().map(|wanted| wanted.met).collect();
        // Only the eight threads of the sweep are slower than with two inside.
        assert_eq!(met, [false, true, true, true, true, true, true, true]);
        assert_eq!(report.wanted[0].not_met_at, ["8 threads: 1.200"]);
        assert!(report.text().contains("at most 3 % (1.00: met)"), "{}", report.text());
        assert!(
            never_rises(&[cell(1, 1, 1.0), cell(2, 1, 1.1), cell(4, 1, 9.0)], 2)
                .is_some_and(|own| !own.met)
        );
        assert!(fastest_column(&[cell(1, 1, 1.0)]).is_none() && never_rises(&[], 2).is_none());
    }

    #[test]
    fn the_page_and_the_images_have_all_charts() {
        let dir = tempfile::tempdir().unwrap();
        let report = report();
        let html = report.html().unwrap();
        assert_eq!(html.matches("<svg").count(), 3);
        assert!(html.contains("CPU use") && html.contains("Resident memory"), "{html}");
        report.write_png(dir.path()).unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 3);
    }
}
