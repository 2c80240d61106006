//! The report of `bench images`: JSON and a table.

use std::collections::BTreeMap;

use serde::Serialize;
use vision::photo::ACCEPT;

use super::attacks::Attack;
use super::index::IndexedPhoto;
use super::queries::{CopyQueryResult, Pipeline, Times};
use super::{BenchImagesArgs, QueryPlan};
use crate::report::BenchReport;
use loadgen::machine::RunContext;
use loadgen::println;
use loadgen::report::{TextTable, ms};
use loadgen::stats::{median, ratio};

/// JSON of `bench images`.
#[derive(Debug, Serialize)]
pub(super) struct ImagesReport {
    attacks: BTreeMap<&'static str, AttackRates>,
    final_recall1_mean: f64,
    final_recall1_min: f64,
    coarse_recall1_mean: f64,
    /// True if no attack's final recall is below that of the coarse stage.
    final_never_below_coarse: bool,
    /// Number of copies whose photograph came first by embedding but not in the final result.
    spoilt: usize,
    /// Number of accepted wrong images.
    false_accepts: usize,
    /// Accepted wrong images of queries for images that are not in the set.
    false_accepts_held_out: usize,
    /// Accepted wrong images of queries with copies of images in the set.
    false_accepts_in_set: usize,
    /// Best score of a wrong image.
    wrong_score_max: f32,
    /// Query and wrong image with the best score.
    wrong_pair: Option<[String; 2]>,
    /// Score from which a match is accepted.
    accept: f32,
    /// Number of pairs of a query and a wrong image that were matched.
    wrong_pairs_matched: usize,
    query_p50_ms: f64,
    stages_p50_ms: StageTimes,
    /// Absent if no further views were searched for.
    views: Option<ViewFacts>,
    index: IndexFacts,
    queries: usize,
    attacked: usize,
    copies_each: usize,
    held_out: HeldOut,
    /// Number of photographs outside the collection that fill collages.
    fillers: usize,
    candidates: usize,
    embedding: String,
    medium: String,
    threads: usize,
    seed: u64,
    source: String,
    #[serde(flatten)]
    context: RunContext,
}

/// Rates of one attack.
#[derive(Clone, Copy, Debug, Serialize)]
struct AttackRates {
    copies: usize,
    coarse_recall1: f64,
    /// Share of queries whose photograph is among the candidates of the file's embedding.
    coarse_recall_at_candidates: f64,
    final_recall1: f64,
    /// Share of queries whose photograph scores above the threshold.
    accepted: f64,
    /// Share of queries whose photograph comes first and is accepted.
    accepted_recall1: f64,
    /// Accepted wrong images for copies of photographs in the collection and of removed ones.
    false_accepts: usize,
    /// Number of queries for removed photographs under this attack.
    held_out_queries: usize,
    score_p50: f64,
}

/// Use of further views.
#[derive(Clone, Debug, Serialize)]
struct ViewFacts {
    /// Number of queries for photographs in the collection that needed further views.
    queries: usize,
    /// Queries that found their match by each kind of view.
    matched: BTreeMap<&'static str, usize>,
    /// Mean number of views of a query that needed them.
    views_mean: f64,
    /// Median time of the views of a query without any match.
    unmatched_p50_ms: f64,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct StageTimes {
    decode: f64,
    embed: f64,
    keypoints: f64,
    search: f64,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct IndexFacts {
    photographs: usize,
    dims: usize,
    keypoints_mean: f64,
    record_bytes_mean: f64,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct HeldOut {
    photographs: usize,
    queries: usize,
    /// Number of photographs left in the collection.
    photographs_left: usize,
}

/// Parts of a run.
pub(super) struct ImagesRun<'a> {
    pub(super) args: &'a BenchImagesArgs,
    pub(super) plan: &'a QueryPlan,
    pub(super) pipeline: &'a Pipeline<'a>,
    pub(super) entries: &'a [IndexedPhoto],
    /// Results of queries with copies of photographs in the collection.
    pub(super) answers: &'a [CopyQueryResult],
    /// Results of queries with copies of photographs that were removed from the collection.
    pub(super) strangers: &'a [CopyQueryResult],
    /// Number of photographs that stayed in the collection for the queries of `strangers`.
    pub(super) left: usize,
}

impl AttackRates {
    fn of(answers: &[&CopyQueryResult], strangers: &[&CopyQueryResult]) -> AttackRates {
        let share = |is: fn(&CopyQueryResult) -> bool| {
            ratio(answers.iter().filter(|answer| is(answer)).count() as f64, answers.len() as f64)
        };
        AttackRates {
            copies: answers.len(),
            coarse_recall1: share(|answer| answer.coarse_first),
            coarse_recall_at_candidates: share(|answer| answer.is_candidate),
            final_recall1: share(|answer| answer.final_first),
            accepted: share(|answer| answer.accepted),
            accepted_recall1: share(|answer| answer.final_first && answer.accepted),
            false_accepts: answers.iter().chain(strangers).map(|answer| answer.wrong).sum(),
            held_out_queries: strangers.len(),
            score_p50: median(answers.iter().map(|answer| f64::from(answer.score))),
        }
    }
}

impl ViewFacts {
    fn of(answers: &[CopyQueryResult], strangers: &[CopyQueryResult]) -> ViewFacts {
        let mut matched = BTreeMap::new();
        for kind in answers.iter().filter_map(|answer| answer.matched_view) {
            *matched.entry(kind.name()).or_insert(0) += 1;
        }
        let needed = || answers.iter().filter(|answer| answer.views > 0);
        let views: usize = needed().map(|answer| answer.views).sum();
        let unmatched =
            strangers.iter().filter(|answer| answer.views > 0 && answer.matched_view.is_none());
        ViewFacts {
            queries: needed().count(),
            matched,
            views_mean: ratio(views as f64, needed().count() as f64),
            unmatched_p50_ms: median(unmatched.map(|answer| answer.times.views)),
        }
    }
}

impl StageTimes {
    fn of(answers: &[CopyQueryResult]) -> StageTimes {
        let p50 =
            |value: fn(&Times) -> f64| median(answers.iter().map(|answer| value(&answer.times)));
        StageTimes {
            decode: p50(|times| times.decode),
            embed: p50(|times| times.embed),
            keypoints: p50(|times| times.keypoints),
            search: p50(|times| times.search),
        }
    }
}

impl IndexFacts {
    fn of(entries: &[IndexedPhoto]) -> IndexFacts {
        let mean = |value: fn(&IndexedPhoto) -> usize| {
            ratio(entries.iter().map(value).sum::<usize>() as f64, entries.len() as f64)
        };
        IndexFacts {
            photographs: entries.len(),
            dims: entries.first().map_or(0, |entry| entry.embedding.len()),
            keypoints_mean: mean(|entry| entry.graph.vertices.len()),
            record_bytes_mean: mean(|entry| {
                let mut record = Vec::new();
                entry.graph.encode(&mut record);
                record.len()
            }),
        }
    }
}

impl ImagesReport {
    pub(super) fn new<'a>(run: &ImagesRun<'a>, context: RunContext) -> ImagesReport {
        let ImagesRun { args, plan, pipeline, answers, strangers, .. } = *run;
        let of = |attack: &'static str| {
            let some = |all: &'a [CopyQueryResult]| -> Vec<&'a CopyQueryResult> {
                all.iter().filter(|answer| answer.ask.name() == attack).collect()
            };
            (attack, AttackRates::of(&some(answers), &some(strangers)))
        };
        let chosen = plan.attacks.iter().filter_map(|&attack| Attack::ALL.get(attack));
        let attacks: BTreeMap<_, _> = chosen.map(|&(_, name, _)| of(name)).collect();
        let mean = |value: fn(&AttackRates) -> f64| {
            ratio(attacks.values().map(value).sum(), attacks.len() as f64)
        };
        let wrong =
            |answers: &[CopyQueryResult]| answers.iter().map(|answer| answer.wrong).sum::<usize>();
        let all = || answers.iter().chain(strangers);
        let worst = all().max_by(|a, b| a.wrong_score.total_cmp(&b.wrong_score));
        let photo = |number: usize| pipeline.photos.get(number).map(|photo| photo.name.clone());
        ImagesReport {
            final_recall1_mean: mean(|rates| rates.final_recall1),
            final_recall1_min: attacks
                .values()
                .map(|rates| rates.final_recall1)
                .fold(1.0, f64::min),
            coarse_recall1_mean: mean(|rates| rates.coarse_recall1),
            final_never_below_coarse: attacks
                .values()
                .all(|rates| rates.final_recall1 >= rates.coarse_recall1),
            spoilt: answers
                .iter()
                .filter(|answer| answer.coarse_first && !answer.final_first)
                .count(),
            false_accepts: wrong(answers) + wrong(strangers),
            false_accepts_held_out: wrong(strangers),
            false_accepts_in_set: wrong(answers),
            wrong_score_max: worst.map_or(0.0, |answer| answer.wrong_score),
            wrong_pair: worst.and_then(|answer| {
                Some([pipeline.copy_path(&answer.ask), photo(answer.wrong_photo?)?])
            }),
            accept: ACCEPT,
            wrong_pairs_matched: all().map(|answer| answer.wrong_compared).sum(),
            query_p50_ms: median(answers.iter().map(|answer| answer.times.all())),
            stages_p50_ms: StageTimes::of(answers),
            views: pipeline.views.then(|| ViewFacts::of(answers, strangers)),
            index: IndexFacts::of(run.entries),
            queries: answers.len(),
            attacked: plan.attacked.len(),
            copies_each: answers.len() / plan.attacked.len().max(1),
            held_out: HeldOut {
                photographs: plan.held_out.len(),
                queries: strangers.len(),
                photographs_left: run.left,
            },
            fillers: plan.fillers.len(),
            candidates: args.candidates,
            embedding: pipeline.embedder.name(),
            medium: format!("{:?}", args.medium).to_lowercase(),
            threads: pipeline.threads,
            seed: args.seed,
            source: args
                .dir
                .as_ref()
                .map_or_else(|| "generated".into(), |dir| dir.display().to_string()),
            attacks,
            context,
        }
    }
}

impl BenchReport for ImagesReport {
    fn print(&self) {
        let remark =
            if self.source == "generated" { " (they say nothing about real ones)" } else { "" };
        println!(
            "{} photographs from {}{remark}, {:.0} keypoints and {:.0} bytes each; embedding: {}",
            self.index.photographs,
            self.source,
            self.index.keypoints_mean,
            self.index.record_bytes_mean,
            self.embedding
        );
        let candidates = format!("among {}", self.candidates);
        let mut table = TextTable::new(&[
            "attack",
            "copies",
            "coarse recall@1",
            &candidates,
            "final recall@1",
            "accepted first",
            "false accepts",
        ]);
        for (name, rates) in &self.attacks {
            let share = |value: f64| format!("{value:.4}");
            table.row([
                (*name).into(),
                rates.copies.to_string(),
                share(rates.coarse_recall1),
                share(rates.coarse_recall_at_candidates),
                share(rates.final_recall1),
                share(rates.accepted_recall1),
                rates.false_accepts.to_string(),
            ]);
        }
        println!("\n{table}");
        println!(
            "final recall@1 {:.4} on average, {:.4} at least; by embedding alone {:.4}",
            self.final_recall1_mean, self.final_recall1_min, self.coarse_recall1_mean
        );
        println!(
            "false accepts {} ({} of {} queries for what is not there); best score of a wrong image {:.0}, accepted \
             from {:.0}",
            self.false_accepts,
            self.false_accepts_held_out,
            self.held_out.queries,
            self.wrong_score_max,
            self.accept
        );
        println!(
            "a query takes {} ms: decoding {}, embedding {}, keypoints {}, search {} (medians, {} at once)",
            ms(self.query_p50_ms),
            ms(self.stages_p50_ms.decode),
            ms(self.stages_p50_ms.embed),
            ms(self.stages_p50_ms.keypoints),
            ms(self.stages_p50_ms.search),
            self.threads
        );
        if let Some(views) = &self.views {
            println!(
                "{} of {} queries searched for further views, {:.1} each on average ({:?} matched); without a match they \
                 take {} ms",
                views.queries,
                self.queries,
                views.views_mean,
                views.matched,
                ms(views.unmatched_p50_ms)
            );
        }
        println!("{}", self.context);
    }
}
