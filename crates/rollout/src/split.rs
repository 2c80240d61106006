//! Assigns requests to the stable version or to the candidate.

use std::sync::atomic::{AtomicU64, Ordering};

/// Step of a Weyl sequence: 2^64 divided by the golden ratio. Its fractions are spread evenly.
const WEYL_STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Key of a request. Requests with equal keys go to the same version while a rollout runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestKey(Box<[u8]>);

impl RequestKey {
    /// Maximum bytes of a key.
    pub const BYTES_MAX: usize = 1024;

    /// Returns the key with these bytes, or `None` for an empty one.
    ///
    /// # Errors
    /// `InvalidArgument` for more than [`RequestKey::BYTES_MAX`] bytes.
    pub fn new(bytes: &[u8]) -> base::Result<Option<RequestKey>> {
        if bytes.len() > RequestKey::BYTES_MAX {
            let message = format!(
                "the request key has {} bytes; send at most {}",
                bytes.len(),
                RequestKey::BYTES_MAX
            );
            return Err(base::Error::invalid(message));
        }
        Ok((!bytes.is_empty()).then(|| RequestKey(bytes.into())))
    }
}

/// Positions of requests of one rollout in [0, 2^64).
pub struct SplitCounter {
    /// Hash of model and candidate, so that each rollout chooses other keys.
    salt: [u8; blake3::KEY_LEN],
    next: AtomicU64,
}

impl SplitCounter {
    /// Creates the counter of the requests of `model` while `candidate` is its new version.
    pub fn new(model: &str, candidate: u64) -> SplitCounter {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&candidate.to_le_bytes()).update(model.as_bytes());
        SplitCounter { salt: hasher.finalize().into(), next: AtomicU64::new(0) }
    }

    /// Returns the position of a request. Derived from its key, or the next of an even sequence.
    pub fn position(&self, key: Option<&RequestKey>) -> u64 {
        match key {
            Some(RequestKey(key)) => {
                let hash = blake3::keyed_hash(&self.salt, key);
                hash.as_bytes().first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
            }
            None => self.next.fetch_add(1, Ordering::Relaxed).wrapping_mul(WEYL_STEP),
        }
    }
}

/// Returns true if a position is within the first `share` of all.
pub fn within(position: u64, share: f64) -> bool {
    const POSITIONS: f64 = (1u64 << 32) as f64;
    position >> 32 < (share.clamp(0.0, 1.0) * POSITIONS) as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(text: &str) -> Option<RequestKey> {
        RequestKey::new(text.as_bytes()).unwrap()
    }

    #[test]
    fn keys_have_a_limit() {
        assert_eq!(key(""), None);
        assert!(RequestKey::new(&[0; RequestKey::BYTES_MAX]).unwrap().is_some());
        assert!(RequestKey::new(&[0; RequestKey::BYTES_MAX + 1]).is_err());
    }

    #[test]
    fn rollouts_choose_different_keys() {
        let first = SplitCounter::new("m", 2);
        let again = SplitCounter::new("m", 2);
        let next = SplitCounter::new("m", 3);
        let other = SplitCounter::new("n", 2);
        let position = first.position(key("a").as_ref());
        assert_eq!(position, again.position(key("a").as_ref()), "replicas agree");
        assert_ne!(position, next.position(key("a").as_ref()));
        assert_ne!(position, other.position(key("a").as_ref()));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn the_share_is_kept(share in 0.0f64..=1.0, seed in any::<u32>()) {
            let requests = 20_000;
            // Keys are split by a hash, so that their number has a binomial distribution.
            let sigma = (share * (1.0 - share) / f64::from(requests)).sqrt();
            let counter = SplitCounter::new("m", u64::from(seed));
            let keyed = |at: &u32| {
                let key = key(&format!("user-{seed}-{at}"));
                within(counter.position(key.as_ref()), share)
            };
            let counted = |_: &u32| within(counter.position(None), share);
            let measured = [
                ((0..requests).filter(keyed).count(), 6.0 * sigma + 0.001),
                ((0..requests).filter(counted).count(), 0.001),
            ];
            for (count, tolerance) in measured {
                let got = count as f64 / f64::from(requests);
                prop_assert!((got - share).abs() < tolerance, "{got} instead of {share}");
            }
        }

        #[test]
        fn a_larger_share_keeps_its_keys(share in 0.0f64..=1.0, more in 0.0f64..=1.0, at in any::<u64>()) {
            let larger = share + (1.0 - share) * more;
            prop_assert!(!within(at, share) || within(at, larger));
            prop_assert!(within(at, 1.0) && !within(at, 0.0));
        }
    }
}
