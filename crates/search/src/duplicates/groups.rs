//! Groups of points that pairs connect.

use super::store::DuplicatePair;

/// Points that pairs connect, directly or through others.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DuplicateGroup {
    /// Internal ids in ascending order, at least two.
    pub ids: Vec<u64>,
    /// Pairs that agree, by their ids.
    pub pairs: Vec<DuplicatePair>,
}

/// Returns the groups of `pairs`, the largest first, equal ones by their least id.
///
/// A job can have millions of groups of two points. So numbers are sorted instead of hashed, and
/// the lists of a group have no unused memory.
#[must_use]
pub fn groups(pairs: &[DuplicatePair]) -> Vec<DuplicateGroup> {
    let mut sets = DisjointSets::new(pairs);
    for pair in pairs {
        sets.join(pair);
    }
    // In ascending order of their ids within a set.
    let mut members: Vec<(u32, u32)> =
        (0..sets.ids.len() as u32).map(|number| (sets.root(number), number)).collect();
    members.sort_unstable();
    let mut edges: Vec<(u32, u32)> =
        pairs.iter().zip(0..).map(|(pair, at)| (sets.root_of(pair.a), at)).collect();
    edges.sort_unstable_by_key(|&(root, at)| {
        let pair = &pairs[at as usize];
        (root, pair.a, pair.b)
    });
    let same_root = |one: &(u32, u32), other: &(u32, u32)| one.0 == other.0;
    // Every set has a pair, so both lists have the same roots.
    let sets_of_points = members.chunk_by(same_root).zip(edges.chunk_by(same_root));
    let mut groups: Vec<DuplicateGroup> = sets_of_points
        .map(|(members, edges)| DuplicateGroup {
            ids: members.iter().map(|&(_, number)| sets.ids[number as usize]).collect(),
            pairs: edges.iter().map(|&(_, at)| pairs[at as usize]).collect(),
        })
        .collect();
    groups.sort_unstable_by(|one, other| {
        other.ids.len().cmp(&one.ids.len()).then(one.ids.first().cmp(&other.ids.first()))
    });
    groups
}

/// Disjoint sets of ids with path halving and union by size (Tarjan and van Leeuwen, 1984).
struct DisjointSets {
    /// All ids in ascending order. The index of an id is its number in the other lists.
    ids: Vec<u64>,
    /// Number of another id of the same set, or the own number at the root of a set.
    parents: Vec<u32>,
    /// Number of ids in the set of each root.
    sizes: Vec<u32>,
}

impl DisjointSets {
    /// Creates a set for each point of `pairs`.
    fn new(pairs: &[DuplicatePair]) -> DisjointSets {
        let mut ids: Vec<u64> = pairs.iter().flat_map(|pair| [pair.a, pair.b]).collect();
        ids.sort_unstable();
        ids.dedup();
        ids.shrink_to_fit();
        let count = ids.len();
        DisjointSets { ids, parents: (0..count as u32).collect(), sizes: vec![1; count] }
    }

    /// Returns the number of the set that has `id`, which is an id of a pair.
    fn root_of(&mut self, id: u64) -> u32 {
        let number = self.ids.partition_point(|&other| other < id);
        self.root(number as u32)
    }

    fn root(&mut self, mut at: u32) -> u32 {
        while self.parents[at as usize] != at {
            let above = self.parents[at as usize];
            self.parents[at as usize] = self.parents[above as usize];
            at = self.parents[at as usize];
        }
        at
    }

    /// Joins the sets of the points of a pair.
    fn join(&mut self, pair: &DuplicatePair) {
        let a = self.root_of(pair.a);
        let b = self.root_of(pair.b);
        if a == b {
            return;
        }
        let (large, small) =
            if self.sizes[a as usize] >= self.sizes[b as usize] { (a, b) } else { (b, a) };
        self.parents[small as usize] = large;
        self.sizes[large as usize] += self.sizes[small as usize];
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pair(a: u64, b: u64) -> DuplicatePair {
        DuplicatePair { a: a.min(b), b: a.max(b), similarity: 1.0, score: None }
    }

    /// Spreads the least id of each component until nothing changes.
    fn naive(pairs: &[DuplicatePair]) -> Vec<Vec<u64>> {
        let mut least: std::collections::BTreeMap<u64, u64> = std::collections::BTreeMap::new();
        for pair in pairs {
            least.insert(pair.a, pair.a);
            least.insert(pair.b, pair.b);
        }
        loop {
            let before = least.clone();
            for pair in pairs {
                let both = least[&pair.a].min(least[&pair.b]);
                least.insert(pair.a, both);
                least.insert(pair.b, both);
            }
            if before == least {
                break;
            }
        }
        let mut components: std::collections::BTreeMap<u64, Vec<u64>> = Default::default();
        for (id, first) in least {
            components.entry(first).or_default().push(id);
        }
        components.into_values().collect()
    }

    #[test]
    fn groups_have_no_spare_memory() {
        let found = groups(&[pair(5, 1), pair(7, 6), pair(1, 3)]);
        let [first, second] = &found[..] else { panic!("{found:?}") };
        assert_eq!(
            (&first.ids[..], &first.pairs[..]),
            (&[1, 3, 5][..], &[pair(1, 3), pair(1, 5)][..])
        );
        assert_eq!((&second.ids[..], &second.pairs[..]), (&[6, 7][..], &[pair(6, 7)][..]));
        assert_eq!((second.ids.capacity(), second.pairs.capacity()), (2, 1));
    }

    proptest! {
        #[test]
        fn groups_equal_connected_components(ends in prop::collection::vec((0_u64..40, 0_u64..40), 0..60)) {
            let pairs: Vec<DuplicatePair> =
                ends.into_iter().filter(|(a, b)| a != b).map(|(a, b)| pair(a, b)).collect();
            let found = groups(&pairs);
            prop_assert_eq!(found.iter().map(|group| group.pairs.len()).sum::<usize>(), pairs.len());
            prop_assert!(found.windows(2).all(|two| two[0].ids.len() >= two[1].ids.len()));
            let mut ids: Vec<Vec<u64>> = found.into_iter().map(|group| group.ids).collect();
            ids.sort();
            prop_assert_eq!(ids, naive(&pairs));
        }
    }
}
