//! Stopped loads whose thread has not left the engine.
//!
//! A load that was stopped, or took too long, ends for the `lifecycle` thread after a minute at the
//! latest. It ends at once if it gets no processor time. Its own thread may still be inside an
//! engine, with the memory of the load. Until it has left, the same version is not loaded a second
//! time. After [`UNFINISHED_MAX`] such loads, no version is loaded.

use std::time::SystemTime;

use base::{Error, Result, UtcTime, VersionId};
use os::background::LeftWork;
use parking_lot::Mutex;

/// Maximum stopped loads that have not ended. Each keeps a thread and its memory. A few more can
/// exist if several load threads stop a load at the same time.
pub(crate) const UNFINISHED_MAX: usize = 8;

/// Stopped loads whose thread has not left the engine.
#[derive(Default)]
pub(crate) struct UnfinishedLoads(Mutex<Vec<UnfinishedLoad>>);

/// A stopped load whose thread has not ended.
struct UnfinishedLoad {
    id: VersionId,
    began: SystemTime,
    work: LeftWork,
}

impl UnfinishedLoads {
    /// Adds a load that began at `began`, and logs it.
    pub(crate) fn add(&self, id: VersionId, began: SystemTime, work: LeftWork) {
        let load = UnfinishedLoad { id, began, work };
        load.log("its load was stopped, but its thread has not ended; the version waits for that");
        let mut loads = self.0.lock();
        loads.retain(UnfinishedLoad::runs);
        loads.push(load);
    }

    /// Checks that another load may begin.
    ///
    /// # Errors
    /// `ResourceExhausted` with the remedy if [`UNFINISHED_MAX`] loads have not ended.
    pub(crate) fn check_room(&self) -> Result<()> {
        let mut loads = self.0.lock();
        loads.retain(UnfinishedLoad::runs);
        if loads.len() < UNFINISHED_MAX {
            return Ok(());
        }
        let ids: Vec<String> = loads.iter().map(|load| load.id.to_string()).collect();
        Err(Error::exhausted(format!(
            "no model is loaded, because {} loads were stopped and have not ended ({}); restart the \
             server",
            ids.len(),
            ids.join(", ")
        )))
    }

    /// Returns why a version must not be loaded now, or `None` if it may be.
    pub(crate) fn reason(&self, id: &VersionId) -> Option<String> {
        let loads = self.0.lock();
        let load = loads.iter().find(|load| load.id == *id && load.runs())?;
        let began = UtcTime::of(load.began);
        Some(format!(
            "a load of it from {began} was stopped and has not ended; waiting for its end"
        ))
    }

    /// Logs every load that ends with the process.
    pub(crate) fn log_all(&self) {
        let loads = self.0.lock();
        for load in loads.iter().filter(|load| load.runs()) {
            load.log("its load has not ended; it ends with the process");
        }
    }
}

impl UnfinishedLoad {
    fn runs(&self) -> bool {
        !self.work.ended()
    }

    fn log(&self, text: &str) {
        let VersionId { model, version } = &self.id;
        let seconds = self.began.elapsed().unwrap_or_default().as_secs();
        tracing::warn!(%model, version, seconds, "{text}");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use os::background::{Attempt, BackgroundRunner, WorkTimeLimit};

    use super::*;

    #[test]
    fn too_many_unfinished_loads_refuse_others() {
        let loads = UnfinishedLoads::default();
        let end = Arc::new(AtomicBool::new(false));
        let limit = WorkTimeLimit { max: Duration::ZERO, remedy: "" };
        for version in (0..).take(UNFINISHED_MAX) {
            assert!(loads.check_room().is_ok());
            let ended = end.clone();
            let work = move |_: &Attempt| {
                while !ended.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Ok(())
            };
            let mut runner =
                BackgroundRunner::new("test", "testing", Duration::MAX).with_limit(limit);
            assert!(runner.run_ordinary("a load", &Arc::default(), work).is_err());
            let id = VersionId { model: "m".into(), version };
            loads.add(id, SystemTime::now(), runner.take_left().unwrap());
        }
        let refusal = loads.check_room().unwrap_err();
        assert!(refusal.is_retryable());
        let message = refusal.message();
        assert!(message.contains("8 loads were stopped and have not ended (m/0, m/1, "));
        assert!(message.ends_with("restart the server"), "{message}");
        end.store(true, Ordering::Relaxed);
        while loads.check_room().is_err() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
