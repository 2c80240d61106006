//! Checks of embeddings, records and payloads of points.

use base::{Error, Result};
use matching::Graph;
use search::points::PointId;
use serde_json::{Map, Value};

use super::features::BLOCK;
use super::settings::ImageKind;

/// Maximum bytes of a payload's JSON with the service's block. Collections take 64 KiB, and the
/// rest is for the id that they keep with it.
pub const PAYLOAD_BYTES_MAX: usize = (64 << 10) - 256;
/// Maximum bytes of the stored payload of an image in a shard. Two changes at the same moment can
/// enlarge it beyond [`PAYLOAD_BYTES_MAX`]. Shards take 256 KiB, and the rest is for the id.
pub(crate) const SHARD_PAYLOAD_BYTES_MAX: usize = (256 << 10) - 256;
/// Maximum levels of a payload's JSON. The log of a shard nests it deeper, and JSON readers stop at
/// 128.
const PAYLOAD_DEPTH_MAX: usize = 120;
/// Start of the keys that collections keep in payloads for themselves.
const RESERVED_KEYS: &str = "__millpond";
/// Lengths of an embedding, besides 0, that every index can compare. Collections check this too,
/// with slightly wider limits, but their error does not say which point of the request it is.
const LENGTHS: std::ops::RangeInclusive<f64> = 1e-18..=1e17;

/// Decodes the record of a stored point.
///
/// # Errors
/// `NotFound` for a point without keypoints; `DataLoss` for a damaged record.
pub fn stored_graph(id: &PointId, record: &[u8]) -> Result<Graph> {
    if record.is_empty() {
        return Err(Error::not_found(format!(
            "point {id} has no keypoints: it was written as a vector alone; add its image"
        )));
    }
    Graph::decode(record)
}

/// Checks that a caller's payload has no key of the service.
///
/// # Errors
/// `InvalidArgument` with the key.
pub fn check_own_keys(payload: &Map<String, Value>) -> Result<()> {
    if payload.contains_key(BLOCK) {
        return Err(own_key(BLOCK));
    }
    check_reserved_keys(payload)
}

/// Checks that a payload, which may have the service's block, has no key that collections use.
///
/// # Errors
/// `InvalidArgument` with the key.
pub(crate) fn check_reserved_keys(payload: &Map<String, Value>) -> Result<()> {
    let reserved = payload.keys().find(|key| key.starts_with(RESERVED_KEYS));
    reserved.map_or(Ok(()), |key| Err(own_key(key)))
}

fn own_key(key: &str) -> Error {
    Error::invalid(format!("the payload's key \"{key}\" is the service's own; use another one"))
}

/// Checks the size of a payload with the service's block.
///
/// # Errors
/// `TooLarge` for more than `bytes_max` bytes.
pub fn check_payload_size(payload: &Map<String, Value>, bytes_max: usize) -> Result<()> {
    let bytes = serde_json::to_vec(payload).map_or(usize::MAX, |text| text.len());
    if bytes <= bytes_max {
        return Ok(());
    }
    Err(Error::too_large(format!(
        "the payload has {bytes} bytes with the service's own, {bytes_max} at most"
    )))
}

/// Checks that a payload can be read again after a log has nested it deeper.
///
/// # Errors
/// `InvalidArgument` for more than 120 levels.
pub fn check_payload_depth(payload: &Map<String, Value>) -> Result<()> {
    if payload.values().all(|value| is_within(value, PAYLOAD_DEPTH_MAX - 1)) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "the payload is nested deeper than {PAYLOAD_DEPTH_MAX} levels; write it with fewer levels"
    )))
}

/// Returns true if a value has at most `depth` levels.
fn is_within(value: &Value, depth: usize) -> bool {
    let Some(inner) = depth.checked_sub(1) else {
        return !matches!(value, Value::Array(_) | Value::Object(_));
    };
    match value {
        Value::Array(values) => values.iter().all(|value| is_within(value, inner)),
        Value::Object(members) => members.values().all(|value| is_within(value, inner)),
        _ => true,
    }
}

/// Checks that an embedding has `dims` finite values that every index can compare.
///
/// # Errors
/// `InvalidArgument`.
pub fn check_embedding(embedding: &[f32], dims: usize) -> Result<()> {
    if embedding.len() != dims {
        return Err(Error::invalid(format!(
            "the embedding has {} values, and the collection's have {dims}",
            embedding.len()
        )));
    }
    if let Some(at) = embedding.iter().position(|value| !value.is_finite()) {
        return Err(Error::invalid(format!("embedding[{at}] is not a finite 32-bit number")));
    }
    let square: f64 = embedding.iter().map(|value| f64::from(*value) * f64::from(*value)).sum();
    let length = square.sqrt();
    if length == 0.0 || LENGTHS.contains(&length) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "the embedding has the length {length:.1e}, but it must be {:.0e} to {:.0e}; scale it",
        LENGTHS.start(),
        LENGTHS.end()
    )))
}

/// Decodes a record, and checks that it is of an image of this kind.
///
/// # Errors
/// `InvalidArgument`.
pub fn decode_graph(record: &[u8], kind: ImageKind) -> Result<Graph> {
    let graph = Graph::decode(record)
        .map_err(|error| Error::invalid(format!("record: {}", error.message())))?;
    let fits = match kind {
        ImageKind::Photo => graph.described() || graph.vertices.is_empty(),
        ImageKind::Fingerprint => graph.descriptors.is_empty(),
    };
    if fits {
        return Ok(graph);
    }
    Err(Error::invalid(match kind {
        ImageKind::Photo => {
            "record: its keypoints have no descriptors, as those of fingerprints; the collection holds photographs"
        }
        ImageKind::Fingerprint => {
            "record: its keypoints have descriptors, as those of photographs; the collection holds fingerprints"
        }
    }))
}
