//! The report of `bench soak`: growth between two windows of swaps.

use base::{Error, Result};
use serde::Serialize;

use super::{SoakArgs, SoakSwaps};
use crate::report::{BenchReport, Goal, check_faults};
use loadgen::machine::RunContext;
use loadgen::report::TextTable;
use loadgen::stats::{median, ratio};
use loadgen::{print, println};

/// Swaps before the first window, and swaps of a window. Short runs take a quarter of their swaps.
const WINDOW: usize = 50;
/// Minimum number of swaps whose first and last window differ.
const SWAPS_COMPARED_MIN: usize = 3;
/// Maximum growth of memory and latency in percent.
const GROWTH_MAX_PCT: f64 = 3.0;

/// The server's use of the machine after a swap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct SwapTrace {
    /// Median latency since the previous swap.
    pub(super) p50_ms: f64,
    pub(super) rss_mb: f64,
    pub(super) descriptors: f64,
    pub(super) threads: f64,
    /// Size of the files of converted models, in MiB.
    pub(super) cache_mb: f64,
}

impl SwapTrace {
    fn median_of(traces: &[SwapTrace]) -> SwapTrace {
        let of = |field: fn(&SwapTrace) -> f64| median(traces.iter().map(field));
        SwapTrace {
            p50_ms: of(|trace| trace.p50_ms),
            rss_mb: of(|trace| trace.rss_mb),
            descriptors: of(|trace| trace.descriptors),
            threads: of(|trace| trace.threads),
            cache_mb: of(|trace| trace.cache_mb),
        }
    }
}

/// JSON of `bench soak`.
#[derive(Debug, Serialize)]
pub(super) struct SoakReport {
    engines: Vec<&'static str>,
    swaps: usize,
    /// True if a version was not served in time, or if the load ended before the last swap.
    broke_off: bool,
    failed: u64,
    wrong: u64,
    rss_growth_pct: f64,
    p50_growth_pct: f64,
    fd_growth: i64,
    thread_growth: i64,
    cache_growth_mb: f64,
    /// Medians of the first window.
    first: SwapTrace,
    /// Medians of the last window.
    last: SwapTrace,
    /// Number of swaps before the first window, which is also the number of swaps of a window.
    window: usize,
    reasons: Vec<String>,
    wanted: Vec<Goal>,
    setting: SoakSetting,
    #[serde(flatten)]
    context: RunContext,
}

#[derive(Debug, Serialize)]
struct SoakSetting {
    /// Swaps that the run should have; absent if it ends by time.
    swaps: Option<usize>,
    seconds: Option<f64>,
    period_s: Option<f64>,
    bytes: u64,
    batch: usize,
    rate_rps: f64,
    convert: bool,
    server_args: Vec<String>,
}

impl SoakReport {
    pub(super) fn new(args: &SoakArgs, swapped: &SoakSwaps, context: RunContext) -> SoakReport {
        let SoakSwaps { traces, faults, broke_off } = swapped;
        let window = WINDOW.min(traces.len() / 4).max(1);
        let end = (2 * window).min(traces.len());
        let first = SwapTrace::median_of(traces.get(window.min(end)..end).unwrap_or_default());
        let last = SwapTrace::median_of(&traces[traces.len().saturating_sub(window)..]);
        let percent = |of: fn(&SwapTrace) -> f64| (ratio(of(&last), of(&first)) - 1.0) * 100.0;
        let count = |of: fn(&SwapTrace) -> f64| (of(&last) - of(&first)).round() as i64;
        let mut report = SoakReport {
            engines: args.engines.iter().map(|engine| engine.name()).collect(),
            swaps: traces.len(),
            broke_off: *broke_off,
            failed: faults.failed,
            wrong: faults.wrong,
            rss_growth_pct: percent(|trace| trace.rss_mb),
            p50_growth_pct: percent(|trace| trace.p50_ms),
            fd_growth: count(|trace| trace.descriptors),
            thread_growth: count(|trace| trace.threads),
            cache_growth_mb: last.cache_mb - first.cache_mb,
            first,
            last,
            window,
            reasons: faults.lines(),
            wanted: Vec::new(),
            setting: SoakSetting {
                swaps: args.seconds.is_none().then_some(args.swaps),
                seconds: args.seconds.map(|time| time.as_secs_f64()),
                period_s: args.period.map(|time| time.as_secs_f64()),
                bytes: args.bytes,
                batch: args.batch,
                rate_rps: args.rate,
                convert: args.convert,
                server_args: args.server_arg.clone(),
            },
            context,
        };
        report.wanted = report.goals();
        report
    }

    fn goals(&self) -> Vec<Goal> {
        // Two swaps have one window: it cannot show growth.
        let compared = self.swaps >= SWAPS_COMPARED_MIN;
        let percent = |what: &str, value: f64| {
            let what = format!("growth of {what} in percent: at most {GROWTH_MAX_PCT}");
            Goal::new(what, value, compared && value <= GROWTH_MAX_PCT)
        };
        let none = |what: &str, value: i64| {
            Goal::new(format!("growth of {what}: none"), value as f64, compared && value <= 0)
        };
        vec![
            percent("resident memory", self.rss_growth_pct),
            percent("the median latency", self.p50_growth_pct),
            none("open descriptors", self.fd_growth),
            none("threads", self.thread_growth),
        ]
    }
}

impl BenchReport for SoakReport {
    fn print(&self) {
        let models = self.engines.join(", ");
        println!("{models}: {} swaps, {} failed, {} wrong", self.swaps, self.failed, self.wrong);
        let title = format!("median of {} swaps", self.window);
        let mut table =
            TextTable::new(&[&title, "RSS MiB", "p50 ms", "descriptors", "threads", "cache MiB"]);
        let from = format!("from swap {}", self.window);
        for (name, trace) in [(from.as_str(), &self.first), ("at the end", &self.last)] {
            let figures = [
                format!("{:.1}", trace.rss_mb),
                format!("{:.3}", trace.p50_ms),
                format!("{:.0}", trace.descriptors),
                format!("{:.0}", trace.threads),
                format!("{:.1}", trace.cache_mb),
            ];
            table.row(std::iter::once(name.to_owned()).chain(figures));
        }
        print!("{table}");
        self.wanted.iter().for_each(|goal| println!("{goal}"));
        self.reasons.iter().for_each(|reason| println!("{reason}"));
        println!("{}", self.context);
    }

    fn verdict(&self) -> Result<()> {
        check_faults(self.failed, self.wrong)?;
        let wanted = match (self.setting.swaps, self.setting.seconds) {
            (Some(wanted), _) if self.swaps < wanted => format!("of {wanted}"),
            (None, Some(seconds)) if self.broke_off => format!("before the end of {seconds} s"),
            _ => return Ok(()),
        };
        Err(Error::internal(format!(
            "{} swaps {wanted}; see the server's log in the cache directory",
            self.swaps
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use loadgen::machine::NoiseWatch;

    fn report(traces: &[SwapTrace]) -> SoakReport {
        report_of("--swaps=400", traces, false)
    }

    fn report_of(arg: &str, traces: &[SwapTrace], broke_off: bool) -> SoakReport {
        let args = crate::arguments::parse([arg]).unwrap();
        let swapped = SoakSwaps { traces: traces.to_vec(), broke_off, ..SoakSwaps::default() };
        SoakReport::new(&args, &swapped, NoiseWatch::start().context(None))
    }

    /// Returns the trace of a swap. One swap in ten is disturbed, and the first 50 swaps fill
    /// caches.
    fn trace(index: usize, leak_mb: f64) -> SwapTrace {
        let spike = if index.is_multiple_of(10) { 500.0 } else { 0.0 };
        let filling = (index.min(50) * 2) as f64;
        SwapTrace {
            p50_ms: 1.0 + spike,
            rss_mb: 100.0 + filling + spike + index as f64 * leak_mb,
            descriptors: 20.0 + (index / 200) as f64,
            threads: 9.0,
            cache_mb: 0.0,
        }
    }

    #[test]
    fn growth_ignores_spikes_and_the_beginning() {
        let traces: Vec<SwapTrace> = (0..400).map(|index| trace(index, 0.0)).collect();
        let steady = report(&traces);
        assert_eq!((steady.window, steady.swaps), (50, 400));
        assert_eq!((steady.rss_growth_pct, steady.p50_growth_pct), (0.0, 0.0));
        assert_eq!((steady.fd_growth, steady.thread_growth), (1, 0));
        assert!(steady.verdict().is_ok() && !steady.wanted[2].met && steady.wanted[3].met);
        let leaking: Vec<SwapTrace> = (0..400).map(|index| trace(index, 0.1)).collect();
        let leak = report(&leaking);
        assert!((14.0..20.0).contains(&leak.rss_growth_pct), "{}", leak.rss_growth_pct);
        assert!(!leak.wanted[0].met);
    }

    #[test]
    fn short_runs_have_short_windows_and_missing_swaps_fail() {
        let traces: Vec<SwapTrace> = (0..24).map(|index| trace(index, 0.0)).collect();
        let short = report(&traces);
        assert_eq!(short.window, 6);
        assert!(short.verdict().is_err());
        assert_eq!(report(&[]).swaps, 0);
    }

    #[test]
    fn one_window_meets_no_goal() {
        for count in 0..3 {
            let traces: Vec<SwapTrace> = (0..count).map(|index| trace(index, 0.0)).collect();
            let report = report_of("--seconds=30", &traces, false);
            assert!(report.wanted.iter().all(|goal| !goal.met), "{count} swaps");
        }
    }

    #[test]
    fn a_timed_run_that_ends_early_fails() {
        let traces: Vec<SwapTrace> = (0..24).map(|index| trace(index, 0.0)).collect();
        assert!(report_of("--seconds=600", &traces, false).verdict().is_ok());
        let error = report_of("--seconds=600", &traces, true).verdict().unwrap_err();
        assert!(error.message().contains("24 swaps before the end of 600 s"), "{error}");
    }
}
