//! Pictures: `/v1/images`. They are put in one by one or in bulk, kept as they were sent, and found
//! again by pictures.
//!
//! A picture that somebody waits for is decoded on the threads "images-N" ([`pool`]) and embedded
//! by the scheduler like any request; bulk work ([`ingest`]) does both itself at idle priority.
//! [`target`] is what a collection of pictures is, [`features`] what is made of a picture,
//! [`embedder`] which models embed, [`originals`] where files are kept, [`store`] how the points
//! get in, [`search`] how they are found, [`rebuild`] how a collection gets another model.

mod add;
mod browse;
mod bulk;
mod claims;
mod door;
mod embedder;
mod features;
mod folder;
mod ingest;
mod originals;
mod pool;
mod rebuild;
mod search;
mod store;
mod target;
#[cfg(test)]
mod tests;
mod zip;

use std::sync::Arc;

use base::Result;
use metrics::{KindLabels, Metrics};

use crate::config::SearchConfig;
pub(crate) use browse::ImageRemoval;
pub(crate) use door::routes;
use ingest::Ingest;
use originals::Originals;
use pool::Pool;
use rebuild::Rebuilds;
use store::Outcome;
use transport::UploadPermits;

/// Archives, folders and rebuilds that are worked on at the same time; the next is refused.
const BULKS_MAX: usize = 4;

/// What the routes share.
pub(crate) struct Images {
    pool: Pool,
    ingest: Ingest,
    originals: Originals,
    bulks: Arc<UploadPermits>,
    rebuilds: Rebuilds,
}

impl Images {
    pub(crate) fn new(config: SearchConfig, metrics: Arc<Metrics>) -> Images {
        Images {
            pool: Pool::new(metrics),
            ingest: Ingest::default(),
            originals: Originals::new(config),
            bulks: UploadPermits::new(BULKS_MAX),
            rebuilds: Rebuilds::default(),
        }
    }

    /// Pictures that wait: for a caller, and in bulk.
    pub(crate) fn waiting(&self) -> (usize, usize) {
        (self.pool.waiting(), self.ingest.waiting())
    }
}

/// Counts what became of a picture.
fn count(metrics: &Metrics, outcome: &Result<Outcome>) {
    let kind = outcome.as_ref().map_or_else(|error| error.kind().name(), Outcome::status);
    metrics.images.put.get_or_create(&KindLabels { kind }).inc();
}
