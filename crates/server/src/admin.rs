//! Loads and unloads models for a client, through the lifecycle's thread.

use std::time::Duration;

use base::{Error, Result};
use lifecycle::{Lifecycle, LoadSpec, RolloutAction};
use tokio::sync::oneshot;
use transport::access::{AdminRequest, Caller};

use crate::models::ModelsState;

/// Describes these calls in the errors of the access check.
const ADMIN_CALL: &str = "models are loaded and unloaded";

/// Describes the change of a rollout in the errors of the access check.
pub(crate) const ROLLOUT_CALL: &str = "rollouts are changed";

/// Longest wait for a load or unload. The work itself continues after that.
const ADMIN_TIMEOUT: Duration = Duration::from_secs(600);

/// Longest wait for a listing of the stores, and for the copies of changed files.
const LISTING_WAIT_MAX: Duration = Duration::from_secs(60);

/// Returns the request for `action` on `model`.
pub(crate) fn request<'a>(action: &'a str, model: &'a str, caller: Caller<'a>) -> AdminRequest<'a> {
    AdminRequest { calls: ADMIN_CALL, action, subject: model, caller }
}

/// Loads or reloads a model and waits until it serves. Models in object stores are listed first, so
/// that a version which was just uploaded is found.
///
/// # Errors
/// Returns the errors of the load, with its reason. Earlier versions then continue to serve.
pub(crate) async fn load(state: &ModelsState, name: &str, spec: LoadSpec) -> Result<()> {
    // If a store is slow, the load continues with the existing copies.
    let _ = state.listings.list(LISTING_WAIT_MAX).await;
    load_copied(&state.lifecycle, name, spec).await
}

/// Loads or reloads a model without a listing of its store.
///
/// # Errors
/// Returns the errors of [`load`].
pub(crate) async fn load_copied(lifecycle: &Lifecycle, name: &str, spec: LoadSpec) -> Result<()> {
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

/// Starts, promotes or withdraws a version, and waits until it has its new role.
///
/// # Errors
/// `NotFound` for an unknown model or version. `InvalidArgument` and `FailedPrecondition` for a
/// request that the state of the model does not allow. Also the errors of a load.
pub(crate) async fn rollout(
    lifecycle: &Lifecycle,
    name: &str,
    action: RolloutAction,
) -> Result<()> {
    let (sender, receiver) = oneshot::channel();
    lifecycle.rollout(name, action, Box::new(move |result| drop(sender.send(result))));
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
