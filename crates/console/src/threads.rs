//! CPU time of each kind of thread, read from /proc while a page is open.

use std::time::{Duration, Instant};

use observe::threads::{self, NamedThreads, ThreadTicks};
use serde::Serialize;

/// Length of a tick of CPU time (USER_HZ, which is 100 on all supported Linux systems).
const TICK_SECONDS: f64 = 0.01;
/// Longest time between two scans whose difference describes the current load.
const APART_MAX: Duration = Duration::from_secs(5);

/// Threads whose names differ only in a number.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Threads {
    pub(crate) name: String,
    pub(crate) count: usize,
    /// Cores in use since the last scan; `None` if that was too long ago.
    pub(crate) cores: Option<f64>,
}

/// CPU time of the threads at the last scan, with which the next scan compares.
#[derive(Default)]
pub(crate) struct ThreadWatch {
    last: Option<(Instant, ThreadTicks)>,
}

impl ThreadWatch {
    /// Returns the current threads; empty if /proc cannot be read.
    pub(crate) fn scan(&mut self, now: Instant) -> Vec<Threads> {
        let found = threads::named();
        let last = self.last.replace((now, found.clone()));
        let last = last.filter(|(at, _)| now.saturating_duration_since(*at) <= APART_MAX);
        let cores = |name: &str, ticks: u64| {
            let (at, before) = last.as_ref()?;
            let seconds = now.saturating_duration_since(*at).as_secs_f64();
            let used = ticks.saturating_sub(before.get(name)?.ticks);
            (seconds > 0.1).then(|| used as f64 * TICK_SECONDS / seconds)
        };
        let kinds = found.into_iter();
        let named = |(name, NamedThreads { count, ticks }): (String, NamedThreads)| Threads {
            cores: cores(&name, ticks),
            name,
            count,
        };
        kinds.map(named).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_threads() {
        let mut watch = ThreadWatch::default();
        let now = Instant::now();
        let first = watch.scan(now);
        assert!(
            !first.is_empty() && first.iter().all(|kind| kind.count > 0 && kind.cores.is_none())
        );
        let second = watch.scan(now + Duration::from_secs(1));
        assert!(second.iter().any(|kind| kind.cores.is_some()));
        assert!(watch.scan(now + Duration::from_secs(60)).iter().all(|kind| kind.cores.is_none()));
    }
}
