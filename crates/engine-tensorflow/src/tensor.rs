//! Converts our bytes to tensors of TensorFlow, and tensors of TensorFlow to our bytes, without a
//! copy.

use std::ffi::{c_int, c_void};
use std::ptr::slice_from_raw_parts;

use base::{DType, Data, Error, Result, Shape, Tensor};
use bytes::Bytes;
use engine::BoundTensor;
use smallvec::SmallVec;

use crate::api::{RawString, RawTensor, TensorFlowLibrary};
use crate::element;

/// Maximum axes of a tensor of TensorFlow's (`TensorShape::MaxDimensions`).
const AXES_MAX: usize = 254;

/// A tensor of TensorFlow's. Its memory lives until the last tensor that shares it is dropped, also
/// inside TensorFlow.
pub(crate) struct TfTensor {
    library: &'static TensorFlowLibrary,
    raw: *mut RawTensor,
}

// SAFETY: a tensor may be used and dropped on any thread.
unsafe impl Send for TfTensor {}
// SAFETY: sharing gives reads only.
unsafe impl Sync for TfTensor {}

impl Drop for TfTensor {
    fn drop(&mut self) {
        // SAFETY: ours, and dropped once.
        unsafe { (self.library.call.TF_DeleteTensor)(self.raw) };
    }
}

/// Bytes of a parameter. They keep the region alive.
struct BoundBytes(BoundTensor);

impl AsRef<[u8]> for BoundBytes {
    fn as_ref(&self) -> &[u8] {
        self.0.as_slice()
    }
}

/// Drops the owner of a tensor's memory.
///
/// # Safety
/// `owner` comes from `Box::<T>::into_raw` and is passed once.
unsafe extern "C" fn drop_owner<T>(_: *mut c_void, _: usize, owner: *mut c_void) {
    // SAFETY: as the caller promises.
    drop(unsafe { Box::from_raw(owner.cast::<T>()) });
}

/// Returns the sizes of the axes in TensorFlow's form. TensorFlow multiplies them in this order. It
/// ends the process if a product overflows, even if a later size is 0.
///
/// # Errors
/// `InvalidArgument` for sizes that overflow, and for too many axes.
fn sizes(shape: &[usize]) -> Result<SmallVec<[i64; 6]>> {
    let refused =
        || Error::invalid(format!("shape {shape:?} is larger than TensorFlow's tensors can be"));
    if shape.len() > AXES_MAX {
        return Err(refused());
    }
    let mut sizes: SmallVec<[i64; 6]> = SmallVec::new();
    let mut elements = 1i64;
    for &size in shape {
        let size = i64::try_from(size).map_err(|_| refused())?;
        elements = elements.checked_mul(size).ok_or_else(refused)?;
        sizes.push(size);
    }
    Ok(sizes)
}

impl TfTensor {
    /// Takes ownership of `raw`.
    ///
    /// # Safety
    /// It is null or a tensor of `library` that nothing else deletes.
    ///
    /// # Errors
    /// `Internal` if it is null.
    pub(crate) unsafe fn own(
        library: &'static TensorFlowLibrary,
        raw: *mut RawTensor,
    ) -> Result<TfTensor> {
        if raw.is_null() {
            Err(Error::internal("TensorFlow gave no tensor"))
        } else {
            Ok(TfTensor { library, raw })
        }
    }

    pub(crate) fn as_ptr(&self) -> *mut RawTensor {
        self.raw
    }

    /// Makes a tensor over `tensor`'s elements. TensorFlow copies elements that do not have its
    /// alignment. Strings are copied here.
    ///
    /// # Errors
    /// `InvalidArgument` for a type that TensorFlow does not have, for a bool that is neither 0 nor
    /// 1, and for a shape whose sizes overflow.
    pub(crate) fn new(library: &'static TensorFlowLibrary, tensor: &Tensor) -> Result<TfTensor> {
        match tensor.data() {
            Data::Strings(strings) => TfTensor::of_strings(library, tensor.shape(), strings),
            Data::Bytes(bytes) => {
                // In C++ a bool other than 0 and 1 is undefined behaviour.
                if tensor.dtype() == DType::Bool && bytes.iter().any(|&byte| byte > 1) {
                    return Err(Error::invalid("a bool element is neither 0 nor 1"));
                }
                TfTensor::over(library, tensor.dtype(), tensor.shape(), bytes.clone())
            }
        }
    }

    /// Makes a tensor over a parameter's region, and holds the region.
    ///
    /// # Errors
    /// Returns the errors of [`BoundTensor::check`]; `InvalidArgument` for a shape whose sizes
    /// overflow.
    pub(crate) fn of_parameter(
        library: &'static TensorFlowLibrary,
        parameter: &BoundTensor,
    ) -> Result<TfTensor> {
        parameter.check()?;
        let bytes = Bytes::from_owner(BoundBytes(parameter.clone()));
        TfTensor::over(library, parameter.dtype, &parameter.dims, bytes)
    }

    /// Copies a parameter into memory of TensorFlow's, which may write to it.
    ///
    /// # Errors
    /// Returns the errors of [`BoundTensor::check`]; `InvalidArgument` for a shape whose sizes
    /// overflow.
    pub(crate) fn copy_of_parameter(
        library: &'static TensorFlowLibrary,
        parameter: &BoundTensor,
    ) -> Result<TfTensor> {
        let bytes = parameter.check()?;
        let number = element::to_tensorflow(parameter.dtype).unwrap_or_default();
        let dims = sizes(&parameter.dims)?;
        // SAFETY: the sizes are as many as the rank says. TensorFlow allocates at least the
        // requested bytes, which are copied before anything reads them.
        unsafe {
            let raw = (library.call.TF_AllocateTensor)(
                number,
                dims.as_ptr(),
                dims.len() as c_int,
                bytes.len(),
            );
            let tensor = TfTensor::own(library, raw)?;
            let data: *mut u8 = (library.call.TF_TensorData)(raw).cast();
            if !bytes.is_empty() {
                data.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            }
            Ok(tensor)
        }
    }

    /// Creates a tensor over `bytes`, which it keeps alive, without a copy.
    fn over(
        library: &'static TensorFlowLibrary,
        dtype: DType,
        shape: &[usize],
        bytes: Bytes,
    ) -> Result<TfTensor> {
        let number = element::to_tensorflow(dtype)
            .ok_or_else(|| Error::invalid(format!("TensorFlow has no {dtype} tensors")))?;
        let data = bytes.as_ptr().cast_mut().cast();
        let length = bytes.len();
        // SAFETY: the owner keeps the bytes, which are as many as type and shape need (a tensor's
        // invariant). TensorFlow does not write to memory that it does not own.
        unsafe { TfTensor::with_owner(library, number, shape, data, length, Box::new(bytes)) }
    }

    /// Copies strings of any content. The last tensor that shares them releases them.
    pub(crate) fn of_strings(
        library: &'static TensorFlowLibrary,
        shape: &[usize],
        strings: &[Bytes],
    ) -> Result<TfTensor> {
        let block = StringBlock::new(library, strings);
        let data = block.data();
        let length = size_of::<RawString>() * strings.len();
        // SAFETY: the block holds so many strings, and releases them when it is dropped.
        unsafe {
            TfTensor::with_owner(
                library,
                element::STRING,
                shape,
                data.cast_mut().cast(),
                length,
                Box::new(block),
            )
        }
    }

    /// # Safety
    /// `owner` keeps `length` bytes at `data`, which are what type and shape need.
    unsafe fn with_owner<T>(
        library: &'static TensorFlowLibrary,
        number: c_int,
        shape: &[usize],
        data: *mut c_void,
        length: usize,
        owner: Box<T>,
    ) -> Result<TfTensor> {
        let dims = sizes(shape)?;
        let rank = dims.len() as c_int;
        let owner = Box::into_raw(owner).cast();
        // SAFETY: the sizes are as many as the rank says; the rest as the caller promises.
        // TensorFlow calls the deallocator once.
        unsafe {
            let raw = (library.call.TF_NewTensor)(
                number,
                dims.as_ptr(),
                rank,
                data,
                length,
                drop_owner::<T>,
                owner,
            );
            TfTensor::own(library, raw)
        }
    }

    /// Returns the address of its first byte.
    #[cfg(test)]
    pub(crate) fn address(&self) -> usize {
        // SAFETY: the tensor is alive.
        unsafe { (self.library.call.TF_TensorData)(self.raw) }.addr()
    }

    fn shape(&self) -> Result<Shape> {
        let call = &self.library.call;
        // SAFETY: the tensor is alive, and each axis is below its rank.
        unsafe {
            (0..(call.TF_NumDims)(self.raw))
                .map(|axis| {
                    usize::try_from((call.TF_Dim)(self.raw, axis))
                        .map_err(|_| Error::internal("an answer has a negative axis"))
                })
                .collect()
        }
    }

    /// Converts this tensor into one of ours that holds it, or into a copy if `copy` returns true
    /// for its address.
    ///
    /// # Errors
    /// `Internal` for a type that clients cannot receive, and if the bytes do not match type and
    /// shape.
    pub(crate) fn into_tensor(self, copy: impl Fn(usize) -> bool) -> Result<Tensor> {
        let call = &self.library.call;
        // SAFETY: the tensor is alive.
        let number = unsafe { (call.TF_TensorType)(self.raw) };
        let dtype = element::from_tensorflow(number).ok_or_else(|| {
            Error::internal(format!("an answer has element type {number} of TensorFlow"))
        })?;
        let shape = self.shape()?;
        let elements: usize = shape.iter().product();
        if dtype == DType::String {
            return self.copy_strings(shape, elements);
        }
        let wanted = dtype.bytes_for(elements);
        // SAFETY: the tensor is alive.
        let (length, data) =
            unsafe { ((call.TF_TensorByteSize)(self.raw), (call.TF_TensorData)(self.raw)) };
        if wanted != Some(length) || (length > 0 && data.is_null()) {
            return Err(Error::internal("an answer has not the bytes of its type and shape"));
        }
        if length == 0 {
            return Tensor::from_bytes(dtype, shape, Bytes::new());
        }
        let copy = copy(data.addr());
        let output = TfOutput { data: slice_from_raw_parts(data.cast(), length), _tensor: self };
        let bytes =
            if copy { Bytes::copy_from_slice(output.as_ref()) } else { Bytes::from_owner(output) };
        Tensor::from_bytes(dtype, shape, bytes)
    }

    /// Copies all strings into one buffer that the elements share.
    fn copy_strings(&self, shape: Shape, count: usize) -> Result<Tensor> {
        let call = &self.library.call;
        // SAFETY: the tensor is alive; one of strings is an array of them.
        let strings = unsafe {
            let data: *const RawString = (call.TF_TensorData)(self.raw).cast();
            if (call.TF_TensorByteSize)(self.raw) != count * size_of::<RawString>() {
                return Err(Error::internal("an answer has not the strings of its shape"));
            }
            let slice = |index| {
                let string = data.add(index);
                let text = (call.TF_StringGetDataPointer)(string);
                let length = (call.TF_StringGetSize)(string);
                match length {
                    0 => &[][..],
                    _ => std::slice::from_raw_parts(text.cast::<u8>(), length),
                }
            };
            (0..count).map(slice).collect::<Vec<&[u8]>>()
        };
        let text = Bytes::from(strings.concat());
        let mut start = 0;
        let cut = |string: &&[u8]| {
            let end = start + string.len();
            text.slice(std::mem::replace(&mut start, end)..end)
        };
        let parts: Vec<Bytes> = strings.iter().map(cut).collect();
        Tensor::from_strings(shape, parts)
    }
}

/// Elements inside a tensor of TensorFlow's.
struct TfOutput {
    data: *const [u8],
    _tensor: TfTensor,
}

// SAFETY: the data belongs to the tensor, which is owned and `Send`.
unsafe impl Send for TfOutput {}
// SAFETY: as above; sharing gives reads only.
unsafe impl Sync for TfOutput {}

impl AsRef<[u8]> for TfOutput {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the data is the tensor's own and lives until the tensor is dropped.
        unsafe { &*self.data }
    }
}

/// Memory for strings at an alignment that suits TensorFlow's tensors.
#[repr(C, align(64))]
#[derive(Clone)]
struct StringRoom([u8; 64]);

/// Strings in TensorFlow's form.
struct StringBlock {
    library: &'static TensorFlowLibrary,
    room: Vec<StringRoom>,
    count: usize,
}

impl StringBlock {
    fn new(library: &'static TensorFlowLibrary, strings: &[Bytes]) -> StringBlock {
        let bytes = strings.len() * size_of::<RawString>();
        let room = vec![StringRoom([0; 64]); bytes.div_ceil(size_of::<StringRoom>())];
        let mut block = StringBlock { library, room, count: strings.len() };
        let data: *mut RawString = block.room.as_mut_ptr().cast();
        for (index, string) in strings.iter().enumerate() {
            // SAFETY: the memory holds so many strings; each is initialised before it gets a copy.
            unsafe {
                (library.call.TF_StringInit)(data.add(index));
                (library.call.TF_StringCopy)(data.add(index), string.as_ptr().cast(), string.len());
            }
        }
        block
    }

    fn data(&self) -> *const RawString {
        self.room.as_ptr().cast()
    }
}

impl Drop for StringBlock {
    fn drop(&mut self) {
        let data: *mut RawString = self.room.as_mut_ptr().cast();
        for index in 0..self.count {
            // SAFETY: initialised in `new`, and released once.
            unsafe { (self.library.call.TF_StringDealloc)(data.add(index)) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_that_overflow_are_refused() {
        assert_eq!(sizes(&[0, usize::MAX >> 1, 3]).unwrap().as_slice(), [0, i64::MAX, 3]);
        for shape in [&[1 << 32, 1 << 31, 0][..], &[usize::MAX, 0], &[1; AXES_MAX + 1]] {
            let error = sizes(shape).unwrap_err();
            assert_eq!(error.kind(), base::ErrorKind::InvalidArgument, "{error}");
        }
    }
}
