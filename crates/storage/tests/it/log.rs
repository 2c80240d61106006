//! The log: its layout, torn ends and damage in the middle.

mod commits;
mod keys;

use std::sync::Arc;

use base::ErrorKind;
use proptest::prelude::*;
use storage::log::Log;
use storage::{FaultMedium, FaultPlan, Medium, ReadFault};
use tempfile::TempDir;

use crate::{media, pattern, volatile, write};

const HEADER: usize = 64;

fn payload(number: u64) -> Vec<u8> {
    pattern((number as usize * 37) % 300, number)
}

/// Bytes of a log with this many payloads.
fn log_of(count: u64) -> Vec<u8> {
    let medium = volatile();
    let (log, _) = Log::open(&medium, "log").unwrap();
    for number in 1..=count {
        assert_eq!(log.append(&payload(number)).unwrap(), number);
    }
    log.commit(count).unwrap();
    medium.load("log").unwrap()
}

fn open_bytes(bytes: &[u8]) -> (Log, storage::log::Replay, Arc<dyn Medium>) {
    let medium = volatile();
    write(&*medium, "log", bytes);
    let (log, replay) = Log::open(&medium, "log").unwrap();
    (log, replay, medium)
}

/// Returns the head of a frame, or with `mpcl` of a closed hole, that is computed independently of
/// the log.
fn head(mark: &[u8; 4], bytes: u32, number: u64, payload_sum: u32) -> Vec<u8> {
    let mut head = [&mark[..], &bytes.to_le_bytes(), &number.to_le_bytes()].concat();
    head.extend(payload_sum.to_le_bytes());
    head.extend(0u64.to_le_bytes());
    let sum = crc32c::crc32c(&head);
    head.extend(sum.to_le_bytes());
    head
}

#[test]
fn a_closed_hole_with_number_0_hides_no_payload() {
    let bytes = [vec![0; HEADER], head(b"mpcl", 16, 0, 0), vec![0; 24]].concat();
    let (log, replay, medium) = open_bytes(&bytes);
    assert_eq!(replay.next, 1);
    let number = log.append(b"acknowledged").unwrap();
    log.commit(number).unwrap();
    drop(log);
    let (_, replay) = Log::open(&medium, "log").unwrap();
    assert_eq!(replay.records, [(1, b"acknowledged".to_vec())]);
}

#[test]
fn a_log_of_another_version_stays_unchanged() {
    let mut bytes = [b"MPLOG\0\0\0".to_vec(), vec![0; HEADER - 8]].concat();
    bytes[8] = 2;
    bytes[16] = 1;
    let sum = crc32c::crc32c(&bytes[..60]);
    bytes[60..].copy_from_slice(&sum.to_le_bytes());
    bytes.extend_from_slice(b"a frame of version 2");
    let medium = volatile();
    write(&*medium, "log", &bytes);
    let error = Log::open(&medium, "log").map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::FailedPrecondition);
    assert!(error.message().contains("has version 2"), "{error}");
    assert_eq!(medium.load("log").unwrap(), bytes);
}

#[test]
fn a_log_without_numbers_left_refuses_payloads() {
    let sum = crc32c::crc32c(b"");
    let bytes = [vec![0; HEADER], head(b"mpfr", 0, u64::MAX - 1, sum)].concat();
    let (log, replay, _medium) = open_bytes(&bytes);
    assert_eq!((replay.records.len(), replay.next), (1, u64::MAX));
    assert_eq!(log.append(b"one more").unwrap_err().kind(), ErrorKind::ResourceExhausted);
}

#[test]
fn committed_payloads_return_on_every_medium() {
    let directory = TempDir::new().unwrap();
    for (name, medium) in media(&directory) {
        let (log, replay) = Log::open(&medium, "log").unwrap();
        assert!(
            replay.records.is_empty() && replay.damaged.is_empty() && replay.torn_tail.is_none(),
            "{name}"
        );
        for number in 1..51 {
            assert_eq!(log.append(&payload(number)).unwrap(), number);
        }
        log.commit(50).unwrap();
        assert_eq!(log.flushes(), 1);
        drop(log);
        for round in 0..2 {
            let (log, replay) = Log::open(&medium, "log").unwrap();
            let expected: Vec<_> =
                (1..51 + round).map(|number| (number, payload(number))).collect();
            assert_eq!(replay.records, expected, "{name}");
            assert_eq!((replay.torn_tail, replay.damaged.len()), (None, 0));
            let number = log.append(&payload(51 + round)).unwrap();
            assert_eq!((number, log.next()), (51 + round, 52 + round));
            log.commit(number).unwrap();
            assert_eq!(log.bytes(), medium.load("log").unwrap().len() as u64);
        }
    }
}

#[test]
fn a_log_cut_anywhere_keeps_its_whole_frames() {
    let whole = log_of(6);
    for length in 0..=whole.len() {
        let (log, replay, medium) = open_bytes(&whole[..length]);
        let count = replay.records.len() as u64;
        for (index, record) in replay.records.iter().enumerate() {
            assert_eq!(*record, (index as u64 + 1, payload(index as u64 + 1)));
        }
        assert!(replay.damaged.is_empty(), "{length}");
        assert_eq!(count == 6, length == whole.len());
        // The torn end is removed, and the log continues.
        let number = log.append(b"new").unwrap();
        assert_eq!(number, count + 1);
        log.commit(number).unwrap();
        drop(log);
        let (_, again) = Log::open(&medium, "log").unwrap();
        assert_eq!((again.torn_tail, again.records.len() as u64), (None, count + 1));
    }
}

#[test]
fn a_zeroed_header_does_not_stop_the_opening() {
    let mut bytes = log_of(5);
    bytes[..HEADER].fill(0);
    let (log, replay, _) = open_bytes(&bytes);
    assert_eq!(replay.records.len(), 5);
    assert_eq!((replay.damaged.len(), replay.damaged[0].offset), (1, 0));
    assert_eq!(log.append(b"x").unwrap(), 6);
    // Zeros alone are a log that was never used.
    for length in [1, HEADER, 5000] {
        let (log, replay, _) = open_bytes(&vec![0; length]);
        assert_eq!((replay.records.len(), replay.damaged.len(), replay.torn_tail), (0, 0, Some(0)));
        log.commit(log.append(b"x").unwrap()).unwrap();
    }
}

#[test]
fn a_payload_that_looks_like_a_log_is_a_payload() {
    let inner = log_of(20);
    let medium = volatile();
    let (log, _) = Log::open(&medium, "log").unwrap();
    for payload in [b"a", &inner[HEADER..], b"b"] {
        log.append(payload).unwrap();
    }
    log.commit(3).unwrap();
    let mut bytes = medium.load("log").unwrap();
    // Damage in the payload that is a log: its frames must not count as frames of this log.
    let at = HEADER + 40 + 32 + 700;
    bytes[at] ^= 1;
    let (_, replay, _) = open_bytes(&bytes);
    let numbers: Vec<u64> = replay.records.iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, [1, 3]);
    assert_eq!((replay.holes.len(), replay.holes[0].lost.clone()), (1, 2..3));
}

/// Lost bytes are damage if a later frame says that they were durable, else a hole.
#[test]
fn lost_durable_bytes_are_damage_others_a_hole() {
    for (commits, durable) in [(vec![1, 4], false), (vec![2, 4], true), (vec![1, 2, 3, 4], true)] {
        let medium = volatile();
        let (log, _) = Log::open(&medium, "log").unwrap();
        for number in 1..=4 {
            log.append(&[number as u8; 40]).unwrap();
            if commits.contains(&number) {
                log.commit(number).unwrap();
            }
        }
        let mut bytes = medium.load("log").unwrap();
        let second = HEADER + 72;
        bytes[second..second + 72].fill(0);
        let (log, replay, medium) = open_bytes(&bytes);
        let numbers: Vec<u64> = replay.records.iter().map(|(number, _)| *number).collect();
        assert_eq!(numbers, [1, 3, 4]);
        let (lost, none) = if durable {
            (&replay.damaged, &replay.holes)
        } else {
            (&replay.holes, &replay.damaged)
        };
        assert_eq!((lost.len(), none.len()), (1, 0));
        assert_eq!(
            (lost[0].offset, lost[0].bytes, lost[0].lost.clone()),
            (second as u64, 72, 2..3)
        );
        // Opening closes a hole; damage stays for an investigation.
        log.commit(log.append(b"more").unwrap()).unwrap();
        drop(log);
        let (_, again) = Log::open(&medium, "log").unwrap();
        assert_eq!((again.damaged.len(), again.holes.len()), (usize::from(durable), 0));
        assert_eq!(again.records.len(), 4);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Damage costs only the frames it touches; the rest of a damaged end may be cut.
    #[test]
    fn damage_costs_what_it_touches(
        count in 1_u64..12, place in any::<prop::sample::Index>(),
        bytes in prop::collection::vec(any::<u8>(), 1..40), zeros in any::<bool>(),
    ) {
        let whole = log_of(count);
        let mut starts = vec![HEADER];
        for number in 1..=count {
            starts.push(starts[starts.len() - 1] + 32 + payload(number).len().next_multiple_of(8));
        }
        let mut damaged = whole.clone();
        let at = place.index(damaged.len());
        let end = (at + bytes.len()).min(damaged.len());
        if zeros {
            damaged[at..end].fill(0);
        } else {
            damaged[at..end].copy_from_slice(&bytes[..end - at]);
        }
        let (_, replay, medium) = open_bytes(&damaged);
        for number in 1..=count {
            let frame = starts[number as usize - 1]..starts[number as usize];
            let untouched = damaged[frame.clone()] == whole[frame];
            let found = replay.records.iter().find(|(found, _)| *found == number);
            if untouched {
                prop_assert_eq!(found, Some(&(number, payload(number))), "frame {} of {}", number, count);
            } else if let Some((_, bytes)) = found {
                // Only the zeros behind a payload may differ.
                prop_assert_eq!(bytes, &payload(number));
            } else {
                let mut told = replay.damaged.iter().chain(&replay.holes);
                let told = told.any(|damage| damage.lost.contains(&number));
                prop_assert!(told || replay.torn_tail.is_some());
            }
        }
        prop_assert!(replay.next > replay.records.last().map_or(0, |(number, _)| *number));
        // The next opening finds the same.
        let (_, again) = Log::open(&medium, "log").unwrap();
        prop_assert_eq!(again.records, replay.records);
    }

    #[test]
    fn any_bytes_are_a_log(
        bytes in prop::collection::vec(prop_oneof![any::<u8>(), Just(0)], 0..600), frames in any::<bool>(),
    ) {
        let mut log = if frames { log_of(2) } else { Vec::new() };
        log.extend_from_slice(&bytes);
        let (log, replay, _) = open_bytes(&log);
        prop_assert!(!frames || replay.records.len() >= 2);
        log.commit(log.append(b"x").unwrap()).unwrap();
    }
}

/// Bytes of format version 1, which never change.
#[test]
fn the_layout_is_what_the_document_says() {
    let medium = volatile();
    let (log, _) = Log::open(&medium, "log").unwrap();
    log.commit(log.append(b"abc").unwrap()).unwrap();
    log.commit(log.append(b"").unwrap()).unwrap();
    let bytes = medium.load("log").unwrap();
    assert_eq!(&bytes[..24], b"MPLOG\0\0\0\x01\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0");
    assert_eq!(bytes[60..64], crc32c::crc32c(&bytes[..60]).to_le_bytes());
    assert_eq!(&bytes[64..80], b"mpfr\x03\0\0\0\x01\0\0\0\0\0\0\0");
    assert_eq!(bytes[80..84], crc32c::crc32c(b"abc").to_le_bytes());
    assert_eq!(bytes[84..92], 1_u64.to_le_bytes());
    assert_eq!(bytes[92..96], crc32c::crc32c(&bytes[64..92]).to_le_bytes());
    assert_eq!(&bytes[96..104], b"abc\0\0\0\0\0");
    // The second was written when the first was durable.
    assert_eq!(
        (&bytes[104..108], &bytes[112..120], &bytes[124..132]),
        (&b"mpfr"[..], &[2, 0, 0, 0, 0, 0, 0, 0][..], &[2, 0, 0, 0, 0, 0, 0, 0][..])
    );
    assert_eq!(bytes.len(), 136);
}

#[test]
fn an_unreadable_page_costs_only_its_frames() {
    const COUNT: u64 = 200;
    let whole = log_of(COUNT);
    for page in 0..whole.len().div_ceil(4096) as u64 {
        let inner = volatile();
        write(&*inner, "log", &whole);
        let damage = vec![("log".into(), page, ReadFault::Error)];
        let plan = FaultPlan { damage, ..FaultPlan::default() };
        let medium: Arc<dyn Medium> = Arc::new(FaultMedium::new(inner.clone(), plan).unwrap());
        let (log, replay) = Log::open(&medium, "log").unwrap();
        assert_eq!((replay.unreadable, replay.torn_tail), (1, None), "page {page}");
        assert!(replay.holes.is_empty(), "page {page}");
        let there: Vec<u64> = replay.records.iter().map(|(number, _)| *number).collect();
        assert!(replay.records.iter().all(|(number, record)| *record == payload(*number)));
        assert!(there.len() > 150 && there.len() < COUNT as usize, "page {page}: {}", there.len());
        let named = |number: &u64| replay.damaged.iter().any(|damage| damage.lost.contains(number));
        assert!((1..=COUNT).all(|number| there.contains(&number) != named(&number)), "page {page}");
        // It may be readable later: nothing is cut off, closed or appended.
        assert_eq!(
            log.append(b"x").err().map(|error| error.kind()),
            Some(ErrorKind::FailedPrecondition)
        );
        log.commit(log.next() - 1).unwrap();
        drop(log);
        assert_eq!(inner.load("log").unwrap(), whole, "page {page}");
    }
}
