//! Bulk work: pictures of an archive, a folder, a rebuild, or sent with `background=1`.
//!
//! Threads "ingest-N" take pictures from one bounded queue, several of a collection at a time, and
//! do what takes long themselves at idle priority, the model's runs included: so a query meets an
//! idle machine however much is being put in. Collections they leave to threads of ordinary
//! priority. What fails, fails for one picture.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use base::{Error, Result};
use bytes::Bytes;
use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use metrics::KindLabels;
use serde_json::{Map, Value};
use tokio::runtime::Handle;

use super::add;
use super::claims::Claims;
use super::embedder::Embedder;
use super::features::{self, Features};
use super::pool::threads;
use super::store::{self, Outcome, Ready};
use super::target::{Target, Wanted};
use crate::app::App;

/// Pictures that wait, with their bytes.
const QUEUE_MAX: usize = 16;
/// Share of the budget of request memory that the files of bulk work may take beside it: one part
/// of so many.
const FILES_SHARE: u64 = 8;
/// How often bulk work looks whether files that wait have left room for the next one.
const FILES_RETRY: Duration = Duration::from_millis(20);
/// Pictures that one thread works on at a time.
const BATCH_MAX: usize = 8;
/// What a caller that was refused is told to wait.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// What the pictures of one caller have in common.
pub(super) struct Job {
    pub(super) app: Arc<App>,
    pub(super) wanted: Wanted,
    pub(super) runtime: Handle,
    /// Set when nobody wants the rest any more.
    pub(super) stop: Arc<AtomicBool>,
}

impl Job {
    /// Of a request, on the door's runtime.
    pub(super) fn new(app: &Arc<App>, wanted: Wanted, stop: Arc<AtomicBool>) -> Arc<Job> {
        Arc::new(Job { app: app.clone(), wanted, runtime: Handle::current(), stop })
    }

    pub(super) fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Runs what takes locks that queries take too, and waits for it. Who holds such a lock at idle
    /// priority gets no time to let go of it while others keep all cores busy, and every query
    /// would wait as long.
    ///
    /// # Errors
    /// Those of `work`; `Internal` where it panics or the server ends.
    pub(super) fn at_ordinary_priority<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let work = self.runtime.spawn_blocking(work);
        let ended = self.runtime.block_on(work);
        ended.map_err(|error| {
            Error::internal(format!("work on a collection ended early: {error}"))
        })?
    }
}

/// One picture of a job.
pub(super) struct Piece {
    pub(super) job: Arc<Job>,
    pub(super) name: String,
    pub(super) bytes: Bytes,
    pub(super) payload: Map<String, Value>,
    /// Told once what became of it; dropped where a thread ends by panic.
    pub(super) done: Box<dyn FnOnce(Result<Outcome>) + Send>,
}

/// Bytes of a file in bulk work, counted until the file has been worked on.
struct Held {
    all: Arc<AtomicU64>,
    bytes: u64,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A picture in the queue. One that a client sent by itself is counted with its request.
type Queued = (Piece, Option<Held>);

/// The threads and their queue, started when there is something to do.
#[derive(Default)]
pub(super) struct Ingest {
    claims: Claims,
    queue: OnceLock<Result<Sender<Queued>>>,
    /// Bytes of the files of archives, folders and rebuilds that wait or are worked on.
    held: Arc<AtomicU64>,
}

impl Ingest {
    /// Waits for room, and hands a picture over.
    ///
    /// # Errors
    /// `ResourceExhausted` where there can be no threads.
    pub(super) fn send(&self, piece: Piece) -> Result<()> {
        let queue = self.queue.get_or_init(start).clone()?;
        let held = self.hold(&piece);
        queue
            .send((piece, Some(held)))
            .map_err(|_| Error::internal("the threads for bulk work have ended"))
    }

    /// Waits until the files in bulk work leave room for one more. One file is always let in.
    fn hold(&self, piece: &Piece) -> Held {
        let (bytes, most) =
            (piece.bytes.len() as u64, piece.job.app.requests.memory.max() / FILES_SHARE);
        let room =
            |all: u64| (all == 0 || all.saturating_add(bytes) <= most).then_some(all + bytes);
        // What holds the rest is worked on by threads that wait for nothing of this one.
        while self.held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).is_err() {
            std::thread::sleep(FILES_RETRY);
        }
        Held { all: self.held.clone(), bytes }
    }

    /// The same without waiting.
    ///
    /// # Errors
    /// `ResourceExhausted`, with advice, where there is no room.
    pub(super) fn try_send(&self, piece: Piece) -> Result<()> {
        let metrics = piece.job.app.metrics.clone();
        let queue = self.queue.get_or_init(start).clone()?;
        queue.try_send((piece, None)).map_err(|error| match error {
            TrySendError::Full(_) => {
                metrics.refused.get_or_create(&KindLabels { kind: "ingest_queue_max" }).inc();
                Error::exhausted(format!(
                    "{QUEUE_MAX} pictures wait to be put in already; try again later"
                ))
                .with_retry_after(RETRY_AFTER)
            }
            TrySendError::Disconnected(_) => {
                Error::internal("the threads for bulk work have ended")
            }
        })
    }

    /// Bytes of the files of archives, folders and rebuilds that wait or are worked on.
    #[cfg(test)]
    pub(super) fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    /// Pictures that wait.
    pub(super) fn waiting(&self) -> usize {
        self.queue.get().and_then(|queue| queue.as_ref().ok()).map_or(0, Sender::len)
    }
}

fn start() -> Result<Sender<Queued>> {
    let (sender, receiver) = bounded(QUEUE_MAX);
    for number in 0..threads() {
        let queue: Receiver<Queued> = receiver.clone();
        let body = move || {
            os::thread::enter_background("putting pictures in");
            while let Ok(first) = queue.recv() {
                let batch = std::iter::once(first).chain(queue.try_iter().take(BATCH_MAX - 1));
                // A panic costs the pictures that it is about, whose callers learn of it because
                // nobody tells them more.
                let (batch, held): (Vec<Piece>, Vec<Option<Held>>) = batch.unzip();
                drop(catch_unwind(AssertUnwindSafe(|| by_job(batch))));
                drop(held);
            }
        };
        let spawned = std::thread::Builder::new().name(format!("ingest-{number}")).spawn(body);
        spawned.map_err(|error| Error::exhausted(format!("no thread for bulk work: {error}")))?;
    }
    Ok(sender)
}

/// Puts together what belongs together.
fn by_job(pieces: Vec<Piece>) {
    let mut jobs: Vec<Vec<Piece>> = Vec::new();
    for piece in pieces {
        match jobs
            .iter_mut()
            .find(|job| job.first().is_some_and(|first| Arc::ptr_eq(&first.job, &piece.job)))
        {
            Some(job) => job.push(piece),
            None => jobs.push(vec![piece]),
        }
    }
    for pieces in jobs {
        let Some(job) = pieces.first().map(|piece| piece.job.clone()) else { continue };
        let outcomes = outcomes(&job, &pieces);
        for (piece, outcome) in pieces.into_iter().zip(outcomes) {
            super::count(&job.app.metrics, &outcome);
            (piece.done)(outcome);
        }
    }
}

/// What becomes of pictures of one job, in their order.
fn outcomes(job: &Job, pieces: &[Piece]) -> Vec<Result<Outcome>> {
    let ids: Vec<[u8; 16]> = pieces.iter().map(|piece| features::id_of(&piece.bytes)).collect();
    // First: another thread may put one of them in, and make the collection for it, while this one
    // waits.
    let _claim = job.app.images.ingest.claims.take(&ids);
    let (app, wanted, sought) = (job.app.clone(), job.wanted.clone(), ids.clone());
    let looked = job.at_ordinary_priority(move || {
        let existing = Target::existing(&*app.registry()?, &wanted)?;
        let embedder = add::embedder(&app, existing.as_ref(), wanted.model.as_deref())?;
        let known = existing.as_ref().map(|target| store::present(&target.named, &sought));
        let known = known.unwrap_or_else(|| sought.iter().map(|_| Ok(None)).collect());
        Ok((existing, embedder, known))
    });
    match looked {
        Ok((existing, embedder, known)) => {
            Batch { job, embedder, existing }.put(pieces, &ids, known)
        }
        Err(error) => pieces.iter().map(|_| Err(error.clone())).collect(),
    }
}

struct Batch<'a> {
    job: &'a Job,
    embedder: Embedder,
    /// The collection, if it is there yet.
    existing: Option<Target>,
}

impl Batch<'_> {
    /// `known` of their `ids` are there already.
    fn put(
        &self,
        pieces: &[Piece],
        ids: &[[u8; 16]],
        known: Vec<Result<Option<Outcome>>>,
    ) -> Vec<Result<Outcome>> {
        let mut outcomes: Vec<Option<Result<Outcome>>> =
            known.into_iter().map(Result::transpose).collect();
        // The same file twice in a batch is worked on once.
        let mut first: HashMap<[u8; 16], usize> = HashMap::new();
        let new: Vec<usize> = (0..pieces.len())
            .filter(|&at| outcomes.get(at).is_some_and(Option::is_none))
            .filter(|&at| ids.get(at).is_some_and(|id| *first.entry(*id).or_insert(at) == at))
            .collect();
        let kind = self.existing.as_ref().map(|target| target.kind).or(self.job.wanted.kind);
        let mut ready = Vec::new();
        for at in new {
            let Some(piece) = pieces.get(at) else { continue };
            let kind = kind.unwrap_or(super::target::Kind::Photo);
            let extracted = features::reserve_patiently(self.job, kind, &piece.bytes, &piece.name)
                .and_then(|memory| {
                    features::extract(&memory, kind, &piece.bytes, &piece.name, &self.embedder)
                });
            match extracted {
                Ok(features) => ready.push((at, piece, features)),
                Err(error) => set(&mut outcomes, at, Err(error)),
            }
        }
        for (at, outcome) in self.finish(ready) {
            set(&mut outcomes, at, outcome);
        }
        let twin = |at: usize| {
            let twin = ids
                .get(at)
                .and_then(|id| first.get(id))
                .and_then(|&first| outcomes.get(first)?.clone());
            twin.unwrap_or_else(|| Err(Error::internal("a picture was lost on its way in")))
                .map(|outcome| outcome.again())
        };
        (0..pieces.len())
            .map(|at| outcomes.get(at).cloned().flatten().unwrap_or_else(|| twin(at)))
            .collect()
    }

    /// Embeds, keeps the originals and writes the points.
    fn finish(&self, ready: Vec<(usize, &Piece, Features)>) -> Vec<(usize, Result<Outcome>)> {
        let tensors: Vec<&Vec<f32>> =
            ready.iter().map(|(_, _, features)| &features.tensor).collect();
        let embeddings = self.embed(&tensors);
        let target = self.target(&embeddings);
        let mut outcomes = Vec::new();
        let mut kept = Vec::new();
        for ((at, piece, features), embedding) in ready.into_iter().zip(embeddings) {
            match self.keep(piece, features, embedding, &target) {
                Ok(picture) => kept.push((at, picture)),
                Err(error) => outcomes.push((at, Err(features::of_picture(error, &piece.name)))),
            }
        }
        if let Ok(target) = &target {
            outcomes.extend(self.write(target, kept));
        }
        outcomes
    }

    /// The collection, which is made where it is not there yet.
    fn target(&self, embeddings: &[Result<Vec<f32>>]) -> Result<Target> {
        if let Some(existing) = &self.existing {
            return Ok(existing.clone());
        }
        let dims = embeddings.iter().find_map(|embedding| embedding.as_ref().ok()).map(Vec::len);
        let dims = dims.ok_or_else(|| Error::internal("there is no collection"))?;
        let (app, wanted) = (self.job.app.clone(), self.job.wanted.clone());
        let model = self.embedder.name().to_owned();
        self.job
            .at_ordinary_priority(move || Target::make(&*app.registry()?, &wanted, dims, &model))
    }

    /// Keeps the original of a picture that fits.
    fn keep(
        &self,
        piece: &Piece,
        mut features: Features,
        embedding: Result<Vec<f32>>,
        target: &Result<Target>,
    ) -> Result<Ready> {
        let embedding = embedding?;
        let target = target.as_ref().map_err(Clone::clone)?;
        target.check_dims(embedding.len())?;
        let key = features.facts.original(&target.space);
        self.job.runtime.block_on(self.job.app.images.originals.put(&key, piece.bytes.clone()))?;
        let payload = features.facts.payload(&piece.payload, &target.space);
        features.tensor = Vec::new();
        Ok(Ready { features, embedding, payload })
    }

    /// Writes all at once, and where that fails, one by one.
    fn write(&self, target: &Target, kept: Vec<(usize, Ready)>) -> Vec<(usize, Result<Outcome>)> {
        if kept.is_empty() {
            return Vec::new();
        }
        let (places, pictures): (Vec<usize>, Vec<Ready>) = kept.into_iter().unzip();
        let pictures = Arc::new(pictures);
        let write = |which| store::write_patiently(self.job, target, &pictures, which);
        let all = write(0..pictures.len());
        let outcomes = pictures.iter().enumerate().map(|(at, picture)| {
            all.clone().or_else(|_| write(at..at + 1)).map(|()| Outcome::added(&picture.features))
        });
        places.into_iter().zip(outcomes).collect()
    }

    /// A vector for each input. A batch that fails is tried one by one, so that one picture costs
    /// no other.
    fn embed(&self, tensors: &[&Vec<f32>]) -> Vec<Result<Vec<f32>>> {
        let mut embeddings = Vec::with_capacity(tensors.len());
        for batch in tensors.chunks(self.embedder.batch_max.max(1)) {
            let owned: Vec<Vec<f32>> = batch.iter().map(|tensor| (*tensor).clone()).collect();
            match self.embedder.run(&owned) {
                Ok(vectors) => embeddings.extend(vectors.into_iter().map(Ok)),
                Err(error) if batch.len() == 1 => embeddings.push(Err(error)),
                Err(_) => embeddings.extend(owned.into_iter().map(|one| {
                    let vectors = self.embedder.run(&[one])?;
                    vectors
                        .into_iter()
                        .next()
                        .ok_or_else(|| Error::internal("a model gave no vector"))
                })),
            }
        }
        embeddings
    }
}

fn set(outcomes: &mut [Option<Result<Outcome>>], at: usize, outcome: Result<Outcome>) {
    if let Some(place) = outcomes.get_mut(at) {
        *place = Some(outcome);
    }
}
