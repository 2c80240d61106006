//! `/v1/images`: collections of images. Images are put in one by one or in bulk, kept as they were
//! sent, and found by other images.
//!
//! An image whose caller waits is decoded on the threads "images-N" ([`pool`]) and embedded by the
//! scheduler like any request. Bulk work ([`ingest`]) does both itself at idle priority.
//! [`collection`] describes a collection of images, [`features`] extracts an image's features,
//! [`embedder`] finds the models that embed, [`originals`] keeps the files, [`store`] writes the
//! points, [`query`] finds them, and [`rebuild`] gives a collection another model.

mod add;
mod archive;
mod browse;
mod bulk;
mod claims;
mod collection;
mod config;
mod embedder;
mod endpoints;
mod features;
mod folder;
mod ingest;
mod job;
mod originals;
mod pool;
mod progress;
mod query;
mod rebuild;
mod services;
mod state;
mod store;

pub use browse::ImageRemoval;
pub use config::ImagesConfig;
pub use endpoints::{OPENAPI, routes};
pub use state::ImagesState;
