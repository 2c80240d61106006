//! Objects that the store refuses, and the copies that do not depend on them.

use super::*;

impl Setup {
    /// Refuses reads of one object from now on, or of none.
    fn refuse(&self, key: Option<&str>) {
        *self.store.refused.lock().unwrap() = key.map(object_store::path::Path::from);
    }

    /// Returns which of the versions 1 to `count` of the model "m" are copied.
    fn copied(&self, count: u64) -> Vec<bool> {
        (1..=count).map(|version| self.copy(&format!("m/{version}")).exists()).collect()
    }
}

#[test]
fn versions_wait_for_the_settings_that_select_them() {
    let setup = Setup::new();
    (1..=2).for_each(|version| drop(setup.publish("m", version, &[1])));
    setup.put("models/m/golden.json", "{}");
    setup.put("models/m/millpond.toml", "versions = \"1\"");
    setup.refuse(Some("models/m/millpond.toml"));
    let mut mirror = setup.mirror();
    assert!(!mirror.sync_now().unwrap());
    assert_eq!(setup.copied(2), [false, false]);
    assert!(setup.copy("m/golden.json").exists());
    setup.refuse(None);
    assert!(mirror.sync_now().unwrap());
    assert_eq!(setup.copied(2), [true, false]);
}

#[test]
fn a_refused_file_does_not_delay_the_settings() {
    let setup = Setup::new();
    (1..=2).for_each(|version| drop(setup.publish("m", version, &[1])));
    setup.put("models/m/golden.json", "{}");
    setup.put("models/m/millpond.toml", "versions = \"1\"");
    setup.refuse(Some("models/m/golden.json"));
    assert!(!setup.mirror().sync_now().unwrap());
    assert_eq!(setup.copied(2), [true, false]);
}

#[test]
fn a_refused_version_does_not_delay_the_others() {
    for (policy, copied) in [
        (VersionPolicy::All, [true, true, false]),
        (VersionPolicy::Specific([1, 3].into()), [true, false, false]),
        // No version of the model serves yet.
        (VersionPolicy::Latest(1), [false, true, false]),
    ] {
        let setup = Setup::new();
        (1..=3u8).for_each(|seed| drop(setup.publish("m", seed.into(), &[seed])));
        setup.refuse(Some("models/m/3/weights.bin"));
        assert!(!setup.mirror_with(u64::MAX, policy.clone()).sync_now().unwrap());
        assert_eq!(setup.copied(3), copied, "{policy:?}");
    }
}

#[test]
fn a_refused_version_leaves_the_copied_one() {
    let setup = Setup::new();
    setup.publish("m", 1, &[1]);
    let mut mirror = setup.mirror();
    mirror.copy_first_now().unwrap();
    setup.publish("m", 2, &[2]);
    setup.publish("m", 3, &[3]);
    setup.refuse(Some("models/m/3/weights.bin"));
    assert!(!mirror.sync_now().unwrap());
    assert_eq!(setup.copied(3), [true, false, false]);
}

/// A store may answer all requests but those for one object.
#[test]
fn a_failed_model_is_copied_after_the_others() {
    let setup = Setup::new();
    setup.publish("a", 1, &[1]);
    setup.refuse(Some("models/a/1/millpond.json"));
    let mut mirror = setup.mirror();
    assert!(!mirror.sync_now().unwrap());
    setup.publish("b", 1, &[1]);
    setup.store.read.lock().unwrap().clear();
    assert!(!mirror.sync_now().unwrap());
    let read = setup.store.read.lock().unwrap();
    assert!(read[0].starts_with("models/b/"), "{read:?}");
    assert_eq!(read.last().map(String::as_str), Some("models/a/1/millpond.json"));
}

#[test]
fn a_copy_that_another_program_removed_is_fetched_again() {
    let setup = Setup::new();
    let local = setup.publish("m", 1, &[1]);
    let mut mirror = setup.mirror();
    assert!(mirror.sync_now().unwrap());
    for removed in ["m", "m/1"] {
        std::fs::remove_dir_all(setup.copy(removed)).unwrap();
        setup.refuse(Some("models/m/1/weights.bin"));
        assert!(!mirror.sync_now().unwrap());
        assert!(!setup.copy("m/1").exists());
        setup.refuse(None);
        assert!(mirror.sync_now().unwrap());
        assert_same(&local, &setup.copy("m/1"));
    }
    setup.reset();
    assert!(mirror.sync_now().unwrap());
    assert_eq!(setup.store.gets.load(Ordering::SeqCst), 0, "nothing is missing");
}

/// A proxy answers each listing with a page of HTML, which has no object.
#[test]
fn an_empty_listing_removes_nothing_that_the_store_has() {
    let setup = Setup::new();
    setup.publish("m", 1, &[1]);
    let mut mirror = setup.mirror();
    assert!(mirror.sync_now().unwrap());
    setup.store.empty_lists.store(3, Ordering::SeqCst);
    for _ in 0..3 {
        let error = mirror.sync_now().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.message().contains("\"models/m/1/millpond.json\""), "{error}");
    }
    assert!(setup.copy("m/1").exists());
    assert!(mirror.sync_now().unwrap());
}
