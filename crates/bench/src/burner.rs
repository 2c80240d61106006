//! Threads that keep cores busy at idle priority without touching memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use base::{Error, Result};

/// Threads of idle priority that do arithmetic. Dropping it ends them.
pub(crate) struct IdleBurners {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Result<()>>>,
}

impl IdleBurners {
    pub(crate) fn start(count: usize) -> Result<IdleBurners> {
        let mut burners = IdleBurners { stop: Arc::default(), threads: Vec::new() };
        for _ in 0..count {
            let stop = burners.stop.clone();
            burners.threads.push(os::thread::spawn("burner", move || burn(&stop))?);
        }
        Ok(burners)
    }

    /// Ends the threads. Fails if one could not take idle priority.
    pub(crate) fn end(mut self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.drain(..).try_for_each(|thread| {
            thread.join().unwrap_or_else(|_| Err(Error::internal("a burner panicked")))
        })
    }
}

impl Drop for IdleBurners {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Keeps one core busy for `time`, as a loader that touches no memory would.
pub(crate) fn burn_idle(time: Duration) -> Result<()> {
    let burner = IdleBurners::start(1)?;
    std::thread::sleep(time);
    burner.end()
}

fn burn(stop: &AtomicBool) -> Result<()> {
    os::thread::set_idle_priority()?;
    let mut value = 1u64;
    while !stop.load(Ordering::Relaxed) {
        for step in 0..10_000 {
            value = std::hint::black_box(loadgen::random::at(value, step));
        }
    }
    Ok(())
}
