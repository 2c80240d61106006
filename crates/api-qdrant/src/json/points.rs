//! Requests that change points.

use std::collections::HashMap;

use base::{Error, Result};
use search::filter::Filter;
use search::points::{PointId, PointSelection, UpsertCondition, UpsertMode};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value};

use super::payload::{DeletePayload, SetPayload};
use super::vector::{BatchVectors, Vector};
use super::{AbsentField, out_of_limits, unsupported};

/// A point to be written.
#[derive(Clone, Debug, PartialEq)]
pub struct UpsertPoint {
    /// Id that the point has or gets.
    pub id: PointId,
    /// Values in the order of the dimensions.
    pub vector: Vec<f32>,
    /// Payload of the point; may be empty.
    pub payload: Map<String, Value>,
}

/// Points to be written: a list of points, or lists of ids, vectors and payloads.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UpsertRequest {
    points: Option<Vec<PointStruct>>,
    batch: Option<PointsBatch>,
    #[serde(default)]
    update_mode: Option<UpdateMode>,
    #[serde(default, deserialize_with = "super::filter::optional")]
    update_filter: Option<Filter>,
    #[serde(default, rename = "shard_key")]
    _shard_key: AbsentField,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum UpdateMode {
    Upsert,
    InsertOnly,
    UpdateOnly,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PointStruct {
    id: PointId,
    vector: Option<Vector>,
    payload: Option<Map<String, Value>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PointsBatch {
    ids: Vec<PointId>,
    vectors: BatchVectors,
    payloads: Option<Vec<Option<Map<String, Value>>>>,
}

impl UpsertRequest {
    /// Removes the condition under which a point is written from the request, and returns it.
    pub fn take_condition(&mut self) -> UpsertCondition {
        let mode = match self.update_mode.take() {
            None | Some(UpdateMode::Upsert) => UpsertMode::All,
            Some(UpdateMode::InsertOnly) => UpsertMode::InsertOnly,
            Some(UpdateMode::UpdateOnly) => UpsertMode::UpdateOnly,
        };
        UpsertCondition { mode, filter: self.update_filter.take() }
    }

    /// Returns the points for a collection with a vector called `name`, "" for a vector without a
    /// name. The condition does not limit them.
    ///
    /// # Errors
    /// `InvalidArgument` if a vector has another name, or if lists differ in length;
    /// `Unimplemented` if a vector is missing.
    pub fn points(self, name: &str) -> Result<Vec<UpsertPoint>> {
        match (self.points, self.batch) {
            (Some(points), None) => {
                points.into_iter().enumerate().map(|(at, point)| point.checked(at, name)).collect()
            }
            (None, Some(batch)) => batch.points(name),
            _ => Err(Error::invalid("an upsert has either points or batch")),
        }
    }
}

impl PointStruct {
    fn checked(self, at: usize, name: &str) -> Result<UpsertPoint> {
        let missing = || Error::unimplemented(unsupported("a point without a vector"));
        let vector = self.vector.ok_or_else(missing).and_then(|vector| vector.named(name));
        let vector = vector.map_err(|error| error.context(format_args!("points[{at}].vector")))?;
        Ok(UpsertPoint { id: self.id, vector, payload: self.payload.unwrap_or_default() })
    }
}

impl PointsBatch {
    /// Returns the points of the batch, which lists ids, vectors and payloads apart. `name` is the
    /// name of the collection's vector.
    ///
    /// # Errors
    /// `InvalidArgument` if the lists have different lengths.
    fn points(self, name: &str) -> Result<Vec<UpsertPoint>> {
        let vectors = self.vectors.named(name).map_err(|error| error.context("batch.vectors"))?;
        let count = self.ids.len();
        if vectors.len() != count {
            let vectors = vectors.len();
            return Err(Error::invalid(format!(
                "batch: {count} ids and {vectors} vectors do not go together"
            )));
        }
        let payloads = self.payloads.unwrap_or_else(|| vec![None; count]);
        if payloads.len() != count {
            let payloads = payloads.len();
            return Err(Error::invalid(format!(
                "batch: {count} ids and {payloads} payloads do not go together"
            )));
        }
        let points = self.ids.into_iter().zip(vectors).zip(payloads);
        Ok(points
            .map(|((id, vector), payload)| UpsertPoint {
                id,
                vector,
                payload: payload.unwrap_or_default(),
            })
            .collect())
    }
}

/// New vectors of points that exist.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UpdateVectorsRequest {
    points: Vec<ReplacedVector>,
    /// Limits the points that change.
    #[serde(default, deserialize_with = "super::filter::optional")]
    pub update_filter: Option<Filter>,
    #[serde(default, rename = "shard_key")]
    _shard_key: AbsentField,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ReplacedVector {
    id: PointId,
    vector: Vector,
}

impl UpdateVectorsRequest {
    /// Returns ids and their new vectors, for a collection with a vector called `name`, "" for a
    /// vector without a name.
    ///
    /// # Errors
    /// `InvalidArgument` for no points, and for a vector of another name; `Unimplemented` for a
    /// point without a vector.
    pub fn vectors(self, name: &str) -> Result<Vec<(PointId, Vec<f32>)>> {
        if self.points.is_empty() {
            return Err(out_of_limits("points", "must specify points to update"));
        }
        let vector = |(at, point): (usize, ReplacedVector)| {
            let vector = point.vector.named(name);
            let vector =
                vector.map_err(|error| error.context(format_args!("points[{at}].vector")))?;
            Ok((point.id, vector))
        };
        self.points.into_iter().enumerate().map(vector).collect()
    }
}

/// A choice of points by id or by filter.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct PointsSelector {
    points: Option<Vec<PointId>>,
    #[serde(default, deserialize_with = "super::filter::optional")]
    filter: Option<Filter>,
    #[serde(default, rename = "shard_key")]
    _shard_key: AbsentField,
}

/// Returns the selection if exactly one of `points` and `filter` is present.
pub(super) fn selection(
    points: Option<Vec<PointId>>,
    filter: Option<Filter>,
) -> Result<PointSelection> {
    match (points, filter) {
        (Some(points), None) => Ok(PointSelection::Ids(points)),
        (None, Some(filter)) => Ok(PointSelection::Filter(filter)),
        (Some(_), Some(_)) => {
            Err(Error::invalid("points are chosen either by points or by filter, not by both"))
        }
        (None, None) => Err(Error::invalid("the points are not selected: give points or filter")),
    }
}

impl PointsSelector {
    /// Returns the selection of points.
    ///
    /// # Errors
    /// `InvalidArgument` unless the request has exactly one of points and filter.
    pub fn selection(self) -> Result<PointSelection> {
        selection(self.points, self.filter)
    }
}

/// Changes to be made in order.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UpdateBatch {
    /// The changes.
    pub operations: Vec<UpdateOperation>,
}

/// One change of an [`UpdateBatch`].
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UpdateOperation {
    /// Adds or replaces points.
    Upsert(UpsertRequest),
    /// Removes points.
    Delete(PointsSelector),
    /// Merges members into payloads.
    SetPayload(SetPayload),
    /// Replaces payloads.
    OverwritePayload(SetPayload),
    /// Removes fields of payloads.
    DeletePayload(DeletePayload),
    /// Empties payloads.
    ClearPayload(PointsSelector),
    /// Replaces vectors.
    UpdateVectors(UpdateVectorsRequest),
    /// Refused by the parser.
    DeleteVectors(UnsupportedOperation),
}

/// Returns true if a request that changes points, or an operation of a batch of changes, selects
/// its points by a filter. A malformed request does not, because its handler refuses it.
pub(crate) fn selects_by_filter(body: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct RequestSelection {
        filter: Option<IgnoredAny>,
        #[serde(default)]
        operations: Vec<HashMap<String, ChangeSelection>>,
    }
    #[derive(Deserialize)]
    struct ChangeSelection {
        filter: Option<IgnoredAny>,
    }
    serde_json::from_slice::<RequestSelection>(body).is_ok_and(|change| {
        let mut operations = change.operations.iter().flat_map(HashMap::values);
        change.filter.is_some() || operations.any(|operation| operation.filter.is_some())
    })
}

/// Missing feature in the error of a request that deletes vectors.
const NO_VECTOR: &str = "a point without a vector (delete the point, or replace its vector)";

/// Returns the error for a request that deletes vectors.
pub(crate) fn no_deleted_vectors() -> Error {
    Error::unimplemented(unsupported(NO_VECTOR))
}

/// An operation of Qdrant's that this server does not have. The parser refuses it.
#[derive(Debug)]
pub enum UnsupportedOperation {}

impl<'de> Deserialize<'de> for UnsupportedOperation {
    fn deserialize<D: serde::Deserializer<'de>>(
        _: D,
    ) -> std::result::Result<UnsupportedOperation, D::Error> {
        Err(serde::de::Error::custom(unsupported(NO_VECTOR)))
    }
}
