//! A graph in TensorFlow and the session that runs it.

use std::ffi::{CStr, CString, c_char, c_int};
use std::path::Path;
use std::ptr::{null, null_mut};

use base::{Error, Result};
use bytes::Bytes;
use engine::{SessionOptions, c_text};
use prost::Message;
use smallvec::SmallVec;

use crate::api::{
    RawBuffer, RawGraph, RawOperation, RawOutput, RawSession, RawSessionOptions, RawTensor,
    TensorFlowLibrary,
};
use crate::fault;
use crate::generated::SessionConfig;
use crate::model_file::{self, GraphTags};
use crate::tensor::TfTensor;

/// Maximum inputs or outputs of a run whose bookkeeping needs no allocation.
pub(crate) const INLINE_MAX: usize = 8;
/// Maximum threads of one run.
const THREADS_MAX: usize = 1024;
/// Value of the number of inter-operator threads for which TensorFlow runs all operators on the
/// calling thread.
const CALLING_THREAD: i32 = -1;

/// A graph and its session. Dropping it releases the session first.
pub(crate) struct OpenedModel {
    pub(crate) library: &'static TensorFlowLibrary,
    graph: *mut RawGraph,
    /// Null until the session is started.
    session: *mut RawSession,
}

// SAFETY: TensorFlow's graphs and sessions may be used from any thread, and from several at once.
unsafe impl Send for OpenedModel {}
// SAFETY: as above.
unsafe impl Sync for OpenedModel {}

/// Values for tensors of the graph.
#[derive(Default)]
pub(crate) struct Feeds {
    pub(crate) places: Vec<RawOutput>,
    pub(crate) tensors: Vec<TfTensor>,
}

impl Feeds {
    pub(crate) fn push(&mut self, place: RawOutput, tensor: TfTensor) {
        self.places.push(place);
        self.tensors.push(tensor);
    }

    fn values(&self) -> Vec<*mut RawTensor> {
        self.tensors.iter().map(TfTensor::as_ptr).collect()
    }
}

/// Inputs and outputs of a run, in TensorFlow's form.
#[derive(Clone, Copy)]
pub(crate) struct RawRun<'a> {
    pub(crate) places: &'a [RawOutput],
    /// One value for each of `places`.
    pub(crate) values: &'a [*mut RawTensor],
    pub(crate) fetches: &'a [RawOutput],
    /// Operations that run without an output.
    pub(crate) targets: &'a [*const RawOperation],
}

impl OpenedModel {
    fn empty(library: &'static TensorFlowLibrary) -> OpenedModel {
        // SAFETY: needs nothing; the graph is ours.
        let graph = unsafe { (library.call.TF_NewGraph)() };
        OpenedModel { library, graph, session: null_mut() }
    }

    /// Opens a SavedModel with its variables in TensorFlow's memory.
    ///
    /// # Errors
    /// TensorFlow's reason.
    pub(crate) fn load(
        library: &'static TensorFlowLibrary,
        dir: &Path,
        options: &SessionOptions,
    ) -> Result<OpenedModel> {
        let model = OpenedModel::empty(library);
        let tags = GraphTags::of(&options.graph_tags);
        let tags = tags.iter().map(c_text).collect::<Result<Vec<CString>>>()?;
        let options = ConfiguredOptions::new(library, options)?;
        let dir = c_text(&dir.to_string_lossy())?;
        options.open(model, move |model, options| model.load_session(options, &dir, &tags))
    }

    fn load_session(
        &self,
        options: &ConfiguredOptions,
        dir: &CStr,
        tags: &[CString],
    ) -> Result<*mut RawSession> {
        let tags: Vec<*const c_char> = tags.iter().map(|tag| tag.as_ptr()).collect();
        let count =
            c_int::try_from(tags.len()).map_err(|_| Error::invalid("too many tags of a graph"))?;
        let load = |status| {
            // SAFETY: all objects are alive, the path and the tags NUL-terminated; no description
            // of the graph is wanted.
            unsafe {
                (self.library.call.TF_LoadSessionFromSavedModel)(
                    options.raw,
                    null(),
                    dir.as_ptr(),
                    tags.as_ptr(),
                    count,
                    self.graph,
                    null_mut(),
                    status,
                )
            }
        };
        self.library.call(load, fault::of_load)
    }

    /// Imports a GraphDef.
    ///
    /// # Errors
    /// TensorFlow's reason.
    pub(crate) fn import(
        library: &'static TensorFlowLibrary,
        graph: &Bytes,
    ) -> Result<OpenedModel> {
        let model = OpenedModel::empty(library);
        let buffer = buffer(graph);
        // SAFETY: the options are ours; graph and buffer are alive.
        unsafe {
            let options = (library.call.TF_NewImportGraphDefOptions)();
            let import = |status| {
                (library.call.TF_GraphImportGraphDef)(model.graph, &buffer, options, status);
            };
            let imported = library.call(import, fault::of_load);
            (library.call.TF_DeleteImportGraphDefOptions)(options);
            imported?;
        }
        Ok(model)
    }

    /// Starts the session of an imported graph.
    ///
    /// # Errors
    /// TensorFlow's reason.
    pub(crate) fn start(self, options: &SessionOptions) -> Result<OpenedModel> {
        let options = ConfiguredOptions::new(self.library, options)?;
        options.open(self, |model, options| model.new_session(options))
    }

    fn new_session(&self, options: &ConfiguredOptions) -> Result<*mut RawSession> {
        let start = |status| {
            // SAFETY: graph and options are alive.
            unsafe { (self.library.call.TF_NewSession)(self.graph, options.raw, status) }
        };
        self.library.call(start, fault::of_load)
    }

    /// Returns the operation called `name`.
    ///
    /// # Errors
    /// `InvalidArgument` if there is none.
    pub(crate) fn operation(&self, name: &str) -> Result<*mut RawOperation> {
        let c_name = c_text(name)?;
        // SAFETY: the graph is alive, the name NUL-terminated.
        let found =
            unsafe { (self.library.call.TF_GraphOperationByName)(self.graph, c_name.as_ptr()) };
        if found.is_null() {
            Err(Error::invalid(format!("the graph has no operation \"{name}\"")))
        } else {
            Ok(found)
        }
    }

    /// Returns the tensor called `name`, such as "x:0".
    ///
    /// # Errors
    /// `InvalidArgument` if there is none.
    pub(crate) fn output(&self, name: &str) -> Result<RawOutput> {
        let operation = self.operation(model_file::operation_of(name))?;
        let index = name.split_once(':').map_or(Ok(0), |(_, index)| index.parse::<c_int>());
        // SAFETY: the operation is the graph's.
        let count = unsafe { (self.library.call.TF_OperationNumOutputs)(operation) };
        match index {
            Ok(index) if (0..count).contains(&index) => Ok(RawOutput { operation, index }),
            _ => Err(Error::invalid(format!("the graph has no tensor \"{name}\""))),
        }
    }

    /// Adds an operation, with an attribute `dtype` if it is given.
    ///
    /// # Errors
    /// TensorFlow's reason.
    pub(crate) fn add(
        &self,
        kind: &str,
        name: &str,
        inputs: &[RawOutput],
        dtype: Option<i32>,
    ) -> Result<*mut RawOperation> {
        let kind = c_text(kind)?;
        let name = c_text(name)?;
        let call = &self.library.call;
        let add = |status| {
            // SAFETY: the graph is alive, all names are NUL-terminated, the inputs are the graph's;
            // the description is used up by the last call.
            unsafe {
                let description = (call.TF_NewOperation)(self.graph, kind.as_ptr(), name.as_ptr());
                for input in inputs {
                    (call.TF_AddInput)(description, *input);
                }
                if let Some(dtype) = dtype {
                    (call.TF_SetAttrType)(description, c"dtype".as_ptr(), dtype);
                }
                (call.TF_FinishOperation)(description, status)
            }
        };
        self.library.call(add, fault::of_load)
    }

    /// Runs the graph while the model is loaded.
    ///
    /// # Errors
    /// TensorFlow's reason, as an error of a load.
    pub(crate) fn prepare(
        &self,
        feeds: &Feeds,
        fetches: &[RawOutput],
        targets: &[*mut RawOperation],
    ) -> Result<SmallVec<[TfTensor; INLINE_MAX]>> {
        let targets: Vec<*const RawOperation> = targets.iter().map(|it| it.cast_const()).collect();
        let values = feeds.values();
        let run = RawRun { places: &feeds.places, values: &values, fetches, targets: &targets };
        self.run(run, fault::of_load)
    }

    /// Runs the graph on the calling thread.
    ///
    /// # Errors
    /// TensorFlow's reason as `fault` turns it into an error.
    pub(crate) fn run(
        &self,
        run: RawRun<'_>,
        fault: fn(i32, &str) -> Error,
    ) -> Result<SmallVec<[TfTensor; INLINE_MAX]>> {
        if run.places.len() != run.values.len() {
            return Err(Error::internal("a run has not one value for each input"));
        }
        let mut results: SmallVec<[*mut RawTensor; INLINE_MAX]> =
            SmallVec::from_elem(null_mut(), run.fetches.len());
        let outcome = self.library.call(
            |status| {
                // SAFETY: the session may run on many threads at once. Every array has the length
                // that follows it; the values are alive. The results are ours.
                unsafe {
                    (self.library.call.TF_SessionRun)(
                        self.session,
                        null(),
                        run.places.as_ptr(),
                        run.values.as_ptr(),
                        run.places.len() as c_int,
                        run.fetches.as_ptr(),
                        results.as_mut_ptr(),
                        run.fetches.len() as c_int,
                        run.targets.as_ptr(),
                        run.targets.len() as c_int,
                        null_mut(),
                        status,
                    );
                }
            },
            fault,
        );
        // Owned before anything else happens, so that no path leaks one.
        // SAFETY: TensorFlow gives each result to us; a null one is an error.
        let results: SmallVec<[Result<TfTensor>; INLINE_MAX]> =
            results.into_iter().map(|raw| unsafe { TfTensor::own(self.library, raw) }).collect();
        outcome?;
        results.into_iter().collect()
    }
}

impl Drop for OpenedModel {
    fn drop(&mut self) {
        let call = &self.library.call;
        if !self.session.is_null() {
            // SAFETY: no run uses the session, because runs borrow the model.
            let close = |status| unsafe { (call.TF_CloseSession)(self.session, status) };
            if let Err(error) = self.library.call(close, fault::of_run) {
                tracing::warn!(%error, "a session of TensorFlow did not close");
            }
            // SAFETY: ours, closed, and deleted once.
            let delete = |status| unsafe { (call.TF_DeleteSession)(self.session, status) };
            // Cannot fail: TensorFlow clears the status first and sets no other.
            let _ = self.library.call(delete, fault::of_run);
        }
        // SAFETY: ours, and its session is gone.
        unsafe { (call.TF_DeleteGraph)(self.graph) };
    }
}

/// TensorFlow's session options; the crate's documentation has the reasons.
struct ConfiguredOptions {
    library: &'static TensorFlowLibrary,
    raw: *mut RawSessionOptions,
    /// True if the session starts threads.
    threads: bool,
}

impl ConfiguredOptions {
    fn new(
        library: &'static TensorFlowLibrary,
        options: &SessionOptions,
    ) -> Result<ConfiguredOptions> {
        let inter = match threads(options.inter_op_threads)? {
            1 => CALLING_THREAD,
            more => more,
        };
        let config = SessionConfig {
            intra_op_parallelism_threads: threads(options.intra_op_threads)?,
            inter_op_parallelism_threads: inter,
            // A graph that was exported on a machine with GPUs may name a GPU for its operations.
            allow_soft_placement: true,
            use_per_session_threads: inter > 1,
        }
        .encode_to_vec();
        // SAFETY: needs nothing; the options are ours.
        let raw = unsafe { (library.call.TF_NewSessionOptions)() };
        let threads = options.intra_op_threads > 1 || options.inter_op_threads > 1;
        let options = ConfiguredOptions { library, raw, threads };
        let set = |status| {
            // SAFETY: the options are alive; the bytes are copied.
            unsafe {
                let bytes = config.as_ptr().cast();
                (library.call.TF_SetConfig)(options.raw, bytes, config.len(), status);
            }
        };
        library.call(set, fault::of_load)?;
        Ok(options)
    }

    /// Gives `model` the session that `make` makes. The threads of a session inherit the priority
    /// of the thread that makes it, and a load thread may have idle priority. So a session with
    /// threads is made at ordinary priority.
    fn open<F>(self, mut model: OpenedModel, make: F) -> Result<OpenedModel>
    where
        F: FnOnce(&OpenedModel, &ConfiguredOptions) -> Result<*mut RawSession> + Send + 'static,
    {
        let threads = self.threads;
        let open = move || -> Result<OpenedModel> {
            model.session = make(&model, &self)?;
            Ok(model)
        };
        if threads { os::background::at_ordinary_priority(open)? } else { open() }
    }
}

// SAFETY: TensorFlow binds options to no thread, and one thread at a time uses them.
unsafe impl Send for ConfiguredOptions {}

impl Drop for ConfiguredOptions {
    fn drop(&mut self) {
        // SAFETY: ours, and dropped once.
        unsafe { (self.library.call.TF_DeleteSessionOptions)(self.raw) };
    }
}

/// Converts a number of threads.
///
/// # Errors
/// `InvalidArgument` if it is not from 1 to [`THREADS_MAX`].
fn threads(count: usize) -> Result<i32> {
    match count {
        // For TensorFlow, zero means one thread per core.
        1..=THREADS_MAX => Ok(count as i32),
        _ => Err(Error::invalid(format!(
            "{count} threads inside one run; it must be 1 to {THREADS_MAX}"
        ))),
    }
}

/// Returns a buffer over `bytes`, which must outlive its use.
pub(crate) fn buffer(bytes: &Bytes) -> RawBuffer {
    RawBuffer { data: bytes.as_ptr().cast(), length: bytes.len(), free: None }
}
