//! A converted model equals its source, for random models.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::super::build::{ModelBuilder, Node, OnnxParameter};
use super::super::{EXTERNALISE_MIN, SourceSummary, WriteOptions, convert_into, inspect};
use super::generate::{Made, Place, Storage, TYPES, made, write};
use super::naive::read;
use super::{check, scratch, sorted};
use base::{DType, Dim};

/// Returns the names that must move by the rules, computed independently of the code.
fn expected(tensors: &[Made]) -> Vec<String> {
    let mut uses = BTreeMap::<String, usize>::new();
    for one in
        tensors.iter().filter(|one| !matches!(one.place, Place::Function | Place::TensorList))
    {
        *uses.entry(one.name()).or_default() += 1;
    }
    let moves = |one: &&Made| {
        let large = one.size() as u64 >= EXTERNALISE_MIN && one.code() != 23;
        let main =
            one.place == Place::Initializer || (one.place == Place::Constant && one.name() != "t0");
        large && main && uses[&one.name()] == 1
    };
    tensors.iter().filter(moves).map(Made::name).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn only_locations_change(tensors in prop::collection::vec(made(), 0..12)) {
        let dir = scratch();
        write(dir.path(), &tensors);
        let manifest = check(dir.path());
        let names: Vec<String> = manifest.tensors.iter().map(|tensor| tensor.name.clone()).collect();
        prop_assert_eq!(names, expected(&tensors));
        let summary = inspect(dir.path()).unwrap();
        prop_assert_eq!(summary.tensors, manifest.tensors.len());
        let bytes: u64 = manifest.tensors.iter().map(|tensor| tensor.bytes).sum();
        prop_assert_eq!(summary.embedded_bytes + summary.external_bytes, bytes);
        prop_assert_eq!(manifest.weights.is_none(), names_none(&manifest));
    }
}

fn names_none(manifest: &engine::layout::LayoutManifest) -> bool {
    manifest.tensors.is_empty()
}

#[test]
fn every_type_moves_in_every_storage() {
    for storage in [Storage::Raw, Storage::Packed, Storage::Unpacked, Storage::External] {
        for place in [Place::Initializer, Place::Constant] {
            let all: Vec<Made> = (0..TYPES.len())
                .map(|kind| Made {
                    kind,
                    bytes: 5000,
                    storage,
                    place,
                    name: kind as u8 + 1,
                    seed: 3,
                    doc: kind % 2 == 0,
                })
                .collect();
            let dir = scratch();
            write(dir.path(), &all);
            let manifest = check(dir.path());
            // All but FLOAT4E2M1, which Millpond does not have.
            assert_eq!(manifest.tensors.len(), TYPES.len() - 1, "{storage:?} {place:?}");
        }
    }
}

#[test]
fn a_model_without_large_parameters_has_no_weights() {
    let dir = scratch();
    let model = ModelBuilder::new("small", 18)
        .input("x", DType::F32, &[Dim::Dynamic(Some("batch".to_owned())), Dim::Fixed(3)])
        .output("y", DType::F32, &[Dim::Dynamic(None), Dim::Fixed(3)])
        .floats("b", &[3], &[1.0, 2.0, 3.0])
        .node(Node::new("Add", &["x", "b"], &["y"]))
        .encode();
    let path = dir.path().join("any-name.onnx");
    std::fs::write(&path, &model).unwrap();
    let out = scratch();
    let manifest = convert_into(&path, out.path(), WriteOptions::default(), &mut |_| {}).unwrap();
    assert!(manifest.weights.is_none() && manifest.tensors.is_empty());
    assert_eq!(
        std::fs::read(out.path().join("model.onnx")).unwrap(),
        model,
        "unchanged to the last byte"
    );
    let none = SourceSummary { published: false, embedded_bytes: 0, external_bytes: 0, tensors: 0 };
    assert_eq!(inspect(&path).unwrap(), none);
}

#[test]
fn a_streamed_model_equals_the_output_of_a_layout_writer() {
    let parameters = [
        OnnxParameter::new("table", DType::F32, [300, 8]),
        OnnxParameter::new("tiny", DType::U8, [5]),
        OnnxParameter::new("ids", DType::I64, [1024]),
    ];
    let content = |index: usize, bytes: u64| -> Vec<u8> {
        (0..bytes).map(|at| (at as usize * (index + 3)) as u8).collect()
    };
    let base = ModelBuilder::new("two forms", 18)
        .metadata("labels", "a,b")
        .node(Node::new("Gather", &["table", "ids"], &["y"]).named("look up").int("axis", 0))
        .output("y", DType::F32, &[Dim::Fixed(1024), Dim::Fixed(8)]);
    let dir = scratch();
    let path = dir.path().join("embedded.onnx");
    let length = base
        .write_embedded(&path, &parameters, WriteOptions::default(), &mut |index, put| {
            content(index, parameters[index].bytes()?).chunks(1000).try_for_each(put)
        })
        .unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().len(), length);
    let manifest = check(&path);
    assert_eq!(manifest.tensors.len(), 2);

    let direct = scratch();
    let mut writer = super::super::layout_writer(direct.path(), WriteOptions::default()).unwrap();
    let mut graph = base;
    for (index, parameter) in parameters.iter().enumerate() {
        let bytes = content(index, parameter.bytes().unwrap());
        if parameter.name == "tiny" {
            graph = graph.initializer(parameter, &bytes);
        } else {
            let entry =
                writer.tensor(&parameter.name, parameter.dtype, &parameter.dims, [&bytes]).unwrap();
            graph = graph.external(parameter, "weights.bin", entry.offset).unwrap();
        }
    }
    let written = writer.finish(&graph.encode()).unwrap();
    assert_eq!(written.tensors, manifest.tensors);
    assert_eq!(sorted(&read(direct.path())), sorted(&read(&path)));
}

#[test]
fn a_streamed_model_of_the_wrong_size_is_refused() {
    let dir = scratch();
    let base = ModelBuilder::new("m", 18);
    let huge = [OnnxParameter::new("t", DType::F32, [1 << 29])];
    let path = dir.path().join("a.onnx");
    let error =
        base.write_embedded(&path, &huge, WriteOptions::default(), &mut |_, _| Ok(())).unwrap_err();
    assert_eq!(error.kind(), base::ErrorKind::TooLarge);
    assert!(!path.exists());
    let small = [OnnxParameter::new("t", DType::F32, [2])];
    for (name, bytes) in [("b", 7), ("c", 9)] {
        let path = dir.path().join(name);
        let error = base
            .write_embedded(&path, &small, WriteOptions::default(), &mut |_, put| {
                put(&vec![0; bytes])
            })
            .unwrap_err();
        assert_eq!(error.kind(), base::ErrorKind::InvalidArgument);
    }
}

#[test]
fn real_models_round_trip() {
    let Ok(root) = std::env::var("MILLPOND_TEST_MODELS") else {
        eprintln!(
            "skipped: set MILLPOND_TEST_MODELS to a directory of .onnx files to convert them too"
        );
        return;
    };
    let models = super::models_below(std::path::Path::new(&root));
    assert!(!models.is_empty(), "no .onnx file below MILLPOND_TEST_MODELS");
    for path in models {
        let manifest = check(&path);
        eprintln!("{}: {} tensors", path.display(), manifest.tensors.len());
    }
}
