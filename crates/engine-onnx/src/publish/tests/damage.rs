//! Damaged and hostile models: an error, never a panic, never a wrong version.

use std::path::Path;

use base::ErrorKind;

use super::super::convert::Conversion;
use super::super::{WriteOptions, convert_into};
use super::super::{encode, initializers, schema};
use super::generate::{Made, Place, Storage, write};
use super::scratch;

/// A model with parameters in all positions, small except for two that move. The graph comes last.
fn sample(dir: &Path) -> Vec<u8> {
    let one = |kind, bytes, storage, place, name| Made {
        kind,
        bytes,
        storage,
        place,
        name,
        seed: 7,
        doc: name % 2 == 0,
    };
    write(
        dir,
        &[
            one(0, 4096, Storage::Raw, Place::Initializer, 1),
            one(6, 64, Storage::Packed, Place::Initializer, 2),
            one(1, 4200, Storage::Packed, Place::Constant, 3),
            one(6, 24, Storage::Raw, Place::SubgraphConstant, 4),
            one(0, 16, Storage::Unpacked, Place::SubgraphInitializer, 5),
            one(0, 16, Storage::Raw, Place::Sparse, 6),
            one(0, 16, Storage::Raw, Place::TensorList, 8),
        ],
    );
    let model = std::fs::read(dir.join("model.onnx")).unwrap();
    let unknown = {
        let mut out = Vec::new();
        encode::bytes(&mut out, 4000, b"unknown");
        out.len()
    };
    model[..model.len() - unknown].to_vec()
}

#[test]
fn every_truncation_is_data_loss() {
    let dir = scratch();
    let model = sample(dir.path());
    let path = dir.path().join("model.onnx");
    std::fs::write(&path, &model).unwrap();
    assert!(Conversion::open(&path, false).is_ok());
    for length in 0..model.len() {
        std::fs::write(&path, &model[..length]).unwrap();
        let error = Conversion::open(&path, false)
            .err()
            .unwrap_or_else(|| panic!("{length} bytes were taken"));
        assert_eq!(error.kind(), ErrorKind::DataLoss, "{length} bytes: {error}");
        let place = if length == 0 { "empty" } else { "byte " };
        assert!(error.message().contains(place), "{error}");
    }
}

/// The writer of a model may replace its file at any time.
#[test]
fn a_model_that_is_replaced_after_its_plan_stays_open() {
    let dir = scratch();
    let path = dir.path().join("model.onnx");
    let model = sample(dir.path());
    let options = WriteOptions::default();
    let wanted = convert_into(&path, scratch().path(), options, &mut |_| {}).unwrap();
    let conversion = Conversion::open(&path, false).unwrap();
    std::fs::write(dir.path().join("other"), vec![1; 2 * model.len()]).unwrap();
    std::fs::rename(dir.path().join("other"), &path).unwrap();
    let written = conversion.run(scratch().path(), options, &mut |_| {}).unwrap();
    assert_eq!(written, wanted);
}

/// A parameter without fields takes two bytes in the file.
#[test]
fn the_number_of_parameters_is_bounded() {
    let dir = scratch();
    let path = dir.path().join("model.onnx");
    let read = |parameters: usize| {
        let mut body = Vec::new();
        (0..parameters).for_each(|_| encode::bytes(&mut body, schema::graph::INITIALIZER, b""));
        let mut model = Vec::new();
        encode::bytes(&mut model, schema::model::GRAPH, &body);
        std::fs::write(&path, model).unwrap();
        initializers::read(&path).map(|graph| graph.main.len())
    };
    assert_eq!(read(1000), Ok(1000));
    let error = read(600_000).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DataLoss);
    assert!(error.message().contains("too many parameters"), "{error}");
}

/// Changes each byte that is not an element in several ways. The outcome is a complete layout or an
/// error about the data.
#[test]
fn every_flipped_byte_is_harmless() {
    let dir = scratch();
    let model = sample(dir.path());
    let path = dir.path().join("model.onnx");
    let headers: Vec<usize> = (0..model.len())
        .filter(|&at| {
            // Of the elements of the two large tensors only a few: there a changed byte is another
            // value.
            let from = at.saturating_sub(200);
            at < 200
                || at % 331 == 0
                || model[from..at].windows(2).any(|pair| pair == b"t1" || pair == b"Co")
        })
        .collect();
    assert!(headers.len() > 300 && headers.len() < 3000, "{}", headers.len());
    let (mut fine, mut refused) = (0, 0);
    for at in headers {
        for flip in [0x01u8, 0x80] {
            let mut damaged = model.clone();
            damaged[at] ^= flip;
            std::fs::write(&path, &damaged).unwrap();
            let out = scratch();
            match convert_into(&path, out.path(), WriteOptions::default(), &mut |_| {}) {
                Ok(manifest) => {
                    fine += 1;
                    let artifact = engine::layout::Artifact::open(out.path()).unwrap();
                    assert_eq!(artifact.manifest, manifest);
                }
                Err(error) => {
                    refused += 1;
                    assert_eq!(error.kind(), ErrorKind::DataLoss, "byte {at} ^ {flip}: {error}");
                    assert!(!out.path().join("millpond.json").exists());
                }
            }
        }
    }
    assert!(fine > 0 && refused > 100, "{fine} fine, {refused} refused");
}

fn refusal(model: &[u8]) -> base::Error {
    let dir = scratch();
    let path = dir.path().join("model.onnx");
    std::fs::write(&path, model).unwrap();
    let out = scratch();
    convert_into(&path, out.path(), WriteOptions::default(), &mut |_| {}).unwrap_err()
}

fn with_tensor(fill: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut model = Vec::new();
    encode::message(&mut model, 7, |graph| encode::message(graph, 5, fill));
    model
}

#[test]
fn hostile_models_are_refused() {
    // Subgraphs without end.
    let mut deep = Vec::new();
    for _ in 0..60 {
        let (mut attribute, mut node, mut graph) = (Vec::new(), Vec::new(), Vec::new());
        encode::bytes(&mut attribute, 6, &deep);
        encode::bytes(&mut node, 5, &attribute);
        encode::bytes(&mut graph, 1, &node);
        deep = graph;
    }
    let mut model = Vec::new();
    encode::bytes(&mut model, 7, &deep);
    assert!(refusal(&model).message().contains("nested"));

    let huge = with_tensor(|out| {
        [i64::MAX, i64::MAX, 4].iter().for_each(|&dim| encode::int(out, 1, dim));
        encode::int(out, 2, 1);
        encode::bytes(out, 8, b"w");
    });
    assert!(refusal(&huge).message().contains("impossible shape"));

    let negative = with_tensor(|out| encode::int(out, 1, -5));
    assert!(refusal(&negative).message().contains("axis of size -5"));

    let hollow = with_tensor(|out| {
        encode::int(out, 1, 1 << 40);
        encode::int(out, 2, 1);
        encode::bytes(out, 8, b"w");
    });
    assert!(refusal(&hollow).message().contains("holds 0"));

    let many = with_tensor(|out| (0..1000).for_each(|_| encode::int(out, 1, 1)));
    assert!(refusal(&many).message().contains("axes"));

    assert!(refusal(b"").message().contains("is empty: copy or export"));
    assert!(
        refusal(b"version https://git-lfs.github.com/spec/v1\n").message().contains("git lfs pull")
    );
    assert!(refusal(b"PK\x03\x04").message().contains("is a damaged zip archive"));
    assert!(refusal(b"{\"json\": true}").message().contains("byte 0:"));
}

#[test]
fn external_data_outside_the_directory_is_refused() {
    for (location, kind) in [
        ("../secret", ErrorKind::InvalidArgument),
        ("/etc/passwd", ErrorKind::InvalidArgument),
        ("absent.bin", ErrorKind::NotFound),
    ] {
        for dims in [1024, 1] {
            let model = with_tensor(|out| {
                encode::int(out, 1, dims);
                encode::int(out, 2, 1);
                encode::bytes(out, 8, b"w");
                encode::entry(out, 13, "location", location);
                encode::int(out, 14, 1);
            });
            let error = refusal(&model);
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.message().contains("\"w\""), "{error}");
        }
    }
    let nowhere = with_tensor(|out| encode::int(out, 14, 1));
    assert!(refusal(&nowhere).message().contains("without a location"));
}

#[test]
fn external_data_that_cannot_be_bound_has_a_limit() {
    let dir = scratch();
    // Sparse, so that the test costs no space.
    std::fs::File::create(dir.path().join("data")).unwrap().set_len(300 << 20).unwrap();
    let mut model = Vec::new();
    encode::message(&mut model, 7, |graph| {
        for _ in 0..2 {
            encode::message(graph, 5, |out| {
                encode::int(out, 1, 150 << 20);
                encode::int(out, 2, 2);
                encode::bytes(out, 8, b"twice");
                encode::entry(out, 13, "location", "data");
                encode::entry(out, 13, "length", &(150 << 20).to_string());
                encode::int(out, 14, 1);
            });
        }
    });
    let path = dir.path().join("model.onnx");
    std::fs::write(&path, model).unwrap();
    let error = Conversion::open(&path, false).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.message().contains("unique name"), "{error}");
}
