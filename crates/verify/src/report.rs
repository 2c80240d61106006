//! The result of a comparison, as text and as JSON.

use loadgen::report::{TextTable, ms, per_second};
use loadgen::samples::TallyCounts;
use serde_json::{Value, json};

use crate::NAMES;
use crate::compare::{ANSWERS_BYTES_MAX, Comparison};
use crate::records::RecordedCalls;

/// Maximum number of differing requests in the text. The JSON has all.
const SHOWN_MAX: usize = 10;

/// Result of a comparison.
pub struct ComparisonReport {
    pub(crate) addresses: [String; 2],
    pub(crate) tolerance: f64,
    pub(crate) records: RecordedCalls,
    pub(crate) comparison: Comparison,
    /// Counts of each server. Empty if nothing was measured.
    pub(crate) counts: [TallyCounts; 2],
}

impl ComparisonReport {
    /// Returns true if answers were compared and all agree.
    pub fn agrees(&self) -> bool {
        self.comparison.compared > 0 && !self.differs()
    }

    /// Returns true if an answer differs. If no answers were compared, this and
    /// [`ComparisonReport::agrees`] return false.
    pub fn differs(&self) -> bool {
        !self.comparison.differences.is_empty()
            || self.counts.iter().any(|one| one.faults.wrong > 0)
    }

    /// Returns the report with all differences.
    pub fn json(&self) -> Value {
        let comparison = &self.comparison;
        let side = |number: usize| {
            let one = &self.counts[number];
            json!({
                "address": self.addresses[number],
                "latency": one.latencies.summary(),
                "requests_per_second": one.rate(),
                "failed": one.faults.failed,
                "wrong": one.faults.wrong,
            })
        };
        json!({
            "requests": self.records.calls.len(),
            "skipped": self.records.skipped,
            "tolerance": self.tolerance,
            "compared": comparison.compared,
            "refused_by_both": comparison.refused_by_both,
            "first_refusal": comparison.first_refusal,
            "largest_difference": comparison.largest,
            "differing": comparison.differences.len(),
            "differences": comparison.differences,
            "server": side(0),
            "against": side(1),
        })
    }

    /// Returns the report for people.
    pub fn text(&self) -> String {
        let ComparisonReport { records, comparison, counts, .. } = self;
        let mut text = format!(
            "{} requests, {} compared, {} differ; largest difference {:.3e} (tolerance {:e})\n",
            records.calls.len(),
            comparison.compared,
            comparison.differences.len(),
            comparison.largest,
            self.tolerance,
        );
        if records.skipped > 0 {
            let skipped = records.skipped;
            text += &format!(
                "{skipped} records of session runs, streams or failed requests were left out\n"
            );
        }
        if comparison.refused_by_both > 0 {
            text +=
                &format!("{} requests were refused by both servers\n", comparison.refused_by_both);
        }
        if let Some(refusal) = &comparison.first_refusal {
            text += &format!("the first of them: {refusal}\n");
        }
        if comparison.compared == 0 && comparison.differences.is_empty() {
            text += "no answers were compared: no request was answered by both servers\n";
        }
        for difference in comparison.differences.iter().take(SHOWN_MAX) {
            text += &format!("{difference}\n");
        }
        let more = comparison.differences.len().saturating_sub(SHOWN_MAX);
        if more > 0 {
            text += &format!("and {more} more; --json FILE has all\n");
        }
        if comparison.not_kept > 0 {
            let count = comparison.not_kept;
            text += &format!(
                "{count} requests were compared but not measured: at most {ANSWERS_BYTES_MAX} bytes of answers are kept\n"
            );
        }
        if counts.iter().any(|one| one.latencies.count() > 0) {
            text += &format!("\n{}", self.table());
        }
        for (name, one) in NAMES.iter().zip(counts) {
            for line in one.faults.lines() {
                text += &format!("{name}: {line}\n");
            }
        }
        text
    }

    fn table(&self) -> TextTable {
        let mut table = TextTable::new(&[
            "",
            "requests/s",
            "p50 ms",
            "p99 ms",
            "p999 ms",
            "max ms",
            "answers",
            "failed",
            "wrong",
        ]);
        for (number, one) in self.counts.iter().enumerate() {
            let latency = one.latencies.summary();
            table.row([
                format!("{} {}", NAMES[number], self.addresses[number]),
                per_second(one.rate()),
                ms(latency.p50_ms),
                ms(latency.p99_ms),
                ms(latency.p999_ms),
                ms(latency.max_ms),
                latency.n.to_string(),
                one.faults.failed.to_string(),
                one.faults.wrong.to_string(),
            ]);
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_without_kept_answers_are_reported() {
        let mut comparison = Comparison::default();
        comparison.not_kept += 2;
        let report = ComparisonReport {
            addresses: ["a:1".to_owned(), "b:2".to_owned()],
            tolerance: 0.0,
            records: RecordedCalls::default(),
            comparison,
            counts: [TallyCounts::default(), TallyCounts::default()],
        };
        let text = report.text();
        assert!(text.contains("2 requests were compared but not measured"), "{text}");
    }
}
