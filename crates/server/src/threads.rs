//! The process's threads by kind, counted by their names.

use std::path::Path;

/// Threads looked at; more are not counted.
const THREADS_READ_MAX: usize = 4096;
/// Kinds in the order of [`count`]: the names of Millpond's threads without their numbers, and all others.
pub(crate) const KINDS: [&str; 8] =
    ["door", "worker", "load", "unload", "backing", "lifecycle", "source", "other"];

/// How many threads there are of each of [`KINDS`]; all zero where /proc cannot be read.
pub(crate) fn count() -> [u64; KINDS.len()] {
    count_in(Path::new("/proc/self/task"))
}

fn count_in(tasks: &Path) -> [u64; KINDS.len()] {
    let mut counts = [0; KINDS.len()];
    for task in std::fs::read_dir(tasks).into_iter().flatten().flatten().take(THREADS_READ_MAX) {
        // A thread may end between the listing and the reading; it is not counted then.
        if let Ok(name) = std::fs::read_to_string(task.path().join("comm")) {
            counts[kind(&name)] += 1;
        }
    }
    counts
}

/// Index of a thread's kind in [`KINDS`], by its name: "worker-3" is a "worker".
fn kind(name: &str) -> usize {
    let name = name.trim_end().trim_end_matches(|c: char| c.is_ascii_digit()).trim_end_matches('-');
    KINDS.iter().position(|known| *known == name).unwrap_or(KINDS.len() - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_kinds() {
        let kinds = ["worker-12\n", "door\n", "load-0\n", "millpond\n", "workers\n", "\n"].map(kind);
        assert_eq!(kinds.map(|kind| KINDS[kind]), ["worker", "door", "load", "other", "other", "other"]);
    }

    #[test]
    fn threads_are_counted() {
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        // Ends when `stop` is dropped.
        let body = move || assert!(stopped.recv().is_err());
        let thread = std::thread::Builder::new().name("backing".into()).spawn(body).unwrap();
        let count_of = |kind: &str| count()[KINDS.iter().position(|known| *known == kind).unwrap()];
        // The name is the new thread's own to set.
        let named = (0..1000).any(|_| {
            std::thread::yield_now();
            count_of("backing") == 1
        });
        assert!(named && count_of("other") >= 1);
        drop(stop);
        thread.join().unwrap();
        assert_eq!(count_in(Path::new("/no/such/place")), [0; KINDS.len()]);
    }
}
