//! Records of one version in order of time, packed into one ring of bytes.

use std::collections::VecDeque;

use super::record::TrafficRecord;

/// Records of intervals of equal length. Intervals without traffic take no space.
#[derive(Clone, Debug)]
pub(super) struct RecordSeries {
    /// Length of an interval in seconds.
    step: u64,
    /// Ends of the intervals and lengths of their records.
    index: VecDeque<RecordPlace>,
    /// Bytes of the records, one after the other.
    bytes: VecDeque<u8>,
    /// Sum of the interval that has not ended yet.
    open: TrafficRecord,
    /// End of the interval that has not ended yet.
    open_end: u64,
}

#[derive(Clone, Copy, Debug)]
struct RecordPlace {
    end: u32,
    bytes: u16,
}

/// A record and the end of its interval in seconds since the server started.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TimedRecord {
    pub(crate) end: u64,
    pub(crate) record: TrafficRecord,
}

impl RecordSeries {
    pub(super) fn new(step: u64) -> RecordSeries {
        RecordSeries {
            step,
            index: VecDeque::new(),
            bytes: VecDeque::new(),
            open: TrafficRecord::default(),
            open_end: 0,
        }
    }

    /// Adds the traffic of the second that ended at `end`, which is not before the `end` of the
    /// last call.
    pub(super) fn add(&mut self, end: u64, record: &TrafficRecord) {
        let interval = end.next_multiple_of(self.step);
        if interval > self.open_end {
            self.finish();
            self.open_end = interval;
        }
        self.open.add(record);
        if end == interval {
            self.finish();
        }
    }

    /// Ends the open interval if it ended at `now` or before. A version that was unloaded gets no
    /// further traffic that would end it.
    pub(super) fn advance(&mut self, now: u64) {
        if self.open_end <= now {
            self.finish();
        }
    }

    /// Ends the open interval.
    fn finish(&mut self) {
        let record = std::mem::take(&mut self.open);
        if record.is_idle() {
            return;
        }
        let mut packed = Vec::new();
        record.pack(&mut packed);
        let end = u32::try_from(self.open_end).unwrap_or(u32::MAX);
        // A record has at most 252 buckets of 6 bytes, 16 statuses, and 4 numbers.
        let bytes = u16::try_from(packed.len()).unwrap_or(u16::MAX);
        self.index.push_back(RecordPlace { end, bytes });
        self.bytes.extend(packed);
    }

    /// Drops the intervals that ended at `oldest` or before.
    pub(super) fn forget(&mut self, oldest: u64) {
        while self.first().is_some_and(|end| end <= oldest) {
            if let Some(place) = self.index.pop_front() {
                self.bytes.drain(..usize::from(place.bytes).min(self.bytes.len()));
            }
        }
        if self.bytes.capacity() > 2 * self.bytes.len() + 4096 {
            self.bytes.shrink_to(self.bytes.len() * 5 / 4);
            self.index.shrink_to(self.index.len() * 5 / 4);
        }
    }

    /// Returns the end of the oldest interval.
    pub(super) fn first(&self) -> Option<u64> {
        self.index.front().map(|place| u64::from(place.end))
    }

    /// Returns true if nothing is kept.
    pub(super) fn is_empty(&self) -> bool {
        self.index.is_empty() && self.open.is_idle()
    }

    /// Returns the number of bytes of memory of the records.
    pub(super) fn memory(&self) -> usize {
        self.bytes.capacity() + self.index.capacity() * size_of::<RecordPlace>()
    }

    /// Returns the records whose intervals ended after `after`, oldest first. The interval that has
    /// not ended yet is not among them.
    pub(super) fn since(&self, after: u64) -> Vec<TimedRecord> {
        let old = self.index.partition_point(|place| u64::from(place.end) <= after);
        let skipped: usize = self.index.range(..old).map(|place| usize::from(place.bytes)).sum();
        let mut bytes = self.bytes.range(skipped.min(self.bytes.len())..).copied();
        let records = self.index.range(old..).map_while(|place| {
            let record = TrafficRecord::unpack(&mut bytes)?;
            Some(TimedRecord { end: u64::from(place.end), record })
        });
        records.collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Compared with a plain list of all seconds.
        #[test]
        fn intervals_are_sums_of_their_seconds(
            seconds in prop::collection::vec((1_u64..4, 0_u64..3), 1..80),
            step in 1_u64..12,
            keep in 1_u64..100,
        ) {
            let mut series = RecordSeries::new(step);
            let mut all = Vec::new();
            let mut now = 0;
            for (gap, requests) in seconds {
                now += gap;
                let second = TrafficRecord::sample(&vec![1000 * now; requests as usize], 0);
                series.add(now, &second);
                all.push((now, second));
            }
            series.forget(now.saturating_sub(keep));
            let mut wanted: Vec<TimedRecord> = Vec::new();
            for (end, second) in all {
                let end = end.next_multiple_of(step);
                match wanted.last_mut() {
                    Some(last) if last.end == end => last.record.add(&second),
                    _ => wanted.push(TimedRecord { end, record: second }),
                }
            }
            let oldest = now.saturating_sub(keep);
            wanted.retain(|timed| timed.end > oldest && timed.end <= now && !timed.record.is_idle());
            prop_assert_eq!(series.since(0), wanted.clone());
            wanted.retain(|timed| timed.end > now / 2);
            prop_assert_eq!(series.since(now / 2), wanted);
        }
    }

    #[test]
    fn a_day_of_traffic_fits_into_the_documented_bytes() {
        let mut series = RecordSeries::new(10);
        for second in 1..=86_400 {
            // Latencies from 1 to 1.5 ms, and a tail up to 20 ms.
            let mut latencies: Vec<u64> = (0..20).map(|index| 1000 + 25 * index).collect();
            latencies.extend([3000 + second % 1000, 20_000]);
            series.add(second, &TrafficRecord::sample(&latencies, 0));
        }
        assert_eq!(series.since(0).len(), 8640);
        assert!(series.memory() < 900_000, "{}", series.memory());
        series.forget(86_000);
        assert!(series.since(0).len() == 40 && series.memory() < 20_000, "{}", series.memory());
    }
}
