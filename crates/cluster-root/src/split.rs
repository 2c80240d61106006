//! Ids and texts of requests by shard. The texts of points, payloads and filters stay as the client
//! wrote them, so that holders read the numbers that one server would read. `split_changes` splits
//! changes of points.

use std::collections::BTreeMap;

use base::{Error, Result};
use cluster::shard_of;
use search::points::PointId;
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};

/// Bytes of points after which another operation begins.
pub const OPERATION_BYTES_MAX: usize = 1 << 20;

/// Members of a JSON object, each as its text.
pub type RawMembers = BTreeMap<String, Box<RawValue>>;

/// JSON texts of operations by shard, in the order in which they are made. Each is one element of
/// `operations` of Qdrant's points/batch.
pub type ShardOperations = BTreeMap<u32, Vec<String>>;

/// Returns the shard of a point.
///
/// # Errors
/// `Internal` if the number of shards is out of its limits.
pub fn shard_of_id(id: &PointId, shards: u32) -> Result<u32> {
    shard_of(id.to_string().as_bytes(), shards)
        .map(|shard| shard.0)
        .ok_or_else(|| Error::internal(format!("the record of the collection has {shards} shards")))
}

/// Returns ids by shard, in their order.
///
/// # Errors
/// As [`shard_of_id`].
pub fn ids_by_shard(ids: &[PointId], shards: u32) -> Result<BTreeMap<u32, Vec<PointId>>> {
    let mut split: BTreeMap<u32, Vec<PointId>> = BTreeMap::new();
    for id in ids {
        split.entry(shard_of_id(id, shards)?).or_default().push(*id);
    }
    Ok(split)
}

/// Returns the text of each member of a body that was already parsed and checked as its type.
///
/// # Errors
/// `InvalidArgument` if it is not an object.
pub fn members(body: &[u8]) -> Result<RawMembers> {
    parse(body)
}

/// Parses a body that was already checked as another type, to get the texts of its parts.
///
/// # Errors
/// `InvalidArgument` if it is not such JSON.
pub(super) fn parse<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T> {
    serde_json::from_slice(body)
        .map_err(|error| Error::invalid("the request's JSON").caused_by(error))
}

/// Returns the JSON text of a value.
///
/// # Errors
/// `Internal` if the value has no JSON text.
pub fn raw(value: &impl Serialize) -> Result<Box<RawValue>> {
    to_raw_value(value).map_err(|error| Error::internal("a request's part").caused_by(error))
}

/// Returns the text of a filter that requires all of `filters`. A missing filter holds for all
/// points, as `null` does.
///
/// # Errors
/// As [`raw`].
pub(super) fn all_of(filters: [Option<&RawValue>; 2]) -> Result<Box<RawValue>> {
    let must: Vec<&RawValue> =
        filters.into_iter().flatten().filter(|filter| filter.get() != "null").collect();
    raw(&BTreeMap::from([("must", must)]))
}

/// Body of a request for points by their ids.
pub struct IdsBody {
    /// Members besides `ids`.
    pub(super) members: RawMembers,
    pub(super) ids: BTreeMap<u32, Vec<PointId>>,
}

impl IdsBody {
    /// Returns the body with the ids of some shards.
    ///
    /// # Errors
    /// As [`raw`].
    pub(super) fn of(&self, shards: &[u32]) -> Result<Box<RawValue>> {
        let ids = shards.iter().filter_map(|shard| self.ids.get(shard)).flatten();
        let ids = raw(&ids.collect::<Vec<_>>())?;
        let mut members: BTreeMap<&str, &RawValue> =
            self.members.iter().map(|(name, value)| (name.as_str(), &**value)).collect();
        members.insert("ids", &ids);
        raw(&members)
    }
}

/// Splits texts into runs of at most `bytes_max` bytes. A longer text is a run of its own.
pub fn chunks(texts: &[String], bytes_max: usize) -> Vec<&[String]> {
    let mut chunks = Vec::new();
    let mut from = 0;
    let mut bytes = 0;
    for (at, text) in texts.iter().enumerate() {
        if at > from && bytes + text.len() > bytes_max {
            chunks.push(&texts[from..at]);
            from = at;
            bytes = 0;
        }
        bytes += text.len();
    }
    if from < texts.len() {
        chunks.push(&texts[from..]);
    }
    chunks
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    const UUID: &str = "5c56c793-69f3-4fbf-87e6-c4bf54c28c26";

    #[test]
    fn every_spelling_of_a_uuid_has_one_shard() {
        let shard = |text: &str| shard_of_id(&text.parse().unwrap(), 64).unwrap();
        assert_eq!(shard(UUID), shard(&UUID.to_uppercase()));
        assert_eq!(shard(UUID), shard(&UUID.replace('-', "")));
        assert_eq!(shard("7"), shard_of(b"7", 64).unwrap().0);
        assert!(shard_of_id(&PointId::Number(1), 0).is_err());
    }

    #[test]
    fn bodies_of_ids_have_the_asked_shards_only() {
        let ids: Vec<PointId> = (0..20).map(PointId::Number).collect();
        let body = IdsBody {
            members: members(br#"{"with_payload":false}"#).unwrap(),
            ids: ids_by_shard(&ids, 4).unwrap(),
        };
        let text: Value = serde_json::from_str(body.of(&[1, 3]).unwrap().get()).unwrap();
        let count = body.ids[&1].len() + body.ids[&3].len();
        assert_eq!(text["ids"].as_array().unwrap().len(), count);
        assert_eq!(text["with_payload"], false);
    }

    proptest! {
        #[test]
        fn chunks_keep_all_texts_in_order(
            lengths in prop::collection::vec(0usize..12, 0..40),
            bytes_max in 0usize..20,
        ) {
            let texts: Vec<String> = lengths.iter().map(|length| "x".repeat(*length)).collect();
            let split = chunks(&texts, bytes_max);
            prop_assert_eq!(split.concat(), texts.clone());
            for chunk in split {
                let bytes: usize = chunk.iter().map(String::len).sum();
                prop_assert!(!chunk.is_empty() && (bytes <= bytes_max || chunk.len() == 1));
            }
        }
    }
}
