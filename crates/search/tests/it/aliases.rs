//! Aliases: changed all or none, and switched between collections under concurrent writes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base::ErrorKind;
use search::points::PointId;
use search::registry::{AliasChange, NamedCollection, RegistryOptions};

use crate::points::TIMEOUT;
use crate::registry::{all, got, id, open, open_with, options, put, settings};

#[test]
fn aliases_change_all_or_none_and_survive() {
    let directory = tempfile::tempdir().unwrap();
    let registry = open(directory.path());
    for name in ["one", "two"] {
        registry.create(name, settings()).unwrap();
    }
    let create = |alias: &str, collection: &str| AliasChange::Create {
        alias: alias.into(),
        collection: collection.into(),
    };
    registry.change_aliases(&[create("now", "one"), create("old", "one")]).unwrap();
    let missing = AliasChange::Rename { from: "absent".into(), to: "present".into() };
    assert!(registry.change_aliases(&[create("now", "two"), missing]).is_err());
    assert_eq!(registry.get("now").unwrap().name(), "one");
    let rename = AliasChange::Rename { from: "old".into(), to: "older".into() };
    registry.change_aliases(&[create("now", "two"), rename]).unwrap();
    drop(registry);
    let registry = open(directory.path());
    let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
    assert_eq!(registry.aliases(), [pair("now", "two"), pair("older", "one")]);
}

#[test]
fn an_alias_change_waits_for_writes() {
    let directory = tempfile::tempdir().unwrap();
    let registry = open_with(RegistryOptions {
        alias_wait_max: Duration::from_millis(20),
        ..options(directory.path())
    });
    registry.create("one", settings()).unwrap();
    let change = [AliasChange::Create { alias: "now".into(), collection: "one".into() }];
    let writing = registry.writing("one").unwrap();
    let refused = registry.change_aliases(&change).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unavailable);
    assert!(refused.retry_after().is_some() && registry.aliases().is_empty());
    // The failed change left no lock behind.
    put(&registry.writing("one").unwrap(), &[got(id(1), 1)]).unwrap();
    drop(writing);
    registry.change_aliases(&change).unwrap();
    assert_eq!(registry.get("now").unwrap().name(), "one");
}

/// Two threads write under an alias while it switches to a copy. Each acknowledged write is in the
/// copy, or was made after the switch.
#[test]
fn an_alias_switch_loses_no_write() {
    const BURST: u64 = 3;
    /// After this many bursts the writers wait for the switch, which might never find a quiet
    /// moment on a slow machine.
    const BURSTS: u64 = 20;
    let directory = tempfile::tempdir().unwrap();
    // A writer may be paused while it holds the lock of writes.
    let registry =
        open_with(RegistryOptions { alias_wait_max: TIMEOUT, ..options(directory.path()) });
    let create = |collection: &str| AliasChange::Create {
        alias: "now".into(),
        collection: collection.into(),
    };
    let old = registry.create("old", settings()).unwrap();
    let new = registry.create("new", settings()).unwrap();
    registry.change_aliases(&[create("old")]).unwrap();
    let switched = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let registry = &registry;
            let switched = &switched;
            scope.spawn(move || {
                for burst in 0.. {
                    let last = switched.load(Ordering::Acquire);
                    for number in burst * BURST..(burst + 1) * BURST {
                        put(&registry.writing("now").unwrap(), &[got(id(2 * number + thread), 1)])
                            .unwrap();
                    }
                    if last {
                        break;
                    }
                    std::thread::sleep(Duration::from_millis(20));
                    while burst >= BURSTS && !switched.load(Ordering::Acquire) {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                }
            });
        }
        while ids(&old).len() < BURST as usize {
            std::thread::sleep(Duration::from_millis(1));
        }
        loop {
            let seen = old.generation();
            let there = ids(&new);
            let missing: Vec<_> = all(&old, None, 1000)
                .into_iter()
                .filter(|point| !there.contains(&point.id))
                .collect();
            put(&new, &missing).unwrap();
            if registry.change_aliases_if(&[create("new")], || old.generation() == seen).unwrap() {
                break;
            }
        }
        switched.store(true, Ordering::Release);
    });
    let old = ids(&old);
    let new = ids(&new);
    assert!(
        !old.is_empty() && old.iter().all(|id| new.contains(id)),
        "{} of {}",
        new.len(),
        old.len()
    );
    assert!(new.len() as u64 >= old.len() as u64 + 2 * BURST, "writes go on after the switch");
}

fn ids(named: &NamedCollection) -> Vec<PointId> {
    all(named, None, 1000).into_iter().map(|point| point.id).collect()
}

#[test]
fn aliases_of_removed_collections_stay_removed() {
    let directory = tempfile::tempdir().unwrap();
    let registry = open(directory.path());
    registry.create("two", settings()).unwrap();
    let change = [AliasChange::Create { alias: "now".into(), collection: "two".into() }];
    registry.change_aliases(&change).unwrap();
    drop(registry);
    // Power was lost between the removal of the collection and that of its aliases.
    let written = std::fs::read(directory.path().join(".aliases")).unwrap();
    std::fs::remove_dir_all(directory.path().join("two")).unwrap();
    let registry = open(directory.path());
    assert!(registry.aliases().is_empty());
    registry.create("now", settings()).unwrap();
    registry.create("two", settings()).unwrap();
    drop(registry);
    let registry = open(directory.path());
    assert!(registry.aliases().is_empty());
    assert_eq!(registry.get("now").unwrap().name(), "now");
    drop(registry);
    // It does not hide a collection of the same name either.
    std::fs::write(directory.path().join(".aliases"), written).unwrap();
    let registry = open(directory.path());
    assert_eq!(registry.get("now").unwrap().name(), "now");
}
