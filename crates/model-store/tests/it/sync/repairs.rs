//! Damaged copies, and copies whose version has failed.

use millpond_model_store::{HasFailed, InUse};

use super::*;

#[test]
fn a_copy_without_a_part_is_fetched_again() {
    let setup = Setup::new();
    let local = setup.publish("m", 1, &[1, 2]);
    setup.mirror().copy_first_now().unwrap();
    for damage in ["truncated", "removed"] {
        let weights = setup.copy("m/1/weights.bin");
        if damage == "removed" {
            std::fs::remove_file(&weights).unwrap();
        } else {
            std::fs::File::options().write(true).open(&weights).unwrap().set_len(MIB).unwrap();
        }
        assert!(setup.mirror().sync_now().unwrap());
        assert_same(&local, &setup.copy("m/1"));
    }
}

#[test]
fn a_damaged_copy_is_fetched_again_if_it_cannot_be_loaded() {
    let setup = Setup::new();
    let local = setup.publish("m", 1, &[1, 2]);
    let mut mirror = setup.polling(Duration::from_secs(3600));
    mirror.copy_first_now().unwrap();
    let weights = setup.copy("m/1/weights.bin");
    let mut content = std::fs::read(&weights).unwrap();
    content[5] ^= 1;
    std::fs::write(&weights, content).unwrap();
    setup.reset();
    assert!(mirror.sync_now().unwrap());
    assert_eq!(setup.store.gets.load(Ordering::SeqCst), 0, "it has the right lengths");
    let hooks = MirrorHooks {
        sources: Box::new(sources_of(&setup)),
        in_use: Box::new(|_, _, _| false),
        has_failed: Box::new(|_, _| true),
        report: Box::new(|_| {}),
    };
    let followed = FollowedStore::start(mirror, hooks, &metrics::StoreMetrics::default());
    followed.list();
    assert_same(&local, &setup.copy("m/1"));
    // Its load may fail for another reason.
    setup.reset();
    followed.list();
    assert_eq!(setup.store.gets.load(Ordering::SeqCst), 0);
    followed.thread.stop();
}

/// Lists a store twice. `in_use` and `has_failed` are the hooks of its mirror.
fn list_twice(setup: &Setup, mirror: StoreMirror, in_use: InUse, has_failed: HasFailed) {
    let sources = Box::new(sources_of(setup));
    let hooks = MirrorHooks { sources, in_use, has_failed, report: Box::new(|_| {}) };
    let followed = FollowedStore::start(mirror, hooks, &metrics::StoreMetrics::default());
    for _ in 0..2 {
        followed.list();
    }
    followed.thread.stop();
}

/// Returns which of the versions 1 to 4 are copied if those from `first_failed` on have failed.
fn copied_with_failures(first_failed: u64) -> [bool; 4] {
    let setup = Setup::new();
    (1..=4).for_each(|version| drop(setup.publish("m", version, &[1])));
    let mut mirror = setup.polling(Duration::from_secs(3600));
    mirror.copy_first_now().unwrap();
    let has_failed = Box::new(move |_: &str, version: u64| version >= first_failed);
    list_twice(&setup, mirror, Box::new(|_, _, _| false), has_failed);
    [1, 2, 3, 4].map(|version| setup.copy(&format!("m/{version}")).exists())
}

#[test]
fn an_earlier_version_is_copied_if_the_newest_has_failed() {
    assert_eq!(copied_with_failures(5), [false, false, false, true]);
    assert_eq!(copied_with_failures(4), [false, false, true, true]);
    // Not the whole history, if all fail for the same reason.
    assert_eq!(copied_with_failures(1), [false, true, true, true]);
}

/// An earlier version that was withdrawn, and whose copy was removed, must not come back.
#[test]
fn no_earlier_version_is_copied_while_one_serves() {
    let setup = Setup::new();
    setup.publish("m", 1, &[1]);
    let mut mirror = setup.polling(Duration::from_secs(3600));
    mirror.copy_first_now().unwrap();
    setup.publish("m", 2, &[1]);
    setup.publish("m", 3, &[1]);
    let in_use = Box::new(|_: &Path, _: &str, version: u64| version == 1);
    list_twice(&setup, mirror, in_use, Box::new(|_, version| version == 3));
    let copied = [1, 2, 3].map(|version| setup.copy(&format!("m/{version}")).exists());
    assert_eq!(copied, [true, false, true]);
}

#[test]
fn a_new_version_is_copied_before_a_failed_one_is_checked() {
    let setup = Setup::new();
    setup.publish("m", 1, &[1]);
    let mut mirror = setup.polling(Duration::from_secs(3600));
    mirror.copy_first_now().unwrap();
    setup.publish("m", 2, &[1]);
    let new = setup.copy("m/2");
    let (checks, checked) = mpsc::channel();
    let has_failed = Box::new(move |_: &str, version: u64| {
        if version == 1 {
            checks.send(new.exists()).unwrap();
        }
        version == 1
    });
    list_twice(&setup, mirror, Box::new(|_, _, _| false), has_failed);
    assert_eq!(checked.try_iter().next(), Some(true));
}

#[test]
fn a_damaged_copy_is_fetched_again_three_times() {
    let setup = Setup::new();
    setup.publish("m", 1, &[1, 2]);
    let mut mirror = setup.polling(Duration::from_secs(3600));
    mirror.copy_first_now().unwrap();
    let has_failed = Arc::new(AtomicBool::new(false));
    let failed = has_failed.clone();
    let hooks = MirrorHooks {
        sources: Box::new(sources_of(&setup)),
        in_use: Box::new(|_, _, _| false),
        has_failed: Box::new(move |_, _| failed.load(Ordering::SeqCst)),
        report: Box::new(|_| {}),
    };
    let followed = FollowedStore::start(mirror, hooks, &metrics::StoreMetrics::default());
    let weights = setup.copy("m/1/weights.bin");
    let whole = std::fs::read(&weights).unwrap();
    let mut damaged = whole.clone();
    damaged[5] ^= 1;
    for repairs in 0..4 {
        has_failed.store(false, Ordering::SeqCst);
        followed.list();
        std::fs::write(&weights, &damaged).unwrap();
        has_failed.store(true, Ordering::SeqCst);
        followed.list();
        assert_eq!(std::fs::read(&weights).unwrap() == whole, repairs < 3, "{repairs}");
    }
    followed.thread.stop();
}
