//! Identification of a person by one or several fingers: the prints of a person are one candidate.

use std::collections::HashMap;
use std::sync::Arc;

use base::{Error, Result};
use bytes::Bytes;
use search::points::PointId;
use serde_json::{Value, json};

use super::limits::accept_score;
use super::plan::SearchResult;
use super::prints;
use super::query::{self, ImageQuery, QueryImage};
use super::services::ImageServices;

/// Most fingers of one request.
pub(crate) const FINGERS_MAX: usize = 10;
/// Hits of each finger that are grouped: the prints of a person share the places.
const HITS_MAX: usize = 1000;
/// Key of a payload that names the person.
const PERSON: &str = "person";

/// A person, and the best score of each finger of the request.
struct Candidate {
    /// Best scores, 0 for a finger that none of the prints resembles.
    scores: Vec<f32>,
    prints: Vec<PointId>,
}

/// Searches every finger, and groups the hits by person. The score of a person is the sum over the
/// fingers of the best score of the person's prints (the sum rule: Kittler, Hatef, Duin and Matas,
/// "On combining classifiers", 1998). A print without a person stands for itself.
///
/// A person is accepted from the threshold times half of one more than the fingers. Scores of two
/// impostors add up to less, because each rarely is high.
///
/// # Errors
/// As [`query::search`]; `InvalidArgument` for no finger or more than ten.
pub(crate) async fn identify(
    services: &Arc<ImageServices>,
    name: &str,
    wanted: ImageQuery,
    files: Vec<Bytes>,
) -> Result<Value> {
    if !(1..=FINGERS_MAX).contains(&files.len()) {
        return Err(Error::invalid(format!(
            "{} fingers: a request has 1 to {FINGERS_MAX}",
            files.len()
        )));
    }
    let target = prints::prints_of(services, name)?;
    let threshold = wanted.threshold.unwrap_or_else(|| accept_score(target.kind));
    let fingers = files.len();
    let accepted = threshold * (1 + fingers) as f32 / 2.0;
    let mut persons: HashMap<String, Candidate> = HashMap::new();
    let mut compared = 0;
    let mut of = 0;
    let mut partial = false;
    for (finger, bytes) in files.into_iter().enumerate() {
        let one = ImageQuery { k: HITS_MAX, explain: false, ..wanted.clone() };
        let found = query::found(services, &target, &one, QueryImage::File(bytes)).await?.result;
        compared += found.coverage.compared;
        of = of.max(found.coverage.of);
        partial |= found.partial;
        gather(&mut persons, &found, finger, fingers);
    }
    let mut ranked: Vec<(f32, String, Candidate)> = persons
        .into_iter()
        .map(|(person, candidate)| (candidate.scores.iter().sum(), person, candidate))
        .collect();
    ranked.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
    ranked.truncate(wanted.k);
    let results = ranked.into_iter().map(|(score, person, candidate)| {
        json!({
            "person": person, "score": score, "accepted": score >= accepted,
            "fingers": candidate.scores, "prints": candidate.prints,
        })
    });
    Ok(json!({
        "results": results.collect::<Vec<_>>(), "threshold": accepted,
        "compared": compared, "of": of, "partial": partial,
    }))
}

fn gather(
    persons: &mut HashMap<String, Candidate>,
    found: &SearchResult,
    finger: usize,
    fingers: usize,
) {
    for hit in &found.hits {
        let named = hit.point.payload.get(PERSON).filter(|person| !person.is_null());
        let person = named.map_or_else(|| hit.point.id.to_string(), text);
        let candidate = persons
            .entry(person)
            .or_insert_with(|| Candidate { scores: vec![0.0; fingers], prints: Vec::new() });
        if let Some(best) = candidate.scores.get_mut(finger) {
            *best = best.max(hit.hit.score);
        }
        if !candidate.prints.contains(&hit.point.id) {
            candidate.prints.push(hit.point.id);
        }
    }
}

/// Returns a payload's value as a text: numbers are names too.
fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
