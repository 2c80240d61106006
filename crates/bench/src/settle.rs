//! Writes that wait for memory, and waits for the flushes and merges of a collection, so that no
//! benchmark measures them.

use std::time::{Duration, Instant};

use base::{Error, Result};
use search::collection::QuietTimes;
use search::points::NewPoint;
use search::registry::NamedCollection;

/// Time without a flush or a merge after which they have ended.
const QUIET: Duration = Duration::from_secs(3);
/// Times that let the work of a collection without new points begin before [`QUIET`] has passed.
pub(crate) const QUIET_TIMES: QuietTimes = QuietTimes {
    flush: Duration::from_secs(1),
    age: Duration::from_secs(60),
    merge: Duration::from_secs(1),
};
/// Longest wait for flushes and merges.
pub(crate) const SETTLE_MAX: Duration = Duration::from_secs(3600);
/// Time between two checks.
const CHECK: Duration = Duration::from_millis(100);
/// Delay before a write is tried again.
const RETRY: Duration = Duration::from_millis(50);

/// Writes points. Tries again while there is not enough memory.
///
/// # Errors
/// Returns the errors of a write. Returns that of full memory after [`SETTLE_MAX`].
pub(crate) fn upsert(named: &NamedCollection, points: &[NewPoint<'_>]) -> Result<()> {
    let deadline = Instant::now() + SETTLE_MAX;
    loop {
        match named.upsert(points) {
            Err(error) if error.retry_after().is_some() && Instant::now() < deadline => {
                std::thread::sleep(RETRY);
            }
            outcome => return outcome.map(drop),
        }
    }
}

/// A collection without flushes and merges.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SettledCollection {
    pub(crate) segments: usize,
    /// Moment of the last flush or merge. The wait for further ones is no work of the collection.
    pub(crate) since: Instant,
}

/// Flushes the collection, and waits as [`settle`] does.
///
/// # Errors
/// As [`settle`], and the errors of a flush.
pub(crate) fn flush_and_settle(named: &NamedCollection) -> Result<SettledCollection> {
    named.collection().flush()?;
    settle(named)
}

/// Waits until the registry's threads have nothing more to flush or to merge.
///
/// # Errors
/// `DeadlineExceeded` after [`SETTLE_MAX`].
pub(crate) fn settle(named: &NamedCollection) -> Result<SettledCollection> {
    let deadline = Instant::now() + SETTLE_MAX;
    let work = || {
        let status = named.collection().status();
        (status.flushes, status.merges, status.segments.len())
    };
    let mut seen = work();
    let mut since = Instant::now();
    while since.elapsed() < QUIET {
        if Instant::now() > deadline {
            return Err(Error::deadline("flushes and merges do not end"));
        }
        std::thread::sleep(CHECK);
        let now = work();
        // A merge of millions of rows takes minutes, in which a new file grows.
        if now != seen || named.collection().is_optimizing() {
            (seen, since) = (now, Instant::now());
        }
    }
    Ok(SettledCollection { segments: seen.2, since })
}

#[cfg(test)]
mod tests {
    use coarse::Metric;
    use search::points::PointId;
    use search::registry::{CollectionSettings, Registry, RegistryOptions};

    use super::*;

    #[test]
    fn the_quiet_time_is_not_part_of_the_work() {
        let folder = tempfile::tempdir().unwrap();
        let registry = Registry::open(RegistryOptions::for_tests(folder.path())).unwrap();
        let named = registry.create("points", CollectionSettings::new(2, Metric::L2)).unwrap();
        let payload = serde_json::Map::new();
        let point = |id| {
            let embedding = &[1.0, 2.0];
            NewPoint { id: PointId::Number(id), embedding, record: &[], payload: &payload }
        };
        upsert(&named, &(0..10).map(point).collect::<Vec<_>>()).unwrap();
        let settled = flush_and_settle(&named).unwrap();
        assert_eq!(settled.segments, 1);
        assert!(settled.since.elapsed() >= QUIET);
    }
}
