//! A notice on the terminal if an answer takes long.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// A wait that is noted once if it is long. It ends when this is dropped.
pub(crate) struct WaitNotice {
    /// Dropped at the end of the wait.
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl WaitNotice {
    /// Starts a thread that calls `notify` if the wait does not end within `after`.
    pub(crate) fn start(after: Duration, notify: impl FnOnce() + Send + 'static) -> WaitNotice {
        let (end, ended) = channel::<()>();
        let body = move || {
            if ended.recv_timeout(after) == Err(RecvTimeoutError::Timeout) {
                notify();
            }
        };
        // Without a thread, the wait is silent.
        let thread = std::thread::Builder::new().name("notice".to_owned()).spawn(body).ok();
        WaitNotice { end: Some(end), thread }
    }
}

impl Drop for WaitNotice {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            // The result of the command does not depend on the notice.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::TryRecvError;

    use super::*;

    #[test]
    fn only_a_long_wait_is_noted() {
        let (to, noted) = channel();
        let notify = |text: &'static str| {
            let to = to.clone();
            move || {
                let _ = to.send(text);
            }
        };
        let long = WaitNotice::start(Duration::ZERO, notify("long"));
        assert_eq!(noted.recv_timeout(Duration::from_secs(60)), Ok("long"));
        drop(long);
        drop(WaitNotice::start(Duration::from_secs(3600), notify("short")));
        assert_eq!(noted.try_recv(), Err(TryRecvError::Empty));
    }
}
