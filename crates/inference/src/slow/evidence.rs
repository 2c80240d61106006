//! Samples of the machine in a ring, and their sums for the time of a request.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use base::VersionId;

use super::phases::ms;

/// Use in cores above which other processes, or loads, can slow requests down.
pub(crate) const CORES_MIN: f64 = 0.2;
/// Maximum samples that are kept: one minute.
const SAMPLES_MAX: usize = 600;

/// Use of the machine since the sample before.
#[derive(Clone, Debug)]
pub(crate) struct MachineSample {
    pub(crate) from: Instant,
    pub(crate) until: Instant,
    pub(crate) cores: usize,
    /// Processor time of other processes, summed over the cores.
    pub(crate) others: Duration,
    /// Processor time of the threads that load and unload.
    pub(crate) loads: Duration,
    /// Time that the hypervisor took from the cores.
    pub(crate) stolen: Duration,
    /// Time for which a CPU quota stopped threads.
    pub(crate) throttled: Duration,
    /// Time that the workers waited for a core.
    pub(crate) workers_waited: Duration,
    /// Time that connection threads and decoders waited for a core.
    pub(crate) connections_waited: Duration,
    /// Versions that were being loaded or unloaded at its end.
    pub(crate) loading: Vec<VersionId>,
}

/// Sums of the samples that touch a span of time, in milliseconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct SampleSums {
    /// Length of the samples, in milliseconds.
    pub(crate) length: f64,
    pub(crate) cores: usize,
    pub(crate) others: f64,
    /// Time that other processes use usually: the median of the kept samples.
    pub(crate) others_usual: f64,
    pub(crate) loads: f64,
    pub(crate) stolen: f64,
    pub(crate) throttled: f64,
    pub(crate) workers_waited: f64,
    pub(crate) connections_waited: f64,
    pub(crate) loading: Option<VersionId>,
    pub(crate) backlog: BacklogEvidence,
}

/// Delays of the workers in the busy period before a request, in milliseconds. Each lengthens the
/// wait of all later requests of the period.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct BacklogEvidence {
    pub(crate) throttled: f64,
    pub(crate) stolen: f64,
    /// Wait for a core while other processes used more than usual.
    pub(crate) contended: f64,
    /// Wait for a core while loads ran.
    pub(crate) loads: f64,
}

/// The last samples.
#[derive(Default)]
pub(crate) struct SampleRing(VecDeque<MachineSample>);

impl SampleRing {
    /// Adds a sample.
    pub(crate) fn push(&mut self, sample: MachineSample) {
        if self.0.len() >= SAMPLES_MAX {
            self.0.pop_front();
        }
        self.0.push_back(sample);
    }

    /// Returns the sums of the samples that touch the time from `from` to `until`.
    pub(crate) fn between(&self, from: Instant, until: Instant) -> SampleSums {
        let mut sums = SampleSums::default();
        let touching = self.0.iter().rev().take_while(|sample| sample.until >= from);
        for sample in touching.filter(|sample| sample.from <= until) {
            sums.length += ms(sample.until - sample.from);
            sums.cores = sample.cores;
            sums.others += ms(sample.others);
            sums.loads += ms(sample.loads);
            sums.stolen += ms(sample.stolen);
            sums.throttled += ms(sample.throttled);
            sums.workers_waited += ms(sample.workers_waited);
            sums.connections_waited += ms(sample.connections_waited);
            sums.loading = sums.loading.or_else(|| sample.loading.first().cloned());
        }
        sums.others_usual = sums.length * self.usual_others();
        sums
    }

    /// Returns the delays of the samples that touch the time from `since` and end before `until`.
    pub(crate) fn backlog(&self, since: Instant, until: Instant) -> BacklogEvidence {
        let mut sums = BacklogEvidence::default();
        let usual = self.usual_others();
        let touching = self.0.iter().rev().take_while(|sample| sample.until >= since);
        for sample in touching.filter(|sample| sample.until < until) {
            let length = ms(sample.until - sample.from);
            let waited = ms(sample.workers_waited);
            sums.throttled += ms(sample.throttled);
            sums.stolen += ms(sample.stolen);
            // The threads of this process make each other wait too, which is not a reason.
            let others = ms(sample.others) - usual * length;
            if ms(sample.loads) >= CORES_MIN * length {
                sums.loads += waited;
            } else if others >= CORES_MIN * length {
                sums.contended += waited;
            }
        }
        sums
    }

    /// Returns the median of the cores that other processes used.
    fn usual_others(&self) -> f64 {
        let cores = |sample: &MachineSample| {
            ms(sample.others) / ms(sample.until - sample.from).max(f64::MIN_POSITIVE)
        };
        let mut used: Vec<f64> = self.0.iter().map(cores).collect();
        used.sort_unstable_by(f64::total_cmp);
        used.get(used.len() / 2).copied().unwrap_or(0.0)
    }
}

impl SampleSums {
    /// Returns the time of other processes beyond the usual.
    pub(crate) fn others_excess(&self) -> f64 {
        (self.others - self.others_usual).max(0.0)
    }

    /// Returns processor time as a number of cores.
    pub(crate) fn in_cores(&self, time: f64) -> f64 {
        if self.length > 0.0 { time / self.length } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_that_touch_the_span_are_summed() {
        let start = Instant::now();
        let at = |tenths: u64| start + Duration::from_millis(100 * tenths);
        let mut ring = SampleRing::default();
        for tenth in 0..SAMPLES_MAX as u64 + 5 {
            ring.push(MachineSample {
                from: at(tenth),
                until: at(tenth + 1),
                cores: 2,
                others: Duration::from_millis(tenth),
                loads: Duration::ZERO,
                stolen: Duration::ZERO,
                throttled: Duration::ZERO,
                workers_waited: Duration::from_millis(1),
                connections_waited: Duration::ZERO,
                loading: Vec::new(),
            });
        }
        let middle = Duration::from_millis(50);
        let sums = ring.between(at(10) + middle, at(12) + middle);
        assert_eq!((sums.others, sums.workers_waited, sums.length), (33.0, 3.0, 300.0));
        assert_eq!(sums.in_cores(150.0), 0.5);
        // The median of 5 to 604 ms of 100 ms.
        assert!((sums.others_usual - 3.05 * 300.0).abs() < 1e-6, "{}", sums.others_usual);
        assert_eq!(ring.between(at(0), at(1)).length, 0.0, "too old");
    }

    #[test]
    fn delays_before_a_request_are_told_apart() {
        let start = Instant::now();
        let at = |tenths: u64| start + Duration::from_millis(100 * tenths);
        let mut ring = SampleRing::default();
        let quiet = |tenth| MachineSample {
            from: at(tenth),
            until: at(tenth + 1),
            cores: 2,
            others: Duration::from_millis(10),
            loads: Duration::ZERO,
            stolen: Duration::ZERO,
            throttled: Duration::ZERO,
            workers_waited: Duration::from_millis(3),
            connections_waited: Duration::ZERO,
            loading: Vec::new(),
        };
        for tenth in 0..10 {
            let ms = Duration::from_millis;
            ring.push(match tenth {
                2 => MachineSample { throttled: ms(70), ..quiet(tenth) },
                3 => MachineSample { others: ms(150), workers_waited: ms(40), ..quiet(tenth) },
                4 => MachineSample { loads: ms(90), workers_waited: ms(20), ..quiet(tenth) },
                5 => MachineSample { stolen: ms(10), ..quiet(tenth) },
                _ => quiet(tenth),
            });
        }
        let all = BacklogEvidence { throttled: 70.0, stolen: 10.0, contended: 40.0, loads: 20.0 };
        assert_eq!(ring.backlog(at(0), at(9)), all);
        let middle = Duration::from_millis(50);
        let late = BacklogEvidence { throttled: 0.0, stolen: 0.0, ..all };
        assert_eq!(ring.backlog(at(3) + middle, at(5) + middle), late);
        assert_eq!(ring.backlog(at(6), at(6)), BacklogEvidence::default());
    }
}
