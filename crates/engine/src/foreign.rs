//! Recognises model files of other programs, so that messages can name the remedy.

use std::path::Path;

/// Bytes of a file's beginning that [`content`] reads.
pub const BEGINNING_BYTES: usize = 64;

/// File name pattern of a format.
enum NamePattern {
    /// The whole file name.
    Is(&'static str),
    /// The extension.
    Ends(&'static str),
}

/// Pattern, description of the format, and remedy.
type ForeignFormat = (NamePattern, &'static str, &'static str);

const OPTIMUM: &str =
    "weights without a graph: export the model with optimum-cli export onnx --model DIR OUT";
const PADDLE: &str = "convert it with paddle2onnx --model_dir DIR --save_file model.onnx";
const PICKLE: &str =
    "a pickled Python object, which is never opened: convert the estimator with skl2onnx";

const TABLE: [ForeignFormat; 19] = [
    (
        NamePattern::Is("saved_model.pbtxt"),
        "a TensorFlow SavedModel as text",
        "save it as saved_model.pb with tf.saved_model.save",
    ),
    (NamePattern::Is("__model__"), "a Paddle model", PADDLE),
    (NamePattern::Is("inference.json"), "a Paddle model", PADDLE),
    (NamePattern::Ends("pdmodel"), "a Paddle model", PADDLE),
    (
        NamePattern::Is("model.plan"),
        "a TensorRT engine",
        "it runs on one kind of GPU: serve the ONNX file that it was built from",
    ),
    (
        NamePattern::Ends("mar"),
        "a TorchServe archive",
        "unzip it and name its TorchScript file model.pt",
    ),
    (NamePattern::Ends("safetensors"), "a Hugging Face checkpoint", OPTIMUM),
    (NamePattern::Ends("pkl"), "scikit-learn's", PICKLE),
    (NamePattern::Ends("joblib"), "scikit-learn's", PICKLE),
    (
        NamePattern::Ends("tflite"),
        "a TensorFlow Lite model",
        "convert it with python -m tf2onnx.convert --tflite FILE --output model.onnx",
    ),
    (NamePattern::Ends("keras"), "a Keras model", "save it as a SavedModel with model.export(DIR)"),
    (NamePattern::Ends("h5"), "a Keras model", "save it as a SavedModel with model.export(DIR)"),
    (NamePattern::Ends("gguf"), "a language model for llama.cpp", "text generation is not offered"),
    (
        NamePattern::Ends("pb"),
        "a frozen TensorFlow graph",
        "convert it with python -m tf2onnx.convert --graphdef FILE --output model.onnx",
    ),
    (
        NamePattern::Ends("xml"),
        "an OpenVINO model",
        "serve the ONNX file that it was converted from",
    ),
    (NamePattern::Ends("onnx"), "an ONNX model by another name", "name it model.onnx"),
    (NamePattern::Ends("pt2"), "a compiled PyTorch package by another name", "name it model.pt2"),
    (
        NamePattern::Ends("pt"),
        "PyTorch's",
        "name it model.pt if it is TorchScript (torch.jit.save)",
    ),
    (
        NamePattern::Ends("pth"),
        "PyTorch's",
        "save it with torch.jit.save as model.pt, or export it with torch.onnx.export",
    ),
];

/// Returns the format of a directory with `files` and the remedy, such as "saved_model.pb is a
/// TensorFlow SavedModel: convert ...". `None` if no format is recognised.
pub fn files<'a>(files: impl Iterator<Item = &'a Path> + Clone) -> Option<String> {
    TABLE.iter().find_map(|(name, format, remedy)| {
        let found = files.clone().find(|path| name.fits(path))?;
        // A file that the table knows has a name.
        let found = found.file_name()?.to_string_lossy();
        Some(format!("{found} is {format}: {remedy}"))
    })
}

/// Returns the format of a file that begins with `bytes` and the remedy, or `None` for a file that
/// `publish` takes.
pub fn content(bytes: &[u8]) -> Option<&'static str> {
    const LFS: &[u8] = b"version https://git-lfs.github.com/spec";
    Some(match bytes {
        [] => "the file is empty",
        bytes if bytes.starts_with(LFS) => {
            "a Git LFS pointer and not the file that it stands for: fetch that with git lfs pull"
        }
        bytes if bytes.starts_with(b"PK\x03\x04") => {
            "a zip archive, as PyTorch writes: publish takes ONNX; put TorchScript at NAME/1/model.pt"
        }
        bytes if bytes.starts_with(b"\x89HDF") => {
            "a Keras or HDF5 file: save it as a SavedModel with model.export(DIR)"
        }
        bytes if bytes.starts_with(b"GGUF") => {
            "a language model for llama.cpp: text generation is not offered"
        }
        bytes if bytes.get(4..8) == Some(b"TFL3") => {
            "a TensorFlow Lite model: convert it with python -m tf2onnx.convert --tflite FILE --output model.onnx"
        }
        [0x80, 2..=5, ..] => {
            "a pickled Python object, which is never opened: convert the estimator with skl2onnx"
        }
        _ => return None,
    })
}

/// Returns the keys of Triton's `config.pbtxt` in `text` that change how a model is served, each
/// with its equivalent in millpond.toml. The server never reads that file.
pub fn triton_keys(text: &str) -> Vec<String> {
    const KEYS: [(&str, &str); 12] = [
        ("max_batch_size", "max-batch in [schedule]"),
        ("dynamic_batching", "mode = \"async\" in [schedule]"),
        ("preferred_batch_size", "preferred-batch-sizes in [schedule]"),
        ("max_queue_delay_microseconds", "max-queue-delay in [schedule]"),
        ("max_queue_size", "queue in [schedule]"),
        ("default_timeout_microseconds", "timeout in [schedule]"),
        ("priority_levels", "priorities in [schedule]"),
        ("instance_group", "threads in [schedule], and device"),
        ("version_policy", "policy"),
        ("model_warmup", "[warmup]"),
        ("sequence_batching", "not offered"),
        ("ensemble_scheduling", "not offered"),
    ];
    let begins = |line: &str, key: &str| {
        let rest = line.trim_start().strip_prefix(key);
        rest.is_some_and(|rest| rest.trim_start().starts_with([':', '{', '[']))
    };
    let found = KEYS.iter().filter(|(key, _)| text.lines().any(|line| begins(line, key)));
    found.map(|(key, equivalent)| format!("{key} ({equivalent})")).collect()
}

impl NamePattern {
    fn fits(&self, path: &Path) -> bool {
        match self {
            NamePattern::Is(name) => path.file_name().is_some_and(|file| file == *name),
            NamePattern::Ends(extension) => path.extension().is_some_and(|ends| ends == *extension),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_files_are_recognised() {
        for (file, says) in [
            ("saved_model.pbtxt", "saved_model.pb"),
            ("frozen.pb", "--graphdef"),
            ("ocr.pdmodel", "paddle2onnx"),
            ("__model__", "paddle2onnx"),
            ("inference.json", "paddle2onnx"),
            ("model.safetensors", "optimum-cli"),
            ("a.pkl", "skl2onnx"),
            ("a.joblib", "skl2onnx"),
            ("model.plan", "TensorRT"),
            ("model.xml", "OpenVINO"),
            ("a.tflite", "--tflite"),
            ("a.gguf", "llama.cpp"),
            ("a.mar", "TorchServe"),
            ("resnet.onnx", "name it model.onnx"),
        ] {
            let paths = [Path::new("variables/x"), Path::new(file)];
            let said = files(paths.into_iter()).unwrap_or_default();
            assert!(said.starts_with(file) && said.contains(says), "{file}: {said}");
        }
        assert_eq!(files([Path::new("README.md")].into_iter()), None);
    }

    #[test]
    fn contents_are_recognised() {
        for (bytes, says) in [
            (&b""[..], "empty"),
            (b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "git lfs pull"),
            (b"PK\x03\x04....", "NAME/1/model.pt"),
            (b"\x80\x04\x95", "skl2onnx"),
            (b"GGUF", "llama.cpp"),
            (b"\x1c\0\0\0TFL3", "--tflite"),
        ] {
            assert!(content(bytes).unwrap_or_default().contains(says), "{says}");
        }
        // An ONNX file: ir_version 8.
        assert_eq!(content(b"\x08\x08\x12\x00"), None);
    }

    #[test]
    fn keys_of_triton_have_equivalents() {
        let text = "name: \"m\"\nmax_batch_size: 8\ninput [ { name: \"x\" } ]\ndynamic_batching {\n  \
                    max_queue_delay_microseconds: 100\n}\n# instance_group: a comment\n";
        let keys = triton_keys(text).join(", ");
        for said in [
            "max_batch_size (max-batch",
            "dynamic_batching (mode",
            "max_queue_delay_microseconds (",
        ] {
            assert!(keys.contains(said), "{keys}");
        }
        assert!(!keys.contains("instance_group"), "{keys}");
        assert!(triton_keys("name: \"m\"\nplatform: \"onnxruntime_onnx\"\n").is_empty());
    }
}
