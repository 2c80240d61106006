//! Latency statistics: percentiles of a histogram, medians over rounds.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

/// Longest latency a histogram holds. Longer ones are counted at this value.
const LATENCY_MAX: Duration = Duration::from_secs(3600);
/// Significant decimal digits that histograms keep.
const DIGITS: u8 = 3;

/// A distribution of latencies, kept in nanoseconds to three significant digits.
#[derive(Clone, Debug)]
pub struct Latencies {
    histogram: Histogram<u64>,
}

impl Default for Latencies {
    fn default() -> Self {
        // The histogram accepts these constant bounds. The fallback makes the constructor
        // infallible.
        let histogram = Histogram::new_with_bounds(1, LATENCY_MAX.as_nanos() as u64, DIGITS)
            .unwrap_or_else(|_| unreachable!("constant bounds"));
        Latencies { histogram }
    }
}

impl Latencies {
    /// Counts one latency.
    pub fn record(&mut self, latency: Duration) {
        self.histogram
            .saturating_record(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX).max(1));
    }

    /// Adds all counts of `other`.
    pub fn add(&mut self, other: &Latencies) {
        // Both have the same bounds, so no value of `other` is out of range.
        let _ = self.histogram.add(&other.histogram);
    }

    /// Returns the number of latencies.
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// Returns the quantile `quantile` (0 to 1) in milliseconds, or 0 without latencies.
    pub fn quantile_ms(&self, quantile: f64) -> f64 {
        if self.histogram.is_empty() {
            return 0.0;
        }
        self.histogram.value_at_quantile(quantile) as f64 / 1e6
    }

    /// Returns the figures of every report.
    pub fn summary(&self) -> LatencySummary {
        LatencySummary {
            n: self.count(),
            p50_ms: self.quantile_ms(0.5),
            p80_ms: self.quantile_ms(0.8),
            p90_ms: self.quantile_ms(0.9),
            p99_ms: self.quantile_ms(0.99),
            p999_ms: self.quantile_ms(0.999),
            max_ms: if self.histogram.is_empty() { 0.0 } else { self.histogram.max() as f64 / 1e6 },
        }
    }

    /// Returns the mean in milliseconds.
    pub fn mean_ms(&self) -> f64 {
        self.histogram.mean() / 1e6
    }

    /// Returns the percentile distribution in the text form of HdrHistogram's plotter, in
    /// milliseconds.
    pub fn percentile_log(&self) -> String {
        use std::fmt::Write as _;
        let mut text = String::from("       Value     Percentile TotalCount 1/(1-Percentile)\n\n");
        for point in self.histogram.iter_quantiles(5) {
            let value = point.value_iterated_to() as f64 / 1e6;
            let quantile = point.quantile_iterated_to();
            let count = self.histogram.count_between(0, point.value_iterated_to());
            let inverse = if quantile < 1.0 {
                format!("{:14.2}", 1.0 / (1.0 - quantile))
            } else {
                "inf".into()
            };
            let _ = writeln!(text, "{value:12.6} {quantile:2.12} {count:10} {inverse:>14}");
        }
        let max = self.histogram.max() as f64 / 1e6;
        let _ = writeln!(
            text,
            "#[Mean    = {:12.6}, StdDeviation   = {:12.6}]\n#[Max     = {max:12.6}, Total count    = {:12}]",
            self.mean_ms(),
            self.histogram.stdev() / 1e6,
            self.count()
        );
        text
    }
}

impl FromIterator<Duration> for Latencies {
    fn from_iter<I: IntoIterator<Item = Duration>>(latencies: I) -> Self {
        let mut all = Latencies::default();
        latencies.into_iter().for_each(|latency| all.record(latency));
        all
    }
}

/// Figures of one distribution in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct LatencySummary {
    /// Requests counted.
    pub n: u64,
    /// Median.
    pub p50_ms: f64,
    /// 80th percentile.
    pub p80_ms: f64,
    /// 90th percentile.
    pub p90_ms: f64,
    /// 99th percentile.
    pub p99_ms: f64,
    /// 99.9th percentile.
    pub p999_ms: f64,
    /// Largest.
    pub max_ms: f64,
}

impl LatencySummary {
    /// Returns field by field the median over rounds. `n` is the total.
    pub fn median_of(rounds: &[LatencySummary]) -> LatencySummary {
        let of = |field: fn(&LatencySummary) -> f64| median(rounds.iter().map(field));
        LatencySummary {
            n: rounds.iter().map(|round| round.n).sum(),
            p50_ms: of(|s| s.p50_ms),
            p80_ms: of(|s| s.p80_ms),
            p90_ms: of(|s| s.p90_ms),
            p99_ms: of(|s| s.p99_ms),
            p999_ms: of(|s| s.p999_ms),
            max_ms: of(|s| s.max_ms),
        }
    }
}

/// Returns the median: the mean of the two middle values for an even count, 0 for none.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = values.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => 0.0,
        n if n % 2 == 1 => sorted[middle],
        _ => (sorted[middle - 1] + sorted[middle]) / 2.0,
    }
}

/// Returns `a / b`, or 0 if `b` is 0: JSON has no infinity.
pub fn ratio(a: f64, b: f64) -> f64 {
    if b == 0.0 { 0.0 } else { a / b }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median([]), 0.0);
        assert_eq!(median([3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median([4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(ratio(1.0, 0.0), 0.0);
    }

    #[test]
    fn percentiles_are_of_the_right_rank() {
        let latencies: Latencies = (1..=1000).map(Duration::from_micros).collect();
        let summary = latencies.summary();
        assert_eq!(summary.n, 1000);
        let near = |value: f64, wanted: f64| (value - wanted).abs() < wanted * 0.002;
        assert!(near(summary.p50_ms, 0.5) && near(summary.p99_ms, 0.99), "{summary:?}");
        assert!(near(summary.p999_ms, 0.999) && near(summary.max_ms, 1.0), "{summary:?}");
        assert_eq!(Latencies::default().summary(), LatencySummary::default());
    }

    #[test]
    fn rounds_combine_by_median() {
        let round = |p999_ms| LatencySummary { n: 10, p999_ms, ..LatencySummary::default() };
        let all = LatencySummary::median_of(&[round(9.0), round(1.0), round(2.0)]);
        assert_eq!((all.n, all.p999_ms), (30, 2.0));
    }

    #[test]
    fn an_endless_latency_is_kept_at_the_bound() {
        let latencies: Latencies = [Duration::from_secs(1 << 40)].into_iter().collect();
        assert!(latencies.summary().max_ms >= 3_600_000.0);
        assert!(latencies.percentile_log().contains("Total count    =            1"));
    }
}
