//! Compares the descriptions of the APIs with their routes.

use serde_json::Value;

/// Asserts that an OpenAPI description has exactly the routes in `source`, and that its references
/// resolve.
#[track_caller]
fn check(openapi: &str, source: &str) {
    let described: Value = serde_json::from_str(openapi).unwrap();
    assert!(described["openapi"].as_str().unwrap().starts_with("3.1"));
    let mut routes = 0;
    let table = source.split("\n}").find(|item| item.contains(".route(")).unwrap();
    for route in table.split(".route(").skip(1) {
        let (path, methods) = route.trim_start_matches(['"', ' ', '\n']).split_once("\",").unwrap();
        let methods = methods.trim_start();
        let entry = &described["paths"][path];
        for method in ["get", "post", "put", "delete"] {
            let served = methods.starts_with(method) || methods.contains(&format!(".{method}("));
            assert_eq!(entry.get(method).is_some(), served, "{method} {path}");
        }
        routes += 1;
    }
    assert_eq!(routes, described["paths"].as_object().unwrap().len());
    let references: Vec<&str> = openapi.split("\"$ref\": \"#").skip(1).collect();
    assert!(references.len() > 10);
    for reference in references {
        let pointer = reference.split('"').next().unwrap();
        assert!(described.pointer(pointer).is_some(), "{pointer}");
    }
}

#[test]
fn images_are_described() {
    check(
        include_str!("../../../api-images/src/openapi.json"),
        include_str!("../../../api-images/src/endpoints.rs"),
    );
}

#[test]
fn audio_is_described() {
    check(
        include_str!("../../../api-audio/src/openapi.json"),
        include_str!("../../../api-audio/src/endpoints.rs"),
    );
}
