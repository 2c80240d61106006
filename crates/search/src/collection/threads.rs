//! The threads of a collection: one opens segments and ends, two seal and two merge
//! ([`super::stall`]).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use base::{Error, Result};

use super::inner::CollectionInner;
use super::stall::Urgency;

/// How long a thread waits before it looks again without being told to.
const MEASURE_AGAIN: Duration = Duration::from_millis(500);
/// How long before segments that could not be opened are tried again.
pub(crate) const OPEN_AGAIN: Duration = Duration::from_secs(5);
/// After a failure, how long before the next try: from this, doubled each time,
const RETRY_MIN: Duration = Duration::from_millis(100);
/// up to this.
const RETRY_MAX: Duration = Duration::from_secs(30);

/// Joined when dropped.
pub(super) struct Threads {
    inner: Arc<CollectionInner>,
    handles: Vec<JoinHandle<()>>,
}

impl Threads {
    /// Starts what the options ask for.
    pub(super) fn start(inner: &Arc<CollectionInner>) -> Result<Threads> {
        let mut threads = Threads { inner: inner.clone(), handles: Vec::new() };
        if inner.outside {
            return Ok(threads);
        }
        threads.spawn("segment-open", |inner| {
            while inner.open_segments() {
                pause(inner, inner.events.count(), OPEN_AGAIN, true);
            }
        })?;
        if inner.options.background {
            threads.spawn("segment-seal", |inner| {
                os::thread::enter_low_priority("flushing");
                repeat(inner, "flushing", |inner| inner.flush_oldest(Urgency::Paced));
            })?;
            threads.spawn("segment-hurry-s", |inner| {
                repeat(inner, "flushing", |inner| {
                    inner.record_progress();
                    inner.flush_if_stalled()
                });
            })?;
            threads.spawn("segment-merge", |inner| {
                os::thread::enter_low_priority("merging");
                repeat(inner, "merging", |inner| inner.merge_once(Urgency::Paced));
            })?;
            threads.spawn("segment-hurry-m", |inner| {
                repeat(inner, "merging", CollectionInner::merge_if_behind)
            })?;
        }
        Ok(threads)
    }

    fn spawn(&mut self, name: &str, work: impl FnOnce(&CollectionInner) + Send + 'static) -> Result<()> {
        let inner = self.inner.clone();
        let run = move || work(&inner);
        let handle = std::thread::Builder::new()
            .name(name.into())
            .spawn(run)
            .map_err(|error| Error::exhausted(format!("thread {name}: {error}")))?;
        self.handles.push(handle);
        Ok(())
    }
}

/// Does `work` as long as there is some, then waits to be told of more.
fn repeat(inner: &CollectionInner, doing: &str, work: impl Fn(&CollectionInner) -> Result<bool>) {
    let mut retry = RETRY_MIN;
    while inner.check_open().is_ok() {
        let seen = inner.events.count();
        let wait = match work(inner) {
            Ok(true) => {
                retry = RETRY_MIN;
                continue;
            }
            Ok(false) => MEASURE_AGAIN,
            Err(error) => {
                if inner.check_open().is_ok() {
                    tracing::error!(%error, "{doing} failed, and is tried again");
                }
                retry = (retry * 2).min(RETRY_MAX);
                retry
            }
        };
        pause(inner, seen, wait, retry > RETRY_MIN);
    }
}

/// Waits for an event, or after a failure for its time; ends early when the collection is closed.
fn pause(inner: &CollectionInner, mut seen: u64, wait: Duration, whole: bool) {
    let deadline = Instant::now() + wait;
    while inner.check_open().is_ok() && inner.events.wait_past(seen, deadline) && whole {
        seen = inner.events.count();
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.inner.stop.store(true, Ordering::Relaxed);
        self.inner.events.notify();
        for handle in self.handles.drain(..) {
            if handle.join().is_err() {
                tracing::error!("a thread of a collection ended in a panic");
            }
        }
    }
}
