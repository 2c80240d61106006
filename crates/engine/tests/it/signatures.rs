//! A version with several signatures.

use std::sync::Arc;

use base::VersionId;
use engine::fake::FakeEngine;
use engine::{Engine, LoadRequest, ScheduleOptions, Servable, ServableSettings};

const TWO_SIGNATURES: &str = "millpond-fake 1\n\
    signature serving_default tensorflow/serving/predict\n\
    input x float32 n\n\
    output y float32 n\n\
    signature other tensorflow/serving/predict\n\
    input x float32 n\n\
    output y float32 n\n\
    y = echo x\n";

#[test]
fn settings_hold_for_every_signature() {
    let dir = tempfile::tempdir().unwrap();
    let graph = dir.path().join("graph");
    std::fs::write(&graph, TWO_SIGNATURES).unwrap();
    let session = FakeEngine::new().load(&LoadRequest { graph, ..LoadRequest::default() }).unwrap();
    let id = VersionId { model: "m".into(), version: 1 };
    let mut loaded = Servable::new(id, "fake", session, ScheduleOptions::default()).unwrap();
    loaded.set_threads_per_run(4);
    loaded.set_request_log_rate(Some(0.0));
    let settings = ServableSettings { request_log_rate: Some(0.5), ..ServableSettings::default() };
    let changed = loaded.with_settings(settings).unwrap();
    for (version, rate) in [(Arc::new(loaded), 0.0), (Arc::new(changed), 0.5)] {
        for name in ["serving_default", "other"] {
            let servable = version.with_signature(name).unwrap();
            assert_eq!(servable.threads_per_run(), 4, "{name}");
            assert_eq!(servable.request_log_rate(), Some(rate), "{name}");
            assert!(servable.runs_elsewhere(), "{name}");
        }
    }
}
