//! Progress of rebuilds.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base::{Error, Result};
use parking_lot::{Mutex, MutexGuard};
use serde_json::{Value, json};

/// Running and ended rebuilds by the requested name.
#[derive(Default)]
pub(crate) struct Rebuilds {
    all: Mutex<BTreeMap<String, Arc<Rebuild>>>,
}

impl Rebuilds {
    pub(crate) fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Rebuild>>> {
        self.all.lock()
    }

    /// Returns the progress of the rebuild of a name.
    ///
    /// # Errors
    /// `NotFound` if there was none since the server's start.
    pub(crate) fn progress(&self, name: &str) -> Result<Value> {
        let rebuild = self.lock().get(name).cloned();
        let rebuild = rebuild.ok_or_else(|| {
            Error::not_found(format!(
                "\"{name}\" is not being rebuilt; start it with POST /v1/images/{name}/rebuild"
            ))
        })?;
        Ok(rebuild.to_json())
    }
}

pub(crate) struct Rebuild {
    pub(crate) from: String,
    pub(crate) to: Mutex<Option<String>>,
    pub(crate) model: String,
    pub(crate) switch: bool,
    /// Maximum images that may fail.
    pub(crate) max_failed: usize,
    pub(crate) total: AtomicU64,
    pub(crate) done: AtomicU64,
    pub(crate) ended: Mutex<Option<Result<bool>>>,
    pub(crate) failures: Mutex<BTreeMap<String, String>>,
}

impl Rebuild {
    pub(crate) fn running(&self) -> bool {
        self.ended.lock().is_none()
    }

    pub(crate) fn to_json(&self) -> Value {
        let (state, error) = match &*self.ended.lock() {
            None => ("running", None),
            Some(Ok(true)) => ("switched", None),
            Some(Ok(false)) => ("done", None),
            Some(Err(error)) => ("failed", Some(error.message().to_owned())),
        };
        let failures = self.failures.lock();
        json!({
            "state": state, "from": self.from, "to": *self.to.lock(), "model": self.model, "switch": self.switch,
            "max_failed": self.max_failed, "total": self.total.load(Ordering::Relaxed), "done": self.done.load(Ordering::Relaxed),
            "failed": failures.len(), "failures": failures.iter().take(10).collect::<BTreeMap<_, _>>(), "error": error,
        })
    }
}
