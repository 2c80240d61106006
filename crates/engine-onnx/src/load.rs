//! Opens models: options, parameters, the session.

use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr::null_mut;

use base::{Error, Result};
use engine::{BoundTensor, LoadRequest, SessionOptions, c_path, c_text};
use ort::sys;
use smallvec::SmallVec;

use crate::api::{Handle, call};
use crate::parameters::ParameterBinding;
use crate::runtime::Runtime;
use crate::{element, parameters};

/// Maximum threads of one run.
const THREADS_MAX: usize = 1024;

/// A session and the objects that it uses, in the order in which they must be dropped.
pub(crate) struct OpenedSession {
    /// Session, which uses `values`.
    pub(crate) session: Handle<sys::OrtSession>,
    /// Values that point into the regions of `parameters`. They only have to outlive the session.
    #[expect(dead_code, reason = "dropped after the session")]
    pub(crate) values: Vec<Handle<sys::OrtValue>>,
    /// Parameters, whose regions hold the memory.
    pub(crate) parameters: Vec<BoundTensor>,
}

/// Creates the session of a model, with its parameters bound in place if the library permits it.
///
/// # Errors
/// `InvalidArgument` for a wrong number of threads; the errors of [`parameters::check`] and of the
/// library. An error about the graph names its path.
pub(crate) fn open(runtime: &'static Runtime, request: &LoadRequest) -> Result<OpenedSession> {
    let path = c_path(&request.graph)?;
    let bindings = parameters::check(&request.graph, &request.parameters)
        .map_err(|e| e.context(request.graph.display()))?;
    let options = session_options(&request.options)?;
    // SAFETY: the options are alive; the path is NUL-terminated and copied.
    unsafe { call!(Call, SetSessionLogId(options.as_ptr(), path.as_ptr()))? };
    let mut values = Vec::with_capacity(request.parameters.len());
    let mut copied = Vec::new();
    for (parameter, binding) in request.parameters.iter().zip(bindings) {
        let value = parameter_value(runtime, parameter)?;
        let name = c_text(&parameter.name)?;
        match binding {
            ParameterBinding::InPlace => bind(&options, &name, &value)
                .map_err(|e| e.context(format!("parameter \"{}\"", parameter.name)))?,
            ParameterBinding::Copied => copied.push((name, value.as_ptr())),
            ParameterBinding::FromGraph => {}
        }
        values.push(value);
    }
    copy(&options, &copied)?;
    let threads = request.options.intra_op_threads > 1 || request.options.inter_op_threads > 1;
    let create = move || create_session(runtime, &path, &options);
    // The session's threads inherit the priority of the thread that creates it, and a load thread
    // may have idle priority.
    let session = if threads { os::background::at_ordinary_priority(create)? } else { create() };
    let session = session.map_err(|e| e.context(request.graph.display()))?;
    Ok(OpenedSession { session, values, parameters: request.parameters.clone() })
}

fn create_session(
    runtime: &Runtime,
    path: &CStr,
    options: &Handle<sys::OrtSessionOptions>,
) -> Result<Handle<sys::OrtSession>> {
    let mut session = null_mut();
    // SAFETY: environment and options are alive, the path is NUL-terminated, the out-pointer valid.
    // The session copies the options and refers to the values and their memory. `open` holds these
    // until this call returns, and `OpenedSession` keeps them alive longer.
    unsafe {
        call!(Load, CreateSession(runtime.env(), path.as_ptr(), options.as_ptr(), &mut session))?;
        Handle::own(session)
    }
}

/// Builds the session's options; the crate's documentation has the reasons.
fn session_options(options: &SessionOptions) -> Result<Handle<sys::OrtSessionOptions>> {
    let intra = threads(options.intra_op_threads)?;
    let inter = threads(options.inter_op_threads)?;
    let mode = match inter {
        1 => sys::ExecutionMode::ORT_SEQUENTIAL,
        _ => sys::ExecutionMode::ORT_PARALLEL,
    };
    let mut raw = null_mut();
    // SAFETY: the out-pointer is valid and its object ours; the options are alive in every call
    // after.
    unsafe {
        call!(Call, CreateSessionOptions(&mut raw))?;
        let handle = Handle::own(raw)?;
        call!(Call, SetIntraOpNumThreads(raw, intra))?;
        call!(Call, SetInterOpNumThreads(raw, inter))?;
        call!(Call, SetSessionExecutionMode(raw, mode))?;
        call!(Call, DisableCpuMemArena(raw))?;
        call!(Call, DisableMemPattern(raw))?;
        call!(
            Call,
            SetSessionGraphOptimizationLevel(raw, sys::GraphOptimizationLevel::ORT_ENABLE_ALL)
        )?;
        config(&handle, c"session.intra_op.allow_spinning", c"0")?;
        config(&handle, c"session.inter_op.allow_spinning", c"0")?;
        Ok(handle)
    }
}

fn config(options: &Handle<sys::OrtSessionOptions>, key: &CStr, value: &CStr) -> Result<()> {
    // SAFETY: the options are alive, both strings NUL-terminated and copied by the call.
    unsafe { call!(Call, AddSessionConfigEntry(options.as_ptr(), key.as_ptr(), value.as_ptr())) }
}

/// Converts a number of threads.
///
/// # Errors
/// `InvalidArgument` if it is not from 1 to [`THREADS_MAX`].
fn threads(count: usize) -> Result<c_int> {
    match count {
        // For the library, zero means one thread per core.
        1..=THREADS_MAX => Ok(count as c_int),
        _ => Err(Error::invalid(format!(
            "{count} threads inside one run; it must be 1 to {THREADS_MAX}"
        ))),
    }
}

/// Returns a value of the library over the memory of `parameter`.
fn parameter_value(runtime: &Runtime, parameter: &BoundTensor) -> Result<Handle<sys::OrtValue>> {
    let bytes = parameter.check()?;
    let onnx = element::to_onnx(parameter.dtype).ok_or_else(|| {
        Error::invalid(format!(
            "parameter \"{}\": ONNX Runtime has no {} tensors",
            parameter.name, parameter.dtype
        ))
    })?;
    let shape: SmallVec<[i64; 6]> = parameter.dims.iter().map(|&dim| dim as i64).collect();
    let mut value = null_mut();
    // SAFETY: the bytes were checked to lie inside the region, which outlives the session (see
    // `OpenedSession`), and to be as many as type and shape take. The library takes a mutable
    // pointer for all tensors; an initialiser is never written to.
    unsafe {
        let data = bytes.as_ptr().cast_mut().cast();
        call!(
            Load,
            CreateTensorWithDataAsOrtValue(
                runtime.memory(),
                data,
                bytes.len(),
                shape.as_ptr(),
                shape.len(),
                onnx,
                &mut value
            )
        )?;
        Handle::own(value)
    }
}

/// Makes the next session use `value` in place. The graph's own copy, or the external file that it
/// names, is not read.
fn bind(
    options: &Handle<sys::OrtSessionOptions>,
    name: &CStr,
    value: &Handle<sys::OrtValue>,
) -> Result<()> {
    // SAFETY: the options are alive, the name is NUL-terminated and copied. The value outlives the
    // options and the session.
    unsafe { call!(Load, AddInitializer(options.as_ptr(), name.as_ptr(), value.as_ptr())) }
}

/// Makes the next session use copies of `parameters` instead of the external files that the graph
/// names. The library sees them before it optimises the graph, so it may change their shapes.
fn copy(
    options: &Handle<sys::OrtSessionOptions>,
    parameters: &[(CString, *mut sys::OrtValue)],
) -> Result<()> {
    if parameters.is_empty() {
        return Ok(());
    }
    let names: Vec<*const c_char> = parameters.iter().map(|(name, _)| name.as_ptr()).collect();
    let values: Vec<*const sys::OrtValue> =
        parameters.iter().map(|(_, value)| value.cast_const()).collect();
    // SAFETY: the options are alive, and both arrays have the length given. The names are
    // NUL-terminated and copied. The values outlive the options and the session.
    unsafe {
        call!(
            Load,
            AddExternalInitializers(
                options.as_ptr(),
                names.as_ptr(),
                values.as_ptr(),
                parameters.len()
            )
        )
    }
}
