//! Labels scenes: the likeliest classes of each frame, for the time that they stay among the
//! likeliest.

use crate::Label;
use crate::recogniser::SceneSettings;

use super::tracks::{FrameLabel, LabelMerger};
use super::{Grid, WindowScores};

/// Labels the likeliest classes.
pub(super) struct SceneLabeller {
    rule: SceneSettings,
    grid: Grid,
    names: Vec<String>,
    tracks: LabelMerger,
    /// Next expected window.
    next: u64,
}

impl SceneLabeller {
    /// Makes a labeller for classes called `names`.
    pub(super) fn new(rule: SceneSettings, grid: Grid, names: Vec<String>) -> SceneLabeller {
        SceneLabeller { rule, grid, names, tracks: LabelMerger::default(), next: 0 }
    }

    /// Adds a window. A missing window before it ends all open labels.
    pub(super) fn add_window(&mut self, frames: WindowScores<'_>, out: &mut Vec<Label>) {
        if self.next < frames.window {
            self.tracks.interrupt(out);
        }
        self.next = frames.window + 1;
        let limit = self.grid.limit(frames.window, frames.real);
        for (index, values) in frames.values.chunks_exact(frames.classes.max(1)).enumerate() {
            let at = frames.window * frames.frames as u64 + index as u64;
            // A recording shorter than half a window still gets labels.
            if at > 0 && self.grid.start(at) >= limit {
                break;
            }
            let now = self.top(values);
            self.tracks.add_frame(self.start(at), self.start(at + 1), now, out);
        }
    }

    /// Returns the start of a frame in seconds. The first frame starts with the recording.
    fn start(&self, frame: u64) -> f64 {
        if frame == 0 { 0.0 } else { self.grid.seconds(self.grid.start(frame)) }
    }

    /// Returns the likeliest classes above the threshold, best first.
    fn top(&self, values: &[f32]) -> Vec<FrameLabel> {
        let above = values.iter().enumerate().filter(|(_, value)| **value >= self.rule.threshold);
        let mut above: Vec<(usize, f32)> = above.map(|(class, value)| (class, *value)).collect();
        above.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        above.truncate(self.rule.top);
        let now = |(class, score): (usize, f32)| FrameLabel {
            text: self.names[class].clone(),
            score,
            embedding: None,
        };
        above.into_iter().map(now).collect()
    }

    /// Returns the second before which no further label starts.
    pub(super) fn settled(&self) -> f64 {
        self.tracks.settled(self.start(self.next * self.grid.frames() as u64))
    }

    /// Ends all labels with the recording, if its last window arrived.
    pub(super) fn finish(&mut self, samples: u64, windows: u64, out: &mut Vec<Label>) {
        if self.next < windows {
            self.tracks.interrupt(out);
        }
        self.tracks.finish(self.grid.seconds(samples as f64), out);
    }
}
