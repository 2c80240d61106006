//! `/v1/audio`: audio from an upload goes through a served model and becomes labels.
//!
//! Each recording has two threads of its own. "audio-N-in" waits for its bytes and decodes them.
//! "audio-N" submits runs to the inference workers and writes the response. So labels are sent
//! while an upload pauses. There are as many pairs as [`AudioConfig::recordings_max`]. Connection
//! threads only move bytes through two bounded queues, so the memory does not grow with the length
//! of a recording.
//!
//! # Modules
//! * Routes: `endpoints` and `speakers` answer, `state` is what they share, `config` their
//!   settings.
//! * A recording: `upload` starts it, `body` and `spool` read it, `served_model` runs the model,
//!   `response` writes labels.
//! * Models and voices: `recognisers` finds the models, `speaker_registry` keeps the voices.

mod body;
mod config;
mod endpoints;
mod recognisers;
mod response;
mod served_model;
mod speaker_registry;
mod speakers;
mod spool;
mod state;
mod upload;

pub use config::AudioConfig;
pub use endpoints::{OPENAPI, routes};
pub use recognisers::find_recogniser;
pub use served_model::ServedModel;
pub use state::AudioState;
