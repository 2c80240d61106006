//! Requests to models, and the errors that wrong ones get.

use super::*;

#[test]
fn an_output_is_requested_once() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(dir.path(), |_| {});
    let ask = |outputs: &str| {
        let body = format!("{{{INPUT},\"outputs\":[{outputs}]}}");
        served.ask("POST", INFER, "", body.as_bytes())
    };
    assert_eq!(ask(r#"{"name":"y"}"#).status, 200);
    let twice = ask(r#"{"name":"y"},{"name":"y"}"#);
    assert!(
        twice.status == 400 && twice.text().contains("twice"),
        "{} {}",
        twice.status,
        twice.text()
    );
}

#[test]
fn models_are_listed_and_wrong_requests_get_hints() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(dir.path(), |_| ());
    let check = |method: &str, path: &str, status: u16, wanted: &str| {
        let answer = served.ask(method, path, "", b"");
        assert_eq!(answer.status, status, "{method} {path}: {}", answer.text());
        assert!(answer.text().contains(wanted), "{method} {path}: {}", answer.text());
        answer.head
    };
    for path in ["/v1/models", "/v2/models"] {
        check("GET", path, 200, r#"{"models":["echo"]}"#);
    }
    let head = check("GET", "/favicon.ico", 200, "<svg");
    assert!(head.contains("content-type: image/svg+xml"), "{head}");
    let head = check("GET", "/v1/models/echo:predict", 405, "predict takes POST");
    assert!(head.contains("\r\nallow: post\r\n"), "{head}");
    let head = check("POST", "/v1/models/echo", 405, "did you mean /v1/models/echo:predict?");
    assert!(head.contains("\r\nallow: get\r\n"), "{head}");
    check(
        "POST",
        "/v2/models/echo",
        405,
        "does not take POST; did you mean /v2/models/echo/infer?",
    );
    check(
        "POST",
        "/v2/models/echo/versions/1",
        405,
        "did you mean /v2/models/echo/versions/1/infer?",
    );
    check("GET", INFER, 405, "did you mean POST /v2/models/echo/infer?");
    check("OPTIONS", INFER, 405, "start it with --cors ORIGIN");
    check("GET", "/doc", 404, "not found: /doc; the API is under /v1/models");
    check("GET", "/collections/c/", 404, "/collections/c/; leave out the last slash; the API");
    for path in ["/v2/models/ehco", "/v1/models/ehco"] {
        check("GET", path, 404, r#"no model \"ehco\" is served here; did you mean \"echo\"?"#);
    }
    check("GET", "/v2/models/classifier", 404, r#"is served here; the models are echo""#);
}

#[test]
fn routes_of_triton_that_are_not_offered_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(dir.path(), |_| {});
    for (method, path) in [
        ("GET", "/v2/systemsharedmemory/status"),
        ("POST", "/v2/cudasharedmemory/region/r/register"),
        ("POST", "/v2/models/echo/generate"),
    ] {
        let answer = served.ask(method, path, "", b"");
        assert_eq!(answer.status, 501, "{path}");
        assert!(answer.text().contains("is not offered"), "{}", answer.text());
    }
    assert_eq!(served.ask("GET", "/v2/elsewhere", "", b"").status, 404);
}

#[test]
fn mistakes_in_tensorflow_requests_are_400() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(dir.path(), |_| {});
    for (method, path) in [
        ("GET", "/v1/models/echo/elsewhere"),
        ("GET", "/v1/models/echo/versions/18446744073709551615"),
        ("POST", "/v1/models/echo:elsewhere"),
        ("POST", "/v1/models/echo/labels/none:predict"),
    ] {
        let answer = served.ask(method, path, "", br#"{"instances":[1.0]}"#);
        assert_eq!(answer.status, 400, "{path}: {}", answer.text());
    }
    let signature = br#"{"signature_name":"other","instances":[1.0]}"#;
    assert_eq!(served.ask("POST", "/v1/models/echo:predict", "", signature).status, 400);
    assert_eq!(served.ask("GET", "/v1/models/none", "", b"").status, 404);
}

#[test]
fn the_last_axis_of_one_may_be_left_out() {
    let dir = tempfile::tempdir().unwrap();
    let column = "millpond-fake 1\ninput x float32 n 1\noutput y float32 n 1\ny = echo x\n";
    publish(&dir.path().join("models/column/1"), column, &[]).unwrap();
    let served = served(dir.path(), |_| {});
    let predict = |body: &str| served.ask("POST", "/v1/models/column:predict", "", body.as_bytes());
    let answer = predict(r#"{"instances":[1.0,2.0,5.0]}"#);
    assert_eq!(answer.json(), serde_json::json!({ "predictions": [1.0, 2.0, 5.0] }));
    let answer = predict(r#"{"instances":[[1.0],[2.0]]}"#);
    assert_eq!(answer.json(), serde_json::json!({ "predictions": [[1.0], [2.0]] }));
    let flat = br#"{"inputs":[{"name":"x","datatype":"FP32","shape":[2],"data":[1,2]}]}"#;
    assert_eq!(served.ask("POST", "/v2/models/column/infer", "", flat).status, 400);
}

#[test]
fn parameters_are_known_or_refused() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(dir.path(), |_| {});
    let ask = |parameters: &str| {
        let body = format!("{{{INPUT},\"parameters\":{{{parameters}}}}}");
        served.ask("POST", INFER, "", body.as_bytes())
    };
    for (parameters, status, says) in [
        (r#""sequence_id":7,"sequence_start":true"#, 501, "sequences are not offered"),
        (r#""sequence_id":0,"sequence_start":false,"sequence_end":false"#, 200, ""),
        (r#""temperature":0.5"#, 400, "\\\"temperature\\\""),
        (r#""priority":0,"timeout":1000000"#, 200, ""),
    ] {
        let answer = ask(parameters);
        assert!(
            answer.status == status && answer.text().contains(says),
            "{parameters}: {}",
            answer.text()
        );
    }
}

#[test]
fn a_missing_input_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(dir.path(), |_| {});
    let answer = served.ask("POST", INFER, "", br#"{"inputs":[]}"#);
    assert!(answer.status == 400 && answer.text().contains("echo/1: "), "{}", answer.text());
}

#[test]
fn uneven_batch_sizes_are_the_clients_mistake() {
    let dir = tempfile::tempdir().unwrap();
    let pair =
        "millpond-fake 1\ninput a float32 n\ninput b float32 m\noutput y float32 k\ny = echo a\n";
    publish(&dir.path().join("models/pair/1"), pair, &[]).unwrap();
    publish(&dir.path().join("models/broken/1"), &format!("{pair}fail-run sizes\n"), &[]).unwrap();
    let served = served(dir.path(), |_| {});
    let ask = |model: &str, body: &str| {
        let path = format!("/v1/models/{model}:predict");
        served.ask("POST", &path, "", body.as_bytes())
    };
    let (even, uneven) =
        (r#"{"inputs":{"a":[5.0,6.0],"b":[1.0,2.0]}}"#, r#"{"inputs":{"a":[5.0,6.0],"b":[1.0]}}"#);
    assert_eq!(
        (ask("pair", even).status, ask("pair", uneven).status),
        (200, 200),
        "a model may take it"
    );
    assert_eq!(ask("broken", even).status, 500);
    let refused = ask("broken", uneven);
    assert_eq!(refused.status, 400);
    assert!(refused.text().contains("differ in batch size"), "{}", refused.text());
}

#[test]
fn a_replaced_version_is_not_found() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(dir.path(), |_| {});
    let path = "/v1/models/echo/versions/1/metadata";
    assert_eq!(served.ask("GET", path, "", b"").status, 200);
    publish(&dir.path().join("models/echo/2"), ECHO, &[]).unwrap();
    let answer = until_answer(&served, path, |answer| answer.status == 404);
    let wanted = "Servable not found for request: Specific(echo, 1)";
    assert!(answer.text().contains(wanted), "{}", answer.text());
}
