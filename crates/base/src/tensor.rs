//! Tensors: an element type, a shape, and shared bytes.

use std::sync::Arc;

use bytes::Bytes;
use smallvec::SmallVec;

use crate::{DType, Element, Error, Result};

/// Sizes of a tensor's axes, outermost first. Empty for a scalar.
pub type Shape = SmallVec<[usize; 6]>;

/// Elements of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Data {
    /// Elements of fixed size, little-endian, row-major. May start at any address: see
    /// [`Tensor::aligned_bytes`].
    Bytes(Bytes),
    /// Byte strings, row-major, one an element.
    Strings(Arc<[Bytes]>),
}

/// An immutable tensor. Cloning shares the bytes.
///
/// # Example: elements of a request's body, without a copy
/// ```
/// use bytes::Bytes;
/// use millpond_base::{DType, Tensor};
///
/// let body = Bytes::from_static(&[0, 0, 128, 63, 0, 0, 0, 64]);
/// let tensor = Tensor::from_bytes(DType::F32, [1, 2].as_slice(), body)?;
/// assert_eq!(tensor.shape(), [1, 2]);
/// assert_eq!(tensor.to_vec::<f32>()?, [1.0, 2.0]);
/// # Ok::<(), millpond_base::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    dtype: DType,
    shape: Shape,
    data: Data,
}

/// A tensor and the name of its input or output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedTensor {
    /// Name in the model's signature.
    pub name: Arc<str>,
    /// Value of the input or output.
    pub tensor: Tensor,
}

impl NamedTensor {
    /// Builds a tensor with a name.
    pub fn new(name: impl Into<Arc<str>>, tensor: Tensor) -> NamedTensor {
        NamedTensor { name: name.into(), tensor }
    }
}

/// An input whose value is an output of the previous item. It carries the state of a model that
/// does not store its state itself.
#[derive(Clone, Debug)]
pub struct CarriedInput {
    /// Name of the input.
    pub input: Arc<str>,
    /// Name of the output that becomes the next item's input.
    pub output: Arc<str>,
    /// Value for the first item.
    pub initial: Tensor,
}

struct VecOwner<T: Element>(Vec<T>);

impl<T: Element> AsRef<[u8]> for VecOwner<T> {
    fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }
}

/// Returns the number of elements of `shape`.
fn count(shape: &[usize]) -> Result<usize> {
    shape
        .iter()
        .try_fold(1usize, |product, &dim| product.checked_mul(dim))
        .ok_or_else(|| Error::invalid(format!("shape {shape:?} has more elements than fit memory")))
}

impl Tensor {
    /// Builds a tensor over existing bytes, without a copy.
    ///
    /// # Errors
    /// `InvalidArgument` if `bytes` does not have exactly the length that type and shape need, or
    /// if `dtype` is `String`.
    pub fn from_bytes(dtype: DType, shape: impl Into<Shape>, bytes: Bytes) -> Result<Tensor> {
        let shape = shape.into();
        let wanted = dtype.bytes_for(count(&shape)?).ok_or_else(|| {
            Error::invalid(format!(
                "{dtype} of shape {:?} has no fixed byte size",
                shape.as_slice()
            ))
        })?;
        if bytes.len() != wanted {
            return Err(Error::invalid(format!(
                "{dtype} of shape {:?} takes {wanted} bytes, got {}",
                shape.as_slice(),
                bytes.len()
            )));
        }
        Ok(Tensor { dtype, shape, data: Data::Bytes(bytes) })
    }

    /// Builds a tensor from the memory of a vector.
    ///
    /// # Errors
    /// `InvalidArgument` if the length does not match the shape.
    pub fn from_vec<T: Element>(shape: impl Into<Shape>, elements: Vec<T>) -> Result<Tensor> {
        let shape = shape.into();
        if count(&shape)? != elements.len() {
            return Err(Error::invalid(format!(
                "shape {:?} takes {} elements, got {}",
                shape.as_slice(),
                count(&shape)?,
                elements.len()
            )));
        }
        Ok(Tensor {
            dtype: T::DTYPE,
            shape,
            data: Data::Bytes(Bytes::from_owner(VecOwner(elements))),
        })
    }

    /// Builds a tensor of byte strings.
    ///
    /// # Errors
    /// `InvalidArgument` if the length does not match the shape.
    pub fn from_strings(
        shape: impl Into<Shape>,
        strings: impl Into<Arc<[Bytes]>>,
    ) -> Result<Tensor> {
        let shape = shape.into();
        let strings = strings.into();
        if count(&shape)? != strings.len() {
            return Err(Error::invalid(format!(
                "shape {:?} takes {} strings, got {}",
                shape.as_slice(),
                count(&shape)?,
                strings.len()
            )));
        }
        Ok(Tensor { dtype: DType::String, shape, data: Data::Strings(strings) })
    }

    /// Returns the element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns the sizes of the axes.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Returns the number of elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Returns the stored elements.
    pub fn data(&self) -> &Data {
        &self.data
    }

    /// Returns the bytes of fixed-size elements; `None` for strings.
    pub fn bytes(&self) -> Option<&Bytes> {
        match &self.data {
            Data::Bytes(bytes) => Some(bytes),
            Data::Strings(_) => None,
        }
    }

    /// Returns the strings of a `String` tensor; `None` for other types.
    pub fn strings(&self) -> Option<&[Bytes]> {
        match &self.data {
            Data::Strings(strings) => Some(strings),
            Data::Bytes(_) => None,
        }
    }

    /// Returns the number of payload bytes (strings without their lengths).
    pub fn byte_len(&self) -> usize {
        match &self.data {
            Data::Bytes(bytes) => bytes.len(),
            Data::Strings(strings) => strings.iter().map(Bytes::len).sum(),
        }
    }

    /// Returns the bytes at an address aligned for `dtype`; `None` for strings. Copies only a
    /// misaligned buffer, because a tensor may start anywhere inside a request body.
    pub fn aligned_bytes(&self) -> Option<Bytes> {
        let bytes = self.bytes()?;
        if (bytes.as_ptr() as usize).is_multiple_of(self.dtype.alignment()) {
            return Some(bytes.clone());
        }
        let mut words = vec![0u64; bytes.len().div_ceil(8)];
        bytemuck::cast_slice_mut::<u64, u8>(&mut words)[..bytes.len()].copy_from_slice(bytes);
        Some(Bytes::from_owner(VecOwner(words)).slice(..bytes.len()))
    }

    /// Returns the elements as a vector of `T`.
    ///
    /// # Errors
    /// `InvalidArgument` if the tensor has another type.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        match &self.data {
            Data::Bytes(bytes) if self.dtype == T::DTYPE => Ok(bytemuck::pod_collect_to_vec(bytes)),
            _ => Err(Error::invalid(format!("wanted a {} tensor, got {}", T::DTYPE, self.dtype))),
        }
    }

    /// Returns complex numbers as floats over the same bytes, with a last axis of the real and the
    /// imaginary part; `None` for other types.
    pub fn complex_parts(&self) -> Option<Tensor> {
        let dtype = match self.dtype {
            DType::Complex64 => DType::F32,
            DType::Complex128 => DType::F64,
            _ => return None,
        };
        let shape = self.shape.iter().copied().chain([2]).collect();
        Some(Tensor { dtype, shape, data: self.data.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_checked() {
        assert!(
            Tensor::from_bytes(DType::F32, [2usize, 2].as_slice(), Bytes::from_static(&[0; 16]))
                .is_ok()
        );
        let error =
            Tensor::from_bytes(DType::F32, [2usize, 2].as_slice(), Bytes::from_static(&[0; 15]))
                .unwrap_err();
        assert_eq!(error.message(), "float32 of shape [2, 2] takes 16 bytes, got 15");
        assert!(Tensor::from_bytes(DType::F32, [usize::MAX, 2].as_slice(), Bytes::new()).is_err());
        assert!(Tensor::from_vec::<f32>([0usize, 3].as_slice(), vec![]).is_ok());
    }

    #[test]
    fn complex_numbers_have_two_parts() {
        let bytes = Bytes::from_owner(VecOwner(vec![1.0f32, -2.0, 0.5, 4.0]));
        let tensor = Tensor::from_bytes(DType::Complex64, [2usize].as_slice(), bytes).unwrap();
        let parts = tensor.complex_parts().unwrap();
        assert_eq!((parts.shape(), parts.elements()), (&[2, 2][..], 4));
        assert_eq!(parts.to_vec::<f32>().unwrap(), [1.0, -2.0, 0.5, 4.0]);
        assert_eq!(parts.complex_parts(), None);
    }

    #[test]
    fn misaligned_bytes_are_copied_once() {
        let buffer = Bytes::from_owner(VecOwner(vec![0u64, u64::MAX, 7]));
        let tensor =
            Tensor::from_bytes(DType::F32, [2usize].as_slice(), buffer.slice(1..9)).unwrap();
        let aligned = tensor.aligned_bytes().unwrap();
        assert_eq!(aligned, buffer.slice(1..9));
        assert_eq!(aligned.as_ptr() as usize % 4, 0);
        let straight =
            Tensor::from_bytes(DType::F32, [2usize].as_slice(), buffer.slice(8..16)).unwrap();
        assert_eq!(straight.aligned_bytes().unwrap().as_ptr(), buffer.slice(8..16).as_ptr());
    }
}
