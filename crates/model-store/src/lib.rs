//! Models in object stores: S3, Google Cloud Storage, Azure Blob Storage, HTTP and `file://`.
//!
//! A server never reads a model from a store directly. [`StoreMirror`] keeps a local copy of the
//! versions that should serve in a directory that the lifecycle watches, as any other directory. So
//! a restart without a network serves from the copy, and loading stays as fast and as gentle as
//! from a local disk.
//!
//! One listing finds the changes of a whole root. A published version is complete if it has a
//! manifest and the files of that manifest are there. A version of another layout is complete if
//! its listing has not changed for the settle time. Only tensors that no cached version has are
//! fetched.
//!
//! # Modules
//! * A directory in a store: `place` opens it, `options` are its settings, `listing` groups its
//!   objects, `small_objects` reads and writes small ones, `store_error` adds remedies to errors.
//! * Copies: `mirror` keeps them, `plan` and `fetch` copy one version, `cache` is the local
//!   directory, `hashed_file` checks it.
//! * For commands: `upload`, `diff`.

mod cache;
mod diff;
mod fetch;
mod hashed_file;
mod listing;
mod mirror;
mod options;
mod place;
mod plan;
mod small_objects;
mod store_error;
mod upload;

pub use cache::watched_dir;
pub use diff::{ManifestDiff, TensorChange};
pub use mirror::{
    FirstCopy, HasFailed, InUse, ListingRequests, MirrorConfig, MirrorHooks, MirrorThread, Sources,
    StoreMirror, StoreSource,
};
pub use options::StoreOptions;
pub use place::{
    PlaceContent, STORE_SCHEMES, StorePlace, StoredManifest, block_on, is_url, without_secrets,
};
pub use plan::FetchEstimate;
pub use small_objects::SmallObjects;
pub use store_error::is_full;
pub use upload::{UploadProgress, upload};
