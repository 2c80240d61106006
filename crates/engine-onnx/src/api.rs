//! The only module that calls the C API: statuses become [`base::Result`], handles are released by
//! `Drop`.

use std::ffi::{CStr, c_char};
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

use base::{Error, ErrorKind, Result};
use ort::sys::{self, OrtApi, OrtStatusPtr};

/// Maximum characters of a message of the library.
const MESSAGE_CHARS_MAX: usize = 1000;

/// Purpose of a failed call. Decides the kind of its error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallPhase {
    /// Opening a model: an error that the library reports is an error of the model.
    Load,
    /// Running: an invalid argument is an error of the request, every other error is internal.
    Run,
    /// A call that can fail only because of an error in this program.
    Call,
}

/// Error codes of the library that matter here. Plain numbers, because a newer library may return
/// one that the binding's enum does not have.
mod code {
    pub(super) const INVALID_ARGUMENT: i32 = 2;
    pub(super) const NO_SUCH_FILE: i32 = 3;
    pub(super) const NO_MODEL: i32 = 4;
    pub(super) const RUNTIME_EXCEPTION: i32 = 6;
    pub(super) const INVALID_PROTOBUF: i32 = 7;
}

/// Parts of the messages with which operators reject the shapes of their inputs. Model and
/// parameters are the same for all requests, so the sizes come from the request.
const SHAPES: [&str; 7] = [
    "dimensions must match",
    "mismatched dimensions",
    "imension mismatch",
    "incompatible dimensions",
    "Attempting to broadcast an axis by a dimension other than 1",
    "Can't merge shapes",
    "Shape mismatch attempting to re-use buffer",
];

/// Calls a function of the API and turns its status into a `Result`. For use inside `unsafe`.
macro_rules! call {
    ($phase:ident, $function:ident($($argument:expr),* $(,)?)) => {{
        let api = ort::api();
        $crate::api::check(api, (api.$function)($($argument),*), $crate::api::CallPhase::$phase)
    }};
}
pub(crate) use call;

/// Takes ownership of `status` and returns the error that it describes, if any.
#[inline]
pub(crate) fn check(api: &OrtApi, status: OrtStatusPtr, phase: CallPhase) -> Result<()> {
    match NonNull::new(status.0) {
        None => Ok(()),
        Some(status) => Err(failure(api, status, phase)),
    }
}

/// Converts a status of the library to an error, and releases the status.
#[cold]
fn failure(api: &OrtApi, status: NonNull<sys::OrtStatus>, phase: CallPhase) -> Error {
    type Theirs = unsafe extern "system" fn(*const sys::OrtStatus) -> sys::OrtErrorCode;
    type Ours = unsafe extern "system" fn(*const sys::OrtStatus) -> i32;
    // SAFETY: the binding's result type is an enum of representation i32, so the two function types
    // have one ABI. A code that the binding does not know is read as i32, which is defined
    // behaviour.
    let get_code = unsafe { std::mem::transmute::<Theirs, Ours>(api.GetErrorCode) };
    // SAFETY: the status is not null, came from the API and is ours until released below; the
    // message lives inside it and is copied before.
    let (code, message) = unsafe {
        let code = get_code(status.as_ptr());
        let message =
            CStr::from_ptr((api.GetErrorMessage)(status.as_ptr())).to_string_lossy().into_owned();
        (api.ReleaseStatus)(status.as_ptr());
        (code, message)
    };
    let text = match phase {
        CallPhase::Load => load_failure(&message),
        CallPhase::Run | CallPhase::Call => one_line(&message),
    };
    Error::new(kind(code, &message, phase), text)
}

/// A reason for which the library refuses a model.
struct LoadRemedy {
    /// Part of the library's message.
    message: &'static str,
    remedy: &'static str,
}

const LOAD_REMEDIES: [LoadRemedy; 6] = [
    LoadRemedy {
        message: "is not a registered function/op",
        remedy: "custom operators are not loaded; export the model with standard operators",
    },
    LoadRemedy {
        message: "No Op registered for",
        remedy: "export the model with standard operators, or install a newer ONNX Runtime",
    },
    LoadRemedy {
        message: "Could not find an implementation for",
        remedy: "ONNX Runtime lacks this operator for these types; export the model with others",
    },
    // skl2onnx writes it for trees if the sample has numpy's default type.
    LoadRemedy {
        message: "Type (tensor(double)) of output arg",
        remedy: "convert the model with a float32 sample, as in to_onnx(model, X[:1].astype(\"float32\"))",
    },
    LoadRemedy {
        message: "Unsupported model IR version",
        remedy: "export the model for an older version of ONNX, or install a newer ONNX Runtime",
    },
    LoadRemedy {
        message: "Current official support for domain",
        remedy: "export the model with an older opset, or install a newer ONNX Runtime",
    },
];

/// Returns the library's message about a model as one line, with the remedy if one is known.
fn load_failure(message: &str) -> String {
    let text = one_line(message);
    match LOAD_REMEDIES.iter().find(|row| text.contains(row.message)) {
        Some(row) => format!("{}: {}", text.trim_end_matches('.'), row.remedy),
        None => text,
    }
}

/// Returns the kind of a library's error, by its code, its message and the call.
fn kind(code: i32, message: &str, phase: CallPhase) -> ErrorKind {
    if code == code::RUNTIME_EXCEPTION
        && (message.contains("bad_alloc") || message.contains("Failed to allocate"))
    {
        return ErrorKind::ResourceExhausted;
    }
    match (phase, code) {
        (CallPhase::Call, _) => ErrorKind::Internal,
        (CallPhase::Run, code::INVALID_ARGUMENT) => ErrorKind::InvalidArgument,
        (CallPhase::Run, _) if SHAPES.iter().any(|shapes| message.contains(shapes)) => {
            ErrorKind::InvalidArgument
        }
        (CallPhase::Run, _) => ErrorKind::Internal,
        (CallPhase::Load, code::NO_SUCH_FILE) => ErrorKind::NotFound,
        (CallPhase::Load, code::INVALID_PROTOBUF | code::NO_MODEL) => ErrorKind::DataLoss,
        (CallPhase::Load, _) => ErrorKind::InvalidArgument,
    }
}

/// Returns the library's message as one line: the operator, without source positions.
fn one_line(message: &str) -> String {
    let line = message.split_whitespace().collect::<Vec<_>>().join(" ");
    let line = without_path(&line);
    let text = operator_failure(line).unwrap_or_else(|| without_source_position(line).to_owned());
    match text.char_indices().nth(MESSAGE_CHARS_MAX) {
        Some((end, _)) => format!("{} (cut)", &text[..end]),
        None if text.is_empty() => "ONNX Runtime gave no reason".to_owned(),
        None => text,
    }
}

/// Drops a leading "Load model from PATH failed:" and "Fatal error:". Callers name the file.
fn without_path(line: &str) -> &str {
    let why = line.strip_prefix("Load model from ").and_then(|rest| rest.split_once(" failed:"));
    let why = why.map_or(line, |(_, why)| why.trim_start());
    why.strip_prefix("Fatal error:").map_or(why, str::trim_start)
}

/// Turns "Non-zero status code returned while running Gather node. Name:'g' Status Message: why"
/// into "operator Gather \"g\": why".
fn operator_failure(line: &str) -> Option<String> {
    let (_, rest) = line.split_once("returned while running ")?;
    let (operator, rest) = rest.split_once(" node. Name:'")?;
    let (name, why) = rest.split_once("' Status Message: ")?;
    let why = without_source_position(why);
    Some(if name.is_empty() {
        format!("operator {operator}: {why}")
    } else {
        format!("operator {operator} \"{name}\": {why}")
    })
}

/// Drops a leading "/path/file.cc:123 function(arguments) " and a leading code in brackets.
fn without_source_position(text: &str) -> &str {
    let text = text.strip_prefix("[ONNXRuntimeError] : ").unwrap_or(text);
    let source = text.split_whitespace().next().is_some_and(|word| {
        word.starts_with('/')
            && (word.contains(".cc:") || word.contains(".h:") || word.contains(".cpp:"))
    });
    if !source {
        return text;
    }
    // The function's signature ends at the last closing parenthesis before the sentence. The
    // sentence may have parentheses too, so only the first one that closes all opened ones counts.
    let mut depth = 0i32;
    for (at, character) in text.char_indices() {
        match character {
            '(' => depth += 1,
            ')' => {
                depth -= 1;
                if depth == 0 {
                    return text[at + 1..].trim_start_matches(" const").trim_start();
                }
            }
            _ => {}
        }
    }
    text.split_once(' ').map_or(text, |(_, rest)| rest)
}

/// An object of the library that has a release function.
pub(crate) trait Released: Sized {
    /// Returns its release function.
    fn release(api: &OrtApi) -> unsafe extern "system" fn(*mut Self);
}

macro_rules! released {
    ($($object:ident by $function:ident),* $(,)?) => {
        $(impl Released for sys::$object {
            fn release(api: &OrtApi) -> unsafe extern "system" fn(*mut Self) { api.$function }
        })*
    };
}
released! {
    OrtMemoryInfo by ReleaseMemoryInfo, OrtSession by ReleaseSession, OrtSessionOptions by ReleaseSessionOptions,
    OrtValue by ReleaseValue, OrtTypeInfo by ReleaseTypeInfo, OrtModelMetadata by ReleaseModelMetadata,
    OrtTensorTypeAndShapeInfo by ReleaseTensorTypeAndShapeInfo, OrtEnv by ReleaseEnv,
}

/// An owned object of the library. Has the layout of the bare pointer, so that a slice of handles
/// is an array of pointers.
#[repr(transparent)]
pub(crate) struct Handle<T: Released>(NonNull<T>);

impl<T: Released> Handle<T> {
    /// Takes ownership of a pointer that the library returned.
    ///
    /// # Safety
    /// A non-null pointer must own an object that is released only here.
    pub(crate) unsafe fn own(pointer: *mut T) -> Result<Handle<T>> {
        NonNull::new(pointer)
            .map(Handle)
            .ok_or_else(|| Error::internal("ONNX Runtime returned a null object"))
    }

    pub(crate) fn as_ptr(&self) -> *mut T {
        self.0.as_ptr()
    }
}

impl<T: Released> Drop for Handle<T> {
    fn drop(&mut self) {
        // SAFETY: a handle owns its object (see `own`) and is dropped once.
        unsafe { T::release(ort::api())(self.0.as_ptr()) }
    }
}

// SAFETY: the library's objects have no thread of their own; they may be used and released from any
// thread if use is exclusive, which ownership gives.
unsafe impl<T: Released> Send for Handle<T> {}
// SAFETY: a shared handle gives only its address, and code that passes the address to the library
// is responsible for the call. `Session::run` is documented as safe to call at the same time on one
// session; other objects that threads share are only read.
unsafe impl<T: Released> Sync for Handle<T> {}

/// Copies and frees a C string of the library's allocator.
///
/// # Safety
/// `text` must be null or a C string that was allocated by `allocator` and is owned by the caller.
pub(crate) unsafe fn take_string(
    allocator: NonNull<sys::OrtAllocator>,
    text: *mut c_char,
) -> Result<String> {
    if text.is_null() {
        return Ok(String::new());
    }
    // SAFETY: the caller's promise; the copy is made before the string is freed.
    unsafe {
        let copy = CStr::from_ptr(text).to_string_lossy().into_owned();
        call!(Call, AllocatorFree(allocator.as_ptr(), text.cast()))?;
        Ok(copy)
    }
}

/// Leaks an object that the library has taken over.
pub(crate) fn leak<T: Released>(handle: Handle<T>) -> NonNull<T> {
    ManuallyDrop::new(handle).0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_one_line_without_positions() {
        let check = |from: &str, to: &str| assert_eq!(one_line(from), to);
        check(
            "Load model from x.onnx failed:\nProtobuf  parsing\nfailed.",
            "Protobuf parsing failed.",
        );
        check(
            "Non-zero status code returned while running Gather node. Name:'' Status Message: indices element out \
             of data bounds, idx=9 must be within the inclusive range [-4,3]",
            "operator Gather: indices element out of data bounds, idx=9 must be within the inclusive range [-4,3]",
        );
        check(
            "Non-zero status code returned while running Add node. Name:'sum' Status Message: \
             /src/core/element_wise_ops.h:560 void onnxruntime::Broadcast::Append(ptrdiff_t, ptrdiff_t) axis == 1 \
             was false. 3 by 4",
            "operator Add \"sum\": axis == 1 was false. 3 by 4",
        );
        check("", "ONNX Runtime gave no reason");
        assert!(one_line(&"é".repeat(5000)).len() < 2100);
    }

    #[test]
    fn refused_models_have_the_remedy() {
        let check = |from: &str, to: &str| assert_eq!(load_failure(from), to);
        check(
            "Load model from /m/1/model.onnx failed:Fatal error: my.domain:MyOp(-1) is not a registered function/op",
            "my.domain:MyOp(-1) is not a registered function/op: custom operators are not loaded; export the model \
             with standard operators",
        );
        check(
            "Load model from /m/1/model.onnx failed:/src/core/graph/model.cc:256 Model::Model(ModelProto&&, const \
             PathString&) Unsupported model IR version: 99, max supported IR version: 13",
            "Unsupported model IR version: 99, max supported IR version: 13: export the model for an older version \
             of ONNX, or install a newer ONNX Runtime",
        );
        check(
            "Load model from x.onnx failed:Type Error: Type (tensor(double)) of output arg (variable) of node \
             (TreeEnsembleRegressor) does not match expected type (tensor(float)).",
            "Type Error: Type (tensor(double)) of output arg (variable) of node (TreeEnsembleRegressor) does not \
             match expected type (tensor(float)): convert the model with a float32 sample, as in \
             to_onnx(model, X[:1].astype(\"float32\"))",
        );
        check("Load model from x.onnx failed:Protobuf parsing failed.", "Protobuf parsing failed.");
    }

    #[test]
    fn the_phase_decides_the_kind_of_the_error() {
        assert_eq!(kind(code::INVALID_ARGUMENT, "", CallPhase::Run), ErrorKind::InvalidArgument);
        assert_eq!(kind(1, "", CallPhase::Run), ErrorKind::Internal);
        let sizes =
            "Non concat axis dimensions must match: Axis 0 has mismatched dimensions of 2 and 1";
        assert_eq!(kind(1, sizes, CallPhase::Run), ErrorKind::InvalidArgument);
        assert_eq!(kind(1, sizes, CallPhase::Call), ErrorKind::Internal);
        let reused = "Shape mismatch attempting to re-use buffer. {2,1} != {2,2}.";
        assert_eq!(kind(1, reused, CallPhase::Run), ErrorKind::InvalidArgument);
        assert_eq!(kind(code::INVALID_PROTOBUF, "", CallPhase::Load), ErrorKind::DataLoss);
        assert_eq!(kind(10, "", CallPhase::Load), ErrorKind::InvalidArgument);
        assert_eq!(
            kind(code::RUNTIME_EXCEPTION, "std::bad_alloc", CallPhase::Load),
            ErrorKind::ResourceExhausted
        );
    }
}
