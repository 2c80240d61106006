//! Features of a signal, computed row by row as samples arrive, equal to the features of common
//! training code.
//!
//! The definitions are those of the librosa package, which most training code uses. Hann windows
//! lack the last point. A centred transform has zeros or reflections outside the signal. The mel
//! scale is Slaney's or HTK's, and decibels are relative to one. All computation uses 64-bit
//! numbers, so that a row depends on its samples only and not on how they arrived.

mod mel;
mod settings;

use base::Result;

pub use settings::{FeatureFile, LogScale, LogSettings, MelSettings, Norm};
pub use signal::spectrum::Pad;

use mel::{Cosine, MelBank};
use signal::spectrum::Spectrum;

/// Extractor of features from samples as they arrive. The split of the samples into pushes changes
/// no bit of the result.
pub struct FeatureExtractor {
    kind: FeatureKind,
    step: f64,
}

enum FeatureKind {
    Raw(f32),
    Spectral(Box<Spectral>),
}

/// A mel spectrum and the features made of it.
struct Spectral {
    spectrum: Spectrum,
    bank: MelBank,
    log: Option<LogSettings>,
    cosine: Option<Cosine>,
    mels: Vec<f64>,
}

impl FeatureExtractor {
    /// Makes the features of `file` for one channel at `rate` samples per second.
    ///
    /// # Errors
    /// `InvalidArgument` with the setting's name if it is invalid or exceeds a limit.
    pub fn new(file: &FeatureFile, rate: u32) -> Result<FeatureExtractor> {
        file.check(rate)?;
        let (mel, log, cosine) = match file {
            FeatureFile::Raw { scale } => {
                return Ok(FeatureExtractor {
                    kind: FeatureKind::Raw(*scale),
                    step: 1.0 / f64::from(rate),
                });
            }
            FeatureFile::Mel(mel) => (mel, None, None),
            FeatureFile::LogMel { mel, log } => (mel, Some(*log), None),
            FeatureFile::Mfcc { mel, log, count, lifter } => {
                (mel, Some(*log), Some(Cosine::new(mel.mels, *count, *lifter)))
            }
        };
        let spectral = Spectral {
            spectrum: Spectrum::new(&mel.spectrum()),
            bank: MelBank::new(mel, rate),
            log,
            cosine,
            mels: vec![0.0; mel.mels],
        };
        Ok(FeatureExtractor {
            kind: FeatureKind::Spectral(Box::new(spectral)),
            step: mel.hop as f64 / f64::from(rate),
        })
    }

    /// Returns the values of a row.
    pub fn width(&self) -> usize {
        match &self.kind {
            FeatureKind::Raw(_) => 1,
            FeatureKind::Spectral(spectral) => {
                spectral.cosine.as_ref().map_or(spectral.mels.len(), Cosine::count)
            }
        }
    }

    /// Returns the seconds from one row to the next. Row `i` is at `i * step()`: the time of its
    /// middle if rows are centred, of its beginning otherwise.
    pub fn step(&self) -> f64 {
        self.step
    }

    /// Adds samples and appends every row that is complete.
    pub fn push(&mut self, samples: &[f32], rows: &mut Vec<f32>) {
        match &mut self.kind {
            FeatureKind::Raw(scale) => rows.extend(samples.iter().map(|sample| sample * *scale)),
            FeatureKind::Spectral(spectral) => {
                let Spectral { spectrum, bank, log, cosine, mels } = &mut **spectral;
                spectrum.push(samples, &mut |power| {
                    append(bank, *log, cosine.as_ref(), mels, power, rows);
                });
            }
        }
    }

    /// Appends the last rows, which reach past the end of the signal.
    pub fn finish(&mut self, rows: &mut Vec<f32>) {
        if let FeatureKind::Spectral(spectral) = &mut self.kind {
            let Spectral { spectrum, bank, log, cosine, mels } = &mut **spectral;
            spectrum.finish(&mut |power| append(bank, *log, cosine.as_ref(), mels, power, rows));
        }
    }
}

/// Computes the features of the power spectrum `power`, and appends them to `rows` as one row.
/// `mels` is scratch memory with one element per mel band.
fn append(
    bank: &MelBank,
    log: Option<LogSettings>,
    cosine: Option<&Cosine>,
    mels: &mut [f64],
    power: &[f64],
    rows: &mut Vec<f32>,
) {
    bank.apply(power, mels);
    if let Some(log) = log {
        mels.iter_mut().for_each(|mel| *mel = log.apply(*mel));
    }
    match cosine {
        Some(cosine) => cosine.append(mels, rows),
        None => rows.extend(mels.iter().map(|mel| *mel as f32)),
    }
}
