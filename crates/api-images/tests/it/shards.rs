//! Shards through the routes of one server, and answers from payloads.

use api_images::{original_key, page_entry, present_answer};
use http::Method;
use image_features::testing::{element, photos, with_original};
use search::points::PointId;
use serde_json::{Map, Value, json};

use crate::world::{OperationKind, World, read};

#[test]
fn local_routes_find_a_shard() {
    let world = World::start();
    let shards = world.shards("c-1", &photos(), 3, 1);
    let body = json!({ "points": [element(&json!(4), 1, &json!({ "name": "a" }))] });
    shards.write(OperationKind::Features, &read(&photos(), 3, &body).unwrap());
    let (status, page) = world.json(Method::GET, "/v1/images/c-1.0000", &json!({}));
    assert_eq!(
        (status.as_u16(), &page["count"], &page["images"][0]["id"]),
        (200, &json!(1), &json!(4))
    );
    let (_, keypoints) = world.json(Method::GET, "/v1/images/c-1.0000/4/keypoints", &json!({}));
    assert_eq!(keypoints["kind"], "photo");
}

#[test]
fn answers_follow_from_a_payload() {
    const UUID: &str = "5c56c793-69f3-8fbf-87e6-c4bf54c28c26";
    let id: PointId = UUID.parse().unwrap();
    let object = |value: Value| value.as_object().cloned().unwrap();
    let payload = object(with_original("a.png"));
    assert_eq!(original_key(&payload), Some("c-1/originals/5c/x.png"));
    let present = json!({
        "id": UUID, "status": "present", "name": "a.png", "width": 10, "height": 20, "keypoints": 3,
    });
    assert_eq!(present_answer(&id, &payload), Some(present));
    assert_eq!(present_answer(&id, &Map::new()), None);
    let features = object(json!({ "image": { "name": "a.png" } }));
    assert_eq!((present_answer(&id, &features), original_key(&features)), (None, None));
    let entry = json!({
        "id": UUID, "name": "a.png", "format": "png", "width": 10, "height": 20, "bytes": 9, "keypoints": 3,
        "payload": { "seed": 1 },
    });
    assert_eq!(page_entry(&id, payload), entry);
}
