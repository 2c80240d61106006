//! The rounds of a search over the shards.
//!
//! The first of two rounds ends after a part of the time, so that a shard that does not answer
//! leaves time for the others. Hedging, retries and the coverage are as for any read. A shard
//! counts as answered if it answered every round in which it was asked.

use std::sync::Arc;
use std::time::Instant;

use api_images::{
    CoarseCandidates, CoarseSearchRequest, ExtractedQuery, ImageKind, PrintShare, QueryView,
    RankRequest, accept_score,
};
use base::{Error, Result};
use cluster_root::reads::{
    ReadBody, ReadPriority, ShardAnswers, ShardRead, check_coverage, of_all, read_shards,
    result_bytes,
};
use cluster_root::split::raw;
use cluster_root::{ReadCoverage, RootContext};
use serde_json::Value;
use transport::Reservation;

use super::merge::{self, ImageOrder, ResultTexts};
use super::target::ImageTarget;

/// Path of the coarse filter of a shard.
const COARSE_PATH: &str = "images/coarse";
/// Path of the exact comparison of a shard.
const RANK_PATH: &str = "images/rank";

/// Part of the time until the deadline after which the first of two rounds ends.
const FIRST_ROUND_PART: f64 = 0.6;

/// Settings of a search.
#[derive(Clone, Debug)]
pub(super) struct RoundsPlan {
    pub(super) k: usize,
    /// Smallest score of an accepted image; `None` is the default of the kind, which grows with the
    /// number of fingerprints.
    pub(super) threshold: Option<f32>,
    /// Images to compare; `None` is the default of the kind.
    pub(super) candidates: Option<usize>,
    pub(super) explain: bool,
    /// Filter in Qdrant's JSON.
    pub(super) filter: Option<Value>,
    /// The view whose features are searched for; `None` for a whole image.
    pub(super) view: Option<QueryView>,
}

impl RoundsPlan {
    /// Returns the order of the hits.
    pub(super) fn order(&self, kind: ImageKind) -> ImageOrder {
        match kind {
            ImageKind::Photo => ImageOrder::Photos { threshold: self.threshold_among(kind, 1) },
            ImageKind::Fingerprint => ImageOrder::Prints,
        }
    }

    /// Returns the smallest score of an accepted image, if it was searched among `images` images.
    pub(super) fn threshold_among(&self, kind: ImageKind, images: u64) -> f32 {
        self.threshold.unwrap_or_else(|| accept_score(kind, images))
    }
}

/// Results of the last round.
pub(super) struct RoundsAnswer {
    pub(super) results: ResultTexts,
    pub(super) coverage: ReadCoverage,
    /// Number of points that the filter allows, as the first round has counted them. `None` without
    /// a first round, because the last round counts them then. After a first round, the last round
    /// has no filter.
    pub(super) of: Option<u64>,
    /// True if the first round may have missed candidates.
    pub(super) partial: bool,
    /// Bytes of the results.
    pub(super) reservation: Reservation,
}

/// Searches the shards of a collection.
///
/// # Errors
/// A shard's refusal of the query; `Unavailable` with retry advice if too few shards answered.
pub(super) async fn run(
    context: &RootContext,
    target: &ImageTarget,
    query: &ExtractedQuery,
    plan: &RoundsPlan,
) -> Result<RoundsAnswer> {
    let rounds = Rounds { context, target, query, plan };
    let answer = match target.settings.kind {
        ImageKind::Photo => rounds.photos().await?,
        ImageKind::Fingerprint => rounds.compare_prints().await?,
    };
    if !answer.coverage.is_whole() {
        context.state.count("partial");
    }
    Ok(answer)
}

struct Rounds<'a> {
    context: &'a RootContext,
    target: &'a ImageTarget,
    query: &'a ExtractedQuery,
    plan: &'a RoundsPlan,
}

impl Rounds<'_> {
    /// Compares each shard's share of the fingerprints.
    async fn compare_prints(&self) -> Result<RoundsAnswer> {
        let share =
            PrintShare { candidates: self.plan.candidates, shards: self.target.record.shards };
        let request =
            RankRequest { prints: Some(share), filter: self.plan.filter.clone(), ..self.rank() };
        let read = of_all(self.context, &self.target.record, RANK_PATH, raw(&request)?);
        let answers = Box::pin(read_shards(&self.context.state, &read)).await?;
        let ShardAnswers { results, coverage, failure, reservation, .. } = answers;
        self.check(coverage, self.context.params.min_coverage, failure.as_ref())?;
        Ok(RoundsAnswer { results, coverage, of: None, partial: false, reservation })
    }

    /// Finds candidates in all shards, and compares the best in their shards.
    async fn photos(&self) -> Result<RoundsAnswer> {
        let default = api_images::default_candidates(ImageKind::Photo);
        let most = self.plan.candidates.unwrap_or(default).max(self.plan.k);
        let request = CoarseSearchRequest {
            embedding: self.query.embedding.clone(),
            candidates: most,
            filter: self.plan.filter.clone(),
        };
        let mut read = of_all(self.context, &self.target.record, COARSE_PATH, raw(&request)?);
        let left = self.context.deadline.saturating_duration_since(Instant::now());
        read.deadline = Instant::now() + left.mul_f64(FIRST_ROUND_PART);
        let ShardAnswers { results, coverage, failure, reservation, .. } =
            Box::pin(read_shards(&self.context.state, &read)).await?;
        let min_coverage = self.context.params.min_coverage;
        self.check(coverage, min_coverage, failure.as_ref())?;
        let bytes = result_bytes(&results);
        let merge = move || merge::candidates(&results, most);
        let merged = self.context.compute(bytes, merge).await?;
        let of = Some(merged.of);
        let partial = merged.partial;
        if merged.ids.is_empty() {
            let results = ResultTexts::new();
            return Ok(RoundsAnswer { results, coverage, of, partial, reservation });
        }
        drop(reservation);
        let candidates = CoarseCandidates { ids: merged.ids, coarse: merged.coarse };
        let request = RankRequest { candidates: Some(candidates), ..self.rank() };
        let read = ShardRead {
            record: Arc::clone(&self.target.record),
            shards: merged.shards.into_iter().collect(),
            path: RANK_PATH,
            body: ReadBody::Same(raw(&request)?),
            deadline: self.context.deadline,
            strong: self.context.params.strong,
            priority: ReadPriority::Client,
        };
        let answers = Box::pin(read_shards(&self.context.state, &read)).await?;
        let ShardAnswers { results, coverage: ranked, failure, reservation, .. } = answers;
        // The request fails if no shard of the candidates answers.
        self.check(ranked, 0.0, failure.as_ref())?;
        let missing = ranked.of - ranked.shards;
        let coverage = ReadCoverage { shards: coverage.shards - missing, ..coverage };
        self.check(coverage, min_coverage, failure.as_ref())?;
        Ok(RoundsAnswer { results, coverage, of, partial, reservation })
    }

    /// Checks that enough shards answered, and counts a refusal.
    ///
    /// # Errors
    /// As [`check_coverage`].
    fn check(&self, coverage: ReadCoverage, min: f64, failure: Option<&Error>) -> Result<()> {
        check_coverage(coverage, min, failure).inspect_err(|_| self.context.state.count("refused"))
    }

    /// Returns the request of a round that compares keypoints.
    fn rank(&self) -> RankRequest {
        RankRequest {
            record: self.query.record.clone(),
            width: self.query.width,
            height: self.query.height,
            k: self.plan.k,
            // The root corrects `accepted` of fingerprints, when it knows their number.
            threshold: self.plan.threshold_among(self.target.settings.kind, 1),
            explain: self.plan.explain,
            candidates: None,
            prints: None,
            filter: None,
            view: self.plan.view,
        }
    }
}
