//! Mel bands, and the cosine transform of their logarithms.

use super::settings::{MelSettings, Norm};

/// Triangular bands over the bins of a spectrum.
pub(super) struct MelBank {
    bands: Vec<MelBand>,
}

/// Weights of one band's bins, without the zeros around them.
struct MelBand {
    first: usize,
    weights: Vec<f64>,
}

impl MelBank {
    /// Computes the weights of `settings.mels` overlapping triangles for spectra of a signal at
    /// `rate` Hz. The corners of the triangles lie at equal distances on the mel scale.
    pub(super) fn new(settings: &MelSettings, rate: u32) -> MelBank {
        let high = settings.fmax.unwrap_or(f64::from(rate) / 2.0);
        let low = to_mel(settings.fmin, settings.htk);
        let high = to_mel(high, settings.htk);
        let edge = |index: usize| {
            to_hertz(low + (high - low) * index as f64 / (settings.mels + 1) as f64, settings.htk)
        };
        let bands = (0..settings.mels).map(|band| {
            let (left, middle, right) = (edge(band), edge(band + 1), edge(band + 2));
            let scale = match settings.norm {
                Norm::Slaney => 2.0 / (right - left),
                Norm::None => 1.0,
            };
            let weights: Vec<f64> = (0..=settings.fft / 2)
                .map(|bin| bin as f64 * f64::from(rate) / settings.fft as f64)
                .map(|at| {
                    ((at - left) / (middle - left)).min((right - at) / (right - middle)).max(0.0)
                        * scale
                })
                .collect();
            let first = weights.iter().position(|weight| *weight > 0.0).unwrap_or(0);
            let end =
                weights.iter().rposition(|weight| *weight > 0.0).map_or(first, |last| last + 1);
            MelBand { first, weights: weights[first..end].to_vec() }
        });
        MelBank { bands: bands.collect() }
    }

    /// Computes the bands of one spectrum.
    pub(super) fn apply(&self, powers: &[f64], mels: &mut [f64]) {
        for (mel, band) in mels.iter_mut().zip(&self.bands) {
            *mel = powers[band.first..]
                .iter()
                .zip(&band.weights)
                .map(|(power, weight)| power * weight)
                .sum();
        }
    }
}

/// Frequency in Hz at which Slaney's scale turns from even steps to even ratios.
const SLANEY_TURN: f64 = 1000.0;
/// Hz per mel below the turn.
const SLANEY_STEP: f64 = 200.0 / 3.0;

/// Returns the logarithm of the ratio of neighbours above the turn: 27 steps from 1 kHz to 6.4 kHz.
fn slaney_ratio() -> f64 {
    6.4_f64.ln() / 27.0
}

/// Converts hertz to mel, by the formula of HTK or by that of Slaney.
fn to_mel(hertz: f64, htk: bool) -> f64 {
    if htk {
        2595.0 * (1.0 + hertz / 700.0).log10()
    } else if hertz < SLANEY_TURN {
        hertz / SLANEY_STEP
    } else {
        SLANEY_TURN / SLANEY_STEP + (hertz / SLANEY_TURN).ln() / slaney_ratio()
    }
}

/// Converts mel to hertz, by the formula of HTK or by that of Slaney.
fn to_hertz(mel: f64, htk: bool) -> f64 {
    let turn = SLANEY_TURN / SLANEY_STEP;
    if htk {
        700.0 * (10.0_f64.powf(mel / 2595.0) - 1.0)
    } else if mel < turn {
        mel * SLANEY_STEP
    } else {
        SLANEY_TURN * (slaney_ratio() * (mel - turn)).exp()
    }
}

/// The orthonormal cosine transform of type 2, with liftering.
pub(super) struct Cosine {
    /// Weights of the mel values, a row for each coefficient.
    weights: Vec<f64>,
    mels: usize,
}

impl Cosine {
    /// Computes the weights of `count` coefficients of `mels` values. `lifter` is the length of the
    /// sine that raises higher coefficients; 0 raises none.
    pub(super) fn new(mels: usize, count: usize, lifter: f64) -> Cosine {
        let mut weights = Vec::with_capacity(mels * count);
        for coefficient in 0..count {
            let norm = if coefficient == 0 { 1.0 / mels as f64 } else { 2.0 / mels as f64 }.sqrt();
            let lift = if lifter > 0.0 {
                1.0 + lifter / 2.0
                    * (std::f64::consts::PI * (coefficient + 1) as f64 / lifter).sin()
            } else {
                1.0
            };
            weights.extend((0..mels).map(|mel| {
                let turn = coefficient as f64 * (mel as f64 + 0.5) / mels as f64;
                (std::f64::consts::PI * turn).cos() * norm * lift
            }));
        }
        Cosine { weights, mels }
    }

    /// Returns the number of coefficients.
    pub(super) fn count(&self) -> usize {
        self.weights.len() / self.mels
    }

    /// Appends the coefficients of one row.
    pub(super) fn append(&self, mels: &[f64], rows: &mut Vec<f32>) {
        rows.extend(self.weights.chunks_exact(self.mels).map(|weights| {
            weights.iter().zip(mels).map(|(weight, mel)| weight * mel).sum::<f64>() as f32
        }));
    }
}
