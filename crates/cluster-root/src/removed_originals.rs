//! Removal of the originals of images: of removed points, and of points that a client deletes by
//! Qdrant's interface.
//!
//! The payloads of the points name the originals, so they are read before the deletion. An image
//! that is added again meanwhile has an original of its own.

use std::sync::Arc;
use std::time::Duration;

use api_images::{ImagesState, original_key, own_original};
use api_qdrant::json::{self, UpdateOperation};
use base::Result;
use cluster_node::CollectionRecord;
use search::points::PointId;
use serde_json::{Map, Value};
use tokio::task::JoinSet;

use super::call::RootContext;
use super::payload_sizes::{POINTS_AT_ONCE_MAX, selected_ids, stored};
use super::split::ShardOperations;
use super::state::RootState;

/// Start of the text of an operation that deletes points.
const DELETE: &str = "{\"delete\"";
/// Maximum images of a request whose originals are removed at the same time.
const REMOVALS_AT_ONCE_MAX: usize = 16;

/// Minimum age, by the clock of the store, at which an upload is over. Its point is then in the
/// log, or never will be.
const UPLOAD_OVER: Duration = Duration::from_secs(3600);
/// Number of timeouts of requests after which an upload is over: the upload's own, the timeout of
/// the removal, and one more.
const UPLOAD_TIMEOUTS: u32 = 3;

/// Originals of points that are about to be deleted.
#[derive(Default)]
pub(super) struct RemovedOriginals(Vec<RemovedOriginal>);

struct RemovedOriginal {
    id: PointId,
    /// Key of the original in the payload of the point.
    key: String,
}

impl RemovedOriginals {
    /// Returns true if the originals of deleted points are removed. The collection then holds
    /// images, and this node has their store.
    pub(super) fn are_removed(state: &RootState, record: &CollectionRecord) -> bool {
        record.images.is_some() && state.images().is_some()
    }

    /// Reads the originals of the points that operations by ids delete, with a strong read.
    ///
    /// # Errors
    /// `Unavailable` if a shard does not answer.
    pub(super) async fn read(
        context: &RootContext,
        record: &Arc<CollectionRecord>,
        split: &ShardOperations,
    ) -> Result<RemovedOriginals> {
        let mut originals = RemovedOriginals::default();
        if !RemovedOriginals::are_removed(&context.state, record) {
            return Ok(originals);
        }
        let deletions = split.values().flatten().filter(|text| text.starts_with(DELETE));
        let texts: Vec<String> = deletions.cloned().collect();
        let bytes = texts.iter().map(String::len).sum();
        let ids = context.compute(bytes, move || deleted_ids(&texts)).await?;
        for ids in ids.chunks(POINTS_AT_ONCE_MAX) {
            let points = stored(context, record, ids).await.map_err(|error| {
                error.context("the originals of the images to delete cannot be looked up")
            })?;
            for (id, payload) in &points {
                originals.add(*id, payload);
            }
        }
        Ok(originals)
    }

    /// Adds the original of a point, if it has one.
    pub(super) fn add(&mut self, id: PointId, payload: &Map<String, Value>) {
        if let Some(key) = original_key(payload) {
            self.0.push(RemovedOriginal { id, key: key.to_owned() });
        }
    }

    /// Removes the originals. The points are deleted in the log. Continues if the client
    /// disconnects.
    pub(super) async fn remove(self, state: &Arc<RootState>, record: &Arc<CollectionRecord>) {
        if self.0.is_empty() {
            return;
        }
        let state = state.clone();
        let record = record.clone();
        let removal = tokio::spawn(async move {
            let mut originals = self.0.into_iter();
            let mut running = JoinSet::new();
            loop {
                while running.len() < REMOVALS_AT_ONCE_MAX {
                    let Some(RemovedOriginal { id, key }) = originals.next() else { break };
                    let state = state.clone();
                    let record = record.clone();
                    running.spawn(async move {
                        delete_originals(&state, &record, &id, Some(key.as_str())).await;
                    });
                }
                if running.join_next().await.is_none() {
                    return;
                }
            }
        });
        // A panic is in the log, and the points are deleted.
        let _ = removal.await;
    }
}

/// Removes the original of a removed point, and the originals of its old uploads. `key` is `None`
/// for a point that names no original. It was written from features alone, or a client has removed
/// the key from its payload. The key of another image's original, which a client has copied, has no
/// effect.
pub async fn delete_originals(
    state: &RootState,
    record: &CollectionRecord,
    id: &PointId,
    key: Option<&str>,
) {
    let Some(images) = state.images() else {
        tracing::warn!(%id, "an original stays, as this node has no store of originals");
        return;
    };
    let space = record.originals_space();
    if let Some(key) = key.and_then(|key| own_original(id, &space, key)) {
        delete_original(images, &key).await;
    }
    // Only points of UUIDs have originals.
    if let PointId::Number(_) = id {
        return;
    }
    if let Err(error) = images.delete_uploads(&space, id, upload_over(state)).await {
        tracing::warn!(%id, %error, "old uploads of a removed image stay");
    }
}

/// Returns the age, by the clock of the store, at which an upload is over.
pub(super) fn upload_over(state: &RootState) -> Duration {
    UPLOAD_OVER.max(state.requests.limits.request_timeout * UPLOAD_TIMEOUTS)
}

/// Removes an original to which no point refers. A failure is logged, and the request succeeds.
pub async fn delete_original(images: &ImagesState, key: &str) {
    if let Err(error) = images.delete_original(key).await {
        tracing::warn!(key, %error, "an original stays without a point");
    }
}

/// Returns the ids in the texts of deletions.
///
/// # Errors
/// `InvalidArgument` for another text.
fn deleted_ids(texts: &[String]) -> Result<Vec<PointId>> {
    let mut ids = Vec::new();
    for text in texts {
        if let UpdateOperation::Delete(request) = json::parse(text.as_bytes())? {
            ids.extend(selected_ids(request.selection()?));
        }
    }
    Ok(ids)
}
