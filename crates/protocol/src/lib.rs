//! Wire types of the Open Inference Protocol, of TensorFlow Serving and of Qdrant's REST interface, and pure conversions
//! between them and the vocabulary of `base`.
//!
//! Nothing here opens a socket or a file, and nothing here panics on foreign bytes: every parser returns a
//! [`base::Error`] whose kind [`status`] turns into a status of each protocol. What a parser allocates is bounded by
//! the length of what it reads, times a constant, and by the limits named in each module. The constant can be large for
//! messages of gRPC: [`mod@weigh`] tells what one will take before it is decoded.
//!
//! Payloads are shared, not copied: a tensor decoded from a message is a slice of the message's buffer, and an
//! encoded message shares the buffer of the tensor. The exceptions are text (JSON), typed fields narrower than their
//! field on the wire, and 4-bit elements, which TensorFlow does not pack.

pub mod generated;
mod json;
pub mod oip;
pub mod qdrant;
pub mod status;
pub mod tfs;
pub mod weigh;
mod wire;

pub use generated::{inference, tensorflow};
pub use json::text_bytes_max;
pub use prost::Message;
pub use wire::{NAME_BYTES_MAX, RANK_MAX, TENSORS_MAX};
