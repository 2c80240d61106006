//! A set of rows.

/// Rows that are allowed, of a known number of rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowSet {
    rows: u32,
    count: u32,
    /// Row `r` is bit `r % 64` of word `r / 64`; bits from `rows` on are zero.
    words: Vec<u64>,
}

impl RowSet {
    /// None of `rows` rows is allowed.
    pub fn none(rows: u32) -> RowSet {
        RowSet { rows, count: 0, words: vec![0; rows.div_ceil(64) as usize] }
    }

    /// All of `rows` rows are allowed.
    pub fn all(rows: u32) -> RowSet {
        RowSet::from_words(rows, vec![u64::MAX; rows.div_ceil(64) as usize])
    }

    /// Those of `rows` rows are allowed that `list` names; what is not below `rows` is left out.
    pub fn from_rows(rows: u32, list: impl IntoIterator<Item = u32>) -> RowSet {
        let mut filter = RowSet::none(rows);
        list.into_iter().for_each(|row| filter.insert(row));
        filter
    }

    /// From a bitmap as [`RowSet::words`] gives it: missing words count as zero, what is too much is left out.
    pub fn from_words(rows: u32, mut words: Vec<u64>) -> RowSet {
        words.resize(rows.div_ceil(64) as usize, 0);
        if !rows.is_multiple_of(64)
            && let Some(last) = words.last_mut()
        {
            *last &= (1 << (rows % 64)) - 1;
        }
        let mut filter = RowSet { rows, count: 0, words };
        filter.recount();
        filter
    }

    /// How many rows there are, allowed or not.
    pub fn rows(&self) -> u32 {
        self.rows
    }

    /// How many rows are allowed.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Whether no row is allowed.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether `row` is allowed; false where there is no such row.
    #[inline]
    pub fn contains(&self, row: u32) -> bool {
        self.words.get(row as usize / 64).is_some_and(|word| word >> (row % 64) & 1 == 1)
    }

    /// Which of the 32 rows from `first` on are allowed, bit `i` for row `first + i`; `first` is a multiple of 32.
    #[inline]
    pub fn block(&self, first: u32) -> u32 {
        let word = self.words.get(first as usize / 64).copied().unwrap_or(0);
        (word >> (first % 64)) as u32
    }

    /// The bitmap: row `r` is bit `r % 64` of word `r / 64`.
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// The allowed rows in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.words.iter().enumerate().flat_map(|(at, &word)| Bits(word).map(move |bit| at as u32 * 64 + bit))
    }

    /// Allows `row`; nothing happens where there is no such row.
    pub fn insert(&mut self, row: u32) {
        if row < self.rows && !self.contains(row) {
            self.words[row as usize / 64] |= 1 << (row % 64);
            self.count += 1;
        }
    }

    /// No longer allows `row`.
    pub fn remove(&mut self, row: u32) {
        if self.contains(row) {
            self.words[row as usize / 64] &= !(1 << (row % 64));
            self.count -= 1;
        }
    }

    /// Keeps what `other` also allows. Rows that `other` does not have are not allowed by it.
    pub fn intersect(&mut self, other: &RowSet) {
        self.combine(other, |one, other| one & other);
    }

    /// Adds what `other` allows, as far as it is a row of this filter.
    pub fn unite(&mut self, other: &RowSet) {
        self.combine(other, |one, other| one | other);
    }

    /// Takes away what `other` holds, for example deleted rows.
    pub fn subtract(&mut self, other: &RowSet) {
        self.combine(other, |one, other| one & !other);
    }

    fn combine(&mut self, other: &RowSet, operation: impl Fn(u64, u64) -> u64) {
        let others = other.words.iter().copied().chain(std::iter::repeat(0));
        for (word, other) in self.words.iter_mut().zip(others) {
            *word = operation(*word, other);
        }
        *self = RowSet::from_words(self.rows, std::mem::take(&mut self.words));
    }

    fn recount(&mut self) {
        self.count = self.words.iter().map(|word| word.count_ones()).sum();
    }
}

/// The positions of the ones of a word, in ascending order.
struct Bits(u64);

impl Iterator for Bits {
    type Item = u32;

    #[inline]
    fn next(&mut self) -> Option<u32> {
        if self.0 == 0 {
            return None;
        }
        let bit = self.0.trailing_zeros();
        self.0 &= self.0 - 1;
        Some(bit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn check(filter: &RowSet, expected: &BTreeSet<u32>) {
        assert_eq!(filter.iter().collect::<Vec<_>>(), expected.iter().copied().collect::<Vec<_>>());
        assert_eq!(filter.count() as usize, expected.len());
        for row in 0..filter.rows() + 70 {
            assert_eq!(filter.contains(row), expected.contains(&row));
        }
        for first in (0..filter.rows()).step_by(32) {
            let naive =
                (0..32).filter(|at| expected.contains(&(first + at))).fold(0, |bits, at| bits | 1 << at);
            assert_eq!(filter.block(first), naive);
        }
    }

    fn set(rows: u32) -> impl Strategy<Value = BTreeSet<u32>> {
        prop::collection::btree_set(0..rows.max(1), 0..40)
    }

    proptest! {
        #[test]
        fn behaves_as_a_set(rows in 0u32..200, one in set(220), other in set(220), other_rows in 0u32..200) {
            let within = |set: &BTreeSet<u32>, rows: u32| set.iter().copied().filter(|row| *row < rows).collect();
            let filter = RowSet::from_rows(rows, one.iter().copied());
            let second = RowSet::from_rows(other_rows, other.iter().copied());
            let (one, other): (BTreeSet<u32>, BTreeSet<u32>) = (within(&one, rows), within(&other, other_rows));
            check(&filter, &one);
            check(&RowSet::from_words(rows, filter.words().to_vec()), &one);
            let mut both = filter.clone();
            both.intersect(&second);
            check(&both, &(&one & &other));
            let mut either = filter.clone();
            either.unite(&second);
            check(&either, &within(&(&one | &other), rows));
            let mut rest = filter.clone();
            rest.subtract(&second);
            check(&rest, &(&one - &other));
            let mut removed = filter;
            other.iter().for_each(|row| removed.remove(*row));
            check(&removed, &(&one - &other));
            check(&RowSet::all(rows), &(0..rows).collect());
        }
    }
}
