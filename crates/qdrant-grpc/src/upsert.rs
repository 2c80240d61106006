//! Upserts, whose points become JSON one by one.

use base::{Error, Result};
use bytes::Bytes;
use http::Method;
use protocol::qdrant::{PointStruct, UpdateMode, UpsertPoints};
use protocol::{Message, unreadable};
use serde_json::Value;

use crate::filters::optional_filter;
use crate::members::object;
use crate::point_list::{PointListWriter, split_list};
use crate::rest::RestRequest;
use crate::values;

/// Field of [`UpsertPoints`] with the points.
pub(crate) const POINTS_FIELD: u32 = 3;

/// Returns the request for the message of an upsert.
///
/// # Errors
/// `InvalidArgument` for bytes that are not such a message, and as [`PointListWriter::add`].
pub(crate) fn request(message: Bytes) -> Result<RestRequest> {
    // Numbers of vectors take about twice as many bytes as text.
    let mut list = PointListWriter::new(Vec::with_capacity(message.len().saturating_mul(2)));
    let others = split_list(message, POINTS_FIELD, |point| {
        list.add(PointStruct::decode(point).map_err(unreadable)?)
    })?;
    let others = UpsertPoints::decode(others.as_slice()).map_err(unreadable)?;
    let json = list.finish(&options(&others)?);
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

/// Returns the JSON of an update mode, or null if it is the default.
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
