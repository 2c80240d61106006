//! Output while the demo runs: one table that is redrawn, or a line now and then.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use base::units::format_bytes;

use crate::MODEL;
use loadgen::drive::{Judgement, RequestSample};
use loadgen::println;
use loadgen::report::{TextTable, ms};
use loadgen::samples::{Faults, KeptSamples};
use loadgen::scrape::Scrape;
use loadgen::stats::Latencies;

/// Time between two lines without a terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(5);
/// Width of a terminal whose width is unknown, in characters.
const COLUMNS: usize = 80;
/// Minimum width of the output, in characters.
const COLUMNS_MIN: usize = 20;
/// Time over which the shown rate is computed.
const RATE_TIME: Duration = Duration::from_secs(1);

/// Counts since the start.
#[derive(Debug, Default)]
pub(super) struct LiveCounts {
    pub(super) steady: Latencies,
    pub(super) swap: Latencies,
    pub(super) faults: Faults,
    pub(super) version: u64,
    pub(super) swaps: u64,
    pub(super) rate: f64,
}

impl LiveCounts {
    /// Adds samples. `swaps` are the times at which swaps began, `window` the time for which one
    /// counts.
    pub(super) fn add(
        &mut self,
        kept: KeptSamples,
        swaps: &[Duration],
        window: Duration,
        since: Duration,
    ) {
        let answered =
            kept.samples.iter().filter(|sample| sample.verdict != Judgement::Failed).count();
        self.rate = answered as f64 / since.as_secs_f64().max(RATE_TIME.as_secs_f64() / 10.0);
        for RequestSample { due, latency, verdict, version } in kept.samples {
            if verdict == Judgement::Failed {
                // A failure has no latency: a refusal comes at once.
                continue;
            }
            let began = swaps
                .partition_point(|start| *start <= due)
                .checked_sub(1)
                .map(|index| swaps[index]);
            let during = began.is_some_and(|start| due < start + window);
            if during {
                self.swap.record(latency)
            } else {
                self.steady.record(latency)
            }
            self.version = self.version.max(version);
        }
        self.faults.add(&kept.faults);
    }

    /// Returns the latency table.
    pub(super) fn table(&self) -> String {
        let mut table =
            TextTable::new(&["ctr requests", "count", "p50 ms", "p99 ms", "p999 ms", "max ms"]);
        for (name, latencies) in [("steady", &self.steady), ("during swaps", &self.swap)] {
            let figures = latencies.summary();
            let cells = [figures.p50_ms, figures.p99_ms, figures.p999_ms, figures.max_ms]
                .map(|value| measured(figures.n, value));
            let row = [name.to_owned(), figures.n.to_string()];
            table.row(row.into_iter().chain(cells));
        }
        table.to_string()
    }

    /// Returns the line of progress.
    fn line(&self) -> String {
        let steady = self.steady.summary();
        let swap = self.swap.summary();
        format!(
            "{:.0} requests/s, p999 {} ms steady, {} ms during swaps; version {}, {} swaps, {} failed, {} wrong",
            self.rate,
            measured(steady.n, steady.p999_ms),
            measured(swap.n, swap.p999_ms),
            self.version,
            self.swaps,
            self.faults.failed,
            self.faults.wrong
        )
    }
}

/// Formats a figure of `count` requests. It is "-" if there are none.
fn measured(count: u64, value: f64) -> String {
    if count == 0 { "-".to_owned() } else { ms(value) }
}

/// Returns the bytes by placement, for people.
pub(super) fn placements(metrics: &Scrape) -> String {
    let bytes =
        |name: &str, labels: &[(&str, &str)]| format_bytes(metrics.sum(name, labels) as u64);
    let versions = metrics.label_values(
        "millpond_model_state",
        &[("model", MODEL), ("state", "ready")],
        "version",
    );
    format!(
        "parameters {} in dram, {} in heap; ctr versions ready: {}\npool {} backed, {} used; process {} resident",
        bytes("millpond_parameter_bytes", &[("home", "dram")]),
        bytes("millpond_parameter_bytes", &[("home", "heap")]),
        versions.join(", "),
        bytes("millpond_pool_bytes", &[("kind", "backed")]),
        bytes("millpond_pool_bytes", &[("kind", "used")]),
        bytes("millpond_process_bytes", &[("kind", "rss")]),
    )
}

/// Destination of the output.
#[derive(Debug)]
pub(super) struct Screen {
    terminal: bool,
    lines_drawn: usize,
    last_line: Instant,
}

impl Screen {
    pub(super) fn new() -> Screen {
        Screen {
            terminal: std::io::stdout().is_terminal(),
            lines_drawn: 0,
            last_line: Instant::now(),
        }
    }

    /// Shows the counts at `elapsed` since the demo's start.
    pub(super) fn show(&mut self, seen: &LiveCounts, placements: &str, elapsed: Duration) {
        if !self.terminal {
            if self.last_line.elapsed() >= LINE_INTERVAL {
                self.last_line = Instant::now();
                println!("{:>4} s  {}", elapsed.as_secs(), seen.line());
            }
            return;
        }
        let text = format!(
            "{} s  {:.0} requests/s   version {}   {} swaps   {} failed   {} wrong\n{}{placements}\nCtrl-C ends it\n",
            elapsed.as_secs(),
            seen.rate,
            seen.version,
            seen.swaps,
            seen.faults.failed,
            seen.faults.wrong,
            seen.table()
        );
        let text = clip(&text, columns());
        let up = if self.lines_drawn > 0 {
            format!("\x1b[{}A\x1b[J", self.lines_drawn)
        } else {
            String::new()
        };
        self.lines_drawn = text.lines().count();
        let mut out = std::io::stdout().lock();
        // The server continues after the pipe is closed.
        let _ = write!(out, "{up}{text}").and_then(|()| out.flush());
    }
}

/// Returns the width of the terminal.
fn columns() -> usize {
    rustix::termios::tcgetwinsize(std::io::stdout())
        .map_or(COLUMNS, |size| usize::from(size.ws_col).max(COLUMNS_MIN))
}

/// Cuts lines to `columns`: a line that the terminal wraps could not be redrawn.
fn clip(text: &str, columns: usize) -> String {
    text.lines().flat_map(|line| line.chars().take(columns).chain(['\n'])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_count_at_their_due_time() {
        let seconds = Duration::from_secs;
        let sample = |due| RequestSample {
            due: seconds(due),
            latency: seconds(1),
            verdict: Judgement::Right,
            version: due,
        };
        let kept = KeptSamples { samples: (0..10).map(sample).collect(), ..KeptSamples::default() };
        let mut seen = LiveCounts::default();
        assert!(seen.line().contains("p999 - ms steady, - ms during swaps"), "{}", seen.line());
        seen.add(kept, &[seconds(2), seconds(7)], seconds(2), seconds(10));
        assert_eq!((seen.steady.count(), seen.swap.count()), (6, 4));
        assert_eq!((seen.version, seen.rate), (9, 1.0));
        assert!(seen.table().contains("during swaps"));
        let failed = RequestSample { verdict: Judgement::Failed, ..sample(1) };
        let kept = KeptSamples { samples: vec![failed], ..KeptSamples::default() };
        seen.add(kept, &[], seconds(2), seconds(1));
        assert_eq!((seen.steady.count(), seen.swap.count()), (6, 4));
    }

    #[test]
    fn long_lines_are_cut() {
        assert_eq!(clip("ab\nabcdé\n", 5), "ab\nabcdé\n");
        assert_eq!(clip("abcdéf", 5), "abcdé\n");
    }

    #[test]
    fn placements_come_from_the_exposition() {
        let metrics = Scrape::parse(
            "millpond_parameter_bytes{home=\"dram\",model=\"ctr\",version=\"2\"} 2097152\n\
             millpond_model_state{model=\"ctr\",version=\"2\",state=\"ready\"} 1\n\
             millpond_model_state{model=\"ctr\",version=\"1\",state=\"ready\"} 0\n",
        );
        let text = placements(&metrics);
        assert!(text.contains("2.00 MiB in dram") && text.contains("ready: 2\n"), "{text}");
    }
}
