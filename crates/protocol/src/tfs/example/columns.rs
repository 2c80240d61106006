//! Features of all examples, as the elements of one input.

use base::{DType, Error, Result, Shape, Tensor, TensorSpec};
use bytes::Bytes;

use super::fields::{FeatureList, ListValue};

/// A value for features that an example lacks.
#[derive(Clone, Debug, PartialEq)]
pub enum FeatureValue {
    /// A whole number, for numbers of all types and for bools.
    Whole(i64),
    /// A number with a fraction, for floats.
    Real(f64),
    /// Text or other bytes, for strings.
    Bytes(Bytes),
}

/// Elements of one input.
pub(super) struct FeatureColumn<'a> {
    spec: &'a TensorSpec,
    elements: ColumnElements,
}

enum ColumnElements {
    Fixed(Vec<u8>),
    Strings(Vec<Bytes>),
}

/// Returns an upper bound of the bytes of `count` elements of an input.
///
/// # Errors
/// `InvalidArgument` for an input of a type that features cannot have.
pub(super) fn bytes_max(spec: &TensorSpec, count: usize) -> Result<u64> {
    if spec.dtype != DType::String && fixed(spec.dtype, &FeatureValue::Whole(0)).is_err() {
        return Err(Error::invalid(format!(
            "input \"{}\" has type {}, which features of examples cannot have; use Predict",
            spec.name, spec.dtype
        )));
    }
    // A tensor of strings keeps a second list of them for a moment.
    Ok(2 * (count as u64).saturating_mul(width(spec.dtype) as u64))
}

/// Returns the bytes of one element in its list.
fn width(dtype: DType) -> usize {
    dtype.bytes_for(1).unwrap_or(size_of::<Bytes>())
}

impl<'a> FeatureColumn<'a> {
    /// Makes room for `count` elements, of which [`bytes_max`] approved.
    pub(super) fn new(spec: &'a TensorSpec, count: usize) -> FeatureColumn<'a> {
        let elements = match spec.dtype {
            DType::String => ColumnElements::Strings(Vec::with_capacity(count)),
            dtype => ColumnElements::Fixed(Vec::with_capacity(count * width(dtype))),
        };
        FeatureColumn { spec, elements }
    }

    /// Returns the length, which grows with every element.
    pub(super) fn len(&self) -> usize {
        match &self.elements {
            ColumnElements::Fixed(bytes) => bytes.len(),
            ColumnElements::Strings(strings) => strings.len(),
        }
    }

    /// Appends the values of a list of the example `source`, whose strings are shared.
    ///
    /// # Errors
    /// `InvalidArgument` if the type of the values is not that of the input.
    pub(super) fn append(&mut self, list: &FeatureList<'_>, source: &Bytes) -> Result<()> {
        let kind = list.kind.name();
        list.values(|value| match value {
            ListValue::Bytes(bytes) => self.push_bytes(source.slice_ref(bytes)),
            ListValue::Float(value) => self.push(&FeatureValue::Real(value.into())),
            ListValue::Int64(value) => self.push(&FeatureValue::Whole(value)),
        })
        .map_err(|error| error.context(format_args!("{kind} values")))
    }

    /// Appends `value` `count` times.
    ///
    /// # Errors
    /// `InvalidArgument` if the type of the value is not that of the input.
    pub(super) fn repeat(&mut self, value: &FeatureValue, count: usize) -> Result<()> {
        (0..count).try_for_each(|_| self.push(value)).map_err(|error| error.context("its default"))
    }

    fn push(&mut self, value: &FeatureValue) -> Result<()> {
        match (&mut self.elements, value) {
            (_, FeatureValue::Bytes(bytes)) => self.push_bytes(bytes.clone()),
            (ColumnElements::Fixed(to), value) => {
                let element = fixed(self.spec.dtype, value)?;
                to.extend_from_slice(&element.bytes[..element.length]);
                Ok(())
            }
            (ColumnElements::Strings(_), _) => Err(expected_type(self.spec.dtype)),
        }
    }

    fn push_bytes(&mut self, bytes: Bytes) -> Result<()> {
        match &mut self.elements {
            ColumnElements::Strings(strings) => {
                strings.push(bytes);
                Ok(())
            }
            ColumnElements::Fixed(_) => Err(expected_type(self.spec.dtype)),
        }
    }

    /// Returns the tensor of `shape`.
    ///
    /// # Errors
    /// `InvalidArgument` if the number of elements is another.
    pub(super) fn finish(self, shape: Shape) -> Result<Tensor> {
        match self.elements {
            ColumnElements::Fixed(bytes) => {
                Tensor::from_bytes(self.spec.dtype, shape, Bytes::from(bytes))
            }
            ColumnElements::Strings(strings) => Tensor::from_strings(shape, strings),
        }
    }
}

fn expected_type(dtype: DType) -> Error {
    Error::invalid(format!("the model's input takes {dtype}"))
}

/// The little-endian bytes of one element.
struct FixedElement {
    bytes: [u8; 8],
    /// Number of bytes that are used.
    length: usize,
}

/// Returns an element of type `dtype`.
///
/// # Errors
/// `InvalidArgument` if the value is of another type or out of range.
fn fixed(dtype: DType, value: &FeatureValue) -> Result<FixedElement> {
    let mut element = FixedElement { bytes: [0; 8], length: 0 };
    let mut set = |bytes: &[u8]| {
        element.length = bytes.len();
        element.bytes[..bytes.len()].copy_from_slice(bytes);
    };
    let range = |value: &dyn std::fmt::Display| {
        Error::invalid(format!("{value} is not a valid {dtype} value"))
    };
    match value {
        FeatureValue::Whole(whole) => {
            macro_rules! narrow {
                ($integer:ty) => {
                    set(&<$integer>::try_from(*whole).map_err(|_| range(whole))?.to_le_bytes())
                };
            }
            match dtype {
                DType::I64 => set(&whole.to_le_bytes()),
                DType::I32 => narrow!(i32),
                DType::I16 => narrow!(i16),
                DType::I8 => narrow!(i8),
                DType::U64 => narrow!(u64),
                DType::U32 => narrow!(u32),
                DType::U16 => narrow!(u16),
                DType::U8 => narrow!(u8),
                DType::Bool if matches!(whole, 0 | 1) => set(&[*whole as u8]),
                DType::Bool => return Err(range(whole)),
                _ => return fixed(dtype, &FeatureValue::Real(*whole as f64)),
            }
        }
        FeatureValue::Real(real) => {
            // A finite number out of range must not become infinite without notice.
            macro_rules! round {
                ($float:expr) => {{
                    let rounded = $float;
                    if real.is_finite() && !rounded.is_finite() {
                        return Err(range(real));
                    }
                    set(&rounded.to_le_bytes())
                }};
            }
            match dtype {
                DType::F64 => set(&real.to_le_bytes()),
                DType::F32 => round!(*real as f32),
                DType::F16 => round!(base::round_to_f16(*real)),
                DType::BF16 => round!(base::round_to_bf16(*real)),
                _ => return Err(expected_type(dtype)),
            }
        }
        FeatureValue::Bytes(_) => return Err(expected_type(dtype)),
    }
    Ok(element)
}
