//! Gradual change of a model's version (ADR 0017).
//!
//! While a rollout runs, the old version is `stable` and the new one is the `candidate`. A share of
//! the requests without a version goes to the candidate, or a copy of them does. Requests use
//! atomic operations only. `millpond-lifecycle` reads the counts and decides.
//!
//! # Modules
//! * Requests: `split` assigns them, `admission` limits those of a slow candidate, `measures`
//!   counts their outcomes.
//! * Counts: `latency` has latencies, `compare` differences of answers, `distribution` values of
//!   outputs. `bounds` derives bounds from them.
//! * `settings` are those of a model's file, `report` shows a rollout to clients.

mod admission;
mod bounds;
mod compare;
mod distribution;
mod latency;
mod measures;
mod report;
mod settings;
mod split;

pub use admission::{CandidatePermit, RunCost, SLOWER_RATIO, slowdown};
pub use bounds::{TrialCounts, lower_bound, upper_bound};
pub use compare::{compare_answers, incompatible};
pub use latency::LatencyCounts;
pub use measures::{
    AnsweredRun, ArmFigures, PendingRequest, RolloutArm, RolloutFigures, RolloutMeasures,
    RolloutPart,
};
pub use report::{RolloutHistory, RolloutRecord, RolloutReport, RolloutState};
pub use settings::{
    LimitText, Promotion, RollbackFile, RollbackLimits, RolloutDefaults, RolloutFile,
    RolloutSettings, RolloutSplit, RolloutStart,
};
pub use split::{RequestKey, SplitCounter, within};
