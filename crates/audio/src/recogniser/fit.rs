//! Binds a recogniser to a model's signature: the source of each tensor, with the model's types.

use std::sync::Arc;

use base::{CarriedInput, DType, Dim, Error, NamedTensor, Result, Signature, Tensor, TensorSpec};

use super::file::check_elements;
use super::{ConstantInput, InputAxis, Recogniser, StateInput};

/// Inputs and outputs of a model as a recogniser uses them.
#[derive(Debug)]
pub(crate) struct ModelBinding {
    /// Input for the windows.
    pub(crate) input: Arc<str>,
    /// Number of windows of a run, if the model fixes it.
    pub(crate) items: Option<usize>,
    pub(crate) constants: Vec<NamedTensor>,
    pub(crate) carried: Vec<CarriedInput>,
    pub(crate) output: Arc<str>,
    pub(crate) onset: Option<Arc<str>>,
}

impl ModelBinding {
    /// Finds every name of `recogniser` in `signature`.
    ///
    /// # Errors
    /// `InvalidArgument` that states the mismatch and lists the model's inputs and outputs.
    pub(crate) fn new(recogniser: &Recogniser, signature: &Signature) -> Result<ModelBinding> {
        find(recogniser, signature).map_err(|error| {
            let error = error.context(format!("recogniser \"{}\"", recogniser.name));
            Error::new(error.kind(), format!("{}; {}", error.message(), describe(signature)))
        })
    }
}

/// Finds the inputs and outputs of the model that the settings name. Each required input needs a
/// source: the samples, a constant or a state.
fn find(recogniser: &Recogniser, signature: &Signature) -> Result<ModelBinding> {
    let input = match &recogniser.input {
        Some(name) => signature.input(name).ok_or_else(|| missing("input", name))?,
        None => {
            signature.inputs.first().ok_or_else(|| Error::invalid("the model takes nothing"))?
        }
    };
    let items = check_layout(recogniser, input)?;
    let constants = recogniser.constants.iter().map(|constant| bind_constant(constant, signature));
    let constants = constants.collect::<Result<Vec<_>>>()?;
    let carried = recogniser.state.iter().map(|state| bind_state(state, signature));
    let carried = carried.collect::<Result<Vec<_>>>()?;
    let mut sources = vec![input.name.as_str()];
    sources.extend(constants.iter().map(|constant| &*constant.name));
    sources.extend(carried.iter().map(|state| &*state.input));
    check_sources(&sources, signature)?;
    let output = match &recogniser.output.name {
        Some(name) => signature.output(name).ok_or_else(|| missing("output", name))?,
        None => {
            signature.outputs.first().ok_or_else(|| Error::invalid("the model gives nothing"))?
        }
    };
    if !matches!(output.dtype, DType::F32 | DType::F64) {
        return Err(Error::invalid(format!(
            "output \"{}\" is {}, not float32",
            output.name, output.dtype
        )));
    }
    let onset = match &recogniser.events.onset {
        Some(onset) => {
            Some(signature.output(&onset.output).ok_or_else(|| missing("output", &onset.output))?)
        }
        None => None,
    };
    Ok(ModelBinding {
        input: input.name.as_str().into(),
        items,
        constants,
        carried,
        output: output.name.as_str().into(),
        onset: onset.map(|onset| onset.name.as_str().into()),
    })
}

fn bind_constant(constant: &ConstantInput, signature: &Signature) -> Result<NamedTensor> {
    let spec = signature.input(&constant.input).ok_or_else(|| missing("input", &constant.input))?;
    let tensor = filled(spec, constant.shape.as_deref(), constant.value)?;
    Ok(NamedTensor::new(spec.name.as_str(), tensor))
}

fn bind_state(state: &StateInput, signature: &Signature) -> Result<CarriedInput> {
    let spec = signature.input(&state.input).ok_or_else(|| missing("input", &state.input))?;
    signature.output(&state.output).ok_or_else(|| missing("output", &state.output))?;
    let initial = filled(spec, state.shape.as_deref(), state.value)?;
    Ok(CarriedInput {
        input: spec.name.as_str().into(),
        output: state.output.as_str().into(),
        initial,
    })
}

/// Checks that `sources`, the names of the inputs that get a value, have each required input once.
fn check_sources(sources: &[&str], signature: &Signature) -> Result<()> {
    for (position, name) in sources.iter().enumerate() {
        if sources[..position].contains(name) {
            return Err(Error::invalid(format!("input \"{name}\" is given twice")));
        }
    }
    let is_missing = |spec: &&TensorSpec| !spec.optional && !sources.contains(&spec.name.as_str());
    match signature.inputs.iter().find(is_missing) {
        Some(spec) => Err(Error::invalid(format!(
            "the model also takes \"{}\": give it under constants or under state",
            spec.name
        ))),
        None => Ok(()),
    }
}

fn missing(what: &str, name: &str) -> Error {
    Error::invalid(format!("the model has no {what} \"{name}\""))
}

/// Checks the input's type and axes. Returns the number of windows, if the model fixes it.
fn check_layout(recogniser: &Recogniser, input: &TensorSpec) -> Result<Option<usize>> {
    if input.dtype != DType::F32 {
        return Err(Error::invalid(format!(
            "input \"{}\" is {}, not float32",
            input.name, input.dtype
        )));
    }
    let Some(dims) = &input.shape else { return Ok(None) };
    let rows = recogniser.spec.context + recogniser.spec.window;
    let wrong = || {
        let width = recogniser.width;
        Error::invalid(format!(
            "input \"{}\" is not laid out as axes say, with {rows} rows of {width} values",
            input.name
        ))
    };
    if dims.len() != recogniser.axes.len() {
        return Err(wrong());
    }
    let mut items = None;
    for (dim, axis) in dims.iter().zip(&recogniser.axes) {
        let Dim::Fixed(size) = dim else { continue };
        match axis {
            InputAxis::Windows => items = Some(*size),
            InputAxis::Rows if *size == rows => {}
            InputAxis::Features if *size == recogniser.width => {}
            InputAxis::One if *size == 1 => {}
            _ => return Err(wrong()),
        }
    }
    Ok(items.filter(|items| *items > 0))
}

/// Returns a tensor filled with `value`, with the model's type, and the model's shape by default.
///
/// # Errors
/// `InvalidArgument` for a shape of another rank or with too many elements, and for a type that
/// constants cannot have.
fn filled(spec: &TensorSpec, shape: Option<&[usize]>, value: f64) -> Result<Tensor> {
    let size = |dim: &Dim| match dim {
        Dim::Fixed(size) => *size,
        Dim::Dynamic(_) => 1,
    };
    let shape: Vec<usize> = match (shape, &spec.shape) {
        (Some(shape), Some(dims)) if shape.len() != dims.len() => {
            return Err(Error::invalid(format!(
                "\"{}\" has {} axes, the shape given for it {}",
                spec.name,
                dims.len(),
                shape.len()
            )));
        }
        (Some(shape), _) => shape.to_vec(),
        (None, Some(dims)) => dims.iter().map(size).collect(),
        (None, None) => Vec::new(),
    };
    let shape = shape.as_slice();
    check_elements(&spec.name, Some(shape))?;
    let elements: usize = shape.iter().product();
    match spec.dtype {
        DType::F32 => Tensor::from_vec(shape, vec![value as f32; elements]),
        DType::F64 => Tensor::from_vec(shape, vec![value; elements]),
        DType::I64 => Tensor::from_vec(shape, vec![value as i64; elements]),
        DType::I32 => Tensor::from_vec(shape, vec![value as i32; elements]),
        DType::I16 => Tensor::from_vec(shape, vec![value as i16; elements]),
        DType::U8 => Tensor::from_vec(shape, vec![value as u8; elements]),
        DType::Bool => {
            let bytes = vec![u8::from(value != 0.0); elements];
            Tensor::from_bytes(DType::Bool, shape, bytes.into())
        }
        other => {
            Err(Error::invalid(format!("\"{}\" is {other}, which cannot be a constant", spec.name)))
        }
    }
}

/// Describes a model's inputs and outputs for an error message.
fn describe(signature: &Signature) -> String {
    let list = |specs: &[TensorSpec]| {
        let each = specs.iter().take(16).map(|spec| match &spec.shape {
            Some(_) => format!("{} {}{:?}", spec.name, spec.dtype, spec.wire_shape()),
            None => format!("{} {}", spec.name, spec.dtype),
        });
        each.collect::<Vec<_>>().join(", ")
    };
    format!("the model takes {} and gives {}", list(&signature.inputs), list(&signature.outputs))
}
