//! Changes of points and payloads. Each is durable before it is acknowledged.

use base::{Error, Result};
use protocol::qdrant::{self as wire, Operation, Selector, SetPayload, What};
use search::points::{NewPoint, PayloadChange, PointId, PointSelection};
use search::registry::{Named, Registry};
use serde::Serialize;

use super::convert::{self, Chosen};
use super::door::Place;

/// What became of a change.
#[derive(Serialize)]
pub(super) struct Updated {
    /// Grows with every change of the collection since the start.
    operation_id: u64,
    status: &'static str,
}

pub(super) fn updated(named: &Named) -> Updated {
    Updated { operation_id: named.generation(), status: "completed" }
}

pub(super) fn upsert(registry: &Registry, place: &Place, body: &[u8]) -> Result<Updated> {
    let named = registry.writing(&place.collection)?;
    write(&named, wire::parse(body)?)?;
    Ok(updated(&named))
}

pub(super) fn delete(registry: &Registry, place: &Place, body: &[u8]) -> Result<Updated> {
    let named = registry.writing(&place.collection)?;
    remove(&named, wire::parse(body)?)?;
    Ok(updated(&named))
}

pub(super) fn set_payload(registry: &Registry, place: &Place, body: &[u8]) -> Result<Updated> {
    let named = registry.writing(&place.collection)?;
    set(&named, wire::parse(body)?)?;
    Ok(updated(&named))
}

pub(super) fn overwrite_payload(registry: &Registry, place: &Place, body: &[u8]) -> Result<Updated> {
    let named = registry.writing(&place.collection)?;
    overwrite(&named, wire::parse(body)?)?;
    Ok(updated(&named))
}

pub(super) fn delete_payload(registry: &Registry, place: &Place, body: &[u8]) -> Result<Updated> {
    let named = registry.writing(&place.collection)?;
    delete_keys(&named, wire::parse(body)?)?;
    Ok(updated(&named))
}

pub(super) fn clear_payload(registry: &Registry, place: &Place, body: &[u8]) -> Result<Updated> {
    let named = registry.writing(&place.collection)?;
    clear(&named, wire::parse(body)?)?;
    Ok(updated(&named))
}

/// Several changes in order. Those before one that fails have been made.
pub(super) fn batch(registry: &Registry, place: &Place, body: &[u8]) -> Result<Vec<Updated>> {
    let named = registry.writing(&place.collection)?;
    let asked: wire::Operations = wire::parse(body)?;
    let mut done = Vec::new();
    for (at, operation) in asked.operations.into_iter().enumerate() {
        let made = match operation {
            Operation::Upsert(asked) => write(&named, asked),
            Operation::Delete(asked) => remove(&named, asked),
            Operation::SetPayload(asked) => set(&named, asked),
            Operation::OverwritePayload(asked) => overwrite(&named, asked),
            Operation::DeletePayload(asked) => delete_keys(&named, asked),
            Operation::ClearPayload(asked) => clear(&named, asked),
            Operation::UpdateVectors(never) | Operation::DeleteVectors(never) => match never {},
        };
        made.map_err(|error| error.context(format_args!("operations[{at}]")))?;
        done.push(updated(&named));
    }
    Ok(done)
}

fn write(named: &Named, asked: wire::Upsert) -> Result<()> {
    if crate::images::has_pictures(named) {
        return Err(Error::precondition(format!(
            "collection \"{}\" is one of pictures, and a point of it needs a picture's keypoints, which this interface \
             does not have; put pictures in by /v1/images. Payloads can be changed here",
            named.name()
        )));
    }
    let settings = named.settings();
    let mut points: Vec<(PointId, Vec<f32>, _)> = Vec::new();
    for wire::Point { id, vector, payload } in asked.points(&settings.vector_name)? {
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

fn remove(named: &Named, asked: Selector) -> Result<()> {
    match convert::chosen(named, &asked.what()?)? {
        Chosen::Ids(ids) => named.delete(&ids).map(drop),
        Chosen::Filter(clause) => named.delete_where(&clause).map(drop),
    }
}

fn set(named: &Named, mut asked: SetPayload) -> Result<()> {
    let what = asked.what()?;
    change(named, &what, &PayloadChange::Set { payload: asked.payload, key: asked.key })
}

fn overwrite(named: &Named, mut asked: SetPayload) -> Result<()> {
    let what = asked.what()?;
    change(named, &what, &PayloadChange::Overwrite(asked.payload))
}

fn delete_keys(named: &Named, mut asked: wire::DeletePayload) -> Result<()> {
    let what = asked.what()?;
    change(named, &what, &PayloadChange::DeleteKeys(asked.keys))
}

fn clear(named: &Named, asked: wire::ClearPayload) -> Result<()> {
    change(named, &asked.what()?, &PayloadChange::Clear)
}

fn change(named: &Named, what: &What, change: &PayloadChange) -> Result<()> {
    let chosen = convert::chosen(named, what)?;
    let which = match &chosen {
        Chosen::Ids(ids) => PointSelection::Ids(ids),
        Chosen::Filter(clause) => PointSelection::Filter(clause),
    };
    named.change_payload(which, change).map(drop)
}
