//! Responses with points as messages.

use base::{Error, Result};
use protocol::qdrant as pb;
use protocol::qdrant::facet_value;
use protocol::qdrant::group_id::Kind as GroupKind;
use protocol::qdrant::order_value::Variant as Order;
use serde::Deserialize;
use serde_json::{Map, Number, Value};

use crate::rest::RestResponse;
use crate::values::{self, JsonId};
use crate::vectors::JsonVectors;

#[derive(Deserialize)]
pub(crate) struct ResponsePoint {
    id: JsonId,
    #[serde(default)]
    version: u64,
    #[serde(default)]
    score: f32,
    payload: Option<Map<String, Value>>,
    vector: Option<JsonVectors>,
    order_value: Option<Number>,
}

fn order_value(number: &Number) -> pb::OrderValue {
    let variant = match number.as_i64() {
        Some(whole) => Order::Int(whole),
        None => Order::Float(number.as_f64().unwrap_or_default()),
    };
    pb::OrderValue { variant: Some(variant) }
}

impl From<ResponsePoint> for pb::ScoredPoint {
    fn from(point: ResponsePoint) -> pb::ScoredPoint {
        pb::ScoredPoint {
            id: Some(point.id.into()),
            payload: values::of_members(point.payload.unwrap_or_default()),
            score: point.score,
            version: point.version,
            vectors: point.vector.map(Into::into),
            shard_key: None,
            order_value: point.order_value.as_ref().map(order_value),
        }
    }
}

impl From<ResponsePoint> for pb::RetrievedPoint {
    fn from(point: ResponsePoint) -> pb::RetrievedPoint {
        pb::RetrievedPoint {
            id: Some(point.id.into()),
            payload: values::of_members(point.payload.unwrap_or_default()),
            vectors: point.vector.map(Into::into),
            shard_key: None,
            order_value: point.order_value.as_ref().map(order_value),
        }
    }
}

fn all<M: From<ResponsePoint>>(points: Vec<ResponsePoint>) -> Vec<M> {
    points.into_iter().map(Into::into).collect()
}

#[derive(Deserialize)]
struct UpdateJson {
    operation_id: Option<u64>,
    status: String,
}

impl From<UpdateJson> for pb::UpdateResult {
    fn from(update: UpdateJson) -> pb::UpdateResult {
        let status = match update.status.as_str() {
            "completed" => pb::UpdateStatus::Completed,
            "acknowledged" => pb::UpdateStatus::Acknowledged,
            _ => pb::UpdateStatus::UnknownUpdateStatus,
        };
        pb::UpdateResult { operation_id: update.operation_id, status: status as i32 }
    }
}

pub(crate) fn updated(response: &RestResponse<'_>) -> Result<pb::PointsOperationResponse> {
    let parsed = response.parse::<UpdateJson>()?;
    let result = Some(parsed.result.into());
    Ok(pb::PointsOperationResponse { result, time: parsed.time, usage: None })
}

pub(crate) fn updates(response: &RestResponse<'_>) -> Result<pb::UpdateBatchResponse> {
    let parsed = response.parse::<Vec<UpdateJson>>()?;
    let result = parsed.result.into_iter().map(Into::into).collect();
    Ok(pb::UpdateBatchResponse { result, time: parsed.time, usage: None })
}

pub(crate) fn fetched(response: &RestResponse<'_>) -> Result<pb::GetResponse> {
    let parsed = response.parse::<Vec<ResponsePoint>>()?;
    Ok(pb::GetResponse { result: all(parsed.result), time: parsed.time, usage: None })
}

#[derive(Deserialize)]
struct ScrollJson {
    points: Vec<ResponsePoint>,
    next_page_offset: Option<JsonId>,
}

pub(crate) fn scrolled(response: &RestResponse<'_>) -> Result<pb::ScrollResponse> {
    let parsed = response.parse::<ScrollJson>()?;
    Ok(pb::ScrollResponse {
        next_page_offset: parsed.result.next_page_offset.map(Into::into),
        result: all(parsed.result.points),
        time: parsed.time,
        usage: None,
    })
}

#[derive(Deserialize)]
struct CountJson {
    count: u64,
}

pub(crate) fn counted(response: &RestResponse<'_>) -> Result<pb::CountResponse> {
    let parsed = response.parse::<CountJson>()?;
    let result = Some(pb::CountResult { count: parsed.result.count });
    Ok(pb::CountResponse { result, time: parsed.time, usage: None })
}

/// Hits of one query.
#[derive(Deserialize)]
struct HitsJson {
    points: Vec<ResponsePoint>,
}

pub(crate) fn queried(response: &RestResponse<'_>) -> Result<pb::QueryResponse> {
    let parsed = response.parse::<HitsJson>()?;
    Ok(pb::QueryResponse { result: all(parsed.result.points), time: parsed.time, usage: None })
}

pub(crate) fn searched(response: &RestResponse<'_>) -> Result<pb::SearchResponse> {
    let pb::QueryResponse { result, time, usage } = queried(response)?;
    Ok(pb::SearchResponse { result, time, usage })
}

pub(crate) fn recommended(response: &RestResponse<'_>) -> Result<pb::RecommendResponse> {
    let pb::QueryResponse { result, time, usage } = queried(response)?;
    Ok(pb::RecommendResponse { result, time, usage })
}

pub(crate) fn discovered(response: &RestResponse<'_>) -> Result<pb::DiscoverResponse> {
    let pb::QueryResponse { result, time, usage } = queried(response)?;
    Ok(pb::DiscoverResponse { result, time, usage })
}

pub(crate) fn queried_batch(response: &RestResponse<'_>) -> Result<pb::QueryBatchResponse> {
    let parsed = response.parse::<Vec<HitsJson>>()?;
    let hits = |hits: HitsJson| pb::BatchResult { result: all(hits.points) };
    let result = parsed.result.into_iter().map(hits).collect();
    Ok(pb::QueryBatchResponse { result, time: parsed.time, usage: None })
}

pub(crate) fn searched_batch(response: &RestResponse<'_>) -> Result<pb::SearchBatchResponse> {
    let pb::QueryBatchResponse { result, time, usage } = queried_batch(response)?;
    Ok(pb::SearchBatchResponse { result, time, usage })
}

pub(crate) fn recommended_batch(response: &RestResponse<'_>) -> Result<pb::RecommendBatchResponse> {
    let pb::QueryBatchResponse { result, time, usage } = queried_batch(response)?;
    Ok(pb::RecommendBatchResponse { result, time, usage })
}

pub(crate) fn discovered_batch(response: &RestResponse<'_>) -> Result<pb::DiscoverBatchResponse> {
    let pb::QueryBatchResponse { result, time, usage } = queried_batch(response)?;
    Ok(pb::DiscoverBatchResponse { result, time, usage })
}

#[derive(Deserialize)]
struct GroupsJson {
    groups: Vec<GroupJson>,
}

#[derive(Deserialize)]
struct GroupJson {
    id: Value,
    hits: Vec<ResponsePoint>,
    lookup: Option<ResponsePoint>,
}

/// Returns the id of a group, which is a text or a whole number.
fn group_id(value: &Value) -> Result<pb::GroupId> {
    let kind = match value {
        Value::String(text) => GroupKind::StringValue(text.clone()),
        value => match (value.as_u64(), value.as_i64()) {
            (Some(number), _) => GroupKind::UnsignedValue(number),
            (None, Some(number)) => GroupKind::IntegerValue(number),
            (None, None) => {
                return Err(Error::internal(format!("a group cannot have the id {value}")));
            }
        },
    };
    Ok(pb::GroupId { kind: Some(kind) })
}

pub(crate) fn grouped(response: &RestResponse<'_>) -> Result<pb::QueryGroupsResponse> {
    let parsed = response.parse::<GroupsJson>()?;
    let group = |group: GroupJson| {
        Ok(pb::PointGroup {
            id: Some(group_id(&group.id)?),
            hits: all(group.hits),
            lookup: group.lookup.map(Into::into),
        })
    };
    let groups = parsed.result.groups.into_iter().map(group).collect::<Result<_>>()?;
    let result = Some(pb::GroupsResult { groups });
    Ok(pb::QueryGroupsResponse { result, time: parsed.time, usage: None })
}

pub(crate) fn searched_groups(response: &RestResponse<'_>) -> Result<pb::SearchGroupsResponse> {
    let pb::QueryGroupsResponse { result, time, usage } = grouped(response)?;
    Ok(pb::SearchGroupsResponse { result, time, usage })
}

pub(crate) fn recommended_groups(
    response: &RestResponse<'_>,
) -> Result<pb::RecommendGroupsResponse> {
    let pb::QueryGroupsResponse { result, time, usage } = grouped(response)?;
    Ok(pb::RecommendGroupsResponse { result, time, usage })
}

#[derive(Deserialize)]
struct FacetJson {
    hits: Vec<FacetHitJson>,
}

#[derive(Deserialize)]
struct FacetHitJson {
    value: Value,
    count: u64,
}

pub(crate) fn faceted(response: &RestResponse<'_>) -> Result<pb::FacetResponse> {
    let parsed = response.parse::<FacetJson>()?;
    let hit = |hit: FacetHitJson| {
        let variant = match hit.value {
            Value::Bool(value) => Some(facet_value::Variant::BoolValue(value)),
            Value::String(text) => Some(facet_value::Variant::StringValue(text)),
            number => number.as_i64().map(facet_value::Variant::IntegerValue),
        };
        pb::FacetHit { value: Some(pb::FacetValue { variant }), count: hit.count }
    };
    let hits = parsed.result.hits.into_iter().map(hit).collect();
    Ok(pb::FacetResponse { hits, time: parsed.time, usage: None })
}

#[derive(Deserialize)]
struct PairsJson {
    pairs: Vec<PairJson>,
}

#[derive(Deserialize)]
struct PairJson {
    a: JsonId,
    b: JsonId,
    score: f32,
}

pub(crate) fn matrix_pairs(response: &RestResponse<'_>) -> Result<pb::SearchMatrixPairsResponse> {
    let parsed = response.parse::<PairsJson>()?;
    let pair = |pair: PairJson| pb::SearchMatrixPair {
        a: Some(pair.a.into()),
        b: Some(pair.b.into()),
        score: pair.score,
    };
    let pairs = parsed.result.pairs.into_iter().map(pair).collect();
    let result = Some(pb::SearchMatrixPairs { pairs });
    Ok(pb::SearchMatrixPairsResponse { result, time: parsed.time, usage: None })
}

#[derive(Deserialize)]
struct OffsetsJson {
    offsets_row: Vec<u64>,
    offsets_col: Vec<u64>,
    scores: Vec<f32>,
    ids: Vec<JsonId>,
}

pub(crate) fn matrix_offsets(
    response: &RestResponse<'_>,
) -> Result<pb::SearchMatrixOffsetsResponse> {
    let parsed = response.parse::<OffsetsJson>()?;
    let OffsetsJson { offsets_row, offsets_col, scores, ids } = parsed.result;
    let ids = ids.into_iter().map(Into::into).collect();
    let result = Some(pb::SearchMatrixOffsets { offsets_row, offsets_col, scores, ids });
    Ok(pb::SearchMatrixOffsetsResponse { result, time: parsed.time, usage: None })
}

#[cfg(test)]
mod tests {
    use protocol::qdrant::point_id::PointIdOptions;
    use serde_json::json;

    use super::*;

    #[test]
    fn hits_keep_ids_scores_payloads_and_vectors() {
        let uuid = "5c56c793-69f3-4fbf-87e6-c4bf54c28c26";
        let json = json!({ "result": { "points": [
            { "id": 7, "version": 0, "score": 0.25, "payload": { "n": 1 }, "vector": [0.5, 1.0] },
            { "id": uuid, "version": 0, "score": -1.0, "vector": { "v": [2.0] }, "order_value": 1.5 },
        ] }, "status": "ok", "time": 0.5 })
        .to_string();
        let response = queried(&RestResponse::new(json.as_bytes())).unwrap();
        assert_eq!((response.result.len(), response.time), (2, 0.5));
        let [first, second] = response.result.as_slice() else { panic!("two hits") };
        let number = pb::PointId { point_id_options: Some(PointIdOptions::Num(7)) };
        assert_eq!((first.id.clone(), first.score), (Some(number), 0.25));
        assert_eq!(first.payload, [("n".to_owned(), values::of_json(json!(1)))].into());
        let id = pb::PointId { point_id_options: Some(PointIdOptions::Uuid(uuid.to_owned())) };
        assert_eq!(second.id, Some(id));
        assert_eq!(second.order_value, Some(pb::OrderValue { variant: Some(Order::Float(1.5)) }));
        assert!(second.vectors.is_some());
    }

    #[test]
    fn groups_have_texts_and_numbers_as_ids() {
        let group =
            |id: Value| json!({ "id": id, "hits": [{ "id": 1, "version": 0, "score": 1.0 }] });
        let groups = [group(json!("a")), group(json!(3)), group(json!(-3))];
        let json = json!({ "result": { "groups": groups }, "time": 0.0 }).to_string();
        let response = grouped(&RestResponse::new(json.as_bytes())).unwrap();
        let ids =
            response.result.unwrap().groups.into_iter().map(|it| it.id.unwrap().kind.unwrap());
        let expected = [
            GroupKind::StringValue("a".to_owned()),
            GroupKind::UnsignedValue(3),
            GroupKind::IntegerValue(-3),
        ];
        assert!(ids.eq(expected));
    }
}
