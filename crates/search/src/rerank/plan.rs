//! Which reads fetch the records that are wanted: one for all that share a page, one for pages side by side.

use super::{Address, RerankCandidate};

/// A record to be read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct WantedRecord {
    pub(super) candidate: RerankCandidate,
    pub(super) address: Address,
}

/// One read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    /// Whose file.
    pub(super) segment: u32,
    /// Where it starts.
    pub(super) offset: u64,
    /// How much is read.
    pub(super) bytes: u32,
    /// Which of [`ReadPlan::wanted`] it serves: from here,
    pub(super) first: usize,
    /// to before here.
    pub(super) end: usize,
    /// Whether it stands for what could not be had with its neighbours, so that only the medium is to be asked.
    pub(super) apart: bool,
}

impl Extent {
    fn past(&self) -> u64 {
        self.offset + u64::from(self.bytes)
    }
}

/// How pages are joined to reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Joining {
    /// Bytes of the largest read that is made of several pages.
    pub(super) bytes_max: u32,
    /// Unwanted bytes between two wanted pages that are read along rather than skipped.
    pub(super) gap_max: u32,
}

/// Reads to be submitted, the ones with the most promising candidates first.
#[derive(Debug, Default)]
pub(super) struct ReadPlan {
    /// By page.
    wanted: Vec<WantedRecord>,
    extents: Vec<Extent>,
    next: usize,
    /// Order of coming of each of `wanted`, while they are sorted.
    keyed: Vec<(u32, WantedRecord)>,
}

impl ReadPlan {
    /// The next read and what it is for.
    pub(super) fn peek(&self) -> Option<(Extent, &[WantedRecord])> {
        let extent = *self.extents.get(self.next)?;
        Some((extent, self.wanted.get(extent.first..extent.end)?))
    }

    /// Strikes that read off.
    pub(super) fn advance(&mut self) {
        self.next += 1;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.next >= self.extents.len()
    }

    /// Reads to go.
    pub(super) fn len(&self) -> usize {
        self.extents.len().saturating_sub(self.next)
    }

    /// Drops what is left.
    pub(super) fn clear(&mut self) {
        self.extents.clear();
        self.wanted.clear();
        self.next = 0;
    }

    /// Takes `more`, in the order in which they promise most, and plans anew with what was not submitted yet. Those
    /// that come twice are dropped.
    pub(super) fn add(&mut self, more: &[WantedRecord], joining: Joining) {
        self.keyed.clear();
        for (at, extent) in self.extents.iter().enumerate().skip(self.next) {
            // What waits already came before, in the order of its reads.
            let wanted = self.wanted.get(extent.first..extent.end).unwrap_or(&[]);
            self.keyed.extend(wanted.iter().map(|&wanted| (at as u32, wanted)));
        }
        let before = self.extents.len() as u32;
        self.keyed.extend(more.iter().enumerate().map(|(at, &wanted)| (before + at as u32, wanted)));
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

    /// Adds a read of its own for each of `more`, behind all others: for what could not be had with its neighbours.
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

    /// Makes reads of `keyed`, which lie by page in `wanted` too.
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
        let mut order: Vec<(u32, Extent)> = firsts.into_iter().zip(self.extents.drain(..)).collect();
        order.sort_unstable_by_key(|&(came, extent)| (came, extent.first));
        self.extents.extend(order.into_iter().map(|(_, extent)| extent));
    }
}

/// Whether `page` is read with `last`, after which it comes by offset.
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
        let candidate = RerankCandidate { segment, row: (page * 8) as u32 + u32::from(slot), coarse: 0.0 };
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
        plan.add(&[wanted(0, 90, 1), wanted(0, 10, 0), wanted(0, 50, 0), wanted(0, 10, 3)], JOINING);
        let offsets: Vec<u64> = taken(&mut plan).iter().map(|(extent, _)| extent.offset / 4096).collect();
        assert_eq!(offsets, [90, 10, 50]);
    }

    #[test]
    fn pages_side_by_side_and_over_a_small_gap_are_one_read() {
        let mut plan = ReadPlan::default();
        let pages = [5, 6, 8, 11, 12, 13, 14, 15];
        let records: Vec<WantedRecord> = pages.iter().map(|&page| wanted(0, page, 0)).collect();
        plan.add(&records, JOINING);
        let reads: Vec<(u64, u32)> =
            taken(&mut plan).iter().map(|(extent, _)| (extent.offset / 4096, extent.bytes / 4096)).collect();
        assert_eq!(reads, [(5, 4), (11, 4), (15, 1)]);
    }

    proptest! {
        #[test]
        fn every_record_is_read_once_whatever_came_in_between(
            chunks in proptest::collection::vec(
                (proptest::collection::vec((0u32..2, 0u64..30, 0u16..4), 0..20), 0usize..5), 1..5),
        ) {
            let mut plan = ReadPlan::default();
            let mut read = Vec::new();
            let mut asked = BTreeSet::new();
            for (chunk, submit) in chunks {
                // A chunk may ask again for what waits, not for what was submitted: the flight sees to that.
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
