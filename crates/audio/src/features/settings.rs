//! Feature settings of a recogniser's file, with their limits.

use base::{Error, Result};
use serde::Deserialize;
use signal::spectrum::{Pad, SpectrumSettings};

/// Maximum length of a transform, in samples.
const FFT_MAX: usize = 1 << 16;
/// Maximum samples from one row to the next.
const HOP_MAX: usize = 1 << 20;
/// Maximum number of mel bands.
const MELS_MAX: usize = 1024;

/// Kind of features and their settings.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(try_from = "FlatFeatures")]
pub enum FeatureFile {
    /// The samples themselves: a row is one sample.
    Raw {
        /// Factor of each sample; 32768 for models that were trained on 16-bit integers.
        scale: f32,
    },
    /// Mel bands of the spectrum.
    Mel(MelSettings),
    /// Logarithms of mel energies.
    LogMel {
        /// Settings of the mel bands.
        mel: MelSettings,
        /// Settings of the logarithm.
        log: LogSettings,
    },
    /// Cepstral coefficients: the orthonormal cosine transform (type 2) of the logarithms.
    Mfcc {
        /// Settings of the mel bands.
        mel: MelSettings,
        /// Settings of the logarithm.
        log: LogSettings,
        /// Number of coefficients, the lowest first.
        count: usize,
        /// Strength of liftering; zero for none.
        lifter: f64,
    },
}

/// Mel bands of a short-time spectrum.
#[derive(Clone, Debug, PartialEq)]
pub struct MelSettings {
    /// Factor of each sample, applied first.
    pub scale: f32,
    /// Length of the transform in samples.
    pub fft: usize,
    /// Length of the Hann window in samples, at most `fft`. The window lies in the middle of the
    /// transform.
    pub window: usize,
    /// Number of samples from one row to the next.
    pub hop: usize,
    /// Number of mel bands.
    pub mels: usize,
    /// Lower end of the lowest band in Hz.
    pub fmin: f64,
    /// Upper end of the highest band in Hz; half the rate by default.
    pub fmax: Option<f64>,
    /// True for the HTK toolkit's scale, false for Slaney's.
    pub htk: bool,
    /// Weighting of the bands.
    pub norm: Norm,
    /// Power of the magnitude: 1 or 2.
    pub power: f64,
    /// True if a row is centred on its time. Otherwise the row begins there.
    pub center: bool,
    /// Padding outside the signal for centred rows.
    pub pad: Pad,
}

impl MelSettings {
    /// Returns the settings of the spectrum that the bands are made of.
    pub(super) fn spectrum(&self) -> SpectrumSettings {
        SpectrumSettings {
            scale: self.scale,
            fft: self.fft,
            window: self.window,
            hop: self.hop,
            power: self.power,
            center: self.center,
            pad: self.pad,
        }
    }
}

/// Weighting of mel bands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Norm {
    /// Weighting by the inverse of the width, so that all bands have the same area.
    #[default]
    Slaney,
    /// No weighting, so that all peaks are one.
    None,
}

/// Kind of logarithm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LogScale {
    /// Ten times the logarithm to base ten: decibels relative to one.
    #[default]
    Decibel,
    /// The natural logarithm.
    Natural,
}

/// The logarithm of `max(floor, value + offset)`, so never of zero.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LogSettings {
    /// Kind of logarithm.
    pub log: LogScale,
    /// Minimum of the argument of the logarithm.
    pub floor: f64,
    /// Number added before.
    pub offset: f64,
}

impl LogSettings {
    /// Returns the logarithm of one value.
    pub(super) fn apply(self, value: f64) -> f64 {
        let value = (value + self.offset).max(self.floor);
        match self.log {
            LogScale::Decibel => 10.0 * value.log10(),
            LogScale::Natural => value.ln(),
        }
    }
}

/// All keys of the file, before its kind decides which of them it may have.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct FlatFeatures {
    kind: FeatureName,
    scale: Option<f32>,
    fft: Option<usize>,
    window: Option<usize>,
    hop: Option<usize>,
    mels: Option<usize>,
    fmin: Option<f64>,
    fmax: Option<f64>,
    htk: Option<bool>,
    norm: Option<Norm>,
    power: Option<f64>,
    center: Option<bool>,
    pad: Option<Pad>,
    log: Option<LogScale>,
    floor: Option<f64>,
    offset: Option<f64>,
    reference: Option<String>,
    top_db: Option<f64>,
    count: Option<usize>,
    lifter: Option<f64>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum FeatureName {
    Raw,
    Mel,
    LogMel,
    Mfcc,
}

impl FlatFeatures {
    /// Returns the first key that features of this kind do not have.
    fn misplaced(&self) -> Option<&'static str> {
        let keys = [
            ("fft", self.fft.is_some(), FeatureName::Mel),
            ("window", self.window.is_some(), FeatureName::Mel),
            ("hop", self.hop.is_some(), FeatureName::Mel),
            ("mels", self.mels.is_some(), FeatureName::Mel),
            ("fmin", self.fmin.is_some(), FeatureName::Mel),
            ("fmax", self.fmax.is_some(), FeatureName::Mel),
            ("htk", self.htk.is_some(), FeatureName::Mel),
            ("norm", self.norm.is_some(), FeatureName::Mel),
            ("power", self.power.is_some(), FeatureName::Mel),
            ("center", self.center.is_some(), FeatureName::Mel),
            ("pad", self.pad.is_some(), FeatureName::Mel),
            ("log", self.log.is_some(), FeatureName::LogMel),
            ("floor", self.floor.is_some(), FeatureName::LogMel),
            ("offset", self.offset.is_some(), FeatureName::LogMel),
            ("reference", self.reference.is_some(), FeatureName::LogMel),
            ("count", self.count.is_some(), FeatureName::Mfcc),
            ("lifter", self.lifter.is_some(), FeatureName::Mfcc),
        ];
        keys.into_iter()
            .find(|(_, given, least)| *given && self.kind < *least)
            .map(|(name, _, _)| name)
    }
}

impl TryFrom<FlatFeatures> for FeatureFile {
    type Error = String;

    fn try_from(flat: FlatFeatures) -> Result<FeatureFile, String> {
        if flat.top_db.is_some() {
            return Err(
                "top-db depends on the loudest moment of a whole recording, which a stream does not \
                        know; leave it out"
                    .to_owned(),
            );
        }
        if let Some(reference) =
            flat.reference.as_deref().filter(|name| !matches!(*name, "one" | "none"))
        {
            return Err(format!(
                "reference = {reference:?} depends on a whole recording, which a stream does not know; it can \
                 be \"one\""
            ));
        }
        if let Some(key) = flat.misplaced() {
            return Err(format!("features of this kind have no {key:?}"));
        }
        let fft = flat.fft.unwrap_or(2048);
        let mel = MelSettings {
            scale: flat.scale.unwrap_or(1.0),
            fft,
            window: flat.window.unwrap_or(fft),
            hop: flat.hop.unwrap_or(512),
            mels: flat.mels.unwrap_or(128),
            fmin: flat.fmin.unwrap_or(0.0),
            fmax: flat.fmax,
            htk: flat.htk.unwrap_or(false),
            norm: flat.norm.unwrap_or_default(),
            power: flat.power.unwrap_or(2.0),
            center: flat.center.unwrap_or(true),
            pad: flat.pad.unwrap_or_default(),
        };
        let log = LogSettings {
            log: flat.log.unwrap_or_default(),
            floor: flat.floor.unwrap_or(1e-10),
            offset: flat.offset.unwrap_or(0.0),
        };
        Ok(match flat.kind {
            FeatureName::Raw => FeatureFile::Raw { scale: mel.scale },
            FeatureName::Mel => FeatureFile::Mel(mel),
            FeatureName::LogMel => FeatureFile::LogMel { mel, log },
            FeatureName::Mfcc => FeatureFile::Mfcc {
                mel,
                log,
                count: flat.count.unwrap_or(20),
                lifter: flat.lifter.unwrap_or(0.0),
            },
        })
    }
}

impl FeatureFile {
    /// Checks the settings for a signal at `rate`.
    ///
    /// # Errors
    /// `InvalidArgument` with the setting's name and its limits.
    pub(super) fn check(&self, rate: u32) -> Result<()> {
        let need =
            |holds: bool, what: String| if holds { Ok(()) } else { Err(Error::invalid(what)) };
        need(rate > 0, "features need a rate above zero".to_owned())?;
        let (mel, log) = match self {
            FeatureFile::Raw { scale } => {
                return need(scale.is_finite(), "scale must be finite".to_owned());
            }
            FeatureFile::Mel(mel) => (mel, None),
            FeatureFile::LogMel { mel, log } | FeatureFile::Mfcc { mel, log, .. } => {
                (mel, Some(log))
            }
        };
        need(mel.scale.is_finite(), "scale must be finite".to_owned())?;
        need(
            (2..=FFT_MAX).contains(&mel.fft),
            format!("fft is {}; it can be 2 to {FFT_MAX}", mel.fft),
        )?;
        need(
            (1..=mel.fft).contains(&mel.window),
            format!("window is {}; it can be 1 to fft, which is {}", mel.window, mel.fft),
        )?;
        need(
            (1..=HOP_MAX).contains(&mel.hop),
            format!("hop is {}; it can be 1 to {HOP_MAX}", mel.hop),
        )?;
        need(
            (1..=MELS_MAX).contains(&mel.mels),
            format!("mels is {}; it can be 1 to {MELS_MAX}", mel.mels),
        )?;
        let half = f64::from(rate) / 2.0;
        let low = mel.fmin;
        let high = mel.fmax.unwrap_or(half);
        need(
            low >= 0.0 && low < high && high <= half,
            format!("fmin is {low} and fmax is {high}; 0 <= fmin < fmax <= {half} (half the rate)"),
        )?;
        need(mel.power > 0.0 && mel.power <= 4.0, format!("power is {}; it is 1 or 2", mel.power))?;
        if let Some(log) = log {
            need(
                log.floor > 0.0
                    && log.floor.is_finite()
                    && log.offset >= 0.0
                    && log.offset.is_finite(),
                format!("floor is {} and offset {}; floor > 0, offset >= 0", log.floor, log.offset),
            )?;
        }
        if let FeatureFile::Mfcc { count, lifter, .. } = self {
            need(
                (1..=mel.mels).contains(count),
                format!("count is {count}; it can be 1 to mels, {}", mel.mels),
            )?;
            need(
                *lifter >= 0.0 && lifter.is_finite(),
                format!("lifter is {lifter}; it cannot be negative"),
            )?;
        }
        Ok(())
    }
}
