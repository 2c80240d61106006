//! Choice of the versions that should serve, and the next step towards them. Pure: the result
//! depends on the arguments only.

pub(crate) mod rollout;
pub(crate) mod updates;

use std::collections::BTreeSet;

use crate::{Transition, VersionPolicy};

/// State of one version, as far as decisions depend on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct VersionView {
    pub(crate) version: u64,
    pub(crate) on_disk: bool,
    /// True if the version cannot be loaded now: incomplete, failed, or waiting for a try or its
    /// turn.
    pub(crate) held: bool,
    /// True if the version is held only because its turn in the fleet has not come.
    pub(crate) waits: bool,
    pub(crate) ready: bool,
    /// True if a load of it is queued or running.
    pub(crate) loading: bool,
    /// True if an instance of it waits for its last user or is being released.
    pub(crate) releasing: bool,
    /// True if an administrator requested this version by number.
    pub(crate) pinned: bool,
    /// True if an administrator requested another load of it.
    pub(crate) reload: bool,
    /// True if the version must be converted before the load. A conversion needs no memory of the
    /// versions that serve.
    pub(crate) foreign: bool,
    /// True if the load that is queued or running only converts it.
    pub(crate) converting: bool,
    /// True if a rollout or an administrator withdrew it. Then it is held too.
    pub(crate) withdrawn: bool,
    /// True if the version must stay ready, since a rollout compares it with another version.
    pub(crate) kept: bool,
    /// True if this was the stable version of a rollout when the server last stopped. It is then
    /// loaded before the others.
    pub(crate) resumes: bool,
}

/// Versions that should serve.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ChosenVersions {
    /// Versions that should be ready, all of them loadable or loaded.
    pub(crate) aspired: BTreeSet<u64>,
    /// True if a held version would be chosen otherwise, also a withdrawn one that still serves.
    /// Versions that serve are then kept until another one is chosen.
    pub(crate) awaits_held: bool,
}

/// Next step of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ModelAction {
    Load(u64),
    Unload(u64),
}

/// Chooses among the versions on disk. A held version is skipped, so that the one before it serves.
pub(crate) fn choose(policy: &VersionPolicy, views: &[VersionView]) -> ChosenVersions {
    let wanted =
        |view: &&VersionView| view.on_disk && (view.pinned || allowed(policy, view.version));
    let usable = |view: &&VersionView| (view.ready && !view.withdrawn) || !view.held;
    let candidates = || views.iter().filter(wanted).filter(usable);
    let mut aspired: BTreeSet<u64> = candidates().map(|view| view.version).collect();
    if let VersionPolicy::Latest(count) = policy {
        let first = aspired.iter().rev().nth((*count).max(1) - 1).copied().unwrap_or(0);
        aspired.retain(|version| *version >= first);
        aspired.extend(candidates().filter(|view| view.pinned).map(|view| view.version));
    }
    aspired.extend(views.iter().filter(|view| view.kept && view.ready).map(|view| view.version));
    let resumes = |view: &&VersionView| view.resumes && view.on_disk && (view.ready || !view.held);
    aspired.extend(views.iter().filter(resumes).map(|view| view.version));
    ChosenVersions {
        aspired,
        awaits_held: views
            .iter()
            .filter(wanted)
            .any(|view| view.held && (!view.ready || view.withdrawn)),
    }
}

/// Returns true if `policy` may select `version`.
pub(crate) fn allowed(policy: &VersionPolicy, version: u64) -> bool {
    match policy {
        VersionPolicy::Latest(_) | VersionPolicy::All => true,
        VersionPolicy::Specific(versions) => versions.contains(&version),
    }
}

/// Returns the next step towards `choice`, if one is possible now. A model has one load at a time.
pub(crate) fn plan(
    transition: Transition,
    views: &[VersionView],
    choice: &ChosenVersions,
) -> Option<ModelAction> {
    match transition {
        Transition::AvailabilityPreserving => plan_availability(views, choice),
        Transition::ResourcePreserving => plan_resource(views, choice),
    }
}

/// Returns the next action for a model that keeps its old versions until the new ones are ready.
fn plan_availability(views: &[VersionView], choice: &ChosenVersions) -> Option<ModelAction> {
    let ready = views.iter().filter(|view| view.ready).count();
    let complete =
        views.iter().filter(|view| choice.aspired.contains(&view.version)).all(|view| view.ready);
    let surplus = ready > choice.aspired.len().max(1);
    if (surplus || (complete && may_empty(choice)))
        && let Some(version) = next_unwanted(views, choice)
    {
        return Some(ModelAction::Unload(version));
    }
    if views.iter().any(|view| view.loading) {
        return None;
    }
    let reload = || views.iter().rev().find(|view| needs_reload(view)).map(|view| view.version);
    highest_missing(views, choice).or_else(reload).map(ModelAction::Load)
}

/// Converts a foreign version before any other version is unloaded for it. The gap is then as long
/// as a load, and there is none if the conversion fails.
fn plan_resource(views: &[VersionView], choice: &ChosenVersions) -> Option<ModelAction> {
    let reload = || views.iter().find(|view| needs_reload(view)).map(|view| view.version);
    let missing = highest_missing(views, choice);
    if views.iter().any(|view| view.converting) {
        return None;
    }
    let foreign = |version: &u64| views.iter().any(|view| view.version == *version && view.foreign);
    if views.iter().any(|view| view.ready)
        && !views.iter().any(|view| view.loading)
        && let Some(version) = missing.or_else(reload).filter(foreign)
    {
        return Some(ModelAction::Load(version));
    }
    if may_empty(choice)
        && let Some(version) = next_unwanted(views, choice).or_else(reload)
    {
        return Some(ModelAction::Unload(version));
    }
    if views.iter().any(|view| view.loading || view.releasing) {
        return None;
    }
    missing.map(ModelAction::Load)
}

/// Returns true if versions that are not chosen may be unloaded without a replacement.
fn may_empty(choice: &ChosenVersions) -> bool {
    !choice.aspired.is_empty() || !choice.awaits_held
}

fn needs_reload(view: &VersionView) -> bool {
    view.ready && view.reload && view.on_disk && !view.held && !view.loading
}

/// Returns the version to unload next: a withdrawn one before the lowest of the others.
fn next_unwanted(views: &[VersionView], choice: &ChosenVersions) -> Option<u64> {
    let unwanted = |view: &&VersionView| view.ready && !choice.aspired.contains(&view.version);
    let unwanted = views.iter().filter(unwanted);
    unwanted.min_by_key(|view| (!view.withdrawn, view.version)).map(|view| view.version)
}

fn highest_missing(views: &[VersionView], choice: &ChosenVersions) -> Option<u64> {
    let missing = |view: &&VersionView| {
        choice.aspired.contains(&view.version)
            && !view.ready
            && !view.loading
            && !view.held
            && !view.releasing
    };
    let missing = views.iter().filter(missing);
    missing.max_by_key(|view| (view.resumes, view.version)).map(|view| view.version)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn views(text: &str) -> Vec<VersionView> {
        text.split_whitespace()
            .map(|word| {
                let (number, flags) =
                    word.split_at(word.find(|c: char| !c.is_ascii_digit()).unwrap_or(word.len()));
                VersionView {
                    version: number.parse().unwrap(),
                    on_disk: !flags.contains('g'),
                    held: flags.contains('h'),
                    ready: flags.contains('r'),
                    loading: flags.contains('l'),
                    releasing: flags.contains('d'),
                    pinned: flags.contains('p'),
                    reload: flags.contains('a'),
                    foreign: flags.contains('f'),
                    converting: flags.contains('c'),
                    withdrawn: flags.contains('w'),
                    kept: flags.contains('k'),
                    resumes: flags.contains('s'),
                    waits: false,
                }
            })
            .collect()
    }

    /// Checks the next step for the versions of `state`, which are numbers followed by letters:
    /// * r ready, h held, l loading, d draining, g removed from disk, p pinned.
    /// * a load again, f foreign, c converting, w withdrawn.
    /// * k kept for a rollout, s stable before a restart.
    #[track_caller]
    fn check(
        policy: VersionPolicy,
        transition: Transition,
        state: &str,
        expected: Option<ModelAction>,
    ) {
        let views = views(state);
        assert_eq!(plan(transition, &views, &choose(&policy, &views)), expected, "{state}");
    }

    use ModelAction::{Load, Unload};
    use Transition::{AvailabilityPreserving as Available, ResourcePreserving as Resource};

    #[test]
    fn availability_loads_first() {
        let check = |state, expected| check(VersionPolicy::Latest(1), Available, state, expected);
        check("1 2", Some(Load(2)));
        check("1r 2", Some(Load(2)));
        check("1r 2l", None);
        check("1r 2r", Some(Unload(1)));
        check("1r 2h", None);
        check("1 2h", Some(Load(1)));
        check("1 2rg", Some(Load(1)));
        check("1r 2rg", Some(Unload(2)));
        check("1rg", Some(Unload(1)));
        check("1rg 2h", None);
        check("1r 2r 3", Some(Unload(1)));
        check("1rp 2", Some(Load(2)));
        check("1p 2r", Some(Load(1)));
        check("1ra", Some(Load(1)));
        check("1d", None);
    }

    #[test]
    fn a_rollout_keeps_both_versions() {
        let check = |state, expected| check(VersionPolicy::Latest(1), Available, state, expected);
        check("1rk 2r", None);
        check("1rkg 2r", None);
        check("1rk 2r 3", Some(Load(3)));
        check("1rk 2r 3r", Some(Unload(2)));
        check("1rk 2rg", Some(Unload(2)));
        check("1r 2rhw", Some(Unload(2)));
        check("1r 2hw", None);
        check("1 2rhw", Some(Load(1)));
        check("1h 2rhw", None);
        check("1g 2rhw", None);
        check("2rhw", None);
        check("2rhwg", Some(Unload(2)));
        check("2rhw 3", Some(Load(3)));
        check("2rhw 3r", Some(Unload(2)));
        check("1rg 2rhw", Some(Unload(2)));
        check("1rg 2hw", None);
    }

    #[test]
    fn a_restart_loads_the_stable_version_first() {
        let check = |state, expected| check(VersionPolicy::Latest(1), Available, state, expected);
        check("1s 2", Some(Load(1)));
        check("1sl 2", None);
        check("1sr 2", Some(Load(2)));
        check("1sr 2l", None);
        check("1sr 2r", None);
        check("1sh 2", Some(Load(2)));
        check("1shw 2", Some(Load(2)));
        check("1sg 2", Some(Load(2)));
    }

    #[test]
    fn resource_unloads_first() {
        let check = |state, expected| check(VersionPolicy::Latest(1), Resource, state, expected);
        check("1r 2", Some(Unload(1)));
        check("1d 2", None);
        check("1 2", Some(Load(2)));
        check("1r 2h", None);
        check("1ra", Some(Unload(1)));
        check("1rg 2h", None);
        check("2rhw", None);
        check("2rhw 3", Some(Unload(2)));
    }

    #[test]
    fn foreign_versions_are_converted_before_an_unload() {
        let check = |state, expected| check(VersionPolicy::Latest(1), Resource, state, expected);
        check("1r 2f", Some(Load(2)));
        check("1r 2flc", None);
        check("1r 2", Some(Unload(1)));
        check("1r 2fh", None);
        check("1raf", Some(Load(1)));
        check("1rflc", None);
        check("1ra", Some(Unload(1)));
        check("1f", Some(Load(1)));
        check("1d 2f", None);
        check("1rg 2l 3f", Some(Unload(1)));
    }

    #[test]
    fn several_versions() {
        check(VersionPolicy::Latest(2), Available, "1r 2r 3", Some(Load(3)));
        check(VersionPolicy::Latest(2), Available, "1r 2r 3r", Some(Unload(1)));
        check(VersionPolicy::All, Available, "1 2r 3", Some(Load(3)));
        check(VersionPolicy::Specific([2, 7].into()), Available, "1r 2 3", Some(Load(2)));
        check(VersionPolicy::Specific([7].into()), Available, "1r 2 3", Some(Unload(1)));
        check(VersionPolicy::Specific([2].into()), Available, "1r 2h", None);
    }

    #[derive(Clone, Debug)]
    enum Happens {
        Appears(u64),
        Vanishes(u64),
        Breaks(u64),
        Heals(u64),
        LoadEnds(bool),
        ReleaseEnds,
        Policy(usize),
        Again(u64),
    }

    fn happens() -> impl Strategy<Value = Happens> {
        let version = || 1u64..6;
        prop_oneof![
            version().prop_map(Happens::Appears),
            version().prop_map(Happens::Vanishes),
            version().prop_map(Happens::Breaks),
            version().prop_map(Happens::Heals),
            any::<bool>().prop_map(Happens::LoadEnds),
            Just(Happens::ReleaseEnds),
            (0usize..4).prop_map(Happens::Policy),
            version().prop_map(Happens::Again),
        ]
    }

    /// A model whose loads and releases end when the test says so.
    struct World {
        views: Vec<VersionView>,
        policy: VersionPolicy,
    }

    impl World {
        fn happen(&mut self, event: &Happens) {
            let views = &mut self.views;
            let at = |version: &u64| *version as usize - 1;
            match event {
                Happens::Appears(version) => views[at(version)].on_disk = true,
                Happens::Vanishes(version) => views[at(version)].on_disk = false,
                Happens::Breaks(version) => {
                    let view = &mut views[at(version)];
                    view.held = !view.ready && !view.loading;
                }
                Happens::Heals(version) => views[at(version)].held = false,
                Happens::LoadEnds(well) => {
                    for view in views.iter_mut().filter(|view| view.loading) {
                        let converted = view.converting && *well;
                        view.held = !well && !view.ready;
                        view.reload = converted && view.ready;
                        view.ready |= *well && !view.converting;
                        // The load after a conversion uses it up.
                        view.foreign = view.version % 2 == 0 && !converted;
                        (view.loading, view.converting) = (false, false);
                    }
                }
                Happens::ReleaseEnds => views.iter_mut().for_each(|view| view.releasing = false),
                Happens::Policy(0) => self.policy = VersionPolicy::All,
                Happens::Policy(count) => self.policy = VersionPolicy::Latest(*count),
                Happens::Again(version) => views[at(version)].reload = views[at(version)].ready,
            }
        }

        /// Takes every step that may be taken, and checks each.
        fn settle(&mut self, transition: Transition) -> Result<(), TestCaseError> {
            for step in 0.. {
                prop_assert!(step < 100, "no end of steps: {:?}", self.views);
                let choice = choose(&self.policy, &self.views);
                let Some(action) = plan(transition, &self.views, &choice) else { return Ok(()) };
                match action {
                    ModelAction::Load(version) => {
                        prop_assert!(
                            self.views.iter().all(|view| !view.loading),
                            "two loads at a time"
                        );
                        let converting =
                            transition == Resource && self.views.iter().any(|view| view.ready);
                        let view = &mut self.views[version as usize - 1];
                        prop_assert!(view.on_disk && !view.held);
                        (view.loading, view.converting) = (true, converting && view.foreign);
                        // Unloading comes first: a load never brings more instances than were
                        // chosen.
                        let takes = |v: &&VersionView| {
                            v.ready || (v.loading && !v.converting) || v.releasing
                        };
                        let live = self.views.iter().filter(takes).count();
                        let converting = self.views.iter().any(|view| view.converting);
                        prop_assert!(
                            transition == Available || converting || live <= choice.aspired.len()
                        );
                    }
                    ModelAction::Unload(version) => {
                        let view = &mut self.views[version as usize - 1];
                        prop_assert!(view.ready);
                        (view.ready, view.releasing, view.reload) = (false, true, false);
                    }
                }
            }
            Ok(())
        }
    }

    fn world() -> World {
        let view =
            |version| VersionView { version, foreign: version % 2 == 0, ..VersionView::default() };
        let views = (1..6).map(view).collect();
        World { views, policy: VersionPolicy::Latest(1) }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn availability_is_preserved(events in proptest::collection::vec(happens(), 1..60)) {
            let mut world = world();
            for event in &events {
                let had: Vec<u64> = world.views.iter().filter(|v| v.ready).map(|v| v.version).collect();
                world.happen(event);
                world.settle(Transition::AvailabilityPreserving)?;
                // A model that had an answer keeps one, unless no version is left on disk at all.
                let left = world.views.iter().any(|view| view.on_disk);
                let ready = world.views.iter().any(|view| view.ready);
                prop_assert!(had.is_empty() || ready || !left, "{event:?} left {:?}", world.views);
            }
        }

        #[test]
        fn resources_are_preserved(events in proptest::collection::vec(happens(), 1..60)) {
            let mut world = world();
            for event in &events {
                world.happen(event);
                world.settle(Transition::ResourcePreserving)?;
            }
        }

        #[test]
        fn rest_is_reached(events in proptest::collection::vec(happens(), 1..40), resource in any::<bool>()) {
            let transition = if resource { Resource } else { Available };
            let mut world = world();
            for event in &events {
                world.happen(event);
                world.settle(transition)?;
            }
            for _ in 0..20 {
                world.happen(&Happens::LoadEnds(true));
                world.happen(&Happens::ReleaseEnds);
                world.settle(transition)?;
            }
            // When everything loads, exactly what the policy chose is ready.
            let choice = choose(&world.policy, &world.views);
            let ready: BTreeSet<u64> = world.views.iter().filter(|v| v.ready).map(|v| v.version).collect();
            prop_assert!(ready == choice.aspired || (choice.aspired.is_empty() && choice.awaits_held));
        }
    }
}
