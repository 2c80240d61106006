//! The log: group commit, torn ends, damage in the middle, failures.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use base::{ErrorKind, Result};
use proptest::prelude::*;
use storage::log::{LOG_BYTES_MAX, Log, LogPosition, PAYLOAD_BYTES_MAX};
use storage::{
    FaultMedium, FaultPlan, Medium, MediumKind, ReadFault, Reader, ReaderOptions, Sealed, Writer,
};
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

/// The head of a frame, or with `mpcl` of a closed hole, of a log that no program here wrote.
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
fn limits_are_kept() {
    let medium: Arc<dyn Medium> = Arc::new(Void);
    let (log, _) = Log::open(&medium, "log").unwrap();
    let kind = |outcome: Result<u64>| outcome.err().map(|error| error.kind());
    assert_eq!(kind(log.append(&vec![0; PAYLOAD_BYTES_MAX + 1])), Some(ErrorKind::InvalidArgument));
    assert_eq!(log.commit(1).err().map(|error| error.kind()), Some(ErrorKind::InvalidArgument));
    let large = vec![0; PAYLOAD_BYTES_MAX];
    let mut count = 0;
    let full = loop {
        match log.append(&large) {
            Ok(number) => count = number,
            Err(error) => break error,
        }
    };
    assert_eq!(full.kind(), ErrorKind::ResourceExhausted);
    assert_eq!(count, LOG_BYTES_MAX / PAYLOAD_BYTES_MAX as u64 - 1);
    // Most of it was written before, because pending bytes are limited.
    assert!(log.flushes() >= count / 2 - 1);
    log.commit(count).unwrap();
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
        // The torn end is gone, and the log goes on.
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
    // Damage in the payload that is a log: its frames must not be taken for this log's.
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

/// A medium that keeps lengths and no bytes.
#[derive(Debug)]
struct Void;

struct VoidWriter(u64);

impl Writer for VoidWriter {
    fn bytes(&self) -> u64 {
        self.0
    }
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.0 = self.0.max(offset + bytes.len() as u64);
        Ok(())
    }
    fn truncate(&mut self, bytes: u64) -> Result<()> {
        self.0 = bytes;
        Ok(())
    }
    fn persist(&mut self) -> Result<()> {
        Ok(())
    }
}

impl Medium for Void {
    fn kind(&self) -> MediumKind {
        MediumKind::Dram
    }
    fn create(&self, _: &str) -> Result<Box<dyn Writer>> {
        Ok(Box::new(VoidWriter(0)))
    }
    fn reopen(&self, name: &str) -> Result<Box<dyn Writer>> {
        Err(base::Error::not_found(name))
    }
    fn open(&self, name: &str) -> Result<Arc<dyn Sealed>> {
        Err(base::Error::not_found(name))
    }
    fn remove(&self, _: &str) -> Result<()> {
        Ok(())
    }
    fn list(&self) -> Result<Vec<(String, u64)>> {
        Ok(Vec::new())
    }
    fn persist_names(&self) -> Result<()> {
        Ok(())
    }
    fn reader(&self, _: ReaderOptions) -> Result<Box<dyn Reader>> {
        Err(base::Error::unimplemented("nothing to read"))
    }
}

/// A medium whose persists wait until the test releases them.
#[derive(Debug)]
struct Slow {
    inner: Arc<dyn Medium>,
    started: Mutex<Sender<()>>,
    gate: Arc<Mutex<Receiver<bool>>>,
    persists: Arc<AtomicU64>,
}

struct SlowWriter {
    inner: Box<dyn Writer>,
    started: Sender<()>,
    gate: Arc<Mutex<Receiver<bool>>>,
    persists: Arc<AtomicU64>,
}

impl Writer for SlowWriter {
    fn bytes(&self) -> u64 {
        self.inner.bytes()
    }
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.inner.write_at(offset, bytes)
    }
    fn truncate(&mut self, bytes: u64) -> Result<()> {
        self.inner.truncate(bytes)
    }
    fn persist(&mut self) -> Result<()> {
        self.persists.fetch_add(1, Ordering::SeqCst);
        let _ = self.started.send(());
        match self.gate.lock().unwrap().recv() {
            Ok(true) => self.inner.persist(),
            _ => Err(base::Error::data_loss("EIO")),
        }
    }
}

impl Medium for Slow {
    fn kind(&self) -> MediumKind {
        self.inner.kind()
    }
    fn create(&self, name: &str) -> Result<Box<dyn Writer>> {
        let (inner, started) = (self.inner.create(name)?, self.started.lock().unwrap().clone());
        Ok(Box::new(SlowWriter {
            inner,
            started,
            gate: self.gate.clone(),
            persists: self.persists.clone(),
        }))
    }
    fn reopen(&self, name: &str) -> Result<Box<dyn Writer>> {
        self.inner.reopen(name)
    }
    fn open(&self, name: &str) -> Result<Arc<dyn Sealed>> {
        self.inner.open(name)
    }
    fn remove(&self, name: &str) -> Result<()> {
        self.inner.remove(name)
    }
    fn list(&self) -> Result<Vec<(String, u64)>> {
        self.inner.list()
    }
    fn persist_names(&self) -> Result<()> {
        self.inner.persist_names()
    }
    fn reader(&self, options: ReaderOptions) -> Result<Box<dyn Reader>> {
        self.inner.reader(options)
    }
}

fn slow() -> (Arc<dyn Medium>, Receiver<()>, Sender<bool>, Arc<AtomicU64>) {
    let ((started, has_started), (go, gate)) = (channel(), channel());
    let persists = Arc::new(AtomicU64::new(0));
    let (started, gate) = (Mutex::new(started), Arc::new(Mutex::new(gate)));
    (
        Arc::new(Slow { inner: volatile(), started, gate, persists: persists.clone() }),
        has_started,
        go,
        persists,
    )
}

#[test]
fn one_flush_serves_all_who_wait() {
    let (medium, started, go, persists) = slow();
    go.send(true).unwrap();
    let (log, _) = Log::open(&medium, "log").unwrap();
    started.recv().unwrap();
    let first = log.append(b"first").unwrap();
    std::thread::scope(|scope| {
        let leader = scope.spawn(|| log.commit(first));
        started.recv().unwrap();
        // Twenty more arrive while the first is being written.
        let last = (0..20).map(|index| log.append(&payload(index)).unwrap()).last().unwrap();
        let others: Vec<_> = (first + 1..=last)
            .map(|number| {
                scope.spawn({
                    let log = &log;
                    move || log.commit(number)
                })
            })
            .collect();
        go.send(true).unwrap();
        started.recv().unwrap();
        go.send(true).unwrap();
        assert_eq!(leader.join().unwrap(), Ok(()));
        assert!(others.into_iter().all(|other| other.join().unwrap().is_ok()));
    });
    assert_eq!((log.flushes(), persists.load(Ordering::SeqCst)), (2, 3));
}

#[test]
fn a_failed_flush_fails_all_waiters_and_ends_the_log() {
    let (medium, started, go, persists) = slow();
    go.send(true).unwrap();
    go.send(true).unwrap();
    let (log, _) = Log::open(&medium, "log").unwrap();
    let kept = log.append(b"kept").unwrap();
    log.commit(kept).unwrap();
    let numbers: Vec<u64> = (0..4).map(|index| log.append(&payload(index)).unwrap()).collect();
    go.send(false).unwrap();
    std::thread::scope(|scope| {
        let waiting: Vec<_> = numbers
            .iter()
            .map(|&number| {
                scope.spawn({
                    let log = &log;
                    move || log.commit(number)
                })
            })
            .collect();
        for outcome in waiting {
            assert_eq!(
                outcome.join().unwrap().err().map(|error| error.kind()),
                Some(ErrorKind::DataLoss)
            );
        }
    });
    assert_eq!(
        log.append(b"more").err().map(|error| error.kind()),
        Some(ErrorKind::FailedPrecondition)
    );
    // Earlier payloads stay durable, and nothing was retried.
    assert_eq!(log.commit(kept), Ok(()));
    assert_eq!(persists.load(Ordering::SeqCst), 3);
    drop(started);
}

#[test]
fn a_full_medium_ends_the_log_until_it_is_opened_again() {
    let plan = FaultPlan { space: Some(1000), ..FaultPlan::default() };
    let inner = volatile();
    let medium: Arc<dyn Medium> = Arc::new(FaultMedium::new(inner.clone(), plan).unwrap());
    let (log, _) = Log::open(&medium, "log").unwrap();
    log.commit(log.append(&[1; 300]).unwrap()).unwrap();
    let number = log.append(&[2; 900]).unwrap();
    assert_eq!(log.commit(number).err().map(|error| error.kind()), Some(ErrorKind::StorageFull));
    assert_eq!(
        log.append(b"x").err().map(|error| error.kind()),
        Some(ErrorKind::FailedPrecondition)
    );
    // With room again, opening cuts off the torn end and goes on.
    let (log, replay) = Log::open(&inner, "log").unwrap();
    assert_eq!(replay.records, [(1, vec![1; 300])]);
    assert!(replay.torn_tail.is_some());
    log.commit(log.append(b"x").unwrap()).unwrap();
}

#[test]
fn a_failed_write_ends_the_log() {
    // The header is the first write.
    for write_error_at in 2..6 {
        let plan = FaultPlan { write_error_at: Some(write_error_at), ..FaultPlan::default() };
        let inner = volatile();
        let medium: Arc<dyn Medium> = Arc::new(FaultMedium::new(inner.clone(), plan).unwrap());
        let (log, _) = Log::open(&medium, "log").unwrap();
        let acknowledged = (1..=5).take_while(|&number| {
            log.append(&payload(number)).and_then(|number| log.commit(number)).is_ok()
        });
        let acknowledged = acknowledged.count() as u64;
        assert_eq!(acknowledged, write_error_at - 2);
        assert_eq!(
            log.append(b"x").err().map(|error| error.kind()),
            Some(ErrorKind::FailedPrecondition)
        );
        let (_, replay) = Log::open(&inner, "log").unwrap();
        assert_eq!(replay.records.len() as u64, acknowledged);
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

/// Keyed payloads, each with a flush of its own; where each frame starts, and the bytes.
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

#[test]
fn a_full_medium_creates_no_log_and_reads_old_ones() {
    let inner = volatile();
    let fault = Arc::new(FaultMedium::new(inner.clone(), FaultPlan::default()).unwrap());
    let medium: Arc<dyn Medium> = fault.clone();
    let (log, _) = Log::open(&medium, "old").unwrap();
    log.commit(log.append(b"kept").unwrap()).unwrap();
    drop(log);
    write(&*inner, "empty", b"");
    let fault = Arc::new(FaultMedium::new(inner.clone(), FaultPlan::default()).unwrap());
    let medium: Arc<dyn Medium> = fault.clone();
    fault.set_space(Some(0));
    for _ in 0..5 {
        assert_eq!(
            Log::open(&medium, "new").err().map(|error| error.kind()),
            Some(ErrorKind::StorageFull)
        );
    }
    assert!(inner.list().unwrap().iter().all(|(name, _)| name != "new"));
    let (log, replay) = Log::open_at(&medium, "empty", LogPosition::default()).unwrap();
    assert_eq!(
        (replay.records.len(), log.failure().map(|error| error.kind())),
        (0, Some(ErrorKind::StorageFull))
    );
    let (log, replay) = Log::open_at(&medium, "old", LogPosition::default()).unwrap();
    assert_eq!((replay.records, log.failure()), (vec![(1, b"kept".to_vec())], None));
    fault.set_space(None);
    let (log, _) = Log::open(&medium, "new").unwrap();
    log.commit(log.append(b"x").unwrap()).unwrap();
}
