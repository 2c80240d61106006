//! Use of the cores that this process may run on.

use std::time::Duration;

/// Fields of a line of /proc/stat after the core's name (`proc_stat(5)`).
const IDLE: usize = 3;
const IO_WAIT: usize = 4;
const STOLEN: usize = 7;
/// Fields up to the stolen time. The other fields include the time of guests.
const FIELDS: usize = 8;

/// Times of the cores that this process may run on, since the start of the machine, summed over
/// the cores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoreTimes {
    /// Cores that this process may run on.
    pub cores: usize,
    /// Time in which a thread of any process ran.
    pub busy: Duration,
    /// Time in which the hypervisor ran another machine.
    pub stolen: Duration,
}

impl CoreTimes {
    /// Reads the times, which the kernel counts in ticks of about 10 ms. `None` if it does not
    /// report them.
    pub fn read() -> Option<CoreTimes> {
        let text = std::fs::read_to_string("/proc/stat").ok()?;
        // SAFETY: asks for a constant of the system.
        let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
        let allowed = allowed_cores();
        parse(&text, ticks.max(1) as f64, |core| {
            allowed.as_ref().is_none_or(|set| is_set(set, core))
        })
    }
}

/// Parses `/proc/stat`. Adds up the times of the cores for which `allowed` returns true. Returns
/// `None` without such a core.
fn parse(text: &str, ticks_per_second: f64, allowed: impl Fn(usize) -> bool) -> Option<CoreTimes> {
    let mut times = CoreTimes::default();
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace();
        let name = words.next().unwrap_or_default();
        let Some(core) = name.strip_prefix("cpu").and_then(|core| core.parse().ok()) else {
            continue;
        };
        if !allowed(core) {
            continue;
        }
        let fields: Vec<u64> = words.take(FIELDS).filter_map(|word| word.parse().ok()).collect();
        let field = |index: usize| fields.get(index).copied().unwrap_or(0);
        let all: u64 = fields.iter().sum();
        let unused = field(IDLE) + field(IO_WAIT) + field(STOLEN);
        let time = |ticks: u64| Duration::from_secs_f64(ticks as f64 / ticks_per_second);
        times.cores += 1;
        times.busy += time(all.saturating_sub(unused));
        times.stolen += time(field(STOLEN));
    }
    (times.cores > 0).then_some(times)
}

/// Returns the cores that the calling thread may run on, or `None` if the system refuses.
pub(crate) fn allowed_cores() -> Option<libc::cpu_set_t> {
    // SAFETY: an all-zero set is valid, and the call writes one struct of ours.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        let read = libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set);
        (read == 0).then_some(set)
    }
}

/// Returns true if `set` has the core.
pub(crate) fn is_set(set: &libc::cpu_set_t, core: usize) -> bool {
    // SAFETY: reads the struct; a core beyond its size is not read.
    core < libc::CPU_SETSIZE as usize && unsafe { libc::CPU_ISSET(core, set) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_the_allowed_cores_are_summed() {
        let text = "cpu  9 9 9 9 9 9 9 9 9 9\n\
                    cpu0 10 1 5 100 7 2 3 40 6 0\n\
                    cpu1 1 1 1 1 1 1 1 1 1 1\n\
                    cpu2 20 0 0 50 0 0 0 0\n\
                    intr 5\n";
        let parsed = parse(text, 100.0, |core| core != 1).unwrap();
        let ticks = |count: u64| Duration::from_millis(10 * count);
        assert_eq!(parsed, CoreTimes { cores: 2, busy: ticks(21 + 20), stolen: ticks(40) });
        assert_eq!(parse("intr 5\n", 100.0, |_| true), None);
    }

    #[test]
    fn this_machine_reports_its_cores() {
        let times = CoreTimes::read().unwrap();
        assert!(times.cores > 0 && times.busy > Duration::ZERO);
    }
}
