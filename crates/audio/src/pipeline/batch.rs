//! Turns windows into the tensors of a run, and a run's outputs into frames of windows.

use base::{DType, Error, NamedTensor, Result, Tensor};

use crate::post::WindowScores;
use crate::recogniser::{Activation, InputAxis, ModelBinding, Recogniser, RecogniserKind};

/// Shape of a window's values in an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct WindowShape {
    frames: usize,
    /// Number of values of a frame.
    classes: usize,
}

impl WindowShape {
    /// Returns the number of values of a window.
    fn values(self) -> usize {
        self.frames * self.classes
    }
}

/// Outputs of a run for the requested windows.
#[derive(Debug)]
pub(super) struct RunScores {
    shape: WindowShape,
    values: Vec<f32>,
    onsets: Option<Vec<f32>>,
}

impl RunScores {
    /// Returns the frames of window `index`, counted from 0. The caller fills in the window's
    /// number, rows and level.
    pub(super) fn window(&self, index: usize) -> WindowScores<'_> {
        let range = index * self.shape.values()..(index + 1) * self.shape.values();
        WindowScores {
            window: 0,
            real: 0,
            level: 0.0,
            frames: self.shape.frames,
            classes: self.shape.classes,
            values: self.values.get(range.clone()).unwrap_or_default(),
            onsets: self.onsets.as_ref().and_then(|onsets| onsets.get(range)),
        }
    }
}

/// Returns the model's input for `count` windows that lie one after the other in `values`, row by
/// row.
///
/// # Errors
/// `Internal` if `values` are not `count` windows.
pub(super) fn tensor(recogniser: &Recogniser, values: Vec<f32>, count: usize) -> Result<Tensor> {
    let rows = recogniser.spec.context + recogniser.spec.window;
    let width = recogniser.width;
    if values.len() != count * rows * width {
        return Err(Error::internal("a run's windows have another size than they should"));
    }
    // Each axis with its size and the distance of its elements in `values`.
    let axes = recogniser.axes.iter().map(|axis| match axis {
        InputAxis::Windows => (count, rows * width),
        InputAxis::Rows => (rows, width),
        InputAxis::Features => (width, 1),
        InputAxis::One => (1, 0),
    });
    let axes: Vec<(usize, usize)> = axes.collect();
    let shape: Vec<usize> = axes.iter().map(|(size, _)| *size).collect();
    let mut moved: Vec<(usize, usize)> = axes.into_iter().filter(|(size, _)| *size > 1).collect();
    if moved.is_sorted_by(|before, after| before.1 > after.1) {
        return Tensor::from_vec(shape.as_slice(), values);
    }
    while moved.len() < 3 {
        moved.insert(0, (1, 0));
    }
    let [outer, middle, inner] = [moved[0], moved[1], moved[2]];
    let mut turned = Vec::with_capacity(values.len());
    for a in 0..outer.0 {
        for b in 0..middle.0 {
            let from = a * outer.1 + b * middle.1;
            turned.extend((0..inner.0).map(|c| values[from + c * inner.1]));
        }
    }
    Tensor::from_vec(shape.as_slice(), turned)
}

/// Reads the outputs of a run of `count` windows, of which the `wanted` ones count.
///
/// # Errors
/// `InvalidArgument` if the outputs are not as the recogniser says.
pub(super) fn answer(
    recogniser: &Recogniser,
    fit: &ModelBinding,
    outputs: &[NamedTensor],
    count: usize,
    wanted: std::ops::Range<usize>,
) -> Result<RunScores> {
    let named = |error: Error| error.context(format!("recogniser \"{}\"", recogniser.name));
    let (mut values, shape) =
        read(recogniser, outputs, &fit.output, count, &wanted).map_err(named)?;
    activate(&mut values, shape.classes, recogniser.output.activation);
    let onsets = match &fit.onset {
        None => None,
        Some(name) => {
            let (mut onsets, other) =
                read(recogniser, outputs, name, count, &wanted).map_err(named)?;
            if other != shape {
                return Err(named(Error::invalid(
                    "the onset's output has another shape than the events'",
                )));
            }
            activate(&mut onsets, shape.classes, recogniser.output.activation);
            Some(onsets)
        }
    };
    Ok(RunScores { shape, values, onsets })
}

/// Returns one output's values for the `wanted` windows of `count`, and the shape of each window
/// after `output.trim`.
fn read(
    recogniser: &Recogniser,
    outputs: &[NamedTensor],
    name: &str,
    count: usize,
    wanted: &std::ops::Range<usize>,
) -> Result<(Vec<f32>, WindowShape)> {
    let output = outputs.iter().find(|output| &*output.name == name);
    let tensor =
        &output.ok_or_else(|| Error::internal(format!("output \"{name}\" is missing")))?.tensor;
    let all: Vec<f32> = match tensor.dtype() {
        DType::F64 => tensor.to_vec::<f64>()?.into_iter().map(|value| value as f32).collect(),
        _ => tensor.to_vec()?,
    };
    let whole = window_shape(recogniser, tensor.shape(), count)
        .filter(|whole| whole.values() * count == all.len() && !all.is_empty())
        .ok_or_else(|| {
            let shape = tensor.shape();
            Error::invalid(format!(
                "output \"{name}\" of shape {shape:?} cannot be read as {count} windows"
            ))
        })?;
    let [before, after] = recogniser.output.trim;
    let trimmed = WindowShape { frames: whole.frames.saturating_sub(before + after), ..whole };
    if trimmed.frames == 0 {
        return Err(Error::invalid(format!(
            "output.trim leaves nothing of {} frames a window",
            whole.frames
        )));
    }
    let windows = wanted.clone().flat_map(|window| {
        let from = window * whole.values() + before * whole.classes;
        all.get(from..from + trimmed.values()).unwrap_or_default()
    });
    Ok((windows.copied().collect(), trimmed))
}

/// Returns the shape of one window in an output tensor of the shape `shape` for `count` windows.
/// Returns `None` if the tensor has another number of windows, or several axes of frames.
fn window_shape(recogniser: &Recogniser, shape: &[usize], count: usize) -> Option<WindowShape> {
    // A model whose input has no axis for windows may omit it in its outputs too.
    let has_windows = recogniser.axes.contains(&InputAxis::Windows) || shape.first() == Some(&1);
    let inner = if !has_windows {
        shape
    } else if shape.first() == Some(&count) {
        &shape[1..]
    } else {
        return None;
    };
    let elements: usize = inner.iter().product();
    if recogniser.kind == RecogniserKind::Embeddings {
        return Some(WindowShape { frames: 1, classes: elements });
    }
    let last = inner.last().copied().unwrap_or(1);
    let single = recogniser.output.classes.names(1).is_ok_and(|_| {
        matches!(&recogniser.output.classes, crate::recogniser::ClassNames::Named(names) if names.len() == 1)
    });
    let classes = if single && last != 1 { 1 } else { last };
    // Of the other axes, only that of the frames may be longer than one.
    let longer = inner.iter().filter(|size| **size > 1).count();
    let longer = longer - usize::from(last > 1 && classes > 1);
    let frames = elements.checked_div(classes)?;
    (longer <= 1).then_some(WindowShape { frames, classes })
}

/// Turns the outputs of the model into probabilities. `classes` is the number of values of a frame.
fn activate(values: &mut [f32], classes: usize, activation: Activation) {
    match activation {
        Activation::None => {}
        Activation::Sigmoid => {
            values.iter_mut().for_each(|value| *value = 1.0 / (1.0 + (-*value).exp()))
        }
        Activation::Softmax => values.chunks_exact_mut(classes).for_each(|frame| {
            let most = frame.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            frame.iter_mut().for_each(|value| *value = (*value - most).exp());
            let sum: f32 = frame.iter().sum();
            frame.iter_mut().for_each(|value| *value /= sum);
        }),
    }
}
