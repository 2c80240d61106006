//! JSON read and written in place, typed by what a tensor should hold.
//!
//! A reader of our own rather than a general one for two reasons: a body of a million numbers goes straight into the
//! tensor's memory without a tree of values, and both protocols take and give the bare tokens `NaN`, `Infinity` and
//! `-Infinity`, which general readers refuse.

mod column;
mod nesting;
mod reader;
mod writer;

pub(crate) use column::{Column, column};
pub(crate) use reader::{Reader, Scalar};
pub use writer::text_bytes_max;
pub(crate) use writer::{TextEncoding, key, string, write_flat, write_nested};
