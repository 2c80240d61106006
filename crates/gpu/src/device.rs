//! The device: driver, context, compiled kernels.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use base::{Error, Result};
use cudarc::driver::result::device::get_default_mem_pool;
use cudarc::driver::result::mem_pool::set_attribute;
use cudarc::driver::sys::{self, CUdevice_attribute_enum as Attribute, CUresult};
use cudarc::driver::{CudaContext, CudaFunction, CudaModule, CudaStream, DriverError};
use cudarc::nvrtc::Ptx;

use crate::budget::RowBudget;
use crate::nvrtc::{CompileTarget, CompilerNeeds, CompilerSearch, Nvrtc};
use crate::plan::Coding;

/// Index of the device: the first device that the driver shows (`CUDA_VISIBLE_DEVICES` selects it).
const ORDINAL: usize = 0;
/// Minimum compute capability, times ten: products of four bytes in one instruction.
const CAPABILITY_MIN: u32 = 61;
/// Compute capability to compile for if the compiler does not know the device. Later devices run
/// code of earlier ones.
const CAPABILITY_KNOWN: u32 = 80;
/// Freed device memory that the driver keeps for the next search, in bytes. Without it, the driver
/// gives the buffers of a search back to the device at its end and maps them anew for the next.
const KEPT_BYTES: u64 = 64 << 20;
/// Maximum share of the free device memory that rows may take, in percent. Searches and other
/// programs need some too.
const DEVICE_PERCENT_MAX: u64 = 80;

/// Resources of the GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuOptions {
    /// Search path of the run-time compiler.
    pub compiler: CompilerSearch,
    /// Maximum device memory for rows, in bytes; also at most 80 % of the free memory.
    pub device_bytes_max: u64,
    /// Maximum pinned host memory for rows that do not fit the device, in bytes.
    pub pinned_bytes_max: u64,
}

impl Default for GpuOptions {
    fn default() -> GpuOptions {
        GpuOptions {
            compiler: CompilerSearch::default(),
            device_bytes_max: u64::MAX,
            pinned_bytes_max: 0,
        }
    }
}

/// An opened device, shared by all threads. Searches go through one queue of the device.
pub struct Gpu {
    pub(crate) context: Arc<CudaContext>,
    pub(crate) stream: Arc<CudaStream>,
    ranks: Vec<((Coding, usize), CudaFunction)>,
    pub(crate) merge: CudaFunction,
    pub(crate) processors: usize,
    /// Budget of the device memory for rows.
    pub(crate) device_budget: Arc<RowBudget>,
    /// Budget of the pinned host memory for rows.
    pub(crate) pinned_budget: Arc<RowBudget>,
    /// Number of queries that ran in a search of another thread.
    pub(crate) joined: AtomicU64,
    /// Set by the first error other than a lack of memory. The context survives few errors, so the
    /// device is not used again.
    broken: AtomicBool,
    name: String,
}

impl std::fmt::Debug for Gpu {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Gpu").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Gpu {
    /// Opens the driver and the first device and compiles the kernels for it, which takes about a
    /// second.
    ///
    /// # Errors
    /// `NotFound` naming a missing driver, device or compiler; `FailedPrecondition` if the compiler
    /// does not load; `Unimplemented` if the device is too old; `Internal` with the message of the
    /// driver or the compiler.
    pub fn open(options: &GpuOptions) -> Result<Arc<Gpu>> {
        // SAFETY: the driver's initialisers set up its own state only; this is the library's
        // documented use.
        if !unsafe { sys::is_culib_present() } {
            return Err(Error::not_found(
                "NVIDIA's driver (libcuda) was not found; install the driver, or start the container with its GPUs",
            ));
        }
        // The bindings panic if the driver lacks a function.
        let opened = catch_unwind(AssertUnwindSafe(|| Gpu::with_driver(options)));
        opened.unwrap_or_else(|_| {
            Err(Error::internal("NVIDIA's driver lacks a function; install a newer driver"))
        })
    }

    /// Opens the GPU and compiles its kernels.
    ///
    /// # Errors
    /// `NotFound` without a GPU; `Unimplemented` for a GPU that is too old; the errors of
    /// [`Nvrtc::open`].
    fn with_driver(options: &GpuOptions) -> Result<Arc<Gpu>> {
        let context = CudaContext::new(ORDINAL).map_err(|error| match error.0 {
            CUresult::CUDA_ERROR_NO_DEVICE | CUresult::CUDA_ERROR_INVALID_DEVICE => {
                Error::not_found("the driver is there, but it shows no GPU (CUDA_VISIBLE_DEVICES?)")
            }
            _ => driver_error(error).context("the GPU cannot be opened"),
        })?;
        let (major, minor) = context.compute_capability().map_err(driver_error)?;
        let capability = u32::try_from(major * 10 + minor).unwrap_or(0);
        if capability < CAPABILITY_MIN {
            return Err(Error::unimplemented(format!(
                "the GPU has compute capability {major}.{minor}; 6.1 is needed (Pascal, 2016)"
            )));
        }
        let needs = CompilerNeeds { driver_major: driver_major(), capability: Some(capability) };
        let compiler = Nvrtc::open(&options.compiler, needs)?;
        let module = load(&context, &compiler, capability)?;
        let function = |name: &str| module.load_function(name).map_err(driver_error);
        let mut ranks = Vec::new();
        for coding in [Coding::Bytes, Coding::Bfloats] {
            for group in [1, 2, 4, 8] {
                ranks.push(((coding, group), function(&coding.kernel(group))?));
            }
        }
        let attribute = Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
        let processors = context.attribute(attribute).map_err(driver_error)?;
        keep_freed_memory(&context).map_err(driver_error)?;
        let name = context.name().map_err(driver_error)?;
        Ok(Arc::new(Gpu {
            stream: context.default_stream(),
            merge: function("merge_lists")?,
            ranks,
            processors: usize::try_from(processors).unwrap_or(1).max(1),
            device_budget: RowBudget::new(options.device_bytes_max),
            pinned_budget: RowBudget::new(options.pinned_bytes_max),
            joined: AtomicU64::new(0),
            broken: AtomicBool::new(false),
            name,
            context,
        }))
    }

    /// Returns the name of the device.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the number of bytes of rows in the memory of the device.
    pub fn device_bytes(&self) -> u64 {
        self.device_budget.used()
    }

    /// Returns the number of bytes of rows in pinned host memory.
    pub fn pinned_bytes(&self) -> u64 {
        self.pinned_budget.used()
    }

    /// Returns the number of queries that ran in a search of another thread, since the start.
    pub fn joined(&self) -> u64 {
        self.joined.load(Ordering::Relaxed)
    }

    /// Returns the number of bytes that rows may still take on the device.
    ///
    /// # Errors
    /// `Internal` if the driver gives no answer; `Unavailable` after the device failed once.
    pub fn device_bytes_left(&self) -> Result<u64> {
        self.check()?;
        // The driver gives the memory of dropped rows back to the device at the next wait for the
        // stream.
        self.stream.synchronize().map_err(|error| self.failed(error))?;
        let (free, _) = self.context.mem_get_info().map_err(|error| self.failed(error))?;
        Ok(self.device_budget.left().min(free as u64 / 100 * DEVICE_PERCENT_MAX))
    }

    /// Checks that the device has not failed.
    ///
    /// # Errors
    /// `Unavailable` after the device failed once.
    pub(crate) fn check(&self) -> Result<()> {
        if self.broken.load(Ordering::Relaxed) {
            return Err(Error::unavailable(
                "the GPU failed before and is not used until the next start",
            ));
        }
        Ok(())
    }

    /// Converts an error of the driver. After any error except a lack of memory, the device is not
    /// used again.
    pub(crate) fn failed(&self, error: DriverError) -> Error {
        if error.0 == CUresult::CUDA_ERROR_OUT_OF_MEMORY {
            return Error::exhausted(
                "the GPU does not have enough free memory; end other programs that use it",
            );
        }
        let error = driver_error(error);
        if !self.broken.swap(true, Ordering::Relaxed) {
            tracing::warn!(gpu = self.name, %error, "the GPU failed; searches stay on the processor");
        }
        error
    }

    pub(crate) fn rank(&self, coding: Coding, group: usize) -> Result<&CudaFunction> {
        let found = self.ranks.iter().find(|(key, _)| *key == (coding, group));
        found
            .map(|(_, function)| function)
            .ok_or_else(|| Error::internal("there is no kernel for this group"))
    }
}

/// Returns the latest major version of CUDA that the driver supports, if it tells.
fn driver_major() -> Option<u32> {
    let mut version = 0;
    // SAFETY: the number goes to a number.
    let code = unsafe { sys::cuDriverGetVersion(&mut version) };
    code.result().ok()?;
    // 13010 is version 13.1.
    u32::try_from(version / 1000).ok().filter(|major| *major > 0)
}

/// Lets the driver keep up to [`KEPT_BYTES`] of freed device memory.
fn keep_freed_memory(context: &CudaContext) -> std::result::Result<(), DriverError> {
    if !context.has_async_alloc() {
        // This device has no pool: each buffer is allocated on the device and freed.
        return Ok(());
    }
    let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    let mut bytes = KEPT_BYTES;
    // SAFETY: the device is open, the driver never frees its default pool, and the attribute is a
    // 64-bit number.
    unsafe {
        let pool = get_default_mem_pool(context.cu_device())?;
        set_attribute(pool, attribute, (&raw mut bytes).cast())
    }
}

/// Compiles machine code for the device if the compiler knows it, else intermediate code of an
/// earlier one.
fn load(context: &Arc<CudaContext>, compiler: &Nvrtc, capability: u32) -> Result<Arc<CudaModule>> {
    let image = match compiler.compile(CompileTarget::Machine(capability)) {
        Err(error) if error.kind() == base::ErrorKind::Unimplemented => {
            compiler.compile(CompileTarget::Intermediate(capability.min(CAPABILITY_KNOWN)))?
        }
        compiled => compiled?,
    };
    context.load_module(Ptx::from_binary(image.bytes)).map_err(|error| {
        driver_error(error).context(format!(
            "the driver refuses what {} compiled (is the driver of the same major version?)",
            compiler.found()
        ))
    })
}

/// Returns an error with the driver's message.
pub(crate) fn driver_error(error: DriverError) -> Error {
    let text = error.error_string().map(|text| text.to_string_lossy().into_owned());
    Error::internal(format!("NVIDIA's driver: {} ({:?})", text.unwrap_or_default(), error.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bindings return codes as an enum, and a code that it lacks is undefined behaviour. Their
    /// feature for the latest CUDA has most codes. It needs no function that older drivers lack.
    #[test]
    fn codes_of_later_drivers_are_known() {
        assert_eq!(CUresult::CUDA_ERROR_CONTAINED as u32, 226);
        assert_eq!(CUresult::CUDA_ERROR_FABRIC_NOT_READY as u32, 919);
    }
}
