//! Plan of reads: one for all records that share a page, and one for neighbouring pages.

use super::{Address, RerankCandidate};

/// Record to read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct WantedRecord {
    pub(super) candidate: RerankCandidate,
    pub(super) address: Address,
}

/// One read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    /// Index of the segment.
    pub(super) segment: u32,
    /// Offset in its file.
    pub(super) offset: u64,
    /// Length in bytes.
    pub(super) bytes: u32,
    /// First record in [`ReadPlan::wanted`] that the read serves.
    pub(super) first: usize,
    /// End of its records in [`ReadPlan::wanted`].
    pub(super) end: usize,
    /// True if it retries a record without its neighbours, so that caches are not used.
    pub(super) apart: bool,
}

impl Extent {
    /// Returns the offset of the first byte after the extent.
    fn past(&self) -> u64 {
        self.offset + u64::from(self.bytes)
    }
}

/// Limits for joining pages to reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Joining {
    /// Maximum bytes of a read of several pages.
    pub(super) bytes_max: u32,
    /// Maximum unused bytes between two pages of one read.
    pub(super) gap_max: u32,
}

/// Reads to submit. Reads with the most promising candidates come first.
#[derive(Debug, Default)]
pub(super) struct ReadPlan {
    /// Records to read, in the order of their pages.
    wanted: Vec<WantedRecord>,
    extents: Vec<Extent>,
    /// Index of the next read in `extents`.
    next: usize,
    /// Records of `wanted` with their order of arrival, while they are sorted.
    keyed: Vec<(u32, WantedRecord)>,
}

impl ReadPlan {
    /// Returns the next read and its records.
    pub(super) fn peek(&self) -> Option<(Extent, &[WantedRecord])> {
        let extent = *self.extents.get(self.next)?;
        Some((extent, self.wanted.get(extent.first..extent.end)?))
    }

    /// Removes that read.
    pub(super) fn advance(&mut self) {
        self.next += 1;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.next >= self.extents.len()
    }

    /// Returns the number of reads.
    pub(super) fn len(&self) -> usize {
        self.extents.len().saturating_sub(self.next)
    }

    pub(super) fn clear(&mut self) {
        self.extents.clear();
        self.wanted.clear();
        self.next = 0;
    }

    /// Adds `more`, most promising first, and replans reads that were not submitted. Drops
    /// duplicates.
    pub(super) fn add(&mut self, more: &[WantedRecord], joining: Joining) {
        self.keyed.clear();
        for (at, extent) in self.extents.iter().enumerate().skip(self.next) {
            // Waiting records keep their order of reads.
            let wanted = self.wanted.get(extent.first..extent.end).unwrap_or(&[]);
            self.keyed.extend(wanted.iter().map(|&wanted| (at as u32, wanted)));
        }
        let before = self.extents.len() as u32;
        self.keyed
            .extend(more.iter().enumerate().map(|(at, &wanted)| (before + at as u32, wanted)));
        self.keyed.sort_unstable_by_key(|&(at, WantedRecord { candidate, address })| {
            (candidate.segment, address.offset, address.slot, candidate.row, at)
        });
        self.keyed.dedup_by_key(|(_, WantedRecord { candidate, address })| {
            (candidate.segment, address.offset, address.slot, candidate.row)
        });
        self.wanted.clear();
        self.wanted.extend(self.keyed.iter().map(|&(_, wanted)| wanted));
        self.join(joining);
    }

    /// Adds a read for each of `more`, after all others, for records that failed together with
    /// their neighbours.
    pub(super) fn add_apart(&mut self, more: &[WantedRecord]) {
        for &wanted in more {
            let candidate = wanted.candidate;
            let address = wanted.address;
            let at = self.wanted.len();
            self.wanted.push(wanted);
            self.extents.push(Extent {
                segment: candidate.segment,
                offset: address.offset,
                bytes: address.bytes,
                first: at,
                end: at + 1,
                apart: true,
            });
        }
    }

    /// Plans the reads of `keyed`, which are sorted by page like `wanted`.
    fn join(&mut self, joining: Joining) {
        self.extents.clear();
        self.next = 0;
        let mut firsts: Vec<u32> = Vec::with_capacity(self.keyed.len());
        for (at, &(came, WantedRecord { candidate, address })) in self.keyed.iter().enumerate() {
            let page = Extent {
                segment: candidate.segment,
                offset: address.offset,
                bytes: address.bytes,
                first: at,
                end: at + 1,
                apart: false,
            };
            match (self.extents.last_mut(), firsts.last_mut()) {
                (Some(last), Some(first)) if joins(last, &page, joining) => {
                    last.bytes = (page.past().max(last.past()) - last.offset) as u32;
                    last.end = at + 1;
                    *first = came.min(*first);
                }
                _ => {
                    self.extents.push(page);
                    firsts.push(came);
                }
            }
        }
        let mut order: Vec<(u32, Extent)> =
            firsts.into_iter().zip(self.extents.drain(..)).collect();
        order.sort_unstable_by_key(|&(came, extent)| (came, extent.first));
        self.extents.extend(order.into_iter().map(|(_, extent)| extent));
    }
}

/// Returns true if `page` can be read with `last`, which has a lower offset.
fn joins(last: &Extent, page: &Extent, joining: Joining) -> bool {
    if last.segment != page.segment {
        return false;
    }
    if page.past() <= last.past() {
        return true;
    }
    page.offset.saturating_sub(last.past()) <= u64::from(joining.gap_max)
        && page.past() - last.offset <= u64::from(joining.bytes_max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const JOINING: Joining = Joining { bytes_max: 16384, gap_max: 4096 };

    fn wanted(segment: u32, page: u64, slot: u16) -> WantedRecord {
        let candidate = RerankCandidate {
            segment,
            row: (page * 8) as u32 + u32::from(slot),
            id: 0,
            coarse: 0.0,
        };
        WantedRecord { candidate, address: Address { offset: page * 4096, bytes: 4096, slot } }
    }

    fn taken(plan: &mut ReadPlan) -> Vec<(Extent, Vec<WantedRecord>)> {
        let mut all = Vec::new();
        while let Some((extent, wanted)) = plan.peek() {
            all.push((extent, wanted.to_vec()));
            plan.advance();
        }
        all
    }

    #[test]
    fn the_most_promising_read_goes_first() {
        let mut plan = ReadPlan::default();
        plan.add(
            &[wanted(0, 90, 1), wanted(0, 10, 0), wanted(0, 50, 0), wanted(0, 10, 3)],
            JOINING,
        );
        let offsets: Vec<u64> =
            taken(&mut plan).iter().map(|(extent, _)| extent.offset / 4096).collect();
        assert_eq!(offsets, [90, 10, 50]);
    }

    #[test]
    fn near_pages_are_one_read() {
        let mut plan = ReadPlan::default();
        let pages = [5, 6, 8, 11, 12, 13, 14, 15];
        let records: Vec<WantedRecord> = pages.iter().map(|&page| wanted(0, page, 0)).collect();
        plan.add(&records, JOINING);
        let reads: Vec<(u64, u32)> = taken(&mut plan)
            .iter()
            .map(|(extent, _)| (extent.offset / 4096, extent.bytes / 4096))
            .collect();
        assert_eq!(reads, [(5, 4), (11, 4), (15, 1)]);
    }

    proptest! {
        #[test]
        fn every_record_is_read_once(
            chunks in proptest::collection::vec(
                (proptest::collection::vec((0u32..2, 0u64..30, 0u16..4), 0..20), 0usize..5), 1..5),
        ) {
            let mut plan = ReadPlan::default();
            let mut read = Vec::new();
            let mut asked = BTreeSet::new();
            for (chunk, submit) in chunks {
                // A chunk may repeat a waiting record but not a submitted one: the flight prevents
                // that.
                let fresh: Vec<WantedRecord> = chunk
                    .iter()
                    .map(|&(segment, page, slot)| wanted(segment, page, slot))
                    .filter(|w| !read.iter().any(|r: &WantedRecord| r == w))
                    .collect();
                asked.extend(fresh.iter().map(|w| (w.candidate.segment, w.candidate.row)));
                plan.add(&fresh, JOINING);
                for _ in 0..submit {
                    let Some((extent, wanted)) = plan.peek() else { break };
                    prop_assert!(extent.bytes <= JOINING.bytes_max);
                    for wanted in wanted {
                        prop_assert_eq!(wanted.candidate.segment, extent.segment);
                        prop_assert!(wanted.address.offset >= extent.offset);
                        prop_assert!(wanted.address.offset + 4096 <= extent.past());
                    }
                    read.extend_from_slice(wanted);
                    plan.advance();
                }
            }
            read.extend(taken(&mut plan).into_iter().flat_map(|(_, wanted)| wanted));
            let rows: Vec<_> = read.iter().map(|w| (w.candidate.segment, w.candidate.row)).collect();
            prop_assert_eq!(rows.len(), asked.len());
            prop_assert_eq!(rows.into_iter().collect::<BTreeSet<_>>(), asked);
        }
    }
}
