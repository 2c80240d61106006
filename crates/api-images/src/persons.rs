//! Identification of a person by one or several fingers: the prints of a person are one candidate.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use base::{Error, Result};
use base64::Engine as _;
use bytes::Bytes;
use image_features::print_files::named_person;
use search::points::PointId;
use serde::Deserialize;
use serde_json::{Value, json};
use transport::ByteBudget;

use super::limits::{accept_score, check_search_limits, check_threshold};
use super::prints;
use super::query::{self, ImageQuery, QueryImage};
use super::query_prints::{QueryPrints, of_file};
use super::services::ImageServices;

/// Maximum fingers of one request.
const FINGERS_MAX: usize = 10;
/// Maximum number of hits of each finger that are grouped by person.
pub const FINGER_HITS_MAX: usize = 1000;

/// Fingers of a request in JSON.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FingersRequest {
    /// Images or templates, in base64.
    prints: Vec<String>,
}

impl FingersRequest {
    /// Returns the files of the fingers. They hold their part of the `budget`.
    ///
    /// # Errors
    /// `InvalidArgument` for a text that is not base64; the errors of [`ByteBudget::reserve`].
    pub fn files(self, budget: &Arc<ByteBudget>) -> Result<Vec<Bytes>> {
        // One more shows that there are too many.
        let prints = self.prints.iter().take(FINGERS_MAX + 1).enumerate();
        let file = |(number, print): (usize, &String)| {
            decoded_print("a print", print, budget).map_err(|error| of_file(error, Some(number)))
        };
        prints.map(file).collect()
    }
}

/// Decodes a print in JSON, which errors call `what`. The body has reserved its own memory, and is
/// freed before the search.
///
/// # Errors
/// `InvalidArgument` for a text that is not base64; the errors of [`ByteBudget::reserve`].
pub(crate) fn decoded_print(what: &str, base64: &str, budget: &Arc<ByteBudget>) -> Result<Bytes> {
    let mut memory = budget.empty();
    // Four characters hold at most three bytes.
    memory.cover(base64.len() as u64 / 4 * 3)?;
    let bytes = base64::engine::general_purpose::STANDARD.decode(base64);
    let bytes =
        bytes.map_err(|error| Error::invalid(format!("{what} is not base64")).caused_by(error))?;
    Ok(memory.attach(bytes.into()))
}

/// Score of a finger of the request and a print of a person.
struct PrintScore {
    finger: usize,
    print: PointId,
    score: f32,
}

/// A person, and the scores of the person's prints.
#[derive(Default)]
struct PersonCandidate {
    found: Vec<PrintScore>,
    /// Prints, each once, in the order in which they were found.
    prints: Vec<PointId>,
}

impl PersonCandidate {
    /// Returns the score of each of `fingers` fingers, 0 for a finger that none of the prints
    /// resembles. The best pairs are taken first, and pairs of equal scores in the order of finger
    /// and print. So a cluster and a single server give the same result.
    fn finger_scores(&self, fingers: usize) -> Vec<f32> {
        let mut ranked: Vec<&PrintScore> = self.found.iter().collect();
        ranked.sort_by(|a, b| {
            let by_score = b.score.total_cmp(&a.score);
            by_score.then_with(|| (a.finger, a.print).cmp(&(b.finger, b.print)))
        });
        let mut scores: Vec<Option<f32>> = vec![None; fingers];
        let mut taken = HashSet::new();
        for pair in ranked {
            let Some(score) = scores.get_mut(pair.finger) else { continue };
            // A print is of one finger. It would add up its score with itself if a finger is sent
            // twice.
            if score.is_none() && taken.insert(pair.print) {
                *score = Some(pair.score);
            }
        }
        scores.into_iter().map(Option::unwrap_or_default).collect()
    }
}

/// A person of the answer.
struct RankedPerson {
    person: PersonKey,
    /// Sum of the scores of the fingers.
    score: f32,
    fingers: Vec<f32>,
    prints: Vec<PointId>,
}

/// Owner of prints: a person, or the print itself if it has no person. A print and a person of the
/// same name are different owners.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct PersonKey {
    name: String,
    /// False for a print without a person.
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

/// Persons whose prints resemble fingers. The score of a person is a sum over the fingers. Each
/// finger adds the best score of the person's prints. This is the sum rule of Kittler, Hatef, Duin
/// and Matas, "On combining classifiers", 1998. Each print counts for one finger only. A print
/// without a person counts as a person of its own.
pub struct FoundPersons {
    fingers: usize,
    persons: HashMap<PersonKey, PersonCandidate>,
}

impl FoundPersons {
    /// Creates an empty list of persons.
    ///
    /// # Errors
    /// `InvalidArgument` for no finger or more than ten.
    pub fn new(fingers: usize) -> Result<FoundPersons> {
        if !(1..=FINGERS_MAX).contains(&fingers) {
            return Err(Error::invalid(format!(
                "{fingers} fingers: a request has 1 to {FINGERS_MAX}"
            )));
        }
        Ok(FoundPersons { fingers, persons: HashMap::new() })
    }

    /// Returns the smallest score of an accepted person. `finger_threshold` is that of a single
    /// finger. Each further finger adds half of it, because the scores of two impostors are rarely
    /// high together (`docs/measurements/fingerprint-index.md`).
    pub fn threshold(&self, finger_threshold: f32) -> f32 {
        finger_threshold * (1 + self.fingers) as f32 / 2.0
    }

    /// Removes the fingers from the number `fingers` on, none of which has a print.
    pub fn truncate_fingers(&mut self, fingers: usize) {
        self.fingers = self.fingers.min(fingers);
    }

    /// Adds a print that resembles the queried finger with the number `finger`.
    pub fn add(&mut self, finger: usize, found: &FoundPrint<'_>) {
        let named = named_person(found.payload);
        let person = PersonKey {
            name: named.map_or_else(|| found.id.to_string(), text),
            is_person: named.is_some(),
        };
        let candidate = self.persons.entry(person).or_default();
        candidate.found.push(PrintScore { finger, print: found.id, score: found.score });
        if !candidate.prints.contains(&found.id) {
            candidate.prints.push(found.id);
        }
    }

    /// Returns the best `most` persons as elements of "results", best first. `threshold` is the
    /// smallest score of an accepted person.
    pub fn best(self, most: usize, threshold: f32) -> Vec<Value> {
        let count = self.fingers;
        let mut ranked: Vec<RankedPerson> = self
            .persons
            .into_iter()
            .map(|(person, candidate)| {
                let fingers = candidate.finger_scores(count);
                let score = fingers.iter().sum();
                RankedPerson { person, score, fingers, prints: candidate.prints }
            })
            .collect();
        ranked.sort_by(|a, b| b.score.total_cmp(&a.score).then_with(|| a.person.cmp(&b.person)));
        ranked.truncate(most);
        let shown = |ranked: RankedPerson| {
            json!({
                "person": ranked.person.name, "score": ranked.score,
                "accepted": ranked.score >= threshold,
                "fingers": ranked.fingers, "prints": ranked.prints,
            })
        };
        ranked.into_iter().map(shown).collect()
    }
}

/// Splits the files of a query into their prints.
///
/// # Errors
/// As [`QueryPrints::split`].
async fn query_prints(services: &ImageServices, files: Vec<Bytes>) -> Result<QueryPrints> {
    let budget = services.requests.memory.clone();
    if !QueryPrints::may_be_split(&files) {
        return QueryPrints::split(files, &budget);
    }
    services.pool.run_wanted(move || QueryPrints::split(files, &budget)).await
}

/// Searches every finger, and groups the hits by person. Leaves out a print that cannot be read if
/// its file has others.
///
/// # Errors
/// As [`query::search`], [`query_prints`] and [`FoundPersons::new`].
pub(crate) async fn identify(
    services: &Arc<ImageServices>,
    name: &str,
    wanted: ImageQuery,
    files: Vec<Bytes>,
) -> Result<Value> {
    let target = prints::prints_of(services, name)?;
    check_search_limits(target.kind, wanted.k, wanted.candidates.unwrap_or(1))?;
    check_threshold(wanted.threshold)?;
    // Its errors are not those of a print.
    if let Some(filter) = &wanted.filter {
        api_qdrant::parse_filter(&target.named, filter)?;
    }
    // Checks the number of files before they are read.
    FoundPersons::new(files.len())?;
    let sought = query_prints(services, files).await?;
    let mut left_out = sought.left_out;
    let mut persons = FoundPersons::new(sought.prints.len())?;
    let mut compared = 0;
    let mut of = 0;
    let mut partial = false;
    let mut finger = 0;
    let mut unreadable = None;
    for print in &sought.prints {
        let one = ImageQuery { k: FINGER_HITS_MAX, explain: false, ..wanted.clone() };
        let image = QueryImage::File(print.file.clone());
        let found = match query::search_collection(services, &target, &one, image).await {
            Err(error) if print.is_left_out(&error) => {
                left_out += 1;
                unreadable = unreadable.or_else(|| Some(print.named(error)));
                continue;
            }
            found => found.map_err(|error| print.named(error))?.result,
        };
        compared += found.coverage.compared;
        of = of.max(found.coverage.of);
        partial |= found.partial;
        for hit in &found.hits {
            let id = hit.point.id;
            let payload = &hit.point.payload;
            persons.add(finger, &FoundPrint { id, payload, score: hit.hit.score });
        }
        finger += 1;
    }
    if let Some(error) = unreadable.filter(|_| finger == 0) {
        return Err(error);
    }
    persons.truncate_fingers(finger);
    let of_finger = wanted.threshold.unwrap_or_else(|| accept_score(target.kind, of));
    let threshold = persons.threshold(of_finger);
    let mut answer = json!({
        "results": persons.best(wanted.k, threshold), "threshold": threshold,
        "compared": compared, "of": of, "partial": partial,
    });
    if left_out > 0 {
        answer["prints_left_out"] = left_out.into();
    }
    Ok(answer)
}

/// Returns a payload's value as a text. A number can be a name too.
fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_in_json_hold_memory_of_requests() {
        let request = || FingersRequest { prints: vec!["AAAA".repeat(1 << 20)] };
        let budget = ByteBudget::new(4 << 20, Arc::default());
        let files = request().files(&budget).unwrap();
        assert_eq!((files[0].len(), budget.used()), (3 << 20, 3 << 20));
        let refused = request().files(&budget).unwrap_err();
        assert_eq!(refused.kind(), base::ErrorKind::ResourceExhausted);
        drop(files);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn a_print_without_a_person_is_not_the_person_of_that_name() {
        let four = serde_json::Map::from_iter([("person".into(), json!(4))]);
        let mut persons = FoundPersons::new(2).unwrap();
        let mut add = |finger, id, payload: &serde_json::Map<String, Value>, score| {
            persons.add(finger, &FoundPrint { id: PointId::Number(id), payload, score });
        };
        add(0, 4, &serde_json::Map::new(), 150.0);
        add(1, 7, &four, 160.0);
        let threshold = persons.threshold(200.0);
        let found = persons.best(9, threshold);
        assert_eq!(found.len(), 2);
        assert!(found.iter().all(|person| person["accepted"] == json!(false)));
    }

    #[test]
    fn prints_of_an_empty_person_are_of_different_persons() {
        let empty = serde_json::Map::from_iter([("person".into(), json!(""))]);
        let mut persons = FoundPersons::new(2).unwrap();
        for (finger, id) in [(0, 1), (1, 2)] {
            let id = PointId::Number(id);
            persons.add(finger, &FoundPrint { id, payload: &empty, score: 250.0 });
        }
        let threshold = persons.threshold(200.0);
        let found = persons.best(9, threshold);
        assert_eq!(found.len(), 2);
        assert!(found.iter().all(|person| person["accepted"] == json!(false)));
    }

    #[test]
    fn prints_of_a_person_are_one_candidate() {
        let named = |person: &str| serde_json::Map::from_iter([("person".into(), json!(person))]);
        let (ann, bob, none) = (named("ann"), named("bob"), serde_json::Map::new());
        let mut persons = FoundPersons::new(2).unwrap();
        assert_eq!(persons.threshold(40.0), 60.0);
        let mut add = |finger, id, payload, score| {
            persons.add(finger, &FoundPrint { id: PointId::Number(id), payload, score });
        };
        add(0, 1, &ann, 30.0);
        add(0, 2, &ann, 20.0);
        add(1, 2, &ann, 31.0);
        add(0, 3, &bob, 50.0);
        add(1, 4, &none, 50.0);
        let found = persons.best(3, 60.0);
        let shown = |at: usize| (&found[at]["person"], &found[at]["score"], &found[at]["accepted"]);
        assert_eq!(shown(0), (&json!("ann"), &json!(61.0), &json!(true)));
        assert_eq!(shown(1), (&json!("4"), &json!(50.0), &json!(false)));
        assert_eq!(shown(2).0, "bob");
        assert_eq!(found[0]["fingers"], json!([30.0, 31.0]));
        assert_eq!(found[0]["prints"], json!([1, 2]));
        for fingers in [0, 11] {
            assert!(FoundPersons::new(fingers).is_err());
        }
    }

    #[test]
    fn a_print_counts_for_one_finger_of_a_request() {
        let named = |person: &str| serde_json::Map::from_iter([("person".into(), json!(person))]);
        let (ann, bob) = (named("ann"), named("bob"));
        let mut persons = FoundPersons::new(2).unwrap();
        let mut add = |finger, id, payload, score| {
            persons.add(finger, &FoundPrint { id: PointId::Number(id), payload, score });
        };
        // The same finger twice: bob has one print, ann has two.
        add(0, 1, &bob, 155.0);
        add(1, 1, &bob, 150.0);
        add(0, 2, &ann, 900.0);
        add(0, 3, &ann, 700.0);
        add(1, 2, &ann, 950.0);
        add(1, 3, &ann, 600.0);
        let threshold = persons.threshold(200.0);
        let found = persons.best(2, threshold);
        assert_eq!(found[0]["fingers"], json!([700.0, 950.0]));
        assert_eq!((&found[0]["person"], &found[0]["accepted"]), (&json!("ann"), &json!(true)));
        assert_eq!(found[1]["fingers"], json!([155.0, 0.0]));
        assert_eq!((&found[1]["score"], &found[1]["accepted"]), (&json!(155.0), &json!(false)));
    }

    #[test]
    fn fingers_of_equal_scores_do_not_depend_on_the_order_of_hits() {
        let ann = serde_json::Map::from_iter([("person".into(), json!("ann"))]);
        let fingers = |hits: [(usize, u64, f32); 3]| {
            let mut persons = FoundPersons::new(2).unwrap();
            for (finger, id, score) in hits {
                persons.add(finger, &FoundPrint { id: PointId::Number(id), payload: &ann, score });
            }
            persons.best(1, 0.0)[0]["fingers"].clone()
        };
        // Print 1 is taken by finger 0, so finger 1 has only print 2 left.
        let hits = [(0, 1, 100.0), (0, 2, 100.0), (1, 2, 90.0)];
        let [first, second, third] = hits;
        assert_eq!(fingers(hits), json!([100.0, 90.0]));
        assert_eq!(fingers([second, third, first]), json!([100.0, 90.0]));
    }

    #[test]
    fn a_finger_without_a_readable_print_does_not_count() {
        let ann = serde_json::Map::from_iter([("person".into(), json!("ann"))]);
        let mut persons = FoundPersons::new(3).unwrap();
        assert_eq!(persons.threshold(40.0), 80.0);
        let id = PointId::Number(1);
        persons.add(0, &FoundPrint { id, payload: &ann, score: 50.0 });
        persons.truncate_fingers(1);
        assert_eq!(persons.threshold(40.0), 40.0);
        let found = persons.best(1, 40.0);
        assert_eq!((&found[0]["fingers"], &found[0]["accepted"]), (&json!([50.0]), &json!(true)));
    }

    #[test]
    fn fingers_are_base64() {
        let budget = ByteBudget::new(1 << 20, Arc::default());
        let files = |prints: Value| {
            let request: FingersRequest =
                serde_json::from_value(json!({ "prints": prints })).unwrap();
            request.files(&budget)
        };
        assert_eq!(files(json!(["aGk="])).unwrap(), [Bytes::from("hi")]);
        assert!(files(json!(["?"])).unwrap_err().message().contains("base64"));
        assert_eq!(files(json!(vec![""; 100])).unwrap().len(), FINGERS_MAX + 1);
    }
}
