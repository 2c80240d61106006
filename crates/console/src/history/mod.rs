//! Traffic of each version since the server started, at most the last day: seconds for two minutes,
//! and intervals of [`STEP_SECONDS`] for [`SPAN_SECONDS_MAX`]. The page's task adds to it once a
//! second; requests do not. It is kept in memory only, within [`HISTORY_BYTES_MAX`].

mod range;
mod record;
mod series;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use base::VersionId;
use inference::TrafficReading;
use parking_lot::{Mutex, MutexGuard};
use schedule::ModelSnapshot;

pub(crate) use range::{HistoryPoint, HistoryRange, ModelHistory};
pub(crate) use record::{TAIL_REQUESTS_MIN, TrafficRecord};
use series::RecordSeries;

use crate::window::SchedulerWindow;

/// Seconds of the finest resolution.
pub(crate) const SECONDS_MAX: u64 = 120;
/// Seconds of an interval of the long history.
pub(crate) const STEP_SECONDS: u64 = 10;
/// Seconds of the long history.
pub(crate) const SPAN_SECONDS_MAX: u64 = 86_400;
/// Maximum bytes of the records of all versions. A version that is always busy takes about 0.5 MB a
/// day. If more is needed, the oldest intervals of all versions are dropped.
pub(crate) const HISTORY_BYTES_MAX: usize = 64 << 20;
/// Maximum versions with a history. A further one has none until another is forgotten.
const VERSIONS_MAX: usize = 4096;
/// Seconds by which the history is shortened at once if its bytes reach their limit.
const SHORTEN_SECONDS: u64 = 600;

/// Traffic of one version.
struct VersionTrack {
    last: TrafficReading,
    seconds: RecordSeries,
    steps: RecordSeries,
    /// End of the last second with traffic.
    active: u64,
    /// End of the last second in which the version had counts.
    seen: u64,
}

impl VersionTrack {
    fn new(last: TrafficReading) -> VersionTrack {
        VersionTrack {
            last,
            seconds: RecordSeries::new(1),
            steps: RecordSeries::new(STEP_SECONDS),
            active: 0,
            seen: 0,
        }
    }

    /// Adds the record between the last reading and `reading`. `end` is its time in seconds since
    /// the server started.
    fn add(&mut self, end: u64, reading: TrafficReading, queued: u32) {
        // Counts with another identity began at 0.
        let fresh = TrafficReading::default();
        let before = if self.last.id == reading.id { &self.last } else { &fresh };
        let mut record = TrafficRecord::between(before, &reading);
        record.queued = queued;
        self.last = reading;
        self.seen = end;
        if !record.is_idle() {
            self.active = end;
        }
        self.seconds.add(end, &record);
        self.steps.add(end, &record);
    }

    fn forget(&mut self, end: u64) {
        self.steps.advance(end);
        self.seconds.forget(end.saturating_sub(SECONDS_MAX));
        self.steps.forget(end.saturating_sub(SPAN_SECONDS_MAX));
    }

    fn memory(&self) -> usize {
        self.seconds.memory() + self.steps.memory() + size_of::<VersionTrack>()
    }
}

/// Traffic of one model.
#[derive(Default)]
struct ModelTrack {
    versions: BTreeMap<u64, VersionTrack>,
    /// The scheduler's counters, one a second, newest last.
    totals: VecDeque<ModelSnapshot>,
}

/// Histories of all models.
#[derive(Default)]
pub(crate) struct Histories {
    models: BTreeMap<Arc<str>, ModelTrack>,
    /// Nothing older than this second is kept, because of [`HISTORY_BYTES_MAX`].
    complete_from: u64,
    /// True once there were more than [`VERSIONS_MAX`] versions.
    overflowed: bool,
}

impl Histories {
    /// Adds the traffic of the second that ended at `end`.
    pub(crate) fn scan(
        &mut self,
        end: u64,
        readings: Vec<(VersionId, TrafficReading)>,
        snapshots: &[ModelSnapshot],
    ) {
        let queued: BTreeMap<&str, u32> = snapshots
            .iter()
            .map(|model| (&*model.model, u32::try_from(model.queued).unwrap_or(u32::MAX)))
            .collect();
        self.count(snapshots);
        let mut versions: usize = self.models.values().map(|model| model.versions.len()).sum();
        for (id, reading) in readings {
            let model = self.models.entry(id.model.clone()).or_default();
            // Requests wait for a model, so the queue is shown with its newest version.
            let newest =
                model.versions.last_key_value().is_none_or(|(last, _)| *last <= id.version);
            let waiting = queued.get(&*id.model).copied().filter(|_| newest).unwrap_or(0);
            let track = match model.versions.entry(id.version) {
                Entry::Occupied(track) => track.into_mut(),
                Entry::Vacant(_) if versions >= VERSIONS_MAX => {
                    self.overflowed = true;
                    continue;
                }
                Entry::Vacant(place) => {
                    versions += 1;
                    // After an overflow, counts of a version that is new here can be old.
                    let before =
                        if self.overflowed { reading.clone() } else { TrafficReading::default() };
                    place.insert(VersionTrack::new(before))
                }
            };
            track.add(end, reading, waiting);
        }
        self.expire(end);
        if end.is_multiple_of(STEP_SECONDS) {
            self.limit_bytes(HISTORY_BYTES_MAX);
        }
    }

    /// Keeps the scheduler's counters of the last seconds.
    fn count(&mut self, snapshots: &[ModelSnapshot]) {
        let known: HashSet<&str> = snapshots.iter().map(|model| &*model.model).collect();
        for (name, model) in &mut self.models {
            if !known.contains(&**name) {
                model.totals.clear();
            }
        }
        for snapshot in snapshots {
            let model = self.models.entry(snapshot.model.clone()).or_default();
            crate::window::push(&mut model.totals, snapshot);
        }
    }

    /// Drops everything older than the history, and versions and models of which nothing is left.
    fn expire(&mut self, end: u64) {
        for model in self.models.values_mut() {
            model.versions.retain(|_, track| {
                track.forget(end);
                // A version with counts stays, so that its counts do not count as new ones later.
                track.seen == end || !track.steps.is_empty()
            });
        }
        self.models.retain(|_, model| !model.versions.is_empty() || !model.totals.is_empty());
    }

    /// Drops the oldest intervals of all versions until their bytes are at most `bytes_max`.
    fn limit_bytes(&mut self, bytes_max: usize) {
        while self.memory() > bytes_max {
            let Some(first) = self.series().filter_map(|steps| steps.first()).min() else { return };
            let oldest = first + SHORTEN_SECONDS;
            self.series().for_each(|steps| steps.forget(oldest));
            self.complete_from = self.complete_from.max(oldest);
        }
    }

    fn series(&mut self) -> impl Iterator<Item = &mut RecordSeries> {
        let tracks = self.models.values_mut().flat_map(|model| model.versions.values_mut());
        tracks.map(|track| &mut track.steps)
    }

    fn memory(&self) -> usize {
        let tracks = self.models.values().flat_map(|model| model.versions.values());
        tracks.map(VersionTrack::memory).sum()
    }

    /// Returns the scheduler's counters of the last seconds and its current ones; `None` before the
    /// model's first request.
    pub(crate) fn window(&self, model: &str) -> Option<(SchedulerWindow, &ModelSnapshot)> {
        crate::window::of(&self.models.get(model)?.totals)
    }

    /// Returns the traffic of a model, all versions together, in the seconds after `after`. At most
    /// [`SECONDS_MAX`] seconds are known.
    pub(crate) fn recent(&self, model: &str, after: u64) -> TrafficRecord {
        let mut sum = TrafficRecord::default();
        let versions = self.models.get(model).into_iter().flat_map(|model| model.versions.values());
        for second in versions.flat_map(|track| track.seconds.since(after)) {
            sum.add(&second.record);
        }
        sum
    }
}

/// The history since the server started.
pub(crate) struct TrafficHistory {
    start: Instant,
    histories: Mutex<Histories>,
}

impl TrafficHistory {
    /// Creates an empty history. `start` is second 0.
    pub(crate) fn new(start: Instant) -> TrafficHistory {
        TrafficHistory { start, histories: Mutex::default() }
    }

    /// Adds the traffic up to `now`.
    pub(crate) fn scan(
        &self,
        now: Instant,
        readings: Vec<(VersionId, TrafficReading)>,
        snapshots: &[ModelSnapshot],
    ) {
        // The task runs once a second; a scan that is a little early belongs to the same second.
        let end = self.seconds(now).round() as u64;
        self.lock().scan(end, readings, snapshots);
    }

    /// Returns the seconds since the server started, in milliseconds precision.
    pub(crate) fn seconds(&self, now: Instant) -> f64 {
        let seconds = now.saturating_duration_since(self.start).as_secs_f64();
        (seconds * 1e3).round() / 1e3
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Histories> {
        self.histories.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(id: u64, ok: u32, failed: u32) -> TrafficReading {
        let mut reading = TrafficReading { id, max_us: 1500, ..TrafficReading::default() };
        (reading.statuses[0], reading.statuses[1], reading.latencies[80]) = (ok, failed, ok);
        reading
    }

    fn scan(histories: &mut Histories, end: u64, version: u64, reading: TrafficReading) {
        let id = VersionId { model: "m".into(), version };
        let waiting = ModelSnapshot { model: "m".into(), queued: 7, ..ModelSnapshot::default() };
        histories.scan(end, vec![(id, reading)], &[waiting]);
    }

    #[test]
    fn a_scan_adds_the_difference() {
        let mut histories = Histories::default();
        scan(&mut histories, 5, 1, reading(1, 10, 0));
        scan(&mut histories, 6, 1, reading(1, 14, 3));
        let seen = histories.recent("m", 5);
        assert_eq!((seen.requests(), seen.errors(), seen.queued), (7, 3, 7));
        assert_eq!(histories.recent("m", 0).requests(), 17);
        assert_eq!(histories.recent("other", 0), TrafficRecord::default());
    }

    #[test]
    fn counts_of_a_version_that_returned_begin_again() {
        let mut histories = Histories::default();
        scan(&mut histories, 1, 1, reading(1, 100, 0));
        scan(&mut histories, 2, 1, reading(2, 5, 0));
        assert_eq!(histories.recent("m", 1).requests(), 5);
    }

    #[test]
    fn an_idle_version_is_not_counted_again() {
        let mut histories = Histories::default();
        for end in 1..2 * SPAN_SECONDS_MAX {
            let waiting = ModelSnapshot { model: "m".into(), ..ModelSnapshot::default() };
            let id = VersionId { model: "m".into(), version: 1 };
            histories.scan(end, vec![(id, reading(1, 100, 0))], &[waiting]);
        }
        assert_eq!(histories.recent("m", 0).requests(), 0);
        histories.scan(2 * SPAN_SECONDS_MAX, Vec::new(), &[]);
        assert!(histories.models.is_empty(), "a version without counts and records is forgotten");
    }

    #[test]
    fn a_version_unloaded_within_an_interval_is_forgotten() {
        let mut histories = Histories::default();
        scan(&mut histories, 3, 1, reading(1, 8, 0));
        let next = STEP_SECONDS;
        histories.scan(next, Vec::new(), &[]);
        let range = HistoryRange { now: next, span: SECONDS_MAX + 1 };
        let requests: u64 =
            histories.records("m", range).points().iter().map(|it| it.requests).sum();
        assert_eq!(requests, 8, "the interval in which it was unloaded is kept");
        histories.scan(next + SPAN_SECONDS_MAX, Vec::new(), &[]);
        assert!(histories.models.is_empty());
    }

    #[test]
    fn memory_is_bounded_and_all_versions_lose_the_same_time() {
        let mut histories = Histories::default();
        let bytes_max = 40_000;
        for end in 1..=20_000_u32 {
            for version in 1..=2 {
                scan(&mut histories, end.into(), version, reading(version, end, 0));
            }
            if end % 10 == 0 {
                histories.limit_bytes(bytes_max);
                assert!(histories.memory() <= bytes_max);
            }
        }
        assert!(histories.complete_from > 0);
        let firsts: Vec<Option<u64>> = histories.series().map(|steps| steps.first()).collect();
        assert!(firsts[0] == firsts[1] && firsts[0] > Some(histories.complete_from), "{firsts:?}");
    }
}
