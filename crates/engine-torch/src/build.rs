//! Writes TorchScript modules without Python, for tests and benchmarks.

use std::ffi::c_void;
use std::path::Path;
use std::ptr::{NonNull, null_mut};

use base::{DType, Error, Result};
use engine::{c_path, c_text};

use crate::api::{RawBuilder, ShimLibrary};
use crate::{TorchEngine, element};

/// Function that writes a tensor's elements.
pub type FillElements = Box<dyn FnMut(&mut [f32])>;

/// Source of a parameter's elements.
pub enum ParameterData {
    /// One float32 value for each element.
    Floats(Vec<f32>),
    /// float32 values that the function writes to the memory that is saved. One tensor is filled at
    /// a time.
    Fill(FillElements),
    /// Elements of an earlier parameter, from one of its elements on: both share memory.
    View {
        /// The earlier parameter.
        of: String,
        /// Index of the first element.
        start: usize,
    },
}

/// A tensor attribute of a module.
pub struct TorchParameter {
    /// Name of the attribute.
    pub name: String,
    /// Sizes of its axes.
    pub dims: Vec<usize>,
    /// Elements.
    pub data: ParameterData,
    /// True for a buffer, which belongs to the module but is not a parameter.
    pub buffer: bool,
}

impl TorchParameter {
    /// Builds a float32 parameter.
    pub fn floats(name: &str, dims: &[usize], elements: Vec<f32>) -> TorchParameter {
        TorchParameter {
            name: name.to_owned(),
            dims: dims.to_vec(),
            data: ParameterData::Floats(elements),
            buffer: false,
        }
    }

    /// Builds a float32 parameter that `fill` writes.
    pub fn filled(
        name: &str,
        dims: &[usize],
        fill: impl FnMut(&mut [f32]) + 'static,
    ) -> TorchParameter {
        let data = ParameterData::Fill(Box::new(fill));
        TorchParameter { name: name.to_owned(), dims: dims.to_vec(), data, buffer: false }
    }
}

/// Writes a module to `path`. `source` holds its methods in TorchScript, such as `def forward(self,
/// x): return x @ self.weight`. Each of `parameters` becomes an attribute.
///
/// # Errors
/// `InvalidArgument` if the source does not compile or a parameter does not have its dims'
/// elements; the errors of opening the engine and of writing the file.
pub fn module(
    engine: &TorchEngine,
    path: &Path,
    source: &str,
    parameters: Vec<TorchParameter>,
) -> Result<()> {
    let mut builder = ModuleBuilder::new(engine.open()?)?;
    for parameter in parameters {
        let name = parameter.name.clone();
        builder.add(parameter).map_err(|e| e.context(format!("parameter \"{name}\"")))?;
    }
    builder.save(source, path)
}

struct ModuleBuilder {
    raw: NonNull<RawBuilder>,
    library: &'static ShimLibrary,
}

impl ModuleBuilder {
    fn new(library: &'static ShimLibrary) -> Result<ModuleBuilder> {
        let mut raw = null_mut();
        // SAFETY: the out-pointer is valid; what it gets is ours.
        library.check(unsafe { (library.call.mpt_builder_new)(&mut raw) })?;
        let raw = NonNull::new(raw).ok_or_else(|| Error::internal("LibTorch gave no builder"))?;
        Ok(ModuleBuilder { raw, library })
    }

    /// Adds a parameter to the module: elements, memory that a function fills, or a view of another
    /// parameter.
    fn add(&mut self, parameter: TorchParameter) -> Result<()> {
        let count =
            parameter.dims.iter().try_fold(1usize, |product, &dim| product.checked_mul(dim));
        let count = count.ok_or_else(|| Error::invalid("has more elements than fit memory"))?;
        let name = &parameter.name;
        let buffer = i32::from(parameter.buffer);
        match parameter.data {
            ParameterData::Floats(elements) => {
                let given = elements.len();
                if given != count {
                    return Err(Error::invalid(format!("takes {count} elements, got {given}")));
                }
                self.tensor(name, &parameter.dims, buffer)?.copy_from_slice(&elements);
            }
            ParameterData::Fill(mut fill) => fill(self.tensor(name, &parameter.dims, buffer)?),
            ParameterData::View { of, start } => {
                let name = c_text(name)?;
                let of = c_text(&of)?;
                let dims = sizes(&parameter.dims);
                let start =
                    i64::try_from(start).map_err(|_| Error::invalid("starts past any end"))?;
                // SAFETY: the builder is alive, the names are NUL-terminated, there are
                // `rank` sizes.
                let code = unsafe {
                    let raw = self.raw.as_ptr();
                    let name = name.as_ptr();
                    let of = of.as_ptr();
                    let rank = dims.len() as i32;
                    let dims = dims.as_ptr();
                    (self.library.call.mpt_builder_view)(raw, name, of, start, dims, rank, buffer)
                };
                self.library.check(code)?;
            }
        }
        Ok(())
    }

    /// Adds a float32 tensor and returns its memory, cleared.
    fn tensor(&mut self, name: &str, dims: &[usize], buffer: i32) -> Result<&mut [f32]> {
        let name = c_text(name)?;
        let dims = sizes(dims);
        let number =
            element::to_torch(DType::F32).ok_or_else(|| Error::invalid("no such tensors"))?;
        let mut data: *mut c_void = null_mut();
        // SAFETY: the builder is alive, the name NUL-terminated, there are `rank` sizes, the
        // out-pointer is valid.
        let code = unsafe {
            let raw = self.raw.as_ptr();
            let name = name.as_ptr();
            let rank = dims.len() as i32;
            let dims = dims.as_ptr();
            (self.library.call.mpt_builder_tensor)(raw, name, number, dims, rank, buffer, &mut data)
        };
        self.library.check(code)?;
        let count = dims.iter().map(|&size| size as usize).product();
        if count == 0 || data.is_null() {
            return Ok(&mut []);
        }
        // SAFETY: the tensor is new, contiguous and has so many elements of this type. No other
        // reference exists until the builder is used again, which the borrow rules out.
        unsafe {
            std::ptr::write_bytes(data.cast::<f32>(), 0, count);
            Ok(std::slice::from_raw_parts_mut(data.cast::<f32>(), count))
        }
    }

    fn save(&mut self, source: &str, path: &Path) -> Result<()> {
        let source = c_text(source)?;
        let path = c_path(path)?;
        // SAFETY: the builder is alive and both texts are NUL-terminated.
        let code = unsafe {
            (self.library.call.mpt_builder_save)(self.raw.as_ptr(), source.as_ptr(), path.as_ptr())
        };
        self.library.check(code)
    }
}

impl Drop for ModuleBuilder {
    fn drop(&mut self) {
        // SAFETY: the builder is ours, and this is its last use.
        unsafe { (self.library.call.mpt_builder_drop)(self.raw.as_ptr()) }
    }
}

fn sizes(dims: &[usize]) -> Vec<i64> {
    dims.iter().map(|&size| size as i64).collect()
}
