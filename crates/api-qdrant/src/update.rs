//! Changes of points and payloads. Each is durable before its response.

use crate::json::{self, DeletePayload, PointsSelector, SetPayload, UpdateOperation};
use base::{Error, ErrorKind, Result};
use search::collection::PointParts;
use search::filter::Filter;
use search::points::{NewPoint, PayloadChange, PointId, PointSelection, VectorChange};
use search::registry::{NamedCollection, Registry};
use serde::Serialize;

use crate::call::CallContext;
use crate::filters;
use crate::image_block::keep_image_block;
use crate::retrieve::CHUNK;
use crate::scores;

/// Names of the operations of a log. [`apply_operation`] refuses all other names. A change of the
/// form of an operation needs a new name. A holder of an earlier version stops at a name that it
/// does not know. It would skip a known operation with members that it does not know.
const OPERATION_NAMES: [&str; 8] = [
    "upsert",
    "delete",
    "set_payload",
    "overwrite_payload",
    "delete_payload",
    "clear_payload",
    "update_vectors",
    "delete_vectors",
];
/// Operation of Qdrant that this version knows and refuses.
const UNMADE_OPERATION: &str = "delete_vectors";
/// Maximum characters of the name of an operation.
const OPERATION_NAME_CHARS_MAX: usize = 64;

/// Effect of ids without a point on a change of points.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AbsentPoints {
    /// The change fails after the other points are changed.
    Refused,
    /// Ids without a point have no effect.
    Ignored,
}

impl AbsentPoints {
    /// Returns the effect in a request. As in Qdrant, the error is for clients that wait.
    fn of(context: &CallContext) -> AbsentPoints {
        if context.wait { AbsentPoints::Refused } else { AbsentPoints::Ignored }
    }
}

/// The outcome of a change.
#[derive(Serialize)]
pub(crate) struct UpdateResponse {
    /// Generation of the collection, which grows with every change since the start.
    operation_id: u64,
    status: &'static str,
}

pub(crate) fn updated(named: &NamedCollection) -> UpdateResponse {
    UpdateResponse { operation_id: named.generation(), status: "completed" }
}

pub(crate) fn upsert(
    registry: &Registry,
    context: &CallContext,
    body: &[u8],
) -> Result<UpdateResponse> {
    let named = registry.writing(&context.collection)?;
    write(&named, context, json::parse(body)?)?;
    Ok(updated(&named))
}

pub(crate) fn delete(
    registry: &Registry,
    context: &CallContext,
    body: &[u8],
) -> Result<UpdateResponse> {
    let named = registry.writing(&context.collection)?;
    let request = json::parse(body)?;
    if context.images.holds_images(&named) {
        drop(named);
        return remove_images(registry, context, request);
    }
    remove(&named, request)?;
    Ok(updated(&named))
}

pub(crate) fn set_payload(
    registry: &Registry,
    context: &CallContext,
    body: &[u8],
) -> Result<UpdateResponse> {
    let named = registry.writing(&context.collection)?;
    set(&named, json::parse(body)?, AbsentPoints::of(context))?;
    Ok(updated(&named))
}

pub(crate) fn overwrite_payload(
    registry: &Registry,
    context: &CallContext,
    body: &[u8],
) -> Result<UpdateResponse> {
    let named = registry.writing(&context.collection)?;
    let request: SetPayload = json::parse(body)?;
    request.check_overwrite()?;
    overwrite(&named, request, AbsentPoints::of(context))?;
    Ok(updated(&named))
}

pub(crate) fn delete_payload(
    registry: &Registry,
    context: &CallContext,
    body: &[u8],
) -> Result<UpdateResponse> {
    let named = registry.writing(&context.collection)?;
    delete_keys(&named, json::parse(body)?, AbsentPoints::of(context))?;
    Ok(updated(&named))
}

pub(crate) fn clear_payload(
    registry: &Registry,
    context: &CallContext,
    body: &[u8],
) -> Result<UpdateResponse> {
    let named = registry.writing(&context.collection)?;
    clear(&named, json::parse(body)?, AbsentPoints::of(context))?;
    Ok(updated(&named))
}

pub(crate) fn update_vectors(
    registry: &Registry,
    context: &CallContext,
    body: &[u8],
) -> Result<UpdateResponse> {
    let named = registry.writing(&context.collection)?;
    replace_vectors(&named, context, json::parse(body)?)?;
    Ok(updated(&named))
}

/// Refuses to delete vectors, because each point has its vector.
///
/// # Errors
/// `Unimplemented`; `NotFound` for a collection that does not exist.
pub(crate) fn delete_vectors(
    registry: &Registry,
    context: &CallContext,
    _: &[u8],
) -> Result<UpdateResponse> {
    registry.writing(&context.collection)?;
    Err(json::no_deleted_vectors())
}

/// Makes changes in order. If one fails, the changes before it stay. The deadline counts until the
/// first one is made.
pub(crate) fn batch(
    registry: &Registry,
    context: &CallContext,
    body: &[u8],
) -> Result<Vec<UpdateResponse>> {
    let mut named = registry.writing(&context.collection)?;
    let request: json::UpdateBatch = json::parse(body)?;
    let holds_images = context.images.holds_images(&named);
    let absent = AbsentPoints::of(context);
    let mut done = Vec::new();
    for (at, operation) in request.operations.into_iter().enumerate() {
        let made = match operation {
            UpdateOperation::Upsert(request) => write(&named, context, request),
            UpdateOperation::UpdateVectors(request) => replace_vectors(&named, context, request),
            UpdateOperation::OverwritePayload(request) => {
                request.check_overwrite().and_then(|()| overwrite(&named, request, absent))
            }
            UpdateOperation::Delete(request) if holds_images => {
                drop(named);
                let removed = remove_images(registry, context, request);
                named = registry.writing(&context.collection)?;
                removed.map(drop)
            }
            other => apply(&named, other, absent),
        };
        made.map_err(|error| error.context(format_args!("operations[{at}]")))?;
        search::collection::ignore_deadline();
        done.push(updated(&named));
    }
    Ok(done)
}

/// Makes the change of one element of `operations` of a batch, in JSON. The originals of deleted
/// images stay. Durable when this returns. A payload that would become too large stays as it is,
/// and the payloads of the other points change. Ids without a point have no effect.
///
/// # Errors
/// `Unimplemented` for an operation that only a newer version knows; `InvalidArgument` for other
/// JSON, also if an operation of a known name has a feature that is not supported; as
/// [`NamedCollection::upsert`].
pub fn apply_operation(named: &NamedCollection, operation: &[u8]) -> Result<()> {
    check_name(operation)?;
    match make_operation(named, operation) {
        // No version makes it: a change of the form of an operation has a new name.
        Err(error)
            if error.kind() == ErrorKind::Unimplemented
                && operation_name(operation) != Some(UNMADE_OPERATION) =>
        {
            Err(Error::invalid(error.message().to_owned()).with_source(error))
        }
        made => made,
    }
}

/// Does the work of [`apply_operation`] for an operation of a known name.
fn make_operation(named: &NamedCollection, operation: &[u8]) -> Result<()> {
    match json::parse(operation)? {
        UpdateOperation::SetPayload(mut request) => {
            let selection = request.selection()?;
            let SetPayload { payload, key, .. } = request;
            change_apart(named, selection, &PayloadChange::Set { payload, key })
        }
        // It may keep a part of a payload, which can then become too large.
        UpdateOperation::OverwritePayload(mut request) => {
            let selection = request.selection()?;
            let made = PayloadChange::Overwrite(request.payload);
            change_apart(named, selection, &keep_image_block(&named.settings(), made))
        }
        // Holders may make an operation of the log again after the point was removed.
        other => apply(named, other, AbsentPoints::Ignored),
    }
}

/// Checks that no holder of this version stops at an operation in a log. A text without a name
/// passes, because all holders skip it.
///
/// # Errors
/// `Unimplemented` for an operation that this version does not make.
pub fn check_logged_operation(operation: &[u8]) -> Result<()> {
    match operation_name(operation) {
        Some(name) if name == UNMADE_OPERATION || !OPERATION_NAMES.contains(&name) => {
            Err(Error::unimplemented(format!(
                "the owner of the shard does not make the operation \"{name}\"; upgrade its node"
            )))
        }
        _ => Ok(()),
    }
}

/// Checks that this version knows the name of an operation. A text without a name passes, because
/// no version makes it.
///
/// # Errors
/// `Unimplemented` for another name.
fn check_name(operation: &[u8]) -> Result<()> {
    match operation_name(operation) {
        Some(name) if !OPERATION_NAMES.contains(&name) => Err(Error::unimplemented(format!(
            "the log has the operation \"{name}\", which this version of Millpond does not know; \
             upgrade this node"
        ))),
        _ => Ok(()),
    }
}

/// Returns the name of an operation, which is its first member. Returns `None` for a text without a
/// name of small letters, digits and underscores.
fn operation_name(operation: &[u8]) -> Option<&str> {
    let members = operation.trim_ascii_start().strip_prefix(b"{")?;
    let text = members.trim_ascii_start().strip_prefix(b"\"")?;
    let end = text.iter().position(|byte| *byte == b'"')?;
    let name = std::str::from_utf8(text.get(..end)?).ok()?;
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    let is_name =
        (1..=OPERATION_NAME_CHARS_MAX).contains(&name.len()) && name.bytes().all(is_plain);
    is_name.then_some(name)
}

/// Changes payloads. If one of them would become too large, changes each point alone, and leaves
/// out the points whose payload would become too large.
fn change_apart(
    named: &NamedCollection,
    selection: PointSelection,
    made: &PayloadChange,
) -> Result<()> {
    let absent = AbsentPoints::Ignored;
    let PointSelection::Ids(ids) = &selection else {
        return change(named, selection, made, absent);
    };
    let ids = ids.clone();
    match change(named, selection, made, absent) {
        Err(error) if error.kind() == ErrorKind::TooLarge => {}
        changed => return changed,
    }
    for id in ids {
        match change(named, PointSelection::Ids(vec![id]), made, absent) {
            Err(error) if error.kind() == ErrorKind::TooLarge => {}
            changed => changed?,
        }
    }
    Ok(())
}

fn apply(named: &NamedCollection, operation: UpdateOperation, absent: AbsentPoints) -> Result<()> {
    match operation {
        UpdateOperation::Upsert(request) => add(named, request),
        UpdateOperation::Delete(request) => remove(named, request),
        UpdateOperation::SetPayload(request) => set(named, request, absent),
        UpdateOperation::OverwritePayload(request) => overwrite(named, request, absent),
        UpdateOperation::DeletePayload(request) => delete_keys(named, request, absent),
        UpdateOperation::ClearPayload(request) => clear(named, request, absent),
        UpdateOperation::UpdateVectors(request) => change_all_vectors(named, request, absent),
        UpdateOperation::DeleteVectors(never) => match never {},
    }
}

/// Writes points, unless the collection has images.
fn write(
    named: &NamedCollection,
    context: &CallContext,
    request: json::UpsertRequest,
) -> Result<()> {
    if context.images.holds_images(named) {
        return Err(Error::precondition(format!(
            "collection \"{}\" has images, and each of its points needs the keypoints of an image, which this \
             interface cannot send; add images with /v1/images. Payloads can be changed here",
            named.name()
        )));
    }
    add(named, request)
}

fn replace_vectors(
    named: &NamedCollection,
    context: &CallContext,
    request: json::UpdateVectorsRequest,
) -> Result<()> {
    if context.images.holds_images(named) {
        return Err(Error::precondition(format!(
            "collection \"{}\" has images, and the vector of a point is made from its image; add the image again \
             with /v1/images. Payloads can be changed here",
            named.name()
        )));
    }
    change_all_vectors(named, request, AbsentPoints::of(context))
}

/// Replaces vectors.
///
/// # Errors
/// `NotFound` for an id without a point that is not ignored, after the vectors of the other points
/// are replaced; as [`change_vectors`].
fn change_all_vectors(
    named: &NamedCollection,
    request: json::UpdateVectorsRequest,
    absent: AbsentPoints,
) -> Result<()> {
    match change_vectors(named, request)? {
        Some(id) if absent == AbsentPoints::Refused => Err(no_point(&id)),
        _ => Ok(()),
    }
}

fn no_point(id: &PointId) -> Error {
    Error::not_found(format!("Not found: No point with id {id} found"))
}

/// Replaces the vectors of points that exist. Returns the first id without a point.
///
/// # Errors
/// `InvalidArgument` for a vector of another name or length; as
/// [`NamedCollection::change_vectors`].
fn change_vectors(
    named: &NamedCollection,
    mut request: json::UpdateVectorsRequest,
) -> Result<Option<PointId>> {
    let settings = named.settings();
    let filter = prepared(named, request.update_filter.take())?;
    let mut vectors = request.vectors(&settings.vector_name)?;
    for (id, vector) in &mut vectors {
        let embedding = scores::embedding(&settings, std::mem::take(vector));
        *vector = embedding.map_err(|error| error.context(format_args!("point {id}")))?;
    }
    let changes: Vec<VectorChange<'_>> =
        vectors.iter().map(|(id, embedding)| VectorChange { id: *id, embedding }).collect();
    named.change_vectors(&changes, filter.as_ref())
}

/// Prepares the filter of a conditional write.
fn prepared(named: &NamedCollection, filter: Option<Filter>) -> Result<Option<Filter>> {
    let prepared = filter.map(|filter| filters::prepare(named, filter)).transpose();
    prepared.map_err(|error| error.context("update_filter"))
}

/// Writes points that meet the condition of the request.
fn add(named: &NamedCollection, mut request: json::UpsertRequest) -> Result<()> {
    let settings = named.settings();
    let mut condition = request.take_condition();
    condition.filter = prepared(named, condition.filter)?;
    let mut points = request.points(&settings.vector_name)?;
    for point in &mut points {
        let embedding = scores::embedding(&settings, std::mem::take(&mut point.vector));
        point.vector =
            embedding.map_err(|error| error.context(format_args!("point {}", point.id)))?;
    }
    let new: Vec<NewPoint<'_>> = points
        .iter()
        .map(|point| NewPoint {
            id: point.id,
            embedding: &point.vector,
            record: &[],
            payload: &point.payload,
        })
        .collect();
    if new.is_empty() { Ok(()) } else { named.upsert_if(&new, &condition) }
}

fn remove(named: &NamedCollection, request: PointsSelector) -> Result<()> {
    remove_selected(named, &filters::prepare_selection(named, request.selection()?)?)
}

fn remove_selected(named: &NamedCollection, selection: &PointSelection) -> Result<()> {
    match selection {
        PointSelection::Ids(ids) => named.delete(ids).map(drop),
        PointSelection::Filter(filter) => named.delete_where(filter).map(drop),
    }
}

/// Removes points of a collection of images with their originals. The caller must not hold
/// [`Registry::writing`].
fn remove_images(
    registry: &Registry,
    context: &CallContext,
    request: PointsSelector,
) -> Result<UpdateResponse> {
    let name = &context.collection;
    let named = registry.get(name)?;
    let selection = filters::prepare_selection(&named, request.selection()?)?;
    if !context.images.delete_points(name, &selection)? {
        // The name has become another collection.
        let named = registry.writing(name)?;
        remove_selected(&named, &selection)?;
    }
    Ok(updated(&named))
}

fn set(named: &NamedCollection, mut request: SetPayload, absent: AbsentPoints) -> Result<()> {
    let selection = request.selection()?;
    let made = PayloadChange::Set { payload: request.payload, key: request.key };
    change(named, selection, &made, absent)
}

fn overwrite(named: &NamedCollection, mut request: SetPayload, absent: AbsentPoints) -> Result<()> {
    let selection = request.selection()?;
    let made = PayloadChange::Overwrite(request.payload);
    change(named, selection, &keep_image_block(&named.settings(), made), absent)
}

fn delete_keys(
    named: &NamedCollection,
    mut request: DeletePayload,
    absent: AbsentPoints,
) -> Result<()> {
    let selection = request.selection()?;
    let made = PayloadChange::DeleteKeys(request.keys);
    change(named, selection, &keep_image_block(&named.settings(), made), absent)
}

fn clear(named: &NamedCollection, request: PointsSelector, absent: AbsentPoints) -> Result<()> {
    let made = keep_image_block(&named.settings(), PayloadChange::Clear);
    change(named, request.selection()?, &made, absent)
}

/// Changes payloads.
///
/// # Errors
/// `NotFound` for an id without a point that is not ignored, after the other payloads are changed;
/// as [`NamedCollection::change_payload`].
fn change(
    named: &NamedCollection,
    selection: PointSelection,
    change: &PayloadChange,
    absent: AbsentPoints,
) -> Result<()> {
    let selection = filters::prepare_selection(named, selection)?;
    let changed = named.change_payload(&selection, change)?;
    match &selection {
        PointSelection::Ids(ids)
            if absent == AbsentPoints::Refused && changed < ids.len() as u64 =>
        {
            check_present(named, ids)
        }
        _ => Ok(()),
    }
}

/// Checks that each id has a point.
///
/// # Errors
/// `NotFound` for the first id without one.
fn check_present(named: &NamedCollection, ids: &[PointId]) -> Result<()> {
    for ids in ids.chunks(CHUNK) {
        let points = named.get_parts(ids, PointParts::NONE);
        let absent = ids.iter().zip(points).find(|(_, point)| matches!(point, Ok(None)));
        if let Some((id, _)) = absent {
            return Err(no_point(id));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_are_those_of_the_parser() {
        let parse =
            |name: &str| json::parse::<UpdateOperation>(format!("{{\"{name}\":0}}").as_bytes());
        let error = parse("merge_points").unwrap_err();
        let names = error.message().split('`').skip(3).step_by(2);
        assert_eq!(names.collect::<Vec<_>>(), OPERATION_NAMES, "{error}");
    }

    #[test]
    fn only_a_newer_version_knows_another_name() {
        for name in OPERATION_NAMES {
            check_name(format!("{{\"{name}\":{{}}}}").as_bytes()).unwrap();
        }
        for unknown in [r#"{"merge_points":{}}"#, r#" { "upsert2" : {}}"#, r#"{"x":0}"#] {
            let error = check_name(unknown.as_bytes()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unimplemented, "{unknown}");
            assert!(error.message().contains("upgrade this node"), "{error}");
            let error = check_logged_operation(unknown.as_bytes()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unimplemented, "{unknown}");
        }
        assert!(check_logged_operation(br#"{"delete_vectors":{}}"#).is_err());
        check_logged_operation(br#"{"upsert":{}}"#).unwrap();
        let long = format!("{{\"{}\":0}}", "a".repeat(OPERATION_NAME_CHARS_MAX + 1));
        for without in ["", "{}", "[]", r#"{"":0}"#, r#"{"a b":0}"#, r#"{"a"#, long.as_str()] {
            check_name(without.as_bytes()).unwrap();
        }
    }
}
