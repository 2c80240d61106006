//! Examples: the inputs of Classify, Regress and MultiInference.
//!
//! A model with a signature for examples parses them itself. It gets them serialised, each behind
//! the context. The bytes of two messages in a row are one message, in which the last feature of a
//! name counts. For other models the features are read into the inputs of the same names.

mod columns;
mod fields;
mod write;

use std::collections::{BTreeMap, HashMap};

use base::{Dim, Error, NamedTensor, Result, Shape, Tensor, TensorSpec};
use bytes::{Bytes, BytesMut};

use self::columns::FeatureColumn;
use self::fields::FeatureList;
use crate::tensorflow::serving::{ExampleList, ExampleListWithContext, Input, input::Kind};

pub use self::columns::FeatureValue;
pub(crate) use self::write::{ExampleWriter, FeatureWriter, MixedKinds};

/// Maximum bytes of a feature's name in a message.
const NAME_SHOWN_MAX: usize = 64;

/// The examples of a request. There is at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Examples {
    list: Vec<Bytes>,
    /// Features of all examples. May be empty.
    context: Bytes,
}

/// Reserves memory before it is allocated. The argument is bytes.
pub type Reserve<'a> = &'a mut dyn FnMut(u64) -> Result<()>;

impl Examples {
    /// Returns the examples of a message.
    ///
    /// # Errors
    /// `InvalidArgument` if there is none.
    pub fn from_message(input: Option<Input>) -> Result<Examples> {
        let (list, context) = match input.and_then(|input| input.kind) {
            None => (Vec::new(), Bytes::new()),
            Some(Kind::ExampleList(ExampleList { examples })) => (examples, Bytes::new()),
            Some(Kind::ExampleListWithContext(ExampleListWithContext { examples, context })) => {
                (examples, context)
            }
        };
        Examples::new(list, context)
    }

    /// Joins serialised examples and a context.
    ///
    /// # Errors
    /// `InvalidArgument` if there is no example.
    pub fn new(list: Vec<Bytes>, context: Bytes) -> Result<Examples> {
        if list.is_empty() {
            return Err(Error::invalid("Input is empty."));
        }
        Ok(Examples { list, context })
    }

    /// Returns the message with these examples.
    pub fn into_message(self) -> Input {
        let Examples { list: examples, context } = self;
        let kind = if context.is_empty() {
            Kind::ExampleList(ExampleList { examples })
        } else {
            Kind::ExampleListWithContext(ExampleListWithContext { examples, context })
        };
        Input { kind: Some(kind) }
    }

    /// Returns the number of examples.
    pub fn count(&self) -> usize {
        self.list.len()
    }

    /// Returns the serialised examples with their context, as a tensor of strings of one axis.
    ///
    /// # Errors
    /// The errors of `reserve`.
    pub fn serialized(&self, reserve: Reserve<'_>) -> Result<Tensor> {
        let count = self.list.len();
        reserve((count * size_of::<Bytes>()) as u64)?;
        if self.context.is_empty() {
            return Tensor::from_strings([count].as_slice(), self.list.clone());
        }
        let own: u64 = self.list.iter().map(|example| example.len() as u64).sum();
        reserve(own + (count as u64).saturating_mul(self.context.len() as u64))?;
        let merged = |example: &Bytes| {
            let mut both = BytesMut::with_capacity(self.context.len() + example.len());
            both.extend_from_slice(&self.context);
            both.extend_from_slice(example);
            both.freeze()
        };
        let strings: Vec<Bytes> = self.list.iter().map(merged).collect();
        Tensor::from_strings([count].as_slice(), strings)
    }

    /// Reads the features with the names of `specs` into tensors whose first axis has an entry for
    /// each example. A feature that an example lacks is taken from `defaults`, with the default for
    /// every element. An optional input that no example has is left out.
    ///
    /// # Errors
    /// `InvalidArgument` for a missing feature, for values of another type, and for another number
    /// of values than the input or the other examples have. It names the example and the feature.
    /// Also the errors of `reserve`.
    pub fn features(
        &self,
        specs: &[TensorSpec],
        defaults: &BTreeMap<String, FeatureValue>,
        reserve: Reserve<'_>,
    ) -> Result<Vec<NamedTensor>> {
        let reader = FeatureReader::new(self, specs, defaults)?;
        let sizes = reader.sizes()?;
        let elements = |size: &usize| size.checked_mul(self.count()).ok_or_else(too_many);
        let mut bytes = 0u64;
        for (spec, size) in specs.iter().zip(&sizes) {
            if let Some(size) = size {
                bytes = bytes.saturating_add(columns::bytes_max(spec, elements(size)?)?);
            }
        }
        reserve(bytes)?;
        let mut columns = Vec::with_capacity(specs.len());
        for (spec, size) in specs.iter().zip(&sizes) {
            let count = size.as_ref().map(elements).transpose()?;
            columns.push(count.map(|count| FeatureColumn::new(spec, count)));
        }
        reader.fill(&sizes, &mut columns)?;
        let mut tensors = Vec::with_capacity(specs.len());
        for ((spec, size), column) in specs.iter().zip(&sizes).zip(columns) {
            let (Some(size), Some(column)) = (*size, column) else { continue };
            let shape = shape(spec, self.count(), size)?;
            tensors.push(NamedTensor::new(spec.name.as_str(), column.finish(shape)?));
        }
        Ok(tensors)
    }
}

fn too_many() -> Error {
    Error::invalid("the examples have more values than fit memory")
}

/// Reader of the features of all examples.
struct FeatureReader<'a> {
    examples: &'a Examples,
    specs: &'a [TensorSpec],
    defaults: &'a BTreeMap<String, FeatureValue>,
    positions: HashMap<&'a [u8], usize>,
    /// Lists of the context by the position of their input, with the number of their values.
    context: Vec<Option<(FeatureList<'a>, usize)>>,
}

impl<'a> FeatureReader<'a> {
    fn new(
        examples: &'a Examples,
        specs: &'a [TensorSpec],
        defaults: &'a BTreeMap<String, FeatureValue>,
    ) -> Result<FeatureReader<'a>> {
        let names = specs.iter().enumerate();
        let positions = names.map(|(position, spec)| (spec.name.as_bytes(), position)).collect();
        let mut reader =
            FeatureReader { examples, specs, defaults, positions, context: Vec::new() };
        let mut slots = Vec::new();
        let counted =
            |list: Option<FeatureList<'a>>| list.map(|list| Ok((list, list.count()?))).transpose();
        reader.context = reader
            .lists(&examples.context, &mut slots)
            .and_then(|()| slots.into_iter().map(counted).collect())
            .map_err(|error| error.context("the context"))?;
        Ok(reader)
    }

    /// Puts the lists of one example into `slots`, by the position of their input.
    fn lists(&self, example: &'a [u8], slots: &mut Vec<Option<FeatureList<'a>>>) -> Result<()> {
        slots.clear();
        slots.resize(self.specs.len(), None);
        fields::features(example, |name, list| {
            if let Some(&position) = self.positions.get(name) {
                slots[position] = list;
            }
        })
    }

    /// Returns the number of values that each example has for each input, or `None` for an input
    /// that is left out.
    fn sizes(&self) -> Result<Vec<Option<usize>>> {
        let mut sizes: Vec<Option<usize>> = vec![None; self.specs.len()];
        let mut missing: Vec<Option<usize>> = vec![None; self.specs.len()];
        let mut slots = Vec::new();
        for (number, example) in self.examples.list.iter().enumerate() {
            self.lists(example, &mut slots)
                .map_err(|error| error.context(format_args!("example {number}")))?;
            for (position, spec) in self.specs.iter().enumerate() {
                let count = match (&slots[position], self.context[position]) {
                    (Some(list), _) => list.count().map_err(|error| named(error, number, spec))?,
                    (None, Some((_, count))) => count,
                    (None, None) => 0,
                };
                // A list without values is a missing feature, as in TensorFlow.
                if count == 0 {
                    missing[position].get_or_insert(number);
                    continue;
                }
                let wanted = *sizes[position].get_or_insert(count);
                if count != wanted {
                    let error =
                        Error::invalid(format!("it has {count} values, other examples {wanted}"));
                    return Err(named(error, number, spec));
                }
            }
        }
        for (position, spec) in self.specs.iter().enumerate() {
            let Some(number) = missing[position] else { continue };
            if self.defaults.contains_key(&spec.name) {
                sizes[position].get_or_insert(inner_size(spec).unwrap_or(1));
            } else if !spec.optional || sizes[position].is_some() {
                let error = Error::invalid("it is missing and has no default");
                return Err(named(error, number, spec));
            }
        }
        Ok(sizes)
    }

    /// Appends the values of all examples to `columns`. An input of `sizes` without a size is left
    /// out.
    fn fill(
        &self,
        sizes: &[Option<usize>],
        columns: &mut [Option<FeatureColumn<'_>>],
    ) -> Result<()> {
        let mut slots = Vec::new();
        for (number, example) in self.examples.list.iter().enumerate() {
            self.lists(example, &mut slots)?;
            for (position, spec) in self.specs.iter().enumerate() {
                let (Some(size), Some(column)) = (sizes[position], &mut columns[position]) else {
                    continue;
                };
                let before = column.len();
                let filled = match (&slots[position], &self.context[position]) {
                    (Some(list), _) => column.append(list, example),
                    (None, Some((list, _))) => column.append(list, &self.examples.context),
                    (None, None) => Ok(()),
                };
                let filled = filled.and_then(|()| match self.defaults.get(&spec.name) {
                    Some(default) if column.len() == before => column.repeat(default, size),
                    _ => Ok(()),
                });
                filled.map_err(|error| named(error, number, spec))?;
            }
        }
        Ok(())
    }
}

fn named(error: Error, number: usize, spec: &TensorSpec) -> Error {
    let name: String = spec.name.chars().take(NAME_SHOWN_MAX).collect();
    error.context(format_args!("example {number}, feature \"{name}\""))
}

/// Returns the number of elements of one example of an input whose axes after the first are fixed.
fn inner_size(spec: &TensorSpec) -> Option<usize> {
    let inner = spec.shape.as_ref()?.get(1..)?;
    inner.iter().try_fold(1usize, |product, dim| match dim {
        Dim::Fixed(size) => product.checked_mul(*size),
        Dim::Dynamic(_) => None,
    })
}

/// Returns the shape of `count` examples with `size` values each.
///
/// # Errors
/// `InvalidArgument` if the input takes another number of values.
fn shape(spec: &TensorSpec, count: usize, size: usize) -> Result<Shape> {
    let unfit = || {
        let shape = spec.wire_shape();
        Error::invalid(format!(
            "feature \"{}\" has {size} values in each example; the model's input has shape {shape:?}",
            spec.name
        ))
    };
    let inner = match &spec.shape {
        None if size == 1 => return Ok([count].as_slice().into()),
        None => return Ok([count, size].as_slice().into()),
        Some(dims) => dims.get(1..).ok_or_else(unfit)?,
    };
    let known = |dim: &Dim| match dim {
        Dim::Fixed(size) => Some(*size),
        Dim::Dynamic(_) => None,
    };
    let fixed: usize = inner.iter().filter_map(known).product();
    // The first free axis takes all that the fixed axes leave; further ones have size 1.
    let mut free = size.checked_div(fixed).unwrap_or(0);
    let dims =
        inner.iter().map(|dim| known(dim).unwrap_or_else(|| std::mem::replace(&mut free, 1)));
    let shape: Shape = std::iter::once(count).chain(dims).collect();
    if shape[1..].iter().product::<usize>() == size { Ok(shape) } else { Err(unfit()) }
}

#[cfg(test)]
mod tests;
