//! Damaged files.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use base::ErrorKind;
use engine::{Arena, Engine, SignatureFile};
use engine_torch::build::TorchParameter;
use proptest::prelude::*;

use crate::support::{Written, answer, floats, load, store, torch};

/// Weights that are easy to find in the file, and enough code that some of it is compressed.
fn module() -> Written {
    let weight = (0..64).map(|at| 1000.0 + at as f32).collect();
    let mut source = String::from("def forward(self, x):\n    y = x\n");
    for line in 0..40 {
        source.push_str(&format!("    y = y + {line}.0 * self.weight[{line}]\n"));
    }
    Written::new(
        &(source + "    return y\n"),
        vec![TorchParameter::floats("weight", &[64], weight)],
    )
}

#[test]
fn a_flipped_bit_in_a_weight_is_refused() {
    let module = module();
    let mut bytes = std::fs::read(module.path()).unwrap();
    let weight = 1005f32.to_le_bytes();
    let at = bytes.windows(4).position(|window| window == weight).unwrap();
    bytes[at] ^= 1;
    std::fs::write(module.path(), bytes).unwrap();
    let store = store(64 << 20);
    for loaded in [module.try_load(SignatureFile::default()), module.load_into(&store)] {
        let error = loaded.err().unwrap();
        assert_eq!(error.kind(), ErrorKind::DataLoss, "{error}");
        assert!(error.message().contains("model.pt"), "{error}");
    }
    assert_eq!(store.pool().stats().used, 0, "a failed load gives its memory back");
}

#[test]
fn any_flipped_byte_is_refused_or_changes_nothing() {
    let (module, damaged) = (module(), tempfile::tempdir().unwrap());
    let whole = std::fs::read(module.path()).unwrap();
    let path = damaged.path().join("model.pt");
    let input = || floats("x", &[1], &[1.0]);
    let expected = answer(&*module.load(), input());
    proptest!(ProptestConfig::with_cases(200), |(at in 0..whole.len(), bit in 0..8)| {
        let mut bytes = whole.clone();
        bytes[at] ^= 1u8 << bit;
        std::fs::write(&path, bytes).unwrap();
        let _ = torch().arena_bytes(&path);
        match load(&path, SignatureFile::default(), None) {
            Ok(session) => prop_assert_eq!(answer(&*session, input()), expected.clone()),
            Err(error) => {
                let kinds = [ErrorKind::DataLoss, ErrorKind::InvalidArgument];
                prop_assert!(kinds.contains(&error.kind()), "{:?}", error);
                prop_assert!(!error.message().contains(['\n', '\r']));
            }
        }
    });
}

#[test]
fn any_cut_is_refused() {
    let (module, damaged) = (module(), tempfile::tempdir().unwrap());
    let whole = std::fs::read(module.path()).unwrap();
    let path = damaged.path().join("model.pt");
    proptest!(ProptestConfig::with_cases(60), |(bytes in 0..whole.len())| {
        std::fs::write(&path, &whole[..bytes]).unwrap();
        let error = load(&path, SignatureFile::default(), None).err().unwrap();
        prop_assert_eq!(error.kind(), ErrorKind::DataLoss, "{}", error);
        prop_assert!(torch().arena_bytes(&path).is_err());
    });
}

#[test]
fn other_archives_and_missing_files_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.pt");
    let mut writer = zip::ZipWriter::new(std::fs::File::create(&path).unwrap());
    let options =
        zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    writer.start_file("archive/data.pkl", options).unwrap();
    writer.finish().unwrap();
    let error = load(&path, SignatureFile::default(), None).err().unwrap();
    assert!(error.message().contains("torch.jit.save"), "{error}");
    let absent = load(&dir.path().join("absent.pt"), SignatureFile::default(), None).err().unwrap();
    assert_eq!(absent.kind(), ErrorKind::NotFound);
    assert_eq!(torch().arena_bytes(dir.path()).unwrap_err().kind(), ErrorKind::InvalidArgument);
}

#[test]
fn a_stopped_load_is_cancelled() {
    let (module, store) = (module(), store(64 << 20));
    let bytes = torch().arena_bytes(&module.path()).unwrap();
    let stop = Arc::new(AtomicBool::new(true));
    let arena = Arena { store: store.clone(), bytes, stop };
    let error = load(&module.path(), SignatureFile::default(), Some(arena)).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");
    assert_eq!(store.pool().stats().used, 0);
}
