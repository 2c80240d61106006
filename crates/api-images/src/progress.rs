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

/// Returns the name of a running rebuild that excludes one of `name`. A rebuild excludes others of
/// its name. It also excludes others that fill the version of the same `model` with originals in
/// the directory `space`. Each of them would remove the images that its own old version does not
/// have.
pub(crate) fn excluding<'a>(
    all: &'a BTreeMap<String, Arc<Rebuild>>,
    name: &str,
    space: &str,
    model: &str,
) -> Option<&'a str> {
    let mut running = all.iter().filter(|(_, rebuild)| rebuild.running());
    let found = running.find(|(other, rebuild)| {
        other.as_str() == name || (rebuild.space == space && rebuild.model == model)
    });
    found.map(|(other, _)| other.as_str())
}

pub(crate) struct Rebuild {
    pub(crate) from: String,
    /// Directory of the originals, which the versions of a collection share.
    pub(crate) space: String,
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

    /// Returns the progress, the state and up to ten failures as JSON.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_rebuild_at_a_time_fills_a_version() {
        let rebuild = Rebuild {
            from: "photos.v1".to_owned(),
            space: "photos".to_owned(),
            to: Mutex::default(),
            model: "new".to_owned(),
            switch: false,
            max_failed: 0,
            total: AtomicU64::new(0),
            done: AtomicU64::new(0),
            ended: Mutex::default(),
            failures: Mutex::default(),
        };
        let rebuild = Arc::new(rebuild);
        let all = BTreeMap::from([("photos".to_owned(), rebuild.clone())]);
        let other = |name, space, model| excluding(&all, name, space, model);
        assert_eq!(other("photos", "photos", "another"), Some("photos"));
        // By the own name of the same version, or of another old version.
        assert_eq!(other("photos.v1", "photos", "new"), Some("photos"));
        assert_eq!(other("photos.v2", "photos", "new"), Some("photos"));
        assert_eq!(other("photos.v2", "photos", "another"), None);
        assert_eq!(other("prints", "prints", "new"), None);
        *rebuild.ended.lock() = Some(Ok(false));
        assert_eq!(other("photos.v1", "photos", "new"), None);
    }
}
