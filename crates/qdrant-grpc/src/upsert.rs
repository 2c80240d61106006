//! Upserts: points are decoded and written as JSON one by one, so that a message of many points
//! takes little more memory than its JSON text.

use base::{Error, Result};
use bytes::{Buf, Bytes};
use http::Method;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};
use protocol::qdrant::{PointStruct, UpdateMode, UpsertPoints};
use protocol::{Message, unreadable};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::filters::optional_filter;
use crate::members::object;
use crate::rest::RestRequest;
use crate::values;
use crate::vectors::{self, PointVectors};

/// Field of [`UpsertPoints`] with the points.
pub(crate) const POINTS_FIELD: u32 = 3;

/// A point that is written as JSON.
#[derive(Serialize)]
struct PointJson<'a> {
    id: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    vector: Option<PointVectors<'a>>,
    payload: Map<String, Value>,
}

/// Appends the JSON of a point.
///
/// # Errors
/// `InvalidArgument` for a point without an id, and for values that have no JSON.
pub(crate) fn write_point(point: PointStruct, json: &mut Vec<u8>) -> Result<()> {
    let vector = point.vectors.as_ref().map(vectors::vectors).transpose()?.flatten();
    let payload = values::to_members(point.payload).map_err(|error| error.context("payload"))?;
    let written = PointJson { id: values::needed_id(point.id)?, vector, payload };
    serde_json::to_writer(json, &written)
        .map_err(|error| Error::internal("a point has no JSON").caused_by(error))
}

/// Writes the JSON list of points that `next` returns.
struct PointListWriter {
    json: Vec<u8>,
    count: usize,
}

impl PointListWriter {
    fn new(start: &str, capacity: usize) -> PointListWriter {
        let mut json = Vec::with_capacity(capacity);
        json.extend_from_slice(start.as_bytes());
        PointListWriter { json, count: 0 }
    }

    fn add(&mut self, point: PointStruct) -> Result<()> {
        if self.count > 0 {
            self.json.push(b',');
        }
        let written = write_point(point, &mut self.json);
        written.map_err(|error| error.context(format_args!("points[{}]", self.count)))?;
        self.count += 1;
        Ok(())
    }
}

/// Returns the JSON text of `{"points": [...]}` without the last brace.
///
/// # Errors
/// As [`write_point`].
pub(crate) fn points_json(points: Vec<PointStruct>) -> Result<Vec<u8>> {
    let mut list = PointListWriter::new("{\"points\":[", 0);
    points.into_iter().try_for_each(|point| list.add(point))?;
    list.json.push(b']');
    Ok(list.json)
}

/// Returns the request for the message of an upsert.
///
/// # Errors
/// `InvalidArgument` for bytes that are not such a message, and as [`write_point`].
pub(crate) fn request(message: Bytes) -> Result<RestRequest> {
    // Numbers of vectors take about twice as many bytes as text.
    let mut list = PointListWriter::new("{\"points\":[", message.len().saturating_mul(2));
    let mut others = Vec::new();
    let mut rest = message;
    while rest.has_remaining() {
        let start = rest.clone();
        let (tag, kind) = decode_key(&mut rest).map_err(unreadable)?;
        if tag == POINTS_FIELD && kind == WireType::LengthDelimited {
            let length = decode_varint(&mut rest).map_err(unreadable)?;
            let length = usize::try_from(length).unwrap_or(usize::MAX);
            if length > rest.remaining() {
                return Err(Error::invalid("the message cannot be read: it is cut off"));
            }
            let point = PointStruct::decode(rest.split_to(length)).map_err(unreadable)?;
            list.add(point)?;
        } else {
            skip_field(kind, tag, &mut rest, DecodeContext::default()).map_err(unreadable)?;
            let length = start.remaining() - rest.remaining();
            others.extend_from_slice(start.get(..length).unwrap_or_default());
        }
    }
    let others = UpsertPoints::decode(others.as_slice()).map_err(unreadable)?;
    let mut json = list.json;
    json.push(b']');
    let options = options(&others)?;
    finish(&mut json, options);
    let request = RestRequest::collection(Method::PUT, &others.collection_name, "points");
    Ok(request.with_timeout(others.timeout).with_body(json))
}

fn options(message: &UpsertPoints) -> Result<Value> {
    let mode = mode(message.update_mode)?;
    Ok(object([
        ("update_mode", mode),
        ("update_filter", optional_filter(message.update_filter.clone())?),
        ("shard_key", values::shard_key(message.shard_key_selector.clone())),
    ]))
}

/// Returns the JSON of an update mode; null if it is the default.
///
/// # Errors
/// `InvalidArgument` for an unknown number.
pub(crate) fn mode(mode: Option<i32>) -> Result<Value> {
    match mode.map(UpdateMode::try_from) {
        None | Some(Ok(UpdateMode::Upsert)) => Ok(Value::Null),
        Some(Ok(UpdateMode::InsertOnly)) => Ok(Value::from("insert_only")),
        Some(Ok(UpdateMode::UpdateOnly)) => Ok(Value::from("update_only")),
        Some(Err(_)) => Err(Error::invalid("update_mode: the interface has no such mode")),
    }
}

/// Appends the members of `options` to an object that is open at its end, and closes it.
pub(crate) fn finish(json: &mut Vec<u8>, options: Value) {
    for (name, value) in options.as_object().into_iter().flatten() {
        json.extend_from_slice(format!(",{}:{value}", Value::from(name.as_str())).as_bytes());
    }
    json.push(b'}');
}

#[cfg(test)]
mod tests {
    use protocol::qdrant::vector::Vector as Kind;
    use protocol::qdrant::vectors::VectorsOptions;
    use protocol::qdrant::{DenseVector, PointId, Vector, Vectors, point_id::PointIdOptions};
    use serde_json::json;

    use super::*;

    fn point(id: u64) -> PointStruct {
        let dense = Kind::Dense(DenseVector { data: vec![0.5, 1.5] });
        let vector = Vector { vector: Some(dense), ..Vector::default() };
        PointStruct {
            id: Some(PointId { point_id_options: Some(PointIdOptions::Num(id)) }),
            payload: [("n".to_owned(), values::of_json(json!(id)))].into(),
            vectors: Some(Vectors { vectors_options: Some(VectorsOptions::Vector(vector)) }),
        }
    }

    #[test]
    fn points_are_written_one_by_one() {
        let message = UpsertPoints {
            collection_name: "a b".to_owned(),
            wait: Some(true),
            points: vec![point(1), point(2)],
            timeout: Some(3),
            update_mode: Some(1),
            ..UpsertPoints::default()
        };
        let request = request(message.encode_to_vec().into()).unwrap();
        assert_eq!(request.path, "/collections/a%20b/points?timeout=3");
        let body: Value = serde_json::from_slice(&request.body).unwrap();
        let written = |id: u64| json!({"id": id, "vector": [0.5, 1.5], "payload": {"n": id}});
        let expected = json!({"points": [written(1), written(2)], "update_mode": "insert_only"});
        assert_eq!(body, expected);
    }

    #[test]
    fn messages_that_are_cut_off_or_lack_an_id_are_refused() {
        let message = UpsertPoints { points: vec![point(1)], ..UpsertPoints::default() };
        let bytes = message.encode_to_vec();
        for length in 1..bytes.len() {
            assert!(request(Bytes::copy_from_slice(&bytes[..length])).is_err(), "{length}");
        }
        let nameless = PointStruct { id: None, ..point(1) };
        let message = UpsertPoints { points: vec![point(1), nameless], ..UpsertPoints::default() };
        let error = request(message.encode_to_vec().into()).unwrap_err();
        assert!(error.message().starts_with("points[1]"), "{error}");
    }
}
