//! Values of waiting windows.
//!
//! Lanes hold minutes of a recording, up to 70 MB per thread as 32-bit floats. The samples of a
//! 16-bit recording that is neither mixed nor resampled are whole steps of 1/32768. Half of the
//! memory holds them without loss.

/// Number of steps of 16-bit samples from 0 to 1.0.
const STEPS: f32 = 32768.0;

/// Values of windows, one after the other.
pub(super) enum WindowValues {
    /// Any values.
    Floats(Vec<f32>),
    /// Whole steps of 1/32768.
    Steps(Vec<i16>),
}

impl WindowValues {
    /// Makes an empty store with capacity for `count` values. With `steps` it holds steps until a
    /// value is not a whole step.
    pub(super) fn with_room(count: usize, steps: bool) -> WindowValues {
        if steps {
            WindowValues::Steps(Vec::with_capacity(count))
        } else {
            WindowValues::Floats(Vec::with_capacity(count))
        }
    }

    /// Returns true if all values so far are held as steps.
    pub(super) fn are_steps(&self) -> bool {
        matches!(self, WindowValues::Steps(_))
    }

    /// Appends values.
    pub(super) fn extend(&mut self, more: &[f32]) {
        match self {
            WindowValues::Floats(values) => values.extend_from_slice(more),
            WindowValues::Steps(steps) if more.iter().all(|value| is_step(*value)) => {
                steps.extend(more.iter().map(|value| step(*value)));
            }
            WindowValues::Steps(steps) => {
                let mut values = Vec::with_capacity(steps.capacity());
                values.extend(steps.iter().map(|value| float(*value)));
                values.extend_from_slice(more);
                *self = WindowValues::Floats(values);
            }
        }
    }

    /// Fills `to` with the values from index `from` on.
    pub(super) fn copy(&self, from: usize, to: &mut [f32]) {
        match self {
            WindowValues::Floats(values) => to.copy_from_slice(&values[from..from + to.len()]),
            WindowValues::Steps(steps) => {
                to.iter_mut().zip(&steps[from..]).for_each(|(to, value)| *to = float(*value))
            }
        }
    }
}

/// Returns `value` in steps of 1/32768, rounded towards zero. The result has no meaning for NaN and
/// for a value that is not within -1 and 1.
fn step(value: f32) -> i16 {
    (value * STEPS) as i16
}

fn float(step: i16) -> f32 {
    f32::from(step) / STEPS
}

fn is_step(value: f32) -> bool {
    float(step(value)).to_bits() == value.to_bits()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn held(given: &[f32]) -> (WindowValues, Vec<f32>) {
        let mut values = WindowValues::with_room(given.len(), true);
        values.extend(given);
        let mut back = vec![f32::NAN; given.len()];
        values.copy(0, &mut back);
        (values, back)
    }

    fn bits(values: &[f32]) -> Vec<u32> {
        values.iter().map(|value| value.to_bits()).collect()
    }

    #[test]
    fn every_16_bit_sample_is_a_step_without_loss() {
        let all: Vec<f32> = (i16::MIN..=i16::MAX).map(float).collect();
        let (values, back) = held(&all);
        assert!(values.are_steps());
        assert_eq!(bits(&all), bits(&back));
        let mut two = [0.0; 2];
        values.copy(65_534, &mut two);
        assert_eq!(two, [32766.0 / 32768.0, 32767.0 / 32768.0]);
    }

    #[test]
    fn lossy_conversions_are_not_made() {
        for odd in [-0.0, 1.0, -1.5, 0.5 / 32768.0, 1e-30, f32::NAN, f32::INFINITY] {
            let (values, back) = held(&[0.25, odd]);
            assert!(!values.are_steps(), "{odd}");
            assert_eq!(bits(&[0.25, odd]), bits(&back));
        }
    }

    proptest! {
        #[test]
        fn axes_after_the_steps_are_kept(
            samples in prop::collection::vec(any::<i16>(), 0..50),
            more in prop::collection::vec(prop::num::f32::ANY, 0..5),
            steps: bool,
        ) {
            let mut given: Vec<f32> = samples.into_iter().map(float).collect();
            let mut values = WindowValues::with_room(given.len(), steps);
            values.extend(&given);
            values.extend(&more);
            given.extend(&more);
            let mut back = vec![f32::NAN; given.len()];
            values.copy(0, &mut back);
            prop_assert_eq!(bits(&given), bits(&back));
        }
    }
}
