//! `/openapi.json`: one document for all routes, joined from one description per API.
//!
//! The tests compare it with the routes of the router, so a route without a description fails.

use std::sync::LazyLock;

use bytes::Bytes;
use serde_json::{Map, Value, json};
use transport::Reply;

use super::operations;

/// A description per API, in the order of the page.
pub(crate) const DESCRIPTIONS: [&str; 7] = [
    include_str!("openapi/oip.json"),
    include_str!("openapi/tfs.json"),
    api_audio::OPENAPI,
    api_images::OPENAPI,
    api_qdrant::OPENAPI,
    api_qdrant::backups::OPENAPI,
    include_str!("openapi/server.json"),
];

/// Key of a path that exists for versions or labels of a model too. Its value lists them.
const TARGETS: &str = "x-targets";

/// A part of a model that a path can name.
struct PathTarget {
    /// Word for the target in [`TARGETS`] and in paths.
    word: &'static str,
    /// Name of its parameter in paths.
    parameter: &'static str,
    /// Name of its parameter in the components, and suffix of operation ids.
    component: &'static str,
}

const PATH_TARGETS: [PathTarget; 2] = [
    PathTarget { word: "versions", parameter: "version", component: "Version" },
    PathTarget { word: "labels", parameter: "label", component: "Label" },
];

static DOCUMENT: LazyLock<Bytes> = LazyLock::new(|| document().to_string().into());

pub(super) async fn openapi() -> Reply {
    Reply::json(DOCUMENT.clone())
}

/// Joins the descriptions of all APIs to one OpenAPI document.
pub(crate) fn document() -> Value {
    let mut tags = Vec::new();
    let mut paths = Map::new();
    let mut components = Map::new();
    for description in DESCRIPTIONS {
        // A test parses all of them.
        let Ok(mut api) = serde_json::from_str::<Value>(description) else { continue };
        let info = api["info"].take();
        for (path, mut item) in members(api["paths"].take()) {
            for operation in item.as_object_mut().into_iter().flat_map(Map::values_mut) {
                let Some(operation) = operation.as_object_mut() else { continue };
                operation.insert("tags".to_owned(), json!([info["title"]]));
                if operations::is_open(&path) {
                    operation.insert("security".to_owned(), json!([]));
                } else {
                    add_key_errors(operation);
                }
            }
            paths.extend(with_targets(path, item));
        }
        for (kind, named) in members(api["components"].take()) {
            let all = components.entry(kind).or_insert_with(|| json!({}));
            all.as_object_mut().into_iter().for_each(|all| all.extend(members(named.clone())));
        }
        tags.push(json!({ "name": info["title"], "description": info["description"] }));
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Millpond",
            "version": crate::VERSION,
            "description": "Serves models over the Open Inference Protocol and TensorFlow Serving's API, \
                recognises audio, and searches images and vectors. The page /docs tries each call.",
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "servers": [{ "url": "/" }],
        // The empty object stands for a server without keys.
        "security": [{}, { "key": [] }, { "bearer": [] }],
        "tags": tags,
        "paths": paths,
        "components": components,
    })
}

/// Adds the responses to requests whose key is not accepted, unless `default` describes them.
fn add_key_errors(operation: &mut Map<String, Value>) {
    let responses = operation.get_mut("responses").and_then(Value::as_object_mut);
    let Some(responses) = responses.filter(|responses| !responses.contains_key("default")) else {
        return;
    };
    for (status, component) in [("401", "KeyMissing"), ("403", "KeyRefused")] {
        let reference = json!({ "$ref": format!("#/components/responses/{component}") });
        responses.entry(status).or_insert(reference);
    }
}

fn members(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(members) => members,
        _ => Map::new(),
    }
}

/// Returns the path, and the same for each of its [`TARGETS`].
fn with_targets(path: String, mut item: Value) -> Vec<(String, Value)> {
    let targets = item.as_object_mut().and_then(|item| item.remove(TARGETS)).unwrap_or_default();
    let listed = |target: &&PathTarget| {
        targets.as_array().is_some_and(|words| words.iter().any(|word| *word == target.word))
    };
    let mut all = Vec::new();
    for target in PATH_TARGETS.iter().filter(listed) {
        let PathTarget { word, parameter, component } = target;
        let mut item = item.clone();
        for (_, value) in item.as_object_mut().into_iter().flatten() {
            if let Some(parameters) = value.as_array_mut() {
                parameters.push(json!({ "$ref": format!("#/components/parameters/{component}") }));
            } else if let Some(id) = value.get_mut("operationId") {
                *id = json!(format!("{}Of{component}", id.as_str().unwrap_or_default()));
            }
        }
        all.push((path.replace("{model}", &format!("{{model}}/{word}/{{{parameter}}}")), item));
    }
    all.push((path, item));
    all
}
