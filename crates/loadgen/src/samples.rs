//! Sinks of samples: a log for a run that is cut into windows afterwards, or running counts.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::{Error, Result};

use crate::drive::{Judgement, RequestSample, SampleSink};
use crate::stats::Latencies;

/// Maximum samples that a [`SampleLog`] keeps. It only counts further ones.
const SAMPLES_MAX: usize = 20_000_000;
/// Maximum number of different reasons for failure.
const REASONS_MAX: usize = 16;

/// Numbers of failed and wrong requests, with reasons.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// Requests without a usable answer.
    pub failed: u64,
    /// Wrong answers.
    pub wrong: u64,
    /// Reasons of failures and their numbers.
    pub reasons: BTreeMap<String, u64>,
}

impl Faults {
    /// Counts one finished request.
    pub fn count(&mut self, verdict: Judgement, reason: Option<&str>) {
        match verdict {
            Judgement::Right => {}
            Judgement::Wrong => self.wrong += 1,
            Judgement::Failed => self.failed += 1,
        }
        reason.into_iter().for_each(|reason| self.add_reason(reason, 1));
    }

    /// Adds the faults of `other`.
    pub fn add(&mut self, other: &Faults) {
        self.failed += other.failed;
        self.wrong += other.wrong;
        other.reasons.iter().for_each(|(reason, &count)| self.add_reason(reason, count));
    }

    fn add_reason(&mut self, reason: &str, more: u64) {
        if let Some(count) = self.reasons.get_mut(reason) {
            *count += more;
        } else if self.reasons.len() < REASONS_MAX {
            self.reasons.insert(reason.to_owned(), more);
        }
    }

    /// Returns the reasons, most frequent first, one a line.
    pub fn lines(&self) -> Vec<String> {
        let mut reasons: Vec<_> = self.reasons.iter().collect();
        reasons.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        reasons.into_iter().map(|(reason, count)| format!("{count} x {reason}")).collect()
    }
}

/// A sink that keeps every sample, up to a maximum.
#[derive(Debug)]
pub struct SampleLog {
    inner: Mutex<KeptSamples>,
    samples_max: usize,
}

impl Default for SampleLog {
    fn default() -> SampleLog {
        SampleLog { inner: Mutex::default(), samples_max: SAMPLES_MAX }
    }
}

/// Content of a [`SampleLog`].
#[derive(Clone, Debug, Default)]
pub struct KeptSamples {
    /// Samples in the order of their answers.
    pub samples: Vec<RequestSample>,
    /// Number of further samples, which are not kept. Their faults are counted.
    pub dropped: u64,
    /// Failed and wrong requests.
    pub faults: Faults,
}

impl SampleLog {
    /// Returns the samples since the last call.
    pub fn take(&self) -> KeptSamples {
        std::mem::take(&mut *lock(&self.inner))
    }
}

impl SampleSink for SampleLog {
    fn record(&self, sample: RequestSample, reason: Option<&str>) {
        let mut kept = lock(&self.inner);
        kept.faults.count(sample.verdict, reason);
        if kept.samples.len() < self.samples_max {
            kept.samples.push(sample);
        } else {
            kept.dropped += 1;
        }
    }
}

/// A sink that counts samples that were due after a warm-up.
#[derive(Debug)]
pub struct Tally {
    warm_up: Duration,
    inner: Mutex<TallyCounts>,
}

/// Counts of a [`Tally`].
#[derive(Clone, Debug, Default)]
pub struct TallyCounts {
    /// Latencies of right and wrong answers.
    pub latencies: Latencies,
    /// Failed and wrong requests, warm-up included.
    pub faults: Faults,
    /// Time of the last answer since the start.
    pub last: Duration,
    /// Time at which the first counted request was due, since the start.
    pub first: Option<Duration>,
}

impl TallyCounts {
    /// Returns answers a second between the first counted request and the last answer.
    pub fn rate(&self) -> f64 {
        let seconds = self.last.saturating_sub(self.first.unwrap_or_default()).as_secs_f64();
        if seconds > 0.0 { self.latencies.count() as f64 / seconds } else { 0.0 }
    }

    /// Returns the rate of a measurement of capacity.
    ///
    /// # Errors
    /// `Internal` if requests failed or answers were wrong, `DeadlineExceeded` if no answer was
    /// counted.
    pub fn faultless_rate(&self) -> Result<f64> {
        let Faults { failed, wrong, .. } = self.faults;
        match failed + wrong {
            0 if self.latencies.count() == 0 => Err(Error::deadline(
                "while measuring capacity no request was sent and answered after the warm-up: each takes too long; \
                 send fewer rows in one, or use a smaller model",
            )),
            0 => Ok(self.rate()),
            _ => Err(Error::internal(format!(
                "while measuring capacity {failed} requests failed and {wrong} answers were wrong: {}",
                self.faults.lines().join("; ")
            ))),
        }
    }
}

impl Tally {
    /// Counts requests due `warm_up` after the start or later.
    pub fn new(warm_up: Duration) -> Tally {
        Tally { warm_up, inner: Mutex::default() }
    }

    /// Returns the counts so far.
    pub fn counted(&self) -> TallyCounts {
        lock(&self.inner).clone()
    }

    /// Returns the number of answers so far.
    pub fn count(&self) -> u64 {
        lock(&self.inner).latencies.count()
    }
}

impl SampleSink for Tally {
    fn record(&self, sample: RequestSample, reason: Option<&str>) {
        let mut counted = lock(&self.inner);
        counted.faults.count(sample.verdict, reason);
        if sample.due < self.warm_up || sample.verdict == Judgement::Failed {
            return;
        }
        counted.latencies.record(sample.latency);
        counted.first = Some(counted.first.map_or(sample.due, |first| first.min(sample.due)));
        counted.last = counted.last.max(sample.due + sample.latency);
    }
}

/// Locks `mutex`, even if it is poisoned. Its counts are whole, because each change is one push or
/// one addition.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(due_ms: u64, latency_ms: u64, verdict: Judgement) -> RequestSample {
        let ms = Duration::from_millis;
        RequestSample { due: ms(due_ms), latency: ms(latency_ms), verdict, version: 1 }
    }

    #[test]
    fn a_tally_leaves_out_warm_up_and_failures() {
        let tally = Tally::new(Duration::from_millis(100));
        tally.record(sample(0, 900, Judgement::Right), None);
        tally.record(sample(100, 10, Judgement::Right), None);
        tally.record(sample(1090, 10, Judgement::Wrong), None);
        tally.record(sample(1100, 10, Judgement::Failed), Some("broken"));
        let counted = tally.counted();
        assert_eq!(counted.latencies.count(), 2);
        assert_eq!((counted.faults.failed, counted.faults.wrong), (1, 1));
        assert!((counted.rate() - 2.0).abs() < 1e-9, "{}", counted.rate());
        assert_eq!(counted.faults.lines(), ["1 x broken"]);
        assert_eq!(counted.faultless_rate().unwrap_err().kind(), base::ErrorKind::Internal);
        let error = TallyCounts::default().faultless_rate().unwrap_err();
        assert_eq!(error.kind(), base::ErrorKind::DeadlineExceeded);
    }

    #[test]
    fn a_log_gives_each_sample_once() {
        let log = SampleLog::default();
        log.record(sample(0, 1, Judgement::Right), None);
        assert_eq!(log.take().samples.len(), 1);
        assert!(log.take().samples.is_empty());
    }

    #[test]
    fn a_full_log_counts_the_samples_that_it_drops() {
        let log = SampleLog { samples_max: 2, ..SampleLog::default() };
        for _ in 0..5 {
            log.record(sample(0, 1, Judgement::Wrong), None);
        }
        let kept = log.take();
        assert_eq!((kept.samples.len(), kept.dropped, kept.faults.wrong), (2, 3, 5));
        assert_eq!(log.take().dropped, 0);
    }
}
