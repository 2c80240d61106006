//! The search for TensorFlow, and the engine that opens it at the first load.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use base::{Error, Result};
use engine::{Capabilities, Engine, LibrarySearch, LoadRequest, ParameterUse, Session};
use parking_lot::Mutex;

use crate::api::{FRAMEWORK, LIBRARY, REMEDY, REQUIREMENT, TensorFlowLibrary, set_variables};
use crate::{element, load, model_file};

/// Name of this engine in manifests and metrics.
pub(crate) const NAME: &str = "tensorflow";
/// Directory of the package among Python's.
const PACKAGE: &str = "tensorflow";

/// Returns the absolute path of the package's directory.
///
/// # Errors
/// `NotFound` with the remedy.
fn find(search: &LibrarySearch) -> Result<PathBuf> {
    if let Some(explicit) = &search.explicit {
        return find_explicit(explicit, search.explicit_source.unwrap_or("--tensorflow"));
    }
    search
        .find(|dir| [dir.join(PACKAGE), dir.to_owned()].into_iter().find(|dir| holds_library(dir)))
        .and_then(|dir| std::fs::canonicalize(dir).ok())
        .ok_or_else(|| {
            let places = search.places().join(", ");
            let remedy = search.remedy(REQUIREMENT, "tensorflow", "--tensorflow");
            Error::not_found(format!("TensorFlow was not found: {remedy}. Looked in {places}"))
        })
}

fn holds_library(dir: &Path) -> bool {
    [LIBRARY, FRAMEWORK].iter().all(|name| dir.join(name).is_file())
}

/// Accepts the library, its directory, and a virtual environment. Errors begin with `source`, the
/// flag or variable that has the path.
fn find_explicit(path: &Path, source: &str) -> Result<PathBuf> {
    let missing = |why: &str| Error::not_found(format!("{source} {}: {why}", path.display()));
    let real = std::fs::canonicalize(path)
        .map_err(|e| missing(&format!("{e}; it names {LIBRARY} or its directory")))?;
    let beside = real.parent().filter(|_| real.is_file()).map(Path::to_owned);
    let inside = engine::package_dirs(&real).into_iter().map(|packages| packages.join(PACKAGE));
    let candidates = beside.into_iter().chain([real.clone(), real.join(PACKAGE)]).chain(inside);
    candidates
        .filter(|dir| holds_library(dir))
        .find_map(|dir| std::fs::canonicalize(dir).ok())
        .ok_or_else(|| missing(&format!("there is no {LIBRARY} with {FRAMEWORK} there: {REMEDY}")))
}

static OPENED: OnceLock<TensorFlowLibrary> = OnceLock::new();
static OPENING: Mutex<()> = Mutex::new(());

/// The TensorFlow engine, opened at the first load. All engines of a process share one library.
#[derive(Debug)]
pub struct TensorFlowEngine {
    search: LibrarySearch,
}

impl TensorFlowEngine {
    /// Creates the engine. The first load opens the library. Sets the library's environment
    /// variables, so call it while the program starts. From the first model on, other threads may
    /// read variables in C.
    pub fn new(search: LibrarySearch) -> TensorFlowEngine {
        set_variables();
        TensorFlowEngine { search }
    }

    /// Returns the directory that TensorFlow would be loaded from, without loading it.
    ///
    /// # Errors
    /// `NotFound` with the remedy.
    pub fn find_library(search: &LibrarySearch) -> Result<PathBuf> {
        find(search)
    }

    /// Returns the library. Opens it at the first call.
    ///
    /// # Errors
    /// `NotFound` if there is none. `FailedPrecondition` if it does not load, is too old, or if
    /// another one is open already. The message has the remedy.
    pub(crate) fn open(&self) -> Result<&'static TensorFlowLibrary> {
        if self.search.explicit.is_none()
            && let Some(library) = OPENED.get()
        {
            return Ok(library);
        }
        let path = find(&self.search)?;
        let wanted = path.clone();
        // On a busy machine, a thread of idle priority could hold the lock for minutes. Meanwhile
        // no other load of this engine can begin, not even one that escalated.
        let library = os::background::at_low_priority(move || open_once(&wanted))??;
        if library.path != path {
            return Err(Error::precondition(format!(
                "TensorFlow is open from {} already; a process holds one, so {} needs a restart",
                library.path.display(),
                path.display()
            )));
        }
        Ok(library)
    }
}

/// Returns the library of the process. Opens the library in `dir` if the process has none.
///
/// # Errors
/// As [`TensorFlowEngine::open`].
fn open_once(dir: &Path) -> Result<&'static TensorFlowLibrary> {
    let _one_at_a_time = OPENING.lock();
    if let Some(library) = OPENED.get() {
        return Ok(library);
    }
    let fresh = TensorFlowLibrary::open(dir)?;
    Ok(OPENED.get_or_init(|| fresh))
}

impl Engine for TensorFlowEngine {
    fn name(&self) -> &'static str {
        NAME
    }

    fn version(&self) -> String {
        OPENED.get().map_or_else(|| "not loaded".to_owned(), |library| library.version.clone())
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            parameters: ParameterUse::Bound,
            files: vec![model_file::NAME],
            dtypes: element::TABLE.iter().map(|(dtype, _)| *dtype).collect(),
            cuda: false,
            opens_slowly: true,
        }
    }

    fn open_library(&self) -> Result<()> {
        self.open()?;
        Ok(())
    }

    fn load(&self, request: &LoadRequest) -> Result<Box<dyn Session>> {
        self.capabilities().check_device(NAME, request.options.device)?;
        load::load(self.open()?, request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::VARIABLES;

    #[test]
    fn a_new_engine_sets_its_variables_before_the_first_model() {
        drop(TensorFlowEngine::new(LibrarySearch::default()));
        for (name, _) in VARIABLES {
            assert!(std::env::var_os(name).is_some(), "{name}");
        }
    }
}
