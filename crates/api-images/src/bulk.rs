//! Adds the images of an archive or a folder, and reports each as a line once it is done. A
//! [`BulkTarget`] is their destination: the collections of this server, or those of a cluster.
//!
//! After an image for which a disk has no space, the next images are reported as failed and are not
//! processed. They would fail after their costly extraction. In a cluster, the disks of one shard
//! may be full, and the images of other shards continue.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base::{Error, ErrorKind, Result};
use bytes::Bytes;
use crossbeam_channel::{Receiver, Sender, unbounded};
use image_features::print_files;
use search::points::PointId;
use serde_json::{Value, json};
use transport::UploadPermit;
use transport::result_stream::ResultWriter;

use super::held_files::{CountedBytes, FILES_RETRY, HeldFiles};

/// An image of an archive or a folder.
#[derive(Clone, Debug)]
pub struct BulkImage {
    /// Name in the archive or the folder.
    pub name: String,
    /// File of the image.
    pub bytes: Bytes,
}

/// Outcome of an image of an archive or a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BulkOutcome {
    /// Id of its point.
    pub id: PointId,
    /// True if the collection did not have the image before.
    pub added: bool,
}

impl BulkOutcome {
    /// Returns the line of the response. `name` is the image's name in the request.
    fn line(&self, name: &str) -> Value {
        let status = if self.added { "added" } else { "present" };
        json!({ "name": name, "id": self.id, "status": status })
    }
}

/// Outcome of one print of a file with several.
#[derive(Clone, Debug, PartialEq)]
pub struct PrintOutcome {
    /// Finger, 1 to 10, if the file states one.
    pub finger: Option<u8>,
    /// Outcome of its image.
    pub outcome: Result<BulkOutcome>,
}

/// Destination of the images of an archive or a folder.
pub trait BulkTarget: Send + 'static {
    /// Returns the maximum number of images of one request in flight.
    fn in_flight_max(&self) -> usize;

    /// Begins to add an image. Waits first if too many images are in flight.
    ///
    /// # Errors
    /// An error that ends the request.
    fn put(&self, image: BulkImage, report: BulkReporter) -> Result<()>;

    /// Returns true if the images after one that fails with `error` would fail too. They are then
    /// not tried.
    fn refuses_all(&self, error: &Error) -> bool {
        error.kind() == ErrorKind::StorageFull
    }
}

pub(crate) enum SourceEntry {
    Image(BulkImage),
    /// Name and error of an image that cannot be read.
    Failed(String, Error),
    /// A file that is not an image.
    Ignored,
    /// No file.
    Nothing,
}

/// A sequence of images.
pub(crate) trait ImageSource {
    fn next(&mut self) -> Option<SourceEntry>;
}

/// An archive or a folder.
pub(crate) trait ImageFiles {
    /// Returns its images, from the first one on.
    ///
    /// # Errors
    /// The error of an archive whose directory cannot be read.
    fn images(&mut self) -> Result<impl ImageSource>;
}

#[derive(Default)]
struct Summary {
    added: u64,
    present: u64,
    failed: u64,
    ignored: u64,
    /// Number of files with images. A file of a fingerprint can have several prints.
    files: u64,
}

impl Summary {
    /// Counts an outcome of an image.
    fn count(&mut self, outcome: &Result<BulkOutcome>) {
        match outcome {
            Ok(BulkOutcome { added: true, .. }) => self.added += 1,
            Ok(_) => self.present += 1,
            Err(_) => self.failed += 1,
        }
    }

    /// Returns the last line of the response. It has the number of files if a file had several
    /// prints.
    fn line(&self) -> Value {
        let Summary { added, present, failed, ignored, files } = *self;
        let mut summary =
            json!({ "added": added, "present": present, "failed": failed, "ignored": ignored });
        if files != added + present + failed {
            summary["files"] = files.into();
        }
        json!({ "summary": summary })
    }
}

/// Resources of the response to a request with many images.
pub(crate) struct BulkResponse {
    pub(crate) permit: UploadPermit,
    pub(crate) writer: ResultWriter,
    /// Set to true once the client needs no result of the remaining images.
    pub(crate) stop: Arc<AtomicBool>,
}

/// Starts a thread that adds the images of a source to `target`, and writes lines.
///
/// # Errors
/// `ResourceExhausted` if no thread can be started.
pub(crate) fn start<S: ImageFiles>(
    files: &Arc<HeldFiles>,
    target: impl BulkTarget,
    response: BulkResponse,
    open: impl FnOnce() -> Result<S> + Send + 'static,
) -> Result<()> {
    let BulkResponse { permit, writer, stop } = response;
    let files = files.clone();
    let name = format!("ingest-in-{}", permit.number);
    let body = move || {
        os::thread::enter_background("reading images");
        let ended = open().map(|mut source| {
            Bulk::new(&files, &target, &writer, &stop).run(&mut source.images()?)
        });
        // The status is sent already, so an error is a line too.
        if let Ok(Err(error)) = &ended {
            let line = json!({ "error": error.message() });
            let _ = writer.send(format!("{line}\n").into());
        }
        writer.end(ended.map(drop));
        drop(permit);
    };
    os::thread::spawn(name, body).map(drop)
}

/// Outcome of a file.
struct ImageReport {
    name: String,
    outcome: FileOutcome,
}

impl ImageReport {
    fn failed(name: String, error: Error) -> ImageReport {
        ImageReport { name, outcome: FileOutcome::Image(Err(error)) }
    }
}

enum FileOutcome {
    /// The file is one image.
    Image(Result<BulkOutcome>),
    /// The file has several prints.
    Prints(Vec<PrintOutcome>),
    /// The rest of the work on the file, which reports the outcome.
    Rest(FileRest),
}

/// Rest of the work on a file. It may wait for the threads of bulk work, so it runs on the thread
/// that reads the files. An error ends the request.
type FileRest = Box<dyn FnOnce() -> Result<()> + Send>;

struct Bulk<'a, T> {
    files: &'a HeldFiles,
    target: &'a T,
    writer: &'a ResultWriter,
    stop: &'a AtomicBool,
    sender: Sender<ImageReport>,
    reports: Receiver<ImageReport>,
    in_flight: usize,
    summary: Summary,
    /// Error of the first image after which all others would fail, because a disk has no space.
    full: Option<Error>,
}

impl<'a, T: BulkTarget> Bulk<'a, T> {
    fn new(
        files: &'a HeldFiles,
        target: &'a T,
        writer: &'a ResultWriter,
        stop: &'a AtomicBool,
    ) -> Bulk<'a, T> {
        // At most `in_flight_max` reports are in the channel.
        let (sender, reports) = unbounded();
        let summary = Summary::default();
        Bulk { files, target, writer, stop, sender, reports, in_flight: 0, summary, full: None }
    }

    /// Adds all images of `source`, with a limited number at the same time. Writes a line for each
    /// image, and a last line with the totals. Ends early if `stop` is set.
    fn run(mut self, source: &mut impl ImageSource) -> Result<()> {
        while !self.stop.load(Ordering::Relaxed) {
            let Some(found) = source.next() else { break };
            match found {
                SourceEntry::Image(image) => match self.full.as_ref().map(not_tried) {
                    Some(error) => self.report(ImageReport::failed(image.name, error))?,
                    None => self.send(image)?,
                },
                SourceEntry::Failed(name, error) => {
                    self.report(ImageReport::failed(name, error))?
                }
                SourceEntry::Ignored => self.summary.ignored += 1,
                SourceEntry::Nothing => {}
            }
            while self.in_flight >= self.target.in_flight_max() {
                self.wait_report()?;
            }
            while let Ok(report) = self.reports.try_recv() {
                self.in_flight -= 1;
                self.report(report)?;
            }
        }
        while self.in_flight > 0 {
            self.wait_report()?;
        }
        self.writer.send(format!("{}\n", self.summary.line()).into())
    }

    /// Hands an image to the target, after a wait for memory. A report follows later.
    fn send(&mut self, image: BulkImage) -> Result<()> {
        // Together, the files of the prints have the length of the file.
        let copies = if print_files::may_have_several(&image.bytes) { 2 } else { 1 };
        let held = self.hold(copies * image.bytes.len() as u64)?;
        let target = Some((self.sender.clone(), image.name.clone()));
        self.in_flight += 1;
        self.target.put(image, BulkReporter { target, held: Some(held) })
    }

    /// Waits until the files in bulk work leave space for `bytes` more. Continues the work on other
    /// files meanwhile, because that work may wait for this thread.
    fn hold(&mut self, bytes: u64) -> Result<CountedBytes> {
        loop {
            if let Some(held) = self.files.try_hold(bytes) {
                return Ok(held);
            }
            // The channel has a sender, so an error means that no report came in this time.
            if let Ok(report) = self.reports.recv_timeout(FILES_RETRY) {
                self.in_flight -= 1;
                self.report(report)?;
            }
        }
    }

    fn wait_report(&mut self) -> Result<()> {
        let report =
            self.reports.recv().map_err(|_| Error::internal("the results of images are lost"))?;
        self.in_flight -= 1;
        self.report(report)
    }

    /// Counts the results of a file and writes their lines, or continues the work on it.
    fn report(&mut self, report: ImageReport) -> Result<()> {
        let ImageReport { name, outcome } = report;
        match outcome {
            FileOutcome::Rest(rest) => {
                self.in_flight += 1;
                rest()
            }
            FileOutcome::Image(outcome) => {
                self.summary.files += 1;
                self.count(&outcome);
                self.write(&line(&name, &outcome))
            }
            FileOutcome::Prints(prints) => {
                self.summary.files += 1;
                for PrintOutcome { finger, outcome } in &prints {
                    self.count(outcome);
                    let mut line = line(&name, outcome);
                    line["finger"] = (*finger).into();
                    self.write(&line)?;
                }
                Ok(())
            }
        }
    }

    /// Counts an outcome. Keeps the first error that all further images would have too.
    fn count(&mut self, outcome: &Result<BulkOutcome>) {
        self.summary.count(outcome);
        if let Err(error) = outcome
            && self.target.refuses_all(error)
        {
            self.full.get_or_insert_with(|| error.clone());
        }
    }

    fn write(&self, line: &Value) -> Result<()> {
        self.writer.send(format!("{line}\n").into())
    }
}

/// Returns the error of an image after one for which a disk has no space. `full` is the error of
/// that earlier image.
fn not_tried(full: &Error) -> Error {
    full.clone().context("not tried, because there was no space for an earlier image")
}

/// Returns the line of an image. `name` is the name of its file in the request.
fn line(name: &str, outcome: &Result<BulkOutcome>) -> Value {
    match outcome {
        Ok(outcome) => outcome.line(name),
        Err(error) => {
            json!({ "name": name, "id": null, "status": "failed", "error": error.message() })
        }
    }
}

/// Reports the outcome of an image exactly once, even if its thread or its task panics.
pub struct BulkReporter {
    target: Option<(Sender<ImageReport>, String)>,
    /// Bytes of the image's file.
    held: Option<CountedBytes>,
}

impl BulkReporter {
    /// Sends the outcome to the thread that writes the response.
    pub fn send(mut self, outcome: Result<BulkOutcome>) {
        self.send_once(FileOutcome::Image(outcome));
    }

    /// Sends the outcomes of a file with several prints.
    pub fn send_prints(mut self, prints: Vec<PrintOutcome>) {
        self.send_once(FileOutcome::Prints(prints));
    }

    /// Continues the work on the file with `rest`, on the thread that reads the files. `rest` may
    /// wait for the threads of bulk work, which must not wait for themselves. It is dropped if the
    /// request has ended.
    pub(crate) fn resume(mut self, rest: impl FnOnce(BulkReporter) -> Result<()> + Send + 'static) {
        let Some((sender, name)) = self.target.take() else { return };
        let target = Some((sender.clone(), name.clone()));
        let report = BulkReporter { target, held: self.held.take() };
        let outcome = FileOutcome::Rest(Box::new(move || rest(report)));
        // The send fails only if the client has disconnected and the thread has ended.
        let _ = sender.send(ImageReport { name, outcome });
    }

    fn send_once(&mut self, outcome: FileOutcome) {
        // The bytes are free before the client reads that the image is done.
        drop(self.held.take());
        if let Some((sender, name)) = self.target.take() {
            // The send fails only if the client has disconnected and the thread has ended.
            let _ = sender.send(ImageReport { name, outcome });
        }
    }
}

impl Drop for BulkReporter {
    fn drop(&mut self) {
        let error = Error::internal("a panic ended the work on this image");
        self.send_once(FileOutcome::Image(Err(error)));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::time::Duration;

    use metrics::Metrics;
    use tokio_stream::StreamExt;
    use transport::ByteBudget;
    use transport::result_stream::result_channel;

    use super::*;

    /// Images with the names "0", "1" and so on.
    struct NumberedImages(std::ops::Range<usize>);

    impl ImageSource for NumberedImages {
        fn next(&mut self) -> Option<SourceEntry> {
            let name = self.0.next()?.to_string();
            Some(SourceEntry::Image(BulkImage { name, bytes: Bytes::from_static(b"1234") }))
        }
    }

    /// Target with space for some images, which reports each at once.
    struct SmallDisk {
        room: usize,
        asked: AtomicUsize,
    }

    impl BulkTarget for SmallDisk {
        fn in_flight_max(&self) -> usize {
            2
        }

        fn put(&self, _: BulkImage, report: BulkReporter) -> Result<()> {
            let has_room = self.asked.fetch_add(1, Ordering::Relaxed) < self.room;
            let added = BulkOutcome { id: PointId::Number(1), added: true };
            report.send(if has_room { Ok(added) } else { Err(Error::storage_full("no room")) });
            Ok(())
        }
    }

    /// Target that reports each image in two steps. The first one ends while the thread that reads
    /// the images waits for memory.
    struct TwoSteps;

    impl BulkTarget for TwoSteps {
        fn in_flight_max(&self) -> usize {
            2
        }

        fn put(&self, _: BulkImage, report: BulkReporter) -> Result<()> {
            std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(20));
                report.resume(|report| {
                    report.send(Ok(BulkOutcome { id: PointId::Number(1), added: true }));
                    Ok(())
                });
            });
            Ok(())
        }
    }

    #[tokio::test]
    async fn the_rest_of_the_work_on_a_file_reports_it_once() {
        // One file fits. Its second step waits for the thread that reads the next file.
        let files = HeldFiles::new(ByteBudget::new(32, Arc::new(Metrics::default())));
        let stop = Arc::new(AtomicBool::new(false));
        let (writer, mut results) = result_channel(stop.clone());
        Bulk::new(&files, &TwoSteps, &writer, &stop).run(&mut NumberedImages(0..5)).unwrap();
        drop(writer);
        let mut lines: Vec<Value> = Vec::new();
        while let Some(Ok(line)) = results.next().await {
            lines.push(serde_json::from_slice(&line).unwrap());
        }
        let summary = lines.pop().unwrap();
        assert_eq!(summary["summary"]["added"], 5);
        // The number of files is there only if it differs from that of the images.
        assert_eq!(summary["summary"]["files"], Value::Null);
        let mut names: Vec<String> =
            lines.iter().map(|line| line["name"].as_str().unwrap().to_owned()).collect();
        names.sort();
        assert_eq!(names, ["0", "1", "2", "3", "4"]);
        assert_eq!(files.bytes(), 0);
    }

    #[tokio::test]
    async fn images_after_a_full_disk_are_named_and_not_tried() {
        let files = HeldFiles::new(ByteBudget::new(1 << 20, Arc::new(Metrics::default())));
        let target = SmallDisk { room: 3, asked: AtomicUsize::new(0) };
        let stop = Arc::new(AtomicBool::new(false));
        let (writer, mut results) = result_channel(stop.clone());
        Bulk::new(&files, &target, &writer, &stop).run(&mut NumberedImages(0..10)).unwrap();
        drop(writer);
        let mut lines: Vec<Value> = Vec::new();
        while let Some(Ok(line)) = results.next().await {
            lines.push(serde_json::from_slice(&line).unwrap());
        }
        assert_eq!(target.asked.load(Ordering::Relaxed), 4);
        let summary = lines.pop().unwrap();
        assert_eq!(
            (&summary["summary"]["added"], &summary["summary"]["failed"]),
            (&json!(3), &json!(7))
        );
        assert_eq!(lines[3]["error"], "no room");
        for (number, line) in lines.iter().enumerate().skip(4) {
            assert_eq!(line["name"], number.to_string());
            let error = "not tried, because there was no space for an earlier image: no room";
            assert_eq!((&line["status"], &line["error"]), (&json!("failed"), &json!(error)));
        }
        assert_eq!(lines.len(), 10);
    }
}
