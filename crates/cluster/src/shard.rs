//! Shards: parts of a collection with one writer each.

use std::fmt;
use std::sync::Arc;

/// Maximum number of shards of a collection.
pub const SHARDS_MAX: u32 = 1024;

/// Number of a shard, below the collection's number of shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ShardId(pub u32);

/// A shard of a collection.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ShardKey {
    /// Id of the collection, which no other collection ever has.
    pub collection: Arc<str>,
    /// Number in the collection, from 0.
    pub shard: ShardId,
}

impl ShardKey {
    /// Creates the key of a shard.
    pub fn new(collection: &str, shard: u32) -> ShardKey {
        ShardKey { collection: collection.into(), shard: ShardId(shard) }
    }

    /// Returns the name of the local collection that holds the shard.
    pub fn local_name(&self) -> String {
        format!("{}.{:04}", self.collection, self.shard.0)
    }

    /// Returns the bytes that placement hashes.
    pub fn placement(&self) -> [u8; 16] {
        let hash = blake3::hash(self.to_string().as_bytes());
        hash.as_bytes().first_chunk().copied().unwrap_or_default()
    }
}

impl fmt::Display for ShardKey {
    /// Writes `ID/0003`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{:04}", self.collection, self.shard.0)
    }
}

/// Returns the shard of the point whose id has the bytes `id`, or `None` if `shards` is not 1 to
/// [`SHARDS_MAX`].
///
/// The number of shards never changes for a collection, so a point stays in its shard. The hash
/// spreads ids of any pattern evenly.
pub fn shard_of(id: &[u8], shards: u32) -> Option<ShardId> {
    if !(1..=SHARDS_MAX).contains(&shards) {
        return None;
    }
    let hash = blake3::hash(id);
    let first = hash.as_bytes().first_chunk().copied().unwrap_or_default();
    // The remainder of 64 bits favours no shard by more than 1024 / 2^64.
    Some(ShardId((u64::from_le_bytes(first) % u64::from(shards)) as u32))
}
