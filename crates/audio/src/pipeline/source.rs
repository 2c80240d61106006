//! A recording as windows of features, one decoded block at a time.

use std::collections::VecDeque;

use base::Result;

use crate::Fault;
use crate::decode::{Decoder, Format, Input};
use crate::features::Features;
use crate::recogniser::{Kind, Recogniser};
use crate::resample::Mono;
use crate::segment::{Window, Windows};

/// The level of silence, in dB of full scale.
const SILENCE: f32 = -200.0;

/// What is known of a window besides what the model sees.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Facts {
    /// Its rows that are the recording's.
    pub(super) real: usize,
    /// How loud its samples are, in dB of full scale; known for embeddings only.
    pub(super) level: f32,
}

/// Takes a window and what is known of it.
type Each<'a> = &'a mut dyn FnMut(Window<'_>, Facts) -> Result<()>;

/// Decodes, mixes, resamples, computes features and cuts.
pub(super) struct Source {
    decoder: Decoder,
    format: Format,
    mono: Mono,
    features: Features,
    windows: Windows,
    levels: Option<Levels>,
    samples: Vec<f32>,
    rows: Vec<f32>,
    count: u64,
    cut: u64,
}

impl Source {
    /// Opens a recording.
    ///
    /// # Errors
    /// Those of [`Decoder::open`] and [`Mono::new`].
    pub(super) fn open(input: Input, hint: Option<&str>, recogniser: &Recogniser) -> Result<Source> {
        let decoder = Decoder::open(input, hint)?;
        let format = decoder.format().clone();
        let features = Features::new(&recogniser.features, recogniser.rate)?;
        Ok(Source {
            mono: Mono::new(format.rate, format.channels, recogniser.rate, recogniser.channel)?,
            windows: Windows::new(recogniser.spec, features.width()),
            levels: (recogniser.kind == Kind::Embeddings).then(|| Levels::new(recogniser)),
            decoder,
            format,
            features,
            samples: Vec::new(),
            rows: Vec::new(),
            count: 0,
            cut: 0,
        })
    }

    /// What the recording says about itself.
    pub(super) fn format(&self) -> &Format {
        &self.format
    }

    /// Decodes one block and gives every window that is complete with it; false after the last one.
    ///
    /// # Errors
    /// Those of [`Decoder::next`] and of `each`.
    pub(super) fn step(&mut self, each: Each<'_>) -> Result<bool> {
        self.samples.clear();
        self.rows.clear();
        let block = self.decoder.next()?;
        match &block {
            Some(block) => self.mono.push(&block.samples, &mut self.samples)?,
            None => self.mono.finish(&mut self.samples)?,
        }
        self.count += self.samples.len() as u64;
        if let Some(levels) = &mut self.levels {
            levels.samples.extend(&self.samples);
        }
        self.features.push(&self.samples, &mut self.rows);
        if block.is_none() {
            self.features.finish(&mut self.rows);
        }
        let Source { windows, levels, cut, rows, .. } = self;
        let mut with_facts = |window: Window<'_>| {
            let level = levels.as_mut().map_or(SILENCE, |levels| levels.of(&window));
            *cut += 1;
            each(window, Facts { real: window.real, level })
        };
        windows.push(rows, &mut with_facts)?;
        if block.is_none() {
            windows.finish(&mut with_facts)?;
        }
        Ok(block.is_some())
    }

    /// What has been found wrong since the last call.
    pub(super) fn take_faults(&mut self) -> Vec<Fault> {
        self.decoder.take_faults()
    }

    /// Samples so far, at the recogniser's rate.
    pub(super) fn samples(&self) -> u64 {
        self.count
    }

    /// Windows so far.
    pub(super) fn windows(&self) -> u64 {
        self.cut
    }
}

/// How loud windows are, from the samples since the last window's beginning.
struct Levels {
    samples: VecDeque<f32>,
    /// The number of the first of them.
    first: u64,
    row_samples: u64,
}

impl Levels {
    fn new(recogniser: &Recogniser) -> Levels {
        Levels { samples: VecDeque::new(), first: 0, row_samples: recogniser.row_samples }
    }

    /// The level of `window`; what lies before it is forgotten.
    fn of(&mut self, window: &Window<'_>) -> f32 {
        let start = window.start * self.row_samples;
        let gone = start.saturating_sub(self.first).min(self.samples.len() as u64);
        self.samples.drain(..gone as usize);
        self.first += gone;
        let count = (window.real as u64 * self.row_samples) as usize;
        let squares: f64 = self.samples.iter().take(count).map(|s| f64::from(*s) * f64::from(*s)).sum();
        let mean = squares / count.min(self.samples.len()).max(1) as f64;
        if mean > 0.0 { (10.0 * mean.log10()) as f32 } else { SILENCE }
    }
}
