//! Payload values, ids and times.

use std::collections::BTreeMap;

use base::{Error, Result};
use chrono::{DateTime, SecondsFormat};
use prost_types::Timestamp;
use protocol::qdrant::point_id::PointIdOptions;
use protocol::qdrant::shard_key::Key;
use protocol::qdrant::value::Kind;
use protocol::qdrant::{ListValue, PointId, ShardKeySelector, Struct, Value as Wire};
use serde::Deserialize;
use serde_json::{Map, Number, Value};

/// Returns the JSON of a payload value.
///
/// # Errors
/// `InvalidArgument` for a number that is not finite.
pub(crate) fn to_json(value: Wire) -> Result<Value> {
    Ok(match value.kind {
        None | Some(Kind::NullValue(_)) => Value::Null,
        Some(Kind::DoubleValue(number)) => finite(number)?,
        Some(Kind::IntegerValue(number)) => Value::from(number),
        Some(Kind::StringValue(text)) => Value::String(text),
        Some(Kind::BoolValue(value)) => Value::Bool(value),
        Some(Kind::StructValue(Struct { fields })) => Value::Object(to_members(fields)?),
        Some(Kind::ListValue(ListValue { values })) => {
            Value::Array(values.into_iter().map(to_json).collect::<Result<_>>()?)
        }
    })
}

/// Returns the JSON members of payload fields.
///
/// # Errors
/// As [`to_json`], with the field's name.
pub(crate) fn to_members(fields: BTreeMap<String, Wire>) -> Result<Map<String, Value>> {
    let member = |(name, value): (String, Wire)| {
        let value = to_json(value).map_err(|error| error.context(&name))?;
        Ok((name, value))
    };
    fields.into_iter().map(member).collect()
}

/// Returns the JSON of a number.
///
/// # Errors
/// `InvalidArgument` if it is not finite.
pub(crate) fn finite(number: f64) -> Result<Value> {
    let number = Number::from_f64(number);
    let refused = || Error::invalid("a number that is not finite has no JSON");
    Ok(Value::Number(number.ok_or_else(refused)?))
}

/// Returns the payload value of JSON.
pub(crate) fn of_json(value: Value) -> Wire {
    let kind = match value {
        Value::Null => Kind::NullValue(0),
        Value::Bool(value) => Kind::BoolValue(value),
        Value::Number(number) => match number.as_i64() {
            Some(whole) => Kind::IntegerValue(whole),
            None => Kind::DoubleValue(number.as_f64().unwrap_or_default()),
        },
        Value::String(text) => Kind::StringValue(text),
        Value::Array(values) => {
            Kind::ListValue(ListValue { values: values.into_iter().map(of_json).collect() })
        }
        Value::Object(members) => Kind::StructValue(Struct { fields: of_members(members) }),
    };
    Wire { kind: Some(kind) }
}

/// Returns the payload fields of JSON members.
pub(crate) fn of_members(members: Map<String, Value>) -> BTreeMap<String, Wire> {
    members.into_iter().map(|(name, value)| (name, of_json(value))).collect()
}

/// Returns the JSON of a point's id.
///
/// # Errors
/// `InvalidArgument` for an id without a number or a UUID.
pub(crate) fn id(id: PointId) -> Result<Value> {
    match id.point_id_options {
        Some(PointIdOptions::Num(number)) => Ok(Value::from(number)),
        Some(PointIdOptions::Uuid(text)) => Ok(Value::String(text)),
        None => Err(Error::invalid("a point id has neither num nor uuid")),
    }
}

/// Returns the JSON of an id that a message must have.
///
/// # Errors
/// `InvalidArgument` if it is missing.
pub(crate) fn needed_id(point: Option<PointId>) -> Result<Value> {
    id(point.ok_or_else(|| Error::invalid("a point without an id"))?)
}

/// Returns the JSON list of ids.
///
/// # Errors
/// As [`id`].
pub(crate) fn ids(list: Vec<PointId>) -> Result<Value> {
    Ok(Value::Array(list.into_iter().map(id).collect::<Result<_>>()?))
}

/// Id of a point in JSON.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum JsonId {
    Number(u64),
    Uuid(String),
}

impl From<JsonId> for PointId {
    fn from(id: JsonId) -> PointId {
        let options = match id {
            JsonId::Number(number) => PointIdOptions::Num(number),
            JsonId::Uuid(text) => PointIdOptions::Uuid(text),
        };
        PointId { point_id_options: Some(options) }
    }
}

/// Returns the JSON of a choice of shards, which a route refuses, or null if nothing is chosen.
pub(crate) fn shard_key(selector: Option<ShardKeySelector>) -> Value {
    let keys = selector.map(|selector| selector.shard_keys).unwrap_or_default();
    let key = |key: protocol::qdrant::ShardKey| match key.key {
        Some(Key::Keyword(text)) => Value::String(text),
        Some(Key::Number(number)) => Value::from(number),
        None => Value::Null,
    };
    super::members::filled(keys.into_iter().map(key).collect())
}

/// Returns the date of a time as in RFC 3339.
///
/// # Errors
/// `InvalidArgument` for a time outside the calendar.
pub(crate) fn date(time: Timestamp) -> Result<Value> {
    let nanos = u32::try_from(time.nanos).ok();
    let date = nanos.and_then(|nanos| DateTime::from_timestamp(time.seconds, nanos));
    let date = date.ok_or_else(|| Error::invalid("a timestamp is outside the calendar"))?;
    Ok(Value::String(date.to_rfc3339_opts(SecondsFormat::AutoSi, true)))
}

/// Returns the time of a date in JSON, or `None` if the text is not a date as in RFC 3339.
pub(crate) fn time(text: &str) -> Option<Timestamp> {
    // Without an offset a date is in UTC.
    let date = DateTime::parse_from_rfc3339(text)
        .or_else(|_| DateTime::parse_from_rfc3339(&format!("{text}Z")));
    let date = date.ok()?;
    let nanos = i32::try_from(date.timestamp_subsec_nanos()).ok()?;
    Some(Timestamp { seconds: date.timestamp(), nanos })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_keep_their_types() {
        let value = json!({"a": [1, -2.5, "x", null, true], "b": {"c": 9_007_199_254_740_993_i64}});
        assert_eq!(to_json(of_json(value.clone())).unwrap(), value);
        let large = of_json(json!(u64::MAX));
        assert_eq!(large.kind, Some(Kind::DoubleValue(u64::MAX as f64)));
        let wrong = Wire { kind: Some(Kind::DoubleValue(f64::NAN)) };
        let fields = BTreeMap::from([("n".to_owned(), wrong)]);
        assert!(to_members(fields).unwrap_err().message().contains("n: a number"));
    }

    #[test]
    fn dates_and_times_are_the_same_moment() {
        let time_of_day = Timestamp { seconds: 1_718_452_800, nanos: 250_000_000 };
        let text = date(time_of_day).unwrap();
        assert_eq!(text, json!("2024-06-15T12:00:00.250Z"));
        assert_eq!(time(text.as_str().unwrap()), Some(time_of_day));
        assert_eq!(time("2024-06-15T12:00:00.250"), Some(time_of_day));
        assert_eq!(time("yesterday"), None);
        assert!(date(Timestamp { seconds: i64::MAX, nanos: 0 }).is_err());
    }
}
