//! Ids of points.

use std::fmt;
use std::str::FromStr;

use base::{Error, Result};
use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde::{Serialize, Serializer};
use uuid::Uuid;

/// Numbers below this are stored as internal ids alone. Larger ones share the other ids with UUIDs.
pub const NUMBERS_MAX: u64 = 1 << 63;

/// Key of a point's id in its stored payload. Clients can neither write nor see it.
pub const RESERVED_KEY: &str = "__millpond_id";

/// A number or a UUID. Numbers sort before UUIDs, and UUIDs by their bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PointId {
    /// A number.
    Number(u64),
    /// A UUID of any version, its bytes in the order in which it is written.
    Uuid([u8; 16]),
}

/// Returns 63 bits of a UUID's BLAKE3 hash: its first eight bytes, little-endian, without the
/// highest bit. The UUID itself has too much structure. UUIDs of version 7 from one moment share
/// their first half.
pub fn uuid_hash(uuid: &[u8; 16]) -> u64 {
    let hash = blake3::hash(uuid);
    let first = hash.as_bytes().first_chunk().copied().unwrap_or_default();
    u64::from_le_bytes(first) & (NUMBERS_MAX - 1)
}

fn malformed(text: &str) -> Error {
    let shown: String = text.chars().take(64).collect();
    Error::invalid(format!("\"{shown}\" is not a point id; use a whole number or a UUID"))
}

impl PointId {
    /// Returns true if the stored payload has the id. That of a UUID does, and that of a number
    /// from [`NUMBERS_MAX`] on, because their internal ids may be equal.
    pub fn is_in_payload(&self) -> bool {
        !matches!(self, PointId::Number(number) if *number < NUMBERS_MAX)
    }

    /// Reads a UUID: simple, with hyphens, in braces or as a URN, in either case.
    ///
    /// # Errors
    /// `InvalidArgument` for any other text.
    pub fn uuid(text: &str) -> Result<PointId> {
        Uuid::try_parse(text)
            .map(|uuid| PointId::Uuid(uuid.into_bytes()))
            .map_err(|error| malformed(text).with_source(error))
    }

    /// Returns the 64-bit id that collections store: the number itself, or 2^63 plus [`uuid_hash`].
    pub fn internal(&self) -> u64 {
        self.internal_by(uuid_hash)
    }

    /// Returns the 64-bit id that collections store, with `hash` in place of [`uuid_hash`].
    pub fn internal_by(&self, hash: fn(&[u8; 16]) -> u64) -> u64 {
        match self {
            PointId::Number(number) => *number,
            PointId::Uuid(uuid) => NUMBERS_MAX | (hash(uuid) & (NUMBERS_MAX - 1)),
        }
    }
}

impl FromStr for PointId {
    type Err = Error;

    /// Reads a number in digits or a UUID as [`PointId::uuid`] does, for paths and query strings.
    fn from_str(text: &str) -> Result<PointId> {
        if !text.is_empty() && text.len() <= 20 && text.bytes().all(|byte| byte.is_ascii_digit()) {
            let number = text.parse().map(PointId::Number);
            return number.map_err(|error| malformed(text).with_source(error));
        }
        PointId::uuid(text)
    }
}

impl fmt::Display for PointId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PointId::Number(number) => number.fmt(f),
            PointId::Uuid(bytes) => Uuid::from_bytes(*bytes).fmt(f),
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

/// Reads a JSON number, or a UUID in a JSON string.
impl<'de> Deserialize<'de> for PointId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<PointId, D::Error> {
        deserializer.deserialize_any(PointIdVisitor)
    }
}

struct PointIdVisitor;

impl Visitor<'_> for PointIdVisitor {
    type Value = PointId;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a point's id, which is a whole number from 0 or a UUID")
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<PointId, E> {
        Ok(PointId::Number(value))
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<PointId, E> {
        PointId::uuid(value).map_err(E::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn read(value: &Value) -> std::result::Result<PointId, serde_json::Error> {
        PointId::deserialize(value)
    }

    #[test]
    fn ids_in_every_form() {
        let uuid = PointId::Uuid(0x5c56_c793_69f3_4fbf_87e6_c4bf_54c2_8c26_u128.to_be_bytes());
        for text in [
            "5c56c793-69f3-4fbf-87e6-c4bf54c28c26",
            "5C56C79369F34FBF87E6C4BF54C28C26",
            "urn:uuid:5c56c793-69f3-4fbf-87e6-c4bf54c28c26",
            "{5c56c793-69f3-4fbf-87e6-c4bf54c28c26}",
        ] {
            assert_eq!(text.parse::<PointId>(), Ok(uuid), "{text}");
            assert_eq!(read(&json!(text)).unwrap(), uuid, "{text}");
        }
        assert_eq!(
            serde_json::to_value(uuid).unwrap(),
            json!("5c56c793-69f3-4fbf-87e6-c4bf54c28c26")
        );
        assert_eq!("17".parse(), Ok(PointId::Number(17)));
        for (number, is_in_payload) in
            [(NUMBERS_MAX - 1, false), (NUMBERS_MAX, true), (u64::MAX, true)]
        {
            let id = PointId::Number(number);
            assert_eq!(read(&json!(number)).unwrap(), id);
            assert_eq!((id.internal(), id.is_in_payload()), (number, is_in_payload));
        }
        assert!(uuid.is_in_payload());
        for odd in [
            json!(1.9e19),
            json!(-1),
            json!(1.5),
            json!(null),
            json!("x"),
            json!("17"),
            json!(""),
            json!("é".repeat(16)),
            json!("5c56c79369f34fbf87e6c4bf54c28c2"),
            json!("5c56c793+69f3-4fbf-87e6-c4bf54c28c26"),
            json!("5c56c793-69f3-4fbf-87e6c4bf-54c28c26"),
        ] {
            let error = read(&odd).unwrap_err().to_string();
            assert!(error.contains("UUID"), "{odd}: {error}");
        }
        assert!(
            "-1".parse::<PointId>().is_err() && "18446744073709551616".parse::<PointId>().is_err()
        );
    }

    /// The hash is part of the format. With another one, no UUID would be found.
    #[test]
    fn the_hash_stays_as_it_is() {
        assert_eq!(
            uuid_hash(&[7; 16]),
            u64::from_le_bytes(blake3::hash(&[7; 16]).as_bytes()[..8].try_into().unwrap())
                & (u64::MAX >> 1)
        );
        assert!(uuid_hash(&[255; 16]) < NUMBERS_MAX);
        assert_eq!(PointId::Uuid([7; 16]).internal(), NUMBERS_MAX | uuid_hash(&[7; 16]));
        assert_eq!(PointId::Number(7).internal(), 7);
    }

    proptest! {
        #[test]
        fn ids_round_trip(number in any::<u64>(), uuid in any::<[u8; 16]>()) {
            for id in [PointId::Number(number), PointId::Uuid(uuid)] {
                prop_assert_eq!(id.to_string().parse(), Ok(id));
                prop_assert_eq!(read(&serde_json::to_value(id).unwrap()).unwrap(), id);
            }
        }

        #[test]
        fn any_text_causes_no_panic(text in ".{0,60}") {
            let _ = text.parse::<PointId>();
        }
    }
}
