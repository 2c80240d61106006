//! Sets of rows.

/// A set of row numbers below a known number of rows, as a bitmap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowSet {
    rows: u32,
    count: u32,
    /// Row `r` is bit `r % 64` of word `r / 64`; bits from `rows` on are zero.
    words: Vec<u64>,
}

impl RowSet {
    /// Returns the empty set of `rows` rows.
    pub fn none(rows: u32) -> RowSet {
        RowSet { rows, count: 0, words: vec![0; rows.div_ceil(64) as usize] }
    }

    /// Returns the set of all `rows` rows.
    pub fn all(rows: u32) -> RowSet {
        RowSet::from_words(rows, vec![u64::MAX; rows.div_ceil(64) as usize])
    }

    /// Returns the set of the rows in `list`. Rows from `rows` on are ignored.
    pub fn from_rows(rows: u32, list: impl IntoIterator<Item = u32>) -> RowSet {
        let mut set = RowSet::none(rows);
        list.into_iter().for_each(|row| set.insert(row));
        set
    }

    /// Builds a set from a bitmap as [`RowSet::words`] returns it. Missing words count as zero,
    /// bits from `rows` on are ignored.
    pub fn from_words(rows: u32, mut words: Vec<u64>) -> RowSet {
        words.resize(rows.div_ceil(64) as usize, 0);
        let mut set = RowSet { rows, count: 0, words };
        set.cut();
        set.recount();
        set
    }

    /// Returns the number of rows, in the set or not.
    #[inline]
    pub fn rows(&self) -> u32 {
        self.rows
    }

    /// Returns the number of rows in the set.
    #[inline]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Returns true if the set has no row.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns true if `row` is in the set.
    #[inline]
    pub fn contains(&self, row: u32) -> bool {
        self.words.get(row as usize / 64).is_some_and(|word| word >> (row % 64) & 1 == 1)
    }

    /// Returns 32 rows as bits: bit `i` is set if row `first + i` is in the set. `first` is a
    /// multiple of 32.
    #[inline]
    pub fn block(&self, first: u32) -> u32 {
        let word = self.words.get(first as usize / 64).copied().unwrap_or(0);
        (word >> (first % 64)) as u32
    }

    /// Returns the bitmap: row `r` is bit `r % 64` of word `r / 64`.
    #[inline]
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// Iterates over the rows of the set in ascending order.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.words
            .iter()
            .enumerate()
            .flat_map(|(at, &word)| SetBits(word).map(move |bit| at as u32 * 64 + bit))
    }

    /// Iterates over the rows of the set from `first` on and before `end` in ascending order.
    pub fn iter_within(&self, first: u32, end: u32) -> impl Iterator<Item = u32> + '_ {
        let end = end.min(self.rows);
        let places = first / 64..end.div_ceil(64);
        places.flat_map(move |at| {
            let start = at * 64;
            let from = u64::MAX << first.saturating_sub(start);
            let to = u64::MAX >> (64 - (end - start).min(64));
            let word = self.words.get(at as usize).map_or(0, |word| word & from & to);
            SetBits(word).map(move |bit| start + bit)
        })
    }

    /// Returns the first row of the set from `row` on.
    #[inline]
    pub fn next_from(&self, row: u32) -> Option<u32> {
        let start = row as usize / 64;
        let head = self.words.get(start)? & (u64::MAX << (row % 64));
        let rest = self.words[start + 1..].iter().copied();
        let words = std::iter::once(head).chain(rest).zip(start as u32..);
        let (word, at) = words.into_iter().find(|(word, _)| *word != 0)?;
        Some(at * 64 + word.trailing_zeros())
    }

    /// Adds `row` if it is below [`RowSet::rows`].
    #[inline]
    pub fn insert(&mut self, row: u32) {
        if row < self.rows && !self.contains(row) {
            self.words[row as usize / 64] |= 1 << (row % 64);
            self.count += 1;
        }
    }

    /// Removes `row` from the set.
    #[inline]
    pub fn remove(&mut self, row: u32) {
        if self.contains(row) {
            self.words[row as usize / 64] &= !(1 << (row % 64));
            self.count -= 1;
        }
    }

    /// Keeps the rows that are in `other` too.
    pub fn intersect(&mut self, other: &RowSet) {
        let others = other.words.iter().copied().chain(std::iter::repeat(0));
        for (word, other) in self.words.iter_mut().zip(others) {
            *word &= other;
        }
        self.recount();
    }

    /// Adds the rows of `list`, in any order. Rows from [`RowSet::rows`] on are ignored.
    pub fn extend(&mut self, list: impl IntoIterator<Item = u32>) {
        let list = list.into_iter();
        // Counting all words once costs less than checking each row twice.
        if list.size_hint().0 >= self.words.len() {
            self.adder().add(list);
        } else {
            list.for_each(|row| self.insert(row));
        }
    }

    /// Returns an adder of many rows.
    pub fn adder(&mut self) -> RowAdder<'_> {
        RowAdder(self)
    }

    /// Adds the rows of `other`. Rows from [`RowSet::rows`] on are ignored.
    pub fn unite(&mut self, other: &RowSet) {
        for (word, other) in self.words.iter_mut().zip(&other.words) {
            *word |= other;
        }
        self.cut();
        self.recount();
    }

    /// Removes the rows of `other` from the set.
    pub fn subtract(&mut self, other: &RowSet) {
        for (word, other) in self.words.iter_mut().zip(&other.words) {
            *word &= !other;
        }
        self.recount();
    }

    /// Replaces the set by the rows that are not in it.
    pub fn invert(&mut self) {
        self.words.iter_mut().for_each(|word| *word = !*word);
        self.cut();
        self.count = self.rows - self.count;
    }

    /// Returns the number of rows of the set from `first` on and before `end`.
    pub(crate) fn count_within(&self, first: u32, end: u32) -> u32 {
        let end = end.min(self.rows);
        if first >= end {
            return 0;
        }
        let low = first as usize / 64;
        let high = (end - 1) as usize / 64;
        let from = u64::MAX << (first % 64);
        let to = u64::MAX >> (63 - (end - 1) % 64);
        let Some(words) = self.words.get(low..=high) else { return 0 };
        match words {
            [one] => (one & from & to).count_ones(),
            [head, middle @ .., tail] => {
                let middle: u32 = middle.iter().map(|word| word.count_ones()).sum();
                (head & from).count_ones() + middle + (tail & to).count_ones()
            }
            [] => 0,
        }
    }

    /// Clears the bits from [`RowSet::rows`] on.
    fn cut(&mut self) {
        if !self.rows.is_multiple_of(64)
            && let Some(last) = self.words.last_mut()
        {
            *last &= (1 << (self.rows % 64)) - 1;
        }
    }

    fn recount(&mut self) {
        self.count = self.words.iter().map(|word| word.count_ones()).sum();
    }
}

/// Writer of many rows to a set, which counts them once, when it is dropped.
#[derive(Debug)]
pub struct RowAdder<'a>(&'a mut RowSet);

impl RowAdder<'_> {
    /// Adds the rows of `list`, in any order. Rows from [`RowSet::rows`] on are ignored.
    pub fn add(&mut self, list: impl IntoIterator<Item = u32>) {
        let words = self.0.words.as_mut_slice();
        // Neighbouring rows are joined before they are written. Otherwise the processor would wait
        // for a word that was just written.
        let (mut at, mut bits) = (0, 0);
        for row in list {
            let place = row as usize / 64;
            if place != at {
                if let Some(word) = words.get_mut(at) {
                    *word |= bits;
                }
                (at, bits) = (place, 0);
            }
            bits |= 1 << (row % 64);
        }
        if let Some(word) = words.get_mut(at) {
            *word |= bits;
        }
    }
}

impl Drop for RowAdder<'_> {
    fn drop(&mut self) {
        self.0.cut();
        self.0.recount();
    }
}

/// Iterates over the positions of the ones of a word, in ascending order.
struct SetBits(u64);

impl Iterator for SetBits {
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

    fn check(set: &RowSet, expected: &BTreeSet<u32>) {
        assert_eq!(set.iter().collect::<Vec<_>>(), expected.iter().copied().collect::<Vec<_>>());
        assert_eq!(set.count() as usize, expected.len());
        for row in 0..set.rows() + 70 {
            assert_eq!(set.contains(row), expected.contains(&row));
        }
        for first in (0..set.rows()).step_by(32) {
            let naive = (0..32)
                .filter(|at| expected.contains(&(first + at)))
                .fold(0, |bits, at| bits | 1 << at);
            assert_eq!(set.block(first), naive);
        }
    }

    fn rows_below(rows: u32) -> impl Strategy<Value = BTreeSet<u32>> {
        prop::collection::btree_set(0..rows.max(1), 0..40)
    }

    proptest! {
        #[test]
        fn behaves_as_a_set(rows in 0u32..200, one in rows_below(220), other in rows_below(220), other_rows in 0u32..200) {
            let within = |set: &BTreeSet<u32>, rows: u32| set.iter().copied().filter(|row| *row < rows).collect();
            let set = RowSet::from_rows(rows, one.iter().copied());
            let second = RowSet::from_rows(other_rows, other.iter().copied());
            let (one, other): (BTreeSet<u32>, BTreeSet<u32>) = (within(&one, rows), within(&other, other_rows));
            check(&set, &one);
            check(&RowSet::from_words(rows, set.words().to_vec()), &one);
            let mut both = set.clone();
            both.intersect(&second);
            check(&both, &(&one & &other));
            let all: BTreeSet<u32> = (0..rows).collect();
            let mut either = set.clone();
            either.unite(&second);
            check(&either, &within(&(&one | &other), rows));
            let mut extended = set.clone();
            extended.extend(other.iter().copied());
            check(&extended, &within(&(&one | &other), rows));
            let mut rest = set.clone();
            rest.subtract(&second);
            check(&rest, &(&one - &other));
            let mut inverse = set.clone();
            inverse.invert();
            check(&inverse, &(&all - &one));
            for (first, end) in [(0, rows), (3, 70), (64, 128), (65, 66), (130, 500), (9, 9), (9, 3)] {
                let expected = one.iter().filter(|row| (first..end).contains(*row)).count();
                prop_assert_eq!(set.count_within(first, end) as usize, expected);
                let within = one.iter().copied().filter(|row| (first..end).contains(row));
                prop_assert!(set.iter_within(first, end).eq(within));
            }
            for row in 0..rows + 70 {
                prop_assert_eq!(set.next_from(row), one.range(row..).next().copied());
            }
            let mut removed = set;
            other.iter().for_each(|row| removed.remove(*row));
            check(&removed, &(&one - &other));
            check(&RowSet::all(rows), &all);
        }
    }
}
