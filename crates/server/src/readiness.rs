//! Readiness of the server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base::{Error, Result};
use lifecycle::Lifecycle;
use tokio::sync::{Semaphore, watch};
use transport::access::{AccessPolicy, Caller, KeyRole, Operation};

use crate::first_copies::FirstCopies;

/// Maximum clients that follow the readiness at the same time. Each is a task until its client
/// disconnects.
pub(crate) const WATCHERS_MAX: usize = 1024;

/// Reason of a server whose models are not loaded yet.
const LOADING: &str = "the first load is not finished";

/// Models that must serve for the server to be ready.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadinessPolicy {
    /// Every model that should serve.
    #[default]
    All,
    /// At least one, if any should serve.
    Any,
    /// None: the server is ready while it runs.
    Server,
}

/// Knows if the server is ready for requests.
pub(crate) struct Readiness {
    lifecycle: Arc<Lifecycle>,
    policy: ReadinessPolicy,
    copies: FirstCopies,
    stopping: AtomicBool,
}

/// Reason why the server is not ready.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Unready {
    pub(crate) reason: String,
    /// The reason without names of models and stores.
    pub(crate) summary: String,
    /// Models that should serve and do not, with their reasons, in order of name.
    pub(crate) models: Vec<(Arc<str>, String)>,
}

impl Unready {
    /// Returns a reason that names no model.
    pub(crate) fn new(reason: String) -> Unready {
        Unready { summary: reason.clone(), reason, models: Vec::new() }
    }
}

impl Readiness {
    pub(crate) fn new(
        lifecycle: Arc<Lifecycle>,
        policy: ReadinessPolicy,
        copies: FirstCopies,
    ) -> Readiness {
        Readiness { lifecycle, policy, copies, stopping: AtomicBool::new(false) }
    }

    /// Checks that the models of the policy serve, and that the server is not stopping. A model
    /// whose old version serves while a new one failed counts as serving.
    ///
    /// # Errors
    /// `Unavailable` with the reason.
    pub(crate) fn check(&self) -> Result<()> {
        match self.unready() {
            None => Ok(()),
            Some(Unready { reason, .. }) => Err(Error::unavailable(reason)),
        }
    }

    /// Returns why the server is not ready, or `None` if it is.
    fn unready(&self) -> Option<Unready> {
        let catalog = self.lifecycle.catalog();
        if self.is_stopping() {
            return Some(Unready::new("the server is shutting down".to_owned()));
        }
        match self.policy {
            ReadinessPolicy::Server => return None,
            ReadinessPolicy::Any if catalog.serves() => return None,
            ReadinessPolicy::Any | ReadinessPolicy::All => {}
        }
        if !self.lifecycle.settled() {
            let copies = self.copies.reason();
            let reason = copies.unwrap_or_else(|| LOADING.to_owned());
            let summary = LOADING.to_owned();
            return Some(Unready { reason, summary, models: catalog.missing() });
        }
        let models = catalog.failures();
        let (name, why) = models.first()?;
        let others = match models.len() - 1 {
            0 => String::new(),
            count => format!("; GET /readyz names {count} more"),
        };
        let reason = format!("model \"{name}\" does not serve: {why}{others}");
        let summary = format!(
            "models that do not serve: {}; a request with a key of the role read gets their names",
            models.len()
        );
        Some(Unready { reason, summary, models })
    }

    /// Returns why the server is not ready, for a request of a probe. Probes need no key, so models
    /// and stores are named only if the request shows a key that may read, or if there are no keys.
    pub(crate) fn unready_for(&self, access: &AccessPolicy, caller: Caller<'_>) -> Option<Unready> {
        let unready = self.unready()?;
        // The names would show that a guessed key is right.
        if access.permits_caller(caller, &Operation::new(KeyRole::Read)) {
            Some(unready)
        } else {
            Some(Unready::new(unready.summary))
        }
    }

    /// Makes all further checks fail.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }
}

/// Clients that follow the readiness of the server or of a model.
pub(crate) struct ReadinessWatchers {
    /// Changes with the status of any model.
    pub(crate) changes: watch::Receiver<()>,
    /// One permit for each client.
    pub(crate) permits: Arc<Semaphore>,
}

impl ReadinessWatchers {
    pub(crate) fn new(changes: watch::Receiver<()>) -> ReadinessWatchers {
        ReadinessWatchers { changes, permits: Arc::new(Semaphore::new(WATCHERS_MAX)) }
    }
}
