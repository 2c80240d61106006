//! Percentiles over time: the chart of `bench swap`.

use std::time::Duration;

use loadgen::drive::RequestSample;

use crate::plot::{Chart, Series};

/// Length of the sliding window.
const WINDOW_S: f64 = 1.0;
/// Time between two points, in seconds.
const STEP_S: f64 = 0.1;
/// Maximum number of points: over two hours.
const POINTS_MAX: usize = 100_000;
const QUANTILES: [(&str, f64); 4] = [("p80", 0.8), ("p90", 0.9), ("p99", 0.99), ("p999", 0.999)];

/// Percentiles of one round over time.
#[derive(Clone, Debug, Default)]
pub(super) struct Timeline {
    points: Vec<TimelinePoint>,
    swaps_s: Vec<f64>,
}

/// Percentiles of the window that ends at a moment.
#[derive(Clone, Copy, Debug, PartialEq)]
struct TimelinePoint {
    end_s: f64,
    quantiles_ms: [f64; 4],
}

impl Timeline {
    /// Computes the percentiles of requests that were due in a window of one second.
    pub(super) fn new(samples: &[RequestSample], swaps: &[Duration]) -> Timeline {
        let mut due: Vec<(f64, f64)> = samples
            .iter()
            .map(|sample| (sample.due.as_secs_f64(), sample.latency.as_secs_f64() * 1e3))
            .collect();
        due.sort_by(|one, other| one.0.total_cmp(&other.0));
        let last = due.last().map_or(0.0, |sample| sample.0);
        let count = ((last - WINDOW_S) / STEP_S).max(0.0) as usize;
        let point = |step: usize| {
            let end_s = WINDOW_S + step as f64 * STEP_S;
            let from = due.partition_point(|sample| sample.0 < end_s - WINDOW_S);
            let to = due.partition_point(|sample| sample.0 < end_s);
            let mut window: Vec<f64> = due[from..to].iter().map(|sample| sample.1).collect();
            window.sort_by(f64::total_cmp);
            let quantiles_ms = QUANTILES.map(|(_, quantile)| rank(&window, quantile));
            TimelinePoint { end_s, quantiles_ms }
        };
        Timeline {
            points: (0..count.min(POINTS_MAX)).map(point).collect(),
            swaps_s: swaps.iter().map(Duration::as_secs_f64).collect(),
        }
    }

    /// Returns the least and the largest value above zero.
    pub(super) fn range_ms(&self) -> Option<[f64; 2]> {
        let values = || {
            let all = self.points.iter().flat_map(|point| point.quantiles_ms);
            all.filter(|value| value.is_finite() && *value > 0.0)
        };
        Some([values().reduce(f64::min)?, values().reduce(f64::max)?])
    }

    /// Draws the percentiles between the ends `log_y` of a logarithmic axis.
    pub(super) fn chart(&self, title: String, log_y: [f64; 2]) -> Chart {
        let series = |(index, (name, _)): (usize, &(&str, f64))| Series {
            name: (*name).to_owned(),
            points: self
                .points
                .iter()
                .map(|point| (point.end_s, point.quantiles_ms[index]))
                .collect(),
        };
        Chart {
            title,
            x: "seconds; a grey line is the start of a swap".into(),
            y: "ms, over the last second".into(),
            series: QUANTILES.iter().enumerate().map(series).collect(),
            marks: self.swaps_s.clone(),
            log_y: Some(log_y),
            ..Chart::default()
        }
    }
}

/// Returns the value of rank `quantile` of sorted values, or NaN without any.
fn rank(sorted: &[f64], quantile: f64) -> f64 {
    let place = (sorted.len() as f64 * quantile).ceil() as usize;
    sorted.get(place.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use loadgen::drive::Judgement;

    #[test]
    fn a_slow_request_is_seen_for_a_second() {
        let sample = |index: u64| RequestSample {
            due: Duration::from_millis(index * 10),
            latency: Duration::from_millis(if index == 200 { 50 } else { 2 }),
            verdict: Judgement::Right,
            version: 1,
        };
        let samples: Vec<RequestSample> = (0..500).rev().map(sample).collect();
        let line = Timeline::new(&samples, &[Duration::from_secs(2)]);
        let slow = |point: &&TimelinePoint| point.quantiles_ms[3] > 10.0;
        let seen: Vec<f64> = line.points.iter().filter(slow).map(|point| point.end_s).collect();
        assert!(seen.len() == 10 && seen[0] > 2.0 && seen[9] <= 3.0 + 1e-9, "{seen:?}");
        assert!(line.points.iter().all(|point| point.quantiles_ms[1] < 3.0));
        assert_eq!(line.range_ms(), Some([2.0, 50.0]));
        let chart = line.chart("pool".into(), [1.0, 100.0]);
        assert_eq!((chart.series.len(), chart.marks), (4, vec![2.0]));
        assert!(Timeline::new(&[], &[]).range_ms().is_none());
    }

    #[test]
    fn a_quantile_is_the_value_of_its_rank() {
        assert_eq!(rank(&[1.0, 2.0, 3.0, 4.0, 5.0], 0.8), 4.0);
        assert!(rank(&[], 0.5).is_nan());
    }
}
