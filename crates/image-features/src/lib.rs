//! Features of images: how they are extracted from files, their form as points, and the collections
//! that hold them.
//!
//! The crate `api-images` has the routes, the threads and the store of original files. It calls
//! these functions on its threads.
//!
//! # Invariant
//! An image is decoded only in memory that was reserved for it. Features are checked before they
//! are written. They have the kind and the model of their collection, an embedding that every index
//! can compare, and a payload that fits.
//!
//! # Modules
//! * Collections: `collection` finds and creates collections of images, `settings` has the subject
//!   and the model of one.
//! * Files: `template_file` knows the formats and reads templates, `print_files` splits a file with
//!   several fingerprints.
//! * Extraction: `features` decodes a file and finds its id, facts and keypoints. `embedder` finds
//!   the models that embed, `embedding_plan` decides which images need one.
//! * Points: `point_features` is the form of features without an image, in which `base64_text` is
//!   the form of bytes. `point_checks` and `checked_features` check features and write them.
//! * Clusters: `logged` turns a request into operations of a log, and `apply` makes them in the
//!   collection of a shard.
//! * Tests: `testing` makes points, and collections for them.

pub mod apply;
pub mod base64_text;
pub mod checked_features;
pub mod collection;
pub mod embedder;
pub mod embedding_plan;
pub mod features;
pub mod logged;
pub mod point_checks;
pub mod point_features;
pub mod print_files;
pub mod settings;
pub mod template_file;
#[cfg(feature = "testing")]
pub mod testing;
