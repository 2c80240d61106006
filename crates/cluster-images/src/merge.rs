//! Answers of shards merged to the answer of the whole collection. Hits stay as the text that their
//! holder wrote.
//!
//! A point is in one shard only, so no point appears twice. All functions are pure.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use api_images::{CoarseAnswer, RankAnswer, RankedImage};
use base::{Error, Result};
use matching::rank::{StageScores, best_first};
use serde::Deserialize;
use serde_json::value::{RawValue, to_raw_value};

pub(super) use cluster_root::reads::ResultTexts;

/// The best candidates of all shards, best first.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct MergedCandidates {
    /// Internal ids of points.
    pub(super) ids: Vec<u64>,
    /// Similarities of their embeddings.
    pub(super) coarse: Vec<f32>,
    /// Shards that have some of them.
    pub(super) shards: BTreeSet<u32>,
    /// Number of points of all shards that the filter allows.
    pub(super) of: u64,
    /// True if candidates may be missing.
    pub(super) partial: bool,
}

struct ShardCandidate {
    id: u64,
    coarse: f32,
    shard: u32,
}

/// Parses the result of a shard.
///
/// # Errors
/// `Internal` for a result that is not the expected JSON.
pub(super) fn read<'a, T: Deserialize<'a>>(text: &'a RawValue) -> Result<T> {
    serde_json::from_str(text.get())
        .map_err(|error| Error::internal("a shard's result").caused_by(error))
}

/// Returns the best `most` candidates of all shards: the most similar embeddings, and the smaller
/// id of equal ones.
///
/// # Errors
/// `Internal` for a result that is not the expected JSON.
pub(super) fn candidates(results: &ResultTexts, most: usize) -> Result<MergedCandidates> {
    let mut merged = MergedCandidates::default();
    let mut all = Vec::new();
    for (shard, result) in results {
        let answer: CoarseAnswer = read(result)?;
        if answer.ids.len() != answer.coarse.len() {
            let ids = answer.ids.len();
            let scores = answer.coarse.len();
            return Err(Error::internal(format!("a shard answered {ids} ids and {scores} scores")));
        }
        merged.of += answer.of;
        merged.partial |= answer.partial;
        let found = answer.ids.into_iter().zip(answer.coarse);
        all.extend(found.map(|(id, coarse)| ShardCandidate { id, coarse, shard: *shard }));
    }
    all.sort_unstable_by(|a, b| b.coarse.total_cmp(&a.coarse).then(a.id.cmp(&b.id)));
    all.truncate(most);
    for candidate in all {
        merged.ids.push(candidate.id);
        merged.coarse.push(candidate.coarse);
        merged.shards.insert(candidate.shard);
    }
    Ok(merged)
}

/// Order of hits. If hits are equal, the smaller internal id comes first.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum ImageOrder {
    /// Scores from the threshold on first, and the others by the similarity of embeddings.
    Photos { threshold: f32 },
    /// By the score alone, because the scores of the indexes of different shards cannot be
    /// compared.
    Prints,
}

impl ImageOrder {
    fn compare(self, a: StageScores, b: StageScores) -> Ordering {
        match self {
            ImageOrder::Photos { threshold } => best_first(threshold, a, b),
            ImageOrder::Prints => b.score.total_cmp(&a.score),
        }
    }
}

/// An answer of the exact stage, as `api_images::RankAnswer` has it.
#[derive(Deserialize)]
struct RankText<'a> {
    #[serde(borrow)]
    hits: Vec<RankedText<'a>>,
    compared: u64,
    of: u64,
    partial: bool,
}

#[derive(Deserialize)]
struct RankedText<'a> {
    key: u64,
    score: f32,
    coarse: f32,
    #[serde(borrow)]
    shown: &'a RawValue,
}

/// A hit of the whole collection.
#[derive(Debug)]
pub(super) struct MergedImageHit<'a> {
    score: f32,
    /// Element of "results".
    pub(super) shown: Cow<'a, RawValue>,
}

impl MergedImageHit<'_> {
    /// Replaces the member "accepted". The others keep their text.
    fn set_accepted(&mut self, accepted: bool) -> Result<()> {
        let mut members: BTreeMap<String, &RawValue> = read(&self.shown)?;
        let failed = |error| Error::internal("a hit cannot be written").caused_by(error);
        let accepted = to_raw_value(&accepted).map_err(failed)?;
        members.insert("accepted".to_owned(), &accepted);
        self.shown = Cow::Owned(to_raw_value(&members).map_err(failed)?);
        Ok(())
    }
}

/// The best hits of all shards.
#[derive(Debug, Default)]
pub(super) struct MergedImageHits<'a> {
    /// Hits, best first.
    pub(super) hits: Vec<MergedImageHit<'a>>,
    /// Number of images that were compared.
    pub(super) compared: u64,
    /// Number of images that the filter allows.
    pub(super) of: u64,
    /// True if hits may be missing.
    pub(super) partial: bool,
}

impl MergedImageHits<'_> {
    /// Accepts the hits with a score from `threshold` on, and no others.
    ///
    /// # Errors
    /// `Internal` for a hit that is not a JSON object.
    pub(super) fn accept_from(&mut self, threshold: f32) -> Result<()> {
        self.hits.iter_mut().try_for_each(|hit| hit.set_accepted(hit.score >= threshold))
    }
}

/// An accepted hit of a view of the query.
#[derive(Debug)]
pub(super) struct ViewHit {
    key: u64,
    score: f32,
    coarse: f32,
    shown: Box<RawValue>,
}

/// Accepted hits of all shards.
#[derive(Debug, Default)]
pub(super) struct AcceptedHits {
    pub(super) hits: Vec<ViewHit>,
    /// True if hits may be missing.
    pub(super) partial: bool,
}

/// Returns the hits with a score from `threshold` on.
///
/// # Errors
/// As [`candidates`].
pub(super) fn accepted(results: &ResultTexts, threshold: f32) -> Result<AcceptedHits> {
    let mut accepted = AcceptedHits::default();
    for result in results.values() {
        let answer: RankText<'_> = read(result)?;
        accepted.partial |= answer.partial;
        let hits = answer.hits.into_iter().filter(|hit| hit.score >= threshold);
        accepted.hits.extend(hits.map(|RankedText { key, score, coarse, shown }| ViewHit {
            key,
            score,
            coarse,
            shown: shown.to_owned(),
        }));
    }
    Ok(accepted)
}

/// Adds the hits of views to the hits of the whole photograph. Each image keeps its best score.
fn add_views<'a>(all: &mut Vec<RankedText<'a>>, views: &'a [ViewHit]) {
    for ViewHit { key, score, coarse, shown } in views {
        let new = RankedText { key: *key, score: *score, coarse: *coarse, shown };
        match all.iter_mut().find(|hit| hit.key == new.key) {
            Some(old) if old.score >= new.score => {}
            Some(old) => *old = new,
            None => all.push(new),
        }
    }
}

/// Returns the best `k` hits of all shards, and of views of the query.
///
/// # Errors
/// As [`candidates`].
pub(super) fn hits<'a>(
    results: &'a ResultTexts,
    views: &'a [ViewHit],
    order: ImageOrder,
    k: usize,
) -> Result<MergedImageHits<'a>> {
    let mut merged = MergedImageHits::default();
    let mut all = Vec::new();
    for result in results.values() {
        let answer: RankText<'_> = read(result)?;
        merged.compared += answer.compared;
        merged.of += answer.of;
        merged.partial |= answer.partial;
        all.extend(answer.hits);
    }
    add_views(&mut all, views);
    let scores = |hit: &RankedText<'_>| StageScores { score: hit.score, coarse: hit.coarse };
    all.sort_by(|a, b| order.compare(scores(a), scores(b)).then(a.key.cmp(&b.key)));
    all.truncate(k);
    let kept =
        |hit: RankedText<'a>| MergedImageHit { score: hit.score, shown: Cow::Borrowed(hit.shown) };
    merged.hits = all.into_iter().map(kept).collect();
    Ok(merged)
}

/// The best fingerprints of all shards, best first.
#[derive(Debug, Default)]
pub(super) struct MergedPrints {
    pub(super) hits: Vec<RankedImage>,
    /// Number of fingerprints that were compared.
    pub(super) compared: u64,
    /// Number of fingerprints that the filter allows.
    pub(super) of: u64,
    /// True if hits may be missing.
    pub(super) partial: bool,
}

/// Returns the best `most` fingerprints of all shards.
///
/// # Errors
/// As [`candidates`].
pub(super) fn prints(results: &ResultTexts, most: usize) -> Result<MergedPrints> {
    let mut merged = MergedPrints::default();
    for result in results.values() {
        let RankAnswer { hits, compared, of, partial } = read(result)?;
        merged.compared += compared;
        merged.of += of;
        merged.partial |= partial;
        merged.hits.extend(hits);
    }
    merged.hits.sort_by(|a, b| b.score.total_cmp(&a.score).then(a.key.cmp(&b.key)));
    merged.hits.truncate(most);
    Ok(merged)
}

#[cfg(test)]
#[path = "merge_tests.rs"]
mod tests;
