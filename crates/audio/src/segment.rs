//! Cuts rows of features into windows: the model's input, with the rows before it as context.

use base::Result;

/// Size and distance of windows, in rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WindowSpec {
    /// Rows of a window; at least one.
    pub(crate) window: usize,
    /// Rows from one window's start to the next; at least one. More than `window` skips rows.
    pub(crate) hop: usize,
    /// Number of rows of context before a window.
    pub(crate) context: usize,
}

/// One window, borrowed for a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FeatureWindow<'a> {
    /// Number, from zero.
    pub(crate) index: u64,
    /// First row after the context, counted from the recording's first.
    pub(crate) start: u64,
    /// Number of the window's rows that belong to the recording. The rows after them are padding
    /// with zeros.
    pub(crate) real: usize,
    /// Context and window: `(context + window) * width` values, row-major.
    pub(crate) rows: &'a [f32],
}

/// Cuts rows into windows as they arrive. Holds one window, its context and the rows of one push.
#[derive(Debug)]
pub(crate) struct Windows {
    spec: WindowSpec,
    width: usize,
    /// Values from the next window's context on. They begin with the zeros before the first row.
    held: Vec<f32>,
    /// Number of values to skip before the next window's context, if windows are far apart.
    skip: usize,
    next: u64,
    /// True if the frames at the end of a window do not count, so that only the next window covers
    /// its last rows.
    is_trimmed: bool,
}

impl Windows {
    /// Creates windows over rows of `width` values. A window, hop or width of zero counts as one.
    pub(crate) fn new(spec: WindowSpec, width: usize) -> Windows {
        let width = width.max(1);
        let spec =
            WindowSpec { window: spec.window.max(1), hop: spec.hop.max(1), context: spec.context };
        let held = vec![0.0; spec.context * width];
        Windows { spec, width, held, skip: 0, next: 0, is_trimmed: false }
    }

    /// Sets whether the model's frames at the end of a window do not count. If so, every hop that
    /// has a row begins a window.
    #[must_use]
    pub(crate) fn trimmed(self, is_trimmed: bool) -> Windows {
        Windows { is_trimmed, ..self }
    }

    /// Adds any number of whole rows and calls `each` for every complete window.
    ///
    /// # Errors
    /// Returns the errors of `each`; the windows completed by this push are not repeated.
    pub(crate) fn push(
        &mut self,
        rows: &[f32],
        each: &mut dyn FnMut(FeatureWindow<'_>) -> Result<()>,
    ) -> Result<()> {
        let skipped = self.skip.min(rows.len());
        self.skip -= skipped;
        self.held.extend_from_slice(&rows[skipped..]);
        let size = self.size();
        let hop = self.spec.hop * self.width;
        let mut head: usize = 0;
        let mut result = Ok(());
        while result.is_ok() && self.held.len() >= head.saturating_add(size) {
            let rows = &self.held[head..head + size];
            result = each(FeatureWindow {
                index: self.next,
                start: self.start(),
                real: self.spec.window,
                rows,
            });
            self.next += 1;
            head += hop;
        }
        self.skip += head.saturating_sub(self.held.len());
        self.held.drain(..head.min(self.held.len()));
        result
    }

    /// Calls `each` for the windows at the end, padded with zeros, until the last rows are covered.
    /// It is one window at most, unless frames at the end of a window do not count.
    ///
    /// # Errors
    /// Returns the errors of `each`.
    pub(crate) fn finish(
        &mut self,
        each: &mut dyn FnMut(FeatureWindow<'_>) -> Result<()>,
    ) -> Result<()> {
        loop {
            let values = self.held.len();
            let real = (values / self.width).saturating_sub(self.spec.context);
            // Rows of the window before, if windows overlap.
            let had = if self.next == 0 || self.is_trimmed {
                0
            } else {
                self.spec.window.saturating_sub(self.spec.hop)
            };
            if real <= had {
                return Ok(());
            }
            let size = self.size();
            self.held.resize(size, 0.0);
            let window =
                FeatureWindow { index: self.next, start: self.start(), real, rows: &self.held };
            each(window)?;
            self.held.truncate(values);
            self.held.drain(..values.min(self.spec.hop * self.width));
            self.next += 1;
        }
    }

    fn size(&self) -> usize {
        (self.spec.context + self.spec.window) * self.width
    }

    fn start(&self) -> u64 {
        self.next * self.spec.hop as u64
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Index, start, real rows, values.
    type Given = Vec<(u64, u64, usize, Vec<f32>)>;

    fn naive(spec: WindowSpec, width: usize, rows: &[f32]) -> Given {
        let count = rows.len() / width;
        let mut given = Given::new();
        let mut covered = 0;
        for index in 0.. {
            let start = index * spec.hop;
            if start + spec.window > count && (start >= count || covered >= count) {
                return given;
            }
            let value = |row: i64, column: usize| match usize::try_from(row) {
                Ok(row) if row < count => rows[row * width + column],
                _ => 0.0,
            };
            let from = start as i64 - spec.context as i64;
            let values = (from..(start + spec.window) as i64)
                .flat_map(|row| (0..width).map(move |column| (row, column)))
                .map(|(row, column)| value(row, column))
                .collect();
            given.push((index as u64, start as u64, spec.window.min(count - start), values));
            covered = start + spec.window;
        }
        given
    }

    fn streamed(spec: WindowSpec, width: usize, rows: &[f32], cuts: &[usize]) -> Given {
        let mut given = Given::new();
        let mut each = |window: FeatureWindow<'_>| {
            given.push((window.index, window.start, window.real, window.rows.to_vec()));
            Ok(())
        };
        let mut windows = Windows::new(spec, width);
        let mut rest = rows;
        for cut in cuts {
            let (now, later) = rest.split_at((cut * width).min(rest.len()));
            windows.push(now, &mut each).unwrap();
            rest = later;
        }
        windows.push(rest, &mut each).unwrap();
        windows.finish(&mut each).unwrap();
        given
    }

    proptest! {
        #[test]
        fn windows_are_those_of_the_whole_recording(
            window in 1usize..9, hop in 1usize..12, context in 0usize..5, width in 1usize..4, count in 0usize..60,
            cuts in proptest::collection::vec(0usize..20, 0..8),
        ) {
            let rows: Vec<f32> = (0..count * width).map(|value| value as f32 + 1.0).collect();
            let spec = WindowSpec { window, hop, context };
            prop_assert_eq!(streamed(spec, width, &rows, &cuts), naive(spec, width, &rows));
        }
    }

    #[test]
    fn held_rows_do_not_grow() {
        let mut windows = Windows::new(WindowSpec { window: 4, hop: 1000, context: 2 }, 3);
        for _ in 0..10_000 {
            windows.push(&[1.0; 30], &mut |_| Ok(())).unwrap();
            assert!(windows.held.len() <= (4 + 2 + 10) * 3);
        }
    }

    #[test]
    fn an_error_ends_the_push() {
        let mut windows = Windows::new(WindowSpec { window: 1, hop: 1, context: 0 }, 1);
        let mut calls = 0;
        let pushed = windows.push(&[0.0; 8], &mut |_| {
            calls += 1;
            Err(base::Error::cancelled("stopped"))
        });
        assert_eq!((pushed.unwrap_err().message(), calls), ("stopped", 1));
    }
}
