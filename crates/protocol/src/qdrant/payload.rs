//! Changes of payloads.

use base::Result;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::points::{self, PointsSelection};
use super::{AbsentField, Filter, PointId};

/// Fields to be added to, or to replace, payloads.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct SetPayload {
    /// The fields.
    pub payload: Map<String, Value>,
    /// Where in the payload they belong; its root where there is none.
    pub key: Option<String>,
    points: Option<Vec<PointId>>,
    filter: Option<Filter>,
    #[serde(default, rename = "shard_key")]
    _shard_key: AbsentField,
}

/// Fields to be removed from payloads.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct DeletePayload {
    /// Their paths.
    pub keys: Vec<String>,
    points: Option<Vec<PointId>>,
    filter: Option<Filter>,
    #[serde(default, rename = "shard_key")]
    _shard_key: AbsentField,
}

impl SetPayload {
    /// Whose payloads; leaves nothing to ask again.
    ///
    /// # Errors
    /// As [`PointsSelector::selection`].
    pub fn selection(&mut self) -> Result<PointsSelection> {
        points::selection(self.points.take(), self.filter.take())
    }
}

impl DeletePayload {
    /// Whose payloads; leaves nothing to ask again.
    ///
    /// # Errors
    /// As [`PointsSelector::selection`].
    pub fn selection(&mut self) -> Result<PointsSelection> {
        points::selection(self.points.take(), self.filter.take())
    }
}
