//! Features that a node extracts for others, and the originals of its uploads.

use std::time::Duration;

use api_images::{
    ExtractedQuery, ExtractionPriority, ImageInput, ImageKind, ImageSettings, WantedImages,
    accept_score, candidates_max, default_candidates, image_id,
};
use base::ErrorKind;
use http::Method;
use image_features::testing::{fingers, photos};
use search::points::PointId;
use serde_json::{Map, Value, json};

use crate::world::{DIMS, MODEL, World, picture};

fn input(file: &[u8]) -> ImageInput {
    ImageInput::new(Some("a.jpg"), Some(r#"{"n":1}"#), None, file.to_vec().into()).unwrap()
}

#[test]
fn an_image_is_extracted_as_one_server_adds_it() {
    let world = World::start();
    let file = picture(4);
    let wanted = WantedImages::default();
    let extracted = world.images.extract_image(input(&file), &wanted, None);
    let extracted = world.run(extracted).unwrap();
    assert_eq!((extracted.settings(), extracted.dims()), (&photos(), DIMS));
    assert_eq!(extracted.id(), image_id(&file));
    let answer = world.put("/v1/images/c?name=a.jpg&payload=%7B%22n%22%3A1%7D", &file);
    assert_eq!(extracted.added(), answer);
    let stored = world.registry.get("c").unwrap().get(&extracted.id()).unwrap().unwrap();
    let original = api_images::original_key(&stored.payload).unwrap();
    let logged = extracted.logged(original).unwrap();
    assert_eq!(logged.id, extracted.id());
    let element: Value = serde_json::from_str(&logged.text).unwrap();
    assert_eq!(element["payload"], Value::from(stored.payload.clone()));
    let uploads = ["1", "2"].map(|upload| extracted.original_key("c", upload));
    let image = original.strip_suffix(".jpeg").unwrap();
    assert_eq!(uploads, ["1", "2"].map(|upload| format!("{image}/{upload}.jpeg")));
    let shard = photos().create_shard(&world.registry, "c-1.0000", DIMS, "c").unwrap();
    let operation = api_images::images_operation(&[&logged.text]);
    api_images::apply_image_operation(&shard, operation.as_bytes()).unwrap();
    assert_eq!(shard.get(&extracted.id()).unwrap(), Some(stored));
    let path = "/v1/images/c/features?name=a.jpg";
    let (_, features) = world.send(Method::POST, path, "image/jpeg", file);
    assert_eq!(extracted.features().unwrap().into_bytes(), features);
}

#[test]
fn the_priority_does_not_change_the_features() {
    let world = World::start();
    let wanted = WantedImages::default();
    let extract = |priority, file: &[u8]| {
        let image = ImageInput { priority, ..input(file) };
        world.run(world.images.extract_image(image, &wanted, None))
    };
    let file = picture(4);
    let [ordinary, idle] = [ExtractionPriority::Ordinary, ExtractionPriority::Idle]
        .map(|priority| extract(priority, &file).unwrap().logged("c").unwrap());
    assert_eq!((ordinary.id, ordinary.text), (idle.id, idle.text));
    let error = extract(ExtractionPriority::Idle, b"no picture").err().unwrap();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    assert_eq!(world.images.bulk_waiting(), 0);
}

#[test]
fn an_idle_extraction_without_a_caller_does_not_wait_for_memory() {
    let world = World::start();
    let memory = &world.requests.memory;
    // A template fits, and the pixels of an image do not.
    let held = memory.reserve(memory.max() - (1 << 20)).unwrap();
    let idle = |file: &[u8]| ImageInput { priority: ExtractionPriority::Idle, ..input(file) };
    let photo = WantedImages::default();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    for _ in 0..threads {
        let waiting = world.images.extract_image(idle(&picture(4)), &photo, None);
        let begun = async {
            loop {
                tokio::time::sleep(Duration::from_millis(5)).await;
                if world.images.bulk_waiting() == 0 {
                    return;
                }
            }
        };
        // The caller disconnects while a thread waits.
        world.run(async {
            tokio::select! {
                biased;
                _ = waiting => panic!("there is no memory"),
                () = begun => {}
            }
        });
    }
    let graph = matching::synthetic::fingerprint(3);
    let format = matching::template::TemplateFormat::Iso2005;
    let template = matching::template::write(&graph, format).unwrap();
    let print = WantedImages { kind: Some(ImageKind::Fingerprint), model: None };
    let extracted = world.run(world.images.extract_image(idle(&template), &print, None));
    assert_eq!(extracted.unwrap().id(), image_id(&template));
    drop(held);
}

#[test]
fn a_query_travels_as_json() {
    let world = World::start();
    let query = world.query(picture(2));
    assert_eq!((query.width, query.height, query.embedding.len()), (160, 120, DIMS));
    assert!(query.keypoints > 5);
    let text = serde_json::to_string(&query).unwrap();
    assert!(serde_json::from_str::<Value>(&text).unwrap()["record"].is_string());
    assert_eq!(serde_json::from_str::<ExtractedQuery>(&text).unwrap(), query);
}

#[test]
fn a_template_is_a_query() {
    let world = World::start();
    let graph = matching::synthetic::fingerprint(3);
    let format = matching::template::TemplateFormat::Iso2005;
    let template = matching::template::write(&graph, format).unwrap();
    // No model runs, so its name does not matter.
    let settings = ImageSettings { model: "absent".to_owned(), ..fingers() };
    let query = world.images.extract_query(&settings, DIMS, template.into());
    let query = world.run(query).unwrap();
    assert_eq!((query.keypoints, query.embedding.len()), (graph.vertices.len(), 0));
    assert_eq!((query.width, query.height), (300, 400));
}

#[test]
fn the_collection_decides_on_the_model() {
    let world = World::start();
    let extract = |wanted: &WantedImages, existing: Option<(&ImageSettings, usize)>| {
        let image = world.images.extract_image(input(&picture(1)), wanted, existing);
        world.run(image).map(|image| image.settings().clone())
    };
    let none = WantedImages::default();
    let missing = ImageSettings { model: "missing".to_owned(), ..photos() };
    let named = WantedImages { kind: None, model: Some("missing".to_owned()) };
    assert_eq!(extract(&none, Some((&photos(), DIMS))), Ok(photos()));
    for (wanted, existing) in [(&none, Some((&missing, DIMS))), (&named, None)] {
        let error = extract(wanted, existing).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::FailedPrecondition);
        assert!(error.message().contains("\"missing\" is not served"), "{error}");
    }
    let error = extract(&none, Some((&photos(), 7))).unwrap_err();
    assert!(error.message().contains("now gives 18 values and the collection has 7"), "{error}");
    let own = photos();
    let query = world.images.extract_query(&own, 7, picture(1).into());
    assert_eq!(world.run(query).unwrap_err().kind(), ErrorKind::FailedPrecondition);
    assert_eq!(world.images.embedding_default(), json!({ "model": MODEL }));
}

#[test]
fn wrong_images_are_refused() {
    let world = World::start();
    let new = |name: &str, payload: &str, quality: u8| {
        ImageInput::new(Some(name), Some(payload), Some(quality), vec![1].into()).map(drop)
    };
    assert!(new("a", "{}", 100).is_ok());
    for (name, payload, quality) in [
        ("x".repeat(513).as_str(), "{}", 0),
        ("a", "[]", 0),
        ("a", r#"{"image":1}"#, 0),
        ("a", r#"{"__millpond_id":1}"#, 0),
        ("a", "{}", 101),
    ] {
        let error = new(name, payload, quality).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    }
    let extract = |input: ImageInput| {
        world.run(world.images.extract_image(input, &WantedImages::default(), None))
    };
    // The fields are public, so the node checks them again.
    let own = Map::from_iter([("image".to_owned(), json!(1))]);
    let error = extract(ImageInput { payload: own, ..input(&picture(1)) }).err().unwrap();
    assert!(error.message().contains("service's own"), "{error}");
    let error = extract(input(b"no image")).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    let long = Map::from_iter([("text".to_owned(), json!("x".repeat(64 << 10)))]);
    let image = extract(ImageInput { payload: long, ..input(&picture(1)) }).unwrap();
    assert_eq!(image.logged("c").unwrap_err().kind(), ErrorKind::TooLarge);
}

/// Returns a payload of so many levels.
fn nested(levels: usize) -> String {
    format!("{}1{}", "{\"n\":".repeat(levels), "}".repeat(levels))
}

#[test]
fn a_payload_that_holders_cannot_read_is_refused() {
    let world = World::start();
    let new = |levels: usize| {
        let payload = nested(levels);
        ImageInput::new(None, Some(&payload), None, picture(1).into())
    };
    let error = new(121).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    assert!(error.message().contains("fewer levels"), "{error}");
    let wanted = WantedImages::default();
    let image = world.images.extract_image(new(120).unwrap(), &wanted, None);
    let logged = world.run(image).unwrap().logged("c").unwrap();
    let shard = photos().create_shard(&world.registry, "c-1.0000", DIMS, "c").unwrap();
    let operation = api_images::images_operation(&[&logged.text]);
    api_images::apply_image_operation(&shard, operation.as_bytes()).unwrap();
    let stored = shard.get(&logged.id).unwrap().unwrap();
    assert!(serde_json::to_string(&stored.payload).unwrap().contains(&nested(119)));
}

#[test]
fn originals_are_written_and_removed() {
    let world = World::start();
    let key = "c-1/originals/5c/x.png";
    let file = world.directory.path().join("collections/.originals").join(key);
    world.run(world.images.put_original(key, vec![7].into())).unwrap();
    assert_eq!(std::fs::read(&file).unwrap(), [7]);
    for _ in 0..2 {
        world.run(world.images.delete_original(key)).unwrap();
        assert!(!file.exists());
    }
}

#[test]
fn ids_follow_from_files_and_defaults_are_within_limits() {
    assert!(matches!(image_id(b"an image"), PointId::Uuid(_)));
    assert_ne!(image_id(b"an image"), image_id(b"another"));
    for kind in [ImageKind::Photo, ImageKind::Fingerprint] {
        assert_eq!(ImageKind::parse(kind.name()), Ok(kind));
        assert!(accept_score(kind, 1) > 0.0);
        assert!(default_candidates(kind) <= candidates_max(kind));
    }
    assert!(ImageKind::parse("face").is_err());
}

#[test]
fn old_uploads_of_one_image_are_removed() {
    let world = World::start();
    let [image, other] = [picture(1), picture(2)].map(|file| image_id(&file));
    let key = |id: &PointId, upload: &str| {
        format!("c-1/originals/{}/{id}/{upload}.jpeg", &id.to_string()[..2])
    };
    let keys = [key(&image, "1"), key(&image, "2"), key(&other, "1")];
    for key in &keys {
        world.run(world.images.put_original(key, picture(1).into())).unwrap();
    }
    let originals = world.directory.path().join("collections/.originals");
    let stored = || keys.each_ref().map(|key| originals.join(key).exists());
    let remove = |age| world.images.delete_uploads("c-1/originals", &image, age);
    world.run(remove(Duration::from_secs(3600))).unwrap();
    assert_eq!(stored(), [true; 3]);
    world.run(remove(Duration::ZERO)).unwrap();
    assert_eq!(stored(), [false, false, true]);
}
