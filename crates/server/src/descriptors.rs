//! Shares the limit of open files among listeners and collections.

use base::{Error, Result};

/// Descriptors that the server needs in addition to connections and collections. They are for
/// files, timers, signals and engines.
const OWN_MAX: u64 = 256;
/// Descriptors planned for each collection: its logs and its segments.
const PER_COLLECTION: u64 = 4;
/// Maximum collections of a server whose limit is high enough.
pub(crate) const COLLECTIONS_MAX: usize = 1000;

/// Minimum number of descriptors of a server with one collection and one connection. Those of its
/// threads come in addition.
const DESCRIPTORS_MIN: u64 = 40;
/// Descriptors of a connection thread: its runtime, its listening sockets and its clock.
const PER_CONNECTION_THREAD: u64 = 5;

/// Checks that a server can answer with `limit` descriptors. At a lower limit it would start, and
/// refuse every connection.
///
/// # Errors
/// `ResourceExhausted` with the limit that is needed.
pub(crate) fn check(limit: u64, connection_threads: usize, workers: usize) -> Result<()> {
    let needed =
        DESCRIPTORS_MIN + PER_CONNECTION_THREAD * connection_threads as u64 + workers as u64;
    if limit >= needed {
        return Ok(());
    }
    Err(Error::exhausted(format!(
        "the limit of open files is {limit}, and the server itself needs {needed}; raise it with ulimit -Hn or \
         LimitNOFILE="
    )))
}

/// Shares of the limit of open files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DescriptorPlan {
    /// Maximum connections of one listener.
    pub connections_max: usize,
    /// Maximum collections.
    pub collections_max: usize,
}

/// Shares `limit` descriptors among the server itself, its collections and the connections of
/// `listeners` listeners, of which each may have `connections_max`.
pub fn plan(limit: u64, listeners: usize, connections_max: usize) -> DescriptorPlan {
    let left = limit - OWN_MAX.min(limit / 4);
    let collections = (COLLECTIONS_MAX as u64 * PER_COLLECTION).min(left / 4);
    let room =
        usize::try_from((left - collections) / listeners.max(1) as u64).unwrap_or(usize::MAX);
    DescriptorPlan {
        connections_max: connections_max.min(room).max(1),
        collections_max: usize::try_from(collections / PER_COLLECTION)
            .unwrap_or(COLLECTIONS_MAX)
            .max(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_without_descriptors_does_not_start() {
        let error = check(32, 2, 2).unwrap_err();
        assert_eq!(error.kind(), base::ErrorKind::ResourceExhausted);
        assert!(error.message().contains("is 32, and the server itself needs 52"), "{error}");
        for (limit, threads) in [(64, 2), (256, 16), (1024, 128)] {
            check(limit, threads, threads).unwrap();
        }
        check(1024, 256, 256).unwrap_err();
    }

    #[test]
    fn all_descriptors_are_shared() {
        let plenty = plan(1 << 20, 2, 16_384);
        assert_eq!((plenty.connections_max, plenty.collections_max), (16_384, 1000));
        for limit in [0, 3, 64, 256, 1024, 4096, 20_000] {
            let DescriptorPlan { connections_max, collections_max } = plan(limit, 2, 16_384);
            let used = 2 * connections_max as u64 + PER_COLLECTION * collections_max as u64;
            assert!(limit < 64 || used + OWN_MAX.min(limit / 4) <= limit, "{limit}: {used}");
        }
        assert_eq!(
            plan(256, 2, 16_384),
            DescriptorPlan { connections_max: 72, collections_max: 12 }
        );
        assert_eq!(plan(u64::MAX, 5, 5).connections_max, 5);
        // The figures of docs/deployment.md.
        for (limit, listeners) in [(65_536, 3), (131_072, 5)] {
            assert_eq!(plan(limit, listeners, 16_384), plenty, "{listeners} listeners");
        }
        assert_eq!(plan(65_536, 4, 16_384).connections_max, 15_320);
        assert_eq!(plan(1024, 2, 16_384).collections_max, 48);
    }
}
