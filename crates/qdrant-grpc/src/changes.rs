//! Changes of points and payloads, except upserts, as requests of the REST routes.

use base::{Error, Result};
use http::Method;
use protocol::qdrant as pb;
use protocol::qdrant::points_update_operation::{self as operation, Operation};
use protocol::qdrant::{PointsSelector, PointsUpdateOperation, ShardKeySelector};
use serde_json::{Map, Value, json};

use crate::filters::{optional_filter, selection};
use crate::members::{map, object, optional};
use crate::rest::RestRequest;
use crate::{upsert, values, vectors};

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

fn point_vectors(points: &[pb::PointVectors]) -> Result<Value> {
    let point = |point: &pb::PointVectors| {
        let vector = point.vectors.as_ref().map(vectors::vectors).transpose()?.flatten();
        let vector = serde_json::to_value(vector)
            .map_err(|error| Error::internal("a vector has no JSON").caused_by(error))?;
        Ok(object([("id", values::needed_id(point.id.clone())?), ("vector", vector)]))
    };
    Ok(Value::Array(points.iter().map(point).collect::<Result<_>>()?))
}

pub(crate) fn update_vectors(message: pb::UpdatePointVectors) -> Result<RestRequest> {
    let body = object([
        ("points", point_vectors(&message.points)?),
        ("update_filter", optional_filter(message.update_filter)?),
        ("shard_key", values::shard_key(message.shard_key_selector)),
    ]);
    let name = &message.collection_name;
    let request = request(Method::PUT, name, "points/vectors", message.timeout, &body);
    Ok(request.with_wait(message.wait))
}

pub(crate) fn delete_vectors(message: pb::DeletePointVectors) -> Result<RestRequest> {
    let names = message.vectors.map(|vectors| vectors.names).unwrap_or_default();
    let vector = [("vector", json!(names))];
    let body = chosen(message.points_selector, message.shard_key_selector, vector)?;
    let name = &message.collection_name;
    Ok(request(Method::POST, name, "points/vectors/delete", message.timeout, &body))
}

pub(crate) fn batch(message: pb::UpdateBatchPoints) -> Result<RestRequest> {
    let mut json = b"{\"operations\":[".to_vec();
    for (at, change) in message.operations.into_iter().enumerate() {
        if at > 0 {
            json.push(b',');
        }
        let written = write_operation(change, &mut json);
        written.map_err(|error| error.context(format_args!("operations[{at}]")))?;
    }
    json.extend_from_slice(b"]}");
    let request = RestRequest::collection(Method::POST, &message.collection_name, "points/batch");
    Ok(request.with_timeout(message.timeout).with_wait(message.wait).with_body(json))
}

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
        Operation::UpdateVectors(given) => {
            let body = object([
                ("points", point_vectors(&given.points)?),
                ("update_filter", optional_filter(given.update_filter)?),
                ("shard_key", values::shard_key(given.shard_key_selector)),
            ]);
            json!({ "update_vectors": body })
        }
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
fn write_upsert(list: operation::PointStructList, json: &mut Vec<u8>) -> Result<()> {
    let options = object([
        ("update_mode", upsert::mode(list.update_mode)?),
        ("update_filter", optional_filter(list.update_filter)?),
        ("shard_key", values::shard_key(list.shard_key_selector)),
    ]);
    json.extend_from_slice(b"{\"upsert\":");
    json.extend(upsert::points_json(list.points)?);
    upsert::finish(json, options);
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
