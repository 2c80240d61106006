//! The part of TensorFlow's C interface that the engine uses, opened at run time.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr::slice_from_raw_parts;

use base::{Error, Result};
use bytes::Bytes;

/// Python package of the library, with the version that the tests use.
pub(crate) const REQUIREMENT: &str = "tensorflow-cpu==2.21.0";
/// Remedy for an unfit library.
pub(crate) const REMEDY: &str = "run `make tensorflow` in a checkout, or `pip install tensorflow-cpu==2.21.0` in the \
                                 server's virtual environment, or name another with --tensorflow";
/// Oldest version whose interface is the one declared here.
const VERSION_MIN: (u32, u32) = (2, 11);

/// File with the C interface.
pub(crate) const LIBRARY: &str = "libtensorflow_cc.so.2";
/// File that the first needs.
pub(crate) const FRAMEWORK: &str = "libtensorflow_framework.so.2";

/// Settings that TensorFlow reads from the environment only. A variable that is set already keeps
/// its value.
pub(crate) const VARIABLES: [(&str, &str); 2] = [
    // Only errors on standard error.
    ("TF_CPP_MIN_LOG_LEVEL", "2"),
    // Without it, all sessions share the operator threads of the first session.
    ("TF_OVERRIDE_GLOBAL_THREADPOOL", "1"),
];

macro_rules! opaque {
    ($($name:ident)*) => { $(#[repr(C)] pub(crate) struct $name { _private: [u8; 0] })* };
}
opaque! { RawStatus RawTensor RawGraph RawSession RawSessionOptions RawOperation RawDescription RawImport }

/// `TF_Output`: one output of an operation.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct RawOutput {
    pub(crate) operation: *mut RawOperation,
    pub(crate) index: c_int,
}

/// `TF_Buffer`.
#[repr(C)]
pub(crate) struct RawBuffer {
    pub(crate) data: *const c_void,
    pub(crate) length: usize,
    pub(crate) free: Option<unsafe extern "C" fn(*mut c_void, usize)>,
}

/// `TF_TString`: 24 bytes that only the library's functions read.
#[repr(C, align(8))]
pub(crate) struct RawString([u8; 24]);

/// Function that releases the memory of a tensor: data, length, argument.
pub(crate) type Deallocator = unsafe extern "C" fn(*mut c_void, usize, *mut c_void);

macro_rules! functions {
    ($($name:ident($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// Functions of the library, by their names in C.
        #[expect(non_snake_case, reason = "the names of the C interface")]
        pub(crate) struct Functions { $(pub(crate) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)* }

        impl Functions {
            /// Finds all functions. `Err` has the name of the first missing function.
            ///
            /// # Safety
            /// `library` is a handle of `dlopen` that is never closed, and of a TensorFlow with
            /// this interface.
            unsafe fn of(library: *mut c_void) -> Result<Functions, &'static str> {
                Ok(Functions { $($name: {
                    // SAFETY: the handle is open and the name NUL-terminated.
                    let symbol = unsafe { libc::dlsym(library, concat!(stringify!($name), "\0").as_ptr().cast()) };
                    if symbol.is_null() {
                        return Err(stringify!($name));
                    }
                    // SAFETY: c_api.h declares the symbol of this name as a function of this type.
                    unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) $(-> $result)?>(symbol) }
                },)* })
            }
        }
    };
}
functions! {
    TF_Version() -> *const c_char;
    TF_NewStatus() -> *mut RawStatus;
    TF_DeleteStatus(*mut RawStatus);
    TF_GetCode(*const RawStatus) -> c_int;
    TF_Message(*const RawStatus) -> *const c_char;
    TF_NewTensor(c_int, *const i64, c_int, *mut c_void, usize, Deallocator, *mut c_void) -> *mut RawTensor;
    TF_AllocateTensor(c_int, *const i64, c_int, usize) -> *mut RawTensor;
    TF_DeleteTensor(*mut RawTensor);
    TF_TensorType(*const RawTensor) -> c_int;
    TF_NumDims(*const RawTensor) -> c_int;
    TF_Dim(*const RawTensor, c_int) -> i64;
    TF_TensorByteSize(*const RawTensor) -> usize;
    TF_TensorData(*const RawTensor) -> *mut c_void;
    TF_TensorFromProto(*const RawBuffer, *mut RawTensor, *mut RawStatus);
    TF_StringInit(*mut RawString);
    TF_StringCopy(*mut RawString, *const c_char, usize);
    TF_StringDealloc(*mut RawString);
    TF_StringGetDataPointer(*const RawString) -> *const c_char;
    TF_StringGetSize(*const RawString) -> usize;
    TF_NewGraph() -> *mut RawGraph;
    TF_DeleteGraph(*mut RawGraph);
    TF_NewImportGraphDefOptions() -> *mut RawImport;
    TF_DeleteImportGraphDefOptions(*mut RawImport);
    TF_GraphImportGraphDef(*mut RawGraph, *const RawBuffer, *const RawImport, *mut RawStatus);
    TF_GraphOperationByName(*mut RawGraph, *const c_char) -> *mut RawOperation;
    TF_OperationNumOutputs(*mut RawOperation) -> c_int;
    TF_NewOperation(*mut RawGraph, *const c_char, *const c_char) -> *mut RawDescription;
    TF_AddInput(*mut RawDescription, RawOutput);
    TF_SetAttrType(*mut RawDescription, *const c_char, c_int);
    TF_FinishOperation(*mut RawDescription, *mut RawStatus) -> *mut RawOperation;
    TF_NewSessionOptions() -> *mut RawSessionOptions;
    TF_DeleteSessionOptions(*mut RawSessionOptions);
    TF_SetConfig(*mut RawSessionOptions, *const c_void, usize, *mut RawStatus);
    TF_NewSession(*mut RawGraph, *const RawSessionOptions, *mut RawStatus) -> *mut RawSession;
    TF_LoadSessionFromSavedModel(*const RawSessionOptions, *const RawBuffer, *const c_char, *const *const c_char, c_int,
        *mut RawGraph, *mut RawBuffer, *mut RawStatus) -> *mut RawSession;
    TF_CloseSession(*mut RawSession, *mut RawStatus);
    TF_DeleteSession(*mut RawSession, *mut RawStatus);
    TF_SessionRun(*mut RawSession, *const RawBuffer, *const RawOutput, *const *mut RawTensor, c_int, *const RawOutput,
        *mut *mut RawTensor, c_int, *const *const RawOperation, c_int, *mut RawBuffer, *mut RawStatus);
    TF_GetAllOpList() -> *mut RawBuffer;
    TF_DeleteBuffer(*mut RawBuffer);
}

/// The library, which stays open until the process ends.
pub(crate) struct TensorFlowLibrary {
    /// Directory of the package.
    pub(crate) path: PathBuf,
    pub(crate) version: String,
    pub(crate) call: Functions,
}

impl TensorFlowLibrary {
    /// Opens the two libraries of the package in `dir`. The first has symbols that the second takes
    /// from all open libraries, so it is opened globally. `RTLD_DEEPBIND` is not used. It would
    /// give TensorFlow another `malloc` than the process's.
    ///
    /// # Errors
    /// `FailedPrecondition`, with the remedy, if they do not load or are too old.
    pub(crate) fn open(dir: &Path) -> Result<TensorFlowLibrary> {
        let unfit =
            |why: String| Error::precondition(format!("{}: {why}: {REMEDY}", dir.display()));
        set_variables();
        open(&dir.join(FRAMEWORK), libc::RTLD_GLOBAL).map_err(unfit)?;
        let handle = open(&dir.join(LIBRARY), libc::RTLD_LOCAL).map_err(unfit)?;
        // SAFETY: the handle stays open; the version that follows says that the interface fits.
        let call =
            unsafe { Functions::of(handle) }.map_err(|name| unfit(format!("has no {name}")))?;
        // SAFETY: the version is static and NUL-terminated.
        let version = unsafe { text((call.TF_Version)()) };
        let mut numbers = version.split('.').map(|number| number.parse().unwrap_or(0));
        let found = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        if found.0 != VERSION_MIN.0 || found < VERSION_MIN {
            return Err(unfit(format!("is TensorFlow {version}, and 2.11 or later is needed")));
        }
        Ok(TensorFlowLibrary { path: dir.to_owned(), version, call })
    }

    /// Returns the operators of the library, as its message.
    pub(crate) fn operators(&self) -> Bytes {
        // SAFETY: the buffer is ours, and copied before it is deleted.
        unsafe {
            let buffer = (self.call.TF_GetAllOpList)();
            let data = slice_from_raw_parts((*buffer).data.cast::<u8>(), (*buffer).length);
            let bytes = Bytes::copy_from_slice(&*data);
            (self.call.TF_DeleteBuffer)(buffer);
            bytes
        }
    }

    /// Calls `work` with a status and returns its result, or the status's code and message.
    pub(crate) fn call<T>(
        &self,
        work: impl FnOnce(*mut RawStatus) -> T,
        fault: fn(i32, &str) -> Error,
    ) -> Result<T> {
        let status = StatusHandle::new(self);
        let result = work(status.raw);
        // SAFETY: the status is alive.
        match unsafe { (self.call.TF_GetCode)(status.raw) } {
            0 => Ok(result),
            // SAFETY: as above; the message is NUL-terminated and lives until the status is
            // deleted.
            code => Err(fault(code, &unsafe { text((self.call.TF_Message)(status.raw)) })),
        }
    }
}

struct StatusHandle<'a> {
    library: &'a TensorFlowLibrary,
    raw: *mut RawStatus,
}

impl StatusHandle<'_> {
    fn new(library: &TensorFlowLibrary) -> StatusHandle<'_> {
        // SAFETY: needs nothing; the result is ours and never null.
        StatusHandle { library, raw: unsafe { (library.call.TF_NewStatus)() } }
    }
}

impl Drop for StatusHandle<'_> {
    fn drop(&mut self) {
        // SAFETY: ours, and dropped once.
        unsafe { (self.library.call.TF_DeleteStatus)(self.raw) };
    }
}

/// Sets those of [`VARIABLES`] that are not set, before the library reads them.
pub(crate) fn set_variables() {
    for (name, value) in VARIABLES {
        if std::env::var_os(name).is_none() {
            // SAFETY: the standard library's lock keeps readers in Rust away. A reader in C could
            // use the array of variables, which a change may free. A program makes its engine while
            // it starts, before it loads a model or serves, so that no thread reads variables in C
            // then. Later calls change nothing.
            unsafe { std::env::set_var(name, value) };
        }
    }
}

fn open(path: &Path, visibility: c_int) -> Result<*mut c_void, String> {
    let name = CString::new(path.as_os_str().as_bytes())
        .map_err(|_| "the path holds a NUL byte".to_owned())?;
    // SAFETY: the name is NUL-terminated. The initialisers are TensorFlow's and have no
    // precondition.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | visibility) };
    if handle.is_null() {
        // SAFETY: called on the thread of the failed call; null or a NUL-terminated text.
        return Err(format!("does not load ({})", unsafe { text(libc::dlerror()) }));
    }
    Ok(handle)
}

/// Returns `pointer`'s text; empty if it is null.
///
/// # Safety
/// It is null or points to a NUL-terminated text that lives through the call.
unsafe fn text(pointer: *const c_char) -> String {
    if pointer.is_null() {
        return String::new();
    }
    // SAFETY: as the caller promises.
    unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned()
}
