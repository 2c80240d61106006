//! What points are called by.

use std::fmt;
use std::str::FromStr;

use base::{Error, Result};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

/// Numbers are below this; the rest of the 64-bit ids belongs to UUIDs.
pub const NUMBERS_MAX: u64 = 1 << 63;

/// A number or a UUID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PointId {
    /// A number below [`NUMBERS_MAX`].
    Number(u64),
    /// A UUID of any version, its bytes in the order in which it is written.
    Uuid([u8; 16]),
}

/// 63 bits of a UUID's BLAKE3 hash: the first eight bytes, little-endian, without the highest bit. A hash with no
/// structure, because version 7 UUIDs of one moment share their first half.
pub fn uuid_hash(uuid: &[u8; 16]) -> u64 {
    let hash = blake3::hash(uuid);
    let first = hash.as_bytes().first_chunk().copied().unwrap_or_default();
    u64::from_le_bytes(first) & (NUMBERS_MAX - 1)
}

impl PointId {
    /// From a JSON number or string.
    ///
    /// # Errors
    /// `InvalidArgument` for anything that is no whole number below 2^63 and no UUID.
    pub fn from_json(value: &Value) -> Result<PointId> {
        match value {
            Value::Number(number) => match number.as_u64() {
                Some(number) => PointId::number(number),
                None => {
                    Err(Error::invalid(format!("a point's id is a whole number or a UUID, not {number}")))
                }
            },
            Value::String(text) => text.parse(),
            _ => Err(Error::invalid("a point's id is a whole number or a UUID in quotation marks")),
        }
    }

    /// As JSON: a number, or a UUID with hyphens.
    pub fn to_json(&self) -> Value {
        match self {
            PointId::Number(number) => Value::from(*number),
            PointId::Uuid(_) => Value::from(self.to_string()),
        }
    }

    /// Of a number.
    ///
    /// # Errors
    /// `InvalidArgument` for one that is not below [`NUMBERS_MAX`].
    pub fn number(number: u64) -> Result<PointId> {
        if number < NUMBERS_MAX {
            return Ok(PointId::Number(number));
        }
        Err(Error::invalid(format!(
            "point id {number} is too large; numbers go up to 9223372036854775807, use a UUID"
        )))
    }
}

impl FromStr for PointId {
    type Err = Error;

    /// A UUID with or without hyphens, in braces or after `urn:uuid:`, as RFC 9562 and clients write it; a number in
    /// digits.
    fn from_str(text: &str) -> Result<PointId> {
        let odd = || {
            let shown: String = text.chars().take(64).collect();
            Error::invalid(format!("\"{shown}\" is no point id; use a whole number or a UUID"))
        };
        if !text.is_empty() && text.len() <= 20 && text.bytes().all(|byte| byte.is_ascii_digit()) {
            return PointId::number(text.parse().map_err(|_| odd())?);
        }
        uuid::Uuid::try_parse(text).map(|uuid| PointId::Uuid(uuid.into_bytes())).map_err(|_| odd())
    }
}

impl fmt::Display for PointId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PointId::Number(number) => number.fmt(f),
            PointId::Uuid(bytes) => {
                let text = format!("{:032x}", u128::from_be_bytes(*bytes));
                let parts = [&text[..8], &text[8..12], &text[12..16], &text[16..20], &text[20..]];
                f.write_str(&parts.join("-"))
            }
        }
    }
}

impl Serialize for PointId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            PointId::Number(number) => serializer.serialize_u64(*number),
            PointId::Uuid(_) => serializer.collect_str(self),
        }
    }
}

impl<'de> Deserialize<'de> for PointId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<PointId, D::Error> {
        let value = Value::deserialize(deserializer)?;
        PointId::from_json(&value).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn what_clients_write_is_read() {
        let uuid = PointId::Uuid(0x5c56_c793_69f3_4fbf_87e6_c4bf_54c2_8c26_u128.to_be_bytes());
        for text in [
            "5c56c793-69f3-4fbf-87e6-c4bf54c28c26",
            "5C56C79369F34FBF87E6C4BF54C28C26",
            "urn:uuid:5c56c793-69f3-4fbf-87e6-c4bf54c28c26",
            "{5c56c793-69f3-4fbf-87e6-c4bf54c28c26}",
        ] {
            assert_eq!(text.parse::<PointId>(), Ok(uuid), "{text}");
        }
        assert_eq!(uuid.to_json(), json!("5c56c793-69f3-4fbf-87e6-c4bf54c28c26"));
        assert_eq!("17".parse(), Ok(PointId::Number(17)));
        let largest = PointId::Number(NUMBERS_MAX - 1);
        assert_eq!(PointId::from_json(&json!(NUMBERS_MAX - 1)), Ok(largest));
        for odd in [
            json!(NUMBERS_MAX),
            json!(-1),
            json!(1.5),
            json!(null),
            json!("x"),
            json!(""),
            json!("é".repeat(16)),
        ] {
            assert!(PointId::from_json(&odd).is_err(), "{odd}");
        }
        assert!("5c56c793-69f3-4fbf-87e6c4bf-54c28c26".parse::<PointId>().is_err());
    }

    /// The hash is part of the format: another one would lose every UUID there is.
    #[test]
    fn the_hash_stays_as_it_is() {
        assert_eq!(uuid_hash(&[0; 16]), uuid_hash(&[0; 16]));
        assert_eq!(
            uuid_hash(&[7; 16]),
            u64::from_le_bytes(blake3::hash(&[7; 16]).as_bytes()[..8].try_into().unwrap()) & (u64::MAX >> 1)
        );
        assert!(uuid_hash(&[255; 16]) < NUMBERS_MAX);
    }

    proptest! {
        #[test]
        fn ids_come_back(number in 0..NUMBERS_MAX, uuid in any::<[u8; 16]>()) {
            for id in [PointId::Number(number), PointId::Uuid(uuid)] {
                prop_assert_eq!(id.to_string().parse(), Ok(id));
                prop_assert_eq!(PointId::from_json(&id.to_json()), Ok(id));
                prop_assert_eq!(serde_json::from_value::<PointId>(serde_json::to_value(id).unwrap()).unwrap(), id);
            }
        }

        #[test]
        fn any_text_is_survived(text in ".{0,60}") {
            let _ = text.parse::<PointId>();
        }
    }
}
