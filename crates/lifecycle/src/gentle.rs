//! Work at idle priority that gets done all the same.
//!
//! A thread of idle priority disturbs nobody, and gets next to nothing of a machine that others
//! keep fully busy: a version that is to end an overload would never be there. No thread can leave
//! that priority again without a privilege. So it does the work for another one of ordinary
//! priority, which sees how the kernel treats it. Where it starves, the other one has it give up
//! and does the work itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use base::{Error, ErrorKind, Result};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use os::Turns;

/// Whoever has waited for a core for longer than patience allows, and so many times as long as it
/// ran, starves.
const STARVING: u32 = 4;
/// Time between two looks at the thread, and at whether the work is still wanted.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// How an attempt is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    /// At ordinary priority, and the only one.
    Ordinary,
    /// At idle priority; where it ends with `Cancelled` and the work is still wanted, it is made
    /// again.
    Gentle,
    /// At ordinary priority, because it starved.
    Hurried,
}

/// One attempt at some work.
#[derive(Clone)]
pub(crate) struct Attempt {
    /// When the first attempt at it began.
    pub(crate) began: Instant,
    /// Set to end it early, with `Cancelled`.
    pub(crate) stop: Arc<AtomicBool>,
    pub(crate) pace: Pace,
    /// How long a gentle one may wait for a core.
    pub(crate) patience: Duration,
}

impl Attempt {
    /// The only one, beginning now.
    pub(crate) fn ordinary(stop: Arc<AtomicBool>) -> Attempt {
        Attempt { began: Instant::now(), stop, pace: Pace::Ordinary, patience: Duration::MAX }
    }
}

/// Tells when a thread, or a child process, starves.
pub(crate) struct Share {
    turns: Turns,
    before: (Duration, Duration),
    patience: Duration,
}

impl Share {
    /// From now on; `None` where the kernel does not count.
    pub(crate) fn new(turns: &Turns, patience: Duration) -> Option<Share> {
        Some(Share { before: turns.read()?, turns: turns.clone(), patience })
    }

    pub(crate) fn starves(&self) -> bool {
        let Some((ran, waited)) = self.turns.read() else { return false };
        let (ran, waited) =
            (ran.saturating_sub(self.before.0), waited.saturating_sub(self.before.1));
        waited >= self.patience && waited >= ran * STARVING
    }
}

type Task = Box<dyn FnOnce() + Send>;

/// The thread of idle priority.
struct Idle {
    tasks: Sender<Task>,
    turns: Option<Turns>,
}

impl Idle {
    fn start(name: &str, doing: &'static str) -> Result<Idle> {
        let (tasks, queue) = bounded::<Task>(1);
        let (tell, told) = bounded(1);
        let body = move || {
            // Before it gives way, as this is waited for.
            let _ = tell.send(Turns::of_this_thread());
            os::thread::enter_background(doing);
            queue.iter().for_each(|task| task());
        };
        let spawned = std::thread::Builder::new().name(format!("{name}-idle")).spawn(body);
        spawned.map_err(|error| Error::exhausted(format!("no thread for {doing}: {error}")))?;
        Ok(Idle { tasks, turns: told.recv().unwrap_or_default() })
    }
}

/// For a thread of ordinary priority: has work done at idle priority while that gets on.
pub(crate) struct Gentle {
    name: String,
    doing: &'static str,
    patience: Duration,
    /// Absent before the first work, and after one that did not give up.
    idle: Option<Idle>,
}

impl Gentle {
    /// `name` is the thread's own; `doing` ("loading") is for the log. Work may wait for a core for
    /// as long as `patience`, and so long it is waited for where it is to give up: what is inside
    /// an engine does not hear of that, and is left alone.
    pub(crate) fn new(name: &str, doing: &'static str, patience: Duration) -> Gentle {
        Gentle { name: name.to_owned(), doing, patience, idle: None }
    }

    /// Does `work`, which must be able to begin anew, until `stop` is set. It looks at its own
    /// [`Attempt::stop`]. `what` it is is for the log.
    ///
    /// # Errors
    /// Those of `work`.
    pub(crate) fn run<T: Send + 'static>(
        &mut self,
        what: &str,
        stop: &Arc<AtomicBool>,
        work: impl Fn(&Attempt) -> Result<T> + Send + Sync + 'static,
    ) -> Result<T> {
        let work = Arc::new(work);
        let (began, patience) = (Instant::now(), self.patience);
        let attempt = Attempt { began, stop: Arc::default(), pace: Pace::Gentle, patience };
        let outcome = match self.begin(&work, &attempt) {
            Ok(told) => self.wait(&told, &attempt, stop),
            Err(error) => {
                tracing::warn!(%error, "{what}: not at idle priority");
                None
            }
        };
        match outcome {
            Some(Err(error))
                if error.kind() == ErrorKind::Cancelled && !stop.load(Ordering::Relaxed) => {}
            Some(outcome) => return outcome,
            None if stop.load(Ordering::Relaxed) => {
                return Err(Error::cancelled("stopped; what got no processor time ends by itself"));
            }
            None => {}
        }
        tracing::info!("{what}: goes on at ordinary priority, as it got next to no processor time");
        work(&Attempt { stop: stop.clone(), pace: Pace::Hurried, ..attempt })
    }

    /// Has the idle thread begin.
    fn begin<T: Send + 'static>(
        &mut self,
        work: &Arc<impl Fn(&Attempt) -> Result<T> + Send + Sync + 'static>,
        attempt: &Attempt,
    ) -> Result<Receiver<Result<T>>> {
        let idle = match self.idle.take() {
            Some(idle) => idle,
            None => Idle::start(&self.name, self.doing)?,
        };
        let (tell, told) = bounded(1);
        let (work, attempt) = (work.clone(), attempt.clone());
        // Whoever waits no more has what this gives dropped here.
        let task = Box::new(move || drop(tell.send(work(&attempt))));
        idle.tasks
            .send(task)
            .map_err(|_| Error::internal("the thread of idle priority has ended"))?;
        self.idle = Some(idle);
        Ok(told)
    }

    /// What it came to; `None` where the thread starves and does not give up, be it to be hurried
    /// or because nobody wants the work any more, or has panicked.
    fn wait<T>(
        &mut self,
        told: &Receiver<Result<T>>,
        attempt: &Attempt,
        stop: &AtomicBool,
    ) -> Option<Result<T>> {
        let turns = self.idle.as_ref().and_then(|idle| idle.turns.as_ref());
        let share = || turns.and_then(|turns| Share::new(turns, self.patience));
        let (mut share, since_now) = (share(), share);
        loop {
            match told.recv_timeout(LOOK_EVERY) {
                Ok(outcome) => return Some(outcome),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) if stop.load(Ordering::Relaxed) => {
                    if !attempt.stop.swap(true, Ordering::Relaxed) {
                        // All that it still has to do is to give up.
                        share = since_now();
                    } else if share.as_ref().is_some_and(Share::starves) {
                        break;
                    }
                }
                Err(RecvTimeoutError::Timeout) if share.as_ref().is_some_and(Share::starves) => {
                    attempt.stop.store(true, Ordering::Relaxed);
                    if let Ok(outcome) = told.recv_timeout(self.patience) {
                        return Some(outcome);
                    }
                    break;
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
        self.idle = None;
        None
    }
}

#[cfg(test)]
mod tests {
    use std::thread::JoinHandle;

    use super::*;

    /// Keeps all cores busy.
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

    fn gentle() -> Gentle {
        Gentle::new("test", "testing", Duration::from_millis(300))
    }

    /// Works until it is told to stop, or `so_long`.
    fn busy(attempt: &Attempt, so_long: Duration) -> Result<()> {
        let began = os::thread::cpu_time();
        while os::thread::cpu_time() - began < so_long {
            if attempt.stop.load(Ordering::Relaxed) {
                return Err(Error::cancelled("stopped"));
            }
        }
        Ok(())
    }

    #[test]
    fn work_that_gets_on_is_done_at_idle_priority() {
        let mut gentle = gentle();
        for _ in 0..2 {
            let here = std::thread::current().id();
            let work =
                move |attempt: &Attempt| Ok((attempt.pace, std::thread::current().id() != here));
            assert_eq!(gentle.run("test", &Arc::default(), work), Ok((Pace::Gentle, true)));
        }
        let failing = |_: &Attempt| Err::<(), _>(Error::invalid("no"));
        assert_eq!(
            gentle.run("test", &Arc::default(), failing).unwrap_err().kind(),
            ErrorKind::InvalidArgument
        );
    }

    #[test]
    fn work_that_starves_is_done_at_ordinary_priority() {
        let (mut gentle, hogs) = (gentle(), Hogs::start());
        let here = std::thread::current().id();
        let work = move |attempt: &Attempt| match attempt.pace {
            Pace::Gentle => busy(attempt, Duration::from_secs(3600)).map(|()| false),
            _ => Ok(std::thread::current().id() == here),
        };
        assert_eq!(gentle.run("test", &Arc::default(), work), Ok(true));
        drop(hogs);
        assert_eq!(
            gentle.run("test", &Arc::default(), |attempt| Ok(attempt.pace)),
            Ok(Pace::Gentle),
            "afterwards"
        );
    }

    #[test]
    fn a_thread_that_does_not_give_up_is_left_alone_and_what_it_has_is_dropped() {
        let (mut gentle, hogs) = (gentle(), Hogs::start());
        let (held, ended) = (Arc::new(()), Arc::new(AtomicBool::new(false)));
        let (has, end) = (held.clone(), ended.clone());
        let work = move |attempt: &Attempt| {
            // Deaf, as an engine is.
            while attempt.pace == Pace::Gentle && !end.load(Ordering::Relaxed) {}
            Ok((attempt.pace, has.clone()))
        };
        let outcome = gentle.run("test", &Arc::default(), work).unwrap();
        assert_eq!(outcome.0, Pace::Hurried);
        assert_eq!(
            gentle.run("test", &Arc::default(), |_| Ok(7)),
            Ok(7),
            "another thread takes its place"
        );
        drop((hogs, outcome));
        ended.store(true, Ordering::Relaxed);
        while Arc::strong_count(&held) > 1 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn who_wants_no_more_of_it_ends_it() {
        let (mut gentle, stop) = (gentle(), Arc::new(AtomicBool::new(false)));
        let set = stop.clone();
        let work = move |attempt: &Attempt| {
            set.store(true, Ordering::Relaxed);
            busy(attempt, Duration::from_secs(3600))
        };
        assert_eq!(gentle.run("test", &stop, work).unwrap_err().kind(), ErrorKind::Cancelled);
    }

    #[test]
    fn who_wants_no_more_of_what_starves_waits_no_longer_than_others() {
        let (mut gentle, hogs) = (gentle(), Hogs::start());
        let (stop, end) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (set, ended) = (stop.clone(), end.clone());
        let work = move |attempt: &Attempt| {
            assert_eq!(attempt.pace, Pace::Gentle, "nobody wants it, so nothing of it is hurried");
            set.store(true, Ordering::Relaxed);
            // Deaf, as an engine is.
            while !ended.load(Ordering::Relaxed) {}
            Ok(())
        };
        assert_eq!(gentle.run("test", &stop, work).unwrap_err().kind(), ErrorKind::Cancelled);
        assert!(gentle.idle.is_none(), "the thread that is inside the work is left alone");
        drop(hogs);
        end.store(true, Ordering::Relaxed);
    }

    #[test]
    fn a_panic_ends_the_idle_thread_and_not_the_work() {
        let mut gentle = gentle();
        let work = |attempt: &Attempt| match attempt.pace {
            Pace::Gentle => panic!("on purpose"),
            _ => Ok(()),
        };
        assert_eq!(gentle.run("test", &Arc::default(), work), Ok(()));
    }
}
