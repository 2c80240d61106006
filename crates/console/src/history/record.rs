//! Traffic of one version in one interval, in memory and packed into bytes.

use inference::{TrafficReading, latency_bound};
use metrics::STATUSES;

/// Position of "ok" in [`STATUSES`].
const OK: usize = 0;
/// Status of a request whose client disconnected, which is not an error of the server or the
/// request.
const CANCELLED: &str = "cancelled";
/// Minimum requests for which a percentile beyond the 90th is meaningful.
pub(crate) const TAIL_REQUESTS_MIN: u64 = 100;

/// Traffic in one interval.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TrafficRecord {
    /// Requests with a result by bucket of latency, lowest bucket first, without empty buckets.
    latencies: Vec<BucketCount>,
    /// Requests by position in [`STATUSES`], in their order, without empty ones.
    statuses: Vec<BucketCount>,
    /// Longest latency in microseconds.
    pub(crate) max_us: u32,
    /// Maximum requests that waited when the interval's seconds ended.
    pub(crate) queued: u32,
}

/// A count and its position: a bucket or a status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct BucketCount {
    place: u8,
    count: u32,
}

/// Percentiles in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Quantiles {
    pub(crate) p50: u64,
    pub(crate) p90: u64,
    pub(crate) p99: u64,
    pub(crate) p999: u64,
}

impl TrafficRecord {
    /// Returns the requests between two readings.
    pub(crate) fn between(before: &TrafficReading, after: &TrafficReading) -> TrafficRecord {
        TrafficRecord {
            latencies: differences(&before.latencies, &after.latencies),
            statuses: differences(&before.statuses, &after.statuses),
            max_us: after.max_us,
            queued: 0,
        }
    }

    /// Returns true if the interval had no request and no queue.
    pub(crate) fn is_idle(&self) -> bool {
        self.statuses.is_empty() && self.latencies.is_empty() && self.queued == 0
    }

    /// Returns the number of requests with any outcome.
    pub(crate) fn requests(&self) -> u64 {
        self.statuses.iter().map(|status| u64::from(status.count)).sum()
    }

    /// Returns the number of requests that failed.
    pub(crate) fn errors(&self) -> u64 {
        self.failures().iter().map(|(_, count)| u64::from(*count)).sum()
    }

    /// Returns the failed requests by the name of their status.
    pub(crate) fn failures(&self) -> Vec<(&'static str, u32)> {
        let named = self.statuses.iter().filter(|status| usize::from(status.place) != OK);
        named
            .filter_map(|status| Some((*STATUSES.get(usize::from(status.place))?, status.count)))
            .filter(|(name, _)| *name != CANCELLED)
            .collect()
    }

    /// Returns the number of requests with a latency.
    pub(crate) fn answered(&self) -> u64 {
        self.latencies.iter().map(|bucket| u64::from(bucket.count)).sum()
    }

    /// Adds the requests of another interval.
    pub(crate) fn add(&mut self, other: &TrafficRecord) {
        merge(&mut self.latencies, &other.latencies);
        merge(&mut self.statuses, &other.statuses);
        self.max_us = self.max_us.max(other.max_us);
        self.queued = self.queued.max(other.queued);
    }

    /// Returns the percentiles; all 0 without a latency.
    pub(crate) fn quantiles(&self) -> Quantiles {
        let answered = self.answered();
        let at = |quantile: f64| self.quantile(answered, quantile);
        Quantiles { p50: at(0.5), p90: at(0.9), p99: at(0.99), p999: at(0.999) }
    }

    /// Returns the latency that the share `quantile` of `answered` requests do not exceed,
    /// interpolated inside its bucket.
    fn quantile(&self, answered: u64, quantile: f64) -> u64 {
        let wanted = answered as f64 * quantile;
        let mut below = 0.0;
        for bucket in &self.latencies {
            let count = f64::from(bucket.count);
            if below + count >= wanted {
                let place = usize::from(bucket.place);
                let low = latency_bound(place);
                let high = latency_bound(place + 1);
                let us = low + (high - low) * ((wanted - below) / count);
                return (us.round() as u64).min(u64::from(self.max_us));
            }
            below += count;
        }
        0
    }

    /// Appends the record as bytes: two numbers and two lists with their lengths.
    pub(super) fn pack(&self, bytes: &mut Vec<u8>) {
        push_number(bytes, self.max_us);
        push_number(bytes, self.queued);
        for list in [&self.statuses, &self.latencies] {
            push_number(bytes, list.len() as u32);
            for entry in list {
                bytes.push(entry.place);
                push_number(bytes, entry.count);
            }
        }
    }

    /// Reads a record that [`TrafficRecord::pack`] wrote; `None` if the bytes end early.
    pub(super) fn unpack(bytes: &mut impl Iterator<Item = u8>) -> Option<TrafficRecord> {
        let max_us = take(bytes)?;
        let queued = take(bytes)?;
        let mut list = || -> Option<Vec<BucketCount>> {
            let length = take(bytes)?;
            (0..length)
                .map(|_| Some(BucketCount { place: bytes.next()?, count: take(bytes)? }))
                .collect()
        };
        let statuses = list()?;
        let latencies = list()?;
        Some(TrafficRecord { latencies, statuses, max_us, queued })
    }
}

/// Returns the buckets whose counts have grown, with their growth. Counts wrap around.
fn differences(before: &[u32], after: &[u32]) -> Vec<BucketCount> {
    let pairs = before.iter().zip(after).enumerate();
    pairs
        .map(|(place, (before, after))| BucketCount {
            // There are fewer than 256 buckets and statuses.
            place: u8::try_from(place).unwrap_or(u8::MAX),
            count: after.wrapping_sub(*before),
        })
        .filter(|bucket| bucket.count > 0)
        .collect()
}

/// Adds sorted counts to sorted counts.
fn merge(into: &mut Vec<BucketCount>, other: &[BucketCount]) {
    for added in other {
        match into.binary_search_by_key(&added.place, |bucket| bucket.place) {
            Ok(index) => into[index].count = into[index].count.saturating_add(added.count),
            Err(index) => into.insert(index, *added),
        }
    }
}

/// Appends a number in groups of 7 bits, lowest first. The top bit of a byte says that another byte
/// follows.
fn push_number(bytes: &mut Vec<u8>, mut value: u32) {
    while value >= 0x80 {
        bytes.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

/// Reads a number that [`push_number`] wrote. `None` if the bytes end early.
fn take(bytes: &mut impl Iterator<Item = u8>) -> Option<u32> {
    let mut value = 0_u32;
    for shift in (0..32).step_by(7) {
        let byte = bytes.next()?;
        value |= u32::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
impl TrafficRecord {
    /// Returns the record of requests with these latencies, and of `failed` that were wrong.
    pub(crate) fn sample(latencies_us: &[u64], failed: u32) -> TrafficRecord {
        let mut after = TrafficReading::default();
        for us in latencies_us {
            let latency = std::time::Duration::from_micros(*us);
            after.latencies[inference::latency_bucket(latency)] += 1;
            after.max_us = after.max_us.max(*us as u32);
        }
        after.statuses[OK] = latencies_us.len() as u32;
        after.statuses[1] = failed;
        TrafficRecord::between(&TrafficReading::default(), &after)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn packed(record: &TrafficRecord) -> Vec<u8> {
        let mut bytes = Vec::new();
        record.pack(&mut bytes);
        bytes
    }

    proptest! {
        #[test]
        fn packing_keeps_everything(
            latencies in prop::collection::vec(1_u64..50_000_000, 0..300),
            failed in 0_u32..1000,
            queued in any::<u32>(),
        ) {
            let written = TrafficRecord { queued, ..TrafficRecord::sample(&latencies, failed) };
            let bytes = packed(&written);
            prop_assert_eq!(TrafficRecord::unpack(&mut bytes.iter().copied()), Some(written));
            let cut = bytes[..bytes.len() - 1].iter().copied();
            prop_assert_eq!(TrafficRecord::unpack(&mut cut.into_iter()), None);
        }

        #[test]
        fn quantiles_are_within_a_bucket_of_the_exact_ones(
            mut latencies in prop::collection::vec(20_u64..50_000_000, 1..400),
        ) {
            let found = TrafficRecord::sample(&latencies, 0).quantiles();
            latencies.sort_unstable();
            for (quantile, found) in [(0.5, found.p50), (0.9, found.p90), (0.99, found.p99)] {
                let rank = (latencies.len() as f64 * quantile).ceil() as usize;
                let exact = latencies[rank.max(1) - 1] as f64;
                let error = (found as f64 - exact).abs() / exact;
                prop_assert!(error < 0.07, "{quantile}: {found} is not {exact}");
            }
        }

        #[test]
        fn sums_are_records_of_all_requests(
            one in prop::collection::vec(1_u64..50_000_000, 0..100),
            other in prop::collection::vec(1_u64..50_000_000, 0..100),
        ) {
            let mut sum = TrafficRecord::sample(&one, 3);
            sum.add(&TrafficRecord::sample(&other, 4));
            let all: Vec<u64> = one.into_iter().chain(other).collect();
            prop_assert_eq!(sum, TrafficRecord::sample(&all, 7));
        }
    }

    #[test]
    fn counts_that_wrapped_around_are_differences() {
        let (mut before, mut after) = (TrafficReading::default(), TrafficReading::default());
        before.statuses[OK] = u32::MAX;
        after.statuses[OK] = 4;
        assert_eq!(TrafficRecord::between(&before, &after).requests(), 5);
    }

    #[test]
    fn a_client_that_disconnected_is_no_error() {
        let mut after = TrafficReading::default();
        after.statuses[STATUSES.iter().position(|name| *name == CANCELLED).unwrap()] = 5;
        after.statuses[STATUSES.iter().position(|name| *name == "internal").unwrap()] = 2;
        let found = TrafficRecord::between(&TrafficReading::default(), &after);
        assert_eq!((found.requests(), found.errors()), (7, 2));
        assert_eq!(found.failures(), [("internal", 2)]);
    }
}
