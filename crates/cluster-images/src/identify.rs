//! Identification of a person by fingerprints. Each finger is searched in all shards. The root
//! groups the prints by person, since the prints of a person may lie in several shards.

use api_images::{
    ExtractedQuery, FINGER_HITS_MAX, FingersRequest, FoundPersons, FoundPrint, ImageKind,
    QueryPrints, accept_score, check_search_limits, check_threshold,
};
use base::{Error, Result};
use bytes::Bytes;
use cluster_root::reads::result_bytes;
use cluster_root::{ReadCoverage, RootContext};
use serde::Deserialize;
use serde_json::{Value, json};
use transport::Reply;

use super::call::ImageCall;
use super::merge::{self, MergedPrints};
use super::rounds::{self, RoundsPlan};
use super::search::{HITS_DEFAULT, parsed_filter};
use super::target::ImageTarget;
use super::{extraction, reply};

/// Parameters of an identification.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct IdentifyParams {
    k: Option<usize>,
    threshold: Option<f32>,
    candidates: Option<usize>,
    filter: Option<String>,
    explain: Option<String>,
    views: Option<String>,
}

/// Finds persons by one finger (the body is a file) or several (JSON).
pub(super) async fn identify(mut call: ImageCall) -> Result<Reply> {
    let parameters: IdentifyParams = call.query.route_parameters()?;
    let target = ImageTarget::open(&call.context)?;
    target.check_prints()?;
    let most = parameters.k.unwrap_or(HITS_DEFAULT);
    let plan = plan(parameters)?;
    let files = if call.media() == "application/json" {
        let budget = call.context.state.requests.memory.clone();
        call.converted(move |request: FingersRequest| request.files(&budget)).await?
    } else {
        vec![call.bytes().await?]
    };
    // Checks the number of files before they are read.
    FoundPersons::new(files.len())?;
    let _admitted = call.admit()?;
    let context = &call.context;
    if context.params.strong {
        context.state.check_current(&target.record, context.deadline).await?;
    }
    let bytes = files.iter().map(Bytes::len).sum();
    let budget = context.state.requests.memory.clone();
    let sought = context.compute(bytes, move || QueryPrints::split(files, &budget)).await?;
    let persons = FoundPersons::new(sought.prints.len())?;
    let counts = FingerCounts { left_out: sought.left_out, ..FingerCounts::default() };
    let mut run = Identification { context, target, plan, persons, counts };
    let mut unreadable = None;
    for print in &sought.prints {
        match run.search(print.file.clone()).await {
            Err(error) if print.is_left_out(&error) => {
                run.counts.left_out += 1;
                unreadable = unreadable.or_else(|| Some(print.named(error)));
            }
            found => found.map_err(|error| print.named(error))?,
        }
    }
    if let Some(error) = unreadable.filter(|_| run.counts.fingers == 0) {
        return Err(error);
    }
    let answer = run.answer(most);
    let requests = &context.state.requests;
    reply::reserved(answer.to_string().into_bytes(), requests.memory.empty(), requests)
}

/// Returns the checked settings of the search for one finger.
fn plan(parameters: IdentifyParams) -> Result<RoundsPlan> {
    let IdentifyParams { k, threshold, candidates, filter, explain, views } = parameters;
    if explain.is_some() || views.is_some() {
        return Err(Error::invalid(
            "explain= and views= are for /search: persons have no keypoints and no views",
        ));
    }
    check_search_limits(
        ImageKind::Fingerprint,
        k.unwrap_or(HITS_DEFAULT),
        candidates.unwrap_or(1),
    )?;
    check_threshold(threshold)?;
    let filter = filter.as_deref().map(parsed_filter).transpose()?;
    Ok(RoundsPlan { k: FINGER_HITS_MAX, threshold, candidates, explain: false, filter, view: None })
}

/// Counts over the fingers.
#[derive(Default)]
struct FingerCounts {
    /// Number of fingers that were searched for.
    fingers: usize,
    /// Number of prints of the files that were not searched for.
    left_out: usize,
    compared: u64,
    of: u64,
    partial: bool,
    /// The least coverage of a finger; `None` before the first one.
    coverage: Option<ReadCoverage>,
}

/// The search for the fingers of one request.
struct Identification<'a> {
    context: &'a RootContext,
    target: ImageTarget,
    plan: RoundsPlan,
    persons: FoundPersons,
    counts: FingerCounts,
}

impl Identification<'_> {
    /// Searches for the next finger. After an error, the next one takes its place.
    async fn search(&mut self, file: Bytes) -> Result<()> {
        let context = self.context;
        let finger = self.counts.fingers;
        let query: ExtractedQuery = extraction::of_file(context, &self.target, file).await?;
        let found = rounds::run(context, &self.target, &query, &self.plan).await?;
        let results = found.results;
        let most = self.plan.k;
        let bytes = result_bytes(&results);
        let merged = context.compute(bytes, move || merge::prints(&results, most)).await?;
        let MergedPrints { hits, compared, of, partial } = merged;
        for hit in &hits {
            let payload = hit.shown.get("payload").and_then(Value::as_object);
            let payload = payload.cloned().unwrap_or_default();
            self.persons
                .add(finger, &FoundPrint { id: hit.id, payload: &payload, score: hit.score });
        }
        let counts = &mut self.counts;
        counts.fingers += 1;
        counts.compared += compared;
        counts.of = counts.of.max(of);
        counts.partial |= partial || found.partial;
        let less = counts.coverage.is_none_or(|known| found.coverage.shards < known.shards);
        if less {
            counts.coverage = Some(found.coverage);
        }
        Ok(())
    }

    /// Returns the JSON of the `most` best persons.
    fn answer(mut self, most: usize) -> Value {
        let FingerCounts { fingers, left_out, compared, of, partial, coverage } = self.counts;
        self.persons.truncate_fingers(fingers);
        let default = || accept_score(ImageKind::Fingerprint, of);
        let threshold = self.persons.threshold(self.plan.threshold.unwrap_or_else(default));
        let mut answer = json!({
            "results": self.persons.best(most, threshold), "threshold": threshold,
            "compared": compared, "of": of, "partial": partial,
        });
        if left_out > 0 {
            answer["prints_left_out"] = left_out.into();
        }
        match coverage {
            Some(coverage) => reply::with_coverage(answer, coverage),
            None => answer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_have_defaults_and_limits() {
        let default = plan(IdentifyParams::default()).unwrap();
        assert_eq!((default.k, default.candidates), (FINGER_HITS_MAX, None));
        assert_eq!(default.threshold, None);
        let error = |parameters| plan(parameters).unwrap_err().message().to_owned();
        let views = IdentifyParams { views: Some("1".to_owned()), ..IdentifyParams::default() };
        assert!(error(views).contains("persons"));
        let none = IdentifyParams { k: Some(0), ..IdentifyParams::default() };
        assert!(error(none).contains("k is 1 to"));
        let filter = IdentifyParams { filter: Some("{".to_owned()), ..IdentifyParams::default() };
        assert!(plan(filter).is_err());
        let infinite =
            IdentifyParams { threshold: Some(f32::INFINITY), ..IdentifyParams::default() };
        assert!(error(infinite).contains("threshold"));
    }
}
