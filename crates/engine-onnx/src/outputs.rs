//! Wraps output tensors of the library without a copy.
//!
//! An output owns its tensor of the library, which holds its memory and allocator, so it outlives
//! the session. If an output is an unchanged input or parameter, it points into our own memory,
//! which may be released first. Such outputs are copied.

use std::ptr::{null_mut, slice_from_raw_parts};

use base::{DType, Error, Result, Shape, Tensor};
use bytes::Bytes;
use ort::sys;

use crate::api::{Handle, call};
use crate::element;

/// Address ranges that an output must not point into after the run.
pub(crate) struct BorrowedRanges<'a> {
    /// Start and end addresses of the run's inputs, in any order.
    pub(crate) feeds: &'a [(usize, usize)],
    /// Start and end addresses of the parameters, ascending.
    pub(crate) parameters: &'a [(usize, usize)],
}

/// Returns the address range of `bytes`.
pub(crate) fn range(bytes: &[u8]) -> (usize, usize) {
    let start = bytes.as_ptr() as usize;
    (start, start + bytes.len())
}

impl BorrowedRanges<'_> {
    fn holds(&self, address: usize) -> bool {
        let inside = |range: &(usize, usize)| range.0 <= address && address < range.1;
        let after = self.parameters.partition_point(|range| range.0 <= address);
        self.feeds.iter().any(inside) || self.parameters[..after].last().is_some_and(inside)
    }
}

/// Elements inside a tensor of the library.
struct OnnxOutput {
    value: Handle<sys::OrtValue>,
    data: *const [u8],
}

// SAFETY: the data belongs to the value, which is owned, is `Send`, and is never written to again.
unsafe impl Send for OnnxOutput {}
// SAFETY: as above; sharing gives reads only.
unsafe impl Sync for OnnxOutput {}

impl AsRef<[u8]> for OnnxOutput {
    fn as_ref(&self) -> &[u8] {
        let _alive = &self.value;
        // SAFETY: the data is the value's own, has this length, and lives until the value is
        // dropped.
        unsafe { &*self.data }
    }
}

/// Wraps one output of a run.
///
/// # Errors
/// `Internal` if the library's tensor is not as its type says.
pub(crate) fn take(value: Handle<sys::OrtValue>, borrowed: &BorrowedRanges<'_>) -> Result<Tensor> {
    let (dtype, shape) = describe(&value)?;
    if dtype == DType::String {
        return take_strings(&value, shape);
    }
    let elements = shape.iter().product();
    let bytes = dtype
        .bytes_for(elements)
        .ok_or_else(|| Error::internal("an answer is larger than memory"))?;
    if bytes == 0 {
        return Tensor::from_bytes(dtype, shape, Bytes::new());
    }
    let mut data = null_mut();
    // SAFETY: the value is a tensor and alive, the out-pointer valid.
    unsafe { call!(Run, GetTensorMutableData(value.as_ptr(), &mut data))? };
    if data.is_null() {
        return Err(Error::internal("ONNX Runtime gave an answer without memory"));
    }
    let owned = OnnxOutput { value, data: slice_from_raw_parts(data.cast_const().cast(), bytes) };
    let bytes = if borrowed.holds(data as usize) {
        Bytes::copy_from_slice(owned.as_ref())
    } else {
        Bytes::from_owner(owned)
    };
    Tensor::from_bytes(dtype, shape, bytes)
}

/// Returns the element type and the shape of a tensor of the library.
///
/// # Errors
/// `Internal` for a type that Millpond does not know, and for a negative size.
fn describe(value: &Handle<sys::OrtValue>) -> Result<(DType, Shape)> {
    let mut info = null_mut();
    let mut element = 0i32;
    let mut rank = 0usize;
    // SAFETY: the value is a tensor (the signature has no other outputs) and alive, the information
    // is ours; the element type is an enum of representation i32, written as i32.
    let info = unsafe {
        call!(Run, GetTensorTypeAndShape(value.as_ptr(), &mut info))?;
        let info = Handle::own(info)?;
        call!(Run, GetTensorElementType(info.as_ptr(), (&raw mut element).cast()))?;
        call!(Run, GetDimensionsCount(info.as_ptr(), &mut rank))?;
        info
    };
    let mut sizes: smallvec::SmallVec<[i64; 6]> = smallvec::SmallVec::from_elem(0, rank);
    // SAFETY: the array has `rank` elements.
    unsafe { call!(Run, GetDimensions(info.as_ptr(), sizes.as_mut_ptr(), rank))? };
    let dtype = element::from_onnx(element).ok_or_else(|| {
        Error::internal(format!("an answer has element type {element} of ONNX, which is unknown"))
    })?;
    let size = |&size: &i64| {
        usize::try_from(size).map_err(|_| Error::internal("an answer has a negative axis"))
    };
    Ok((dtype, sizes.iter().map(size).collect::<Result<_>>()?))
}

/// Copies all strings into one buffer that the elements share.
fn take_strings(value: &Handle<sys::OrtValue>, shape: Shape) -> Result<Tensor> {
    let count: usize = shape.iter().product();
    if count == 0 {
        return Tensor::from_strings(shape, Vec::new());
    }
    let mut total = 0usize;
    // SAFETY: the value is a string tensor and alive, the out-pointer valid.
    unsafe { call!(Run, GetStringTensorDataLength(value.as_ptr(), &mut total))? };
    let mut text = vec![0u8; total];
    let mut starts = vec![0usize; count];
    // SAFETY: the buffer has the length just asked for and there is one start an element.
    unsafe {
        call!(
            Run,
            GetStringTensorContent(
                value.as_ptr(),
                text.as_mut_ptr().cast(),
                total,
                starts.as_mut_ptr(),
                count
            )
        )?;
    }
    let text = Bytes::from(text);
    let ends = starts.iter().skip(1).copied().chain([total]);
    let string = |(start, end): (&usize, usize)| {
        (*start <= end && end <= total)
            .then(|| text.slice(*start..end))
            .ok_or_else(|| Error::internal("ONNX Runtime gave strings that overlap"))
    };
    Tensor::from_strings(shape, starts.iter().zip(ends).map(string).collect::<Result<Vec<_>>>()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_half_open() {
        let borrowed =
            BorrowedRanges { feeds: &[(90, 95)], parameters: &[(10, 20), (20, 30), (50, 50)] };
        let held = |address| borrowed.holds(address);
        assert!(held(10) && held(19) && held(20) && held(29) && held(94));
        assert!(!held(9) && !held(30) && !held(50) && !held(95));
    }
}
