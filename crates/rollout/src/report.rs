//! The public view of a model's rollouts.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::SystemTime;

use super::distribution::DistributionCounts;
use super::measures::{ArmFigures, RolloutFigures, RolloutMeasures};
use super::settings::{RolloutDefaults, RolloutSettings, RolloutSplit};

/// Maximum number of ended rollouts of a model that are kept.
const HISTORY_MAX: usize = 16;

/// State of a model's last rollout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RolloutState {
    /// There was none since the start.
    #[default]
    None,
    /// The candidate gets requests or copies.
    Running,
    /// The candidate became the stable version.
    Promoted,
    /// The candidate was withdrawn.
    RolledBack,
}

impl RolloutState {
    /// Returns the name in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            RolloutState::None => "none",
            RolloutState::Running => "running",
            RolloutState::Promoted => "promoted",
            RolloutState::RolledBack => "rolled_back",
        }
    }
}

/// An ended rollout.
#[derive(Clone, Debug, PartialEq)]
pub struct RolloutHistory {
    /// The stable version, or `None` if there was none.
    pub stable: Option<u64>,
    /// The candidate.
    pub candidate: u64,
    /// State in which the rollout ended.
    pub state: RolloutState,
    /// Reason for the end.
    pub reason: String,
    /// Requests that the candidate answered or failed.
    pub requests: u64,
    /// Requests that the candidate failed.
    pub errors: u64,
    /// Time of the end.
    pub at: SystemTime,
}

/// A model's rollouts as the `lifecycle` thread publishes them.
#[derive(Clone, Default)]
pub struct RolloutRecord {
    /// State of the rollout.
    pub state: RolloutState,
    /// Version that served before.
    pub stable: Option<u64>,
    /// New version.
    pub candidate: Option<u64>,
    /// Settings of the running rollout, or of the last one.
    pub settings: Option<RolloutSettings>,
    /// Counts of the running rollout, or of the last one.
    pub measures: Option<Arc<RolloutMeasures>>,
    /// Reason of its end.
    pub reason: Option<String>,
    /// Rollouts that ended, the oldest first.
    pub history: VecDeque<RolloutHistory>,
    /// Settings of the next rollout.
    pub defaults: RolloutDefaults,
}

/// A model's rollouts at one moment.
#[derive(Clone, Debug, Default)]
pub struct RolloutReport {
    /// State of the last rollout.
    pub state: RolloutState,
    /// Version of requests that name no version.
    pub stable: Option<u64>,
    /// The new version, or the last one.
    pub candidate: Option<u64>,
    /// Share of requests that go to the candidate.
    pub traffic: f64,
    /// Share of requests of which the candidate gets a copy.
    pub shadow: f64,
    /// Figures of the stable version.
    pub of_stable: ArmFigures,
    /// Figures of the candidate.
    pub of_candidate: ArmFigures,
    /// Requests for the candidate that the stable version answered, because the candidate is slower
    /// and had its maximum of requests in flight.
    pub overflowed: u64,
    /// Share of copies whose answer differs, or the largest distance of the distributions of
    /// outputs, or `None` if neither is known.
    pub drift: Option<f64>,
    /// Reason for the end of the last rollout.
    pub reason: Option<String>,
    /// Ended rollouts, the last one first.
    pub history: Vec<RolloutHistory>,
    /// Settings of the next rollout.
    pub defaults: RolloutDefaults,
}

impl RolloutRecord {
    /// Adds an ended rollout.
    pub fn end(&mut self, ended: RolloutHistory) {
        self.state = ended.state;
        self.reason = Some(ended.reason.clone());
        self.history.push_front(ended);
        self.history.truncate(HISTORY_MAX);
    }

    /// Returns the figures of the running rollout, or of the last one.
    pub fn figures(&self) -> RolloutFigures {
        self.measures.as_ref().map(|measures| measures.read()).unwrap_or_default()
    }

    /// Returns the description for clients.
    pub fn report(&self) -> RolloutReport {
        let figures = self.figures();
        let running = self.settings.as_ref().filter(|_| self.state == RolloutState::Running);
        let split = running.map(|settings| settings.split);
        RolloutReport {
            state: self.state,
            stable: self.stable,
            candidate: self.candidate,
            traffic: split.map_or(0.0, RolloutSplit::traffic),
            shadow: split.map_or(0.0, RolloutSplit::shadow),
            drift: self.drift(&figures),
            overflowed: figures.overflowed,
            of_stable: figures.stable,
            of_candidate: figures.candidate,
            reason: self.reason.clone(),
            history: self.history.iter().cloned().collect(),
            defaults: self.defaults.clone(),
        }
    }

    /// Returns the share of copies whose answer differs, or the largest distance of the
    /// distributions of outputs. Returns `None` before the first answer.
    fn drift(&self, figures: &RolloutFigures) -> Option<f64> {
        match self.settings.as_ref()?.split {
            RolloutSplit::Shadow(_) => {
                let answered = figures.candidate.answered();
                (answered > 0).then(|| figures.differing as f64 / answered as f64)
            }
            RolloutSplit::Traffic(_) => {
                figures.outputs.as_ref().and_then(DistributionCounts::distance)
            }
        }
    }
}
