//! Long lists of points and of changes. Their elements are decoded and written as JSON one by one,
//! so that a message of many points takes little more memory than its JSON text.

use base::{Error, Result};
use bytes::{Buf, Bytes};
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};
use protocol::qdrant as pb;
use protocol::unreadable;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::values;
use crate::vectors::{self, PointVectors};

/// A point that is written as JSON.
#[derive(Serialize)]
struct PointJson<'a> {
    id: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    vector: Option<PointVectors<'a>>,
    /// `None` for a point that only gets a new vector.
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<Map<String, Value>>,
}

/// Calls `element` for the bytes of each element of the field with the number `list`. Returns the
/// bytes of the other fields, which are a message too.
///
/// # Errors
/// `InvalidArgument` for bytes that are not a message. Also the errors of `element`.
pub(crate) fn split_list(
    message: Bytes,
    list: u32,
    mut element: impl FnMut(Bytes) -> Result<()>,
) -> Result<Vec<u8>> {
    let mut others = Vec::new();
    let mut rest = message;
    while rest.has_remaining() {
        let start = rest.clone();
        let (tag, kind) = decode_key(&mut rest).map_err(unreadable)?;
        if tag == list && kind == WireType::LengthDelimited {
            let length = decode_varint(&mut rest).map_err(unreadable)?;
            let length = usize::try_from(length).unwrap_or(usize::MAX);
            if length > rest.remaining() {
                return Err(Error::invalid("the message cannot be read: it is cut off"));
            }
            element(rest.split_to(length))?;
        } else {
            skip_field(kind, tag, &mut rest, DecodeContext::default()).map_err(unreadable)?;
            let length = start.remaining() - rest.remaining();
            others.extend_from_slice(start.get(..length).unwrap_or_default());
        }
    }
    Ok(others)
}

/// Writer of the object `{"points": [..]}`.
pub(crate) struct PointListWriter {
    json: Vec<u8>,
    count: usize,
}

impl PointListWriter {
    /// Creates a writer that appends to the text `json`.
    pub(crate) fn new(mut json: Vec<u8>) -> PointListWriter {
        json.extend_from_slice(b"{\"points\":[");
        PointListWriter { json, count: 0 }
    }

    /// Adds a point to be written.
    ///
    /// # Errors
    /// `InvalidArgument` for a point without an id, and for values that have no JSON.
    pub(crate) fn add(&mut self, point: pb::PointStruct) -> Result<()> {
        self.add_element(|json| {
            let vector = point.vectors.as_ref().map(vectors::vectors).transpose()?.flatten();
            let payload = values::to_members(point.payload);
            let payload = Some(payload.map_err(|error| error.context("payload"))?);
            write(json, &PointJson { id: values::needed_id(point.id)?, vector, payload })
        })
    }

    /// Adds the new vector of a point.
    ///
    /// # Errors
    /// As [`PointListWriter::add`].
    pub(crate) fn add_vectors(&mut self, point: pb::PointVectors) -> Result<()> {
        self.add_element(|json| {
            let vector = point.vectors.as_ref().map(vectors::vectors).transpose()?.flatten();
            write(json, &PointJson { id: values::needed_id(point.id)?, vector, payload: None })
        })
    }

    fn add_element(&mut self, write: impl FnOnce(&mut Vec<u8>) -> Result<()>) -> Result<()> {
        if self.count > 0 {
            self.json.push(b',');
        }
        let written = write(&mut self.json);
        written.map_err(|error| error.context(format_args!("points[{}]", self.count)))?;
        self.count += 1;
        Ok(())
    }

    /// Returns the text, in which the members of `options` follow the points.
    pub(crate) fn finish(self, options: &Value) -> Vec<u8> {
        let mut json = self.json;
        json.push(b']');
        for (name, value) in options.as_object().into_iter().flatten() {
            json.extend_from_slice(format!(",{}:{value}", Value::from(name.as_str())).as_bytes());
        }
        json.push(b'}');
        json
    }
}

fn write(json: &mut Vec<u8>, point: &PointJson<'_>) -> Result<()> {
    serde_json::to_writer(json, point)
        .map_err(|error| Error::internal("a point has no JSON").caused_by(error))
}
