//! Recordings: from a file or an upload to labels in time order, in memory that does not grow with their length.
//!
//! Four stages, each a module of its own and each streaming: [`decode`] reads a file block by block and says what is
//! wrong where; [`resample`] mixes to one channel at the model's rate; [`features`] and [`segment`] make the windows
//! that a model takes; [`post`] makes labels of what it gives. [`pipeline`] joins them as a [`recogniser`] describes,
//! [`speakers`] keeps enrolled voices, [`mod@write`] prints labels in the formats of the field.
//!
//! No model runs here: the pipeline is handed a [`AudioModel`], a function from tensors to tensors, by whoever has one.
//! Nothing here opens a socket, and [`pipeline`] starts one thread for each recording, which reads it.

pub mod decode;
pub mod features;
pub mod pipeline;
pub mod post;
pub mod recogniser;
pub mod resample;
pub mod segment;
pub mod speakers;
pub mod write;

use std::sync::Arc;

use base::{CarriedInput, NamedTensor, Result, Signature};
use crossbeam_channel::Receiver;

/// Where the answer of a run that has been started arrives: exactly one message.
pub type PendingRun = Receiver<Result<Vec<NamedTensor>>>;

/// What runs tensors through a model.
pub trait AudioModel: Send + Sync {
    /// What it takes and gives.
    fn signature(&self) -> &Signature;

    /// Whether it keeps a state inside from run to run, so that a recording needs a [`AudioModel::stream`] of its own.
    fn stateful(&self) -> bool;

    /// Starts a run and returns at once, or waits while the queue for it is full. Runs may overtake each other.
    ///
    /// # Errors
    /// What refuses the inputs, or a server that is stopping.
    fn start(&self, inputs: Vec<NamedTensor>) -> Result<PendingRun>;

    /// The same model for one stream: consecutive items lie along axis 0 of the first input, run one after the other,
    /// and the state goes from item to item and from run to run: inside the model, and from the outputs to the inputs
    /// that `carried` names. An item is `lanes` rows of axis 0, as many streams side by side in the batch of a model whose
    /// state has one. One run at a time.
    ///
    /// # Errors
    /// When the model has no such input or output, or cannot have a state of its own.
    fn stream(&self, carried: Vec<CarriedInput>, lanes: usize) -> Result<Arc<dyn AudioModel>>;
}

/// Something wrong at one place of a recording that did not end the work.
#[derive(Clone, Debug, PartialEq)]
pub struct Fault {
    /// Where, in seconds from the beginning.
    pub at: f64,
    /// What, as a sentence without a full stop.
    pub what: String,
}

/// What was recognised in a stretch of a recording.
#[derive(Clone, Debug, PartialEq)]
pub struct Label {
    /// Where it starts, in seconds from the beginning.
    pub start: f64,
    /// Where it ends, in seconds.
    pub end: f64,
    /// What it is: a class, a speaker.
    pub text: String,
    /// How sure the model is, 0 to 1; a similarity, -1 to 1, for speakers.
    pub score: f32,
    /// The embedding of the stretch, for recognisers that give one and callers that ask for it.
    pub embedding: Option<Vec<f32>>,
}
