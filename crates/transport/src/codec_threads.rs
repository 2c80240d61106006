//! Threads that decode and encode large messages. Done on a connection's thread, that work would
//! delay all connections of the thread.
//!
//! Small messages are handled on the connection's thread, which takes microseconds. The queue is
//! unbounded. Its entries belong to admitted requests, and their bytes are counted in the budget.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use base::{Error, Result};
use crossbeam_channel::{Receiver, Sender, unbounded};
use metrics::{KindLabels, Metrics};
use tokio::sync::oneshot;

/// Largest text in bytes that is decoded or encoded on the connection's thread.
pub const INLINE_BYTES_MAX: usize = 64 << 10;
/// Maximum fields and elements of a message that is decoded on the connection's thread.
pub const INLINE_WORK_MAX: u64 = 16 << 10;
/// Maximum threads, on a machine with that many cores.
const THREADS_MAX: usize = 16;

/// The kind of work, as metrics label it.
#[derive(Clone, Copy, Debug)]
pub enum CodecStep {
    /// Decompresses a body.
    Decompress,
    /// Decodes a body to tensors or a request.
    Decode,
    /// Encodes tensors as an answer.
    Encode,
}

impl CodecStep {
    fn label(self) -> &'static str {
        match self {
            CodecStep::Decompress => "unpack",
            CodecStep::Decode => "decode",
            CodecStep::Encode => "encode",
        }
    }
}

type CodecJob = Box<dyn FnOnce() + Send>;

/// Threads "decoder-N", which start on demand.
pub struct CodecThreads {
    metrics: Arc<Metrics>,
    sender: Sender<CodecJob>,
    receiver: Receiver<CodecJob>,
    /// Number of threads that run. Held while one is started, because a job must not rely on a
    /// thread whose start then fails.
    threads: Mutex<usize>,
}

impl CodecThreads {
    /// Creates the queue, without threads.
    pub fn new(metrics: Arc<Metrics>) -> CodecThreads {
        let (sender, receiver) = unbounded();
        CodecThreads { metrics, sender, receiver, threads: Mutex::default() }
    }

    /// Runs `work` on one of the threads.
    ///
    /// # Errors
    /// Returns the errors of `work`. `ResourceExhausted` if no thread runs and none can be started,
    /// `Internal` after a panic.
    pub async fn run<T: Send + 'static>(
        &self,
        step: CodecStep,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.start_one()?;
        self.metrics.decoded.get_or_create(&KindLabels { kind: step.label() }).inc();
        let (sender, receiver) = oneshot::channel();
        let work: CodecJob = Box::new(move || {
            // The receiver was dropped if the client has disconnected.
            if !sender.is_closed() {
                let _ = sender.send(work());
            }
        });
        self.sender
            .send(work)
            .map_err(|_| Error::internal("the threads that decode have ended"))?;
        receiver
            .await
            .unwrap_or_else(|_| Err(Error::internal("decoding this request ended in a panic")))
    }

    /// Runs `work` on one of the threads if it is `large`, and otherwise at once.
    ///
    /// # Errors
    /// Returns the errors of [`CodecThreads::run`].
    pub async fn run_if<T: Send + 'static>(
        &self,
        large: bool,
        step: CodecStep,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        if large { self.run(step, work).await } else { work() }
    }

    /// Returns the length of the queue.
    pub fn waiting(&self) -> usize {
        self.sender.len()
    }

    /// Starts a thread unless the maximum is running.
    fn start_one(&self) -> Result<()> {
        self.start_one_with(|number| {
            let queue = self.receiver.clone();
            os::thread::spawn(format!("decoder-{number}"), move || serve(&queue)).map(drop)
        })
    }

    /// Starts a thread by `start`, which gets its number, unless the maximum is running.
    ///
    /// # Errors
    /// The error of `start` if no thread runs.
    fn start_one_with(&self, start: impl FnOnce(usize) -> Result<()>) -> Result<()> {
        let max = std::thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX);
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        if *threads >= max {
            return Ok(());
        }
        match start(*threads) {
            Ok(()) => *threads += 1,
            Err(error) if *threads == 0 => return Err(error),
            Err(_) => {}
        }
        Ok(())
    }
}

fn serve(queue: &Receiver<CodecJob>) {
    // Connection threads preempt this one when a socket has data.
    if let Err(error) = os::thread::set_batch_scheduling(true) {
        tracing::debug!(%error, "a codec thread keeps its scheduling class");
    }
    // A panic fails only its own request, whose channel closes.
    queue.iter().for_each(|work| drop(catch_unwind(AssertUnwindSafe(work))));
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn work_runs_on_few_threads_and_survives_panics() {
        let metrics = Arc::new(Metrics::default());
        let decoders = CodecThreads::new(metrics.clone());
        let name = || Ok(std::thread::current().name().unwrap_or_default().to_owned());
        for _ in 0..100 {
            assert!(decoders.run(CodecStep::Decode, name).await.unwrap().starts_with("decoder-"));
        }
        assert!(
            !decoders.run_if(false, CodecStep::Decode, name).await.unwrap().starts_with("decoder-")
        );
        let max = std::thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX);
        assert!(*decoders.threads.lock().unwrap() <= max);
        let failed = decoders.run(CodecStep::Encode, || -> Result<()> { panic!("as asked") }).await;
        assert_eq!(failed.unwrap_err().kind(), base::ErrorKind::Internal);
        assert_eq!(decoders.run(CodecStep::Decompress, || Ok(7)).await, Ok(7));
        let count = |step: CodecStep| {
            metrics.decoded.get_or_create(&KindLabels { kind: step.label() }).get()
        };
        assert_eq!(
            [CodecStep::Decompress, CodecStep::Decode, CodecStep::Encode].map(count),
            [1, 100, 1]
        );
        assert_eq!(decoders.waiting(), 0);
    }

    /// A request must not rely on the thread that another request fails to start.
    #[test]
    fn two_starts_that_fail_refuse_both_requests() {
        let decoders = CodecThreads::new(Arc::default());
        let refuse = || -> Result<()> { Err(Error::exhausted("no thread")) };
        let (begin, begun) = std::sync::mpsc::channel();
        let starts = &decoders;
        let outcomes = std::thread::scope(|scope| {
            let mut other = None;
            let first = starts.start_one_with(|_| {
                let start = move |_| {
                    begin.send(()).unwrap();
                    refuse()
                };
                other = Some(scope.spawn(move || starts.start_one_with(start)));
                // The other start begins after this one. If not, it would begin at once.
                let overlap = begun.recv_timeout(Duration::from_millis(50));
                assert!(overlap.is_err(), "two starts at the same time");
                refuse()
            });
            [first, other.unwrap().join().unwrap()]
        });
        assert!(outcomes.iter().all(Result::is_err), "{outcomes:?}");
        assert_eq!(*decoders.threads.lock().unwrap(), 0);
    }
}
