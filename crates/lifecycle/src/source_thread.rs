//! The `source` and `backing` threads: both do slow things with the system so that `lifecycle` need
//! not.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use base::{Error, ErrorKind, Result};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use memory::SlotPool;
use os::background::{Attempt, BackgroundRunner};

use crate::message::Message;
use crate::settled::Settled;
use crate::source::Scanner;

/// The pool is backed in steps of so many bytes, and between two steps it may be told to stop.
const PREFAULT_STEP_BYTES: u64 = 64 << 20;

/// Asks the `source` thread for scans. It ends when this is dropped.
pub(crate) struct ScanRequests {
    asked: Arc<AtomicU64>,
    wake: Option<Sender<()>>,
}

/// The other end of [`ScanRequests`].
pub(crate) struct ScanTrigger {
    asked: Arc<AtomicU64>,
    wake: Receiver<()>,
}

impl ScanRequests {
    pub(crate) fn new() -> (ScanRequests, ScanTrigger) {
        // One wake-up waiting is enough: the look that follows answers all who asked before it.
        let (wake, woken) = bounded(1);
        let asked = Arc::new(AtomicU64::new(0));
        (
            ScanRequests { asked: asked.clone(), wake: Some(wake) },
            ScanTrigger { asked, wake: woken },
        )
    }

    /// Asks for a look; the ticket says which look answers.
    pub(crate) fn ask(&self) -> u64 {
        let ticket = self.asked.fetch_add(1, Ordering::SeqCst) + 1;
        if let Some(wake) = &self.wake {
            // Full means that a wake-up is waiting already.
            let _ = wake.try_send(());
        }
        ticket
    }

    pub(crate) fn stop(&mut self) {
        self.wake = None;
    }
}

/// The body of the `source` thread: a look every `poll`, and whenever asked.
pub(crate) fn scan(
    mut scanner: Scanner,
    poll: Duration,
    asked: &ScanTrigger,
    out: &Sender<Message>,
) {
    loop {
        let answers = asked.asked.load(Ordering::SeqCst);
        if out.send(Message::Scanned(scanner.scan(answers, Instant::now()))).is_err() {
            return;
        }
        match asked.wake.recv_timeout(poll) {
            Ok(()) | Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// The body of the `backing` thread: faults the pool in as far as asked, at the pool's own pace
/// and, once the first load is finished, behind everybody else.
pub(crate) fn prefault(
    pool: &Arc<SlotPool>,
    wanted: &Receiver<u64>,
    settled: &Settled,
    mut runner: BackgroundRunner,
    stop: &Arc<AtomicBool>,
    out: &Sender<Message>,
) {
    for bytes in wanted {
        let pool = pool.clone();
        let work = move |attempt: &Attempt| prefault_to(&pool, bytes, &attempt.stop);
        let backed = match settled.get() {
            true => runner.run("faulting the pool in", stop, work),
            false => work(&Attempt::ordinary(stop.clone())),
        };
        match backed {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::Cancelled => return,
            Err(error) => tracing::warn!(bytes, %error, "loads fault in what is missing"),
        }
        if out.send(Message::Prefaulted { bytes }).is_err() {
            return;
        }
    }
}

fn prefault_to(pool: &SlotPool, bytes: u64, stop: &AtomicBool) -> Result<()> {
    let mut backed = pool.stats().backed.min(bytes);
    while backed < bytes {
        if stop.load(Ordering::Relaxed) {
            return Err(Error::cancelled("faulting the pool in was stopped"));
        }
        backed = (backed + PREFAULT_STEP_BYTES).min(bytes);
        pool.prefault(backed)?;
    }
    Ok(())
}
