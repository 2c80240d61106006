//! A loaded model and its runs. Takes no lock: the library allows concurrent runs, and nothing here
//! changes after loading.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{CString, c_char};
use std::ptr::{null, null_mut};
use std::sync::Arc;

use base::{DType, Data, Error, NamedTensor, Result, Signature, Tensor, TensorSpec};
use bytes::Bytes;
use engine::{LoadRequest, Session, c_text};
use ort::sys;
use smallvec::SmallVec;

use crate::api::{Handle, call};
use crate::load::{self, OpenedSession};
use crate::outputs::{self, BorrowedRanges};
use crate::runtime::Runtime;
use crate::{element, metadata, signature};

/// Maximum inputs or outputs of a run whose bookkeeping needs no allocation.
const INLINE_MAX: usize = 8;

/// A model in ONNX Runtime. Dropping it releases the library's session first, then the regions.
pub(crate) struct OnnxSession {
    opened: OpenedSession,
    runtime: &'static Runtime,
    signature: Signature,
    metadata: BTreeMap<String, String>,
    inputs: PortNames,
    outputs: PortNames,
    /// Start and end addresses of the bound parameters, ascending.
    parameters: Vec<(usize, usize)>,
}

impl OnnxSession {
    /// Opens the model and reads its signature.
    pub(crate) fn load(runtime: &'static Runtime, request: &LoadRequest) -> Result<OnnxSession> {
        let opened = load::open(runtime, request)?;
        let bound = |name: &str| request.parameters.iter().any(|parameter| parameter.name == name);
        let signature = signature::read(runtime, &opened.session, &bound)
            .map_err(|e| e.context(request.graph.display()))?;
        let mut parameters: Vec<(usize, usize)> = opened
            .parameters
            .iter()
            .map(|parameter| outputs::range(parameter.as_slice()))
            .collect();
        parameters.sort_unstable();
        Ok(OnnxSession {
            metadata: metadata::read(runtime, &opened.session)?,
            inputs: PortNames::new(&signature.inputs)?,
            outputs: PortNames::new(&signature.outputs)?,
            parameters,
            signature,
            runtime,
            opened,
        })
    }
}

impl Session for OnnxSession {
    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    fn run(&self, inputs: &[NamedTensor], outputs: &[Arc<str>]) -> Result<Vec<NamedTensor>> {
        let feeds = OnnxFeeds::new(self.runtime, &self.inputs, inputs)?;
        let positions = self.outputs.positions_of(outputs)?;
        let names: SmallVec<[*const c_char; INLINE_MAX]> =
            positions.iter().map(|&at| self.outputs.c_names[at].as_ptr()).collect();
        let mut results: SmallVec<[*mut sys::OrtValue; INLINE_MAX]> =
            SmallVec::from_elem(null_mut(), names.len());
        // SAFETY: the session is alive and may run on many threads at once. Names and values are
        // arrays of the lengths given. The names are NUL-terminated, and the values are alive (a
        // handle has the layout of its pointer). The results are null pointers, so that the library
        // allocates.
        let ran = unsafe {
            call!(
                Run,
                Run(
                    self.opened.session.as_ptr(),
                    null(),
                    feeds.names.as_ptr(),
                    feeds.values.as_ptr().cast(),
                    feeds.values.len(),
                    names.as_ptr(),
                    names.len(),
                    results.as_mut_ptr(),
                )
            )
        };
        // Owned before anything else happens, so that no path leaks one.
        // SAFETY: the library gives each result to us and keeps none; a null one is an error.
        let results: SmallVec<[Result<Handle<sys::OrtValue>>; INLINE_MAX]> =
            results.into_iter().map(|value| unsafe { Handle::own(value) }).collect();
        ran?;
        let borrowed = BorrowedRanges { feeds: &feeds.ranges, parameters: &self.parameters };
        let named = |(at, value): (usize, Result<Handle<sys::OrtValue>>)| {
            let tensor = outputs::take(value?, &borrowed)?;
            Ok(NamedTensor { name: self.outputs.names[at].clone(), tensor })
        };
        positions.into_iter().zip(results).map(named).collect()
    }
}

/// Names of the inputs or the outputs in the signature's order, as Rust and as C strings.
struct PortNames {
    names: Vec<Arc<str>>,
    c_names: Vec<CString>,
    positions: HashMap<Arc<str>, usize>,
    /// Number of required names, which come first.
    required: usize,
}

impl PortNames {
    fn new(specs: &[TensorSpec]) -> Result<PortNames> {
        let names: Vec<Arc<str>> = specs.iter().map(|spec| Arc::from(spec.name.as_str())).collect();
        Ok(PortNames {
            c_names: specs.iter().map(|spec| c_text(&spec.name)).collect::<Result<_>>()?,
            positions: names.iter().cloned().zip(0..).collect(),
            required: specs.iter().filter(|spec| !spec.optional).count(),
            names,
        })
    }

    /// Returns the position of `name`. Tries `guess` first, because most requests use the model's
    /// order.
    fn position(&self, name: &str, guess: usize) -> Option<usize> {
        match self.names.get(guess) {
            Some(there) if **there == *name => Some(guess),
            _ => self.positions.get(name).copied(),
        }
    }

    /// Returns the positions of `outputs`, or of all if the list is empty.
    ///
    /// # Errors
    /// `InvalidArgument` for an output that the model does not have.
    fn positions_of(&self, outputs: &[Arc<str>]) -> Result<SmallVec<[usize; INLINE_MAX]>> {
        if outputs.is_empty() {
            return Ok((0..self.names.len()).collect());
        }
        let position = |(guess, name): (usize, &Arc<str>)| {
            self.position(name, guess)
                .ok_or_else(|| Error::invalid(format!("the model has no output \"{name}\"")))
        };
        outputs.iter().enumerate().map(position).collect()
    }
}

/// The inputs of one run in the library's form.
struct OnnxFeeds {
    names: SmallVec<[*const c_char; INLINE_MAX]>,
    values: SmallVec<[Handle<sys::OrtValue>; INLINE_MAX]>,
    /// Address ranges of the elements.
    ranges: SmallVec<[(usize, usize); INLINE_MAX]>,
    /// Keeps the values' memory alive.
    _bytes: SmallVec<[Bytes; INLINE_MAX]>,
}

impl OnnxFeeds {
    fn new(runtime: &Runtime, known: &PortNames, inputs: &[NamedTensor]) -> Result<OnnxFeeds> {
        let mut feeds = OnnxFeeds {
            names: SmallVec::new(),
            values: SmallVec::new(),
            ranges: SmallVec::new(),
            _bytes: SmallVec::new(),
        };
        let mut required = 0;
        for (guess, input) in inputs.iter().enumerate() {
            let at = known.position(&input.name, guess).ok_or_else(|| {
                Error::invalid(format!("the model has no input \"{}\"", input.name))
            })?;
            required += usize::from(at < known.required);
            feeds.names.push(known.c_names[at].as_ptr());
            feeds
                .push(runtime, &input.tensor)
                .map_err(|e| e.context(format!("input \"{}\"", input.name)))?;
        }
        // The library reports this only for some operators, in its own words.
        if required < known.required {
            Err(Error::invalid(format!(
                "the model takes {} inputs, got {required}",
                known.required
            )))
        } else {
            Ok(feeds)
        }
    }

    /// Adds a tensor of a request as the next input of the run, without a copy of its bytes if they
    /// are aligned.
    ///
    /// # Errors
    /// `InvalidArgument` for a type that the library does not have and for a bool that is neither 0
    /// nor 1.
    fn push(&mut self, runtime: &Runtime, tensor: &Tensor) -> Result<()> {
        let onnx = element::to_onnx(tensor.dtype()).ok_or_else(|| {
            Error::invalid(format!("ONNX Runtime has no {} tensors", tensor.dtype()))
        })?;
        let shape: SmallVec<[i64; 6]> = tensor.shape().iter().map(|&size| size as i64).collect();
        let bytes = match tensor.data() {
            Data::Strings(strings) => {
                self.values.push(string_tensor(runtime, &shape, strings)?);
                return Ok(());
            }
            Data::Bytes(bytes) => tensor.aligned_bytes().unwrap_or_else(|| bytes.clone()),
        };
        // In C++ a bool other than 0 and 1 is undefined behaviour.
        if tensor.dtype() == DType::Bool && bytes.iter().any(|&byte| byte > 1) {
            return Err(Error::invalid("a bool element is neither 0 nor 1"));
        }
        let mut value = null_mut();
        // SAFETY: the bytes are aligned, are as many as type and shape need (a tensor's invariant),
        // and `_bytes` keeps them until the value is dropped. The library takes a mutable pointer
        // for all tensors and does not write to inputs of a run.
        let value = unsafe {
            let data = bytes.as_ptr().cast_mut().cast();
            let memory = runtime.memory();
            call!(
                Run,
                CreateTensorWithDataAsOrtValue(
                    memory,
                    data,
                    bytes.len(),
                    shape.as_ptr(),
                    shape.len(),
                    onnx,
                    &mut value
                )
            )?;
            Handle::own(value)?
        };
        self.values.push(value);
        self.ranges.push(outputs::range(&bytes));
        self._bytes.push(bytes);
        Ok(())
    }
}

/// Copies strings of any content into a tensor of the library.
fn string_tensor(
    runtime: &Runtime,
    shape: &[i64],
    strings: &[Bytes],
) -> Result<Handle<sys::OrtValue>> {
    let mut value = null_mut();
    let kind = sys::ONNXTensorElementDataType::ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING;
    // SAFETY: the allocator lives for ever, the shape has the length given, the result is ours.
    let value = unsafe {
        let allocator = runtime.allocator().as_ptr();
        call!(
            Run,
            CreateTensorAsOrtValue(allocator, shape.as_ptr(), shape.len(), kind, &mut value)
        )?;
        Handle::own(value)?
    };
    for (index, string) in strings.iter().enumerate().filter(|(_, string)| !string.is_empty()) {
        let mut buffer = null_mut::<c_char>();
        // SAFETY: `index` is below the number of elements, which is that of the strings (a tensor's
        // invariant); the returned buffer has the requested length. `FillStringTensor` would end at
        // the first NUL byte.
        unsafe {
            call!(
                Run,
                GetResizedStringTensorElementBuffer(
                    value.as_ptr(),
                    index,
                    string.len(),
                    &mut buffer
                )
            )?;
            if buffer.is_null() {
                return Err(Error::internal("ONNX Runtime gave no room for a string"));
            }
            std::ptr::copy_nonoverlapping(string.as_ptr(), buffer.cast(), string.len());
        }
    }
    Ok(value)
}
