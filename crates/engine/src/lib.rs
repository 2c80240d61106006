//! The traits between Millpond and inference libraries.
//!
//! An [`Engine`] opens a published version and returns a [`Session`]; a session runs tensors.
//! Neither knows about requests, versions or time. Each engine is a crate of its own that runs
//! `conformance` in its tests, as the fake engine does.
//!
//! If an engine allows it, parameters never pass through its allocator. The caller places them in
//! regions of `memory` and passes them as [`BoundTensor`]s, which the session keeps alive.
//!
//! To add an engine, implement the two traits in a crate `engine-NAME`, state its limits in
//! [`Capabilities`], run `conformance::check` from its integration test, and add it to the list in
//! `server`.
//!
//! # Modules
//! * Opening a model: `session_options`, `library_search`, `c_string`, `arena`, `signature_file`,
//!   `named_signature`, `example_settings`.
//! * A loaded version: `servable`, `stream`, `output_sizes`.
//! * Batching: `schedule_options` are the settings, `schedule_file` their text, `batch_plan` the
//!   rules for one version.
//! * Files: `layout` describes a published version, `publish` writes one, `foreign` names files
//!   of other programs.
//! * Tests of engines: `conformance`, `fake`, `threads`.
//!
//! # Example: an engine that doubles its input
//! ```
//! use std::collections::BTreeMap;
//! use std::sync::Arc;
//!
//! use base::{DType, Dim, NamedTensor, Result, Signature, Tensor, TensorSpec};
//! use millpond_engine::{Capabilities, Engine, LoadRequest, ParameterUse, Session};
//!
//! struct DoublingEngine;
//!
//! struct DoublingSession {
//!     signature: Signature,
//!     metadata: BTreeMap<String, String>,
//! }
//!
//! impl Engine for DoublingEngine {
//!     fn name(&self) -> &'static str {
//!         "doubling"
//!     }
//!     fn version(&self) -> String {
//!         "1".to_owned()
//!     }
//!     fn capabilities(&self) -> Capabilities {
//!         Capabilities {
//!             parameters: ParameterUse::Bound,
//!             files: vec!["model.double"],
//!             dtypes: vec![DType::F32],
//!             cuda: false,
//!             opens_slowly: false,
//!         }
//!     }
//!     fn load(&self, request: &LoadRequest) -> Result<Box<dyn Session>> {
//!         self.capabilities().check_device(self.name(), request.options.device)?;
//!         let shape = Some(vec![Dim::Dynamic(None)]);
//!         let x = TensorSpec { name: "x".into(), dtype: DType::F32, shape, optional: false };
//!         let y = TensorSpec { name: "y".into(), ..x.clone() };
//!         let signature = Signature { inputs: vec![x], outputs: vec![y] };
//!         Ok(Box::new(DoublingSession { signature, metadata: BTreeMap::new() }))
//!     }
//! }
//!
//! impl Session for DoublingSession {
//!     fn signature(&self) -> &Signature {
//!         &self.signature
//!     }
//!     fn metadata(&self) -> &BTreeMap<String, String> {
//!         &self.metadata
//!     }
//!     fn run(&self, inputs: &[NamedTensor], _: &[Arc<str>]) -> Result<Vec<NamedTensor>> {
//!         let values: Vec<f32> = inputs[0].tensor.to_vec()?;
//!         let doubled: Vec<f32> = values.iter().map(|value| value * 2.0).collect();
//!         Ok(vec![NamedTensor::new("y", Tensor::from_vec([doubled.len()].as_slice(), doubled)?)])
//!     }
//! }
//!
//! # fn main() -> Result<()> {
//! let session = DoublingEngine.load(&LoadRequest::default())?;
//! let x = [NamedTensor::new("x", Tensor::from_vec([2].as_slice(), vec![1.5f32, 2.0])?)];
//! session.signature().check_inputs(&x)?;
//! assert_eq!(session.run(&x, &[])?[0].tensor.to_vec::<f32>()?, [3.0, 4.0]);
//! # Ok(())
//! # }
//! ```

mod arena;
mod batch_plan;
mod c_string;
mod example_settings;
pub mod foreign;
pub mod layout;
mod library_search;
mod named_signature;
mod output_sizes;
pub mod publish;
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
#[cfg(any(test, feature = "testing"))]
pub mod threads;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use base::{DType, Error, NamedTensor, Result, Signature};
use memory::Region;

pub use arena::Arena;
pub use batch_plan::{AxisCut, BatchPlan, GrowingAxis, InputFill, InputPlan, OutputPlan, PadRule};
pub use c_string::{c_path, c_text};
pub use example_settings::{
    ClassifySettings, DefaultValue, ExampleSettings, ExamplesSection, LABELS_MAX, RegressSettings,
};
pub use library_search::{LibrarySearch, package_dirs};
pub use named_signature::{DEFAULT_SIGNATURE, NamedSignature, SKIPPED_SIGNATURES_KEY};
pub use schedule_file::{
    CutText, MergeText, ModeText, PadText, PriorityText, RoundingText, ScheduleFile,
};
pub use schedule_options::{
    BATCH_MAX, BUCKETS_MAX, CutOptions, Merge, PRIORITY_LEVELS_MAX, PadOptions, PriorityOptions,
    QUEUE_DELAY_MAX, ScheduleMode, ScheduleOptions,
};
pub use servable::{Servable, ServableSettings};
pub use session_options::{Device, SessionOptions};
pub use signature_file::{SignatureFile, TensorText};

/// Source of an engine's parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParameterUse {
    /// Uses [`BoundTensor`]s in place. Unpublished versions are converted first.
    Bound,
    /// Allocates while loading, from the caller's [`Arena`]. Versions are opened as they are.
    Allocated,
}

/// Features and limits of an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Source of its parameters.
    pub parameters: ParameterUse,
    /// File names that mark a directory without a manifest as a version of this engine, best first.
    pub files: Vec<&'static str>,
    /// Element types of its inputs and outputs.
    pub dtypes: Vec<DType>,
    /// True if it can open models on CUDA devices. A load checks which devices exist.
    pub cuda: bool,
    /// True if opening the library takes about a second or longer. Isolated models then keep a
    /// spare worker process that has opened it.
    pub opens_slowly: bool,
}

impl Capabilities {
    /// Checks that this engine, called `engine`, supports `device`.
    ///
    /// # Errors
    /// `InvalidArgument` that lists the devices of the engine, with the remedy.
    pub fn check_device(&self, engine: &str, device: Device) -> Result<()> {
        match device {
            Device::Cuda(_) if !self.cuda => Err(Error::invalid(format!(
                "device = \"{device}\" in the model's settings: engine {engine} has the device \"cpu\" only; \
                 set device = \"cpu\", or export the model as TorchScript to run it on a GPU"
            ))),
            Device::Cpu | Device::Cuda(_) => Ok(()),
        }
    }
}

/// One parameter in a region, ready to be used in place.
#[derive(Clone, Debug)]
pub struct BoundTensor {
    /// Name in the graph.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Sizes of its axes.
    pub dims: Vec<usize>,
    /// Memory that holds it.
    pub region: Arc<Region>,
    /// Offset of its first byte in the region.
    pub offset: usize,
    /// Length in bytes.
    pub bytes: usize,
}

impl BoundTensor {
    /// Returns the bytes for an engine to point into. Checks that they lie inside the region, have
    /// the length that type and shape need, and are aligned for the type.
    ///
    /// # Errors
    /// `InvalidArgument` that names the parameter and the failed check.
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

    /// Returns the bytes.
    ///
    /// # Panics
    /// If they lie outside the region; see [`BoundTensor::check`].
    pub fn as_slice(&self) -> &[u8] {
        &self.region.as_slice()[self.offset..self.offset + self.bytes]
    }
}

/// Inputs of a load.
#[derive(Clone, Debug, Default)]
pub struct LoadRequest {
    /// Name of the model, for messages and metrics.
    pub model: Arc<str>,
    /// Graph file in the engine's own format.
    pub graph: PathBuf,
    /// Parameters that the graph names but does not contain. Empty if the graph embeds them and the
    /// engine allocates them itself.
    pub parameters: Vec<BoundTensor>,
    /// Memory for the parameters of an engine with [`ParameterUse::Allocated`]. Without it, the
    /// engine uses its own allocator.
    pub arena: Option<Arena>,
    /// Threads, device, and facts about inputs and outputs that the graph does not state.
    pub options: SessionOptions,
    /// Request to end the load early with `Cancelled`. An engine may ignore it. The caller drops
    /// its references at the end of the warm-up. A worker process ends if the flag is set before.
    pub stop: Arc<AtomicBool>,
}

/// An inference library.
pub trait Engine: Send + Sync {
    /// Returns its name in manifests and metrics, such as "onnxruntime".
    fn name(&self) -> &'static str;

    /// Returns the library's version, for display.
    fn version(&self) -> String;

    /// Returns its features and limits.
    fn capabilities(&self) -> Capabilities;

    /// Returns an upper bound of the [`Arena`] bytes that loading `graph` needs. Reads only the
    /// file's directory.
    ///
    /// # Errors
    /// Errors of reading the file; `DataLoss` if it is damaged.
    fn arena_bytes(&self, graph: &Path) -> Result<usize> {
        let _ = graph;
        Ok(0)
    }

    /// Opens the library for all engines of this process, unless it is open. The first load does
    /// the same. An engine with [`Capabilities::opens_slowly`] overrides this.
    ///
    /// # Errors
    /// `NotFound` or `FailedPrecondition`, with the remedy, if the library cannot be used.
    fn open_library(&self) -> Result<()> {
        Ok(())
    }

    /// Opens a model, which may take seconds. Called on a loader thread.
    ///
    /// # Errors
    /// `InvalidArgument` or `DataLoss` if the model is wrong or damaged, `Internal` if the engine
    /// fails. The message is one line in the engine's words. `Cancelled` if [`LoadRequest::stop`]
    /// ended it.
    fn load(&self, request: &LoadRequest) -> Result<Box<dyn Session>>;
}

/// A loaded model. Dropping it releases the engine's resources, then the regions.
pub trait Session: Send + Sync {
    /// Returns its inputs and outputs.
    fn signature(&self) -> &Signature;

    /// Returns all signatures of a model that names them. Empty if the model has one signature,
    /// that of [`Session::signature`].
    fn signatures(&self) -> &[NamedSignature] {
        &[]
    }

    /// Returns the position in [`Session::signatures`] of the one that [`Session::signature`] and
    /// [`Session::run`] use.
    fn default_signature(&self) -> usize {
        0
    }

    /// Runs signature `number` of [`Session::signatures`]; otherwise as [`Session::run`].
    ///
    /// # Errors
    /// Returns the errors of [`Session::run`]; `Internal` for an engine whose models have one
    /// signature.
    fn run_signature(
        &self,
        number: usize,
        inputs: &[NamedTensor],
        outputs: &[Arc<str>],
    ) -> Result<Vec<NamedTensor>> {
        let _ = (inputs, outputs);
        Err(Error::internal(format!("this engine's models have no signature number {number}")))
    }

    /// Returns free-form facts from the model file: labels, producer, description.
    fn metadata(&self) -> &BTreeMap<String, String>;

    /// Returns the used bytes of the [`Arena`]; 0 for an engine with bound parameters.
    fn parameter_bytes(&self) -> u64 {
        0
    }

    /// Returns true if runs use the processor on other threads while the calling thread waits.
    fn runs_elsewhere(&self) -> bool {
        false
    }

    /// Returns false while every run fails, because the process of the model is started again.
    fn is_available(&self) -> bool {
        true
    }

    /// Returns true if no run of this process can succeed any more, because its device has failed.
    /// A worker process then ends without a reply, and another one takes its place.
    fn needs_new_process(&self) -> bool {
        false
    }

    /// Returns true if a run leaves state inside the model. Then [`Session::run`] starts every run
    /// from the state as loaded, so that no response depends on another request. A
    /// [`Session::fork`] keeps its state from run to run.
    fn stateful(&self) -> bool {
        false
    }

    /// Returns true if a run changes values that later runs of all clients see, such as TensorFlow
    /// variables that a signature assigns to.
    fn changes_state(&self) -> bool {
        false
    }

    /// Returns a session with a state of its own, as loaded, that persists from run to run.
    /// Parameters are shared. Concurrent runs of one fork wait for each other.
    ///
    /// # Errors
    /// `Unimplemented` if the engine keeps no state, `Internal` if the engine fails.
    fn fork(&self) -> Result<Box<dyn Session>> {
        Err(Error::unimplemented("this engine's models keep no state inside"))
    }

    /// Runs once on the calling thread. The caller has checked `inputs` with
    /// [`Signature::check_inputs`]. `outputs` names the requested outputs in order. If it is empty,
    /// all outputs are returned in the signature's order.
    ///
    /// # Errors
    /// `InvalidArgument` if the engine refuses the values (such as an index out of range),
    /// `Internal` otherwise.
    fn run(&self, inputs: &[NamedTensor], outputs: &[Arc<str>]) -> Result<Vec<NamedTensor>>;
}
