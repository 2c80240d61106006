//! A timer that fires within microseconds inside an asynchronous runtime, whose own timers count
//! milliseconds.

use std::time::{Duration, Instant};

use base::{Error, Result};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use tokio::net::unix::pipe::Receiver;

/// An alarm for one waiting task at a time.
#[derive(Debug)]
pub(crate) struct Timer {
    /// Kernel timer that is read like a pipe, because the runtime's own wrapper of any descriptor
    /// has no safe constructor.
    descriptor: Receiver,
}

impl Timer {
    /// Creates a timer that is registered with the current runtime.
    pub(crate) fn new() -> Result<Timer> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let descriptor = rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags)
            .map_err(|e| Error::internal("cannot make a timer").caused_by(e))?;
        let descriptor = Receiver::from_owned_fd_unchecked(descriptor)
            .map_err(|e| Error::internal("cannot watch a timer").caused_by(e))?;
        Ok(Timer { descriptor })
    }

    /// Returns at `due`. If that has passed, returns after other ready tasks have run. A client
    /// that is late would otherwise send and read nothing until it is on time again.
    pub(crate) async fn until(&self, due: Instant) -> Result<()> {
        if due <= Instant::now() {
            tokio::task::yield_now().await;
            return Ok(());
        }
        loop {
            let left = due.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            self.arm(left)?;
            self.descriptor.readable().await.map_err(|e| Error::internal("timer").caused_by(e))?;
            let mut expirations = [0u8; 8];
            // An error means that it has not fired yet. The loop reads the clock in both cases.
            let _ = self.descriptor.try_read(&mut expirations);
        }
    }

    /// Sets the timer to fire once, after `left`.
    fn arm(&self, left: Duration) -> Result<()> {
        let once = Itimerspec {
            it_interval: Timespec { tv_sec: 0, tv_nsec: 0 },
            it_value: Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: i64::from(left.subsec_nanos()).max(i64::from(left.as_secs() == 0)),
            },
        };
        rustix::time::timerfd_settime(&self.descriptor, TimerfdTimerFlags::empty(), &once)
            .map(|_| ())
            .map_err(|e| Error::internal("cannot set a timer").caused_by(e))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::*;

    #[test]
    fn a_late_timer_lets_other_tasks_run() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        tokio::task::LocalSet::new().block_on(&runtime, async {
            let timer = Timer::new().unwrap();
            let ran = Rc::new(Cell::new(0));
            for sent in 1..=3 {
                let count = ran.clone();
                tokio::task::spawn_local(async move { count.set(count.get() + 1) });
                timer.until(Instant::now()).await.unwrap();
                assert_eq!(ran.get(), sent);
            }
        });
    }

    #[test]
    fn a_timer_never_fires_early() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        runtime.block_on(async {
            let timer = Timer::new().unwrap();
            for micros in [0, 1, 200, 1500] {
                let due = Instant::now() + Duration::from_micros(micros);
                timer.until(due).await.unwrap();
                assert!(Instant::now() >= due);
            }
        });
    }
}
