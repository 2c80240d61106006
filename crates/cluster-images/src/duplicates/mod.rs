//! Duplicates of a whole collection: starts, watches and cancels the job, and returns its groups.
//!
//! The job runs on the root that got the request ([`job`]). It walks the shards one after the
//! other, in the order of internal ids. It sends each page of embeddings to the holders of all
//! shards, which return the neighbours above the threshold, and keeps the nearest of all. The
//! holders of the neighbours compare the keypoints with records that the root reads first. Holders
//! do all of this at low priority, with turns and times of their own.
//!
//! # Store
//! The job is a list of numbered steps in the object store ([`steps`]), so any root shows it,
//! cancels it or continues it. A step is created only if it is absent. A root that cannot create
//! the next step has lost the job to another one, and ends.

mod collection_job;
mod groups;
mod job;
mod merge;
mod observer;
mod pairs;
mod steps;

use api_images::{DuplicatesRequest, begun_json, duplicates_running, progress_json};
use base::{Error, Result};
use cluster_root::collections;
use cluster_root::reads::count_points;
use http::StatusCode;
use search::duplicates::DuplicateState;
use serde_json::json;
use transport::Reply;

use self::collection_job::{CollectionJob, RETRY_AFTER};
pub(super) use self::groups::groups;
use self::job::{ClusterJob, JobStart};
use self::steps::{JobStep, StoredStep};
use super::call::{ImageCall, NoRouteParams};

/// Maximum attempts to create the next step while another root creates steps too.
const ATTEMPTS_MAX: u32 = 10;

/// Starts or continues the job of a collection.
pub(super) async fn begin(mut call: ImageCall) -> Result<Reply> {
    call.query.route_parameters::<NoRouteParams>()?;
    let request: DuplicatesRequest = call.json().await?;
    let _admitted = call.admit()?;
    let job = CollectionJob::open(&call)?;
    let name = &job.record.name;
    let images = job.record.images.as_ref();
    images.map_or(Ok(()), |images| images.check_embeddings(name))?;
    let kind = images.map(|images| images.kind);
    let settings = collections::settings(&job.record)?;
    let options = request.options(kind, settings.metric)?;
    let newest = job.steps.newest().await?;
    if job.local_job().is_some()
        || newest.as_ref().is_some_and(|newest| job.runs(&newest.step, None))
    {
        return Err(duplicates_running(name));
    }
    let permit = job.permit().await?;
    let total = count_points(&call.context, &job.record, &json!({})).await?.count;
    let number = newest.as_ref().map_or(0, |newest| newest.number) + 1;
    let earlier = newest.map(|newest| newest.step).filter(|step| !step.removed);
    let continued =
        earlier.clone().filter(|step| !request.restart() && step.progress.continues(&options));
    let obsolete = match continued {
        Some(_) => Vec::new(),
        None => earlier.map(|step| step.parts).unwrap_or_default(),
    };
    let mut step = continued.unwrap_or_else(|| JobStep::new(options));
    step.progress.start(options, total);
    job.sign(&mut step);
    let registered = job.state.duplicates.insert(&job.record.id, &step.run);
    let Some(registered) = registered else { return Err(duplicates_running(name)) };
    if !job.steps.append(number, &step).await? {
        // Another root was faster.
        return Err(duplicates_running(name));
    }
    job.steps.remove_before(number).await;
    job.steps.remove_parts(obsolete).await;
    let CollectionJob { state, record, steps } = job;
    let start = JobStart { dims: settings.dims, number, step };
    ClusterJob::new(state.root.clone(), record, steps, start, registered, permit).spawn();
    let begun = Reply::json(begun_json(&options, total).to_string());
    Ok(begun.with_status(StatusCode::ACCEPTED))
}

/// Returns the progress of the job of a collection.
pub(super) async fn progress(call: ImageCall) -> Result<Reply> {
    call.query.route_parameters::<NoRouteParams>()?;
    let _admitted = call.admit()?;
    let job = CollectionJob::open(&call)?;
    let own = job.local_job();
    if let Some(progress) = own.as_ref().and_then(|own| own.progress()) {
        return Ok(Reply::json(progress_json(&progress, true).to_string()));
    }
    let step = job.newest().await?.step;
    let runs = job.runs(&step, own.as_deref());
    Ok(Reply::json(progress_json(&step.progress, runs).to_string()))
}

/// Cancels the running job of a collection, or removes the result of an ended one.
pub(super) async fn cancel(call: ImageCall) -> Result<Reply> {
    call.query.route_parameters::<NoRouteParams>()?;
    let _admitted = call.admit()?;
    let job = CollectionJob::open(&call)?;
    let name = &job.record.name;
    if let Some(own) = job.local_job() {
        own.stop();
        return Ok(Reply::json(json!({ "cancelled": name }).to_string()));
    }
    for _ in 0..ATTEMPTS_MAX {
        let StoredStep { number, mut step } = job.newest().await?;
        let cancels = job.runs(&step, None);
        let parts = step.parts.clone();
        if cancels {
            // The root that runs it cannot create its next step, and ends.
            step.progress.state = DuplicateState::Cancelled;
        } else {
            step.removed = true;
            step.parts.clear();
            step.pending.clear();
        }
        job.sign(&mut step);
        if !job.steps.append(number + 1, &step).await? {
            continue;
        }
        job.steps.remove_before(number + 1).await;
        if cancels {
            return Ok(Reply::json(json!({ "cancelled": name }).to_string()));
        }
        job.steps.remove_parts(parts).await;
        return Ok(Reply::json(json!({ "deleted": name }).to_string()));
    }
    let message = "another root changes the search for duplicates at this moment; try again";
    Err(Error::unavailable(message).with_retry_after(RETRY_AFTER))
}
