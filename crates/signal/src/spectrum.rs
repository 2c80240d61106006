//! Short-time spectrum of a signal that arrives in pieces.

use std::sync::Arc;

use realfft::num_complex::Complex;
use realfft::{RealFftPlanner, RealToComplex};

use serde::Deserialize;

/// Padding outside a signal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pad {
    /// Zeros.
    #[default]
    Constant,
    /// The signal reversed, without its outermost sample.
    Reflect,
}

/// Scale, frames and transform of a [`Spectrum`].
#[derive(Clone, Debug, PartialEq)]
pub struct SpectrumSettings {
    /// Factor of each sample, applied first.
    pub scale: f32,
    /// Length of the transform in samples.
    pub fft: usize,
    /// Length of the Hann window in samples, at most `fft`. It lies in the transform's middle.
    pub window: usize,
    /// Samples from one frame to the next.
    pub hop: usize,
    /// Power of the magnitude: 1 or 2.
    pub power: f64,
    /// True if a frame is centred on its time. Otherwise it begins there.
    pub center: bool,
    /// Padding outside the signal for centred frames.
    pub pad: Pad,
}

/// Windows and transforms frames of a signal. Holds one frame and the samples of one push.
///
/// # Example: the loudest bin of a tone
/// ```
/// use std::f32::consts::TAU;
///
/// use millpond_signal::spectrum::{Pad, Spectrum, SpectrumSettings};
///
/// let mut spectrum = Spectrum::new(&SpectrumSettings {
///     scale: 1.0,
///     fft: 512,
///     window: 512,
///     hop: 256,
///     power: 2.0,
///     center: false,
///     pad: Pad::Constant,
/// });
/// // 32 periods in 512 samples: 1 kHz at a rate of 16 kHz.
/// let tone: Vec<f32> = (0..512u16).map(|at| (TAU * f32::from(at) / 16.0).sin()).collect();
/// let mut loudest = Vec::new();
/// spectrum.push(&tone, &mut |powers| {
///     loudest.push((0..powers.len()).max_by(|&a, &b| powers[a].total_cmp(&powers[b])));
/// });
/// assert_eq!(loudest, [Some(32)]);
/// ```
pub struct Spectrum {
    /// Factor for each sample.
    scale: f32,
    /// Samples from one frame to the next.
    hop: usize,
    power: f64,
    center: bool,
    pad: Pad,
    /// Hann window with zeros around it, up to the transform's length.
    window: Vec<f64>,
    fft: Arc<dyn RealToComplex<f64>>,
    /// Samples of the padded signal that later frames need.
    held: Vec<f32>,
    /// Index in `held` of the next frame. It is past the end of `held` if frames are far apart.
    head: usize,
    /// True once the padding before the signal is in `held`.
    begun: bool,
    frame: Vec<f64>,
    bins: Vec<Complex<f64>>,
    scratch: Vec<Complex<f64>>,
    powers: Vec<f64>,
}

impl Spectrum {
    /// Makes a spectrum before its first sample.
    pub fn new(settings: &SpectrumSettings) -> Spectrum {
        let fft = RealFftPlanner::<f64>::new().plan_fft_forward(settings.fft);
        let mut window = vec![0.0; settings.fft];
        let left = (settings.fft - settings.window) / 2;
        for (index, value) in window[left..left + settings.window].iter_mut().enumerate() {
            let turn = index as f64 / settings.window as f64;
            *value = 0.5 - 0.5 * (std::f64::consts::TAU * turn).cos();
        }
        Spectrum {
            scale: settings.scale,
            hop: settings.hop,
            power: settings.power,
            center: settings.center,
            pad: settings.pad,
            window,
            held: Vec::new(),
            head: 0,
            begun: !settings.center,
            frame: fft.make_input_vec(),
            bins: fft.make_output_vec(),
            scratch: fft.make_scratch_vec(),
            powers: vec![0.0; settings.fft / 2 + 1],
            fft,
        }
    }

    /// Returns the padding at each end, in samples.
    fn margin(&self) -> usize {
        self.window.len() / 2
    }

    /// Adds samples and calls `each` with the spectrum of every complete frame. A spectrum has the
    /// powers of `fft / 2 + 1` frequencies, the lowest first.
    pub fn push(&mut self, samples: &[f32], each: &mut dyn FnMut(&[f64])) {
        self.held.extend(samples.iter().map(|sample| sample * self.scale));
        if !self.begun {
            // A reflection needs the samples that it reflects; an empty signal has no padding.
            let needed = if self.pad == Pad::Reflect { self.margin() } else { 0 };
            if self.held.len() <= needed {
                return;
            }
            self.begin();
        }
        self.frames(each);
    }

    /// Adds the padding before the signal.
    fn begin(&mut self) {
        let margin = self.margin();
        let before: Vec<f32> = match self.pad {
            Pad::Constant => vec![0.0; margin],
            Pad::Reflect => {
                (1..=margin).rev().map(|index| reflected(&self.held, -(index as i64))).collect()
            }
        };
        self.held.splice(..0, before);
        self.begun = true;
    }

    /// Calls `each` with the frames that reach past the end of the signal.
    pub fn finish(&mut self, each: &mut dyn FnMut(&[f64])) {
        if !self.center || (!self.begun && self.held.is_empty()) {
            return;
        }
        let margin = self.margin() as i64;
        let after: Vec<f32> = match self.pad {
            Pad::Constant => vec![0.0; self.margin()],
            // Either all of the signal is here (`begun` is false) or more of its end than is
            // reflected.
            Pad::Reflect => {
                let count = self.held.len() as i64;
                (count..count + margin).map(|index| reflected(&self.held, index)).collect()
            }
        };
        if !self.begun {
            self.begin();
        }
        self.held.extend(after);
        self.frames(each);
    }

    /// Calls `each` with the powers of each frame that is complete. Drops samples that no later
    /// frame needs.
    fn frames(&mut self, each: &mut dyn FnMut(&[f64])) {
        let size = self.window.len();
        while self.held.len() >= self.head.saturating_add(size) {
            self.transform();
            each(&self.powers);
            self.head += self.hop;
        }
        let kept = self.held.len().saturating_sub(self.margin() + 1);
        let drained = self.head.min(kept);
        self.held.drain(..drained);
        self.head -= drained;
    }

    /// Computes the powers of the frame that begins at `head`.
    fn transform(&mut self) {
        let samples = &self.held[self.head..];
        for ((value, sample), weight) in self.frame.iter_mut().zip(samples).zip(&self.window) {
            *value = f64::from(*sample) * weight;
        }
        let done =
            self.fft.process_with_scratch(&mut self.frame, &mut self.bins, &mut self.scratch);
        debug_assert!(done.is_ok(), "the buffers were made by the transform");
        for (power, bin) in self.powers.iter_mut().zip(&self.bins) {
            let square = bin.norm_sqr();
            *power = match self.power {
                2.0 => square,
                1.0 => square.sqrt(),
                other => square.powf(other / 2.0),
            };
        }
    }
}

/// Returns the sample at `index` of a signal that is reflected at its ends, as often as needed.
fn reflected(signal: &[f32], index: i64) -> f32 {
    let last = signal.len() as i64 - 1;
    let Some(turn) = (2 * last)
        .checked_abs()
        .filter(|period| *period > 0)
        .map(|period| index.rem_euclid(period))
    else {
        return signal.first().copied().unwrap_or(0.0);
    };
    signal[turn.min(2 * last - turn) as usize]
}
