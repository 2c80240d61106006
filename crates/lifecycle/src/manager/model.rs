//! One model on the `lifecycle` thread: its versions, their state, and its public status.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use base::{Error, VersionId};
use engine::Servable;

use crate::catalog::{CatalogEntry, ReadySet};
use crate::convert::Converted;
use crate::manager::ManagerContext;
use crate::manager::ignored::IgnoredVersions;
use crate::manager::load_stop::LoadStop;
use crate::manager::rollout::ModelRollout;
use crate::manager::slow_warmup::SlowWarmup;
use crate::manager::update_state::Update;
use crate::message::ConvertedVersion;
use crate::policy::{self, ChosenVersions, VersionView};
use crate::source::{Fingerprint, VersionContents};
use crate::status::{LoadCost, StateChange, version_list};
use crate::{
    LifecycleEvent, LifecycleState, ModelConfig, ModelStatus, Observer, VersionPolicy,
    VersionStatus,
};

/// A model, its configuration and its versions.
pub(crate) struct Model {
    pub(crate) name: Arc<str>,
    pub(crate) entry: Arc<CatalogEntry>,
    /// True if foreign versions are converted.
    pub(crate) converts: bool,
    /// True if the model's directory is a copy of one in an object store.
    pub(crate) is_copy: bool,
    /// Configuration, with its `millpond.toml` applied.
    pub(crate) config: ModelConfig,
    pub(crate) versions: BTreeMap<u64, Version>,
    pub(crate) ignored_versions: IgnoredVersions,
    pub(crate) path_error: Option<String>,
    pub(crate) settings_error: Option<String>,
    /// True if a program may be replacing `millpond.toml` at this moment.
    pub(crate) settings_in_doubt: bool,
    /// Problem with the place that its directory mirrors.
    pub(crate) source_error: Option<String>,
    /// Reason why versions of a store's model are not copied yet, although nothing failed.
    pub(crate) unfinished: Option<String>,
    /// Reason why the policy selects no version on disk, while nothing serves or is loaded, or
    /// while others serve until one is copied from a store.
    policy_error: Option<String>,
    /// Reason why nothing serves, kept until a version serves or none is on its way.
    last_failure: Option<String>,
    /// True if an administrator unloaded it.
    pub(crate) down: bool,
    /// True if the model's directory was removed.
    pub(crate) removed: bool,
    /// Last published version, until a swap report includes it.
    pub(crate) published: Option<Successor>,
    /// A version unloaded before its successor was loaded.
    pub(crate) vacated: Option<Vacated>,
    pub(crate) rollout: ModelRollout,
}

/// A version that took the place of another.
pub(crate) struct Successor {
    pub(crate) version: u64,
    pub(crate) cost: LoadCost,
}

/// First half of a swap that unloads first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Vacated {
    pub(crate) version: u64,
    pub(crate) drain: Duration,
    pub(crate) unload: Duration,
}

/// A version of a model, on disk or in memory.
pub(crate) struct Version {
    pub(crate) state: LifecycleState,
    pub(crate) since: SystemTime,
    pub(crate) reason: Option<String>,
    pub(crate) note: Option<String>,
    /// Contents of the version directory, or `None` once that was removed.
    pub(crate) disk: Option<Disk>,
    pub(crate) serving: Option<Serving>,
    pub(crate) load: Option<Load>,
    /// Instances that are draining or being released, each with the version that replaced it.
    pub(crate) draining: Vec<Option<Successor>>,
    /// Conversion for the next load.
    pub(crate) conversion: Option<ConvertedVersion>,
    pub(crate) failure: Option<VersionFailure>,
    /// True if the version is kept in addition to the policy's choice, because an administrator
    /// requested it.
    pub(crate) pinned: bool,
    /// True if the serving version must be loaded again.
    pub(crate) reload: bool,
    /// Turn of the version in the fleet, until it serves or has failed.
    pub(crate) update: Option<Update>,
}

/// State of a version directory at the last scan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Disk {
    pub(crate) dir: PathBuf,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) found: VersionContents,
}

impl Disk {
    /// Returns true if the directory is known to hold other files than those of `fingerprint`.
    pub(crate) fn differs_from(&self, fingerprint: Fingerprint) -> bool {
        !matches!(self.found, VersionContents::Unreadable(_)) && self.fingerprint != fingerprint
    }

    /// Returns true if it holds a complete version.
    pub(crate) fn complete(&self) -> bool {
        matches!(self.found, VersionContents::Published(_) | VersionContents::Foreign { .. })
    }
}

/// A version in memory that takes requests.
pub(crate) struct Serving {
    pub(crate) servable: Arc<Servable>,
    pub(crate) converted: Option<Converted>,
    pub(crate) fingerprint: Fingerprint,
    /// Reason why the version does not apply the model's changed settings. It serves with its old
    /// ones.
    pub(crate) refused_settings: Option<String>,
}

impl Serving {
    pub(crate) fn new(
        servable: Arc<Servable>,
        converted: Option<Converted>,
        fingerprint: Fingerprint,
    ) -> Serving {
        Serving { servable, converted, fingerprint, refused_settings: None }
    }
}

/// A load that is queued or running.
#[derive(Default)]
pub(crate) struct Load {
    pub(crate) stop: Arc<AtomicBool>,
    /// Request to the load thread to end it.
    pub(crate) stopped: Option<LoadStop>,
    /// Report about the warm-up of the version.
    pub(crate) warmup: SlowWarmup,
    /// True once a load thread has it.
    pub(crate) dispatched: bool,
    /// Time at which the load thread got it.
    pub(crate) began: Option<Instant>,
    /// Fingerprint of the files that the load thread takes.
    pub(crate) files: Option<Fingerprint>,
    /// Earliest time of the next try.
    pub(crate) not_before: Option<Instant>,
    /// True if the load ends after the conversion.
    pub(crate) converts_only: bool,
    /// Conversion of an earlier try.
    pub(crate) conversion: Option<ConvertedVersion>,
}

impl Load {
    /// Returns the time since the load thread got it.
    pub(crate) fn age(&self, now: Instant) -> Duration {
        self.began.map_or(Duration::ZERO, |began| now.saturating_duration_since(began))
    }
}

/// Last failure of a version.
pub(crate) struct VersionFailure {
    pub(crate) error: Error,
    /// Fingerprint of the files that failed.
    pub(crate) fingerprint: Fingerprint,
    pub(crate) tries: u32,
    /// Time of the next try. `None`: the files must change, or an administrator must ask.
    pub(crate) retry_at: Option<Instant>,
    /// True if the version was withdrawn after it had been loaded.
    pub(crate) withdrawn: bool,
}

impl Version {
    pub(crate) fn new(disk: Disk) -> Version {
        Version {
            state: LifecycleState::Discovered,
            since: SystemTime::now(),
            reason: None,
            note: None,
            disk: Some(disk),
            serving: None,
            load: None,
            draining: Vec::new(),
            conversion: None,
            failure: None,
            pinned: false,
            reload: false,
            update: None,
        }
    }

    /// Returns true if the policy skips the version. Such a version is on disk, and nothing was or
    /// will be done with it. Such versions are not shown.
    fn passed_over(&self) -> bool {
        self.state == LifecycleState::Discovered
            && self.reason.is_none()
            && self.load.is_none()
            && self.failure.is_none()
    }

    /// Returns true if a load may be tried at `now`.
    pub(crate) fn loadable(&self, now: Instant) -> bool {
        let complete = self.disk.as_ref().is_some_and(Disk::complete);
        complete
            && self
                .failure
                .as_ref()
                .is_none_or(|failure| failure.retry_at.is_some_and(|at| at <= now))
    }

    /// Returns true if a program may still have been writing the version at the last scan.
    pub(crate) fn changing(&self) -> bool {
        matches!(self.disk, Some(Disk { found: VersionContents::Changing(_), .. }))
    }

    /// Returns true if its files could not be read at the last scan.
    pub(crate) fn unreadable(&self) -> bool {
        matches!(self.disk, Some(Disk { found: VersionContents::Unreadable(_), .. }))
    }

    /// Returns true if the version must be converted and is not converted yet.
    pub(crate) fn foreign(&self) -> bool {
        let Some(disk) = &self.disk else { return false };
        let converted =
            self.conversion.as_ref().is_some_and(|conversion| conversion.files == disk.fingerprint);
        disk.found.kind().is_some_and(|kind| kind.converted) && !converted
    }

    /// Returns the state on which decisions depend. `converts` is true if the settings let foreign
    /// versions be converted.
    fn view(&self, version: u64, now: Instant, converts: bool) -> VersionView {
        let loadable = self.loadable(now);
        let idle = self.load.is_none();
        let waits = self.update.as_ref().is_some_and(Update::waits);
        let withdrawn = self.withdrawal().is_some();
        VersionView {
            version,
            on_disk: self.disk.is_some(),
            held: withdrawn || ((!loadable || waits) && idle),
            waits: loadable && waits && idle,
            ready: self.serving.is_some(),
            loading: self.load.is_some(),
            releasing: !self.draining.is_empty(),
            pinned: self.pinned,
            reload: self.reload,
            foreign: converts && self.foreign(),
            converting: self.load.as_ref().is_some_and(|load| load.converts_only),
            withdrawn,
            kept: false,
            resumes: false,
        }
    }

    /// Returns why the version was withdrawn, if it was.
    pub(crate) fn withdrawal(&self) -> Option<String> {
        let failure = self.failure.as_ref().filter(|failure| failure.withdrawn)?;
        Some(failure.error.message().to_owned())
    }

    /// Returns true if a load thread takes other files than those on disk.
    pub(crate) fn loads_old_files(&self) -> bool {
        let load = self.load.as_ref().filter(|load| load.dispatched);
        let (Some(files), Some(disk)) = (load.and_then(|load| load.files), &self.disk) else {
            return false;
        };
        disk.differs_from(files)
    }

    /// Ends a load that is not wanted. A load that no thread has yet is dropped.
    pub(crate) fn stop_load(&mut self) {
        if let Some(load) = self.load.as_mut().filter(|load| load.dispatched) {
            load.stop.store(true, Ordering::Relaxed);
            load.stopped.get_or_insert_with(LoadStop::now);
        } else {
            self.load = None;
        }
    }

    /// Returns true if nothing of the version is left on disk or in memory.
    fn forgettable(&self) -> bool {
        self.disk.is_none()
            && self.serving.is_none()
            && self.load.is_none()
            && self.draining.is_empty()
    }
}

impl Model {
    /// Creates a model without versions. `converts` is true if foreign files can be converted for
    /// it.
    pub(crate) fn new(config: ModelConfig, entry: Arc<CatalogEntry>, converts: bool) -> Model {
        Model {
            name: config.name.clone(),
            entry,
            converts,
            is_copy: false,
            config,
            versions: BTreeMap::new(),
            ignored_versions: IgnoredVersions::default(),
            path_error: None,
            settings_error: None,
            settings_in_doubt: false,
            source_error: None,
            unfinished: None,
            policy_error: None,
            last_failure: None,
            down: false,
            removed: false,
            published: None,
            vacated: None,
            rollout: ModelRollout::default(),
        }
    }

    /// Returns the key of the model's state in files: its directory, and its name if the directory
    /// has another. Several models can have the same directory.
    pub(crate) fn state_key(&self) -> PathBuf {
        let dir = &self.config.base_path;
        if dir.file_name().is_some_and(|name| *name == *self.name) {
            dir.clone()
        } else {
            dir.join(format!("#{}", self.name))
        }
    }

    pub(crate) fn id(&self, version: u64) -> VersionId {
        VersionId { model: self.name.clone(), version }
    }

    pub(crate) fn views(&self, now: Instant) -> Vec<VersionView> {
        let view = |(&number, version): (&u64, &Version)| version.view(number, now, self.converts);
        let mut views: Vec<VersionView> = self.versions.iter().map(view).collect();
        policy::rollout::keep(self.rollout.roles, &mut views);
        let resumed = self.rollout.resumes.as_ref().map(|kept| kept.stable());
        views.iter_mut().for_each(|view| view.resumes = Some(view.version) == resumed);
        views
    }

    /// Returns the versions that should serve, or none while the model is unloaded or removed.
    pub(crate) fn choice(&self, views: &[VersionView]) -> ChosenVersions {
        if self.down || self.removed {
            return ChosenVersions::default();
        }
        let mut choice = policy::choose(&self.config.policy, views);
        // A version that the policy selects may be on its way from the store.
        choice.awaits_held |= self.is_copy && self.unmet_policy().is_some();
        choice
    }

    /// Returns true if no version is in memory or being loaded.
    pub(crate) fn at_rest(&self) -> bool {
        let idle = |version: &Version| {
            version.serving.is_none() && version.load.is_none() && version.draining.is_empty()
        };
        self.versions.values().all(idle)
    }

    /// Moves `version` to `state`, and reports changes of state or reason to the observer and the
    /// log.
    pub(crate) fn set_state(
        &mut self,
        observer: &dyn Observer,
        number: u64,
        state: LifecycleState,
        reason: Option<String>,
    ) {
        let Some(version) = self.versions.get_mut(&number) else { return };
        if version.state == state && version.reason == reason {
            return;
        }
        let from = version.state;
        if from != state {
            version.since = SystemTime::now();
        }
        version.state = state;
        version.reason.clone_from(&reason);
        let withdrawn = state == LifecycleState::Failed && version.withdrawal().is_some();
        log(&self.name, number, state, reason.as_deref());
        observer.event(&LifecycleEvent::StateChanged(StateChange {
            model: self.name.clone(),
            version: number,
            from: Some(from),
            to: state,
            reason,
            withdrawn,
            at: SystemTime::now(),
        }));
    }

    /// Adds a version that was just discovered.
    pub(crate) fn discover(&mut self, observer: &dyn Observer, number: u64, disk: Disk) {
        let version = Version::new(disk);
        let model = self.name.clone();
        let to = LifecycleState::Discovered;
        let at = version.since;
        self.versions.insert(number, version);
        log(&model, number, to, None);
        observer.event(&LifecycleEvent::StateChanged(StateChange {
            model,
            version: number,
            from: None,
            to,
            reason: None,
            withdrawn: false,
            at,
        }));
    }

    /// Publishes the ready versions to requests with one store.
    pub(crate) fn publish(&mut self, context: &ManagerContext) {
        self.assign_roles(context);
        let versions = self.versions.values().filter_map(|version| version.serving.as_ref());
        let versions = versions.map(|serving| serving.servable.clone()).collect();
        self.entry.publish(ReadySet {
            versions,
            labels: self.config.labels.clone(),
            stable: self.rollout.roles.stable,
            rollout: self.rollout.traffic.clone(),
        });
    }

    /// Publishes the status of the model, and drops versions that no longer exist.
    pub(crate) fn report(&mut self) {
        self.versions.retain(|_, version| !version.forgettable());
        let aspired = self.choice(&self.views(Instant::now())).aspired;
        let shown = |(number, version): &(&u64, &Version)| {
            aspired.contains(number) || !version.passed_over()
        };
        self.check_policy();
        let error =
            [&self.path_error, &self.settings_error, &self.source_error, &self.policy_error]
                .into_iter()
                .flatten()
                .cloned()
                .collect::<Vec<_>>();
        self.rollout.record.defaults = self.config.rollout.defaults();
        self.entry.report_rollout(self.rollout.record.clone());
        let mut status = ModelStatus {
            name: self.name.clone(),
            versions: self
                .versions
                .iter()
                .filter(shown)
                .map(|(&number, version)| self.rollout.annotate(status(number, version)))
                .collect(),
            error: (!error.is_empty()).then(|| error.join("; ")),
            last_failure: None,
            unloaded: self.down,
        };
        if self.down || status.ready() {
            self.last_failure = None;
        } else if let Some(reason) = status.failure() {
            self.last_failure = Some(reason);
        } else {
            status.last_failure.clone_from(&self.last_failure);
        }
        self.entry.report(status);
    }

    /// Forgets the last failure if a scan has found no version that can serve next, for example
    /// because the failed version or the model was removed.
    pub(crate) fn end_last_failure(&mut self, now: Instant) {
        if self.removed || !self.starting(now, true) {
            self.last_failure = None;
        }
    }

    /// Notes if the policy is the reason why nothing serves, or why other versions of a store
    /// continue to serve, and logs it once.
    fn check_policy(&mut self) {
        let in_use = |version: &Version| version.serving.is_some() || version.load.is_some();
        let idle = !self.versions.values().any(in_use);
        let is_pinned = self.versions.values().any(|version| version.pinned);
        let is_off = self.down || self.removed || is_pinned;
        let error = if !is_off && (idle || self.is_copy) { self.unmet_policy() } else { None };
        if error != self.policy_error {
            if let Some(error) = &error {
                let effect =
                    if idle { "no version serves" } else { "the versions that serve continue" };
                tracing::warn!(model = %self.name, error, "{effect}");
            }
            self.policy_error = error;
        }
    }

    /// Returns the reason why the policy selects none of the versions on disk.
    pub(crate) fn unmet_policy(&self) -> Option<String> {
        let VersionPolicy::Specific(wanted) = &self.config.policy else { return None };
        let on_disk = self.versions.iter().filter(|(_, version)| version.disk.is_some());
        let on_disk: BTreeSet<u64> = on_disk.map(|(number, _)| *number).collect();
        if on_disk.is_empty() || !on_disk.is_disjoint(wanted) {
            return None;
        }
        let held = version_list(&on_disk);
        if wanted.is_empty() {
            return Some(format!(
                "its policy selects no version, and its directory holds {held}; change the policy"
            ));
        }
        Some(format!(
            "its policy selects {}, and its directory holds {held}; change the policy, or publish a version that it selects",
            version_list(wanted)
        ))
    }

    /// Returns true if a version has not had its first try yet.
    pub(crate) fn awaits_first_try(&self, now: Instant) -> bool {
        let views = self.views(now);
        let choice = self.choice(&views);
        let waiting =
            |version: &u64| self.versions.get(version).is_some_and(|v| v.serving.is_none());
        views.iter().any(|view| view.loading) || choice.aspired.iter().any(waiting)
    }

    /// Returns true if a version has not had its first try yet. With `may_wait`, also if no version
    /// serves and a version that still changes on disk may serve later.
    pub(crate) fn starting(&self, now: Instant, may_wait: bool) -> bool {
        let ready = self.versions.values().any(|version| version.serving.is_some());
        self.awaits_first_try(now) || (may_wait && !ready && self.has_changing_version())
    }

    /// Returns true if a program may still have been writing a version at the last scan.
    pub(crate) fn has_changing_version(&self) -> bool {
        self.versions.values().any(Version::changing)
    }

    /// Returns true if its first version is on its way from the place that its directory mirrors.
    pub(crate) fn awaits_copy(&self) -> bool {
        self.config.store.is_some() && self.versions.is_empty() && self.source_error.is_none()
    }

    /// Returns true if a version that still changes on disk is higher than all of `chosen`, and may
    /// replace them.
    pub(crate) fn changing_above(&self, chosen: &BTreeSet<u64>) -> bool {
        let above = chosen.last().copied();
        self.versions
            .iter()
            .any(|(&number, version)| version.changing() && above.is_none_or(|top| number > top))
    }
}

/// Returns the public status of a version, with one reason for its state.
fn status(number: u64, version: &Version) -> VersionStatus {
    let changed = || {
        let serving = version.serving.as_ref()?;
        let disk = version.disk.as_ref()?;
        disk.differs_from(serving.fingerprint)
            .then(|| "its files have changed since it was loaded; load it to serve them".to_owned())
    };
    let again = || {
        (version.serving.is_some() && version.load.is_some())
            .then(|| "being loaded again".to_owned())
    };
    let refused = || version.serving.as_ref()?.refused_settings.clone();
    let stopped = || Some(version.load.as_ref()?.stopped.as_ref()?.note());
    let warming = || {
        let load = version.load.as_ref()?;
        load.warmup.note().filter(|_| version.state == LifecycleState::Warming)
    };
    // A version that was removed is not tried again.
    let retried = version.failure.as_ref().filter(|_| version.disk.is_some());
    let retried = retried.filter(|failure| failure.retry_at.is_some());
    VersionStatus {
        version: number,
        state: version.state,
        reason: version.reason.clone(),
        note: stopped()
            .or_else(warming)
            .or_else(again)
            .or_else(changed)
            .or_else(refused)
            .or_else(|| version.note.clone()),
        retried: retried.map(|failure| failure.error.message().to_owned()),
        update: version.update.as_ref().and_then(Update::status),
        candidate: false,
        parameter_bytes: version
            .serving
            .as_ref()
            .map_or(0, |serving| serving.servable.parameter_bytes),
        since: version.since,
    }
}

fn log(model: &str, version: u64, state: LifecycleState, reason: Option<&str>) {
    match (state, reason) {
        (LifecycleState::Failed, reason) => {
            tracing::warn!("{model} {version} failed: {}", reason.unwrap_or_default())
        }
        // The load logs `Ready` itself, with its cost.
        _ => tracing::debug!(model, version, state = state.name(), reason, "version changed state"),
    }
}
