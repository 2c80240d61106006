//! Calls into directories of file systems that may not answer, such as a network mount with a
//! server that is down. Such a call cannot be stopped. Its thread is left behind until the call
//! ends, and scans continue with another one.

#[cfg(test)]
use std::collections::HashMap;
use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TryRecvError, bounded};

/// Longest wait for a call without progress.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// Longest wait for the first call into a directory, which may make the mount.
const FIRST_WAIT_MAX: Duration = Duration::from_secs(30);
/// Shortest wait for a call, in a scan that has waited for others.
const WAIT_MIN: Duration = Duration::from_millis(500);
/// Maximum number of directories that do not answer and have a thread each. With so many, no
/// directory is read until one of them answers.
const SILENT_MAX: usize = 128;

/// A call that counts its steps.
type Call<T> = Box<dyn FnOnce(&CallProgress) -> T + Send>;

/// Number of steps of the calls of a thread. A call that makes steps is waited for.
#[derive(Default)]
pub(super) struct CallProgress(AtomicU64);

impl CallProgress {
    pub(super) fn step(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn steps(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A thread that runs calls, one after another.
struct CallThread<T> {
    calls: Sender<Call<T>>,
    results: Receiver<T>,
    progress: Arc<CallProgress>,
}

impl<T: Send + 'static> CallThread<T> {
    /// Returns `None` if the system starts no thread.
    fn start() -> Option<CallThread<T>> {
        let (calls, queue) = bounded::<Call<T>>(1);
        let (to, results) = bounded(1);
        let progress = Arc::new(CallProgress::default());
        let steps = progress.clone();
        let body = move || {
            for call in queue {
                if to.send(call(&steps)).is_err() {
                    return;
                }
            }
        };
        os::thread::spawn("source-read", body).ok()?;
        Some(CallThread { calls, results, progress })
    }

    /// Waits for the result of the call, for at most `limit` without a step.
    fn wait(&self, limit: Duration) -> Result<T, RecvTimeoutError> {
        loop {
            let before = self.progress.steps();
            match self.results.recv_timeout(limit) {
                Err(RecvTimeoutError::Timeout) if self.progress.steps() != before => {}
                ended => return ended,
            }
        }
    }
}

/// Calls into directories, and the ones that have not ended.
pub(super) struct DirectoryCalls<T> {
    thread: Option<CallThread<T>>,
    /// Receivers of the results of calls that have not ended, by directory.
    silent: BTreeMap<PathBuf, Receiver<T>>,
    /// Directories that have answered once, in time or late.
    answered: HashSet<PathBuf>,
    /// Time of this scan that was spent on calls that did not end.
    waited: Duration,
    /// Directories whose next call does not end before the sender is dropped.
    #[cfg(test)]
    closed: HashMap<PathBuf, Receiver<()>>,
}

impl<T> Default for DirectoryCalls<T> {
    fn default() -> DirectoryCalls<T> {
        DirectoryCalls {
            thread: None,
            silent: BTreeMap::new(),
            answered: HashSet::new(),
            waited: Duration::ZERO,
            #[cfg(test)]
            closed: HashMap::new(),
        }
    }
}

impl<T: Send + 'static> DirectoryCalls<T> {
    /// Begins a scan. Returns the results of calls that have ended since the last one.
    pub(super) fn begin_scan(&mut self) -> Vec<T> {
        self.waited = Duration::ZERO;
        let mut ended = Vec::new();
        self.silent.retain(|dir, results| match results.try_recv() {
            Ok(result) => {
                ended.push(result);
                self.answered.insert(dir.clone());
                false
            }
            Err(TryRecvError::Empty) => true,
            // The call has panicked.
            Err(TryRecvError::Disconnected) => false,
        });
        ended
    }

    /// Forgets the directories that `is_used` returns false for, except for running calls.
    pub(super) fn retain(&mut self, is_used: impl Fn(&Path) -> bool) {
        self.answered.retain(|dir| is_used(dir));
    }

    /// Returns true if no call into the directory is made, because an earlier one has not ended or
    /// [`SILENT_MAX`] directories do not answer.
    pub(super) fn is_skipped(&self, dir: &Path) -> bool {
        self.silent.contains_key(dir) || self.silent.len() >= SILENT_MAX
    }

    pub(super) fn any_silent(&self) -> bool {
        !self.silent.is_empty()
    }

    /// Calls `call`, which reads the directory `dir` only. Returns `None` if the call does not end
    /// in time. Then [`DirectoryCalls::begin_scan`] returns its result later. Returns `None` at
    /// once, without a call, if [`DirectoryCalls::is_skipped`] returns true.
    pub(super) fn call(
        &mut self,
        dir: &Path,
        call: impl FnOnce(&CallProgress) -> T + Send + 'static,
    ) -> Option<T> {
        if self.is_skipped(dir) {
            return None;
        }
        let wait = self.wait_for(dir);
        #[cfg(test)]
        let (wait, call) = self.delayed(dir, wait, call);
        let Some(thread) = self.thread.take().or_else(CallThread::start) else {
            // Without a thread, the call runs here and may wait for its file system.
            return Some(call(&CallProgress::default()));
        };
        // Fails only if the thread has ended, as the wait shows.
        let _ = thread.calls.send(Box::new(call));
        match thread.wait(wait) {
            Ok(result) => {
                self.thread = Some(thread);
                self.note_answer(dir);
                Some(result)
            }
            Err(RecvTimeoutError::Timeout) => {
                self.waited += wait;
                self.silent.insert(dir.to_owned(), thread.results);
                None
            }
            // The call has panicked. The next scan calls again.
            Err(RecvTimeoutError::Disconnected) => None,
        }
    }

    fn note_answer(&mut self, dir: &Path) {
        if !self.answered.contains(dir) {
            self.answered.insert(dir.to_owned());
        }
    }

    fn wait_for(&self, dir: &Path) -> Duration {
        let longest = if self.answered.contains(dir) { WAIT_MAX } else { FIRST_WAIT_MAX };
        longest.saturating_sub(self.waited).max(WAIT_MIN)
    }
}

#[cfg(test)]
impl<T: Send + 'static> DirectoryCalls<T> {
    /// Delays the end of the next call into `dir` until the returned sender is dropped.
    pub(super) fn close(&mut self, dir: &Path) -> Sender<()> {
        let (open, closed) = bounded(0);
        self.closed.insert(dir.to_owned(), closed);
        open
    }

    /// Delays a call into a closed directory, and does not wait for it.
    fn delayed(
        &mut self,
        dir: &Path,
        wait: Duration,
        call: impl FnOnce(&CallProgress) -> T + Send + 'static,
    ) -> (Duration, Call<T>) {
        let closed = self.closed.remove(dir);
        let wait = if closed.is_some() { Duration::ZERO } else { wait };
        let call = move |progress: &CallProgress| {
            if let Some(closed) = closed {
                let _ = closed.recv();
            }
            call(progress)
        };
        (wait, Box::new(call))
    }
}

#[cfg(test)]
mod tests;
