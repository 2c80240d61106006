//! `millpond doctor`.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;

use crate::program::{Run, check_error, command, run};

#[test]
fn a_directory_that_does_not_exist_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("none");
    let wanted = "none: No such file or directory (os error 2)";
    check_error(&["doctor", missing.to_str().unwrap()], 2, wanted);
    std::fs::write(&missing, "a file").unwrap();
    check_error(&["doctor", missing.to_str().unwrap()], 2, "none: it is not a directory");
    check_error(&["doctor", "s3://bucket/models"], 2, "s3://bucket/models: it is a URL; ");
}

#[test]
fn every_finding_has_a_verdict_and_a_meaning() {
    let dir = tempfile::tempdir().unwrap();
    let run = run(&["doctor", "--json", dir.path().to_str().unwrap()]);
    let report: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
    let checks = report["checks"].as_array().unwrap();
    let names: BTreeSet<&str> =
        checks.iter().map(|check| check["name"].as_str().unwrap()).collect();
    let wanted = [
        "processor",
        "cores",
        "CPU limit",
        "clock",
        "idle cores",
        "memory",
        "huge pages",
        "allocator",
        "freed memory",
        "direct reads",
        "io_uring",
        "ONNX Runtime",
        "LibTorch",
        "TensorFlow",
        "GPU",
        "access",
        "open files",
        "persistent memory",
        "kernel",
    ];
    assert_eq!(names, BTreeSet::from(wanted));
    for check in checks {
        assert!(["ok", "warn", "fail"].contains(&check["verdict"].as_str().unwrap()), "{check}");
        assert!(!check["found"].as_str().unwrap().is_empty(), "{check}");
        assert!(check["meaning"].as_str().unwrap().split_whitespace().count() > 4, "{check}");
    }
    let verdict =
        |name: &str| checks.iter().find(|check| check["name"] == name).unwrap()["verdict"].clone();
    // The test itself runs, so these cannot fail; and the binary carries its allocator.
    assert_eq!(verdict("allocator"), "ok");
    assert_ne!(verdict("open files"), "fail");
    assert_eq!(run.code, if checks.iter().any(|check| check["verdict"] == "fail") { 4 } else { 0 });
}

#[test]
fn users_without_a_home_have_a_cache_of_their_own() {
    let dir = tempfile::tempdir().unwrap();
    let user = std::fs::metadata(dir.path()).unwrap().uid();
    let mut doctor = command(&["doctor", "--json"]);
    let run: Run =
        doctor.env_remove("MILLPOND_CACHE_DIR").env("TMPDIR", dir.path()).output().unwrap().into();
    let cache = dir.path().join(format!("millpond-{user}"));
    assert!(run.stdout.contains(&format!("cache directory {}\"", cache.display())), "{run:?}");
}

#[test]
fn without_the_engine_nothing_can_be_served() {
    let dir = tempfile::tempdir().unwrap();
    let run: Run = command(&["doctor", "--onnxruntime", dir.path().to_str().unwrap()])
        .output()
        .unwrap()
        .into();
    assert_eq!(run.code, 4, "{run:?}");
    assert!(run.stdout.contains("fail  ONNX Runtime"), "{run:?}");
    assert!(run.stdout.contains("This machine cannot serve yet: 1 of "), "{run:?}");
}

#[test]
fn without_libtorch_onnx_models_can_still_be_served() {
    let dir = tempfile::tempdir().unwrap();
    let run = run(&["doctor", "--json", "--libtorch", dir.path().to_str().unwrap()]);
    let report: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
    let checks = report["checks"].as_array().unwrap();
    let check = checks.iter().find(|check| check["name"] == "LibTorch").unwrap();
    assert_eq!(check["verdict"], "warn");
    assert!(check["meaning"].as_str().unwrap().contains("make torch"), "{check}");
}

#[test]
fn a_broken_library_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("libonnxruntime.so.1.99.0");
    std::fs::write(&path, b"not a library").unwrap();
    let run: Run = command(&["doctor"]).env("MILLPOND_ONNXRUNTIME", &path).output().unwrap().into();
    assert_eq!(run.code, 4, "{run:?}");
}

#[test]
fn a_program_in_an_inactive_environment_finds_its_library() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let environment = dir.path().join("environment");
    let capi = environment.join("lib/python3.11/site-packages/onnxruntime/capi");
    std::fs::create_dir_all(&capi).unwrap();
    std::fs::create_dir(environment.join("bin")).unwrap();
    let program = environment.join("bin/millpond");
    std::fs::hard_link(env!("CARGO_BIN_EXE_millpond"), &program).unwrap();
    let doctor = || -> Run {
        let mut command = std::process::Command::new(&program);
        let run = command.args(["doctor", "--json"]).env_clear().current_dir("/").output().unwrap();
        run.into()
    };
    let library = capi.join("libonnxruntime.so.1.99.0");
    std::fs::write(&library, b"not a library").unwrap();
    let found = doctor();
    assert!(found.stdout.contains(&library.display().to_string()), "{found:?}");
}
