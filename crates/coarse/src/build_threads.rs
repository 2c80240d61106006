//! Threads that build an index, and their cancellation.

use base::{Error, ErrorKind, Result};

/// Number of threads, and a function that cancels them.
#[derive(Clone, Copy)]
pub struct BuildThreads<'a> {
    /// Number of threads, at least 1.
    pub count: usize,
    /// Returns false to cancel the build. All threads call it every few milliseconds.
    pub should_continue: &'a (dyn Fn() -> bool + Sync),
}

impl BuildThreads<'static> {
    /// Creates a value of `count` threads that are never cancelled.
    pub fn of(count: usize) -> BuildThreads<'static> {
        BuildThreads { count, should_continue: &|| true }
    }
}

impl BuildThreads<'_> {
    /// Returns a single thread with the same cancellation.
    pub(super) fn alone(self) -> Self {
        BuildThreads { count: 1, ..self }
    }

    /// Checks for cancellation.
    ///
    /// # Errors
    /// `Cancelled`.
    pub(super) fn check(&self) -> Result<()> {
        if (self.should_continue)() {
            Ok(())
        } else {
            Err(Error::new(ErrorKind::Cancelled, "the build of the index was cancelled"))
        }
    }

    /// Runs `work` on each of `chunks`. Each thread takes the next chunk. If the system refuses
    /// some threads, the others do all chunks.
    ///
    /// # Errors
    /// `Cancelled`; some chunks were then skipped.
    pub(super) fn share<T: Send>(
        &self,
        chunks: impl Iterator<Item = T> + Send,
        work: impl Fn(T) + Send + Sync,
    ) -> Result<()> {
        let chunks = parking_lot::Mutex::new(chunks);
        let take = || chunks.lock().next();
        let run = || {
            while (self.should_continue)()
                && let Some(chunk) = take()
            {
                work(chunk);
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..self.count {
                // `Scope::spawn` would panic, and end the thread that flushes or merges.
                if let Err(error) = std::thread::Builder::new().spawn_scoped(scope, run) {
                    tracing::debug!(%error, "an index is built by fewer threads");
                    break;
                }
            }
            run();
        });
        self.check()
    }
}

impl std::fmt::Debug for BuildThreads<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "BuildThreads({})", self.count)
    }
}
