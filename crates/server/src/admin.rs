//! Calls that change what is served: from loopback only unless allowed, handed to the control plane and awaited.

use std::time::Duration;

use base::{Error, Result};
use lifecycle::LoadSpec;
use tokio::sync::oneshot;

use crate::app::App;
use crate::listen::Peer;

/// Longest wait for a load or unload that a client asked for; the work itself goes on after that.
const ADMIN_TIMEOUT: Duration = Duration::from_secs(600);

/// Refuses strangers.
///
/// # Errors
/// `PermissionDenied` for a client that is not on this machine, unless remote admin is allowed.
pub(crate) fn allowed(app: &App, peer: Option<Peer>) -> Result<()> {
    if app.doors.allow_remote_admin || peer.is_some_and(Peer::is_loopback) {
        return Ok(());
    }
    Err(Error::denied(
        "models are loaded and unloaded from this machine only; start the server with --allow-remote-admin to change that",
    ))
}

/// Loads or reloads a model and waits until it serves.
///
/// # Errors
/// Those of the load, with its reason; what served before still does.
pub(crate) async fn load(app: &App, name: &str, spec: LoadSpec) -> Result<()> {
    let (sender, receiver) = oneshot::channel();
    app.lifecycle.load(name, spec, Box::new(move |result| drop(sender.send(result))));
    outcome(receiver).await
}

/// Unloads a model and waits until its last version is released.
///
/// # Errors
/// `NotFound` for a model that is not known.
pub(crate) async fn unload(app: &App, name: &str) -> Result<()> {
    let (sender, receiver) = oneshot::channel();
    app.lifecycle.unload(name, Box::new(move |result| drop(sender.send(result))));
    outcome(receiver).await
}

async fn outcome(receiver: oneshot::Receiver<Result<()>>) -> Result<()> {
    match tokio::time::timeout(ADMIN_TIMEOUT, receiver).await {
        Ok(Ok(result)) => result,
        Ok(Err(_)) => Err(Error::unavailable("the server is shutting down")),
        Err(_) => {
            Err(Error::deadline("it takes longer than ten minutes; it goes on, see the model's status"))
        }
    }
}
