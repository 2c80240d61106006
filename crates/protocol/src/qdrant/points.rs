//! Changes of points: added, replaced, removed, several at once.

use base::{Error, Result};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::payload::{DeletePayload, SetPayload};
use super::vector::{BatchVectors, Vector};
use super::{AbsentField, Filter, PointId};

/// A point to be written.
#[derive(Clone, Debug, PartialEq)]
pub struct UpsertPoint {
    /// What it is called by.
    pub id: PointId,
    /// Its values.
    pub vector: Vec<f32>,
    /// Its payload; may be empty.
    pub payload: Map<String, Value>,
}

/// Points to be written, as a list of points or as lists of ids, vectors and payloads.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UpsertRequest {
    points: Option<Vec<PointStruct>>,
    batch: Option<PointsBatch>,
    #[serde(default)]
    update_mode: Option<UpdateMode>,
    #[serde(default, rename = "update_filter")]
    _update_filter: AbsentField,
    #[serde(default, rename = "shard_key")]
    _shard_key: AbsentField,
}

#[derive(Debug, Deserialize)]
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
    /// The points, for a collection whose vector is called `name` ("" for none).
    ///
    /// # Errors
    /// `InvalidArgument` where a vector is missing or has another name, or the lists differ in length;
    /// `Unimplemented` for modes other than "upsert".
    pub fn points(self, name: &str) -> Result<Vec<UpsertPoint>> {
        if matches!(self.update_mode, Some(UpdateMode::InsertOnly | UpdateMode::UpdateOnly)) {
            return Err(Error::unimplemented(super::unsupported("update_mode other than \"upsert\"")));
        }
        match (self.points, self.batch) {
            (Some(rows), None) => rows.into_iter().enumerate().map(|(at, row)| row.point(at, name)).collect(),
            (None, Some(batch)) => batch.points(name),
            _ => Err(Error::invalid("an upsert has either points or batch")),
        }
    }
}

impl PointStruct {
    fn point(self, at: usize, name: &str) -> Result<UpsertPoint> {
        let place = |error: Error| error.context(format_args!("points[{at}].vector"));
        let missing = || place(Error::unimplemented(super::unsupported("a point without a vector")));
        let vector = self.vector.ok_or_else(missing)?;
        let vector = vector.named(name).map_err(place)?;
        Ok(UpsertPoint { id: self.id, vector, payload: self.payload.unwrap_or_default() })
    }
}

impl PointsBatch {
    fn points(self, name: &str) -> Result<Vec<UpsertPoint>> {
        let vectors = self.vectors.named(name).map_err(|error| error.context("batch.vectors"))?;
        let count = self.ids.len();
        let payloads = match self.payloads {
            Some(payloads) => payloads,
            None => vec![None; count],
        };
        if vectors.len() != count || payloads.len() != count {
            return Err(Error::invalid(format!(
                "batch: {count} ids, {} vectors and {} payloads do not go together",
                vectors.len(),
                payloads.len()
            )));
        }
        let rows = self.ids.into_iter().zip(vectors).zip(payloads);
        Ok(rows
            .map(|((id, vector), payload)| UpsertPoint { id, vector, payload: payload.unwrap_or_default() })
            .collect())
    }
}

/// Points by id or by filter.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct PointsSelector {
    points: Option<Vec<PointId>>,
    filter: Option<Filter>,
    #[serde(default, rename = "shard_key")]
    _shard_key: AbsentField,
}

/// What a selector means.
#[derive(Clone, Debug, PartialEq)]
pub enum PointsSelection {
    /// These points.
    Ids(Vec<PointId>),
    /// All that the filter allows.
    Filter(Filter),
}

/// One of both.
pub(super) fn selection(points: Option<Vec<PointId>>, filter: Option<Filter>) -> Result<PointsSelection> {
    match (points, filter) {
        (Some(points), None) => Ok(PointsSelection::Ids(points)),
        (None, Some(filter)) => Ok(PointsSelection::Filter(filter)),
        (Some(_), Some(_)) => {
            Err(Error::invalid("points are chosen either by points or by filter, not by both"))
        }
        (None, None) => Err(Error::invalid("say which points are meant: give points or filter")),
    }
}

impl PointsSelector {
    /// Which points are meant.
    ///
    /// # Errors
    /// `InvalidArgument` where it says nothing or two things.
    pub fn selection(self) -> Result<PointsSelection> {
        selection(self.points, self.filter)
    }
}

/// Changes that are made one after another.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UpdateBatch {
    /// In their order.
    pub operations: Vec<UpdateOperation>,
}

/// One change of [`UpdateBatch`].
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UpdateOperation {
    /// Adds or replaces points.
    Upsert(UpsertRequest),
    /// Removes points.
    Delete(PointsSelector),
    /// Adds to payloads.
    SetPayload(SetPayload),
    /// Replaces payloads.
    OverwritePayload(SetPayload),
    /// Removes fields of payloads.
    DeletePayload(DeletePayload),
    /// Empties payloads.
    ClearPayload(PointsSelector),
    /// Not supported.
    UpdateVectors(UnsupportedOperation),
    /// Not supported.
    DeleteVectors(UnsupportedOperation),
}

/// What can be named but not done.
#[derive(Debug)]
pub enum UnsupportedOperation {}

impl<'de> Deserialize<'de> for UnsupportedOperation {
    fn deserialize<D: serde::Deserializer<'de>>(_: D) -> std::result::Result<UnsupportedOperation, D::Error> {
        Err(serde::de::Error::custom(super::unsupported(
            "changing vectors apart from their points (write the points again)",
        )))
    }
}
