//! Pairs of similar points of a cluster, and their form in the store.

use base::{Error, Result};
use search::duplicates::DuplicatePair;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serializer};

/// Bytes of a pair: two ids, similarity, score (negative if the keypoints were not compared), two
/// shards. All little-endian.
const PAIR_BYTES: usize = 32;
/// Bytes of the CRC-32C after the pairs.
const CHECK_BYTES: usize = 4;

/// Pair of similar points, and the shards that have them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ShardPair {
    pub(super) pair: DuplicatePair,
    /// Shard of the point with the lower id.
    pub(super) shard_a: u32,
    /// Shard of the point with the higher id.
    pub(super) shard_b: u32,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ShardPoint {
    pub(super) id: u64,
    pub(super) shard: u32,
}

impl ShardPair {
    /// Returns the pair of two points.
    pub(super) fn new(
        one: ShardPoint,
        other: ShardPoint,
        similarity: f32,
        score: Option<f32>,
    ) -> ShardPair {
        let (low, high) = if one.id <= other.id { (one, other) } else { (other, one) };
        let pair = DuplicatePair { a: low.id, b: high.id, similarity, score };
        ShardPair { pair, shard_a: low.shard, shard_b: high.shard }
    }

    /// Returns the ids, the lower one first.
    pub(super) fn ids(&self) -> (u64, u64) {
        (self.pair.a, self.pair.b)
    }

    fn encode(&self) -> [u8; PAIR_BYTES] {
        let mut out = [0; PAIR_BYTES];
        out[..8].copy_from_slice(&self.pair.a.to_le_bytes());
        out[8..16].copy_from_slice(&self.pair.b.to_le_bytes());
        out[16..20].copy_from_slice(&self.pair.similarity.to_le_bytes());
        out[20..24].copy_from_slice(&self.pair.score.unwrap_or(-1.0).to_le_bytes());
        out[24..28].copy_from_slice(&self.shard_a.to_le_bytes());
        out[28..].copy_from_slice(&self.shard_b.to_le_bytes());
        out
    }

    fn decode(bytes: &[u8; PAIR_BYTES]) -> Option<ShardPair> {
        let long = |at: usize| bytes.get(at..)?.first_chunk().map(|it| u64::from_le_bytes(*it));
        let word = |at: usize| bytes.get(at..)?.first_chunk().map(|it| u32::from_le_bytes(*it));
        let score = f32::from_bits(word(20)?);
        let pair = DuplicatePair {
            a: long(0)?,
            b: long(8)?,
            similarity: f32::from_bits(word(16)?),
            score: (score >= 0.0).then_some(score),
        };
        Some(ShardPair { pair, shard_a: word(24)?, shard_b: word(28)? })
    }
}

/// Returns the bytes of pairs, with a checksum.
pub(super) fn encode_pairs(pairs: &[ShardPair]) -> Vec<u8> {
    let mut bytes: Vec<u8> = pairs.iter().flat_map(ShardPair::encode).collect();
    let check = crc32c::crc32c(&bytes);
    bytes.extend(check.to_le_bytes());
    bytes
}

/// Reads pairs.
///
/// # Errors
/// `DataLoss` for other bytes than [`encode_pairs`] returns.
pub(super) fn decode_pairs(bytes: &[u8]) -> Result<Vec<ShardPair>> {
    let damaged = || Error::data_loss("the pairs of a search for duplicates are damaged");
    let (content, check) = bytes.split_last_chunk::<CHECK_BYTES>().ok_or_else(damaged)?;
    let (pairs, rest) = content.as_chunks::<PAIR_BYTES>();
    if crc32c::crc32c(content).to_le_bytes() != *check || !rest.is_empty() {
        return Err(damaged());
    }
    pairs.iter().map(|pair| ShardPair::decode(pair).ok_or_else(damaged)).collect()
}

/// Writes pairs as base64 of their bytes.
pub(super) fn serialize<S: Serializer>(
    pairs: &[ShardPair],
    serializer: S,
) -> std::result::Result<S::Ok, S::Error> {
    use base64::Engine as _;
    let engine = base64::engine::general_purpose::STANDARD;
    serializer.serialize_str(&engine.encode(encode_pairs(pairs)))
}

/// Reads pairs from base64 of their bytes.
pub(super) fn deserialize<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> std::result::Result<Vec<ShardPair>, D::Error> {
    use base64::Engine as _;
    let text = String::deserialize(deserializer)?;
    let engine = base64::engine::general_purpose::STANDARD;
    let bytes = engine.decode(text).map_err(D::Error::custom)?;
    decode_pairs(&bytes).map_err(D::Error::custom)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn pair(a: ShardPoint, b: ShardPoint) -> ShardPair {
        ShardPair::new(a, b, 0.875, Some(300.5))
    }

    #[test]
    fn the_lower_id_comes_first() {
        let (low, high) = (ShardPoint { id: 3, shard: 9 }, ShardPoint { id: u64::MAX, shard: 2 });
        assert_eq!(pair(low, high), pair(high, low));
        let it = pair(high, low);
        assert_eq!((it.ids(), it.shard_a, it.shard_b), ((3, u64::MAX), 9, 2));
    }

    #[test]
    fn pairs_survive_encoding_and_show_damage() {
        let points = [1, 7, u64::MAX].map(|id| ShardPoint { id, shard: (id % 5) as u32 });
        let [one, two, three] = points;
        let pairs = vec![pair(one, two), ShardPair::new(three, two, -1.0, None)];
        let bytes = encode_pairs(&pairs);
        assert_eq!(decode_pairs(&bytes).unwrap(), pairs);
        assert_eq!(decode_pairs(&encode_pairs(&[])).unwrap(), []);
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 16;
            assert!(decode_pairs(&damaged).is_err(), "byte {at}");
        }
        for short in [0, 3, 20, bytes.len() - 1] {
            assert!(decode_pairs(&bytes[..short]).is_err(), "{short} bytes");
        }
    }
}
