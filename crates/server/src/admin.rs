//! Loads and unloads models for a client, through the lifecycle's thread.

use std::time::Duration;

use base::{Error, Result};
use lifecycle::{Lifecycle, LoadSpec};
use tokio::sync::oneshot;

/// Describes these calls in the errors of the access check.
pub(crate) const ADMIN_CALL: &str = "models are loaded and unloaded";

/// Longest wait for a load or unload. The work itself continues after that.
const ADMIN_TIMEOUT: Duration = Duration::from_secs(600);

/// Loads or reloads a model and waits until it serves.
///
/// # Errors
/// Returns the errors of the load, with its reason. Earlier versions then continue to serve.
pub(crate) async fn load(lifecycle: &Lifecycle, name: &str, spec: LoadSpec) -> Result<()> {
    let (sender, receiver) = oneshot::channel();
    lifecycle.load(name, spec, Box::new(move |result| drop(sender.send(result))));
    outcome(receiver).await
}

/// Unloads a model and waits until its last version is released.
///
/// # Errors
/// `NotFound` for an unknown model.
pub(crate) async fn unload(lifecycle: &Lifecycle, name: &str) -> Result<()> {
    let (sender, receiver) = oneshot::channel();
    lifecycle.unload(name, Box::new(move |result| drop(sender.send(result))));
    outcome(receiver).await
}

async fn outcome(receiver: oneshot::Receiver<Result<()>>) -> Result<()> {
    match tokio::time::timeout(ADMIN_TIMEOUT, receiver).await {
        Ok(Ok(result)) => result,
        Ok(Err(_)) => Err(Error::unavailable("the server is shutting down")),
        Err(_) => Err(Error::deadline(
            "it takes longer than ten minutes and continues; see the model's status",
        )),
    }
}
