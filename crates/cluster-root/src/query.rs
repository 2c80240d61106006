//! Queries: nearest points, recommendations, and points in the order of a field.
//!
//! Points of a query are replaced by their vectors first, because a shard has its own points only.
//! Then each shard returns its best `offset + limit` hits.

use std::collections::HashMap;
use std::sync::Arc;

use api_qdrant::json::{self, QueryBatchRequest, QueryRequest, Vector, VectorInput, VectorQuery};
use base::{Error, Result};
use bytes::Bytes;
use cluster_node::CollectionRecord;
use search::coarse::Metric;
use search::points::PointId;
use search::registry::CollectionSettings;
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;

use super::call::RootContext;
use super::collections;
use super::envelope::RootAnswer;
use super::merge::{self, HitOrder, HitRange};
use super::read::{confirmed, merged, of_all};
use super::shard_read::RETRY_AFTER;
use super::split::{self, RawMembers};

/// Maximum queries of one batch.
const SEARCHES_MAX: usize = 1024;

/// Maximum values of the vectors that stand for points in one request. Their JSON takes up to 20
/// bytes a value.
const VALUES_MAX: usize = 4 << 20;

/// Checks the size of the vectors that stand for the points of a request.
///
/// # Errors
/// `InvalidArgument` for more than [`VALUES_MAX`] values.
fn check_named(points: usize, dims: usize) -> Result<()> {
    if points.saturating_mul(dims) > VALUES_MAX {
        return Err(Error::invalid(format!(
            "query: {points} points are named, whose vectors have more than {VALUES_MAX} values together; send \
             several requests"
        )));
    }
    Ok(())
}

/// One query of a client.
pub(super) struct RootQuery {
    pub(super) request: QueryRequest,
    /// The request's text, by member.
    pub(super) members: RawMembers,
}

/// Vectors of points of the collection.
pub(super) type PointVectors = HashMap<PointId, Vec<f32>>;

pub(super) async fn query(context: RootContext, body: Bytes) -> Result<RootAnswer> {
    let record = context.state.record(&context.collection)?;
    let settings = collections::settings(&record)?;
    let query = RootQuery::read(&body)?;
    let (order, range) = (query.order(settings.metric)?, query.range());
    let vectors = point_vectors(&context, &record, &settings, &query.ids()).await?;
    let body = split::raw(&query.for_shards(&vectors)?)?;
    let read = of_all(&context, &record, "points/query", body);
    merged(&context, &read, move |shards| merge::hits(shards, order, range)).await
}

/// Answers queries in order. If one fails, the batch fails.
pub(super) async fn batch(context: RootContext, body: Bytes) -> Result<RootAnswer> {
    let record = context.state.record(&context.collection)?;
    let settings = collections::settings(&record)?;
    let bytes = body.len();
    let queries = context.compute(bytes, move || read_batch(&body)).await?;
    if queries.is_empty() {
        return RootAnswer::of(&json!([]));
    }
    let mut merges = Vec::with_capacity(queries.len());
    for (at, query) in queries.iter().enumerate() {
        let order = query.order(settings.metric).map_err(|error| at_search(error, at))?;
        merges.push((order, query.range()));
    }
    let ids: Vec<PointId> = queries.iter().flat_map(RootQuery::ids).collect();
    let vectors = point_vectors(&context, &record, &settings, &ids).await?;
    let build = move || {
        let mut searches = Vec::with_capacity(queries.len());
        for (at, query) in queries.iter().enumerate() {
            searches.push(query.for_shards(&vectors).map_err(|error| at_search(error, at))?);
        }
        split::raw(&HashMap::from([("searches", searches)]))
    };
    let body = context.compute(bytes, build).await?;
    let read = of_all(&context, &record, "points/query/batch", body);
    merged(&context, &read, move |shards| merge::batch(shards, &merges)).await
}

fn at_search(error: Error, at: usize) -> Error {
    error.context(format_args!("searches[{at}]"))
}

fn read_batch(body: &[u8]) -> Result<Vec<RootQuery>> {
    #[derive(Deserialize)]
    struct SearchesText {
        searches: Vec<RawMembers>,
    }
    let request: QueryBatchRequest = json::parse(body)?;
    if request.searches.len() > SEARCHES_MAX {
        return Err(Error::invalid(format!(
            "searches: more than {SEARCHES_MAX} queries in one request; send several"
        )));
    }
    let texts: SearchesText = serde_json::from_slice(body)
        .map_err(|error| Error::invalid(format!("the request's JSON: {error}")))?;
    let queries = request.searches.into_iter().zip(texts.searches);
    Ok(queries.map(|(request, members)| RootQuery { request, members }).collect())
}

impl RootQuery {
    fn read(body: &[u8]) -> Result<RootQuery> {
        Ok(RootQuery { request: json::parse(body)?, members: split::members(body)? })
    }

    /// Returns the order of the hits.
    ///
    /// # Errors
    /// `Unimplemented` for queries that cannot be answered shard by shard.
    pub(super) fn order(&self, metric: Metric) -> Result<HitOrder> {
        if !self.request.prefetch.is_empty() {
            return Err(Error::unimplemented(
                "prefetch: not supported by collections of a cluster, because its limit would \
                 count the points of each shard",
            ));
        }
        match &self.request.query {
            Some(VectorQuery::Mmr { .. }) => Err(Error::unimplemented(
                "mmr: not supported by collections of a cluster, because its candidates lie on \
                 several nodes",
            )),
            Some(VectorQuery::OrderBy(order)) => {
                Ok(HitOrder::Value { descending: order.descending })
            }
            Some(VectorQuery::Nearest(_) | VectorQuery::Recommend { .. }) => Ok(match metric {
                Metric::Cosine | Metric::Dot => HitOrder::HigherScore,
                Metric::L2 => HitOrder::LowerScore,
            }),
            // All scores are equal, so the order is that of the ids.
            None => Ok(HitOrder::HigherScore),
        }
    }

    fn range(&self) -> HitRange {
        HitRange { offset: self.request.offset(), limit: self.request.limit() }
    }

    /// Returns the points that the query names. They are no hits.
    pub(super) fn ids(&self) -> Vec<PointId> {
        let id = |input: &VectorInput| match input {
            VectorInput::Id(id) => Some(*id),
            VectorInput::Vector(_) => None,
        };
        match &self.request.query {
            Some(VectorQuery::Nearest(input)) => id(input).into_iter().collect(),
            Some(VectorQuery::Recommend { positive, negative }) => {
                positive.iter().chain(negative).filter_map(id).collect()
            }
            Some(VectorQuery::OrderBy(_) | VectorQuery::Mmr { .. }) | None => Vec::new(),
        }
    }

    /// Returns the query for a shard: with vectors in place of points, and without an offset.
    ///
    /// # Errors
    /// `NotFound` for a point without a vector in `vectors`.
    pub(super) fn for_shards(&self, vectors: &PointVectors) -> Result<RawMembers> {
        let mut members = self.members.clone();
        let count = self.request.limit().saturating_add(self.request.offset());
        members.insert("limit".to_owned(), split::raw(&count)?);
        members.remove("offset");
        let ids = self.ids();
        if ids.is_empty() {
            return Ok(members);
        }
        let vector = |input: &VectorInput| match input {
            VectorInput::Vector(values) => Ok(values.clone()),
            VectorInput::Id(id) => vectors.get(id).cloned().ok_or_else(|| {
                Error::not_found(format!("query: Not found: No point with id {id} found"))
            }),
        };
        let list = |inputs: &[VectorInput]| inputs.iter().map(vector).collect::<Result<Vec<_>>>();
        let query = match &self.request.query {
            Some(VectorQuery::Nearest(input)) => split::raw(&vector(input)?)?,
            Some(VectorQuery::Recommend { positive, negative }) => {
                let recommend =
                    HashMap::from([("positive", list(positive)?), ("negative", list(negative)?)]);
                split::raw(&HashMap::from([("recommend", recommend)]))?
            }
            Some(VectorQuery::OrderBy(_) | VectorQuery::Mmr { .. }) | None => return Ok(members),
        };
        members.insert("query".to_owned(), query);
        let filter = members.remove("filter").filter(|filter| filter.get() != "null");
        members.insert("filter".to_owned(), without(filter.as_deref(), &ids)?);
        Ok(members)
    }
}

/// Returns the text of a filter that leaves out the points of `ids`.
fn without(filter: Option<&RawValue>, ids: &[PointId]) -> Result<Box<RawValue>> {
    let ids = split::raw(&ids)?;
    let must = filter.map_or_else(String::new, |filter| format!("\"must\":[{filter}],"));
    let text = format!("{{{must}\"must_not\":[{{\"has_id\":{ids}}}]}}");
    RawValue::from_string(text).map_err(|error| Error::internal(format!("a filter: {error}")))
}

/// Reads the vectors of the points that a request names.
///
/// # Errors
/// As [`check_named`]; `Unavailable` if the shard of a point does not answer.
pub(super) async fn point_vectors(
    context: &RootContext,
    record: &Arc<CollectionRecord>,
    settings: &CollectionSettings,
    ids: &[PointId],
) -> Result<PointVectors> {
    #[derive(Deserialize)]
    struct VectorText {
        id: PointId,
        vector: Vector,
    }
    check_named(ids.len(), settings.dims)?;
    let mut vectors = PointVectors::new();
    if ids.is_empty() {
        return Ok(vectors);
    }
    let mut ids = ids.to_vec();
    ids.sort_unstable();
    ids.dedup();
    let members = split::members(br#"{"with_payload":false,"with_vector":true}"#)?;
    let answers = confirmed(context, record, members, &ids).await?;
    if let Some(failure) = answers.failure {
        let message = format!("query: the vectors of its points cannot be read: {failure}");
        return Err(Error::unavailable(message).with_retry_after(RETRY_AFTER));
    }
    for result in answers.results.values() {
        let points: Vec<VectorText> = serde_json::from_str(result.get())
            .map_err(|error| Error::internal(format!("a shard's result: {error}")))?;
        for point in points {
            vectors.insert(point.id, point.vector.named(&settings.vector_name)?);
        }
    }
    Ok(vectors)
}

#[cfg(test)]
mod tests {
    use base::ErrorKind;
    use serde_json::Value;

    use super::*;

    const UUID: &str = "5c56c793-69f3-4fbf-87e6-c4bf54c28c26";

    #[test]
    fn vectors_of_named_points_have_a_maximum() {
        assert!(check_named(1024, 4096).is_ok());
        assert!(check_named(1025, 4096).unwrap_err().message().contains("several requests"));
        assert!(check_named(usize::MAX, 2).is_err());
    }

    fn read(body: &Value) -> RootQuery {
        RootQuery::read(body.to_string().as_bytes()).unwrap()
    }

    /// Returns a shard's query, which must be one for the parser.
    fn shards(body: &Value) -> Value {
        let vectors = PointVectors::from([
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
    fn an_unknown_point_is_not_found() {
        let query = read(&json!({"query": 3}));
        assert_eq!(query.ids(), [PointId::Number(3)]);
        let error = query.for_shards(&PointVectors::new()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
    }

    #[test]
    fn the_order_follows_query_and_distance() {
        let order = |body: Value, metric| read(&body).order(metric).map_err(|error| error.kind());
        assert_eq!(order(json!({"query": [1]}), Metric::Cosine), Ok(HitOrder::HigherScore));
        assert_eq!(order(json!({"query": 7}), Metric::L2), Ok(HitOrder::LowerScore));
        let by = json!({"query": {"order_by": {"key": "a", "direction": "desc"}}});
        assert_eq!(order(by, Metric::Dot), Ok(HitOrder::Value { descending: true }));
        let unimplemented = Err(ErrorKind::Unimplemented);
        let mmr = json!({"query": {"nearest": [1], "mmr": {}}});
        assert_eq!(order(mmr, Metric::Dot), unimplemented);
        let prefetch = json!({"query": [1], "prefetch": {"query": [2]}});
        assert_eq!(order(prefetch, Metric::Dot), unimplemented);
    }

    #[test]
    fn batches_read_each_query() {
        let body = json!({"searches": [{"query": [1]}, {"limit": 3, "offset": 1}]});
        let queries = read_batch(body.to_string().as_bytes()).unwrap();
        assert_eq!(queries[1].range(), HitRange { offset: 1, limit: 3 });
        let many = json!({"searches": vec![json!({}); SEARCHES_MAX + 1]});
        assert!(read_batch(many.to_string().as_bytes()).is_err());
    }
}
