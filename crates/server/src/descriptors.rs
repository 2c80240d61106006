//! File descriptors: how the limit is shared among listeners and collections, and what happens at the limit.

use std::fs::File;
use std::task::Poll;
use std::time::{Duration, Instant};

use base::{Error, Result};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::TcpListener;

/// Descriptors that the server needs besides connections and collections: files, timers, signals, engines.
const OWN_MAX: u64 = 256;
/// Descriptors that a collection is counted with: its logs and its segments.
const PER_COLLECTION: u64 = 4;
/// Most collections of a server whose limit is high enough.
pub(crate) const COLLECTIONS_MAX: usize = 1000;
/// Shortest time between two warnings of the same kind.
const WARNING_INTERVAL: Duration = Duration::from_secs(10);

/// How the open-file limit is shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DescriptorPlan {
    /// Most connections of one listener.
    pub connections_max: usize,
    /// Most collections.
    pub collections_max: usize,
}

/// Shares `limit` descriptors among the server itself, its collections and the connections of both listeners, which
/// want `connections_max` each.
pub fn plan(limit: u64, connections_max: usize) -> DescriptorPlan {
    let left = limit - OWN_MAX.min(limit / 4);
    let collections = (COLLECTIONS_MAX as u64 * PER_COLLECTION).min(left / 4);
    let room = usize::try_from((left - collections) / 2).unwrap_or(usize::MAX);
    DescriptorPlan {
        connections_max: connections_max.min(room).max(1),
        collections_max: usize::try_from(collections / PER_COLLECTION).unwrap_or(COLLECTIONS_MAX).max(1),
    }
}

/// Raises the soft limit of open files to the hard one, because the soft limit is only a default. Returns the limit.
pub(crate) fn raise() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.maximum.unwrap_or(u64::MAX),
        Err(error) => {
            tracing::warn!(%error, "the open-file limit could not be raised");
            limit.current.unwrap_or(u64::MAX)
        }
    }
}

/// Returns the limit of open files that holds now.
pub(crate) fn limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Returns the number of open descriptors, or 0 if /proc is not there.
pub(crate) fn open() -> u64 {
    // The directory itself is open while it is read.
    std::fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count().saturating_sub(1) as u64)
}

/// A descriptor that is kept for the moment when there are no others.
pub(crate) struct SpareDescriptor(Option<File>);

impl SpareDescriptor {
    /// Reserves a descriptor.
    ///
    /// # Errors
    /// `ResourceExhausted` if there is none.
    pub(crate) fn reserve() -> Result<SpareDescriptor> {
        let file = File::open("/dev/null")
            .map_err(|error| Error::exhausted(format!("a file descriptor cannot be reserved: {error}")))?;
        Ok(SpareDescriptor(Some(file)))
    }

    /// Accepts a connection with the reserved descriptor and closes it, so that its client does not wait for an
    /// answer in vain. Returns whether there was a connection and a descriptor.
    pub(crate) async fn refuse(&mut self, listener: &TcpListener) -> bool {
        self.0 = None;
        let accepted = std::future::poll_fn(|cx| Poll::Ready(listener.poll_accept(cx))).await;
        let refused = matches!(accepted, Poll::Ready(Ok(_)));
        drop(accepted);
        self.0 = File::open("/dev/null").ok();
        refused
    }
}

/// Whether an accept failed because no descriptor is left, in this process or in the system.
pub(crate) fn exhausted(error: &std::io::Error) -> bool {
    let code = error.raw_os_error();
    [Errno::MFILE, Errno::NFILE].iter().any(|errno| code == Some(errno.raw_os_error()))
}

/// Counts events of a kind that are logged once in an interval.
#[derive(Default)]
pub(crate) struct WarningLimiter {
    count: u64,
    last: Option<Instant>,
}

impl WarningLimiter {
    /// Counts an event at `now`. Returns the number of events since the last warning if it is time for the next.
    pub(crate) fn count(&mut self, now: Instant) -> Option<u64> {
        self.count += 1;
        if self.last.is_some_and(|last| now.saturating_duration_since(last) < WARNING_INTERVAL) {
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.count))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use tokio::io::AsyncReadExt;
    use tokio::net::TcpStream;

    use super::*;

    #[test]
    fn all_descriptors_are_shared() {
        let plenty = plan(1 << 20, 16_384);
        assert_eq!((plenty.connections_max, plenty.collections_max), (16_384, 1000));
        for limit in [0, 3, 64, 256, 1024, 4096, 20_000] {
            let DescriptorPlan { connections_max, collections_max } = plan(limit, 16_384);
            let used = 2 * connections_max as u64 + PER_COLLECTION * collections_max as u64;
            assert!(limit < 64 || used + OWN_MAX.min(limit / 4) <= limit, "{limit}: {used}");
        }
        assert_eq!(plan(256, 16_384), DescriptorPlan { connections_max: 72, collections_max: 12 });
        assert_eq!(plan(u64::MAX, 5).connections_max, 5);
    }

    #[test]
    fn warnings_are_counted_and_given_once_in_a_while() {
        let (mut warnings, start) = (WarningLimiter::default(), Instant::now());
        assert_eq!(warnings.count(start), Some(1));
        for _ in 0..500 {
            assert_eq!(warnings.count(start + WARNING_INTERVAL / 2), None);
        }
        assert_eq!(warnings.count(start + WARNING_INTERVAL), Some(501));
    }

    #[test]
    fn a_connection_without_a_descriptor_is_closed_at_once() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let mut spare = SpareDescriptor::reserve().unwrap();
            let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            while !spare.refuse(&listener).await {
                tokio::task::yield_now().await;
            }
            assert_eq!(client.read(&mut [0; 1]).await.unwrap_or(0), 0);
            assert!(spare.0.is_some(), "the descriptor is reserved again");
        });
    }

    #[test]
    fn descriptors_are_counted() {
        let before = open();
        let files: Vec<File> = (0..10).map(|_| File::open("/dev/null").unwrap()).collect();
        // Other tests of the process open and close theirs.
        assert!(before > 0 && open() > 0 && limit() >= files.len() as u64);
        assert!(exhausted(&std::io::Error::from_raw_os_error(24)));
        assert!(!exhausted(&std::io::Error::from_raw_os_error(104)));
    }
}
