//! Where the shim is, and the engine that opens it at the first load.
//!
//! Reads no environment variable; the command line passes in what it read.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use base::{Error, Result};
use engine::{Capabilities, Engine, LoadRequest, ParameterUse, Session};

use crate::api::Library;
use crate::{archive, element, load};

/// The name under which this engine appears in manifests and metrics.
const NAME: &str = "libtorch";
/// The file of the shim.
const FILE: &str = "libmillpond_torch.so";
/// Where it lies in a virtual environment.
const IN_ENVIRONMENT: &str = "millpond";
/// A virtual environment in a project's directory.
const VENV_DIR: &str = ".venv";
/// How far up from a starting directory a virtual environment is looked for.
const ANCESTORS_MAX: usize = 16;
/// What to do about a missing or unfit library.
pub(crate) const REMEDY: &str = "run `make torch`, or give --libtorch PATH";

/// Where to look, in this order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LibrarySearch {
    /// The shim, or a directory that holds it or is a virtual environment. Nothing else is tried when given.
    pub explicit: Option<PathBuf>,
    /// The active virtual environment.
    pub virtual_env: Option<PathBuf>,
    /// Directories in and above which a `.venv` may lie.
    pub start_dirs: Vec<PathBuf>,
}

impl LibrarySearch {
    /// The usual search: `explicit`, then `virtual_env`, then a `.venv` in or above the current directory and the
    /// program's own.
    pub fn around_process(explicit: Option<PathBuf>, virtual_env: Option<PathBuf>) -> LibrarySearch {
        let program = std::env::current_exe().ok().and_then(|path| path.parent().map(Path::to_owned));
        let start_dirs = std::env::current_dir().ok().into_iter().chain(program).collect();
        LibrarySearch { explicit, virtual_env, start_dirs }
    }

    /// The shim's absolute path.
    ///
    /// # Errors
    /// `NotFound` with the remedy.
    pub fn find(&self) -> Result<PathBuf> {
        if let Some(explicit) = &self.explicit {
            return find_explicit(explicit);
        }
        let above = self.start_dirs.iter().flat_map(|dir| dir.ancestors().take(ANCESTORS_MAX));
        let environments = self.virtual_env.iter().cloned().chain(above.map(|dir| dir.join(VENV_DIR)));
        environments
            .map(|environment| environment.join(IN_ENVIRONMENT).join(FILE))
            .find_map(|path| std::fs::canonicalize(path).ok())
            .ok_or_else(|| Error::not_found(format!("the LibTorch engine was not found: {REMEDY}")))
    }
}

fn find_explicit(path: &Path) -> Result<PathBuf> {
    let missing = |why: &str| Error::not_found(format!("--libtorch {}: {why}", path.display()));
    let real = std::fs::canonicalize(path)
        .map_err(|e| missing(&format!("{e}; it names {FILE} or its directory")))?;
    if !real.is_dir() {
        return Ok(real);
    }
    let inside = [real.join(FILE), real.join(IN_ENVIRONMENT).join(FILE)];
    let found = inside.into_iter().find(|path| path.is_file());
    found.ok_or_else(|| missing(&format!("there is no {FILE} in this directory")))
}

static LIBRARY: OnceLock<Library> = OnceLock::new();
static OPENING: Mutex<()> = Mutex::new(());

/// LibTorch, opened at the first load. All engines of a process share one library.
#[derive(Debug)]
pub struct TorchEngine {
    search: LibrarySearch,
}

impl TorchEngine {
    /// The engine; opens nothing.
    pub fn new(search: LibrarySearch) -> TorchEngine {
        TorchEngine { search }
    }

    /// Where the shim was loaded from, once it was.
    pub fn library(&self) -> Option<PathBuf> {
        LIBRARY.get().map(|library| library.path.clone())
    }

    /// The library, opened if this is the first time.
    ///
    /// # Errors
    /// `NotFound` where there is none and `FailedPrecondition` where it does not load, is of another interface or is
    /// another than the one already open; the message has the remedy.
    pub(crate) fn open(&self) -> Result<&'static Library> {
        if self.search.explicit.is_none()
            && let Some(library) = LIBRARY.get()
        {
            return Ok(library);
        }
        let path = self.search.find()?;
        let _one_at_a_time = OPENING.lock().unwrap_or_else(PoisonError::into_inner);
        let library = match LIBRARY.get() {
            Some(library) => library,
            None => {
                let fresh = Library::open(path.clone())?;
                LIBRARY.get_or_init(|| fresh)
            }
        };
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
            concurrent_runs: true,
            dtypes: element::TABLE.iter().map(|(dtype, _)| *dtype).collect(),
        }
    }

    fn arena_bytes(&self, graph: &Path) -> Result<usize> {
        match load::is_package(graph) {
            true => Ok(0),
            false => archive::parameter_bytes(graph),
        }
    }

    fn load(&self, request: &LoadRequest) -> Result<Box<dyn Session>> {
        load::load(self.open()?, request)
    }
}
