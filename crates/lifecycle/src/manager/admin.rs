//! Requests of administrators. A load waits for a new scan of directories, then for its versions.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::{Error, Result};

use super::model::{Disk, Model, Version};
use super::{Manager, ManagerContext, TouchedModels};
use crate::LifecycleState;
use crate::message::{AdminCallback, LoadSpec};
use crate::source::VersionContents;

/// Maximum number of requests of administrators that wait at the same time.
const WAITERS_MAX: usize = 256;
/// Longest wait of a load for files without a manifest to stop changing, and for settings that may
/// be replaced.
pub(super) const CHANGING_WAIT_MAX: Duration = Duration::from_secs(10);
/// Longest wait of a request. The load or unload continues after it.
pub(super) const WAIT_MAX: Duration = Duration::from_secs(3600);
/// Time between two rounds while a request waits.
pub(super) const PAUSE: Duration = Duration::from_millis(100);

/// A request that is not answered yet.
pub(super) struct AdminWaiter {
    pub(super) model: Arc<str>,
    goal: WaiterGoal,
    since: Instant,
    done: AdminCallback,
}

/// The next thing that a request of an administrator waits for.
enum WaiterGoal {
    /// The scan that answers `ticket` must come first.
    Scan { ticket: u64, spec: LoadSpec },
    /// The versions are not chosen yet. One may still change on disk.
    Choose { spec: LoadSpec },
    /// These versions must be ready. `newest` is true if the policy chose them.
    Load { targets: BTreeSet<u64>, newest: bool },
    /// All versions of the model must have left memory.
    Unload,
}

/// Result of a check of a waiting request.
enum WaiterVerdict {
    Wait,
    Done(Result<()>),
}

impl Manager {
    pub(super) fn admin_load(&mut self, model: Arc<str>, spec: LoadSpec, done: AdminCallback) {
        let ticket = self.scans.request();
        self.wait(AdminWaiter {
            model,
            goal: WaiterGoal::Scan { ticket, spec },
            since: Instant::now(),
            done,
        });
    }

    /// Unloads a model for an administrator. `done` is called once its versions are released.
    /// Requests of others that wait for a load of the model fail.
    pub(super) fn admin_unload(&mut self, name: Arc<str>, done: AdminCallback) -> TouchedModels {
        let Some(model) = self.models.get_mut(&name) else {
            done(Err(unknown(&name)));
            return TouchedModels::Nothing;
        };
        let is_overtaken = |waiter: &AdminWaiter| {
            waiter.model == name && !matches!(waiter.goal, WaiterGoal::Unload)
        };
        // Before the unload begins, so that a refusal changes nothing.
        if self.waiters.iter().filter(|&waiter| !is_overtaken(waiter)).count() >= WAITERS_MAX {
            done(Err(too_many_waiters()));
            return TouchedModels::Nothing;
        }
        tracing::info!(model = %name, "unloaded by an administrator");
        model.down = true;
        model.vacated = None;
        for version in model.versions.values_mut() {
            version.pinned = false;
            version.reload = false;
        }
        let (overtaken, rest) =
            std::mem::take(&mut self.waiters).into_iter().partition(is_overtaken);
        self.waiters = rest;
        for waiter in overtaken {
            (waiter.done)(Err(Error::cancelled(format!(
                "model \"{name}\" was unloaded by an administrator"
            ))));
        }
        self.wait(AdminWaiter {
            model: name.clone(),
            goal: WaiterGoal::Unload,
            since: Instant::now(),
            done,
        });
        TouchedModels::One(name)
    }

    /// Keeps a request until it is fulfilled. Refuses it if too many wait.
    fn wait(&mut self, waiter: AdminWaiter) {
        if self.waiters.len() < WAITERS_MAX {
            self.waiters.push(waiter);
        } else {
            self.refuse(waiter, too_many_waiters());
        }
    }

    /// Refuses a request. A rollout that it began ends, unless another request loads the version.
    fn refuse(&mut self, waiter: AdminWaiter, error: Error) {
        if let Some((name, version)) = waiter.unchosen()
            && !self.waiters.iter().any(|other| other.unchosen() == Some((name, version)))
            && let Some(model) = self.models.get_mut(name)
        {
            model.end_refused_request(&self.context, version);
        }
        (waiter.done)(Err(error));
    }

    /// Chooses the versions of loads whose scan is complete.
    pub(super) fn begin_loads(&mut self) {
        let now = Instant::now();
        let mut refused = Vec::new();
        for mut waiter in std::mem::take(&mut self.waiters) {
            match self.begin(&mut waiter, now) {
                Ok(()) => self.waiters.push(waiter),
                Err(error) => refused.push((waiter, error)),
            }
        }
        for (waiter, error) in refused {
            self.refuse(waiter, error);
        }
    }

    /// Moves a waiting request to its next goal as far as possible. The goals are the scan after
    /// the request, the choice of versions, and their loads.
    fn begin(&mut self, waiter: &mut AdminWaiter, now: Instant) -> Result<()> {
        if let WaiterGoal::Scan { ticket, spec } = &waiter.goal {
            if self.answered.is_none_or(|answered| answered < *ticket) {
                return Ok(());
            }
            let model = self.models.get_mut(&waiter.model).filter(|model| !model.removed);
            let model = model.ok_or_else(|| unknown(&waiter.model))?;
            model.clear_failures(&self.context);
            waiter.goal = WaiterGoal::Choose { spec: spec.clone() };
        }
        if let WaiterGoal::Choose { spec } = &waiter.goal {
            let model = self.models.get_mut(&waiter.model).ok_or_else(|| unknown(&waiter.model))?;
            let may_wait = now.duration_since(waiter.since) < CHANGING_WAIT_MAX;
            if may_wait && model.settings_in_doubt {
                return Ok(());
            }
            let newest = spec.version.is_none();
            if let Some(targets) = model.targets(spec, may_wait)? {
                model.update_by_hand(&self.context, &targets);
                waiter.goal = WaiterGoal::Load { targets, newest };
            }
        }
        Ok(())
    }

    /// Answers requests that are fulfilled or can no longer be fulfilled.
    pub(super) fn answer_waiters(&mut self) {
        let now = Instant::now();
        for waiter in std::mem::take(&mut self.waiters) {
            let model = self.models.get(&waiter.model);
            match waiter.verdict(model, now) {
                WaiterVerdict::Wait => self.waiters.push(waiter),
                WaiterVerdict::Done(result) => {
                    let result = result.and_then(|()| self.check_copies(&waiter));
                    (waiter.done)(result);
                }
            }
        }
    }

    /// Checks that the newest versions were copied from their store, if the request loads them.
    ///
    /// # Errors
    /// `FailedPrecondition` with the reason why a version could not be copied.
    fn check_copies(&self, waiter: &AdminWaiter) -> Result<()> {
        let newest = matches!(waiter.goal, WaiterGoal::Load { newest: true, .. });
        // The problem may be that of a copy of the same name that does not serve.
        let is_copy = self.models.get(&waiter.model).is_some_and(|model| model.is_copy);
        match self.sources.copy_error(&waiter.model).filter(|_| newest && is_copy) {
            Some(error) => Err(Error::precondition(format!(
                "{error}; the versions that were copied before serve"
            ))),
            None => Ok(()),
        }
    }

    /// Refuses all waiting requests at shutdown.
    pub(super) fn refuse_waiters(&mut self) {
        let waiters = self.waiters.drain(..).map(|waiter| waiter.done);
        for done in waiters.chain(self.reconfigurations.drain(..).map(|change| change.done)) {
            done(Err(Error::unavailable("the server is shutting down")));
        }
    }
}

impl AdminWaiter {
    /// Returns the model and version that the request loads by number, until the load is accepted.
    fn unchosen(&self) -> Option<(&Arc<str>, u64)> {
        match &self.goal {
            WaiterGoal::Scan { spec, .. } | WaiterGoal::Choose { spec } => {
                Some((&self.model, spec.version?))
            }
            WaiterGoal::Load { .. } | WaiterGoal::Unload => None,
        }
    }

    /// Decides if the request is fulfilled, has failed, or still waits. `model` is `None` once it
    /// is unloaded.
    fn verdict(&self, model: Option<&Model>, now: Instant) -> WaiterVerdict {
        if now.duration_since(self.since) > WAIT_MAX {
            return WaiterVerdict::Done(Err(Error::deadline(
                "it takes longer than the time limit and continues; see `millpond models status`",
            )));
        }
        match (&self.goal, model) {
            (WaiterGoal::Scan { .. } | WaiterGoal::Choose { .. }, _) => WaiterVerdict::Wait,
            (WaiterGoal::Unload, Some(model)) if !model.down => WaiterVerdict::Done(Err(
                Error::cancelled("it was loaded again by an administrator"),
            )),
            (WaiterGoal::Unload, Some(model)) if !model.at_rest() => WaiterVerdict::Wait,
            (WaiterGoal::Unload, _) => WaiterVerdict::Done(Ok(())),
            (WaiterGoal::Load { .. }, None) => WaiterVerdict::Done(Err(unknown(&self.model))),
            (WaiterGoal::Load { targets, .. }, Some(model)) => model.loaded(targets, now),
        }
    }
}

impl Model {
    /// Lets the model load at an administrator's request, and clears earlier failures.
    fn clear_failures(&mut self, context: &ManagerContext) {
        self.down = false;
        let failed: Vec<u64> = self
            .versions
            .iter()
            .filter(|(_, version)| version.failure.is_some())
            .map(|(&number, _)| number)
            .collect();
        for number in failed {
            if let Some(version) = self.versions.get_mut(&number) {
                version.failure = None;
            }
            self.show_disk(context, number);
        }
    }

    /// Returns the versions that `spec` requests, or `None` while they are not known yet. With
    /// `may_wait`, versions whose files still change may complete. Without it, a requested version
    /// with such files is an error.
    fn targets(&mut self, spec: &LoadSpec, may_wait: bool) -> Result<Option<BTreeSet<u64>>> {
        let targets = match spec.version {
            Some(number) => {
                if !self.pin(number, may_wait)? {
                    return Ok(None);
                }
                BTreeSet::from([number])
            }
            None => {
                let chosen = self.wanted(&self.views(Instant::now()));
                if may_wait && self.changing_above(&chosen) {
                    return Ok(None);
                }
                if chosen.is_empty() {
                    return Err(self.nothing_to_load());
                }
                chosen
            }
        };
        let stale: Vec<u64> =
            targets.iter().copied().filter(|number| self.stale(*number, spec.reload)).collect();
        for number in &stale {
            let version = self.versions.get(number);
            if !version.map_or(Ok(true), |version| version.complete(*number, may_wait))? {
                return Ok(None);
            }
        }
        for number in &stale {
            if let Some(version) = self.versions.get_mut(number) {
                version.reload = version.load.is_none() || version.loads_old_files();
            }
        }
        Ok(Some(targets))
    }

    /// Returns true if a version must be loaded again. That is a ready version if its files changed
    /// or `anyway` is set, and any version whose load took files from before a change.
    fn stale(&self, number: u64, anyway: bool) -> bool {
        let Some(version) = self.versions.get(&number) else { return false };
        if version.loads_old_files() {
            return true;
        }
        let changed =
            |fingerprint| version.disk.as_ref().is_some_and(|disk| disk.differs_from(fingerprint));
        version.serving.as_ref().is_some_and(|serving| anyway || changed(serving.fingerprint))
    }

    /// Pins a version that an administrator named. Returns false while its files still change.
    /// Without `may_wait`, such files are an error.
    fn pin(&mut self, number: u64, may_wait: bool) -> Result<bool> {
        let name = self.name.clone();
        let problem = self.source_error.as_ref().or(self.unfinished.as_ref());
        let problem = problem.map(|problem| format!(": {problem}"));
        let problem = problem.unwrap_or_default();
        let missing = || {
            Error::not_found(format!("model \"{name}\" has no version {number} on disk{problem}"))
        };
        let version = self.versions.get_mut(&number).filter(|version| version.disk.is_some());
        let version = version.ok_or_else(missing)?;
        let complete = version.complete(number, may_wait)?;
        version.pinned |= complete;
        Ok(complete)
    }

    /// Returns the error of a request to load a model without a version that can be loaded.
    fn nothing_to_load(&self) -> Error {
        let reason = self.versions.iter().rev().find_map(|(number, version)| match &version.disk {
            Some(Disk {
                found:
                    VersionContents::Changing(reason)
                    | VersionContents::Unusable(reason)
                    | VersionContents::Unreadable(reason),
                ..
            }) => Some(format!("version {number}: {reason}")),
            _ => None,
        });
        let known = self.path_error.clone().or_else(|| self.source_error.clone());
        let known = known.or_else(|| self.unfinished.clone());
        let reason = known.or_else(|| self.unmet_policy()).or(reason);
        let reason = reason.unwrap_or_else(|| "its directory holds none".into());
        Error::precondition(format!("model \"{}\" has no version to load: {reason}", self.name))
    }

    /// Checks if all of `targets` are ready.
    fn loaded(&self, targets: &BTreeSet<u64>, now: Instant) -> WaiterVerdict {
        let views = self.views(now);
        let aspired = self.choice(&views).aspired;
        let wanted = self.wanted(&views);
        for number in targets {
            let Some(version) = self.versions.get(number) else {
                return WaiterVerdict::Done(Err(Error::not_found(format!(
                    "version {number} was removed from the disk; load another version"
                ))));
            };
            // A version that a newer one has replaced is not loaded again.
            let reloads = version.reload && (version.serving.is_some() || wanted.contains(number));
            if version.load.is_some() || reloads {
                return WaiterVerdict::Wait;
            }
            if let Some(failure) = &version.failure {
                return WaiterVerdict::Done(Err(failure
                    .error
                    .clone()
                    .context(format!("version {number}"))));
            }
            if version.serving.is_some() {
                continue;
            }
            if version.state == LifecycleState::Failed {
                let reason = version.reason.clone().unwrap_or_default();
                return WaiterVerdict::Done(Err(Error::precondition(format!(
                    "version {number}: {reason}"
                ))));
            }
            // Chosen and on its way. A version that a newer one has replaced counts as done.
            if aspired.contains(number)
                || !self.versions.values().any(|version| version.serving.is_some())
            {
                return WaiterVerdict::Wait;
            }
        }
        WaiterVerdict::Done(Ok(()))
    }
}

impl Version {
    /// Returns true if its files can be loaded, and false while they still change. Without
    /// `may_wait`, such files are an error.
    fn complete(&self, number: u64, may_wait: bool) -> Result<bool> {
        let wrong = |reason: &str| Err(Error::precondition(format!("version {number}: {reason}")));
        match self.disk.as_ref().map(|disk| &disk.found) {
            None => wrong("its directory was removed"),
            Some(VersionContents::Changing(_)) if may_wait => Ok(false),
            Some(
                VersionContents::Changing(reason)
                | VersionContents::Unusable(reason)
                | VersionContents::Unreadable(reason),
            ) => wrong(reason),
            Some(VersionContents::Published(_) | VersionContents::Foreign { .. }) => Ok(true),
        }
    }
}

fn too_many_waiters() -> Error {
    Error::exhausted("too many loads and unloads are waiting; try again later")
}

fn unknown(name: &str) -> Error {
    Error::not_found(format!("no model \"{name}\" is in the directories served here"))
}
