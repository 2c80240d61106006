//! Commits: limits, flushes that several threads share, and failures.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use base::{ErrorKind, Result};
use storage::log::{LOG_BYTES_MAX, Log, LogPosition, PAYLOAD_BYTES_MAX};
use storage::{FaultMedium, FaultPlan, Medium, MediumKind, Reader, ReaderOptions, Sealed, Writer};

use super::payload;
use crate::{volatile, write};

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
fn one_flush_serves_all_waiting_threads() {
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
    // With room again, opening cuts off the torn end and continues.
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
