//! The traits between Millpond and the libraries that compute.
//!
//! An [`Engine`] opens a published version and gives a [`Session`]; a session runs. Both know nothing of
//! requests, versions or time. The crate holds no engine: each is a leaf crate of its own that runs
//! [`conformance`], and so does the fake.
//!
//! Parameters never pass through an engine's allocator where it can be helped: the caller places them in
//! regions of `memory` and hands them over as [`BoundTensor`]s, which a session keeps alive as long as it lives.
//!
//! How to add an engine: implement the two traits in a leaf crate `engine-NAME`, state in [`Capabilities`] what
//! it cannot do, run `conformance::check` from its integration test, and add it to the list in `server`.

mod arena;
mod batch_plan;
pub mod foreign;
pub mod layout;
mod library_search;
mod schedule_file;
mod schedule_options;
mod servable;
mod session_options;
mod signature_file;
mod stream;

#[cfg(any(test, feature = "testing"))]
pub mod conformance;
#[cfg(any(test, feature = "testing"))]
pub mod fake;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::{DType, Error, NamedTensor, Result, Signature};
use memory::Region;

pub use arena::Arena;
pub use batch_plan::{AxisCut, BatchPlan, GrowingAxis, InputFill, InputPlan, OutputPlan, PadRule};
pub use library_search::{LibrarySearch, package_dirs};
pub use schedule_file::{CutText, MergeText, ModeText, PadText, PriorityText, RoundingText, ScheduleFile};
pub use schedule_options::{
    BATCH_MAX, BUCKETS_MAX, CutOptions, Merge, PRIORITY_LEVELS_MAX, PadOptions, PriorityOptions,
    QUEUE_DELAY_MAX, ScheduleMode, ScheduleOptions,
};
pub use servable::Servable;
pub use session_options::{Device, SessionOptions};
pub use signature_file::{SignatureFile, TensorText};

/// How an engine gets its parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParameterUse {
    /// It uses [`BoundTensor`]s where they lie. Versions that are not published are converted first.
    Bound,
    /// It allocates while it loads, from the caller's [`Arena`]. Versions are opened as they are.
    Allocated,
}

/// What an engine can and cannot do, so that nobody finds out by trying.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// How it gets its parameters.
    pub parameters: ParameterUse,
    /// Names of the files that make a directory without a manifest a version of this engine; the first that is there
    /// counts.
    pub files: Vec<&'static str>,
    /// One session may run on several threads at once.
    pub concurrent_runs: bool,
    /// The element types it takes and gives.
    pub dtypes: Vec<DType>,
    /// It opens models on CUDA devices. Which there are, the load finds out.
    pub cuda: bool,
}

impl Capabilities {
    /// Checks that the engine called `engine` can have a device of this kind.
    ///
    /// # Errors
    /// `InvalidArgument` naming the devices that the engine has.
    pub fn check_device(&self, engine: &str, device: Device) -> Result<()> {
        match device {
            Device::Cuda(_) if !self.cuda => Err(Error::invalid(format!(
                "device = \"{device}\" in the model's settings: engine {engine} has the device \"cpu\" only"
            ))),
            Device::Cpu | Device::Cuda(_) => Ok(()),
        }
    }
}

/// One parameter in memory of ours, ready to be used in place.
#[derive(Clone, Debug)]
pub struct BoundTensor {
    /// Its name in the graph.
    pub name: String,
    /// Its element type.
    pub dtype: DType,
    /// Its axes.
    pub dims: Vec<usize>,
    /// The memory that holds it.
    pub region: Arc<Region>,
    /// Where in the region it starts.
    pub offset: usize,
    /// How many bytes it has.
    pub bytes: usize,
}

impl BoundTensor {
    /// The tensor's bytes, for an engine to point into, after checking that they lie inside the region, are as
    /// many as type and shape take, and are aligned for the type.
    ///
    /// # Errors
    /// `InvalidArgument` saying which parameter is wrong and how.
    pub fn check(&self) -> Result<&[u8]> {
        let wrong = |why: &str| Error::invalid(format!("parameter \"{}\" {why}", self.name));
        let elements = self.dims.iter().try_fold(1usize, |product, &dim| product.checked_mul(dim));
        if elements.and_then(|count| self.dtype.bytes_for(count)) != Some(self.bytes) {
            return Err(wrong("does not have the bytes that its type and shape take"));
        }
        let end = self.offset.checked_add(self.bytes);
        let bytes = end.and_then(|end| self.region.as_slice().get(self.offset..end));
        match bytes.ok_or_else(|| wrong("lies outside its region"))? {
            bytes if (bytes.as_ptr() as usize).is_multiple_of(self.dtype.alignment()) => Ok(bytes),
            _ => Err(wrong("is not aligned for its type")),
        }
    }

    /// The tensor's bytes.
    ///
    /// # Panics
    /// When they lie outside the region; see [`BoundTensor::check`].
    pub fn as_slice(&self) -> &[u8] {
        &self.region.as_slice()[self.offset..self.offset + self.bytes]
    }
}

/// Everything a load needs.
#[derive(Clone, Debug, Default)]
pub struct LoadRequest {
    /// The graph file, in the engine's own format.
    pub graph: PathBuf,
    /// Parameters that the graph names and does not hold. Empty where the graph embeds them: then they go
    /// wherever the engine puts them.
    pub parameters: Vec<BoundTensor>,
    /// Where an engine of [`ParameterUse::Allocated`] puts its parameters; without one, wherever it likes.
    pub arena: Option<Arena>,
    /// Threads, device, and what the graph does not say of itself.
    pub options: SessionOptions,
}

/// A library that computes.
pub trait Engine: Send + Sync {
    /// The name in manifests and metrics: "onnxruntime".
    fn name(&self) -> &'static str;

    /// The library's own version, for people.
    fn version(&self) -> String;

    /// What it can do.
    fn capabilities(&self) -> Capabilities;

    /// How many bytes of an [`Arena`] loading `graph` takes at most. Reads the file's directory only.
    ///
    /// # Errors
    /// Those of reading the file; `DataLoss` when it is damaged.
    fn arena_bytes(&self, graph: &Path) -> Result<usize> {
        let _ = graph;
        Ok(0)
    }

    /// Opens a model. Runs on a loader thread and may take seconds.
    ///
    /// # Errors
    /// `InvalidArgument` or `DataLoss` when the model is at fault, `Internal` when the engine is; the message is
    /// one line and names the model's fault in the engine's words.
    fn load(&self, request: &LoadRequest) -> Result<Box<dyn Session>>;
}

/// A loaded model. Dropping it releases everything the engine holds for it, then the regions.
pub trait Session: Send + Sync {
    /// What it takes and gives.
    fn signature(&self) -> &Signature;

    /// Free-form facts that the model carries (labels, producer, description).
    fn metadata(&self) -> &BTreeMap<String, String>;

    /// Bytes of the [`Arena`] in use; 0 for an engine whose parameters are bound.
    fn parameter_bytes(&self) -> u64 {
        0
    }

    /// Whether a run leaves state behind inside the model. Then [`Session::run`] starts each run from the state as
    /// loaded, so that no answer depends on another request, and a [`Session::fork`] keeps its own from run to run.
    fn stateful(&self) -> bool {
        false
    }

    /// The same model with a state of its own, as loaded, which every run carries on; parameters are shared. Its
    /// runs must come one after the other (they wait for each other if they do not).
    ///
    /// # Errors
    /// `Unimplemented` where the engine keeps no state, `Internal` when the engine fails.
    fn fork(&self) -> Result<Box<dyn Session>> {
        Err(Error::unimplemented("this engine's models keep no state inside"))
    }

    /// Runs once on the calling thread. `inputs` were checked against the signature by the caller
    /// ([`Signature::check_inputs`]); `outputs` names the wanted outputs in the wanted order, all of them in the
    /// signature's order when empty.
    ///
    /// # Errors
    /// `InvalidArgument` when the engine refuses the values (an index out of range), `Internal` otherwise.
    fn run(&self, inputs: &[NamedTensor], outputs: &[Arc<str>]) -> Result<Vec<NamedTensor>>;
}
