//! The history of one model over a range of time, as points for a chart.

use std::collections::BTreeMap;

use serde::Serialize;

use super::record::{Quantiles, TAIL_REQUESTS_MIN, TrafficRecord};
use super::series::{RecordSeries, TimedRecord};
use super::{Histories, SECONDS_MAX, STEP_SECONDS};

/// Maximum points of a line.
const POINTS_MAX: u64 = 360;
/// Maximum intervals over which the percentiles of few requests are computed.
const WIDEN_MAX: usize = 10;

/// A range that ends now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HistoryRange {
    /// Seconds since the server started.
    pub(crate) now: u64,
    /// Length in seconds.
    pub(crate) span: u64,
}

impl HistoryRange {
    /// Returns the seconds of an interval: as fine as the history is, and at most [`POINTS_MAX`].
    pub(crate) fn step(self) -> u64 {
        if self.span <= SECONDS_MAX {
            return 1;
        }
        self.span.div_ceil(POINTS_MAX).next_multiple_of(STEP_SECONDS)
    }

    fn after(self) -> u64 {
        self.now.saturating_sub(self.span)
    }
}

/// One interval. Times are in microseconds. It is written as a list of its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(into = "[u64; 9]")]
pub(crate) struct HistoryPoint {
    /// End in seconds since the server started.
    pub(crate) end: u64,
    pub(crate) requests: u64,
    pub(crate) errors: u64,
    pub(crate) quantiles: Quantiles,
    pub(crate) max: u64,
    pub(crate) queued: u64,
}

impl From<HistoryPoint> for [u64; 9] {
    fn from(point: HistoryPoint) -> Self {
        let Quantiles { p50, p90, p99, p999 } = point.quantiles;
        let HistoryPoint { end, requests, errors, max, queued, .. } = point;
        [end, requests, errors, p50, p90, p99, p999, max, queued]
    }
}

/// Sums over the range.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct HistoryTotal {
    pub(crate) requests: u64,
    pub(crate) errors: u64,
    /// Failed requests by status.
    pub(crate) statuses: BTreeMap<&'static str, u64>,
    /// Microseconds, as are all below.
    pub(crate) p50: u64,
    pub(crate) p90: u64,
    pub(crate) p99: u64,
    pub(crate) p999: u64,
    pub(crate) max: u64,
}

/// History of one version, or of all together.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct VersionHistory {
    /// `None` is all versions.
    pub(crate) version: Option<u64>,
    pub(crate) total: HistoryTotal,
    pub(crate) points: Vec<HistoryPoint>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct ModelHistory {
    /// Length of an interval, in seconds.
    pub(crate) step: u64,
    /// Length of the range, in seconds.
    pub(crate) span: u64,
    /// Time before which no records are kept, in seconds since the server started.
    pub(crate) complete_from: u64,
    pub(crate) all: VersionHistory,
    /// Versions with traffic in the range, newest first.
    pub(crate) versions: Vec<VersionHistory>,
}

/// Records of a range, before their percentiles are computed.
pub(crate) struct RangeRecords {
    range: HistoryRange,
    complete_from: u64,
    versions: Vec<(u64, Vec<TimedRecord>)>,
}

impl Histories {
    /// Returns the records of a model in a range.
    pub(crate) fn records(&self, model: &str, range: HistoryRange) -> RangeRecords {
        let of = |series: &RecordSeries| joined(series.since(range.after()), range.step());
        let versions = self.models.get(model).into_iter().flat_map(|model| &model.versions);
        let versions = versions.map(|(number, track)| {
            let series = if range.step() == 1 { &track.seconds } else { &track.steps };
            (*number, of(series))
        });
        RangeRecords {
            range,
            complete_from: self.complete_from,
            versions: versions.filter(|(_, records)| !records.is_empty()).collect(),
        }
    }
}

impl RangeRecords {
    /// Computes percentiles and sums.
    pub(crate) fn history(self) -> ModelHistory {
        let step = self.range.step();
        let all = sum_of_versions(&self.versions);
        let of = |(number, records): &(u64, Vec<TimedRecord>)| {
            version_history(Some(*number), records, step)
        };
        ModelHistory {
            step,
            span: self.range.span,
            complete_from: self.complete_from,
            all: version_history(None, &all, step),
            versions: self.versions.iter().rev().map(of).collect(),
        }
    }

    /// Returns the points of all versions together.
    pub(crate) fn points(self) -> Vec<HistoryPoint> {
        points(&sum_of_versions(&self.versions), self.range.step())
    }
}

/// Joins records to intervals of `step` seconds.
fn joined(records: Vec<TimedRecord>, step: u64) -> Vec<TimedRecord> {
    let mut joined: Vec<TimedRecord> = Vec::new();
    for TimedRecord { end, record } in records {
        let end = end.next_multiple_of(step);
        match joined.last_mut() {
            Some(last) if last.end == end => last.record.add(&record),
            _ => joined.push(TimedRecord { end, record }),
        }
    }
    joined
}

/// Adds up the records of several versions.
fn sum_of_versions(versions: &[(u64, Vec<TimedRecord>)]) -> Vec<TimedRecord> {
    let mut sums: BTreeMap<u64, TrafficRecord> = BTreeMap::new();
    for timed in versions.iter().flat_map(|(_, records)| records) {
        sums.entry(timed.end).or_default().add(&timed.record);
    }
    sums.into_iter().map(|(end, record)| TimedRecord { end, record }).collect()
}

/// Returns the totals and the points of records, which are `step` seconds apart. `version` is
/// `None` for all versions.
fn version_history(version: Option<u64>, records: &[TimedRecord], step: u64) -> VersionHistory {
    let mut sum = TrafficRecord::default();
    records.iter().for_each(|timed| sum.add(&timed.record));
    let Quantiles { p50, p90, p99, p999 } = sum.quantiles();
    let failures = sum.failures().into_iter().map(|(name, count)| (name, u64::from(count)));
    let total = HistoryTotal {
        requests: sum.requests(),
        errors: sum.errors(),
        statuses: failures.collect(),
        p50,
        p90,
        p99,
        p999,
        max: sum.max_us.into(),
    };
    VersionHistory { version, total, points: points(records, step) }
}

/// Returns the points of records. Percentiles and maximum of few requests are computed over the
/// last intervals, up to [`WIDEN_MAX`]. So one slow request in ten is not a p99.
fn points(records: &[TimedRecord], step: u64) -> Vec<HistoryPoint> {
    let point = |(index, timed): (usize, &TimedRecord)| {
        // The maximum is of the same requests, so that it is not below a percentile.
        let timing = widened(&records[..=index], step);
        HistoryPoint {
            end: timed.end,
            requests: timed.record.requests(),
            errors: timed.record.errors(),
            quantiles: timing.quantiles(),
            max: if timing.answered() == 0 { 0 } else { timing.max_us.into() },
            queued: timed.record.queued.into(),
        }
    };
    records.iter().enumerate().map(point).collect()
}

/// Returns the last record, with the records before it if it has fewer than [`TAIL_REQUESTS_MIN`]
/// latencies. Without any it has no percentiles.
fn widened(records: &[TimedRecord], step: u64) -> TrafficRecord {
    let Some((last, before)) = records.split_last() else { return TrafficRecord::default() };
    let mut sum = last.record.clone();
    if sum.answered() == 0 {
        return sum;
    }
    let oldest = last.end.saturating_sub(step * WIDEN_MAX as u64);
    for earlier in before.iter().rev().take_while(|timed| timed.end > oldest) {
        if sum.answered() >= TAIL_REQUESTS_MIN {
            break;
        }
        sum.add(&earlier.record);
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timed(end: u64, latencies_us: &[u64], failed: u32) -> TimedRecord {
        TimedRecord { end, record: TrafficRecord::sample(latencies_us, failed) }
    }

    #[test]
    fn a_range_has_at_most_the_points_of_a_line() {
        let step = |span| HistoryRange { now: 0, span }.step();
        assert_eq!([120, 900, 3600, 21_600, 86_400].map(step), [1, 10, 10, 60, 240]);
    }

    #[test]
    fn few_requests_share_their_percentiles() {
        let mut records: Vec<TimedRecord> =
            (1..=20).map(|end| timed(end, &[1000; 10], 0)).collect();
        records[14] = timed(15, &[50_000], 0);
        let points = points(&records, 1);
        assert!(points[14].quantiles.p50 < 1200, "one of 91 requests is not the median");
        assert_eq!(points[14].max, 50_000);
        let busy = [timed(1, &[9000; 200], 0), timed(2, &[1000; 200], 0)];
        assert!(super::points(&busy, 1)[1].quantiles.p99 < 1200, "enough requests stand alone");
        let gap = [timed(1, &[9000; 20], 0), timed(50, &[1000; 20], 0)];
        assert!(super::points(&gap, 1)[1].quantiles.p99 < 1200, "what is long ago does not count");
    }

    #[test]
    fn versions_are_lines_and_their_sum_is_one() {
        let records = RangeRecords {
            range: HistoryRange { now: 100, span: 900 },
            complete_from: 0,
            versions: vec![
                (1, vec![timed(10, &[1000; 4], 1), timed(20, &[1000; 2], 0)]),
                (2, vec![timed(20, &[4000; 6], 2)]),
            ],
        };
        let history = records.history();
        let versions: Vec<Option<u64>> = history.versions.iter().map(|line| line.version).collect();
        assert_eq!(versions, [Some(2), Some(1)]);
        assert_eq!((history.all.total.requests, history.all.total.errors), (15, 3));
        assert_eq!(history.all.total.statuses["invalid_argument"], 3);
        let requests: Vec<[u64; 3]> = history
            .all
            .points
            .iter()
            .map(|point| [point.end, point.requests, point.errors])
            .collect();
        assert_eq!(requests, [[10, 5, 1], [20, 10, 2]]);
    }

    #[test]
    fn a_second_with_errors_only_has_no_latency() {
        let points = points(&[timed(1, &[1000; 5], 0), timed(2, &[], 3)], 1);
        assert_eq!(
            (points[1].quantiles, points[1].max, points[1].errors),
            (Quantiles::default(), 0, 3)
        );
    }
}
