//! Models that are published and then bound to memory of ours.

use base::{NamedTensor, Tensor};
use engine::conformance::resident_bytes;
use engine_tensorflow::publish::SavedModelGraph;

use crate::support::{bind, engine, floats, load, model, output, publish, run, store, words};

const MIB: u64 = 1 << 20;

fn grid(rows: usize, columns: usize) -> NamedTensor {
    let elements = (0..rows * columns).map(|at| (at % 7) as f32).collect();
    NamedTensor::new("x", Tensor::from_vec([rows, columns].as_slice(), elements).unwrap())
}

#[test]
fn variables_that_no_signature_uses_are_left_out() {
    let Some(engine) = engine() else { return };
    let dir = publish(&engine, &model("half_plus_two"));
    let bound = bind(&engine, &store(16 * MIB), dir.path());
    let mut names = bound.names.clone();
    names.sort();
    assert_eq!(names, ["half", "two"]);
    assert!(!dir.path().join("variables").exists());
    assert_eq!(
        output(&run(&*bound.session, "serving_default", &[floats("x", &[2.0])]), "y"),
        [3.0]
    );
    assert_eq!(output(&run(&*bound.session, "three", &[floats("x", &[2.0])]), "y3"), [4.0]);
    assert_eq!(output(&run(&*bound.session, "defaults", &[floats("x", &[2.0])]), "y"), [11.0]);
}

#[test]
fn answers_are_those_of_the_model_as_it_is() {
    let Some(engine) = engine() else { return };
    for name in ["dense_1", "keras", "frozen"] {
        let plain = load(&engine, &model(name)).unwrap();
        let dir = publish(&engine, &model(name));
        let bound = bind(&engine, &store(32 * MIB), dir.path());
        let x = match name {
            "keras" => grid(3, 32),
            "frozen" => floats("x", &[1.0, 2.0]),
            _ => grid(2, 1024),
        };
        let wanted = plain.run(std::slice::from_ref(&x), &[]).unwrap();
        assert_eq!(bound.session.run(&[x], &[]).unwrap(), wanted, "{name}");
    }
}

#[test]
fn versions_share_equal_variables() {
    let Some(engine) = engine() else { return };
    let (first, second) =
        (publish(&engine, &model("dense_1")), publish(&engine, &model("dense_2")));
    let store = store(64 * MIB);
    let old = bind(&engine, &store, first.path());
    assert_eq!((old.bytes_read, old.bytes_shared), (8 * MIB, 0));
    let new = bind(&engine, &store, second.path());
    assert_eq!((new.bytes_read, new.bytes_shared), (4 * MIB, 4 * MIB));
    let answer = |session: &dyn engine::Session| {
        output(&run(session, "serving_default", &[grid(1, 1024)]), "y")
    };
    assert_ne!(answer(&*old.session), answer(&*new.session));
    let kept = answer(&*new.session);
    drop(old);
    assert_eq!(answer(&*new.session), kept);
    drop(new);
    assert_eq!(store.pool().stats().used, 0, "dropped sessions let go of their memory");
}

#[test]
fn state_of_a_bound_model_persists() {
    let Some(engine) = engine() else { return };
    for name in ["counter", "version_1_counter"] {
        let dir = publish(&engine, &model(name));
        let store = store(16 * MIB);
        let first = bind(&engine, &store, dir.path());
        let value = |session, signature| output(&run(session, signature, &[]), "output")[0];
        assert_eq!(value(&*first.session, "incr_counter"), 1.0, "{name}");
        assert_eq!(value(&*first.session, "incr_counter"), 2.0, "{name}");
        assert_eq!(value(&*first.session, "get_counter"), 2.0, "{name}");
        let second = bind(&engine, &store, dir.path());
        assert_eq!(value(&*second.session, "get_counter"), 0.0, "{name}: a load starts anew");
        assert!(first.session.changes_state(), "{name}");
        let note = first.session.metadata().get("variables that runs change");
        assert_eq!(note.map(String::as_str), Some("counter"), "{name}");
        // A variable of version 1 that runs change stays in the checkpoint.
        assert_eq!(dir.path().join("variables").exists(), name != "counter");
    }
}

#[test]
fn an_initialisation_that_adds_to_a_variable_counts_once() {
    let Some(engine) = engine() else { return };
    let source = model("initialised_counter");
    let plain = load(&engine, &source).unwrap();
    let dir = publish(&engine, &source);
    let bound = bind(&engine, &store(16 * MIB), dir.path());
    assert_eq!(bound.names, ["starts"]);
    let x = NamedTensor::new("x", Tensor::from_vec([].as_slice(), vec![5f32]).unwrap());
    for session in [&plain, &bound.session] {
        let y = run(&**session, "serving_default", std::slice::from_ref(&x));
        assert_eq!(output(&y, "y"), [7.0]);
    }
}

#[test]
fn a_read_after_an_assignment_has_the_new_value() {
    let Some(engine) = engine() else { return };
    let dir = publish(&engine, &model("version_1_total"));
    let bound = bind(&engine, &store(16 * MIB), dir.path());
    assert_eq!(bound.names, ["kept/millpond_handle"]);
    let x = NamedTensor::new("x", Tensor::from_vec([].as_slice(), vec![5f32]).unwrap());
    let total =
        || output(&run(&*bound.session, "serving_default", std::slice::from_ref(&x)), "y")[0];
    assert_eq!([total(), total()], [5.0, 10.0]);
}

#[test]
fn assets_and_tables_are_published() {
    let Some(engine) = engine() else { return };
    for name in ["lookup", "version_1"] {
        let dir = publish(&engine, &model(name));
        assert!(dir.path().join("assets/vocabulary.txt").exists());
        assert!(!dir.path().join("variables").exists(), "{name}");
        let bound = bind(&engine, &store(16 * MIB), dir.path());
        let signature = if name == "lookup" { "serving_default" } else { "lookup" };
        let outputs = run(&*bound.session, signature, &[words("word", &["two", "x"])]);
        let wanted = if name == "lookup" { [6, -3] } else { [2, -1] };
        assert_eq!(outputs[0].tensor.to_vec::<i64>().unwrap(), wanted, "{name}");
    }
}

#[test]
fn variables_of_version_1_are_bound() {
    let Some(engine) = engine() else { return };
    let dir = publish(&engine, &model("version_1"));
    let bound = bind(&engine, &store(16 * MIB), dir.path());
    assert_eq!(bound.names, ["a/millpond_handle", "b/millpond_handle", "local/millpond_handle"]);
    let y = run(&*bound.session, "regress_x_to_y", &[floats("inputs", &[4.0])]);
    assert_eq!(output(&y, "outputs"), [4.0]);
    assert_eq!(
        output(&run(&*bound.session, "serving_default", &[floats("x", &[4.0])]), "y"),
        [5.0]
    );
}

#[test]
fn values_that_cannot_be_bound_come_from_the_checkpoint() {
    let Some(engine) = engine() else { return };
    let dir = publish(&engine, &model("mutable_table"));
    assert!(dir.path().join("variables/variables.index").exists());
    let bound = bind(&engine, &store(16 * MIB), dir.path());
    let outputs = run(&*bound.session, "serving_default", &[words("word", &["b", "c"])]);
    assert_eq!(outputs[0].tensor.to_vec::<i64>().unwrap(), [6, -3]);

    let dir = publish(&engine, &model("words"));
    let bound = bind(&engine, &store(16 * MIB), dir.path());
    assert_eq!(bound.names, ["scale"]);
    let index = NamedTensor::new("index", Tensor::from_vec([2].as_slice(), vec![2i64, 1]).unwrap());
    let outputs = run(&*bound.session, "serving_default", &[index]);
    let words: Vec<&[u8]> = outputs[0].tensor.strings().unwrap().iter().map(|it| &it[..]).collect();
    assert_eq!(words, [&b"a longer word than fits inside a TString"[..], b"one"]);
}

#[test]
fn lookups_in_a_large_table_copy_nothing() {
    let Some(engine) = engine() else { return };
    // Measures memory, so no other test may run in its process.
    if std::env::var_os(crate::threads::CHILD).is_none() {
        let name = "published::lookups_in_a_large_table_copy_nothing";
        return crate::threads::run_child(name);
    }
    // The first run starts parts of TensorFlow that stay in memory.
    let small = publish(&engine, &model("half_plus_two"));
    let first = bind(&engine, &store(16 * MIB), small.path());
    run(&*first.session, "serving_default", &[floats("x", &[2.0])]);
    let dir = publish(&engine, &model("embedding"));
    let store = store(128 * MIB);
    let before = resident_bytes();
    let bound = bind(&engine, &store, dir.path());
    let index =
        NamedTensor::new("index", Tensor::from_vec([2].as_slice(), vec![7i64, 500]).unwrap());
    let rows = output(&run(&*bound.session, "serving_default", &[index]), "rows");
    assert_eq!(rows, [7.0, 500.0]);
    let grown = resident_bytes().saturating_sub(before) as u64;
    assert!(grown < 48 * MIB, "the process grew by {grown} bytes over a table of 32 MiB");
}

#[test]
fn a_published_version_can_be_published_again() {
    let Some(engine) = engine() else { return };
    let first = publish(&engine, &model("lookup"));
    let second = publish(&engine, first.path());
    let read = |dir: &tempfile::TempDir| std::fs::read(dir.path().join("weights.bin")).unwrap();
    assert_eq!(read(&first), read(&second));
    assert!(second.path().join("assets/vocabulary.txt").exists());
    let mut damaged = read(&first);
    damaged[0] ^= 1;
    std::fs::write(first.path().join("weights.bin"), damaged).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let options = engine::publish::WriteOptions::default();
    let graph = SavedModelGraph { source: first.path(), tags: &[] };
    let error =
        engine_tensorflow::publish::convert_into(&engine, graph, dir.path(), options, &mut |_| {})
            .unwrap_err();
    assert_eq!(error.kind(), base::ErrorKind::DataLoss, "{error}");
}
