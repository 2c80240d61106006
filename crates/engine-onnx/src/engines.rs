//! Engines of ONNX Runtime, loaded at once or with the first model.

use std::path::{Path, PathBuf};

use base::{Error, Result};
use engine::{
    Capabilities, Engine, LibrarySearch, LoadRequest, ParameterUse, Session, SignatureFile,
};
use parking_lot::Mutex;
use std::sync::OnceLock;

use crate::runtime::{Runtime, disable_telemetry};
use crate::session::OnnxSession;
use crate::{element, library};

/// Name of this engine in manifests and metrics.
const NAME: &str = "onnxruntime";

/// ONNX Runtime, loaded. Clones are cheap and share one library.
#[derive(Clone, Copy, Debug)]
pub struct OnnxEngine {
    runtime: &'static Runtime,
}

/// ONNX Runtime, loaded with the first model, for programs that may not need it. A server uses
/// [`OnnxEngine`], so that a missing library is an error of its start.
#[derive(Clone, Debug)]
pub struct LazyOnnxEngine {
    search: LibrarySearch,
}

static RUNTIME: OnceLock<Runtime> = OnceLock::new();
static OPENING: Mutex<()> = Mutex::new(());

impl OnnxEngine {
    /// Finds the library and loads it, once per process.
    ///
    /// # Errors
    /// `NotFound` if there is none. `FailedPrecondition` if it does not load, is too old, or if the
    /// process has loaded another one already. The message is one line with the remedy.
    /// `ResourceExhausted` if a thread of idle priority can start no other thread for it.
    pub fn open(search: &LibrarySearch) -> Result<OnnxEngine> {
        let path = library::find(search)?;
        let runtime = match RUNTIME.get() {
            Some(runtime) => runtime,
            None => {
                let wanted = path.clone();
                one_at_a_time(move || load_once(wanted))?
            }
        };
        if search.explicit.is_some() && runtime.path != path {
            return Err(Error::precondition(format!(
                "ONNX Runtime is loaded from {} already; a process holds one, so {} needs a restart",
                runtime.path.display(),
                path.display()
            )));
        }
        Ok(OnnxEngine { runtime })
    }

    /// Returns the path that the library would be loaded from, without loading it.
    ///
    /// # Errors
    /// `NotFound` with the remedy.
    pub fn find_library(search: &LibrarySearch) -> Result<PathBuf> {
        library::find(search)
    }

    /// Returns the path that the library was loaded from.
    pub fn library(&self) -> &Path {
        &self.runtime.path
    }
}

/// Runs `work` under the lock of the library, and not at idle priority.
///
/// # Errors
/// Returns the errors of `work` and of [`os::background::at_low_priority`].
fn one_at_a_time<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    // On a busy machine, a thread of idle priority could hold the lock for minutes. Meanwhile no
    // other load of this engine can begin, not even one that escalated.
    os::background::at_low_priority(move || {
        let _one_at_a_time = OPENING.lock();
        work()
    })?
}

/// Returns the library of the process. Loads the library at `path` if the process has none.
///
/// # Errors
/// As [`OnnxEngine::open`].
fn load_once(path: PathBuf) -> Result<&'static Runtime> {
    if let Some(runtime) = RUNTIME.get() {
        return Ok(runtime);
    }
    let fresh = Runtime::load(path)?;
    Ok(RUNTIME.get_or_init(|| fresh))
}

impl Engine for OnnxEngine {
    fn name(&self) -> &'static str {
        NAME
    }

    fn version(&self) -> String {
        self.runtime.version.clone()
    }

    fn capabilities(&self) -> Capabilities {
        capabilities()
    }

    fn load(&self, request: &LoadRequest) -> Result<Box<dyn Session>> {
        capabilities().check_device(NAME, request.options.device)?;
        request.options.check_no_graph_tags()?;
        if request.options.signature != SignatureFile::default() {
            tracing::warn!("[signature] has no effect: an ONNX file states its inputs and outputs");
        }
        Ok(Box::new(OnnxSession::load(self.runtime, request)?))
    }
}

impl LazyOnnxEngine {
    /// Creates the engine. Loads no library. Sets the library's environment variable, so call it
    /// while the program starts. From the first model on, other threads may read variables in C.
    pub fn new(search: LibrarySearch) -> LazyOnnxEngine {
        disable_telemetry();
        LazyOnnxEngine { search }
    }
}

impl Engine for LazyOnnxEngine {
    fn name(&self) -> &'static str {
        NAME
    }

    fn version(&self) -> String {
        RUNTIME.get().map_or_else(|| "not loaded".to_owned(), |runtime| runtime.version.clone())
    }

    fn capabilities(&self) -> Capabilities {
        capabilities()
    }

    /// Loads the library if this is the first model, then the model.
    ///
    /// # Errors
    /// Returns the errors of [`OnnxEngine::open`] and of loading a model.
    fn load(&self, request: &LoadRequest) -> Result<Box<dyn Session>> {
        OnnxEngine::open(&self.search)?.load(request)
    }
}

/// Returns the features of this engine.
fn capabilities() -> Capabilities {
    Capabilities {
        parameters: ParameterUse::Bound,
        files: vec!["model.onnx"],
        dtypes: element::TABLE.iter().map(|(dtype, _)| *dtype).collect(),
        cuda: false,
        opens_slowly: false,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use os::background::{Attempt, BackgroundRunner};

    use super::*;
    use crate::runtime::DISABLE_TELEMETRY;

    #[test]
    fn no_thread_of_idle_priority_holds_the_lock() {
        let mut runner = BackgroundRunner::new("test", "testing", Duration::MAX);
        let idle = |_: &Attempt| one_at_a_time(|| Ok(os::thread::has_idle_priority()));
        assert_eq!(runner.run("opening", &Arc::default(), idle), Ok(false));
    }

    #[test]
    fn a_lazy_engine_sets_its_variable_before_the_first_model() {
        drop(LazyOnnxEngine::new(LibrarySearch::default()));
        assert!(std::env::var_os(DISABLE_TELEMETRY).is_some_and(|value| value == "1"));
    }
}
