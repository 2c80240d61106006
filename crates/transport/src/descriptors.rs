//! File descriptors: their limit, and the refusal of connections at the limit.

use std::fs::File;
use std::task::Poll;

use base::{Error, Result};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::TcpListener;

/// Raises the soft limit of open files to the hard limit, since the soft limit is only a default.
/// Returns the limit.
pub fn raise() -> u64 {
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

/// Returns the current limit of open files.
pub fn limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Returns the number of open descriptors, or 0 without /proc.
pub fn open() -> u64 {
    count(std::fs::read_dir("/proc/self/fd").map(Iterator::count))
}

/// Returns the number of open descriptors. `listed` is the number in the list of them.
fn count(listed: std::io::Result<usize>) -> u64 {
    match listed {
        // The list itself is open while it is read.
        Ok(listed) => listed.saturating_sub(1) as u64,
        // No descriptor is left for the list.
        Err(error) if error.raw_os_error() == Some(Errno::MFILE.raw_os_error()) => limit(),
        Err(_) => 0,
    }
}

/// A reserved descriptor, used once no other is left.
pub(crate) struct SpareDescriptor(Option<File>);

impl SpareDescriptor {
    /// Reserves a descriptor.
    ///
    /// # Errors
    /// `ResourceExhausted` if there is none.
    pub(crate) fn reserve() -> Result<SpareDescriptor> {
        let file = File::open("/dev/null").map_err(|error| {
            Error::exhausted("a file descriptor cannot be reserved").caused_by(error)
        })?;
        Ok(SpareDescriptor(Some(file)))
    }

    /// Accepts a connection with the reserved descriptor and closes it, so that its client does not
    /// wait for a timeout. Returns true if there were a connection and a descriptor.
    pub(crate) async fn refuse(&mut self, listener: &TcpListener) -> bool {
        self.0 = None;
        let accepted = std::future::poll_fn(|cx| Poll::Ready(listener.poll_accept(cx))).await;
        let refused = matches!(accepted, Poll::Ready(Ok(_)));
        drop(accepted);
        self.0 = File::open("/dev/null").ok();
        refused
    }
}

/// Returns true if an accept failed because no descriptor is left, in this process or in the
/// system.
pub(crate) fn exhausted(error: &std::io::Error) -> bool {
    let code = error.raw_os_error();
    [Errno::MFILE, Errno::NFILE].iter().any(|errno| code == Some(errno.raw_os_error()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use tokio::io::AsyncReadExt;
    use tokio::net::TcpStream;

    use super::*;

    #[test]
    fn a_connection_without_a_descriptor_is_closed() {
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
        let refused = |code| Err(std::io::Error::from_raw_os_error(code));
        assert_eq!(count(refused(24)), limit(), "none is left for the list");
        assert_eq!((count(refused(2)), count(Ok(4))), (0, 3));
        assert!(exhausted(&std::io::Error::from_raw_os_error(24)));
        assert!(!exhausted(&std::io::Error::from_raw_os_error(104)));
    }
}
