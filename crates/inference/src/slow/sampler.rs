//! Samples the machine for the explanation of slow requests.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lifecycle::LoadActivity;
use os::{CoreTimes, CpuQuota, ThreadTable};

use super::evidence::MachineSample;

/// Number of samples between two checks for a CPU quota, if none was found.
const QUOTA_CHECK_SAMPLES: u32 = 100;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ThreadGroup {
    Worker,
    Connection,
    Load,
}

fn group_of(name: &str) -> Option<ThreadGroup> {
    let begins = |word: &str| name.starts_with(word);
    if begins("worker-") {
        Some(ThreadGroup::Worker)
    } else if begins("connection") || begins("decoder-") {
        Some(ThreadGroup::Connection)
    } else if begins("load-") || begins("unload-") || begins("prefault") {
        Some(ThreadGroup::Load)
    } else {
        None
    }
}

/// Function that returns the ids of the worker processes of isolated models.
pub(crate) type WorkerProcesses = Box<dyn Fn() -> Vec<u32> + Send>;

/// Processor times of child processes at the last reading.
#[derive(Default)]
struct ChildTimes(HashMap<u32, Duration>);

impl ChildTimes {
    /// Returns the processor time of the processes since the last reading. A new process counts
    /// from its start.
    fn since_last(&mut self, ids: &[u32], time_of: impl Fn(u32) -> Option<Duration>) -> Duration {
        let now: HashMap<u32, Duration> =
            ids.iter().filter_map(|id| Some((*id, time_of(*id)?))).collect();
        let last = std::mem::replace(&mut self.0, now);
        let before = |id: &u32| last.get(id).copied().unwrap_or_default();
        self.0.iter().map(|(id, time)| time.saturating_sub(before(id))).sum()
    }
}

/// Sampler of the use of the machine.
pub(crate) struct MachineSampler {
    activity: Arc<LoadActivity>,
    /// Worker processes belong to this server, and are not "other processes".
    workers: WorkerProcesses,
    worker_times: ChildTimes,
    /// Child processes of loads, which convert models.
    converter_times: ChildTimes,
    threads: ThreadTable<ThreadGroup>,
    last: MachineReading,
    /// True once this process has had a quota of processor time.
    has_quota: bool,
    samples: u32,
}

/// Sums at one moment. One that cannot be read, such as without a free file descriptor, is `None`.
struct MachineReading {
    at: Instant,
    /// Number of cores, also if their times cannot be read.
    core_count: usize,
    cores: Option<CoreTimes>,
    own: Duration,
    throttled: Option<Duration>,
}

/// Times of all cores between two readings.
#[derive(Debug, Default, PartialEq)]
struct CoreUse {
    busy: Duration,
    stolen: Duration,
}

/// Processor times of child processes between two readings.
struct ChildUse {
    /// Worker processes of isolated models.
    workers: Duration,
    /// Processes that convert models.
    converters: Duration,
}

impl MachineReading {
    /// Reads the counters. Reads the quota of processor time only if `has_quota`. If the cores
    /// cannot be read, their number is that of `last`.
    fn new(has_quota: bool, last: Option<&MachineReading>) -> MachineReading {
        let quota = if has_quota { CpuQuota::of_this_process() } else { None };
        let cores = CoreTimes::read();
        let known_count = last.map_or(0, |last| last.core_count);
        MachineReading {
            at: Instant::now(),
            core_count: cores.map_or(known_count, |cores| cores.cores),
            cores,
            own: os::thread::process_cpu_time(),
            throttled: quota.map(|quota| quota.throttled),
        }
    }

    /// Returns the times of the cores since `last`, or zeros if they are not known.
    fn cores_since(&self, last: &MachineReading) -> CoreUse {
        let Some((now, last)) = self.cores.zip(last.cores) else { return CoreUse::default() };
        CoreUse {
            busy: now.busy.saturating_sub(last.busy),
            stolen: now.stolen.saturating_sub(last.stolen),
        }
    }

    /// Returns the time for which the CPU limit has stopped threads since `last`; zero if it is not
    /// known.
    fn throttled_since(&self, last: &MachineReading) -> Duration {
        let sums = self.throttled.zip(last.throttled);
        sums.map_or(Duration::ZERO, |(now, last)| now.saturating_sub(last))
    }
}

impl MachineSampler {
    /// Starts to sample.
    pub(crate) fn new(activity: Arc<LoadActivity>, workers: WorkerProcesses) -> MachineSampler {
        let mut threads = ThreadTable::new(group_of);
        threads.read();
        let has_quota = CpuQuota::of_this_process().is_some();
        MachineSampler {
            activity,
            workers,
            worker_times: ChildTimes::default(),
            converter_times: ChildTimes::default(),
            threads,
            last: MachineReading::new(has_quota, None),
            has_quota,
            samples: 0,
        }
    }

    /// Returns the processor times of child processes since the last call. Only a server that is
    /// `loading` a version has converters.
    fn children(&mut self, loading: bool) -> ChildUse {
        let workers = (self.workers)();
        let mut converters = if loading { os::process::children() } else { Vec::new() };
        converters.retain(|id| !workers.contains(id));
        let time_of = os::thread::cpu_time_of_process;
        ChildUse {
            workers: self.worker_times.since_last(&workers, time_of),
            converters: self.converter_times.since_last(&converters, time_of),
        }
    }

    /// Returns the use since the last call.
    pub(crate) fn sample(&mut self) -> MachineSample {
        self.samples = self.samples.wrapping_add(1);
        let found = !self.has_quota
            && self.samples.is_multiple_of(QUOTA_CHECK_SAMPLES)
            && CpuQuota::of_this_process().is_some();
        let now = MachineReading::new(self.has_quota || found, Some(&self.last));
        let last = std::mem::replace(&mut self.last, now);
        let loading = self.activity.versions();
        let ChildUse { workers, converters } = self.children(!loading.is_empty());
        let now = &self.last;
        let own = now.own.saturating_sub(last.own) + workers + converters;
        let CoreUse { busy, stolen } = now.cores_since(&last);
        let mut sample = MachineSample {
            from: last.at,
            until: now.at,
            cores: now.core_count,
            others: busy.saturating_sub(own),
            loads: converters,
            stolen,
            throttled: now.throttled_since(&last),
            workers_waited: Duration::ZERO,
            connections_waited: Duration::ZERO,
            loading,
        };
        self.has_quota |= found;
        for (group, times) in self.threads.read() {
            match group {
                ThreadGroup::Load => sample.loads += times.ran,
                // A request waits with one thread at a time.
                ThreadGroup::Worker => {
                    sample.workers_waited = sample.workers_waited.max(times.waited);
                }
                ThreadGroup::Connection => {
                    sample.connections_waited = sample.connections_waited.max(times.waited);
                }
            }
        }
        sample
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Maximum readings until a busy process has used a little time.
    const READINGS_MAX: u32 = 10_000;

    /// The times of this process are known. Without the times of the cores of the same moment, they
    /// would later count as the times of other processes.
    #[test]
    fn a_sum_that_cannot_be_read_gives_no_difference() {
        let ms = Duration::from_millis;
        let at = Instant::now();
        let reading = |sum: Option<u64>| {
            let cores = sum.map(|sum| CoreTimes { cores: 2, busy: ms(sum), stolen: ms(sum / 2) });
            MachineReading { at, core_count: 2, cores, own: ms(0), throttled: sum.map(ms) }
        };
        let [first, second, unread, last] = [Some(100), Some(140), None, Some(500)].map(reading);
        assert_eq!(second.cores_since(&first), CoreUse { busy: ms(40), stolen: ms(20) });
        assert_eq!(second.throttled_since(&first), ms(40));
        for (now, before) in [(&unread, &second), (&last, &unread)] {
            assert_eq!(now.cores_since(before), CoreUse::default());
            assert_eq!(now.throttled_since(before), ms(0));
        }
    }

    #[test]
    fn processes_count_since_the_last_reading() {
        let ms = Duration::from_millis;
        let mut children = ChildTimes::default();
        let mut read = |times: &[(u32, u64)]| {
            let ids: Vec<u32> = times.iter().map(|(id, _)| *id).collect();
            let time_of =
                |wanted: u32| times.iter().find(|(id, _)| *id == wanted).map(|(_, time)| ms(*time));
            children.since_last(&ids, time_of)
        };
        assert_eq!(read(&[(1, 10), (2, 5)]), ms(15));
        assert_eq!(read(&[(1, 30), (2, 5), (3, 4)]), ms(24));
        assert_eq!(read(&[(3, 9)]), ms(5), "processes have ended");
    }

    #[test]
    fn a_worker_process_is_not_another_process() {
        // It ends by itself if the test fails.
        let busy = "i=0; while [ $i -lt 3000000 ]; do i=$((i+1)); done";
        let mut worker = std::process::Command::new("/bin/sh").args(["-c", busy]).spawn().unwrap();
        let id = worker.id();
        let mut sampler = MachineSampler::new(Arc::default(), Box::new(move || vec![id]));
        let mut used = Duration::ZERO;
        for _ in 0..READINGS_MAX {
            used += sampler.children(false).workers;
            if used >= Duration::from_millis(20) {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(used >= Duration::from_millis(20), "{used:?}");
        assert!(os::process::children().contains(&id));
        assert_eq!(sampler.children(true).converters, Duration::ZERO, "nor a converter");
        worker.kill().unwrap();
        worker.wait().unwrap();
    }
}
