//! Inputs and outputs of a model.

use crate::{DType, Error, NamedTensor, Result};

/// One axis of a signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Dim {
    /// A fixed size.
    Fixed(usize),
    /// Any size, with the symbolic name in the model, if there is one.
    Dynamic(Option<String>),
}

impl Dim {
    /// Returns the size, or -1 for a dynamic axis, as all protocols write it.
    fn as_wire(&self) -> i64 {
        match self {
            Dim::Fixed(size) => *size as i64,
            Dim::Dynamic(_) => -1,
        }
    }
}

/// One input or output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// Name in the model.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Axes, outermost first; `None` if the model does not fix the rank.
    pub shape: Option<Vec<Dim>>,
    /// True if a request may omit the tensor.
    pub optional: bool,
}

impl TensorSpec {
    /// Returns the shape as protocols write it: -1 for a dynamic axis, empty for an unknown rank.
    pub fn wire_shape(&self) -> Vec<i64> {
        self.shape.iter().flatten().map(Dim::as_wire).collect()
    }
}

/// Inputs and outputs of a model, in its own order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Signature {
    /// Inputs of the model.
    pub inputs: Vec<TensorSpec>,
    /// Outputs of the model.
    pub outputs: Vec<TensorSpec>,
}

impl Signature {
    /// Returns the input called `name`.
    pub fn input(&self, name: &str) -> Option<&TensorSpec> {
        self.inputs.iter().find(|spec| spec.name == name)
    }

    /// Returns the output called `name`.
    pub fn output(&self, name: &str) -> Option<&TensorSpec> {
        self.outputs.iter().find(|spec| spec.name == name)
    }

    /// Checks that `inputs` fit the model: every input is known and has the right type and rank,
    /// and no input is missing or given twice. Fixed axes must be equal, and axes with equal
    /// symbolic names must have equal sizes.
    ///
    /// # Errors
    /// `InvalidArgument` with the first wrong input and the expected value.
    ///
    /// # Example: an input of another type
    /// ```
    /// use millpond_base::{DType, Dim, NamedTensor, Signature, Tensor, TensorSpec};
    ///
    /// let shape = Some(vec![Dim::Dynamic(None), Dim::Fixed(2)]);
    /// let x = TensorSpec { name: "x".into(), dtype: DType::F32, shape, optional: false };
    /// let signature = Signature { inputs: vec![x], outputs: vec![] };
    ///
    /// let floats = Tensor::from_vec([1, 2].as_slice(), vec![0.5f32, 1.0])?;
    /// signature.check_inputs(&[NamedTensor::new("x", floats)])?;
    ///
    /// let integers = Tensor::from_vec([1, 2].as_slice(), vec![1i64, 2])?;
    /// let checked = signature.check_inputs(&[NamedTensor::new("x", integers)]);
    /// let expected = "input \"x\" is int64, the model takes float32";
    /// assert!(checked.is_err_and(|error| error.message() == expected));
    /// # Ok::<(), millpond_base::Error>(())
    /// ```
    pub fn check_inputs(&self, inputs: &[NamedTensor]) -> Result<()> {
        let mut symbols: Vec<SymbolSize<'_>> = Vec::new();
        for (position, input) in inputs.iter().enumerate() {
            let name: &str = &input.name;
            let spec = self.input(name).ok_or_else(|| self.unknown("input", name, &self.inputs))?;
            if inputs[..position].iter().any(|earlier| earlier.name == input.name) {
                return Err(Error::invalid(format!("input \"{name}\" is given twice")));
            }
            if input.tensor.dtype() != spec.dtype {
                return Err(Error::invalid(format!(
                    "input \"{name}\" is {}, the model takes {}",
                    input.tensor.dtype(),
                    spec.dtype
                )));
            }
            check_shape(spec, input.tensor.shape(), &mut symbols)?;
        }
        match self
            .inputs
            .iter()
            .find(|spec| !spec.optional && !inputs.iter().any(|i| *i.name == *spec.name))
        {
            Some(missing) => Err(Error::invalid(format!("input \"{}\" is missing", missing.name))),
            None => Ok(()),
        }
    }

    /// Checks that every requested output exists and is requested once, because each is copied into
    /// the response.
    ///
    /// # Errors
    /// `InvalidArgument` with the first unknown or repeated name.
    pub fn check_outputs<'a>(&self, names: impl Iterator<Item = &'a str> + Clone) -> Result<()> {
        for (position, name) in names.clone().enumerate() {
            self.output(name).ok_or_else(|| self.unknown("output", name, &self.outputs))?;
            if names.clone().take(position).any(|earlier| earlier == name) {
                return Err(Error::invalid(format!("output \"{name}\" is requested twice")));
            }
        }
        Ok(())
    }

    fn unknown(&self, what: &str, name: &str, known: &[TensorSpec]) -> Error {
        let names: Vec<&str> = known.iter().take(16).map(|spec| spec.name.as_str()).collect();
        Error::invalid(format!("the model has no {what} \"{name}\"; it has {}", names.join(", ")))
    }
}

/// Size of a symbolic axis in a request.
struct SymbolSize<'a> {
    symbol: &'a str,
    size: usize,
    /// First input with the axis.
    input: &'a str,
}

/// Checks the shape of an input. Adds its symbolic axes to `symbols`, the axes of earlier inputs.
///
/// # Errors
/// `InvalidArgument` if the shape does not fit, or if an axis has another size in an earlier input.
fn check_shape<'a>(
    spec: &'a TensorSpec,
    shape: &[usize],
    symbols: &mut Vec<SymbolSize<'a>>,
) -> Result<()> {
    let Some(dims) = &spec.shape else { return Ok(()) };
    let wrong = || {
        Error::invalid(format!(
            "input \"{}\" has shape {shape:?}, the model takes {:?} (-1 is any size)",
            spec.name,
            spec.wire_shape()
        ))
    };
    if dims.len() != shape.len() {
        return Err(wrong());
    }
    for (dim, &size) in dims.iter().zip(shape) {
        let symbol = match dim {
            Dim::Fixed(fixed) if *fixed != size => return Err(wrong()),
            Dim::Fixed(_) | Dim::Dynamic(None) => continue,
            Dim::Dynamic(Some(symbol)) => symbol,
        };
        match symbols.iter().find(|known| known.symbol == symbol) {
            Some(SymbolSize { size: other, input, .. }) if *other != size => {
                return Err(Error::invalid(format!(
                    "axis \"{symbol}\" is {other} in input \"{input}\" and {size} in input \"{}\"",
                    spec.name
                )));
            }
            Some(_) => {}
            None => symbols.push(SymbolSize { symbol, size, input: &spec.name }),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Tensor;

    fn spec(name: &str, dims: &[i64]) -> TensorSpec {
        let dim =
            |&d: &i64| if d < 0 { Dim::Dynamic(Some("n".into())) } else { Dim::Fixed(d as usize) };
        TensorSpec {
            name: name.into(),
            dtype: DType::F32,
            shape: Some(dims.iter().map(dim).collect()),
            optional: false,
        }
    }

    fn input(name: &str, shape: &[usize]) -> NamedTensor {
        let elements = vec![0f32; shape.iter().product()];
        NamedTensor::new(name, Tensor::from_vec(shape, elements).unwrap())
    }

    #[test]
    fn each_fault_is_named() {
        let signature =
            Signature { inputs: vec![spec("a", &[-1, 2]), spec("b", &[-1])], outputs: vec![] };
        let check = |inputs: &[NamedTensor]| {
            signature.check_inputs(inputs).map_err(|e| e.message().to_owned())
        };
        assert_eq!(check(&[input("a", &[3, 2]), input("b", &[3])]), Ok(()));
        assert!(check(&[input("a", &[3, 2])]).unwrap_err().contains("\"b\" is missing"));
        assert!(check(&[input("a", &[3, 3])]).unwrap_err().contains("[3, 3]"));
        assert!(check(&[input("c", &[3])]).unwrap_err().contains("no input \"c\""));
        assert!(
            check(&[input("a", &[3, 2]), input("b", &[4])]).unwrap_err().contains("axis \"n\"")
        );
        assert!(check(&[input("a", &[3, 2]), input("a", &[3, 2])]).unwrap_err().contains("twice"));
    }

    #[test]
    fn each_output_is_requested_once() {
        let signature =
            Signature { inputs: vec![], outputs: vec![spec("y", &[-1]), spec("z", &[-1])] };
        let check = |names: &[&str]| {
            signature
                .check_outputs(names.iter().copied())
                .map_err(|error| error.message().to_owned())
        };
        assert_eq!((check(&[]), check(&["z", "y"])), (Ok(()), Ok(())));
        assert!(check(&["y", "x"]).unwrap_err().contains("no output \"x\""));
        assert!(check(&["y", "z", "y"]).unwrap_err().contains("\"y\" is requested twice"));
    }
}
