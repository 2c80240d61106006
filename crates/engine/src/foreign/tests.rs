use std::io::Write;

use zip::write::SimpleFileOptions;

use super::*;

fn archive_of(records: &[&str]) -> Vec<u8> {
    let mut zip = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    let stored = SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    for record in records {
        zip.start_file(*record, stored).unwrap();
        zip.write_all(b"x").unwrap();
    }
    zip.finish().unwrap().into_inner()
}

#[test]
fn files_are_recognised_by_content_before_name() {
    let module = archive_of(&["net/data.pkl", "net/constants.pkl", "net/code/__torch__.py"]);
    let weights = archive_of(&["net/data.pkl", "net/data/0", "net/version"]);
    let exported = archive_of(&["net/archive_format", "net/models/model.json"]);
    let keras = archive_of(&["config.json", "metadata.json", "model.weights.h5"]);
    let dir = tempfile::tempdir().unwrap();
    for (file, bytes, says) in [
        ("a.onnx", &b""[..], "empty: "),
        ("a.onnx", b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "git lfs pull"),
        ("a.pt", &module, "a TorchScript model: it is served as it is"),
        ("a.pth", &weights, "weights without a graph (torch.save): "),
        ("a.onnx", &module, "NAME/1/model.pt"),
        ("a.pt2", &exported, "torch.onnx.export"),
        ("a.bin", &keras, "model.export(DIR)"),
        ("a.zip", &archive_of(&["readme"]), "a zip archive of an unknown kind"),
        ("a.pt", b"\x80\x02}q\x00", "a pickled Python object"),
        (
            "a.pt2",
            &archive_of(&["net/archive_format", "net/data/aotinductor/model/x.so"]),
            "trusted",
        ),
        ("a.pt", &module[..module.len() - 9], "a damaged zip archive: copy"),
        ("a.pt", b"noise", "a damaged PyTorch file: copy"),
        ("a.pkl", b"\x80\x04\x95", "skl2onnx"),
        ("a.joblib", b"x", "skl2onnx"),
        ("model.onnx", b"\x89HDF\r\n\x1a\n", "a Keras or HDF5 file"),
        ("a.keras", b"x", "a Keras model"),
        ("a.gguf", b"GGUF", "llama.cpp"),
        ("a", b"\x1c\0\0\0TFL3", "--tflite"),
        ("a", b"\x40\0\0\0\0\0\0\0{\"__metadata__\":{}}", "optimum-cli"),
        ("inference.pdmodel", b"\x0a\x10", "paddle2onnx"),
        ("__model__", b"\x0a\x10", "paddle2onnx"),
        ("inference.json", b"{\"base_code\":", "paddle2onnx"),
        ("model.plan", b"ptrt", "TensorRT"),
        ("model.engine", b"x", "TensorRT"),
        ("model.xml", b"<?xml version", "OpenVINO"),
        ("frozen.pb", b"\x0a\x20", "--graphdef"),
        ("saved_model.pbtxt", b"x", "tf.saved_model.save"),
    ] {
        let path = dir.path().join(file);
        std::fs::write(&path, bytes).unwrap();
        let said = identify(&path).map(|format| format.to_string()).unwrap_or_default();
        assert!(said.contains(says), "{file}: {said}");
    }
}

/// PyTorch writes both records of zip64 into every archive. With a first name of 30 bytes, they
/// have the length of the first entry of the directory.
#[test]
fn archives_of_pytorch_are_read_under_any_name() {
    let dir = tempfile::tempdir().unwrap();
    for stem in ["net", "fraud_scorer_2026_nov_v"] {
        let names = ["data/0", "data.pkl", "constants.pkl"].map(|name| format!("{stem}/{name}"));
        let mut bytes = archive_of(&names.each_ref().map(String::as_str));
        let end = bytes.len() - 22;
        let field = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        let (size, start) = (u64::from(field(end + 12)), u64::from(field(end + 16)));
        let count = names.len() as u64;
        let mut zip64 = b"PK\x06\x06\x2c\0\0\0\0\0\0\0\x1e\x03\x2d\0\0\0\0\0\0\0\0\0".to_vec();
        zip64.extend([count, count, size, start].map(u64::to_le_bytes).concat());
        zip64.extend(b"PK\x06\x07\0\0\0\0");
        zip64.extend((end as u64).to_le_bytes());
        zip64.extend(1u32.to_le_bytes());
        bytes.splice(end..end, zip64);
        let path = dir.path().join("model.pt");
        std::fs::write(&path, &bytes).unwrap();
        assert_eq!(open_archive(File::open(&path).unwrap()).unwrap().len(), 3);
        assert_eq!(identify(&path).unwrap().format, "a TorchScript model", "{stem}");
    }
}

#[test]
fn onnx_is_recognised_under_any_name() {
    let dir = tempfile::tempdir().unwrap();
    for (file, bytes) in [("a.pb", &b"\x08\x08\x12\x00"[..]), ("a.onnx", b"noise"), ("b", b"?")] {
        let path = dir.path().join(file);
        std::fs::write(&path, bytes).unwrap();
        assert_eq!(identify(&path), None, "{file}");
    }
    assert_eq!(identify(dir.path()), None);
    assert_eq!(identify(&dir.path().join("missing.pt")), None);
}

#[test]
fn directories_are_recognised_by_their_files() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("net.pt"), archive_of(&["net/data.pkl"])).unwrap();
    let said = |files: &[&str]| {
        identify_in(dir.path(), files.iter().map(|file| Path::new(*file))).unwrap_or_default()
    };
    assert!(said(&["variables/x", "a.pkl"]).starts_with("a.pkl is a pickled Python object: "));
    assert!(said(&["net.pt"]).starts_with("net.pt is PyTorch weights without a graph"));
    assert!(said(&["resnet.onnx"]).ends_with("name it model.onnx"));
    let triton = said(&["model.onnx/model.onnx", "model.onnx/weights"]);
    assert!(triton.starts_with("model.onnx/model.onnx is an ONNX model below"), "{triton}");
    assert!(said(&["inference.pdiparams", "inference.json"]).contains("paddle2onnx"));
    let nested = said(&["model.savedmodel/saved_model.pb"]);
    assert!(nested.starts_with("model.savedmodel/saved_model.pb is a TensorFlow SavedModel: "));
    assert_eq!(said(&["README.md"]), "");
}

#[test]
fn models_below_a_directory_are_recognised() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(identify_below(dir.path()), None);
    let nested = dir.path().join("model.onnx");
    std::fs::create_dir(&nested).unwrap();
    std::fs::write(nested.join("model.onnx"), b"\x08\x08\x12\x00").unwrap();
    let said = identify_below(dir.path()).unwrap();
    assert!(said.starts_with("model.onnx/model.onnx is an ONNX model below"), "{said}");
    assert_eq!(identify_dir(dir.path()), None);
    assert_eq!(identify_below(&dir.path().join("missing")), None);
}

#[test]
fn pointers_are_found_beside_a_whole_graph() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("model.onnx"), b"\x08\x08\x12\x00").unwrap();
    let files = [(Path::new("model.onnx"), 4), (Path::new("model.onnx.data"), 60)];
    assert_eq!(pointer_in(dir.path(), files.into_iter()), None);
    std::fs::write(dir.path().join("model.onnx.data"), [POINTER, b"/v1\n"].concat()).unwrap();
    let said = pointer_in(dir.path(), files.into_iter()).unwrap();
    assert!(said.starts_with("model.onnx.data is a Git LFS pointer"), "{said}");
}
