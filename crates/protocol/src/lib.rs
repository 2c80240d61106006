//! Wire types of the Open Inference Protocol and of TensorFlow Serving, and pure conversions
//! between them and the vocabulary of `base`.
//!
//! The crate opens no socket and no file, and does not panic on foreign bytes. Every parser returns
//! a [`base::Error`], whose kind [`status`] turns into a status of each protocol. A parser
//! allocates at most a constant times the length of its input, within the limits of each module.
//! The constant can be large for gRPC messages: [`mod@weigh`] bounds the memory of one before it is
//! decoded.
//!
//! Payloads are shared and not copied. A tensor decoded from a message is a slice of the message's
//! buffer, and an encoded message shares the tensor's buffer. Exceptions are text (JSON), typed
//! fields narrower than their field on the wire, and 4-bit elements, which TensorFlow does not
//! pack.
//!
//! # Modules
//! * Protocols: `oip`, `tfs`, `reflection`; `generated` has their messages.
//! * JSON: `json`.
//! * What protocols share: `status`, `status_details`, `wire`.
//! * Memory of a message before it is decoded: `weigh`, `described_weight`.

mod described_weight;
mod generated;
mod json;
pub mod oip;
pub mod reflection;
pub mod status;
pub mod status_details;
pub mod tfs;
pub mod weigh;
mod wire;

pub use described_weight::{weigh_described, weigh_element_wise};
pub use generated::{grpc, inference, qdrant, tensorflow};
pub use prost::Message;
pub use wire::unreadable;
