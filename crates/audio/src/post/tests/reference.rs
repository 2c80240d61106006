//! The rule for events, over all probabilities at once.

use crate::recogniser::EventSettings;

/// First sample and the one after the last.
pub(super) type Span = (u64, u64);

/// Returns the end of an event that begins at frame `start`, and the first frame after the
/// decision.
fn end_of(
    values: &[f32],
    start: usize,
    rule: &EventSettings,
    window: f64,
) -> Option<(usize, usize)> {
    let mut quiet = None;
    for (frame, value) in values.iter().enumerate().skip(start) {
        let value = f64::from(*value);
        if value >= rule.on {
            quiet = None;
        } else if value < rule.off {
            let from = *quiet.get_or_insert(frame);
            if (frame - from) as f64 * window >= rule.gap {
                return Some((from, frame + 1));
            }
        }
    }
    None
}

/// Returns the events of windows of `window` samples in a recording of `samples`.
pub(super) fn naive(values: &[f32], rule: &EventSettings, window: u64, samples: u64) -> Vec<Span> {
    let window = window as f64;
    let mut raw: Vec<(f64, f64)> = Vec::new();
    let mut frame = 0;
    while let Some(start) = (frame..values.len()).find(|at| f64::from(values[*at]) >= rule.on) {
        let ending = end_of(values, start, rule, window);
        let end = ending.map_or(samples as f64, |(end, _)| end as f64 * window);
        if end - start as f64 * window > rule.min {
            raw.push((start as f64 * window, end));
        }
        frame = ending.map_or(values.len(), |(_, after)| after);
    }
    let padded = |index: usize| {
        let (start, end) = raw[index];
        let silence = |end: f64, start: f64| start - end;
        let share = |silence: f64| {
            if silence < 2.0 * rule.pad { (silence / 2.0).floor() } else { rule.pad }
        };
        let before = if index == 0 { rule.pad } else { share(silence(raw[index - 1].1, start)) };
        let after = raw.get(index + 1).map_or(rule.pad, |next| share(silence(end, next.0)));
        ((start - before).max(0.0).floor() as u64, (end + after).min(samples as f64).floor() as u64)
    };
    (0..raw.len()).map(padded).collect()
}
