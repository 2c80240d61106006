//! Requests that read points: queries, scrolls, counts, facets, points by id.

use std::fmt;

use serde::de::{
    Deserialize, DeserializeOwned, Deserializer, Error as DeError, MapAccess, SeqAccess, Visitor,
};
use serde_json::{Map, Value};

use base::{Error, Result};

use super::examples::{context, discover, recommend};
use super::lookup::{GroupLookup, LookupFrom};
use super::vector::{DenseVector, is_inference, no_vector, object};
use search::collection::{CANDIDATES_MAX, IDS_MAX, OrderValue};
use search::filter::Filter;
use search::points::PointId;

use crate::examples::ExampleQuery;
use crate::formula::Formula;
use crate::fusion::Fusion;
pub use crate::vector_input::VectorInput;

use super::{AbsentField, IgnoredField, WithPayload, WithVector, limits, positive, unsupported};

/// Maximum points in a response if the request has no limit.
const DEFAULT_LIMIT: usize = 10;

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
    /// Worst score of a hit; `None` is no bound. For distances, a lower score is better.
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

    /// Checks the number of prefetches, and that each query ranks or joins the hits of its
    /// prefetches.
    ///
    /// # Errors
    /// `InvalidArgument`, with the place of the prefetch.
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

    /// Checks that each query ranks or joins the hits of its prefetches.
    ///
    /// # Errors
    /// As [`QueryRequest::check_prefetches`].
    fn check_stages(&self) -> Result<()> {
        match &self.query {
            Some(VectorQuery::Fuse(fusion)) => fusion.check(self.prefetch.len())?,
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
        let mut members = Map::deserialize(deserializer)?;
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
    let value = Value::deserialize(deserializer)?;
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
    /// Candidates that a search of a graph keeps.
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

/// A query: by vectors, or by a payload field.
#[derive(Clone, Debug, PartialEq)]
pub enum VectorQuery {
    /// Points in the order of a payload field.
    OrderBy(OrderBy),
    /// The most similar points.
    Nearest(VectorInput),
    /// Points similar to the target and different from each other (maximal marginal relevance).
    Mmr {
        /// The vector to be similar to.
        target: VectorInput,
        /// From 0, similarity to the target alone, to 1, difference between hits alone.
        diversity: f32,
        /// Number of most similar points to choose from; the limit by default.
        candidates: Option<usize>,
    },
    /// Points similar to some examples and not to others, by the means of their vectors.
    Recommend {
        /// Examples to be similar to.
        positive: Vec<VectorInput>,
        /// Examples to differ from.
        negative: Vec<VectorInput>,
    },
    /// Points by their similarities to each of several vectors.
    Examples(ExampleQuery),
    /// The hits of all prefetches as one list.
    Fuse(Fusion),
    /// Points chosen at random, in random order.
    Sample,
    /// The hits of the prefetches, scored by a formula.
    Formula(Box<Formula>),
}

impl VectorQuery {
    /// Returns true if the query compares vectors of the collection with others.
    pub fn has_vector(&self) -> bool {
        self.scores_by_distance() || matches!(self, VectorQuery::Examples(_))
    }

    /// Returns true if the hits depend on each other or on the limits of the prefetches, so that a
    /// search of some of the points orders them in another way.
    pub fn ranks_together(&self) -> bool {
        matches!(self, VectorQuery::Mmr { .. } | VectorQuery::Fuse(_) | VectorQuery::Formula(_))
    }

    /// Returns true if the scores of hits are similarities or distances to one vector, so that for
    /// L2 a lower score is better.
    pub fn scores_by_distance(&self) -> bool {
        matches!(
            self,
            VectorQuery::Nearest(_) | VectorQuery::Mmr { .. } | VectorQuery::Recommend { .. }
        )
    }
}

/// Order of points by the numbers and dates of a payload field.
#[derive(Clone, Debug, PartialEq)]
pub struct OrderBy {
    /// Path of the field, as in a filter.
    pub key: String,
    /// True to begin with the largest value.
    pub descending: bool,
    /// Value at which the order begins; `None` begins with the first point.
    pub start_from: Option<OrderValue>,
}

impl<'de> Deserialize<'de> for OrderBy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<OrderBy, D::Error> {
        #[derive(serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Members {
            #[serde(deserialize_with = "super::filter::path")]
            key: String,
            direction: Option<String>,
            start_from: Option<Value>,
        }
        let value = Value::deserialize(deserializer)?;
        if let Value::String(key) = value {
            super::filter::check_path(&key).map_err(D::Error::custom)?;
            return Ok(OrderBy { key, descending: false, start_from: None });
        }
        let members: Members = serde_json::from_value(value).map_err(D::Error::custom)?;
        let descending = match members.direction.as_deref() {
            None | Some("asc") => false,
            Some("desc") => true,
            Some(_) => return Err(D::Error::custom("direction: asc or desc is expected")),
        };
        let start_from = members.start_from.map(|value| {
            let wrong = || D::Error::custom("start_from: a number or a date is expected");
            OrderValue::of(&value).ok_or_else(wrong)
        });
        Ok(OrderBy { key: members.key, descending, start_from: start_from.transpose()? })
    }
}

impl<'de> Deserialize<'de> for VectorInput {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<VectorInput, D::Error> {
        deserializer.deserialize_any(VectorInputVisitor)
    }
}

struct VectorInputVisitor;

impl<'de> Visitor<'de> for VectorInputVisitor {
    type Value = VectorInput;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a vector or a point's id")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<VectorInput, A::Error> {
        let dense = DenseVector::deserialize(serde::de::value::SeqAccessDeserializer::new(seq))?;
        Ok(VectorInput::Vector(dense.0))
    }

    fn visit_u64<E: DeError>(self, value: u64) -> Result<VectorInput, E> {
        PointId::number(value).map(VectorInput::Id).map_err(E::custom)
    }

    fn visit_str<E: DeError>(self, value: &str) -> Result<VectorInput, E> {
        PointId::uuid(value).map(VectorInput::Id).map_err(E::custom)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<VectorInput, A::Error> {
        Err(object(&mut map)?)
    }
}

impl<'de> Deserialize<'de> for VectorQuery {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<VectorQuery, D::Error> {
        struct VectorQueryVisitor;
        impl<'de> Visitor<'de> for VectorQueryVisitor {
            type Value = VectorQuery;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "a query: a vector, a point's id, nearest, recommend, discover, context, order_by, \
                     fusion, formula or sample",
                )
            }

            fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<VectorQuery, A::Error> {
                VectorInputVisitor.visit_seq(seq).map(VectorQuery::Nearest)
            }

            fn visit_u64<E: DeError>(self, value: u64) -> Result<VectorQuery, E> {
                VectorInputVisitor.visit_u64(value).map(VectorQuery::Nearest)
            }

            fn visit_str<E: DeError>(self, value: &str) -> Result<VectorQuery, E> {
                VectorInputVisitor.visit_str(value).map(VectorQuery::Nearest)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<VectorQuery, A::Error> {
                query_from_map(map)
            }
        }
        deserializer.deserialize_any(VectorQueryVisitor)
    }
}

/// Diversity of a query with mmr if the request does not set it.
const DEFAULT_DIVERSITY: f32 = 0.5;

/// Members of `mmr`.
#[derive(Default, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
struct MmrParams {
    diversity: Option<f32>,
    candidates_limit: Option<usize>,
}

/// Reads a query from an object.
///
/// # Errors
/// Names the member that is unknown, unsupported or out of place.
fn query_from_map<'de, A: MapAccess<'de>>(mut map: A) -> Result<VectorQuery, A::Error> {
    let mut query = None;
    let mut mmr = None;
    let mut formula = None;
    let mut defaults = None;
    while let Some(key) = map.next_key::<String>()? {
        match key.as_str() {
            "nearest" => query = Some(VectorQuery::Nearest(map.next_value()?)),
            "recommend" => query = Some(recommend(map.next_value()?)?),
            "mmr" => mmr = map.next_value::<Option<MmrParams>>()?,
            "order_by" => query = Some(VectorQuery::OrderBy(map.next_value()?)),
            "fusion" => query = Some(VectorQuery::Fuse(fusion(&map.next_value::<String>()?)?)),
            "rrf" => query = Some(VectorQuery::Fuse(map.next_value::<RrfParams>()?.fusion()?)),
            "discover" => query = Some(discover(map.next_value()?)?),
            "context" => query = Some(context(map.next_value()?)?),
            "sample" => query = Some(sample(&map.next_value::<String>()?)?),
            "formula" => formula = Some(map.next_value::<Value>()?),
            "defaults" => defaults = map.next_value::<Option<Map<String, Value>>>()?,
            "relevance_feedback" => {
                return Err(A::Error::custom(unsupported(format_args!("the query {key}"))));
            }
            other => {
                map.next_value::<serde::de::IgnoredAny>()?;
                return Err(if is_inference(other) {
                    no_vector(Some(other))
                } else {
                    object(&mut map)?
                });
            }
        }
    }
    if let Some(expression) = formula {
        if query.is_some() || mmr.is_some() {
            return Err(A::Error::custom("only defaults can be combined with formula"));
        }
        let formula = super::formula::formula(&expression, defaults.unwrap_or_default());
        return formula.map(|it| VectorQuery::Formula(Box::new(it))).map_err(A::Error::custom);
    }
    if defaults.is_some() {
        return Err(A::Error::custom("defaults go with formula only"));
    }
    match (query, mmr) {
        (Some(VectorQuery::Nearest(target)), Some(mmr)) => with_mmr(target, &mmr),
        (Some(query), None) => Ok(query),
        (Some(_), Some(_)) => Err(A::Error::custom("mmr can be combined with nearest only")),
        (None, _) => Err(A::Error::custom(
            "an empty object is not a query; give nearest, recommend, discover, context, order_by, \
             fusion, formula or sample",
        )),
    }
}

/// Parameters of reciprocal rank fusion.
#[derive(Default, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
struct RrfParams {
    k: Option<u32>,
    weights: Option<Vec<f32>>,
}

impl RrfParams {
    /// Returns the fusion with these parameters.
    ///
    /// # Errors
    /// Names the parameter that is out of range.
    fn fusion<E: DeError>(self) -> Result<Fusion, E> {
        if self.k == Some(0) {
            return Err(E::custom(limits("rrf.k: value 0 invalid, must be 1 or larger")));
        }
        let is_weight = |weight: &f32| weight.is_finite() && *weight >= 0.0;
        if !self.weights.iter().flatten().all(is_weight) {
            return Err(E::custom("rrf.weights: a weight is a number of at least 0"));
        }
        Ok(Fusion::ReciprocalRank { constant: self.k, weights: self.weights })
    }
}

/// Returns the fusion of a name, with default parameters.
fn fusion<E: DeError>(name: &str) -> Result<Fusion, E> {
    match name {
        "rrf" => Ok(Fusion::ReciprocalRank { constant: None, weights: None }),
        "dbsf" => Ok(Fusion::DistributionBased),
        _ => Err(E::custom("fusion: rrf or dbsf is expected")),
    }
}

/// Returns the query for a sample by its name.
fn sample<E: DeError>(name: &str) -> Result<VectorQuery, E> {
    match name {
        "random" => Ok(VectorQuery::Sample),
        _ => Err(E::custom("sample: random is expected")),
    }
}

/// Returns the query for points similar to `target` and different from each other.
///
/// # Errors
/// Names the diversity if it is not within 0 and 1.
fn with_mmr<E: DeError>(target: VectorInput, mmr: &MmrParams) -> Result<VectorQuery, E> {
    let diversity = mmr.diversity.unwrap_or(DEFAULT_DIVERSITY);
    if !(0.0..=1.0).contains(&diversity) {
        return Err(E::custom(format_args!("mmr.diversity: {diversity} is not within 0 and 1")));
    }
    Ok(VectorQuery::Mmr { target, diversity, candidates: mmr.candidates_limit })
}

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

/// Checks that `found` points are all that a scroll in the order of a field asks for with `limit`.
/// Such a scroll has no next page, so a list that was cut would look complete.
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
    /// The ids.
    pub ids: Vec<PointId>,
    /// The requested part of payloads; all by default.
    pub with_payload: Option<WithPayload>,
    /// The requested vectors; none by default.
    #[serde(alias = "with_vectors")]
    pub with_vector: Option<WithVector>,
    #[serde(default, rename = "shard_key")]
    _shard_key: AbsentField,
}
