//! A stretch of a recording whose windows run one after the other.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use base::Result;

use super::batch::RunScores;
use super::source::WindowInfo;
use super::values::WindowValues;
use crate::segment::FeatureWindow;

/// How long a window waits for others to fill its run with, where they may come late.
const COMPANY_WAIT_MAX: Duration = Duration::from_secs(1);

/// What became of one run: the windows that count of it.
pub(super) struct RunOutcome {
    /// The first of them.
    pub(super) first: u64,
    pub(super) facts: Vec<WindowInfo>,
    pub(super) answer: Result<RunScores>,
}

/// Windows that run one after the other.
pub(super) struct AudioPiece {
    pub(super) number: u64,
    /// Its first window, the first that counts, and the one after its last.
    pub(super) first: u64,
    pub(super) keep: u64,
    pub(super) end: u64,
    /// The next that it waits for.
    pub(super) next: u64,
    pub(super) chunks: VecDeque<RunChunk>,
    /// Windows of `chunks`.
    pub(super) waiting: u64,
    pub(super) running: bool,
    pub(super) done: VecDeque<RunOutcome>,
}

/// The windows of one run.
pub(super) struct RunChunk {
    /// When the first of them came.
    pub(super) since: Instant,
    pub(super) first: u64,
    pub(super) facts: Vec<WindowInfo>,
    pub(super) values: WindowValues,
}

impl AudioPiece {
    pub(super) fn new(number: u64, first: u64, keep: u64, end: u64) -> AudioPiece {
        let (chunks, done) = (VecDeque::new(), VecDeque::new());
        AudioPiece { number, first, keep, end, next: first, chunks, waiting: 0, running: false, done }
    }

    /// Takes its next window. `long` where its runs may have to wait for minutes of the recording.
    pub(super) fn add(&mut self, window: &FeatureWindow<'_>, facts: WindowInfo, run: usize, long: bool) {
        if self.chunks.back().is_none_or(|chunk| chunk.facts.len() == run) {
            let left = run.min((self.end - window.index) as usize);
            let steps = long && self.chunks.back().is_none_or(|chunk| chunk.values.are_steps());
            let (facts, values) =
                (Vec::with_capacity(left), WindowValues::with_room(left * window.rows.len(), steps));
            self.chunks.push_back(RunChunk { since: Instant::now(), first: window.index, facts, values });
        }
        self.next = window.index + 1;
        if let Some(chunk) = self.chunks.back_mut() {
            self.waiting += 1;
            chunk.facts.push(facts);
            chunk.values.extend(window.rows);
        }
    }

    /// Hands over the windows of its next run.
    pub(super) fn take(&mut self) -> Option<RunChunk> {
        let chunk = self.chunks.pop_front()?;
        self.waiting -= chunk.facts.len() as u64;
        self.running = true;
        Some(chunk)
    }

    /// Whether the next run's windows are all there or, for one that may be `short`, have waited for long enough.
    pub(super) fn ready(&self, run: usize, short: bool) -> bool {
        let whole =
            |chunk: &RunChunk| chunk.facts.len() == run || chunk.first + chunk.facts.len() as u64 >= self.end;
        let late = |chunk: &RunChunk| short && chunk.since.elapsed() >= COMPANY_WAIT_MAX;
        self.chunks.front().is_some_and(|chunk| whole(chunk) || late(chunk))
    }

    /// Whether none of its windows waits or is still to come.
    pub(super) fn exhausted(&self) -> bool {
        self.next >= self.end && self.chunks.is_empty()
    }

    /// Whether all of its windows have come and gone.
    pub(super) fn is_done(&self) -> bool {
        self.exhausted() && !self.running && self.done.is_empty()
    }
}
