//! Samples the machine for the explanation of slow requests.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lifecycle::LoadActivity;
use os::{CoreTimes, CpuQuota, ThreadTable};

use super::evidence::MachineSample;

/// Samples between two checks for a CPU quota, if none was found.
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

/// Reads the use of the machine in turn.
pub(crate) struct MachineSampler {
    activity: Arc<LoadActivity>,
    threads: ThreadTable<ThreadGroup>,
    last: Reading,
    quota: bool,
    samples: u32,
}

/// Sums at one moment.
struct Reading {
    at: Instant,
    cores: CoreTimes,
    own: Duration,
    throttled: Duration,
}

impl Reading {
    fn new(quota: bool) -> Reading {
        let quota = if quota { CpuQuota::of_this_process() } else { None };
        Reading {
            at: Instant::now(),
            cores: CoreTimes::read().unwrap_or_default(),
            own: os::thread::process_cpu_time(),
            throttled: quota.map_or(Duration::ZERO, |quota| quota.throttled),
        }
    }
}

impl MachineSampler {
    /// Starts to sample.
    pub(crate) fn new(activity: Arc<LoadActivity>) -> MachineSampler {
        let mut threads = ThreadTable::new(group_of);
        threads.read();
        let quota = CpuQuota::of_this_process().is_some();
        MachineSampler { activity, threads, last: Reading::new(quota), quota, samples: 0 }
    }

    /// Returns the use since the last call.
    pub(crate) fn sample(&mut self) -> MachineSample {
        self.samples = self.samples.wrapping_add(1);
        let found = !self.quota
            && self.samples.is_multiple_of(QUOTA_CHECK_SAMPLES)
            && CpuQuota::of_this_process().is_some();
        let now = Reading::new(self.quota || found);
        let last = std::mem::replace(&mut self.last, now);
        let now = &self.last;
        let own = now.own.saturating_sub(last.own);
        let busy = now.cores.busy.saturating_sub(last.cores.busy);
        let mut sample = MachineSample {
            from: last.at,
            until: now.at,
            cores: now.cores.cores,
            others: busy.saturating_sub(own),
            loads: Duration::ZERO,
            stolen: now.cores.stolen.saturating_sub(last.cores.stolen),
            // The first reading of a new quota is not a difference.
            throttled: if found {
                Duration::ZERO
            } else {
                now.throttled.saturating_sub(last.throttled)
            },
            workers_waited: Duration::ZERO,
            connections_waited: Duration::ZERO,
            loading: self.activity.versions(),
        };
        self.quota |= found;
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
