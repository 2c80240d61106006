use std::sync::Arc;

use base::{Dim, NamedTensor, Tensor, VersionId};
use engine::{ScheduleOptions, Servable};

use crate::support::{engine, floats, load, model, output, run, words};

#[test]
fn signatures_have_names_and_defaults() {
    let Some(engine) = engine() else { return };
    let session = load(&engine, &model("half_plus_two")).unwrap();
    let names: Vec<&str> = session.signatures().iter().map(|named| &*named.name).collect();
    assert_eq!(names, ["defaults", "serving_default", "three"]);
    assert_eq!(session.default_signature(), 1);
    assert_eq!(session.signatures()[0].method, "tensorflow/serving/predict");
    assert_eq!(session.signature().inputs[0].shape, Some(vec![Dim::Dynamic(None)]));
    assert_eq!(output(&session.run(&[floats("x", &[2.0])], &[]).unwrap(), "y"), [3.0]);
    assert_eq!(output(&run(&*session, "three", &[floats("x", &[2.0])]), "y3"), [4.0]);
    let bias = NamedTensor::new("bias", Tensor::from_vec([].as_slice(), vec![1f32]).unwrap());
    assert_eq!(output(&run(&*session, "defaults", &[floats("x", &[2.0])]), "y"), [11.0]);
    assert_eq!(output(&run(&*session, "defaults", &[bias, floats("x", &[2.0])]), "y"), [2.0]);
    assert_eq!(session.signatures()[1].input_tensors, ["serving_default_x:0"]);
}

#[test]
fn strings_tables_and_assets_are_used() {
    let Some(engine) = engine() else { return };
    let session = load(&engine, &model("lookup")).unwrap();
    let outputs = run(&*session, "serving_default", &[words("word", &["two", "one", "none"])]);
    assert_eq!(outputs[0].tensor.to_vec::<i64>().unwrap(), [6, 3, -3]);
    assert_eq!(outputs[1].tensor.strings().unwrap()[2], "NONE");
}

#[test]
fn state_persists_between_requests() {
    let Some(engine) = engine() else { return };
    for name in ["counter", "version_1_counter"] {
        let session = load(&engine, &model(name)).unwrap();
        assert!(session.changes_state(), "{name}");
        let value = |signature, inputs: &[NamedTensor]| {
            output(&run(&*session, signature, inputs), "output")[0]
        };
        let delta = NamedTensor::new("delta", Tensor::from_vec([].as_slice(), vec![5f32]).unwrap());
        assert_eq!(value("get_counter", &[]), 0.0, "{name}");
        let kept = run(&*session, "incr_counter", &[]);
        assert_eq!(value("incr_counter_by", &[delta]), 6.0, "{name}");
        assert_eq!(output(&kept, "output"), [1.0], "{name}: an answer does not change later");
        assert_eq!(value("reset_counter", &[]), 0.0, "{name}");
        assert_eq!(value("get_counter", &[]), 0.0, "{name}");
    }
}

#[test]
fn models_of_version_1_run() {
    let Some(engine) = engine() else { return };
    let session = load(&engine, &model("version_1")).unwrap();
    assert!(!session.changes_state(), "only the initialisation assigns to its variables");
    assert_eq!(
        output(&run(&*session, "regress_x_to_y", &[floats("inputs", &[4.0])]), "outputs"),
        [4.0]
    );
    assert_eq!(output(&run(&*session, "serving_default", &[floats("x", &[4.0])]), "y"), [5.0]);
    let ids = run(&*session, "lookup", &[words("word", &["two"])]);
    assert_eq!(ids[0].tensor.to_vec::<i64>().unwrap(), [2]);
}

#[test]
fn signatures_that_cannot_run_are_named() {
    let Some(engine) = engine() else { return };
    let session = load(&engine, &model("sparse")).unwrap();
    assert_eq!(session.signatures().len(), 1);
    let note = &session.metadata()["signatures that cannot be run"];
    assert!(note.contains("sparse: \"x\""), "{note}");
    let id = VersionId { model: "m".into(), version: 1 };
    let servable = Servable::new(id, "tensorflow", session, ScheduleOptions::default()).unwrap();
    let error = servable.signature_servable("sparse").unwrap_err();
    assert!(error.message().contains("cannot be run: sparse: \"x\""), "{error}");
}

#[test]
fn many_sets_of_outputs_give_the_same_answers() {
    let Some(engine) = engine() else { return };
    let session = load(&engine, &model("returned")).unwrap();
    let x = floats("x", &[1.0]);
    for name in ["w", "x_again"] {
        let outputs = session.run(std::slice::from_ref(&x), &[Arc::from(name)]).unwrap();
        assert_eq!(&*outputs[0].name, name);
        assert_eq!(outputs.len(), 1);
    }
}

/// TensorFlow itself ends the process for such a shape.
#[test]
fn an_empty_input_of_huge_sizes_is_refused() {
    let Some(engine) = engine() else { return };
    let session = load(&engine, &model("half_plus_two")).unwrap();
    let x = Tensor::from_vec::<f32>([1usize << 32, 1 << 31, 0].as_slice(), Vec::new()).unwrap();
    let error = session.run(&[NamedTensor::new("x", x)], &[]).unwrap_err();
    assert_eq!(error.kind(), base::ErrorKind::InvalidArgument, "{error}");
    assert!(error.message().starts_with("input \"x\": shape"), "{error}");
}
