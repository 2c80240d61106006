//! Holders that take snapshots of one shard, remove old ones and raise the floor of the log. Each
//! may be stopped between any two requests. The check of a mark and the write of a list are one
//! step.
//!
//! Rule: a snapshot at or above the floor always exists.

use std::collections::BTreeMap;

use cluster::{EntryNumber, SNAPSHOTS_KEPT, SnapshotRead, replaced_snapshots};

use super::numbers::Numbers;
use super::{Planted, WorldOutcome};

/// Holders that act as the first holder.
const HOLDERS: usize = 5;
/// Steps of all holders.
const STEPS: u64 = 600;
/// Seconds for which a snapshot stays, and after which a mark is stale.
const HOUR: u64 = 3600;
/// Ids of one second.
const IDS_A_SECOND: u64 = 1000;

/// A snapshot in the store. Its id is the time at which it began, or the next free one.
#[derive(Clone, Copy)]
struct ListedSnapshot {
    next: u64,
    listed_at: u64,
}

/// Next step of a holder.
#[derive(Clone)]
enum HolderStep {
    /// Reads the floor.
    Begin,
    /// Reads the snapshots, and ends if one is as new as its collection.
    Check { floor: u64 },
    /// Chooses an id, and puts its mark.
    Create { floor: u64 },
    /// Writes its list, unless its mark is stale.
    List { floor: u64, id: u64, next: u64, marked_at: u64 },
    /// Lists the ids.
    ListIds { floor: u64 },
    /// Reads the positions.
    Read { floor: u64, listed: Vec<u64> },
    /// Removes old snapshots.
    Remove { floor: u64, replaced: Vec<u64> },
    /// Reads the snapshots that stay.
    ReadKept { floor: u64 },
    /// Raises the floor of the log.
    Raise { next: u64 },
}

struct SnapshotHolder {
    /// Next entry of the log that its collection lacks.
    next: u64,
    step: HolderStep,
    wakes_at: u64,
}

struct SnapshotWorld {
    numbers: Numbers,
    planted: Option<Planted>,
    now: u64,
    end: u64,
    floor: u64,
    snapshots: BTreeMap<u64, ListedSnapshot>,
    listed: u64,
    removed: u64,
    raises: u64,
    stops: u64,
}

/// Runs the world of a seed.
pub(super) fn run(seed: u64, planted: Option<Planted>) -> WorldOutcome {
    let mut world = SnapshotWorld {
        numbers: Numbers::new(seed),
        planted,
        now: HOUR,
        end: 1,
        floor: 0,
        snapshots: BTreeMap::new(),
        listed: 0,
        removed: 0,
        raises: 0,
        stops: 0,
    };
    let mut holders: Vec<SnapshotHolder> = (0..HOLDERS)
        .map(|_| SnapshotHolder { next: 0, step: HolderStep::Begin, wakes_at: 0 })
        .collect();
    let mut violation = None;
    for _ in 0..STEPS {
        world.now += world.numbers.between(1, 200);
        if world.numbers.percent(25) {
            world.end += 5;
        }
        let at = world.numbers.below(HOLDERS as u64) as usize;
        if let Some(holder) = holders.get_mut(at) {
            world.advance(holder);
        }
        violation = violation.or_else(|| world.violation());
    }
    let figures = [
        ("snapshots_listed", world.listed),
        ("snapshots_removed", world.removed),
        ("floors_raised", world.raises),
        ("holders_stopped", world.stops),
    ];
    WorldOutcome { violation, figures: figures.into() }
}

impl SnapshotWorld {
    fn violation(&self) -> Option<String> {
        let is_lost =
            self.floor > 0 && self.snapshots.values().all(|snapshot| snapshot.next < self.floor);
        is_lost.then(|| format!("no snapshot is at or above the floor {}", self.floor))
    }

    /// Takes the next step of a holder, or stops it for hours.
    fn advance(&mut self, holder: &mut SnapshotHolder) {
        if holder.wakes_at > self.now {
            return;
        }
        // A late snapshot is one of a holder that was stopped before it chose an id.
        let percent = if matches!(holder.step, HolderStep::Create { .. }) { 40 } else { 4 };
        if self.numbers.percent(percent) {
            self.stops += 1;
            holder.wakes_at = self.now + self.numbers.between(HOUR / 4, 4 * HOUR);
            return;
        }
        let is_new = self.numbers.percent(50);
        if matches!(holder.step, HolderStep::Begin) && is_new {
            holder.next = self.end;
        }
        let step = std::mem::replace(&mut holder.step, HolderStep::Begin);
        holder.step = self.next_step(step, holder.next);
    }

    fn next_step(&mut self, step: HolderStep, own: u64) -> HolderStep {
        match step {
            HolderStep::Begin => HolderStep::Check { floor: self.floor },
            HolderStep::Check { floor } => {
                let is_newest = self.snapshots.values().all(|snapshot| snapshot.next < own);
                if own >= floor && is_newest {
                    HolderStep::Create { floor }
                } else {
                    HolderStep::Begin
                }
            }
            HolderStep::Create { floor } => {
                let newest = self.snapshots.last_key_value().map_or(0, |newest| *newest.0);
                let id = (newest + 1).max(self.now * IDS_A_SECOND);
                HolderStep::List { floor, id, next: own, marked_at: self.now }
            }
            HolderStep::List { marked_at, .. } if self.now - marked_at >= HOUR => HolderStep::Begin,
            HolderStep::List { floor, id, next, .. } => {
                self.listed += 1;
                self.snapshots.insert(id, ListedSnapshot { next, listed_at: self.now });
                HolderStep::ListIds { floor }
            }
            HolderStep::ListIds { floor } => {
                HolderStep::Read { floor, listed: self.snapshots.keys().copied().collect() }
            }
            HolderStep::Read { floor, listed } => {
                let replaced = self.replaced(&listed);
                HolderStep::Remove { floor, replaced }
            }
            HolderStep::Remove { floor, replaced } => {
                self.remove_expired(&replaced);
                HolderStep::ReadKept { floor }
            }
            HolderStep::ReadKept { floor } => {
                let oldest = self.snapshots.values().map(|snapshot| snapshot.next).min();
                match oldest {
                    Some(next) if next > floor && self.snapshots.len() >= SNAPSHOTS_KEPT => {
                        HolderStep::Raise { next }
                    }
                    _ => HolderStep::Begin,
                }
            }
            HolderStep::Raise { next } => {
                self.raises += u64::from(next > self.floor);
                self.floor = self.floor.max(next);
                HolderStep::Begin
            }
        }
    }

    fn replaced(&self, listed: &[u64]) -> Vec<u64> {
        if self.planted == Some(Planted::SnapshotsById) {
            return listed.to_vec();
        }
        let read = self.snapshots.iter();
        let read: Vec<SnapshotRead<'_, u64>> = read
            .map(|(id, snapshot)| SnapshotRead { id, next: EntryNumber(snapshot.next) })
            .collect();
        replaced_snapshots(listed, &read)
    }

    /// Removes the snapshots that a policy does not keep: it keeps the newest ids and those of the
    /// last hour.
    fn remove_expired(&mut self, replaced: &[u64]) {
        let kept = self.snapshots.len().saturating_sub(SNAPSHOTS_KEPT);
        let is_old = |(id, snapshot): (&u64, &ListedSnapshot)| {
            let began_at = (id / IDS_A_SECOND).min(snapshot.listed_at);
            (self.now - began_at > HOUR && replaced.contains(id)).then_some(*id)
        };
        let expired: Vec<u64> = self.snapshots.iter().take(kept).filter_map(is_old).collect();
        for id in expired {
            self.snapshots.remove(&id);
            self.removed += 1;
        }
    }
}
