//! The common vocabulary of all crates: element types, tensors, signatures, errors, units.
//!
//! Nothing here does I/O, holds a lock or contains `unsafe`, so results depend on the arguments
//! only. Bytes are little-endian and row-major, as on the wire of every protocol that Millpond
//! speaks.
//!
//! # Modules
//! * Models: `dtype`, `rounding`, `tensor`, `signature`, `ident`.
//! * Errors: `error`, `status`, `nearest`.
//! * Time: `timeline`, `utc`.
//! * Text: `units`, `control_characters`.

#[cfg(target_endian = "big")]
compile_error!("Millpond's tensors are little-endian in memory and on the wire");

mod control_characters;
mod dtype;
mod error;
mod ident;
mod nearest;
mod rounding;
mod signature;
mod status;
mod tensor;
mod timeline;
pub mod units;
mod utc;

pub use control_characters::escape_controls;
pub use dtype::{DType, Element};
pub use error::{Error, ErrorKind, Result};
pub use ident::{VersionId, VersionNumber};
pub use nearest::nearest;
pub use rounding::{round_to_bf16, round_to_f16};
pub use signature::{Dim, Signature, TensorSpec};
pub use tensor::{CarriedInput, Data, NamedTensor, Shape, Tensor};
pub use timeline::{
    Moment, QueueWait, RequestClock, RequestTimeline, RunAhead, RunRecord, TimelineSink,
};
pub use utc::{UtcTime, unix_time};
