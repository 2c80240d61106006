//! Power failures at every operation: acknowledged data survives.

use std::sync::Arc;

use base::Result;
use storage::log::Log;
use storage::manifest::Manifest;
use storage::page::{Packer, RecordPage};
use storage::{FaultMedium, FaultPlan, Medium, Read, ReadFault, ReaderOptions};

use crate::{PAGE, pattern, volatile, write};

/// Random draws of each crash point.
const SEEDS: u64 = 12;

/// Runs `work` with a crash at every operation. Passes what remains, and the result of `work`, to
/// `check`.
fn at_every_crash<T: Default>(
    work: impl Fn(&Arc<dyn Medium>, &mut T) -> Result<()>,
    check: impl Fn(&Arc<dyn Medium>, &T),
) {
    let whole = Arc::new(FaultMedium::new(volatile(), FaultPlan::default()).unwrap());
    let medium: Arc<dyn Medium> = whole.clone();
    work(&medium, &mut T::default()).unwrap();
    assert!(whole.operations() > 10);
    for crash_at in 1..=whole.operations() + 1 {
        let plan = FaultPlan { crash_at: Some(crash_at), ..FaultPlan::default() };
        let fault = Arc::new(FaultMedium::new(volatile(), plan).unwrap());
        let medium: Arc<dyn Medium> = fault.clone();
        let mut told = T::default();
        // `work` need not return the error: cleanup may fail silently.
        assert!(work(&medium, &mut told).is_ok() || fault.crashed());
        for seed in 0..SEEDS {
            let left = volatile();
            fault.remains(&*left, seed * 1000 + crash_at).unwrap();
            check(&left, &told);
        }
    }
}

#[test]
fn acknowledged_payloads_survive_a_crash_at_any_operation() {
    let payload = |number: u64| pattern((number as usize * 150) % 700, number);
    at_every_crash::<u64>(
        |medium, acknowledged| {
            let (log, _) = Log::open(medium, "log")?;
            for number in 1..=25 {
                log.append(&payload(number))?;
                // Some wait, others are flushed along.
                if number % 5 == 0 || number == 2 {
                    log.commit(number)?;
                    *acknowledged = number;
                }
            }
            Ok(())
        },
        |left, &acknowledged| {
            // Twice, because opening repairs damage.
            let mut expected: Option<Vec<u64>> = None;
            for _ in 0..3 {
                let (log, replay) = Log::open(left, "log").unwrap();
                let found: Vec<u64> = replay.records.iter().map(|(number, _)| *number).collect();
                for (number, bytes) in &replay.records {
                    assert_eq!(bytes, &payload(*number));
                }
                assert!(
                    (1..=acknowledged).all(|number| found.contains(&number)),
                    "{found:?}, {acknowledged}"
                );
                // A loss of power never counts as damage.
                assert_eq!(replay.damaged, []);
                assert!(expected.is_none_or(|expected| expected == found), "{found:?}");
                // Later payloads do not turn a hole into damage.
                let number = log.append(&payload(replay.next)).unwrap();
                log.commit(number).unwrap();
                expected = Some(found.into_iter().chain([number]).collect());
            }
        },
    );
}

#[test]
fn a_published_list_survives_a_crash_at_any_operation() {
    let list = |epoch: u64| pattern(2000, epoch);
    at_every_crash::<u64>(
        |medium, published| {
            for _ in 0..2 {
                let (mut manifest, _) = Manifest::open(medium)?;
                for _ in 0..3 {
                    let epoch = manifest.publish(&list(*published + 1))?;
                    assert_eq!(epoch, *published + 1);
                    *published = epoch;
                }
            }
            Ok(())
        },
        |left, &published| {
            let (mut manifest, found) = Manifest::open(left).unwrap();
            let epoch = manifest.epoch();
            assert!(epoch == published || epoch == published + 1, "{epoch} of {published}");
            assert_eq!(found, (epoch > 0).then(|| list(epoch)));
            manifest.publish(&list(epoch + 1)).unwrap();
            assert_eq!(Manifest::open(left).unwrap().1, Some(list(epoch + 1)));
        },
    );
}

#[test]
fn a_persisted_file_survives_a_crash_at_any_operation() {
    let bytes = |index: u64| pattern(3000, index);
    at_every_crash::<u64>(
        |medium, sure| {
            for index in 1..=4 {
                let mut writer = medium.create(&format!("segment-{index}"))?;
                for chunk in bytes(index).chunks(1000) {
                    writer.append(chunk)?;
                }
                writer.persist()?;
                medium.persist_names()?;
                *sure = index;
            }
            Ok(())
        },
        |left, &sure| {
            for index in 1..=sure {
                assert_eq!(left.load(&format!("segment-{index}")).unwrap(), bytes(index));
            }
        },
    );
}

#[test]
fn the_fault_medium_loses_unpersisted_bytes() {
    let lost = (0..20).filter(|&seed| {
        let fault = FaultMedium::new(volatile(), FaultPlan::default()).unwrap();
        let mut writer = fault.create("f").unwrap();
        writer.append(&[1; 5000]).unwrap();
        fault.persist_names().unwrap();
        let left = volatile();
        fault.remains(&*left, seed).unwrap();
        left.load("f").unwrap() != [1; 5000]
    });
    assert!(lost.count() > 5);
}

#[test]
fn damaged_pages_fail_only_their_own_reads() {
    let (mut packer, mut pages) = (Packer::new(), Vec::new());
    for index in 0..400 {
        packer.push(&pattern(500, index)).unwrap();
    }
    packer.finish(&mut pages).unwrap();
    let inner = volatile();
    write(&*inner, "segment", &pages);
    let damage = [ReadFault::Error, ReadFault::Short, ReadFault::Torn, ReadFault::Flip];
    let plan = FaultPlan {
        seed: 5,
        damage: damage
            .iter()
            .zip(3..)
            .map(|(&fault, page)| ("segment".to_owned(), page, fault))
            .collect(),
        read_errors: 20,
        bit_flips: 20,
        reorder: true,
        ..FaultPlan::default()
    };
    let medium = FaultMedium::new(inner, plan).unwrap();
    let file = medium.open("segment").unwrap();
    let mut reader = medium.reader(ReaderOptions { depth: 64, read_bytes_max: PAGE }).unwrap();
    let count = (pages.len() / PAGE) as u64;
    for tag in 0..count {
        reader.submit(Read { file: &file, offset: tag * PAGE as u64, bytes: PAGE, tag }).unwrap();
    }
    let (mut bad, mut order) = (Vec::new(), Vec::new());
    let checked = |tag: u64, bytes: Result<&[u8]>| -> bool {
        bytes.and_then(RecordPage::open).is_ok_and(|page| {
            assert_eq!(u64::from(page.number()), tag);
            page.record(0) == Some(&pattern(500, tag * 8)[..])
        })
    };
    reader
        .complete(usize::MAX, &mut |tag, bytes| {
            order.push(tag);
            if !checked(tag, bytes) {
                bad.push(tag);
            }
        })
        .unwrap();
    assert_eq!(order.len() as u64, count);
    assert!(!order.is_sorted());
    assert!([3, 4, 5, 6].iter().all(|page| bad.contains(page)), "{bad:?}");
    assert!(bad.len() < count as usize / 2);
}
