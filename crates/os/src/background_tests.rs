//! Work at idle priority that starves, fails, is stopped or is abandoned.

use std::thread::JoinHandle;

use super::*;

/// Starvation limit of work that must stay at idle priority, also beside the hogs of other
/// tests.
const NEVER: Duration = Duration::from_secs(3600);

struct Hogs(Arc<AtomicBool>, Vec<JoinHandle<()>>);

impl Hogs {
    fn start() -> Hogs {
        let stop = Arc::new(AtomicBool::new(false));
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let hog = |_| {
            let stop = stop.clone();
            std::thread::spawn(move || while !stop.load(Ordering::Relaxed) {})
        };
        let hogs = (0..2 * cores).map(hog).collect();
        Hogs(stop, hogs)
    }
}

impl Drop for Hogs {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
        self.1.drain(..).for_each(|hog| hog.join().unwrap());
    }
}

fn runner() -> BackgroundRunner {
    BackgroundRunner::new("test", "testing", Duration::from_millis(300))
}

/// Work that ignores its stop flag, as a call into an engine does, until a test ends it.
#[derive(Clone, Default)]
struct EngineCall(Arc<AtomicBool>);

impl EngineCall {
    /// Runs at full load, so that its thread starves beside hogs.
    fn spin(&self) {
        while !self.0.load(Ordering::Relaxed) {}
    }

    /// Runs without load, so that its thread does not starve.
    fn sleep(&self) {
        while !self.0.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Ends the call, and waits until `has_ended` returns true.
    fn end(&self, has_ended: impl Fn() -> bool) {
        self.0.store(true, Ordering::Relaxed);
        while !has_ended() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Works until `stop`, or for `so_long` of processor time.
fn busy(attempt: &Attempt, so_long: Duration) -> Result<()> {
    let began = thread::cpu_time();
    while thread::cpu_time() - began < so_long {
        if attempt.stop.load(Ordering::Relaxed) {
            return Err(Error::cancelled("stopped"));
        }
    }
    Ok(())
}

#[test]
fn work_runs_at_idle_priority() {
    let mut runner = BackgroundRunner::new("test", "testing", NEVER);
    for _ in 0..2 {
        let here = std::thread::current().id();
        let work =
            move |attempt: &Attempt| Ok((attempt.priority, std::thread::current().id() != here));
        assert_eq!(runner.run("test", &Arc::default(), work), Ok((Priority::Background, true)));
    }
    let failing = |_: &Attempt| Err::<(), _>(Error::invalid("no"));
    assert_eq!(
        runner.run("test", &Arc::default(), failing).unwrap_err().kind(),
        ErrorKind::InvalidArgument
    );
}

#[test]
fn idle_work_can_start_ordinary_threads() {
    let mut runner = BackgroundRunner::new("test", "testing", NEVER);
    let work = |_: &Attempt| {
        let started = || std::thread::spawn(thread::has_idle_priority).join().ok();
        let here = started();
        at_ordinary_priority(started).map(|there| (here, there))
    };
    assert_eq!(runner.run("test", &Arc::default(), work), Ok((Some(true), Some(false))));
    let here = std::thread::current().id();
    assert_eq!(at_ordinary_priority(|| std::thread::current().id()), Ok(here));
}

#[test]
fn idle_work_can_continue_at_low_priority() {
    let mut runner = BackgroundRunner::new("test", "testing", NEVER);
    let priorities = || (thread::has_idle_priority(), thread::has_low_priority());
    let work = move |_: &Attempt| {
        at_low_priority(move || Ok((priorities(), at_ordinary_priority(priorities)?)))?
    };
    let low_and_ordinary = Ok(((false, true), (false, false)));
    assert_eq!(runner.run("test", &Arc::default(), work), low_and_ordinary);
    let here = std::thread::current().id();
    assert_eq!(at_low_priority(|| std::thread::current().id()), Ok(here));
}

#[test]
fn starving_work_escalates() {
    let mut runner = runner();
    let hogs = Hogs::start();
    let work = move |attempt: &Attempt| match attempt.priority {
        Priority::Background => busy(attempt, Duration::from_secs(3600)).map(|()| false),
        _ => Ok(std::thread::current().name() == Some("test-hi")),
    };
    assert_eq!(runner.run("test", &Arc::default(), work), Ok(true));
    drop(hogs);
    runner.starvation_limit = NEVER;
    assert_eq!(
        runner.run("test", &Arc::default(), |attempt| Ok(attempt.priority)),
        Ok(Priority::Background),
        "afterwards"
    );
}

#[test]
fn an_engine_that_ignores_stop_is_abandoned() {
    let mut runner = runner();
    let hogs = Hogs::start();
    let held = Arc::new(());
    let has = held.clone();
    let call = EngineCall::default();
    let begun = call.clone();
    let work = move |attempt: &Attempt| {
        if attempt.priority == Priority::Background {
            begun.spin();
        }
        Ok((attempt.priority, has.clone()))
    };
    let outcome = runner.run("test", &Arc::default(), work).unwrap();
    assert_eq!(outcome.0, Priority::Escalated);
    assert_eq!(
        runner.run("test", &Arc::default(), |_| Ok(7)),
        Ok(7),
        "another thread takes its place"
    );
    drop((hogs, outcome));
    call.end(|| Arc::strong_count(&held) == 1);
}

#[test]
fn the_stop_flag_ends_the_work() {
    let mut runner = runner();
    let stop = Arc::new(AtomicBool::new(false));
    let set = stop.clone();
    let work = move |attempt: &Attempt| {
        set.store(true, Ordering::Relaxed);
        busy(attempt, Duration::from_secs(3600))
    };
    assert_eq!(runner.run("test", &stop, work).unwrap_err().kind(), ErrorKind::Cancelled);
}

#[test]
fn stopping_starving_work_takes_no_longer() {
    let mut runner = runner();
    let hogs = Hogs::start();
    // From the start: on a busy machine the work could starve before it sets this.
    let stop = Arc::new(AtomicBool::new(true));
    let call = EngineCall::default();
    let begun = call.clone();
    let work = move |attempt: &Attempt| {
        assert_eq!(attempt.priority, Priority::Background, "stopped work does not escalate");
        begun.spin();
        Ok(())
    };
    assert_eq!(runner.run("test", &stop, work).unwrap_err().kind(), ErrorKind::Cancelled);
    assert!(runner.idle.is_none(), "the thread that is inside the work is left alone");
    let left = runner.take_left().unwrap();
    assert!(!left.ended() && runner.take_left().is_none());
    drop(hogs);
    call.end(|| left.ended());
}

#[test]
fn a_stopped_escalated_attempt_abandons_the_first_one() {
    let mut runner = runner();
    let hogs = Hogs::start();
    let stop = Arc::new(AtomicBool::new(false));
    let set = stop.clone();
    let call = EngineCall::default();
    let begun = call.clone();
    let work = move |attempt: &Attempt| -> Result<()> {
        if attempt.priority == Priority::Escalated {
            set.store(true, Ordering::Relaxed);
            return Err(Error::cancelled("stopped"));
        }
        begun.spin();
        Ok(())
    };
    assert_eq!(runner.run("test", &stop, work).unwrap_err().kind(), ErrorKind::Cancelled);
    let left = runner.take_left().unwrap();
    assert!(!left.ended());
    drop(hogs);
    call.end(|| left.ended());
}

#[test]
fn stopped_work_that_does_not_end_is_abandoned() {
    let mut runner = BackgroundRunner::new("test", "testing", NEVER);
    runner.stop_wait_max = Duration::ZERO;
    let stop = Arc::new(AtomicBool::new(true));
    let call = EngineCall::default();
    let begun = call.clone();
    let work = move |_: &Attempt| {
        begun.sleep();
        Ok(())
    };
    assert_eq!(runner.run("test", &stop, work).unwrap_err().kind(), ErrorKind::Cancelled);
    let left = runner.take_left().unwrap();
    assert!(!left.ended());
    assert_eq!(runner.run("test", &Arc::default(), |_| Ok(7)), Ok(7), "on another thread");
    call.end(|| left.ended());
}

#[test]
fn work_beyond_its_time_limit_is_abandoned() {
    let limit = WorkTimeLimit { max: Duration::ZERO, remedy: "do this" };
    for priority in [Priority::Background, Priority::Ordinary] {
        let mut runner = BackgroundRunner::new("test", "testing", NEVER).with_limit(limit);
        let call = EngineCall::default();
        let begun = call.clone();
        let work = move |_: &Attempt| {
            begun.sleep();
            Ok(())
        };
        let stop = Arc::default();
        let error = match priority {
            Priority::Background => runner.run("loading m", &stop, work),
            _ => runner.run_ordinary("loading m", &stop, work),
        };
        let error = error.unwrap_err();
        assert_eq!(error.message(), "loading m took longer than 0 s; do this");
        assert!(!error.is_retryable());
        let left = runner.take_left().unwrap();
        assert!(!left.ended(), "{priority:?}");
        runner.limit = None;
        let next = |attempt: &Attempt| Ok(attempt.priority);
        assert_eq!(runner.run_ordinary("test", &stop, next), Ok(Priority::Ordinary));
        call.end(|| left.ended());
    }
}

#[test]
fn work_that_stops_at_its_time_limit_is_not_abandoned() {
    let limit = WorkTimeLimit { max: Duration::ZERO, remedy: "do this" };
    let mut runner = BackgroundRunner::new("test", "testing", NEVER).with_limit(limit);
    runner.stop_wait_max = NEVER;
    let work = |attempt: &Attempt| busy(attempt, NEVER);
    let error = runner.run_ordinary("loading m", &Arc::default(), work).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::FailedPrecondition);
    assert!(runner.take_left().is_none() && runner.ordinary.is_some());
    let error = runner.run("loading m", &Arc::default(), work).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::FailedPrecondition, "it does not escalate");
}

#[test]
fn a_panic_of_ordinary_work_is_an_error() {
    let mut runner = runner();
    let work = |_: &Attempt| -> Result<()> { panic!("on purpose") };
    let error = runner.run_ordinary("testing", &Arc::default(), work).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Internal);
    assert_eq!(runner.run_ordinary("testing", &Arc::default(), |_| Ok(7)), Ok(7));
}

#[test]
fn only_a_stopped_attempt_starved() {
    let attempt = Attempt::ordinary(Arc::default());
    assert_eq!(attempt.failure(), "it failed at idle priority");
    attempt.stop.store(true, Ordering::Relaxed);
    assert_eq!(attempt.failure(), "it got almost no processor time");
}

#[test]
fn a_panic_escalates() {
    let mut runner = runner();
    let work = |attempt: &Attempt| match attempt.priority {
        Priority::Background => panic!("on purpose"),
        _ => Ok(()),
    };
    assert_eq!(runner.run("test", &Arc::default(), work), Ok(()));
}
