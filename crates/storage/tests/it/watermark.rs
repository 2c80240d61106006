//! The watermark: the last record is found on every medium and after every crash.

use std::sync::Arc;

use storage::log::LogPosition;
use storage::watermark::{LogPositions, MARKS_MAX, Watermark};
use storage::{FaultMedium, FaultPlan, Medium};

use crate::{PAGE, media, volatile, write};

fn marks(seed: u64) -> LogPositions {
    (0..3).map(|log| (log, LogPosition { bytes: 100 * seed + log, next: seed })).collect()
}

#[test]
fn the_last_record_is_found_on_every_medium() {
    let directory = tempfile::tempdir().unwrap();
    for (name, medium) in media(&directory) {
        let (mut watermark, found) = Watermark::open(&medium).unwrap();
        assert_eq!(found, None, "{name}");
        for seed in 1..5 {
            watermark.record(marks(seed)).unwrap();
            watermark.record(marks(seed)).unwrap();
            let (_, found) = Watermark::open(&medium).unwrap();
            assert_eq!(found, Some(marks(seed)), "{name}");
        }
        drop(watermark);
        let (mut watermark, _) = Watermark::open(&medium).unwrap();
        watermark.record(marks(9)).unwrap();
        assert_eq!(Watermark::open(&medium).unwrap().1, Some(marks(9)), "{name}");
        assert_eq!(medium.load("watermark").unwrap().len(), 2 * PAGE, "{name}");
    }
}

#[test]
fn a_damaged_slot_leaves_the_other_one() {
    let medium = volatile();
    let (mut watermark, _) = Watermark::open(&medium).unwrap();
    watermark.record(marks(1)).unwrap();
    watermark.record(marks(2)).unwrap();
    let whole = medium.load("watermark").unwrap();
    for at in (0..whole.len()).step_by(83) {
        let mut damaged = whole.clone();
        damaged[at] ^= 1;
        let medium = volatile();
        write(&*medium, "watermark", &damaged);
        let (_, found) = Watermark::open(&medium).unwrap();
        // Epoch 2 lies in the first slot.
        assert_eq!(found, Some(marks(if at < PAGE { 1 } else { 2 })), "{at}");
    }
    for length in [0, 1, PAGE - 1] {
        let medium = volatile();
        write(&*medium, "watermark", &whole[..length]);
        let (mut watermark, found) = Watermark::open(&medium).unwrap();
        assert_eq!(found, None);
        watermark.record(marks(3)).unwrap();
        assert_eq!(Watermark::open(&medium).unwrap().1, Some(marks(3)));
    }
}

#[test]
fn of_many_logs_the_newest_are_kept() {
    let medium = volatile();
    let many: LogPositions =
        (0..1000).map(|log| (log, LogPosition { bytes: log, next: 1 })).collect();
    Watermark::open(&medium).unwrap().0.record(many).unwrap();
    let found = Watermark::open(&medium).unwrap().1.unwrap();
    assert_eq!((found.len(), found.keys().next_back()), (MARKS_MAX, Some(&999)));
}

#[test]
fn the_power_may_fail_at_any_moment_of_a_record() {
    for at in 1..12 {
        let plan = FaultPlan { crash_at: Some(at), seed: at, ..FaultPlan::default() };
        let fault = Arc::new(FaultMedium::new(volatile(), plan).unwrap());
        let medium: Arc<dyn Medium> = fault.clone();
        let (mut watermark, _) = Watermark::open(&medium).unwrap();
        let recorded = (1..9).take_while(|&seed| watermark.record(marks(seed)).is_ok()).last();
        for seed in 0..8 {
            let left = volatile();
            fault.remains(&*left, seed).unwrap();
            let (_, found) = Watermark::open(&left).unwrap();
            // The last record, or the one being written.
            let next = recorded.map_or(1, |seed| seed + 1);
            let is = |seed: Option<u64>| found == seed.map(marks);
            assert!(is(recorded) || is(Some(next)), "{at} {seed}: {found:?}");
        }
    }
}

#[test]
fn a_failed_record_leaves_the_one_before() {
    // The room of the file, then a slot each.
    for write_error_at in 2..5 {
        let plan = FaultPlan { write_error_at: Some(write_error_at), ..FaultPlan::default() };
        let medium: Arc<dyn Medium> = Arc::new(FaultMedium::new(volatile(), plan).unwrap());
        let (mut watermark, _) = Watermark::open(&medium).unwrap();
        let mut last = None;
        for seed in 1..6 {
            if watermark.record(marks(seed)).is_ok() {
                last = Some(marks(seed));
            }
            assert_eq!(Watermark::open(&medium).unwrap().1, last, "{write_error_at} {seed}");
        }
        assert_eq!(last, Some(marks(5)));
    }
}
