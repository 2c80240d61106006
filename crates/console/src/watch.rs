//! Finds events in counters that other crates keep. Events are refused requests, full disks,
//! requests that are not logged, models that fail many requests, worker processes that ended, and
//! requests that are not merged any more.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use lifecycle::ModelStatus;
use metrics::{KindLabels, Metrics, ModelLabels};
use observe::{EventJournal, EventLevel, NewEvent, RegistryReader};
use schedule::ModelSnapshot;
use search::registry::ListedState;

use crate::history::TrafficHistory;
use crate::trouble;

/// Refused requests of [`REFUSED_SECONDS`] that are an event.
const REFUSED_MIN: u64 = 10;
/// Seconds over which refused requests are counted, and between two reads of the disks' counters.
const REFUSED_SECONDS: u64 = 10;
/// Seconds over which failed requests are counted.
const FAILED_SECONDS: u64 = 60;

/// Kinds of refused requests, and the reason and remedy for people.
const REFUSALS: [(&str, &str); 24] = [
    ("queue_max", "the queue of a model was full; see --queue, or add replicas"),
    ("requests_max", "too many requests were in flight; see --max-requests"),
    ("request_memory", "requests in flight used up their memory; see --request-memory"),
    ("receiving_max", "too many requests were being received; see --max-requests"),
    ("connections_max", "there were too many connections; see --max-connections"),
    ("descriptors", "the limit of open files was reached; raise it with ulimit -n"),
    (
        "slow_reader",
        "clients read their answers too slowly; check their network, or request smaller answers",
    ),
    ("key_rate", "a key made more requests than its limit; see requests-per-second in --keys"),
    (
        "key_cpu",
        "a key used more processor time than its limit; see cpu-seconds-per-minute in --keys",
    ),
    (
        "key_failures",
        "clients at one address showed many wrong keys; correct their keys, or block the address",
    ),
    (
        "image_additions_max",
        "too many images were being added; check the store of originals, or send fewer at the same time",
    ),
    (
        "image_removals_max",
        "the originals of too many removed collections were still there; check the store of originals, \
         and the log",
    ),
    ("originals_queue_max", "too many images waited for the store of originals; check the store"),
    ("images_queue_max", "too many images waited to be decoded; send fewer at the same time"),
    (
        "images_bulk_max",
        "too many archives, folders, rebuilds or searches for duplicates were in progress; wait until \
         one has ended",
    ),
    ("ingest_queue_max", "too many images waited for background work; send them more slowly"),
    ("recordings_max", "too many recordings were in progress; see --recordings"),
    (
        "pages_max",
        "too many pages of this server were open; close some, or find out who opens them",
    ),
    ("search_queue", "too many searches waited for a thread; see --search-threads"),
    (
        "watchers_max",
        "too many clients watched the health of this server; call Check, or find out who calls Watch",
    ),
    ("write_queue", "too many writes to collections waited for a thread; write more slowly"),
    ("read_bytes_max", "the shards' answers to reads were too large: read fewer points at a time"),
    ("backup_queue", "too many backups waited; start fewer at the same time"),
    ("snapshots_max", "too many snapshots were transferred; transfer them one after the other"),
];

/// Counters at the last scan.
pub(crate) struct ServerWatch {
    metrics: Arc<Metrics>,
    registry: RegistryReader,
    journal: Arc<EventJournal>,
    refused: BTreeMap<&'static str, u64>,
    disk_refused: HashMap<String, u64>,
    /// Number of requests that could not be written to the request log.
    unlogged: u64,
    /// True for a model if many of its requests had failed at the last scan.
    failing: HashMap<Arc<str>, bool>,
    /// Restarts of the worker processes of each model.
    restarts: HashMap<Arc<str>, u64>,
    /// Versions of each model whose requests are not merged any more.
    unjoined: HashMap<Arc<str>, u64>,
}

impl ServerWatch {
    pub(crate) fn new(
        metrics: Arc<Metrics>,
        registry: RegistryReader,
        journal: Arc<EventJournal>,
    ) -> ServerWatch {
        ServerWatch {
            metrics,
            registry,
            journal,
            refused: BTreeMap::new(),
            disk_refused: HashMap::new(),
            unlogged: 0,
            failing: HashMap::new(),
            restarts: HashMap::new(),
            unjoined: HashMap::new(),
        }
    }

    /// Adds the events of the time since the last call. `end` is in seconds since the start.
    pub(crate) fn scan(
        &mut self,
        statuses: &[ModelStatus],
        scheduled: &[ModelSnapshot],
        history: &TrafficHistory,
        end: u64,
    ) {
        if !end.is_multiple_of(REFUSED_SECONDS) {
            return;
        }
        self.refusals();
        self.disks();
        self.add_log_events();
        self.add_failure_events(statuses, history, end);
        self.add_restart_events(statuses);
        self.add_merging_events(scheduled);
    }

    /// Adds an event for each kind of refusals that occurred often since the last call.
    fn refusals(&mut self) {
        for (kind, reason) in REFUSALS {
            let now = self.metrics.refused.get_or_create(&KindLabels { kind }).get();
            let before = self.refused.insert(kind, now).unwrap_or(0);
            let refused = now.saturating_sub(before);
            if refused >= REFUSED_MIN {
                let text = format!("requests were refused: {reason}");
                self.journal
                    .add_or_count(server_event("refused", EventLevel::Warning, text), refused);
            }
        }
    }

    /// Adds an event for each collection whose writes were refused because its disk is full.
    fn disks(&mut self) {
        let Some(registry) = (self.registry)() else { return };
        // Counters of collections that are no longer listed are dropped.
        let known = std::mem::take(&mut self.disk_refused);
        for listed in registry.list() {
            let before = known.get(&listed.name).copied().unwrap_or(0);
            let now = match listed.state {
                ListedState::Ready(named) => named.collection().status().disk_refused,
                ListedState::Opening | ListedState::Broken(_) => before,
            };
            self.disk_refused.insert(listed.name.clone(), now);
            let more = growth(before, now);
            if more > 0 {
                let text = format!(
                    "writes to the collection {} were refused: its disk is full; free space, or see \
                     --search-disk-reserve",
                    listed.name
                );
                self.journal.add_or_count(server_event("disk_full", EventLevel::Error, text), more);
            }
        }
    }

    /// Adds an event if requests could not be written to the request log.
    fn add_log_events(&mut self) {
        let failed = self.metrics.request_log.get(&KindLabels { kind: "failed" });
        let now = failed.map_or(0, |failed| failed.get());
        let more = growth(self.unlogged, now);
        self.unlogged = now;
        if more > 0 {
            let text = "requests could not be written to the directory of --request-log; the log of the \
                        server has the reason";
            let event = server_event("request_log_failed", EventLevel::Warning, text.to_owned());
            self.journal.add_or_count(event, more);
        }
    }

    /// Adds an event when a model begins to fail many requests, and one when it stops.
    fn add_failure_events(&mut self, statuses: &[ModelStatus], history: &TrafficHistory, end: u64) {
        for status in statuses {
            let minute = history.lock().recent(&status.name, end.saturating_sub(FAILED_SECONDS));
            let trouble = trouble::errors(&minute);
            let was = self.failing.insert(status.name.clone(), trouble.is_some()) == Some(true);
            let new = |level, text| NewEvent {
                kind: "request_errors",
                level,
                model: Some(status.name.clone()),
                version: None,
                text,
            };
            match trouble {
                Some((_, text)) if !was => self.journal.add(new(EventLevel::Error, text)),
                None if was => {
                    self.journal.add(new(EventLevel::Info, "requests succeed again".to_owned()));
                }
                _ => {}
            }
        }
        self.failing.retain(|name, _| statuses.iter().any(|status| status.name == *name));
    }

    /// Adds an event for each model whose worker process ended and was started again.
    fn add_restart_events(&mut self, statuses: &[ModelStatus]) {
        // Counters of models that are no longer served are dropped.
        let known = std::mem::take(&mut self.restarts);
        for ModelStatus { name, .. } in statuses {
            let labels = ModelLabels { model: name.clone() };
            let counter = self.metrics.worker_restarts.get(&labels);
            let now = counter.map_or(0, |restarts| restarts.get());
            let more = growth(known.get(name).copied().unwrap_or(0), now);
            self.restarts.insert(name.clone(), now);
            if more > 0 {
                let event = NewEvent {
                    kind: "worker_restarted",
                    level: EventLevel::Warning,
                    model: Some(name.clone()),
                    version: None,
                    text: "the worker process ended and was started again; its running requests failed or ran \
                           again, and the log has the reason"
                        .to_owned(),
                };
                self.journal.add_or_count(event, more);
            }
        }
    }

    /// Adds an event for each model whose requests the scheduler has stopped to merge.
    fn add_merging_events(&mut self, scheduled: &[ModelSnapshot]) {
        // Counters of models that have no queue any more are dropped.
        let known = std::mem::take(&mut self.unjoined);
        for ModelSnapshot { model, unjoined_versions: now, .. } in scheduled {
            let more = growth(known.get(model).copied().unwrap_or(0), *now);
            self.unjoined.insert(model.clone(), *now);
            if more > 0 {
                let event = NewEvent {
                    kind: "merging_stopped",
                    level: EventLevel::Warning,
                    model: Some(model.clone()),
                    version: None,
                    text: "requests are not merged or padded any more, because runs showed that this changes \
                           answers; the log has the reason"
                        .to_owned(),
                };
                self.journal.add_or_count(event, more);
            }
        }
    }
}

fn server_event(kind: &'static str, level: EventLevel, text: String) -> NewEvent {
    NewEvent { kind, level, model: None, version: None, text }
}

/// Returns the growth of a counter. A smaller one belongs to a new collection of the same name, and
/// began at 0.
fn growth(before: u64, now: u64) -> u64 {
    now.checked_sub(before).unwrap_or(now)
}

#[cfg(test)]
mod tests {
    use observe::EventFilter;

    use super::*;

    #[test]
    fn a_worker_that_ended_is_an_event() {
        let metrics = Arc::new(Metrics::default());
        let journal = Arc::new(EventJournal::default());
        let mut watch = ServerWatch::new(metrics.clone(), Arc::new(|| None), journal.clone());
        let name: Arc<str> = "m".into();
        let status = ModelStatus { name: name.clone(), ..ModelStatus::default() };
        watch.add_restart_events(std::slice::from_ref(&status));
        assert!(journal.read(&EventFilter::default()).events.is_empty());
        metrics.worker_restarts.get_or_create(&ModelLabels { model: name }).inc_by(2);
        for _ in 0..2 {
            watch.add_restart_events(std::slice::from_ref(&status));
        }
        let events = journal.read(&EventFilter::default()).events;
        assert_eq!(events.len(), 1);
        assert_eq!((events[0].kind, events[0].count), ("worker_restarted", 2));
    }

    #[test]
    fn requests_that_are_not_merged_any_more_are_an_event() {
        let journal = Arc::new(EventJournal::default());
        let mut watch = ServerWatch::new(Arc::default(), Arc::new(|| None), journal.clone());
        for unjoined_versions in [0, 1, 1] {
            let model = "m".into();
            let seen = ModelSnapshot { model, unjoined_versions, ..ModelSnapshot::default() };
            watch.add_merging_events(&[seen]);
        }
        let events = journal.read(&EventFilter::default()).events;
        assert_eq!(events.len(), 1);
        assert_eq!((events[0].kind, events[0].count), ("merging_stopped", 1));
    }

    #[test]
    fn requests_that_are_not_logged_are_an_event() {
        let metrics = Arc::new(Metrics::default());
        let journal = Arc::new(EventJournal::default());
        let mut watch = ServerWatch::new(metrics.clone(), Arc::new(|| None), journal.clone());
        watch.add_log_events();
        metrics.request_log.get_or_create(&KindLabels { kind: "written" }).inc_by(3);
        watch.add_log_events();
        assert!(journal.read(&EventFilter::default()).events.is_empty());
        metrics.request_log.get_or_create(&KindLabels { kind: "failed" }).inc_by(2);
        watch.add_log_events();
        watch.add_log_events();
        let events = journal.read(&EventFilter::default()).events;
        assert_eq!(events.len(), 1);
        assert_eq!((events[0].kind, events[0].count), ("request_log_failed", 2));
    }

    #[test]
    fn every_limit_has_a_reason() {
        let page = include_str!("../../../docs/metrics.md");
        let row = page.lines().find(|line| line.starts_with("| `millpond_refused_total`")).unwrap();
        let (_, kinds) = row.split_once("`kind`: ").unwrap();
        let (kinds, _) = kinds.split_once(" |").unwrap();
        let mut known = REFUSALS.map(|(kind, _)| kind);
        known.sort_unstable();
        assert_eq!(known.join(", "), kinds);
        for (kind, reason) in REFUSALS {
            assert!(reason.contains([';', ':']), "{kind} names no remedy: {reason}");
        }
    }

    #[test]
    fn a_counter_may_begin_again() {
        assert_eq!((growth(5, 5), growth(5, 8), growth(5, 2), growth(5, 0)), (0, 3, 2, 0));
    }
}
