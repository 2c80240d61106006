//! The expositions of metrics.

use super::*;

#[test]
fn scrapes_at_the_same_time_all_see_the_models() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(dir.path(), |_| {});
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..300 {
                    let text = served.server.exporter.exposition();
                    assert!(text.contains("millpond_model_state{model=\"echo\""));
                }
            });
        }
    });
}

#[test]
fn a_failure_counts_until_a_newer_version_serves() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(dir.path(), |_| {});
    let shows = |value: u8| {
        let line = format!("millpond_failed_version{{model=\"echo\",version=\"2\"}} {value}\n");
        until(|| served.server.exporter.exposition().contains(&line));
    };
    let models = dir.path().join("models/echo");
    publish(&models.join("2"), &format!("{ECHO}fail-load broken\n"), &[]).unwrap();
    shows(1);
    publish(&models.join("3"), ECHO, &[]).unwrap();
    shows(0);
}

#[test]
fn scrapes_run_on_no_thread_that_serves_connections() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(dir.path(), |_| {});
    let connections = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let exporter = served.server.exporter.clone();
    let scrape = exporter.in_turn(|_| std::thread::current().id());
    assert_ne!(connections.block_on(scrape).unwrap(), std::thread::current().id());
}

#[test]
fn scrapers_get_the_format_they_accept() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(dir.path(), |_| {});
    assert_eq!(served.ask("POST", INFER, "", format!("{{{INPUT}}}").as_bytes()).status, 200);
    let scrape =
        |accept: &str| served.ask("GET", "/metrics", &format!("Accept: {accept}\r\n"), b"");
    let open = scrape("application/openmetrics-text;version=1.0.0,text/plain;q=0.5");
    assert!(open.head.contains("openmetrics-text") && open.text().ends_with("# EOF\n"));
    let classic = scrape("text/plain;version=0.0.4,*/*;q=0.1");
    assert!(classic.head.contains("text/plain; version=0.0.4"), "{}", classic.head);
    let browser = scrape("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8");
    assert!(browser.head.contains("text/plain"), "a browser shows it: {}", browser.head);
    let text = classic.text();
    for line in
        ["# TYPE millpond_requests_total counter", "# TYPE process_start_time_seconds gauge"]
    {
        assert!(text.lines().any(|said| said == line), "{line}: {text}");
    }
    assert!(!text.contains("# EOF") && !text.contains("# UNIT"));
    let since = text.lines().find_map(|line| line.strip_prefix("process_start_time_seconds "));
    assert!(since.unwrap().parse::<f64>().unwrap() > 1.6e9);
}

#[test]
fn metrics_have_the_names_of_the_reference() {
    let dir = tempfile::tempdir().unwrap();
    let served =
        served(dir.path(), |config| config.listeners.tfs_metrics = Some("/other/path".to_owned()));
    let body = br#"{"instances": [1.0, 2.0]}"#;
    assert_eq!(served.ask("POST", "/v1/models/echo:predict", "", body).status, 200);
    assert_eq!(served.ask("POST", "/v1/models/echo:predict", "", b"{}").status, 400);
    let text = served.ask("GET", "/other/path", "", b"").text();
    for line in [
        ":tensorflow:serving:request_count{model_name=\"echo\",status=\"OK\"} 1",
        ":tensorflow:serving:request_count{model_name=\"echo\",status=\"INVALID_ARGUMENT\"} 1",
        ":tensorflow:serving:runtime_latency_count{model_name=\"echo\",API=\"Predict\",runtime=\"fake\"} 1",
        ":tensorflow:serving:model_warmup_latency_count{model_path=\"echo/1\",status=\"OK\"} 1",
        "# TYPE millpond_requests_total counter",
    ] {
        assert!(text.contains(line), "{line} not in\n{text}");
    }
}
