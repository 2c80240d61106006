//! A server with a file of keys: what each role may do over HTTP and gRPC.

use std::path::Path;
use std::sync::Arc;

use base::{NamedTensor, Tensor};
use engine::fake::FakeEngine;
use engine::fake::publish::publish;
use http::Uri;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use metrics::KindLabels;
use protocol::grpc::health::v1::HealthCheckRequest;
use protocol::grpc::health::v1::health_client::HealthClient;
use protocol::inference as pb;
use protocol::inference::grpc_inference_service_client::GrpcInferenceServiceClient;
use protocol::oip;
use protocol::tensorflow::serving::ReloadConfigRequest;
use protocol::tensorflow::serving::model_service_client::ModelServiceClient;
use search::Metric;
use search::registry::{AliasChange, CollectionSettings};
use serde_json::json;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;
use tonic::body::Body;

use crate::config::{Config, SearchConfig};
use crate::loopback::{self, Loopback};

const ECHO: &str = "millpond-fake 1\ninput x float32 n\noutput y float32 n\ny = echo x\n";
const BROKEN: &str =
    "millpond-fake 1\ninput x float32 n\noutput y float32 n\ny = echo x\nfail-load it is broken\n";
const EMBEDDER: &str =
    "millpond-fake 1\ninput x float32 n 3 2 3\noutput y float32 n 18\ny = echo x\n";
const INPUT: &[u8] = br#"{"inputs":[{"name":"x","datatype":"FP32","shape":[2],"data":[1,2]}]}"#;
/// BLAKE3 of "ranker", "reader", "writer", "root" and "slow" is computed by the test.
const KEYS: [(&str, &str); 9] = [
    ("ranker", "role = \"infer\"\nmodels = [\"rank*\"]"),
    ("runner", "role = \"infer\""),
    ("reader", "role = \"read\"\nmodels = []\ncollections = [\"pub*\"]"),
    ("writer", "role = \"write\"\ncollections = [\"pub*\"]"),
    ("copier", "role = \"write\"\nmodels = [\"rank*\"]"),
    ("root", "role = \"admin\""),
    ("keeper", "role = \"admin\"\nmodels = [\"rank*\"]"),
    ("slow", "role = \"infer\"\nrequests-per-second = 0.001"),
    ("metered", "role = \"infer\"\ncpu-seconds-per-minute = 0.000001"),
];

fn served(dir: &Path, change: impl FnOnce(&mut Config)) -> Loopback {
    for model in ["rank1", "echo"] {
        publish(&dir.join("models").join(model).join("1"), ECHO, &[]).unwrap();
    }
    let entry = |(key, rest): &(&str, &str)| {
        // The name of a key is its text here.
        let hash = blake3::hash(key.as_bytes()).to_hex();
        format!("[[keys]]\nname = \"{key}\"\nhash = \"blake3:{hash}\"\n{rest}\n")
    };
    std::fs::write(dir.join("keys.toml"), KEYS.iter().map(entry).collect::<String>()).unwrap();
    let mut config = loopback::configuration(dir, &dir.join("models"));
    config.listeners.keys = Some(dir.join("keys.toml"));
    config.search = SearchConfig { directory: Some(dir.join("data")), ..config.search };
    change(&mut config);
    let served = Loopback::start(&config, Arc::new(FakeEngine::new()));
    served.server.collections.start().unwrap();
    served
}

/// Returns the status of a request with a key, or without one for "".
fn status(served: &Loopback, key: &str, method: &str, path: &str, body: &[u8]) -> u16 {
    let header = match key {
        "" => String::new(),
        key => format!("Authorization: Bearer {key}\r\nContent-Type: application/json\r\n"),
    };
    served.ask(method, path, &header, body).status
}

#[test]
fn roles_hold_over_http() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(dir.path(), |_| {});
    let infer = |key: &str, model: &str| {
        status(&served, key, "POST", &format!("/v2/models/{model}/infer"), INPUT)
    };
    assert_eq!(["", "other", "ranker"].map(|key| infer(key, "rank1")), [401, 401, 200]);
    assert_eq!(
        (infer("ranker", "echo"), infer("root", "echo"), infer("reader", "rank1")),
        (403, 200, 403)
    );
    assert_eq!(infer("ranker", "%65cho"), 403, "names are decoded first");
    let predict = |model: &str| {
        status(
            &served,
            "ranker",
            "POST",
            &format!("/V1/models/{model}:predict"),
            br#"{"instances":[1]}"#,
        )
    };
    assert_eq!((predict("rank1"), predict("echo")), (200, 403));
    let get = |key: &str, path: &str| status(&served, key, "GET", path, b"");
    assert_eq!(["", "ranker", "reader"].map(|key| get(key, "/metrics")), [401, 403, 200]);
    for path in ["/v2/health/live", "/v2/health/ready", "/healthz", "/livez", "/readyz"] {
        assert_eq!(get("", path), 200, "{path}");
    }
    assert_eq!(get("", "/no/such/path"), 404);

    let collection = br#"{"vectors":{"size":4,"distance":"Dot"}}"#;
    let create = |key: &str, name: &str| {
        status(&served, key, "PUT", &format!("/collections/{name}"), collection)
    };
    assert_eq!((create("reader", "pub1"), create("writer", "secret")), (403, 403));
    assert_eq!((create("writer", "pub1"), create("root", "secret")), (200, 200));
    assert_eq!(
        (get("reader", "/collections/pub1"), get("reader", "/collections/secret")),
        (200, 403)
    );
    let scroll = |key: &str| status(&served, key, "POST", "/collections/pub1/points/scroll", b"{}");
    assert_eq!((scroll("ranker"), scroll("reader")), (403, 200));
    let alias =
        br#"{"actions":[{"create_alias":{"collection_name":"secret","alias_name":"pub2"}}]}"#;
    assert_eq!(status(&served, "writer", "POST", "/collections/aliases", alias), 403);

    let load = |key: &str| status(&served, key, "POST", "/v2/repository/models/echo/load", b"");
    assert_eq!(["", "writer", "root"].map(load), [401, 403, 200], "from this machine too");
}

#[test]
fn refusals_have_the_form_of_their_interface() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(dir.path(), |_| {});
    let check = |key: &str, method: &str, path: &str, wanted: u16, pointer: &str| {
        let answer = served.ask(method, path, &format!("api-key: {key}\r\n"), b"");
        assert_eq!(answer.status, wanted, "{method} {path}: {}", answer.text());
        let json = answer.json();
        assert!(json.pointer(pointer).is_some_and(serde_json::Value::is_string), "{json}");
        answer.head
    };
    let of_qdrant = "/status/error";
    let head = check("other", "GET", "/collections", 401, of_qdrant);
    assert!(head.contains("www-authenticate: bearer"), "{head}");
    check("other", "PUT", "/collections/pub1/points", 401, of_qdrant);
    check("ranker", "GET", "/aliases", 403, of_qdrant);
    check("reader", "GET", "/collections/secret", 403, of_qdrant);
    check("root", "PATCH", "/collections", 405, of_qdrant);
    check("root", "GET", "/collections/", 404, of_qdrant);
    check("other", "GET", "/v2/models", 401, "/error");
    check("reader", "POST", "/v2/repository/models/echo/load", 403, "/error");
    check("root", "GET", "/nowhere", 404, "/error");
}

#[test]
fn a_query_names_no_model_beyond_the_key() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(dir.path(), |_| {});
    for model in ["echo", "%65cho"] {
        let path = format!("/v1/images/pub1/features?model={model}");
        assert_eq!(status(&served, "reader", "POST", &path, b"x"), 403, "{model}");
        assert_ne!(status(&served, "root", "POST", &path, b"x"), 403, "{model}");
    }
}

#[test]
fn a_job_of_another_collection_does_not_name_it() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(dir.path(), |_| {});
    let registry = served.server.collections.registry().unwrap();
    registry.create("secret", CollectionSettings::new(4, Metric::L2)).unwrap();
    let ask = |key: &str, method: &str, path: &str| {
        served.ask(method, path, &format!("api-key: {key}\r\n"), b"")
    };
    let job = ask("root", "POST", "/v1/collections/secret/backups").json()["job"].to_string();
    let path = format!("/v1/backups/jobs/{job}");
    let refused = ask("reader", "GET", &path);
    assert!(refused.status == 403 && !refused.text().contains("secret"), "{}", refused.text());
    assert_eq!(ask("root", "GET", &path).json()["collection"], "secret");
    // The newest backup would be restored.
    let in_url = ask("root", "POST", "/v1/collections/secret/restore?backup=old&to=copy");
    assert!(in_url.status == 400 && in_url.text().contains("backup"), "{}", in_url.text());
    // The rights are checked first, so the audit log has a line.
    let remote = "api-key: root\r\nX-Forwarded-For: 192.0.2.1\r\n";
    let denied = served.ask("POST", "/v1/collections/secret/restore?backup=old", remote, b"");
    assert!(denied.status == 403 && !denied.text().contains("query"), "{}", denied.text());
}

/// A collection of photographs that was downloaded as a snapshot and then removed.
struct DownloadedImages {
    served: Loopback,
    snapshot: Vec<u8>,
}

impl DownloadedImages {
    /// Creates the collection, whose original images are in the directory `space`.
    fn of(served: Loopback, model: &str, space: &str) -> DownloadedImages {
        let mut images = DownloadedImages { served, snapshot: Vec::new() };
        images.create("source", model, space);
        let ask = |method: &str, rest: &str| {
            let path = format!("/collections/source/snapshots{rest}");
            images.served.ask(method, &path, "api-key: root\r\n", b"")
        };
        let made = ask("POST", "").json();
        let name = made["result"]["name"].as_str().unwrap();
        let snapshot = ask("GET", &format!("/{name}")).body;
        images.snapshot = snapshot;
        let registry = images.served.server.collections.registry().unwrap();
        assert_eq!(registry.remove("source"), Ok(true));
        images
    }

    fn create(&self, name: &str, model: &str, space: &str) {
        let extra = json!({"images": {"kind": "photo", "model": model, "originals": space}});
        let settings = CollectionSettings { extra, ..CollectionSettings::new(4, Metric::L2) };
        self.served.server.collections.registry().unwrap().create(name, settings).unwrap();
    }

    /// Uploads the snapshot. Returns the status and the text of the answer.
    fn upload(&self, key: &str, collection: &str) -> (u16, String) {
        let path = format!("/collections/{collection}/snapshots/upload");
        let headers = format!("api-key: {key}\r\n");
        let answer = self.served.ask("POST", &path, &headers, &self.snapshot);
        (answer.status, answer.text())
    }
}

/// A client can change the settings in a snapshot. Removing the collection removes the originals.
#[test]
fn a_snapshot_names_no_originals_beyond_the_key() {
    let dir = tempfile::tempdir().unwrap();
    let images = DownloadedImages::of(served(dir.path(), |_| {}), "m", "secret");
    let (status, text) = images.upload("writer", "pub1");
    assert_eq!(status, 403, "{text}");
    assert!(text.contains("the original images of the snapshot"), "{text}");
    assert_eq!(images.upload("root", "pub1").0, 200);
    let (status, text) = images.upload("writer", "pub1");
    assert_eq!(status, 200, "the replaced collection has these originals: {text}");
}

#[test]
fn a_snapshot_names_no_model_beyond_the_key() {
    let dir = tempfile::tempdir().unwrap();
    let images = DownloadedImages::of(served(dir.path(), |_| {}), "echo", "source");
    images.create("other", "rank1", "other");
    let (status, text) = images.upload("copier", "copy");
    assert_eq!(status, 403, "{text}");
    assert!(text.contains("which embeds the images of the snapshot"), "{text}");
    images.create("same", "echo", "same");
    let (status, text) = images.upload("copier", "copy");
    assert_eq!(status, 200, "another collection of the key has this model: {text}");
}

#[test]
fn a_snapshot_names_the_default_model() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(dir.path(), |config| config.search.embedding_model = Some("echo".into()));
    let images = DownloadedImages::of(served, "echo", "source");
    let (status, text) = images.upload("copier", "copy");
    assert_eq!(status, 200, "{text}");
}

#[test]
fn flags_count_as_keys() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(dir.path(), |config| config.search.api_key = Some("s3cret".into()));
    assert_eq!(status(&served, "s3cret", "GET", "/collections", b""), 200);
    assert_eq!(status(&served, "s3cret", "POST", "/v2/repository/models/echo/load", b""), 403);
    // "me:reader"
    let page =
        served.ask("GET", "/", "Accept: text/html\r\nAuthorization: Basic bWU6cmVhZGVy\r\n", b"");
    assert_eq!(page.status, 200);
    assert_eq!(served.ask("GET", "/collections", "api-key: reader\r\n", b"").status, 200);
}

#[test]
fn a_key_waits_for_its_next_request() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(dir.path(), |_| {});
    let ask = || served.ask("GET", "/v2/models/echo", "api-key: slow\r\n", b"");
    assert_eq!(ask().status, 200);
    let refused = ask();
    assert!(refused.status == 429 && refused.head.contains("retry-after: "), "{}", refused.head);
    let counter =
        served.server.core.metrics.refused.get_or_create(&KindLabels { kind: "key_rate" }).get();
    assert_eq!(counter, 1);
}

#[test]
fn browsers_log_in_with_a_session() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(dir.path(), |_| {});
    let refused = served.ask("GET", "/images?a=b", "Accept: text/html\r\n", b"");
    let head = refused.head.to_ascii_lowercase();
    assert!(
        refused.status == 303 && head.contains("location: /login?next=%2fimages%3fa%3db"),
        "{head}"
    );
    assert_eq!(served.ask("GET", "/", "", b"").status, 401, "programs are not redirected");
    let form = served.ask("GET", "/login?next=%2Fimages%22%3E", "", b"");
    assert!(form.text().contains("value=\"/images&quot;&gt;\""), "{}", form.text());

    let log_in = |key: &str, headers: &str| {
        let body = format!("key={key}&next=%2Fimages");
        served.ask("POST", "/login", headers, body.as_bytes())
    };
    let wrong = log_in("other", "");
    assert!(wrong.status == 401 && wrong.text().contains("role=\"alert\""), "{}", wrong.text());
    let runner = log_in("runner", "");
    assert!(runner.status == 401 && runner.cookie.is_none(), "{}", runner.head);
    assert!(runner.text().contains("pages need the role read"), "{}", runner.text());
    let large = served.ask("POST", "/login", "", &[b'a'; (16 << 10) + 1]);
    assert_eq!(large.status, 413);
    let foreign = "Origin: http://evil.example\r\n";
    assert_eq!(log_in("root", foreign).status, 403);
    let done = log_in("root", "");
    assert!(done.status == 303 && done.head.contains("location: /images\r\n"), "{}", done.head);
    let cookie = done.cookie.unwrap();
    assert!(
        cookie.ends_with("; HttpOnly; SameSite=Strict") && !cookie.contains("root"),
        "{cookie}"
    );
    let session = cookie.split(';').next().unwrap();

    let own = format!("Cookie: {session}\r\n");
    let page = format!("{own}Origin: http://{}\r\n", served.address);
    let load =
        |headers: &str| served.ask("POST", "/v2/repository/models/echo/load", headers, b"").status;
    assert_eq!(served.ask("GET", "/metrics", &own, b"").status, 200);
    let state = served.ask("GET", "/session", &own, b"").json();
    assert_eq!((&state["name"], &state["role"]), (&"root".into(), &"admin".into()));
    assert_eq!(state["admin_refused"], serde_json::Value::Null);
    let reader = served.ask("GET", "/session", "api-key: reader\r\n", b"").json();
    let refused = reader["admin_refused"].as_str().unwrap();
    assert!(refused.contains("with an admin key of this server only"), "{refused}");
    let proxied = format!("{own}Via: 1.1 proxy\r\n");
    let elsewhere = served.ask("GET", "/session", &proxied, b"").json();
    let refused = elsewhere["admin_refused"].as_str().unwrap();
    assert!(refused.contains("--allow-remote-admin"), "{refused}");
    assert_eq!(load(&page), 200);
    assert_eq!(load(&own), 401, "a change needs the page's origin");
    assert_eq!(load(&format!("{own}{foreign}")), 401);
    assert_eq!(load(&format!("{own}Sec-Fetch-Site: cross-site\r\n")), 401);

    assert_eq!(served.ask("POST", "/logout", &format!("{own}{foreign}"), b"").status, 403);
    assert_eq!(served.ask("POST", "/logout", &page, b"").status, 303);
    assert_eq!(served.ask("GET", "/metrics", &own, b"").status, 401);
    let state = served.ask("GET", "/session", &own, b"").json();
    assert_eq!((&state["keys"], &state["name"]), (&true.into(), &serde_json::Value::Null));
}

#[test]
fn wrong_keys_are_limited_and_right_ones_accepted() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(dir.path(), |_| {});
    let log_in = |key: &str| served.ask("POST", "/login", "", format!("key={key}").as_bytes());
    let limited = (0..1000).map(|_| log_in("other")).find(|answer| answer.status != 401).unwrap();
    assert_eq!(limited.status, 429, "{}", limited.text());
    assert!(limited.head.to_ascii_lowercase().contains("retry-after: 1"), "{}", limited.head);
    // The address regains one attempt per second.
    let metrics = |key: &str| status(&served, key, "GET", "/metrics", b"");
    assert!((0..1000).any(|_| metrics("other") == 429));
    assert_eq!((metrics(""), metrics("root"), log_in("root").status), (401, 200, 303));
}

#[test]
fn a_session_whose_key_lost_its_role_gets_the_form() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(dir.path(), |_| {});
    let cookie = served.ask("POST", "/login", "", b"key=reader&next=%2F").cookie.unwrap();
    let own = format!("Cookie: {}\r\n", cookie.split(';').next().unwrap());
    assert_eq!(served.ask("GET", "/login", &own, b"").status, 303);
    let hash = blake3::hash(b"reader").to_hex();
    let key = format!("[[keys]]\nname = \"reader\"\nhash = \"blake3:{hash}\"\nrole = \"infer\"\n");
    std::fs::write(dir.path().join("keys.toml"), key).unwrap();
    served.server.access.keys.as_ref().unwrap().reload().unwrap();
    let form = served.ask("GET", "/login", &own, b"");
    assert_eq!(form.status, 200);
    assert!(form.text().contains("pages need the role read"), "{}", form.text());
}

#[test]
fn lists_show_what_a_key_may_use() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(dir.path(), |_| {});
    let get = |key: &str, path: &str| {
        served.ask("GET", path, &format!("api-key: {key}\r\n"), b"").json().to_string()
    };
    let collection = br#"{"vectors":{"size":4,"distance":"Dot"}}"#;
    for name in ["pub1", "secret"] {
        let created = status(&served, "root", "PUT", &format!("/collections/{name}"), collection);
        assert_eq!(created, 200);
    }
    let (all, some) = (get("root", "/collections"), get("reader", "/collections"));
    assert!(all.contains("secret") && some.contains("pub1") && !some.contains("secret"), "{some}");
    let registry = served.server.collections.registry().unwrap();
    let alias =
        |alias: &str| AliasChange::Create { alias: alias.into(), collection: "pub1".into() };
    registry.change_aliases(&["pub", "other"].map(alias)).unwrap();
    let list = "/collections/pub1/aliases";
    let (all, some) = (get("root", list), get("reader", list));
    assert!(all.contains("\"other\"") && some.contains("\"pub\""), "{all} {some}");
    assert!(!some.contains("other"), "{some}");
    let (all, some) = (get("root", "/v2/models"), get("ranker", "/v2/models"));
    assert!(all.contains("echo") && some.contains("rank1") && !some.contains("echo"), "{some}");
    // The key "reader" may use no model.
    for (method, path) in
        [("POST", "/v2/repository/index"), ("GET", "/v2/models/stats"), ("GET", "/")]
    {
        let list = |key: &str| served.ask(method, path, &format!("api-key: {key}\r\n"), b"").text();
        let (all, some) = (list("root"), list("reader"));
        assert!(all.contains("echo") && !some.contains("echo"), "{path}: {some}");
    }
}

#[test]
fn an_unknown_model_names_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(dir.path(), |_| {});
    for path in ["/v2/models/rank", "/v1/models/rank", "/v2/models/rank/versions/1"] {
        let answer = served.ask("GET", path, "api-key: ranker\r\n", b"");
        let text = answer.text();
        assert!(answer.status == 404 && text.contains("GET /v2/models lists"), "{path}: {text}");
        assert!(!text.contains("echo") && !text.contains("rank1"), "{path}: {text}");
    }
}

/// The list says why a new collection gets no model.
#[test]
fn a_list_of_image_collections_names_no_other_model() {
    let dir = tempfile::tempdir().unwrap();
    for model in ["cats", "dogs"] {
        publish(&dir.path().join("models").join(model).join("1"), EMBEDDER, &[]).unwrap();
    }
    let served = served(dir.path(), |_| {});
    let list = served.ask("GET", "/v1/images", "api-key: reader\r\n", b"").text();
    assert!(list.contains("several models take images (2)"), "{list}");
    assert!(!list.contains("cats") && !list.contains("dogs"), "{list}");
}

#[test]
fn probes_name_models_to_readers_only() {
    let dir = tempfile::tempdir().unwrap();
    publish(&dir.path().join("models/secret/1"), BROKEN, &[]).unwrap();
    let served = served(dir.path(), |_| {});
    for path in ["/readyz", "/v2/health/ready"] {
        let ask = |headers: &str| {
            let answer = served.ask("GET", path, headers, b"");
            assert_eq!(answer.status, 503, "{path} {headers}");
            answer.text()
        };
        for headers in ["", "api-key: other\r\n", "api-key: ranker\r\n"] {
            let text = ask(headers);
            assert!(text.contains("models that do not serve: 1;"), "{path}: {text}");
            assert!(!text.contains("secret") && !text.contains("broken"), "{path}: {text}");
        }
        let text = ask("api-key: reader\r\n");
        assert!(text.contains("secret") && text.contains("it is broken"), "{path}: {text}");
    }
}

/// Every documented call without a key is refused, except health checks.
#[test]
fn every_documented_call_needs_a_key() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(dir.path(), |_| {});
    let document = served.ask("GET", "/openapi.json", "api-key: root\r\n", b"").json();
    let mut checked = 0;
    for (path, methods) in document["paths"].as_object().unwrap() {
        let concrete: Vec<_> =
            path.split('/').map(|part| if part.contains('{') { "x" } else { part }).collect();
        let concrete = concrete.join("/");
        for method in methods.as_object().unwrap().keys() {
            let method = method.to_uppercase();
            if !["GET", "PUT", "POST", "PATCH", "DELETE"].contains(&method.as_str()) {
                continue;
            }
            let open = path.contains("health") || ["/livez", "/readyz"].contains(&path.as_str());
            let status = status(&served, "", &method, &concrete, b"");
            assert!((status == 401) != open, "{method} {path}: {status}");
            checked += 1;
        }
    }
    assert!(checked > 30, "{checked}");
}

#[test]
fn a_key_is_charged_for_its_runs() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(dir.path(), |_| {});
    let infer = |key: &str| {
        served.ask("POST", "/v2/models/echo/infer", &format!("api-key: {key}\r\n"), INPUT)
    };
    // The first run uses up the quota of a minute.
    assert_eq!(infer("metered").status, 200);
    let refused = infer("metered");
    assert!(refused.status == 429 && refused.head.contains("retry-after: "), "{}", refused.head);
    assert!(refused.text().contains("CPU seconds per minute"), "{}", refused.text());
    assert_eq!(infer("root").status, 200);
    let metrics = served.ask("GET", "/metrics", "api-key: root\r\n", b"").text();
    for line in [
        "millpond_key_requests_total{key=\"metered\",outcome=\"accepted\"} 1",
        "millpond_key_requests_total{key=\"metered\",outcome=\"refused_cpu\"} 1",
        "millpond_refused_total{kind=\"key_cpu\"} 1",
        "millpond_key_cpu_seconds_total{key=\"root\"} ",
    ] {
        assert!(metrics.contains(line), "{line} not in\n{metrics}");
    }
    assert!(!metrics.contains("millpond_key_cpu_seconds_total{key=\"metered\"} 0.0\n"));
}

fn call<T>(request: T, key: &str) -> tonic::Request<T> {
    let mut request = tonic::Request::new(request);
    if !key.is_empty() {
        request.metadata_mut().insert("authorization", format!("Bearer {key}").parse().unwrap());
    }
    request
}

fn infer(model: &str) -> pb::ModelInferRequest {
    let x = NamedTensor::new("x", Tensor::from_vec(&[1][..], vec![1f32]).unwrap());
    oip::grpc::encode_request(model, None, &[x], &[]).unwrap()
}

#[test]
fn roles_hold_over_grpc() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(dir.path(), |_| {});
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let stream = tokio::net::TcpStream::connect(served.grpc).await.unwrap();
        let (sender, connection) =
            http2::handshake::<_, _, Body>(TokioExecutor::new(), TokioIo::new(stream))
                .await
                .unwrap();
        tokio::spawn(connection);
        let send = tower::service_fn(move |request: http::Request<Body>| {
            let mut sender = sender.clone();
            async move { sender.send_request(request).await }
        });
        let origin: Uri = format!("http://{}", served.grpc).parse().unwrap();
        let mut health = HealthClient::with_origin(send.clone(), origin.clone());
        let mut lists = ModelServiceClient::with_origin(send.clone(), origin.clone());
        let mut client = GrpcInferenceServiceClient::with_origin(send, origin);
        client.server_live(call(pb::ServerLiveRequest {}, "")).await.unwrap();
        let unknown = health.check(HealthCheckRequest { service: "ech".into() }).await.unwrap_err();
        assert!(
            unknown.code() == Code::NotFound && !unknown.message().contains("echo"),
            "{unknown}"
        );
        for (key, model, wanted) in [
            ("", "rank1", Code::Unauthenticated),
            ("other", "rank1", Code::Unauthenticated),
            ("ranker", "rank1", Code::Ok),
            ("ranker", "echo", Code::PermissionDenied),
            ("slow", "echo", Code::Ok),
            ("slow", "echo", Code::ResourceExhausted),
        ] {
            let answer = client.model_infer(call(infer(model), key)).await;
            let code = answer.map_or_else(|status| status.code(), |_| Code::Ok);
            assert_eq!(code, wanted, "{key} {model}");
        }
        let metadata = pb::ModelMetadataRequest { name: "echo".into(), version: String::new() };
        let status = client.model_metadata(call(metadata, "ranker")).await.unwrap_err();
        assert_eq!(status.code(), Code::PermissionDenied);
        let load =
            pb::RepositoryModelLoadRequest { model_name: "echo".into(), ..Default::default() };
        let status = client.repository_model_load(call(load.clone(), "writer")).await.unwrap_err();
        assert_eq!(status.code(), Code::PermissionDenied);
        client.repository_model_load(call(load, "root")).await.unwrap();
        for (key, wanted) in [
            ("writer", Code::PermissionDenied),
            ("keeper", Code::PermissionDenied),
            // The list is wrong.
            ("root", Code::InvalidArgument),
        ] {
            let list = call(ReloadConfigRequest::default(), key);
            let status = lists.handle_reload_config_request(list).await.unwrap_err();
            assert_eq!(status.code(), wanted, "{key}: {status}");
        }
        let all = pb::ModelStatisticsRequest::default();
        let status = client.model_statistics(call(all.clone(), "runner")).await.unwrap_err();
        assert_eq!(status.code(), Code::PermissionDenied, "they name all models");
        let some = client.model_statistics(call(all.clone(), "copier")).await.unwrap().into_inner();
        let names: Vec<&str> = some.model_stats.iter().map(|model| model.name.as_str()).collect();
        assert_eq!(names, ["rank1"]);
        client.model_statistics(call(all, "root")).await.unwrap();
        let index = |key: &str| call(pb::RepositoryIndexRequest::default(), key);
        let all = client.repository_index(index("root")).await.unwrap().into_inner();
        let some = client.repository_index(index("reader")).await.unwrap().into_inner();
        assert_eq!((all.models.len(), some.models.len()), (2, 0));

        let requests = tokio_stream::iter([infer("rank1"), infer("echo")]);
        let mut answers =
            client.model_stream_infer(call(requests, "ranker")).await.unwrap().into_inner();
        assert_eq!(answers.next().await.unwrap().unwrap().error_message, "");
        let second = answers.next().await.unwrap().unwrap().error_message;
        assert!(second.contains("may not use model echo"), "{second}");

        // A key that is removed ends its rights in an open stream too.
        let (sender, receiver) = tokio::sync::mpsc::channel(1);
        sender.send(infer("rank1")).await.unwrap();
        let requests = call(ReceiverStream::new(receiver), "ranker");
        let mut answers = client.model_stream_infer(requests).await.unwrap().into_inner();
        assert_eq!(answers.next().await.unwrap().unwrap().error_message, "");
        std::fs::write(dir.path().join("keys.toml"), "").unwrap();
        served.server.access.keys.as_ref().unwrap().reload().unwrap();
        sender.send(infer("rank1")).await.unwrap();
        let removed = answers.next().await.unwrap().unwrap().error_message;
        assert!(removed.contains("key \"ranker\" was removed"), "{removed}");

        // A quota that is set later holds in an open stream too.
        let set_keys = |quota: &str| {
            let hash = blake3::hash(b"runner").to_hex();
            let key = format!("name = \"runner\"\nhash = \"blake3:{hash}\"\nrole = \"infer\"");
            let text = format!("[[keys]]\n{key}\n{quota}\n");
            std::fs::write(dir.path().join("keys.toml"), text).unwrap();
            served.server.access.keys.as_ref().unwrap().reload().unwrap();
        };
        set_keys("");
        let (sender, receiver) = tokio::sync::mpsc::channel(1);
        sender.send(infer("echo")).await.unwrap();
        let requests = call(ReceiverStream::new(receiver), "runner");
        let mut answers = client.model_stream_infer(requests).await.unwrap().into_inner();
        assert_eq!(answers.next().await.unwrap().unwrap().error_message, "");
        set_keys("cpu-seconds-per-minute = 0.000001");
        sender.send(infer("echo")).await.unwrap();
        assert_eq!(answers.next().await.unwrap().unwrap().error_message, "");
        sender.send(infer("echo")).await.unwrap();
        let refused = answers.next().await.unwrap().unwrap().error_message;
        assert!(refused.contains("CPU seconds per minute"), "{refused}");
    });
}
