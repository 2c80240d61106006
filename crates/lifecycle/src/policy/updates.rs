//! Updates that wait: the versions that need a turn, and the effects of the turn's state. Pure: the
//! results depend on the arguments only.

use std::collections::BTreeSet;

use super::{VersionView, choose};
use crate::VersionPolicy;
use crate::updates::TurnState;

/// Condition of a version that is not ready and has no load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UpdateNeed {
    /// The policy does not choose the version.
    NotChosen,
    /// The version is loaded without a turn, because no older version serves, or because its load
    /// began without one.
    FirstLoad,
    /// The version is loaded when its turn comes, since an older version serves.
    Turn,
}

/// Next step of an update.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum UpdateStep {
    Load,
    /// The version waits in the window (`--update-window`).
    WaitForWindow,
    /// The version waits for a turn, for this reason.
    WaitForTurn(String),
    /// The fleet does not load the version, for this reason.
    HoldBack(String),
}

/// Returns the versions that would be chosen if no update waited.
pub(crate) fn chosen_without_waits(policy: &VersionPolicy, views: &[VersionView]) -> BTreeSet<u64> {
    let free: Vec<VersionView> =
        views.iter().map(|view| VersionView { held: view.held && !view.waits, ..*view }).collect();
    choose(policy, &free).aspired
}

/// Returns the condition of a version of `views`. `chosen` are the versions without waits. `begun`
/// is true if an earlier load of it failed, or if it continues a rollout without a turn.
pub(crate) fn need(
    version: u64,
    chosen: &BTreeSet<u64>,
    views: &[VersionView],
    begun: bool,
) -> UpdateNeed {
    let older_serves = views.iter().any(|view| view.ready && view.version < version);
    if !chosen.contains(&version) {
        UpdateNeed::NotChosen
    } else if older_serves && !begun {
        UpdateNeed::Turn
    } else {
        UpdateNeed::FirstLoad
    }
}

/// Returns the next step of an update. `due` is true once it has waited for its part of the window.
/// `turn` is the state in the fleet, if it has turns.
pub(crate) fn step(due: bool, turn: Option<TurnState>) -> UpdateStep {
    match turn {
        Some(TurnState::HeldBack(reason)) => UpdateStep::HoldBack(reason),
        _ if !due => UpdateStep::WaitForWindow,
        Some(TurnState::Waiting(reason)) => UpdateStep::WaitForTurn(reason),
        None | Some(TurnState::Granted) => UpdateStep::Load,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(version: u64, ready: bool) -> VersionView {
        VersionView { version, ready, on_disk: true, ..VersionView::default() }
    }

    fn waiting(version: u64) -> VersionView {
        VersionView { held: true, waits: true, ..view(version, false) }
    }

    const LATEST: VersionPolicy = VersionPolicy::Latest(1);

    fn need_of(policy: &VersionPolicy, version: u64, views: &[VersionView]) -> UpdateNeed {
        need(version, &chosen_without_waits(policy, views), views, false)
    }

    #[test]
    fn updates_of_a_serving_model_take_turns() {
        assert_eq!(need_of(&LATEST, 2, &[view(1, true), view(2, false)]), UpdateNeed::Turn);
        assert_eq!(need_of(&LATEST, 2, &[view(1, true), waiting(2)]), UpdateNeed::Turn);
        assert_eq!(need_of(&LATEST, 2, &[view(1, false), view(2, false)]), UpdateNeed::FirstLoad);
        assert_eq!(need_of(&LATEST, 1, &[view(1, false), view(2, false)]), UpdateNeed::NotChosen);
    }

    #[test]
    fn a_newer_version_replaces_one_that_waits() {
        let views = [view(1, true), waiting(2), waiting(3)];
        assert_eq!(need_of(&LATEST, 2, &views), UpdateNeed::NotChosen);
        assert_eq!(need_of(&LATEST, 3, &views), UpdateNeed::Turn);
        let broken = VersionView { held: true, ..view(3, false) };
        assert_eq!(need_of(&LATEST, 2, &[view(1, true), waiting(2), broken]), UpdateNeed::Turn);
    }

    #[test]
    fn an_older_version_takes_no_turn() {
        let specific = VersionPolicy::Specific([1].into());
        assert_eq!(need_of(&specific, 1, &[view(1, false), view(2, true)]), UpdateNeed::FirstLoad);
        let two = VersionPolicy::Latest(2);
        assert_eq!(need_of(&two, 1, &[view(1, false), view(2, true)]), UpdateNeed::FirstLoad);
        assert_eq!(need_of(&two, 3, &[view(2, true), view(3, false)]), UpdateNeed::Turn);
    }

    #[test]
    fn versions_begun_without_a_turn_continue() {
        let views = [view(1, true), view(2, false)];
        let chosen = chosen_without_waits(&LATEST, &views);
        assert_eq!(need(2, &chosen, &views, true), UpdateNeed::FirstLoad);
        assert_eq!(need(2, &chosen, &views, false), UpdateNeed::Turn);
    }

    #[test]
    fn a_version_that_waits_leaves_the_old_one_chosen() {
        let choice = choose(&LATEST, &[view(1, true), waiting(2)]);
        assert_eq!(choice.aspired, [1].into());
        assert!(choice.awaits_held);
    }

    #[test]
    fn steps() {
        let turn = |text: &str| Some(TurnState::Waiting(text.to_owned()));
        let held = Some(TurnState::HeldBack("bad".to_owned()));
        for (due, state, wanted) in [
            (false, None, UpdateStep::WaitForWindow),
            (true, None, UpdateStep::Load),
            (false, turn("busy"), UpdateStep::WaitForWindow),
            (true, turn("busy"), UpdateStep::WaitForTurn("busy".to_owned())),
            (false, held.clone(), UpdateStep::HoldBack("bad".to_owned())),
            (true, held, UpdateStep::HoldBack("bad".to_owned())),
            (true, Some(TurnState::Granted), UpdateStep::Load),
        ] {
            assert_eq!(step(due, state.clone()), wanted, "{due} {state:?}");
        }
    }
}
