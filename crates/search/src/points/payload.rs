//! Stored payloads: the client's object and, for a point with a UUID or a large number, its id.

use base::{Error, Result};
use serde_json::{Map, Value};

use super::{NUMBERS_MAX, PointId, RESERVED_KEY};

/// Maximum levels of objects and lists in a payload. Answers nest it a few levels deeper, and
/// readers of JSON refuse 128 levels.
const LEVELS_MAX: usize = 120;

/// Checks that the payload of a point can be read again.
///
/// # Errors
/// `TooLarge` if it has more than 120 levels of objects and lists.
pub fn check_levels(id: PointId, payload: &Map<String, Value>) -> Result<()> {
    if payload.values().all(|value| has_at_most(value, LEVELS_MAX - 1)) {
        return Ok(());
    }
    Err(Error::too_large(format!(
        "point {id}: its payload is nested deeper than {LEVELS_MAX} levels, and could not be read \
         again; write it with fewer levels"
    )))
}

/// Returns true if a value has at most `levels` levels of objects and lists.
fn has_at_most(value: &Value, levels: usize) -> bool {
    match value {
        Value::Array(elements) => {
            levels > 0 && elements.iter().all(|element| has_at_most(element, levels - 1))
        }
        Value::Object(members) => {
            levels > 0 && members.values().all(|member| has_at_most(member, levels - 1))
        }
        _ => true,
    }
}

/// Returns the bytes to store. Empty for an empty payload of a point whose internal id is its id.
///
/// # Errors
/// `InvalidArgument` if the payload has the reserved key. Also as [`check_levels`].
pub(crate) fn encode(id: PointId, payload: &Map<String, Value>) -> Result<Vec<u8>> {
    check_levels(id, payload)?;
    if payload.contains_key(RESERVED_KEY) {
        return Err(Error::invalid(format!(
            "point {id}: the payload's key \"{RESERVED_KEY}\" is Millpond's own; use another one"
        )));
    }
    let broken = |error| Error::internal(format!("the payload of point {id}")).caused_by(error);
    if !id.is_in_payload() {
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
        // The object's opening brace becomes the comma between the id and its first member.
        bytes[start] = b',';
    }
    Ok(bytes)
}

/// Returns the id of the point with internal id `internal`, and the client's part of its payload.
///
/// # Errors
/// `DataLoss` if the payload is not an object, or has no id although the internal id belongs to a
/// UUID or a large number.
pub(crate) fn decode(internal: u64, bytes: &[u8]) -> Result<(PointId, Map<String, Value>)> {
    let mut payload: Map<String, Value> = if bytes.is_empty() {
        Map::new()
    } else {
        serde_json::from_slice(bytes).map_err(|error| {
            Error::data_loss(format!("the payload of point {internal} is not an object"))
                .caused_by(error)
        })?
    };
    if internal < NUMBERS_MAX {
        return Ok((PointId::Number(internal), payload));
    }
    let stored = payload.remove(RESERVED_KEY);
    let stored = stored.as_ref().and_then(Value::as_str).and_then(|text| text.parse().ok());
    match stored {
        Some(id @ PointId::Uuid(_)) => Ok((id, payload)),
        Some(id) if id == PointId::Number(internal) => Ok((id, payload)),
        _ => Err(Error::data_loss(format!(
            "the point with the internal id {internal} has lost its UUID or number"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::super::PayloadChange;
    use super::*;
    use base::ErrorKind;
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
            assert_eq!(decode(4, &bytes), Ok((PointId::Number(4), payload.clone())));
            let large = PointId::Number(NUMBERS_MAX);
            let bytes = encode(large, &payload).unwrap();
            assert_eq!(decode(NUMBERS_MAX, &bytes), Ok((large, payload)));
            assert!(decode(u64::MAX, &bytes).is_err(), "the number of another point");
        }
        assert!(encode(uuid, &object(json!({RESERVED_KEY: 1}))).is_err());
        assert!(decode(u64::MAX, b"{}").is_err() && decode(u64::MAX, b"").is_err());
    }

    #[test]
    fn a_payload_that_could_not_be_read_again_is_refused() {
        let nested = |levels: usize| {
            let inner = (2..levels).fold(json!([]), |inner, _| json!({ "a": inner }));
            object(json!({ "a": inner }))
        };
        let id = PointId::Number(4);
        let most = nested(LEVELS_MAX);
        let bytes = encode(id, &most).unwrap();
        assert_eq!(decode(4, &bytes), Ok((id, most.clone())));
        assert_eq!(encode(id, &nested(LEVELS_MAX + 1)).unwrap_err().kind(), ErrorKind::TooLarge);
        // Requests are limited by their reader, but the path of a change adds levels.
        let change = PayloadChange::Set { payload: most, key: Some("b.c.d".to_owned()) };
        let mut changed = Map::new();
        change.apply(&mut changed).unwrap();
        assert_eq!(encode(id, &changed).unwrap_err().kind(), ErrorKind::TooLarge);
    }

    proptest! {
        #[test]
        fn any_bytes_cause_no_panic(bytes in prop::collection::vec(any::<u8>(), 0..60), internal in any::<u64>()) {
            let _ = decode(internal, &bytes);
        }
    }
}
