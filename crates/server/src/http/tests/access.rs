//! Rights of callers: other sites, administrators, the admin port.

use super::*;

#[test]
fn pages_of_other_sites_change_no_collections() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(dir.path(), |config| {
        let directory = Some(dir.path().join("collections"));
        config.search = SearchConfig {
            directory,
            required: true,
            memory_bytes: 128 << 20,
            cache_bytes: 1 << 20,
            threads: 1,
            ..SearchConfig::default()
        };
    });
    served.server.collections.start().unwrap();
    let own = format!("Origin: http://{}\r\n", served.address);
    let foreign =
        ["Origin: http://evil.example\r\n", "Sec-Fetch-Site: cross-site\r\n", "Origin: null\r\n"];
    let create = br#"{"vectors":{"size":2,"distance":"Dot"}}"#;
    let changes: [(&str, &str, &[u8]); 8] = [
        ("PUT", "/collections/c", create),
        ("POST", "/collections/c/points/delete", b"{}"),
        ("POST", "/collections/aliases", b"{}"),
        ("DELETE", "/collections/c", b""),
        ("PUT", "/v1/images/c", b"picture"),
        ("POST", "/v1/images/c/rebuild", b"{}"),
        ("POST", "/v1/images/c/search", b"picture"),
        ("DELETE", "/v1/images/c/1", b""),
    ];
    for (method, path, body) in changes {
        for headers in foreign {
            assert_eq!(
                served.ask(method, path, headers, body).status,
                403,
                "{method} {path} {headers}"
            );
        }
        assert_ne!(served.ask(method, path, &own, body).status, 403, "{method} {path}");
        assert_ne!(served.ask(method, path, "", body).status, 403, "{method} {path}");
    }
    // The name of the other site resolves to this server, so its page looks like a page of this
    // server.
    let rebound = "PUT /collections/c HTTP/1.1\r\nHost: evil.example\r\nOrigin: http://evil.example\r\n\
                   Connection: close\r\nContent-Length: 2\r\n\r\n{}";
    assert!(said(&served, rebound.as_bytes()).starts_with("http/1.1 403"));
    let program = rebound.replace("Origin: http://evil.example\r\n", "");
    assert!(
        said(&served, program.as_bytes()).starts_with("http/1.1 403"),
        "a rebound page sends no origin"
    );
    let program = program.replace("evil.example", "localhost");
    assert!(!said(&served, program.as_bytes()).starts_with("http/1.1 403"));
    assert_eq!(
        served.ask("GET", "/collections", foreign[1], b"").status,
        200,
        "looking changes nothing"
    );
}

#[test]
fn a_load_with_settings_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(dir.path(), |_| {});
    let load = |parameters: &str| {
        let body = format!("{{\"parameters\":{{{parameters}}}}}");
        served.ask("POST", "/v2/repository/models/echo/load", "", body.as_bytes())
    };
    for parameters in [r#""config":"{}""#, r#""version":1,"file:1/model.onnx":"b25ueA==""#] {
        let refused = load(parameters);
        assert!(
            refused.status == 501 && refused.text().contains("millpond.toml"),
            "{}",
            refused.text()
        );
    }
    let unknown = load(r#""model_version":1"#);
    assert!(
        unknown.status == 400 && unknown.text().contains("model_version"),
        "{}",
        unknown.text()
    );
    assert_eq!(load(r#""version":1"#).status, 200);
    let unload = br#"{"parameters":{"unload_dependents":true}}"#;
    assert_eq!(served.ask("POST", "/v2/repository/models/echo/unload", "", unload).status, 200);
}

#[test]
fn an_administrator_changes_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(dir.path(), |config| {
        config.log = Some(Arc::new(FakeFilter(Mutex::new("info".to_owned()))));
    });
    let put = |headers: &str, body: &str| served.ask("PUT", "/v1/log", headers, body.as_bytes());
    let shown = || served.ask("GET", "/v1/log", "", b"").json()["filter"].clone();
    let answer = put("", r#"{"filter":"debug"}"#);
    assert_eq!((answer.status, answer.json()), (200, serde_json::json!({ "filter": "debug" })));
    assert_eq!(shown(), "debug");
    let long = format!(r#"{{"filter":"{}"}}"#, "a".repeat(5000));
    for (headers, body, status) in [
        ("", r#"{"filter":"wrong"}"#, 400),
        ("", r#"{"level":"info"}"#, 400),
        ("", long.as_str(), 413),
        ("X-Forwarded-For: 10.0.0.9\r\n", r#"{"filter":"off"}"#, 403),
        ("Origin: http://evil.example\r\n", r#"{"filter":"off"}"#, 403),
    ] {
        assert_eq!(put(headers, body).status, status, "{headers}{body}");
    }
    assert_eq!(shown(), "debug", "a refused change changes nothing");
}

#[test]
fn tritons_log_settings_keep_a_long_filter_of_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let long = format!("info,{}=debug", "a".repeat(crate::log_filter::LOG_FILTER_BYTES_MAX));
    let served = served(dir.path(), |config| {
        config.log = Some(Arc::new(FakeFilter(Mutex::new(long.clone()))));
    });
    let body = br#"{"log_info":true,"log_file":null,"log_verbose_level":null}"#;
    let answer = served.ask("POST", "/v2/logging", "", body);
    assert_eq!((answer.status, &answer.json()["log_info"]), (200, &serde_json::json!(true)));
    assert_eq!(served.ask("GET", "/v1/log", "", b"").json()["filter"], long);
}

#[test]
fn pages_of_other_sites_are_accepted_if_configured() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(dir.path(), |config| config.listeners.cors = CorsPolicy::Any);
    let address = served.address;
    let preflight = format!(
        "OPTIONS /v1/models/echo:predict HTTP/1.1\r\nHost: {address}\r\nOrigin: http://a.example\r\nConnection: \
         close\r\n\r\n"
    );
    let text = said(&served, preflight.as_bytes());
    assert!(text.starts_with("http/1.1 200"), "{text}");
    for header in [
        "access-control-allow-origin: *",
        "access-control-allow-methods: get, post, ",
        "access-control-allow-headers: content-type",
    ] {
        assert!(text.contains(header), "{text}");
    }
    let metrics = format!(
        "GET /metrics HTTP/1.1\r\nHost: {address}\r\nOrigin: http://a.example\r\nConnection: close\r\n\r\n"
    );
    let text = said(&served, metrics.as_bytes());
    assert!(!text.contains("access-control"), "only routes of models: {text}");
}

#[test]
fn listed_origins_use_the_api_and_administer_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let listed = CorsPolicy::parse(&["https://app.example".to_owned()]).unwrap();
    let served = served(dir.path(), |config| config.listeners.cors = listed);
    let address = served.address;
    let ask = |line: &str, origin: &str| {
        let close = "Connection: close\r\nContent-Length: 0";
        let request =
            format!("{line} HTTP/1.1\r\nHost: {address}\r\nOrigin: {origin}\r\n{close}\r\n\r\n");
        said(&served, request.as_bytes())
    };
    let preflight = ask("OPTIONS /collections/c/points", "https://app.example");
    for header in [
        "access-control-allow-origin: https://app.example",
        "access-control-allow-methods: get, post, put, patch, delete",
        "authorization, api-key",
        "x-request-key, x-min-coverage, user-agent",
        "vary: origin",
    ] {
        assert!(preflight.contains(header), "{preflight}");
    }
    let answer = ask("GET /v2/models/echo", "https://app.example");
    let exposed = "inference-header-content-length, retry-after, www-authenticate\r\n";
    let exposed = format!("access-control-expose-headers: {exposed}");
    assert!(answer.contains(&exposed), "{answer}");
    assert!(answer.starts_with("http/1.1 200") && !answer.contains("credentials"), "{answer}");
    let changed = ask("PUT /collections/c", "https://app.example");
    assert!(!changed.contains("page of another site"), "{changed}");
    for line in ["OPTIONS /v2/models/echo/infer", "GET /v2/models/echo"] {
        let refused = ask(line, "https://other.example");
        assert!(
            refused.contains("vary: origin") && !refused.contains("access-control"),
            "{refused}"
        );
    }
    for line in [
        "POST /v2/repository/models/echo/load",
        "POST /v1/collections/c/backups/prune",
        "POST /v1/collections/c/restore",
        "PUT /collections/c/snapshots/recover",
    ] {
        let refused = ask(line, "https://app.example");
        assert!(refused.starts_with("http/1.1 403"), "{line}: {refused}");
    }
    for path in ["/aliases", "/cluster", "/issues"] {
        let answer = ask(&format!("GET {path}"), "https://app.example");
        assert!(answer.contains("access-control-allow-origin"), "{path}: {answer}");
    }
    for path in ["/metrics", "/cluster/v1/node"] {
        let answer = ask(&format!("GET {path}"), "https://app.example");
        assert!(!answer.contains("access-control"), "{path}: {answer}");
    }
}

/// Other machines reach the public ports, and only this one reaches the admin port.
#[test]
fn a_local_admin_port_refuses_names_of_other_sites() {
    let dir = tempfile::tempdir().unwrap();
    publish(&dir.path().join("models/echo/1"), ECHO, &[]).unwrap();
    let mut config = loopback::configuration(dir.path(), &dir.path().join("models"));
    config.listeners.host = std::net::IpAddr::from([0, 0, 0, 0]);
    config.listeners.admin_port = Some(0);
    config.listeners.admin_host = Some(std::net::IpAddr::from([127, 0, 0, 1]));
    for (surface, host, status) in [
        (Surface::Admin, "evil.example", "403"),
        (Surface::Admin, "localhost", "200"),
        (Surface::Public { admin_port: 8502 }, "mill.example", "200"),
    ] {
        let served = Loopback::start_with(&config, Arc::new(FakeEngine::new()), surface);
        let request = format!("GET /livez HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        let answer = said(&served, request.as_bytes());
        assert!(answer.starts_with(&format!("http/1.1 {status}")), "{host}: {answer}");
    }
}

#[test]
fn public_ports_name_the_admin_port() {
    let dir = tempfile::tempdir().unwrap();
    publish(&dir.path().join("models/echo/1"), ECHO, &[]).unwrap();
    let config = loopback::configuration(dir.path(), &dir.path().join("models"));
    let surface = Surface::Public { admin_port: 8502 };
    let served = Loopback::start_with(&config, Arc::new(FakeEngine::new()), surface);
    for (method, path) in [
        ("POST", "/v2/repository/models/echo/load"),
        ("POST", "/v2/repository/models/echo/unload"),
        ("PUT", "/v1/audio/echo/speakers/me"),
        ("PUT", "/v1/log"),
        ("GET", "/v1/log"),
        ("GET", "/v2/slow"),
        ("GET", "/metrics"),
        ("GET", crate::TFS_METRICS),
        ("GET", "/events"),
        ("GET", "/docs"),
        ("GET", "/page.js"),
    ] {
        let answer = served.ask(method, path, "", b"");
        assert_eq!(answer.status, 404, "{method} {path}");
        assert!(answer.text().contains("at the admin port, 8502"), "{}", answer.text());
    }
    let put = |media: &str, body: &[u8]| {
        served.ask("PUT", "/v1/images/c", &format!("Content-Type: {media}\r\n"), body)
    };
    let folder = put("application/json; charset=utf-8", br#"{"folder":"/"}"#);
    assert!(folder.status == 404 && folder.text().contains("port, 8502"), "{}", folder.text());
    let image = put("image/png", b"x").text();
    assert!(!image.contains("8502"), "{image}");
    assert_eq!(served.ask("GET", "/", "Accept: text/html\r\n", b"").status, 404);
    let front = served.ask("GET", "/", "", b"").text();
    assert!(front.contains("echo") && front.contains("port 8502"), "{front}");
    assert!(served.ask("GET", "/nothing", "", b"").text().contains("port 8502"));
    let body = format!("{{{INPUT}}}");
    assert_eq!(served.ask("POST", INFER, "", body.as_bytes()).status, 200);
    for path in ["/livez", "/readyz", "/v2/health/ready", "/v2/models/stats", "/openapi.json"] {
        assert_eq!(served.ask("GET", path, "", b"").status, 200, "{path}");
    }
    assert_eq!(served.ask("POST", "/v2/repository/index", "", b"").status, 200);
}
