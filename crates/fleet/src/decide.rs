//! Decisions about turns. Pure: the results depend on the arguments only.

use std::time::Duration;

use base::{Error, VersionId};
use lifecycle::TurnState;

use crate::FleetTimes;
use crate::keys::FleetSnapshot;

/// Reason of a wait before the version is due, and before etcd has answered for the first time.
pub(super) const FIRST_WAIT_REASON: &str = "it asks for a turn";
/// Maximum number of processes that the reason of a wait names.
const NAMES_MAX: usize = 3;

/// A version that a process wants to load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WaitingVersion {
    pub(super) id: VersionId,
    /// Time for which the process has wanted to load it; `None` if the process does not want to
    /// yet.
    pub(super) due: Option<Duration>,
    /// True if the process has a slot for it.
    pub(super) has_slot: bool,
}

/// Next step of a version that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TurnStep {
    /// The version is not loaded, for this reason.
    HoldBack(String),
    /// The version is loaded.
    Grant,
    /// One of these free slots is taken for the version.
    TakeSlot(Vec<u32>),
    /// The version waits, for this reason.
    Wait(String),
}

/// A process and the number of slots for each model.
#[derive(Clone, Debug)]
pub(super) struct TurnRules {
    pub(super) process: String,
    pub(super) concurrency: u32,
}

/// Returns the next step of a version. `snapshot` was read after the slot was taken, if there is
/// one. A process that fails holds the version back before it releases its slot.
pub(super) fn next_step(
    rules: &TurnRules,
    snapshot: &FleetSnapshot,
    waiting: &WaitingVersion,
) -> TurnStep {
    // A process whose files have changed since its own failure tries again.
    let hold = snapshot.holds.get(&waiting.id);
    if let Some(hold) = hold.filter(|hold| hold.process != rules.process) {
        return TurnStep::HoldBack(hold.to_string());
    }
    if let Some(process) = snapshot.ended_trial(&waiting.id, &rules.process) {
        return TurnStep::HoldBack(format!("{process} ended while it loaded the version"));
    }
    if waiting.due.is_none() {
        return TurnStep::Wait(FIRST_WAIT_REASON.to_owned());
    }
    if waiting.has_slot {
        return TurnStep::Grant;
    }
    let Some(taken) = snapshot.slots.get(&*waiting.id.model) else {
        return TurnStep::TakeSlot((0..rules.concurrency).collect());
    };
    let free: Vec<u32> = (0..rules.concurrency).filter(|slot| !taken.contains_key(slot)).collect();
    if !free.is_empty() {
        return TurnStep::TakeSlot(free);
    }
    let names: Vec<&str> = taken.values().map(|holder| holder.process.as_str()).collect();
    TurnStep::Wait(busy(&names))
}

fn busy(names: &[&str]) -> String {
    let shown = names.iter().take(NAMES_MAX).copied().collect::<Vec<_>>().join(", ");
    match (names.len(), names.len().saturating_sub(NAMES_MAX)) {
        (1, _) => format!("{shown} updates the model"),
        (_, 0) => format!("{shown} update the model"),
        (_, more) => format!("{shown} and {more} more update the model"),
    }
}

/// Returns the time until the next reading. Versions that have waited for long are checked less
/// often, so that a large fleet does not load etcd with requests.
pub(super) fn reading_pause(waiting: &[WaitingVersion], times: &FleetTimes) -> Duration {
    let newest = waiting.iter().filter_map(|version| version.due).min();
    newest.map_or(times.watch, |waited| (waited / 8).max(times.poll).min(times.watch))
}

/// Returns the state of a version that wants to load while requests to etcd have failed for
/// `silent`, the last one with `error`.
pub(super) fn without_etcd(silent: Duration, silence_max: Duration, error: &Error) -> TurnState {
    if silent >= silence_max {
        TurnState::Granted
    } else {
        TurnState::Waiting(format!(
            "{error}; without an answer, it is loaded without a turn {} s after the first request",
            silence_max.as_secs()
        ))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;
    use crate::keys::{SlotHolder, VersionHold};

    fn id(version: u64) -> VersionId {
        VersionId { model: "m".into(), version }
    }

    fn rules(concurrency: u32) -> TurnRules {
        TurnRules { process: "a".to_owned(), concurrency }
    }

    /// Slots of "m" that processes have.
    fn taken(processes: &[(u32, &str)]) -> FleetSnapshot {
        let mut snapshot = FleetSnapshot::default();
        let slots = snapshot.slots.entry("m".to_owned()).or_default();
        for (slot, process) in processes {
            slots.insert(*slot, SlotHolder { process: (*process).to_owned(), version: 2 });
        }
        snapshot
    }

    const DUE: WaitingState = WaitingState { due: true, has_slot: false };

    #[derive(Clone, Copy)]
    struct WaitingState {
        due: bool,
        has_slot: bool,
    }

    fn step(concurrency: u32, snapshot: &FleetSnapshot, state: WaitingState) -> TurnStep {
        let has_slot = state.has_slot;
        let due = state.due.then_some(Duration::ZERO);
        next_step(&rules(concurrency), snapshot, &WaitingVersion { id: id(2), due, has_slot })
    }

    #[test]
    fn free_slots_are_taken() {
        assert_eq!(step(2, &FleetSnapshot::default(), DUE), TurnStep::TakeSlot(vec![0, 1]));
        assert_eq!(step(2, &taken(&[(0, "b")]), DUE), TurnStep::TakeSlot(vec![1]));
        let mut other = taken(&[(0, "b")]);
        other.slots = [("n".to_owned(), other.slots["m"].clone())].into();
        assert_eq!(step(1, &other, DUE), TurnStep::TakeSlot(vec![0]), "of another model");
        // A process with a larger number has taken it.
        assert_eq!(step(1, &taken(&[(3, "b")]), DUE), TurnStep::TakeSlot(vec![0]));
    }

    #[test]
    fn full_slots_name_their_processes() {
        let wait = |count: u32, processes: &[(u32, &str)]| step(count, &taken(processes), DUE);
        let busy = |text: &str| TurnStep::Wait(text.to_owned());
        assert_eq!(wait(1, &[(0, "b")]), busy("b updates the model"));
        assert_eq!(wait(2, &[(0, "b"), (1, "c")]), busy("b, c update the model"));
        let five = [(0, "b"), (1, "c"), (2, "d"), (3, "e"), (4, "f")];
        assert_eq!(wait(5, &five), busy("b, c, d and 2 more update the model"));
    }

    #[test]
    fn a_slot_is_a_turn_unless_the_version_is_held_back() {
        let has_slot = WaitingState { due: true, has_slot: true };
        let mut snapshot = taken(&[(0, "a")]);
        assert_eq!(step(1, &snapshot, has_slot), TurnStep::Grant);
        let hold = VersionHold { process: "b".to_owned(), error: "bad".to_owned(), at: 0 };
        snapshot.holds.insert(id(2), hold.clone());
        let held = TurnStep::HoldBack(hold.to_string());
        assert_eq!(step(1, &snapshot, has_slot), held);
        assert_eq!(step(1, &snapshot, DUE), held);
        assert_eq!(step(1, &snapshot, WaitingState { due: false, has_slot: false }), held);
        // Of another version, or of this process.
        snapshot.holds = [(id(3), hold.clone())].into();
        assert_eq!(step(1, &snapshot, has_slot), TurnStep::Grant);
        snapshot.holds = [(id(2), VersionHold { process: "a".to_owned(), ..hold })].into();
        assert_eq!(step(1, &snapshot, has_slot), TurnStep::Grant);
    }

    #[test]
    fn a_process_that_ended_during_its_load_holds_back() {
        let trial = |version: u64, process: &str| {
            BTreeMap::from([(id(version), BTreeSet::from([process.to_owned()]))])
        };
        let mut snapshot = taken(&[(0, "b")]);
        snapshot.trials = trial(2, "b");
        assert_eq!(step(1, &snapshot, DUE), TurnStep::Wait("b updates the model".to_owned()));
        snapshot.slots = taken(&[(0, "c")]).slots;
        let held = TurnStep::HoldBack("b ended while it loaded the version".to_owned());
        for state in [DUE, WaitingState { due: false, ..DUE }] {
            assert_eq!(step(1, &snapshot, state), held);
        }
        // Of this process, or of another version.
        snapshot.slots.clear();
        snapshot.trials = trial(2, "a");
        assert_eq!(step(1, &snapshot, DUE), TurnStep::TakeSlot(vec![0]));
        snapshot.trials = trial(3, "b");
        assert_eq!(step(1, &snapshot, DUE), TurnStep::TakeSlot(vec![0]));
    }

    #[test]
    fn a_version_that_is_not_due_takes_no_slot() {
        let waits = WaitingState { due: false, has_slot: false };
        assert_eq!(
            step(1, &FleetSnapshot::default(), waits),
            TurnStep::Wait(FIRST_WAIT_REASON.to_owned())
        );
    }

    #[test]
    fn pauses_grow_with_the_wait() {
        let times = FleetTimes::default();
        let waiting = |due: Option<u64>| WaitingVersion {
            id: id(2),
            due: due.map(Duration::from_secs),
            has_slot: false,
        };
        let pause = |dues: &[Option<u64>]| {
            let waiting: Vec<WaitingVersion> = dues.iter().copied().map(waiting).collect();
            reading_pause(&waiting, &times)
        };
        assert_eq!(pause(&[None]), times.watch);
        assert_eq!(pause(&[Some(0)]), times.poll);
        assert_eq!(pause(&[Some(16), None]), Duration::from_secs(2));
        assert_eq!(pause(&[Some(3600)]), times.watch);
        assert_eq!(pause(&[Some(3600), Some(1)]), times.poll);
    }

    #[test]
    fn silence_ends_a_wait() {
        let error = Error::denied("etcd at a:1: permission denied");
        let limit = Duration::from_secs(60);
        let at = |seconds| without_etcd(Duration::from_secs(seconds), limit, &error);
        let TurnState::Waiting(reason) = at(59) else { panic!("59 s are within the limit") };
        assert!(reason.contains("60 s") && reason.contains("permission denied"), "{reason}");
        assert_eq!(at(60), TurnState::Granted);
    }
}
