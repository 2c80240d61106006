//! The process's threads by name, and the processor time each kind uses: read from /proc, only while somebody looks.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::Serialize;

/// Threads read at most.
const THREADS_READ_MAX: usize = 1024;
/// Processor time is told in ticks of this length (USER_HZ, which is 100 wherever Linux runs Millpond).
const TICK_SECONDS: f64 = 0.01;
/// Two looks further apart than this say nothing about now.
const APART_MAX: Duration = Duration::from_secs(5);

/// Threads that share a name but for its number.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Threads {
    pub(crate) name: String,
    pub(crate) count: usize,
    /// Cores in use since the last look; `None` where that was long ago.
    pub(crate) cores: Option<f64>,
}

/// By name: how many threads, and the ticks they have used.
type Kinds = BTreeMap<String, (usize, u64)>;

/// What the last look found.
#[derive(Default)]
pub(crate) struct ThreadWatch {
    last: Option<(Instant, Kinds)>,
}

impl ThreadWatch {
    /// The threads now; empty where /proc cannot be read.
    pub(crate) fn look(&mut self, now: Instant) -> Vec<Threads> {
        let found = read(Path::new("/proc/self/task"));
        let last = self.last.replace((now, found.clone()));
        let last = last.filter(|(at, _)| now.saturating_duration_since(*at) <= APART_MAX);
        let cores = |name: &str, ticks: u64| {
            let (at, before) = last.as_ref()?;
            let seconds = now.saturating_duration_since(*at).as_secs_f64();
            let used = ticks.saturating_sub(before.get(name)?.1);
            (seconds > 0.1).then(|| used as f64 * TICK_SECONDS / seconds)
        };
        let kinds = found.into_iter();
        kinds.map(|(name, (count, ticks))| Threads { cores: cores(&name, ticks), name, count }).collect()
    }
}

fn read(tasks: &Path) -> Kinds {
    let mut kinds = Kinds::new();
    // A thread may end between the listing and the reading; it is not counted then.
    for task in std::fs::read_dir(tasks).into_iter().flatten().flatten().take(THREADS_READ_MAX) {
        let Ok(stat) = std::fs::read_to_string(task.path().join("stat")) else { continue };
        let Some((name, ticks)) = parse(&stat) else { continue };
        let kind = kinds.entry(name).or_default();
        (kind.0, kind.1) = (kind.0 + 1, kind.1 + ticks);
    }
    kinds
}

/// The name without its number, and the ticks used: "12 (worker-3) S ..., user time, system time, ...".
fn parse(stat: &str) -> Option<(String, u64)> {
    let (head, tail) = stat.rsplit_once(") ")?;
    let (_, name) = head.split_once('(')?;
    let name = name.trim_end_matches(|c: char| c.is_ascii_digit()).trim_end_matches('-');
    // utime and stime are fields 14 and 15, and the tail begins with field 3.
    let mut times = tail.split(' ').skip(11);
    let ticks = times.next()?.parse::<u64>().ok()? + times.next()?.parse::<u64>().ok()?;
    Some((name.to_owned(), ticks))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_proc() {
        let line = "7 (worker-12) S 1 7 7 0 -1 4194560 10 0 0 0 250 31 0 0 20 0 9 0 100 1 1";
        assert_eq!(parse(line), Some(("worker".into(), 281)));
        assert_eq!(parse("7 (odd) name) R 1 7 7 0 -1 0 0 0 0 0 1 2 0").map(|found| found.1), Some(3));
        assert_eq!(parse("nothing"), None);
    }

    #[test]
    fn this_process_has_threads() {
        let mut watch = ThreadWatch::default();
        let now = Instant::now();
        let first = watch.look(now);
        assert!(!first.is_empty() && first.iter().all(|kind| kind.count > 0 && kind.cores.is_none()));
        let second = watch.look(now + Duration::from_secs(1));
        assert!(second.iter().any(|kind| kind.cores.is_some()));
        assert!(watch.look(now + Duration::from_secs(60)).iter().all(|kind| kind.cores.is_none()));
    }
}
