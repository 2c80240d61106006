//! Random samples of the points of all shards.
//!
//! A first round counts the points that match in each shard. The root draws the shard of each hit
//! by these counts, so that each point has the same chance. Then each shard returns points that it
//! chooses at random, in random order.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{BuildHasher, Hasher, RandomState};

use base::{Error, Result};
use search::collection::CANDIDATES_MAX;
use serde_json::value::RawValue;

use super::envelope::Completeness;
use super::merge::{self, HitRange, PointsText, ShardResults};
use super::mmr::{ScoredHit, ScoredHits};
use super::parts;
use super::read::{answers, of_all};
use super::root_query::{QueriedCollection, RootQuery, VectorsById};
use super::shard_read::ResultTexts;
use super::split;

/// Points that match in each shard.
struct ShardCounts {
    counts: BTreeMap<u32, u64>,
    found: Completeness,
}

/// Numbers that differ from request to request: SplitMix64 (Steele, Lea and Flood, "Fast splittable
/// pseudorandom number generators", OOPSLA 2014).
struct RandomNumbers {
    state: u64,
}

impl RandomNumbers {
    fn new() -> RandomNumbers {
        // The standard library seeds its hash tables at random.
        RandomNumbers { state: RandomState::new().build_hasher().finish() }
    }

    fn number(&mut self) -> u64 {
        let mix =
            |value: u64, shift: u32, factor: u64| (value ^ (value >> shift)).wrapping_mul(factor);
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = mix(mix(self.state, 30, 0xbf58_476d_1ce4_e5b9), 27, 0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `end`; 0 if `end` is 0.
    fn below(&mut self, end: u64) -> u64 {
        let product = u128::from(self.number()) * u128::from(end);
        u64::try_from(product >> 64).unwrap_or_default()
    }
}

/// Returns points that match the filter of a query, chosen at random and in random order. `found`
/// is the completeness of the query's prefetches.
///
/// # Errors
/// `InvalidArgument` for too many points; otherwise as [`answers`].
pub(super) async fn hits(
    run: &QueriedCollection<'_>,
    query: &RootQuery,
    found: Completeness,
) -> Result<ScoredHits> {
    let HitRange { offset, limit } = query.range();
    let ShardCounts { counts, found } = counts(run, query, found).await?;
    let total: u64 = counts.values().sum();
    let count = usize::try_from(total).unwrap_or(usize::MAX).min(limit.saturating_add(offset));
    if count > CANDIDATES_MAX {
        return Err(Error::invalid(format!(
            "limit: {limit} after an offset of {offset} is not within 1 and {CANDIDATES_MAX}; scroll for more"
        )));
    }
    let drawn = draw(&counts, count, &mut RandomNumbers::new());
    let mut hits = points(run, query, drawn, found).await?;
    hits.hits.drain(..offset.min(hits.hits.len()));
    Ok(hits)
}

/// Counts the points of each shard that match.
async fn counts(
    run: &QueriedCollection<'_>,
    query: &RootQuery,
    found: Completeness,
) -> Result<ShardCounts> {
    let filter = query.members.get("filter").map(|filter| &**filter);
    let body = split::raw(&BTreeMap::from([("filter", filter)]))?;
    let read = answers(run.context, &of_all(run.context, run.record, "points/count", body)).await?;
    let mut counted = ShardCounts { counts: BTreeMap::new(), found: found.after(read.coverage) };
    for (shard, result) in &read.results {
        let results = [&**result];
        let points = merge::sum(ShardResults { results: &results, incomplete: false })?;
        counted.counts.insert(*shard, points.count);
        counted.found = counted.found.or_partial(points.partial);
    }
    Ok(counted)
}

/// Positions of a shard's points, if the points of all shards are numbered one after the other.
struct ShardEnd {
    /// Number of positions of this shard and of the shards before it.
    end: u64,
    shard: u32,
}

/// Draws `count` of the counted points. There must be at least `count` of them. Returns the shard
/// of each, in random order.
fn draw(counts: &BTreeMap<u32, u64>, count: usize, numbers: &mut RandomNumbers) -> Vec<u32> {
    let mut total: u64 = 0;
    let mut ends = Vec::with_capacity(counts.len());
    for (shard, points) in counts {
        total += *points;
        ends.push(ShardEnd { end: total, shard: *shard });
    }
    let mut seen = HashSet::with_capacity(count);
    let mut drawn = Vec::with_capacity(count);
    while drawn.len() < count {
        let place = numbers.below(total);
        if seen.insert(place) {
            let at = ends.partition_point(|shard| shard.end <= place);
            let Some(ShardEnd { shard, .. }) = ends.get(at) else { break };
            drawn.push(*shard);
        }
    }
    drawn
}

/// Reads the next point of a shard's sample for each shard in `drawn`.
async fn points(
    run: &QueriedCollection<'_>,
    query: &RootQuery,
    drawn: Vec<u32>,
    found: Completeness,
) -> Result<ScoredHits> {
    let mut by_shard: HashMap<u32, usize> = HashMap::new();
    for shard in &drawn {
        *by_shard.entry(*shard).or_default() += 1;
    }
    let mut members = query.for_shards(&VectorsById::new())?;
    parts::remove(&mut members);
    let most = by_shard.into_values().max().unwrap_or(1);
    members.insert("limit".to_owned(), split::raw(&most)?);
    let read = of_all(run.context, run.record, "points/query", split::raw(&members)?);
    let read = answers(run.context, &read).await?;
    let found = found.after(read.coverage);
    let work = move |results: &ResultTexts| {
        let mut partial = false;
        let mut samples: HashMap<u32, std::vec::IntoIter<&RawValue>> = HashMap::new();
        for (shard, result) in results {
            let sample: PointsText<'_> = merge::read(result)?;
            partial |= sample.partial;
            samples.insert(*shard, sample.points.into_iter());
        }
        // A shard may have fewer points than were counted.
        let points = drawn.iter().filter_map(|shard| samples.get_mut(shard)?.next());
        let hits = points.map(|point| ScoredHit::of(&merge::keyed(point)?));
        let hits = hits.collect::<Result<Vec<_>>>()?;
        Ok(ScoredHits { hits, found: found.or_partial(partial) })
    };
    run.context.compute_results(read, work).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_counted_point_is_drawn_once() {
        let counts = BTreeMap::from([(0, 3), (1, 0), (2, 5)]);
        let drawn = draw(&counts, 8, &mut RandomNumbers { state: 7 });
        let of = |shard: u32| drawn.iter().filter(|drawn| **drawn == shard).count();
        assert_eq!([0, 1, 2].map(of), [3, 0, 5]);
        assert!(draw(&BTreeMap::new(), 0, &mut RandomNumbers::new()).is_empty());
        let one = draw(&BTreeMap::from([(4, 1)]), 1, &mut RandomNumbers::new());
        assert_eq!(one, [4]);
    }

    #[test]
    fn shards_are_drawn_by_their_points() {
        let counts = BTreeMap::from([(0, 10_000), (1, 30_000)]);
        let drawn = draw(&counts, 4000, &mut RandomNumbers { state: 7 });
        let second = drawn.iter().filter(|shard| **shard == 1).count();
        assert!((2800..3200).contains(&second), "{second}");
        let first_half = drawn.iter().take(2000).filter(|shard| **shard == 1).count();
        assert!((1350..1650).contains(&first_half), "{first_half}");
        assert_ne!(RandomNumbers::new().number(), RandomNumbers::new().number());
    }
}
