//! Identification of a person by one or several fingers: the prints of a person are one candidate.

use std::collections::HashMap;
use std::sync::Arc;

use base::{Error, Result};
use base64::Engine as _;
use bytes::Bytes;
use search::points::PointId;
use serde::Deserialize;
use serde_json::{Value, json};

use super::limits::{check_search_limits, checked_threshold};
use super::prints;
use super::query::{self, ImageQuery, QueryImage};
use super::services::ImageServices;

/// Maximum fingers of one request.
const FINGERS_MAX: usize = 10;
/// Hits of each finger that are grouped: the prints of a person share the places.
pub const FINGER_HITS_MAX: usize = 1000;
/// Key of a payload that names the person.
const PERSON: &str = "person";

/// Fingers of a request in JSON.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FingersRequest {
    /// Images or templates, in base64.
    prints: Vec<String>,
}

impl FingersRequest {
    /// Returns the files of the fingers.
    ///
    /// # Errors
    /// `InvalidArgument` for a text that is not base64.
    pub fn files(self) -> Result<Vec<Bytes>> {
        // One more shows that there are too many.
        self.prints.iter().take(FINGERS_MAX + 1).map(|print| print_file(print)).collect()
    }
}

/// Decodes a print in JSON.
///
/// # Errors
/// `InvalidArgument` for a text that is not base64.
pub(crate) fn print_file(base64: &str) -> Result<Bytes> {
    let decoded = base64::engine::general_purpose::STANDARD.decode(base64);
    decoded
        .map(Into::into)
        .map_err(|error| Error::invalid(format!("a print is not base64: {error}")))
}

/// A person, and the best score of each finger of the request.
struct PersonCandidate {
    /// Best scores, 0 for a finger that none of the prints resembles.
    scores: Vec<f32>,
    prints: Vec<PointId>,
}

/// Owner of prints. A print that stands for itself is not the person of that name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct PersonKey {
    name: String,
    /// False for a print that stands for itself.
    is_person: bool,
}

/// A print that resembles a finger.
pub struct FoundPrint<'a> {
    /// Id of the print.
    pub id: PointId,
    /// Payload of the print.
    pub payload: &'a serde_json::Map<String, Value>,
    /// Score of the exact comparison.
    pub score: f32,
}

/// Persons whose prints resemble fingers. The score of a person is the sum over the fingers of the
/// best score of the person's prints (the sum rule: Kittler, Hatef, Duin and Matas, "On combining
/// classifiers", 1998). A print without a person stands for itself.
pub struct FoundPersons {
    fingers: usize,
    threshold: f32,
    persons: HashMap<PersonKey, PersonCandidate>,
}

impl FoundPersons {
    /// Creates an empty list of persons. `threshold` is the least score of a single finger. A
    /// person is accepted from a score of `threshold * (fingers + 1) / 2`: scores of two impostors
    /// add up to less, because each is rarely high.
    ///
    /// # Errors
    /// `InvalidArgument` for no finger or more than ten.
    pub fn new(fingers: usize, threshold: f32) -> Result<FoundPersons> {
        if !(1..=FINGERS_MAX).contains(&fingers) {
            return Err(Error::invalid(format!(
                "{fingers} fingers: a request has 1 to {FINGERS_MAX}"
            )));
        }
        let threshold = threshold * (1 + fingers) as f32 / 2.0;
        Ok(FoundPersons { fingers, threshold, persons: HashMap::new() })
    }

    /// Returns the smallest score of an accepted person.
    pub fn threshold(&self) -> f32 {
        self.threshold
    }

    /// Adds a print that resembles the queried finger with the number `finger`.
    pub fn add(&mut self, finger: usize, found: &FoundPrint<'_>) {
        let named = found.payload.get(PERSON).filter(|person| !person.is_null());
        let person = PersonKey {
            name: named.map_or_else(|| found.id.to_string(), text),
            is_person: named.is_some(),
        };
        let fingers = self.fingers;
        let candidate = self
            .persons
            .entry(person)
            .or_insert_with(|| PersonCandidate { scores: vec![0.0; fingers], prints: Vec::new() });
        if let Some(best) = candidate.scores.get_mut(finger) {
            *best = best.max(found.score);
        }
        if !candidate.prints.contains(&found.id) {
            candidate.prints.push(found.id);
        }
    }

    /// Returns the best `most` persons as elements of "results", best first.
    pub fn best(self, most: usize) -> Vec<Value> {
        let mut ranked: Vec<(f32, PersonKey, PersonCandidate)> = self
            .persons
            .into_iter()
            .map(|(person, candidate)| (candidate.scores.iter().sum(), person, candidate))
            .collect();
        ranked.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
        ranked.truncate(most);
        let shown = |(score, person, candidate): (f32, PersonKey, PersonCandidate)| {
            json!({
                "person": person.name, "score": score, "accepted": score >= self.threshold,
                "fingers": candidate.scores, "prints": candidate.prints,
            })
        };
        ranked.into_iter().map(shown).collect()
    }
}

/// Searches every finger, and groups the hits by person.
///
/// # Errors
/// As [`query::search`] and [`FoundPersons::new`].
pub(crate) async fn identify(
    services: &Arc<ImageServices>,
    name: &str,
    wanted: ImageQuery,
    files: Vec<Bytes>,
) -> Result<Value> {
    let target = prints::prints_of(services, name)?;
    check_search_limits(target.kind, wanted.k, wanted.candidates.unwrap_or(1))?;
    let threshold = checked_threshold(target.kind, wanted.threshold)?;
    let mut persons = FoundPersons::new(files.len(), threshold)?;
    let mut compared = 0;
    let mut of = 0;
    let mut partial = false;
    for (finger, bytes) in files.into_iter().enumerate() {
        let one = ImageQuery { k: FINGER_HITS_MAX, explain: false, ..wanted.clone() };
        let found = query::found(services, &target, &one, QueryImage::File(bytes)).await?.result;
        compared += found.coverage.compared;
        of = of.max(found.coverage.of);
        partial |= found.partial;
        for hit in &found.hits {
            let id = hit.point.id;
            let payload = &hit.point.payload;
            persons.add(finger, &FoundPrint { id, payload, score: hit.hit.score });
        }
    }
    let threshold = persons.threshold();
    Ok(json!({
        "results": persons.best(wanted.k), "threshold": threshold,
        "compared": compared, "of": of, "partial": partial,
    }))
}

/// Returns a payload's value as a text: numbers are names too.
fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_print_without_a_person_is_not_the_person_of_that_name() {
        let four = serde_json::Map::from_iter([("person".into(), json!(4))]);
        let mut persons = FoundPersons::new(2, 200.0).unwrap();
        let mut add = |finger, id, payload: &serde_json::Map<String, Value>, score| {
            persons.add(finger, &FoundPrint { id: PointId::Number(id), payload, score });
        };
        add(0, 4, &serde_json::Map::new(), 150.0);
        add(1, 7, &four, 160.0);
        let found = persons.best(9);
        assert_eq!(found.len(), 2);
        assert!(found.iter().all(|person| person["accepted"] == json!(false)));
    }

    #[test]
    fn prints_of_a_person_are_one_candidate() {
        let named = |person: &str| serde_json::Map::from_iter([("person".into(), json!(person))]);
        let (ann, bob, none) = (named("ann"), named("bob"), serde_json::Map::new());
        let mut persons = FoundPersons::new(2, 40.0).unwrap();
        assert_eq!(persons.threshold(), 60.0);
        let mut add = |finger, id, payload, score| {
            persons.add(finger, &FoundPrint { id: PointId::Number(id), payload, score });
        };
        add(0, 1, &ann, 30.0);
        add(0, 2, &ann, 20.0);
        add(1, 2, &ann, 31.0);
        add(0, 3, &bob, 50.0);
        add(1, 4, &none, 50.0);
        let found = persons.best(3);
        let shown = |at: usize| (&found[at]["person"], &found[at]["score"], &found[at]["accepted"]);
        assert_eq!(shown(0), (&json!("ann"), &json!(61.0), &json!(true)));
        assert_eq!(shown(1), (&json!("4"), &json!(50.0), &json!(false)));
        assert_eq!(shown(2).0, "bob");
        assert_eq!(found[0]["fingers"], json!([30.0, 31.0]));
        assert_eq!(found[0]["prints"], json!([1, 2]));
        for fingers in [0, 11] {
            assert!(FoundPersons::new(fingers, 40.0).is_err());
        }
    }

    #[test]
    fn fingers_are_base64() {
        let files = |prints: Value| {
            serde_json::from_value::<FingersRequest>(json!({ "prints": prints })).unwrap().files()
        };
        assert_eq!(files(json!(["aGk="])).unwrap(), [Bytes::from("hi")]);
        assert!(files(json!(["?"])).unwrap_err().message().contains("base64"));
        assert_eq!(files(json!(vec![""; 100])).unwrap().len(), FINGERS_MAX + 1);
    }
}
