//! Updates that wait: for their part of the window, and then for a turn in the fleet.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::UtcTime;

use super::model::Model;
use super::update_state::{Update, UpdateStage};
use super::{Manager, ManagerContext};
use crate::policy::VersionView;
use crate::policy::updates::{UpdateNeed, UpdateStep, chosen_without_waits, need, step};
use crate::{LifecycleEvent, LifecycleState, UpdateEnd};

/// Time between two checks of the turn of a version that could load now.
pub(super) const TURN_PAUSE: Duration = Duration::from_millis(200);

impl Manager {
    /// Returns the models with a version that waits for a turn.
    pub(super) fn turn_takers(&self) -> Vec<Arc<str>> {
        let waiting = self.models.values().filter(|model| model.waits_for_turn());
        waiting.map(|model| model.name.clone()).collect()
    }
}

impl Model {
    /// Returns true if a version could load now and waits for its turn.
    pub(super) fn waits_for_turn(&self) -> bool {
        let waits = |update: &Update| update.stage == UpdateStage::Turn;
        self.versions.values().any(|version| version.update.as_ref().is_some_and(waits))
    }

    /// Returns the versions that should serve, also versions that wait for their turn.
    pub(super) fn wanted(&self, views: &[VersionView]) -> BTreeSet<u64> {
        if self.down || self.removed {
            BTreeSet::new()
        } else {
            chosen_without_waits(&self.config.policy, views)
        }
    }

    /// Begins, continues and ends the waits of versions that are neither ready nor being loaded.
    /// A new wait begins at `first_stage`. It is [`UpdateStage::ByHand`] for versions that do not
    /// wait.
    pub(super) fn take_turns(
        &mut self,
        context: &ManagerContext,
        now: Instant,
        first_stage: UpdateStage,
    ) {
        if !context.updates.staggers() {
            return;
        }
        let views = self.views(now);
        let wanted = self.wanted(&views);
        let resumed = self.rollout.resumes.as_ref().and_then(|kept| kept.candidate_without_turn());
        for view in views.iter().filter(|view| !view.ready && !view.loading) {
            let number = view.version;
            let tried = self.versions.get(&number).is_some_and(|version| version.failure.is_some());
            let need = need(number, &wanted, &views, tried || resumed == Some(number));
            match need {
                UpdateNeed::Turn => self.begin_update(context, number, now, first_stage),
                UpdateNeed::NotChosen | UpdateNeed::FirstLoad => {
                    self.end_needless(context, number, need);
                }
            }
            self.continue_wait(context, number, now);
        }
    }

    /// Begins the update of a version at `stage`, if it has not begun.
    fn begin_update(
        &mut self,
        context: &ManagerContext,
        number: u64,
        now: Instant,
        stage: UpdateStage,
    ) {
        let id = self.id(number);
        let Some(version) = self.versions.get_mut(&number) else { return };
        match &mut version.update {
            update @ None => {
                *update = Some(Update::new(now, context.updates.wait_of(&id), stage));
            }
            Some(update) => {
                // An older version may have become ready only after the administrator's request.
                update.replaces = true;
                if stage == UpdateStage::ByHand && update.waits() {
                    update.stage = UpdateStage::ByHand;
                }
            }
        }
    }

    /// Ends the update of a version that is not chosen any more or needs no turn. A version that
    /// has its turn keeps it for the load, and between the tries of one.
    fn end_needless(&mut self, context: &ManagerContext, number: u64, need: UpdateNeed) {
        let Some(version) = self.versions.get(&number) else { return };
        let retries = version.failure.as_ref().is_some_and(|failure| failure.retry_at.is_some());
        let keeps = |update: &Update| !update.waits() && (need == UpdateNeed::FirstLoad || retries);
        if version.update.as_ref().is_some_and(|update| !keeps(update)) {
            self.end_update(context, number, UpdateEnd::Dropped);
            self.show_disk(context, number);
        }
    }

    /// Takes the next step of a version that waits.
    fn continue_wait(&mut self, context: &ManagerContext, number: u64, now: Instant) {
        let id = self.id(number);
        let Some(version) = self.versions.get_mut(&number) else { return };
        let Some(update) = version.update.as_mut().filter(|update| update.waits()) else { return };
        let due = now >= update.due;
        let turn = context.updates.turns.as_ref().map(|turns| turns.request(&id, due));
        let by_hand = format!("`millpond models load {}`", id.model);
        let (stage, reason) = match step(due, turn) {
            UpdateStep::Load => (UpdateStage::Granted, None),
            UpdateStep::WaitForWindow => {
                let until = UtcTime::of(update.due_at);
                let reason = format!(
                    "waits until {until} for its part of --update-window; {by_hand} loads it now"
                );
                (UpdateStage::Window, Some(reason))
            }
            UpdateStep::WaitForTurn(reason) => {
                (UpdateStage::Turn, Some(format!("waits for its turn in the fleet: {reason}")))
            }
            UpdateStep::HoldBack(reason) => {
                let reason = format!("held back: {reason}; {by_hand} tries it here");
                (UpdateStage::HeldBack, Some(reason))
            }
        };
        let changed = update.stage != stage;
        update.stage = stage;
        if version.reason.is_none()
            && stage != UpdateStage::HeldBack
            && let Some(reason) = &reason
        {
            tracing::info!("{} {number} {reason}", id.model);
        }
        if changed && stage == UpdateStage::HeldBack {
            let model = self.name.clone();
            let reason = reason.clone().unwrap_or_default();
            tracing::warn!("{model} {number} is {reason}");
            let held = LifecycleEvent::UpdateHeldBack { model, version: number, reason };
            context.observer.event(&held);
        }
        context.set_state(self, number, LifecycleState::Discovered, reason);
    }

    /// Lets versions that an administrator loads replace older ones without a wait, even an older
    /// one whose load is running.
    pub(super) fn update_by_hand(&mut self, context: &ManagerContext, targets: &BTreeSet<u64>) {
        if !context.updates.staggers() {
            return;
        }
        let ready = self.versions.iter().filter(|(_, version)| version.serving.is_some());
        let oldest = ready.map(|(&number, _)| number).next();
        for (number, version) in &mut self.versions {
            let newer = oldest.is_some_and(|oldest| oldest < *number);
            if targets.contains(number) && version.serving.is_none() {
                let replaces = newer || version.update.as_ref().is_some_and(|it| it.replaces);
                let update = Update::new(Instant::now(), Duration::ZERO, UpdateStage::ByHand);
                version.update = Some(Update { replaces, ..update });
            }
        }
    }

    /// Reports to the fleet that a rollout withdrew a version, so that no other process loads it.
    pub(super) fn hold_back(&self, context: &ManagerContext, number: u64, reason: &str) {
        if let Some(turns) = &context.updates.turns {
            let reason = format!("withdrawn by a rollout: {reason}");
            turns.end(&self.id(number), UpdateEnd::Failed(reason));
        }
    }

    /// Ends the update of a version, if it has one.
    pub(super) fn end_update(&mut self, context: &ManagerContext, number: u64, end: UpdateEnd) {
        let id = self.id(number);
        let Some(version) = self.versions.get_mut(&number) else { return };
        if let Some(update) = version.update.take()
            && let Some(turns) = &context.updates.turns
        {
            turns.end(&id, if update.replaces { end } else { UpdateEnd::Dropped });
        }
    }
}
