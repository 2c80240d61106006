//! Models and settings of other servers, and the messages of the commands about them.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::program::{Run, check_error, run, write_model};
use crate::serve::{Server, publish};

const POINTER: &[u8] = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n";

fn write(dir: &Path, file: &str, bytes: &[u8]) -> String {
    let path = dir.join(file);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, bytes).unwrap();
    path.to_str().unwrap().to_owned()
}

fn archive(records: &[&str]) -> Vec<u8> {
    let mut zip = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    for record in records {
        zip.start_file(*record, zip::write::SimpleFileOptions::default()).unwrap();
        zip.write_all(b"x").unwrap();
    }
    zip.finish().unwrap().into_inner()
}

#[test]
fn publish_names_the_format_and_the_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("models/m");
    let to = to.to_str().unwrap();
    let module = archive(&["net/data.pkl", "net/constants.pkl"]);
    for (file, bytes, format, way) in [
        ("net.pt", &module[..], "a TorchScript model", format!("copy it to {to}/1/model.pt")),
        (
            "net.pth",
            &archive(&["net/data.pkl"]),
            "PyTorch weights without a graph",
            "torch.onnx.export".into(),
        ),
        ("forest.pkl", b"\x80\x04\x95", "a pickled Python object", "skl2onnx".into()),
        (
            "net.safetensors",
            b"\x08\0\0\0\0\0\0\0{\"a\":1}",
            "weights without a graph",
            "optimum-cli".into(),
        ),
        ("net.plan", b"ptrt", "a TensorRT engine", "publish the ONNX file".into()),
        ("net.onnx", POINTER, "a Git LFS pointer", "git lfs pull".into()),
        ("net.h5", b"\x89HDF\r\n", "a Keras or HDF5 file", "model.export(DIR)".into()),
        (
            "net.tflite",
            b"\x1c\0\0\0TFL3",
            "a TensorFlow Lite model",
            format!("--tflite {}/net.tflite", dir.path().display()),
        ),
        ("paddle/inference.pdmodel", b"\x0a\x10", "a Paddle model", "paddle2onnx".into()),
    ] {
        let source = write(dir.path(), file, bytes);
        let arguments = ["publish", &source, "--to", to];
        check_error(&arguments, 2, &format!("error: {source} is {format}"));
        check_error(&arguments, 2, &way);
    }
    let paddle = dir.path().join("paddle");
    let arguments = ["publish", paddle.to_str().unwrap(), "--to", to];
    check_error(&arguments, 2, "holds no model that can be published");
    check_error(&arguments, 2, "inference.pdmodel is a Paddle model: convert it with paddle2onnx");
    write(dir.path(), "triton/model.onnx/model.onnx", b"\x08\x08\x12\x00");
    let triton = dir.path().join("triton");
    let arguments = ["publish", triton.to_str().unwrap(), "--to", to];
    check_error(&arguments, 2, "model.onnx/model.onnx is an ONNX model below");
    let noise = write(dir.path(), "noise.onnx", b"noise");
    check_error(&["publish", &noise, "--to", to], 1, "export or copy the file again");
    // The content counts, not the name.
    let renamed = dir.path().join("renamed.pt");
    write_model(&renamed, 0.5);
    assert_eq!(run(&["publish", renamed.to_str().unwrap(), "--to", to]).code, 0);
}

#[test]
fn a_repository_of_triton_is_imported_or_has_warnings() {
    let dir = tempfile::tempdir().unwrap();
    publish(dir.path(), 0.5);
    let text = b"name: \"half_plus_two\"\nbackend: \"onnxruntime\"\nmax_batch_size: 8\n\
                 dynamic_batching {\n  preferred_batch_size: [ 4 ]\n}\nresponse_cache { enable: true }\n";
    write(dir.path(), "models/half_plus_two/config.pbtxt", text);
    let models = dir.path().join("models");
    let models = models.to_str().unwrap();
    let served = |arguments: &[&str]| {
        let log = dir.path().join("log");
        let file = std::fs::File::create(&log).unwrap();
        let server = Server::start_logged(arguments, Stdio::from(file));
        server.wait_until("ready", &["models", "status", "half_plus_two"], |run| run.code == 0);
        publish(dir.path(), 0.25);
        let newer = |run: &crate::program::Run| run.stdout.contains("ready") && run.code == 0;
        server.wait_until("still ready", &["models", "status", "half_plus_two"], newer);
        assert_eq!(server.terminate(), Some(0));
        std::fs::read_to_string(log).unwrap()
    };
    let log = served(&[models, "--log", "info", "--versions", "all"]);
    for warning in [
        "half_plus_two: max_batch_size = 8 in config.pbtxt has no effect",
        "dynamic_batching = { preferred_batch_size : [ 4 ] } in config.pbtxt has no effect",
        "response_cache = { enable : true } in config.pbtxt has no effect",
    ] {
        assert_eq!(log.matches(warning).count(), 1, "{warning}: {log}");
    }
    assert!(log.contains(&format!("`millpond import triton {models}` converts the file")), "{log}");

    let settings = dir.path().join("millpond.toml");
    let settings = settings.to_str().unwrap();
    let imported = run(&["import", "triton", models, "--to", settings]);
    assert_eq!((imported.code, imported.stdout.as_str()), (0, ""), "{imported:?}");
    assert_eq!(
        imported.stderr,
        "no equivalent: half_plus_two: response_cache: answers are not cached; put a cache before the server\n"
    );
    let log = served(&["--config", settings, "--log", "info"]);
    assert!(!log.contains("config.pbtxt"), "{log}");

    let written = run(&["import", "triton", models, "--write"]);
    assert_eq!(written.stdout, format!("{models}/half_plus_two/millpond.toml\n"), "{written:?}");
    let log = served(&[models, "--log", "info"]);
    assert!(!log.contains("config.pbtxt"), "{log}");
    check_error(&["import", "triton", models, "--write"], 1, "nothing was written");
    check_error(&["import", "triton", settings], 2, "Not a directory");
}

#[test]
fn no_part_of_converted_settings_stays_on_a_full_disk() {
    let dir = tempfile::tempdir().unwrap();
    let list =
        "model_config_list { config { name: 'a' base_path: '/m/a' model_platform: 'tensorflow' } }";
    let list = write(dir.path(), "models.config", list.as_bytes());
    let to = dir.path().join("millpond.toml");
    // The program ignores SIGXFSZ, so a write beyond the limit is an error.
    let full_disk = "ulimit -f 0; exec \"$0\" \"$@\"";
    let import = ["import", "tfs", &list, "--to", to.to_str().unwrap()];
    let output = Command::new("/bin/sh")
        .args(["-c", full_disk, env!("CARGO_BIN_EXE_millpond")])
        .args(import)
        .output()
        .unwrap();
    let run = Run::from(output);
    assert!(run.code == 1 && run.stderr.contains("millpond.toml: File too large"), "{run:?}");
    assert!(!to.exists());
}

#[test]
fn serve_names_the_format_of_unsupported_files() {
    let dir = tempfile::tempdir().unwrap();
    publish(dir.path(), 0.5);
    let model = |file: &str, bytes: &[u8]| write(dir.path(), &format!("models/{file}"), bytes);
    model("paddle/inference.pdmodel", b"\x0a\x10");
    model("saved/saved_model.pb", b"\x08\x01");
    model("weights/1/model.pt", &archive(&["net/data.pkl"]));
    model("triton/1/model.savedmodel/saved_model.pb", b"\x08\x01");
    model("pointer/1/model.onnx", POINTER);
    let models = dir.path().join("models");
    let log = dir.path().join("log");
    let file = std::fs::File::create(&log).unwrap();
    let arguments = [models.to_str().unwrap(), "--log", "info"];
    let server = Server::start_logged(&arguments, Stdio::from(file));
    for (model, reason) in [
        ("weights", "model.pt is PyTorch weights without a graph"),
        (
            "triton",
            "model.savedmodel/saved_model.pb is a TensorFlow SavedModel: it is served as it is: put",
        ),
        ("pointer", "model.onnx is a Git LFS pointer"),
    ] {
        server.wait_until(reason, &["models", "status", model], |run| run.stdout.contains(reason));
    }
    assert_eq!(server.terminate(), Some(0));
    let log = std::fs::read_to_string(log).unwrap();
    for part in [
        "models/paddle is not served: inference.pdmodel is a Paddle model",
        "models/saved holds saved_model.pb itself: put it into ",
    ] {
        assert!(log.contains(part), "{part}: {log}");
    }
    check_error(
        &["serve", "ftp://h/m"],
        2,
        "ftp://h/m: \"ftp\" is not a supported kind of store; use s3://",
    );
    let single = write(dir.path(), "net.pkl", b"\x80\x04");
    check_error(&["serve", &single], 2, "net.pkl: it is a pickled Python object\nhint: ");
}
