//! History of each model: a point a second, a mark for each new version, and the scheduler's
//! counters of the last seconds. The page's task adds to it once a second; requests do not.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use base::VersionId;
use lifecycle::SwapReport;
use metrics::{Percentiles, SlidingHistogram};
use schedule::{BATCH_SIZE_BOUNDS, ModelSnapshot};
use serde::Serialize;

/// Seconds of the history.
pub(crate) const HISTORY_SECONDS_MAX: usize = 120;
/// Most models on the page, the first by name.
pub(crate) const MODELS_SHOWN_MAX: usize = 64;
/// Most marks of a model.
const MARKS_MAX: usize = 32;
/// Seconds over which batch sizes, padding and refusals are summed.
pub(crate) const WINDOW_SECONDS: usize = 10;

/// One second of one model. Times are in microseconds; `at` is in seconds since the server started
/// and names the end of the second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(into = "[u64; 9]")]
pub(crate) struct Point {
    pub(crate) at: u64,
    pub(crate) count: u64,
    pub(crate) p50: u64,
    pub(crate) p80: u64,
    pub(crate) p90: u64,
    pub(crate) p99: u64,
    pub(crate) p999: u64,
    pub(crate) max: u64,
    /// Requests waiting when the second was read.
    pub(crate) queued: u64,
}

impl From<Point> for [u64; 9] {
    fn from(p: Point) -> Self {
        [p.at, p.count, p.p50, p.p80, p.p90, p.p99, p.p999, p.max, p.queued]
    }
}

impl Point {
    fn new(at: u64, seen: &Percentiles, queued: usize) -> Point {
        let us = |time: Duration| time.as_micros() as u64;
        Point {
            at,
            count: seen.count,
            p50: us(seen.p50),
            p80: us(seen.p80),
            p90: us(seen.p90),
            p99: us(seen.p99),
            p999: us(seen.p999),
            max: us(seen.max),
            queued: queued as u64,
        }
    }
}

/// A mark for a new version.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Mark {
    /// Seconds since the server started.
    pub(crate) at: f64,
    pub(crate) version: u64,
    /// The version that it replaced, once that is released; equal to `version` after a reload.
    pub(crate) from: Option<u64>,
}

/// Counters of the scheduler over the last [`WINDOW_SECONDS`].
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Window {
    pub(crate) seconds: usize,
    pub(crate) requests: u64,
    pub(crate) batches: u64,
    pub(crate) items: u64,
    /// Runs by batch size, in the buckets of [`BATCH_SIZE_BOUNDS`].
    pub(crate) batch_sizes: Vec<u64>,
    pub(crate) real_elements: u64,
    pub(crate) padding_elements: u64,
    pub(crate) refused: u64,
    pub(crate) expired: u64,
    pub(crate) cancelled: u64,
    pub(crate) reruns: u64,
}

impl Window {
    /// Returns the differences from `before` to `after`. A counter that decreased (a model that was
    /// removed and added again) gives 0.
    fn between(before: &ModelSnapshot, after: &ModelSnapshot, seconds: usize) -> Window {
        let sizes = after.batch_sizes.iter().zip(&before.batch_sizes);
        Window {
            seconds,
            requests: after.requests.saturating_sub(before.requests),
            batches: after.batches.saturating_sub(before.batches),
            items: after.items.saturating_sub(before.items),
            batch_sizes: sizes.map(|(after, before)| after.saturating_sub(*before)).collect(),
            real_elements: after.real_elements.saturating_sub(before.real_elements),
            padding_elements: after.padding_elements.saturating_sub(before.padding_elements),
            refused: after.refused.saturating_sub(before.refused),
            expired: after.expired.saturating_sub(before.expired),
            cancelled: after.cancelled.saturating_sub(before.cancelled),
            reruns: after.reruns.saturating_sub(before.reruns),
        }
    }
}

#[derive(Default)]
pub(crate) struct Track {
    points: VecDeque<Point>,
    marks: VecDeque<Mark>,
    /// The scheduler's counters, one a second, newest last.
    totals: VecDeque<ModelSnapshot>,
    /// The first second of the sliding histogram that was not read yet.
    next_second: u64,
}

impl Track {
    /// Returns the newest `max` points, oldest first.
    pub(crate) fn points(&self, max: usize) -> Vec<Point> {
        self.points.range(self.points.len().saturating_sub(max)..).copied().collect()
    }

    pub(crate) fn marks(&self) -> &VecDeque<Mark> {
        &self.marks
    }

    /// Returns the scheduler's counters over the window, and its current counters; `None` before
    /// the model's first request.
    pub(crate) fn window(&self) -> Option<(Window, &ModelSnapshot)> {
        let (first, last) = (self.totals.front()?, self.totals.back()?);
        let seconds = self.totals.len() - 1;
        Some((Window::between(first, last, seconds), last))
    }

    /// Adds the seconds that have ended since the last scan. `start` is second 0 of the history.
    fn read(&mut self, start: Instant, now: Instant, window: &SlidingHistogram, queued: usize) {
        // The histogram's seconds are offset from the history's by the same part of a second.
        let offset = window.start().saturating_duration_since(start).as_secs();
        for (second, seen) in window.finished(self.next_second, now) {
            self.next_second = second + 1;
            self.points.push_back(Point::new(offset + second + 1, &seen, queued));
        }
        self.forget(now.saturating_duration_since(start).as_secs_f64());
    }

    /// Drops points and marks that are older than the history.
    fn forget(&mut self, now: f64) {
        let oldest = now - HISTORY_SECONDS_MAX as f64;
        while self.points.front().is_some_and(|point| (point.at as f64) < oldest) {
            self.points.pop_front();
        }
        while self.marks.len() > MARKS_MAX
            || self.marks.front().is_some_and(|mark| mark.at < oldest)
        {
            self.marks.pop_front();
        }
    }

    /// Keeps the counters of the last seconds. A model that the scheduler has forgotten starts at
    /// 0.
    fn count(&mut self, counters: Option<&ModelSnapshot>) {
        let Some(counters) = counters else { return self.totals.clear() };
        if self.totals.is_empty() {
            // Counts from before the first scan belong to the second that ends now.
            self.totals.push_back(ModelSnapshot {
                model: counters.model.clone(),
                ..ModelSnapshot::default()
            });
        }
        if let Some(last) = self.totals.back_mut() {
            last.classes = Vec::new();
        }
        self.totals.push_back(counters.clone());
        while self.totals.len() > WINDOW_SECONDS + 1 {
            self.totals.pop_front();
        }
    }
}

/// State of one model at a scan.
pub(crate) struct ModelScan<'a> {
    pub(crate) model: &'a Arc<str>,
    /// Its latencies, if it has had a result.
    pub(crate) latencies: Option<Arc<SlidingHistogram>>,
    /// The scheduler's counters, if the model has had a request.
    pub(crate) counters: Option<&'a ModelSnapshot>,
}

/// History of all models: at most [`MODELS_SHOWN_MAX`], and models with marks since the last scan.
#[derive(Default)]
pub(super) struct History {
    tracks: BTreeMap<Arc<str>, Track>,
}

impl History {
    /// Adds the seconds that have ended since the last scan. Drops models that are not in `scans`.
    pub(crate) fn scan(&mut self, start: Instant, now: Instant, scans: &[ModelScan<'_>]) {
        self.tracks.retain(|name, _| scans.iter().any(|scan| scan.model == name));
        for scan in scans {
            let track = self.tracks.entry(scan.model.clone()).or_default();
            track.count(scan.counters);
            match &scan.latencies {
                Some(window) => {
                    track.read(
                        start,
                        now,
                        window,
                        scan.counters.map_or(0, |counters| counters.queued),
                    );
                }
                None => track.forget(now.saturating_duration_since(start).as_secs_f64()),
            }
        }
    }

    pub(crate) fn track(&self, model: &str) -> Option<&Track> {
        self.tracks.get(model)
    }

    /// Marks a version that became ready `at` seconds after the start.
    pub(crate) fn loaded(&mut self, model: &Arc<str>, version: u64, at: f64) {
        if self.tracks.len() >= 2 * MODELS_SHOWN_MAX && !self.tracks.contains_key(model) {
            return;
        }
        let track = self.tracks.entry(model.clone()).or_default();
        track.marks.push_back(Mark { at, version, from: None });
        if track.marks.len() > MARKS_MAX {
            track.marks.pop_front();
        }
    }

    /// Adds to the mark of `version` the version that it replaced.
    pub(crate) fn swapped(&mut self, model: &str, from: u64, version: u64) {
        let Some(track) = self.tracks.get_mut(model) else { return };
        if let Some(mark) = track.marks.iter_mut().rev().find(|mark| mark.version == version) {
            mark.from = Some(from);
        }
    }
}

/// The history of all models since the server started, which the observer of versions fills too.
pub(crate) struct PageHistory {
    start: Instant,
    history: Mutex<History>,
}

impl Default for PageHistory {
    fn default() -> PageHistory {
        PageHistory { start: Instant::now(), history: Mutex::default() }
    }
}

impl PageHistory {
    /// Marks that a version was loaded and takes requests.
    pub(crate) fn loaded(&self, id: &VersionId) {
        let at = self.seconds(Instant::now());
        self.lock().loaded(&id.model, id.version, at);
    }

    /// Adds to the mark of a version the version that it has replaced.
    pub(crate) fn swapped(&self, report: &SwapReport) {
        self.lock().swapped(&report.model, report.from, report.to);
    }

    /// Reads the seconds that have ended since the last scan.
    pub(super) fn scan(&self, scans: &[ModelScan<'_>]) {
        self.lock().scan(self.start, Instant::now(), scans);
    }

    /// Returns the seconds since the server started, in milliseconds precision.
    pub(super) fn seconds(&self, now: Instant) -> f64 {
        let seconds = now.saturating_duration_since(self.start).as_secs_f64();
        (seconds * 1e3).round() / 1e3
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the labels of the buckets of [`Window::batch_sizes`].
pub(crate) fn batch_size_names() -> Vec<String> {
    let mut below = 0;
    let mut names: Vec<String> = Vec::with_capacity(BATCH_SIZE_BOUNDS.len() + 1);
    for bound in BATCH_SIZE_BOUNDS {
        let only = below + 1 == bound;
        names.push(if only { bound.to_string() } else { format!("{}\u{2013}{bound}", below + 1) });
        below = bound;
    }
    names.push(format!("> {below}"));
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters(requests: u64, padding: u64) -> ModelSnapshot {
        let mut found = ModelSnapshot { model: "m".into(), ..ModelSnapshot::default() };
        (found.requests, found.padding_elements, found.queued) = (requests, padding, 3);
        found.batch_sizes[2] = requests;
        found
    }

    fn scan(
        history: &mut History,
        start: Instant,
        now: Instant,
        window: &Arc<SlidingHistogram>,
        requests: u64,
    ) {
        let (model, counters) = ("m".into(), counters(requests, requests));
        let scan =
            ModelScan { model: &model, latencies: Some(window.clone()), counters: Some(&counters) };
        history.scan(start, now, &[scan]);
    }

    #[test]
    fn seconds_become_points_and_leave_after_two_minutes() {
        let start = Instant::now();
        let at = |s: f64| start + Duration::from_secs_f64(s);
        // Begun in the middle of a second of the page.
        let window = Arc::new(SlidingHistogram::new(10, at(2.5)));
        let mut history = History::default();
        window.record(Duration::from_millis(4), at(2.6));
        for second in 3..10 {
            scan(&mut history, start, at(f64::from(second) + 0.9), &window, 1);
        }
        let points = history.track("m").map(|track| track.points(100)).unwrap_or_default();
        let seen: Vec<(u64, u64)> = points.iter().map(|point| (point.at, point.count)).collect();
        assert_eq!(seen, [(3, 1), (4, 0), (5, 0), (6, 0), (7, 0), (8, 0), (9, 0)]);
        assert!(points[0].p50 >= 3900 && points[0].queued == 3);
        assert_eq!(history.track("m").map(|track| track.points(2).len()), Some(2));
        for second in 10..400 {
            scan(&mut history, start, at(f64::from(second) + 0.9), &window, 1);
        }
        let kept = history.track("m").map_or(0, |track| track.points(1000).len());
        assert_eq!(kept, HISTORY_SECONDS_MAX);
    }

    #[test]
    fn counters_are_of_the_last_seconds() {
        let start = Instant::now();
        let window = Arc::new(SlidingHistogram::new(10, start));
        let mut history = History::default();
        scan(&mut history, start, start, &window, 5);
        let first = history.track("m").and_then(Track::window).map(|(window, _)| window.requests);
        assert_eq!(first, Some(5), "the first scan counts the requests before it");
        for step in 1..=30 {
            scan(&mut history, start, start + Duration::from_secs(step), &window, 5 + 2 * step);
        }
        let (seen, now) = history.track("m").and_then(Track::window).unwrap();
        assert_eq!((seen.seconds, seen.requests, seen.padding_elements), (10, 20, 20));
        assert_eq!((seen.batch_sizes[2], now.requests), (20, 65));
        scan(&mut history, start, start + Duration::from_secs(31), &window, 1);
        assert_eq!(
            history.track("m").and_then(Track::window).map(|(seen, _)| seen.requests),
            Some(0)
        );
    }

    #[test]
    fn a_swap_is_marked_where_the_version_came() {
        let start = Instant::now();
        let (mut history, model) = (History::default(), "m".into());
        history.loaded(&model, 1, 1.0);
        history.loaded(&model, 2, 30.0);
        history.swapped("m", 1, 2);
        history.swapped("other", 1, 2);
        let marks = |history: &History| {
            history.track("m").map(|track| track.marks().clone()).unwrap_or_default()
        };
        let came = |at, version, from| Mark { at, version, from };
        assert_eq!(marks(&history), [came(1.0, 1, None), came(30.0, 2, Some(1))]);
        history.scan(
            start,
            start + Duration::from_secs(125),
            &[ModelScan { model: &model, latencies: None, counters: None }],
        );
        assert_eq!(marks(&history), [came(30.0, 2, Some(1))]);
        for version in 0..100 {
            history.loaded(&model, version, 130.0);
        }
        assert_eq!(marks(&history).len(), MARKS_MAX);
        history.scan(start, start, &[]);
        assert!(history.track("m").is_none());
    }

    #[test]
    fn buckets_have_names() {
        let names = batch_size_names();
        assert_eq!(&names[..4], ["1", "2", "3\u{2013}4", "5\u{2013}8"]);
        assert_eq!(names.len(), BATCH_SIZE_BOUNDS.len() + 1);
        assert_eq!(names.last().map(String::as_str), Some("> 2048"));
    }
}
