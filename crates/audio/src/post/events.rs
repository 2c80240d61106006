//! Labels events of any number of classes. Each class has its own detector.

use crate::Label;
use crate::recogniser::EventSettings;

use super::hysteresis::Detector;
use super::smooth::MovingMean;
use super::{Grid, WindowScores};

/// Labels the events of all classes.
pub(super) struct EventLabeller {
    smooth: MovingMean,
    classes: ClassDetectors,
    /// Next expected window.
    next: u64,
}

/// Detectors of all classes, after the moving mean.
struct ClassDetectors {
    rule: EventSettings,
    grid: Grid,
    names: Vec<String>,
    detectors: Vec<Detector>,
    /// Next expected frame.
    next: u64,
}

impl EventLabeller {
    /// Makes detectors for classes called `names`.
    pub(super) fn new(rule: &EventSettings, grid: Grid, names: Vec<String>) -> EventLabeller {
        let detectors = vec![Detector::default(); names.len()];
        EventLabeller {
            smooth: MovingMean::new(rule.smooth, names.len()),
            classes: ClassDetectors { rule: rule.clone(), grid, names, detectors, next: 0 },
            next: 0,
        }
    }

    /// Adds a window. Missing windows before it count as silence.
    pub(super) fn add_window(&mut self, frames: WindowScores<'_>, out: &mut Vec<Label>) {
        self.silence_until(frames.window, out);
        self.next = frames.window + 1;
        let limit = self.classes.grid.limit(frames.window, frames.real);
        for index in 0..frames.frames {
            let at = frames.window * frames.frames as u64 + index as u64;
            if self.classes.grid.start(at) >= limit {
                break;
            }
            let range = index * frames.classes..(index + 1) * frames.classes;
            let onsets = frames.onsets.and_then(|onsets| onsets.get(range.clone()));
            let values = frames.values.get(range).unwrap_or_default();
            let classes = &mut self.classes;
            self.smooth.push(at, values, onsets, &mut |at, values, onsets| {
                classes.add_frame(at, values, onsets, out);
            });
        }
    }

    /// Adds silence up to window `window`.
    fn silence_until(&mut self, window: u64, out: &mut Vec<Label>) {
        let frames = self.classes.grid.frames() as u64;
        let silence = vec![0.0; if self.next < window { self.classes.names.len() } else { 0 }];
        for at in self.next * frames..window * frames {
            let classes = &mut self.classes;
            let onsets = classes.rule.onset.is_some().then_some(silence.as_slice());
            self.smooth.push(at, &silence, onsets, &mut |at, values, onsets| {
                classes.add_frame(at, values, onsets, out);
            });
        }
    }

    /// Returns the second before which no further label starts.
    pub(super) fn settled(&self) -> f64 {
        let ClassDetectors { rule, grid, detectors, next, .. } = &self.classes;
        let next = grid.start(*next);
        let settled = detectors.iter().map(|detector| detector.settled(next, rule));
        grid.seconds(settled.min_by(f64::total_cmp).unwrap_or(next))
    }

    /// Ends the labels at the end of the recording.
    pub(super) fn finish(&mut self, samples: u64, windows: u64, out: &mut Vec<Label>) {
        self.silence_until(windows, out);
        let classes = &mut self.classes;
        self.smooth.finish(&mut |at, values, onsets| classes.add_frame(at, values, onsets, out));
        classes.finish(samples as f64, out);
    }
}

impl ClassDetectors {
    fn add_frame(&mut self, at: u64, values: &[f32], onsets: Option<&[f32]>, out: &mut Vec<Label>) {
        let ClassDetectors { rule, grid, names, detectors, next } = self;
        let start = grid.start(at);
        for (class, (detector, value)) in detectors.iter_mut().zip(values).enumerate() {
            let onset = onsets.and_then(|onsets| onsets.get(class)).map(|onset| f64::from(*onset));
            detector.add_frame(start, f64::from(*value), onset, rule, &mut |span| {
                out.push(label(grid, span, &names[class]));
            });
        }
        *next = at + 1;
    }

    fn finish(&mut self, samples: f64, out: &mut Vec<Label>) {
        let ClassDetectors { rule, grid, names, detectors, .. } = self;
        for (detector, name) in detectors.iter_mut().zip(names) {
            detector.finish(samples, rule, &mut |span| out.push(label(grid, span, name)));
        }
    }
}

fn label(grid: &Grid, span: super::hysteresis::ActiveSpan, name: &str) -> Label {
    Label {
        start: grid.seconds(span.start),
        end: grid.seconds(span.end),
        text: name.to_owned(),
        score: span.score,
        embedding: None,
    }
}
