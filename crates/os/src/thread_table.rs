//! Scheduling times of the threads of this process, grouped by their names.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt as _;

use crate::SchedTimes;
use crate::sched_stat;

/// Maximum threads that are followed. Each has an open file. Threads without a group do not count.
/// A server has two threads for each core, and the threads of loads begin after them.
const THREADS_MAX: usize = 1024;
/// Maximum number of readings at which the name of a thread without a group is checked. A new
/// thread has the name of its creator until it runs for the first time.
const NAME_CHECKS_MAX: u8 = 10;

/// Threads of this process, and the times at the last reading.
pub struct ThreadTable<G> {
    group_of: fn(&str) -> Option<G>,
    threads: HashMap<u32, KnownThread<G>>,
    followed_max: usize,
}

/// A thread that was seen, without a file if it is in no group.
struct KnownThread<G> {
    group: Option<G>,
    name_checks: u8,
    file: Option<File>,
    last: SchedTimes,
}

impl<G: Copy> ThreadTable<G> {
    /// Creates a table of the threads for whose name `group_of` returns a group.
    pub fn new(group_of: fn(&str) -> Option<G>) -> ThreadTable<G> {
        ThreadTable { group_of, threads: HashMap::new(), followed_max: THREADS_MAX }
    }

    /// Returns the group of each followed thread, and its times since the last reading. A new
    /// thread counts from its start. Threads that ended since are left out.
    pub fn read(&mut self) -> Vec<(G, SchedTimes)> {
        self.read_listed(thread_ids())
    }

    /// As [`ThreadTable::read`], with the ids of the threads. If `ids` is `None`, for example
    /// because no file descriptor is free, returns nothing. The next reading then counts from the
    /// last one.
    fn read_listed(&mut self, ids: Option<Vec<u32>>) -> Vec<(G, SchedTimes)> {
        let Some(mut ids) = ids else { return Vec::new() };
        ids.sort_unstable();
        self.threads.retain(|id, _| ids.binary_search(id).is_ok());
        let mut followed = self.threads.values().filter(|thread| thread.file.is_some()).count();
        let group_of = self.group_of;
        for id in ids {
            let thread = self.threads.entry(id).or_insert_with(KnownThread::unnamed);
            if thread.group.is_some() || thread.name_checks >= NAME_CHECKS_MAX {
                continue;
            }
            thread.name_checks += 1;
            let name = std::fs::read_to_string(format!("/proc/self/task/{id}/comm"));
            thread.group = group_of(name.unwrap_or_default().trim());
            if thread.group.is_some() && followed < self.followed_max {
                thread.file = File::open(format!("/proc/self/task/{id}/schedstat")).ok();
                followed += usize::from(thread.file.is_some());
            }
        }
        self.threads.values_mut().filter_map(KnownThread::read).collect()
    }
}

impl<G: Copy> KnownThread<G> {
    fn unnamed() -> KnownThread<G> {
        KnownThread { group: None, name_checks: 0, file: None, last: SchedTimes::default() }
    }

    /// Returns the group of the thread, and its times since the last call. Returns `None` for a
    /// thread that has ended, is in no group, or is not followed.
    fn read(&mut self) -> Option<(G, SchedTimes)> {
        let group = self.group?;
        let file = self.file.as_ref()?;
        let mut buffer = [0; 96];
        let length = file.read_at(&mut buffer, 0).ok()?;
        let now = sched_stat::parse(std::str::from_utf8(buffer.get(..length)?).ok()?)?;
        let last = std::mem::replace(&mut self.last, now);
        let change = SchedTimes {
            ran: now.ran.saturating_sub(last.ran),
            waited: now.waited.saturating_sub(last.waited),
        };
        Some((group, change))
    }
}

/// Returns the ids of the threads, or `None` if they cannot be listed.
fn thread_ids() -> Option<Vec<u32>> {
    let listed = std::fs::read_dir("/proc/self/task").ok()?;
    Some(listed.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn times_of_a_group_are_those_since_the_last_reading() {
        let (begun, began) = std::sync::mpsc::channel();
        let (end, ends) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::Builder::new().name("table-test".into()).spawn(move || {
            let start = crate::thread::cpu_time();
            while crate::thread::cpu_time() - start < Duration::from_millis(50) {}
            begun.send(()).unwrap();
            ends.recv().ok();
        });
        began.recv().unwrap();
        let mut table = ThreadTable::new(|name| (name == "table-test").then_some(()));
        let first = table.read();
        let [((), times)] = first.as_slice() else { panic!("{first:?}") };
        // The kernel counts whole ticks late.
        assert!(times.ran >= Duration::from_millis(25), "{times:?}");
        let known = table.threads.len();
        assert!(table.read_listed(None).is_empty());
        assert_eq!(table.threads.len(), known, "they are not forgotten");
        let second: Duration = table.read().iter().map(|(_, times)| times.ran).sum();
        assert!(second <= times.ran, "{second:?}");
        drop(end);
        thread.unwrap().join().unwrap();
        while !table.read().is_empty() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Calls `work` while `count` threads of the name `table-other` and one of the name `last`
    /// wait.
    fn with_threads<T>(count: usize, last: &str, work: impl FnOnce() -> T) -> T {
        let stop = &parking_lot::Mutex::new(());
        let held = stop.lock();
        std::thread::scope(|scope| {
            let (begun, began) = std::sync::mpsc::channel();
            let names = std::iter::repeat_n("table-other", count).chain([last]);
            for name in names {
                let begun = begun.clone();
                let wait = move || {
                    begun.send(()).unwrap();
                    drop(stop.lock());
                };
                let named = std::thread::Builder::new().name(name.into());
                named.spawn_scoped(scope, wait).unwrap();
            }
            // Until it runs, a thread has the name of its creator.
            (0..=count).for_each(|_| began.recv().unwrap());
            let outcome = work();
            drop(held);
            outcome
        })
    }

    #[test]
    fn threads_without_a_group_do_not_count() {
        let mut table = ThreadTable::new(|name| (name == "table-group").then_some(()));
        table.followed_max = 1;
        assert_eq!(with_threads(8, "table-group", || table.read().len()), 1);
    }

    #[test]
    fn the_threads_of_128_cores_and_of_a_load_are_followed() {
        let group_of = |name: &str| name.starts_with("table-").then_some(name == "table-load");
        let mut table = ThreadTable::new(group_of);
        let groups = with_threads(2 * 128 + 16, "table-load", || table.read());
        assert_eq!(groups.iter().filter(|(is_last, _)| *is_last).count(), 1);
    }
}
