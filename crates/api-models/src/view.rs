//! Converts the state of models and their statistics to the types of the protocols.

use std::sync::Arc;
use std::time::Duration;

use base::{Error, Result, VersionId};
use engine::{ScheduleMode, Servable};
use inference::{InferenceService, RunSize, TimeTotal, VersionStats};
use lifecycle::{Catalog, Lifecycle, LifecycleState, ModelStatus, UpdateStatus, VersionStatus};
use protocol::status::{
    BatchTotal, Batching, IndexEntry, QueueLimits, StatisticsEntry, Total, VersionState,
};
use transport::access::KeyGrant;

/// Reason of a model that an administrator unloaded. The catalog uses the same text in errors.
const UNLOADED: &str = "an administrator unloaded it";

/// Returns the name of an engine in the Open Inference Protocol. Clients know engines by Triton's
/// names for them.
pub fn platform(engine: &'static str) -> &'static str {
    match engine {
        "libtorch" => "pytorch_libtorch",
        "onnxruntime" => "onnxruntime_onnx",
        "tensorflow" => "tensorflow_savedmodel",
        engine => engine,
    }
}

/// Returns true if a list shows the model `name` to a request with these rights. A server without
/// keys shows all models.
pub fn sees_model(grant: Option<&KeyGrant>, name: &str) -> bool {
    grant.is_none_or(|grant| grant.sees_model(name))
}

/// Returns the ready versions of a model, oldest first.
pub fn ready_versions(catalog: &Catalog, model: &str) -> Vec<u64> {
    catalog.ready(model).unwrap_or_default()
}

/// Returns the states of a model's versions, newest first as TensorFlow Serving lists them.
///
/// # Errors
/// `NotFound` for an unknown model or version, and for a model that has no versions.
pub fn version_states(
    catalog: &Catalog,
    model: &str,
    version: Option<u64>,
) -> Result<Vec<VersionState>> {
    let status = catalog.status(model).ok_or_else(|| catalog.unknown(model))?;
    states_of(&status, version)
}

/// Returns the states of the versions of a model, newest first. If `version` is given, returns only
/// its state.
///
/// # Errors
/// `NotFound` if there is no such version.
fn states_of(status: &ModelStatus, version: Option<u64>) -> Result<Vec<VersionState>> {
    let model = &status.name;
    let mut states: Vec<VersionState> = status
        .versions
        .iter()
        .filter(|known| version.is_none_or(|wanted| wanted == known.version))
        .map(version_state)
        .collect();
    if states.is_empty() {
        return Err(Error::not_found(match version {
            Some(version) => format!("model \"{model}\" has no version {version}"),
            None => format!("could not find any versions of model \"{model}\""),
        }));
    }
    states.sort_by_key(|state| std::cmp::Reverse(state.version));
    Ok(states)
}

/// Converts the state of a version to one of TensorFlow Serving's states.
fn version_state(status: &VersionStatus) -> VersionState {
    VersionState {
        version: status.version,
        state: match status.state {
            LifecycleState::Discovered | LifecycleState::Admitted => {
                protocol::status::TfsState::Start
            }
            LifecycleState::Loading | LifecycleState::Warming => {
                protocol::status::TfsState::Loading
            }
            LifecycleState::Ready => protocol::status::TfsState::Available,
            LifecycleState::Draining => protocol::status::TfsState::Unloading,
            LifecycleState::Released | LifecycleState::Failed => protocol::status::TfsState::End,
        },
        error: (status.state == LifecycleState::Failed)
            .then(|| status.reason.clone().unwrap_or_default()),
    }
}

/// Returns the repository index: an entry per version, or one without a version for a model that
/// has none.
pub fn repository_index(
    lifecycle: &Lifecycle,
    ready_only: bool,
    grant: Option<&KeyGrant>,
) -> Vec<IndexEntry> {
    let status = lifecycle.status();
    let seen = status.iter().filter(|model| sees_model(grant, &model.name));
    let mut entries: Vec<IndexEntry> = seen.flat_map(index_entries).collect();
    entries.retain(|entry| !ready_only || entry.state == "READY");
    entries
}

/// Returns the entries of a model in the repository index, one for each version.
fn index_entries(model: &ModelStatus) -> Vec<IndexEntry> {
    if model.versions.is_empty() {
        let reason = match (&model.error, model.unloaded) {
            (Some(error), _) => error.clone(),
            (None, true) => UNLOADED.into(),
            (None, false) => "no version found".into(),
        };
        return vec![IndexEntry {
            name: model.name.clone(),
            version: None,
            state: "UNAVAILABLE",
            reason,
        }];
    }
    let entry = |version: &VersionStatus| IndexEntry {
        name: model.name.clone(),
        version: Some(version.version),
        state: match version.state {
            _ if version.update == Some(UpdateStatus::HeldBack) => "UNAVAILABLE",
            LifecycleState::Ready => "READY",
            LifecycleState::Discovered
            | LifecycleState::Admitted
            | LifecycleState::Loading
            | LifecycleState::Warming => "LOADING",
            LifecycleState::Draining => "UNLOADING",
            LifecycleState::Released | LifecycleState::Failed => "UNAVAILABLE",
        },
        reason: match (version.state, &version.reason) {
            (LifecycleState::Released, None) if model.unloaded => UNLOADED.into(),
            _ => reason(version, model.error.as_deref()),
        },
    };
    model.versions.iter().map(entry).collect()
}

/// Joins the reason or note of a version with the error of its model's directory and settings.
fn reason(version: &VersionStatus, of_model: Option<&str>) -> String {
    let own = version.reason.as_deref().or(version.note.as_deref());
    own.into_iter().chain(of_model).collect::<Vec<_>>().join("; ")
}

/// Returns the statistics of one version, of all ready versions of a model, or of all models if
/// `model` is empty.
///
/// # Errors
/// `NotFound` for an unknown model, `Unavailable` for one that serves nothing.
pub fn statistics(
    inference: &InferenceService,
    model: &str,
    version: Option<u64>,
    grant: Option<&KeyGrant>,
) -> Result<Vec<StatisticsEntry>> {
    let mut ids: Vec<VersionId> = Vec::new();
    if model.is_empty() {
        for name in inference.catalog().names() {
            if sees_model(grant, &name) {
                ids.extend(ready_ids(inference.catalog(), &name));
            }
        }
    } else {
        let found = inference.find(model, version, None)?;
        match version {
            Some(_) => ids.push(found.id.clone()),
            None => ids.extend(ready_ids(inference.catalog(), &found.id.model)),
        }
    }
    // A version may have been released since it was listed.
    let stats = |id: &VersionId| inference.stats().known(id).unwrap_or_default();
    Ok(ids.iter().map(|id| entry(id, &stats(id))).collect())
}

fn ready_ids(catalog: &Catalog, model: &Arc<str>) -> impl Iterator<Item = VersionId> {
    let model = model.clone();
    ready_versions(catalog, &model)
        .into_iter()
        .map(move |version| VersionId { model: model.clone(), version })
}

fn entry(id: &VersionId, stats: &VersionStats) -> StatisticsEntry {
    let total = |total: &TimeTotal| Total { count: total.count(), nanos: total.nanos() };
    let runs = stats.runs();
    let batch = |run: RunSize| BatchTotal {
        size: run.size,
        compute: Total { count: run.runs, nanos: run.nanos },
    };
    StatisticsEntry {
        id: id.clone(),
        last_ms: stats.last_ms(),
        success: total(&stats.success),
        fail: total(&stats.fail),
        queue: total(&stats.queue),
        compute: total(&stats.compute),
        items: runs.items,
        executions: runs.runs,
        batches: runs.sizes.into_iter().map(batch).collect(),
    }
}

/// Returns the batching settings of a version, or `None` if each request runs alone.
pub fn batching(servable: &Servable) -> Option<Batching> {
    let options = servable.schedule();
    if options.mode == ScheduleMode::Sync {
        return None;
    }
    let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let limits = |queue_max: Option<usize>, timeout: Option<Duration>| QueueLimits {
        queue_max: number(queue_max.unwrap_or(0)),
        timeout: timeout.unwrap_or_default(),
    };
    Some(Batching {
        batch_max: if servable.plan().batchable { number(options.max_batch) } else { 0 },
        preferred: options.preferred_batch_sizes.iter().copied().map(number).collect(),
        delay: options.max_queue_delay,
        limits: limits(options.queue_max, options.timeout),
        levels: options
            .priorities
            .iter()
            .map(|level| limits(level.queue_max, level.timeout))
            .collect(),
        default_level: number(options.default_priority),
    })
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use base::ErrorKind;

    use super::*;

    #[test]
    fn a_model_without_versions_has_no_states() {
        let status = ModelStatus { name: "m".into(), unloaded: true, ..ModelStatus::default() };
        for version in [None, Some(1)] {
            assert_eq!(states_of(&status, version).unwrap_err().kind(), ErrorKind::NotFound);
        }
    }

    #[test]
    fn the_error_of_a_settings_file_shows_beside_the_version() {
        let version = |state, reason: Option<&str>| VersionStatus {
            version: 1,
            state,
            reason: reason.map(str::to_owned),
            note: Some("a note".into()),
            retried: None,
            update: None,
            candidate: false,
            parameter_bytes: 0,
            since: SystemTime::now(),
        };
        let shown = |version, error: Option<&str>| {
            let (name, error) = ("m".into(), error.map(str::to_owned));
            let model =
                ModelStatus { name, versions: vec![version], error, ..ModelStatus::default() };
            index_entries(&model).remove(0).reason
        };
        assert_eq!(shown(version(LifecycleState::Ready, None), None), "a note");
        let error = "m/millpond.toml: line 1: unknown field `polcy`";
        assert_eq!(
            shown(version(LifecycleState::Ready, None), Some(error)),
            format!("a note; {error}")
        );
        assert_eq!(
            shown(version(LifecycleState::Failed, Some("why")), Some(error)),
            format!("why; {error}")
        );
        let (name, versions) = ("m".into(), vec![version(LifecycleState::Released, None)]);
        let unloaded = ModelStatus { name, versions, unloaded: true, ..ModelStatus::default() };
        assert_eq!(index_entries(&unloaded).remove(0).reason, UNLOADED);
    }
}
