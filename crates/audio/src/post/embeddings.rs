//! Labels from embeddings: the nearest enrolled speaker of each window.

use crate::Label;
use crate::recogniser::{EmbeddingSettings, Recogniser};
use crate::speakers::{Speakers, unit};

use super::WindowScores;
use super::tracks::{FrameLabel, LabelMerger};

/// Label of a voice if no speaker is enrolled.
const VOICE: &str = "voice";
/// Label of a voice that matches no enrolled speaker.
const UNKNOWN: &str = "unknown";

/// Labels windows with their speakers.
pub(super) struct SpeakerLabeller {
    rule: EmbeddingSettings,
    speakers: Option<Speakers>,
    embeddings: bool,
    rate: f64,
    /// Number of samples of a window.
    window: f64,
    /// Number of samples from one window to the next.
    hop: f64,
    rows: usize,
    tracks: LabelMerger,
    /// Next expected window.
    next: u64,
}

impl SpeakerLabeller {
    /// Creates the labeller. It compares windows with `speakers` if they are given. Labels carry
    /// embeddings if `embeddings` is true.
    pub(super) fn new(
        recogniser: &Recogniser,
        embeddings: bool,
        speakers: Option<Speakers>,
    ) -> SpeakerLabeller {
        let samples = |rows: usize| rows as f64 * recogniser.row_samples as f64;
        SpeakerLabeller {
            rule: recogniser.embeddings,
            speakers: speakers.filter(|speakers| !speakers.names().is_empty()),
            embeddings,
            rate: f64::from(recogniser.rate),
            window: samples(recogniser.spec.window),
            hop: samples(recogniser.spec.hop),
            rows: recogniser.spec.window,
            tracks: LabelMerger::default(),
            next: 0,
        }
    }

    /// Adds a window. A missing window before it ends the open label. A last window with too much
    /// padding changes nothing.
    pub(super) fn add_window(&mut self, frames: WindowScores<'_>, out: &mut Vec<Label>) {
        if self.next < frames.window {
            self.tracks.interrupt(out);
        }
        self.next = frames.window + 1;
        if !covered(&frames, &self.rule, self.rows) {
            return;
        }
        let start = self.start(frames.window);
        let end = self.start(frames.window + 1);
        let now = if frames.level >= self.rule.min_level {
            self.voice_label(frames.values)
        } else {
            None
        };
        self.tracks.add_frame(start, end, now.into_iter().collect(), out);
    }

    /// Returns the time in seconds from which a window counts. A window covers the hop at its
    /// middle. The first window also covers everything before it.
    fn start(&self, window: u64) -> f64 {
        if window == 0 {
            0.0
        } else {
            (window as f64 * self.hop + (self.window - self.hop) / 2.0) / self.rate
        }
    }

    /// Returns the label of a voice with the embedding `vector`: the nearest speaker, or a general
    /// label. Returns `None` if the vector has no direction.
    fn voice_label(&self, vector: &[f32]) -> Option<FrameLabel> {
        let vector = unit(vector)?;
        let (text, score) = match &self.speakers {
            None => (VOICE.to_owned(), 1.0),
            Some(speakers) => match speakers.nearest(&vector) {
                Some((name, similarity)) if similarity >= self.rule.threshold => (name, similarity),
                other => (UNKNOWN.to_owned(), other.map_or(0.0, |(_, similarity)| similarity)),
            },
        };
        Some(FrameLabel { text, score, embedding: self.embeddings.then_some(vector) })
    }

    /// Returns the second before which no further label starts.
    pub(super) fn settled(&self) -> f64 {
        self.tracks.settled(self.start(self.next))
    }

    /// Ends with the recording.
    pub(super) fn finish(&mut self, samples: u64, windows: u64, out: &mut Vec<Label>) {
        if self.next < windows {
            self.tracks.interrupt(out);
        }
        self.tracks.finish(samples as f64 / self.rate, out);
    }
}

/// Returns true if enough of a window's `rows` belong to the recording. The first window always
/// counts.
fn covered(frames: &WindowScores<'_>, rule: &EmbeddingSettings, rows: usize) -> bool {
    frames.window == 0 || frames.real as f64 >= f64::from(rule.min_coverage) * rows as f64
}

/// Makes the mean of the unit vectors of windows that are loud and whole enough.
pub(crate) fn mean_of_units(recogniser: &Recogniser) -> UnitMean {
    UnitMean { rule: recogniser.embeddings, rows: recogniser.spec.window, sum: Vec::new() }
}

/// Sum of the windows' unit vectors, from which [`UnitMean::value`] makes their mean direction.
pub(crate) struct UnitMean {
    rule: EmbeddingSettings,
    rows: usize,
    sum: Vec<f64>,
}

impl UnitMean {
    /// Adds a window.
    pub(crate) fn add_window(&mut self, frames: WindowScores<'_>) {
        if frames.level < self.rule.min_level || !covered(&frames, &self.rule, self.rows) {
            return;
        }
        let Some(vector) = unit(frames.values) else { return };
        self.sum.resize(vector.len(), 0.0);
        self.sum.iter_mut().zip(vector).for_each(|(sum, value)| *sum += f64::from(value));
    }

    /// Returns the mean at length one; `None` if no window counted.
    pub(crate) fn value(&self) -> Option<Vec<f32>> {
        let sum: Vec<f32> = self.sum.iter().map(|value| *value as f32).collect();
        unit(&sum)
    }
}
