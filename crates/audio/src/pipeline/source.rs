//! Cuts a recording's features into windows, one step of its
//! [`AudioFeed`](super::feed::AudioFeed) at a time.

use std::collections::VecDeque;

use base::Result;

use super::feed::FeedStep;
use crate::recogniser::{Recogniser, RecogniserKind};
use crate::segment::{FeatureWindow, Windows};

/// Level of silence, in dB of full scale.
const SILENCE: f32 = -200.0;

/// Facts about a window besides the model's input.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct WindowInfo {
    /// Number of rows that belong to the recording.
    pub(super) real: usize,
    /// Level of its samples in dB of full scale; measured for embeddings only.
    pub(super) level: f32,
}

/// Function that receives a window and its facts.
type EachWindow<'a> = &'a mut dyn FnMut(FeatureWindow<'_>, WindowInfo) -> Result<()>;

/// Cuts a recording.
pub(super) struct WindowSource {
    windows: Windows,
    levels: Option<LevelMeter>,
    count: u64,
    cut: u64,
}

impl WindowSource {
    /// Starts a recording at its first row.
    pub(super) fn new(recogniser: &Recogniser) -> WindowSource {
        WindowSource {
            windows: Windows::new(recogniser.spec, recogniser.width).trimmed(
                recogniser.output.trim[1] > 0 && recogniser.kind != RecogniserKind::Embeddings,
            ),
            levels: (recogniser.kind == RecogniserKind::Embeddings)
                .then(|| LevelMeter::new(recogniser)),
            count: 0,
            cut: 0,
        }
    }

    /// Calls `each` for every window that `step` completes.
    ///
    /// # Errors
    /// Returns the errors of `each`.
    pub(super) fn cut(&mut self, step: &FeedStep, each: EachWindow<'_>) -> Result<()> {
        self.count += step.count;
        let WindowSource { windows, levels, cut, .. } = self;
        if let Some(levels) = levels {
            levels.samples.extend(&step.samples);
        }
        let mut with_facts = |window: FeatureWindow<'_>| {
            let level = levels.as_mut().map_or(SILENCE, |levels| levels.of(&window));
            *cut += 1;
            each(window, WindowInfo { real: window.real, level })
        };
        windows.push(&step.rows, &mut with_facts)?;
        if step.last { windows.finish(&mut with_facts) } else { Ok(()) }
    }

    /// Returns the samples so far, at the recogniser's rate.
    pub(super) fn samples(&self) -> u64 {
        self.count
    }

    /// Returns the windows so far.
    pub(super) fn windows(&self) -> u64 {
        self.cut
    }
}

/// Meter of the level of windows. It keeps the samples since the last window's beginning.
struct LevelMeter {
    samples: VecDeque<f32>,
    /// Number of the first sample.
    first: u64,
    row_samples: u64,
}

impl LevelMeter {
    fn new(recogniser: &Recogniser) -> LevelMeter {
        LevelMeter { samples: VecDeque::new(), first: 0, row_samples: recogniser.row_samples }
    }

    /// Returns the level of `window`, and drops the samples before it.
    fn of(&mut self, window: &FeatureWindow<'_>) -> f32 {
        let start = window.start * self.row_samples;
        let consumed = start.saturating_sub(self.first).min(self.samples.len() as u64);
        self.samples.drain(..consumed as usize);
        self.first += consumed;
        let count = (window.real as u64 * self.row_samples) as usize;
        let squares: f64 =
            self.samples.iter().take(count).map(|s| f64::from(*s) * f64::from(*s)).sum();
        let mean = squares / count.min(self.samples.len()).max(1) as f64;
        if mean > 0.0 { (10.0 * mean.log10()) as f32 } else { SILENCE }
    }
}
