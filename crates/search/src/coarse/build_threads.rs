//! Who builds an index, and whether it is still wanted.

use base::{Error, ErrorKind, Result};

/// Threads for building, and a word to end it early.
#[derive(Clone, Copy)]
pub struct BuildThreads<'a> {
    /// Threads, at least 1.
    pub threads: usize,
    /// Whether to go on; asked every few milliseconds, by all of the threads.
    pub should_continue: &'a (dyn Fn() -> bool + Sync),
}

impl BuildThreads<'static> {
    /// So many threads, to the end.
    pub fn of(threads: usize) -> BuildThreads<'static> {
        BuildThreads { threads, should_continue: &|| true }
    }
}

impl BuildThreads<'_> {
    /// One of its threads, which does not share its work.
    pub(super) fn alone(self) -> Self {
        BuildThreads { threads: 1, ..self }
    }

    /// # Errors
    /// `Cancelled` where what is built is no longer wanted.
    pub(super) fn check(&self) -> Result<()> {
        match (self.should_continue)() {
            true => Ok(()),
            false => Err(Error::new(ErrorKind::Cancelled, "the index is no longer wanted")),
        }
    }

    /// Does `work` on every one of `chunks`, on threads that each take the next one.
    ///
    /// # Errors
    /// `Cancelled`, after which some chunks were left out.
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
            for _ in 1..self.threads {
                scope.spawn(run);
            }
            run();
        });
        self.check()
    }
}

impl std::fmt::Debug for BuildThreads<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Crew({})", self.threads)
    }
}
