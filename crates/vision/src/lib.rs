//! Images, from the bytes of a file to the input of search.
//!
//! A file becomes an upright [`Image`]. The image becomes the input of an embedding model, a
//! thumbnail, and a keypoint graph ([`matching::Graph`]): described keypoints of photographs, or
//! minutiae of fingerprints. This crate does no I/O, runs no model and starts no thread.
//!
//! # Modules
//! * From bytes to pixels: `decode` is the entry; `limits` and `header` bound the work, `density`
//!   finds the resolution, `pixels` holds the image, `unsupported` names other formats.
//! * Formats: `bytes`, `jpeg`, `nist`, `png`, `tiff`, `webp`, `wsq`.
//! * From pixels to search: `embed`, `thumbnail`, `photo`, `fingerprint`.

mod bytes;
mod decode;
mod density;
mod embed;
pub mod fingerprint;
mod header;
mod jpeg;
mod limits;
mod nist;
pub mod photo;
mod pixels;
mod png;
mod thumbnail;
mod tiff;
mod unsupported;
mod webp;
mod wsq;

pub use decode::{Decoded, decode};
pub use density::dots_per_inch;
pub use embed::{Fit, Layout, Order, Preprocess};
pub use header::{Header, decode_bytes};
pub use limits::{Format, Limits};
pub use nist::{NistCompression, NistImage, nist_file_of, nist_images};
pub use pixels::{Gray, Image};
pub use thumbnail::{thumbnail, thumbnail_bytes};

/// Exposes parsers to the fuzz targets. Not part of the API.
#[doc(hidden)]
pub mod fuzzing {
    pub use crate::density::dots_per_inch;
}
