//! Removal of collections. A task in the background removes their originals.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use base::{Error, Result};
use image_features::collection::ImageCollection;
use search::registry::Registry;
use tokio::runtime::Handle;

use super::originals::StoredOriginal;
use super::removal::{remove_listed, remove_unnamed};
use super::removed_collections::PendingRemoval;
use super::services::ImageServices;
use super::unused_originals;

/// Maximum time that a removal waits for the time of the store.
const STORE_TIME_WAIT_MAX: Duration = Duration::from_secs(10);

/// Removes a collection. Its originals that no other version names are removed in the background,
/// also after a restart.
///
/// # Errors
/// `ResourceExhausted` if too many removals wait or the threads for images are busy; the errors of
/// [`Registry::remove`].
pub(crate) async fn remove_collection(
    services: &Arc<ImageServices>,
    registry: Arc<Registry>,
    target: ImageCollection,
) -> Result<()> {
    let refused = |_: &Error| services.count_refusal("image_removals_max");
    services.removed.check_room().inspect_err(refused)?;
    let space = target.space.clone();
    let own = services.clone();
    let removal = services.pool.run(move || own.removed.remove(&registry, &target)).await?;
    let until = store_time(services, &space).await;
    let own = services.clone();
    let added = tokio::task::spawn_blocking(move || own.removed.add_removed(removal, until)).await;
    start(services, &Handle::current());
    added.map_err(|error| Error::internal("a removal ended early").caused_by(error))?
}

/// Continues the removals that the last process has not finished. They and all later removals run
/// on `runtime`. Reports directories of originals that belong to no collection.
pub(crate) fn resume(services: &Arc<ImageServices>, runtime: &Handle) {
    // Called once, so the runtime is not set yet.
    let _ = services.removal_runtime.set(runtime.clone());
    services.removed.read();
    start(services, runtime);
    runtime.spawn(unused_originals::report(services.clone()));
}

/// Returns the time of the store's clock, or `None` if the store does not answer in time. A
/// collection can be removed while its store of originals does not answer.
async fn store_time(services: &ImageServices, space: &str) -> Option<SystemTime> {
    let time = tokio::time::timeout(STORE_TIME_WAIT_MAX, services.originals.now(space)).await;
    let time = time.unwrap_or_else(|_| Err(Error::unavailable("the store does not answer")));
    time.inspect_err(|error| {
        tracing::warn!(space, %error, "the store did not return its time: originals that are written before it answers are removed too");
    })
    .ok()
}

/// Records originals in the directory `space` that no image names and that could not be removed.
/// They are removed in the background, also after a restart. `runtime` is the one of the caller.
pub(crate) fn check_later(
    services: &Arc<ImageServices>,
    runtime: &Handle,
    space: &str,
    originals: &[StoredOriginal],
) {
    services.removed.check_later(space, originals);
    start(services, runtime);
}

/// Starts the task that removes originals, unless the task is running.
fn start(services: &Arc<ImageServices>, caller: &Handle) {
    if !services.removed.begin() {
        return;
    }
    let runtime = services.removal_runtime.get().unwrap_or(caller);
    let own = services.clone();
    runtime.spawn(async move { run(&own).await });
}

/// Removes the originals of all removed collections.
async fn run(services: &Arc<ImageServices>) {
    loop {
        let now = Instant::now();
        let Some(mut removal) = services.removed.first_due(now) else { return };
        let wait = removal.due.saturating_duration_since(now);
        if !wait.is_zero() {
            // The wait ends early for a new removal, which is due at once.
            services.removed.wait_for_removal(wait).await;
            continue;
        }
        match run_removal(services, &mut removal).await {
            Ok(()) => end(services, removal).await,
            Err(error) => services.removed.delay(removal, &error),
        }
    }
}

/// Ends a removal. If that fails, the originals are checked again later.
async fn end(services: &Arc<ImageServices>, removal: PendingRemoval) {
    let own = services.clone();
    let done = removal.clone();
    let ended = tokio::task::spawn_blocking(move || own.removed.end(&done)).await;
    if let Err(error) = ended {
        let error = Error::internal("the record of a removal was not removed").caused_by(error);
        services.removed.delay(removal, &error);
    }
}

/// Removes the originals of a removal that no image names. A task of its own does it, because a
/// panic must not end the removals of other collections.
///
/// # Errors
/// As [`remove_unnamed`]; the errors of the clock of the store.
async fn run_removal(services: &Arc<ImageServices>, removal: &mut PendingRemoval) -> Result<()> {
    let own = services.clone();
    let space = removal.record.space.clone();
    let task = match removal.record.originals.clone() {
        Some(originals) => {
            tokio::spawn(async move { remove_listed(&own, &space, originals).await })
        }
        None => {
            let until = removal_time(services, removal).await?;
            tokio::spawn(async move { remove_unnamed(&own, &space, until).await })
        }
    };
    task.await
        .map_err(|error| Error::internal("the removal of originals ended early").caused_by(error))?
}

/// Returns the time of a removal. Sets and records the time of a removal that has none, so that a
/// later attempt does not remove originals that were copied back meanwhile.
///
/// # Errors
/// Returns the errors of the store of originals; the errors of [`record_time`].
async fn removal_time(
    services: &Arc<ImageServices>,
    removal: &mut PendingRemoval,
) -> Result<SystemTime> {
    if let Some(until) = removal.record.until {
        return Ok(until);
    }
    let until = services.originals.now(&removal.record.space).await?;
    removal.record.until = Some(until);
    record_time(services, removal.clone()).await?;
    Ok(until)
}

/// Writes the time of a removal into its record.
///
/// # Errors
/// `Internal` if the work panics or the server ends.
async fn record_time(services: &Arc<ImageServices>, removal: PendingRemoval) -> Result<()> {
    let own = services.clone();
    let work = move || own.removed.record_time(removal.file.as_deref(), &removal.record);
    let recorded = tokio::task::spawn_blocking(work).await;
    recorded.map_err(|error| {
        Error::internal("the record of a removal was not written").caused_by(error)
    })
}
