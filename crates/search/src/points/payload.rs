//! Stored payloads: the client's object and, for a point with a UUID, the UUID.

use base::{Error, Result};
use serde_json::{Map, Value};

use super::PointId;

/// Key of a point's UUID in its stored payload. Clients can neither write nor see it.
pub(crate) const RESERVED_KEY: &str = "__millpond_id";

/// Returns the bytes to store: none for an empty payload of a point with a number.
///
/// # Errors
/// `InvalidArgument` if the payload has the reserved key.
pub(crate) fn encode(id: PointId, payload: &Map<String, Value>) -> Result<Vec<u8>> {
    if payload.contains_key(RESERVED_KEY) {
        return Err(Error::invalid(format!(
            "point {id}: the payload's key \"{RESERVED_KEY}\" is Millpond's own; use another one"
        )));
    }
    let broken = |error| Error::internal(format!("the payload of point {id}")).caused_by(error);
    if let PointId::Number(_) = id {
        return if payload.is_empty() {
            Ok(Vec::new())
        } else {
            serde_json::to_vec(payload).map_err(broken)
        };
    }
    let mut bytes = format!("{{\"{RESERVED_KEY}\":\"{id}\"").into_bytes();
    if payload.is_empty() {
        bytes.push(b'}');
    } else {
        let start = bytes.len();
        serde_json::to_writer(&mut bytes, payload).map_err(broken)?;
        // The object's opening brace becomes the comma between the UUID and its first member.
        bytes[start] = b',';
    }
    Ok(bytes)
}

/// Returns the id of the point with the internal id `internal`, and the client's part of its
/// payload.
///
/// # Errors
/// `DataLoss` if the payload is not an object, or has no UUID although the internal id belongs to a
/// UUID.
pub(crate) fn decode(internal: u64, bytes: &[u8]) -> Result<(PointId, Map<String, Value>)> {
    let mut payload: Map<String, Value> = if bytes.is_empty() {
        Map::new()
    } else {
        serde_json::from_slice(bytes).map_err(|error| {
            Error::data_loss(format!("the payload of point {internal} is not an object"))
                .caused_by(error)
        })?
    };
    if let Ok(id) = PointId::number(internal) {
        return Ok((id, payload));
    }
    let uuid = payload.remove(RESERVED_KEY);
    let uuid = uuid.as_ref().and_then(Value::as_str).and_then(|text| text.parse().ok());
    match uuid {
        Some(id @ PointId::Uuid(_)) => Ok((id, payload)),
        _ => Err(Error::data_loss(format!(
            "the point with the internal id {internal} has lost its UUID"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn object(value: Value) -> Map<String, Value> {
        value.as_object().cloned().unwrap_or_default()
    }

    #[test]
    fn payloads_round_trip() {
        let uuid = PointId::Uuid([9; 16]);
        for payload in [json!({}), json!({"a": 1}), json!({"b": {"c": [1, null]}, "a\"": "x"})] {
            let payload = object(payload);
            let bytes = encode(uuid, &payload).unwrap();
            assert_eq!(decode(u64::MAX, &bytes), Ok((uuid, payload.clone())));
            let bytes = encode(PointId::Number(4), &payload).unwrap();
            assert_eq!(decode(4, &bytes), Ok((PointId::Number(4), payload)));
        }
        assert!(encode(uuid, &object(json!({RESERVED_KEY: 1}))).is_err());
        assert!(decode(u64::MAX, b"{}").is_err() && decode(u64::MAX, b"").is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_cause_no_panic(bytes in prop::collection::vec(any::<u8>(), 0..60), internal in any::<u64>()) {
            let _ = decode(internal, &bytes);
        }
    }
}
