//! Events of the server for people: loads, failures, swaps, refusals, full disks. A bounded list in
//! memory, which `GET /v2/events` and the pages show.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use parking_lot::Mutex;
use serde::Serialize;

/// Maximum number of events. A further one replaces the oldest.
pub const EVENTS_MAX: usize = 512;
/// Longest text of an event in bytes.
const TEXT_BYTES_MAX: usize = 2000;

/// Weight of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum EventLevel {
    /// Something happened as it should.
    Info,
    /// Something needs attention, but models serve.
    Warning,
    /// A model, a version or a disk fails.
    Error,
}

/// An event without its number and time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewEvent {
    /// One of the kinds that docs/console.md lists.
    pub kind: &'static str,
    /// Information, a warning or an error.
    pub level: EventLevel,
    /// The model, or `None` for the whole server.
    pub model: Option<Arc<str>>,
    /// Version that the event is about, if any.
    pub version: Option<u64>,
    /// The event, for people.
    pub text: String,
}

/// An event of the journal, with its number and time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ServerEvent {
    /// Number, which rises.
    pub id: u64,
    /// Time in milliseconds since the epoch. It is that of the last occurrence if there were
    /// several.
    pub time_ms: u64,
    /// Seconds since the server started.
    pub at: f64,
    /// One of the kinds of [`NewEvent`].
    pub kind: &'static str,
    /// Information, a warning or an error.
    pub level: EventLevel,
    /// The model, or `None` for the whole server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<Arc<str>>,
    /// Version that the event is about, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<u64>,
    /// Version that this version replaced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<u64>,
    /// The event, for people.
    pub text: String,
    /// Number of occurrences.
    pub count: u64,
}

/// The last events, and the number of dropped ones.
#[derive(Default)]
struct RecentEvents {
    events: VecDeque<ServerEvent>,
    last_id: u64,
    dropped: u64,
}

/// The events since the server started.
pub struct EventJournal {
    start: Instant,
    events: Mutex<RecentEvents>,
}

/// Events of a reader, oldest first.
#[derive(Debug, PartialEq, Serialize)]
pub struct EventPage {
    /// Events that match the choice.
    pub events: Vec<ServerEvent>,
    /// Events that are not kept any more.
    pub dropped: u64,
}

/// Choice of events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventFilter {
    /// Events with a higher number only.
    pub after: u64,
    /// Events of this model only, or of all models if `None`.
    pub model: Option<String>,
    /// Maximum number of events, or `None` for all. The newest ones are chosen.
    pub limit: Option<usize>,
}

impl Default for EventJournal {
    fn default() -> EventJournal {
        EventJournal { start: Instant::now(), events: Mutex::default() }
    }
}

impl EventJournal {
    /// Returns the time from which [`ServerEvent::at`] counts.
    pub fn start(&self) -> Instant {
        self.start
    }

    /// Adds an event. Replaces the oldest one if there are `EVENTS_MAX`.
    pub fn add(&self, new: NewEvent) {
        self.events.lock().push(new, self.now());
    }

    /// Adds an event. If the last event of this kind, model and version has the same text,
    /// adds `times` to its count instead.
    pub fn add_or_count(&self, new: NewEvent, times: u64) {
        let now = self.now();
        let mut events = self.events.lock();
        let text = cut(&new.text);
        let same = events.events.iter_mut().rev().find(|event| {
            event.kind == new.kind && event.model == new.model && event.version == new.version
        });
        if let Some(event) = same.filter(|event| event.text == text) {
            event.count += times;
            (event.time_ms, event.at) = (now.time_ms, now.at);
            // A reader that knows the event gets it again.
            let id = event.id;
            events.renew(id);
            return;
        }
        events.push(new, now);
        if let Some(event) = events.events.back_mut() {
            event.count = times;
        }
    }

    /// Records, in the event of the load of `version`, that it replaced `from`.
    pub(crate) fn replaced(&self, model: &Arc<str>, from: u64, version: u64) {
        let mut events = self.events.lock();
        let of_model = |event: &&mut ServerEvent| event.model.as_ref() == Some(model);
        let loaded = events
            .events
            .iter_mut()
            .rev()
            .filter(of_model)
            .find(|event| event.kind == "loaded" && event.version == Some(version));
        let Some(event) = loaded else { return };
        event.from = Some(from);
        let id = event.id;
        events.renew(id);
        // The release of the replaced version is part of the swap.
        events.events.retain(|event| {
            !(event.kind == "released"
                && event.model.as_ref() == Some(model)
                && event.version == Some(from))
        });
    }

    /// Returns the events that a filter chooses.
    pub fn read(&self, filter: &EventFilter) -> EventPage {
        let events = self.events.lock();
        let chosen = |event: &&ServerEvent| {
            let model = filter.model.as_deref();
            event.id > filter.after && model.is_none_or(|name| event.model.as_deref() == Some(name))
        };
        let newest =
            events.events.iter().rev().filter(chosen).take(filter.limit.unwrap_or(EVENTS_MAX));
        let mut chosen: Vec<ServerEvent> = newest.cloned().collect();
        chosen.reverse();
        EventPage { events: chosen, dropped: events.dropped }
    }

    fn now(&self) -> EventTime {
        let since = base::unix_time(SystemTime::now());
        EventTime {
            time_ms: since.as_millis() as u64,
            at: (self.start.elapsed().as_secs_f64() * 1e3).round() / 1e3,
        }
    }
}

struct EventTime {
    time_ms: u64,
    at: f64,
}

impl RecentEvents {
    /// Appends an event, and drops the oldest one if there are too many.
    fn push(&mut self, new: NewEvent, now: EventTime) {
        self.last_id += 1;
        self.events.push_back(ServerEvent {
            id: self.last_id,
            time_ms: now.time_ms,
            at: now.at,
            kind: new.kind,
            level: new.level,
            model: new.model,
            version: new.version,
            from: None,
            text: cut(&new.text),
            count: 1,
        });
        if self.events.len() > EVENTS_MAX {
            self.events.pop_front();
            self.dropped += 1;
        }
    }

    /// Gives the event `id` the highest number and moves it to the end.
    fn renew(&mut self, id: u64) {
        let Some(index) = self.events.iter().position(|event| event.id == id) else { return };
        if let Some(mut event) = self.events.remove(index) {
            self.last_id += 1;
            event.id = self.last_id;
            self.events.push_back(event);
        }
    }
}

/// Returns the text, cut at its maximum.
fn cut(text: &str) -> String {
    let end = text.floor_char_boundary(TEXT_BYTES_MAX);
    if end == text.len() { text.to_owned() } else { format!("{}…", &text[..end]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(kind: &'static str, version: u64, text: &str) -> NewEvent {
        NewEvent {
            kind,
            level: EventLevel::Info,
            model: Some("m".into()),
            version: Some(version),
            text: text.to_owned(),
        }
    }

    fn all(journal: &EventJournal) -> Vec<ServerEvent> {
        journal.read(&EventFilter::default()).events
    }

    #[test]
    fn events_are_bounded_in_number_and_size() {
        let journal = EventJournal::default();
        journal.add(event("loaded", 0, &"ä".repeat(TEXT_BYTES_MAX)));
        assert!(all(&journal)[0].text.len() <= TEXT_BYTES_MAX + '…'.len_utf8());
        for version in 1..=EVENTS_MAX as u64 {
            journal.add(event("loaded", version, "ready"));
        }
        let page = journal.read(&EventFilter::default());
        assert_eq!((page.events.len(), page.dropped), (EVENTS_MAX, 1));
        assert_eq!((page.events[0].version, page.events[0].id), (Some(1), 2));
    }

    #[test]
    fn a_repeated_event_is_counted() {
        let journal = EventJournal::default();
        for _ in 0..3 {
            journal.add_or_count(event("failed", 1, "no such file"), 1);
        }
        journal.add_or_count(event("failed", 1, "no memory"), 1);
        journal.add_or_count(event("refused", 1, "queue full"), 40);
        let seen: Vec<(String, u64)> =
            all(&journal).into_iter().map(|event| (event.text, event.count)).collect();
        let wanted = [("no such file", 3), ("no memory", 1), ("queue full", 40)];
        assert_eq!(seen, wanted.map(|(text, count)| (text.to_owned(), count)));
    }

    #[test]
    fn a_swap_is_one_event() {
        let journal = EventJournal::default();
        journal.add(event("loaded", 1, "ready"));
        journal.add(event("loaded", 2, "ready"));
        journal.add(event("released", 1, "released"));
        let before = journal.read(&EventFilter::default()).events.last().map_or(0, |last| last.id);
        journal.replaced(&"m".into(), 1, 2);
        journal.replaced(&"other".into(), 1, 2);
        let seen: Vec<_> =
            all(&journal).iter().map(|event| (event.kind, event.version, event.from)).collect();
        assert_eq!(seen, [("loaded", Some(1), None), ("loaded", Some(2), Some(1))]);
        let after = EventFilter { after: before, ..EventFilter::default() };
        assert_eq!(journal.read(&after).events.len(), 1, "a reader gets the change");
    }

    #[test]
    fn filters_choose() {
        let journal = EventJournal::default();
        for version in 1..=5 {
            journal.add(event("loaded", version, "ready"));
        }
        journal.add(NewEvent { model: None, ..event("started", 0, "started") });
        let versions = |filter: EventFilter| -> Vec<Option<u64>> {
            journal.read(&filter).events.iter().map(|event| event.version).collect()
        };
        let of_model =
            EventFilter { model: Some("m".into()), limit: Some(2), ..EventFilter::default() };
        assert_eq!(versions(of_model), [Some(4), Some(5)]);
        assert_eq!(versions(EventFilter { after: 5, ..EventFilter::default() }), [Some(0)]);
    }
}
