//! The loaded library: one per process, kept until the process ends.

use std::ffi::{CStr, c_char, c_void};
use std::path::{Path, PathBuf};
use std::ptr::{NonNull, null_mut};

use base::{Error, Result};
use engine::c_path;
use ort::sys;

use crate::api::{Handle, call, leak};
use crate::library::REMEDY;

/// Variable that keeps ONNX Runtime from sending usage data. `DisableTelemetryEvents` is too late.
/// A new environment of ONNX Runtime 1.31 has already queued an event and started a thread that
/// sends it to Microsoft. It has also written an identifier of the machine to the user's cache.
pub(crate) const DISABLE_TELEMETRY: &str = "ORT_DISABLE_TELEMETRY";

/// Handles of the library that every session needs.
#[derive(Debug)]
pub(crate) struct Runtime {
    pub(crate) path: PathBuf,
    pub(crate) version: String,
    env: NonNull<sys::OrtEnv>,
    memory: NonNull<sys::OrtMemoryInfo>,
    allocator: NonNull<sys::OrtAllocator>,
}

// SAFETY: the environment, the memory description and the default allocator are documented as
// usable from any thread; they are made once, never changed and never released.
unsafe impl Send for Runtime {}
// SAFETY: as above.
unsafe impl Sync for Runtime {}

impl Runtime {
    /// Loads the library at `path` and makes its environment.
    pub(crate) fn load(path: PathBuf) -> Result<Runtime> {
        disable_telemetry();
        // The binding's environment is not used: it would have a logger of its own.
        ort::init_from(&path).map(drop).map_err(|e| unfit(&path, &e))?;
        let mut env = null_mut();
        let mut memory = null_mut();
        let mut allocator = null_mut();
        // SAFETY: out-pointers are valid for the calls, strings are NUL-terminated, the callback
        // has the library's calling convention and never unwinds.
        unsafe {
            let severity = sys::OrtLoggingLevel::ORT_LOGGING_LEVEL_WARNING;
            let name = c"millpond".as_ptr();
            call!(Call, CreateEnvWithCustomLogger(logger(), null_mut(), severity, name, &mut env))?;
            call!(Call, DisableTelemetryEvents(env))?;
            let kind = sys::OrtAllocatorType::OrtDeviceAllocator;
            let place = sys::OrtMemType::OrtMemTypeDefault;
            call!(Call, CreateCpuMemoryInfo(kind, place, &mut memory))?;
            call!(Call, GetAllocatorWithDefaultOptions(&mut allocator))?;
        }
        let allocator = NonNull::new(allocator)
            .ok_or_else(|| Error::internal("ONNX Runtime has no allocator"))?;
        // SAFETY: both were just returned to us as owned. They are never released, because sessions
        // and responses may use them until the process ends.
        let (env, memory) = unsafe { (leak(Handle::own(env)?), leak(Handle::own(memory)?)) };
        Ok(Runtime { version: version(&path)?, path, env, memory, allocator })
    }

    pub(crate) fn env(&self) -> *mut sys::OrtEnv {
        self.env.as_ptr()
    }

    /// Returns the description of the processor's memory.
    pub(crate) fn memory(&self) -> *const sys::OrtMemoryInfo {
        self.memory.as_ptr()
    }

    /// Returns the allocator of strings and string tensors.
    pub(crate) fn allocator(&self) -> NonNull<sys::OrtAllocator> {
        self.allocator
    }
}

/// Sets [`DISABLE_TELEMETRY`] before the library reads it, also for worker processes. Does nothing
/// if it is set.
pub(crate) fn disable_telemetry() {
    if std::env::var_os(DISABLE_TELEMETRY).is_none_or(|value| value != "1") {
        // SAFETY: the standard library's lock keeps readers in Rust away. A reader in C could use
        // the array of variables, which a change may free. A program makes its engine while it
        // starts, before it loads a model or serves, so that no thread reads variables in C then.
        // Later calls change nothing.
        unsafe { std::env::set_var(DISABLE_TELEMETRY, "1") };
    }
}

/// Returns the error for an unfit library, with the remedy.
fn unfit(path: &Path, error: &ort::LoadDynamicError) -> Error {
    let path = path.display();
    let why = match error {
        ort::LoadDynamicError::BadVersion { version_str, .. } => {
            format!("is version {version_str}, Millpond needs 1.{} or later", ort::MINOR_VERSION)
        }
        ort::LoadDynamicError::MissingApi { .. } => {
            "is not ONNX Runtime (it does not export OrtGetApiBase)".to_owned()
        }
        ort::LoadDynamicError::InvalidVersionString => "does not say its version".to_owned(),
        ort::LoadDynamicError::Dlopen { error, .. } => {
            format!(
                "does not load ({})",
                error.to_string().split_whitespace().collect::<Vec<_>>().join(" ")
            )
        }
    };
    Error::precondition(format!("ONNX Runtime at {path} {why}: {REMEDY}"))
}

/// Returns the version of the library at `path`, which is loaded already.
fn version(path: &Path) -> Result<String> {
    type GetApiBase = unsafe extern "system" fn() -> *const sys::OrtApiBase;
    let name = c_path(path)?;
    // SAFETY: both names are NUL-terminated. The library is loaded and stays so, hence opening it
    // again runs no initialiser and the handle may be kept open for ever.
    let symbol = unsafe {
        let library = libc::dlopen(name.as_ptr(), libc::RTLD_NOW);
        if library.is_null() { null_mut() } else { libc::dlsym(library, c"OrtGetApiBase".as_ptr()) }
    };
    if symbol.is_null() {
        return Err(Error::internal(format!(
            "{} was loaded and does not open again",
            path.display()
        )));
    }
    // SAFETY: the symbol is the library's documented entry point of exactly this type; the base it
    // returns and the version's text are static.
    unsafe {
        let base = std::mem::transmute::<*mut c_void, GetApiBase>(symbol)();
        Ok(CStr::from_ptr(((*base).GetVersionString)()).to_string_lossy().into_owned())
    }
}

/// Returns the callback in the binding's type.
fn logger() -> sys::OrtLoggingFunction {
    // SAFETY: the types differ in the severity only. It is an enum of representation i32 there and
    // an i32 here, so a severity that the binding does not know is not undefined behaviour.
    unsafe { std::mem::transmute::<LogFunction, sys::OrtLoggingFunction>(log) }
}

type LogFunction = unsafe extern "system" fn(
    *mut c_void,
    i32,
    *const c_char,
    *const c_char,
    *const c_char,
    *const c_char,
);

/// Writes the library's messages to the program's log. Its warnings are about the export of a
/// model, and come with every load or every run. They need no action, so they have the level debug.
unsafe extern "system" fn log(
    _: *mut c_void,
    severity: i32,
    _category: *const c_char,
    model: *const c_char,
    _location: *const c_char,
    message: *const c_char,
) {
    // A subscriber that panics must not unwind into C++.
    let _ = std::panic::catch_unwind(|| {
        let text = |pointer: *const c_char| {
            if pointer.is_null() {
                return String::new();
            }
            // SAFETY: the library passes NUL-terminated strings that live until the call returns.
            unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned()
        };
        let message = text(message).split_whitespace().collect::<Vec<_>>().join(" ");
        let model = text(model);
        // Errors too: the call returns the same text as its status, and a client with invalid
        // requests must not fill the log.
        tracing::debug!(target: "onnxruntime", severity, model, "{message}");
    });
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Counts events, then panics.
    struct Panicking(Arc<AtomicUsize>);

    impl tracing::Subscriber for Panicking {
        fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
            true
        }
        fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
            tracing::span::Id::from_u64(1)
        }
        fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
        fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
        fn event(&self, _: &tracing::Event<'_>) {
            self.0.fetch_add(1, Ordering::SeqCst);
            panic!("a broken subscriber");
        }
        fn enter(&self, _: &tracing::span::Id) {}
        fn exit(&self, _: &tracing::span::Id) {}
    }

    #[test]
    fn a_message_is_passed_on_and_a_panic_is_not() {
        let events = Arc::new(AtomicUsize::new(0));
        tracing::subscriber::with_default(Panicking(events.clone()), || {
            for severity in [0, 2, 3, 4, 99] {
                // SAFETY: the strings are null or NUL-terminated and live through the call.
                unsafe {
                    log(
                        null_mut(),
                        severity,
                        std::ptr::null(),
                        c"model".as_ptr(),
                        std::ptr::null(),
                        c"two\nlines".as_ptr(),
                    );
                }
            }
        });
        assert_eq!(events.load(Ordering::SeqCst), 5);
    }
}
