//! A search in two rounds over shards gives what one server gives.

use api_images::{
    CoarseAnswer, CoarseCandidates, CoarseSearchRequest, ExtractedQuery, ImageInput, PrintShare,
    RankAnswer, RankRequest, RankedImage, WantedImages, accept_score,
};
use http::Method;
use image_features::testing::{fingers, photos, points, record};
use matching::rank::{StageScores, best_first};
use search::points::PointId;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::world::{DIMS, OperationKind, Shards, World, picture, read};

const SHARDS: u64 = 3;
const PICTURES: u64 = 18;

/// Settings of a search.
#[derive(Clone)]
struct Wanted {
    k: usize,
    candidates: usize,
    threshold: f32,
    explain: bool,
    filter: Option<Value>,
}

impl Wanted {
    /// Returns the parameters of the search on one server.
    fn path(&self, collection: &str) -> String {
        let Wanted { k, candidates, threshold, explain, filter } = self;
        let explain = u8::from(*explain);
        let mut path = format!(
            "/v1/images/{collection}/search?views=0&k={k}&candidates={candidates}&threshold={threshold}&explain={explain}"
        );
        if let Some(filter) = filter {
            path += "&filter=";
            path.extend(filter.to_string().bytes().map(|byte| format!("%{byte:02x}")));
        }
        path
    }
}

fn result<T: serde::de::DeserializeOwned>(mut answer: Value) -> T {
    serde_json::from_value(answer["result"].take()).unwrap()
}

/// Outcome of a search.
#[derive(Debug, PartialEq)]
struct Outcome {
    results: String,
    compared: u64,
    of: u64,
    partial: bool,
}

impl Outcome {
    /// Reads the response of one server. The results stay text, because numbers of 64 bits can
    /// change in their last digit when they are read.
    fn of_server(answer: &[u8]) -> Outcome {
        #[derive(serde::Deserialize)]
        struct Answer {
            results: Box<RawValue>,
            compared: u64,
            of: u64,
            partial: bool,
        }
        let Answer { results, compared, of, partial } = serde_json::from_slice(answer).unwrap();
        Outcome { results: results.to_string(), compared, of, partial }
    }
}

/// Searches for a photograph in all shards, as a root does.
fn photo_rounds(
    world: &World,
    shards: &Shards,
    query: &ExtractedQuery,
    wanted: &Wanted,
) -> Outcome {
    let request = CoarseSearchRequest {
        embedding: query.embedding.clone(),
        candidates: wanted.candidates.max(wanted.k),
        filter: wanted.filter.clone(),
    };
    let mut near: Vec<(f32, u64)> = Vec::new();
    let mut outcome = Outcome { results: String::new(), compared: 0, of: 0, partial: false };
    for named in &shards.named {
        let path = format!("/v1/shards/{}/coarse", named.name());
        let answer: CoarseAnswer =
            result(world.good(&path, &serde_json::to_value(&request).unwrap()));
        assert_eq!(answer.ids.len(), answer.coarse.len());
        assert!(answer.coarse.is_sorted_by(|a, b| a >= b));
        near.extend(answer.coarse.into_iter().zip(answer.ids));
        outcome.of += answer.of;
        outcome.partial |= answer.partial;
    }
    near.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    near.truncate(request.candidates);
    let candidates = CoarseCandidates {
        ids: near.iter().map(|(_, id)| *id).collect(),
        coarse: near.iter().map(|(coarse, _)| *coarse).collect(),
    };
    let request = rank_request(query, wanted);
    let request = RankRequest { candidates: Some(candidates), filter: None, ..request };
    let mut hits = rank(world, shards, &request, &mut outcome);
    let scores = |hit: &RankedImage| StageScores { score: hit.score, coarse: hit.coarse };
    hits.sort_by(|a, b| best_first(wanted.threshold, scores(a), scores(b)).then(a.key.cmp(&b.key)));
    outcome.results = shown(hits, wanted.k);
    outcome
}

fn rank_request(query: &ExtractedQuery, wanted: &Wanted) -> RankRequest {
    RankRequest {
        record: query.record.clone(),
        width: query.width,
        height: query.height,
        k: wanted.k,
        threshold: wanted.threshold,
        explain: wanted.explain,
        candidates: None,
        prints: None,
        filter: wanted.filter.clone(),
        view: None,
    }
}

/// Ranks in all shards, and adds the numbers to `outcome`.
fn rank(
    world: &World,
    shards: &Shards,
    request: &RankRequest,
    outcome: &mut Outcome,
) -> Vec<RankedImage> {
    let mut hits = Vec::new();
    for named in &shards.named {
        let path = format!("/v1/shards/{}/rank", named.name());
        let answer: RankAnswer = result(world.good(&path, &serde_json::to_value(request).unwrap()));
        assert!(answer.hits.len() <= request.k);
        for hit in &answer.hits {
            assert_eq!(hit.key, hit.id.internal());
            assert_eq!(hit.shown["id"], json!(hit.id));
        }
        outcome.compared += answer.compared;
        outcome.partial |= answer.partial;
        if request.prints.is_some() {
            outcome.of += answer.of;
        }
        hits.extend(answer.hits);
    }
    hits
}

fn shown(hits: Vec<RankedImage>, k: usize) -> String {
    let shown: Vec<Value> = hits.into_iter().take(k).map(|hit| hit.shown).collect();
    Value::from(shown).to_string()
}

/// Adds pictures to "photos", and to shards.
fn with_photos(world: &World) -> Shards {
    let shards = world.shards("photos-1", &photos(), DIMS, SHARDS);
    for seed in 0..PICTURES {
        let name = format!("p{seed}.jpg");
        let payload =
            json!({ "seed": seed, "even": seed.is_multiple_of(2), "ratio": 0.1 }).to_string();
        let file = picture(seed);
        let encoded: String = payload.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let answer = world.put(&format!("/v1/images/photos?name={name}&payload={encoded}"), &file);
        let input = ImageInput::new(Some(&name), Some(&payload), None, file.into()).unwrap();
        let wanted = WantedImages::default();
        let image = world.run(world.images.extract_image(input, &wanted, None)).unwrap();
        assert_eq!((image.settings(), image.dims()), (&photos(), DIMS));
        assert_eq!(image.added(), answer);
        let logged = image.logged(&image.original_key("photos-1/originals", "1")).unwrap();
        shards.write(OperationKind::Images, &[logged]);
        if seed == PICTURES / 2 {
            // Some points lie in segments, others do not.
            world.registry.get("photos").unwrap().collection().flush().unwrap();
            shards.named.iter().for_each(|named| named.collection().flush().unwrap());
        }
    }
    assert!(shards.named.iter().all(|named| points(named).len() > 2));
    shards
}

#[test]
fn photographs_are_found_as_on_one_server() {
    let world = World::start();
    let shards = with_photos(&world);
    let accept = accept_score(photos().kind, 1);
    let all = Wanted { k: 5, candidates: 100, threshold: accept, explain: false, filter: None };
    let even = json!({ "must": [{ "key": "even", "match": { "value": true } }] });
    let none = json!({ "must": [{ "key": "seed", "match": { "value": 999 } }] });
    let searches = [
        all.clone(),
        Wanted { explain: true, ..all.clone() },
        Wanted { k: 18, threshold: 0.5, ..all.clone() },
        Wanted { k: 2, candidates: 4, threshold: 1e6, ..all.clone() },
        Wanted { k: 9, candidates: 1, ..all.clone() },
        Wanted { k: 1000, filter: Some(even), explain: true, ..all.clone() },
        Wanted { filter: Some(none), ..all.clone() },
    ];
    let mut accepted = 0;
    for (seed, wanted) in searches.iter().enumerate() {
        // Seeds of stored pictures, and one that is not stored.
        let file = picture(if seed == 2 { 777 } else { seed as u64 * 2 });
        let query = world.query(file.clone());
        let (_, body) = world.send(Method::POST, &wanted.path("photos"), "image/jpeg", file);
        let found = photo_rounds(&world, &shards, &query, wanted);
        assert_eq!(found, Outcome::of_server(&body), "{:?}", wanted.path("photos"));
        assert!(!found.partial);
        accepted += found.results.matches("\"accepted\":true").count();
        let facts = json!({
            "width": query.width, "height": query.height, "keypoints": query.keypoints,
        });
        let server: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(server["query"], facts);
    }
    assert!(accepted >= 3, "{accepted}");
}

#[test]
fn a_stored_photograph_is_a_query() {
    let world = World::start();
    let shards = with_photos(&world);
    let point = points(&shards.named[0]).remove(0);
    let wanted = Wanted { k: 4, candidates: 10, threshold: 1.0, explain: true, filter: None };
    let path = format!("/v1/images/{}/{}/features", shards.named[0].name(), point.id);
    let (_, features) = world.send(Method::GET, &path, "", "");
    let query = ExtractedQuery::of_features(&features).unwrap();
    assert_eq!((&query.record, query.width, query.height), (&point.record, 160, 120));
    let body = json!({ "id": point.id }).to_string();
    let (_, server) = world.send(Method::POST, &wanted.path("photos"), "application/json", body);
    let found = photo_rounds(&world, &shards, &query, &wanted);
    assert_eq!(found, Outcome::of_server(&server));
    assert!(found.results.contains(&point.id.to_string()));
}

/// Body of features of fingerprints.
fn prints(ids: std::ops::Range<u64>) -> Value {
    let point = |id: u64| {
        let graph = matching::synthetic::impression(id);
        json!({
            "id": id, "name": format!("f{id}"), "embedding": vec![0.0; 4], "record": record(&graph),
            "payload": { "even": id.is_multiple_of(2) },
        })
    };
    json!({ "points": ids.map(point).collect::<Vec<_>>() })
}

/// Adds fingerprints to "prints", and to shards.
fn with_prints(world: &World) -> Shards {
    let shards = world.shards("prints-1", &fingers(), 4, SHARDS);
    let body = prints(0..60);
    let path = format!("/v1/images/prints/features?kind=fingerprint&model={}", fingers().model);
    let (status, answer) = world.json(Method::PUT, &path, &body);
    assert_eq!(status, 200, "{answer}");
    shards.write(OperationKind::Features, &read(&fingers(), 4, &body).unwrap());
    shards
}

fn print_query(id: u64) -> ExtractedQuery {
    let graph = matching::synthetic::distorted(&matching::synthetic::impression(id), id);
    let features =
        json!({ "id": 1, "embedding": [], "record": record(&graph), "width": 300, "height": 400 });
    ExtractedQuery::of_features(features.to_string().as_bytes()).unwrap()
}

fn print_round(world: &World, shards: &Shards, query: &ExtractedQuery, wanted: &Wanted) -> Outcome {
    let share = PrintShare { candidates: None, shards: SHARDS as u32 };
    let request = RankRequest { prints: Some(share), ..rank_request(query, wanted) };
    let mut outcome = Outcome { results: String::new(), compared: 0, of: 0, partial: false };
    let mut hits = rank(world, shards, &request, &mut outcome);
    hits.sort_by(|a, b| b.score.total_cmp(&a.score).then(a.key.cmp(&b.key)));
    outcome.results = shown(hits, wanted.k);
    outcome
}

#[test]
fn fingerprints_are_found_as_on_one_server() {
    let world = World::start();
    let shards = with_prints(&world);
    let even = json!({ "must": [{ "key": "even", "match": { "value": true } }] });
    for (id, filter, explain) in [(7, None, false), (20, None, true), (31, Some(even), true)] {
        // The query is a stored print with another impression, so both sides read it by its id.
        let query = print_query(id);
        let stored = 1000 + id;
        let point = json!({ "points": [{
            "id": stored, "embedding": vec![0.0; 4], "width": query.width, "height": query.height,
            "record": record(&matching::synthetic::distorted(&matching::synthetic::impression(id), id)),
        }] });
        let (status, answer) = world.json(Method::PUT, "/v1/images/prints/features", &point);
        assert_eq!(status, 200, "{answer}");
        shards.write(OperationKind::Features, &read(&fingers(), 4, &point).unwrap());
        let wanted = Wanted {
            k: 6,
            candidates: 4096,
            threshold: accept_score(fingers().kind, 1),
            explain,
            filter,
        };
        let path = wanted.path("prints").replace("views=0&", "").replace("&candidates=4096", "");
        let body = json!({ "id": stored }).to_string();
        let (_, server) = world.send(Method::POST, &path, "application/json", body);
        let found = print_round(&world, &shards, &query, &wanted);
        assert_eq!(found, Outcome::of_server(&server));
        assert!(found.compared >= 30 && found.compared == found.of);
    }
    // The index of segments gives the same scores of all prints.
    shards.named.iter().for_each(|named| named.collection().flush().unwrap());
    let wanted = Wanted { k: 3, candidates: 0, threshold: 1.0, explain: false, filter: None };
    let found = print_round(&world, &shards, &print_query(7), &wanted);
    let results: Vec<Value> = serde_json::from_str(&found.results).unwrap();
    assert_eq!((&results[0]["id"], &results[1]["id"]), (&json!(1007), &json!(7)));
    assert!(!found.partial);
}

#[test]
fn a_share_limits_the_prints_that_are_compared() {
    let world = World::start();
    let shards = with_prints(&world);
    shards.named.iter().for_each(|named| named.collection().flush().unwrap());
    let wanted = Wanted { k: 3, candidates: 0, threshold: 1.0, explain: false, filter: None };
    let share = PrintShare { candidates: Some(30), shards: SHARDS as u32 };
    let request = RankRequest { prints: Some(share), ..rank_request(&print_query(9), &wanted) };
    let mut outcome = Outcome { results: String::new(), compared: 0, of: 0, partial: false };
    let hits = rank(&world, &shards, &request, &mut outcome);
    // Ten of each shard are raised to sixteen of its twenty.
    assert_eq!((outcome.compared, outcome.of), (16 * SHARDS, 60));
    assert!(hits.iter().any(|hit| hit.id == PointId::Number(9)));
}

#[test]
fn candidates_of_other_shards_and_deleted_images_are_left_out() {
    let world = World::start();
    let shards = with_photos(&world);
    let own = points(&shards.named[0]);
    let other = points(&shards.named[1]).remove(0);
    let deleted = own[1].id;
    shards.named[0].delete(&[deleted]).unwrap();
    let wanted = Wanted { k: 10, candidates: 0, threshold: 1.0, explain: false, filter: None };
    let query = world.query(picture(3));
    let candidates = CoarseCandidates {
        ids: vec![own[0].id.internal(), other.id.internal(), deleted.internal(), 5],
        coarse: vec![0.25, 0.75, 0.5, 0.1],
    };
    let request = RankRequest { candidates: Some(candidates), ..rank_request(&query, &wanted) };
    let path = format!("/v1/shards/{}/rank", shards.named[0].name());
    let answer: RankAnswer = result(world.good(&path, &serde_json::to_value(&request).unwrap()));
    assert_eq!((answer.hits.len(), answer.compared, answer.partial), (1, 1, false));
    let hit = &answer.hits[0];
    assert_eq!((hit.id, hit.coarse), (own[0].id, 0.25));
    assert_eq!(hit.shown["coarse"], json!(0.25));
    assert_eq!(answer.of, own.len() as u64 - 1);
}

#[test]
fn wrong_requests_are_refused() {
    let world = World::start();
    let photos = world.shards("p", &photos(), 3, 1).named.remove(0);
    let prints = world.shards("f", &fingers(), 3, 1).named.remove(0);
    let (photo, print) =
        (format!("/v1/shards/{}", photos.name()), format!("/v1/shards/{}", prints.name()));
    let coarse = |change: Value| merged(json!({ "embedding": [1, 0, 0], "candidates": 5 }), change);
    let (photo_coarse, photo_rank) = (format!("{photo}/coarse"), format!("{photo}/rank"));
    for (change, words) in [
        (json!({ "embedding": [1, 0] }), "2 dimensions"),
        (json!({ "embedding": [1, 0, 1e300] }), "number out of range"),
        (json!({ "candidates": 0 }), "candidates 1 to"),
        (json!({ "candidates": 1_000_000 }), "candidates 1 to"),
        (json!({ "filter": { "must": 7 } }), "must"),
        (json!({ "colour": 1 }), "unknown field"),
        (json!({ "embedding": null }), "expected"),
    ] {
        world.refused(&photo_coarse, &coarse(change), 400, words);
    }
    world.refused(&format!("{print}/coarse"), &coarse(json!({})), 400, "fingerprints");
    world.refused("/v1/shards/none.0000/coarse", &coarse(json!({})), 404, "none.0000");
    let described = record(&matching::synthetic::photo(1));
    let bare = record(&matching::synthetic::fingerprint(1));
    let rank = |change: Value| {
        let request = json!({
            "record": described, "width": 1, "height": 1, "k": 5, "threshold": 1, "explain": false,
            "candidates": { "ids": [1], "coarse": [0.5] },
        });
        merged(request, change)
    };
    for (change, words) in [
        (json!({ "k": 0 }), "k is 1 to 1000"),
        (json!({ "k": 1001 }), "k is 1 to 1000"),
        (json!({ "k": -1 }), "expected"),
        (json!({ "threshold": 1e300 }), "number out of range"),
        (json!({ "record": "?" }), "not base64"),
        (json!({ "record": "AAAA" }), "record: "),
        (json!({ "record": bare }), "no descriptors"),
        (json!({ "candidates": null }), "with \\\"candidates\\\""),
        (json!({ "candidates": { "ids": [1, 2], "coarse": [0.5] } }), "2 ids have 1 scores"),
        (json!({ "candidates": { "ids": [1], "coarse": [1e300] } }), "number out of range"),
        (json!({ "candidates": { "ids": [-1], "coarse": [1] } }), "expected"),
        (json!({ "prints": { "candidates": null, "shards": 1 } }), "without \\\"prints\\\""),
        (json!({ "filter": {} }), "\\\"filter\\\""),
        (json!({ "colour": 1 }), "unknown field"),
    ] {
        world.refused(&photo_rank, &rank(change), 400, words);
    }
    let many = vec![1_u64; 200_000];
    let many = json!({ "candidates": { "ids": many, "coarse": vec![0; 200_000] } });
    world.refused(&photo_rank, &rank(many), 400, "candidates are more than");
    let print_rank =
        |share: Value| rank(json!({ "record": bare, "candidates": null, "prints": share }));
    let path = format!("{print}/rank");
    for (body, words) in [
        (rank(json!({ "record": bare })), "without \\\"candidates\\\""),
        (print_rank(Value::Null), "with \\\"prints\\\""),
        (print_rank(json!({ "candidates": 0, "shards": 1 })), "candidates 1 to 65536"),
        (print_rank(json!({ "candidates": 65537, "shards": 1 })), "candidates 1 to 65536"),
        (print_rank(json!({ "candidates": null, "shards": 0 })), "at least 1 shard"),
        (print_rank(json!({ "candidates": null, "shards": -1 })), "expected"),
        (
            merged(
                print_rank(json!({ "candidates": null, "shards": 1 })),
                json!({ "record": described }),
            ),
            "have descriptors",
        ),
    ] {
        world.refused(&path, &body, 400, words);
    }
    let empty = world.good(&path, &print_rank(json!({ "candidates": null, "shards": 1 })));
    assert_eq!(empty["result"], json!({ "hits": [], "compared": 0, "of": 0, "partial": false }));
}

/// Returns `base` with the members of `change`.
fn merged(mut base: Value, change: Value) -> Value {
    for (key, value) in change.as_object().unwrap() {
        base[key] = value.clone();
    }
    base
}
