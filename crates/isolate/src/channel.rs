//! The sockets of a worker process, one for each concurrent run.

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// Longest wait for the reason after a socket was closed.
const REASON_WAIT_MAX: Duration = Duration::from_secs(5);

/// The sockets of one worker process.
pub(crate) struct WorkerChannels {
    state: Mutex<ChannelState>,
    changed: Condvar,
}

struct ChannelState {
    idle: Vec<UnixStream>,
    /// Reason for the end of the process.
    ending: Option<Arc<str>>,
}

impl WorkerChannels {
    pub(crate) fn new(idle: Vec<UnixStream>) -> WorkerChannels {
        WorkerChannels {
            state: Mutex::new(ChannelState { idle, ending: None }),
            changed: Condvar::new(),
        }
    }

    /// Takes a socket, once one is idle. Callers are the server's threads that run models, so their
    /// number bounds the waits.
    ///
    /// # Errors
    /// The reason for the end of the process.
    pub(crate) fn take(&self) -> Result<UnixStream, Arc<str>> {
        let mut state = self.state.lock();
        loop {
            if let Some(reason) = &state.ending {
                return Err(reason.clone());
            }
            match state.idle.pop() {
                Some(channel) => return Ok(channel),
                None => self.changed.wait(&mut state),
            }
        }
    }

    /// Returns a socket after a complete exchange.
    pub(crate) fn give(&self, channel: UnixStream) {
        self.state.lock().idle.push(channel);
        self.changed.notify_one();
    }

    /// Notes that the process has ended.
    pub(crate) fn end(&self, reason: Arc<str>) {
        let mut state = self.state.lock();
        state.idle.clear();
        state.ending = Some(reason);
        self.changed.notify_all();
    }

    /// Returns true once the process has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.state.lock().ending.is_some()
    }

    /// Waits until the reason of the end is known.
    pub(crate) fn reason(&self) -> Arc<str> {
        let until = Instant::now() + REASON_WAIT_MAX;
        let mut state = self.state.lock();
        loop {
            if let Some(reason) = &state.ending {
                return reason.clone();
            }
            if self.changed.wait_until(&mut state, until).timed_out() {
                return "its worker process closed a socket".into();
            }
        }
    }
}
