//! Requests of administrators about rollouts.

use std::sync::Arc;
use std::time::Instant;

use base::{Error, Result};

use super::{BY_HAND, RequestedRollout};
use crate::manager::model::Model;
use crate::manager::{Manager, ManagerContext, TouchedModels};
use crate::message::{AdminCallback, LoadSpec, RolloutAction};
use crate::policy::rollout::RollbackReason;
use crate::{LifecycleState, Transition};
use ::rollout::RolloutStart;

impl Manager {
    /// Promotes, rolls back or starts a rollout for an administrator. Calls `done` with the
    /// outcome. If the version must be loaded first, the load calls `done`.
    pub(in crate::manager) fn admin_rollout(
        &mut self,
        name: Arc<str>,
        action: RolloutAction,
        done: AdminCallback,
    ) -> TouchedModels {
        let Some(model) = self.models.get_mut(&name).filter(|model| !model.removed) else {
            done(Err(self.catalog.unknown(&name)));
            return TouchedModels::Nothing;
        };
        let context = &self.context;
        let result = match action {
            RolloutAction::Promote(version) => model.promote_by_hand(context, version),
            RolloutAction::RollBack(version) => model.roll_back_by_hand(context, version),
            RolloutAction::Start(start) => match model.start_by_hand(context, &start) {
                Ok(Some(version)) => {
                    let spec = LoadSpec { version: Some(version), reload: false };
                    self.admin_load(name.clone(), spec, done);
                    return TouchedModels::One(name);
                }
                Ok(None) => Ok(()),
                Err(error) => Err(error),
            },
        };
        // The answer must not come before the status shows the change, nor before the files have
        // it: the server may be killed then.
        model.report();
        model.keep_withdrawals(&mut self.context);
        model.keep_rollout(&mut self.context);
        done(result);
        TouchedModels::One(name)
    }
}

impl Model {
    /// Returns the candidate of the running rollout, which must be `version` if one is named.
    ///
    /// # Errors
    /// `FailedPrecondition` if no rollout runs, or if it is that of another version.
    fn running_candidate(&self, version: Option<u64>) -> Result<u64> {
        let candidate = self.rollout.roles.candidate.ok_or_else(|| {
            Error::precondition(format!(
                "no rollout of model \"{}\" is running: start one, with a version and its share \
                 of the requests",
                self.name
            ))
        })?;
        match version {
            Some(version) if version != candidate => Err(Error::precondition(format!(
                "the rollout of model \"{}\" is that of version {candidate}, not of {version}",
                self.name
            ))),
            _ => Ok(candidate),
        }
    }

    /// Promotes the candidate for an administrator.
    ///
    /// # Errors
    /// As [`Model::running_candidate`].
    fn promote_by_hand(&mut self, context: &ManagerContext, version: Option<u64>) -> Result<()> {
        let candidate = self.running_candidate(version)?;
        self.promote(context, candidate, BY_HAND, "an administrator promoted it".into());
        self.publish(context);
        Ok(())
    }

    /// Withdraws the candidate for an administrator, or the stable version if no rollout runs.
    ///
    /// # Errors
    /// As [`Model::running_candidate`] and [`Model::replaceable_stable`].
    fn roll_back_by_hand(&mut self, context: &ManagerContext, version: Option<u64>) -> Result<()> {
        let number = match self.rollout.roles.candidate {
            Some(_) => self.running_candidate(version)?,
            None => self.replaceable_stable(version)?,
        };
        let message = "an administrator withdrew it".into();
        self.withdraw(context, number, RollbackReason { kind: BY_HAND, message });
        self.publish(context);
        Ok(())
    }

    /// Returns the stable version if another one can take its place.
    ///
    /// # Errors
    /// `FailedPrecondition` if there is no stable version, if it is not `version`, or if no other
    /// version can take its place.
    fn replaceable_stable(&self, version: Option<u64>) -> Result<u64> {
        let name = &self.name;
        let stable = self.rollout.roles.stable.filter(|_| !self.down).ok_or_else(|| {
            Error::precondition(format!("model \"{name}\" has no ready version to withdraw"))
        })?;
        if version.is_some_and(|version| version != stable) {
            return Err(Error::precondition(format!(
                "requests to model \"{name}\" are answered by version {stable}, and no rollout is \
                 running: name version {stable} or none"
            )));
        }
        let mut views = self.views(Instant::now());
        for view in views.iter_mut().filter(|view| view.version == stable) {
            view.withdrawn = true;
            view.held = true;
        }
        if self.choice(&views).aspired.is_empty() {
            Err(Error::precondition(format!(
                "model \"{name}\" has no other version on disk that its policy allows, so version {stable} stays"
            )))
        } else {
            Ok(stable)
        }
    }

    /// Ends the rollout that an administrator requested for `number`, whose load was refused.
    pub(in crate::manager) fn end_refused_request(
        &mut self,
        context: &ManagerContext,
        number: u64,
    ) {
        let version = self.versions.get(&number);
        let is_busy =
            version.is_some_and(|version| version.serving.is_some() || version.load.is_some());
        if self.rollout.requested.is_some_and(|it| it.version == number) && !is_busy {
            self.rollout.requested = None;
            self.publish(context);
        }
    }

    /// Starts a rollout for an administrator. Returns the version that must be loaded for it, if it
    /// is not ready.
    ///
    /// # Errors
    /// `InvalidArgument` for missing parameters. `NotFound` for a version that is not on disk.
    /// `FailedPrecondition` if the state or the settings of the model permit no such rollout.
    fn start_by_hand(
        &mut self,
        context: &ManagerContext,
        start: &RolloutStart,
    ) -> Result<Option<u64>> {
        let name = self.name.clone();
        let candidate = start.version.or(self.rollout.roles.candidate).ok_or_else(|| {
            Error::invalid("name the \"version\" to roll out: no rollout is running")
        })?;
        let split = match start.split()? {
            Some(split) => split,
            None => self.config.rollout.automatic().map(|settings| settings.split).ok_or_else(
                || Error::invalid("give \"traffic\" or \"shadow\", a share above 0: the model's settings give none"),
            )?,
        };
        let stable = self.rollout.roles.stable.filter(|_| !self.down).ok_or_else(|| {
            Error::precondition(format!("model \"{name}\" has no ready version to compare with"))
        })?;
        if candidate <= stable {
            return Err(Error::precondition(format!(
                "version {stable} of model \"{name}\" answers its requests already; a rollout takes a higher \
                 version. To go back, roll back, or set versions = \"{candidate}\""
            )));
        }
        if self.config.transition == Transition::ResourcePreserving {
            return Err(Error::precondition(format!(
                "a rollout of model \"{name}\" needs both versions in memory; set transition = \
                 \"availability-preserving\""
            )));
        }
        if let Some(reason) = self.refused_copies(candidate, split) {
            return Err(Error::precondition(format!(
                "version {candidate} of model \"{name}\" cannot be rolled out: {reason}"
            )));
        }
        let version = self.versions.get_mut(&candidate).filter(|version| version.disk.is_some());
        let version = version.ok_or_else(|| {
            Error::not_found(format!("model \"{name}\" has no version {candidate} on disk"))
        })?;
        if version.failure.take().is_some() && version.state == LifecycleState::Failed {
            context.set_state(self, candidate, LifecycleState::Discovered, None);
        }
        self.rollout.requested = Some(RequestedRollout { version: candidate, split });
        let serves = |model: &Model| {
            model.versions.get(&candidate).is_some_and(|version| version.serving.is_some())
        };
        if !serves(self) {
            return Ok(Some(candidate));
        }
        if let Some(version) = self.versions.get_mut(&candidate) {
            version.pinned = true;
        }
        self.publish(context);
        Ok(None)
    }
}
