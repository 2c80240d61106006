//! Threads that share nothing. Each has its own event queue and its own connections.
//!
//! A work-stealing runtime passes its one event queue from thread to thread. The thread that takes
//! an event wakes another one to watch the sockets. That costs two context switches an event and is
//! useful only if handlers run long. A connection thread waits, handles and waits again (ADR 0006).

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use base::{Error, Result};
use tokio::runtime::{Builder, Handle};
use tokio::sync::watch;

/// Longest wait at shutdown for tasks that still run on a thread.
const SHUTDOWN_WAIT: Duration = Duration::from_secs(1);

/// A thread and the number of its connections.
struct ConnectionThread {
    handle: Handle,
    connections: Arc<AtomicUsize>,
}

/// Threads that run connections.
pub struct ConnectionThreads {
    threads: Vec<ConnectionThread>,
    stop: watch::Sender<bool>,
    handles: Mutex<Vec<JoinHandle<()>>>,
}

impl ConnectionThreads {
    /// Starts `count` threads called "connection".
    ///
    /// # Errors
    /// `ResourceExhausted` if a thread or its event queue cannot be made.
    pub fn start(count: usize) -> Result<Arc<ConnectionThreads>> {
        let (stop, _) = watch::channel(false);
        let failed = |e: std::io::Error| {
            Error::exhausted("the connection threads cannot be started").caused_by(e)
        };
        let mut threads = Vec::new();
        let mut handles = Vec::new();
        for _ in 0..count.max(1) {
            let runtime = Builder::new_current_thread().enable_all().build().map_err(failed)?;
            let connections = Arc::new(AtomicUsize::new(0));
            threads.push(ConnectionThread { handle: runtime.handle().clone(), connections });
            let mut stopped = stop.subscribe();
            let thread = os::thread::spawn("connection", move || {
                // An error means that the sender was dropped, which also ends the thread.
                let _ = runtime.block_on(stopped.wait_for(|stop| *stop)).map(|_| ());
                runtime.shutdown_timeout(SHUTDOWN_WAIT);
            })?;
            handles.push(thread);
        }
        Ok(Arc::new(ConnectionThreads { threads, stop, handles: Mutex::new(handles) }))
    }

    /// Runs a connection on the thread that has the fewest.
    pub fn spawn(&self, connection: impl Future<Output = ()> + Send + 'static) {
        let Some(thread) =
            self.threads.iter().min_by_key(|thread| thread.connections.load(Ordering::Relaxed))
        else {
            return;
        };
        let guard = CountGuard::take(&thread.connections);
        thread.handle.spawn(async move {
            connection.await;
            drop(guard);
        });
    }

    /// Ends the threads and the tasks that still run on them.
    pub fn shutdown(&self) {
        self.stop.send_replace(true);
        for thread in
            std::mem::take(&mut *self.handles.lock().unwrap_or_else(PoisonError::into_inner))
        {
            if thread.join().is_err() {
                tracing::error!("a connection thread ended by panic");
            }
        }
    }
}

impl Drop for ConnectionThreads {
    fn drop(&mut self) {
        self.shutdown();
    }
}

/// Guard that counts one connection of a thread.
struct CountGuard(Arc<AtomicUsize>);

impl CountGuard {
    fn take(connections: &Arc<AtomicUsize>) -> CountGuard {
        connections.fetch_add(1, Ordering::Relaxed);
        CountGuard(connections.clone())
    }
}

impl Drop for CountGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn connections_are_spread_over_the_threads() {
        let threads = ConnectionThreads::start(2).unwrap();
        let (sender, receiver) = std::sync::mpsc::channel();
        let (release, held) = watch::channel(false);
        for _ in 0..4 {
            let (sender, mut held) = (sender.clone(), held.clone());
            threads.spawn(async move {
                sender.send(std::thread::current().id()).unwrap();
                held.wait_for(|go| *go).await.unwrap();
            });
        }
        let ids: Vec<_> = (0..4).map(|_| receiver.recv().unwrap()).collect();
        let first = ids.iter().filter(|&&id| id == ids[0]).count();
        assert_eq!(first, 2);
        assert!(
            threads.threads.iter().all(|thread| thread.connections.load(Ordering::Relaxed) == 2)
        );
        release.send(true).unwrap();
        threads.shutdown();
        assert!(
            threads.threads.iter().all(|thread| thread.connections.load(Ordering::Relaxed) == 0)
        );
    }
}
