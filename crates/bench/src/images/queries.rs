//! Queries and their results.

use std::path::Path;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use base::{Error, Result};
use matching::Graph;
use matching::rank::best_first;
use search::collection::SearchThread;
use vision::photo::{ACCEPT, PhotoView, ViewKind, keypoints};
use vision::{Image, Limits, decode};

use super::attacks::{Attack, CopySource};
use super::embed::PhotoEmbedder;
use super::index::{IndexedPhoto, PhotoHit, PhotoIndex};
use super::photos::Photo;
use loadgen::random::{RandomSequence, at};
use loadgen::report::{StepProgress, write_file};

/// Other photographs in a collage.
const COLLAGE_FILLERS: usize = 3;

/// A copy of a photograph to search for.
#[derive(Clone, Copy, Debug)]
pub(super) struct CopyQuery {
    /// Number of the photograph.
    pub(super) photo: usize,
    /// Index into [`Attack::ALL`] and number of the copy, or `None` for the unmodified file.
    pub(super) attack: Option<(usize, usize)>,
}

impl CopyQuery {
    /// Returns all copies of a photograph by these attacks.
    pub(super) fn copies(photo: usize, attacks: &[usize]) -> impl Iterator<Item = CopyQuery> {
        let known = attacks.iter().filter_map(|&attack| Some((attack, Attack::ALL.get(attack)?)));
        known.flat_map(move |(attack, &(_, _, copies))| {
            (0..copies).map(move |variant| CopyQuery { photo, attack: Some((attack, variant)) })
        })
    }

    /// Returns the file of the query. `fillers` are numbers of photographs outside the collection.
    pub(super) fn file(&self, photos: &[Photo], fillers: &[usize], seed: u64) -> Result<Vec<u8>> {
        let photo =
            photos.get(self.photo).ok_or_else(|| Error::internal("a query of no photograph"))?;
        let Some((attack, variant)) = self.attack else { return Ok(photo.bytes.clone()) };
        let number = (self.photo * Attack::ALL.len() + attack) * 16 + variant;
        let (attack, ..) = Attack::ALL[attack];
        let mut random = RandomSequence::new(at(seed, number as u64));
        let mut others = Vec::new();
        if attack == Attack::Collage && !fillers.is_empty() {
            let first = random.bits() as usize % fillers.len();
            let chosen = fillers.iter().cycle().skip(first).take(COLLAGE_FILLERS);
            for photo in chosen.filter_map(|&number| photos.get(number)) {
                others.push(photo.image()?);
            }
        }
        let source = CopySource { image: &photo.image()?, fillers: &others };
        attack.copy(&source, variant, &mut random)
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
    /// All work on further views.
    pub(super) views: f64,
}

impl Times {
    pub(super) fn all(&self) -> f64 {
        self.decode + self.embed + self.keypoints + self.search + self.views
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct CopyQueryResult {
    pub(super) ask: CopyQuery,
    /// True if the photograph is first by the file's embedding.
    pub(super) coarse_first: bool,
    /// True if the photograph is among the candidates of the file's embedding.
    pub(super) is_candidate: bool,
    /// True if the photograph is first in the final result.
    pub(super) final_first: bool,
    /// Score of the photograph if it was matched.
    pub(super) score: f32,
    /// True if the score of the photograph is accepted.
    pub(super) accepted: bool,
    /// Number of other images that were accepted.
    pub(super) wrong: usize,
    /// Best score of another image that was accepted.
    pub(super) wrong_score: f32,
    /// Number of the other image with the best score.
    pub(super) wrong_photo: Option<usize>,
    /// Number of other images that were matched, in the search and in those for views.
    pub(super) wrong_compared: usize,
    /// Number of further views that were searched for.
    pub(super) views: usize,
    /// View that had an accepted match.
    pub(super) matched_view: Option<ViewKind>,
    pub(super) times: Times,
}

impl CopyQueryResult {
    /// Judges the candidates of the file's embedding and the accepted matches of views.
    fn of(
        ask: CopyQuery,
        mut hits: Vec<PhotoHit>,
        viewed: &FoundView,
        times: Times,
    ) -> CopyQueryResult {
        let own = |hit: &PhotoHit| hit.id == ask.photo as u64;
        // Before views add hits: these are figures of the embedding alone.
        let coarse_first = first_by_embedding(&hits).is_some_and(own);
        let is_candidate = hits.iter().any(own);
        let wrong_compared = hits.iter().filter(|hit| !own(hit)).count() + viewed.wrong_compared;
        viewed.add_to(&mut hits);
        let found = hits.iter().find(|hit| own(hit));
        let others = || hits.iter().filter(|hit| !own(hit));
        let wrong =
            others().reduce(|a, b| if b.similarity.score > a.similarity.score { b } else { a });
        CopyQueryResult {
            ask,
            coarse_first,
            is_candidate,
            final_first: hits.first().is_some_and(own),
            score: found.map_or(0.0, |hit| hit.similarity.score),
            accepted: found.is_some_and(|hit| hit.similarity.accepted(ACCEPT)),
            wrong: others().filter(|hit| hit.similarity.accepted(ACCEPT)).count(),
            wrong_score: wrong.map_or(0.0, |hit| hit.similarity.score),
            wrong_photo: wrong.map(|hit| hit.id as usize),
            wrong_compared,
            views: viewed.searched,
            matched_view: viewed.kind,
            times,
        }
    }
}

/// Features of a file.
struct DescribedFile {
    image: Image,
    embedding: Vec<f32>,
    graph: Graph,
    times: Times,
}

/// Accepted matches of further views.
#[derive(Default)]
struct FoundView {
    hits: Vec<PhotoHit>,
    kind: Option<ViewKind>,
    searched: usize,
    /// Matched images other than the query's.
    wrong_compared: usize,
}

impl FoundView {
    /// Replaces the hits of the same images and sorts all, best first.
    fn add_to(&self, hits: &mut Vec<PhotoHit>) {
        for new in &self.hits {
            match hits.iter_mut().find(|hit| hit.id == new.id) {
                Some(old) if old.similarity.score >= new.similarity.score => {}
                Some(old) => old.similarity.score = new.similarity.score,
                None => hits.push(*new),
            }
        }
        hits.sort_by(|a, b| best_first(ACCEPT, a.similarity, b.similarity).then(a.id.cmp(&b.id)));
    }
}

/// Stages from a file to a result.
pub(super) struct Pipeline<'a> {
    pub(super) photos: &'a [Photo],
    pub(super) embedder: &'a PhotoEmbedder,
    pub(super) options: vision::photo::KeypointOptions,
    pub(super) threads: usize,
    pub(super) candidates: usize,
    /// True if further views are searched for if nothing is accepted.
    pub(super) views: bool,
    /// Photographs outside the collection.
    pub(super) fillers: &'a [usize],
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
                let DescribedFile { embedding, graph, .. } = self.describe(&photo.bytes)?;
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
    ) -> Result<Vec<CopyQueryResult>> {
        self.each(
            asks.len(),
            || index.thread(),
            |number, thread| {
                let ask =
                    asks.get(number).ok_or_else(|| Error::internal("there is no such query"))?;
                let bytes = ask.file(self.photos, self.fillers, self.seed)?;
                if let Some(to) = to {
                    write_file(&to.join(self.copy_path(ask)), &bytes)?;
                }
                let answer = self.answer(index, thread, *ask, &bytes);
                progress.step();
                answer
            },
        )
    }

    /// Returns the path of a query's file.
    pub(super) fn copy_path(&self, ask: &CopyQuery) -> String {
        let stem = self.photos.get(ask.photo).map_or("photo", Photo::stem);
        let variant = ask.attack.map_or(0, |(_, variant)| variant);
        format!("{}/{:05}-{stem}-{variant}.jpg", ask.name(), ask.photo)
    }

    /// Runs one query, and compares its hits with the photograph of the copy.
    fn answer(
        &self,
        index: &PhotoIndex,
        thread: &mut SearchThread,
        ask: CopyQuery,
        bytes: &[u8],
    ) -> Result<CopyQueryResult> {
        let DescribedFile { image, embedding, graph, mut times } = self.describe(bytes)?;
        let start = Instant::now();
        let hits = index.search(thread, &embedding, &graph, self.candidates)?;
        times.search = ms_since(start);
        let start = Instant::now();
        let accepted = hits.iter().any(|hit| hit.similarity.accepted(ACCEPT));
        let mut viewed = FoundView::default();
        if self.views && !accepted {
            viewed = self.search_views(index, thread, &image, &embedding, ask.photo as u64)?;
            times.views = ms_since(start);
        }
        Ok(CopyQueryResult::of(ask, hits, &viewed, times))
    }

    /// Searches for further views, step by step, until one has an accepted match.
    fn search_views(
        &self,
        index: &PhotoIndex,
        thread: &mut SearchThread,
        image: &Image,
        embedding: &[f32],
        photo: u64,
    ) -> Result<FoundView> {
        let mut found = FoundView::default();
        for step in PhotoView::steps(image.width, image.height) {
            for view in step {
                let shown = view.image(image);
                let graph = keypoints(&shown.gray(), &view.options());
                let own = if view.has_embedding_of_photograph() {
                    None
                } else {
                    Some(self.embedder.embed(&shown)?)
                };
                let embedding = own.as_deref().unwrap_or(embedding);
                let candidates = view.candidates(self.candidates);
                let hits = index.search(thread, embedding, &graph, candidates)?;
                found.searched += 1;
                found.wrong_compared += hits.iter().filter(|hit| hit.id != photo).count();
                let accepted = hits.into_iter().filter(|hit| hit.similarity.accepted(ACCEPT));
                let before = found.hits.len();
                found.hits.extend(accepted);
                if found.hits.len() > before {
                    found.kind.get_or_insert(view.kind);
                }
            }
            if !found.hits.is_empty() {
                break;
            }
        }
        Ok(found)
    }

    /// Computes the embedding and keypoints of a file.
    fn describe(&self, bytes: &[u8]) -> Result<DescribedFile> {
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
        Ok(DescribedFile { image, embedding, graph, times })
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

/// Returns the hit that is nearest by embedding, the one with the lower id of equal ones.
fn first_by_embedding(hits: &[PhotoHit]) -> Option<&PhotoHit> {
    hits.iter().reduce(|best, hit| {
        let nearer =
            hit.similarity.coarse.total_cmp(&best.similarity.coarse).then(best.id.cmp(&hit.id));
        if nearer.is_gt() { hit } else { best }
    })
}

fn ms_since(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use matching::rank::StageScores;

    use super::*;

    #[test]
    fn views_do_not_change_the_figures_of_the_embedding() {
        let hit = |id, score, coarse| PhotoHit { id, similarity: StageScores { score, coarse } };
        let ask = CopyQuery { photo: 7, attack: None };
        let viewed = FoundView {
            hits: vec![hit(7, 2.0 * ACCEPT, 0.99)],
            kind: None,
            searched: 1,
            wrong_compared: 2,
        };
        let candidates = vec![hit(3, 0.0, 0.8), hit(4, 0.0, 0.7)];
        let found = CopyQueryResult::of(ask, candidates, &viewed, Times::default());
        assert!(found.final_first && found.accepted);
        assert!(!found.coarse_first && !found.is_candidate);
        assert_eq!(found.wrong_compared, 4);
        let candidates = vec![hit(7, 0.0, 0.8), hit(4, 0.0, 0.7)];
        let found = CopyQueryResult::of(ask, candidates, &viewed, Times::default());
        assert!(found.coarse_first && found.is_candidate);
        assert_eq!(found.wrong_compared, 3);
    }
}
