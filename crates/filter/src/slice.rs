//! Slices of all points, for scans in parallel.

use std::hash::Hasher;

use serde_json::Value;

use crate::id::{NUMBERS_MAX, PointId, RESERVED_KEY};

/// One of several slices of all points. Points belong to slices by a hash of their ids. The hash is
/// part of Qdrant's interface, and clients may compute it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdSlice {
    total: u64,
    index: u64,
}

impl IdSlice {
    /// Creates the slice `index` of `total`. Returns `None` unless `index` is less than `total`.
    pub fn new(total: u32, index: u32) -> Option<IdSlice> {
        (index < total).then(|| IdSlice { total: total.into(), index: index.into() })
    }

    /// Returns true if the slice has the point of an id.
    pub fn contains(&self, id: &PointId) -> bool {
        hash(id) % self.total == self.index
    }

    /// Returns true if the slice has the point with this internal id and stored payload.
    pub fn contains_stored(&self, internal: u64, payload: &Value) -> bool {
        if internal < NUMBERS_MAX {
            return self.contains(&PointId::Number(internal));
        }
        let id = payload.get(RESERVED_KEY).and_then(Value::as_str);
        id.and_then(|id| id.parse().ok()).is_some_and(|id| self.contains(&id))
    }
}

/// Returns SipHash-2-4 with the key 0 (Aumasson and Bernstein, "SipHash: a fast short-input PRF",
/// INDOCRYPT 2012) of an id. Hashes the eight bytes of a number, little-endian, or the 16 of a
/// UUID.
fn hash(id: &PointId) -> u64 {
    #[expect(deprecated, reason = "the hash is part of the interface; new hashers may change")]
    let mut hasher = std::hash::SipHasher::new();
    match id {
        PointId::Number(number) => hasher.write(&number.to_le_bytes()),
        PointId::Uuid(bytes) => hasher.write(bytes),
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The numbers are those of Qdrant's Python client.
    #[test]
    fn the_hash_is_that_of_qdrant() {
        assert_eq!(hash(&PointId::Number(0)), 16_738_165_381_834_614_119);
        assert_eq!(hash(&PointId::Number(7)), 13_180_436_571_133_193_200);
        let slices = [4, 3, 4, 1, 1, 2, 3, 0, 2, 2, 1, 1];
        for (number, index) in (0..).zip(slices) {
            let slice = IdSlice::new(5, index).unwrap();
            assert!(slice.contains(&PointId::Number(number)), "{number}");
            assert!(slice.contains_stored(number, &Value::Null), "{number}");
        }
        let uuid = "5c56c793-69f3-4fbf-87e6-c4bf54c28c26";
        let slice = IdSlice::new(5, 1).unwrap();
        assert!(slice.contains(&uuid.parse().unwrap()));
        assert!(slice.contains_stored(u64::MAX, &json!({ RESERVED_KEY: uuid })));
        assert!(!slice.contains_stored(u64::MAX, &Value::Null), "an id that was lost");
        assert_eq!(IdSlice::new(2, 2), None);
    }
}
