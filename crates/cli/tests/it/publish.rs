//! `millpond publish`, and `convert`, which the server runs.

use std::path::Path;

use crate::program::{check_error, run, write_model};

#[test]
fn versions_are_numbered_and_named_on_standard_output() {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("model.onnx");
    write_model(&model, 0.5);
    let to = dir.path().join("models/half_plus_two");
    let publish = |more: &[&str]| {
        run(&[&["publish", model.to_str().unwrap(), "--to", to.to_str().unwrap()], more].concat())
    };
    for (more, version) in
        [(&[][..], "1"), (&[], "2"), (&["--version", "7", "--rate", "100MB/s"], "7"), (&[], "8")]
    {
        let run = publish(more);
        assert_eq!(run.code, 0, "{run:?}");
        // A pipe is not a terminal, so the output is the directory alone, for scripts.
        assert_eq!(run.stdout, format!("{}\n", to.join(version).display()));
        assert!(to.join(version).join("millpond.json").is_file());
    }
    let again = publish(&["--version", "7"]);
    assert_eq!(again.code, 1, "{again:?}");
    assert!(again.stderr.starts_with("error: "), "{again:?}");
}

#[test]
fn a_failed_publication_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let text = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    check_error(&["publish", &text("missing.onnx"), "--to", &text("m")], 1, "missing.onnx");
    std::fs::write(dir.path().join("noise.onnx"), b"this is no model").unwrap();
    check_error(&["publish", &text("noise.onnx"), "--to", &text("m")], 1, "noise.onnx");
    check_error(&["publish", &text("noise.onnx"), "--to", &text("a b")], 2, "is not a model name");
    check_error(&["publish", &text("noise.onnx"), "--to=~/m"], 2, "--to ~/m: ~ does not mean");
    for (to, wanted) in [("s3:/b/m", "give s3://b/m"), ("file:/b/m", "give file:///b/m")] {
        check_error(&["publish", &text("noise.onnx"), "--to", to], 2, wanted);
    }
    let saved = text("saved");
    let model = text("m");
    let empty = ["publish", saved.as_str(), "--to", model.as_str()];
    std::fs::create_dir_all(dir.path().join("saved/00000123")).unwrap();
    check_error(&empty, 1, "saved holds none of millpond.json, model.onnx, saved_model.pb");
    check_error(&empty, 1, "give one of its versions, such as ");
    check_error(&empty, 1, "saved/00000123");
    assert!(!dir.path().join("m/1").exists());
}

#[test]
fn a_version_goes_into_a_model_and_nowhere_else() {
    let dir = tempfile::tempdir().unwrap();
    let text = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let model = text("model.onnx");
    write_model(Path::new(&model), 0.5);
    assert_eq!(run(&["publish", &model, "--to", &text("models/ranker")]).code, 0);
    check_error(&["publish", &model, "--to", &text("models/ranker/2")], 2, "is a version's number");
    check_error(
        &["publish", &model, "--to", &text("models")],
        2,
        "is a directory of models (ranker, 1 in all)",
    );
    assert_eq!(run(&["publish", &model, "--to", &text("models/ranker")]).code, 0, "as before");
    assert!(!dir.path().join("models/1").exists() && dir.path().join("models/ranker/2").exists());
}

#[test]
fn convert_fills_a_directory_or_prints_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let text = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    std::fs::create_dir(dir.path().join("dest")).unwrap();
    write_model(&dir.path().join("model.onnx"), 0.5);
    let done = run(&["convert", &text("model.onnx"), &text("dest")]);
    assert_eq!((done.code, done.stdout.as_str(), done.stderr.as_str()), (0, "", ""), "{done:?}");
    assert!(dir.path().join("dest/millpond.json").is_file());

    std::fs::create_dir(dir.path().join("other")).unwrap();
    std::fs::write(dir.path().join("noise.onnx"), b"this is no model").unwrap();
    let refused = run(&["convert", &text("noise.onnx"), &text("other")]);
    assert_eq!(refused.code, 1, "{refused:?}");
    assert_eq!(refused.stderr.lines().count(), 1, "{refused:?}");
    assert!(
        !refused.stderr.starts_with("error"),
        "the server shows it as the version's reason: {refused:?}"
    );
    // A link to itself cannot be read; that is not the fault of its target.
    std::os::unix::fs::symlink("loop.onnx", dir.path().join("loop.onnx")).unwrap();
    let unread = run(&["convert", &text("loop.onnx"), &text("other")]);
    assert_eq!(unread.code, lifecycle::Converter::TRY_AGAIN, "{unread:?}");
}
