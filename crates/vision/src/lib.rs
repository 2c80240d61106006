//! Pictures: from the bytes of a file to what search compares.
//!
//! A file becomes an upright [`Picture`]; that becomes the input of an embedding model, a
//! thumbnail, and a keypoint graph ([`matching::Graph`]), of described keypoints for photographs
//! and of minutiae for fingerprints. This crate does no I/O, runs no model and starts no thread;
//! whoever calls it decides where the time is spent.

mod decode;
mod density;
mod embed;
pub mod fingerprint;
mod header;
mod jpeg_end;
pub mod photo;
mod picture;
mod png;
mod thumbnail;
mod tiff;
mod webp;

pub use decode::{Decoded, Format, Limits, decode};
pub use embed::{Fit, Layout, Order, Preprocess};
pub use header::{Header, decode_bytes};
pub use picture::{Gray, Picture};
pub use thumbnail::thumbnail;

/// Exposes parsers to the fuzz targets. Not part of the API.
#[doc(hidden)]
pub mod fuzzing {
    pub use crate::density::dots_per_inch;
}
