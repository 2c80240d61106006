//! The search for the shim, and the engine that opens it at the first load.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use base::{Error, Result};
use engine::{Capabilities, Engine, LibrarySearch, LoadRequest, ParameterUse, Session};
use parking_lot::Mutex;

use crate::api::ShimLibrary;
use crate::{archive, element, load};

/// Name of this engine in manifests and metrics.
const NAME: &str = "libtorch";
/// File name of the shim.
const FILE: &str = "libmillpond_torch.so";
/// Directory of the shim in a virtual environment of a checkout.
const IN_ENVIRONMENT: &str = "millpond";
/// Python package of the shim.
const PACKAGE: &str = "millpond-torch";
/// Directory of the package among Python's packages.
const IN_PACKAGES: &str = "millpond_torch";

/// Returns the shim's absolute path.
///
/// # Errors
/// `NotFound` with the remedy.
fn find(search: &LibrarySearch) -> Result<PathBuf> {
    if let Some(explicit) = &search.explicit {
        return find_explicit(explicit, search.explicit_source.unwrap_or("--libtorch"));
    }
    let shim = |dir: PathBuf| std::fs::canonicalize(dir.join(FILE)).ok();
    let made = search.environments().find_map(|environment| shim(environment.join(IN_ENVIRONMENT)));
    made.or_else(|| search.find(|dir| shim(dir.join(IN_PACKAGES)).or_else(|| shim(dir.to_owned()))))
        .ok_or_else(|| {
            let places = search.places().join(", ");
            let remedy = search.remedy(PACKAGE, "torch", "--libtorch");
            Error::not_found(format!(
                "the LibTorch engine was not found: {remedy}. Looked in {places}"
            ))
        })
}

/// Returns the library at `path`. Errors begin with `source`, the flag or variable that has it.
fn find_explicit(path: &Path, source: &str) -> Result<PathBuf> {
    let missing = |why: &str| Error::not_found(format!("{source} {}: {why}", path.display()));
    let real = std::fs::canonicalize(path)
        .map_err(|e| missing(&format!("{e}; it names {FILE} or its directory")))?;
    if !real.is_dir() {
        return Ok(real);
    }
    let inside = [real.join(FILE), real.join(IN_ENVIRONMENT).join(FILE)];
    let found = inside.into_iter().find(|path| path.is_file());
    found.ok_or_else(|| {
        missing(&format!(
            "there is no {FILE} in this directory; `make torch` in a checkout makes it"
        ))
    })
}

static LIBRARY: OnceLock<ShimLibrary> = OnceLock::new();
static OPENING: Mutex<()> = Mutex::new(());

/// The LibTorch engine, opened at the first load. All engines of a process share one library.
#[derive(Debug)]
pub struct TorchEngine {
    search: LibrarySearch,
}

impl TorchEngine {
    /// Creates the engine. Opens no library.
    pub fn new(search: LibrarySearch) -> TorchEngine {
        TorchEngine { search }
    }

    /// Returns the path that the shim would be loaded from, without loading it.
    ///
    /// # Errors
    /// `NotFound` with the remedy.
    pub fn find_library(search: &LibrarySearch) -> Result<PathBuf> {
        find(search)
    }

    /// Returns the path that the shim was loaded from, once it was.
    pub fn library(&self) -> Option<PathBuf> {
        LIBRARY.get().map(|library| library.path.clone())
    }

    /// Returns the library. Opens it at the first call.
    ///
    /// # Errors
    /// `NotFound` if there is none. `FailedPrecondition` if it does not load, has another
    /// interface, or if another one is open already. The message has the remedy.
    pub(crate) fn open(&self) -> Result<&'static ShimLibrary> {
        if self.search.explicit.is_none()
            && let Some(library) = LIBRARY.get()
        {
            return Ok(library);
        }
        let path = find(&self.search)?;
        let wanted = path.clone();
        // On a busy machine, a thread of idle priority could hold the lock for minutes. Meanwhile
        // no other load of this engine can begin, not even one that escalated.
        let library = os::background::at_low_priority(move || open_once(wanted))??;
        if library.path != path {
            return Err(Error::precondition(format!(
                "LibTorch is open through {} already; a process holds one, so {} needs a restart",
                library.path.display(),
                path.display()
            )));
        }
        Ok(library)
    }
}

/// Returns the library of the process. Opens the library at `path` if the process has none.
///
/// # Errors
/// As [`TorchEngine::open`].
fn open_once(path: PathBuf) -> Result<&'static ShimLibrary> {
    let _one_at_a_time = OPENING.lock();
    if let Some(library) = LIBRARY.get() {
        return Ok(library);
    }
    let fresh = ShimLibrary::open(path)?;
    Ok(LIBRARY.get_or_init(|| fresh))
}

impl Engine for TorchEngine {
    fn name(&self) -> &'static str {
        NAME
    }

    fn version(&self) -> String {
        LIBRARY.get().map_or_else(|| "not loaded".to_owned(), |library| library.version.clone())
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            parameters: ParameterUse::Allocated,
            files: vec![load::SCRIPT, load::PACKAGE],
            dtypes: element::TABLE.iter().map(|(dtype, _)| *dtype).collect(),
            cuda: true,
            opens_slowly: true,
        }
    }

    fn open_library(&self) -> Result<()> {
        self.open()?;
        Ok(())
    }

    fn arena_bytes(&self, graph: &Path) -> Result<usize> {
        if load::is_package(graph) { Ok(0) } else { archive::parameter_bytes(graph) }
    }

    fn load(&self, request: &LoadRequest) -> Result<Box<dyn Session>> {
        load::load(self.open()?, request)
    }
}
