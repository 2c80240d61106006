//! A version with several signatures.

use std::sync::Arc;

use base::VersionId;
use engine::fake::FakeEngine;
use engine::{
    CutOptions, Engine, LoadRequest, PadOptions, ScheduleMode, ScheduleOptions, Servable,
    ServableSettings, Session,
};

const TWO_SIGNATURES: &str = "millpond-fake 1\n\
    signature serving_default tensorflow/serving/predict\n\
    input x float32 n\n\
    output y float32 n\n\
    signature other tensorflow/serving/predict\n\
    input x float32 n\n\
    output y float32 n\n\
    y = echo x\n";

const OTHER_INPUTS: &str = "millpond-fake 1\n\
    signature serving_default tensorflow/serving/predict\n\
    input x float32 n w\n\
    output y float32 n w\n\
    signature other tensorflow/serving/predict\n\
    input z float32 n\n\
    output v float32 n\n\
    y = echo x\n\
    v = echo z\n";

fn session(text: &str) -> Box<dyn Session> {
    let dir = tempfile::tempdir().unwrap();
    let graph = dir.path().join("graph");
    std::fs::write(&graph, text).unwrap();
    FakeEngine::new().load(&LoadRequest { graph, ..LoadRequest::default() }).unwrap()
}

fn id() -> VersionId {
    VersionId { model: "m".into(), version: 1 }
}

#[test]
fn padding_holds_for_signatures_that_have_the_input() {
    let pad = PadOptions { axes: vec![1], buckets: vec![8], ..PadOptions::default() };
    let cut = CutOptions {
        axis: 1,
        input: "x".into(),
        input_axis: 1,
        divisor: 1,
        round_up: false,
        offset: 0,
    };
    let mut options = ScheduleOptions::default();
    options.inputs.insert("x".into(), pad.clone());
    options.outputs.insert("y".into(), vec![cut]);
    let servable = |options: &ScheduleOptions| {
        Servable::new(id(), "fake", session(OTHER_INPUTS), options.clone())
    };
    let version = Arc::new(servable(&options).unwrap());
    let pads = |name: &str| version.with_signature(name).unwrap().plan().pads();
    assert_eq!((pads("serving_default"), pads("other")), (true, false));
    options.inputs.insert("unknown".into(), pad);
    let refusal = servable(&options).unwrap_err();
    assert!(refusal.message().contains("inputs.unknown: the model has no such input"), "{refusal}");
}

#[test]
fn settings_hold_for_every_signature() {
    let session = session(TWO_SIGNATURES);
    let mut loaded = Servable::new(id(), "fake", session, ScheduleOptions::default()).unwrap();
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

#[test]
fn a_model_mixes_its_items_under_other_settings_too() {
    let options = ScheduleOptions { mode: ScheduleMode::Async, ..ScheduleOptions::default() };
    let session = session(TWO_SIGNATURES);
    let loaded = Arc::new(Servable::new(id(), "fake", session, options.clone()).unwrap());
    let servable = |version: &Arc<Servable>, name: &str| version.with_signature(name).unwrap();
    servable(&loaded, "other").set_mixes_items();
    assert!(!servable(&loaded, "serving_default").output_sizes_differ(1, 10));
    let with = |schedule: ScheduleOptions| {
        let settings = ServableSettings { schedule, ..ServableSettings::default() };
        Arc::new(loaded.with_settings(settings).unwrap())
    };
    let heavier = with(ScheduleOptions { weight: 2, ..options });
    assert!(servable(&heavier, "other").mixes_items());
    assert!(!servable(&heavier, "serving_default").mixes_items());
    assert!(servable(&heavier, "serving_default").output_sizes_differ(1, 20));
    // Other batching rules may keep the items apart.
    let unjoined = with(ScheduleOptions::default());
    assert!(!servable(&unjoined, "other").mixes_items());
}

#[test]
fn data_dependent_shapes_need_an_open_output() {
    let options = |data_dependent_shapes| ScheduleOptions {
        mode: ScheduleMode::Async,
        data_dependent_shapes,
        ..ScheduleOptions::default()
    };
    let fixed = Servable::new(id(), "fake", session(TWO_SIGNATURES), options(true)).unwrap_err();
    assert!(fixed.message().contains("data-dependent-shapes has no effect"), "{fixed}");
    let loaded = Servable::new(id(), "fake", session(OTHER_INPUTS), options(false)).unwrap();
    loaded.set_mixes_items();
    let with = |schedule: ScheduleOptions| {
        let settings = ServableSettings { schedule, ..ServableSettings::default() };
        loaded.with_settings(settings).unwrap()
    };
    // The sizes may have been the only evidence.
    assert!(with(options(false)).mixes_items() && !with(options(true)).mixes_items());
}
