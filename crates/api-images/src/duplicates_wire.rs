//! Requests and responses of searches for duplicates, which one server and a cluster share.

use base::{Error, ErrorKind, Result};
use image_features::features::BLOCK;
use image_features::settings::ImageKind;
use search::Metric;
use search::duplicates::{DuplicateOptions, DuplicateProgress, DuplicateState, THREADS_MAX};
use search::points::FetchedPoint;
use serde_json::{Value, json};

use super::limits::accept_score;

/// Default threshold of photographs whose keypoints are compared. Embeddings of a crop or a rotated
/// copy are less similar than those of two versions of one file.
const THRESHOLD_PHOTO: f32 = 0.75;
/// Default threshold of fingerprints, whose embeddings say little. So the nearest are always
/// compared.
const THRESHOLD_FINGERPRINT: f32 = -1.0;
/// Default threshold without keypoints.
const THRESHOLD_UNVERIFIED: f32 = 0.95;
/// Default rate in points per second.
const RATE_DEFAULT: u64 = 5000;

/// Body of the request that starts or continues a search for duplicates.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DuplicatesRequest {
    /// Minimum similarity of embeddings.
    threshold: Option<f32>,
    /// True to compare keypoints; `None` is true for images.
    verify: Option<bool>,
    /// Minimum score of a verified pair; `None` is the score of an accepted search result.
    score: Option<f32>,
    /// Maximum points per second; 0 means no limit.
    points_per_second: Option<u64>,
    /// True to discard an earlier result or an unfinished job.
    #[serde(default)]
    restart: bool,
}

impl DuplicatesRequest {
    /// Returns true to discard an earlier result or an unfinished job.
    pub fn restart(&self) -> bool {
        self.restart
    }

    /// Returns the options for a collection. `kind` is the kind of its images, or `None` if it
    /// holds only vectors.
    ///
    /// # Errors
    /// `InvalidArgument` for options that cannot work.
    pub fn options(&self, kind: Option<ImageKind>, metric: Metric) -> Result<DuplicateOptions> {
        let verify = self.verify.unwrap_or(kind.is_some());
        let accept = match (verify, kind) {
            (false, _) if self.score.is_some() => {
                return Err(Error::invalid("\"score\" has no effect without \"verify\""));
            }
            (false, _) => None,
            (true, Some(kind)) => Some(self.score.unwrap_or_else(|| accept_score(kind, 1))),
            (true, None) => {
                return Err(Error::invalid(
                    "\"verify\" needs images with keypoints, and this collection has only vectors",
                ));
            }
        };
        let usual = match kind {
            _ if !verify => THRESHOLD_UNVERIFIED,
            Some(ImageKind::Fingerprint) => THRESHOLD_FINGERPRINT,
            _ => THRESHOLD_PHOTO,
        };
        if self.threshold.is_none() && metric != Metric::Cosine {
            return Err(Error::invalid(
                "\"threshold\" is needed: the collection does not compare by cosines; give the least similarity in its metric",
            ));
        }
        let options = DuplicateOptions {
            threshold: self.threshold.unwrap_or(usual),
            accept,
            points_per_second: self.points_per_second.unwrap_or(RATE_DEFAULT),
            threads: background_threads().min(THREADS_MAX),
        };
        options.check(metric)?;
        Ok(options)
    }
}

/// Returns the number of threads of background work: searches keep at least half of the cores.
pub fn background_threads() -> usize {
    (super::pool::threads() / 2).max(1)
}

/// Returns the error for a job that runs already.
pub fn duplicates_running(name: &str) -> Error {
    Error::new(
        ErrorKind::AlreadyExists,
        format!("a search for duplicates of \"{name}\" is running; cancel it first"),
    )
}

/// Returns the error for a collection without a job.
pub fn no_duplicates(name: &str) -> Error {
    Error::not_found(format!(
        "there was no search for duplicates of \"{name}\"; start one with POST /v1/images/{name}/duplicates"
    ))
}

fn options_json(options: &DuplicateOptions) -> Value {
    json!({
        "threshold": options.threshold, "verify": options.accept.is_some(), "score": options.accept,
        "points_per_second": options.points_per_second,
    })
}

/// Returns the response of a request that starts a job on `total` points.
pub fn begun_json(options: &DuplicateOptions, total: u64) -> Value {
    json!({
        "state": "running", "done": 0, "total": total, "pairs": 0, "options": options_json(options),
    })
}

/// Returns the progress of a job. A job that is not `running` although its state says so was
/// interrupted.
pub fn progress_json(progress: &DuplicateProgress, running: bool) -> Value {
    let state = match progress.state {
        DuplicateState::Running if running => "running",
        // The server ended meanwhile.
        DuplicateState::Running => "interrupted",
        DuplicateState::Done => "done",
        DuplicateState::Cancelled => "cancelled",
        DuplicateState::Failed => "failed",
    };
    json!({
        "state": state, "done": progress.done, "total": progress.total, "candidates": progress.candidates,
        "refused": progress.refused, "pairs": progress.pairs, "unreadable": progress.unreadable,
        "seconds": (progress.seconds * 10.0).round() / 10.0, "error": progress.error,
        "options": options_json(&progress.options),
    })
}

/// Returns an image of a group, which needs the payload of its point.
pub(crate) fn duplicate_image(point: &FetchedPoint) -> Value {
    let block = point.payload.get(BLOCK);
    let of = |key: &str| block.and_then(|block| block.get(key)).cloned().unwrap_or_default();
    json!({ "id": point.id, "name": of("name"), "width": of("width"), "height": of("height") })
}
