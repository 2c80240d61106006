//! Rows that meet a condition, and rows for which the index cannot decide.

use coarse::RowSet;

/// Result of a condition: rows that meet it, and rows that may meet it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RowSelection {
    /// Rows that meet the condition.
    sure: RowSet,
    /// These and the undecided rows, or `None` if no row is undecided.
    possible: Option<RowSet>,
}

impl RowSelection {
    /// Creates a selection without undecided rows.
    pub(crate) fn sure(rows: RowSet) -> RowSelection {
        RowSelection { sure: rows, possible: None }
    }

    /// Creates a selection in which all rows of `possible` are undecided. All other rows do not
    /// meet the condition.
    pub(crate) fn undecided(possible: RowSet) -> RowSelection {
        let sure = RowSet::none(possible.rows());
        RowSelection { sure, possible: Some(possible) }
    }

    /// Makes the rows of `rows` undecided.
    pub(crate) fn add_undecided(&mut self, rows: &RowSet) {
        if rows.is_empty() {
            return;
        }
        self.possible.get_or_insert_with(|| self.sure.clone()).unite(rows);
        self.sure.subtract(rows);
    }

    fn possible(&self) -> &RowSet {
        self.possible.as_ref().unwrap_or(&self.sure)
    }

    /// Returns true if no row is undecided.
    pub(crate) fn is_decided(&self) -> bool {
        self.possible.is_none()
    }

    /// Returns true if no row can meet the condition.
    pub(crate) fn is_impossible(&self) -> bool {
        self.possible().is_empty()
    }

    /// Keeps the rows that meet `other` too.
    pub(crate) fn and(&mut self, other: &RowSelection) {
        if self.possible.is_some() || other.possible.is_some() {
            self.possible.get_or_insert_with(|| self.sure.clone()).intersect(other.possible());
        }
        self.sure.intersect(&other.sure);
    }

    /// Adds the rows that meet `other`.
    pub(crate) fn or(&mut self, other: &RowSelection) {
        if self.possible.is_some() || other.possible.is_some() {
            self.possible.get_or_insert_with(|| self.sure.clone()).unite(other.possible());
        }
        self.sure.unite(&other.sure);
    }

    /// Selects the rows that do not meet the condition.
    pub(crate) fn not(self) -> RowSelection {
        let RowSelection { mut sure, possible } = self;
        sure.invert();
        match possible {
            None => RowSelection { sure, possible: None },
            Some(mut possible) => {
                possible.invert();
                RowSelection { sure: possible, possible: Some(sure) }
            }
        }
    }

    /// Returns the rows that meet the condition and the undecided rows.
    pub(crate) fn into_parts(self) -> SelectionParts {
        let RowSelection { sure, possible } = self;
        let undecided = possible.map(|mut possible| {
            possible.subtract(&sure);
            possible
        });
        SelectionParts { sure, undecided: undecided.filter(|rows| !rows.is_empty()) }
    }
}

/// Rows of a [`RowSelection`], as separate sets.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SelectionParts {
    /// Rows that meet the condition.
    pub(crate) sure: RowSet,
    /// Other rows that may meet it, or `None` if there are none.
    pub(crate) undecided: Option<RowSet>,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Truth of each row: no, perhaps, yes.
    type Truths = Vec<u8>;

    fn selection(truths: &Truths) -> RowSelection {
        let rows = |least: u8| {
            let rows = (0..).zip(truths).filter(|(_, truth)| **truth >= least);
            RowSet::from_rows(truths.len() as u32, rows.map(|(row, _)| row))
        };
        let mut selection = RowSelection::sure(rows(2));
        let mut undecided = rows(1);
        undecided.subtract(&rows(2));
        selection.add_undecided(&undecided);
        selection
    }

    fn truths(selection: RowSelection) -> Truths {
        let rows = selection.sure.rows();
        let SelectionParts { sure, undecided } = selection.into_parts();
        let undecided = |row| undecided.as_ref().is_some_and(|rows| rows.contains(row));
        (0..rows).map(|row| if sure.contains(row) { 2 } else { u8::from(undecided(row)) }).collect()
    }

    proptest! {
        #[test]
        fn selections_follow_three_valued_logic(
            pairs in prop::collection::vec((0_u8..3, 0_u8..3), 0..150)
        ) {
            let (one, other): (Truths, Truths) = pairs.iter().copied().unzip();
            prop_assert_eq!(truths(selection(&one)), one.clone());
            let mut both = selection(&one);
            both.and(&selection(&other));
            let least: Truths = pairs.iter().map(|(a, b)| *a.min(b)).collect();
            prop_assert_eq!(truths(both), least);
            let mut either = selection(&one);
            either.or(&selection(&other));
            let most: Truths = pairs.iter().map(|(a, b)| *a.max(b)).collect();
            prop_assert_eq!(truths(either), most);
            let not: Truths = one.iter().map(|truth| 2 - truth).collect();
            prop_assert_eq!(truths(selection(&one).not()), not);
            prop_assert_eq!(selection(&one).is_impossible(), one.iter().all(|truth| *truth == 0));
        }
    }
}
