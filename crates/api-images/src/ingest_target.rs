//! Archives and folders that are put into a collection of this server, by the threads of bulk work.

use std::sync::Arc;

use base::Result;
use serde_json::{Map, Value};

use super::bulk::{BulkImage, BulkReporter, BulkTarget};
use super::ingest::IngestImage;
use super::job::IngestJob;
use super::state::ImagesState;
use super::store::PutOutcome;

/// Maximum images of one request in flight.
const IN_FLIGHT_MAX: usize = 64;

/// Target of a request with many images.
pub(crate) struct IngestTarget {
    pub(crate) state: Arc<ImagesState>,
    pub(crate) job: Arc<IngestJob>,
    /// Payload of each image.
    pub(crate) payload: Map<String, Value>,
}

impl BulkTarget for IngestTarget {
    fn in_flight_max(&self) -> usize {
        IN_FLIGHT_MAX
    }

    fn put(&self, image: BulkImage, report: BulkReporter) -> Result<()> {
        let BulkImage { name, bytes } = image;
        let done = Box::new(move |outcome: Result<PutOutcome>| {
            report.send(outcome.map(|outcome| outcome.of_bulk()));
        });
        let payload = self.payload.clone();
        self.state.ingest.send(IngestImage { job: self.job.clone(), name, bytes, payload, done })
    }
}
