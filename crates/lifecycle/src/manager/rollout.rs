//! Rollouts: roles of versions and their judgement.

mod by_hand;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use base::Error;

use super::model::{Model, Version, VersionFailure};
use super::resume::KeptRollout;
use super::{Manager, ManagerContext};
use crate::catalog::RolloutTraffic;
use crate::policy;
use crate::policy::rollout::{RollbackReason, RolloutIntent, RolloutVerdict, VersionRoles};
use crate::status::VersionStatus;
use crate::withdrawals::WithdrawnVersion;
use crate::{LifecycleEvent, LifecycleState};
use ::rollout::{
    RolloutHistory, RolloutMeasures, RolloutRecord, RolloutSettings, RolloutSplit, RolloutState,
    SplitCounter, incompatible,
};

/// Time between two judgements of running rollouts.
pub(super) const JUDGE_PAUSE: Duration = Duration::from_millis(50);
/// Kind of the reason in metrics and events if an administrator ends a rollout.
const BY_HAND: &str = "hand";

/// Rollouts of one model.
#[derive(Default)]
pub(crate) struct ModelRollout {
    pub(crate) roles: VersionRoles,
    pub(crate) record: RolloutRecord,
    /// Requests of the running rollout, as published.
    pub(crate) traffic: Option<Arc<RolloutTraffic>>,
    /// Version and share of requests that an administrator requested.
    pub(super) requested: Option<RequestedRollout>,
    /// The rollout of the last stop, until both versions are ready.
    pub(crate) resumes: Option<KeptRollout>,
    /// Time from which the running rollout is measured.
    started: Option<Instant>,
}

/// Rollout that an administrator requested.
#[derive(Clone, Copy)]
pub(super) struct RequestedRollout {
    pub(super) version: u64,
    pub(super) split: RolloutSplit,
}

/// End of a rollout, for its report.
struct RolloutEnd {
    candidate: u64,
    state: RolloutState,
    /// Name for metrics.
    kind: &'static str,
    message: String,
}

impl ModelRollout {
    /// Returns true while a rollout runs.
    pub(super) fn running(&self) -> bool {
        self.traffic.is_some()
    }

    /// Forgets the figures of a running rollout in which `version` takes part, since `version`
    /// serves other files now. The next publication starts new figures.
    pub(super) fn forget_figures(&mut self, version: u64) {
        let VersionRoles { stable, candidate } = self.roles;
        let takes_part = stable == Some(version) || candidate == Some(version);
        if candidate.is_some()
            && takes_part
            && let Some(measures) = self.record.measures.take()
        {
            measures.end();
        }
    }

    /// Leaves the running rollout without an end, so that the next start continues it.
    pub(super) fn interrupt(&mut self) {
        self.roles = VersionRoles::default();
        self.traffic = None;
    }

    /// Marks the candidate of the running rollout in its status. Adds a note, if it has none.
    pub(crate) fn annotate(&self, mut status: VersionStatus) -> VersionStatus {
        let takes_part = self.roles.candidate == Some(status.version);
        let Some(traffic) = self.traffic.as_ref().filter(|_| takes_part) else { return status };
        status.candidate = true;
        if status.note.is_some() {
            return status;
        }
        status.note = Some(match traffic.split {
            RolloutSplit::Traffic(share) => {
                format!("rollout: it gets {} % of the requests", share * 100.0)
            }
            RolloutSplit::Shadow(share) => {
                format!("rollout: it gets copies of {} % of the requests", share * 100.0)
            }
        });
        status
    }
}

impl Manager {
    /// Judges every running rollout. Returns the models whose versions changed their roles.
    pub(super) fn judge_rollouts(&mut self, now: Instant) -> BTreeSet<Arc<str>> {
        let running = self.models.values_mut().filter(|model| model.rollout.running());
        let context = &self.context;
        running.filter_map(|model| model.judge(context, now).then(|| model.name.clone())).collect()
    }
}

impl Model {
    /// Returns the settings of a rollout of `candidate`.
    pub(super) fn rollout_settings(&self, candidate: u64) -> Option<RolloutSettings> {
        let requested = self.rollout.requested.filter(|requested| requested.version == candidate);
        match requested {
            Some(requested) => Some(self.config.rollout.with_split(requested.split)),
            None => self.config.rollout.automatic(),
        }
    }

    /// Returns true if a version does not serve and its load has failed. A version that serves
    /// continues if it cannot be loaded again, and a load that is tried again has not failed yet.
    fn has_failed(&self, number: u64) -> bool {
        self.versions.get(&number).is_some_and(|version| {
            let failed = version.failure.as_ref().is_some_and(|it| it.retry_at.is_none());
            version.serving.is_none() && failed
        })
    }

    /// Returns true if the rollout that an administrator requested cannot run any more.
    fn is_impossible(&self, requested: RequestedRollout) -> bool {
        let is_missing = |version: &Version| version.serving.is_none() && version.disk.is_none();
        self.down
            || self.removed
            || self.versions.get(&requested.version).is_none_or(is_missing)
            || self.has_failed(requested.version)
    }

    /// Ends a requested rollout, or one of the last stop, whose version cannot serve. Without an
    /// end, the stable version would keep its role although a higher one is ready.
    pub(super) fn end_impossible_rollouts(&mut self, context: &ManagerContext) {
        let requested = self.rollout.requested.is_some_and(|it| self.is_impossible(it));
        let resumed = self.rollout.resumes.as_ref().map(KeptRollout::candidate);
        if requested || resumed.is_some_and(|candidate| self.has_failed(candidate)) {
            self.publish(context);
        }
    }

    /// Gives the ready versions their roles, and starts or ends a rollout accordingly.
    pub(super) fn assign_roles(&mut self, context: &ManagerContext) {
        if self.rollout.requested.is_some_and(|requested| self.is_impossible(requested)) {
            self.rollout.requested = None;
        }
        let intent = RolloutIntent {
            automatic: self.config.rollout.automatic().is_some(),
            requested: self.rollout.requested.map(|requested| requested.version),
        };
        let before = self.rollout.roles;
        let mut roles = policy::rollout::assign(before, intent, &self.views(Instant::now()));
        self.rollout.roles = roles;
        if let Some(candidate) = before.candidate
            && roles.candidate != Some(candidate)
        {
            // The versions of an unloaded model go one after the other, stable first.
            let remaining = if self.down || self.removed { VersionRoles::default() } else { roles };
            self.end_rollout(context, end_without_role(candidate, remaining));
        }
        if let (Some(stable), Some(candidate)) = (roles.stable, roles.candidate) {
            match self.stop_reason(stable, candidate) {
                Some(reason) => {
                    self.withdraw(context, candidate, reason);
                    roles.candidate = None;
                    self.rollout.roles = roles;
                }
                None => self.run_rollout(context, stable, candidate),
            }
        }
        self.rollout.record.stable = roles.stable;
        // Either the rollout runs again, or the candidate serves because stable cannot be loaded,
        // or the candidate cannot be loaded, or an administrator unloaded the model.
        let resumed = self.rollout.resumes.as_ref().map(KeptRollout::candidate);
        let is_over = |candidate: u64| {
            roles.candidate.is_some()
                || roles.stable == Some(candidate)
                || self.has_failed(candidate)
                || self.down
        };
        if resumed.is_some_and(is_over) {
            self.rollout.resumes = None;
        }
    }

    /// Returns the reason why the rollout of `candidate` cannot begin or continue, if there is one.
    fn stop_reason(&self, stable: u64, candidate: u64) -> Option<RollbackReason> {
        if let Some(message) = self.incompatibility(stable, candidate) {
            return Some(RollbackReason { kind: "signature", message });
        }
        let settings = self.rollout_settings(candidate)?;
        let reason = self.refused_copies(candidate, settings.split)?;
        let message = format!("{reason}, and load the version again");
        Some(RollbackReason { kind: "state", message })
    }

    /// Returns the reason why `candidate` must get no copies of requests, if `split` gives it some
    /// and it is ready.
    fn refused_copies(&self, candidate: u64, split: RolloutSplit) -> Option<String> {
        let RolloutSplit::Shadow(_) = split else { return None };
        let serving = self.versions.get(&candidate)?.serving.as_ref()?;
        serving.servable.changes_state().then(|| {
            "requests change the state of its variables, and copies of them would change it too; \
             set traffic instead of shadow"
                .to_owned()
        })
    }

    /// Returns why `candidate` cannot answer the requests of `stable`, if both serve and it cannot.
    fn incompatibility(&self, stable: u64, candidate: u64) -> Option<String> {
        let of = |version: &u64| Some(&self.versions.get(version)?.serving.as_ref()?.servable);
        let message = incompatible(of(&stable)?, of(&candidate)?)?;
        Some(format!("it cannot answer the requests of version {stable}: {message}"))
    }

    /// Starts the rollout of `candidate`, or gives a running one its current settings.
    fn run_rollout(&mut self, context: &ManagerContext, stable: u64, candidate: u64) {
        let Some(settings) = self.rollout_settings(candidate) else { return };
        let is_running = self.rollout.record.candidate == Some(candidate)
            && self.rollout.record.state == RolloutState::Running;
        let record = &self.rollout.record;
        if is_running && record.measures.is_some() && record.settings.as_ref() == Some(&settings) {
            return;
        }
        let kind = |settings: &RolloutSettings| std::mem::discriminant(&settings.split);
        let earlier = self.rollout.record.settings.as_ref().filter(|_| is_running).map(kind);
        let measures = match &self.rollout.record.measures {
            // A changed share keeps the figures.
            Some(measures) if earlier == Some(kind(&settings)) => measures.clone(),
            _ => {
                self.rollout.started = Some(Instant::now());
                self.measures(context, &settings, stable)
            }
        };
        tracing::info!(model = %self.name, stable, candidate, split = %settings.split, "rollout started");
        self.rollout.traffic = Some(Arc::new(RolloutTraffic {
            candidate,
            split: settings.split,
            counter: SplitCounter::new(&self.name, candidate),
            measures: measures.clone(),
        }));
        let record = &mut self.rollout.record;
        record.state = RolloutState::Running;
        record.candidate = Some(candidate);
        record.settings = Some(settings);
        record.measures = Some(measures);
        record.reason = None;
        let model = self.name.clone();
        context.observer.event(&LifecycleEvent::RolloutStarted { model, candidate });
    }

    /// Creates the measures of a rollout. They compare outputs if the settings limit their drift.
    fn measures(
        &self,
        context: &ManagerContext,
        settings: &RolloutSettings,
        stable: u64,
    ) -> Arc<RolloutMeasures> {
        let judges =
            matches!(settings.split, RolloutSplit::Traffic(_)) && settings.limits.drift.is_some();
        let serving = self.versions.get(&stable).and_then(|version| version.serving.as_ref());
        let signature = serving.filter(|_| judges).map(|serving| serving.servable.signature());
        Arc::new(RolloutMeasures::new(settings.tolerance, signature, context.workers))
    }

    /// Judges the running rollout. Returns true if it ended.
    fn judge(&mut self, context: &ManagerContext, now: Instant) -> bool {
        let (Some(candidate), Some(settings)) =
            (self.rollout.roles.candidate, self.rollout.record.settings.as_ref())
        else {
            return false;
        };
        let started = self.rollout.started.unwrap_or(now);
        let figures = self.rollout.record.figures();
        match policy::rollout::judge(settings, &figures, now.duration_since(started)) {
            RolloutVerdict::Continue => return false,
            RolloutVerdict::RollBack(reason) => self.withdraw(context, candidate, reason),
            RolloutVerdict::Promote(message) => {
                self.promote(context, candidate, "no_limit_reached", message);
            }
        }
        self.publish(context);
        true
    }

    /// Ends the running rollout: `candidate` becomes the stable version. The caller publishes.
    fn promote(
        &mut self,
        context: &ManagerContext,
        candidate: u64,
        kind: &'static str,
        message: String,
    ) {
        let state = RolloutState::Promoted;
        self.end_rollout(context, RolloutEnd { candidate, state, kind, message });
        self.rollout.roles = VersionRoles { stable: Some(candidate), candidate: None };
        self.rollout.requested = None;
        self.rollout.record.stable = Some(candidate);
    }

    /// Withdraws a version. It loses its role, and it is not loaded again until its files change or
    /// an administrator asks. The caller publishes.
    fn withdraw(&mut self, context: &ManagerContext, number: u64, reason: RollbackReason) {
        let RollbackReason { kind, message } = reason;
        let Some(version) = self.versions.get_mut(&number) else { return };
        let Some(serving) = &version.serving else { return };
        version.failure = Some(VersionFailure {
            error: Error::precondition(format!("withdrawn by a rollout: {message}")),
            fingerprint: serving.fingerprint,
            tries: 1,
            retry_at: None,
            withdrawn: true,
        });
        version.pinned = false;
        version.reload = false;
        // A successful load would cancel the withdrawal.
        version.stop_load();
        if self.rollout.roles.candidate == Some(number) {
            self.rollout.roles.candidate = None;
        }
        self.rollout.requested = None;
        if kind != BY_HAND {
            self.hold_back(context, number, &message);
        }
        let state = RolloutState::RolledBack;
        self.end_rollout(context, RolloutEnd { candidate: number, state, kind, message });
    }

    /// Keeps the withdrawn versions for the next start. Withdrawals of versions that cannot be read
    /// stay as they are. So do all of a model without versions, because its file system may not be
    /// mounted yet.
    pub(super) fn keep_withdrawals(&self, context: &mut ManagerContext) {
        if self.path_error.is_some() || self.removed || self.versions.is_empty() {
            return;
        }
        let key = self.state_key();
        let known = &context.withdrawals;
        let withdrawn = |(&number, version): (&u64, &Version)| {
            let Some(failure) = version.failure.as_ref().filter(|failure| failure.withdrawn) else {
                let kept = known.find(&key, number).cloned();
                return kept.filter(|_| version.unreadable());
            };
            Some(WithdrawnVersion {
                version: number,
                files: failure.fingerprint.to_string(),
                reason: failure.error.message().to_owned(),
            })
        };
        let withdrawn = self.versions.iter().filter_map(withdrawn).collect();
        context.withdrawals.replace(&key, withdrawn);
    }

    /// Holds back a version that was withdrawn before the start, or before the model had another
    /// directory. If it serves from that one, it continues until another version does.
    pub(super) fn stay_withdrawn(&mut self, context: &ManagerContext, number: u64, reason: String) {
        let Some(version) = self.versions.get_mut(&number) else { return };
        let Some(disk) = &version.disk else { return };
        version.failure = Some(VersionFailure {
            error: Error::precondition(reason.as_str()),
            fingerprint: disk.fingerprint,
            tries: 1,
            retry_at: None,
            withdrawn: true,
        });
        version.reload = false;
        if version.serving.is_none() {
            context.set_state(self, number, LifecycleState::Failed, Some(reason));
        }
    }

    /// Records and reports the end of a rollout. The caller publishes.
    fn end_rollout(&mut self, context: &ManagerContext, end: RolloutEnd) {
        let RolloutEnd { candidate, state, kind, message } = end;
        self.rollout.traffic = None;
        self.rollout.started = None;
        let record = &mut self.rollout.record;
        // A version that was withdrawn without a rollout has no figures of its own.
        let has_figures = record.candidate == Some(candidate);
        if !has_figures {
            record.measures = None;
            record.settings = None;
        }
        if let Some(measures) = &record.measures {
            measures.end();
        }
        let figures = record.figures();
        record.candidate = Some(candidate);
        let promoted = state == RolloutState::Promoted;
        if promoted {
            tracing::info!(model = %self.name, candidate, reason = message, "rollout ended: promoted")
        } else {
            tracing::warn!(model = %self.name, candidate, kind, reason = message, "rollout ended: withdrawn")
        }
        record.end(RolloutHistory {
            stable: record.stable,
            candidate,
            state,
            reason: format!("{kind}: {message}"),
            requests: figures.candidate.requests,
            errors: figures.candidate.errors,
            at: SystemTime::now(),
        });
        let model = self.name.clone();
        context.observer.event(&LifecycleEvent::RolloutEnded { model, promoted, reason: kind });
    }
}

/// Returns the end of a rollout whose candidate lost its role, but not because of a limit.
fn end_without_role(candidate: u64, roles: VersionRoles) -> RolloutEnd {
    if roles.stable == Some(candidate) {
        return RolloutEnd {
            candidate,
            state: RolloutState::Promoted,
            kind: "alone",
            message:
                "the stable version is not served any more, or the settings ask for no rollout"
                    .into(),
        };
    }
    let message = match roles.candidate {
        Some(next) => format!("version {next} took its place"),
        None => "it is not served any more".into(),
    };
    RolloutEnd { candidate, state: RolloutState::RolledBack, kind: "unloaded", message }
}
