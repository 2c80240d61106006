//! Reads and writes tensors as JSON, without a tree of values.
//!
//! The reader is our own for two reasons. A body of a million numbers goes straight into the
//! tensor's memory. Both protocols use the bare tokens `NaN`, `Infinity` and `-Infinity`, which
//! general readers refuse.

mod column;
mod nesting;
mod reader;
mod writer;

pub(crate) use column::{Column, column, text_or_base64};
pub(crate) use reader::{JsonReader, Scalar};
pub(crate) use writer::{
    TextEncoding, description_bytes_max, key, single, string, string_or_base64, text_bytes_max,
    write_flat, write_nested,
};
