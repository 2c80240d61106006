//! Loads: queueing, dispatch to a thread, and outcome.

use std::sync::atomic::Ordering;
use std::time::{Instant, SystemTime};

use base::Error;
use base::units::format_bytes;

use super::model::{Disk, Load, Model, Serving, Successor, VersionFailure};
use super::update_state::Update;
use super::{DEFER_PAUSE, Manager, ManagerContext};
use crate::golden::GoldenFile;
use crate::message::{LoadJob, LoadOutcome, LoadedVersion};
use crate::source::{Fingerprint, VersionContents};
use crate::status::LoadCost;
use crate::{LifecycleEvent, LifecycleState, Transition, UpdateEnd};

impl Manager {
    /// Sends queued loads to free threads.
    pub(super) fn dispatch(&mut self) {
        let now = Instant::now();
        let mut later = Vec::new();
        while self.free_loaders > 0
            && let Some(id) = self.context.queue.pop_front()
        {
            let Some(model) = self.models.get_mut(&id.model) else { continue };
            match model.job(id.version, now) {
                JobReadiness::Now(job) => match self.jobs.try_send(*job) {
                    Ok(()) => self.free_loaders -= 1,
                    Err(_) => tracing::error!(model = %id.model, "no load thread takes its load"),
                },
                JobReadiness::Later => later.push(id),
                JobReadiness::Never => {}
            }
        }
        self.context.queue.extend(later);
    }
}

/// Decision if a load can be given to a thread.
enum JobReadiness {
    Now(Box<LoadJob>),
    Later,
    Never,
}

/// A failed load, and the files that it read.
struct FailedLoad {
    error: Error,
    fingerprint: Fingerprint,
    /// True if the job only converted the files.
    converting: bool,
}

impl Model {
    /// Queues the load of the version `number`. If an old version must be unloaded first, the job
    /// only converts a foreign file.
    pub(super) fn begin_load(&mut self, context: &mut ManagerContext, number: u64) {
        let vacates = self.config.transition == Transition::ResourcePreserving
            && self.versions.values().any(|version| version.serving.is_some());
        let Some(version) = self.versions.get_mut(&number) else { return };
        let converts_only = vacates && self.converts && version.foreign();
        let conversion = version.conversion.take();
        version.load = Some(Load { converts_only, conversion, ..Load::default() });
        version.reload = false;
        context.queue.push_back(self.id(number));
        if self.versions.get(&number).is_some_and(|version| version.serving.is_none()) {
            context.set_state(self, number, LifecycleState::Discovered, None);
        }
    }

    /// Builds the job of a queued load from the current files and settings.
    fn job(&mut self, number: u64, now: Instant) -> JobReadiness {
        let id = self.id(number);
        let Some(version) = self.versions.get_mut(&number) else { return JobReadiness::Never };
        let (Some(load), Some(disk)) = (&mut version.load, &version.disk) else {
            return JobReadiness::Never;
        };
        if load.dispatched {
            return JobReadiness::Never;
        }
        if load.not_before.is_some_and(|at| at > now) {
            return JobReadiness::Later;
        }
        load.dispatched = true;
        load.began = Some(now);
        load.files = Some(disk.fingerprint);
        load.not_before = None;
        JobReadiness::Now(Box::new(LoadJob {
            id,
            dir: disk.dir.clone(),
            kind: disk.found.kind(),
            fingerprint: disk.fingerprint,
            conversion: load.conversion.take(),
            converts_only: load.converts_only,
            session: self.config.session.clone(),
            schedule: self.config.schedule.clone(),
            warmup: self.config.warmup.clone(),
            golden: self.config.rollout.golden.as_ref().map(|file| GoldenFile {
                path: self.config.base_path.join(file),
                tolerance: self.config.rollout.tolerance(),
            }),
            recogniser: self.config.recogniser.clone(),
            has_section: self.config.has_section,
            request_log_rate: self.config.request_log_rate,
            examples: self.config.examples.clone(),
            transition: self.config.transition,
            stop: load.stop.clone(),
        }))
    }

    /// Stops loads whose version was removed or is not wanted at all. Cancels queued loads that the
    /// policy no longer chooses, and those whose files are being changed, which a later load reads.
    /// A running load continues if a newer version appears. Otherwise no version would ever serve
    /// if versions appear faster than they load.
    pub(super) fn drop_pointless_loads(&mut self, context: &ManagerContext, now: Instant) {
        let choice = self.choice(&self.views(now));
        let none = self.down || self.removed;
        for (number, version) in &mut self.versions {
            version.conversion.take_if(|_| none || !choice.aspired.contains(number));
        }
        let numbers: Vec<u64> = self
            .versions
            .iter()
            .filter(|(_, version)| version.load.is_some())
            .map(|(&number, _)| number)
            .collect();
        for number in numbers {
            let Some(version) = self.versions.get_mut(&number) else { continue };
            let queued = version.load.as_ref().is_some_and(|load| !load.dispatched);
            let incomplete = version.disk.as_ref().is_some_and(|disk| !disk.complete());
            if none
                || version.disk.is_none()
                || (queued && (incomplete || !choice.aspired.contains(&number)))
            {
                version.stop_load();
                // An administrator who requested another load still waits for one.
                version.reload |= queued && incomplete && !none && version.serving.is_some();
                self.show_disk(context, number);
            }
        }
    }

    /// Reports each load that was stopped a long time ago and has not ended, and each warm-up that
    /// takes long.
    pub(super) fn report_slow_loads(&mut self, context: &ManagerContext, now: Instant) {
        for (&version, state) in &mut self.versions {
            let Some(load) = &mut state.load else { continue };
            if state.state == LifecycleState::Warming
                && load.stopped.is_none()
                && let Some(remark) = load.warmup.take_remark(state.since, SystemTime::now())
            {
                tracing::warn!(model = %self.name, version, "{remark}");
            }
            let slow = load.stopped.as_mut().is_some_and(|stop| stop.take_slow(now));
            if !slow {
                continue;
            }
            let seconds = load.age(now).as_secs();
            let text = "its load was stopped and has not ended; it keeps its memory until the \
                        engine returns";
            tracing::warn!(model = %self.name, version, seconds, "{text}");
            let model = self.name.clone();
            context.observer.event(&LifecycleEvent::LoadStopSlow { model, version });
        }
    }

    /// Drops requests to load a version again if its files are unusable, unreadable or deleted.
    pub(super) fn drop_impossible_reloads(&mut self) {
        for version in self.versions.values_mut().filter(|version| version.reload) {
            let (error, fingerprint) = match &version.disk {
                Some(Disk { found: VersionContents::Unusable(reason), fingerprint, .. }) => {
                    (Error::precondition(reason.as_str()), Some(*fingerprint))
                }
                Some(Disk { found: VersionContents::Unreadable(reason), fingerprint, .. }) => {
                    (Error::unavailable(reason.as_str()), Some(*fingerprint))
                }
                None => (Error::unavailable("its directory was removed"), None),
                Some(_) => continue,
            };
            version.reload = false;
            // If no version serves, the state tells the reason.
            let Some(serving) = &version.serving else { continue };
            version.note = Some(format!("loading it again failed: {error}"));
            let fingerprint = fingerprint.unwrap_or(serving.fingerprint);
            version.failure = Some(VersionFailure {
                error,
                fingerprint,
                tries: 1,
                retry_at: None,
                withdrawn: false,
            });
        }
    }

    /// Handles a new state of a load. A version that serves keeps its own state during a reload.
    pub(super) fn stage(
        &mut self,
        context: &ManagerContext,
        number: u64,
        state: LifecycleState,
        reason: Option<String>,
    ) {
        let loading =
            |version: &super::model::Version| version.load.is_some() && version.serving.is_none();
        if self.versions.get(&number).is_some_and(loading) {
            context.set_state(self, number, state, reason);
        }
    }

    /// Takes the outcome of a load. The outcome of a load that was stopped meanwhile is dropped.
    pub(super) fn load_ended(
        &mut self,
        context: &mut ManagerContext,
        number: u64,
        outcome: LoadOutcome,
    ) {
        let Some(version) = self.versions.get_mut(&number) else { return };
        let Some(load) = version.load.take() else { return };
        let stopped = load.stop.load(Ordering::Relaxed);
        match outcome {
            LoadOutcome::Ready(fresh) if stopped => self.discard(context, number, *fresh),
            LoadOutcome::Ready(fresh) => self.serve(context, number, *fresh),
            LoadOutcome::Deferred { .. }
            | LoadOutcome::Converted(..)
            | LoadOutcome::Failed { .. }
                if stopped =>
            {
                self.put_back(context, number, None);
            }
            LoadOutcome::Deferred { reason, conversion } => {
                self.defer(context, number, Load { conversion, ..load }, reason)
            }
            LoadOutcome::Converted(conversion) => {
                version.conversion = Some(conversion);
                // An administrator who requested another load still waits for it.
                version.reload |= version.serving.is_some();
                let reason = "converted; loaded after the version that it replaces was unloaded";
                self.put_back(context, number, Some(reason.to_owned()));
            }
            LoadOutcome::Failed { error, fingerprint } => {
                let failed = FailedLoad { error, fingerprint, converting: load.converts_only };
                self.fail(context, number, failed);
            }
        }
    }

    /// Handles a load that ended without an outcome. A version that serves continues as before.
    fn put_back(&mut self, context: &ManagerContext, number: u64, reason: Option<String>) {
        let Some(version) = self.versions.get(&number) else { return };
        if version.serving.is_some() {
            return;
        }
        let (state, reason) = match version.withdrawal() {
            Some(why) => (LifecycleState::Failed, Some(why)),
            None => (LifecycleState::Discovered, reason),
        };
        context.set_state(self, number, state, reason);
    }

    /// Queues a load again, since memory that it needs is about to become free.
    fn defer(&mut self, context: &mut ManagerContext, number: u64, load: Load, reason: String) {
        let id = self.id(number);
        let Some(version) = self.versions.get_mut(&number) else { return };
        let not_before = Some(Instant::now() + DEFER_PAUSE);
        version.load = Some(Load { dispatched: false, not_before, ..load });
        context.queue.push_back(id);
        if version.serving.is_none() {
            if version.reason.as_ref() != Some(&reason) {
                tracing::info!("{} {number} waits: {reason}", self.name);
            }
            context.set_state(self, number, LifecycleState::Discovered, Some(reason));
        }
    }

    /// Publishes a version that was loaded and warmed up.
    fn serve(&mut self, context: &mut ManagerContext, number: u64, fresh: LoadedVersion) {
        let Some(version) = self.versions.get_mut(&number) else { return };
        let LoadedVersion { servable, converted, fingerprint, cost, note } = fresh;
        let parameter_bytes = servable.parameter_bytes;
        let old = version.serving.replace(Serving::new(servable, converted, fingerprint));
        version.failure = None;
        version.note = note;
        let by_hand = version.update.as_ref().is_some_and(Update::by_hand);
        if old.as_ref().is_some_and(|old| old.fingerprint != fingerprint) {
            self.rollout.forget_figures(number);
        }
        self.end_update(context, number, UpdateEnd::Loaded { by_hand });
        // The settings may have changed during the load.
        self.apply_settings(context);
        self.publish(context);
        context.set_state(self, number, LifecycleState::Ready, None);
        tracing::info!("{}", ready_line(&self.name, number, &cost, parameter_bytes));
        let loaded = LifecycleEvent::Loaded {
            model: self.name.clone(),
            version: number,
            cost: cost.clone(),
        };
        context.observer.event(&loaded);
        let successor = Successor { version: number, cost };
        match (old, self.vacated.take()) {
            // No version was unloaded for this one.
            (Some(old), _) => self.retire(context, number, old, Some(successor)),
            (None, Some(vacated)) => {
                self.report_swap(context, vacated, successor);
            }
            (None, None) => self.published = Some(successor),
        }
    }

    /// Records that a load failed, and decides if it is tried again. A version that serves
    /// continues as before.
    fn fail(&mut self, context: &ManagerContext, number: u64, failed: FailedLoad) {
        let FailedLoad { error, fingerprint, converting } = failed;
        // If another version could serve, a try that must unload it first would cost more than it
        // gains.
        let costly = self.config.transition == Transition::ResourcePreserving
            && !converting
            && self
                .versions
                .iter()
                .any(|(&other, version)| other != number && version.loadable(Instant::now()));
        let Some(version) = self.versions.get_mut(&number) else { return };
        let before = version.failure.take().filter(|failure| failure.fingerprint == fingerprint);
        let tries = before.map_or(0, |failure| failure.tries) + 1;
        let serving = version.serving.is_some();
        let again = !serving && !costly && error.is_retryable() && tries <= context.retries.max;
        let retry_at = again.then(|| Instant::now() + context.retries.interval);
        let reason = match (again, tries) {
            (true, _) => {
                let of = context.retries.max + 1;
                let seconds = context.retries.interval.as_secs_f64();
                format!("{error} (try {tries} of {of}; the next in {seconds} s)")
            }
            (false, 1) => error.to_string(),
            (false, _) => format!("{error} (after {tries} tries)"),
        };
        version.failure =
            Some(VersionFailure { error, fingerprint, tries, retry_at, withdrawn: false });
        if serving {
            tracing::warn!(model = %self.name, version = number, reason, "loading it again failed; it serves as it was");
            version.note = Some(format!("loading it again failed: {reason}"));
            let model = self.name.clone();
            let failed = LifecycleEvent::ReloadFailed { model, version: number, reason };
            context.observer.event(&failed);
            return;
        }
        // Files that changed meanwhile are tried as soon as they are complete.
        if version.disk.as_ref().is_none_or(|disk| disk.differs_from(fingerprint)) {
            version.failure = None;
        }
        let changed = version.failure.is_none();
        if again {
            tracing::warn!("{} {number} did not load: {reason}", self.name);
            let model = self.name.clone();
            let reason = reason.clone();
            let retried = LifecycleEvent::LoadRetried { model, version: number, reason };
            context.observer.event(&retried);
        } else {
            // Files that changed during the load may be good ones.
            let failed = UpdateEnd::Failed(reason.clone());
            self.end_update(context, number, if changed { UpdateEnd::Dropped } else { failed });
        }
        context.set_state(
            self,
            number,
            if again { LifecycleState::Discovered } else { LifecycleState::Failed },
            Some(reason),
        );
    }
}

/// Formats the log line of a load: "iris 1 ready in 39 ms (8.30 MiB)". The time includes warm-up.
fn ready_line(model: &str, version: u64, cost: &LoadCost, parameter_bytes: u64) -> String {
    let millis = (cost.load_seconds + cost.warm_seconds) * 1e3;
    let time = if millis < 10_000.0 {
        format!("{millis:.0} ms")
    } else {
        format!("{:.1} s", millis / 1e3)
    };
    format!("{model} {version} ready in {time} ({})", format_bytes(parameter_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_is_one_line() {
        let cost =
            |load_seconds| LoadCost { load_seconds, warm_seconds: 0.004, ..LoadCost::default() };
        assert_eq!(
            ready_line("iris", 1, &cost(0.035), 8_703_181),
            "iris 1 ready in 39 ms (8.30 MiB)"
        );
        assert_eq!(ready_line("big", 12, &cost(61.2), 0), "big 12 ready in 61.2 s (0 B)");
    }
}
