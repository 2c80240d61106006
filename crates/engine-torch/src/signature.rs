//! Inputs and outputs of a module, from its graph, the model's settings, and a trial run.
//!
//! TorchScript states the names and kinds of forward's arguments, and at most the number of its
//! outputs. `[signature]` states the rest. If it states all inputs and no outputs, one run on zeros
//! finds the outputs.

use std::collections::HashMap;
use std::sync::Arc;

use base::{DType, Dim, Error, NamedTensor, Result, Shape, Signature, Tensor, TensorSpec};
use bytes::Bytes;
use engine::{SignatureFile, TensorText};

use crate::api::{BOOL, FLOAT, INT, TENSOR};
use crate::module::{ArgumentDescription, ModuleDescription};

/// Maximum bytes of a trial run's inputs.
const TRIAL_BYTES_MAX: usize = 256 << 20;

/// One argument of forward, in its order.
pub(crate) struct ForwardArgument {
    /// A kind constant of `api`: a tensor or a scalar type.
    pub(crate) kind: i32,
    /// True if a request must have this argument.
    pub(crate) required: bool,
}

/// An output that a trial run returned.
pub(crate) struct ObservedOutput {
    pub(crate) name: String,
    pub(crate) dtype: DType,
    /// Number of axes.
    pub(crate) rank: usize,
}

/// An output of forward.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ModuleOutput {
    /// Name in requests.
    pub(crate) name: Arc<str>,
    /// Name in the module; `None` if only its position is known.
    pub(crate) key: Option<String>,
    /// Expected position in the results.
    pub(crate) position: usize,
}

/// Inputs and outputs of a module, and their mapping to forward.
pub(crate) struct ForwardPlan {
    /// Signature for clients.
    pub(crate) signature: Signature,
    /// Arguments of forward, in its order.
    pub(crate) arguments: Vec<ForwardArgument>,
    /// Index in `arguments` by the input's name.
    pub(crate) inputs: HashMap<String, usize>,
    /// Outputs in the signature's order. Empty before a trial run that has to find them.
    pub(crate) outputs: Vec<ModuleOutput>,
    /// True if the outputs are known from types only.
    pub(crate) provisional: bool,
    /// True if the outputs are those of a trial run. Another run may give others.
    pub(crate) observed: bool,
}

/// Joins the module's facts with the model's settings. `package` is true for a compiled package,
/// which does not state its inputs and outputs.
///
/// # Errors
/// `InvalidArgument` if they contradict each other or forward's declaration, or if an argument has
/// a kind that a request cannot carry.
pub(crate) fn plan(
    description: &ModuleDescription,
    file: &SignatureFile,
    package: bool,
) -> Result<ForwardPlan> {
    let ForwardInputs { specs, arguments } = if package {
        declared_inputs(file)?
    } else {
        inputs(&description.arguments, file).map_err(|e| with_declaration(e, description))?
    };
    let inputs = specs
        .iter()
        .map(|(spec, index)| (spec.name.clone(), *index))
        .collect::<HashMap<String, usize>>();
    let mut signature =
        Signature { inputs: specs.into_iter().map(|(spec, _)| spec).collect(), outputs: vec![] };
    let (outputs, provisional) = if file.outputs.is_empty() {
        (typed_outputs(description, &mut signature), true)
    } else {
        (declared_outputs(description, file, &mut signature)?, false)
    };
    Ok(ForwardPlan { signature, arguments, inputs, outputs, provisional, observed: false })
}

/// Adds the declaration of the model's `forward` to an error.
fn with_declaration(error: Error, description: &ModuleDescription) -> Error {
    Error::invalid(format!("{error}; the model is {}", description.declaration))
}

/// Tensors that clients send, and the arguments of forward.
struct ForwardInputs {
    /// Tensors, each with the index of its argument.
    specs: Vec<(TensorSpec, usize)>,
    arguments: Vec<ForwardArgument>,
}

/// Returns the inputs of a package. A package does not state them itself.
fn declared_inputs(file: &SignatureFile) -> Result<ForwardInputs> {
    if file.inputs.is_empty() || file.outputs.is_empty() {
        return Err(Error::invalid(
            "a compiled package does not describe its inputs and outputs: list them in [signature]",
        ));
    }
    // The code of a package does not check its inputs. With another shape it would read past their
    // end.
    if let Some(text) = file.inputs.iter().find(|text| text.shape.is_none() || text.dtype.is_none())
    {
        return Err(Error::invalid(format!(
            "input \"{}\" of a compiled package needs its dtype and shape in [signature]",
            text.name
        )));
    }
    let specs = file.inputs.iter().map(TensorText::spec).zip(0..);
    let specs = specs.map(|(spec, index)| Ok((spec?, index))).collect::<Result<Vec<_>>>()?;
    let argument = |_: &(TensorSpec, usize)| ForwardArgument { kind: TENSOR, required: true };
    let arguments = specs.iter().map(argument).collect();
    Ok(ForwardInputs { specs, arguments })
}

/// Returns the tensors that clients send, from the arguments of forward and the names and shapes
/// of the settings.
fn inputs(arguments: &[ArgumentDescription], file: &SignatureFile) -> Result<ForwardInputs> {
    let names: Vec<&str> = arguments.iter().map(|argument| argument.name.as_str()).collect();
    let required = arguments.iter().filter(|argument| !argument.optional).count();
    let matched = matched(&file.inputs, &names, required).ok_or_else(|| {
        let declared: Vec<&str> = file.inputs.iter().map(|text| text.name.as_str()).collect();
        Error::invalid(format!(
            "[signature] lists inputs {}, forward takes {}",
            declared.join(", "),
            names.join(", ")
        ))
    })?;
    let mut specs = Vec::new();
    for (index, argument) in arguments.iter().enumerate() {
        let text =
            matched.iter().zip(&file.inputs).find(|(at, _)| **at == index).map(|(_, text)| text);
        if let Some(spec) = input(argument, text)? {
            specs.push((spec, index));
        }
    }
    let arguments = arguments
        .iter()
        .map(|argument| ForwardArgument { kind: argument.kind, required: !argument.optional });
    Ok(ForwardInputs { specs, arguments: arguments.collect() })
}

/// Returns the index in `names` of each of `texts`. They match by name if all names are known, and
/// by position if none is. `None` otherwise, or if there are too many or too few.
fn matched(texts: &[TensorText], names: &[&str], required: usize) -> Option<Vec<usize>> {
    let known: Vec<Option<usize>> =
        texts.iter().map(|text| names.iter().position(|name| *name == text.name)).collect();
    if known.iter().all(Option::is_some) {
        let mut once = known.clone();
        once.sort_unstable();
        once.dedup();
        return (once.len() == known.len()).then(|| known.into_iter().flatten().collect());
    }
    let by_position =
        known.iter().all(Option::is_none) && (required..=names.len()).contains(&texts.len());
    by_position.then(|| (0..texts.len()).collect())
}

/// Returns the input for `argument`; `None` for an optional argument that no request can carry.
fn input(argument: &ArgumentDescription, text: Option<&TensorText>) -> Result<Option<TensorSpec>> {
    let scalar = match argument.kind {
        TENSOR => None,
        INT => Some(DType::I64),
        FLOAT => Some(DType::F64),
        BOOL => Some(DType::Bool),
        _ if argument.optional && text.is_none() => return Ok(None),
        _ => {
            let name = &argument.name;
            let type_text = &argument.type_text;
            return Err(Error::invalid(format!(
                "forward takes \"{name}\" as {type_text}; a request can give tensors, int, float and bool"
            )));
        }
    };
    let name = text.map_or(&argument.name, |text| &text.name).clone();
    let optional = argument.optional;
    let Some(dtype) = scalar else {
        let spec = text.map(TensorText::spec).transpose()?;
        let (dtype, shape) = spec.map_or((DType::F32, None), |spec| (spec.dtype, spec.shape));
        return Ok(Some(TensorSpec { name, dtype, shape, optional }));
    };
    let says = |text: &TensorText| text.dtype.as_deref().is_some_and(|given| given != dtype.name());
    let has_axes = |text: &TensorText| text.shape.as_ref().is_some_and(|shape| !shape.is_empty());
    if text.is_some_and(|text| says(text) || has_axes(text)) {
        return Err(Error::invalid(format!(
            "forward takes \"{}\" as {}, which is {dtype} of shape []",
            argument.name, argument.type_text
        )));
    }
    Ok(Some(TensorSpec { name, dtype, shape: Some(vec![]), optional }))
}

/// Returns the outputs that the settings list.
fn declared_outputs(
    description: &ModuleDescription,
    file: &SignatureFile,
    signature: &mut Signature,
) -> Result<Vec<ModuleOutput>> {
    signature.outputs = file.outputs.iter().map(TensorText::spec).collect::<Result<_>>()?;
    let keys = description
        .results
        .as_ref()
        .map(|names| names.iter().map(String::as_str).collect::<Vec<_>>());
    let matched = match &keys {
        None => (0..file.outputs.len()).collect(),
        Some(names) => matched(&file.outputs, names, names.len()).ok_or_else(|| {
            let declared: Vec<&str> = file.outputs.iter().map(|text| text.name.as_str()).collect();
            with_declaration(
                Error::invalid(format!(
                    "[signature] lists outputs {}, forward gives {}",
                    declared.join(", "),
                    names.join(", ")
                )),
                description,
            )
        })?,
    };
    let source = |(position, text): (usize, &TensorText)| ModuleOutput {
        name: text.name.as_str().into(),
        key: match &description.results {
            Some(names) => names.get(position).cloned(),
            None => None,
        },
        position,
    };
    Ok(matched.into_iter().zip(&file.outputs).map(source).collect())
}

/// Returns the outputs that the module's types name, as float32 of any shape.
fn typed_outputs(description: &ModuleDescription, signature: &mut Signature) -> Vec<ModuleOutput> {
    let names = description.results.iter().flatten();
    signature.outputs = names
        .clone()
        .map(|name| TensorSpec {
            name: name.clone(),
            dtype: DType::F32,
            shape: None,
            optional: false,
        })
        .collect();
    let source = |(position, name): (usize, &String)| ModuleOutput {
        name: name.as_str().into(),
        key: Some(name.clone()),
        position,
    };
    names.enumerate().map(source).collect()
}

impl ForwardPlan {
    /// Returns zeros as the inputs of a trial run, with size 1 for dynamic axes. Returns `None` if
    /// a shape is unknown or too large.
    pub(crate) fn trial(&self) -> Option<Vec<NamedTensor>> {
        let mut left = TRIAL_BYTES_MAX;
        let mut inputs = Vec::new();
        for spec in self.signature.inputs.iter().filter(|spec| !spec.optional) {
            let size = |dim: &Dim| match dim {
                Dim::Fixed(size) => *size,
                Dim::Dynamic(_) => 1,
            };
            let shape: Shape = spec.shape.as_ref()?.iter().map(size).collect();
            let elements =
                shape.iter().try_fold(1usize, |product, &size| product.checked_mul(size))?;
            let bytes = spec.dtype.bytes_for(elements)?;
            left = left.checked_sub(bytes)?;
            let zeros = Bytes::from(vec![0; bytes]);
            let tensor = Tensor::from_bytes(spec.dtype, shape, zeros).ok()?;
            inputs.push(NamedTensor::new(spec.name.as_str(), tensor));
        }
        Some(inputs)
    }

    /// Replaces the outputs by those of a trial run.
    pub(crate) fn learn(&mut self, outputs: &[ObservedOutput]) {
        let specs = outputs.iter().map(|output| TensorSpec {
            name: output.name.clone(),
            dtype: output.dtype,
            shape: Some(vec![Dim::Dynamic(None); output.rank]),
            optional: false,
        });
        self.signature.outputs = specs.collect();
        let source = |(position, output): (usize, &ObservedOutput)| ModuleOutput {
            name: output.name.as_str().into(),
            key: Some(output.name.clone()),
            position,
        };
        self.outputs = outputs.iter().enumerate().map(source).collect();
        self.provisional = false;
        self.observed = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(names: &[&str]) -> Vec<TensorText> {
        names
            .iter()
            .map(|&name| TensorText { name: name.into(), dtype: None, shape: None })
            .collect()
    }

    #[test]
    fn names_match_by_name_or_by_position_and_never_by_both() {
        let of = |given: &[&str], names: &[&str], required| matched(&texts(given), names, required);
        assert_eq!(of(&[], &["a", "b"], 2), Some(vec![]));
        assert_eq!(of(&["b", "a"], &["a", "b"], 2), Some(vec![1, 0]));
        assert_eq!(of(&["x", "y"], &["a", "b"], 2), Some(vec![0, 1]));
        assert_eq!(of(&["x"], &["a", "b"], 1), Some(vec![0]));
        assert_eq!(of(&["x"], &["a", "b"], 2), None);
        assert_eq!(of(&["x", "a"], &["a", "b"], 2), None);
        assert_eq!(of(&["a", "a"], &["a", "b"], 2), None);
        assert_eq!(of(&["x", "y", "z"], &["a", "b"], 2), None);
    }
}
