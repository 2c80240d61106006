//! Bounds of a probability that hold at every number of trials at once.
//!
//! The likelihood ratio of a beta mixture against a fixed probability is a martingale under that
//! probability (Robbins, Annals of Mathematical Statistics 41, 1970). By Ville's inequality it
//! exceeds `1 / level` at any time with probability at most `level`. So the probabilities whose
//! ratio stays below form a confidence sequence. A caller may check at any number of trials.

/// Steps of a bisection. They are more than a mantissa has bits.
const STEPS: usize = 60;

/// Weights of the mixture: a prior estimate of the probability. Any choice is valid. A good one
/// needs fewer trials.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MixtureWeights {
    hits: f64,
    misses: f64,
}

impl MixtureWeights {
    /// Weights for rare events, such as errors and latencies above p99.
    const RARE: MixtureWeights = MixtureWeights { hits: 0.5, misses: 10.0 };
    /// Weights without a preference.
    const ANY: MixtureWeights = MixtureWeights { hits: 0.5, misses: 0.5 };
}

/// Counts of trials, and the weights that suit them.
#[derive(Clone, Copy, Debug)]
pub struct TrialCounts {
    hits: u64,
    trials: u64,
    weights: MixtureWeights,
}

impl TrialCounts {
    /// Counts of events that should be rare.
    pub fn rare(hits: u64, trials: u64) -> TrialCounts {
        TrialCounts { hits: hits.min(trials), trials, weights: MixtureWeights::RARE }
    }

    /// Counts of events of any frequency.
    pub fn any(hits: u64, trials: u64) -> TrialCounts {
        TrialCounts { hits: hits.min(trials), trials, weights: MixtureWeights::ANY }
    }

    fn rate(&self) -> f64 {
        if self.trials == 0 { 0.0 } else { self.hits as f64 / self.trials as f64 }
    }

    /// Returns the logarithm of the mixture's likelihood ratio against `probability`.
    pub fn against(&self, probability: f64) -> f64 {
        let hits = self.hits as f64;
        let misses = (self.trials - self.hits) as f64;
        let MixtureWeights { hits: a, misses: b } = self.weights;
        let mixture = ln_beta(a + hits, b + misses) - ln_beta(a, b);
        let term = |count: f64, chance: f64| if count == 0.0 { 0.0 } else { count * chance.ln() };
        mixture - term(hits, probability) - term(misses, 1.0 - probability)
    }

    /// Returns true if `probability` is outside the confidence sequence of `level`.
    pub fn refutes(&self, probability: f64, level: f64) -> bool {
        self.against(probability) >= -level.ln()
    }
}

/// Returns a lower bound of the probability of a hit. With probability `1 - level`, it holds at all
/// moments at once.
pub fn lower_bound(evidence: TrialCounts, level: f64) -> f64 {
    let mut refuted = 0.0;
    let mut kept = evidence.rate();
    for _ in 0..STEPS {
        let middle = f64::midpoint(refuted, kept);
        if evidence.refutes(middle, level) { refuted = middle } else { kept = middle }
    }
    refuted
}

/// Returns an upper bound of the probability of a hit. With probability `1 - level`, it holds at
/// all moments at once.
pub fn upper_bound(evidence: TrialCounts, level: f64) -> f64 {
    let mut kept = evidence.rate();
    let mut refuted = 1.0;
    for _ in 0..STEPS {
        let middle = f64::midpoint(kept, refuted);
        if evidence.refutes(middle, level) { refuted = middle } else { kept = middle }
    }
    refuted
}

/// Returns the logarithm of the beta function.
fn ln_beta(a: f64, b: f64) -> f64 {
    ln_gamma(a) + ln_gamma(b) - ln_gamma(a + b)
}

/// Returns the logarithm of the gamma function of a positive number, by Stirling's series above 10
/// and the recurrence below. The error is below 1e-10.
fn ln_gamma(mut x: f64) -> f64 {
    let mut shift = 0.0;
    while x < 10.0 {
        shift -= x.ln();
        x += 1.0;
    }
    let square = x * x;
    let series = (1.0 / 12.0 - (1.0 / 360.0 - (1.0 / 1260.0) / square) / square) / x;
    shift + (x - 0.5) * x.ln() - x + 0.5 * std::f64::consts::TAU.ln() + series
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ln_gamma_of_known_values() {
        for (x, expected) in [
            (1.0, 0.0),
            (0.5, 0.572_364_942_924_7),
            (5.0, 3.178_053_830_348),
            (101.0, 363.739_375_555_563),
        ] {
            assert!((ln_gamma(x) - expected).abs() < 1e-9, "{x}: {}", ln_gamma(x));
        }
    }

    #[test]
    fn bounds_close_in_on_the_rate() {
        let level = 1.0 / 600.0;
        let gaps = [100, 1_000, 10_000, 100_000].map(|trials| {
            let evidence = TrialCounts::rare(trials / 100, trials);
            let (low, high) = (lower_bound(evidence, level), upper_bound(evidence, level));
            assert!(low < 0.01 && 0.01 < high);
            high - low
        });
        assert!(gaps.is_sorted_by(|a, b| a > b), "{gaps:?}");
        assert!(gaps[3] < 0.004, "{gaps:?}");
        assert_eq!(lower_bound(TrialCounts::rare(0, 0), level), 0.0);
        assert!(upper_bound(TrialCounts::rare(0, 0), level) > 0.99);
    }

    /// Returns the next pseudo-random number of a stream, below 1.
    fn uniform(state: &mut u64) -> f64 {
        *state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*state >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Checks the promise of the bounds. In all but a share `level` of streams, the true
    /// probability is inside at every check.
    #[test]
    fn few_streams_ever_leave_the_bounds() {
        let (level, streams, trials, truth) = (0.05, 400, 2_000, 0.02);
        let mut state = 7;
        let mut left = 0;
        for _ in 0..streams {
            let mut hits = 0;
            left += u32::from((1..=trials).any(|seen| {
                hits += u64::from(uniform(&mut state) < truth);
                TrialCounts::rare(hits, seen).refutes(truth, level)
            }));
        }
        assert!(f64::from(left) <= level * f64::from(streams), "{left} of {streams}");
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn bounds_contain_the_rate(trials in 1u64..100_000, share in 0.0f64..=1.0) {
            let hits = (trials as f64 * share) as u64;
            for evidence in [TrialCounts::rare(hits, trials), TrialCounts::any(hits, trials)] {
                let (low, high) = (lower_bound(evidence, 0.001), upper_bound(evidence, 0.001));
                prop_assert!(low <= evidence.rate() && evidence.rate() <= high, "{low} {high}");
                prop_assert!((0.0..=1.0).contains(&low) && (0.0..=1.0).contains(&high));
            }
        }
    }
}
