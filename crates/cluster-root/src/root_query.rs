//! A query of a client, and its form for the shards, which has vectors instead of points.

use std::collections::HashMap;
use std::sync::Arc;

use api_qdrant::examples::ExampleRule;
use api_qdrant::fusion::FusionHit;
use api_qdrant::json::{self, QueryRequest, Vector, VectorInput, VectorQuery};
use base::{Error, Result};
use cluster_node::CollectionRecord;
use search::Metric;
use search::points::PointId;
use search::registry::CollectionSettings;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::call::RootContext;
use super::merge::{self, HitOrder, HitRange};
use super::read::confirmed;
use super::shard_read::RETRY_AFTER;
use super::split::{self, RawMembers};

/// Maximum values of the vectors that replace points in one request. Their JSON takes up to 20
/// bytes a value.
const VALUES_MAX: usize = 4 << 20;

/// Checks how many values the vectors of `points` points have together.
///
/// # Errors
/// `InvalidArgument` for more than [`VALUES_MAX`] values.
fn check_vector_values(points: usize, dims: usize) -> Result<()> {
    if points.saturating_mul(dims) > VALUES_MAX {
        return Err(Error::invalid(format!(
            "query: the vectors of {points} points have more than {VALUES_MAX} values together; name fewer \
             points or candidates in one request"
        )));
    }
    Ok(())
}

/// One query of a client.
pub(super) struct RootQuery {
    pub(super) request: QueryRequest,
    /// The request's text, by member.
    pub(super) members: RawMembers,
    /// Hits of a fusion or a formula, best first, once its prefetches were answered.
    pub(super) fused: Option<Vec<FusionHit<PointId>>>,
}

/// Vectors of points of the collection.
pub(super) type VectorsById = HashMap<PointId, Vec<f32>>;

/// A collection whose queries are answered.
pub(super) struct QueriedCollection<'a> {
    pub(super) context: &'a RootContext,
    pub(super) record: &'a Arc<CollectionRecord>,
    pub(super) settings: &'a CollectionSettings,
}

/// Settings of a query with mmr.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct MmrChoice {
    /// Weight of the difference between hits, 0 to 1. At 0 only the similarity to the query counts,
    /// at 1 only the difference.
    pub(super) diversity: f32,
    /// Maximum hits to choose from.
    pub(super) candidates: usize,
}

impl RootQuery {
    /// Creates a query from a request and its text, by member.
    pub(super) fn new(request: QueryRequest, mut members: RawMembers) -> RootQuery {
        // Another name of the same member.
        if let Some(vectors) = members.remove("with_vectors") {
            members.insert("with_vector".to_owned(), vectors);
        }
        RootQuery { request, members, fused: None }
    }

    /// Parses the body of a request.
    ///
    /// # Errors
    /// `InvalidArgument` for a body that is not a query.
    pub(super) fn read(body: &[u8]) -> Result<RootQuery> {
        Ok(RootQuery::new(json::parse(body)?, split::members(body)?))
    }

    /// Returns the settings of mmr; `None` for a query without it.
    pub(super) fn mmr(&self) -> Option<MmrChoice> {
        match &self.request.query {
            Some(VectorQuery::Mmr { diversity, candidates, .. }) => Some(MmrChoice {
                diversity: *diversity,
                candidates: candidates.unwrap_or(self.request.limit()),
            }),
            _ => None,
        }
    }

    /// Returns true if the query is for points chosen at random.
    pub(super) fn is_sample(&self) -> bool {
        matches!(self.request.query, Some(VectorQuery::Sample))
    }

    /// Returns true if the shards cannot answer the query in one round with other queries.
    pub(super) fn has_own_rounds(&self) -> bool {
        self.mmr().is_some() || self.is_sample() || self.fused.is_some()
    }

    /// Returns the order of the hits. For mmr, it is the order of the candidates.
    pub(super) fn order(&self, metric: Metric) -> HitOrder {
        match &self.request.query {
            Some(VectorQuery::OrderBy(order)) => HitOrder::Value { descending: order.descending },
            Some(
                VectorQuery::Nearest(_) | VectorQuery::Mmr { .. } | VectorQuery::Recommend { .. },
            ) => match metric {
                Metric::Cosine | Metric::Dot => HitOrder::HigherScore,
                Metric::L2 => HitOrder::LowerScore,
            },
            Some(VectorQuery::Fuse(_) | VectorQuery::Examples(_) | VectorQuery::Formula(_)) => {
                HitOrder::HigherScore
            }
            // All scores are equal, so the order is the order of the ids.
            Some(VectorQuery::Sample) | None => HitOrder::HigherScore,
        }
    }

    /// Returns the part of the merged hits that the client requested.
    pub(super) fn range(&self) -> HitRange {
        HitRange { offset: self.request.offset(), limit: self.request.limit() }
    }

    /// Returns the ids of the points that the query compares with. These points are not hits.
    /// Points of another collection must be replaced before, by [`super::lookup::resolve`].
    pub(super) fn ids(&self) -> Vec<PointId> {
        let id = |input: &VectorInput| match input {
            VectorInput::Id(id) => Some(*id),
            VectorInput::Vector(_) => None,
        };
        match &self.request.query {
            Some(VectorQuery::Nearest(target) | VectorQuery::Mmr { target, .. }) => {
                id(target).into_iter().collect()
            }
            Some(VectorQuery::Recommend { positive, negative }) => {
                positive.iter().chain(negative).filter_map(id).collect()
            }
            Some(VectorQuery::Examples(examples)) => examples.inputs().filter_map(id).collect(),
            Some(
                VectorQuery::OrderBy(_)
                | VectorQuery::Fuse(_)
                | VectorQuery::Formula(_)
                | VectorQuery::Sample,
            )
            | None => Vec::new(),
        }
    }

    /// Returns the query for a shard: with vectors instead of points, and without offset and mmr.
    ///
    /// # Errors
    /// `NotFound` for a point without a vector in `vectors`.
    pub(super) fn for_shards(&self, vectors: &VectorsById) -> Result<RawMembers> {
        let mut members = self.members.clone();
        let count = self.request.limit().saturating_add(self.request.offset());
        members.insert("limit".to_owned(), split::raw(&count)?);
        members.remove("offset");
        let ids = self.ids();
        if ids.is_empty() && self.mmr().is_none() {
            return Ok(members);
        }
        let Some(query) = self.query_by_vectors(vectors)? else { return Ok(members) };
        members.insert("query".to_owned(), query);
        if ids.is_empty() {
            return Ok(members);
        }
        let filter = members.remove("filter").filter(|filter| filter.get() != "null");
        members.insert("filter".to_owned(), without(filter.as_deref(), &ids)?);
        Ok(members)
    }

    /// Returns the text of the query with vectors instead of points; `None` if it compares no
    /// vectors.
    ///
    /// # Errors
    /// `NotFound` for a point without a vector in `vectors`.
    pub(super) fn query_by_vectors(&self, vectors: &VectorsById) -> Result<Option<Box<RawValue>>> {
        let vector = |input: &VectorInput| match input {
            VectorInput::Vector(values) => Ok(values.clone()),
            VectorInput::Id(id) => vectors.get(id).cloned().ok_or_else(|| {
                Error::not_found(format!("query: Not found: No point with id {id} found"))
            }),
        };
        let list = |inputs: &[VectorInput]| inputs.iter().map(vector).collect::<Result<Vec<_>>>();
        let query = match &self.request.query {
            Some(VectorQuery::Nearest(target) | VectorQuery::Mmr { target, .. }) => {
                split::raw(&vector(target)?)?
            }
            Some(VectorQuery::Recommend { positive, negative }) => {
                let recommend =
                    HashMap::from([("positive", list(positive)?), ("negative", list(negative)?)]);
                split::raw(&HashMap::from([("recommend", recommend)]))?
            }
            Some(VectorQuery::Examples(examples)) => {
                let target = examples.target.as_ref().map(vector).transpose()?;
                let positive = list(&examples.positive)?;
                let negative = list(&examples.negative)?;
                examples_text(examples.rule, target, positive, negative)?
            }
            Some(
                VectorQuery::OrderBy(_)
                | VectorQuery::Fuse(_)
                | VectorQuery::Formula(_)
                | VectorQuery::Sample,
            )
            | None => {
                return Ok(None);
            }
        };
        Ok(Some(query))
    }
}

impl QueriedCollection<'_> {
    /// Reads the vectors of points of the collection.
    ///
    /// # Errors
    /// As [`check_vector_values`]; `Unavailable` if the shard of a point does not answer.
    pub(super) async fn point_vectors(&self, ids: &[PointId]) -> Result<VectorsById> {
        #[derive(Deserialize)]
        struct VectorText {
            id: PointId,
            vector: Vector,
        }
        check_vector_values(ids.len(), self.settings.dims)?;
        let mut vectors = VectorsById::new();
        if ids.is_empty() {
            return Ok(vectors);
        }
        let mut ids = ids.to_vec();
        ids.sort_unstable();
        ids.dedup();
        let members = split::members(br#"{"with_payload":false,"with_vector":true}"#)?;
        let answers = confirmed(self.context, self.record, members, &ids).await?;
        if let Some(failure) = answers.failure {
            let message = format!("query: the vectors of its points cannot be read: {failure}");
            return Err(Error::unavailable(message).with_retry_after(RETRY_AFTER));
        }
        for result in answers.results.values() {
            let points: Vec<VectorText> = merge::read(result)?;
            for point in points {
                vectors.insert(point.id, point.vector.named(&self.settings.vector_name)?);
            }
        }
        Ok(vectors)
    }
}

/// Returns the text of a query by several vectors.
///
/// # Errors
/// `Internal` if a vector has no JSON.
fn examples_text(
    rule: ExampleRule,
    target: Option<Vec<f32>>,
    positive: Vec<Vec<f32>>,
    negative: Vec<Vec<f32>>,
) -> Result<Box<RawValue>> {
    let strategy = match rule {
        ExampleRule::BestScore => Some("best_score"),
        ExampleRule::SumScores => Some("sum_scores"),
        ExampleRule::Discover | ExampleRule::Context => None,
    };
    if let Some(strategy) = strategy {
        let recommend = HashMap::from([
            ("positive", split::raw(&positive)?),
            ("negative", split::raw(&negative)?),
            ("strategy", split::raw(&strategy)?),
        ]);
        return split::raw(&HashMap::from([("recommend", recommend)]));
    }
    let pairs = positive.into_iter().zip(negative);
    let pairs = pairs.map(|(one, other)| HashMap::from([("positive", one), ("negative", other)]));
    let context = split::raw(&pairs.collect::<Vec<_>>())?;
    let Some(target) = target else {
        return split::raw(&HashMap::from([("context", context)]));
    };
    let discover = HashMap::from([("target", split::raw(&target)?), ("context", context)]);
    split::raw(&HashMap::from([("discover", discover)]))
}

/// Returns the text of a filter for the points that `filter` accepts, without those of `ids`.
///
/// # Errors
/// `Internal` if the text is not JSON.
pub(super) fn without(filter: Option<&RawValue>, ids: &[PointId]) -> Result<Box<RawValue>> {
    let ids = split::raw(&ids)?;
    let must = filter.map_or_else(String::new, |filter| format!("\"must\":[{filter}],"));
    let text = format!("{{{must}\"must_not\":[{{\"has_id\":{ids}}}]}}");
    RawValue::from_string(text).map_err(|error| Error::internal("a filter").caused_by(error))
}

#[cfg(test)]
mod tests {
    use base::ErrorKind;
    use serde_json::{Value, json};

    use super::*;

    const UUID: &str = "5c56c793-69f3-4fbf-87e6-c4bf54c28c26";

    #[test]
    fn vectors_of_named_points_have_a_maximum() {
        assert!(check_vector_values(1024, 4096).is_ok());
        assert!(check_vector_values(1025, 4096).unwrap_err().message().contains("fewer"));
        assert!(check_vector_values(usize::MAX, 2).is_err());
    }

    fn read(body: &Value) -> RootQuery {
        RootQuery::read(body.to_string().as_bytes()).unwrap()
    }

    /// Returns a shard's query, which must be one for the parser.
    fn shards(body: &Value) -> Value {
        let vectors = VectorsById::from([
            (PointId::Number(1), vec![0.5, 1.5]),
            (UUID.parse().unwrap(), vec![2.5, 3.5]),
        ]);
        let members = read(body).for_shards(&vectors).unwrap();
        let text = split::raw(&members).unwrap();
        json::parse::<QueryRequest>(text.get().as_bytes()).unwrap();
        serde_json::from_str(text.get()).unwrap()
    }

    #[test]
    fn shards_return_the_skipped_hits_too() {
        let query = shards(&json!({"query": [1, 2], "limit": 5, "offset": 7}));
        assert_eq!(query, json!({"query": [1, 2], "limit": 12}));
        assert_eq!(shards(&json!({})), json!({"limit": 10}));
    }

    #[test]
    fn points_become_vectors_and_are_no_hits() {
        let filter = json!({"should": [{"key": "a", "match": {"value": 1}}], "must": []});
        let excluding = |ids: Value| json!({"must_not": [{"has_id": ids}]});
        let query = shards(&json!({"query": 1}));
        assert_eq!(
            (&query["query"], &query["filter"]),
            (&json!([0.5, 1.5]), &excluding(json!([1])))
        );
        let query = shards(&json!({"query": {"nearest": UUID.to_uppercase()}, "filter": filter}));
        assert_eq!(query["query"], json!([2.5, 3.5]));
        let mut both = excluding(json!([UUID]));
        both["must"] = json!([filter]);
        assert_eq!(query["filter"], both);
        let recommend = json!({"recommend": {"positive": [1, [7, 8]], "negative": [UUID]}});
        let query = shards(&json!({"query": recommend, "filter": null}));
        let expected =
            json!({"recommend": {"positive": [[0.5, 1.5], [7.0, 8.0]], "negative": [[2.5, 3.5]]}});
        assert_eq!((&query["query"], &query["filter"]), (&expected, &excluding(json!([1, UUID]))));
    }

    #[test]
    fn several_vectors_are_sent_to_the_shards() {
        let recommend = json!({"positive": [1], "negative": [[7, 8]], "strategy": "best_score"});
        let query = shards(&json!({"query": {"recommend": recommend}}));
        let expected = json!({"recommend": {
            "positive": [[0.5, 1.5]], "negative": [[7.0, 8.0]], "strategy": "best_score",
        }});
        assert_eq!(query["query"], expected);
        assert_eq!(query["filter"], json!({"must_not": [{"has_id": [1]}]}));
        let pair = json!({"positive": 1, "negative": UUID});
        let query = shards(&json!({"query": {"discover": {"target": [3, 4], "context": pair}}}));
        let pairs = json!([{"positive": [0.5, 1.5], "negative": [2.5, 3.5]}]);
        assert_eq!(query["query"], json!({"discover": {"target": [3.0, 4.0], "context": pairs}}));
        let query = shards(&json!({"query": {"context": [pair]}}));
        assert_eq!(query["query"], json!({ "context": pairs }));
    }

    #[test]
    fn an_unknown_point_is_not_found() {
        let query = read(&json!({"query": 3}));
        assert_eq!(query.ids(), [PointId::Number(3)]);
        let error = query.for_shards(&VectorsById::new()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
    }

    #[test]
    fn the_order_follows_query_and_distance() {
        let order = |body: Value, metric| read(&body).order(metric);
        assert_eq!(order(json!({"query": [1]}), Metric::Cosine), HitOrder::HigherScore);
        assert_eq!(order(json!({"query": 7}), Metric::L2), HitOrder::LowerScore);
        let by = json!({"query": {"order_by": {"key": "a", "direction": "desc"}}});
        assert_eq!(order(by, Metric::Dot), HitOrder::Value { descending: true });
        let context = json!({"query": {"context": {"positive": 1, "negative": 2}}});
        assert_eq!(order(context, Metric::L2), HitOrder::HigherScore);
        let mmr = json!({"query": {"nearest": [1], "mmr": {}}});
        assert_eq!(order(mmr, Metric::L2), HitOrder::LowerScore);
    }

    #[test]
    fn shards_know_no_mmr() {
        let mmr = json!({"diversity": 0.5});
        let query =
            shards(&json!({"query": {"nearest": [1, 2], "mmr": mmr}, "with_vectors": true}));
        assert_eq!(query, json!({"query": [1.0, 2.0], "limit": 10, "with_vector": true}));
        let query = shards(&json!({"query": {"nearest": 1, "mmr": mmr}, "offset": 3}));
        let expected = json!({"must_not": [{"has_id": [1]}]});
        assert_eq!((&query["query"], &query["filter"]), (&json!([0.5, 1.5]), &expected));
    }
}
