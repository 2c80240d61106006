//! The `source` and `prefault` threads. Both make slow system calls that the `lifecycle` thread
//! must not wait for.

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

/// Number of polls after a request in which even directories with a single scan are scanned again.
const REQUEST_POLLS: u32 = 5;
/// Bytes that are faulted in between two checks of the stop flag.
const PREFAULT_STEP_BYTES: u64 = 64 << 20;

/// Handle that asks the `source` thread for scans. The thread ends when this is dropped.
pub(crate) struct ScanRequests {
    requested: Arc<AtomicU64>,
    wake: Option<Sender<()>>,
}

/// Receiving end of [`ScanRequests`].
pub(crate) struct ScanTrigger {
    requested: Arc<AtomicU64>,
    wake: Receiver<()>,
}

impl ScanRequests {
    pub(crate) fn new() -> (ScanRequests, ScanTrigger) {
        // One wake-up in the channel is enough, because the next scan answers all earlier requests.
        let (wake, woken) = bounded(1);
        let requested = Arc::new(AtomicU64::new(0));
        (
            ScanRequests { requested: requested.clone(), wake: Some(wake) },
            ScanTrigger { requested, wake: woken },
        )
    }

    /// Requests a scan. Returns the ticket of the scan that answers the request.
    pub(crate) fn request(&self) -> u64 {
        let ticket = self.requested.fetch_add(1, Ordering::SeqCst) + 1;
        if let Some(wake) = &self.wake {
            // A full channel means that a wake-up is already queued.
            let _ = wake.try_send(());
        }
        ticket
    }

    pub(crate) fn stop(&mut self) {
        self.wake = None;
    }
}

/// Time between scans.
pub(crate) struct ScanPace {
    pub(crate) poll: Duration,
    /// Flag. Once it is set, only requests cause scans. `None` scans forever.
    pub(crate) settled: Option<Arc<Settled>>,
}

impl ScanPace {
    /// Returns the time to the next scan. `None` waits for a request. Further scans follow a
    /// request, because some versions count as complete only if two scans saw the same files.
    fn pause(&self, requested: Instant) -> Option<Duration> {
        let settled = self.settled.as_ref().is_some_and(|settled| settled.get());
        (!settled || requested.elapsed() < REQUEST_POLLS * self.poll).then_some(self.poll)
    }
}

/// Runs the `source` thread. It scans every `pace`, and on request.
pub(crate) fn scan(
    mut scanner: Scanner,
    pace: &ScanPace,
    trigger: &ScanTrigger,
    out: &Sender<Message>,
) {
    let mut requested = Instant::now();
    loop {
        let answers = trigger.requested.load(Ordering::SeqCst);
        if out.send(Message::Scanned(scanner.scan(answers, Instant::now()))).is_err() {
            return;
        }
        let pause = pace.pause(requested).into_iter().chain(scanner.next_check()).min();
        let woken = match pause {
            Some(pause) => trigger.wake.recv_timeout(pause),
            None => trigger.wake.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match woken {
            Ok(()) => requested = Instant::now(),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// Runs the `prefault` thread. It faults the pool in up to the requested bytes, at the pool's own
/// rate. Works at idle priority once the first load is finished.
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
        let backed = if settled.get() {
            runner.run("faulting the pool in", stop, work)
        } else {
            work(&Attempt::ordinary(stop.clone()))
        };
        match backed {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::Cancelled => return,
            Err(error) => {
                tracing::warn!(bytes, %error, "a part of the pool is not faulted in; loads do it");
            }
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
