//! Requests that read points without a query: scrolls, counts, facets, points by id.

use std::collections::HashSet;

use base::{Error, Result};
use search::collection::IDS_MAX;
use search::filter::Filter;
use search::points::PointId;

use super::{AbsentField, DEFAULT_LIMIT, IgnoredField, OrderBy, WithPayload, WithVector, positive};

/// Request for points in the order of their ids.
#[derive(Clone, Debug, PartialEq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScrollRequest {
    /// Id of the first point.
    pub offset: Option<PointId>,
    /// Maximum points of the response; ten by default.
    #[serde(default, deserialize_with = "positive")]
    pub limit: Option<usize>,
    /// Limits the points.
    #[serde(default, deserialize_with = "super::filter::optional")]
    pub filter: Option<Filter>,
    /// The requested part of payloads; all by default.
    pub with_payload: Option<WithPayload>,
    /// The requested vectors; none by default.
    #[serde(alias = "with_vectors")]
    pub with_vector: Option<WithVector>,
    /// Order by a payload field instead of the ids.
    pub order_by: Option<OrderBy>,
    #[serde(default, rename = "shard_key")]
    _shard_key: AbsentField,
}

impl ScrollRequest {
    /// Returns the maximum number of points in the response.
    pub fn limit(&self) -> usize {
        self.limit.unwrap_or(DEFAULT_LIMIT)
    }
}

/// Checks that `found` points are all points of a scroll in the order of a field with `limit`. Such
/// a scroll has no next page, so a list that was cut would look complete.
///
/// # Errors
/// `InvalidArgument` for a limit above [`IDS_MAX`] if more points may match.
pub fn check_ordered_limit(limit: usize, found: usize) -> Result<()> {
    if limit <= IDS_MAX || found < IDS_MAX {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "limit: {limit} is more than the {IDS_MAX} points of one scroll with order_by, and more \
         points may match; lower the limit, and continue with order_by.start_from"
    )))
}

/// Request for the number of points.
#[derive(Clone, Debug, Default, PartialEq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CountRequest {
    /// Limits the points.
    #[serde(default, deserialize_with = "super::filter::optional")]
    pub filter: Option<Filter>,
    // A count is always exact.
    #[serde(default, rename = "exact")]
    _exact: IgnoredField,
    #[serde(default, rename = "shard_key")]
    _shard_key: AbsentField,
}

/// Request for the number of points with each value of a field.
#[derive(Clone, Debug, PartialEq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FacetRequest {
    /// The field's path, as in a filter.
    #[serde(deserialize_with = "super::filter::path")]
    pub key: String,
    #[serde(default, deserialize_with = "positive")]
    limit: Option<usize>,
    /// Limits the points.
    #[serde(default, deserialize_with = "super::filter::optional")]
    pub filter: Option<Filter>,
    // A count is always exact.
    #[serde(default, rename = "exact")]
    _exact: IgnoredField,
    #[serde(default, rename = "shard_key")]
    _shard_key: AbsentField,
}

impl FacetRequest {
    /// Returns the maximum number of values in the response.
    pub fn limit(&self) -> usize {
        self.limit.unwrap_or(DEFAULT_LIMIT)
    }
}

/// Request for points by their ids.
#[derive(Clone, Debug, PartialEq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RetrieveRequest {
    /// Points to read, at most `IDS_MAX`, in the order of the response. Absent ones are left out,
    /// and repeated ones are read once.
    pub ids: Vec<PointId>,
    /// The requested part of payloads; all by default.
    pub with_payload: Option<WithPayload>,
    /// The requested vectors; none by default.
    #[serde(alias = "with_vectors")]
    pub with_vector: Option<WithVector>,
    #[serde(default, rename = "shard_key")]
    _shard_key: AbsentField,
}

impl RetrieveRequest {
    /// Returns the ids in their order, each once.
    pub fn distinct_ids(&self) -> Vec<PointId> {
        let mut seen = HashSet::new();
        self.ids.iter().copied().filter(|id| seen.insert(*id)).collect()
    }
}
