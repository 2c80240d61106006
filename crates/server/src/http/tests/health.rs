//! Health and readiness of the server.

use super::*;

const READY: &str = "/v2/health/ready";
const BROKEN: &str =
    "millpond-fake 1\ninput x float32 n\noutput y float32 n\ny = echo x\nfail-load it is broken\n";

#[test]
fn readyz_names_each_model_that_does_not_serve() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["bad", "worse"] {
        publish(&dir.path().join("models").join(name).join("1"), BROKEN, &[]).unwrap();
    }
    let served = served(dir.path(), |_| {});
    let answer = served.ask("GET", "/readyz", "", b"");
    assert_eq!((answer.status, &answer.json()["ready"]), (503, &false.into()));
    let answer = answer.json();
    let models = answer["models"].as_object().unwrap();
    assert_eq!(models.keys().collect::<Vec<_>>(), ["bad", "worse"]);
    assert!(models["worse"].as_str().unwrap().contains("it is broken"), "{answer}");
    assert!(answer["error"].as_str().unwrap().ends_with("; GET /readyz names 1 more"), "{answer}");
    assert_eq!(served.ask("GET", "/livez", "", b"").text(), "healthz check passed");
    served.server.readiness.stop();
    let answer = served.ask("GET", "/readyz", "", b"");
    assert_eq!(answer.json()["error"], "the server is shutting down");
}

#[test]
fn the_policy_chooses_the_models_that_must_serve() {
    let dir = tempfile::tempdir().unwrap();
    publish(&dir.path().join("models/bad/1"), BROKEN, &[]).unwrap();
    for (policy, status, alone) in [
        (ReadinessPolicy::All, 503, 503),
        (ReadinessPolicy::Any, 200, 503),
        (ReadinessPolicy::Server, 200, 200),
    ] {
        let served = served(dir.path(), |config| config.listeners.readiness = policy);
        let statuses = || ["/readyz", READY].map(|path| served.ask("GET", path, "", b"").status);
        assert_eq!(statuses(), [status; 2], "{policy:?}");
        let path = "/v2/repository/models/echo/unload";
        assert_eq!(served.ask("POST", path, "", b"").status, 200);
        assert_eq!(statuses(), [alone; 2], "{policy:?} with the failed model alone");
    }
}

#[test]
fn a_model_that_cannot_serve_makes_the_server_not_ready() {
    let dir = tempfile::tempdir().unwrap();
    let models = dir.path().join("models");
    publish(&models.join("bad/1"), BROKEN, &[]).unwrap();
    let served = served(dir.path(), |_| {});
    let answer = served.ask("GET", READY, "", b"");
    assert_eq!((answer.status, &answer.json()["ready"]), (503, &false.into()));
    let error = answer.json()["error"].as_str().unwrap().to_owned();
    assert!(
        error.contains("model \"bad\" does not serve") && error.contains("it is broken"),
        "{error}"
    );
    assert_eq!(served.ask("POST", INFER, "", format!("{{{INPUT}}}").as_bytes()).status, 200);

    publish(&models.join("bad/2"), ECHO, &[]).unwrap();
    let answer = until_answer(&served, READY, |answer| answer.status == 200);
    assert_eq!(answer.json(), serde_json::json!({ "ready": true }));

    // The old version serves.
    publish(&models.join("bad/3"), BROKEN, &[]).unwrap();
    let failed = |answer: &loopback::Answer| answer.text().contains("it is broken");
    until_answer(&served, "/v1/models/bad/versions/3", failed);
    assert_eq!(served.ask("GET", READY, "", b"").status, 200);
}

#[test]
fn health_answers_have_bodies() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(dir.path(), |_| {});
    let json = |path: &str| served.ask("GET", path, "", b"").json();
    assert_eq!(json("/v2/health/live"), serde_json::json!({ "live": true }));
    assert_eq!(json(READY), serde_json::json!({ "ready": true }));
    assert_eq!(json("/v2/models/echo/ready"), serde_json::json!({ "name": "echo", "ready": true }));
}
