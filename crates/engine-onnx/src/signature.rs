//! Reads the inputs and outputs of a session from the library.

use std::ffi::{CStr, c_char};
use std::ptr::{null, null_mut};

use base::{DType, Dim, Error, Result, Signature, TensorSpec};
use ort::sys;

use crate::api::{Handle, call, take_string};
use crate::element;
use crate::runtime::Runtime;

/// ONNX's number of the tensor type.
const TYPE_TENSOR: i32 = sys::ONNXType::ONNX_TYPE_TENSOR as i32;

#[derive(Clone, Copy)]
enum SignatureSide {
    Input,
    Optional,
    Output,
}

/// Reads the signature. Initialisers that a request may override are optional inputs, except the
/// `bound` parameters. Outputs that are not tensors, such as a classifier's map of scores, are left
/// out. No request can name them, and the library does not compute outputs that are not requested.
///
/// # Errors
/// `InvalidArgument` if an input is not a tensor, an element type is unknown, or no output remains.
pub(crate) fn read(
    runtime: &Runtime,
    session: &Handle<sys::OrtSession>,
    bound: &dyn Fn(&str) -> bool,
) -> Result<Signature> {
    let mut signature = Signature::default();
    for index in 0..count(session, SignatureSide::Input)? {
        signature
            .inputs
            .push(spec(runtime, session, SignatureSide::Input, index)?.ok_or_else(not_a_tensor)?);
    }
    for index in 0..count(session, SignatureSide::Optional)? {
        match spec(runtime, session, SignatureSide::Optional, index)? {
            Some(spec) if !bound(&spec.name) => signature.inputs.push(spec),
            _ => {}
        }
    }
    for index in 0..count(session, SignatureSide::Output)? {
        signature.outputs.extend(spec(runtime, session, SignatureSide::Output, index)?);
    }
    if signature.outputs.is_empty() {
        return Err(Error::invalid("the model has no output that is a tensor"));
    }
    Ok(signature)
}

fn not_a_tensor() -> Error {
    Error::invalid("an input of the model is not a tensor")
}

fn count(session: &Handle<sys::OrtSession>, side: SignatureSide) -> Result<usize> {
    let mut count = 0;
    let session = session.as_ptr();
    // SAFETY: the session is alive, the out-pointer valid.
    unsafe {
        match side {
            SignatureSide::Input => call!(Load, SessionGetInputCount(session, &mut count))?,
            SignatureSide::Optional => {
                call!(Load, SessionGetOverridableInitializerCount(session, &mut count))?
            }
            SignatureSide::Output => call!(Load, SessionGetOutputCount(session, &mut count))?,
        }
    }
    Ok(count)
}

/// Returns input or output `index`; `None` for an output that is not a tensor.
fn spec(
    runtime: &Runtime,
    session: &Handle<sys::OrtSession>,
    side: SignatureSide,
    index: usize,
) -> Result<Option<TensorSpec>> {
    let mut name = null_mut();
    let mut info = null_mut();
    let session = session.as_ptr();
    let allocator = runtime.allocator().as_ptr();
    // SAFETY: the session is alive, `index` below its count, the out-pointers valid; both results
    // are ours.
    let (name, info) = unsafe {
        match side {
            SignatureSide::Input => {
                call!(Load, SessionGetInputName(session, index, allocator, &mut name))?
            }
            SignatureSide::Optional => call!(
                Load,
                SessionGetOverridableInitializerName(session, index, allocator, &mut name)
            )?,
            SignatureSide::Output => {
                call!(Load, SessionGetOutputName(session, index, allocator, &mut name))?
            }
        }
        let name = take_string(runtime.allocator(), name)?;
        match side {
            SignatureSide::Input => {
                call!(Load, SessionGetInputTypeInfo(session, index, &mut info))?
            }
            SignatureSide::Optional => {
                call!(Load, SessionGetOverridableInitializerTypeInfo(session, index, &mut info))?
            }
            SignatureSide::Output => {
                call!(Load, SessionGetOutputTypeInfo(session, index, &mut info))?
            }
        }
        (name, Handle::own(info)?)
    };
    let kind = type_of(&info)?;
    if kind != TYPE_TENSOR {
        let word = type_word(kind);
        if matches!(side, SignatureSide::Output) {
            tracing::warn!(target: "onnxruntime", output = name, "left out: it is {word}, and only tensors can be served");
            return Ok(None);
        }
        return Err(Error::invalid(format!(
            "input \"{name}\" is {word}; only tensors can be served"
        )));
    }
    let (dtype, shape) = tensor(&info).map_err(|e| e.context(format!("\"{name}\"")))?;
    Ok(Some(TensorSpec { name, dtype, shape, optional: matches!(side, SignatureSide::Optional) }))
}

fn type_of(info: &Handle<sys::OrtTypeInfo>) -> Result<i32> {
    let mut kind = 0i32;
    // SAFETY: the information is alive; the out-parameter is an enum of representation i32, written
    // as i32.
    unsafe { call!(Load, GetOnnxTypeFromTypeInfo(info.as_ptr(), (&raw mut kind).cast()))? };
    Ok(kind)
}

fn type_word(kind: i32) -> &'static str {
    match kind {
        2 => "a sequence",
        3 => "a map",
        4 => "opaque",
        5 => "a sparse tensor",
        6 => "an optional",
        _ => "of unknown type",
    }
}

/// Returns element type and shape of a tensor. The shape is `None` if the rank is not known.
fn tensor(info: &Handle<sys::OrtTypeInfo>) -> Result<(DType, Option<Vec<Dim>>)> {
    let mut tensor = null();
    let mut element = 0i32;
    let mut rank = 0usize;
    // SAFETY: the information is alive and a tensor's; what the cast returns is a part of it. The
    // element type is an enum of representation i32, written as i32.
    unsafe {
        call!(Load, CastTypeInfoToTensorInfo(info.as_ptr(), &mut tensor))?;
        if tensor.is_null() {
            return Err(Error::internal("ONNX Runtime calls it a tensor and does not describe it"));
        }
        call!(Load, GetTensorElementType(tensor, (&raw mut element).cast()))?;
        call!(Load, GetDimensionsCount(tensor, &mut rank))?;
    }
    let dtype = element::from_onnx(element).ok_or_else(|| {
        Error::invalid(format!("element type {element} of ONNX is not supported"))
    })?;
    if rank == 0 {
        // This version of the API does not distinguish a scalar from an unknown rank, and the
        // library checks neither. Any shape passes here; the operators check it.
        return Ok((dtype, None));
    }
    let mut sizes = vec![0i64; rank];
    let mut symbols = vec![null::<c_char>(); rank];
    // SAFETY: both arrays have `rank` elements; the symbols point into the information, which
    // outlives their use.
    unsafe {
        call!(Load, GetDimensions(tensor, sizes.as_mut_ptr(), rank))?;
        call!(Load, GetSymbolicDimensions(tensor, symbols.as_mut_ptr(), rank))?;
    }
    let dims = sizes.iter().zip(&symbols).map(|(&size, &symbol)| {
        usize::try_from(size).map_or_else(
            |_| {
                // SAFETY: a symbol is null or a NUL-terminated string inside the information, which
                // is alive.
                let symbol = (!symbol.is_null())
                    .then(|| unsafe { CStr::from_ptr(symbol) }.to_string_lossy());
                // Some exporters write "?" on every unknown axis. As a name, it would require these
                // axes to be equal.
                Dim::Dynamic(
                    symbol.filter(|text| text.contains(char::is_alphanumeric)).map(Into::into),
                )
            },
            Dim::Fixed,
        )
    });
    Ok((dtype, Some(dims.collect())))
}
