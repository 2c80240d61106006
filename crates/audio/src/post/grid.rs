//! Times of windows' frames: one even grid for the whole recording.
//!
//! If a window has one frame, it covers the `hop` rows at the window's middle, so that overlapping
//! windows leave neither gaps nor overlaps. Several frames cover all rows that the model saw,
//! context included. The frames left after trimming must span one hop, within a frame, because the
//! next window's continue from there.

use base::{Error, Result};

use crate::recogniser::Recogniser;

/// The frames of all windows, numbered consecutively.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Grid {
    /// Number of frames of each window, after trimming.
    frames: usize,
    /// Samples from one window to the next.
    hop: f64,
    /// First sample of the first frame; may lie before the beginning.
    origin: f64,
    row_samples: f64,
    rate: f64,
}

impl Grid {
    /// Makes the grid of windows with `frames` frames after trimming.
    ///
    /// # Errors
    /// `InvalidArgument` if the frames of neighbouring windows do not join.
    pub(crate) fn new(recogniser: &Recogniser, frames: usize) -> Result<Grid> {
        let spec = recogniser.spec;
        let trim = recogniser.output.trim;
        let all = frames + trim[0] + trim[1];
        let row_samples = recogniser.row_samples as f64;
        let window = spec.window as f64;
        let hop = spec.hop as f64;
        let context = spec.context as f64;
        let origin = match all {
            1 => (window - hop) / 2.0,
            _ => {
                let frame = (context + window) / all as f64;
                let left = frames as f64 * frame;
                if (left - hop).abs() > frame {
                    return Err(Error::invalid(format!(
                        "{frames} frames of each window are left and span {left:.0} rows, but windows are {hop} \
                         rows apart: change trim or hop"
                    )));
                }
                trim[0] as f64 * frame - context
            }
        };
        let hop = hop * row_samples;
        let origin = (origin * row_samples).round();
        Ok(Grid { frames, hop, origin, row_samples, rate: f64::from(recogniser.rate) })
    }

    /// Returns the frames of each window.
    pub(crate) fn frames(&self) -> usize {
        self.frames
    }

    /// Returns the start of a frame in samples; never before the beginning.
    pub(crate) fn start(&self, frame: u64) -> f64 {
        let window = (frame / self.frames as u64) as f64 * self.hop;
        let inside = (frame % self.frames as u64) as f64 * self.hop / self.frames as f64;
        (self.origin + window + inside).max(0.0)
    }

    /// Returns the end in samples of window `window`, of which `real` rows belong to the recording.
    pub(crate) fn limit(&self, window: u64, real: usize) -> f64 {
        window as f64 * self.hop + real as f64 * self.row_samples
    }

    /// Converts samples to seconds.
    pub(crate) fn seconds(&self, samples: f64) -> f64 {
        samples / self.rate
    }
}
