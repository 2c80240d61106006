//! Bulk work: pictures of an archive, a folder, a rebuild, or sent with `background=1`.
//!
//! Threads "ingest-N" take pictures from one bounded queue, several of a collection at a time, and do everything themselves
//! at idle priority, the model's runs included: so a query meets an idle machine however much is being put in. What
//! fails, fails for one picture.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use base::{Error, Result};
use bytes::Bytes;
use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use metrics::KindLabels;
use search::registry::Registry;
use serde_json::{Map, Value};
use tokio::runtime::Handle;

use super::claims::Claims;
use super::embedder::Embedder;
use super::features::{self, Features};
use super::pool::threads;
use super::store::{self, Outcome, Ready};
use super::target::{Target, Wanted};
use crate::app::App;

/// Pictures that wait, with their bytes.
const QUEUE_MAX: usize = 16;
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

/// The threads and their queue, started when there is something to do.
#[derive(Default)]
pub(super) struct Ingest {
    claims: Claims,
    queue: OnceLock<Result<Sender<Piece>>>,
}

impl Ingest {
    /// Waits for room, and hands a picture over.
    ///
    /// # Errors
    /// `ResourceExhausted` where there can be no threads.
    pub(super) fn send(&self, piece: Piece) -> Result<()> {
        let queue = self.queue.get_or_init(start).clone()?;
        queue.send(piece).map_err(|_| Error::internal("the threads for bulk work have ended"))
    }

    /// The same without waiting.
    ///
    /// # Errors
    /// `ResourceExhausted`, with advice, where there is no room.
    pub(super) fn try_send(&self, piece: Piece) -> Result<()> {
        let metrics = piece.job.app.metrics.clone();
        let queue = self.queue.get_or_init(start).clone()?;
        queue.try_send(piece).map_err(|error| match error {
            TrySendError::Full(_) => {
                metrics.refused.get_or_create(&KindLabels { kind: "ingest_queue_max" }).inc();
                Error::exhausted(format!("{QUEUE_MAX} pictures wait to be put in already; try again later"))
                    .with_retry_after(RETRY_AFTER)
            }
            TrySendError::Disconnected(_) => Error::internal("the threads for bulk work have ended"),
        })
    }

    /// Pictures that wait.
    pub(super) fn waiting(&self) -> usize {
        self.queue.get().and_then(|queue| queue.as_ref().ok()).map_or(0, Sender::len)
    }
}

fn start() -> Result<Sender<Piece>> {
    let (sender, receiver) = bounded(QUEUE_MAX);
    for number in 0..threads() {
        let queue: Receiver<Piece> = receiver.clone();
        let body = move || {
            memory::thread::enter_background("putting pictures in");
            while let Ok(first) = queue.recv() {
                let batch = std::iter::once(first).chain(queue.try_iter().take(BATCH_MAX - 1));
                // A panic costs the pictures that it is about, whose callers learn of it because nobody tells them more.
                let batch: Vec<Piece> = batch.collect();
                drop(catch_unwind(AssertUnwindSafe(|| by_job(batch))));
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
        match jobs.iter_mut().find(|job| job.first().is_some_and(|first| Arc::ptr_eq(&first.job, &piece.job)))
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
    let prepared = job.app.registry().and_then(|registry| {
        let existing = Target::existing(&registry, &job.wanted)?;
        let name = existing.as_ref().map(|target| target.model.clone()).or_else(|| job.wanted.model.clone());
        let name = name.or_else(|| job.app.collections.config().embedding_model.clone());
        Ok((existing, Embedder::find(job.app.lifecycle.catalog(), name.as_deref())?))
    });
    match prepared {
        Ok((existing, embedder)) => Batch { job, embedder }.put(pieces, existing),
        Err(error) => pieces.iter().map(|_| Err(error.clone())).collect(),
    }
}

struct Batch<'a> {
    job: &'a Job,
    embedder: Embedder,
}

impl Batch<'_> {
    fn put(&self, pieces: &[Piece], existing: Option<Target>) -> Vec<Result<Outcome>> {
        let ids: Vec<[u8; 16]> = pieces.iter().map(|piece| features::id_of(&piece.bytes)).collect();
        let _claim = self.job.app.images.ingest.claims.take(&ids);
        // Another thread may have made the collection while this one waited for a picture that it had in hand.
        let existing = existing.or_else(|| {
            let registry = self.job.app.registry().ok()?;
            Target::existing(&registry, &self.job.wanted).ok().flatten()
        });
        let known = existing.as_ref().map(|target| store::present(&target.named, &ids));
        let known = known.unwrap_or_else(|| ids.iter().map(|_| Ok(None)).collect());
        let mut outcomes: Vec<Option<Result<Outcome>>> = known.into_iter().map(Result::transpose).collect();
        // The same file twice in a batch is worked on once.
        let mut first: HashMap<[u8; 16], usize> = HashMap::new();
        let new: Vec<usize> = (0..pieces.len())
            .filter(|&at| outcomes.get(at).is_some_and(Option::is_none))
            .filter(|&at| ids.get(at).is_some_and(|id| *first.entry(*id).or_insert(at) == at))
            .collect();
        let kind = existing.as_ref().map(|target| target.kind).or(self.job.wanted.kind);
        let mut ready = Vec::new();
        for at in new {
            let Some(piece) = pieces.get(at) else { continue };
            let kind = kind.unwrap_or(super::target::Kind::Photo);
            match features::extract(kind, &piece.bytes, &piece.name, &self.embedder) {
                Ok(features) => ready.push((at, piece, features)),
                Err(error) => set(&mut outcomes, at, Err(error)),
            }
        }
        for (at, outcome) in self.finish(ready, existing) {
            set(&mut outcomes, at, outcome);
        }
        let twin = |at: usize| {
            let twin =
                ids.get(at).and_then(|id| first.get(id)).and_then(|&first| outcomes.get(first)?.clone());
            twin.unwrap_or_else(|| Err(Error::internal("a picture was lost on its way in")))
                .map(|outcome| outcome.again())
        };
        (0..pieces.len()).map(|at| outcomes.get(at).cloned().flatten().unwrap_or_else(|| twin(at))).collect()
    }

    /// Embeds, keeps the originals and writes the points.
    fn finish(
        &self,
        ready: Vec<(usize, &Piece, Features)>,
        existing: Option<Target>,
    ) -> Vec<(usize, Result<Outcome>)> {
        let tensors: Vec<&Vec<f32>> = ready.iter().map(|(_, _, features)| &features.tensor).collect();
        let embeddings = self.embed(&tensors);
        let target =
            existing.map(Ok).or_else(|| {
                let dims = embeddings.iter().find_map(|embedding| embedding.as_ref().ok())?.len();
                Some(self.job.app.registry().and_then(|registry| {
                    Target::make(&registry, &self.job.wanted, dims, self.embedder.name())
                }))
            });
        let mut outcomes = Vec::new();
        let mut kept = Vec::new();
        for ((at, piece, features), embedding) in ready.iter().zip(&embeddings) {
            let checked = self.keep(piece, features, embedding, target.as_ref());
            match checked {
                Ok(picture) => kept.push((*at, picture)),
                Err(error) => outcomes.push((*at, Err(features::of_picture(error, &piece.name)))),
            }
        }
        if let Some(Ok(target)) = &target {
            outcomes.extend(self.write(target, kept));
        }
        outcomes
    }

    /// Keeps the original of a picture that fits.
    fn keep<'a>(
        &self,
        piece: &Piece,
        features: &'a Features,
        embedding: &'a Result<Vec<f32>>,
        target: Option<&Result<Target>>,
    ) -> Result<Ready<'a>> {
        let embedding = embedding.as_ref().map_err(Clone::clone)?;
        let target = target.ok_or_else(|| Error::internal("there is no collection"))?;
        let target = target.as_ref().map_err(Clone::clone)?;
        target.check_dims(embedding.len())?;
        let key = features.facts.original(&target.space);
        self.job.runtime.block_on(self.job.app.images.originals.put(&key, piece.bytes.clone()))?;
        Ok(Ready { features, embedding, payload: features.facts.payload(&piece.payload, &target.space) })
    }

    fn write(&self, target: &Target, kept: Vec<(usize, Ready<'_>)>) -> Vec<(usize, Result<Outcome>)> {
        let Job { app, wanted, .. } = self.job;
        match app.registry() {
            Ok(registry) => written(&registry, &wanted.name, target, kept),
            Err(error) => kept.into_iter().map(|(at, _)| (at, Err(error.clone()))).collect(),
        }
    }

    /// A vector for each input. A batch that fails is tried one by one, so that one picture costs no other.
    fn embed(&self, tensors: &[&Vec<f32>]) -> Vec<Result<Vec<f32>>> {
        let mut embeddings = Vec::with_capacity(tensors.len());
        for batch in tensors.chunks(self.embedder.batch_max.max(1)) {
            let owned: Vec<Vec<f32>> = batch.iter().map(|tensor| (*tensor).clone()).collect();
            match self.embedder.run(&owned) {
                Ok(vectors) => embeddings.extend(vectors.into_iter().map(Ok)),
                Err(error) if batch.len() == 1 => embeddings.push(Err(error)),
                Err(_) => embeddings.extend(owned.into_iter().map(|one| {
                    let vectors = self.embedder.run(&[one])?;
                    vectors.into_iter().next().ok_or_else(|| Error::internal("a model gave no vector"))
                })),
            }
        }
        embeddings
    }
}

/// Writes all at once, and where that fails, one by one.
fn written(
    registry: &Registry,
    name: &str,
    target: &Target,
    kept: Vec<(usize, Ready<'_>)>,
) -> Vec<(usize, Result<Outcome>)> {
    if kept.is_empty() {
        return Vec::new();
    }
    let (places, pictures): (Vec<usize>, Vec<Ready<'_>>) = kept.into_iter().unzip();
    let write = |pictures: &[Ready<'_>]| store::write_patiently(registry, name, target, pictures);
    let all = write(&pictures);
    let outcomes = pictures.iter().map(|picture| match &all {
        Ok(()) => Ok(Outcome::added(picture.features)),
        Err(_) => write(std::slice::from_ref(picture)).map(|()| Outcome::added(picture.features)),
    });
    let outcomes: Vec<Result<Outcome>> = outcomes.collect();
    places.into_iter().zip(outcomes).collect()
}

fn set(outcomes: &mut [Option<Result<Outcome>>], at: usize, outcome: Result<Outcome>) {
    if let Some(place) = outcomes.get_mut(at) {
        *place = Some(outcome);
    }
}
