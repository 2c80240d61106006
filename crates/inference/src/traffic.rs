//! Counts the requests of a version by latency and status, for a reader that compares two readings.
//!
//! Recording is a few relaxed additions: no lock and no allocation.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use metrics::STATUSES;

/// Number of latency buckets, from 10 µs to 93 s and beyond.
pub const LATENCY_BUCKETS: usize = 252;
/// Buckets in a factor of 10: neighbouring bounds differ by 6.6 %.
const BUCKETS_PER_DECADE: f64 = 36.0;
/// Lower end of bucket 0 in microseconds. Shorter latencies also count in bucket 0. The last bucket
/// begins at 93 s.
const LATENCY_US_MIN: f64 = 10.0;

/// Number of counters made so far, which is the identity of the next ones.
static MADE: AtomicU64 = AtomicU64::new(0);

/// Counts since the start, which wrap around.
pub(crate) struct VersionTraffic {
    id: u64,
    latencies: [AtomicU32; LATENCY_BUCKETS],
    statuses: [AtomicU32; STATUSES.len()],
    /// Longest latency in microseconds since the last reading.
    max_us: AtomicU32,
}

/// Copy of the counts of a version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrafficReading {
    /// Identity of the counters. Counters with another identity began at 0.
    pub id: u64,
    /// Requests with a result by latency.
    pub latencies: [u32; LATENCY_BUCKETS],
    /// Requests by status, in the order of [`STATUSES`].
    pub statuses: [u32; STATUSES.len()],
    /// Longest latency in microseconds since the last reading.
    pub max_us: u32,
}

impl Default for TrafficReading {
    fn default() -> Self {
        TrafficReading {
            id: 0,
            latencies: [0; LATENCY_BUCKETS],
            statuses: [0; STATUSES.len()],
            max_us: 0,
        }
    }
}

impl Default for VersionTraffic {
    fn default() -> Self {
        VersionTraffic {
            id: MADE.fetch_add(1, Ordering::Relaxed) + 1,
            latencies: [const { AtomicU32::new(0) }; LATENCY_BUCKETS],
            statuses: [const { AtomicU32::new(0) }; STATUSES.len()],
            max_us: AtomicU32::new(0),
        }
    }
}

impl VersionTraffic {
    /// Counts a request by its status, one of [`STATUSES`].
    pub(crate) fn count(&self, status: &str) {
        if let Some(index) = STATUSES.iter().position(|known| *known == status) {
            self.statuses[index].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts the latency of a request with a result.
    pub(crate) fn record(&self, latency: Duration) {
        self.latencies[latency_bucket(latency)].fetch_add(1, Ordering::Relaxed);
        let us = u32::try_from(latency.as_micros()).unwrap_or(u32::MAX);
        self.max_us.fetch_max(us, Ordering::Relaxed);
    }

    /// Returns the counts, and begins a new maximum. There is one reader.
    pub(crate) fn read(&self) -> TrafficReading {
        TrafficReading {
            id: self.id,
            latencies: std::array::from_fn(|index| self.latencies[index].load(Ordering::Relaxed)),
            statuses: std::array::from_fn(|index| self.statuses[index].load(Ordering::Relaxed)),
            max_us: self.max_us.swap(0, Ordering::Relaxed),
        }
    }
}

/// Returns the bucket of a latency.
pub fn latency_bucket(latency: Duration) -> usize {
    let us = latency.as_nanos() as f64 / 1e3;
    // A negative number, as of a latency of 0, becomes bucket 0.
    let bucket = ((us / LATENCY_US_MIN).log10() * BUCKETS_PER_DECADE) as usize;
    bucket.min(LATENCY_BUCKETS - 1)
}

/// Returns the lower bound of a bucket in microseconds.
pub fn latency_bound(bucket: usize) -> f64 {
    LATENCY_US_MIN * 10_f64.powf(bucket as f64 / BUCKETS_PER_DECADE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_latency_is_in_its_bucket() {
        let mut ns = 10_500_u64;
        while ns < 90_000_000_000 {
            let (us, bucket) = (ns as f64 / 1e3, latency_bucket(Duration::from_nanos(ns)));
            assert!(latency_bound(bucket) <= us * 1.000_001, "{us} in {bucket}");
            assert!(latency_bound(bucket + 1) >= us * 0.999_999, "{us} in {bucket}");
            ns = ns * 9 / 8;
        }
        assert_eq!(latency_bucket(Duration::ZERO), 0);
        assert_eq!(latency_bucket(Duration::from_secs(1_000_000)), LATENCY_BUCKETS - 1);
        assert!(latency_bound(1) / latency_bound(0) < 1.07);
    }

    #[test]
    fn a_reading_has_every_request_once() {
        let traffic = VersionTraffic::default();
        for ms in [3, 7, 5] {
            traffic.record(Duration::from_millis(ms));
            traffic.count("ok");
        }
        traffic.count("invalid_argument");
        traffic.count("no such status");
        let seen = traffic.read();
        assert_eq!(seen.latencies.iter().sum::<u32>(), 3);
        assert_eq!(seen.latencies[latency_bucket(Duration::from_millis(7))], 1);
        assert_eq!((seen.statuses[0], seen.statuses[1], seen.max_us), (3, 1, 7000));
        assert_eq!(traffic.read(), TrafficReading { max_us: 0, ..seen });
    }
}
