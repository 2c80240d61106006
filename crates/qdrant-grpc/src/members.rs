//! Members of JSON objects.

use serde_json::{Map, Value};

/// Returns the object of the pairs whose value is not null.
pub(crate) fn object<const N: usize>(members: [(&str, Value); N]) -> Value {
    Value::Object(map(members))
}

/// Returns the members whose value is not null.
pub(crate) fn map<const N: usize>(members: [(&str, Value); N]) -> Map<String, Value> {
    let present = members.into_iter().filter(|(_, value)| !value.is_null());
    present.map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Returns the JSON of an optional value, or null if it is absent.
pub(crate) fn optional<T: Into<Value>>(value: Option<T>) -> Value {
    value.map_or(Value::Null, Into::into)
}

/// Returns an array, or null for an empty list.
pub(crate) fn filled(list: Vec<Value>) -> Value {
    if list.is_empty() { Value::Null } else { Value::Array(list) }
}
