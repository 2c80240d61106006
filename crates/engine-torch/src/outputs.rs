//! Wraps output tensors of LibTorch without a copy.
//!
//! An output owns its LibTorch tensor, which counts its own memory, so it outlives the session. If
//! an output is an unchanged input or parameter, it points into our own memory, which may be
//! released first. Such outputs are copied.

use std::ops::Range;
use std::ptr::slice_from_raw_parts;

use base::{Error, Result, Shape, Tensor};
use bytes::Bytes;

use crate::api::RawView;
use crate::element;
use crate::module::{RunResults, TorchTensor};

/// Elements inside a LibTorch tensor.
struct TorchElements {
    tensor: TorchTensor,
    data: *const [u8],
}

// SAFETY: the data belongs to the tensor, which is owned, is `Send`, and is never written to again.
unsafe impl Send for TorchElements {}
// SAFETY: as above; sharing gives reads only.
unsafe impl Sync for TorchElements {}

impl AsRef<[u8]> for TorchElements {
    fn as_ref(&self) -> &[u8] {
        let _alive = &self.tensor;
        // SAFETY: the data is the tensor's own, has this length, and lives until the tensor is
        // dropped.
        unsafe { &*self.data }
    }
}

/// Returns output `index`, described by `view`, as a Millpond tensor. It must not point into the
/// addresses `borrowed` after the run.
///
/// # Errors
/// `InvalidArgument` for an element type that Millpond does not have, `Internal` if the tensor
/// contradicts itself.
pub(crate) fn take(
    answer: &RunResults,
    index: usize,
    view: &RawView,
    borrowed: &[Range<usize>],
) -> Result<Tensor> {
    let dtype = element::from_torch(view.dtype).ok_or_else(|| {
        Error::invalid(format!(
            "an output has element type {} of LibTorch, which is unknown",
            view.dtype
        ))
    })?;
    let shape = shape(view)?;
    if view.bytes == 0 {
        return Tensor::from_bytes(dtype, shape, Bytes::new());
    }
    let address = view.data as usize;
    let data = elements(view)?;
    let bytes = if borrowed.iter().any(|range| range.contains(&address)) {
        // SAFETY: the answer is alive, and the shim says that its tensor has so many bytes there.
        Bytes::copy_from_slice(unsafe { &*data })
    } else {
        Bytes::from_owner(TorchElements { tensor: answer.take(index)?, data })
    };
    Tensor::from_bytes(dtype, shape, bytes).map_err(|e| Error::internal(e.message().to_owned()))
}

/// Returns the elements of a tensor that has some.
///
/// # Errors
/// `Internal` if they have no memory.
fn elements(view: &RawView) -> Result<*const [u8]> {
    if view.data.is_null() {
        return Err(Error::internal("LibTorch gave an output without memory"));
    }
    Ok(slice_from_raw_parts(view.data.cast(), view.bytes))
}

/// Returns the sizes of the tensor's axes.
pub(crate) fn shape(view: &RawView) -> Result<Shape> {
    let rank =
        usize::try_from(view.rank).map_err(|_| Error::internal("a tensor has a negative rank"))?;
    if rank == 0 {
        return Ok(Shape::new());
    }
    // SAFETY: the view's answer is alive, and has so many sizes there.
    let sizes = unsafe { std::slice::from_raw_parts(view.dims, rank) };
    let size = |&size: &i64| {
        usize::try_from(size).map_err(|_| Error::internal("an answer has a negative axis"))
    };
    sizes.iter().map(size).collect()
}

#[cfg(test)]
mod tests {
    use std::ptr::null;

    use super::*;

    /// Such as a tensor of `torch._efficientzerotensor`.
    #[test]
    fn an_output_without_memory_is_an_error() {
        let view =
            RawView { name: null(), data: null(), bytes: 8, dims: null(), rank: 0, dtype: 6 };
        assert_eq!(elements(&view).unwrap_err().kind(), base::ErrorKind::Internal);
    }
}
