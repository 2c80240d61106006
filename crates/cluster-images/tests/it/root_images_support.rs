//! Nodes that answer as the holders of a collection of images.

use std::sync::Arc;

use api_images::{BulkResources, ImageKind, ImageSettings};
use axum::Router;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cluster_images::{ImageRootState, image_routes};
use cluster_root::RootState;
use search::points::PointId;
use serde_json::{Value, json};
use transport::ByteBudget;
use transport::access::{AccessPolicy, CorsPolicy};

use crate::root_support::{FakeNode, TestRoot};

/// Shards of the collection "c".
pub(crate) const SHARDS: u32 = 4;
/// Score of the even points.
pub(crate) const EVEN_SCORE: f32 = 90.0;

/// Score of the odd points with a mirrored query.
pub(crate) const MIRRORED_SCORE: f32 = 99.0;

/// Returns the shard of a point.
pub(crate) fn shard_of(id: u64) -> u32 {
    cluster::shard_of(PointId::Number(id).to_string().as_bytes(), SHARDS).unwrap().0
}

/// Returns the points of a shard: numbers from 0 to 39.
fn own(shard: u32) -> impl DoubleEndedIterator<Item = u64> {
    (0..40).filter(move |id| shard_of(*id) == shard)
}

/// Returns the similarity of a point: larger numbers are more similar.
fn coarse(id: u64) -> f32 {
    id as f32 / 100.0
}

fn hit(id: u64, score: f32) -> Value {
    let shown = json!({"id": id, "score": score, "coarse": coarse(id)});
    json!({"key": id, "id": id, "score": score, "coarse": coarse(id), "shown": shown})
}

/// Answers a read as a shard of images does.
pub(crate) fn images(shard: u32, request: &Value) -> Value {
    let body = &request["body"];
    let limit = |name: &str| body[name].as_u64().unwrap_or(10) as usize;
    match request["path"].as_str().unwrap() {
        "images/coarse" => {
            let ids: Vec<u64> = own(shard).rev().take(limit("candidates")).collect();
            let coarse: Vec<f32> = ids.iter().map(|id| coarse(*id)).collect();
            json!({"ids": ids, "coarse": coarse, "of": own(shard).count(), "partial": false})
        }
        "images/rank" if body["prints"].is_object() => {
            let hits: Vec<Value> =
                own(shard).rev().take(limit("k")).map(|id| hit(id, id as f32)).collect();
            let all = own(shard).count();
            json!({"hits": hits, "compared": all, "of": all, "partial": false})
        }
        "images/rank" => {
            let ids = body["candidates"]["ids"].as_array().unwrap().iter();
            let ids: Vec<u64> = ids.map(|id| id.as_u64().unwrap()).collect();
            let chosen: Vec<u64> = own(shard).filter(|id| ids.contains(id)).collect();
            assert!(!chosen.is_empty(), "shard {shard} has none of {ids:?}");
            let mirrored = body["view"]["kind"] == "mirrored";
            let score = |id: u64| match (id.is_multiple_of(2), mirrored) {
                (true, _) => EVEN_SCORE,
                (false, true) => MIRRORED_SCORE,
                (false, false) => 0.0,
            };
            let hits: Vec<Value> = chosen.iter().map(|id| hit(*id, score(*id))).collect();
            // Without a filter, all points of the shard could match.
            json!({"hits": hits, "compared": chosen.len(), "of": 1000, "partial": false})
        }
        "points" => {
            let ids = body["ids"].as_array().unwrap().iter();
            let found = ids.filter_map(Value::as_u64).filter(|id| own(shard).any(|it| it == *id));
            found.map(|id| json!({"id": id, "payload": payload(id)})).collect()
        }
        "points/count" => json!({"count": own(shard).count()}),
        "points/scroll" => {
            let from = body["offset"].as_u64().unwrap_or(0);
            let rest: Vec<u64> = own(shard).filter(|id| *id >= from).collect();
            let page = rest.iter().take(limit("limit"));
            let page: Vec<Value> =
                page.map(|id| json!({"id": id, "payload": payload(*id)})).collect();
            json!({"points": page, "next_page_offset": rest.get(limit("limit"))})
        }
        other => panic!("{other}"),
    }
}

fn payload(id: u64) -> Value {
    let block = json!({"name": format!("{id}.png"), "width": 3, "height": 4, "original": "x/y"});
    json!({"image": block, "n": id})
}

/// Returns the features of a point, as the route of a stored image has them.
pub(crate) fn features(id: u64) -> Value {
    let mut record = Vec::new();
    matching::Graph::default().encode(&mut record);
    json!({"id": id, "embedding": [0.5, 0.25], "record": STANDARD.encode(record)})
}

/// Returns the routes of images of a root that extracts nothing.
fn routes_of_images(root: &Arc<RootState>) -> Router {
    let access = AccessPolicy {
        host: [127, 0, 0, 1].into(),
        allowed_hosts: Vec::new(),
        allow_remote_admin: false,
        keys: None,
        cors: CorsPolicy::default(),
        metrics: root.requests.metrics.clone(),
    };
    let bulk = BulkResources::new(root.requests.clone(), Arc::new(access), None);
    let state = ImageRootState::new(root.clone()).with_bulk(Arc::new(bulk));
    image_routes().with_state(Arc::new(state))
}

/// Returns a root with the routes of images, which sees nothing.
pub(crate) fn empty_root() -> TestRoot {
    TestRoot::with_routes(routes_of_images)
}

/// Returns a root with the collection "c", which is not one of images.
pub(crate) fn points_root() -> TestRoot {
    let root = empty_root();
    root.add_collection(SHARDS, "Cosine");
    root
}

/// Returns a root with the collection "c" of images.
pub(crate) fn image_root(kind: ImageKind) -> TestRoot {
    let root = points_root();
    hold_images(&root, kind);
    root
}

/// Returns a root with the collection "c" of images, and the memory of its requests.
pub(crate) fn root_with_memory(kind: ImageKind) -> (TestRoot, Arc<ByteBudget>) {
    let mut memory = None;
    let root = TestRoot::with_routes(|state| {
        memory = Some(state.requests.memory.clone());
        routes_of_images(state)
    });
    root.add_collection(SHARDS, "Cosine");
    hold_images(&root, kind);
    (root, memory.unwrap())
}

/// Makes the collection "c" one of images.
fn hold_images(root: &TestRoot, kind: ImageKind) {
    root.view.update(|view| {
        let record = view.collections.get_mut("c").unwrap();
        record.images = Some(ImageSettings { kind, model: "colour".to_owned() });
    });
}

/// Returns a root, and two nodes that hold all shards. Node "a" owns the even shards.
pub(crate) async fn two_nodes(kind: ImageKind) -> (TestRoot, [Arc<FakeNode>; 2]) {
    let root = image_root(kind);
    let nodes = [FakeNode::start("a", images).await, FakeNode::start("b", images).await];
    for node in &nodes {
        root.serve(node.name, &node.address, &[0, 1, 2, 3]);
    }
    for shard in 0..SHARDS {
        root.own(nodes[(shard % 2) as usize].name, shard, 1);
    }
    (root, nodes)
}

/// Returns the ids of a search's results.
pub(crate) fn result_ids(answer: &Value) -> Vec<u64> {
    let results = answer["results"].as_array().unwrap_or_else(|| panic!("{answer}"));
    results.iter().map(|hit| hit["id"].as_u64().unwrap()).collect()
}
