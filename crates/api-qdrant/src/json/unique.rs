//! JSON values whose objects have each member once.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Number, Value};

/// A value without repeated members. The reader of [`Value`] keeps the last of several members of
/// one name. A filter with two lists `must` would lose the first, and match more points.
pub(super) struct UniqueMembers(pub(super) Value);

impl<'de> Deserialize<'de> for UniqueMembers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<UniqueMembers, D::Error> {
        deserializer.deserialize_any(UniqueMembersVisitor).map(UniqueMembers)
    }
}

struct UniqueMembersVisitor;

impl<'de> Visitor<'de> for UniqueMembersVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any valid JSON value")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_string<E: Error>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_none<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        UniqueMembers::deserialize(deserializer).map(|unique| unique.0)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut elements = Vec::new();
        while let Some(UniqueMembers(element)) = access.next_element()? {
            elements.push(element);
        }
        Ok(Value::Array(elements))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut members = Map::new();
        while let Some(name) = access.next_key::<String>()? {
            let UniqueMembers(value) = access.next_value()?;
            if members.contains_key(&name) {
                return Err(A::Error::custom(format_args!("duplicate field `{name}`")));
            }
            members.insert(name, value);
        }
        Ok(Value::Object(members))
    }
}

/// Members of an object, each as its text and each once. The objects in them are not checked.
#[derive(serde::Serialize)]
pub(super) struct UniqueTexts(pub(super) BTreeMap<String, Box<RawValue>>);

impl<'de> Deserialize<'de> for UniqueTexts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<UniqueTexts, D::Error> {
        deserializer.deserialize_map(UniqueTextsVisitor).map(UniqueTexts)
    }
}

struct UniqueTextsVisitor;

impl<'de> Visitor<'de> for UniqueTextsVisitor {
    type Value = BTreeMap<String, Box<RawValue>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Self::Value, A::Error> {
        let mut members = BTreeMap::new();
        while let Some(name) = access.next_key::<String>()? {
            match members.entry(name) {
                Entry::Vacant(entry) => {
                    entry.insert(access.next_value()?);
                }
                Entry::Occupied(entry) => {
                    let name = entry.key();
                    return Err(A::Error::custom(format_args!("duplicate field `{name}`")));
                }
            }
        }
        Ok(members)
    }
}
