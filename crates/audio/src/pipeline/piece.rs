//! A stretch of a recording whose windows run one after the other.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use base::Result;

use super::batch::RunScores;
use super::source::WindowInfo;
use super::values::WindowValues;
use crate::segment::FeatureWindow;

/// Maximum time that a window waits until its run is full, if windows may arrive late.
const FULL_RUN_WAIT_MAX: Duration = Duration::from_secs(1);

/// Outcome of one run: its windows that count.
pub(super) struct RunOutcome {
    /// Number of the first window that counts.
    pub(super) first: u64,
    pub(super) facts: Vec<WindowInfo>,
    pub(super) answer: Result<RunScores>,
}

/// Windows that run one after the other.
pub(super) struct AudioPiece {
    pub(super) number: u64,
    /// First window.
    pub(super) first: u64,
    /// First window that counts.
    pub(super) keep: u64,
    /// Window after the last.
    pub(super) end: u64,
    /// Next expected window.
    pub(super) next: u64,
    pub(super) chunks: VecDeque<RunChunk>,
    /// Number of windows in `chunks`.
    pub(super) waiting: u64,
    pub(super) running: bool,
    pub(super) done: VecDeque<RunOutcome>,
}

/// The windows of one run.
pub(super) struct RunChunk {
    /// Arrival of the first window.
    pub(super) since: Instant,
    pub(super) first: u64,
    pub(super) facts: Vec<WindowInfo>,
    pub(super) values: WindowValues,
}

impl AudioPiece {
    pub(super) fn new(number: u64, first: u64, keep: u64, end: u64) -> AudioPiece {
        let chunks = VecDeque::new();
        let done = VecDeque::new();
        AudioPiece {
            number,
            first,
            keep,
            end,
            next: first,
            chunks,
            waiting: 0,
            running: false,
            done,
        }
    }

    /// Adds its next window. `long` is true if its runs may have to wait for minutes of the
    /// recording.
    pub(super) fn add(
        &mut self,
        window: &FeatureWindow<'_>,
        facts: WindowInfo,
        run: usize,
        long: bool,
    ) {
        if self.chunks.back().is_none_or(|chunk| chunk.facts.len() == run) {
            let left = run.min((self.end - window.index) as usize);
            let steps = long && self.chunks.back().is_none_or(|chunk| chunk.values.are_steps());
            let facts = Vec::with_capacity(left);
            let values = WindowValues::with_room(left * window.rows.len(), steps);
            self.chunks.push_back(RunChunk {
                since: Instant::now(),
                first: window.index,
                facts,
                values,
            });
        }
        self.next = window.index + 1;
        if let Some(chunk) = self.chunks.back_mut() {
            self.waiting += 1;
            chunk.facts.push(facts);
            chunk.values.extend(window.rows);
        }
    }

    /// Takes the windows of its next run.
    pub(super) fn take(&mut self) -> Option<RunChunk> {
        let chunk = self.chunks.pop_front()?;
        self.waiting -= chunk.facts.len() as u64;
        self.running = true;
        Some(chunk)
    }

    /// Returns true if the next run's windows are complete or, if a run may be `short`, have waited
    /// long enough.
    pub(super) fn ready(&self, run: usize, short: bool) -> bool {
        let whole = |chunk: &RunChunk| {
            chunk.facts.len() == run || chunk.first + chunk.facts.len() as u64 >= self.end
        };
        let late = |chunk: &RunChunk| short && chunk.since.elapsed() >= FULL_RUN_WAIT_MAX;
        self.chunks.front().is_some_and(|chunk| whole(chunk) || late(chunk))
    }

    /// Returns true if no window of the piece waits or can still arrive.
    pub(super) fn exhausted(&self) -> bool {
        self.next >= self.end && self.chunks.is_empty()
    }

    /// Returns true if all of its windows were run and delivered.
    pub(super) fn is_done(&self) -> bool {
        self.exhausted() && !self.running && self.done.is_empty()
    }
}
