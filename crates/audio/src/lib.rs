//! Turns a recording, from a file or an upload, into labels in time order. Memory does not grow
//! with the recording's length.
//!
//! A recording passes four streaming stages: decoding, change of rate, windows, labels. The second,
//! [`resample`] of the crate `signal`, mixes to one channel at the model's rate.
//!
//! No model runs here: the caller passes an [`AudioModel`], a function from tensors to tensors. No
//! socket is opened here. [`pipeline`] starts one thread per recording, which reads it.
//!
//! # Modules
//! * Signal to windows: [`decode`] reads a file block by block and reports damage with its time.
//!   [`features`] and `segment` make the windows that a model takes.
//! * Labels: [`post`] makes them from the model's outputs, [`write`](mod@write) prints them in
//!   common formats, [`speakers`] keeps enrolled voices.
//! * All stages: [`pipeline`] joins them as a [`recogniser`] describes.
//!
//! # Example: a model that hears loud windows
//! ```
//! use std::io::Cursor;
//! use std::sync::Arc;
//!
//! use base::{CarriedInput, DType, Dim, NamedTensor, Result, Signature, Tensor, TensorSpec};
//! use millpond_audio::decode::AudioInput;
//! use millpond_audio::pipeline::{PipelineEvent, PipelineOptions, recognise};
//! use millpond_audio::recogniser::Recogniser;
//! use millpond_audio::{AudioModel, PendingRun};
//!
//! struct Loudness(Signature);
//!
//! impl AudioModel for Loudness {
//!     fn signature(&self) -> &Signature {
//!         &self.0
//!     }
//!     fn stateful(&self) -> bool {
//!         false
//!     }
//!     fn start(&self, inputs: Vec<NamedTensor>) -> Result<PendingRun> {
//!         let windows = inputs[0].tensor.to_vec::<f32>()?;
//!         let loud = |window: &[f32]| if window.iter().any(|s| *s > 0.5) { 1.0f32 } else { 0.0 };
//!         let loud: Vec<f32> = windows.chunks(800).map(loud).collect();
//!         let output = Tensor::from_vec([loud.len(), 1].as_slice(), loud)?;
//!         let (sender, receiver) = crossbeam_channel::bounded(1);
//!         sender.send(Ok(vec![NamedTensor::new("loud", output)])).ok();
//!         Ok(receiver)
//!     }
//!     fn stream(&self, _: Vec<CarriedInput>, _: usize) -> Result<Arc<dyn AudioModel>> {
//!         unreachable!("the model has no state")
//!     }
//! }
//!
//! # fn main() -> Result<()> {
//! let spec = |name: &str, columns| TensorSpec {
//!     name: name.into(),
//!     dtype: DType::F32,
//!     shape: Some(vec![Dim::Dynamic(None), Dim::Fixed(columns)]),
//!     optional: false,
//! };
//! let signature = Signature { inputs: vec![spec("x", 800)], outputs: vec![spec("loud", 1)] };
//! let model: Arc<dyn AudioModel> = Arc::new(Loudness(signature));
//! let recogniser = Recogniser::parse(
//!     "loudness",
//!     "
//!     kind = 'events'
//!     rate = 8000
//!     window = 800
//!     features = { kind = 'raw' }
//!     output = { classes = ['loud'] }
//!     events = { on = 0.5, pad = '0ms' }
//!     ",
//! )?;
//!
//! // A wav file of 16 bits at 8 kHz: one second of silence and one second of a loud tone.
//! let samples = (0..16_000i16).map(|i| if i < 8000 { 0 } else { (i % 8 - 4) * 8000 });
//! let data: Vec<u8> = samples.flat_map(i16::to_le_bytes).collect();
//! let mut wav = b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0".to_vec();
//! wav.extend([8000u32.to_le_bytes(), 16_000u32.to_le_bytes()].concat());
//! wav.extend(b"\x02\0\x10\0data");
//! wav.extend((data.len() as u32).to_le_bytes());
//! wav.extend(data);
//!
//! let input = AudioInput::Stream(Box::new(Cursor::new(wav)));
//! let options = PipelineOptions::default();
//! let mut labels = Vec::new();
//! recognise(input, Some("wav"), &recogniser, &model, &options, &mut |event| {
//!     if let PipelineEvent::Label(label) = event {
//!         labels.push((label.text, label.start, label.end));
//!     }
//!     Ok(())
//! })?;
//! assert_eq!(labels, [("loud".to_owned(), 1.0, 2.0)]);
//! # Ok(())
//! # }
//! ```

pub mod decode;
pub mod features;
pub mod pipeline;
pub mod post;
pub mod recogniser;
mod segment;
pub mod speakers;
pub mod write;

use std::sync::Arc;

pub use signal::resample;

use base::{CarriedInput, NamedTensor, Result, Signature};
use crossbeam_channel::Receiver;

/// Receiver of a started run's outputs: exactly one message.
pub type PendingRun = Receiver<Result<Vec<NamedTensor>>>;

/// Model of a recogniser, which runs tensors.
pub trait AudioModel: Send + Sync {
    /// Returns its inputs and outputs.
    fn signature(&self) -> &Signature;

    /// Returns true if the model keeps a state inside from run to run, so that a recording needs an
    /// [`AudioModel::stream`] of its own.
    fn stateful(&self) -> bool;

    /// Starts a run. Returns at once, or blocks while the model's queue is full. Runs may overtake
    /// each other.
    ///
    /// # Errors
    /// Invalid inputs, or a server that is stopping.
    fn start(&self, inputs: Vec<NamedTensor>) -> Result<PendingRun>;

    /// Returns the same model for one stream. Consecutive items lie along axis 0 of the first input
    /// and run one after the other. The state passes from item to item and from run to run, inside
    /// the model and from the outputs to the inputs that `carried` names. An item is `lanes` rows
    /// of axis 0. They are as many streams side by side, in the batch of a model whose state has a
    /// batch axis. One run at a time.
    ///
    /// # Errors
    /// Returns an error if the model has no such input or output, or cannot have a state of its
    /// own.
    fn stream(&self, carried: Vec<CarriedInput>, lanes: usize) -> Result<Arc<dyn AudioModel>>;
}

/// Damage or a failed run at one point of a recording. It did not end the work.
#[derive(Clone, Debug, PartialEq)]
pub struct Fault {
    /// Position in seconds from the beginning.
    pub at: f64,
    /// Description, as a sentence without a full stop.
    pub what: String,
}

/// One recognised stretch of a recording.
#[derive(Clone, Debug, PartialEq)]
pub struct Label {
    /// Start in seconds from the beginning.
    pub start: f64,
    /// End in seconds.
    pub end: f64,
    /// Class or speaker.
    pub text: String,
    /// Probability, 0 to 1; for speakers the similarity, -1 to 1.
    pub score: f32,
    /// Embedding of the stretch, if the recogniser makes embeddings and the caller requested them.
    pub embedding: Option<Vec<f32>>,
}
