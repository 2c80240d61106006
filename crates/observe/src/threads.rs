//! Counts the process's threads and their processor time by name.

use std::collections::BTreeMap;
use std::path::Path;

/// Maximum number of threads that are counted.
const THREADS_READ_MAX: usize = 4096;
/// Kinds in metrics: the names of Millpond's threads without their numbers, and "other".
pub(crate) const KINDS: [&str; 13] = [
    "connection",
    "decoder",
    "worker",
    "audio",
    "images",
    "ingest",
    "search",
    "load",
    "unload",
    "prefault",
    "lifecycle",
    "source",
    "other",
];

/// Threads whose names differ only in a number.
#[derive(Clone, Copy, Debug, Default)]
pub struct NamedThreads {
    /// Number of threads.
    pub count: usize,
    /// Processor time of all of them, in ticks of USER_HZ.
    pub ticks: u64,
}

/// Threads by name without number.
pub type ThreadTicks = BTreeMap<String, NamedThreads>;

/// Reads the current threads of this process. Returns none if /proc cannot be read.
pub fn named() -> ThreadTicks {
    read(Path::new("/proc/self/task"))
}

/// Counts the threads of each of [`KINDS`].
pub(crate) fn count() -> [u64; KINDS.len()] {
    let mut counts = [0; KINDS.len()];
    for (name, threads) in named() {
        counts[kind(&name)] += threads.count as u64;
    }
    counts
}

/// Returns the index of a name's kind in [`KINDS`].
fn kind(name: &str) -> usize {
    // Threads of a kind may have several tasks, such as "audio-in" and "search-merge".
    let first = name.split('-').next().unwrap_or(name);
    KINDS.iter().position(|known| *known == first).unwrap_or(KINDS.len() - 1)
}

/// Reads the threads in `tasks`, a directory as `/proc/self/task`. Returns none if it cannot be
/// read.
fn read(tasks: &Path) -> ThreadTicks {
    let mut named = ThreadTicks::new();
    // A thread that ends between the listing and the reading is not counted.
    for task in std::fs::read_dir(tasks).into_iter().flatten().flatten().take(THREADS_READ_MAX) {
        let Ok(stat) = std::fs::read_to_string(task.path().join("stat")) else { continue };
        let Some((name, ticks)) = parse(&stat) else { continue };
        let threads = named.entry(name).or_default();
        threads.count += 1;
        threads.ticks += ticks;
    }
    named
}

/// Parses a line of /proc, "12 (worker-3) S ... USER_TIME SYSTEM_TIME ...", into the name without
/// number and the ticks used.
fn parse(stat: &str) -> Option<(String, u64)> {
    let (head, tail) = stat.rsplit_once(") ")?;
    let (_, name) = head.split_once('(')?;
    let is_number = |word: &str| !word.is_empty() && word.bytes().all(|it| it.is_ascii_digit());
    let words: Vec<&str> = name.split('-').filter(|word| !is_number(word)).collect();
    let name = words.join("-");
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
        assert_eq!(
            parse("7 (odd) name) R 1 7 7 0 -1 0 0 0 0 0 1 2 0").map(|found| found.1),
            Some(3)
        );
        assert_eq!(parse("nothing"), None);
    }

    #[test]
    fn threads_of_one_kind_have_several_names() {
        let line = "7 (audio-3-in) S 1 7 7 0 -1 4194560 10 0 0 0 250 31 0 0 20 0 9 0 100 1 1";
        assert_eq!(parse(line), Some(("audio-in".into(), 281)));
        let kinds = ["audio-in", "search-merge", "ingest-in"].map(|name| KINDS[kind(name)]);
        assert_eq!(kinds, ["audio", "search", "ingest"]);
    }

    #[test]
    fn names_have_kinds() {
        let kinds = ["worker", "connection", "load", "millpond", "workers", ""].map(kind);
        assert_eq!(
            kinds.map(|kind| KINDS[kind]),
            ["worker", "connection", "load", "other", "other", "other"]
        );
    }

    #[test]
    fn threads_are_counted() {
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let (begin, begun) = std::sync::mpsc::channel();
        // Ends when `stop` is dropped.
        let body = move || {
            begin.send(()).unwrap();
            assert!(stopped.recv().is_err());
        };
        let thread = std::thread::Builder::new().name("prefault".into()).spawn(body).unwrap();
        let count_of = |kind: &str| count()[KINDS.iter().position(|known| *known == kind).unwrap()];
        // The new thread sets its name itself, before it runs the body.
        begun.recv().unwrap();
        // A listing can lack a thread while other threads end.
        let named = (0..1000).any(|_| {
            std::thread::yield_now();
            // Servers of other tests have such threads too.
            count_of("prefault") >= 1
        });
        assert!(named && count_of("other") >= 1);
        drop(stop);
        thread.join().unwrap();
        assert!(read(Path::new("/no/such/place")).is_empty());
    }
}
