//! Threads for what takes long to decode or to encode: a thread that watches sockets would keep all its connections waiting.
//!
//! Small messages are handled where they arrive, which costs microseconds. The queue has no length of its own: what waits in
//! it belongs to requests that were admitted, and their bytes are counted in the budget.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use base::{Error, Result};
use crossbeam_channel::{Receiver, Sender, unbounded};
use metrics::{KindLabels, Metrics};
use tokio::sync::oneshot;

/// Largest text in bytes that is decoded or encoded on the thread that watches its socket.
pub(crate) const INLINE_BYTES_MAX: usize = 64 << 10;
/// Most fields and elements of a message that is decoded there.
pub(crate) const INLINE_WORK_MAX: u64 = 16 << 10;
/// Most threads, if the machine has as many cores.
const THREADS_MAX: usize = 16;

/// What is done on these threads, as metrics name it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CodecStep {
    /// Decompressing a body.
    Decompress,
    /// From a body to tensors or a request.
    Decode,
    /// From tensors to an answer.
    Encode,
}

impl CodecStep {
    /// Returns the step's label.
    pub(crate) fn label(self) -> &'static str {
        match self {
            CodecStep::Decompress => "unpack",
            CodecStep::Decode => "decode",
            CodecStep::Encode => "encode",
        }
    }
}

type Work = Box<dyn FnOnce() + Send>;

/// Threads "decoder-N", started as work comes.
pub(crate) struct CodecThreads {
    metrics: Arc<Metrics>,
    sender: Sender<Work>,
    receiver: Receiver<Work>,
    threads: AtomicUsize,
}

impl CodecThreads {
    /// Makes the queue; there are no threads yet.
    pub(crate) fn new(metrics: Arc<Metrics>) -> CodecThreads {
        let (sender, receiver) = unbounded();
        CodecThreads { metrics, sender, receiver, threads: AtomicUsize::new(0) }
    }

    /// Does `work` on one of the threads.
    ///
    /// # Errors
    /// Those of `work`; `ResourceExhausted` if there is no thread and none can be started, `Internal` after a panic.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        step: CodecStep,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.start_one()?;
        self.metrics.decoded.get_or_create(&KindLabels { kind: step.label() }).inc();
        let (sender, receiver) = oneshot::channel();
        let work: Work = Box::new(move || {
            // Nobody waits any more if the client has gone.
            if !sender.is_closed() {
                let _ = sender.send(work());
            }
        });
        self.sender.send(work).map_err(|_| Error::internal("the threads that decode have ended"))?;
        receiver.await.unwrap_or_else(|_| Err(Error::internal("decoding this request ended in a panic")))
    }

    /// Does `work` at once if it is small, and otherwise on one of the threads.
    ///
    /// # Errors
    /// Those of [`CodecThreads::run`].
    pub(crate) async fn run_if<T: Send + 'static>(
        &self,
        large: bool,
        step: CodecStep,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        if large { self.run(step, work).await } else { work() }
    }

    /// Returns how many pieces of work wait for a thread.
    pub(crate) fn waiting(&self) -> usize {
        self.sender.len()
    }

    /// Starts a thread unless there are enough.
    fn start_one(&self) -> Result<()> {
        let max = std::thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX);
        let more = |threads: usize| (threads < max).then_some(threads + 1);
        let Ok(number) = self.threads.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more) else {
            return Ok(());
        };
        let queue = self.receiver.clone();
        let spawned =
            std::thread::Builder::new().name(format!("decoder-{number}")).spawn(move || serve(&queue));
        let Err(error) = spawned else { return Ok(()) };
        if self.threads.fetch_sub(1, Ordering::Relaxed) > 1 {
            return Ok(());
        }
        Err(Error::exhausted(format!(
            "no thread to decode a request can be started: {error}; try again later"
        )))
    }
}

fn serve(queue: &Receiver<Work>) {
    // Whoever watches sockets takes the core over when something comes.
    if let Err(error) = memory::thread::set_yielding(true) {
        tracing::debug!(%error, "a thread that decodes runs as any other");
    }
    // A panic costs the request that it is about, which learns of it by its channel.
    queue.iter().for_each(|work| drop(catch_unwind(AssertUnwindSafe(work))));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn work_is_done_on_few_threads_and_panics_stay_in_it() {
        let metrics = Arc::new(Metrics::default());
        let decoders = CodecThreads::new(metrics.clone());
        let name = || Ok(std::thread::current().name().unwrap_or_default().to_owned());
        for _ in 0..100 {
            assert!(decoders.run(CodecStep::Decode, name).await.unwrap().starts_with("decoder-"));
        }
        assert!(!decoders.run_if(false, CodecStep::Decode, name).await.unwrap().starts_with("decoder-"));
        let max = std::thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX);
        assert!(decoders.threads.load(Ordering::Relaxed) <= max);
        let failed = decoders.run(CodecStep::Encode, || -> Result<()> { panic!("as asked") }).await;
        assert_eq!(failed.unwrap_err().kind(), base::ErrorKind::Internal);
        assert_eq!(decoders.run(CodecStep::Decompress, || Ok(7)).await, Ok(7));
        let count = |step: CodecStep| metrics.decoded.get_or_create(&KindLabels { kind: step.label() }).get();
        assert_eq!([CodecStep::Decompress, CodecStep::Decode, CodecStep::Encode].map(count), [1, 100, 1]);
        assert_eq!(decoders.waiting(), 0);
    }
}
