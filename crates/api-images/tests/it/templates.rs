//! Templates of fingerprints that are enrolled, and collections of fingerprints without a model.

use api_images::{
    ExtractionPriority, ImageInput, ImageKind, ImageSettings, WantedImages, apply_image_operation,
    images_operation,
};
use base::ErrorKind;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{Method, StatusCode};
use image_features::testing::{element, fingers, points, record};
use matching::Graph;
use matching::synthetic;
use matching::template::{self, TemplateFormat};
use serde_json::{Value, json};

use crate::world::{MODEL, World};

const NEW: &str = "/v1/images/prints?kind=fingerprint";

fn print(seed: u64) -> Graph {
    synthetic::impression(seed)
}

fn written(seed: u64, format: TemplateFormat) -> Vec<u8> {
    template::write(&print(seed), format).unwrap()
}

/// Sends a file. Returns the status and the JSON of the answer.
fn send(world: &World, method: Method, path: &str, file: &[u8]) -> (StatusCode, Value) {
    let (status, body) = world.send(method, path, "application/octet-stream", file.to_vec());
    (status, serde_json::from_slice(&body).unwrap())
}

#[track_caller]
fn refused(world: &World, path: &str, file: &[u8], status: u16, words: &str) {
    let (found, answer) = send(world, Method::PUT, path, file);
    let text = answer.to_string();
    assert!(found.as_u16() == status && text.contains(words), "{found} {text}, not {words}");
}

#[test]
fn every_format_is_enrolled_without_a_model() {
    let world = World::start();
    for (seed, format) in (1..).zip(TemplateFormat::ALL) {
        let file = written(seed, format);
        let background = if seed % 2 == 0 { "&background=1" } else { "" };
        let path = format!("{NEW}&name={format}.fmr{background}");
        let added = world.put(&path, &file);
        assert_eq!(
            (&added["status"], &added["name"]),
            (&json!("added"), &json!(format!("{format}.fmr")))
        );
        assert_eq!(added["keypoints"], print(seed).vertices.len());
        assert_eq!(world.put(&path, &file)["status"], "present");
        let id = added["id"].as_str().unwrap();
        let get =
            |rest: &str| world.send(Method::GET, &format!("/v1/images/prints/{id}{rest}"), "", "");
        assert_eq!(get(""), (StatusCode::OK, file));
        let (status, own) = get("/template?format=sourceafis");
        assert_eq!(status, StatusCode::OK);
        let own = template::read(&own).unwrap().remove(0);
        assert_eq!(own.vertices.len(), print(seed).vertices.len());
        let (status, body) = get("/thumbnail");
        let body = String::from_utf8(body).unwrap();
        assert!(status == StatusCode::NOT_FOUND && body.contains("no pixels"), "{body}");
        // A template of another format finds it.
        let other = written(seed, TemplateFormat::Iso2005);
        let (_, found) = send(&world, Method::POST, "/v1/images/prints/identify?k=1", &other);
        assert_eq!(found["results"][0]["prints"][0], id, "{format}: {found}");
        assert_eq!(found["of"], seed);
    }
    let (_, listed) = send(&world, Method::GET, "/v1/images", b"");
    let own = &listed["collections"][0];
    assert_eq!((&own["kind"], &own["model"]), (&json!("fingerprint"), &json!("none")));
    world.refused("/v1/images/prints/duplicates", &json!({}), 409, "without embeddings");
}

#[test]
fn damaged_templates_store_nothing() {
    let world = World::start();
    for format in TemplateFormat::ALL {
        let file = written(1, format);
        let path = format!("{NEW}&name=cut.fmr");
        refused(&world, &path, &file[..file.len() - 3], 400, "cut.fmr: ");
    }
    refused(&world, NEW, b"FMR\x00 99\x00", 400, "not a template");
    // An empty map of CBOR, and a view without minutiae.
    refused(&world, NEW, &[0xA0], 400, "no minutiae");
    let bare = template::write(&Graph::default(), TemplateFormat::Ansi2004).unwrap();
    refused(&world, NEW, &bare, 400, "no minutiae");
    assert_eq!(send(&world, Method::GET, "/v1/images/prints", b"").0, StatusCode::NOT_FOUND);
    let originals = world.directory.path().join("collections/.originals");
    assert!(!originals.exists() || originals.read_dir().unwrap().next().is_none());
}

#[test]
fn an_image_without_minutiae_stores_nothing() {
    let world = World::start();
    let blank = vision::Image { width: 96, height: 64, rgb: vec![255; 96 * 64 * 3] };
    let blank = vision::thumbnail(&blank, 96).unwrap();
    for background in ["", "&background=1"] {
        let path = format!("{NEW}&name=blank.jpg{background}");
        refused(&world, &path, &blank, 400, "blank.jpg: the image shows no fingerprint");
    }
    assert_eq!(send(&world, Method::GET, "/v1/images/prints", b"").0, StatusCode::NOT_FOUND);
}

#[test]
fn a_query_without_minutiae_is_refused() {
    let world = World::start();
    let added = world.put(NEW, &written(1, TemplateFormat::Iso2005));
    let verify = format!("verify?id={}", added["id"].as_str().unwrap());
    let blank = vision::Image { width: 96, height: 64, rgb: vec![255; 96 * 64 * 3] };
    let blank = vision::thumbnail(&blank, 96).unwrap();
    let bare = template::write(&Graph::default(), TemplateFormat::Ansi2004).unwrap();
    for (file, words) in [(blank, "shows no fingerprint"), (bare, "template has no minutiae")] {
        for request in ["identify", "search", verify.as_str()] {
            let path = format!("/v1/images/prints/{request}");
            let (status, answer) = send(&world, Method::POST, &path, &file);
            assert_eq!(status, StatusCode::BAD_REQUEST, "{answer}");
            let reason = answer["error"].as_str().unwrap();
            assert!(reason.contains(words) && reason.contains("cannot be compared"), "{reason}");
        }
    }
    // Both prints are sent: the error says which one is wrong.
    let good = json!({ "record": record(&print(1)) });
    let empty = json!({ "record": record(&Graph::default()) });
    let path = "/v1/images/prints/verify";
    world.good(path, &json!({ "first": good, "second": good }));
    world.refused(path, &json!({ "first": good, "second": empty }), 400, "\"second: the record");
    let stored = json!({ "id": added["id"] });
    world.refused(path, &json!({ "first": stored, "second": empty }), 400, "\"the record");
}

#[test]
fn the_wrong_finger_of_a_request_is_named() {
    let world = World::start();
    let good = written(1, TemplateFormat::Iso2005);
    world.put(NEW, &good);
    let bare = template::write(&Graph::default(), TemplateFormat::Ansi2004).unwrap();
    for (second, words) in [
        (STANDARD.encode(bare), "prints[1]: the template has no minutiae"),
        ("?".to_owned(), "prints[1]: a print is not base64"),
    ] {
        let body = json!({ "prints": [STANDARD.encode(&good), second] });
        world.refused("/v1/images/prints/identify", &body, 400, words);
    }
    let body = json!({ "prints": [STANDARD.encode(&good), STANDARD.encode(&good)] });
    let path = "/v1/images/prints/identify?filter=%7B";
    world.refused(path, &body, 400, "{\"error\":\"the request's JSON");
}

#[test]
fn a_template_is_no_photograph() {
    let world = World::start();
    let file = written(1, TemplateFormat::Iso2011);
    for path in ["/v1/images/photos", "/v1/images/photos?background=1"] {
        refused(&world, path, &file, 400, "kind=fingerprint");
    }
    assert_eq!(send(&world, Method::GET, "/v1/images/photos", b"").0, StatusCode::NOT_FOUND);
}

#[test]
fn a_stated_quality_is_checked_and_kept() {
    let world = World::start();
    let mut file = written(1, TemplateFormat::Iso2005);
    file[26] = 30;
    refused(&world, &format!("{NEW}&quality_min=31"), &file, 400, "quality is 30");
    world.put(&format!("{NEW}&quality_min=30"), &file);
    // It states no quality.
    world.put(&format!("{NEW}&quality_min=100"), &written(2, TemplateFormat::Iso2005));
    let (_, page) = send(&world, Method::GET, "/v1/images/prints", b"");
    assert_eq!((&page["count"], &page["images"][0]["format"]), (&json!(2), &json!("iso-2005")));
    let stored = points(&world.registry.get("prints").unwrap());
    let qualities: Vec<&Value> =
        stored.iter().filter_map(|point| point.payload["image"].get("quality")).collect();
    assert_eq!(qualities, [&json!(30)]);
}

#[test]
fn a_model_does_not_embed_templates() {
    let world = World::start();
    let file = written(1, TemplateFormat::SourceAfis);
    let path = format!("/v1/images/m?kind=fingerprint&model={MODEL}");
    for background in ["", "&background=1"] {
        refused(&world, &format!("{path}{background}"), &file, 400, "leave out model=");
    }
    let members = json!({ "record": record(&synthetic::fingerprint(7)), "model": "absent" });
    let body = json!({ "points": [element(&json!(7), 7, &members)] });
    let (status, _) = world.json(Method::PUT, "/v1/images/m/features?kind=fingerprint", &body);
    assert_eq!(status, StatusCode::OK);
    // The model is not served, and not needed.
    let id = world.put("/v1/images/m", &file)["id"].as_str().unwrap().parse().unwrap();
    let stored = world.registry.get("m").unwrap().get(&id).unwrap().unwrap();
    assert_eq!(stored.embedding, [0.0; 3]);
    let (status, found) = send(&world, Method::POST, "/v1/images/m/identify?k=1", &file);
    assert_eq!((status, &found["of"]), (StatusCode::OK, &json!(2)));
}

#[test]
fn features_have_no_embedding_without_a_model() {
    let world = World::start();
    let file = written(3, TemplateFormat::Ansi2009);
    let path = "/v1/images/none/features?kind=fingerprint&name=3.fmr";
    let (status, features) = send(&world, Method::POST, path, &file);
    assert_eq!(status, StatusCode::OK, "{features}");
    assert_eq!((&features["embedding"], &features["model"]), (&json!([]), &json!("none")));
    let body = json!({ "points": [features] });
    let path = "/v1/images/prints/features";
    let (_, answer) = world.json(Method::PUT, path, &body);
    assert_eq!(answer, json!({ "added": 1, "replaced": 0 }));
    let own = format!("/v1/images/prints/{}/features", features["id"].as_str().unwrap());
    assert_eq!(send(&world, Method::GET, &own, b""), (StatusCode::OK, features.clone()));
    let mut wrong = features.clone();
    wrong["embedding"] = json!([1, 0, 0, 0]);
    let body = json!({ "points": [features, wrong] });
    let (status, answer) = world.json(Method::PUT, path, &body);
    assert_eq!(status, StatusCode::BAD_REQUEST, "{answer}");
    // Both have one id.
    assert!(answer["error"].as_str().unwrap().starts_with("points[1]: "), "{answer}");
    let body = json!({ "points": [wrong] });
    let (_, answer) = world.json(Method::PUT, path, &body);
    assert!(answer["error"].as_str().unwrap().contains("has no embeddings"), "{answer}");
}

#[test]
fn a_removed_template_leaves_no_original() {
    let world = World::start();
    let id =
        world.put(NEW, &written(1, TemplateFormat::Iso2011))["id"].as_str().unwrap().to_owned();
    let key = format!("collections/.originals/prints/{}/{id}.iso-2011", &id[..2]);
    let file = world.directory.path().join(key);
    assert!(file.exists());
    let (status, _) = send(&world, Method::DELETE, &format!("/v1/images/prints/{id}"), b"");
    assert_eq!((status, file.exists()), (StatusCode::OK, false));
}

#[test]
fn a_rebuild_embeds_and_removes_embeddings() {
    let world = World::start();
    let file = written(1, TemplateFormat::Iso2005);
    let id = world.put(NEW, &file)["id"].as_str().unwrap().parse().unwrap();
    for (model, values) in [(MODEL, crate::world::DIMS), ("none", 4)] {
        let body = json!({ "model": model, "switch": true });
        let path = "/v1/images/prints/rebuild";
        let (status, begun) = world.json(Method::POST, path, &body);
        assert_eq!(status, StatusCode::ACCEPTED, "{begun}");
        let give_up = std::time::Instant::now() + std::time::Duration::from_secs(60);
        let ended = loop {
            let (_, progress) = send(&world, Method::GET, path, b"");
            if progress["state"] != "running" || std::time::Instant::now() > give_up {
                break progress;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        };
        assert_eq!(ended["state"], "switched", "{ended}");
        let stored = world.registry.get("prints").unwrap().get(&id).unwrap().unwrap();
        assert_eq!(stored.embedding.len(), values, "{model}");
        assert_eq!(stored.embedding.iter().all(|value| *value == 0.0), model == MODEL);
    }
}

#[test]
fn a_template_is_logged_for_a_shard() {
    let world = World::start();
    let file = written(2, TemplateFormat::Iso2011);
    let wanted = WantedImages { kind: Some(ImageKind::Fingerprint), model: None };
    let extract = |priority| {
        let input = ImageInput::new(Some("2.fmr"), None, None, file.clone().into()).unwrap();
        let input = ImageInput { priority, ..input };
        world.run(world.images.extract_image(input, &wanted, None)).unwrap()
    };
    let extracted = extract(ExtractionPriority::Idle);
    let settings = ImageSettings { model: "none".to_owned(), ..fingers() };
    assert_eq!(extracted.settings(), &settings);
    assert!(extracted.original_key("f/originals", "1").ends_with("/1.iso-2011"));
    let logged = extracted.logged("f/originals/x.iso-2011").unwrap();
    let again = extract(ExtractionPriority::Ordinary).logged("f/originals/x.iso-2011").unwrap();
    assert_eq!(logged, again);
    let dims = extracted.dims();
    let shard = settings.create_shard(&world.registry, "f.0000", dims, "f/originals").unwrap();
    let operation = images_operation(&[&logged.text]);
    apply_image_operation(&shard, operation.as_bytes()).unwrap();
    let stored = shard.get(&logged.id).unwrap().unwrap();
    assert_eq!(stored.embedding.len(), dims);
    assert_eq!(Graph::decode(&stored.record).unwrap(), print(2));
    let features: Value = serde_json::from_str(&extracted.features().unwrap()).unwrap();
    assert_eq!(features["embedding"], json!([]));
    // An image of a photograph's collection has another kind.
    let photo = WantedImages::default();
    let input = ImageInput::new(None, None, None, file.clone().into()).unwrap();
    let error = world.run(world.images.extract_image(input, &photo, None)).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
}
