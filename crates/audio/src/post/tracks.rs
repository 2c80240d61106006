//! Merges equal labels of neighbouring frames.

use crate::Label;
use crate::speakers::unit;

#[derive(Clone, Debug, PartialEq)]
pub(super) struct FrameLabel {
    pub(super) text: String,
    pub(super) score: f32,
    /// A unit vector.
    pub(super) embedding: Option<Vec<f32>>,
}

/// A label that is open since `start`.
#[derive(Clone, Debug)]
struct OpenLabel {
    text: String,
    start: f64,
    scores: f64,
    count: u64,
    embedding: Option<Vec<f32>>,
}

/// Open labels, one for each text; times in seconds.
#[derive(Clone, Debug, Default)]
pub(super) struct LabelMerger {
    tracks: Vec<OpenLabel>,
    /// End of the last frame.
    end: f64,
}

impl LabelMerger {
    /// Adds the frame from `start` to `end`. Ends the labels that it does not have.
    pub(super) fn add_frame(
        &mut self,
        start: f64,
        end: f64,
        now: Vec<FrameLabel>,
        out: &mut Vec<Label>,
    ) {
        let ended =
            self.tracks.extract_if(.., |track| !now.iter().any(|now| now.text == track.text));
        out.extend(ended.map(|track| track.label(start)));
        for now in now {
            match self.tracks.iter_mut().find(|track| track.text == now.text) {
                Some(track) => track.add(now),
                None => self.tracks.push(OpenLabel {
                    text: now.text,
                    start,
                    scores: f64::from(now.score),
                    count: 1,
                    embedding: now.embedding,
                }),
            }
        }
        self.end = end;
    }

    /// Ends all labels at the end of the last frame.
    pub(super) fn interrupt(&mut self, out: &mut Vec<Label>) {
        out.extend(self.tracks.drain(..).map(|track| track.label(self.end)));
    }

    /// Ends all labels with the recording, which has `seconds`.
    pub(super) fn finish(&mut self, seconds: f64, out: &mut Vec<Label>) {
        let labels = self.tracks.drain(..).map(|track| track.label(seconds));
        out.extend(labels.filter(|label| label.start < label.end));
    }

    /// Returns the second before which no further label starts, if the next frame starts at `next`.
    pub(super) fn settled(&self, next: f64) -> f64 {
        self.tracks.iter().map(|track| track.start).fold(next, f64::min)
    }
}

impl OpenLabel {
    fn add(&mut self, now: FrameLabel) {
        self.scores += f64::from(now.score);
        self.count += 1;
        if let (Some(sum), Some(more)) = (&mut self.embedding, now.embedding) {
            sum.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
        }
    }

    fn label(self, end: f64) -> Label {
        Label {
            start: self.start,
            end,
            text: self.text,
            score: (self.scores / self.count as f64) as f32,
            embedding: self.embedding.and_then(|sum| unit(&sum)),
        }
    }
}
