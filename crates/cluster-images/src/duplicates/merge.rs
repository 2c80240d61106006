//! Answers of shards to the steps of a job, merged. All functions are pure.

use std::collections::{BTreeMap, HashSet};

use api_images::{NeighboursAnswer, VerifyAnswer};
use base::{Error, Result};
use search::duplicates::NEIGHBOURS_MAX;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::super::merge::ResultTexts;
use super::pairs::{ShardPair, ShardPoint};

/// A neighbour of a point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ShardNeighbour {
    pub(super) point: ShardPoint,
    pub(super) similarity: f32,
}

/// Neighbours of the embeddings of a page.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct MergedNeighbours {
    /// The nearest of each embedding, nearest first.
    pub(super) near: Vec<Vec<ShardNeighbour>>,
    /// Number of points that could not be read.
    pub(super) unreadable: u64,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct PointNeighbours {
    pub(super) point: ShardPoint,
    pub(super) near: Vec<ShardNeighbour>,
}

impl PointNeighbours {
    /// Returns the pair with a neighbour.
    pub(super) fn pair(&self, near: &ShardNeighbour, score: Option<f32>) -> ShardPair {
        ShardPair::new(self.point, near.point, near.similarity, score)
    }
}

/// Reads the result of a shard.
///
/// # Errors
/// `Internal` for a result that is not the expected JSON.
pub(super) fn parsed<'a, T: Deserialize<'a>>(text: &'a RawValue) -> Result<T> {
    serde_json::from_str(text.get()).map_err(|error| {
        Error::internal("a shard's part of a search for duplicates").caused_by(error)
    })
}

/// Returns the nearest points of all shards for each of `embeddings` embeddings, at most
/// [`NEIGHBOURS_MAX`], as one server finds them.
///
/// # Errors
/// As [`parsed`].
pub(super) fn neighbours(results: &ResultTexts, embeddings: usize) -> Result<MergedNeighbours> {
    let mut merged =
        MergedNeighbours { near: vec![Vec::new(); embeddings], ..MergedNeighbours::default() };
    for (shard, result) in results {
        let answer: NeighboursAnswer = parsed(result)?;
        if answer.near.len() != embeddings {
            let lists = answer.near.len();
            return Err(Error::internal(format!(
                "shard {shard} has neighbours of {lists} embeddings instead of {embeddings}"
            )));
        }
        merged.unreadable += answer.unreadable;
        for (all, near) in merged.near.iter_mut().zip(answer.near) {
            all.extend(near.into_iter().map(|near| ShardNeighbour {
                point: ShardPoint { id: near.id, shard: *shard },
                similarity: near.similarity,
            }));
        }
    }
    for near in &mut merged.near {
        near.sort_unstable_by(|a, b| {
            b.similarity.total_cmp(&a.similarity).then(a.point.id.cmp(&b.point.id))
        });
        near.truncate(NEIGHBOURS_MAX);
    }
    Ok(merged)
}

/// Returns the points with neighbours that make a new pair. A pair of two points of the page is new
/// once.
pub(super) fn new_neighbours(
    points: &[ShardPoint],
    near: Vec<Vec<ShardNeighbour>>,
    known: &HashSet<(u64, u64)>,
) -> Vec<PointNeighbours> {
    let mut seen = HashSet::new();
    let mut found = Vec::new();
    for (point, mut near) in points.iter().zip(near) {
        near.retain(|near| {
            let ids = ShardPair::new(*point, near.point, near.similarity, None).ids();
            near.point.id != point.id && !known.contains(&ids) && seen.insert(ids)
        });
        if !near.is_empty() {
            found.push(PointNeighbours { point: *point, near });
        }
    }
    found
}

/// Pairs that the keypoints confirm.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct VerifiedPairs {
    pub(super) pairs: Vec<ShardPair>,
    /// Number of pairs whose keypoints do not agree.
    pub(super) refused: u64,
    /// Number of records that could not be read.
    pub(super) unreadable: u64,
}

/// Returns the accepted pairs of all shards. `probes` are the points of the request.
///
/// # Errors
/// As [`parsed`]; `Internal` for a pair that was not in the request.
pub(super) fn verified(results: &ResultTexts, probes: &[PointNeighbours]) -> Result<VerifiedPairs> {
    let mut merged = VerifiedPairs::default();
    let near: Vec<BTreeMap<u64, &ShardNeighbour>> = probes
        .iter()
        .map(|probe| probe.near.iter().map(|near| (near.point.id, near)).collect())
        .collect();
    for (shard, result) in results {
        let answer: VerifyAnswer = parsed(result)?;
        merged.refused += answer.refused;
        merged.unreadable += answer.unreadable;
        for accepted in answer.accepted {
            let probe = probes.get(accepted.probe);
            let near = near.get(accepted.probe).and_then(|near| near.get(&accepted.id));
            let (Some(probe), Some(near)) = (probe, near) else {
                return Err(Error::internal(format!("shard {shard} accepted an unknown pair")));
            };
            merged.pairs.push(probe.pair(near, accepted.score));
        }
    }
    Ok(merged)
}

#[cfg(test)]
mod tests {
    use api_images::AcceptedNeighbour;
    use search::duplicates::NearPoint;
    use serde::Serialize;
    use serde_json::value::to_raw_value;

    use super::*;

    fn texts<T: Serialize>(answers: Vec<T>) -> ResultTexts {
        let texts = answers.iter().map(|answer| to_raw_value(answer).unwrap());
        (0..).zip(texts).collect()
    }

    fn near(id: u64, similarity: f32) -> NearPoint {
        NearPoint { id, similarity }
    }

    fn found(id: u64, shard: u32, similarity: f32) -> ShardNeighbour {
        ShardNeighbour { point: ShardPoint { id, shard }, similarity }
    }

    #[test]
    fn the_nearest_of_all_shards_are_kept() {
        let shard = |near: Vec<Vec<NearPoint>>, unreadable| NeighboursAnswer { near, unreadable };
        let many: Vec<NearPoint> =
            (100..100 + NEIGHBOURS_MAX as u64).map(|id| near(id, 0.5)).collect();
        let results = texts(vec![
            shard(vec![vec![near(1, 0.9), near(2, 0.7)], many], 1),
            shard(vec![vec![near(3, 0.8)], vec![near(4, 0.6)]], 2),
        ]);
        let merged = neighbours(&results, 2).unwrap();
        assert_eq!(merged.near[0], [found(1, 0, 0.9), found(3, 1, 0.8), found(2, 0, 0.7)]);
        assert_eq!((merged.near[1].len(), merged.unreadable), (NEIGHBOURS_MAX, 3));
        assert_eq!(merged.near[1][0], found(4, 1, 0.6));
        assert!(merged.near[1].iter().all(|near| near.point.id != 99 + NEIGHBOURS_MAX as u64));
        assert!(neighbours(&results, 3).is_err());
        let malformed = texts(vec!["no answer"]);
        assert!(neighbours(&malformed, 1).is_err());
    }

    #[test]
    fn a_pair_is_new_once() {
        let points = [ShardPoint { id: 1, shard: 0 }, ShardPoint { id: 5, shard: 0 }];
        let lists = vec![
            vec![found(1, 0, 1.0), found(5, 0, 0.9), found(7, 1, 0.8)],
            vec![found(5, 0, 1.0), found(1, 0, 0.9), found(9, 2, 0.8)],
        ];
        let known = HashSet::from([(1, 7)]);
        let new = new_neighbours(&points, lists, &known);
        assert_eq!(new.len(), 2);
        assert_eq!(new[0].near, [found(5, 0, 0.9)]);
        assert_eq!(new[1].near, [found(9, 2, 0.8)]);
        let pair = new[1].pair(&new[1].near[0], Some(3.0));
        assert_eq!((pair.ids(), pair.shard_a, pair.shard_b), ((5, 9), 0, 2));
    }

    #[test]
    fn accepted_pairs_have_their_similarity() {
        let probes = [PointNeighbours {
            point: ShardPoint { id: 4, shard: 1 },
            near: vec![found(2, 0, 0.9), found(8, 1, 0.8)],
        }];
        let accepted = |probe, id| AcceptedNeighbour { probe, id, score: Some(200.0) };
        let answer = |accepted| VerifyAnswer { accepted, refused: 1, unreadable: 2 };
        let results = texts(vec![answer(vec![accepted(0, 2)]), answer(Vec::new())]);
        let merged = verified(&results, &probes).unwrap();
        assert_eq!((merged.refused, merged.unreadable, merged.pairs.len()), (2, 4, 1));
        let pair = merged.pairs[0];
        assert_eq!((pair.ids(), pair.shard_a, pair.shard_b), ((2, 4), 0, 1));
        assert_eq!((pair.pair.similarity, pair.pair.score), (0.9, Some(200.0)));
        for (probe, id) in [(0, 3), (1, 2)] {
            let results = texts(vec![answer(vec![accepted(probe, id)])]);
            assert!(verified(&results, &probes).is_err());
        }
    }
}
