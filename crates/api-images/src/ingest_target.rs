//! Archives and folders whose images the threads of bulk work add to a collection of this server.

use std::sync::Arc;

use base::{Error, Result};
use bytes::Bytes;
use image_features::print_files::{self, FilePrints, SplitPrint};
use parking_lot::Mutex;
use serde_json::{Map, Value};

use super::bulk::{BulkImage, BulkOutcome, BulkReporter, BulkTarget, PrintOutcome};
use super::file_upload::holds_prints;
use super::ingest::IngestImage;
use super::job::IngestJob;
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
            Ok(file) if file.are_several() => self.put_prints(image.name, file, report),
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

    /// Adds the prints of a file. The print that has the whole file is the last. Clients do not
    /// send a file again if its id is in the collection.
    fn put_prints(&self, name: String, file: FilePrints, report: BulkReporter) -> Result<()> {
        let upload = Arc::new(BulkPrints {
            state: self.state.clone(),
            job: self.job.clone(),
            name,
            file,
            payload: self.payload.clone(),
        });
        let whole = upload.file.whole_number();
        let results = Arc::new(PrintResults::new(upload.clone(), report));
        for number in (0..upload.file.prints.len()).filter(|number| *number != whole) {
            upload.send(number, &results)?;
        }
        Ok(())
    }
}

/// A file with several prints that is being added.
struct BulkPrints {
    state: Arc<ImagesState>,
    job: Arc<IngestJob>,
    name: String,
    file: FilePrints,
    /// Payload of each image.
    payload: Map<String, Value>,
}

impl BulkPrints {
    /// Queues a print, and waits while the queue is full.
    ///
    /// # Errors
    /// As [`Ingest::send`].
    ///
    /// [`Ingest::send`]: super::ingest::Ingest::send
    fn send(&self, number: usize, results: &Arc<PrintResults>) -> Result<()> {
        let print = match self.file.prints.get(number) {
            Some(Ok(print)) => print,
            // The results have this error.
            Some(Err(refused)) => {
                self.job.services.count_put(refused.error.kind().name());
                return Ok(());
            }
            None => return Ok(()),
        };
        let results = results.clone();
        let done = Box::new(move |outcome: Result<PutOutcome>| {
            results.set(number, outcome.map(|outcome| outcome.of_bulk()));
        });
        self.state.ingest.send(IngestImage {
            job: self.job.clone(),
            name: self.name.clone(),
            bytes: print.bytes.clone(),
            payload: self.file.payload(print, &self.payload),
            done,
        })
    }

    /// Adds the print that has the whole file, after the others, whose results are in `prints`. If
    /// an error of the server has ended one of them, reports the results without it.
    fn add_whole(self: Arc<Self>, mut prints: Vec<PrintOutcome>, report: BulkReporter) {
        if refuse_whole(&self.file, &mut prints) {
            return report.send_prints(prints);
        }
        report.resume(move |report| {
            let prints = Mutex::new(prints);
            let results = PrintResults { prints, report: Some(report), next: None };
            self.send(self.file.whole_number(), &Arc::new(results))
        });
    }
}

/// Sets the error of the print that has the whole file if an error of the server has ended another
/// print. Returns true if there is one: a client that sends the file again then adds all prints.
fn refuse_whole(file: &FilePrints, prints: &mut [PrintOutcome]) -> bool {
    let whole = file.whole_number();
    let others = prints.iter().enumerate().filter(|(number, _)| *number != whole);
    let mut errors = others.filter_map(|(_, print)| print.outcome.as_ref().err());
    let ended = errors.find(|error| file.is_ended_by(error)).cloned();
    let Some(error) = ended else { return false };
    if let Some(print) = prints.get_mut(whole) {
        print.outcome = Err(error.context("not tried, because another print of the file failed"));
    }
    true
}

/// Results of the prints of a file. Dropping the last reference reports them. At that time each
/// print has its result, or its thread has panicked.
struct PrintResults {
    prints: Mutex<Vec<PrintOutcome>>,
    report: Option<BulkReporter>,
    /// The file, until its print that keeps the whole file is added.
    next: Option<Arc<BulkPrints>>,
}

impl PrintResults {
    fn new(upload: Arc<BulkPrints>, report: BulkReporter) -> PrintResults {
        let prints = Mutex::new(unknown_outcomes(&upload.file));
        PrintResults { prints, report: Some(report), next: Some(upload) }
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
        let prints = std::mem::take(self.prints.get_mut());
        let Some(report) = self.report.take() else { return };
        match self.next.take() {
            Some(upload) => upload.add_whole(prints, report),
            None => report.send_prints(prints),
        }
    }
}

/// Returns the outcomes of prints that are not known, because their threads have panicked.
fn unknown_outcomes(file: &FilePrints) -> Vec<PrintOutcome> {
    let unknown = |print: &SplitPrint| match print {
        Ok(print) => {
            let error = Error::internal("a panic ended the work on this print");
            PrintOutcome { finger: print.finger, outcome: Err(error) }
        }
        Err(refused) => {
            PrintOutcome { finger: refused.finger, outcome: Err(refused.error.clone()) }
        }
    };
    file.prints.iter().map(unknown).collect()
}

#[cfg(test)]
mod tests {
    use base::ErrorKind;
    use matching::synthetic;
    use matching::template::{self, TemplateFormat};
    use search::points::PointId;

    use super::*;

    /// Returns a template with two finger views.
    fn two_views() -> Bytes {
        let mut file =
            template::write(&synthetic::fingerprint(1), TemplateFormat::Iso2005).unwrap();
        let view = file[24..].to_vec();
        file.extend(view);
        let length = u32::try_from(file.len()).unwrap();
        file[8..12].copy_from_slice(&length.to_be_bytes());
        file[22] = 2;
        Bytes::from(file)
    }

    #[test]
    fn the_whole_file_is_not_added_after_an_error_of_the_server() {
        let file = FilePrints::split(&two_views(), |_| Ok(())).unwrap();
        assert!(file.are_several() && file.whole_number() == 0);
        let outcomes = |other| {
            let mut prints = unknown_outcomes(&file);
            prints[1].outcome = other;
            prints
        };
        let added = BulkOutcome { id: PointId::Number(1), added: true };
        for harmless in [Ok(added), Err(Error::invalid("no minutiae"))] {
            let mut prints = outcomes(harmless);
            assert!(!refuse_whole(&file, &mut prints));
        }
        let mut prints = outcomes(Err(Error::storage_full("no space")));
        assert!(refuse_whole(&file, &mut prints));
        let error = prints[0].outcome.clone().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StorageFull);
        assert!(error.message().starts_with("not tried"), "{error}");
    }
}
