//! Snapshots of a collection: requests, and responses as messages.

use base::Result;
use http::Method;
use protocol::qdrant as pb;
use serde::Deserialize;

use crate::rest::{RestRequest, RestResponse, segment};
use crate::values;

fn path(collection: &str) -> String {
    format!("/collections/{}/snapshots", segment(collection))
}

pub(crate) fn create(message: pb::CreateSnapshotRequest) -> Result<RestRequest> {
    Ok(RestRequest::new(Method::POST, path(&message.collection_name)))
}

pub(crate) fn list(message: pb::ListSnapshotsRequest) -> Result<RestRequest> {
    Ok(RestRequest::new(Method::GET, path(&message.collection_name)))
}

pub(crate) fn delete(message: pb::DeleteSnapshotRequest) -> Result<RestRequest> {
    let path = path(&message.collection_name);
    let name = segment(&message.snapshot_name);
    Ok(RestRequest::new(Method::DELETE, format!("{path}/{name}")))
}

pub(crate) fn create_full(_: pb::CreateFullSnapshotRequest) -> Result<RestRequest> {
    Ok(RestRequest::new(Method::POST, "/snapshots".to_owned()))
}

pub(crate) fn list_full(_: pb::ListFullSnapshotsRequest) -> Result<RestRequest> {
    Ok(RestRequest::new(Method::GET, "/snapshots".to_owned()))
}

pub(crate) fn delete_full(message: pb::DeleteFullSnapshotRequest) -> Result<RestRequest> {
    let path = format!("/snapshots/{}", segment(&message.snapshot_name));
    Ok(RestRequest::new(Method::DELETE, path))
}

#[derive(Deserialize)]
struct SnapshotJson {
    name: String,
    creation_time: Option<String>,
    size: i64,
    checksum: Option<String>,
}

impl From<SnapshotJson> for pb::SnapshotDescription {
    fn from(snapshot: SnapshotJson) -> pb::SnapshotDescription {
        let SnapshotJson { name, creation_time, size, checksum } = snapshot;
        let creation_time = creation_time.as_deref().and_then(values::time);
        pb::SnapshotDescription { name, creation_time, size, checksum }
    }
}

pub(crate) fn created(response: &RestResponse<'_>) -> Result<pb::CreateSnapshotResponse> {
    let parsed = response.parse::<SnapshotJson>()?;
    let snapshot_description = Some(parsed.result.into());
    Ok(pb::CreateSnapshotResponse { snapshot_description, time: parsed.time })
}

pub(crate) fn listed(response: &RestResponse<'_>) -> Result<pb::ListSnapshotsResponse> {
    let parsed = response.parse::<Vec<SnapshotJson>>()?;
    let snapshot_descriptions = parsed.result.into_iter().map(Into::into).collect();
    Ok(pb::ListSnapshotsResponse { snapshot_descriptions, time: parsed.time })
}

pub(crate) fn deleted(response: &RestResponse<'_>) -> Result<pb::DeleteSnapshotResponse> {
    let parsed = response.parse::<bool>()?;
    Ok(pb::DeleteSnapshotResponse { time: parsed.time })
}
