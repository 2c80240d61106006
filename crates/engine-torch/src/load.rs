//! Opens models.

use std::ffi::OsStr;
use std::path::Path;
use std::ptr::null_mut;

use base::{Error, ErrorKind, Result};
use engine::{Arena, Device, LoadRequest, Session, SessionOptions, c_path};
use memory::RegionMut;

use crate::api::{RawLoad, ShimLibrary};
use crate::archive::{self, TorchArchive};
use crate::module::TorchModule;
use crate::session::{LoadedModule, ParameterMemory, TorchSession};

/// File name of a TorchScript module.
pub(crate) const SCRIPT: &str = "model.pt";
/// File name of a package compiled by AOTInductor.
pub(crate) const PACKAGE: &str = "model.pt2";
/// Maximum threads of one run.
const THREADS_MAX: usize = 1024;

/// Returns true if `graph` is a compiled package.
pub(crate) fn is_package(graph: &Path) -> bool {
    graph.extension() == Some(OsStr::new("pt2"))
}

/// Loads a TorchScript module or a compiled package.
///
/// # Errors
/// `InvalidArgument` for options that LibTorch cannot follow; the errors of the file and of
/// [`TorchSession::new`]. All but that of a wrong number of threads name the path of the graph.
pub(crate) fn load(
    library: &'static ShimLibrary,
    request: &LoadRequest,
) -> Result<Box<dyn Session>> {
    let with_path = |error: Error| {
        if error.message().contains(&*request.graph.to_string_lossy()) {
            error
        } else {
            error.context(request.graph.display())
        }
    };
    if !(1..=THREADS_MAX).contains(&request.options.intra_op_threads) {
        let count = request.options.intra_op_threads;
        return Err(Error::invalid(format!(
            "{count} threads inside one run; it must be 1 to {THREADS_MAX}"
        )));
    }
    request.options.check_no_graph_tags().map_err(with_path)?;
    if request.options.inter_op_threads > 1 {
        tracing::warn!(
            "inter-op-threads has no effect: LibTorch runs the operators of a run one after the other"
        );
    }
    let loaded = if is_package(&request.graph) {
        let module = package(library, &request.graph, &request.options).map_err(with_path)?;
        LoadedModule { module, memory: ParameterMemory::Heap }
    } else {
        load_script(library, request).map_err(with_path)?
    };
    Ok(Box::new(TorchSession::new(loaded, &request.options).map_err(with_path)?))
}

/// Returns the shim's number of a device.
fn cuda(device: Device) -> i32 {
    match device {
        Device::Cpu => -1,
        Device::Cuda(number) => i32::try_from(number).unwrap_or(i32::MAX),
    }
}

/// Loads a compiled package.
///
/// # Errors
/// `PermissionDenied` if the operator does not trust the model; the errors of the file and of
/// LibTorch.
fn package(
    library: &'static ShimLibrary,
    graph: &Path,
    options: &SessionOptions,
) -> Result<TorchModule> {
    if !options.trusted {
        return Err(Error::denied(
            "a compiled package is native code, which runs with all the server's rights; if you trust it, \
             set `trusted = true` in the model's millpond.toml",
        ));
    }
    check_readable(graph)?;
    let path = c_path(graph)?;
    let mut raw = null_mut();
    // SAFETY: the path is NUL-terminated, the out-pointer valid; what it gets is ours.
    unsafe {
        let code = (library.call.mpt_package_load)(path.as_ptr(), cuda(options.device), &mut raw);
        library.check(code)?;
        TorchModule::own(library, raw)
    }
}

/// Checks that a file can be read. The open of a named pipe would wait for its writer.
fn check_readable(path: &Path) -> Result<()> {
    let failed = |error: std::io::Error| Error::io(path, &error);
    os::check_regular_file(&std::fs::metadata(path).map_err(failed)?).map_err(failed)?;
    std::fs::File::open(path).map_err(failed)?;
    Ok(())
}

/// Loads a TorchScript module. LibTorch allocates its parameters in the arena of `request`, if
/// there is one.
fn load_script(library: &'static ShimLibrary, request: &LoadRequest) -> Result<LoadedModule> {
    let mut archive = TorchArchive::open(&request.graph, request.arena.as_ref())?;
    // A model for another device does not stay in the memory that it is read into.
    let here = request.options.device == Device::Cpu;
    let arena = request.arena.as_ref().filter(|arena| here && arena.bytes > 0);
    let mut region = arena.map(Arena::region).transpose()?;
    let memory = region.as_mut().map(RegionMut::as_mut_slice);
    if let Some(memory) = &memory {
        archive.trust(memory);
    }
    let (arena, arena_bytes) =
        memory.map_or((null_mut(), 0), |memory| (memory.as_mut_ptr(), memory.len()));
    let load = RawLoad {
        context: (&raw mut archive).cast(),
        read: archive::read,
        bytes: archive.bytes(),
        arena: arena.cast(),
        arena_bytes,
        cuda: cuda(request.options.device),
    };
    let mut raw = null_mut();
    // SAFETY: the archive is used only by this call until it returns. The memory is the region's;
    // nothing else touches it, and it outlives the module: `LoadedModule` and the session drop the
    // module first.
    let code = unsafe { (library.call.mpt_module_load)(&load, &mut raw) };
    if let Err(error) = library.check(code) {
        return Err(archive.take_failure().unwrap_or_else(|| as_data_loss(error)));
    }
    // SAFETY: the call succeeded, so this is a module of ours.
    let module = unsafe { TorchModule::own(library, raw)? };
    archive.finish()?;
    let description = module.describe()?;
    let memory = match region {
        Some(_) if description.arena_used == 0 => ParameterMemory::Heap,
        Some(region) if description.stateful => ParameterMemory::Writable(region),
        Some(region) => sealed(region),
        None => ParameterMemory::Heap,
    };
    Ok(LoadedModule { module, memory })
}

/// Turns LibTorch's error about a damaged archive into `DataLoss`. LibTorch's name of the reader
/// identifies the error.
fn as_data_loss(error: Error) -> Error {
    let message = error.message();
    if error.kind() == ErrorKind::InvalidArgument && message.contains("PytorchStreamReader") {
        Error::data_loss(message.to_owned())
    } else {
        error
    }
}

/// Seals the memory against writes. LibTorch has pointers that it could write through, and a model
/// that did so unnoticed would change the outputs of all requests.
fn sealed(region: RegionMut) -> ParameterMemory {
    let region = region.freeze();
    if let Err(error) = region.seal() {
        tracing::warn!(%error, "a model's parameters stay writable");
    }
    ParameterMemory::Sealed(region)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_regular_file_is_a_package() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(PACKAGE);
        assert_eq!(check_readable(&path).unwrap_err().kind(), ErrorKind::NotFound);
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let error = check_readable(&path).unwrap_err();
        assert!(error.message().ends_with("not a regular file"), "{error}");
        drop(listener);
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "a package").unwrap();
        assert_eq!(check_readable(&path), Ok(()));
    }
}
