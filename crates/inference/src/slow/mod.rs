//! Explains slow requests: those above the 99th percentile of their model.
//!
//! The path of a request only adds its time to [`window`] and its phases to [`typical`], without a
//! lock. A slow one is passed to the thread of [`log`], which samples the machine ten times a
//! second ([`evidence`]) and finds the causes afterwards ([`causes`]).

mod causes;
mod evidence;
mod log;
mod phases;
mod records;
mod sampler;
mod typical;
mod window;

pub use causes::{CAUSES, SlowCause};
pub use log::SlowLog;
pub use records::SlowRequest;
