//! NVRTC, the compiler for kernels, opened at run time.
//!
//! `cudarc` has bindings too, but they find NVRTC only by name and panic if it is missing.

use std::ffi::{CStr, CString, OsStr, OsString, c_char, c_int, c_void};
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};

use base::{Error, Result};
use libloading::Library;

/// File names of the library for the loader, newest first.
const NAMES: [&str; 5] =
    ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2", "libnvrtc.so", "nvrtc.dll"];
/// Folders of packages that the loader does not always search.
const FOLDERS: [&str; 2] = ["/usr/local/cuda/lib64", "/opt/cuda/lib64"];
/// Folders of NVIDIA's wheels below `$VIRTUAL_ENV/lib/python*/site-packages`.
const WHEEL_FOLDERS: [&str; 3] = ["nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib", "nvidia/cu12/lib"];
/// Maximum bytes of a log or a program that are accepted.
const OUTPUT_BYTES_MAX: usize = 64 << 20;
/// Maximum architectures that a library may report.
const ARCHITECTURES_MAX: c_int = 1024;
/// Maximum characters of the compiler's log in an error.
const LOG_BYTES_MAX: usize = 4096;
/// `NVRTC_SUCCESS`.
const SUCCESS: c_int = 0;
/// `NVRTC_ERROR_INVALID_OPTION`: among others, an architecture that this NVRTC does not know.
const INVALID_OPTION: c_int = 5;

type Program = *mut c_void;
type VersionQuery = unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int;
type NumberQuery = unsafe extern "C" fn(*mut c_int) -> c_int;
type Size = unsafe extern "C" fn(Program, *mut usize) -> c_int;
type Text = unsafe extern "C" fn(Program, *mut c_char) -> c_int;
type Create = unsafe extern "C" fn(
    *mut Program,
    *const c_char,
    *const c_char,
    c_int,
    *const *const c_char,
    *const *const c_char,
) -> c_int;

/// Target of a compilation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompileTarget {
    /// Machine code of one architecture: 90 for compute capability 9.0. Any driver of the same
    /// major version of CUDA loads it.
    Machine(u32),
    /// Intermediate code that the driver finishes for this architecture and later ones.
    Intermediate(u32),
}

/// A compiled program: machine code, or intermediate code as text.
#[derive(Clone, Debug)]
pub struct CompiledCode {
    /// Target of the compilation.
    pub target: CompileTarget,
    /// The code; text ends with a zero byte.
    pub bytes: Vec<u8>,
    /// Warnings of the compiler; empty without any.
    pub log: String,
}

/// Driver and device that the compiled code is for. `None` accepts each library.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompilerNeeds {
    /// Latest major version of CUDA that the driver supports. The driver refuses machine code of a
    /// library of a later one.
    pub driver_major: Option<u32>,
    /// Compute capability of the device, times ten. NVRTC 13 does not compile for those below 75.
    pub capability: Option<u32>,
}

/// Search path of the library.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CompilerSearch {
    /// The library or its folder. If given, nothing else is tried.
    pub explicit: Option<PathBuf>,
    /// The active virtual environment of Python: NVIDIA's wheels may have installed the library
    /// there.
    pub virtual_env: Option<PathBuf>,
}

impl CompilerSearch {
    /// Returns the files and names to try: by name, in the usual folders, in the wheels.
    fn candidates(&self) -> Vec<OsString> {
        let named =
            |folder: PathBuf| NAMES.iter().map(move |name| folder.join(name).into_os_string());
        if let Some(path) = &self.explicit {
            return if path.is_dir() {
                named(path.clone()).collect()
            } else {
                vec![path.clone().into_os_string()]
            };
        }
        let mut candidates: Vec<OsString> =
            NAMES.iter().map(|name| OsString::from(*name)).collect();
        candidates.extend(FOLDERS.iter().flat_map(|folder| named(PathBuf::from(folder))));
        let libraries = self
            .virtual_env
            .iter()
            .flat_map(|root| std::fs::read_dir(root.join("lib")))
            .flatten()
            .flatten();
        for folder in
            libraries.filter(|folder| folder.file_name().to_string_lossy().starts_with("python"))
        {
            let packages = folder.path().join("site-packages");
            candidates.extend(WHEEL_FOLDERS.iter().flat_map(|wheel| named(packages.join(wheel))));
        }
        candidates
    }
}

/// Returns the error for a file that the loader refuses, with the loader's reason.
fn does_not_load(path: &OsStr, error: libloading::Error) -> Error {
    use std::error::Error as _;
    let why = error.source().map_or_else(|| error.to_string(), |source| source.to_string());
    let path = Path::new(path).display();
    Error::precondition(format!(
        "NVIDIA's run-time compiler (libnvrtc) at {path} does not load ({why}); install it for this processor"
    ))
    .with_source(error)
}

/// The opened library.
#[derive(Debug)]
pub struct Nvrtc {
    /// The library, which is never closed, because NVIDIA's libraries register handlers for the end
    /// of the process.
    library: ManuallyDrop<Library>,
    found: String,
}

impl Nvrtc {
    /// Finds and opens the first library that has no shortcoming for this driver and device,
    /// otherwise the one with the smallest shortcoming.
    ///
    /// # Errors
    /// `NotFound`, naming the package to install; `FailedPrecondition` if a file is there and does
    /// not load.
    pub fn open(search: &CompilerSearch, needs: CompilerNeeds) -> Result<Nvrtc> {
        let candidates = search.candidates();
        let mut unfit = None;
        let mut best: Option<(u32, Nvrtc)> = None;
        for candidate in &candidates {
            // SAFETY: NVRTC's initialisers set up its own state only; candidates are NVRTC by name.
            match unsafe { Library::new(candidate) } {
                Ok(library) => {
                    let opened = Nvrtc {
                        library: ManuallyDrop::new(library),
                        found: candidate.to_string_lossy().into_owned(),
                    };
                    let shortcoming = opened.shortcoming(needs);
                    if shortcoming == 0 {
                        return Ok(opened);
                    }
                    if best.as_ref().is_none_or(|(least, _)| shortcoming < *least) {
                        best = Some((shortcoming, opened));
                    }
                }
                // The loader has the same error for a file that is missing.
                Err(error) if unfit.is_none() && Path::new(candidate).is_file() => {
                    unfit = Some(does_not_load(candidate, error));
                }
                Err(_) => {}
            }
        }
        if let Some((_, opened)) = best {
            return Ok(opened);
        }
        Err(unfit.unwrap_or_else(|| {
            Error::not_found(format!(
                "NVIDIA's run-time compiler (libnvrtc) was not found in {} places; install it (Debian: libnvrtc12, \
                 Python: nvidia-cuda-nvrtc-cu12) or name its file",
                candidates.len()
            ))
        }))
    }

    /// Returns 0 if the library fits, 1 if the driver may refuse its code, and more if it does not
    /// compile for the device.
    fn shortcoming(&self, needs: CompilerNeeds) -> u32 {
        let is_later = self.major().zip(needs.driver_major).is_some_and(|(own, max)| own > max);
        let is_old_device = needs
            .capability
            .zip(self.first_architecture())
            .is_some_and(|(capability, first)| capability < first);
        u32::from(is_later) + 2 * u32::from(is_old_device)
    }

    /// Returns the lowest compute capability that the library compiles for, times ten. `None` if it
    /// does not tell, as before CUDA 11.2.
    fn first_architecture(&self) -> Option<u32> {
        let mut count = 0;
        // SAFETY: both signatures are those in NVRTC's documentation.
        let (count_query, list_query) = unsafe {
            (
                self.function::<NumberQuery>(c"nvrtcGetNumSupportedArchs").ok()?,
                self.function::<NumberQuery>(c"nvrtcGetSupportedArchs").ok()?,
            )
        };
        // SAFETY: the number goes to a number.
        let code = unsafe { count_query(&mut count) };
        if code != SUCCESS || !(1..=ARCHITECTURES_MAX).contains(&count) {
            return None;
        }
        let mut architectures = vec![0; usize::try_from(count).ok()?];
        // SAFETY: the list has the number of elements that NVRTC reported.
        let code = unsafe { list_query(architectures.as_mut_ptr()) };
        if code != SUCCESS {
            return None;
        }
        architectures.into_iter().min().and_then(|first: c_int| u32::try_from(first).ok())
    }

    /// Returns the major version of CUDA that the library belongs to, if it tells.
    fn major(&self) -> Option<u32> {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: the signature is the one in NVRTC's documentation.
        let version = unsafe { self.function::<VersionQuery>(c"nvrtcVersion") }.ok()?;
        // SAFETY: both numbers go to numbers.
        let code = unsafe { version(&mut major, &mut minor) };
        if code == SUCCESS { u32::try_from(major).ok() } else { None }
    }

    /// Returns the name or path by which the library was opened.
    pub fn found(&self) -> &str {
        &self.found
    }

    /// Compiles the kernels.
    ///
    /// # Errors
    /// `Unimplemented` if this NVRTC does not know the architecture; `Internal` with the
    /// compiler's log.
    pub fn compile(&self, target: CompileTarget) -> Result<CompiledCode> {
        let source = CString::new(crate::SOURCE)
            .map_err(|error| Error::internal("the kernels hold a zero byte").with_source(error))?;
        let mut program: Program = std::ptr::null_mut();
        // SAFETY: the signature is the one in NVRTC's documentation.
        let create = unsafe { self.function::<Create>(c"nvrtcCreateProgram") }?;
        // SAFETY: both texts end with a zero and live over the call; there are no headers.
        let code = unsafe {
            create(
                &mut program,
                source.as_ptr(),
                c"kernels.cu".as_ptr(),
                0,
                std::ptr::null(),
                std::ptr::null(),
            )
        };
        self.check(code, "accept the kernels")?;
        let image = self.compile_program(program, target);
        // SAFETY: the signature is the one in NVRTC's documentation.
        let destroy = unsafe {
            self.function::<unsafe extern "C" fn(*mut Program) -> c_int>(c"nvrtcDestroyProgram")
        }?;
        // SAFETY: the program was made above and is not used again. A failure to free it has no
        // effect.
        unsafe { destroy(&mut program) };
        image
    }

    /// Compiles `program` and copies the code out of it.
    fn compile_program(&self, program: Program, target: CompileTarget) -> Result<CompiledCode> {
        let (architecture, size, text) = match target {
            CompileTarget::Machine(number) => {
                (format!("sm_{number}"), c"nvrtcGetCUBINSize", c"nvrtcGetCUBIN")
            }
            CompileTarget::Intermediate(number) => {
                (format!("compute_{number}"), c"nvrtcGetPTXSize", c"nvrtcGetPTX")
            }
        };
        let options = [format!("--gpu-architecture={architecture}"), "--std=c++17".to_owned()];
        let options = options.map(|option| CString::new(option).unwrap_or_default());
        let pointers = options.each_ref().map(|option| option.as_ptr());
        // SAFETY: the signature is the one in NVRTC's documentation.
        let compile = unsafe {
            self.function::<unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int>(
                c"nvrtcCompileProgram",
            )
        }?;
        // SAFETY: the program lives. The array holds the stated number of texts, which live over
        // the call.
        let code = unsafe { compile(program, pointers.len() as c_int, pointers.as_ptr()) };
        if code == INVALID_OPTION {
            return Err(Error::unimplemented(format!(
                "{} does not compile for {architecture}; install another major version of it (NVRTC 12 for GPUs \
                 before Turing)",
                self.found
            )));
        }
        let log = self.output(program, c"nvrtcGetProgramLogSize", c"nvrtcGetProgramLog")?;
        let log = String::from_utf8_lossy(&log).trim_end_matches('\0').trim().to_owned();
        if code != SUCCESS {
            let log: String = log.chars().take(LOG_BYTES_MAX).collect();
            return Err(Error::internal(format!(
                "{} refused our kernels (code {code}): {log}",
                self.found
            )));
        }
        Ok(CompiledCode { target, bytes: self.output(program, size, text)?, log })
    }

    /// Returns the log or the code of a program.
    fn output(&self, program: Program, size: &CStr, text: &CStr) -> Result<Vec<u8>> {
        let mut bytes = 0;
        // SAFETY: both signatures are those in NVRTC's documentation.
        let (size, text) = unsafe { (self.function::<Size>(size)?, self.function::<Text>(text)?) };
        // SAFETY: the program lives, and the size goes to a size.
        self.check(unsafe { size(program, &mut bytes) }, "report the size of its output")?;
        if bytes > OUTPUT_BYTES_MAX {
            return Err(Error::internal(format!(
                "NVRTC reports {bytes} bytes of code, which is impossible"
            )));
        }
        let mut out = vec![0_u8; bytes];
        // SAFETY: the program lives, and the buffer holds the number of bytes that NVRTC reported.
        self.check(unsafe { text(program, out.as_mut_ptr().cast()) }, "return its output")?;
        Ok(out)
    }

    fn check(&self, code: c_int, what: &str) -> Result<()> {
        match code {
            SUCCESS => Ok(()),
            _ => Err(Error::internal(format!("{} failed to {what} (code {code})", self.found))),
        }
    }

    /// # Safety
    /// `T` is the function's true signature, and the result is not kept longer than the library.
    unsafe fn function<T: Copy>(&self, name: &CStr) -> Result<T> {
        // SAFETY: as the caller promises.
        let found = unsafe { self.library.get::<T>(name.to_bytes_with_nul()) };
        found.map(|function| *function).map_err(|error| {
            Error::unimplemented(format!(
                "{} has no {}; it is too old: install a newer version",
                self.found,
                name.to_string_lossy()
            ))
            .with_source(error)
        })
    }
}
