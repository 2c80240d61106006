//! Measures how many lists a query must scan. Rows that are held out from the data serve as
//! queries, as for the other index.
//!
//! Recall is measured with the exact vectors, because an index with error bounds is meant to be
//! used with them. The bounds decide everything except the number of lists, so that is the only
//! setting.

use base::Result;

use super::Rabitq;
use crate::trial::TrialQueries;
use crate::tune::{
    DEFAULT_RECALL, PROBE_GROWTH, PROBE_SHARE_MAX, TARGET_RECALLS, best_recall, share_of,
    wide_probes,
};
use crate::{Recall, RecallPoint, StreamedBuild};

/// Minimum lists to scan. Held-out rows have near copies in their own cluster, unlike queries from
/// outside, so the recall of few lists would be overestimated. A list costs under 2 us.
const PROBES_MIN: usize = 8;

impl Rabitq {
    /// Measures the index, just built from `build` (vectors as compared), laid out in `order`.
    pub(super) fn measured(mut self, build: &StreamedBuild<'_>, order: &[u32]) -> Result<Rabitq> {
        let Some(trial) = TrialQueries::new(build, order)? else { return Ok(self) };
        let probes_max = share_of(self.clusters(), PROBE_SHARE_MAX);
        let mut trials = Vec::<RecallPoint>::new();
        let mut probes = PROBES_MIN.min(probes_max);
        while probes <= probes_max
            && !trials
                .last()
                .is_some_and(|point| point.recall >= TARGET_RECALLS[TARGET_RECALLS.len() - 1])
        {
            trials.push(trial.recall(&self, probes)?);
            probes = ((probes as f64 * PROBE_GROWTH) as usize).max(probes + 1);
        }
        for probes in wide_probes(self.clusters(), order.len()) {
            if best_recall(&trials) >= DEFAULT_RECALL {
                break;
            }
            trials.push(trial.recall(&self, probes)?);
        }
        let best = best_recall(&trials);
        let reached =
            |target: f32| trials.iter().find(|point| point.recall >= target.min(best)).copied();
        let mut points: Vec<RecallPoint> = TARGET_RECALLS.into_iter().filter_map(reached).collect();
        points.dedup();
        self.recall = Some(Recall { points });
        Ok(self)
    }
}
