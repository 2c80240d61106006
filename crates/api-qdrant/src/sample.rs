//! Random samples of points.

use std::hash::{BuildHasher, Hasher, RandomState};

use base::Result;
use search::collection::IDS_MAX;
use search::filter::Filter;

use crate::query::{QueryRun, RankedHit, RankedHits, UNRANKED_SCORE};

/// Maximum number of entries beyond twice the wanted number, before the list is pruned to the
/// smallest.
const UNSORTED_MAX: usize = 64;

/// Source of numbers that differ from request to request. Every id gets one, and the ids with the
/// smallest numbers are the sample.
struct IdShuffle {
    seed: u64,
}

/// An id with its random number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct ShuffledId {
    number: u64,
    id: u64,
}

impl IdShuffle {
    fn new() -> IdShuffle {
        // The standard library seeds its hash tables at random.
        IdShuffle { seed: RandomState::new().build_hasher().finish() }
    }

    /// Returns random numbers, one after the other.
    fn numbers(&self) -> impl FnMut() -> u64 {
        let mut count = 0;
        move || {
            count += 1;
            self.shuffled(count).number
        }
    }

    /// Returns the random number of an id: the mixing function of SplitMix64 (Steele, Lea and
    /// Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014).
    fn shuffled(&self, id: u64) -> ShuffledId {
        let mix =
            |value: u64, shift: u32, factor: u64| (value ^ (value >> shift)).wrapping_mul(factor);
        let start = (id ^ self.seed).wrapping_add(self.seed.rotate_left(32));
        let mixed = mix(mix(start, 30, 0xbf58_476d_1ce4_e5b9), 27, 0x94d0_49bb_1331_11eb);
        ShuffledId { number: mixed ^ (mixed >> 31), id }
    }
}

impl QueryRun<'_> {
    /// Returns at most `count` points that match `filter`, chosen at random and in random order.
    ///
    /// # Errors
    /// `DeadlineExceeded`; the errors of the filter and of the medium.
    pub(crate) fn sampled(&self, count: usize, filter: Option<&Filter>) -> Result<RankedHits> {
        let shuffle = IdShuffle::new();
        if filter.is_none_or(Filter::is_empty)
            && let Some(points) = self.named.collection().random_points(count, shuffle.numbers())
        {
            let hit = |id: &u64| RankedHit::scored(*id, UNRANKED_SCORE);
            let hits = points.ids.iter().map(hit).collect();
            return Ok(RankedHits { hits, partial: points.partial });
        }
        // Only a list of all points shows which of them match.
        let mut chosen: Vec<ShuffledId> = Vec::new();
        let mut partial = false;
        let mut from = Some(0);
        while let Some(first) = from {
            self.check_time()?;
            let list = self.named.collection().ids_from(first, IDS_MAX, filter)?;
            partial |= list.partial;
            for id in &list.ids {
                chosen.push(shuffle.shuffled(*id));
                if chosen.len() >= 2 * count + UNSORTED_MAX {
                    chosen.sort_unstable();
                    chosen.truncate(count);
                }
            }
            let last = list.ids.last().filter(|_| list.more);
            from = last.and_then(|last| last.checked_add(1));
        }
        chosen.sort_unstable();
        chosen.truncate(count);
        let hits = chosen.iter().map(|point| RankedHit::scored(point.id, UNRANKED_SCORE)).collect();
        Ok(RankedHits { hits, partial })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_id_gets_another_number() {
        let shuffle = IdShuffle { seed: 7 };
        let mut numbers: Vec<u64> = (0..10_000).map(|id| shuffle.shuffled(id).number).collect();
        let low = numbers.iter().filter(|number| **number < u64::MAX / 4).count();
        assert!((2300..2700).contains(&low), "{low}");
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), 10_000);
        assert!(IdShuffle::new().seed != IdShuffle::new().seed);
    }
}
