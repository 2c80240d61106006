//! The phases of a request.

use std::time::{Duration, Instant};

use base::{Moment, RequestTimeline};

/// A phase of a request. The phases add up to its whole time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The body arrives.
    Receive,
    /// The inputs are decoded and checked.
    Decode,
    /// The request waits for a worker.
    Queue,
    /// The run is on a core; the whole run if its processor time is unknown.
    Compute,
    /// The run's thread is not on a core.
    OffCore,
    /// The endpoint's task waits to continue.
    Resume,
    /// The response is encoded.
    Encode,
    /// The connection takes the response.
    Send,
}

/// Number of phases.
pub(crate) const PHASES: usize = 8;

/// Times of the phases in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct PhaseTimes(pub(crate) [f64; PHASES]);

impl PhaseTimes {
    /// Returns the phases of a request. A moment that it did not reach ends with the next one.
    pub(crate) fn of(timeline: &RequestTimeline) -> PhaseTimes {
        let mut times = PhaseTimes::default();
        let mut last = timeline.first_byte;
        let mut pass = |phase: Phase, until: Option<Instant>| {
            let Some(until) = until else { return };
            times.0[phase as usize] += ms(until.saturating_duration_since(last));
            last = last.max(until);
        };
        pass(Phase::Receive, timeline.at(Moment::BodyComplete));
        pass(Phase::Decode, timeline.at(Moment::Decoded));
        pass(Phase::Decode, timeline.at(Moment::Queued));
        match &timeline.run {
            Some(run) => {
                pass(Phase::Queue, Some(run.started));
                pass(Phase::Compute, Some(run.ended));
                pass(Phase::Resume, timeline.at(Moment::Answered));
            }
            None => pass(Phase::Queue, timeline.at(Moment::Answered)),
        }
        pass(Phase::Encode, timeline.at(Moment::Encoded));
        pass(Phase::Send, timeline.at(Moment::Sent));
        if let Some(cpu) = timeline.run.as_ref().and_then(|run| run.cpu) {
            let wall = times.get(Phase::Compute);
            let on_core = ms(cpu).min(wall);
            times.0[Phase::Compute as usize] = on_core;
            times.0[Phase::OffCore as usize] = wall - on_core;
        }
        times
    }

    /// Returns the time of a phase.
    pub(crate) fn get(&self, phase: Phase) -> f64 {
        self.0[phase as usize]
    }

    /// Returns the time of a phase beyond that in `typical`.
    pub(crate) fn excess(&self, typical: &PhaseTimes, phase: Phase) -> f64 {
        (self.get(phase) - typical.get(phase)).max(0.0)
    }
}

/// Returns a time in milliseconds.
pub(crate) fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
