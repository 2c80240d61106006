//! Keys of payloads, and the mark of durable bytes: damaged payloads are named.

use std::sync::Arc;

use base::ErrorKind;
use storage::Medium;
use storage::log::{Log, LogPosition};

use super::payload;
use crate::{volatile, write};

/// Writes keyed payloads, each with a flush of its own. Returns the start of each frame, and the
/// bytes.
fn keyed(count: u64) -> (Vec<usize>, Vec<u8>, Arc<dyn Medium>) {
    let medium = volatile();
    let (log, _) = Log::open(&medium, "log").unwrap();
    let mut starts = Vec::new();
    for number in 1..=count {
        starts.push(log.bytes() as usize);
        log.commit(log.append_keyed(&payload(number), 1000 + number).unwrap()).unwrap();
    }
    assert_eq!(log.durable(), LogPosition { bytes: log.bytes(), next: count + 1 });
    drop(log);
    (starts, medium.load("log").unwrap(), medium)
}

#[test]
fn keys_do_not_change_the_replay() {
    let (_, bytes, medium) = keyed(30);
    let (log, replay) = Log::open(&medium, "log").unwrap();
    let wanted: Vec<_> = (1..=30).map(|number| (number, payload(number))).collect();
    assert_eq!((replay.records, replay.damaged, replay.holes), (wanted, vec![], vec![]));
    assert_eq!((replay.torn_tail, log.next(), log.bytes()), (None, 31, bytes.len() as u64));
    // Payloads of one flush share one list of keys.
    let shared = volatile();
    let (log, _) = Log::open(&shared, "log").unwrap();
    let last = (1..=30).map(|number| log.append_keyed(&payload(number), number).unwrap()).last();
    log.commit(last.unwrap()).unwrap();
    assert_eq!(log.flushes(), 1);
    assert!(log.bytes() < bytes.len() as u64);
}

#[test]
fn a_damaged_payload_leaves_its_key() {
    let (starts, bytes, _) = keyed(30);
    for number in 1..=30_u64 {
        let start = starts[number as usize - 1];
        // In its head and in its payload.
        for at in [start + 9, start + 33] {
            let mut damaged = bytes.clone();
            damaged[at] ^= 4;
            let medium = volatile();
            write(&*medium, "log", &damaged);
            let mark = LogPosition { bytes: bytes.len() as u64, next: 31 };
            let (_, replay) = Log::open_at(&medium, "log", mark).unwrap();
            assert_eq!(replay.damaged.len(), 1, "{number}");
            assert_eq!(replay.damaged[0].lost, number..number + 1);
            assert_eq!(replay.keys_of(&replay.damaged[0]), Some(vec![1000 + number]));
            assert_eq!(replay.records.len(), 29);
        }
    }
}

#[test]
fn several_damaged_flushes_leave_their_keys_to_the_next_one() {
    let (starts, bytes, _) = keyed(30);
    let mut damaged = bytes.clone();
    // Frames 11 to 15 with the keys behind them.
    damaged[starts[10]..starts[15]].fill(0xa5);
    let medium = volatile();
    write(&*medium, "log", &damaged);
    let (_, replay) = Log::open(&medium, "log").unwrap();
    let lost = &replay.damaged[0];
    assert_eq!((lost.lost.clone(), replay.keys_of(lost)), (11..16, Some((1011..1016).collect())));
    // Of more frames than are repeated, some keys are unknown, which is reported.
    damaged[starts[10]..starts[25]].fill(0xa5);
    let medium = volatile();
    write(&*medium, "log", &damaged);
    let (_, replay) = Log::open(&medium, "log").unwrap();
    assert_eq!(
        (replay.damaged[0].lost.clone(), replay.keys_of(&replay.damaged[0])),
        (11..26, None)
    );
}

#[test]
fn a_log_cut_before_its_mark_stays_unchanged() {
    let (_, bytes, _) = keyed(12);
    let mark = LogPosition { bytes: bytes.len() as u64, next: 13 };
    for length in (0..=bytes.len()).step_by(7).chain([bytes.len()]) {
        let medium = volatile();
        write(&*medium, "log", &bytes[..length]);
        let (log, replay) = Log::open_at(&medium, "log", mark).unwrap();
        let there = replay.records.len() as u64;
        if there == 12 {
            assert!(
                replay.damaged.is_empty() && !replay.cut && log.failure().is_none(),
                "{length}"
            );
            continue;
        }
        assert!(replay.cut && replay.torn_tail.is_none(), "{length}");
        assert_eq!(replay.damaged.last().unwrap().lost, there + 1..13, "{length}");
        assert_eq!(
            log.append(b"x").err().map(|error| error.kind()),
            Some(ErrorKind::FailedPrecondition)
        );
        // The next opening reports the same.
        assert_eq!((log.durable(), log.next()), (mark, 13));
        assert_eq!(medium.load("log").unwrap().len(), length);
        // Without a mark it looks like a torn end.
        let (_, replay) = Log::open(&medium, "log").unwrap();
        assert!(replay.damaged.is_empty() && !replay.cut, "{length}");
    }
    let (log, replay) = Log::open_at(&volatile(), "log", mark).unwrap();
    assert_eq!((replay.cut, replay.damaged[0].lost.clone(), log.durable()), (true, 1..13, mark));
    log.commit(12).unwrap();
}
