//! Generated points: clusters of embeddings, planted copies, and near points that are not copies.

use loadgen::random::{at, signed_unit};
use matching::synthetic;

/// Number of points per cluster. Real embeddings lie in clusters, which makes neighbours of points
/// that are no copies.
const CLUSTER_POINTS: u64 = 200;
/// Length of the part that points of a cluster have in common, by that of their own part: cosines
/// of about 0.7 in a cluster.
const COMMON: f32 = 1.5;
/// Length of the noise of a copy: cosines of about 0.87 to 0.995.
const COPY_NOISE: (f32, f32) = (0.1, 0.55);
/// Keypoints of a record. Those of real photographs are up to 256; fewer keep the files small.
const KEYPOINTS: usize = 64;

/// Kind of a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PointRole {
    /// A point on its own.
    Single,
    /// An image that has a copy.
    Source { pair: u64 },
    /// A copy.
    Copy { pair: u64 },
    /// A point as near to a source as a copy, with other keypoints.
    Lookalike { pair: u64 },
}

/// The generated set. Point numbers are mixed, so that copies lie far from their sources.
#[derive(Clone, Copy, Debug)]
pub(super) struct DuplicateData {
    pub(super) rows: u64,
    pub(super) dims: usize,
    pub(super) planted: u64,
    pub(super) lookalikes: u64,
    pub(super) seed: u64,
}

/// A point to add.
pub(super) struct PlannedPoint {
    pub(super) id: u64,
    pub(super) embedding: Vec<f32>,
    pub(super) record: Vec<u8>,
}

impl DuplicateData {
    /// Returns the role of a number: sources, then copies, then lookalikes, then the others.
    fn role(&self, number: u64) -> PointRole {
        let copies = self.planted;
        let lookalikes = self.planted + self.lookalikes;
        match number {
            _ if number < self.planted => PointRole::Source { pair: number },
            _ if number < 2 * self.planted => PointRole::Copy { pair: number - copies },
            _ if number < self.planted + lookalikes => {
                PointRole::Lookalike { pair: number - 2 * self.planted }
            }
            _ => PointRole::Single,
        }
    }

    /// Returns the id of a number: a bijection of all numbers below `rows`.
    pub(super) fn id(&self, number: u64) -> u64 {
        // A factor without common divisors with `rows`.
        let factor = (self.rows / 2 + 1..).find(|factor| gcd(*factor, self.rows) == 1).unwrap_or(1);
        (u128::from(number) * u128::from(factor) % u128::from(self.rows)) as u64
    }

    /// Returns the ids of a planted pair, the lower one first.
    pub(super) fn pair(&self, pair: u64) -> (u64, u64) {
        let a = self.id(pair);
        let b = self.id(pair + self.planted);
        (a.min(b), a.max(b))
    }

    pub(super) fn point(&self, number: u64) -> PlannedPoint {
        let role = self.role(number);
        let embedding = match role {
            PointRole::Copy { pair } | PointRole::Lookalike { pair } => {
                self.near(&self.own(pair), number)
            }
            PointRole::Single | PointRole::Source { .. } => self.own(number),
        };
        PlannedPoint { id: self.id(number), embedding, record: self.record(role, number) }
    }

    /// Returns the vector of a source or a single point, of length 1.
    fn own(&self, number: u64) -> Vec<f32> {
        let cluster = at(self.seed ^ 1, number) % (self.rows / CLUSTER_POINTS + 1);
        let common = unit(self.dims, at(self.seed ^ 2, cluster));
        let own = unit(self.dims, at(self.seed ^ 3, number));
        scaled(common.iter().zip(own).map(|(common, own)| common * COMMON + own).collect())
    }

    /// Returns a copy of `vector` with noise. `number` seeds the noise.
    fn near(&self, vector: &[f32], number: u64) -> Vec<f32> {
        let share = 0.5 * (signed_unit(self.seed ^ 4, number) + 1.0);
        let noise = COPY_NOISE.0 + (COPY_NOISE.1 - COPY_NOISE.0) * share;
        let other = unit(self.dims, at(self.seed ^ 5, number));
        scaled(vector.iter().zip(other).map(|(value, other)| value + noise * other).collect())
    }

    /// Returns the record; empty for single points, which have no image.
    fn record(&self, role: PointRole, number: u64) -> Vec<u8> {
        let small = |seed: u64| {
            let mut graph = synthetic::photo(seed);
            graph.vertices.truncate(KEYPOINTS);
            graph.descriptors.truncate(KEYPOINTS);
            graph
        };
        let graph = match role {
            PointRole::Single => return Vec::new(),
            PointRole::Source { pair } => small(at(self.seed ^ 6, pair)),
            PointRole::Copy { pair } => {
                synthetic::distorted(&small(at(self.seed ^ 6, pair)), at(self.seed ^ 7, pair))
            }
            PointRole::Lookalike { .. } => small(at(self.seed ^ 8, number)),
        };
        let mut record = Vec::new();
        graph.encode(&mut record);
        record
    }
}

fn unit(dims: usize, seed: u64) -> Vec<f32> {
    scaled((0..dims as u64).map(|index| signed_unit(seed, index)).collect())
}

fn scaled(mut vector: Vec<f32>) -> Vec<f32> {
    let length = vector.iter().map(|value| value * value).sum::<f32>().sqrt();
    vector.iter_mut().for_each(|value| *value /= length);
    vector
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_a_permutation_and_copies_are_near() {
        let data = DuplicateData { rows: 1000, dims: 64, planted: 50, lookalikes: 20, seed: 3 };
        let mut ids: Vec<u64> = (0..data.rows).map(|number| data.id(number)).collect();
        ids.sort_unstable();
        assert!(ids.into_iter().eq(0..data.rows));
        let cosine = |a: u64, b: u64| -> f32 {
            let (a, b) = (data.point(a).embedding, data.point(b).embedding);
            a.iter().zip(&b).map(|(a, b)| a * b).sum()
        };
        for pair in 0..data.planted {
            assert!(cosine(pair, pair + data.planted) > 0.85, "pair {pair}");
        }
        assert!(data.point(999).record.is_empty() && !data.point(100).record.is_empty());
        assert_eq!(data.role(100), PointRole::Lookalike { pair: 0 });
        assert_eq!(data.role(120), PointRole::Single);
    }
}
