//! Changes of points and payloads. Each is durable before it is acknowledged.

use base::{Error, Result};
use protocol::qdrant::{self as wire, PointsSelection, PointsSelector, SetPayload, UpdateOperation};
use search::points::{NewPoint, PayloadChange, PointId, PointSelection};
use search::registry::{NamedCollection, Registry};
use serde::Serialize;

use super::call::CallContext;
use super::convert::{self, PointChoice};

/// What became of a change.
#[derive(Serialize)]
pub(super) struct UpdateResponse {
    /// Grows with every change of the collection since the start.
    operation_id: u64,
    status: &'static str,
}

pub(super) fn updated(named: &NamedCollection) -> UpdateResponse {
    UpdateResponse { operation_id: named.generation(), status: "completed" }
}

pub(super) fn upsert(registry: &Registry, context: &CallContext, body: &[u8]) -> Result<UpdateResponse> {
    let named = registry.writing(&context.collection)?;
    write(&named, wire::parse(body)?)?;
    Ok(updated(&named))
}

pub(super) fn delete(registry: &Registry, context: &CallContext, body: &[u8]) -> Result<UpdateResponse> {
    let named = registry.writing(&context.collection)?;
    remove(&named, wire::parse(body)?)?;
    Ok(updated(&named))
}

pub(super) fn set_payload(registry: &Registry, context: &CallContext, body: &[u8]) -> Result<UpdateResponse> {
    let named = registry.writing(&context.collection)?;
    set(&named, wire::parse(body)?)?;
    Ok(updated(&named))
}

pub(super) fn overwrite_payload(
    registry: &Registry,
    context: &CallContext,
    body: &[u8],
) -> Result<UpdateResponse> {
    let named = registry.writing(&context.collection)?;
    overwrite(&named, wire::parse(body)?)?;
    Ok(updated(&named))
}

pub(super) fn delete_payload(
    registry: &Registry,
    context: &CallContext,
    body: &[u8],
) -> Result<UpdateResponse> {
    let named = registry.writing(&context.collection)?;
    delete_keys(&named, wire::parse(body)?)?;
    Ok(updated(&named))
}

pub(super) fn clear_payload(
    registry: &Registry,
    context: &CallContext,
    body: &[u8],
) -> Result<UpdateResponse> {
    let named = registry.writing(&context.collection)?;
    clear(&named, wire::parse(body)?)?;
    Ok(updated(&named))
}

/// Several changes in order. Those before one that fails have been made.
pub(super) fn batch(registry: &Registry, context: &CallContext, body: &[u8]) -> Result<Vec<UpdateResponse>> {
    let named = registry.writing(&context.collection)?;
    let request: wire::UpdateBatch = wire::parse(body)?;
    let mut done = Vec::new();
    for (at, operation) in request.operations.into_iter().enumerate() {
        let made = match operation {
            UpdateOperation::Upsert(request) => write(&named, request),
            UpdateOperation::Delete(request) => remove(&named, request),
            UpdateOperation::SetPayload(request) => set(&named, request),
            UpdateOperation::OverwritePayload(request) => overwrite(&named, request),
            UpdateOperation::DeletePayload(request) => delete_keys(&named, request),
            UpdateOperation::ClearPayload(request) => clear(&named, request),
            UpdateOperation::UpdateVectors(never) | UpdateOperation::DeleteVectors(never) => match never {},
        };
        made.map_err(|error| error.context(format_args!("operations[{at}]")))?;
        done.push(updated(&named));
    }
    Ok(done)
}

fn write(named: &NamedCollection, request: wire::UpsertRequest) -> Result<()> {
    if crate::images::has_pictures(named) {
        return Err(Error::precondition(format!(
            "collection \"{}\" is one of pictures, and a point of it needs a picture's keypoints, which this interface \
             does not have; put pictures in by /v1/images. Payloads can be changed here",
            named.name()
        )));
    }
    let settings = named.settings();
    let mut points: Vec<(PointId, Vec<f32>, _)> = Vec::new();
    for wire::UpsertPoint { id, vector, payload } in request.points(&settings.vector_name)? {
        let vector = convert::embedding(&settings, vector)
            .map_err(|error| error.context(format_args!("point {id}")))?;
        points.push((convert::point_id(id)?, vector, payload));
    }
    let new: Vec<NewPoint<'_>> = points
        .iter()
        .map(|(id, embedding, payload)| NewPoint { id: *id, embedding, record: &[], payload })
        .collect();
    if new.is_empty() { Ok(()) } else { named.upsert(&new) }
}

fn remove(named: &NamedCollection, request: PointsSelector) -> Result<()> {
    match convert::chosen(named, &request.selection()?)? {
        PointChoice::Ids(ids) => named.delete(&ids).map(drop),
        PointChoice::Filter(clause) => named.delete_where(&clause).map(drop),
    }
}

fn set(named: &NamedCollection, mut request: SetPayload) -> Result<()> {
    let selection = request.selection()?;
    change(named, &selection, &PayloadChange::Set { payload: request.payload, key: request.key })
}

fn overwrite(named: &NamedCollection, mut request: SetPayload) -> Result<()> {
    let selection = request.selection()?;
    change(named, &selection, &PayloadChange::Overwrite(request.payload))
}

fn delete_keys(named: &NamedCollection, mut request: wire::DeletePayload) -> Result<()> {
    let selection = request.selection()?;
    change(named, &selection, &PayloadChange::DeleteKeys(request.keys))
}

fn clear(named: &NamedCollection, request: wire::PointsSelector) -> Result<()> {
    change(named, &request.selection()?, &PayloadChange::Clear)
}

fn change(named: &NamedCollection, selection: &PointsSelection, change: &PayloadChange) -> Result<()> {
    let chosen = convert::chosen(named, selection)?;
    let which = match &chosen {
        PointChoice::Ids(ids) => PointSelection::Ids(ids),
        PointChoice::Filter(clause) => PointSelection::Filter(clause),
    };
    named.change_payload(which, change).map(drop)
}
