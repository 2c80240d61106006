//! Error rates from scores.

use base::{Error, Result};
use serde::Serialize;

use super::Impression;

/// False match rate at which misses are counted.
pub(super) const FALSE_MATCH_RATE: f64 = 0.001;

/// Error rates of a matcher.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct ErrorRates {
    /// Equal error rate in percent: as many genuine pairs are missed as impostors accepted.
    pub(super) eer_pct: f64,
    /// Genuine pairs that are not accepted at a false match rate of at most 0.1 %, in percent.
    pub(super) fnmr_pct: f64,
    /// Score above which pairs are accepted.
    pub(super) threshold: f32,
    /// Number of pairs of one finger.
    pub(super) genuine: usize,
    /// Number of pairs of two fingers.
    pub(super) impostor: usize,
}

impl ErrorRates {
    /// Computes the rates of scores in any order. Returns `None` if either is empty.
    fn of(genuine: &mut [f32], impostor: &mut [f32]) -> Option<ErrorRates> {
        genuine.sort_by(f32::total_cmp);
        impostor.sort_by(f32::total_cmp);
        let accepted_max = (impostor.len() as f64 * FALSE_MATCH_RATE) as usize;
        let threshold = *impostor.iter().rev().nth(accepted_max)?;
        let missed = genuine.partition_point(|&score| score <= threshold);
        Some(ErrorRates {
            eer_pct: equal_error(genuine, impostor)?,
            fnmr_pct: 100.0 * missed as f64 / genuine.len() as f64,
            threshold,
            genuine: genuine.len(),
            impostor: impostor.len(),
        })
    }
}

/// Returns half of both rates in percent at the genuine score where they are closest. Both slices
/// are sorted.
fn equal_error(genuine: &[f32], impostor: &[f32]) -> Option<f64> {
    let share = |count: usize, of: &[f32]| count as f64 / of.len() as f64;
    genuine
        .iter()
        .map(|&threshold| {
            let missed = share(genuine.partition_point(|&score| score < threshold), genuine);
            let accepted = share(
                impostor.len() - impostor.partition_point(|&score| score < threshold),
                impostor,
            );
            ((missed - accepted).abs(), 50.0 * (missed + accepted))
        })
        .min_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, rate)| rate)
}

#[derive(Clone, Copy, Debug)]
struct ScoredPair<'a> {
    first: &'a Impression,
    second: &'a Impression,
    score: f32,
    /// True if both are the first impressions of their fingers.
    leading: bool,
}

/// Scores of all pairs.
#[derive(Debug)]
pub(super) struct Scores<'a> {
    pairs: Vec<ScoredPair<'a>>,
}

impl<'a> Scores<'a> {
    /// Creates the scores of `impressions`. `scores` has one score for each unordered pair, in the
    /// order (0, 1), (0, 2), ..., (1, 2).
    pub(super) fn new(impressions: &'a [Impression], scores: &[f32]) -> Scores<'a> {
        let leading =
            |index: usize| index == 0 || !impressions[index].same_finger(&impressions[index - 1]);
        let all = (0..impressions.len())
            .flat_map(|first| (first + 1..impressions.len()).map(move |second| (first, second)));
        let pairs = all
            .zip(scores)
            .map(|((first, second), &score)| ScoredPair {
                first: &impressions[first],
                second: &impressions[second],
                score,
                leading: leading(first) && leading(second),
            })
            .collect();
        Scores { pairs }
    }

    /// Returns the rates of all pairs.
    pub(super) fn pooled(&self) -> Result<ErrorRates> {
        self.rates(|_| true).ok_or_else(|| {
            Error::invalid(
                "there must be two impressions of one finger and one of another to be told apart",
            )
        })
    }

    /// Returns the rates within one database, or `None` if it has no genuine or no impostor pair.
    pub(super) fn within(&self, database: &str) -> Option<ErrorRates> {
        self.rates(|pair| pair.first.database == database && pair.second.database == database)
    }

    /// Returns the rates by the protocol of FVC: all genuine pairs, of impostors only those of
    /// first impressions.
    pub(super) fn first_impressions(&self) -> Option<ErrorRates> {
        self.rates(|pair| pair.leading || pair.first.same_finger(pair.second))
    }

    fn rates(&self, of: impl Fn(&ScoredPair<'_>) -> bool) -> Option<ErrorRates> {
        let (genuine, impostor): (Vec<&ScoredPair<'_>>, Vec<&ScoredPair<'_>>) = self
            .pairs
            .iter()
            .filter(|pair| of(pair))
            .partition(|pair| pair.first.same_finger(pair.second));
        let scores = |pairs: Vec<&ScoredPair<'_>>| {
            pairs.into_iter().map(|pair| pair.score).collect::<Vec<f32>>()
        };
        ErrorRates::of(&mut scores(genuine), &mut scores(impostor))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_those_of_counting() {
        let mut impostor: Vec<f32> = (0..1000).map(|score| score as f32 / 10.0).collect();
        let mut genuine = vec![200.0, 99.85, 99.8, 99.0];
        let rates = ErrorRates::of(&mut genuine, &mut impostor).unwrap();
        // One of a thousand impostors (99.9) may be accepted; 99.8 is the threshold, and is not
        // accepted itself.
        assert_eq!((rates.threshold, rates.fnmr_pct), (99.8, 50.0));
        assert!(rates.eer_pct < 1.0, "{rates:?}");
        assert_eq!((rates.genuine, rates.impostor), (4, 1000));
    }

    #[test]
    fn few_impostors_allow_no_false_match() {
        let rates = ErrorRates::of(&mut [3.0, 1.0], &mut [2.0, 0.0]).unwrap();
        assert_eq!((rates.threshold, rates.fnmr_pct, rates.eer_pct), (2.0, 50.0, 25.0));
        assert!(ErrorRates::of(&mut [], &mut [1.0]).is_none());
        assert!(ErrorRates::of(&mut [1.0], &mut []).is_none());
    }
}
