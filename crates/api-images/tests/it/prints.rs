//! Files with several fingerprints: templates with several views, and ANSI/NIST-ITL files.

use std::collections::BTreeSet;
use std::f32::consts::TAU;

use api_images::{ImageInput, ImageKind, accept_score, image_id};
use base::Error;
use http::{Method, StatusCode};
use image_features::testing::{points, record};
use matching::Graph;
use matching::synthetic;
use matching::template::{self, TemplateFormat};
use search::points::PointId;
use serde_json::{Value, json};

use crate::world::World;

const NEW: &str = "/v1/images/prints?kind=fingerprint";
/// Bytes of the header of a template of ISO/IEC 19794-2:2005, before the first view.
const HEADER_BYTES: usize = 24;
/// Offsets of fields in such a template with one view.
const VIEWS_AT: usize = 22;
const FINGER_AT: usize = 24;
const QUALITY_AT: usize = 26;

fn print(seed: u64) -> Graph {
    synthetic::impression(seed)
}

/// Returns a template with a view of each seed's print. The fingers are 1, 2 and so on.
fn views(seeds: &[u64]) -> Vec<u8> {
    let mut all = Vec::new();
    for (number, seed) in seeds.iter().enumerate() {
        let mut one = template::write(&print(*seed), TemplateFormat::Iso2005).unwrap();
        one[FINGER_AT] = (number + 1) as u8;
        one[QUALITY_AT] = 40 + number as u8;
        all.extend(&one[if number == 0 { 0 } else { HEADER_BYTES }..]);
    }
    all[VIEWS_AT] = seeds.len() as u8;
    let length = (all.len() as u32).to_be_bytes();
    all[8..12].copy_from_slice(&length);
    all
}

/// Returns a record of an ANSI/NIST-ITL file, with its length.
fn tagged(record_type: u8, fields: &[(u32, Vec<u8>)]) -> Vec<u8> {
    let mut body = Vec::new();
    for (number, value) in fields {
        body.extend(format!("\x1d{record_type}.{number:03}:").bytes());
        body.extend(value);
    }
    body.push(0x1c);
    let head = format!("{record_type}.001:");
    let length = (1..9).map(|digits| head.len() + digits + body.len());
    let length = length.zip(1..).find(|(length, digits)| length.to_string().len() == *digits);
    [head.as_bytes(), length.unwrap().0.to_string().as_bytes(), &body].concat()
}

/// Finger position and compression of an image of 64 x 64 pixels.
type CardImage = (&'static str, &'static str);

/// Width and height of these images in pixels.
const SIDE: usize = 140;

/// Returns the pixels of level ridges with three minutiae, where the phase winds once around.
fn ridges(number: usize) -> Vec<u8> {
    let places = [(45.0 + number as f32, 50.0, 1.0_f32), (95.0, 60.0, -1.0), (60.0, 100.0, -1.0)];
    let brightness = |at: usize| {
        let (x, y) = ((at % SIDE) as f32, (at / SIDE) as f32);
        let wound: f32 = places.iter().map(|(px, py, sign)| sign * (y - py).atan2(x - px)).sum();
        (128.0 + 100.0 * (TAU * y / 9.0 + wound).cos()) as u8
    };
    (0..SIDE * SIDE).map(brightness).collect()
}

/// Returns an ANSI/NIST-ITL file.
fn card(images: &[CardImage]) -> Vec<u8> {
    let mut contents = format!("1\x1f{}", images.len());
    let mut records = Vec::new();
    for (index, (position, compression)) in images.iter().enumerate() {
        contents.push_str(&format!("\x1e14\x1f{index:02}"));
        let fields = [
            (2, format!("{index:02}").into_bytes()),
            (6, SIDE.to_string().into_bytes()),
            (7, SIDE.to_string().into_bytes()),
            (8, b"1".to_vec()),
            (9, b"500".to_vec()),
            (11, compression.as_bytes().to_vec()),
            (12, b"8".to_vec()),
            (13, position.as_bytes().to_vec()),
            (999, ridges(index)),
        ];
        records.extend(tagged(14, &fields));
    }
    let first = tagged(1, &[(2, b"0500".to_vec()), (3, contents.into_bytes())]);
    [first, records].concat()
}

/// Adds made-up prints. The payload of each has its seed.
fn enrol(world: &World, seeds: std::ops::Range<u64>) {
    let point = |seed: u64| {
        json!({
            "id": seed, "embedding": [], "record": record(&print(seed)), "width": 300, "height": 400,
            "payload": { "seed": seed },
        })
    };
    let body = json!({ "points": seeds.map(point).collect::<Vec<_>>() });
    let path = "/v1/images/prints/features?kind=fingerprint";
    let (status, answer) = world.json(Method::PUT, path, &body);
    assert_eq!(status, 200, "{answer}");
}

/// Sends a file. Returns the status and the JSON of the answer.
fn send(world: &World, method: Method, path: &str, file: &[u8]) -> (StatusCode, Value) {
    let (status, body) = world.send(method, path, "application/octet-stream", file.to_vec());
    (status, serde_json::from_slice(&body).unwrap())
}

/// Returns a field of each print of an answer.
fn of_prints(answer: &Value, key: &str) -> Vec<Value> {
    answer["prints"].as_array().unwrap().iter().map(|print| print[key].clone()).collect()
}

/// Returns the persons and fingers in the payloads of the collection "prints", in order.
fn persons_and_fingers(world: &World) -> BTreeSet<String> {
    let stored = points(&world.registry.get("prints").unwrap());
    let text = |key: &str, payload: &serde_json::Map<String, Value>| {
        payload.get(key).cloned().unwrap_or_default().to_string()
    };
    stored
        .iter()
        .map(|point| {
            format!("{} {}", text("person", &point.payload), text("finger", &point.payload))
        })
        .collect()
}

#[test]
fn a_search_among_many_prints_needs_a_higher_score() {
    const PRINTS: u64 = 4000;
    let world = World::start();
    (1..=PRINTS).step_by(1000).for_each(|first| enrol(&world, first..first + 1000));
    let file = views(&[7]);
    let answer = |path: &str| {
        let (status, answer) =
            send(&world, Method::POST, &format!("/v1/images/prints/{path}"), &file);
        assert_eq!(status, 200, "{answer}");
        answer
    };
    let alone = accept_score(ImageKind::Fingerprint, 1);
    let among_all = accept_score(ImageKind::Fingerprint, PRINTS);
    assert!(among_all > alone);
    let filter =
        "filter=%7B%22must%22:%5B%7B%22key%22:%22seed%22,%22match%22:%7B%22value%22:7%7D%7D%5D%7D";
    for search in ["search", "identify"] {
        for (parameters, threshold) in [("k=1", among_all), (filter, alone), ("threshold=7", 7.0)] {
            let found = answer(&format!("{search}?{parameters}"));
            assert_eq!(found["threshold"], json!(threshold), "{search} {parameters}");
            assert_eq!(found["results"][0]["accepted"], json!(true), "{search} {parameters}");
        }
    }
    let score = answer("search?k=1")["results"][0]["score"].as_f64().unwrap() as f32;
    let higher = answer(&format!("search?k=1&threshold={}", score + 1.0));
    assert_eq!(higher["results"][0]["accepted"], json!(false));
    assert_eq!(answer("verify?id=7")["threshold"], json!(alone));
}

#[test]
fn the_views_of_a_template_are_images_of_one_person() {
    for background in ["", "&background=1"] {
        let world = World::start();
        let file = views(&[1, 2, 3]);
        let path = format!("{NEW}&name=hand.fmr{background}");
        let answer = world.put(&path, &file);
        let own = image_id(&file).to_string();
        assert_eq!((&answer["id"], &answer["person"]), (&json!(own), &json!(own)));
        assert_eq!(of_prints(&answer, "status"), ["added"; 3]);
        assert_eq!(of_prints(&answer, "name"), ["hand.fmr"; 3]);
        assert_eq!(of_prints(&answer, "finger"), [1, 2, 3]);
        let ids = of_prints(&answer, "id");
        assert_eq!(ids[0], own);
        let wanted = [1, 2, 3].map(|finger| format!("\"{own}\" {finger}"));
        assert_eq!(persons_and_fingers(&world), BTreeSet::from(wanted));
        // The same file again.
        let again = world.put(&path, &file);
        assert_eq!(of_prints(&again, "status"), ["present"; 3]);
        assert_eq!(of_prints(&again, "id"), ids);
        for (number, seed) in (1..4).enumerate() {
            let probe = template::write(&print(seed), TemplateFormat::SourceAfis).unwrap();
            let (_, found) = send(&world, Method::POST, "/v1/images/prints/identify?k=1", &probe);
            let best = &found["results"][0];
            assert_eq!((&best["person"], &best["prints"][0]), (&json!(own), &ids[number]));
        }
    }
}

#[test]
fn each_print_keeps_a_file_of_its_own() {
    let world = World::start();
    let file = views(&[1, 2, 3]);
    let ids = of_prints(&world.put(NEW, &file), "id");
    let original = |id: &Value| {
        world.send(Method::GET, &format!("/v1/images/prints/{}", id.as_str().unwrap()), "", "")
    };
    assert_eq!(original(&ids[0]), (StatusCode::OK, file.clone()));
    let (status, second) = original(&ids[1]);
    assert_eq!(status, StatusCode::OK);
    let read = template::views(&second).unwrap();
    assert_eq!((read.len(), read[0].finger, read[0].quality), (1, Some(2), Some(41)));
    // The file of one print is that print.
    let again = world.put("/v1/images/prints", &second);
    assert_eq!((&again["id"], &again["status"]), (&ids[1], &json!("present")));
    assert!(again.get("prints").is_none() && again.get("person").is_none(), "{again}");
    // The removal of the first print leaves the others.
    let first = format!("/v1/images/prints/{}", ids[0].as_str().unwrap());
    assert_eq!(send(&world, Method::DELETE, &first, b"").0, StatusCode::OK);
    assert_eq!(original(&ids[0]).0, StatusCode::NOT_FOUND);
    assert_eq!(original(&ids[2]).0, StatusCode::OK);
    let again = world.put("/v1/images/prints", &file);
    assert_eq!(of_prints(&again, "status"), ["added", "present", "present"]);
}

#[test]
fn a_request_names_person_and_finger() {
    let world = World::start();
    let payload = "%7B%22person%22%3A%22ann%22%2C%22finger%22%3A%22x%22%7D";
    let answer = world.put(&format!("{NEW}&payload={payload}"), &views(&[1, 2]));
    assert_eq!(answer["person"], "ann");
    assert_eq!(persons_and_fingers(&world), BTreeSet::from(["\"ann\" \"x\"".to_owned()]));
    assert_eq!(points(&world.registry.get("prints").unwrap()).len(), 2);
    // A file with one print gets its finger, and no person.
    let answer = world.put(NEW, &views(&[3]));
    assert!(answer.get("prints").is_none() && answer.get("finger").is_none(), "{answer}");
    assert!(persons_and_fingers(&world).contains("null 1"));
}

#[test]
fn a_print_is_refused_and_the_others_are_added() {
    let world = World::start();
    let file = views(&[1, 2, 3]);
    let answer = world.put(&format!("{NEW}&quality_min=41"), &file);
    assert_eq!(of_prints(&answer, "status"), ["failed", "added", "added"]);
    let prints = &answer["prints"];
    assert_eq!((&prints[0]["id"], &prints[0]["finger"]), (&Value::Null, &json!(1)));
    assert!(prints[0]["error"].as_str().unwrap().contains("quality is 40"), "{answer}");
    // The answer has the fields of the first print that is there.
    assert_eq!((&answer["id"], &answer["status"]), (&prints[1]["id"], &json!("added")));
    let (status, refused) =
        send(&world, Method::PUT, "/v1/images/other?kind=fingerprint&quality_min=90", &file);
    let error = refused["error"].as_str().unwrap();
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert!(
        error.starts_with("none of the 3 prints") && error.contains("quality is 40"),
        "{error}"
    );
    assert_eq!(send(&world, Method::GET, "/v1/images/other", b"").0, StatusCode::NOT_FOUND);
}

#[test]
fn a_view_without_minutiae_is_not_the_whole_file() {
    let world = World::start();
    let mut file = views(&[7, 2]);
    // The tenth finger is missing, and its view is the first one.
    let bare = template::write(&Graph::default(), TemplateFormat::Iso2005).unwrap();
    file.splice(HEADER_BYTES..HEADER_BYTES, bare[HEADER_BYTES..].iter().copied());
    file[FINGER_AT] = 10;
    file[VIEWS_AT] = 3;
    let length = (file.len() as u32).to_be_bytes();
    file[8..12].copy_from_slice(&length);
    let own = image_id(&file).to_string();
    for status in ["added", "present"] {
        let answer = world.put(NEW, &file);
        assert_eq!(of_prints(&answer, "status"), ["failed", status, status]);
        assert_eq!(of_prints(&answer, "finger"), [10, 1, 2]);
        assert_eq!((&answer["id"], &answer["prints"][1]["id"]), (&json!(own), &json!(own)));
    }
    let path = format!("/v1/images/prints/{own}");
    assert_eq!(world.send(Method::GET, &path, "", ""), (StatusCode::OK, file.clone()));
    // The print that is compared is the one with the id of the file.
    let path = format!("/v1/images/prints/verify?id={own}");
    let (status, compared) = send(&world, Method::POST, &path, &file);
    assert_eq!((status, &compared["accepted"]), (StatusCode::OK, &json!(true)), "{compared}");
    let path = "/v1/images/prints/identify";
    let (status, found) = send(&world, Method::POST, path, &file);
    assert_eq!((status, &found["prints_left_out"]), (StatusCode::OK, &json!(1)), "{found}");
}

#[test]
fn prints_of_a_file_are_limited() {
    let world = World::start();
    let many: Vec<u64> = (0..65).collect();
    let (status, refused) = send(&world, Method::PUT, NEW, &views(&many));
    assert_eq!(status, StatusCode::BAD_REQUEST);
    let error = refused["error"].as_str().unwrap();
    assert!(error.contains("65 prints") && error.contains("at most 64"), "{error}");
    assert_eq!(send(&world, Method::GET, "/v1/images/prints", b"").0, StatusCode::NOT_FOUND);
}

#[test]
fn the_images_of_a_card_are_prints() {
    let world = World::start();
    let file = card(&[("2", "JP2"), ("11", "NONE"), ("7", "NONE"), ("13", "NONE")]);
    let answer = world.put(NEW, &file);
    assert_eq!(of_prints(&answer, "status"), ["failed", "added", "added", "added"]);
    // The first print that can be read has the id of the file.
    assert_eq!(answer["prints"][1]["id"], image_id(&file).to_string());
    assert_eq!(of_prints(&answer, "finger"), [json!(2), json!(1), json!(7), json!(null)]);
    let error = answer["prints"][0]["error"].as_str().unwrap();
    assert!(error.contains("JPEG 2000"), "{error}");
    assert_eq!(persons_and_fingers(&world).len(), 3);
    let id: PointId = answer["prints"][2]["id"].as_str().unwrap().parse().unwrap();
    let (status, one) = world.send(Method::GET, &format!("/v1/images/prints/{id}"), "", "");
    assert_eq!(status, StatusCode::OK);
    assert_eq!((vision::nist_images(&one).unwrap().len(), image_id(&one)), (1, id));
    // In a collection of photographs, such a file is one image.
    let photo = world.put(&format!("/v1/images/photos?model={}", crate::world::MODEL), &file);
    assert!(photo.get("prints").is_none(), "{photo}");
}

#[test]
fn the_fingers_of_a_query_file_are_one_person() {
    let world = World::start();
    let names = |name: &str| format!("{NEW}&payload=%7B%22person%22%3A%22{name}%22%7D");
    world.put(&names("ann"), &views(&[1, 2]));
    world.put(&names("bob"), &views(&[3]));
    let path = "/v1/images/prints/identify";
    let (status, found) = send(&world, Method::POST, path, &views(&[1, 2]));
    assert_eq!(status, StatusCode::OK, "{found}");
    let best = &found["results"][0];
    assert_eq!(best["person"], "ann");
    let scores = best["fingers"].as_array().unwrap();
    assert!(scores.len() == 2 && scores.iter().all(|score| score.as_f64() > Some(0.0)), "{best}");
    assert!(found.get("prints_left_out").is_none(), "{found}");
    let (_, one) = send(&world, Method::POST, path, &views(&[3]));
    let threshold = |found: &Value| found["threshold"].as_f64().unwrap();
    assert_eq!(threshold(&found), 1.5 * threshold(&one));
    // Two impressions of one finger, and a print that shows several, are not fingers.
    let file = card(&[("1", "NONE"), ("11", "NONE"), ("13", "NONE"), ("6", "NONE")]);
    let (status, found) = send(&world, Method::POST, path, &file);
    assert_eq!((status, &found["prints_left_out"]), (StatusCode::OK, &json!(2)), "{found}");
    assert_eq!(threshold(&found), 1.5 * threshold(&one));
    let (status, found) = send(&world, Method::POST, path, &views(&(0..11).collect::<Vec<u64>>()));
    // The position 11 of a template states no finger, so there are eleven.
    assert_eq!(status, StatusCode::BAD_REQUEST, "{found}");
    assert!(found["error"].as_str().unwrap().contains("11 fingers"), "{found}");
}

#[test]
fn a_form_is_refused_with_the_remedy() {
    let world = World::start();
    world.put(NEW, &views(&[1]));
    for call in ["search", "identify", "verify?id=1", "features"] {
        let path = format!("/v1/images/prints/{call}");
        let media = "multipart/form-data; boundary=b";
        let (status, body) = world.send(Method::POST, &path, media, "--b--");
        assert_eq!(status, StatusCode::BAD_REQUEST, "{call}");
        let body = String::from_utf8(body).unwrap();
        assert!(body.contains("multipart/form-data"), "{call}: {body}");
    }
}

#[test]
fn a_folder_counts_prints_and_files() {
    let world = World::start();
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("hand.fmr"), views(&[1, 2, 3])).unwrap();
    std::fs::write(folder.path().join("one.fmr"), views(&[4])).unwrap();
    std::fs::write(folder.path().join("card.an2"), card(&[("2", "JP2"), ("3", "NONE")])).unwrap();
    let body = json!({ "folder": folder.path() }).to_string();
    let (status, lines) = world.send(Method::PUT, NEW, "application/json", body);
    let lines = String::from_utf8(lines).unwrap();
    assert_eq!(status, StatusCode::OK, "{lines}");
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let (last, lines) = lines.split_last().unwrap();
    let summary = json!({ "added": 5, "present": 0, "failed": 1, "ignored": 0, "files": 3 });
    assert_eq!(last["summary"], summary);
    let of = |name: &str, key: &str| -> Vec<Value> {
        let own = lines.iter().filter(|line| line["name"] == name);
        own.map(|line| line.get(key).cloned().unwrap_or_default()).collect()
    };
    assert_eq!(of("hand.fmr", "finger"), [1, 2, 3]);
    assert_eq!(of("one.fmr", "finger"), [Value::Null]);
    assert_eq!(of("card.an2", "status"), ["failed", "added"]);
    assert_eq!(of("card.an2", "finger"), [2, 3]);
    assert!(of("card.an2", "error")[0].as_str().unwrap().contains("JPEG 2000"));
    assert_eq!(points(&world.registry.get("prints").unwrap()).len(), 5);
}

#[test]
fn a_rebuild_keeps_the_prints() {
    let world = World::start();
    let ids = of_prints(&world.put(NEW, &views(&[1, 2, 3])), "id");
    let before = persons_and_fingers(&world);
    let path = "/v1/images/prints/rebuild";
    let body = json!({ "model": crate::world::MODEL, "switch": true });
    assert_eq!(world.json(Method::POST, path, &body).0, StatusCode::ACCEPTED);
    world.wait_until(|| send(&world, Method::GET, path, b"").1["state"] != "running");
    let (_, ended) = send(&world, Method::GET, path, b"");
    assert_eq!((&ended["state"], &ended["failed"]), (&json!("switched"), &json!(0)), "{ended}");
    let stored: BTreeSet<String> = points(&world.registry.get("prints").unwrap())
        .iter()
        .map(|point| point.id.to_string())
        .collect();
    let wanted: BTreeSet<String> = ids.iter().map(|id| id.as_str().unwrap().to_owned()).collect();
    assert_eq!(stored, wanted);
    assert_eq!(persons_and_fingers(&world), before);
}

#[test]
fn a_root_adds_each_print() {
    let world = World::start();
    let file = views(&[1, 2, 3]);
    let input = ImageInput::new(Some("x.fmr"), None, Some(41), file.clone().into()).unwrap();
    let kind = ImageKind::Fingerprint;
    let prints = world.run(world.images.upload_prints(input.clone(), kind)).unwrap();
    let inputs: Vec<ImageInput> = prints.inputs().into_iter().map(Result::unwrap).collect();
    let person = json!(image_id(&file).to_string());
    // The image of the whole file is the last, so that a part of the file never counts as the whole
    // file.
    for (finger, input) in [2, 3, 1].into_iter().zip(&inputs) {
        assert_eq!((&input.payload["person"], &input.payload["finger"]), (&person, &json!(finger)));
        assert_eq!((input.name.as_str(), input.quality_min), ("x.fmr", 41));
    }
    assert_eq!((inputs.len(), &inputs[2].bytes), (3, &input.bytes));
    let refused = || Err(Error::invalid("poor"));
    let added = json!({ "id": 7, "status": "added" });
    let answer = prints.answer(vec![Ok(added.clone()), refused(), refused()]).unwrap();
    assert_eq!((&answer["id"], &answer["person"]), (&json!(7), &person));
    assert_eq!(of_prints(&answer, "status"), ["failed", "added", "failed"]);
    assert!(prints.answer(vec![refused(), refused(), refused()]).is_err());
    assert!(!prints.is_ended_by(&Error::invalid("poor")));
    assert!(prints.is_ended_by(&Error::unavailable("busy")));
    let photo = world.run(world.images.upload_prints(input, ImageKind::Photo)).unwrap();
    assert_eq!(photo.inputs().len(), 1);
    assert_eq!(photo.answer(vec![Ok(added.clone())]).unwrap(), added);
    assert!(photo.is_ended_by(&Error::invalid("poor")));
}

#[test]
fn features_are_those_of_the_first_print() {
    let world = World::start();
    let path = "/v1/images/none/features?kind=fingerprint";
    let (status, features) = send(&world, Method::POST, path, &views(&[1, 2, 3]));
    assert_eq!((status, &features["prints_left_out"]), (StatusCode::OK, &json!(2)), "{features}");
    // The answer is a point for PUT.
    let body = json!({ "points": [features] });
    let (status, written) = world.json(Method::PUT, "/v1/images/prints/features", &body);
    assert_eq!((status, &written["added"]), (StatusCode::OK, &json!(1)), "{written}");
    let (_, one) = send(&world, Method::POST, path, &views(&[1]));
    assert!(one.get("prints_left_out").is_none(), "{one}");
}
