//! The handle: starts the threads, passes requests to them, stops them.

use std::sync::Arc;
use std::time::Duration;

use base::{Error, Result};
use engine::Engine;
use memory::ParameterStore;

use crate::warmup::WarmupSource;
use crate::{Catalog, LifecycleConfig, ModelStatus, Observer};

/// What an administrator's load asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadSpec {
    /// Load again what is ready already, from the files as they are now.
    pub reload: bool,
    /// Load this version and keep it beside what the policy picks, until an unload or its directory goes.
    pub version: Option<u64>,
}

/// Is told how an administrator's request ended, on the `lifecycle` thread.
pub type Done = Box<dyn FnOnce(Result<()>) + Send>;

/// The running lifecycle.
pub struct Lifecycle {
    catalog: Arc<Catalog>,
}

impl Lifecycle {
    /// Starts the threads and the first look at the directories; returns at once.
    ///
    /// # Errors
    /// `InvalidArgument` for a configuration that cannot work, `Internal` when a thread cannot be started.
    pub fn start(
        _config: LifecycleConfig,
        _engines: Vec<Arc<dyn Engine>>,
        _store: Arc<ParameterStore>,
        _warmup: Arc<dyn WarmupSource>,
        _observer: Arc<dyn Observer>,
    ) -> Result<Arc<Lifecycle>> {
        Ok(Arc::new(Lifecycle { catalog: Arc::new(Catalog::default()) }))
    }

    /// The ready versions.
    pub fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    /// Every model and version, in order of name and number.
    pub fn status(&self) -> Vec<ModelStatus> {
        self.catalog.statuses()
    }

    /// Looks at the directories again and loads `name`, also where an administrator unloaded it or a version
    /// failed before. Returns at once; `done` is told when everything asked for is ready or has failed. A load
    /// that is under way already is joined.
    pub fn load(&self, _name: &str, _spec: LoadSpec, done: Done) {
        done(Err(Error::unavailable("the lifecycle is stopped")));
    }

    /// Unloads every version of `name` and keeps it down until the next load. Returns at once; `done` is told
    /// when the memory has been given back.
    pub fn unload(&self, _name: &str, done: Done) {
        done(Err(Error::unavailable("the lifecycle is stopped")));
    }

    /// Whether the first load is finished: everything chosen at start is ready or has failed, and the pool is
    /// backed. Stays true.
    pub fn settled(&self) -> bool {
        false
    }

    /// Waits for [`Lifecycle::settled`]; false when `timeout` passed first.
    pub fn wait_settled(&self, _timeout: Duration) -> bool {
        self.settled()
    }

    /// Stops loading, takes every version out of the catalogue, releases what is idle and joins the threads.
    /// Waits at most [`crate::SHUTDOWN_WAIT_MAX`] for requests that still run; what they hold then is left to
    /// the end of the process. May be called more than once.
    pub fn shutdown(&self) {}
}
