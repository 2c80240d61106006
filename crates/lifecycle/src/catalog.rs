//! The ready versions, as requests see them.
//!
//! One atomic load finds the model and a second one its versions, without locks or waits. Each
//! model has its own immutable set, so publishing a version is one store and touches no other
//! model.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwap;
use base::{Error, ErrorKind, Result, nearest};
use engine::Servable;

use crate::status::{LifecycleState, ModelStatus, VersionStatus, version_list};
use ::rollout::{
    CandidatePermit, RequestKey, RolloutArm, RolloutMeasures, RolloutPart, RolloutRecord,
    RolloutReport, RolloutSplit, SplitCounter, within,
};

/// Maximum number of names of models in a message.
const NAMES_SHOWN_MAX: usize = 8;
/// Maximum number of names that are compared to find the nearest one, so that a wrong name stays
/// cheap.
const NAMES_COMPARED_MAX: usize = 256;

/// The ready versions of every model.
#[derive(Default)]
pub struct Catalog {
    models: ArcSwap<HashMap<Arc<str>, Arc<CatalogEntry>>>,
    /// True if errors name no other models.
    hides_names: AtomicBool,
}

/// One model in the catalogue. Written by the `lifecycle` thread only.
pub(crate) struct CatalogEntry {
    ready: ArcSwap<ReadySet>,
    status: ArcSwap<ModelStatus>,
    rollout: ArcSwap<RolloutRecord>,
}

/// Versions and labels of one model at one moment.
#[derive(Default)]
pub(crate) struct ReadySet {
    /// Ready versions, the lowest first.
    pub(crate) versions: Vec<Arc<Servable>>,
    pub(crate) labels: BTreeMap<String, u64>,
    /// Version of requests that name no version.
    pub(crate) stable: Option<u64>,
    /// The running rollout.
    pub(crate) rollout: Option<Arc<RolloutTraffic>>,
}

/// Requests of a running rollout.
pub(crate) struct RolloutTraffic {
    pub(crate) candidate: u64,
    pub(crate) split: RolloutSplit,
    pub(crate) counter: SplitCounter,
    pub(crate) measures: Arc<RolloutMeasures>,
}

/// A version that answers a request, and the request's part in a rollout.
pub struct Route {
    /// The version under its default signature.
    pub servable: Arc<Servable>,
    /// `None` outside of rollouts.
    pub rollout: Option<RolloutPart>,
}

impl ReadySet {
    fn stable(&self) -> Option<&Arc<Servable>> {
        self.stable.and_then(|version| self.find(version)).or(self.versions.last())
    }

    /// Chooses between the stable version and the candidate of a running rollout. `None` if no
    /// version is ready.
    fn route(&self, key: Option<&RequestKey>) -> Option<Route> {
        let stable = self.stable()?;
        let running = self.rollout.as_ref();
        let running = running.and_then(|rollout| Some((rollout, self.find(rollout.candidate)?)));
        let Some((rollout, candidate)) = running else {
            return Some(Route { servable: stable.clone(), rollout: None });
        };
        let position = rollout.counter.position(key);
        let mut part = RolloutPart {
            measures: rollout.measures.clone(),
            arm: RolloutArm::Stable,
            shadow: None,
            permit: None,
            overflowed: false,
        };
        let mut servable = stable;
        match rollout.split {
            RolloutSplit::Traffic(share) if within(position, share) => {
                part.permit = CandidatePermit::take(&rollout.measures).map(Arc::new);
                part.overflowed = part.permit.is_none();
                if part.permit.is_some() {
                    part.arm = RolloutArm::Candidate;
                    servable = candidate;
                }
            }
            RolloutSplit::Shadow(share) if within(position, share) => {
                part.shadow = Some(candidate.clone());
            }
            _ => {}
        }
        Some(Route { servable: servable.clone(), rollout: Some(part) })
    }

    fn find(&self, version: u64) -> Option<&Arc<Servable>> {
        let at =
            self.versions.binary_search_by_key(&version, |servable| servable.id.version).ok()?;
        self.versions.get(at)
    }
}

impl Catalog {
    /// Returns version `version` of `name`. Without a number, returns the version of requests that
    /// name none: the highest ready version, or the stable one of a rollout.
    ///
    /// # Errors
    /// `NotFound` for an unknown model or version. `Unavailable`, with state and reason, if the
    /// model or version is known but not ready.
    pub fn get(&self, name: &str, version: Option<u64>) -> Result<Arc<Servable>> {
        let models = self.models.load();
        let entry = models.get(name).ok_or_else(|| self.unknown(name))?;
        let ready = entry.ready.load();
        let found = match version {
            Some(version) => ready.find(version),
            None => ready.stable(),
        };
        found.cloned().ok_or_else(|| entry.missing(version))
    }

    /// Returns the version that answers a request without a version. While a rollout runs, equal
    /// keys get the same version.
    ///
    /// # Errors
    /// Returns the errors of [`Catalog::get`].
    pub fn route(&self, name: &str, key: Option<&RequestKey>) -> Result<Route> {
        let models = self.models.load();
        let entry = models.get(name).ok_or_else(|| self.unknown(name))?;
        let route = entry.ready.load().route(key);
        route.ok_or_else(|| entry.missing(None))
    }

    /// Returns the rollouts of `name`, or `None` for an unknown model.
    pub fn rollout(&self, name: &str) -> Option<RolloutReport> {
        let record = self.models.load().get(name)?.rollout.load_full();
        Some(record.report())
    }

    /// Returns the version of `name` that has the label `label`.
    ///
    /// # Errors
    /// `NotFound` for an unknown model, `InvalidArgument` for an unknown label. Otherwise the
    /// errors of [`Catalog::get`].
    pub fn by_label(&self, name: &str, label: &str) -> Result<Arc<Servable>> {
        let models = self.models.load();
        let entry = models.get(name).ok_or_else(|| self.unknown(name))?;
        let ready = entry.ready.load();
        let version = *ready.labels.get(label).ok_or_else(|| {
            Error::invalid(format!(
                "model \"{name}\" has no version label \"{label}\"; set it in [labels] of the model's \
                 millpond.toml, or in version_labels of TensorFlow Serving's list of models"
            ))
        })?;
        ready
            .find(version)
            .cloned()
            .ok_or_else(|| entry.missing(Some(version)).context(format!("label \"{label}\"")))
    }

    /// Leaves the names of other models out of errors from now on. A server with keys needs it. An
    /// error can reach a client without a key, or one whose key permits some models only.
    pub fn hide_names(&self) {
        self.hides_names.store(true, Ordering::Relaxed);
    }

    /// Returns true after a call of [`Catalog::hide_names`].
    pub fn hides_names(&self) -> bool {
        self.hides_names.load(Ordering::Relaxed)
    }

    /// Builds the `NotFound` error for the unknown model `name`, with the nearest known name or all
    /// known names, unless [`Catalog::hide_names`] was called.
    pub fn unknown(&self, name: &str) -> Error {
        if self.hides_names() {
            return Error::not_found(format!(
                "no model \"{name}\" is served here; GET /v2/models lists the models that the key \
                 may use"
            ));
        }
        let models = self.models.load();
        let compared = models.keys().map(AsRef::as_ref).take(NAMES_COMPARED_MAX);
        let known = match (models.len(), nearest(name, compared)) {
            (0, _) => "; this server serves no model".to_owned(),
            (_, Some(near)) => format!("; did you mean \"{near}\"?"),
            (1..=NAMES_SHOWN_MAX, None) => {
                let mut names: Vec<&str> = models.keys().map(AsRef::as_ref).collect();
                names.sort_unstable();
                format!("; the models are {}", names.join(", "))
            }
            (count, None) => format!("; {count} models are, GET /v2/models lists them"),
        };
        Error::not_found(format!("no model \"{name}\" is served here{known}"))
    }

    /// Returns the names of all models in order, ready or not.
    pub fn names(&self) -> Vec<Arc<str>> {
        let mut names: Vec<Arc<str>> = self.models.load().keys().cloned().collect();
        names.sort();
        names
    }

    /// Returns the ready versions of `name`, lowest first, or `None` for an unknown model.
    pub fn ready(&self, name: &str) -> Option<Vec<u64>> {
        let models = self.models.load();
        let ready = models.get(name)?.ready.load();
        Some(ready.versions.iter().map(|servable| servable.id.version).collect())
    }

    /// Returns the status of `name`, or `None` for an unknown model.
    pub fn status(&self, name: &str) -> Option<Arc<ModelStatus>> {
        self.models.load().get(name).map(|entry| entry.status.load_full())
    }

    /// Returns the models that should serve but cannot, with the reasons, in order of name.
    pub fn failures(&self) -> Vec<(Arc<str>, String)> {
        self.with_reason(ModelStatus::failure)
    }

    /// Returns the models that should serve but do not, with the reasons, in order of name: failed
    /// models and models that are being loaded.
    pub fn missing(&self) -> Vec<(Arc<str>, String)> {
        self.with_reason(|status| {
            let waits = || (!status.unloaded && !status.ready()).then(|| summary(status));
            status.failure().or_else(waits)
        })
    }

    /// Returns the models for which `reason` returns a reason, in the order of their names.
    fn with_reason(
        &self,
        reason: impl Fn(&ModelStatus) -> Option<String>,
    ) -> Vec<(Arc<str>, String)> {
        let models = self.models.load();
        let found = models
            .iter()
            .filter_map(|(name, entry)| Some((name.clone(), reason(&entry.status.load())?)));
        let mut found: Vec<_> = found.collect();
        found.sort();
        found
    }

    /// Returns true if any model has a ready version.
    pub fn serves(&self) -> bool {
        self.models.load().values().any(|entry| !entry.ready.load().versions.is_empty())
    }

    pub(crate) fn statuses(&self) -> Vec<ModelStatus> {
        let mut all: Vec<ModelStatus> = self
            .models
            .load()
            .values()
            .map(|entry| ModelStatus::clone(&entry.status.load()))
            .collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }

    pub(crate) fn add(&self, name: &Arc<str>) -> Arc<CatalogEntry> {
        let entry = Arc::new(CatalogEntry::new(name));
        self.change(|models| drop(models.insert(name.clone(), entry.clone())));
        entry
    }

    pub(crate) fn remove(&self, name: &str) {
        self.change(|models| drop(models.remove(name)));
    }

    fn change(&self, apply: impl FnOnce(&mut HashMap<Arc<str>, Arc<CatalogEntry>>)) {
        let mut models = HashMap::clone(&self.models.load());
        apply(&mut models);
        self.models.store(Arc::new(models));
    }
}

impl CatalogEntry {
    fn new(name: &Arc<str>) -> CatalogEntry {
        let status = ModelStatus { name: name.clone(), ..ModelStatus::default() };
        CatalogEntry {
            ready: ArcSwap::default(),
            status: ArcSwap::from_pointee(status),
            rollout: ArcSwap::default(),
        }
    }

    /// Publishes `ready`: all later requests see it. A label whose new version is not ready stays
    /// at its old one if that is ready, so that requests by label are answered meanwhile.
    pub(crate) fn publish(&self, mut ready: ReadySet) {
        let before = self.ready.load();
        let mut labels = std::mem::take(&mut ready.labels);
        for (label, version) in &mut labels {
            let old = before.labels.get(label).filter(|&&old| ready.find(old).is_some());
            if let Some(old) = old
                && ready.find(*version).is_none()
            {
                *version = *old;
            }
        }
        ready.labels = labels;
        self.ready.store(Arc::new(ready));
    }

    /// Returns the version that requests by `label` get, ready or not.
    pub(crate) fn labelled(&self, label: &str) -> Option<u64> {
        self.ready.load().labels.get(label).copied()
    }

    pub(crate) fn report(&self, status: ModelStatus) {
        self.status.store(Arc::new(status));
    }

    pub(crate) fn report_rollout(&self, record: RolloutRecord) {
        self.rollout.store(Arc::new(record));
    }

    pub(crate) fn status(&self) -> Arc<ModelStatus> {
        self.status.load_full()
    }

    /// Returns the error for a version that is not ready: `NotFound` if it does not exist,
    /// otherwise `Unavailable` with its state.
    fn missing(&self, version: Option<u64>) -> Error {
        let status = self.status.load();
        let name = &status.name;
        match version {
            None => Error::unavailable(format!(
                "model \"{name}\" has no ready version: {}",
                summary(&status)
            )),
            Some(version) => match status.version(version) {
                Some(known) => Error::unavailable(format!("model \"{name}\": {}", describe(known))),
                None => {
                    let ready = self.ready.load();
                    let served = ready.versions.iter().map(|servable| servable.id.version);
                    let served = version_list(&served.collect());
                    let served = if served.is_empty() { "none".to_owned() } else { served };
                    let message =
                        format!("model \"{name}\" has no version {version}; it serves {served}");
                    Error::new(ErrorKind::NotFound, message)
                }
            },
        }
    }
}

/// Returns the reason why a model serves no version, for errors of requests.
fn summary(status: &ModelStatus) -> String {
    if status.unloaded {
        return "it was unloaded by a request; load it to serve it again".into();
    }
    match (status.versions.last(), &status.error) {
        (_, Some(error)) => error.clone(),
        (Some(version), None) => describe(version),
        (None, None) => "its directory holds no version".into(),
    }
}

fn describe(version: &VersionStatus) -> String {
    match &version.reason {
        Some(reason) if version.state == LifecycleState::Failed => {
            format!("version {} failed: {reason}", version.version)
        }
        Some(reason) => format!("version {} is {}: {reason}", version.version, version.state),
        None => format!("version {} is {}", version.version, version.state),
    }
}
