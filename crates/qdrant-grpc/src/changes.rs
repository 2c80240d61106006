//! Changes of points and payloads, except upserts, as requests of the REST routes.

use base::{Error, Result};
use bytes::Bytes;
use http::Method;
use protocol::qdrant as pb;
use protocol::qdrant::points_update_operation::{self as operation, Operation};
use protocol::qdrant::{PointsSelector, PointsUpdateOperation, ShardKeySelector};
use protocol::{Message, unreadable};
use serde_json::{Map, Value, json};

use crate::filters::{optional_filter, selection};
use crate::members::{map, object, optional};
use crate::point_list::{PointListWriter, split_list};
use crate::rest::RestRequest;
use crate::{upsert, values};

/// Field of [`pb::UpdatePointVectors`] with the points.
pub(crate) const VECTORS_FIELD: u32 = 3;
/// Field of [`pb::UpdateBatchPoints`] with the operations.
const OPERATIONS_FIELD: u32 = 3;

/// Returns the members of a choice of points, with `others`.
fn chosen<const N: usize>(
    points: Option<PointsSelector>,
    shard: Option<ShardKeySelector>,
    others: [(&str, Value); N],
) -> Result<Value> {
    let mut members = match selection(points)? {
        Value::Object(members) => members,
        _ => Map::new(),
    };
    members.extend(map(others));
    members.extend(map([("shard_key", values::shard_key(shard))]));
    Ok(Value::Object(members))
}

fn request(
    method: Method,
    collection: &str,
    route: &str,
    timeout: Option<u64>,
    body: &Value,
) -> RestRequest {
    RestRequest::collection(method, collection, route).with_timeout(timeout).with_json(body)
}

pub(crate) fn delete(message: pb::DeletePoints) -> Result<RestRequest> {
    let body = chosen(message.points, message.shard_key_selector, [])?;
    let name = &message.collection_name;
    Ok(request(Method::POST, name, "points/delete", message.timeout, &body))
}

/// Returns the body of a change of payloads.
fn payload(
    fields: std::collections::BTreeMap<String, pb::Value>,
    points: Option<PointsSelector>,
    shard: Option<ShardKeySelector>,
    key: Option<String>,
) -> Result<Value> {
    let payload = values::to_members(fields).map_err(|error| error.context("payload"))?;
    chosen(points, shard, [("payload", Value::Object(payload)), ("key", optional(key))])
}

pub(crate) fn set_payload(message: pb::SetPayloadPoints) -> Result<RestRequest> {
    payload_request(Method::POST, message)
}

pub(crate) fn overwrite_payload(message: pb::SetPayloadPoints) -> Result<RestRequest> {
    payload_request(Method::PUT, message)
}

fn payload_request(method: Method, message: pb::SetPayloadPoints) -> Result<RestRequest> {
    let pb::SetPayloadPoints { payload: fields, points_selector, shard_key_selector, key, .. } =
        message;
    let body = payload(fields, points_selector, shard_key_selector, key)?;
    let name = &message.collection_name;
    let request = request(method, name, "points/payload", message.timeout, &body);
    Ok(request.with_wait(message.wait))
}

pub(crate) fn delete_payload(message: pb::DeletePayloadPoints) -> Result<RestRequest> {
    let keys = [("keys", json!(message.keys))];
    let body = chosen(message.points_selector, message.shard_key_selector, keys)?;
    let name = &message.collection_name;
    let request = request(Method::POST, name, "points/payload/delete", message.timeout, &body);
    Ok(request.with_wait(message.wait))
}

pub(crate) fn clear_payload(message: pb::ClearPayloadPoints) -> Result<RestRequest> {
    let body = chosen(message.points, message.shard_key_selector, [])?;
    let name = &message.collection_name;
    let request = request(Method::POST, name, "points/payload/clear", message.timeout, &body);
    Ok(request.with_wait(message.wait))
}

/// Returns the members of a request for new vectors besides its points.
fn vector_options(filter: Option<pb::Filter>, shard: Option<ShardKeySelector>) -> Result<Value> {
    Ok(object([
        ("update_filter", optional_filter(filter)?),
        ("shard_key", values::shard_key(shard)),
    ]))
}

/// Returns the request for the message of new vectors.
///
/// # Errors
/// `InvalidArgument` for bytes that are not such a message, and as
/// [`PointListWriter::add_vectors`].
pub(crate) fn update_vectors(message: Bytes) -> Result<RestRequest> {
    // Numbers of vectors take about twice as many bytes as text.
    let mut list = PointListWriter::new(Vec::with_capacity(message.len().saturating_mul(2)));
    let others = split_list(message, VECTORS_FIELD, |point| {
        list.add_vectors(pb::PointVectors::decode(point).map_err(unreadable)?)
    })?;
    let others = pb::UpdatePointVectors::decode(others.as_slice()).map_err(unreadable)?;
    let body = list.finish(&vector_options(others.update_filter, others.shard_key_selector)?);
    let name = &others.collection_name;
    let request = RestRequest::collection(Method::PUT, name, "points/vectors");
    Ok(request.with_timeout(others.timeout).with_wait(others.wait).with_body(body))
}

pub(crate) fn delete_vectors(message: pb::DeletePointVectors) -> Result<RestRequest> {
    let names = message.vectors.map(|vectors| vectors.names).unwrap_or_default();
    let vector = [("vector", json!(names))];
    let body = chosen(message.points_selector, message.shard_key_selector, vector)?;
    let name = &message.collection_name;
    Ok(request(Method::POST, name, "points/vectors/delete", message.timeout, &body))
}

/// Returns the request for the message of a batch of changes.
///
/// # Errors
/// `InvalidArgument` for bytes that are not such a message, and for the first operation that has no
/// JSON, with its position.
pub(crate) fn batch(message: Bytes) -> Result<RestRequest> {
    let mut json = Vec::with_capacity(message.len().saturating_mul(2));
    json.extend_from_slice(b"{\"operations\":[");
    let mut count = 0_usize;
    let others = split_list(message, OPERATIONS_FIELD, |operation| {
        let change = PointsUpdateOperation::decode(operation).map_err(unreadable)?;
        if count > 0 {
            json.push(b',');
        }
        let written = write_operation(change, &mut json);
        written.map_err(|error| error.context(format_args!("operations[{count}]")))?;
        count += 1;
        Ok(())
    })?;
    json.extend_from_slice(b"]}");
    let others = pb::UpdateBatchPoints::decode(others.as_slice()).map_err(unreadable)?;
    let request = RestRequest::collection(Method::POST, &others.collection_name, "points/batch");
    Ok(request.with_timeout(others.timeout).with_wait(others.wait).with_body(json))
}

/// Appends the JSON of one change to `json`.
#[allow(deprecated)] // Older clients write deletions and clearings so.
fn write_operation(change: PointsUpdateOperation, json: &mut Vec<u8>) -> Result<()> {
    let empty = || Error::invalid("the operation is empty");
    let change = match change.operation.ok_or_else(empty)? {
        Operation::Upsert(list) => return write_upsert(list, json),
        Operation::DeleteDeprecated(points) => {
            json!({ "delete": chosen(Some(points), None, [])? })
        }
        Operation::DeletePoints(given) => {
            json!({ "delete": chosen(given.points, given.shard_key_selector, [])? })
        }
        Operation::ClearPayloadDeprecated(points) => {
            json!({ "clear_payload": chosen(Some(points), None, [])? })
        }
        Operation::ClearPayload(given) => {
            json!({ "clear_payload": chosen(given.points, given.shard_key_selector, [])? })
        }
        Operation::SetPayload(given) => {
            let points = given.points_selector;
            let shard = given.shard_key_selector;
            json!({ "set_payload": payload(given.payload, points, shard, given.key)? })
        }
        Operation::OverwritePayload(given) => {
            let points = given.points_selector;
            let shard = given.shard_key_selector;
            json!({ "overwrite_payload": payload(given.payload, points, shard, given.key)? })
        }
        Operation::DeletePayload(given) => {
            let keys = [("keys", json!(given.keys))];
            let body = chosen(given.points_selector, given.shard_key_selector, keys)?;
            json!({ "delete_payload": body })
        }
        Operation::UpdateVectors(given) => return write_vectors(given, json),
        Operation::DeleteVectors(given) => {
            let names = given.vectors.map(|vectors| vectors.names).unwrap_or_default();
            let vector = [("vector", json!(names))];
            let body = chosen(given.points_selector, given.shard_key_selector, vector)?;
            json!({ "delete_vectors": body })
        }
    };
    json.extend_from_slice(change.to_string().as_bytes());
    Ok(())
}

/// Appends an upsert without a copy of its numbers.
fn write_upsert(given: operation::PointStructList, json: &mut Vec<u8>) -> Result<()> {
    json.extend_from_slice(b"{\"upsert\":");
    let mut list = PointListWriter::new(std::mem::take(json));
    given.points.into_iter().try_for_each(|point| list.add(point))?;
    let options = object([
        ("update_mode", upsert::mode(given.update_mode)?),
        ("update_filter", optional_filter(given.update_filter)?),
        ("shard_key", values::shard_key(given.shard_key_selector)),
    ]);
    *json = list.finish(&options);
    json.push(b'}');
    Ok(())
}

/// Appends new vectors without a copy of their numbers.
fn write_vectors(given: operation::UpdateVectors, json: &mut Vec<u8>) -> Result<()> {
    json.extend_from_slice(b"{\"update_vectors\":");
    let mut list = PointListWriter::new(std::mem::take(json));
    given.points.into_iter().try_for_each(|point| list.add_vectors(point))?;
    *json = list.finish(&vector_options(given.update_filter, given.shard_key_selector)?);
    json.push(b'}');
    Ok(())
}

/// Returns the request for an index on a field.
pub(crate) fn create_index(message: pb::CreateFieldIndexCollection) -> Result<RestRequest> {
    let schema = match message.field_index_params.and_then(|params| params.index_params) {
        Some(params) => crate::collections::index_params(params)?,
        None => match message.field_type {
            None => Value::Null,
            Some(number) => Value::from(field_type(number)?),
        },
    };
    let field = Value::String(message.field_name);
    let body = object([("field_name", field), ("field_schema", schema)]);
    let name = &message.collection_name;
    Ok(request(Method::PUT, name, "index", message.timeout, &body))
}

fn field_type(number: i32) -> Result<&'static str> {
    Ok(match pb::FieldType::try_from(number) {
        Ok(pb::FieldType::Keyword) => "keyword",
        Ok(pb::FieldType::Integer) => "integer",
        Ok(pb::FieldType::Float) => "float",
        Ok(pb::FieldType::Geo) => "geo",
        Ok(pb::FieldType::Text) => "text",
        Ok(pb::FieldType::Bool) => "bool",
        Ok(pb::FieldType::Datetime) => "datetime",
        Ok(pb::FieldType::Uuid) => "uuid",
        Err(_) => return Err(Error::invalid("field_type: the interface has no such type")),
    })
}

pub(crate) fn delete_index(message: pb::DeleteFieldIndexCollection) -> Result<RestRequest> {
    let route = format!("index/{}", crate::rest::segment(&message.field_name));
    let request = RestRequest::collection(Method::DELETE, &message.collection_name, &route);
    Ok(request.with_timeout(message.timeout))
}

#[cfg(test)]
mod tests {
    use protocol::qdrant::{DenseVector, PointId, Vector, Vectors, point_id::PointIdOptions};
    use protocol::qdrant::{vector::Vector as Kind, vectors::VectorsOptions};

    use super::*;

    fn new_vector(id: u64) -> pb::PointVectors {
        let dense = Kind::Dense(DenseVector { data: vec![0.5, 1.5] });
        let vector = Vector { vector: Some(dense), ..Vector::default() };
        pb::PointVectors {
            id: Some(PointId { point_id_options: Some(PointIdOptions::Num(id)) }),
            vectors: Some(Vectors { vectors_options: Some(VectorsOptions::Vector(vector)) }),
        }
    }

    fn body(request: &RestRequest) -> Value {
        serde_json::from_slice(&request.body).unwrap()
    }

    #[test]
    fn new_vectors_are_written_one_by_one() {
        let message = pb::UpdatePointVectors {
            collection_name: "c".to_owned(),
            wait: Some(true),
            points: vec![new_vector(1), new_vector(2)],
            update_filter: Some(pb::Filter::default()),
            timeout: Some(3),
            ..pb::UpdatePointVectors::default()
        };
        let request = update_vectors(message.encode_to_vec().into()).unwrap();
        assert_eq!(request.path, "/collections/c/points/vectors?timeout=3&wait=true");
        let written = |id: u64| json!({"id": id, "vector": [0.5, 1.5]});
        let expected = json!({"points": [written(1), written(2)], "update_filter": {}});
        assert_eq!(body(&request), expected);
    }

    #[test]
    fn the_changes_of_a_batch_keep_their_order() {
        let change = |operation| PointsUpdateOperation { operation: Some(operation) };
        let vectors = operation::UpdateVectors {
            points: vec![new_vector(1)],
            ..operation::UpdateVectors::default()
        };
        let keys = vec!["a".to_owned()];
        let keys = operation::DeletePayload { keys, ..operation::DeletePayload::default() };
        let upsert = operation::PointStructList::default();
        let mut message = pb::UpdateBatchPoints {
            collection_name: "c".to_owned(),
            operations: vec![
                change(Operation::UpdateVectors(vectors)),
                change(Operation::DeletePayload(keys)),
                change(Operation::Upsert(upsert)),
            ],
            wait: Some(true),
            ..pb::UpdateBatchPoints::default()
        };
        let request = batch(message.encode_to_vec().into()).unwrap();
        assert_eq!(request.path, "/collections/c/points/batch?wait=true");
        let expected = json!({"operations": [
            {"update_vectors": {"points": [{"id": 1, "vector": [0.5, 1.5]}]}},
            {"delete_payload": {"keys": ["a"]}},
            {"upsert": {"points": []}},
        ]});
        assert_eq!(body(&request), expected);
        message.operations.push(PointsUpdateOperation { operation: None });
        let error = batch(message.encode_to_vec().into()).unwrap_err();
        assert!(error.message().starts_with("operations[3]"), "{error}");
    }
}
