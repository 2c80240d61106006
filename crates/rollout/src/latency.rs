//! Latencies of one arm, as a histogram that requests fill without a lock, and bounds of its p99.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::bounds::TrialCounts;

/// Number of bits after the leading one of a latency that choose its bucket. A bucket is 3 % wide.
const SUB_BITS: u32 = 5;
const SUB_BUCKETS: usize = 1 << SUB_BITS;
/// Octaves above the exact buckets. The last bucket begins at 19 hours, in microseconds.
const OCTAVES: usize = 31;
const BUCKETS: usize = SUB_BUCKETS * (OCTAVES + 1);
/// Share of requests above p99.
const TAIL_SHARE: f64 = 0.01;

/// Counts of latencies by bucket.
pub(crate) struct VersionLatencies(Box<[AtomicU64]>);

impl Default for VersionLatencies {
    fn default() -> Self {
        VersionLatencies((0..BUCKETS).map(|_| AtomicU64::new(0)).collect())
    }
}

impl VersionLatencies {
    pub(crate) fn record(&self, latency: Duration) {
        let micros = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
        if let Some(count) = self.0.get(bucket(micros)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn read(&self) -> LatencyCounts {
        LatencyCounts(self.0.iter().map(|count| count.load(Ordering::Relaxed)).collect())
    }
}

/// A copy of the counts at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LatencyCounts(Vec<u64>);

impl LatencyCounts {
    /// Counts latencies in microseconds.
    pub fn of(micros: impl IntoIterator<Item = u64>) -> LatencyCounts {
        let histogram = VersionLatencies::default();
        micros.into_iter().for_each(|micros| histogram.record(Duration::from_micros(micros)));
        histogram.read()
    }

    /// Returns the number of latencies.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Returns the estimate of p99, or `None` without a latency.
    pub fn p99(&self) -> Option<Duration> {
        let above = (self.total() as f64 * TAIL_SHARE) as u64;
        self.largest(above + 1).map(|bucket| Duration::from_micros(lowest(bucket)))
    }

    /// Returns a lower bound of p99 in microseconds. With probability `1 - level`, it holds at all
    /// moments at once.
    ///
    /// At most a hundredth of the latencies are above p99. If `n` latencies above it refute that,
    /// the `n`-th largest latency is not above p99.
    pub fn p99_above(&self, level: f64) -> u64 {
        let trials = self.total();
        let expected = (trials as f64 * TAIL_SHARE).ceil() as u64;
        let mut kept = expected;
        let mut refuted = trials + 1;
        while refuted - kept > 1 {
            let middle = u64::midpoint(kept, refuted);
            if TrialCounts::rare(middle, trials).refutes(TAIL_SHARE, level) {
                refuted = middle;
            } else {
                kept = middle;
            }
        }
        self.largest(refuted).map_or(0, lowest)
    }

    /// Returns an upper bound of p99 in microseconds, with the same promise, or `None` while there
    /// are too few latencies.
    pub fn p99_below(&self, level: f64) -> Option<u64> {
        let trials = self.total();
        if !TrialCounts::rare(0, trials).refutes(TAIL_SHARE, level) {
            return None;
        }
        let mut refuted = 0;
        let mut kept = (trials as f64 * TAIL_SHARE).ceil() as u64;
        while kept - refuted > 1 {
            let middle = u64::midpoint(refuted, kept);
            if TrialCounts::rare(middle, trials).refutes(TAIL_SHARE, level) {
                refuted = middle;
            } else {
                kept = middle;
            }
        }
        self.largest(refuted + 1).map(|bucket| lowest(bucket + 1))
    }

    /// Returns the bucket of the `rank`-th largest latency, from 1.
    fn largest(&self, rank: u64) -> Option<usize> {
        let mut seen = 0;
        self.0.iter().rposition(|&count| {
            seen += count;
            seen >= rank
        })
    }
}

fn bucket(micros: u64) -> usize {
    if micros < SUB_BUCKETS as u64 {
        return micros as usize;
    }
    let octave = micros.ilog2() - SUB_BITS;
    let sub = (micros >> octave) as usize - SUB_BUCKETS;
    (SUB_BUCKETS * (octave as usize + 1) + sub).min(BUCKETS - 1)
}

/// Returns the shortest latency of a bucket in microseconds.
fn lowest(bucket: usize) -> u64 {
    let octave = bucket / SUB_BUCKETS;
    let sub = (bucket % SUB_BUCKETS) as u64;
    match octave.checked_sub(1) {
        None => sub,
        Some(shift) => (SUB_BUCKETS as u64 + sub) << shift,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LEVEL: f64 = 1.0 / 600.0;

    #[test]
    fn bounds_surround_the_quantile() {
        let counts = LatencyCounts::of((0..20_000).map(|at| 1_000 + at % 1_000));
        let (low, high) = (counts.p99_above(LEVEL), counts.p99_below(LEVEL).unwrap());
        assert!(low <= 1_990 && high >= 1_990, "{low} {high}");
        assert!(low > 1_900 && high < 2_100, "{low} {high}");
        let p99 = counts.p99().unwrap().as_micros();
        assert!((1_920..=1_990).contains(&p99), "{p99}");
    }

    #[test]
    fn counts_have_more_than_32_bits() {
        let histogram = VersionLatencies::default();
        histogram.0[5].store(u64::from(u32::MAX), Ordering::Relaxed);
        histogram.record(Duration::from_micros(5));
        assert_eq!(histogram.read().total(), 1 << 32);
    }

    #[test]
    fn few_latencies_prove_little() {
        let counts = LatencyCounts::of([5_000; 20]);
        assert_eq!(counts.p99_below(LEVEL), None);
        assert!(counts.p99_above(LEVEL) <= 5_000);
        assert_eq!(LatencyCounts::of([]).p99_above(LEVEL), 0);
        assert_eq!(LatencyCounts::of([]).p99(), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn a_bucket_contains_its_latency(micros in 0u64..=60_000_000_000) {
            let bucket = bucket(micros);
            prop_assert!(lowest(bucket) <= micros && micros < lowest(bucket + 1));
            prop_assert!(lowest(bucket + 1) - lowest(bucket) <= 1.max(micros / 32));
        }

        #[test]
        fn ranks_agree_with_a_sorted_list(mut micros in proptest::collection::vec(0u64..100_000, 1..200), rank in 1usize..200) {
            let counts = LatencyCounts::of(micros.iter().copied());
            micros.sort_unstable_by_key(|&micros| std::cmp::Reverse(micros));
            let expected = micros.get(rank - 1).map(|&micros| bucket(micros));
            prop_assert_eq!(counts.largest(rank as u64), expected);
        }
    }
}
