//! Compares the document of `/openapi.json` with the routes of the router.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use engine::fake::FakeEngine;
use serde_json::Value;

use crate::http::{openapi, router};
use crate::loopback::{self, Loopback};
use crate::surface::Surface;

/// Routes that the document leaves out: pages, and second names.
const LEFT_OUT: [&str; 13] = [
    "/",
    "/try",
    "/vectors",
    "/nodes",
    "/audio",
    "/images",
    "/docs",
    "/events",
    "/favicon.ico",
    "/login",
    "/logout",
    "/session",
    "/v2/",
];

/// Routes that answer 501 to every method that they accept.
const NOT_OFFERED: [&str; 9] = [
    "/collections/{collection}/{*item}",
    "/snapshots",
    "/snapshots/{*item}",
    "/telemetry",
    "/quotas",
    "/quotas/{*item}",
    "/cluster/telemetry",
    "/cluster/recover",
    "/cluster/peer/{item}",
];

/// A route that answers 501 with the reason for a collection that exists.
const REFUSED: &str = "/collections/{collection}/points/vectors/delete";

/// A route that takes many paths of the document.
const SERVING: &str = "/v1/models/{*rest}";

const METHODS: [&str; 5] = ["get", "post", "put", "patch", "delete"];

fn served(dir: &std::path::Path) -> Loopback {
    let models = dir.join("models");
    std::fs::create_dir(&models).unwrap();
    let mut config = loopback::configuration(dir, &models);
    config.search.directory = Some(dir.join("collections"));
    Loopback::start(&config, Arc::new(FakeEngine::new()))
}

/// Returns the methods of each path. The router's debug output is the only list of its routes.
fn routes(router: &axum::Router) -> BTreeMap<String, BTreeSet<&'static str>> {
    let debug = format!("{router:?}");
    let (routes, rest) = debug.split_once("node: Node { paths: {").expect("axum's output changed");
    let mut methods = BTreeMap::new();
    for route in routes.split("RouteId(").skip(1) {
        let (id, handlers) = route.split_once(')').unwrap();
        let taken = METHODS.into_iter().filter(|method| {
            let handler = handlers.split_once(&format!(" {method}: ")).unwrap().1;
            !handler.starts_with("None")
        });
        methods.insert(id, taken.collect());
    }
    let paths = rest.split_once("\"} }").unwrap().0;
    let path = |entry: &str| {
        let (id, path) = entry.split_once("): \"").unwrap();
        (path.split('"').next().unwrap().to_owned(), methods.remove(id).unwrap())
    };
    paths.split("RouteId(").skip(1).map(path).collect()
}

/// Returns the methods of each path of the document.
fn described(document: &Value) -> BTreeMap<String, BTreeSet<&'static str>> {
    let paths = document["paths"].as_object().unwrap().iter();
    let methods =
        |item: &Value| METHODS.into_iter().filter(|name| !item[*name].is_null()).collect();
    paths.map(|(path, item)| (path.clone(), methods(item))).collect()
}

#[test]
fn the_document_has_every_route_and_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(dir.path());
    let mut routes = routes(&router(&served.server, Surface::Whole));
    assert!(routes.len() > 70, "{routes:?}");
    for path in LEFT_OUT.iter().chain(&NOT_OFFERED).chain([&REFUSED]) {
        assert!(routes.remove(*path).is_some(), "{path} is not a route");
    }
    routes.retain(|path, _| !path.starts_with("/page"));
    let mut described = described(&openapi::document());
    let methods = routes.remove(SERVING).unwrap();
    let serving = described.extract_if(.., |path, _| path.starts_with("/v1/models/{model}"));
    let serving: BTreeSet<&str> = serving.flat_map(|(_, methods)| methods).collect();
    assert_eq!(serving, methods);
    assert_eq!(described, routes);
}

#[test]
fn routes_that_are_left_out_answer_501() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(dir.path());
    for path in NOT_OFFERED {
        let path = path.replace("{*item}", "a/b").replace(['{', '}'], "");
        let statuses =
            METHODS.map(|method| served.ask(&method.to_uppercase(), &path, "", b"").status);
        assert!(statuses.contains(&501), "{path} {statuses:?}");
        assert!(statuses.iter().all(|status| [405, 501].contains(status)), "{path} {statuses:?}");
    }
}

#[test]
fn references_resolve_and_no_name_is_used_twice() {
    let document = openapi::document();
    let text = document.to_string();
    let references: Vec<&str> = text.split("\"$ref\":\"#").skip(1).collect();
    assert!(references.len() > 200, "{}", references.len());
    for reference in references {
        let pointer = reference.split('"').next().unwrap();
        assert!(document.pointer(pointer).is_some(), "{pointer}");
    }
    let mut seen = BTreeMap::new();
    for api in openapi::DESCRIPTIONS {
        let api: Value = serde_json::from_str(api).unwrap();
        for (kind, named) in api["components"].as_object().into_iter().flatten() {
            for (name, component) in named.as_object().unwrap() {
                let key = format!("{kind}/{name}");
                let before = seen.insert(key.clone(), component.clone());
                assert!(before.is_none_or(|before| before == *component), "{key}");
            }
        }
    }
}

#[test]
fn the_document_is_served_with_the_version() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(dir.path());
    let document = served.ask("GET", "/openapi.json", "", b"").json();
    assert_eq!(document["info"]["version"], crate::VERSION);
    assert_eq!(document["servers"][0]["url"], "/");
    let predict = &document["paths"]["/v1/models/{model}/labels/{label}:predict"];
    assert_eq!(predict["post"]["operationId"], "predictOfLabel");
    assert_eq!(predict["parameters"][1]["$ref"], "#/components/parameters/Label");
}

#[test]
fn calls_need_a_key_except_health_checks() {
    let document = openapi::document();
    let schemes = &document["components"]["securitySchemes"];
    let ways = document["security"].as_array().unwrap();
    let named: Vec<&String> = ways.iter().flat_map(|way| way.as_object().unwrap().keys()).collect();
    assert_eq!(named, ["key", "bearer"]);
    assert!(named.iter().all(|name| schemes.get(name).is_some()), "{schemes}");
    let paths = document["paths"].as_object().unwrap().iter();
    let operations = paths.flat_map(|(path, item)| METHODS.map(|method| (path, &item[method])));
    let open: BTreeSet<&str> = operations
        .filter(|(_, operation)| !operation["security"].is_null())
        .map(|(path, _)| path.as_str())
        .collect();
    let health = ["/healthz", "/livez", "/readyz", "/v2/health/live", "/v2/health/ready"];
    assert_eq!(open, BTreeSet::from(health));
    assert_eq!(document["paths"]["/livez"]["get"]["security"], serde_json::json!([]));
    // Other calls describe all errors under `default`.
    let responses = &document["paths"]["/v2/models"]["get"]["responses"];
    assert_eq!(responses["401"]["$ref"], "#/components/responses/KeyMissing");
    assert_eq!(responses["403"]["$ref"], "#/components/responses/KeyRefused");
    assert!(document["paths"]["/livez"]["get"]["responses"].get("401").is_none());
}

/// `/v1/audio/openapi.json` and `/v1/images/openapi.json`.
#[test]
fn descriptions_that_are_served_alone_name_the_keys() {
    let document = openapi::document();
    for description in [api_audio::OPENAPI, api_images::OPENAPI] {
        let api: Value = serde_json::from_str(description).unwrap();
        assert_eq!(api["security"], document["security"]);
        let schemes = &api["components"]["securitySchemes"];
        assert_eq!(*schemes, document["components"]["securitySchemes"]);
    }
}
