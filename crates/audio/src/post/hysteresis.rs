//! Detects one class's events in a stream by the rule of Silero's voice activity package.
//!
//! An event begins at the first frame whose probability reaches `on`. A frame below `off` sets a
//! mark; a frame that reaches `on` removes it. A frame below `off` that comes at least `gap` after
//! the mark ends the event at the mark. Events not longer than `min` are dropped. An event that is
//! open at the end of the recording ends there. Finally each event grows by `pad` on both sides;
//! neighbours closer than twice `pad` share the silence between them equally. Ends are whole
//! samples, halves rounded down.
//!
//! The padding depends on the next event, so one closed event waits until the next one is certain
//! or far enough away.

use crate::recogniser::EventSettings;

/// An event, in samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ActiveSpan {
    pub(super) start: f64,
    pub(super) end: f64,
    /// Mean probability of its frames, without padding.
    pub(super) score: f32,
}

/// Sum and count of probabilities.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct RunningMean {
    sum: f64,
    count: u64,
}

impl RunningMean {
    fn add(&mut self, value: f64) {
        self.sum += value;
        self.count += 1;
    }

    fn value(self) -> f32 {
        if self.count == 0 { 0.0 } else { (self.sum / self.count as f64) as f32 }
    }
}

/// An event that has not ended.
#[derive(Clone, Copy, Debug)]
struct OpenSpan {
    start: f64,
    /// Padded start, once it is certain that the event counts.
    padded: Option<f64>,
    all: RunningMean,
    /// Start of the present pause, at which the event ends if the pause is long enough.
    mark: Option<PossibleEnd>,
}

/// A possible end of an event.
#[derive(Clone, Copy, Debug)]
struct PossibleEnd {
    /// Number of the sample.
    at: f64,
    /// Mean probability up to it.
    mean: RunningMean,
}

/// Detects the events of one class.
#[derive(Clone, Debug, Default)]
pub(super) struct Detector {
    open: Option<OpenSpan>,
    /// Closed event. Its start is final, and its end is not padded yet.
    waiting: Option<ActiveSpan>,
    /// True if the onset was on in the frame before.
    onset: bool,
}

impl Detector {
    /// Adds the frame that starts at sample `at`, with the probabilities of the class and of an
    /// onset.
    pub(super) fn add_frame(
        &mut self,
        at: f64,
        probability: f64,
        onset: Option<f64>,
        rule: &EventSettings,
        out: &mut dyn FnMut(ActiveSpan),
    ) {
        if self.rises(onset, rule)
            && let Some(open) = self.open.take()
        {
            let end = open.mark.unwrap_or(PossibleEnd { at, mean: open.all });
            self.close(open, end, rule, out);
            self.open =
                Some(OpenSpan { start: at, padded: None, all: RunningMean::default(), mark: None });
        }
        self.step(at, probability, rule, out);
        self.settle(at, rule, out);
    }

    fn rises(&mut self, onset: Option<f64>, rule: &EventSettings) -> bool {
        let (Some(onset), Some(settings)) = (onset, &rule.onset) else { return false };
        let now = onset >= settings.on;
        let before = std::mem::replace(&mut self.onset, now);
        now && !before
    }

    /// Adds a frame to the open span, opens one, or closes it.
    fn step(
        &mut self,
        at: f64,
        probability: f64,
        rule: &EventSettings,
        out: &mut dyn FnMut(ActiveSpan),
    ) {
        if probability >= rule.on {
            let fresh =
                OpenSpan { start: at, padded: None, all: RunningMean::default(), mark: None };
            let open = self.open.get_or_insert(fresh);
            open.mark = None;
            open.all.add(probability);
            return;
        }
        let Some(open) = &mut self.open else { return };
        // NaN is silence, as a missing window is.
        if probability.is_nan() || probability < rule.off {
            let mark = *open.mark.get_or_insert(PossibleEnd { at, mean: open.all });
            if at - mark.at >= rule.gap {
                let open = *open;
                self.open = None;
                self.close(open, mark, rule, out);
                return;
            }
        }
        if !probability.is_nan() {
            open.all.add(probability);
        }
    }

    /// Ends `open` at `end`, if it counts.
    fn close(
        &mut self,
        open: OpenSpan,
        end: PossibleEnd,
        rule: &EventSettings,
        out: &mut dyn FnMut(ActiveSpan),
    ) {
        if end.at - open.start > rule.min {
            let start = open.padded.unwrap_or_else(|| self.pad_before(open.start, rule, out));
            self.waiting = Some(ActiveSpan { start, end: end.at, score: end.mean.value() });
        }
    }

    /// Returns the padded start of an event that counts. Finishes the event before it.
    fn pad_before(
        &mut self,
        start: f64,
        rule: &EventSettings,
        out: &mut dyn FnMut(ActiveSpan),
    ) -> f64 {
        let Some(mut before) = self.waiting.take() else {
            return (start - rule.pad).max(0.0).floor();
        };
        let silence = start - before.end;
        let padded = if silence < 2.0 * rule.pad {
            let half = (silence / 2.0).floor();
            before.end += half;
            (start - half).max(0.0)
        } else {
            before.end = (before.end + rule.pad).floor();
            (start - rule.pad).max(0.0).floor()
        };
        out(before);
        padded
    }

    /// Emits the closed event once the next one cannot change it.
    fn settle(&mut self, at: f64, rule: &EventSettings, out: &mut dyn FnMut(ActiveSpan)) {
        let next = self.open.map_or(at, |open| open.start);
        if let Some(mut waiting) =
            self.waiting.take_if(|waiting| next - waiting.end >= 2.0 * rule.pad)
        {
            waiting.end = (waiting.end + rule.pad).floor();
            out(waiting);
        }
        let Some(mut open) = self.open else { return };
        // The event cannot end before its mark or, without a mark, before the next frame.
        let least = open.mark.map_or(at, |mark| mark.at);
        if open.padded.is_none() && least - open.start > rule.min {
            open.padded = Some(self.pad_before(open.start, rule, out));
            self.open = Some(open);
        }
    }

    /// Ends all events with the recording, which has `samples`.
    pub(super) fn finish(
        &mut self,
        samples: f64,
        rule: &EventSettings,
        out: &mut dyn FnMut(ActiveSpan),
    ) {
        if let Some(open) = self.open.take() {
            let end = PossibleEnd { at: samples, mean: open.all };
            self.close(open, end, rule, out);
        }
        if let Some(mut waiting) = self.waiting.take() {
            waiting.end = (waiting.end + rule.pad).min(samples).floor();
            out(waiting);
        }
    }

    /// Returns the sample before which no further event starts, if the next frame starts at `next`.
    pub(super) fn settled(&self, next: f64, rule: &EventSettings) -> f64 {
        if let Some(waiting) = &self.waiting {
            return waiting.start;
        }
        let padded = |start: f64| (start - rule.pad).max(0.0).floor();
        self.open
            .map_or_else(|| padded(next), |open| open.padded.unwrap_or_else(|| padded(open.start)))
    }
}
