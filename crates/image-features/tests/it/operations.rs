//! Operations of images, and their results in a local collection.

use base::{ErrorKind, Result};
use image_features::apply::{
    apply_image_operation, is_image_operation, moved_image, written_images,
};
use image_features::collection::originals_space;
use image_features::logged::{
    CheckedPoints, LoggedPoint, features_operation, images_operation, read_features,
};
use image_features::settings::{ImageSettings, WantedImages};
use image_features::testing::{
    element, fingers, image, open, photos, points, record, with_original,
};
use search::collection::PointParts;
use search::points::PointId;
use search::registry::{CollectionSettings, NamedCollection, Registry, RegistryOptions};
use serde_json::{Value, json};

pub(crate) const UUID: &str = "5c56c793-69f3-8fbf-87e6-c4bf54c28c26";

fn apply(named: &NamedCollection, operation: &Value) -> Result<()> {
    apply_image_operation(named, operation.to_string().as_bytes())
}

fn payload(named: &NamedCollection, id: &PointId) -> Value {
    let found = named.get_parts(std::slice::from_ref(id), PointParts::PAYLOAD).remove(0);
    Value::from(found.unwrap().unwrap().payload)
}

#[test]
fn a_shard_is_a_collection_of_images() {
    let directory = tempfile::tempdir().unwrap();
    let registry = open(directory.path());
    for settings in [photos(), fingers()] {
        let name = format!("c-{}.0003", settings.kind.name());
        let named = settings.create_shard(&registry, &name, 3, "c-1/originals").unwrap();
        let section = json!({ "kind": settings.kind.name(), "model": "colour", "originals": "c-1/originals" });
        assert_eq!(named.settings().extra["images"], section);
        assert_eq!(named.settings().dims, 3);
        let space = originals_space(&named.settings());
        assert_eq!(space.as_deref(), Some("c-1/originals"));
        let again = settings.create_shard(&registry, &name, 3, "c-1/originals").unwrap_err();
        assert_eq!(again.kind(), ErrorKind::AlreadyExists);
    }
    assert!(registry.aliases().is_empty());
}

#[test]
fn operations_of_images_are_recognised() {
    for operation in [
        features_operation(&["1", "2"]).as_str(),
        images_operation(&[]).as_str(),
        " {\n\t\"put_images\" : 1}",
    ] {
        assert!(is_image_operation(operation.as_bytes()), "{operation}");
    }
    for operation in [
        "",
        "{",
        "put_images",
        r#"{"delete":{"points":[1]}}"#,
        r#"["put_images"]"#,
        r#"{"put_image":1}"#,
        r#"{"a":1,"put_images":2}"#,
    ] {
        assert!(!is_image_operation(operation.as_bytes()), "{operation}");
    }
    assert_eq!(features_operation(&["1", "2"]), r#"{"put_features":{"points":[1,2]}}"#);
    assert_eq!(images_operation(&["{}"]), r#"{"put_images":{"points":[{}]}}"#);
}

#[test]
fn only_images_name_written_ids() {
    let id: PointId = UUID.parse().unwrap();
    let PointId::Uuid(bytes) = id else { panic!("{UUID} is a UUID") };
    let point = |id: &Value| image(id, 1, &with_original("a.png"));
    let put = json!({ "put_images": { "points": [point(&json!(7)), point(&json!(UUID))] } });
    assert_eq!(written_images(put.to_string().as_bytes()), [bytes]);
    let features = json!({ "put_features": { "points": [element(&json!(UUID), 1, &json!({}))] } });
    let delete = json!({ "delete": { "points": [UUID] } });
    let other = json!({ "put_images": [UUID] });
    for operation in [features, delete, other] {
        assert!(written_images(operation.to_string().as_bytes()).is_empty(), "{operation}");
    }
}

#[test]
fn features_keep_the_original_of_an_image() {
    let directory = tempfile::tempdir().unwrap();
    let named = photos().create_shard(&open(directory.path()), "c.0000", 3, "s").unwrap();
    let id: PointId = UUID.parse().unwrap();
    let put =
        json!({ "put_images": { "points": [image(&json!(UUID), 1, &with_original("a.png"))] } });
    apply(&named, &put).unwrap();
    assert_eq!(payload(&named, &id), with_original("a.png"));
    let other = element(&json!(UUID), 2, &json!({ "payload": { "seed": 2 }, "width": 11 }));
    apply(&named, &json!({ "put_features": { "points": [other] } })).unwrap();
    let block = json!({
        "name": "a.png", "format": "png", "width": 11, "height": 20, "bytes": 9, "keypoints": 256,
        "original": "c-1/originals/5c/x.png",
    });
    assert_eq!(payload(&named, &id), json!({ "seed": 2, "image": block }));
    // An image replaces everything.
    apply(&named, &put).unwrap();
    assert_eq!(payload(&named, &id), with_original("a.png"));
    let stored = points(&named).remove(0);
    assert_eq!(stored.record, decoded(&put["put_images"]["points"][0]["record"]));
}

fn decoded(record: &Value) -> Vec<u8> {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.decode(record.as_str().unwrap()).unwrap()
}

/// Two changes at the same moment can enlarge a payload beyond the maximum of one request.
#[test]
fn an_image_moves_with_the_largest_payload_of_a_shard() {
    let directory = tempfile::tempdir().unwrap();
    let options = RegistryOptions {
        payload_bytes_max: 256 << 10,
        ..RegistryOptions::for_tests(directory.path())
    };
    let registry = Registry::open(options).unwrap();
    let named = photos().create_shard(&registry, "c.0000", 3, "s").unwrap();
    let put = json!({ "put_images": { "points": [image(&json!(UUID), 1, &json!({}))] } });
    apply(&named, &put).unwrap();
    let mut stored = points(&named).remove(0);
    stored.payload.insert("text".to_owned(), json!("x".repeat(255 << 10)));
    let moved = moved_image(stored, &photos(), 3).unwrap();
    let operation = images_operation(&[moved.text.as_str()]);
    apply_image_operation(&named, operation.as_bytes()).unwrap();
    let found = payload(&named, &moved.id);
    assert_eq!(found["text"].as_str().map(str::len), Some(255 << 10));
}

#[test]
fn an_operation_that_no_holder_can_make_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let registry = open(directory.path());
    let named = photos().create_shard(&registry, "c.0000", 3, "s").unwrap();
    let good = |id: u64| image(&json!(id), id, &json!({}));
    let wrong = |key: &str, value: Value| {
        let mut wrong = good(2);
        wrong[key] = value;
        wrong
    };
    let long = json!({ "text": "x".repeat(256 << 10) });
    let bare = record(&matching::synthetic::fingerprint(1));
    let many: Vec<Value> = (0..1001).map(|_| good(1)).collect();
    use ErrorKind::{InvalidArgument, TooLarge};
    for (wrong, kind) in [
        (wrong("embedding", json!([1, 2])), InvalidArgument),
        (wrong("embedding", json!([1, 2, 1e30])), InvalidArgument),
        (wrong("embedding", json!([1, 2, "a"])), InvalidArgument),
        (wrong("record", json!("AAAA")), InvalidArgument),
        (wrong("record", json!("")), InvalidArgument),
        (wrong("record", json!(bare)), InvalidArgument),
        (wrong("payload", json!({ "__millpond_id": 1 })), InvalidArgument),
        (wrong("payload", json!([])), InvalidArgument),
        (wrong("payload", long), TooLarge),
        (wrong("id", json!(1)), InvalidArgument),
        (wrong("id", json!("x")), InvalidArgument),
        (wrong("colour", json!(1)), InvalidArgument),
    ] {
        for name in ["put_images", "put_features"] {
            let error =
                apply(&named, &json!({ name: { "points": [good(1), wrong] } })).unwrap_err();
            // A payload of features may have no reserved key either.
            assert_eq!(error.kind(), kind, "{name} {error}");
            assert!(error.message().contains("points[1]"), "{error}");
        }
    }
    for operation in [
        json!({ "put_images": { "points": [] } }),
        json!({ "put_images": { "points": many } }),
        json!({ "put_images": { "points": [good(1)], "more": 1 } }),
        json!({ "put_images": { "points": [good(1)] }, "put_features": { "points": [good(1)] } }),
        json!({ "delete": { "points": [1] } }),
        json!([1]),
    ] {
        let error = apply(&named, &operation).unwrap_err();
        assert_eq!(error.kind(), InvalidArgument, "{error}");
    }
    assert!(points(&named).is_empty());
    let settings = CollectionSettings::new(3, search::Metric::Cosine);
    let plain = registry.create("plain", settings).unwrap();
    let error = apply(&plain, &json!({ "put_images": { "points": [good(1)] } })).unwrap_err();
    assert_eq!(error.kind(), InvalidArgument, "{error}");
}

fn checked(
    body: &Value,
    wanted: &WantedImages,
    existing: Option<(&ImageSettings, usize)>,
) -> Result<CheckedPoints> {
    read_features(body.to_string().as_bytes(), "c", wanted, existing)
}

#[test]
fn features_of_a_request_become_points_of_operations() {
    let directory = tempfile::tempdir().unwrap();
    let named = photos().create_shard(&open(directory.path()), "c.0000", 3, "s").unwrap();
    let model = WantedImages { kind: None, model: Some("colour".to_owned()) };
    let body = json!({ "points": [
        element(&json!(UUID), 1, &json!({ "name": "a.jpg", "kind": "photo", "model": "colour", "payload": { "n": 0.1 } })),
        element(&json!(9), 2, &json!({})),
    ] });
    let read = checked(&body, &WantedImages::default(), None).unwrap();
    assert_eq!((&read.settings, read.dims), (&photos(), 3));
    assert_eq!(checked(&body, &model, Some((&photos(), 3))).unwrap(), read);
    let ids: Vec<PointId> = read.points.iter().map(|point| point.id).collect();
    assert_eq!(ids, [UUID.parse().unwrap(), PointId::Number(9)]);
    let texts: Vec<&str> = read.points.iter().map(|point| point.text.as_str()).collect();
    apply_image_operation(&named, features_operation(&texts).as_bytes()).unwrap();
    let block = json!({ "name": "a.jpg", "width": 640, "height": 480, "keypoints": 256 });
    assert_eq!(payload(&named, &ids[0]), json!({ "n": 0.1, "image": block }));
    let stored = named.get(&ids[0]).unwrap().unwrap();
    assert_eq!(stored.record, decoded(&body["points"][0]["record"]));
}

#[test]
fn wrong_features_are_refused() {
    let none = WantedImages::default();
    let good = || json!({ "points": [element(&json!(1), 1, &json!({}))] });
    let of = |members: Value| json!({ "points": [element(&json!(1), 1, &members)] });
    let print = WantedImages { kind: Some(fingers().kind), model: None };
    let other = WantedImages { kind: None, model: Some("other".to_owned()) };
    let own = photos();
    let photo = Some((&own, 3));
    use ErrorKind::{FailedPrecondition, InvalidArgument, NotFound, TooLarge};
    for (body, wanted, existing, kind, words) in [
        (good(), &none, None, NotFound, "name the model"),
        (good(), &print, photo, FailedPrecondition, "is of kind photo"),
        (good(), &other, photo, FailedPrecondition, "was made with model \"colour\""),
        (good(), &none, Some((&own, 4)), InvalidArgument, "has 3 values"),
        (of(json!({ "model": "other" })), &none, photo, InvalidArgument, "model \"other\""),
        (of(json!({ "kind": "fingerprint" })), &none, photo, InvalidArgument, "kind fingerprint"),
        (of(json!({ "payload": { "image": 1 } })), &none, photo, InvalidArgument, "service's own"),
        (
            of(json!({ "payload": { "t": "x".repeat(61 << 10) } })),
            &none,
            photo,
            TooLarge,
            "points[0]",
        ),
        (json!({ "points": [] }), &none, photo, InvalidArgument, "0 points"),
        (json!([]), &none, photo, InvalidArgument, ""),
    ] {
        let error = checked(&body, wanted, existing).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.message().contains(words), "{error}, not {words}");
    }
    let large = vec![b' '; (64 << 20) + 1];
    let error = read_features(&large, "c", &none, photo).unwrap_err();
    assert_eq!(error.kind(), TooLarge);
}

#[test]
fn logged_features_fit_beside_the_facts_of_any_original() {
    let directory = tempfile::tempdir().unwrap();
    let named = photos().create_shard(&open(directory.path()), "c.0000", 3, "s").unwrap();
    // The longest name in JSON, and a long key.
    let mut largest = with_original(&"\u{1}".repeat(512));
    largest["image"]["original"] = json!(format!("{}/originals/5c/{UUID}.jpeg", "c".repeat(255)));
    apply(&named, &json!({ "put_images": { "points": [image(&json!(UUID), 1, &largest)] } }))
        .unwrap();
    let features = |bytes: usize| {
        let text = json!({ "payload": { "t": "x".repeat(bytes) } });
        let body = json!({ "points": [element(&json!(UUID), 2, &text)] });
        checked(&body, &WantedImages::default(), Some((&photos(), 3)))
    };
    let (mut fits, mut fails) = (0, 64 << 10);
    while fits + 1 < fails {
        let half = usize::midpoint(fits, fails);
        if features(half).is_ok() { fits = half } else { fails = half }
    }
    assert!(fits > 59 << 10, "{fits}");
    let LoggedPoint { text, .. } = features(fits).unwrap().points.remove(0);
    apply_image_operation(&named, features_operation(&[&text]).as_bytes()).unwrap();
    let kept = payload(&named, &UUID.parse().unwrap());
    assert_eq!(kept["t"].as_str().unwrap().len(), fits);
    assert_eq!(kept["image"]["name"], largest["image"]["name"]);
}

#[test]
fn a_damaged_point_fails_as_damage() {
    let directory = tempfile::tempdir().unwrap();
    let registry = open(directory.path());
    let named = photos().create_shard(&registry, "c.0000", 3, "s").unwrap();
    let mark = "a mark in the payload of the image";
    let mut stored = with_original("a.png");
    stored["mark"] = json!(mark);
    apply(&named, &json!({ "put_images": { "points": [image(&json!(UUID), 1, &stored)] } }))
        .unwrap();
    named.collection().flush().unwrap();
    let files = named.directory().to_path_buf();
    drop((named, registry));
    assert_eq!(damage(&files, mark.as_bytes()), 1);
    let registry = open(directory.path());
    assert!(registry.wait_open(std::time::Duration::from_secs(60)));
    let named = registry.get("c.0000").unwrap();
    let other = element(&json!(UUID), 2, &json!({}));
    let error = apply(&named, &json!({ "put_features": { "points": [other] } })).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DataLoss, "{error}");
}

/// Flips a bit of each occurrence of `bytes` in the segments below `directory`. Returns the number
/// of occurrences.
fn damage(directory: &std::path::Path, bytes: &[u8]) -> usize {
    let mut changed = 0;
    for entry in std::fs::read_dir(directory).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            changed += damage(&path, bytes);
            continue;
        }
        let mut file = std::fs::read(&path).unwrap();
        let found = file.windows(bytes.len()).position(|window| window == bytes);
        let name = entry.file_name();
        if let Some(at) = found.filter(|_| !name.to_string_lossy().starts_with("log-")) {
            file[at] ^= 1;
            std::fs::write(&path, file).unwrap();
            changed += 1;
        }
    }
    changed
}
