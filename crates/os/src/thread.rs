//! The calling thread: its priority, name, core, and the kernel's figures about it.

use std::ffi::CStr;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use base::{Error, Result};

use crate::core_times::{allowed_cores, is_set};

/// Time between two checks of a thread that should end.
const JOIN_POLL: Duration = Duration::from_millis(2);

/// Starts a thread with the priority of the calling thread.
///
/// # Errors
/// `ResourceExhausted` if the system starts no further thread.
pub fn spawn<T: Send + 'static>(
    name: impl Into<String>,
    body: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>> {
    let name = name.into();
    let spawned = std::thread::Builder::new().name(name.clone()).spawn(body);
    spawned.map_err(|error| spawn_error(&name, error))
}

/// Returns the error of a thread that the system does not start.
fn spawn_error(name: &str, error: std::io::Error) -> Error {
    Error::exhausted(format!(
        "the thread {name} cannot be started: {error}; raise the limit of threads (ulimit -u, \
         TasksMax= or pids.max), or try again later"
    ))
    .with_source(error)
}

/// Waits for a thread until `deadline`. Logs a thread that has panicked. Logs a thread that has not
/// ended, which ends with the process.
pub fn join_until(thread: JoinHandle<()>, deadline: Instant) {
    while !thread.is_finished() && Instant::now() < deadline {
        std::thread::sleep(JOIN_POLL);
    }
    let name = thread.thread().name().unwrap_or_default().to_owned();
    if !thread.is_finished() {
        tracing::warn!(thread = name, "did not end in time");
    } else if thread.join().is_err() {
        tracing::error!(thread = name, "panicked");
    }
}

/// Makes the calling thread run only on idle cores (SCHED_IDLE). For loaders and unloaders. A
/// thread may need a privilege to leave this class again.
///
/// # Errors
/// `PermissionDenied` if the system refuses.
pub fn set_idle_priority() -> Result<()> {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: reads one struct of ours; 0 names the calling thread.
    let status = unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &parameters) };
    check(status, "idle priority")
}

/// Returns true if the calling thread has idle priority.
pub fn has_idle_priority() -> bool {
    // SAFETY: takes a number only; 0 names the calling thread.
    unsafe { libc::sched_getscheduler(0) == libc::SCHED_IDLE }
}

/// Sets batch scheduling of the calling thread. With it, a waking thread lets the running thread of
/// its core finish its time slice (SCHED_BATCH). Without it, the waking thread preempts the running
/// one (SCHED_OTHER, the default). Every thread may switch, both ways.
///
/// # Errors
/// `Internal` if the system refuses.
pub fn set_batch_scheduling(yielding: bool) -> Result<()> {
    let policy = if yielding { libc::SCHED_BATCH } else { libc::SCHED_OTHER };
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: reads one struct of ours; 0 names the calling thread.
    let status = unsafe { libc::sched_setscheduler(0, policy, &parameters) };
    check(status, "a scheduling class")
}

/// Nice value of background work that other threads wait for in the end: 1/28 of an ordinary
/// thread's share. At 10, it delays queries more. At 19, it often falls so far behind that it must
/// be escalated (docs/adr/0010).
const LOW_NICE: libc::c_int = 15;
/// Short time slice, after which the core may go to another thread. The kernel's shortest.
const SHORT_TURN: Duration = Duration::from_micros(100);

/// Gives the calling thread 1/28 of an ordinary thread's share of a core, in slices of 0.1 ms from
/// Linux 6.12 on. Older systems choose the slice. For work that must progress on a busy machine,
/// unlike work of idle priority.
///
/// # Errors
/// `PermissionDenied` if the system refuses.
fn set_low_priority() -> Result<()> {
    check(set_short_turns_at(LOW_NICE), "low priority")
}

/// Returns true if the calling thread has the low priority of [`set_low_priority`], or a lower one.
pub(crate) fn has_low_priority() -> bool {
    // SAFETY: takes numbers only; 0 names the calling thread.
    unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) >= LOW_NICE }
}

/// Gives the calling thread, and threads that it starts, slices of 0.1 ms (from Linux 6.12 on). Its
/// share stays, but after a wake-up it does not wait for a whole slice of a computing thread. For
/// threads that pass work to other threads. Has no effect on a thread of another scheduling class.
///
/// # Errors
/// `PermissionDenied` if the system refuses.
pub fn set_short_turns() -> Result<()> {
    // SAFETY: takes a number only; 0 names the calling thread.
    if unsafe { libc::sched_getscheduler(0) } != libc::SCHED_OTHER {
        return Ok(());
    }
    // SAFETY: takes numbers only; 0 names the calling thread.
    let nice = unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
    check(set_short_turns_at(nice), "short turns")
}

/// Sets turns of [`SHORT_TURN`] for the calling thread, which keeps its priority `nice`. Returns
/// the result of the system call.
fn set_short_turns_at(nice: libc::c_int) -> libc::c_int {
    /// `struct sched_attr` of linux/sched/types.h, first version.
    #[repr(C)]
    struct Attributes {
        size: u32,
        policy: u32,
        flags: u64,
        nice: i32,
        priority: u32,
        runtime: u64,
        deadline: u64,
        period: u64,
    }
    let attributes = Attributes {
        size: size_of::<Attributes>() as u32,
        policy: libc::SCHED_OTHER as u32,
        flags: 0,
        nice,
        priority: 0,
        runtime: SHORT_TURN.as_nanos() as u64,
        deadline: 0,
        period: 0,
    };
    // SAFETY: reads one struct of the size that it names; 0 names the calling thread, the last 0 is
    // for flags.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) as libc::c_int }
}

/// Sets low priority for the calling thread, and lets it allocate from the background arena. Use
/// this for background work that other threads wait for in the end. If the system refuses the
/// priority, logs that `doing` (such as "flushing") runs at ordinary priority.
pub fn enter_low_priority(doing: &str) {
    if let Err(error) = set_low_priority() {
        tracing::warn!(%error, "{doing} runs at ordinary priority");
    }
    crate::jemalloc::use_background_arena();
}

/// Sets idle priority for the calling thread, and lets it allocate from the background arena. If
/// the system refuses the priority, logs that `doing` (such as "loading") runs at ordinary
/// priority.
pub fn enter_background(doing: &str) {
    if let Err(error) = set_idle_priority() {
        tracing::warn!(%error, "{doing} runs at ordinary priority");
    }
    crate::jemalloc::use_background_arena();
}

/// Pins the calling thread to one of the cores that it may use. `index` counts them from 0. In a
/// container they may be any cores of the machine.
///
/// # Errors
/// `InvalidArgument` if the thread may not use so many cores, `PermissionDenied` if the system
/// refuses.
pub fn pin(index: usize) -> Result<()> {
    let allowed = allowed_cores();
    let core = (0..libc::CPU_SETSIZE as usize)
        .filter(|&core| allowed.as_ref().is_none_or(|allowed| is_set(allowed, core)))
        .nth(index)
        .ok_or_else(|| {
            Error::invalid(format!("no core for thread {index}: the thread may use fewer cores"))
        })?;
    // SAFETY: an all-zero cpu_set_t is the empty set, `core` is within its size, 0 names the
    // caller.
    let status = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(core, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set)
    };
    check(status, "pinning to a core")
}

/// Sets the timer slack of the calling thread. Its timers then fire within `slack` of their time.
/// Serving threads use 1 us instead of the usual 50.
///
/// # Errors
/// `PermissionDenied` if the system refuses.
fn set_timer_slack(slack: Duration) -> Result<()> {
    let nanoseconds =
        libc::c_ulong::try_from(slack.as_nanos().max(1)).unwrap_or(libc::c_ulong::MAX);
    // SAFETY: takes a number only.
    let status = unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, nanoseconds) };
    check(status, "timer slack")
}

/// Lets timers of a serving thread fire within 1 us. A refusal costs only precision.
pub fn set_serving_timers() {
    if let Err(error) = set_timer_slack(Duration::from_micros(1)) {
        tracing::debug!(%error, "serving thread keeps the default timer slack");
    }
}

/// Sets the name of the calling thread. The name of the main thread is the name of the process in
/// lists of processes. The kernel keeps the first 15 bytes.
///
/// # Errors
/// `PermissionDenied` if the system refuses.
pub fn set_name(name: &CStr) -> Result<()> {
    // SAFETY: reads a string that ends with a zero byte.
    let status = unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
    check(status, "a thread's name")
}

/// Page faults of a thread since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageFaults {
    /// Faults that needed no disk.
    pub minor: u64,
    /// Faults that waited for a disk.
    pub major: u64,
}

/// Returns the page faults of the calling thread.
pub fn page_faults() -> PageFaults {
    let usage = usage();
    let count = |faults: libc::c_long| faults.try_into().unwrap_or(0);
    PageFaults { minor: count(usage.ru_minflt), major: count(usage.ru_majflt) }
}

/// Returns the page faults of the calling thread that needed no disk.
pub fn minor_faults() -> u64 {
    page_faults().minor
}

/// Returns the processor time of the calling thread.
pub fn cpu_time() -> Duration {
    clock(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// Returns the processor time of all threads of this process.
pub fn process_cpu_time() -> Duration {
    clock(libc::CLOCK_PROCESS_CPUTIME_ID)
}

/// Returns the processor time of all threads of another process, or `None` once it has ended.
pub fn cpu_time_of_process(id: u32) -> Option<Duration> {
    let id = libc::pid_t::try_from(id).ok()?;
    let mut clock: libc::clockid_t = 0;
    // SAFETY: writes one number of ours.
    let found = unsafe { libc::clock_getcpuclockid(id, &mut clock) };
    if found != 0 {
        return None;
    }
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes one struct of ours. The call fails if the process has ended meanwhile.
    let read = unsafe { libc::clock_gettime(clock, &mut time) };
    (read == 0).then(|| duration(&time))
}

fn clock(clock: libc::clockid_t) -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes one struct of ours; the clocks of this module always exist.
    unsafe { libc::clock_gettime(clock, &mut time) };
    duration(&time)
}

fn duration(time: &libc::timespec) -> Duration {
    Duration::new(time.tv_sec.try_into().unwrap_or(0), time.tv_nsec.try_into().unwrap_or(0))
}

fn usage() -> libc::rusage {
    // SAFETY: an all-zero rusage is valid, and the call writes one struct of ours.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &mut usage);
        usage
    }
}

fn check(status: libc::c_int, what: &str) -> Result<()> {
    if status == 0 {
        return Ok(());
    }
    Err(Error::denied(format!("the system refuses {what}: {}", std::io::Error::last_os_error())))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `f` on a separate thread, because its settings stay.
    fn aside<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> T {
        std::thread::spawn(f).join().unwrap()
    }

    #[test]
    fn the_wait_for_a_thread_has_an_end() {
        let (end, ending) = std::sync::mpsc::channel::<()>();
        let (done, ended) = std::sync::mpsc::channel();
        let hanging = spawn("hanging", move || {
            // Fails once `end` is dropped.
            let _ = ending.recv();
            done.send(()).unwrap();
        });
        join_until(hanging.unwrap(), Instant::now() + Duration::from_millis(20));
        assert!(ended.try_recv().is_err(), "it has not ended");
        drop(end);
        ended.recv().unwrap();
    }

    #[test]
    fn low_priority_is_set() {
        let nice: Result<i32> = aside(|| {
            set_low_priority()?;
            // SAFETY: takes numbers only; 0 names the calling thread.
            Ok(unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) })
        });
        assert_eq!(nice, Ok(LOW_NICE));
    }

    #[test]
    fn short_turns_leave_the_priority() {
        let before_and_after = aside(|| {
            // SAFETY: takes numbers only; 0 names the calling thread.
            let nice = || unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
            // SAFETY: as above.
            unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 3) };
            set_short_turns().map(|()| nice())
        });
        assert_eq!(before_and_after, Ok(3));
        // SAFETY: takes a number only.
        let policy = || unsafe { libc::sched_getscheduler(0) };
        let idle =
            aside(move || set_idle_priority().and_then(|()| set_short_turns()).map(|()| policy()));
        assert_eq!(idle, Ok(libc::SCHED_IDLE));
    }

    #[test]
    fn a_thread_has_its_name_and_returns_its_result() {
        let name = || std::thread::current().name().map(str::to_owned);
        assert_eq!(spawn("named", name).unwrap().join().unwrap(), Some("named".to_owned()));
    }

    #[test]
    fn a_refused_thread_has_its_name_cause_and_remedy() {
        let error = spawn_error("worker-1", std::io::Error::from_raw_os_error(libc::EAGAIN));
        assert!(error.is_overload());
        assert!(error.message().starts_with("the thread worker-1 cannot be started: "), "{error}");
        assert!(error.message().ends_with("or try again later"), "{error}");
        let source = std::error::Error::source(&error);
        let source = source.and_then(|source| source.downcast_ref::<std::io::Error>());
        assert_eq!(source.and_then(std::io::Error::raw_os_error), Some(libc::EAGAIN));
    }

    #[test]
    fn idle_priority_is_set() {
        // SAFETY: takes a number only.
        let policy = aside(|| set_idle_priority().map(|()| unsafe { libc::sched_getscheduler(0) }));
        assert_eq!(policy, Ok(libc::SCHED_IDLE));
    }

    #[test]
    fn pinning_takes_one_of_the_allowed_cores() {
        assert!(aside(|| pin(usize::MAX)).is_err());
        // SAFETY: takes nothing.
        let core = || unsafe { libc::sched_getcpu() };
        let pinned: Result<(bool, bool)> = aside(move || {
            // A machine with one core has no second one.
            pin(1).or_else(|_| pin(0))?;
            let only = core();
            pin(0)?;
            Ok((core() == only, pin(1).is_err()))
        });
        assert_eq!(pinned, Ok((true, true)), "the only allowed core is the first");
    }

    #[test]
    fn timer_slack_is_set() {
        let slack = aside(|| {
            set_serving_timers();
            // SAFETY: takes a number only.
            unsafe { libc::prctl(libc::PR_GET_TIMERSLACK) }
        });
        assert_eq!(slack, 1000);
    }

    #[test]
    fn touching_fresh_pages_counts() {
        let (faults, time) = aside(|| {
            let before = (minor_faults(), cpu_time());
            let pages = std::hint::black_box(vec![1u8; 32 << 20]);
            drop(pages);
            (minor_faults() - before.0, cpu_time() - before.1)
        });
        assert!(faults > 0);
        assert!(time > Duration::ZERO);
    }
}
