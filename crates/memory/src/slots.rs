//! State of the slots: which are in use, which have memory, and which to take next. Pure
//! bookkeeping without access to memory, so it is tested against a naive reference.
//!
//! Taking a run prefers slots with memory (best fit, so that long runs stay whole). If there are
//! too few, it takes the run that needs the least new memory. It names slots elsewhere to release
//! first, so that the budget holds. Address space is plentiful, so fresh addresses solve
//! fragmentation.

use std::ops::Range;

/// State of one slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slot {
    /// Address space without memory.
    Unbacked,
    /// Has memory and belongs to no region.
    Free,
    /// Belongs to a region. It may have no memory until its owner has faulted it in.
    Used,
    /// Being faulted in ahead of need. It becomes free.
    Prefaulting,
    /// The memory of the slot is being returned to the system. The slot becomes unbacked.
    Releasing,
}

/// Result of [`SlotMap::take`]. It has a run that is now in use, and the steps that its taker must
/// do, in this order.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TakenSlots {
    pub(crate) run: Range<usize>,
    /// Slots elsewhere, in state `Releasing`. Return their memory to the system, then call
    /// [`SlotMap::released`].
    pub(crate) release: Vec<Range<usize>>,
    /// Slots of the run to fault in.
    pub(crate) unbacked: Vec<usize>,
}

/// Reason why [`SlotMap::take`] found no run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shortage {
    /// The budget has too little left.
    Budget,
    /// No run of address space is long enough.
    Addresses,
    /// Slots are being faulted in or released. A later try will find room.
    Busy,
}

/// States of all slots, and the budget of slots with memory.
///
/// Invariant: used, free and prefaulting slots together, the *committed* ones, never exceed
/// `committed_max`. A releasing slot still has memory, but its taker releases before it faults in,
/// so resident slots never exceed the budget either.
#[derive(Debug)]
pub(crate) struct SlotMap {
    slots: Vec<Slot>,
    committed_max: usize,
    used: usize,
    free: usize,
    prefaulting: usize,
}

impl SlotMap {
    /// Creates `total` slots of address space, of which `committed_max` may have memory.
    pub(crate) fn new(total: usize, committed_max: usize) -> SlotMap {
        SlotMap {
            slots: vec![Slot::Unbacked; total],
            committed_max,
            used: 0,
            free: 0,
            prefaulting: 0,
        }
    }

    /// Returns the number of slots that belong to regions.
    pub(crate) fn used(&self) -> usize {
        self.used
    }

    /// Returns the number of slots that have memory or will have it.
    pub(crate) fn committed(&self) -> usize {
        self.used + self.free + self.prefaulting
    }

    /// Takes a run of `count` slots.
    pub(crate) fn take(&mut self, count: usize) -> Result<TakenSlots, Shortage> {
        if count > self.committed_max - self.used {
            return Err(Shortage::Budget);
        }
        let run =
            self.best_fit(count).or_else(|| self.cheapest(count)).ok_or_else(|| self.no_run())?;
        let unbacked: Vec<usize> =
            run.clone().filter(|&slot| self.slots[slot] == Slot::Unbacked).collect();
        let excess = (self.committed() + unbacked.len()).saturating_sub(self.committed_max);
        if excess > self.free - (count - unbacked.len()) {
            return Err(Shortage::Busy);
        }
        self.mark(run.clone(), Slot::Used);
        let release = self.pick_releases(excess);
        for slots in &release {
            self.mark(slots.clone(), Slot::Releasing);
        }
        Ok(TakenSlots { run, release, unbacked })
    }

    /// Ends the use of a run. Its memory stays.
    pub(crate) fn give_back(&mut self, run: Range<usize>) {
        debug_assert!(self.slots[run.clone()].iter().all(|&slot| slot == Slot::Used));
        self.mark(run, Slot::Free);
    }

    /// Records that the slots' memory was returned to the system.
    pub(crate) fn released(&mut self, slots: Range<usize>) {
        debug_assert!(self.slots[slots.clone()].iter().all(|&slot| slot == Slot::Releasing));
        self.mark(slots, Slot::Unbacked);
    }

    /// Undoes a [`TakenSlots`] after a failure. `release` and `unbacked` hold the steps that were
    /// not done.
    pub(crate) fn undo(&mut self, taken: &TakenSlots) {
        self.give_back(taken.run.clone());
        for &slot in &taken.unbacked {
            self.mark(slot..slot + 1, Slot::Unbacked);
        }
        for slots in &taken.release {
            self.mark(slots.clone(), Slot::Free);
        }
    }

    /// Takes the lowest unbacked slot to fault in ahead of need, so that the memory lies together.
    /// Returns `None` if the budget is spent.
    pub(crate) fn begin_prefault(&mut self) -> Option<usize> {
        if self.committed() == self.committed_max {
            return None;
        }
        let slot = self.slots.iter().position(|&slot| slot == Slot::Unbacked)?;
        self.mark(slot..slot + 1, Slot::Prefaulting);
        Some(slot)
    }

    /// Ends [`begin_prefault`](Self::begin_prefault), with or without success. `backed` is true if
    /// the slot has memory now.
    pub(crate) fn end_prefault(&mut self, slot: usize, backed: bool) {
        debug_assert_eq!(self.slots[slot], Slot::Prefaulting);
        self.mark(slot..slot + 1, if backed { Slot::Free } else { Slot::Unbacked });
    }

    /// Returns the shortest run of free slots that holds `count`, and the lowest among equals.
    fn best_fit(&self, count: usize) -> Option<Range<usize>> {
        self.free_runs()
            .filter(|run| run.len() >= count)
            .min_by_key(Range::len)
            .map(|run| run.start..run.start + count)
    }

    /// Returns the window of free and unbacked slots with the fewest unbacked ones, and the lowest
    /// among equals.
    fn cheapest(&self, count: usize) -> Option<Range<usize>> {
        let mut best: Option<(usize, usize)> = None;
        let mut length = 0;
        let mut cost = 0;
        for (end, &slot) in self.slots.iter().enumerate() {
            match slot {
                Slot::Used | Slot::Prefaulting | Slot::Releasing => {
                    (length, cost) = (0, 0);
                    continue;
                }
                Slot::Free => {}
                Slot::Unbacked => cost += 1,
            }
            length += 1;
            if length > count {
                length -= 1;
                cost -= usize::from(self.slots[end - count] == Slot::Unbacked);
            }
            if length == count && best.is_none_or(|(least, _)| cost < least) {
                best = Some((cost, end + 1 - count));
            }
        }
        best.map(|(_, start)| start..start + count)
    }

    /// Returns the reason for a failed search. If addresses are busy only for a moment, the caller
    /// may wait.
    fn no_run(&self) -> Shortage {
        let busy =
            self.slots.iter().any(|slot| matches!(slot, Slot::Prefaulting | Slot::Releasing));
        if busy { Shortage::Busy } else { Shortage::Addresses }
    }

    /// Chooses `count` free slots to release, from the ends of the shortest runs, so that long runs
    /// stay.
    fn pick_releases(&self, count: usize) -> Vec<Range<usize>> {
        if count == 0 {
            return Vec::new();
        }
        let mut runs: Vec<Range<usize>> = self.free_runs().collect();
        runs.sort_by_key(Range::len);
        let mut left = count;
        let mut picked = Vec::new();
        for run in runs {
            let length = run.len().min(left);
            if length == 0 {
                break;
            }
            picked.push(run.end - length..run.end);
            left -= length;
        }
        picked
    }

    /// Returns the maximal runs of free slots, in order.
    fn free_runs(&self) -> impl Iterator<Item = Range<usize>> {
        let mut start = 0;
        self.slots.chunk_by(|a, b| a == b).filter_map(move |run| {
            let range = start..start + run.len();
            start = range.end;
            (run[0] == Slot::Free).then_some(range)
        })
    }

    fn mark(&mut self, slots: Range<usize>, state: Slot) {
        for slot in slots {
            let before = std::mem::replace(&mut self.slots[slot], state);
            if let Some(count) = self.counter(before) {
                *count -= 1;
            }
            if let Some(count) = self.counter(state) {
                *count += 1;
            }
        }
    }

    fn counter(&mut self, state: Slot) -> Option<&mut usize> {
        match state {
            Slot::Used => Some(&mut self.used),
            Slot::Free => Some(&mut self.free),
            Slot::Prefaulting => Some(&mut self.prefaulting),
            Slot::Unbacked | Slot::Releasing => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn free(total: usize, free: &[Range<usize>]) -> SlotMap {
        let mut map = SlotMap::new(total, total);
        free.iter().for_each(|slots| map.mark(slots.clone(), Slot::Free));
        map
    }

    #[test]
    fn best_fit_keeps_long_runs() {
        let mut map = free(20, &[0..8, 10..13, 15..19]);
        assert_eq!(map.take(3), Ok(TakenSlots { run: 10..13, release: vec![], unbacked: vec![] }));
        assert_eq!(map.take(3).map(|taken| taken.run), Ok(15..18));
    }

    #[test]
    fn the_run_that_needs_least_memory_is_extended() {
        let mut map = free(20, &[2..4, 10..13]);
        assert_eq!(map.take(4), Ok(TakenSlots { run: 9..13, release: vec![], unbacked: vec![9] }));
    }

    #[test]
    fn releases_come_from_the_shortest_runs() {
        let mut map = SlotMap::new(40, 9);
        [0..2, 4..5, 10..16].into_iter().for_each(|slots| map.mark(slots, Slot::Free));
        let taken = map.take(8).unwrap();
        assert_eq!((taken.run, taken.unbacked), (8..16, vec![8, 9]));
        assert_eq!(taken.release, [4..5, 1..2]);
        assert_eq!(map.committed(), 9);
    }

    #[test]
    fn fragments_are_escaped_by_fresh_addresses() {
        let mut map = SlotMap::new(32, 8);
        let runs: Vec<_> = (0..8).map(|_| map.take(1).unwrap().run).collect();
        runs.into_iter().step_by(2).for_each(|run| map.give_back(run));
        let taken = map.take(4).unwrap();
        assert_eq!(taken.run, 8..12);
        assert_eq!(taken.release.iter().map(Range::len).sum::<usize>(), 4);
    }

    #[derive(Clone, Debug)]
    enum Op {
        Take(usize),
        /// Does the next step of a taker.
        Step(usize),
        Fail(usize),
        GiveBack(usize),
        BeginBacking,
        EndBacking(usize, bool),
    }

    fn op() -> impl Strategy<Value = Op> {
        let which = 0..usize::MAX;
        prop_oneof![
            3 => (1..9usize).prop_map(Op::Take),
            6 => which.clone().prop_map(Op::Step),
            1 => which.clone().prop_map(Op::Fail),
            2 => which.clone().prop_map(Op::GiveBack),
            2 => Just(Op::BeginBacking),
            2 => (which, any::<bool>()).prop_map(|(index, backed)| Op::EndBacking(index, backed)),
        ]
    }

    /// A naive model of the pool: which slots really have memory, and the open steps of each taker.
    struct World {
        map: SlotMap,
        resident: Vec<bool>,
        takers: Vec<TakenSlots>,
        regions: Vec<Range<usize>>,
        prefaulting: Vec<usize>,
    }

    fn pick<T>(items: &mut Vec<T>, index: usize) -> Option<T> {
        if items.is_empty() { None } else { Some(items.swap_remove(index % items.len())) }
    }

    impl World {
        fn new(total: usize, max: usize) -> World {
            let map = SlotMap::new(total, max);
            World {
                map,
                resident: vec![false; total],
                takers: vec![],
                regions: vec![],
                prefaulting: vec![],
            }
        }

        fn apply(&mut self, op: Op) {
            match op {
                Op::Take(count) => self.take(count),
                Op::Step(index) => self.step(index),
                Op::Fail(index) => {
                    if let Some(taken) = pick(&mut self.takers, index) {
                        self.map.undo(&taken);
                    }
                }
                Op::GiveBack(index) => {
                    if let Some(run) = pick(&mut self.regions, index) {
                        self.map.give_back(run);
                    }
                }
                Op::BeginBacking => match self.map.begin_prefault() {
                    Some(slot) => self.prefaulting.push(slot),
                    None => assert!(
                        self.map.committed() == self.map.committed_max
                            || !self.map.slots.contains(&Slot::Unbacked)
                    ),
                },
                Op::EndBacking(index, backed) => {
                    if let Some(slot) = pick(&mut self.prefaulting, index) {
                        self.resident[slot] = backed;
                        self.map.end_prefault(slot, backed);
                    }
                }
            }
        }

        /// Takes a run and compares it with the result of trying every window.
        fn take(&mut self, count: usize) {
            let before = self.map.slots.clone();
            let (used, committed) = (self.map.used(), self.map.committed());
            let naive = naive_choice(&before, count);
            let settled =
                !before.iter().any(|slot| matches!(slot, Slot::Prefaulting | Slot::Releasing));
            match self.map.take(count) {
                Ok(taken) => {
                    let cost = taken.run.clone().filter(|&slot| before[slot] == Slot::Unbacked);
                    assert_eq!(taken.unbacked, cost.collect::<Vec<_>>());
                    assert_eq!(Some(taken.run.clone()), naive);
                    let release: Vec<usize> = taken.release.iter().cloned().flatten().collect();
                    let excess =
                        (committed + taken.unbacked.len()).saturating_sub(self.map.committed_max);
                    assert_eq!(release.len(), excess);
                    assert!(
                        release
                            .iter()
                            .all(|&slot| before[slot] == Slot::Free && !taken.run.contains(&slot))
                    );
                    self.takers.push(taken);
                }
                Err(shortage) => {
                    assert_eq!(self.map.slots, before);
                    assert_eq!(shortage == Shortage::Budget, used + count > self.map.committed_max);
                    assert!(shortage != Shortage::Addresses || naive.is_none() && settled);
                    assert!(shortage != Shortage::Busy || !settled);
                }
            }
        }

        fn step(&mut self, index: usize) {
            let Some(mut taken) = pick(&mut self.takers, index) else { return };
            if let Some(slots) = taken.release.pop() {
                self.resident[slots.clone()].fill(false);
                self.map.released(slots);
                self.takers.push(taken);
            } else if let Some(slot) = taken.unbacked.pop() {
                self.resident[slot] = true;
                self.takers.push(taken);
            } else {
                assert!(
                    taken.run.clone().all(|slot| self.resident[slot]),
                    "a region without memory"
                );
                self.regions.push(taken.run);
            }
        }

        fn check(&self) {
            let count = |state| self.map.slots.iter().filter(|&&slot| slot == state).count();
            assert_eq!(self.map.used(), count(Slot::Used));
            assert_eq!(
                self.map.committed(),
                count(Slot::Used) + count(Slot::Free) + count(Slot::Prefaulting)
            );
            let held = self
                .takers
                .iter()
                .map(|taken| &taken.run)
                .chain(&self.regions)
                .map(Range::len)
                .sum::<usize>();
            assert_eq!(held, self.map.used(), "two owners of one slot");
            assert!(self.map.committed() <= self.map.committed_max);
            let resident = self.resident.iter().filter(|&&resident| resident).count();
            assert!(resident + self.prefaulting.len() <= self.map.committed_max, "over the budget");
            for (slot, &state) in self.map.slots.iter().enumerate() {
                assert!(
                    state != Slot::Free || self.resident[slot],
                    "free slot {slot} has no memory"
                );
                assert!(
                    state != Slot::Unbacked || !self.resident[slot],
                    "slot {slot} leaks its memory"
                );
            }
        }
    }

    /// Tries every window. Prefers the least new memory, then the shortest run of free slots around
    /// it, then the lowest.
    fn naive_choice(slots: &[Slot], count: usize) -> Option<Range<usize>> {
        let windows =
            (0..(slots.len() + 1).saturating_sub(count)).map(|start| start..start + count);
        let open = windows
            .filter(|w| slots[w.clone()].iter().all(|s| matches!(s, Slot::Free | Slot::Unbacked)));
        open.min_by_key(|window| {
            let cost = slots[window.clone()].iter().filter(|&&slot| slot == Slot::Unbacked).count();
            let is_free = |slot: &&Slot| **slot == Slot::Free;
            let before = slots[..window.start].iter().rev().take_while(is_free).count();
            let after = slots[window.end..].iter().take_while(is_free).count();
            (cost, if cost == 0 { before + after } else { 0 }, window.start)
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn agrees_with_the_naive_reference(
            total in 1..32usize,
            share in 1..5usize,
            ops in proptest::collection::vec(op(), 0..120),
        ) {
            let mut world = World::new(total, (total / share).max(1));
            for op in ops {
                world.apply(op);
                world.check();
            }
        }
    }
}
