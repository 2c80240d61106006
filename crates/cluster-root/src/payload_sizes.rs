//! Checks of the sizes of payloads that a `set_payload` would make, and an `overwrite_payload` that
//! keeps the block of an image. Holders skip them if a payload becomes too large or is nested too
//! deep, so the stored payloads are read first, with a strong read.
//!
//! If another client makes the same payload larger at this moment, each change can fit although
//! both together do not. Holders make both, up to a larger maximum, and skip those beyond it.

use std::collections::BTreeMap;
use std::sync::Arc;

use api_qdrant::json::{self, UpdateOperation};
use api_qdrant::keep_image_block;
use base::{Error, Result};
use cluster_node::CollectionRecord;
use search::points::{PayloadChange, PointId, PointSelection, check_levels};
use search::registry::CollectionSettings;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::call::RootContext;
use super::check::{IMAGES, PAYLOAD_BYTES_MAX, stored_bytes};
use super::collections;
use super::fan_out::read_shards;
use super::merge;
use super::read::of_ids;
use super::shard_read::ResultTexts;
use super::split::{self, ShardOperations};

/// Start of the text of an operation that merges members into payloads.
const SET_PAYLOAD: &str = "{\"set_payload\"";
/// Start of the text of an operation that replaces payloads.
const OVERWRITE_PAYLOAD: &str = "{\"overwrite_payload\"";
/// Maximum number of points whose payloads are read at the same time: 32 MiB, or more if clients
/// enlarged payloads at the same moment.
pub(super) const POINTS_AT_ONCE_MAX: usize = 512;

type Payload = Map<String, Value>;

/// A change of one point.
#[derive(Clone, Debug)]
enum PointStep {
    /// Writes the point with a payload.
    Write(Payload),
    Delete,
    Change(Arc<PayloadChange>),
}

/// Steps of the points that an operation with [`needs_payloads`] changes, in their order.
type PointSteps = BTreeMap<PointId, Vec<PointStep>>;

/// A stored point, as a holder returns it.
#[derive(Deserialize)]
struct StoredPayload {
    id: PointId,
    payload: Option<Payload>,
}

/// Checks that operations, which are made in order, make no payload too large.
///
/// # Errors
/// `TooLarge` if a payload would become too large; `Unavailable` if the payloads cannot be read.
pub(super) async fn check(
    context: &RootContext,
    record: &Arc<CollectionRecord>,
    split: &ShardOperations,
) -> Result<()> {
    let holds_images = record.images.is_some();
    let needs = |operations: &&Vec<String>| {
        operations.iter().any(|text| needs_payloads(text, holds_images))
    };
    let texts: Vec<String> = split.values().filter(needs).flatten().cloned().collect();
    if texts.is_empty() {
        return Ok(());
    }
    let settings = collections::settings(record)?;
    let bytes = texts.iter().map(String::len).sum();
    let steps = context.compute(bytes, move || point_steps(&texts, &settings)).await?;
    let ids: Vec<PointId> = steps.keys().copied().collect();
    let steps = Arc::new(steps);
    for ids in ids.chunks(POINTS_AT_ONCE_MAX) {
        let mut stored = stored(context, record, ids).await.map_err(|error| {
            error.context("the payloads to change cannot be read, so their new size is not known")
        })?;
        let ids = ids.to_vec();
        let steps = steps.clone();
        let work = move || ids.iter().try_for_each(|id| run(*id, stored.remove(id), &steps[id]));
        context.compute(bytes.max(PAYLOAD_BYTES_MAX), work).await?;
    }
    Ok(())
}

/// Returns true if the new size of a payload depends on the stored one.
fn needs_payloads(operation: &str, holds_images: bool) -> bool {
    operation.starts_with(SET_PAYLOAD) || (holds_images && operation.starts_with(OVERWRITE_PAYLOAD))
}

/// Returns the steps of the points that an operation with [`needs_payloads`] changes.
fn point_steps(texts: &[String], settings: &CollectionSettings) -> Result<PointSteps> {
    let holds_images = settings.extra.get(IMAGES).is_some();
    let mut steps = PointSteps::new();
    for text in texts.iter().filter(|text| needs_payloads(text, holds_images)) {
        let (ids, _) = parsed_change(text, settings)?;
        steps.extend(ids.into_iter().map(|id| (id, Vec::new())));
    }
    for text in texts {
        let mut add = |ids: Vec<PointId>, step: PointStep| {
            for id in ids {
                if let Some(steps) = steps.get_mut(&id) {
                    steps.push(step.clone());
                }
            }
        };
        let change = |change| PointStep::Change(Arc::new(change));
        let keep = |made| change(keep_image_block(settings, made));
        match json::parse(text.as_bytes())? {
            UpdateOperation::Upsert(request) => {
                for point in request.points(&settings.vector_name)? {
                    add(vec![point.id], PointStep::Write(point.payload));
                }
            }
            UpdateOperation::Delete(request) => {
                add(selected_ids(request.selection()?), PointStep::Delete)
            }
            UpdateOperation::ClearPayload(request) => {
                add(selected_ids(request.selection()?), keep(PayloadChange::Clear));
            }
            UpdateOperation::SetPayload(_) | UpdateOperation::OverwritePayload(_) => {
                let (ids, made) = parsed_change(text, settings)?;
                add(ids, change(made));
            }
            UpdateOperation::DeletePayload(mut request) => {
                let ids = selected_ids(request.selection()?);
                add(ids, keep(PayloadChange::DeleteKeys(request.keys)));
            }
            // It changes no payload.
            UpdateOperation::UpdateVectors(_) => {}
            UpdateOperation::DeleteVectors(never) => match never {},
        }
    }
    Ok(steps)
}

/// Returns the ids of a selection. Operations of the log have no filters.
pub(super) fn selected_ids(selection: PointSelection) -> Vec<PointId> {
    match selection {
        PointSelection::Ids(ids) => ids,
        PointSelection::Filter(_) => Vec::new(),
    }
}

/// Returns the points and the change of the text of a `set_payload` or an `overwrite_payload`.
///
/// # Errors
/// `InvalidArgument` for a malformed text; `Internal` for another operation.
fn parsed_change(
    text: &str,
    settings: &CollectionSettings,
) -> Result<(Vec<PointId>, PayloadChange)> {
    match json::parse(text.as_bytes())? {
        UpdateOperation::SetPayload(mut request) => {
            let ids = selected_ids(request.selection()?);
            Ok((ids, PayloadChange::Set { payload: request.payload, key: request.key }))
        }
        UpdateOperation::OverwritePayload(mut request) => {
            let ids = selected_ids(request.selection()?);
            let made = PayloadChange::Overwrite(request.payload);
            Ok((ids, keep_image_block(settings, made)))
        }
        _ => Err(Error::internal("an operation writes no payload")),
    }
}

/// Reads the payloads of points with a strong read.
///
/// # Errors
/// `Unavailable` if a shard does not answer.
pub(super) async fn stored(
    context: &RootContext,
    record: &Arc<CollectionRecord>,
    ids: &[PointId],
) -> Result<BTreeMap<PointId, Payload>> {
    let members = split::members(br#"{"with_payload":true,"with_vector":false}"#)?;
    let mut read = of_ids(context, record, members, ids)?;
    read.strong = true;
    let answers = Box::pin(read_shards(&context.state, &read)).await?;
    answers.check(1.0)?;
    let work = |results: &ResultTexts| {
        let mut stored = BTreeMap::new();
        for result in results.values() {
            let points: Vec<StoredPayload> = merge::read(result)?;
            let points = points.into_iter();
            stored.extend(points.map(|point| (point.id, point.payload.unwrap_or_default())));
        }
        Ok(stored)
    };
    context.compute_results(answers, work).await
}

/// Makes the steps of a point and checks the size after each that adds members. `stored` is its
/// payload; `None` if there is no such point.
fn run(id: PointId, stored: Option<Payload>, steps: &[PointStep]) -> Result<()> {
    let mut now = stored;
    for step in steps {
        match step {
            PointStep::Write(payload) => now = Some(payload.clone()),
            PointStep::Delete => now = None,
            PointStep::Change(change) => {
                let Some(payload) = now.as_mut() else { continue };
                apply_checked(id, payload, change)?;
            }
        }
    }
    Ok(())
}

/// Returns true if a change adds no members.
fn only_removes(change: &PayloadChange) -> bool {
    match change {
        PayloadChange::Clear | PayloadChange::DeleteKeys(_) => true,
        PayloadChange::Set { .. } | PayloadChange::Overwrite(_) => false,
        PayloadChange::Keep { change, .. } => only_removes(change),
    }
}

/// Applies a change to `payload`, and checks the result.
///
/// # Errors
/// `TooLarge` if it adds members and the payload becomes too large, or is nested too deep.
fn apply_checked(id: PointId, payload: &mut Payload, change: &PayloadChange) -> Result<()> {
    change.apply(payload)?;
    if only_removes(change) {
        return Ok(());
    }
    check_levels(id, payload)?;
    let bytes = stored_bytes(id, payload)?;
    if bytes > PAYLOAD_BYTES_MAX {
        return Err(Error::too_large(format!(
            "point {id}: its payload would have {bytes} bytes, {PAYLOAD_BYTES_MAX} at most; remove members first, or \
             write fewer"
        )));
    }
    Ok(())
}

/// Checks that an operation of the log, which is made of `points`, makes no payload too large or
/// too deep.
///
/// # Errors
/// As [`apply_checked`].
pub(super) fn check_page(
    record: &CollectionRecord,
    operation: &str,
    points: Vec<(PointId, Payload)>,
) -> Result<()> {
    if !needs_payloads(operation, record.images.is_some()) {
        return Ok(());
    }
    let (_, change) = parsed_change(operation, &collections::settings(record)?)?;
    points.into_iter().try_for_each(|(id, mut payload)| apply_checked(id, &mut payload, &change))
}

#[cfg(test)]
mod tests {
    use api_images::{ImageKind, ImageSettings};
    use base::ErrorKind;
    use serde_json::json;

    use super::*;

    fn payload(bytes: usize) -> Payload {
        Map::from_iter([("old".to_owned(), json!("x".repeat(bytes)))])
    }

    fn steps(operations: &[Value]) -> PointSteps {
        steps_in(None, operations)
    }

    fn steps_in(images: Option<ImageSettings>, operations: &[Value]) -> PointSteps {
        let texts: Vec<String> = operations.iter().map(Value::to_string).collect();
        let record = CollectionRecord {
            name: "c".to_owned(),
            id: "1".to_owned(),
            shards: 1,
            copies: 1,
            create: json!({"vectors": {"size": 1, "distance": "Dot"}}),
            images,
        };
        point_steps(&texts, &collections::settings(&record).unwrap()).unwrap()
    }

    #[test]
    fn sizes_follow_the_operations_before() {
        let id = PointId::Number(1);
        let large = "y".repeat(40 << 10);
        let set = json!({"set_payload": {"payload": {"new": large}, "points": [1]}});
        let outcome = |before: &[Value], stored: Option<Payload>| {
            let operations: Vec<Value> = before.iter().cloned().chain([set.clone()]).collect();
            run(id, stored, &steps(&operations)[&id]).map_err(|error| error.kind())
        };
        assert_eq!(outcome(&[], Some(payload(20 << 10))), Ok(()));
        assert_eq!(outcome(&[], Some(payload(30 << 10))), Err(ErrorKind::TooLarge));
        assert_eq!(outcome(&[], None), Ok(()), "there is no point to change");
        for smaller in [
            json!({"clear_payload": {"points": [1]}}),
            json!({"delete_payload": {"keys": ["old"], "points": [1]}}),
            json!({"overwrite_payload": {"payload": {}, "points": [1]}}),
            json!({"upsert": {"points": [{"id": 1, "vector": [1]}]}}),
            json!({"delete": {"points": [1]}}),
        ] {
            assert_eq!(
                outcome(std::slice::from_ref(&smaller), Some(payload(30 << 10))),
                Ok(()),
                "{smaller}"
            );
        }
        let other = json!({"set_payload": {"payload": {"other": large}, "points": [1, 2]}});
        assert_eq!(outcome(&[other], Some(Map::new())), Err(ErrorKind::TooLarge));
    }

    #[test]
    fn a_path_makes_no_payload_that_a_holder_cannot_read() {
        let id = PointId::Number(1);
        let nested = (0..100).fold(json!({"a": 1}), |inner, _| json!({ "a": inner }));
        let outcome = |levels: usize| {
            let key = vec!["k"; levels].join(".");
            let set = json!({"set_payload": {"payload": nested, "key": key, "points": [1]}});
            run(id, Some(Map::new()), &steps(&[set])[&id]).map_err(|error| error.kind())
        };
        assert_eq!(outcome(10), Ok(()));
        assert_eq!(outcome(30), Err(ErrorKind::TooLarge));
    }

    #[test]
    fn an_overwrite_of_an_image_counts_the_kept_block() {
        let id = PointId::Number(1);
        let stored: Payload = Map::from_iter([("image".to_owned(), json!("x".repeat(30 << 10)))]);
        let overwrite = |bytes: usize| {
            let new = json!({"new": "y".repeat(bytes)});
            json!({"overwrite_payload": {"payload": new, "points": [1]}})
        };
        let outcome = |bytes: usize| {
            let images = ImageSettings { kind: ImageKind::Photo, model: "m".to_owned() };
            let clear = json!({"clear_payload": {"points": [1]}});
            let made = steps_in(Some(images), &[clear, overwrite(bytes)]);
            run(id, Some(stored.clone()), &made[&id]).map_err(|error| error.kind())
        };
        assert_eq!(outcome(30 << 10), Ok(()));
        assert_eq!(outcome(40 << 10), Err(ErrorKind::TooLarge));
        assert!(steps(&[overwrite(40 << 10)]).is_empty(), "there is no block to keep");
    }

    #[test]
    fn points_without_a_set_are_not_read() {
        let operations = [
            json!({"clear_payload": {"points": [1]}}),
            json!({"set_payload": {"payload": {"a": 1}, "key": "b", "points": [2]}}),
        ];
        assert!(steps(&operations).keys().eq([&PointId::Number(2)]));
    }
}
