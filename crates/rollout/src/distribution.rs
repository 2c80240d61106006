//! Distributions of the two versions' outputs, compared if they do not answer the same requests.
//!
//! Three numbers describe a numeric output of a request: the mean, the maximum and the position of
//! the maximum, each over the first [`ELEMENTS_MAX`] elements. A histogram of each is kept by arm.
//! The drift is the largest difference of the two cumulative distributions over all edges of the
//! buckets (Kolmogorov and Smirnov's distance). Outputs of other types are left out.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base::{NamedTensor, Signature};

use super::bounds::{TrialCounts, lower_bound, upper_bound};
#[cfg(doc)]
use super::compare::ELEMENTS_MAX;
use super::compare::numbers;

/// Maximum number of outputs of a model that are compared, in the signature's order.
const OUTPUTS_MAX: usize = 8;
/// Numbers that describe an output.
const STATISTICS: usize = 3;
/// Buckets for each power of two of a number's magnitude.
const SUB_BUCKETS: i32 = 4;
/// Magnitudes from 2^-20 to 2^20 have buckets of their own.
const EXPONENT_MAX: i32 = 20;
/// Buckets of one sign.
const SIDE: i32 = 2 * EXPONENT_MAX * SUB_BUCKETS;
/// Negative numbers, zero, positive numbers, and values that are not finite.
const BUCKETS: usize = 2 * SIDE as usize + 2;

/// Histograms of one arm's outputs.
struct ArmOutputs(Box<[AtomicU64]>);

/// Histograms of both arms.
pub(crate) struct OutputDistributions {
    names: Vec<Arc<str>>,
    arms: [ArmOutputs; 2],
}

impl OutputDistributions {
    pub(crate) fn new(signature: &Signature) -> OutputDistributions {
        let outputs = signature.outputs.iter().take(OUTPUTS_MAX);
        let names: Vec<Arc<str>> = outputs.map(|spec| spec.name.as_str().into()).collect();
        let counts = || (0..names.len() * STATISTICS * BUCKETS).map(|_| AtomicU64::new(0));
        let arms = [ArmOutputs(counts().collect()), ArmOutputs(counts().collect())];
        OutputDistributions { names, arms }
    }

    /// Counts an answer of arm 0 (stable) or 1 (candidate).
    pub(crate) fn record(&self, arm: usize, outputs: &[NamedTensor]) {
        let Some(ArmOutputs(counts)) = self.arms.get(arm) else { return };
        for (index, name) in self.names.iter().enumerate() {
            let Some(output) = outputs.iter().find(|output| output.name == *name) else { continue };
            let Some(values) = numbers(&output.tensor).filter(|values| !values.is_empty()) else {
                continue;
            };
            for (statistic, value) in statistics(&values).into_iter().enumerate() {
                let place = (index * STATISTICS + statistic) * BUCKETS + bucket(value);
                if let Some(count) = counts.get(place) {
                    count.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    }

    pub(crate) fn read(&self) -> DistributionCounts {
        let copy = |ArmOutputs(counts): &ArmOutputs| {
            counts.iter().map(|count| count.load(Ordering::Relaxed)).collect()
        };
        DistributionCounts { names: self.names.clone(), arms: self.arms.each_ref().map(copy) }
    }
}

/// Returns mean, maximum and position of the maximum.
fn statistics(values: &[f64]) -> [f64; STATISTICS] {
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    let mut top = (0, f64::NEG_INFINITY);
    for (position, &value) in values.iter().enumerate() {
        if value > top.1 {
            top = (position, value);
        }
    }
    [mean, top.1, top.0 as f64]
}

/// Returns the bucket of a number. Buckets ascend with the numbers from the largest negative one to
/// the largest positive one, with zero in the middle. The last bucket is for values that are not
/// finite.
fn bucket(value: f64) -> usize {
    if !value.is_finite() {
        return BUCKETS - 1;
    }
    let rank = (value.abs().log2() * f64::from(SUB_BUCKETS)).floor();
    let lowest = -EXPONENT_MAX * SUB_BUCKETS;
    // The logarithm of zero is minus infinity.
    let rank = if rank < f64::from(lowest) { 0 } else { (rank as i32 - lowest).min(SIDE - 1) + 1 };
    let signed = if value < 0.0 { -rank } else { rank };
    usize::try_from(SIDE + signed).unwrap_or_default()
}

/// A copy of the histograms at one moment.
#[derive(Clone, Debug, Default)]
pub struct DistributionCounts {
    names: Vec<Arc<str>>,
    arms: [Vec<u64>; 2],
}

/// Difference of two distributions of one statistic.
#[derive(Clone, Debug, PartialEq)]
pub struct Drift {
    /// Output and statistic.
    pub of: String,
    /// Largest difference of the cumulative distributions.
    pub distance: f64,
    /// Lower bound of the distance at the `level` of [`DistributionCounts::drift`]. It is valid
    /// after any number of answers.
    pub proven: f64,
}

impl DistributionCounts {
    /// Returns the largest distance, or `None` without answers.
    pub fn distance(&self) -> Option<f64> {
        // No distance is above 1, so nothing is proven.
        self.drift(1.0, 1.0).map(|drift| drift.distance)
    }

    /// Returns the statistic with the largest proven distance above `limit`, or `None` without
    /// answers. Each arm's bounds hold with probability `1 - level` for all edges together.
    pub fn drift(&self, limit: f64, level: f64) -> Option<Drift> {
        let [stable, candidate] = &self.arms;
        let series = stable.chunks(BUCKETS).zip(candidate.chunks(BUCKETS)).enumerate();
        let level = level / (self.names.len() * STATISTICS * (BUCKETS - 1)).max(1) as f64;
        let goal = DriftGoal { limit, level };
        let drifts = series.filter_map(|(index, (stable, candidate))| {
            let name = self.names.get(index / STATISTICS)?;
            let statistic = ["mean", "maximum", "position of the maximum"];
            let of = format!("{} of output \"{name}\"", statistic.get(index % STATISTICS)?);
            distance(stable, candidate, goal).map(|found| Drift { of, ..found })
        });
        drifts.max_by(|a, b| a.proven.total_cmp(&b.proven).then(a.distance.total_cmp(&b.distance)))
    }
}

/// The distance that a drift must exceed, and the level of the proof.
#[derive(Clone, Copy)]
struct DriftGoal {
    /// Smaller distances need no proof, which saves its cost.
    limit: f64,
    /// Maximum probability that a bound of one arm is ever wrong.
    level: f64,
}

/// Returns the largest difference of the two cumulative distributions, and the part of it that is
/// proven. `None` if one of them has no answers.
fn distance(stable: &[u64], candidate: &[u64], goal: DriftGoal) -> Option<Drift> {
    let total = |counts: &[u64]| counts.iter().sum::<u64>();
    let totals = [total(stable), total(candidate)];
    if totals.contains(&0) {
        return None;
    }
    let mut drift = Drift { of: String::new(), distance: 0.0, proven: 0.0 };
    let mut below = [0u64; 2];
    // The last edge has everything below it.
    for (a, b) in stable.iter().zip(candidate).take(BUCKETS - 1) {
        below = [below[0] + a, below[1] + b];
        let rate = |arm: usize| below[arm] as f64 / totals[arm] as f64;
        let gap = (rate(0) - rate(1)).abs();
        drift.distance = drift.distance.max(gap);
        // The bounds are on the far sides of the rates, so a smaller gap proves less.
        if gap <= drift.proven.max(goal.limit) {
            continue;
        }
        let evidence = [0, 1].map(|arm| TrialCounts::any(below[arm], totals[arm]));
        let (high, low) = if rate(1) > rate(0) { (1, 0) } else { (0, 1) };
        let proven =
            lower_bound(evidence[high], goal.level) - upper_bound(evidence[low], goal.level);
        drift.proven = drift.proven.max(proven);
    }
    Some(drift)
}

#[cfg(test)]
mod tests {
    use base::{DType, Tensor, TensorSpec};
    use proptest::prelude::*;

    use super::*;

    fn distributions() -> OutputDistributions {
        let spec = |name: &str, dtype| TensorSpec {
            name: name.into(),
            dtype,
            shape: None,
            optional: false,
        };
        let outputs = vec![spec("y", DType::F32), spec("label", DType::String)];
        OutputDistributions::new(&Signature { inputs: vec![], outputs })
    }

    fn y(values: &[f32]) -> Vec<NamedTensor> {
        vec![NamedTensor::new(
            "y",
            Tensor::from_vec([values.len()].as_slice(), values.to_vec()).unwrap(),
        )]
    }

    #[test]
    fn equal_distributions_do_not_drift() {
        let outputs = distributions();
        for at in 0..4_000u16 {
            outputs.record(usize::from(at % 2), &y(&[f32::from(at / 2 % 100)]));
        }
        let drift = outputs.read().drift(0.05, 0.01).unwrap();
        assert_eq!((drift.distance, drift.proven), (0.0, 0.0));
    }

    #[test]
    fn a_shift_is_proven() {
        let outputs = distributions();
        for at in 0..4_000u16 {
            let value = f32::from(at / 2 % 100);
            outputs
                .record(usize::from(at % 2), &y(&[if at % 2 == 1 { value * 4.0 } else { value }]));
        }
        let drift = outputs.read().drift(0.05, 0.01).unwrap();
        assert!(drift.distance > 0.5 && drift.proven > 0.4 && drift.proven < drift.distance);
        assert!(drift.of.contains("output \"y\""), "{}", drift.of);
    }

    #[test]
    fn another_class_is_proven_though_the_mean_is_the_same() {
        let outputs = distributions();
        for at in 0..2_000 {
            let answer = if at % 2 == 1 { y(&[0.9, 0.1]) } else { y(&[0.1, 0.9]) };
            outputs.record(at % 2, &answer);
        }
        let drift = outputs.read().drift(0.05, 0.01).unwrap();
        assert_eq!(drift.of, "position of the maximum of output \"y\"");
        assert!(drift.proven > 0.9);
    }

    #[test]
    fn nothing_is_known_without_answers() {
        assert_eq!(distributions().read().drift(0.05, 0.01), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn buckets_keep_the_order(a in -1e7f64..1e7, b in -1e7f64..1e7) {
            prop_assert!(bucket(a.min(b)) <= bucket(a.max(b)));
            prop_assert!(bucket(a) < BUCKETS - 1);
        }
    }

    #[test]
    fn buckets_of_special_numbers() {
        assert_eq!(bucket(0.0), SIDE as usize);
        assert_eq!(bucket(f64::NAN), BUCKETS - 1);
        assert_eq!(bucket(f64::MAX), 2 * SIDE as usize);
        assert_eq!(bucket(f64::MIN), 0);
    }
}
