//! JSON of the page's events: the overview of all models and the machine. `page.js` is its only
//! reader.

use std::time::{Instant, SystemTime};

use lifecycle::{ModelStatus, UpdateStatus, VersionStatus};
use observe::{EventFilter, EventPage, ServerEvent};
use serde::Serialize;

use crate::history::{Histories, HistoryPoint, HistoryRange, STEP_SECONDS, TAIL_REQUESTS_MIN};
use crate::machine::Machine;
use crate::settings::{OfferedCalls, SettingsSection};
use crate::trouble::{self, ModelState, TroubleLevel};
use crate::window::batch_size_names;
use crate::{Page, files};

/// Maximum models on the page; see [`shown_models`].
pub(crate) const MODELS_SHOWN_MAX: usize = 1000;
/// Maximum versions of a model in the overview, the newest.
const VERSIONS_SHOWN_MAX: usize = 8;
/// Seconds of the small charts.
const SPARK_SECONDS: u64 = 900;
/// Seconds over which rates are computed.
const RATE_SECONDS: u64 = 10;
/// Seconds over which errors and the percentiles of few requests are computed.
const MINUTE_SECONDS: u64 = 60;
/// Newest events in a tick: a viewer that missed a few ticks still gets them.
const EVENTS_TICK_MAX: usize = 20;

/// The first event: constants of the server, small charts, and all events.
#[derive(Serialize)]
struct Past {
    server: ServerInfo,
    sparks: Vec<Spark>,
    dropped: u64,
    #[serde(flatten)]
    now: Now,
}

#[derive(Serialize)]
struct ServerInfo {
    name: &'static str,
    version: &'static str,
    engine: String,
    /// Start in milliseconds since the epoch.
    started: u64,
    /// Seconds of an interval of the small charts.
    spark_step: u64,
    spark_seconds: u64,
    /// Labels of the buckets of batch sizes.
    batch_sizes: Vec<String>,
    /// Directory in which a model can be published; `None` if there is none.
    root: Option<String>,
    settings: Vec<SettingsSection>,
    /// Paths of all pages.
    pages: Vec<&'static str>,
    calls: OfferedCalls,
}

/// Small chart of a model: end, requests, errors and p99 in microseconds of each interval.
#[derive(Serialize)]
struct Spark {
    name: String,
    points: Vec<[u64; 4]>,
}

/// State of the server at one time.
#[derive(Serialize)]
struct Now {
    /// Time since the start of the server, in seconds.
    at: f64,
    /// True if every model that should serve does, and the server is not stopping.
    ready: bool,
    machine: Machine,
    models: Vec<ModelRow>,
    /// Number of models beyond [`MODELS_SHOWN_MAX`], which are not shown.
    more: usize,
    events: Vec<ServerEvent>,
}

/// A model in the overview.
#[derive(Serialize)]
struct ModelRow {
    name: String,
    state: ModelState,
    level: TroubleLevel,
    /// Problem of the model, as the page words it; empty if it has none.
    text: String,
    versions: Vec<VersionRow>,
    /// Requests per second.
    rate: f64,
    /// Requests and failed requests of the last minute.
    requests: u64,
    errors: u64,
    /// Failed requests of the last minute by status.
    statuses: Vec<(&'static str, u32)>,
    /// Microseconds; 0 without requests.
    p50: u64,
    p99: u64,
    queued: u64,
}

#[derive(Serialize)]
struct VersionRow {
    version: u64,
    state: &'static str,
    /// "waiting" or "held back" if it waits for its turn in the fleet.
    #[serde(skip_serializing_if = "Option::is_none")]
    update: Option<&'static str>,
    /// True if it is the candidate of a running rollout.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    candidate: bool,
    /// Reason of a failure or a wait, or a note.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// Bytes of its parameters.
    bytes: u64,
    /// Time at which it entered the state, in milliseconds since the epoch.
    since: u64,
}

/// Returns the JSON of the `history` event.
pub(crate) fn past(page: &Page) -> String {
    let now = Instant::now();
    let statuses = page.parts.lifecycle.status();
    let range = HistoryRange { now: page.history.seconds(now).round() as u64, span: SPARK_SECONDS };
    let sparks = shown_models(&statuses).into_iter().map(|status| {
        // Locked for one model at a time, so that the scan is not delayed.
        let records = page.history.lock().records(&status.name, range);
        let point =
            |point: HistoryPoint| [point.end, point.requests, point.errors, point.quantiles.p99];
        let points = records.points().into_iter().map(point).collect();
        Spark { name: status.name.to_string(), points }
    });
    let sparks = sparks.filter(|spark| !spark.points.is_empty()).collect();
    let EventPage { events, dropped } = page.journal.read(&EventFilter::default());
    json(&Past { server: server(page), sparks, dropped, now: Now { events, ..read(page) } })
}

/// Returns the description of the server that pages show.
fn server(page: &Page) -> ServerInfo {
    let uptime = page.history.seconds(Instant::now());
    ServerInfo {
        name: page.shown.name,
        version: crate::VERSION,
        engine: page.shown.engine.clone(),
        started: epoch_ms(SystemTime::now()).saturating_sub((uptime * 1e3) as u64),
        spark_step: STEP_SECONDS,
        spark_seconds: SPARK_SECONDS,
        batch_sizes: batch_size_names(),
        root: page.shown.root.clone(),
        settings: (page.settings)(),
        pages: files::paths(),
        calls: (page.shown.calls)(),
    }
}

/// Returns the JSON of the `tick` event.
pub(crate) fn tick(page: &Page) -> String {
    json(&read(page))
}

/// Serialises structs with string keys, which cannot fail.
pub(crate) fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_else(|error| {
        tracing::error!(%error, "the page's figures cannot be written");
        "{}".into()
    })
}

/// Reads the present state of the models and of the machine, and the newest events.
fn read(page: &Page) -> Now {
    let now = Instant::now();
    let at = page.history.seconds(now);
    let statuses = page.parts.lifecycle.status();
    let newest = EventFilter { limit: Some(EVENTS_TICK_MAX), ..EventFilter::default() };
    let machine = page.machine.read(now);
    let shown = shown_models(&statuses).into_iter();
    let histories = page.history.lock();
    Now {
        at,
        ready: (page.ready)(),
        models: shown.map(|status| model(status, &histories, at.round() as u64)).collect(),
        more: statuses.len().saturating_sub(MODELS_SHOWN_MAX),
        machine,
        events: page.journal.read(&newest).events,
    }
}

/// Returns the models on the page, in order of name. Of more than [`MODELS_SHOWN_MAX`], the ones
/// that fail come first. Otherwise the page would say that none fails.
fn shown_models(statuses: &[ModelStatus]) -> Vec<&ModelStatus> {
    let mut shown: Vec<&ModelStatus> = statuses.iter().collect();
    if shown.len() > MODELS_SHOWN_MAX {
        // The sort keeps the order of names.
        shown.sort_by_cached_key(|status| status.failure().is_none() && status.error.is_none());
        shown.truncate(MODELS_SHOWN_MAX);
        shown.sort_by(|one, other| one.name.cmp(&other.name));
    }
    shown
}

/// Returns the row of a model, with its traffic of the last minute. `now` is in seconds since the
/// server started.
fn model(status: &ModelStatus, histories: &Histories, now: u64) -> ModelRow {
    let recent = histories.recent(&status.name, now.saturating_sub(RATE_SECONDS));
    let minute = histories.recent(&status.name, now.saturating_sub(MINUTE_SECONDS));
    let trouble = trouble::of(status, &minute);
    let timed = if recent.answered() >= TAIL_REQUESTS_MIN { &recent } else { &minute };
    let quantiles = timed.quantiles();
    ModelRow {
        name: status.name.to_string(),
        state: trouble.state,
        level: trouble.level,
        text: trouble.text,
        versions: status.versions.iter().rev().take(VERSIONS_SHOWN_MAX).map(version).collect(),
        rate: recent.requests() as f64 / now.clamp(1, RATE_SECONDS) as f64,
        requests: minute.requests(),
        errors: minute.errors(),
        statuses: minute.failures(),
        p50: quantiles.p50,
        p99: quantiles.p99,
        queued: recent.queued.into(),
    }
}

/// Returns the row of a version.
fn version(status: &VersionStatus) -> VersionRow {
    VersionRow {
        version: status.version,
        state: status.state.name(),
        update: status.update.map(|update| match update {
            UpdateStatus::Waiting { .. } => "waiting",
            UpdateStatus::HeldBack => "held back",
        }),
        candidate: status.candidate,
        reason: status.reason.clone().or_else(|| status.note.clone()),
        bytes: status.parameter_bytes,
        since: epoch_ms(status.since),
    }
}

pub(crate) fn epoch_ms(time: SystemTime) -> u64 {
    base::unix_time(time).as_millis() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failing_model_is_shown_however_many_there_are() {
        let status = |number: usize| ModelStatus {
            name: format!("m{number:04}").into(),
            error: (number == MODELS_SHOWN_MAX + 7).then(|| "no such directory".to_owned()),
            ..ModelStatus::default()
        };
        let statuses: Vec<ModelStatus> = (0..2 * MODELS_SHOWN_MAX).map(status).collect();
        let shown = shown_models(&statuses);
        assert_eq!(shown.len(), MODELS_SHOWN_MAX);
        assert_eq!(&*shown[MODELS_SHOWN_MAX - 2].name, "m0998");
        assert_eq!(&*shown[MODELS_SHOWN_MAX - 1].name, "m1007");
        let few = &statuses[..3];
        assert_eq!(shown_models(few), few.iter().collect::<Vec<_>>());
    }
}
