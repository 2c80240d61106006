//! Queries and their results.

use std::path::Path;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use base::{Error, Result};
use matching::Graph;
use search::collection::SearchThread;
use vision::photo::{ACCEPT, keypoints};
use vision::{Limits, decode};

use super::attacks::Attack;
use super::embed::PhotoEmbedder;
use super::index::{IndexedPhoto, PhotoHit, PhotoIndex};
use super::photos::Photo;
use loadgen::random::{RandomSequence, at};
use loadgen::report::{StepProgress, write_file};

/// A copy of a photograph to search for.
#[derive(Clone, Copy, Debug)]
pub(super) struct CopyQuery {
    /// Number of the photograph.
    pub(super) photo: usize,
    /// Index into [`Attack::ALL`] and number of the copy, or `None` for the unmodified file.
    pub(super) attack: Option<(usize, usize)>,
}

impl CopyQuery {
    /// Returns all copies of a photograph.
    pub(super) fn copies(photo: usize) -> impl Iterator<Item = CopyQuery> {
        Attack::ALL.iter().enumerate().flat_map(move |(attack, &(_, _, copies))| {
            (0..copies).map(move |variant| CopyQuery { photo, attack: Some((attack, variant)) })
        })
    }

    /// Returns the file of the query.
    pub(super) fn file(&self, photos: &[Photo], seed: u64) -> Result<Vec<u8>> {
        let photo =
            photos.get(self.photo).ok_or_else(|| Error::internal("a query of no photograph"))?;
        let Some((attack, variant)) = self.attack else { return Ok(photo.bytes.clone()) };
        let number = (self.photo * Attack::ALL.len() + attack) * 16 + variant;
        let (attack, ..) = Attack::ALL[attack];
        attack.copy(&photo.image()?, variant, &mut RandomSequence::new(at(seed, number as u64)))
    }

    /// Returns the name of the attack.
    pub(super) fn name(&self) -> &'static str {
        self.attack.map_or("as_it_is", |(attack, _)| Attack::ALL[attack].1)
    }
}

/// Milliseconds of the stages of one query.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Times {
    pub(super) decode: f64,
    pub(super) embed: f64,
    pub(super) keypoints: f64,
    pub(super) search: f64,
}

impl Times {
    pub(super) fn all(&self) -> f64 {
        self.decode + self.embed + self.keypoints + self.search
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct QueryResult {
    pub(super) ask: CopyQuery,
    /// True if the photograph is first by embedding, among the candidates, and first in the end.
    pub(super) coarse_first: bool,
    pub(super) is_candidate: bool,
    pub(super) final_first: bool,
    /// Its score if it is a candidate, and true if that is accepted.
    pub(super) score: f32,
    pub(super) accepted: bool,
    /// Number of other images that were accepted, the best score of one, and its number.
    pub(super) wrong: usize,
    pub(super) wrong_score: f32,
    pub(super) wrong_photo: Option<usize>,
    /// Number of images that were matched.
    pub(super) compared: usize,
    pub(super) times: Times,
}

/// Stages from a file to a result.
pub(super) struct Pipeline<'a> {
    pub(super) photos: &'a [Photo],
    pub(super) embedder: &'a PhotoEmbedder,
    pub(super) options: vision::photo::KeypointOptions,
    pub(super) threads: usize,
    pub(super) candidates: usize,
    pub(super) seed: u64,
}

impl Pipeline<'_> {
    /// Describes all photographs as points. A point's id is the number of its photograph.
    pub(super) fn entries(&self, progress: &StepProgress) -> Result<Vec<IndexedPhoto>> {
        self.each(
            self.photos.len(),
            || Ok(()),
            |number, _| {
                let photo = self
                    .photos
                    .get(number)
                    .ok_or_else(|| Error::internal("there is no such photograph"))?;
                let (embedding, graph, _) = self.describe(&photo.bytes)?;
                progress.step();
                Ok(IndexedPhoto { id: number as u64, embedding, graph })
            },
        )
    }

    /// Returns the results of `asks` in order. The file of each is also written below `to`.
    pub(super) fn answers(
        &self,
        index: &PhotoIndex,
        asks: &[CopyQuery],
        to: Option<&Path>,
        progress: &StepProgress,
    ) -> Result<Vec<QueryResult>> {
        self.each(
            asks.len(),
            || index.thread(),
            |number, thread| {
                let ask =
                    asks.get(number).ok_or_else(|| Error::internal("there is no such query"))?;
                let bytes = ask.file(self.photos, self.seed)?;
                if let Some(to) = to {
                    write_file(&to.join(self.place(ask)), &bytes)?;
                }
                let answer = self.answer(index, thread, *ask, &bytes);
                progress.step();
                answer
            },
        )
    }

    /// Returns the path of a query's file.
    pub(super) fn place(&self, ask: &CopyQuery) -> String {
        let stem = self.photos.get(ask.photo).map_or("photo", Photo::stem);
        let variant = ask.attack.map_or(0, |(_, variant)| variant);
        format!("{}/{:05}-{stem}-{variant}.jpg", ask.name(), ask.photo)
    }

    fn answer(
        &self,
        index: &PhotoIndex,
        thread: &mut SearchThread,
        ask: CopyQuery,
        bytes: &[u8],
    ) -> Result<QueryResult> {
        let (embedding, graph, mut times) = self.describe(bytes)?;
        let start = Instant::now();
        let hits = index.search(thread, &embedding, &graph, self.candidates)?;
        times.search = ms_since(start);
        let own = |hit: &PhotoHit| hit.id == ask.photo as u64;
        let coarse = hits.iter().reduce(|best, hit| {
            let nearer =
                hit.similarity.coarse.total_cmp(&best.similarity.coarse).then(best.id.cmp(&hit.id));
            if nearer.is_gt() { hit } else { best }
        });
        let found = hits.iter().find(|hit| own(hit));
        let others = || hits.iter().filter(|hit| !own(hit));
        let wrong =
            others().reduce(|a, b| if b.similarity.score > a.similarity.score { b } else { a });
        Ok(QueryResult {
            ask,
            coarse_first: coarse.is_some_and(own),
            is_candidate: found.is_some(),
            final_first: hits.first().is_some_and(own),
            score: found.map_or(0.0, |hit| hit.similarity.score),
            accepted: found.is_some_and(|hit| hit.similarity.accepted(ACCEPT)),
            wrong: others().filter(|hit| hit.similarity.accepted(ACCEPT)).count(),
            wrong_score: wrong.map_or(0.0, |hit| hit.similarity.score),
            wrong_photo: wrong.map(|hit| hit.id as usize),
            compared: hits.len(),
            times,
        })
    }

    /// Computes the embedding and keypoints of a file.
    fn describe(&self, bytes: &[u8]) -> Result<(Vec<f32>, Graph, Times)> {
        let mut times = Times::default();
        let start = Instant::now();
        let image = decode(bytes, &Limits::default())?.image;
        times.decode = ms_since(start);
        let start = Instant::now();
        let embedding = self.embedder.embed(&image)?;
        times.embed = ms_since(start);
        let start = Instant::now();
        let graph = keypoints(&image.gray(), &self.options);
        times.keypoints = ms_since(start);
        Ok((embedding, graph, times))
    }

    /// Runs `work` on 0 to `count` in several threads, each with a value of `own`. Returns the
    /// results in order.
    fn each<T: Send, O>(
        &self,
        count: usize,
        own: impl Fn() -> Result<O> + Sync,
        work: impl Fn(usize, &mut O) -> Result<T> + Sync,
    ) -> Result<Vec<T>> {
        let next = AtomicUsize::new(0);
        let done: Mutex<Vec<(usize, T)>> = Mutex::new(Vec::with_capacity(count));
        let run = || {
            let mut own = own()?;
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= count {
                    return Ok(());
                }
                let result =
                    work(number, &mut own).inspect_err(|_| next.store(count, Ordering::Relaxed))?;
                done.lock().unwrap_or_else(PoisonError::into_inner).push((number, result));
            }
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..self.threads).map(|_| scope.spawn(run)).collect();
            threads.into_iter().try_for_each(|thread| {
                thread.join().unwrap_or_else(|_| {
                    Err(Error::internal("a thread of the bench ended in a panic"))
                })
            })
        })?;
        let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
        done.sort_by_key(|&(number, _)| number);
        Ok(done.into_iter().map(|(_, result)| result).collect())
    }
}

fn ms_since(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e3
}
