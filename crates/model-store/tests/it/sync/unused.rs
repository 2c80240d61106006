//! Copies of stores that no server follows.

use std::time::SystemTime;

use super::*;

#[test]
fn copies_of_unused_stores_are_removed_first() {
    let setup = Setup::new();
    setup.publish("m", 1, &[1, 2]);
    let at = |name: &str| setup.dir.path().join(name).join("models");
    let open = |name: &str, bytes_max| {
        let source = StoreSource::new(&"s3://b/models".into(), &at(name), None);
        let config = MirrorConfig { bytes_max, ..config(Duration::from_millis(1)) };
        StoreMirror::with_places(config, vec![(source, setup.place("models"))]).unwrap()
    };
    open("old", u64::MAX).copy_first_now().unwrap();
    let mut used = open("used", u64::MAX);
    used.copy_first_now().unwrap();
    let mut next = open("next", 5 * MIB);
    next.copy_first_now().unwrap();
    let copies = |name: &str| at(name).join("m/1").exists();
    assert!(copies("old") && copies("next"), "both fit");
    setup.publish("m", 2, &[3, 4]);
    setup.publish("m", 3, &[5, 6]);
    assert!(next.sync_now().unwrap());
    assert!(!copies("old") && copies("next") && copies("used"));
    assert!(setup.dir.path().join("old/lock").exists());
    // A server that follows the store again waits for its copies.
    let mut again = open("old", u64::MAX);
    assert!(matches!(*again.first_copy().borrow(), FirstCopy::Running(_)));
    again.copy_first_now().unwrap();
    assert!(at("old").join("m/3").exists());
}

/// Caches of the same store in directories of their own, as those of several stores are.
struct Caches(Setup);

impl Caches {
    fn new() -> Caches {
        let caches = Caches(Setup::new());
        caches.0.publish("m", 1, &[1]);
        caches
    }

    fn models(&self, name: &str) -> PathBuf {
        self.0.dir.path().join(name).join("models")
    }

    fn source(&self, name: &str) -> StoreSource {
        StoreSource::new(&"s3://b/models".into(), &self.models(name), None)
    }

    /// Copies the store. Copies stay for a day after no server follows the store.
    fn copy(&self, name: &str) -> StoreMirror {
        let stores_dir = self.0.dir.path().to_owned();
        let config = MirrorConfig { stores_dir, ..config(Duration::from_millis(1)) };
        let places = vec![(self.source(name), self.0.place("models"))];
        let mut mirror = StoreMirror::with_places(config, places).unwrap();
        mirror.copy_first_now().unwrap();
        mirror
    }

    fn has_copies(&self, name: &str) -> bool {
        self.models(name).join("m/1/millpond.json").exists()
    }

    /// Moves the time at which a server followed the store back by `age`.
    fn age(&self, name: &str, age: Duration) {
        let mark = self.0.dir.path().join(name).join("followed");
        let mark = std::fs::File::options().write(true).open(mark).unwrap();
        mark.set_modified(SystemTime::now() - age).unwrap();
    }
}

#[test]
fn copies_of_unused_stores_are_removed_after_a_time() {
    let caches = Caches::new();
    drop(caches.copy("old"));
    drop(caches.copy("unmarked"));
    let used = caches.copy("used");
    used.remove_unused();
    assert!(caches.has_copies("old"), "its time has not passed");
    caches.age("old", 2 * DAY);
    caches.age("used", 2 * DAY);
    // Copies of a server that stored no time.
    let mark = caches.0.dir.path().join("unmarked/followed");
    std::fs::remove_file(&mark).unwrap();
    used.remove_unused();
    assert!(!caches.has_copies("old") && caches.has_copies("used"));
    assert!(caches.has_copies("unmarked") && mark.exists(), "its time begins");
}

#[test]
fn a_server_notes_that_it_follows_a_store() {
    let caches = Caches::new();
    let mut mirror = caches.copy("used");
    caches.age("used", 2 * DAY);
    caches.0.store.offline.store(true, Ordering::SeqCst);
    mirror.sync_now().unwrap_err();
    drop(mirror);
    caches.0.store.offline.store(false, Ordering::SeqCst);
    caches.copy("next").remove_unused();
    assert!(caches.has_copies("used"));
}

#[test]
fn unused_copies_stay_while_a_version_serves_from_them() {
    let caches = Caches::new();
    for name in ["old", "serving"] {
        drop(caches.copy(name));
        caches.age(name, 2 * DAY);
    }
    let (source, serving) = (caches.source("next"), caches.models("serving"));
    let next = caches.copy("next");
    let hooks = MirrorHooks {
        sources: Box::new(move || vec![source.clone()]),
        in_use: Box::new(move |dir: &Path, _: &str, _: u64| dir == serving),
        has_failed: Box::new(|_, _| false),
        report: Box::new(|_| {}),
    };
    let followed = FollowedStore::start(next, hooks, &metrics::StoreMetrics::default());
    followed.list();
    followed.thread.stop();
    assert!(caches.has_copies("serving") && !caches.has_copies("old"));
}
