//! Features of a signal, row by row as samples come, equal to those that models are trained on.
//!
//! The definitions are those of the librosa package, because most training code calls it: Hann windows without the
//! last point, a centred transform with zeros or reflections outside the signal, Slaney's or HTK's mel scale,
//! decibels relative to one. Everything is computed with 64-bit numbers, so that a row depends on its samples alone
//! and not on how they arrived.

mod mel;
mod settings;
mod spectrum;

use base::Result;

pub use settings::{FeatureFile, LogScale, LogSettings, MelSettings, Norm, Pad};

use mel::{Cosine, MelBank};
use spectrum::Spectrum;

/// Computes features as samples come. How the samples are cut into pushes does not change a bit of them.
pub struct FeatureExtractor {
    kind: FeatureKind,
    step: f64,
}

enum FeatureKind {
    Raw(f32),
    Spectral(Box<Spectral>),
}

/// A mel spectrum and what is made of it.
struct Spectral {
    spectrum: Spectrum,
    bank: MelBank,
    log: Option<LogSettings>,
    cosine: Option<Cosine>,
    mels: Vec<f64>,
}

impl FeatureExtractor {
    /// Features as `file` says, of one channel at `rate` samples a second.
    ///
    /// # Errors
    /// `InvalidArgument` for settings that make no sense or that pass a limit, with the setting's name.
    pub fn new(file: &FeatureFile, rate: u32) -> Result<FeatureExtractor> {
        file.check(rate)?;
        let (mel, log, cosine) = match file {
            FeatureFile::Raw { scale } => {
                return Ok(FeatureExtractor { kind: FeatureKind::Raw(*scale), step: 1.0 / f64::from(rate) });
            }
            FeatureFile::Mel(mel) => (mel, None, None),
            FeatureFile::LogMel { mel, log } => (mel, Some(*log), None),
            FeatureFile::Mfcc { mel, log, count, lifter } => {
                (mel, Some(*log), Some(Cosine::new(mel.mels, *count, *lifter)))
            }
        };
        let spectral = Spectral {
            spectrum: Spectrum::new(mel),
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

    /// The values of a row.
    pub fn width(&self) -> usize {
        match &self.kind {
            FeatureKind::Raw(_) => 1,
            FeatureKind::Spectral(spectral) => {
                spectral.cosine.as_ref().map_or(spectral.mels.len(), Cosine::count)
            }
        }
    }

    /// The seconds from one row to the next. Centred rows have the time of their middle, others that of their
    /// beginning: row `i` is at `i * step()`.
    pub fn step(&self) -> f64 {
        self.step
    }

    /// Takes more samples and appends every row that is complete now.
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

    /// Appends the last rows, those that see past the end of the signal.
    pub fn finish(&mut self, rows: &mut Vec<f32>) {
        if let FeatureKind::Spectral(spectral) = &mut self.kind {
            let Spectral { spectrum, bank, log, cosine, mels } = &mut **spectral;
            spectrum.finish(&mut |power| append(bank, *log, cosine.as_ref(), mels, power, rows));
        }
    }
}

/// Appends the row of one spectrum.
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
