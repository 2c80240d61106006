//! Chooses the lists to scan for a filter. The number of allowed rows in the lists decides, and not
//! the number of lists.
//!
//! A filter may be correlated with the vectors: all rows near the query may be excluded. A fixed
//! number of lists then holds too few allowed rows, and recall falls. So the nearest lists are
//! taken until they hold as many allowed rows as a search without a filter compares.

use crate::RowSet;

/// If the goal is not reached in this many times the expected lists, the query is far from the
/// allowed rows.
const FAR_LISTS: f64 = 1.25;
/// Part of the expected lists that is nearest to the query, at least one list. An uncorrelated
/// filter would leave some of their rows. If they hold less than half as many allowed rows, the
/// query is far from the allowed rows too.
const NEAREST_PART: usize = 8;
/// Allowed rows that the nearest lists must be expected to hold before they are judged. Fewer vary
/// too much by chance.
const NEAREST_ROWS_MIN: f64 = 16.0;
/// Factor of the goal for a query that is far from the allowed rows. Its nearest rows are about
/// equally far away and therefore spread over more lists.
pub(super) const FAR_ROWS: usize = 8;
/// Minimum goal for a query that is far from the allowed rows. So many rows cost about half a
/// millisecond.
const FAR_ROWS_MIN: usize = 25_000;
/// Factor by which more lists are found if the ones found do not suffice.
const GROWTH: usize = 4;

/// Goal of a search with a filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FilteredProbes {
    /// Number of allowed rows to compare.
    pub(super) rows: usize,
    /// Number of lists that hold so many if the filter is not correlated with the vectors.
    pub(super) lists: usize,
}

/// Result of a selection of lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ListGoal {
    /// The selected lists suffice.
    Reached,
    /// More lists are needed.
    NeedsLists,
    /// More lists are needed, because all allowed rows are to be compared.
    NeedsAll,
}

impl FilteredProbes {
    /// Returns the number of lists to find first.
    pub(super) fn first(&self, clusters: usize) -> usize {
        (self.lists + self.lists / 2 + 1).min(clusters)
    }

    /// Returns the number of lists to find after `found` did not suffice.
    pub(super) fn more(found: usize, clusters: usize) -> usize {
        found.saturating_mul(GROWTH).min(clusters)
    }

    /// Keeps the lists of `near` that a query has to scan. They are the lists with an allowed row,
    /// up to the list that reaches the goal. `near` has the distance and the number of each list,
    /// nearest first. `starts` has the first row of each list, and at its end the number of rows.
    pub(super) fn choose(
        &self,
        near: &mut Vec<(f32, u32)>,
        starts: &[u32],
        allow: &RowSet,
    ) -> ListGoal {
        let expected = (self.lists as f64 * FAR_LISTS) as usize;
        let nearest = (self.lists / NEAREST_PART).max(1);
        let share = f64::from(allow.count()) / f64::from(allow.rows().max(1));
        let mut goal = self.rows;
        let mut lists = 0;
        let mut allowed_rows = 0;
        let mut all_rows = 0;
        near.retain(|(_, cluster)| {
            if allowed_rows >= goal {
                return false;
            }
            // Number of allowed rows that these lists hold if the filter is not correlated.
            let usual = share * f64::from(all_rows);
            let is_far = lists == nearest
                && usual >= NEAREST_ROWS_MIN
                && (allowed_rows as f64) < usual / 2.0;
            if goal == self.rows && (is_far || lists == expected) {
                let far = (goal * FAR_ROWS).max(FAR_ROWS_MIN);
                goal = far.min(allow.count() as usize);
            }
            lists += 1;
            let cluster = *cluster as usize;
            let Some(&[first, end]) = starts.get(cluster..cluster + 2) else { return false };
            let rows = allow.count_within(first, end);
            allowed_rows += rows as usize;
            all_rows += end - first;
            rows > 0
        });
        if allowed_rows >= goal {
            ListGoal::Reached
        } else if goal > self.rows && goal == allow.count() as usize {
            ListGoal::NeedsAll
        } else {
            ListGoal::NeedsLists
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Chooses among ten lists of ten rows, ordered by distance.
    fn choose(probes: FilteredProbes, allow: &RowSet) -> (Vec<u32>, ListGoal) {
        let starts: Vec<u32> = (0..=10).map(|list| list * 10).collect();
        let mut near: Vec<(f32, u32)> = (0..10).map(|list| (list as f32, list)).collect();
        let enough = probes.choose(&mut near, &starts, allow);
        (near.iter().map(|(_, list)| *list).collect(), enough)
    }

    #[test]
    fn lists_are_taken_until_the_goal() {
        let half = RowSet::from_rows(100, (0..100).filter(|row| row % 2 == 0));
        let probes = FilteredProbes { rows: 20, lists: 4 };
        assert_eq!(choose(probes, &half), (vec![0, 1, 2, 3], ListGoal::Reached));
        let near = RowSet::from_rows(100, 0..50);
        assert_eq!(choose(probes, &near), (vec![0, 1], ListGoal::Reached));
        assert_eq!(
            choose(FilteredProbes { rows: 51, lists: 10 }, &near),
            (vec![0, 1, 2, 3, 4], ListGoal::NeedsLists)
        );
    }

    #[test]
    fn one_near_list_is_enough_to_see_that_rows_are_far() {
        // Ten lists of 40 rows; the nearest one is excluded, and half of the others.
        let starts: Vec<u32> = (0..=10).map(|list| list * 40).collect();
        let even = RowSet::from_rows(400, (0..400).filter(|row| row / 40 % 2 == 1));
        let chosen = |allow: &RowSet| {
            let mut near: Vec<(f32, u32)> = (0..10).map(|list| (list as f32, list)).collect();
            let enough = FilteredProbes { rows: 40, lists: 2 }.choose(&mut near, &starts, allow);
            (near.iter().map(|(_, list)| *list).collect::<Vec<u32>>(), enough)
        };
        assert_eq!(chosen(&even), (vec![1, 3, 5, 7, 9], ListGoal::Reached));
        let half = RowSet::from_rows(400, (0..400).filter(|row| row % 2 == 1));
        assert_eq!(chosen(&half), (vec![0, 1], ListGoal::Reached), "not correlated");
    }

    #[test]
    fn far_rows_raise_the_goal() {
        let far = RowSet::from_rows(100, 50..100);
        let probes = FilteredProbes { rows: 10, lists: 2 };
        // The goal becomes all 50 rows once two lists have none.
        assert_eq!(choose(probes, &far), (vec![5, 6, 7, 8, 9], ListGoal::Reached));
        let starts: Vec<u32> = (0..=10).map(|list| list * 10).collect();
        let mut near = vec![(0.0, 0), (1.0, 1), (2.0, 2)];
        assert_eq!(probes.choose(&mut near, &starts, &far), ListGoal::NeedsAll);
    }
}
