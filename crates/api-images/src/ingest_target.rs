//! Archives and folders whose images the threads of bulk work add to a collection of this server.

use std::sync::Arc;

use base::{Error, Result};
use bytes::Bytes;
use parking_lot::Mutex;
use serde_json::{Map, Value};

use super::bulk::{BulkImage, BulkOutcome, BulkReporter, BulkTarget, PrintOutcome};
use super::file_upload::holds_prints;
use super::ingest::IngestImage;
use super::job::IngestJob;
use super::print_files::{self, FilePrints, PrintFile};
use super::state::ImagesState;
use super::store::PutOutcome;

/// Maximum images of one request in flight. A file with several prints counts as one.
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
        match self.split(&image.bytes) {
            Ok(file) if file.are_several() => self.put_prints(&image.name, &file, report),
            Ok(file) => self.put_image(image, &file, report),
            Err(error) => {
                self.job.services.count_put(error.kind().name());
                report.send(Err(error));
                Ok(())
            }
        }
    }
}

impl IngestTarget {
    /// Splits a file into its prints if the collection holds fingerprints. The thread that reads
    /// the files has counted the bytes of the prints with those of the file.
    ///
    /// # Errors
    /// As [`FilePrints::split`]; `Internal` if the server ends.
    fn split(&self, file: &Bytes) -> Result<FilePrints> {
        if !print_files::may_have_several(file) {
            return Ok(FilePrints::whole(file));
        }
        let services = self.job.services.clone();
        let wanted = self.job.wanted.clone();
        if self.job.at_ordinary_priority(move || Ok(holds_prints(&services, &wanted)))? {
            return FilePrints::split(file, |_| Ok(()));
        }
        Ok(FilePrints::whole(file))
    }

    fn put_image(&self, image: BulkImage, file: &FilePrints, report: BulkReporter) -> Result<()> {
        let BulkImage { name, bytes } = image;
        let payload = match file.prints.first() {
            Some(Ok(print)) => file.payload(print, &self.payload),
            Some(Err(_)) | None => self.payload.clone(),
        };
        let done = Box::new(move |outcome: Result<PutOutcome>| {
            report.send(outcome.map(|outcome| outcome.of_bulk()));
        });
        self.state.ingest.send(IngestImage { job: self.job.clone(), name, bytes, payload, done })
    }

    fn put_prints(&self, name: &str, file: &FilePrints, report: BulkReporter) -> Result<()> {
        let results = Arc::new(PrintResults::new(file, report));
        for number in file.write_order() {
            let print = match file.prints.get(number) {
                Some(Ok(print)) => print,
                // The results have this error.
                Some(Err(error)) => {
                    self.job.services.count_put(error.kind().name());
                    continue;
                }
                None => continue,
            };
            let results = results.clone();
            let done = Box::new(move |outcome: Result<PutOutcome>| {
                results.set(number, outcome.map(|outcome| outcome.of_bulk()));
            });
            self.state.ingest.send(IngestImage {
                job: self.job.clone(),
                name: name.to_owned(),
                bytes: print.bytes.clone(),
                payload: file.payload(print, &self.payload),
                done,
            })?;
        }
        Ok(())
    }
}

/// Results of the prints of a file. Dropping the last reference reports them: then each print has
/// its result, or its thread has panicked.
struct PrintResults {
    prints: Mutex<Vec<PrintOutcome>>,
    report: Option<BulkReporter>,
}

impl PrintResults {
    fn new(file: &FilePrints, report: BulkReporter) -> PrintResults {
        let unknown = |print: &Result<PrintFile>| match print {
            Ok(print) => {
                let error = Error::internal("a panic ended the work on this print");
                PrintOutcome { finger: print.finger, outcome: Err(error) }
            }
            Err(error) => PrintOutcome { finger: None, outcome: Err(error.clone()) },
        };
        let prints = Mutex::new(file.prints.iter().map(unknown).collect());
        PrintResults { prints, report: Some(report) }
    }

    fn set(&self, number: usize, outcome: Result<BulkOutcome>) {
        let mut prints = self.prints.lock();
        if let Some(print) = prints.get_mut(number) {
            print.outcome = outcome;
        }
    }
}

impl Drop for PrintResults {
    fn drop(&mut self) {
        let prints = self.prints.get_mut();
        if let Some(report) = self.report.take() {
            report.send_prints(std::mem::take(prints));
        }
    }
}
