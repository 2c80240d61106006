//! Threads for work that would block a connection thread: decoding, keypoints, thumbnails, writes.
//! Work that no caller waits for urgently has threads of its own, at idle priority. So has work
//! that waits for the store of originals: a store that does not answer holds up no other work.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use base::{Error, Result};
use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use metrics::{KindLabels, Metrics};
use os::CpuAccount;
use tokio::sync::oneshot;

/// Maximum queued work. Further work is refused. The bytes of images are queued too.
const QUEUE_MAX: usize = 64;
/// Number of threads that wait for the store of originals. They use little processor time.
const STORE_THREADS: usize = 16;
/// Retry advice to a refused client.
const RETRY_AFTER: Duration = Duration::from_secs(1);

type ImageTask = Box<dyn FnOnce() + Send>;

/// Priority and work of the threads of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PoolKind {
    /// Threads "images-N" of ordinary priority.
    Interactive,
    /// Threads "extract-N" of idle priority.
    Background,
    /// Threads "originals-N" of ordinary priority, which wait for the store of originals.
    StoreWaits,
}

/// Handling of queued work whose caller has disconnected.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OnDisconnect {
    Run,
    Skip,
}

impl PoolKind {
    /// Returns the common start of the names of the threads.
    fn thread_name(self) -> &'static str {
        match self {
            PoolKind::Interactive => "images",
            PoolKind::Background => "extract",
            PoolKind::StoreWaits => "originals",
        }
    }

    /// Returns the limit's name in the metric of refusals.
    fn limit_name(self) -> &'static str {
        match self {
            PoolKind::Interactive => "images_queue_max",
            PoolKind::Background => "ingest_queue_max",
            PoolKind::StoreWaits => "originals_queue_max",
        }
    }

    /// Returns the number of threads.
    fn threads(self) -> usize {
        match self {
            PoolKind::Interactive | PoolKind::Background => threads(),
            PoolKind::StoreWaits => STORE_THREADS,
        }
    }

    /// Returns the error for work that the queue has no room for.
    fn refusal(self) -> Error {
        let why = match self {
            PoolKind::Interactive | PoolKind::Background => {
                format!("{QUEUE_MAX} images are queued already; try again later")
            }
            PoolKind::StoreWaits => format!(
                "{QUEUE_MAX} images wait for the store of original images already; check the \
                 store, and try again later"
            ),
        };
        Error::exhausted(why).with_retry_after(RETRY_AFTER)
    }
}

/// Threads, started with the first work.
pub(crate) struct Pool {
    kind: PoolKind,
    metrics: Arc<Metrics>,
    queue: OnceLock<Sender<ImageTask>>,
}

impl Pool {
    pub(crate) fn new(kind: PoolKind, metrics: Arc<Metrics>) -> Pool {
        Pool { kind, metrics, queue: OnceLock::new() }
    }

    /// Runs `work` on one of the threads, even if the caller disconnects.
    ///
    /// # Errors
    /// `ResourceExhausted` with retry advice if the queue is full; the errors of `work`.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> impl Future<Output = Result<T>> {
        self.submit(work, OnDisconnect::Run)
    }

    /// Runs work that changes nothing on one of the threads, unless the caller disconnects before
    /// it begins.
    ///
    /// # Errors
    /// As [`Pool::run`].
    pub(crate) fn run_wanted<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> impl Future<Output = Result<T>> {
        self.submit(work, OnDisconnect::Skip)
    }

    /// Queues `work` and waits for its result.
    async fn submit<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T> + Send + 'static,
        on_disconnect: OnDisconnect,
    ) -> Result<T> {
        let (sender, receiver) = oneshot::channel();
        // Bulk work is not charged to a key.
        let account = match self.kind {
            PoolKind::Interactive | PoolKind::StoreWaits => CpuAccount::current(),
            PoolKind::Background => None,
        };
        let work: ImageTask = Box::new(move || {
            if on_disconnect == OnDisconnect::Skip && sender.is_closed() {
                return;
            }
            let done = match account {
                Some(account) => account.measure(work),
                None => work(),
            };
            // The send fails only if the caller has disconnected, and wants no result.
            drop(sender.send(done));
        });
        self.queue()?.try_send(work).map_err(|error| match error {
            TrySendError::Full(_) => {
                let refused = KindLabels { kind: self.kind.limit_name() };
                self.metrics.refused.get_or_create(&refused).inc();
                self.kind.refusal()
            }
            TrySendError::Disconnected(_) => Error::internal("the threads for images have ended"),
        })?;
        receiver
            .await
            .unwrap_or_else(|_| Err(Error::internal("a panic ended the work on this image")))
    }

    /// Returns the queue of the threads. Starts them at the first call.
    fn queue(&self) -> Result<&Sender<ImageTask>> {
        if let Some(queue) = self.queue.get() {
            return Ok(queue);
        }
        // After a failure the next caller tries again. The threads of a second queue end at once.
        let queue = start(self.kind)?;
        Ok(self.queue.get_or_init(|| queue))
    }

    /// Returns the amount of queued work.
    pub(crate) fn waiting(&self) -> usize {
        self.queue.get().map_or(0, Sender::len)
    }
}

fn start(kind: PoolKind) -> Result<Sender<ImageTask>> {
    let (sender, receiver) = bounded(QUEUE_MAX);
    for number in 0..kind.threads() {
        spawn(kind, number, receiver.clone())?;
    }
    Ok(sender)
}

/// Returns the number of threads that compute: one per core.
pub(crate) fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn spawn(kind: PoolKind, number: usize, queue: Receiver<ImageTask>) -> Result<()> {
    let body = move || {
        if kind == PoolKind::Background {
            os::thread::enter_background("extracting features");
        }
        // A panic fails only its own image, because it drops the channel to the caller.
        queue.iter().for_each(|work| drop(catch_unwind(AssertUnwindSafe(work))));
    };
    os::thread::spawn(format!("{}-{number}", kind.thread_name()), body).map(drop)
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use base::ErrorKind;
    use tokio::time::timeout;

    use super::*;

    /// Queues work whose caller disconnects at once.
    async fn abandon(work: impl Future<Output = Result<()>>) {
        assert!(timeout(Duration::ZERO, work).await.is_err());
    }

    /// Lets all threads of a pool wait at a barrier, after the work that was queued before.
    async fn block(pool: &Pool, barrier: &Arc<Barrier>) {
        for _ in 0..pool.kind.threads() {
            let barrier = barrier.clone();
            let wait = move || -> Result<()> {
                barrier.wait();
                Ok(())
            };
            abandon(pool.run(wait)).await;
        }
    }

    #[tokio::test]
    async fn a_full_queue_refuses_and_counts_further_work() {
        for (kind, limit) in [
            (PoolKind::Interactive, "images_queue_max"),
            (PoolKind::Background, "ingest_queue_max"),
            (PoolKind::StoreWaits, "originals_queue_max"),
        ] {
            let pool = Pool::new(kind, Arc::default());
            let barrier = Arc::new(Barrier::new(kind.threads() + 1));
            block(&pool, &barrier).await;
            while pool.waiting() > 0 {
                tokio::task::yield_now().await;
            }
            for _ in 0..QUEUE_MAX {
                abandon(pool.run(|| Ok(()))).await;
            }
            let refused = pool.metrics.refused.get_or_create_owned(&KindLabels { kind: limit });
            assert_eq!((pool.waiting(), refused.get()), (QUEUE_MAX, 0), "{kind:?}");
            let error = pool.run(|| Ok(())).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ResourceExhausted);
            assert_eq!(error.retry_after(), Some(RETRY_AFTER));
            assert_eq!((pool.waiting(), refused.get()), (QUEUE_MAX, 1), "{kind:?}");
            barrier.wait();
        }
    }

    #[tokio::test]
    async fn a_query_whose_caller_has_disconnected_is_not_begun() {
        let pool = Pool::new(PoolKind::Interactive, Arc::default());
        let barrier = Arc::new(Barrier::new(threads() + 1));
        let begun = Arc::new(AtomicUsize::new(0));
        let count = || {
            let begun = begun.clone();
            move || -> Result<()> {
                begun.fetch_add(1, Ordering::SeqCst);
                Ok(())
            }
        };
        block(&pool, &barrier).await;
        abandon(pool.run_wanted(count())).await;
        abandon(pool.run(count())).await;
        barrier.wait();
        block(&pool, &barrier).await;
        // All threads have done or skipped the earlier work.
        barrier.wait();
        assert_eq!(begun.load(Ordering::SeqCst), 1);
    }
}
