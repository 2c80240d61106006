//! The slow requests that a server lists.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::sleep;
use std::time::Duration;

use base::{Error, Result};
use loadgen::process::ServerProcess;
use serde::Deserialize;

/// Time between two readings. The server keeps 256 requests.
const POLL: Duration = Duration::from_millis(500);

/// A slow request, as the server describes it.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct ListedRequest {
    number: u64,
    pub(super) time: f64,
    pub(super) model: String,
    #[serde(default)]
    pub(super) protocol: String,
    pub(super) total_ms: f64,
    pub(super) causes: Vec<ListedCause>,
}

/// A cause, as the server describes it.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct ListedCause {
    pub(super) cause: String,
}

#[derive(Deserialize)]
struct SlowPage {
    slow: Vec<ListedRequest>,
}

/// Slow requests that a server has listed so far, by number.
#[derive(Default)]
pub(super) struct SlowWatch(Mutex<BTreeMap<u64, ListedRequest>>);

impl SlowWatch {
    /// Reads until `stop`, and once more for the requests that were explained last.
    pub(super) fn run(&self, server: &ServerProcess, stop: &AtomicBool) -> Result<()> {
        loop {
            let last = stop.load(Ordering::Relaxed);
            sleep(POLL);
            self.read(server)?;
            if last {
                return Ok(());
            }
        }
    }

    fn read(&self, server: &ServerProcess) -> Result<()> {
        let text = server.page("/v2/slow")?;
        let page: SlowPage = serde_json::from_str(&text)
            .map_err(|error| Error::data_loss("/v2/slow").caused_by(error))?;
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        seen.extend(page.slow.into_iter().map(|slow| (slow.number, slow)));
        Ok(())
    }

    /// Returns every request that was listed.
    pub(super) fn seen(&self) -> Vec<ListedRequest> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }
}
