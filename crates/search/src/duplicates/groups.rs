//! Groups of points that pairs connect.

use std::collections::HashMap;

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
#[must_use]
pub fn groups(pairs: &[DuplicatePair]) -> Vec<DuplicateGroup> {
    let mut sets = DisjointSets::default();
    for pair in pairs {
        let a = sets.number(pair.a);
        let b = sets.number(pair.b);
        sets.join(a, b);
    }
    let mut groups: HashMap<u32, DuplicateGroup> = HashMap::new();
    for (number, id) in sets.ids.clone().into_iter().enumerate() {
        let root = sets.root(number as u32);
        groups.entry(root).or_default().ids.push(id);
    }
    for pair in pairs {
        let number = sets.number(pair.a);
        let root = sets.root(number);
        groups.entry(root).or_default().pairs.push(*pair);
    }
    let mut groups: Vec<DuplicateGroup> = groups.into_values().collect();
    for group in &mut groups {
        group.ids.sort_unstable();
        group.pairs.sort_unstable_by_key(|pair| (pair.a, pair.b));
    }
    groups.sort_unstable_by(|one, other| {
        other.ids.len().cmp(&one.ids.len()).then(one.ids.first().cmp(&other.ids.first()))
    });
    groups
}

/// Disjoint sets of ids with path halving and union by size (Tarjan and van Leeuwen, 1984).
#[derive(Default)]
struct DisjointSets {
    numbers: HashMap<u64, u32>,
    ids: Vec<u64>,
    parents: Vec<u32>,
    sizes: Vec<u32>,
}

impl DisjointSets {
    fn number(&mut self, id: u64) -> u32 {
        *self.numbers.entry(id).or_insert_with(|| {
            let number = self.ids.len() as u32;
            self.ids.push(id);
            self.parents.push(number);
            self.sizes.push(1);
            number
        })
    }

    fn root(&mut self, mut at: u32) -> u32 {
        while self.parents[at as usize] != at {
            let above = self.parents[at as usize];
            self.parents[at as usize] = self.parents[above as usize];
            at = self.parents[at as usize];
        }
        at
    }

    fn join(&mut self, a: u32, b: u32) {
        let a = self.root(a);
        let b = self.root(b);
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
