//! Other names of collections: changed all or none, and going over from one collection to another under writers.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base::ErrorKind;
use search::points::PointId;
use search::registry::{AliasChange, NamedCollection, RegistryOptions};

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
    let delete = AliasChange::Delete { alias: "nobody".into() };
    assert!(registry.change_aliases(&[create("now", "two"), delete]).is_err());
    assert_eq!(registry.get("now").unwrap().name(), "one");
    let rename = AliasChange::Rename { from: "old".into(), to: "older".into() };
    registry.change_aliases(&[create("now", "two"), rename]).unwrap();
    drop(registry);
    let registry = open(directory.path());
    let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
    assert_eq!(registry.aliases(), [pair("now", "two"), pair("older", "one")]);
}

#[test]
fn a_change_of_aliases_waits_for_a_write_as_long_as_it_may() {
    let directory = tempfile::tempdir().unwrap();
    let registry =
        open_with(RegistryOptions { alias_wait_max: Duration::from_millis(20), ..options(directory.path()) });
    registry.create("one", settings()).unwrap();
    let change = [AliasChange::Create { alias: "now".into(), collection: "one".into() }];
    let writing = registry.writing("one").unwrap();
    let refused = registry.change_aliases(&change).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unavailable);
    assert!(refused.retry_after().is_some() && registry.aliases().is_empty());
    // It has left nothing that would keep others out.
    put(&registry.writing("one").unwrap(), &[got(id(1), 1)]).unwrap();
    drop(writing);
    registry.change_aliases(&change).unwrap();
    assert_eq!(registry.get("now").unwrap().name(), "one");
}

/// Two threads write under an alias while it goes over to a copy: each write that was acknowledged is in the copy, or was
/// made after the switch.
#[test]
fn an_alias_goes_over_without_losing_a_write() {
    const BURST: u64 = 3;
    /// After so many they wait for the switch, which may never find a quiet moment on a slow machine otherwise.
    const BURSTS: u64 = 20;
    let directory = tempfile::tempdir().unwrap();
    let registry = open(directory.path());
    let create =
        |collection: &str| AliasChange::Create { alias: "now".into(), collection: collection.into() };
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
                        put(&registry.writing("now").unwrap(), &[got(id(2 * number + thread), 1)]).unwrap();
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
            let missing: Vec<_> =
                all(&old, None, 1000).into_iter().filter(|point| !there.contains(&point.id)).collect();
            put(&new, &missing).unwrap();
            if registry.change_aliases_if(&[create("new")], || old.generation() == seen).unwrap() {
                break;
            }
        }
        switched.store(true, Ordering::Release);
    });
    let old = ids(&old);
    let new = ids(&new);
    assert!(!old.is_empty() && old.iter().all(|id| new.contains(id)), "{} of {}", new.len(), old.len());
    assert!(new.len() as u64 >= old.len() as u64 + 2 * BURST, "writes go on after the switch");
}

fn ids(named: &NamedCollection) -> Vec<PointId> {
    all(named, None, 1000).into_iter().map(|point| point.id).collect()
}

#[test]
fn an_alias_of_a_collection_that_is_gone_does_not_come_back() {
    let directory = tempfile::tempdir().unwrap();
    let registry = open(directory.path());
    registry.create("two", settings()).unwrap();
    let change = [AliasChange::Create { alias: "now".into(), collection: "two".into() }];
    registry.change_aliases(&change).unwrap();
    drop(registry);
    // The power was lost between the removal of the collection and that of its aliases.
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
    // Nor does it hide the collection where the file says so.
    std::fs::write(directory.path().join(".aliases"), written).unwrap();
    let registry = open(directory.path());
    assert_eq!(registry.get("now").unwrap().name(), "now");
}
