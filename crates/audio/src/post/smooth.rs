//! A centred moving mean over frames, with memory for as many frames as it covers.

use std::collections::VecDeque;

/// A frame inside the mean.
struct ScoreFrame {
    at: u64,
    values: Box<[f32]>,
    onsets: Option<Box<[f32]>>,
}

/// Means over `width` frames: as many before as after a frame, one more before if `width` is even.
/// At the ends of the recording, over the existing frames.
pub(super) struct MovingMean {
    width: usize,
    /// Frames that the next mean may cover.
    frames: VecDeque<ScoreFrame>,
    /// Number of frames in `frames` whose mean was emitted.
    done: usize,
    sums: Vec<f64>,
    means: Vec<f32>,
}

/// Function that receives a frame: its number, its probabilities and the probabilities of its
/// onsets.
type EachFrame<'a> = &'a mut dyn FnMut(u64, &[f32], Option<&[f32]>);

impl MovingMean {
    /// Makes a mean over `width` frames of `classes` values.
    pub(super) fn new(width: usize, classes: usize) -> MovingMean {
        let sums = vec![0.0; classes];
        let means = vec![0.0; classes];
        MovingMean { width: width.max(1), frames: VecDeque::new(), done: 0, sums, means }
    }

    /// Adds frame `at` and emits every frame whose mean is complete.
    pub(super) fn push(
        &mut self,
        at: u64,
        values: &[f32],
        onsets: Option<&[f32]>,
        each: EachFrame<'_>,
    ) {
        if self.width == 1 {
            return each(at, values, onsets);
        }
        self.sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += f64::from(*value));
        self.frames.push_back(ScoreFrame {
            at,
            values: values.into(),
            onsets: onsets.map(Into::into),
        });
        // A frame's mean is complete with the last later frame that it covers.
        if self.frames.len() - self.done > (self.width - 1) / 2 {
            self.emit_next(each);
        }
    }

    /// Emits the remaining frames.
    pub(super) fn finish(&mut self, each: EachFrame<'_>) {
        while self.done < self.frames.len() {
            self.emit_next(each);
        }
    }

    /// Emits the next frame and drops the one that no later mean covers.
    fn emit_next(&mut self, each: EachFrame<'_>) {
        while self.done > self.width / 2
            && let Some(oldest) = self.frames.pop_front()
        {
            self.sums
                .iter_mut()
                .zip(&oldest.values)
                .for_each(|(sum, value)| *sum -= f64::from(*value));
            self.done -= 1;
        }
        // A value that is not a finite number must not outlive its frame.
        for (class, sum) in self.sums.iter_mut().enumerate() {
            if !sum.is_finite() {
                let values = self.frames.iter().filter_map(|frame| frame.values.get(class));
                *sum = values.map(|value| f64::from(*value)).sum();
            }
        }
        let count = self.frames.len() as f64;
        self.means.iter_mut().zip(&self.sums).for_each(|(mean, sum)| *mean = (sum / count) as f32);
        if let Some(frame) = self.frames.get(self.done) {
            each(frame.at, &self.means, frame.onsets.as_deref());
        }
        self.done += 1;
    }
}
