//! Puts in the images of an archive or a folder, and reports each as a line once it is done.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use base::{Error, Result};
use bytes::Bytes;
use crossbeam_channel::{Receiver, Sender, unbounded};
use serde_json::{Map, Value, json};
use transport::UploadPermit;
use transport::result_stream::ResultWriter;

use super::collection::CollectionSpec;
use super::ingest::IngestImage;
use super::job::IngestJob;
use super::state::ImagesState;
use super::store::PutOutcome;

/// Most images of one request in flight.
const IN_FLIGHT_MAX: usize = 64;

pub(crate) enum SourceEntry {
    /// Name and bytes of an image.
    Image(String, Bytes),
    /// Name and error of an image that cannot be read.
    Failed(String, Error),
    /// A file that is no image.
    Ignored,
    /// No file.
    Nothing,
}

/// A sequence of images.
pub(crate) trait Source {
    fn next(&mut self) -> Option<SourceEntry>;
}

#[derive(Default)]
struct Summary {
    added: u64,
    present: u64,
    failed: u64,
    ignored: u64,
}

/// Starts a thread that puts in the images of a source, and writes lines to `writer`.
///
/// # Errors
/// `ResourceExhausted` if no thread can be started.
pub(crate) fn start<S: Source>(
    state: &Arc<ImagesState>,
    wanted: CollectionSpec,
    permit: UploadPermit,
    writer: ResultWriter,
    stop: Arc<AtomicBool>,
    open: impl FnOnce() -> Result<S> + Send + 'static,
) -> Result<()> {
    let job = IngestJob::new(&state.services, wanted, stop);
    let state = state.clone();
    let name = format!("ingest-in-{}", permit.number);
    let body = move || {
        os::thread::enter_background("reading images");
        let ended = open().map(|mut source| Bulk::new(state, job, &writer).run(&mut source));
        // The status is sent already, so an error is a line too.
        if let Ok(Err(error)) = &ended {
            let line = json!({ "error": error.message() });
            let _ = writer.send(format!("{line}\n").into());
        }
        writer.end(ended.map(drop));
        drop(permit);
    };
    let spawned = std::thread::Builder::new().name(name).spawn(body);
    spawned
        .map(drop)
        .map_err(|error| Error::exhausted(format!("no thread for the images: {error}")))
}

struct ImageReport {
    name: String,
    outcome: Result<PutOutcome>,
}

struct Bulk<'a> {
    state: Arc<ImagesState>,
    job: Arc<IngestJob>,
    writer: &'a ResultWriter,
    sender: Sender<ImageReport>,
    reports: Receiver<ImageReport>,
    in_flight: usize,
    summary: Summary,
}

impl<'a> Bulk<'a> {
    fn new(state: Arc<ImagesState>, job: Arc<IngestJob>, writer: &'a ResultWriter) -> Bulk<'a> {
        // At most IN_FLIGHT_MAX reports are in the channel.
        let (sender, reports) = unbounded();
        Bulk { state, job, writer, sender, reports, in_flight: 0, summary: Summary::default() }
    }

    fn run(mut self, source: &mut impl Source) -> Result<()> {
        while !self.job.stopped() {
            let Some(found) = source.next() else { break };
            match found {
                SourceEntry::Image(name, bytes) => self.send(name, bytes)?,
                SourceEntry::Failed(name, error) => {
                    self.report(ImageReport { name, outcome: Err(error) })?
                }
                SourceEntry::Ignored => self.summary.ignored += 1,
                SourceEntry::Nothing => {}
            }
            while self.in_flight >= IN_FLIGHT_MAX {
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
        let Summary { added, present, failed, ignored } = self.summary;
        let summary =
            json!({ "added": added, "present": present, "failed": failed, "ignored": ignored });
        self.writer.send(format!("{}\n", json!({ "summary": summary })).into())
    }

    fn send(&mut self, name: String, bytes: Bytes) -> Result<()> {
        let reporter = Reporter { target: Some((self.sender.clone(), name.clone())) };
        let done = Box::new(move |outcome| reporter.send(outcome));
        self.in_flight += 1;
        self.state.ingest.send(IngestImage {
            job: self.job.clone(),
            name,
            bytes,
            payload: Map::new(),
            done,
        })
    }

    fn wait_report(&mut self) -> Result<()> {
        let report =
            self.reports.recv().map_err(|_| Error::internal("the results of images are lost"))?;
        self.in_flight -= 1;
        self.report(report)
    }

    /// Counts a result and writes its line.
    fn report(&mut self, report: ImageReport) -> Result<()> {
        let name = &report.name;
        let line: Value = match report.outcome {
            Ok(outcome) => {
                let count =
                    if outcome.added { &mut self.summary.added } else { &mut self.summary.present };
                *count += 1;
                outcome.line(name)
            }
            Err(error) => {
                self.summary.failed += 1;
                json!({ "name": name, "id": null, "status": "failed", "error": error.message() })
            }
        };
        self.writer.send(format!("{line}\n").into())
    }
}

/// Reports the result of an image exactly once, even if its thread panics.
struct Reporter {
    target: Option<(Sender<ImageReport>, String)>,
}

impl Reporter {
    fn send(mut self, outcome: Result<PutOutcome>) {
        self.send_once(outcome);
    }

    fn send_once(&mut self, outcome: Result<PutOutcome>) {
        if let Some((sender, name)) = self.target.take() {
            // The send fails only if the client has disconnected and the thread has ended.
            let _ = sender.send(ImageReport { name, outcome });
        }
    }
}

impl Drop for Reporter {
    fn drop(&mut self) {
        self.send_once(Err(Error::internal("a panic ended the work on this image")));
    }
}
