//! Worlds in simulated time, with faults from a seed. The tests and the example `simulate` run
//! them.

mod fleet;
mod log;
mod log_outcome;
mod numbers;
mod reads;
mod schedule;
mod snapshots;

use std::collections::BTreeMap;
use std::ops::Range;

/// Seeds within which a planted mistake must be found.
pub(crate) const SEEDS_PLANTED_MAX: u64 = 1_000;

/// A mistake that the worlds of one kind must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Planted {
    /// New owners write no fence.
    NoFence,
    /// Owners do not see the floor.
    NoFloor,
    /// Readers count entries of older owners after a fence.
    OldEntriesCount,
    /// An owner does not refuse writes whose lookups are older than its fence.
    OldLookupsCount,
    /// Searches for the end of the log do not see the floor.
    EndWithoutFloor,
    /// Copies are dropped before the new holders have announced the shard.
    DropsUnannounced,
    /// Copies are dropped also if the view is old or shows nodes that may be dead.
    OldViewsCount,
    /// A process that reads its own name as the owner starts a writer with that epoch.
    EpochsReused,
    /// A process does not notice that a late write has replaced its description in etcd.
    LatePutsStay,
    /// A holder decides on its damaged copy before its mark is seen, and sees no other mark.
    MarksIgnored,
    /// A holder decides on its stalled copy without the marks of others.
    StallMarksIgnored,
    /// A stalled copy answers reads that need later changes.
    StalledReadsAnswered,
    /// Owners take writes although the disks of all holders are full.
    FullShardsWritten,
    /// A node leaves its logs although no other node reads the store.
    OthersIgnored,
    /// Owners stay as they are if a node has lost the store.
    LossIgnored,
    /// First requests earn more second requests than they should.
    BudgetGrows,
    /// The later one of two answers counts too.
    LosersCount,
    /// No other node is asked if one does not answer.
    NoTimers,
    /// Holders remove snapshots by their ids alone.
    SnapshotsById,
}

/// Result of one world.
#[derive(Debug, Default)]
pub(crate) struct WorldOutcome {
    /// Explanation of the first violation.
    pub(crate) violation: Option<String>,
    /// Events by name.
    pub(crate) figures: Vec<(&'static str, u64)>,
}

/// Worlds of one kind.
pub(crate) struct WorldKind {
    pub(crate) name: &'static str,
    /// Runs the world of a seed, without a mistake or with one of `planted`.
    pub(crate) run: fn(u64, Option<Planted>) -> WorldOutcome,
    pub(crate) planted: &'static [Planted],
    /// Figures and their minimum for each seed: a world in which nothing happens finds nothing.
    pub(crate) least: &'static [(&'static str, u64)],
}

/// All kinds.
pub(crate) const KINDS: &[WorldKind] = &[
    WorldKind {
        name: "log",
        run: log::run,
        planted: &[
            Planted::NoFence,
            Planted::NoFloor,
            Planted::OldEntriesCount,
            Planted::OldLookupsCount,
            Planted::EndWithoutFloor,
        ],
        least: &[
            ("writes_acknowledged", 10),
            ("conditional_acknowledged", 2),
            ("conditional_refused", 1),
            ("owners", 2),
            ("entries_removed", 1),
            ("ends_found", 20),
        ],
    },
    WorldKind {
        name: "fleet",
        run: fleet::run,
        planted: &[
            Planted::DropsUnannounced,
            Planted::OldViewsCount,
            Planted::EpochsReused,
            Planted::LatePutsStay,
            Planted::MarksIgnored,
        ],
        least: &[
            ("copies_dropped", 2),
            ("copies_damaged", 1),
            ("owners", 5),
            ("deaths", 2),
            ("writes_acknowledged", 300),
        ],
    },
    WorldKind {
        name: "stalls",
        run: fleet::run_with_full_disks,
        planted: &[
            Planted::StallMarksIgnored,
            Planted::StalledReadsAnswered,
            Planted::FullShardsWritten,
        ],
        least: &[
            ("disks_filled", 2),
            ("copies_stalled", 2),
            ("deaths", 1),
            ("reads_answered", 20),
            ("writes_acknowledged", 100),
        ],
    },
    WorldKind {
        name: "stores",
        run: fleet::run_with_lost_stores,
        planted: &[Planted::OthersIgnored, Planted::LossIgnored],
        least: &[("stores_lost", 5), ("logs_left", 1), ("owners", 5), ("writes_acknowledged", 100)],
    },
    WorldKind {
        name: "reads",
        run: reads::run,
        planted: &[Planted::BudgetGrows, Planted::LosersCount, Planted::NoTimers],
        least: &[("whole", 500), ("hedged_requests", 5), ("hedges_won", 1), ("retries", 5)],
    },
    WorldKind {
        name: "snapshots",
        run: snapshots::run,
        planted: &[Planted::SnapshotsById],
        least: &[
            ("snapshots_listed", 5),
            ("snapshots_removed", 2),
            ("floors_raised", 2),
            ("holders_stopped", 20),
        ],
    },
];

/// Sums over the worlds of one kind.
#[derive(Debug, Default)]
pub(crate) struct WorldTotals {
    pub(crate) seeds: u64,
    pub(crate) violations: u64,
    /// The first violation, with its seed.
    pub(crate) first: Option<String>,
    pub(crate) figures: BTreeMap<&'static str, u64>,
}

impl WorldTotals {
    /// Runs the worlds of `seeds`.
    pub(crate) fn of(kind: &WorldKind, seeds: Range<u64>) -> WorldTotals {
        let mut totals = WorldTotals::default();
        for seed in seeds {
            let WorldOutcome { violation, figures } = (kind.run)(seed, None);
            totals.add(WorldTotals {
                seeds: 1,
                violations: u64::from(violation.is_some()),
                first: violation.map(|why| format!("{} seed {seed}: {why}", kind.name)),
                figures: figures.into_iter().collect(),
            });
        }
        totals
    }

    /// Adds the totals of other seeds.
    pub(crate) fn add(&mut self, other: WorldTotals) {
        self.seeds += other.seeds;
        self.violations += other.violations;
        self.first = self.first.take().or(other.first);
        for (name, count) in other.figures {
            *self.figures.entry(name).or_default() += count;
        }
    }

    /// Returns the figures that are too small for the number of seeds.
    pub(crate) fn idle(&self, kind: &WorldKind) -> Vec<&'static str> {
        let figure = |name| self.figures.get(name).copied().unwrap_or(0);
        let idle = kind.least.iter().filter(|(name, least)| figure(name) < least * self.seeds);
        idle.map(|(name, _)| *name).collect()
    }
}

/// Returns the number of seeds, from 0, until one finds the mistake.
pub(crate) fn found_within(kind: &WorldKind, planted: Planted) -> Option<u64> {
    let is_found = |seed: &u64| (kind.run)(*seed, Some(planted)).violation.is_some();
    (0..SEEDS_PLANTED_MAX).find(is_found).map(|seed| seed + 1)
}
