//! A server's resident memory during the load.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use base::{Error, Result};

use super::report::ResidentMemory;
use loadgen::machine::rss_kb_of;

/// Time between two samples.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(250);
/// Maximum number of samples; a longer run keeps its first.
const SAMPLES_MAX: usize = 1 << 20;

/// Samples a process's memory from its start to [`MemoryWatch::end`].
pub(super) struct MemoryWatch {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Vec<(Duration, u64)>>,
}

impl MemoryWatch {
    /// Watches the memory of the process `pid`. Times count from `start`.
    ///
    /// # Errors
    /// Returns an error if no thread can be started.
    pub(super) fn start(pid: u32, start: Instant) -> Result<MemoryWatch> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let watch = move || {
            let mut samples = Vec::new();
            while !stopped.load(Ordering::Relaxed) {
                let rss_kb = rss_kb_of(pid);
                if rss_kb > 0 && samples.len() < SAMPLES_MAX {
                    samples.push((Instant::now().saturating_duration_since(start), rss_kb));
                }
                std::thread::sleep(SAMPLE_INTERVAL);
            }
            samples
        };
        Ok(MemoryWatch { stop, thread: os::thread::spawn("memory-watch", watch)? })
    }

    /// Returns the memory at `settled` after the start, at the end, and at most.
    ///
    /// # Errors
    /// Returns an error if there was no sample.
    pub(super) fn end(self, settled: Duration) -> Result<ResidentMemory> {
        self.stop.store(true, Ordering::Relaxed);
        let samples =
            self.thread.join().map_err(|_| Error::internal("the memory watch panicked"))?;
        of_samples(&samples, settled)
            .ok_or_else(|| Error::internal("the server's memory cannot be read"))
    }
}

fn of_samples(samples: &[(Duration, u64)], settled: Duration) -> Option<ResidentMemory> {
    let mb = |kb: u64| kb as f64 / 1024.0;
    let (_, last) = samples.last()?;
    let (_, first) = samples.iter().find(|(moment, _)| *moment >= settled)?;
    let most = samples.iter().map(|(_, rss)| *rss).max()?;
    Some(ResidentMemory { start_mb: mb(*first), end_mb: mb(*last), peak_mb: mb(most) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_is_when_it_has_settled() {
        let seconds = Duration::from_secs;
        let samples = [(0, 1024), (9, 2048), (10, 4096), (20, 8192), (30, 5120)]
            .map(|(moment, rss_kb)| (seconds(moment), rss_kb));
        let memory = of_samples(&samples, seconds(10)).unwrap();
        assert_eq!((memory.start_mb, memory.end_mb, memory.peak_mb), (4.0, 5.0, 8.0));
        assert!(of_samples(&[], seconds(0)).is_none());
    }

    #[test]
    fn a_process_is_sampled_until_the_end() {
        let watch = MemoryWatch::start(std::process::id(), Instant::now()).unwrap();
        // The watch must get a core for its first sample before it ends.
        std::thread::sleep(Duration::from_secs(2));
        assert!(watch.end(Duration::ZERO).unwrap().end_mb > 0.0);
    }
}
