//! Compares the metrics of a running server with `docs/metrics.md`.

use std::sync::Arc;

use engine::fake::FakeEngine;
use engine::fake::publish::publish;

use crate::loopback::{self, Loopback};

const REFERENCE: &str = include_str!("../../../../docs/metrics.md");
const MODEL: &str = "millpond-fake 1\ninput x float32 n\noutput y float32 n\ny = echo x\n";

#[test]
fn the_reference_has_each_metric_and_each_kind() {
    let dir = tempfile::tempdir().unwrap();
    let models = dir.path().join("models");
    publish(&models.join("echo/1"), MODEL, &[]).unwrap();
    let mut config = loopback::configuration(dir.path(), &models);
    config.search.directory = Some(dir.path().join("collections"));
    let served = Loopback::start(&config, Arc::new(FakeEngine::new()));
    served.server.collections.start().unwrap();
    let body = br#"{"instances": [1.0]}"#;
    assert_eq!(served.ask("POST", "/v1/models/echo:predict", "", body).status, 200);
    served.ask("GET", "/collections", "", b"");
    let (mut metrics, mut kinds) = (0, 0);
    let text = served.ask("GET", "/monitoring/prometheus/metrics", "", b"").text();
    for line in text.lines() {
        if let Some(described) = line.strip_prefix("# TYPE ") {
            let name = described.split(' ').next().unwrap();
            assert!(REFERENCE.contains(&format!("`{name}`")), "{name} is missing");
            metrics += 1;
        } else if let Some((name, labels)) = line.split_once('{')
            && let Some((_, kind)) = labels.split_once("kind=\"")
        {
            let name = name.strip_suffix("_bucket").unwrap_or(name);
            let row = REFERENCE.lines().find(|row| row.starts_with(&format!("| `{name}`")));
            let Some(row) = row else { continue };
            let kind = kind.split('"').next().unwrap();
            assert!(row.contains(&format!(" {kind}")), "{name} has no {kind}: {row}");
            kinds += 1;
        }
    }
    assert!(metrics > 40 && kinds > 50, "{metrics} {kinds}");
}
