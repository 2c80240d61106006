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
    /// Wakes one waiting run for each returned socket. Only runs wait for it. A thread that waits
    /// for the reason would take the wake-up of a run.
    returned: Condvar,
    /// Signalled at the end of the process, for threads that wait for the reason.
    ended: Condvar,
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
            returned: Condvar::new(),
            ended: Condvar::new(),
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
                None => self.returned.wait(&mut state),
            }
        }
    }

    /// Makes a socket free again, after a complete exchange.
    pub(crate) fn put_back(&self, channel: UnixStream) {
        self.state.lock().idle.push(channel);
        self.returned.notify_one();
    }

    /// Notes that the process has ended.
    pub(crate) fn end(&self, reason: Arc<str>) {
        let mut state = self.state.lock();
        state.idle.clear();
        state.ending = Some(reason);
        self.returned.notify_all();
        self.ended.notify_all();
    }

    /// Returns true once the process has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.state.lock().ending.is_some()
    }

    /// Waits until the reason of the end is known.
    pub(crate) fn wait_for_reason(&self) -> Arc<str> {
        let until = Instant::now() + REASON_WAIT_MAX;
        let mut state = self.state.lock();
        loop {
            if let Some(reason) = &state.ending {
                return reason.clone();
            }
            if self.ended.wait_until(&mut state, until).timed_out() {
                return "its worker process closed a socket".into();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_returned_socket_wakes_a_waiting_run() {
        let channels = WorkerChannels::new(Vec::new());
        let (socket, _peer) = UnixStream::pair().unwrap();
        std::thread::scope(|scope| {
            let reason = scope.spawn(|| channels.wait_for_reason());
            // A thread that was woken has waited, and waits again.
            while !channels.ended.notify_one() && !reason.is_finished() {
                std::thread::yield_now();
            }
            let run = scope.spawn(|| channels.take().is_ok());
            while !channels.returned.notify_one() {
                std::thread::yield_now();
            }
            channels.put_back(socket);
            assert!(run.join().unwrap(), "it gets the socket");
            channels.end("it ends".into());
            assert!(reason.join().is_ok());
        });
    }
}
