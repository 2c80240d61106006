//! Points of recall and speed, and interpolation between them.

use serde::{Deserialize, Serialize};

/// One setting of one engine.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub(super) struct VectorPoint {
    /// Description of the setting.
    pub(super) setting: String,
    /// Share of the true nearest neighbours that were found, 0 to 1.
    pub(super) recall: f64,
    /// Queries a second of processor time on one core.
    pub(super) qps: f64,
    /// Queries a second of wall-clock time.
    #[serde(default)]
    pub(super) qps_wall: f64,
}

/// An engine and its points.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Curve {
    pub(super) engine: String,
    /// Version of the engine, if it has its own.
    #[serde(default)]
    pub(super) version: Option<String>,
    /// Wall-clock time of building in seconds.
    pub(super) build_s: f64,
    pub(super) points: Vec<VectorPoint>,
    /// Variants whose sweep reached its time limit. Their further settings may have a higher
    /// recall.
    #[serde(default)]
    pub(super) cut_short: Vec<String>,
}

impl Curve {
    /// Returns queries per second at a recall on the upper envelope, or `None` if no setting
    /// reaches it. If every setting exceeds it, returns the fastest.
    pub(super) fn qps_at(&self, recall: f64) -> Option<f64> {
        let envelope = self.envelope();
        let above = envelope.iter().position(|point| point.recall >= recall)?;
        let high = envelope[above];
        let Some(low) = above.checked_sub(1).map(|at| envelope[at]) else { return Some(high.qps) };
        let share = (recall - low.recall) / (high.recall - low.recall);
        Some((low.qps.ln() * (1.0 - share) + high.qps.ln() * share).exp())
    }

    /// Returns the points that no other exceeds in both recall and speed, in ascending order of
    /// recall.
    fn envelope(&self) -> Vec<&VectorPoint> {
        let mut points: Vec<&VectorPoint> =
            self.points.iter().filter(|point| point.qps > 0.0).collect();
        points.sort_by(|a, b| b.recall.total_cmp(&a.recall).then(b.qps.total_cmp(&a.qps)));
        let mut fastest = 0.0;
        points.retain(|point| {
            let better = point.qps > fastest;
            fastest = f64::max(fastest, point.qps);
            better
        });
        points.reverse();
        points
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(points: &[(f64, f64)]) -> Curve {
        let point = |&(recall, qps): &(f64, f64)| VectorPoint {
            setting: String::new(),
            recall,
            qps,
            qps_wall: qps,
        };
        Curve {
            engine: "x".into(),
            version: None,
            build_s: 1.0,
            points: points.iter().map(point).collect(),
            cut_short: Vec::new(),
        }
    }

    #[test]
    fn between_two_points_speed_is_logarithmic() {
        let curve = curve(&[(0.9, 1000.0), (1.0, 10.0), (0.95, 90.0), (0.85, 900.0)]);
        // The third lies under the line from the first to the second but is beaten by neither; the
        // fourth is beaten.
        assert!((curve.qps_at(0.925).unwrap() - 300.0).abs() < 1e-6);
        assert_eq!(curve.qps_at(0.5), Some(1000.0));
        assert_eq!(curve.qps_at(1.0).map(f64::round), Some(10.0));
    }

    #[test]
    fn a_recall_that_nothing_reaches_has_no_speed() {
        assert_eq!(curve(&[(0.9, 5.0)]).qps_at(0.91), None);
        assert_eq!(curve(&[]).qps_at(0.1), None);
    }
}
