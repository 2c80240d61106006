//! Requests of queries: one query, a batch, and groups of hits.

use serde::de::{Deserialize, DeserializeOwned, Deserializer, Error as DeError};
use serde_json::{Map, Value};

use base::{Error, Result};

use super::lookup::{GroupLookup, LookupFrom};
use super::unique::UniqueMembers;
use search::collection::CANDIDATES_MAX;
use search::filter::Filter;

use super::{
    AbsentField, DEFAULT_LIMIT, IgnoredField, VectorQuery, WithPayload, WithVector, positive,
};

/// Maximum prefetches of one query, with the prefetches of its prefetches.
const PREFETCHES_MAX: usize = 64;

/// A query, of the collection or of the hits of prefetches.
#[derive(Clone, Debug, PartialEq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QueryRequest {
    /// Queries whose hits the query ranks; empty for a query of the collection.
    #[serde(default, deserialize_with = "prefetches")]
    pub prefetch: Vec<QueryRequest>,
    /// The query; `None` for all points in the order of their ids.
    pub query: Option<VectorQuery>,
    /// Name of the vector; empty if the request names none.
    #[serde(default, deserialize_with = "null_is_default")]
    pub using: String,
    /// Limits the points that may be found.
    #[serde(default, deserialize_with = "super::filter::optional")]
    pub filter: Option<Filter>,
    /// Effort and accuracy.
    #[serde(default, deserialize_with = "null_is_default")]
    pub params: SearchParams,
    /// Score that hits exceed; `None` means no bound. For distances, hits are below it. As in
    /// Qdrant, hits of fusion and of a formula may have this score.
    pub score_threshold: Option<f32>,
    /// Maximum points of the response; ten by default.
    #[serde(default, deserialize_with = "positive")]
    pub limit: Option<usize>,
    /// Number of hits to skip.
    pub offset: Option<usize>,
    /// The requested vectors; none by default.
    #[serde(alias = "with_vectors")]
    pub with_vector: Option<WithVector>,
    /// The requested part of payloads; none by default.
    pub with_payload: Option<WithPayload>,
    /// Collection of the points that the query names by their ids; `None` for its own.
    pub lookup_from: Option<LookupFrom>,
    #[serde(default, rename = "shard_key")]
    _shard_key: AbsentField,
}

impl QueryRequest {
    /// Returns the maximum number of points in the response.
    pub fn limit(&self) -> usize {
        self.limit.unwrap_or(DEFAULT_LIMIT)
    }

    /// Returns the number of hits to skip.
    pub fn offset(&self) -> usize {
        self.offset.unwrap_or(0)
    }

    /// Returns true if the scores of hits are similarities or distances to one vector.
    pub fn scores_by_distance(&self) -> bool {
        self.query.as_ref().is_some_and(VectorQuery::scores_by_distance)
    }

    /// Checks the number of prefetches and the thresholds, and that each query ranks or joins the
    /// hits of its prefetches.
    ///
    /// # Errors
    /// `InvalidArgument`, with the position of the prefetch.
    pub fn check_prefetches(&self) -> Result<()> {
        if self.prefetch_count() > PREFETCHES_MAX {
            return Err(Error::invalid(format!(
                "prefetch: more than {PREFETCHES_MAX} in one query"
            )));
        }
        self.check_stages()
    }

    /// Returns the number of prefetches, with the prefetches of its prefetches.
    fn prefetch_count(&self) -> usize {
        self.prefetch.iter().map(|prefetch| 1 + prefetch.prefetch_count()).sum()
    }

    /// Checks that a threshold has scores to be compared with. Qdrant's clients refuse the same
    /// requests.
    ///
    /// # Errors
    /// `InvalidArgument`, with the remedy.
    fn check_threshold(&self) -> Result<()> {
        let without_scores = match &self.query {
            _ if self.score_threshold.is_none() => return Ok(()),
            None => "a request without a query",
            Some(VectorQuery::OrderBy(_)) => "a query with order_by",
            Some(_) => return Ok(()),
        };
        Err(Error::invalid(format!(
            "score_threshold: {without_scores} has no scores; remove the threshold"
        )))
    }

    /// Checks that each query ranks or joins the hits of its prefetches, its threshold, and the
    /// name of its vector.
    ///
    /// # Errors
    /// As [`QueryRequest::check_prefetches`].
    fn check_stages(&self) -> Result<()> {
        self.check_threshold()?;
        match &self.query {
            Some(VectorQuery::Fuse(fusion)) => {
                fusion.check(self.prefetch.len())?;
                if !self.using.is_empty() {
                    return Err(Error::invalid(
                        "using: a fusion compares no vector; name the vector in each prefetch",
                    ));
                }
            }
            Some(VectorQuery::Formula(_)) if self.prefetch.is_empty() => {
                return Err(Error::invalid(
                    "query: formula needs prefetches, whose hits it scores",
                ));
            }
            None if !self.prefetch.is_empty() => {
                return Err(Error::invalid(
                    "query: a query is needed to rank what the prefetches found",
                ));
            }
            _ => {}
        }
        for (at, prefetch) in self.prefetch.iter().enumerate() {
            let checked = prefetch.check_stages();
            checked.map_err(|error| error.context(format_args!("prefetch[{at}]")))?;
        }
        Ok(())
    }
}

/// Maximum groups in a response if the request has no limit.
const DEFAULT_GROUPS: usize = 10;
/// Maximum points of a group if the request has no group size.
const DEFAULT_GROUP_SIZE: usize = 3;

/// A query whose hits are grouped by a payload field.
#[derive(Clone, Debug, PartialEq)]
pub struct QueryGroupsRequest {
    /// Path of the field, as in a filter.
    pub group_by: String,
    /// Maximum points of a group.
    pub group_size: usize,
    /// Maximum groups of the response.
    pub limit: usize,
    /// Points of another collection that the response has for the groups.
    pub with_lookup: Option<GroupLookup>,
    /// The query without its limit.
    pub query: QueryRequest,
}

/// Maximum groups of one response.
const GROUPS_MAX: usize = 1024;

impl QueryGroupsRequest {
    /// Checks the number of groups and points, and the query.
    ///
    /// # Errors
    /// `InvalidArgument` for no field, more than `GROUPS_MAX` groups, or more points than a
    /// search finds.
    pub fn check(&self) -> Result<()> {
        if self.group_by.is_empty() {
            return Err(Error::invalid("group_by: the path of a payload field is expected"));
        }
        if self.limit > GROUPS_MAX || self.group_size > CANDIDATES_MAX / self.limit {
            return Err(Error::invalid(format!(
                "limit: at most {GROUPS_MAX} groups, and limit x group_size at most {CANDIDATES_MAX}"
            )));
        }
        Ok(())
    }
}

/// Members of a request for groups, in addition to the members of a query.
#[derive(serde::Deserialize)]
struct GroupParams {
    #[serde(deserialize_with = "super::filter::path")]
    group_by: String,
    #[serde(default, deserialize_with = "positive")]
    group_size: Option<usize>,
    #[serde(default, deserialize_with = "positive")]
    limit: Option<usize>,
    with_lookup: Option<GroupLookup>,
}

impl<'de> Deserialize<'de> for QueryGroupsRequest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<QueryGroupsRequest, D::Error> {
        let UniqueMembers(Value::Object(mut members)) = UniqueMembers::deserialize(deserializer)?
        else {
            return Err(D::Error::custom("an object is expected"));
        };
        // The other members are those of the query.
        let own = ["group_by", "group_size", "limit", "with_lookup"];
        let own_members: Map<String, Value> =
            own.iter().filter_map(|name| members.remove_entry(*name)).collect();
        if members.get("offset").is_some_and(|offset| !offset.is_null()) {
            return Err(D::Error::custom("offset: groups have none; raise the limit"));
        }
        let params: GroupParams = from_members(own_members)?;
        Ok(QueryGroupsRequest {
            group_by: params.group_by,
            group_size: params.group_size.unwrap_or(DEFAULT_GROUP_SIZE),
            limit: params.limit.unwrap_or(DEFAULT_GROUPS),
            with_lookup: params.with_lookup,
            query: from_members(members)?,
        })
    }
}

/// Reads a part of a request from its members.
///
/// # Errors
/// The error of the part. It begins with the path of the field.
fn from_members<T: DeserializeOwned, E: DeError>(members: Map<String, Value>) -> Result<T, E> {
    serde_path_to_error::deserialize(Value::Object(members)).map_err(|error| {
        match error.path().to_string().as_str() {
            "." => E::custom(error.inner()),
            path => E::custom(format_args!("{path}: {}", error.inner())),
        }
    })
}

/// Several queries of one collection.
#[derive(Clone, Debug, PartialEq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QueryBatchRequest {
    /// The queries, in the order of the results.
    pub searches: Vec<QueryRequest>,
}

/// Members of a prefetch: the members of a query that choose its hits.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Prefetch {
    #[serde(default, deserialize_with = "prefetches")]
    prefetch: Vec<QueryRequest>,
    query: Option<VectorQuery>,
    #[serde(default, deserialize_with = "null_is_default")]
    using: String,
    #[serde(default, deserialize_with = "super::filter::optional")]
    filter: Option<Filter>,
    #[serde(default, deserialize_with = "null_is_default")]
    params: SearchParams,
    score_threshold: Option<f32>,
    #[serde(default, deserialize_with = "positive")]
    limit: Option<usize>,
    lookup_from: Option<LookupFrom>,
}

impl From<Prefetch> for QueryRequest {
    fn from(prefetch: Prefetch) -> QueryRequest {
        let Prefetch {
            prefetch,
            query,
            using,
            filter,
            params,
            score_threshold,
            limit,
            lookup_from,
        } = prefetch;
        QueryRequest {
            prefetch,
            query,
            using,
            filter,
            params,
            score_threshold,
            limit,
            offset: None,
            with_vector: None,
            with_payload: None,
            lookup_from,
            _shard_key: AbsentField,
        }
    }
}

/// Reads one prefetch or a list of them; null is none.
fn prefetches<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<QueryRequest>, D::Error> {
    // Through a value: an untagged enum would hide the messages of errors inside.
    let UniqueMembers(value) = UniqueMembers::deserialize(deserializer)?;
    let list = match value {
        Value::Null => return Ok(Vec::new()),
        Value::Array(list) => list,
        one => vec![one],
    };
    let prefetch = |one| serde_json::from_value::<Prefetch>(one).map(QueryRequest::from);
    list.into_iter().map(|one| prefetch(one).map_err(D::Error::custom)).collect()
}

/// Reads a value; null is the default.
fn null_is_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}

/// Effort and accuracy of a query.
#[derive(Clone, Debug, Default, PartialEq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SearchParams {
    /// Number of candidates that a search of a graph keeps.
    #[serde(default, deserialize_with = "positive")]
    pub hnsw_ef: Option<usize>,
    /// True to compare every vector.
    pub exact: Option<bool>,
    /// Use of quantised vectors.
    pub quantization: Option<QuantizationParams>,
    // Points without an index are always compared, so responses have them too.
    #[serde(default, rename = "indexed_only")]
    _indexed_only: IgnoredField,
    // A filter is evaluated before ranking, so no search of a graph needs it.
    #[serde(default, rename = "acorn")]
    _acorn: IgnoredField,
    #[serde(default, rename = "idf")]
    _idf: AbsentField,
}

/// Use of quantised vectors.
#[derive(Clone, Debug, Default, PartialEq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QuantizationParams {
    /// True to compare exact vectors only.
    pub ignore: Option<bool>,
    /// True to rank the best candidates by their exact vectors.
    pub rescore: Option<bool>,
    /// Candidates for each hit.
    pub oversampling: Option<f64>,
}
