//! The manifest: the newest list wins, a damaged one is skipped.

use std::sync::Arc;

use base::{Error, ErrorKind};
use proptest::prelude::*;
use storage::manifest::{LIST_BYTES_MAX, Manifest};
use storage::{FaultMedium, FaultPlan, Medium};
use tempfile::TempDir;

use crate::{PAGE, media, pattern, volatile};

fn list(epoch: u64) -> Vec<u8> {
    pattern(epoch as usize * 100, epoch)
}

/// Returns a medium whose manifest has `count` epochs.
fn published(count: u64) -> Arc<dyn Medium> {
    let medium = volatile();
    let (mut manifest, _) = Manifest::open(&medium).unwrap();
    for epoch in 1..=count {
        assert_eq!(manifest.publish(&list(epoch)).unwrap(), epoch);
    }
    medium
}

fn overwrite(medium: &dyn Medium, name: &str, offset: usize, bytes: &[u8]) {
    let mut writer = medium.reopen(name).unwrap();
    writer.write_at(offset as u64, bytes).unwrap();
    writer.persist().unwrap();
}

fn names(medium: &dyn Medium) -> Vec<String> {
    medium.list().unwrap().into_iter().map(|(name, _)| name).collect()
}

#[test]
fn the_newest_list_counts_on_every_medium() {
    let directory = TempDir::new().unwrap();
    for (name, medium) in media(&directory) {
        let (mut manifest, found) = Manifest::open(&medium).unwrap();
        assert_eq!((found, manifest.epoch()), (None, 0), "{name}");
        for epoch in 1..=5 {
            assert_eq!(manifest.publish(&list(epoch)).unwrap(), epoch);
            let (again, found) = Manifest::open(&medium).unwrap();
            assert_eq!((found, again.epoch()), (Some(list(epoch)), epoch));
            assert_eq!(again.problems(), [] as [String; 0]);
        }
        // The last list and the one before it stay.
        assert_eq!(names(&*medium), ["list-0000000000000004", "list-0000000000000005", "manifest"]);
        let kind = manifest.publish(&vec![0; LIST_BYTES_MAX + 1]).err().map(|error| error.kind());
        assert_eq!(kind, Some(ErrorKind::InvalidArgument));
    }
}

#[test]
fn a_damaged_slot_or_list_gives_the_one_before() {
    for (name, offset) in [
        ("manifest", 16),
        ("manifest", 40),
        ("list-0000000000000004", 70),
        ("list-0000000000000004", 1),
    ] {
        let medium = published(4);
        overwrite(&*medium, name, offset, &[0xa5; 3]);
        let (mut manifest, found) = Manifest::open(&medium).unwrap();
        assert_eq!((found, manifest.epoch()), (Some(list(3)), 3));
        assert_eq!(manifest.problems().len(), 1);
        assert_eq!(manifest.publish(b"next").unwrap(), 4);
        assert_eq!(Manifest::open(&medium).unwrap().1, Some(b"next".to_vec()));
    }
}

#[test]
fn a_slot_of_another_version_is_not_damage() {
    // A later program has published once, so the other slot is of this version.
    let medium = published(4);
    let mut slot = medium.load("manifest").unwrap()[..PAGE].to_vec();
    slot[8..12].copy_from_slice(&2_u32.to_le_bytes());
    let sum = crc32c::crc32c(&slot[..PAGE - 4]);
    slot[PAGE - 4..].copy_from_slice(&sum.to_le_bytes());
    overwrite(&*medium, "manifest", 0, &slot);
    let before = (names(&*medium), medium.load("manifest").unwrap());
    let error = Manifest::open(&medium).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::FailedPrecondition);
    assert!(error.message().contains("has version 2"), "{error}");
    assert_eq!((names(&*medium), medium.load("manifest").unwrap()), before);
}

#[test]
fn without_slots_the_newest_whole_list_counts() {
    for bytes in [vec![0; 2 * PAGE], pattern(2 * PAGE, 3)] {
        let medium = published(4);
        overwrite(&*medium, "manifest", 0, &bytes);
        let (manifest, found) = Manifest::open(&medium).unwrap();
        assert_eq!((found, manifest.epoch()), (Some(list(4)), 4));
        assert!(!manifest.problems().is_empty());
    }
    let medium = published(4);
    medium.remove("manifest").unwrap();
    assert_eq!(Manifest::open(&medium).unwrap().1, Some(list(4)));
}

#[test]
fn a_manifest_without_a_whole_list_is_an_error() {
    let medium = published(4);
    overwrite(&*medium, "manifest", 0, &pattern(2 * PAGE, 3));
    for name in ["list-0000000000000003", "list-0000000000000004"] {
        overwrite(&*medium, name, 0, &[1; 64]);
    }
    assert_eq!(Manifest::open(&medium).err().map(|error| error.kind()), Some(ErrorKind::DataLoss));
}

#[test]
fn a_refused_read_is_not_damage() {
    let medium = published(4);
    let open = |prefix: &str, error| {
        let prefix = prefix.to_owned();
        let plan = FaultPlan { refused: vec![(prefix, error)], ..FaultPlan::default() };
        let refusing: Arc<dyn Medium> = Arc::new(FaultMedium::new(medium.clone(), plan).unwrap());
        Manifest::open(&refusing).map(|(_, found)| found)
    };
    let refusal = Error::exhausted("too many files are open");
    let failure = Error::internal("the device does not answer");
    let kind = |error: &Error| open("list-", error.clone()).map_err(|error| error.kind());
    assert_eq!(kind(&refusal), Err(ErrorKind::ResourceExhausted));
    assert_eq!(kind(&failure), Err(ErrorKind::DataLoss), "it may be permanent");
    let slots = |error: &Error| open("manifest", error.clone()).map_err(|error| error.kind());
    assert_eq!(slots(&refusal), Err(ErrorKind::ResourceExhausted));
    assert_eq!(slots(&failure), Ok(Some(list(4))));
    assert_eq!(Manifest::open(&medium).unwrap().1, Some(list(4)), "nothing has changed");
    // Collections publish each list twice, so the one before is as good.
    assert_eq!(open("list-0000000000000004", refusal), Ok(Some(list(3))));
}

#[test]
fn a_failed_flip_is_tried_again() {
    // Opening persists once and publishing twice: each persist of the second publication in turn.
    for persist in [4, 5] {
        let plan = FaultPlan { persist_error_at: Some(persist), ..FaultPlan::default() };
        let fault = Arc::new(FaultMedium::new(volatile(), plan).unwrap());
        let medium: Arc<dyn Medium> = fault.clone();
        let remaining = |seed| {
            let left = volatile();
            fault.remains(&*left, seed).unwrap();
            Manifest::open(&left).unwrap().1
        };
        let (mut manifest, _) = Manifest::open(&medium).unwrap();
        manifest.publish(&list(1)).unwrap();
        let kind = manifest.publish(&list(2)).err().map(|error| error.kind());
        assert_eq!(kind, Some(ErrorKind::DataLoss));
        for found in (0..12).map(remaining) {
            assert!(found == Some(list(1)) || found == Some(list(2)), "{found:?}");
        }
        assert_eq!((manifest.epoch(), manifest.publish(&list(3)).unwrap()), (1, 2));
        assert!((0..12).map(remaining).all(|found| found == Some(list(3))));
    }
}

#[test]
fn a_list_that_was_opened_survives_a_crash() {
    let name = "list-0000000000000003";
    let newer = published(3);
    let slots = newer.load("manifest").unwrap();
    let fault = Arc::new(FaultMedium::new(published(2), FaultPlan::default()).unwrap());
    let medium: Arc<dyn Medium> = fault.clone();
    // The process was killed after it wrote the slot, and before it synced it.
    crate::write(&*medium, name, &newer.load(name).unwrap());
    let mut writer = medium.reopen("manifest").unwrap();
    writer.write_at(PAGE as u64, &slots[PAGE..]).unwrap();
    drop(writer);
    assert_eq!(Manifest::open(&medium).unwrap().1, Some(list(3)));
    for seed in 0..12 {
        let left = volatile();
        fault.remains(&*left, seed).unwrap();
        assert_eq!(Manifest::open(&left).unwrap().1, Some(list(3)), "{seed}");
    }
}

#[test]
fn a_list_that_no_slot_named_does_not_return() {
    let name = "list-0000000000000003";
    let medium = published(2);
    // A crash before the slot was written.
    crate::write(&*medium, name, &published(3).load(name).unwrap());
    assert_eq!(Manifest::open(&medium).unwrap().1, Some(list(2)));
    // Its files are gone by now.
    medium.remove("manifest").unwrap();
    assert_eq!(Manifest::open(&medium).unwrap().1, Some(list(2)));
}

proptest! {
    #[test]
    fn any_damage_gives_a_list_that_was_published_or_an_error(
        file in 0_usize..3, place in any::<prop::sample::Index>(),
        bytes in prop::collection::vec(any::<u8>(), 1..100), cut in any::<bool>(),
    ) {
        let medium = published(4);
        let name = names(&*medium)[file].clone();
        let mut damaged = medium.load(&name).unwrap();
        let at = place.index(damaged.len());
        let end = (at + bytes.len()).min(damaged.len());
        damaged[at..end].copy_from_slice(&bytes[..end - at]);
        if cut {
            damaged.truncate(end);
        }
        medium.remove(&name).unwrap();
        crate::write(&*medium, &name, &damaged);
        match Manifest::open(&medium) {
            Ok((_, found)) => prop_assert!(found == Some(list(4)) || found == Some(list(3))),
            Err(error) => prop_assert_eq!(error.kind(), ErrorKind::DataLoss),
        }
    }

    #[test]
    fn any_bytes_are_a_manifest_or_an_error(manifest in prop::collection::vec(any::<u8>(), 0..9000),
                                            list in prop::collection::vec(any::<u8>(), 0..200)) {
        let medium = volatile();
        crate::write(&*medium, "manifest", &manifest);
        crate::write(&*medium, "list-0000000000000007", &list);
        prop_assert!(Manifest::open(&medium).is_err());
    }
}

/// Bytes of format version 1, which never change.
#[test]
fn the_layout_is_what_the_document_says() {
    let medium = volatile();
    Manifest::open(&medium).unwrap().0.publish(b"abc").unwrap();
    let slots = medium.load("manifest").unwrap();
    assert_eq!(slots.len(), 2 * PAGE);
    assert!(slots[..PAGE].iter().all(|&byte| byte == 0));
    let slot = &slots[PAGE..];
    assert_eq!(&slot[..16], b"MPMANIF\0\x01\0\0\0\0\0\0\0");
    assert_eq!(slot[16..32], [1, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0]);
    // BLAKE3 of "abc", from its reference implementation.
    assert_eq!(slot[32..40], [0x64, 0x37, 0xb3, 0xac, 0x38, 0x46, 0x51, 0x33]);
    assert_eq!(slot[4092..], crc32c::crc32c(&slot[..4092]).to_le_bytes());
    let list = medium.load("list-0000000000000001").unwrap();
    assert_eq!(&list[..12], b"MPLIST\0\0\x01\0\0\0");
    assert_eq!(list[16..32], slot[16..32]);
    assert_eq!(list[32..60], slot[32..60]);
    assert_eq!(&list[60..], b"\0\0\0\0abc");
}
