//! Unloads: out of the catalogue, to an unload thread, and the report of a swap's cost.

use std::time::{Duration, Instant};

use super::ManagerContext;
use super::model::{Model, Serving, Successor, Vacated};
use crate::message::{LoadedVersion, Release, Retired};
use crate::status::SwapReport;
use crate::{LifecycleEvent, LifecycleState, Transition};

impl Model {
    /// Takes `number` out of the catalogue. It is released after its last use.
    pub(super) fn unload(&mut self, context: &mut ManagerContext, number: u64) {
        let Some(version) = self.versions.get_mut(&number) else { return };
        let Some(serving) = version.serving.take() else { return };
        // A retryable failure of another load is not a reason to refuse a later one of this
        // version.
        version.failure = version.failure.take().filter(|failure| !failure.error.is_retryable());
        let withdrawn = version.withdrawal();
        self.publish(context);
        context.set_state(self, number, LifecycleState::Draining, withdrawn);
        let successor = self
            .published
            .take()
            .filter(|new| new.version != number && !self.down && !self.removed);
        self.retire(context, number, serving, successor);
    }

    /// Sends an instance that is out of the catalogue to an unload thread.
    pub(super) fn retire(
        &mut self,
        context: &mut ManagerContext,
        number: u64,
        serving: Serving,
        successor: Option<Successor>,
    ) {
        let id = self.id(number);
        let Some(version) = self.versions.get_mut(&number) else { return };
        version.draining.push(successor);
        let Serving { servable, converted, .. } = serving;
        let release = Some(Release { converted, releasing: context.ledger.releasing() });
        context.retire(Retired { id, servable, release, since: Instant::now() });
    }

    /// Retires a version that was loaded after it had become unwanted.
    pub(super) fn discard(
        &mut self,
        context: &mut ManagerContext,
        number: u64,
        fresh: LoadedVersion,
    ) {
        let serving = Serving::new(fresh.servable, fresh.converted, fresh.fingerprint);
        if self.versions.get(&number).is_some_and(|version| version.serving.is_none()) {
            context.set_state(self, number, LifecycleState::Draining, None);
        }
        self.retire(context, number, serving, None);
    }

    /// Takes the release of a version: `drain` is the wait for its last request, `unload` the time
    /// of the release.
    pub(super) fn released(
        &mut self,
        context: &mut ManagerContext,
        number: u64,
        drain: Duration,
        unload: Duration,
    ) {
        let Some(version) = self.versions.get_mut(&number) else { return };
        let successor = if version.draining.is_empty() { None } else { version.draining.remove(0) };
        if version.state == LifecycleState::Draining && version.draining.is_empty() {
            let withdrawn = version.withdrawal();
            context.set_state(self, number, LifecycleState::Released, None);
            self.show_disk(context, number);
            if withdrawn.is_some() {
                context.set_state(self, number, LifecycleState::Failed, withdrawn);
            }
        }
        match successor {
            Some(successor) => {
                self.report_swap(context, Vacated { version: number, drain, unload }, successor)
            }
            None if self.config.transition == Transition::ResourcePreserving
                && !self.down
                && !self.removed =>
            {
                self.vacated = Some(Vacated { version: number, drain, unload });
            }
            None => {}
        }
    }

    /// Reports that version `new` took the place of `old`, with the costs of both.
    pub(super) fn report_swap(&self, context: &ManagerContext, old: Vacated, new: Successor) {
        let Vacated { version: from, drain, unload } = old;
        let Successor { version: to, cost } = new;
        let report = SwapReport {
            model: self.name.clone(),
            from,
            to,
            load_seconds: cost.load_seconds,
            warm_seconds: cost.warm_seconds,
            drain_seconds: drain.as_secs_f64(),
            unload_seconds: unload.as_secs_f64(),
            bytes_read: cost.bytes_read,
            bytes_shared: cost.bytes_shared,
            loader_minor_faults: cost.loader_minor_faults,
            loader_cpu_seconds: cost.loader_cpu_seconds,
        };
        tracing::debug!(
            model = %report.model,
            from,
            to,
            load_s = report.load_seconds,
            warm_s = report.warm_seconds,
            drain_s = report.drain_seconds,
            unload_s = report.unload_seconds,
            bytes_read = report.bytes_read,
            bytes_shared = report.bytes_shared,
            loader_minor_faults = report.loader_minor_faults,
            "swapped"
        );
        context.observer.event(&LifecycleEvent::Swapped(report));
    }
}
