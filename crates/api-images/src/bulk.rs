//! Many images of one caller: an archive or a folder, told line by line as they are done.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use base::{Error, Result};
use bytes::Bytes;
use crossbeam_channel::{Receiver, Sender, unbounded};
use serde_json::{Map, Value, json};

use super::collection::CollectionSpec;
use super::ingest::IngestImage;
use super::job::IngestJob;
use super::state::ImagesState;
use super::store::PutOutcome;
use transport::UploadPermit;
use transport::result_stream::ResultWriter;

/// Images of one caller that are under way.
const UNDER_WAY_MAX: usize = 64;

/// What a source has next.
pub(crate) enum SourceEntry {
    /// An image, and what it is called.
    Image(String, Bytes),
    /// Something that should have been one.
    Failed(String, Error),
    /// A file that is none.
    Ignored,
    /// No file.
    Nothing,
}

/// Where images come from, one after the other.
pub(crate) trait Source {
    fn next(&mut self) -> Option<SourceEntry>;
}

/// What became of all.
#[derive(Default)]
struct Summary {
    added: u64,
    present: u64,
    failed: u64,
    ignored: u64,
}

/// Starts a thread that puts the images of a source in, and writes lines to `writer`.
///
/// # Errors
/// `ResourceExhausted` where there can be no more threads.
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
        // An error while images are put in is a line, too: the status has long been said.
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

type Told = (String, Result<PutOutcome>);

struct Bulk<'a> {
    state: Arc<ImagesState>,
    job: Arc<IngestJob>,
    writer: &'a ResultWriter,
    told: (Sender<Told>, Receiver<Told>),
    under_way: usize,
    summary: Summary,
}

impl<'a> Bulk<'a> {
    fn new(state: Arc<ImagesState>, job: Arc<IngestJob>, writer: &'a ResultWriter) -> Bulk<'a> {
        // Bounded by what is under way.
        Bulk { state, job, writer, told: unbounded(), under_way: 0, summary: Summary::default() }
    }

    fn run(mut self, source: &mut impl Source) -> Result<()> {
        while !self.job.stopped() {
            let Some(found) = source.next() else { break };
            match found {
                SourceEntry::Image(name, bytes) => self.send(name, bytes)?,
                SourceEntry::Failed(name, error) => self.tell((name, Err(error)))?,
                SourceEntry::Ignored => self.summary.ignored += 1,
                SourceEntry::Nothing => {}
            }
            while self.under_way >= UNDER_WAY_MAX {
                self.hear()?;
            }
            while let Ok(told) = self.told.1.try_recv() {
                self.under_way -= 1;
                self.tell(told)?;
            }
        }
        while self.under_way > 0 {
            self.hear()?;
        }
        let Summary { added, present, failed, ignored } = self.summary;
        let summary =
            json!({ "added": added, "present": present, "failed": failed, "ignored": ignored });
        self.writer.send(format!("{}\n", json!({ "summary": summary })).into())
    }

    fn send(&mut self, name: String, bytes: Bytes) -> Result<()> {
        let answer = Answer { told: Some((self.told.0.clone(), name.clone())) };
        let done = Box::new(move |outcome| answer.give(outcome));
        self.under_way += 1;
        self.state.ingest.send(IngestImage {
            job: self.job.clone(),
            name,
            bytes,
            payload: Map::new(),
            done,
        })
    }

    fn hear(&mut self) -> Result<()> {
        let told = self
            .told
            .1
            .recv()
            .map_err(|_| Error::internal("nobody tells what became of images"))?;
        self.under_way -= 1;
        self.tell(told)
    }

    fn tell(&mut self, (name, outcome): Told) -> Result<()> {
        let line: Value = match outcome {
            Ok(outcome) => {
                let count =
                    if outcome.added { &mut self.summary.added } else { &mut self.summary.present };
                *count += 1;
                outcome.line(&name)
            }
            Err(error) => {
                self.summary.failed += 1;
                json!({ "name": name, "id": null, "status": "failed", "error": error.message() })
            }
        };
        self.writer.send(format!("{line}\n").into())
    }
}

/// Answers exactly once, also where the thread that works on the image ends by panic.
struct Answer {
    told: Option<(Sender<Told>, String)>,
}

impl Answer {
    fn give(mut self, outcome: Result<PutOutcome>) {
        if let Some((told, name)) = self.told.take() {
            // The caller's thread has gone when its client has.
            let _ = told.send((name, outcome));
        }
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        if let Some((told, name)) = self.told.take() {
            let _ =
                told.send((name, Err(Error::internal("looking at this image ended in a panic"))));
        }
    }
}
