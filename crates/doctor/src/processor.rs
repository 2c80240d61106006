//! Cores and their instruction sets.

use crate::{Check, CheckVerdict, read};

/// Reported instruction sets, in the kernel's words.
const NOTABLE: [&str; 16] = [
    "avx2",
    "fma",
    "f16c",
    "avx512f",
    "avx512_vnni",
    "avx_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "amx_int8",
    "amx_bf16",
    "asimd",
    "asimddp",
    "i8mm",
    "bf16",
    "sve",
    "fphp",
];
/// Clocks that are read without a system call.
const FAST_CLOCKS: [&str; 4] =
    ["tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter"];

/// Runs all checks of processors.
pub(crate) fn checks() -> Vec<Check> {
    let info = read("/proc/cpuinfo").unwrap_or_default();
    let online = info.lines().filter(|line| line.starts_with("processor")).count();
    let usable = std::thread::available_parallelism().map_or(1, usize::from);
    vec![
        features(&info),
        cores(usable, online.max(usable)),
        quota(os::CpuQuota::of_this_process().map(|quota| quota.cores)),
        clock(read(CLOCK_SOURCE).as_deref()),
        idle(&info, read(IDLE_GOVERNOR).as_deref(), read(HALT_POLL).as_deref()),
    ]
}

const IDLE_GOVERNOR: &str = "/sys/devices/system/cpu/cpuidle/current_governor";
const HALT_POLL: &str = "/sys/module/haltpoll/parameters/guest_halt_poll_ns";
const CLOCK_SOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";

/// Judges the instructions of the processor. `info` is the text of `/proc/cpuinfo`.
fn features(info: &str) -> Check {
    let line = info.lines().find(|line| line.starts_with("flags") || line.starts_with("Features"));
    let flags: Vec<&str> = line
        .and_then(|line| line.split_once(':'))
        .map_or(Vec::new(), |(_, f)| f.split_whitespace().collect());
    let has = |flag: &str| flags.contains(&flag);
    let notable: Vec<&str> = NOTABLE.into_iter().filter(|flag| has(flag)).collect();
    let found = if notable.is_empty() { "nothing notable".to_owned() } else { notable.join(" ") };
    let eight_bit = has("avx512_vnni") || has("avx_vnni") || has("amx_int8") || has("asimddp");
    let sixteen_bit = has("avx512_bf16") || has("avx512_fp16") || has("amx_bf16") || has("bf16");
    let meaning = match (has("avx2") || has("asimd"), eight_bit, sixteen_bit) {
        (false, ..) => {
            "Neither AVX2 nor ASIMD: models run several times slower than they could; choose another machine type, \
             or pass the host's processor through to the virtual machine."
        }
        (true, true, true) => "Quantised (8-bit) and half-precision models run at full speed.",
        (true, true, false) => {
            "Quantised (8-bit) models run at full speed; bfloat16 models are computed as float32."
        }
        (true, false, true) => {
            "Half-precision models run at full speed; quantised (8-bit) models gain little on this machine."
        }
        (true, false, false) => {
            "float32 models run well; quantised (8-bit) and half-precision models gain little on this machine."
        }
    };
    Check::new("processor", CheckVerdict::warn_unless(has("avx2") || has("asimd")), found, meaning)
}

/// Judges the number of cores. This process may use `usable` of `online` cores.
fn cores(usable: usize, online: usize) -> Check {
    let found = if usable < online { format!("{usable} of {online}") } else { usable.to_string() };
    let meaning = match usable {
        1 => "Loading and serving share one core, so a swap slows requests. Use two cores or more.",
        _ => {
            "One inference worker per core by default (--threads); loaders run only when a core is free."
        }
    };
    Check::new("cores", CheckVerdict::warn_unless(usable > 1), found, meaning)
}

fn quota(cores: Option<f64>) -> Check {
    match cores {
        None => Check::ok(
            "CPU limit",
            "none",
            "No control group stops the threads in the middle of a request.",
        ),
        Some(cores) => Check::warn(
            "CPU limit",
            format!("{cores:.2} cores"),
            "The control group stops all threads when the time of a period is used up. This adds tens of \
             milliseconds to p999: give whole cores (a cpuset, or requests equal to limits) instead of a quota.",
        ),
    }
}

/// Checks how idle cores wait. A virtual core halts, and its wake-up waits for the host.
fn idle(info: &str, governor: Option<&str>, halt_poll: Option<&str>) -> Check {
    let name = "idle cores";
    if !info.split_whitespace().any(|word| word == "hypervisor") {
        return Check::ok(name, "no virtual machine", "No host takes part in waking idle cores.");
    }
    let polls = halt_poll.and_then(|text| text.trim().parse::<u64>().ok());
    match (governor.map(str::trim), polls) {
        (Some("haltpoll"), Some(0)) => Check::warn(
            name,
            "virtual, halt at once",
            "At low load every request waits until the host has woken a core: where this was measured, one client's p99 was \
             2.0 to 3.7 ms with polling and 4.4 to 8.8 without. `echo 200000 > \
             /sys/module/haltpoll/parameters/guest_halt_poll_ns` makes idle cores poll for 200 us before they halt, which \
             takes processor time.",
        ),
        (Some("haltpoll"), Some(ns)) => Check::ok(
            name,
            format!("virtual, poll for {} us", ns / 1000),
            "Idle cores poll for work before they halt.",
        ),
        _ => Check::ok(
            name,
            "virtual",
            "The host decides if idle cores halt at once. With cpuidle-haltpoll, this machine decides.",
        ),
    }
}

/// Judges the clock source of the kernel.
fn clock(source: Option<&str>) -> Check {
    let fast = source.is_none_or(|source| FAST_CLOCKS.contains(&source));
    let meaning = if fast {
        "Reading the time costs tens of nanoseconds."
    } else {
        "On this machine, each reading of the time is a system call, and a request needs several. Boot with a stable tsc if you can."
    };
    Check::new("clock", CheckVerdict::warn_unless(fast), source.unwrap_or("unknown"), meaning)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_vector_instructions_are_a_finding() {
        let check = features("processor : 0\nflags\t\t: fpu avx2 fma avx512_vnni\n");
        assert_eq!(
            (check.verdict, check.found.as_str()),
            (CheckVerdict::Ok, "avx2 fma avx512_vnni")
        );
        assert!(check.meaning.contains("8-bit"));
        assert_eq!(features("flags : fpu sse2").verdict, CheckVerdict::Warn);
        assert_eq!(features("Features : fp asimd").verdict, CheckVerdict::Ok);
        assert_eq!(cores(1, 4).found, "1 of 4");
    }

    #[test]
    fn a_quota_is_a_finding() {
        assert_eq!(quota(Some(1.5)).verdict, CheckVerdict::Warn);
        assert_eq!(quota(None).verdict, CheckVerdict::Ok);
    }

    #[test]
    fn halting_cores_of_a_virtual_machine_are_a_finding() {
        let virtual_machine = "flags\t: fpu hypervisor avx2";
        assert_eq!(idle("flags : fpu avx2", Some("menu"), None).verdict, CheckVerdict::Ok);
        let halting = idle(virtual_machine, Some("haltpoll\n"), Some("0\n"));
        assert!(
            halting.verdict == CheckVerdict::Warn && halting.meaning.contains("guest_halt_poll_ns")
        );
        let polling = idle(virtual_machine, Some("haltpoll"), Some("200000"));
        assert_eq!(
            (polling.verdict, polling.found.as_str()),
            (CheckVerdict::Ok, "virtual, poll for 200 us")
        );
        assert_eq!(idle(virtual_machine, Some("menu"), None).verdict, CheckVerdict::Ok);
    }

    #[test]
    fn a_slow_clock_is_a_finding() {
        assert_eq!(clock(Some("tsc")).verdict, CheckVerdict::Ok);
        assert_eq!(clock(Some("hpet")).verdict, CheckVerdict::Warn);
        assert_eq!(clock(None).verdict, CheckVerdict::Ok);
    }
}
