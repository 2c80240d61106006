//! Members of requests that name another collection.

use serde::de::{Deserialize, Deserializer, Error as _};
use serde_json::Value;

use super::{WithPayload, WithVector};

/// Collection of the points that a query names by their ids.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LookupFrom {
    /// The collection's name or alias.
    pub collection: String,
    /// Name of its vector; `None` for the name that the query uses.
    pub vector: Option<String>,
    #[serde(default, rename = "shard_key")]
    _shard_key: super::AbsentField,
}

/// Points of another collection that a response has for its groups: those whose ids are the values
/// of the groups.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupLookup {
    /// The collection's name or alias.
    pub collection: String,
    /// The requested part of payloads; all by default.
    pub with_payload: Option<WithPayload>,
    /// The requested vectors; none by default.
    pub with_vectors: Option<WithVector>,
}

impl<'de> Deserialize<'de> for GroupLookup {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<GroupLookup, D::Error> {
        #[derive(serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        struct LookupMembers {
            collection: String,
            with_payload: Option<WithPayload>,
            #[serde(alias = "with_vector")]
            with_vectors: Option<WithVector>,
        }
        let value = Value::deserialize(deserializer)?;
        if let Value::String(collection) = value {
            return Ok(GroupLookup { collection, with_payload: None, with_vectors: None });
        }
        let members: LookupMembers = serde_json::from_value(value).map_err(D::Error::custom)?;
        let LookupMembers { collection, with_payload, with_vectors } = members;
        Ok(GroupLookup { collection, with_payload, with_vectors })
    }
}
