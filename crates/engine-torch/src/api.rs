//! The shim's C interface (`engines/torch/millpond_torch.h`) and the one copy that a process opens.

use std::ffi::{CStr, c_char, c_void};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use base::{Error, Result};
use engine::c_path;

use crate::fault;

/// Remedy for an unfit library.
pub(crate) const REMEDY: &str = "run `make torch` in a checkout, or `pip install --upgrade millpond-torch`, or give \
                                 --libtorch PATH";

/// Number of the interface declared below. The header has the same number.
const ABI: i32 = 1;

const OK: i32 = 0;
const NO_DEVICE: i32 = 2;

/// Kinds of `forward`'s arguments: a tensor, or a scalar type.
pub(crate) const TENSOR: i32 = 0;
pub(crate) const INT: i32 = 1;
pub(crate) const FLOAT: i32 = 2;
pub(crate) const BOOL: i32 = 3;

macro_rules! opaque {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        $($(#[$doc])* #[repr(C)] pub(crate) struct $name { _private: [u8; 0] })*
    };
}
opaque! {
    /// A loaded module.
    RawModule,
    /// The output tensors of a run.
    RawAnswer,
    /// One of these tensors.
    RawTensor,
    /// A module being built.
    RawBuilder,
}

/// Read callback of the shim; see `mpt_read`.
pub(crate) type ReadFunction = unsafe extern "C" fn(*mut c_void, u64, *mut c_void, usize) -> usize;

#[repr(C)]
pub(crate) struct RawLoad {
    pub(crate) context: *mut c_void,
    pub(crate) read: ReadFunction,
    pub(crate) bytes: u64,
    pub(crate) arena: *mut c_void,
    pub(crate) arena_bytes: usize,
    pub(crate) cuda: i32,
}

#[repr(C)]
pub(crate) struct RawDescription {
    pub(crate) arena_used: usize,
    pub(crate) stateful: i32,
    pub(crate) arguments: i32,
    pub(crate) results: i32,
    pub(crate) declaration: *const c_char,
}

#[repr(C)]
pub(crate) struct RawArgument {
    pub(crate) name: *const c_char,
    pub(crate) type_text: *const c_char,
    pub(crate) kind: i32,
    pub(crate) optional: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct RawValue {
    pub(crate) data: *const c_void,
    pub(crate) dims: *const i64,
    pub(crate) rank: i32,
    pub(crate) dtype: i32,
    pub(crate) given: i32,
}

#[repr(C)]
pub(crate) struct RawView {
    pub(crate) name: *const c_char,
    pub(crate) data: *const c_void,
    pub(crate) bytes: usize,
    pub(crate) dims: *const i64,
    pub(crate) rank: i32,
    pub(crate) dtype: i32,
}

macro_rules! functions {
    ($($name:ident($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The shim's functions, by their C names.
        pub(crate) struct ShimFunctions { $(pub(crate) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)* }

        impl ShimFunctions {
            /// Looks up every function.
            ///
            /// # Safety
            /// `library` is a handle of `dlopen` that is never closed, and of a shim with this
            /// interface.
            unsafe fn of(library: *mut c_void) -> Result<ShimFunctions, &'static str> {
                Ok(ShimFunctions { $($name: {
                    // SAFETY: the handle is open and the name NUL-terminated.
                    let symbol = unsafe { libc::dlsym(library, concat!(stringify!($name), "\0").as_ptr().cast()) };
                    if symbol.is_null() {
                        return Err(stringify!($name));
                    }
                    // SAFETY: the header declares the symbol of this name as a function of this
                    // type.
                    unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) $(-> $result)?>(symbol) }
                },)* })
            }
        }
    };
}
functions! {
    millpond_torch_version() -> *const c_char;
    millpond_torch_message() -> *const c_char;
    millpond_torch_start() -> i32;
    mpt_module_load(*const RawLoad, *mut *mut RawModule) -> i32;
    mpt_package_load(*const c_char, i32, *mut *mut RawModule) -> i32;
    mpt_module_describe(*const RawModule, *mut RawDescription);
    mpt_module_argument(*const RawModule, i32, *mut RawArgument) -> i32;
    mpt_module_result(*const RawModule, i32) -> *const c_char;
    mpt_module_fork(*const RawModule, *mut *mut RawModule) -> i32;
    mpt_module_drop(*mut RawModule);
    mpt_run(*const RawModule, *const RawValue, usize, i32, *mut *mut RawAnswer) -> i32;
    mpt_answer_count(*const RawAnswer) -> usize;
    mpt_answer_view(*const RawAnswer, usize, *mut RawView);
    mpt_answer_take(*const RawAnswer, usize) -> *mut RawTensor;
    mpt_answer_drop(*mut RawAnswer);
    mpt_tensor_drop(*mut RawTensor);
    mpt_builder_new(*mut *mut RawBuilder) -> i32;
    mpt_builder_tensor(*mut RawBuilder, *const c_char, i32, *const i64, i32, i32, *mut *mut c_void) -> i32;
    mpt_builder_view(*mut RawBuilder, *const c_char, *const c_char, i64, *const i64, i32, i32) -> i32;
    mpt_builder_save(*mut RawBuilder, *const c_char, *const c_char) -> i32;
    mpt_builder_drop(*mut RawBuilder);
}

/// The shim, which stays open until the process ends.
pub(crate) struct ShimLibrary {
    pub(crate) path: PathBuf,
    pub(crate) version: String,
    pub(crate) call: ShimFunctions,
    /// True after a failure of a device that CUDA keeps until the end of the process.
    device_lost: AtomicBool,
}

impl ShimLibrary {
    /// Opens the shim at `path`, and with it LibTorch. Its symbols are not visible to others
    /// (`RTLD_LOCAL`), because libraries of other engines have some of the same names.
    /// `RTLD_DEEPBIND` is not used. It would give LibTorch another `malloc` than the process's.
    ///
    /// # Errors
    /// `FailedPrecondition`, with the remedy, if it does not load or has another interface.
    pub(crate) fn open(path: PathBuf) -> Result<ShimLibrary> {
        let unfit = |why: &str| Error::precondition(format!("{} {why}: {REMEDY}", path.display()));
        let name = c_path(&path)?;
        // SAFETY: the name is NUL-terminated. The library's initialisers are LibTorch's and have no
        // precondition.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            // SAFETY: called on the thread of the failed call; null or a NUL-terminated text of the
            // loader's.
            let why = unsafe { text(libc::dlerror()) };
            return Err(unfit(&format!("does not load ({why})")));
        }
        // SAFETY: the handle is open and the name NUL-terminated.
        let abi = unsafe { libc::dlsym(handle, c"millpond_torch_abi".as_ptr()) };
        if abi.is_null() {
            return Err(unfit("is not Millpond's"));
        }
        // SAFETY: every version of the shim declares this symbol as this function.
        let abi =
            unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> i32>(abi)() };
        if abi != ABI {
            return Err(unfit(&format!("has interface {abi}, this program needs {ABI}")));
        }
        // SAFETY: the handle stays open, and the number says that the interface is the one declared
        // here.
        let call = unsafe { ShimFunctions::of(handle) }
            .map_err(|name| unfit(&format!("has no {name}")))?;
        // SAFETY: the version is static and NUL-terminated.
        let version = unsafe { text((call.millpond_torch_version)()) };
        let library = ShimLibrary { path, version, call, device_lost: AtomicBool::new(false) };
        // LibTorch's own threads inherit the priority of the thread that starts them, and this
        // thread may have low priority.
        os::background::at_ordinary_priority(move || -> Result<ShimLibrary> {
            // SAFETY: the first call, once a process (see `TorchEngine`).
            library.check(unsafe { (library.call.millpond_torch_start)() })?;
            Ok(library)
        })?
    }

    /// Turns the status code of a call on this thread into a result.
    ///
    /// # Errors
    /// The shim's message of the failure.
    pub(crate) fn check(&self, code: i32) -> Result<()> {
        if code == OK {
            return Ok(());
        }
        // SAFETY: the message is NUL-terminated and lives until the next call on this thread.
        let message = unsafe { text((self.call.millpond_torch_message)()) };
        match code {
            NO_DEVICE => {
                Err(Error::precondition(message.split_whitespace().collect::<Vec<_>>().join(" ")))
            }
            _ => {
                let is_lost = fault::loses_device(&message);
                if is_lost && !self.device_lost.swap(true, Ordering::Relaxed) {
                    tracing::error!(
                        "CUDA has failed: this process must be started again to run models on a GPU"
                    );
                }
                Err(fault::error(&message))
            }
        }
    }

    /// Returns true if CUDA has failed for the rest of the process.
    pub(crate) fn has_lost_its_device(&self) -> bool {
        self.device_lost.load(Ordering::Relaxed)
    }
}

/// Returns `pointer`'s text; empty if it is null.
///
/// # Safety
/// It is null or points to a NUL-terminated text that lives through the call.
pub(crate) unsafe fn text(pointer: *const c_char) -> String {
    if pointer.is_null() {
        return String::new();
    }
    // SAFETY: as the caller promises.
    unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned()
}
