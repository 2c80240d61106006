//! Decides how severe the problems of a model are. The overview lists the worst models first, with
//! one line of text.

use lifecycle::{LifecycleState, ModelStatus, UpdateStatus};
use serde::Serialize;

use crate::history::TrafficRecord;

/// Minimum failed requests of the last minute that are trouble.
const ERRORS_MIN: u64 = 3;
/// Share of failed requests from which a model is in trouble.
const ERROR_SHARE_WARNING: f64 = 0.01;
/// Share of failed requests from which a model fails.
const ERROR_SHARE_FAILING: f64 = 0.05;

/// Weight of a model's trouble, worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum TroubleLevel {
    /// The model serves nothing although it should, or fails many requests.
    Failing,
    /// The model serves, but an operator should check it.
    Warning,
    /// The model works as it should.
    None,
}

/// State of a model in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ModelState {
    /// A version serves.
    Ready,
    /// The first version is being loaded.
    Loading,
    /// No version serves, for a reason that is known.
    Failed,
    /// An administrator unloaded it.
    Unloaded,
    /// The model has no version.
    Empty,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ModelTrouble {
    pub(crate) state: ModelState,
    pub(crate) level: TroubleLevel,
    /// Worst problem, as the page words it; empty if the model has none.
    pub(crate) text: String,
}

/// Returns the problem of a model. `minute` is its traffic in the last minute.
pub(crate) fn of(status: &ModelStatus, minute: &TrafficRecord) -> ModelTrouble {
    let state = state(status);
    let (level, text) = [
        failure(status),
        errors(minute),
        broken_version(status),
        held_back(status),
        status.error.as_ref().map(|error| (TroubleLevel::Warning, error.clone())),
    ]
    .into_iter()
    .flatten()
    .min_by_key(|(level, _)| *level)
    .unwrap_or((TroubleLevel::None, String::new()));
    ModelTrouble { state, level, text }
}

/// Returns the state of a model as the page shows it.
fn state(status: &ModelStatus) -> ModelState {
    let loading = |state| {
        matches!(
            state,
            LifecycleState::Discovered
                | LifecycleState::Admitted
                | LifecycleState::Loading
                | LifecycleState::Warming
        )
    };
    if status.ready() {
        ModelState::Ready
    } else if status.unloaded {
        ModelState::Unloaded
    } else if status.failure().is_some() {
        ModelState::Failed
    } else if status.versions.iter().any(|version| loading(version.state)) {
        ModelState::Loading
    } else {
        ModelState::Empty
    }
}

fn failure(status: &ModelStatus) -> Option<(TroubleLevel, String)> {
    status.failure().map(|reason| (TroubleLevel::Failing, reason))
}

/// Returns the failed requests, by the most frequent status.
pub(crate) fn errors(minute: &TrafficRecord) -> Option<(TroubleLevel, String)> {
    let errors = minute.errors();
    let requests = minute.requests();
    let share = errors as f64 / requests.max(1) as f64;
    if errors < ERRORS_MIN || share < ERROR_SHARE_WARNING {
        return None;
    }
    let mut failures = minute.failures();
    failures.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let names: Vec<String> =
        failures.iter().map(|(name, count)| format!("{name} {count}")).collect();
    let level =
        if share >= ERROR_SHARE_FAILING { TroubleLevel::Failing } else { TroubleLevel::Warning };
    let percent = share * 100.0;
    let text = format!(
        "{percent:.1} % of requests failed in the last minute: {} of {requests} ({})",
        errors,
        names.join(", ")
    );
    Some((level, text))
}

/// Returns the newest version's failure, if an older one serves.
fn broken_version(status: &ModelStatus) -> Option<(TroubleLevel, String)> {
    let newest = status.versions.last().filter(|last| last.state == LifecycleState::Failed)?;
    if status.unloaded || !status.ready() {
        return None;
    }
    let reason = newest.reason.as_deref().unwrap_or("no reason is known");
    Some((
        TroubleLevel::Warning,
        format!("version {} failed, older ones serve: {reason}", newest.version),
    ))
}

/// Returns why the newest version is held back.
fn held_back(status: &ModelStatus) -> Option<(TroubleLevel, String)> {
    let newest = status.versions.last()?;
    let held = newest.update == Some(UpdateStatus::HeldBack) && !status.unloaded;
    let reason = newest.reason.as_deref().filter(|_| held)?;
    Some((TroubleLevel::Warning, format!("version {} is {reason}", newest.version)))
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use lifecycle::VersionStatus;

    use super::*;

    fn model(versions: &[(u64, LifecycleState)]) -> ModelStatus {
        let version = |&(version, state)| VersionStatus {
            version,
            state,
            reason: (state == LifecycleState::Failed).then(|| "no such file".to_owned()),
            note: None,
            retried: None,
            update: None,
            candidate: false,
            parameter_bytes: 0,
            since: SystemTime::UNIX_EPOCH,
        };
        let versions = versions.iter().map(version).collect();
        ModelStatus { name: "m".into(), versions, ..ModelStatus::default() }
    }

    fn level(status: &ModelStatus, answered: usize, failed: u32) -> TroubleLevel {
        // Failed requests are counted beside the answered ones.
        of(status, &TrafficRecord::sample(&vec![1000; answered], failed)).level
    }

    #[test]
    fn the_level_follows_the_versions() {
        use LifecycleState::{Failed, Loading, Ready, Released};
        let quiet = TrafficRecord::default();
        for (versions, state, wanted) in [
            (vec![(1, Ready)], ModelState::Ready, TroubleLevel::None),
            (vec![(1, Failed)], ModelState::Failed, TroubleLevel::Failing),
            (vec![(1, Ready), (2, Failed)], ModelState::Ready, TroubleLevel::Warning),
            (vec![(1, Failed), (2, Ready)], ModelState::Ready, TroubleLevel::None),
            (vec![(1, Released), (2, Loading)], ModelState::Loading, TroubleLevel::None),
            (vec![], ModelState::Empty, TroubleLevel::None),
        ] {
            let found = of(&model(&versions), &quiet);
            assert_eq!((found.state, found.level), (state, wanted), "{versions:?}");
        }
        let mut tried = model(&[(1, LifecycleState::Discovered)]);
        assert_eq!(of(&tried, &quiet).state, ModelState::Loading);
        tried.versions[0].retried = Some("no room".to_owned());
        let found = of(&tried, &quiet);
        assert_eq!((found.state, found.level), (ModelState::Failed, TroubleLevel::Failing));
        assert_eq!(found.text, "version 1 failed and is tried again: no room");
        let mut held = model(&[(1, Ready), (2, LifecycleState::Discovered)]);
        held.versions[1].update = Some(UpdateStatus::HeldBack);
        held.versions[1].reason = Some("held back: it failed at b".to_owned());
        let found = of(&held, &quiet);
        assert_eq!((found.state, found.level), (ModelState::Ready, TroubleLevel::Warning));
        assert_eq!(found.text, "version 2 is held back: it failed at b");
        held.versions[1].update = Some(UpdateStatus::Waiting { until: None });
        assert_eq!(of(&held, &quiet).level, TroubleLevel::None);
        let unloaded = ModelStatus { unloaded: true, ..model(&[(1, Failed)]) };
        assert_eq!(of(&unloaded, &quiet).state, ModelState::Unloaded);
        assert_eq!(of(&unloaded, &quiet).level, TroubleLevel::None);
        let settings = ModelStatus { error: Some("line 1".into()), ..model(&[(1, Ready)]) };
        assert_eq!(of(&settings, &quiet).level, TroubleLevel::Warning);
    }

    #[test]
    fn the_level_follows_the_failed_requests() {
        let ready = model(&[(1, LifecycleState::Ready)]);
        assert_eq!(level(&ready, 10, ERRORS_MIN as u32 - 1), TroubleLevel::None);
        assert_eq!(level(&ready, 9997, 3), TroubleLevel::None);
        assert_eq!(level(&ready, 197, 3), TroubleLevel::Warning);
        assert_eq!(level(&ready, 82, 18), TroubleLevel::Failing);
        let text = of(&ready, &TrafficRecord::sample(&[1000; 82], 18)).text;
        assert_eq!(
            text,
            "18.0 % of requests failed in the last minute: 18 of 100 (invalid_argument 18)"
        );
    }
}
