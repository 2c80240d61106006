//! The two scorers of records: the matcher, and work of a fixed cost.

use base::{Error, Result};
use matching::{MatchOptions, Probe, Scratch};
use rustix::time::{ClockId, clock_gettime};
use search::Scorer;

/// Rounds of work of a calibration.
const CALIBRATION_ROUNDS: u64 = 2_000_000;
/// Number of calibrations. The quickest counts, since disturbances only slow it down.
const CALIBRATIONS: usize = 9;

/// Scores by matching keypoint graphs.
pub(super) struct GraphScorer {
    probe: Probe,
}

impl GraphScorer {
    pub(super) fn new(graph: &matching::Graph) -> GraphScorer {
        GraphScorer { probe: Probe::new(graph, MatchOptions::default()) }
    }
}

impl Scorer for GraphScorer {
    type Scratch = Scratch;

    fn scratch(&self) -> Scratch {
        Scratch::new()
    }

    fn score(&self, record: &[u8], scratch: &mut Scratch) -> Result<f32> {
        matching::score(&self.probe, record, scratch)
    }
}

/// Scorer that reads every byte and then works for a set number of rounds. The work is the same on
/// every medium.
pub(super) struct Spinner {
    /// Seed that distinguishes queries.
    pub(super) seed: u64,
    pub(super) rounds: u64,
}

impl Scorer for Spinner {
    type Scratch = ();

    fn scratch(&self) {}

    fn score(&self, record: &[u8], _scratch: &mut ()) -> Result<f32> {
        if record.is_empty() {
            return Err(Error::data_loss("an empty record"));
        }
        let words = record.as_chunks::<8>().0.iter();
        let sum =
            words.fold(self.seed, |sum, word| (sum ^ u64::from_le_bytes(*word)).rotate_left(9));
        // The score depends on the bytes alone, so that it can be compared between arms. The result
        // of the work is unused.
        std::hint::black_box(spin(sum, self.rounds));
        Ok((sum >> 40) as f32)
    }
}

/// Runs rounds of xorshift. Each depends on the previous one.
fn spin(mut state: u64, rounds: u64) -> u64 {
    state |= 1;
    for _ in 0..rounds {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
    }
    state
}

/// Returns the time of a clock in nanoseconds.
pub(super) fn clock_ns(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    (time.tv_sec as u64) * 1_000_000_000 + time.tv_nsec as u64
}

/// Returns the rounds of work that take one microsecond of this thread's processor time.
pub(super) fn rounds_per_us() -> f64 {
    let measure = |_| {
        let start = clock_ns(ClockId::ThreadCPUTime);
        std::hint::black_box(spin(std::hint::black_box(3), CALIBRATION_ROUNDS));
        clock_ns(ClockId::ThreadCPUTime) - start
    };
    let quickest = (0..CALIBRATIONS).map(measure).min().unwrap_or(1).max(1);
    CALIBRATION_ROUNDS as f64 * 1e3 / quickest as f64
}
