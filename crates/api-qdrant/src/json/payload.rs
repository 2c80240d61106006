//! Requests that change payloads.

use base::{Error, Result};
use search::filter::Filter;
use search::points::{PointId, PointSelection};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::AbsentField;
use super::points::selection;

/// Members to be merged into payloads, or to replace them.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct SetPayload {
    /// The members.
    pub payload: Map<String, Value>,
    /// Path in the payload to merge them into; `None` for the payload itself.
    pub key: Option<String>,
    points: Option<Vec<PointId>>,
    #[serde(default, deserialize_with = "super::filter::optional")]
    filter: Option<Filter>,
    #[serde(default, rename = "shard_key")]
    _shard_key: AbsentField,
}

/// Fields to be removed from payloads.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct DeletePayload {
    /// Paths of the fields.
    pub keys: Vec<String>,
    points: Option<Vec<PointId>>,
    #[serde(default, deserialize_with = "super::filter::optional")]
    filter: Option<Filter>,
    #[serde(default, rename = "shard_key")]
    _shard_key: AbsentField,
}

impl SetPayload {
    /// Checks a request that replaces payloads.
    ///
    /// # Errors
    /// `InvalidArgument` for a path: the members outside of it would be lost.
    pub fn check_overwrite(&self) -> Result<()> {
        match self.key {
            Some(_) => Err(Error::invalid(
                "key: a payload is replaced as a whole; leave out key, or set the payload with POST or set_payload",
            )),
            None => Ok(()),
        }
    }

    /// Removes the selection of points from the request and returns it.
    ///
    /// # Errors
    /// As [`super::PointsSelector::selection`].
    pub fn selection(&mut self) -> Result<PointSelection> {
        selection(self.points.take(), self.filter.take())
    }
}

impl DeletePayload {
    /// Removes the selection of points from the request and returns it.
    ///
    /// # Errors
    /// As [`super::PointsSelector::selection`].
    pub fn selection(&mut self) -> Result<PointSelection> {
        selection(self.points.take(), self.filter.take())
    }
}
