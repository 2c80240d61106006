//! What points are called by.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error as _, Visitor};
use serde::ser::{Serialize, Serializer};

/// A whole number or a UUID. Numbers sort before UUIDs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PointId {
    /// A whole number.
    Number(u64),
    /// The 16 bytes of a UUID, in the order in which they are written.
    Uuid([u8; 16]),
}

impl PointId {
    /// Reads a number, or a UUID with hyphens, without them, in braces or as a URN.
    pub fn parse(text: &str) -> Option<PointId> {
        if !text.is_empty() && text.len() <= 20 && text.bytes().all(|byte| byte.is_ascii_digit()) {
            return text.parse().ok().map(PointId::Number);
        }
        uuid(text).map(PointId::Uuid)
    }
}

fn uuid(text: &str) -> Option<[u8; 16]> {
    uuid::Uuid::try_parse(text).ok().map(uuid::Uuid::into_bytes)
}

impl fmt::Display for PointId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PointId::Number(number) => write!(f, "{number}"),
            PointId::Uuid(bytes) => {
                for (at, byte) in bytes.iter().enumerate() {
                    let hyphen = if [4, 6, 8, 10].contains(&at) { "-" } else { "" };
                    write!(f, "{hyphen}{byte:02x}")?;
                }
                Ok(())
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
        struct Id;
        impl Visitor<'_> for Id {
            type Value = PointId;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a point's id, which is a whole number from 0 or a UUID")
            }

            fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<PointId, E> {
                Ok(PointId::Number(value))
            }

            fn visit_str<E: serde::de::Error>(self, value: &str) -> Result<PointId, E> {
                uuid(value).map(PointId::Uuid).ok_or_else(|| {
                    E::custom(format_args!(
                        "\"{value}\" is no point's id: write a whole number from 0 or a UUID"
                    ))
                })
            }
        }
        deserializer.deserialize_any(Id).map_err(D::Error::custom)
    }
}
