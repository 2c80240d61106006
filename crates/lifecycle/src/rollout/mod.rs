//! Gradual change of a model's version (ADR 0017).
//!
//! While a rollout runs, the old version is `stable` and the new one is the `candidate`. A share of
//! the requests without a version goes to the candidate, or a copy of them does. `split` assigns
//! requests, `admission` limits those of a slow candidate, `measures` counts their outcomes,
//! `bounds` derives bounds from the counts. Requests use atomic operations only. The `lifecycle`
//! thread reads the counts and decides by [`crate::policy`].

mod admission;
mod bounds;
mod compare;
mod distribution;
pub(crate) mod latency;
mod measures;
mod report;
mod settings;
mod split;

pub use admission::CandidatePermit;
pub(crate) use admission::{RunCost, SLOWER_RATIO, slowdown};
pub use measures::{AnsweredRun, ArmFigures, PendingRequest, RolloutMeasures, RolloutPart};
pub(crate) use measures::{RolloutArm, RolloutFigures};
pub(crate) use report::RolloutRecord;
pub use report::{RolloutHistory, RolloutReport, RolloutState};
pub use settings::{
    LimitText, Promotion, RollbackFile, RolloutDefaults, RolloutFile, RolloutStart,
};
pub(crate) use settings::{RollbackLimits, RolloutSettings, RolloutSplit};
pub use split::RequestKey;
pub(crate) use split::{SplitCounter, within};

pub(crate) use bounds::{TrialCounts, lower_bound, upper_bound};
pub(crate) use compare::{compare_answers, incompatible};
