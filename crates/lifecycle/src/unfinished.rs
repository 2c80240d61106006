//! Stopped loads whose thread has not left the engine.
//!
//! A stopped load at idle priority ends for the `lifecycle` thread if it gets no processor time,
//! and at the latest after a minute. Its own thread may still be inside an engine, with the memory
//! of the load. Until it has left, the same version is not loaded a second time.

use std::time::SystemTime;

use base::{UtcTime, VersionId};
use os::background::LeftWork;
use parking_lot::Mutex;

/// Stopped loads whose thread has not left the engine.
#[derive(Default)]
pub(crate) struct UnfinishedLoads(Mutex<Vec<UnfinishedLoad>>);

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

    /// Returns why a version must not be loaded now; `None` if it may be.
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
