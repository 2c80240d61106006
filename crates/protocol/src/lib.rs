//! Wire types of the Open Inference Protocol and of TensorFlow Serving, and pure conversions between them and the
//! vocabulary of `base`.
//!
//! Nothing here opens a socket or a file, and nothing here panics on foreign bytes: every parser returns an
//! [`base::Error`] whose kind [`status`] turns into a status of each protocol.

pub mod generated;
pub mod status;

pub use generated::{inference, tensorflow};
pub use prost::Message;
