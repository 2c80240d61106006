//! A missing or unfit library is refused in one line with the remedy.

use std::path::{Path, PathBuf};

use base::ErrorKind;
use engine::{Engine, LibrarySearch, LoadRequest};
use engine_onnx::{LazyOnnxEngine, OnnxEngine};

use crate::support::{NAMED, child, onnx, search};

/// Variable with the value of `--onnxruntime` in the child process of these tests.
const EXPLICIT: &str = "MILLPOND_TEST_EXPLICIT";

#[test]
fn the_version_is_the_librarys_own() {
    let engine = onnx();
    let version = engine.version();
    let minor: u32 =
        version.strip_prefix("1.").unwrap().split('.').next().unwrap().parse().unwrap();
    assert!(minor >= 17, "{version}");
    assert!(
        engine.library().ends_with(format!("libonnxruntime.so.{version}")),
        "{}",
        engine.library().display()
    );
    assert_eq!(OnnxEngine::find_library(&search()), Ok(engine.library().to_owned()));
}

/// ONNX Runtime 1.31 keeps an identifier of the machine and a queue of events in the home
/// directory.
#[test]
fn the_library_keeps_no_usage_data() {
    let home = tempfile::tempdir().unwrap();
    let named = std::env::var_os(NAMED).map(|path| (NAMED, path));
    // Without variables of CI, with which the library never keeps usage data.
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "library::the_version_is_the_librarys_own"])
        .env_clear()
        .env("HOME", home.path())
        .envs(named)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 0);
}

#[test]
fn a_second_library_needs_a_restart() {
    let engine = onnx();
    let dir = tempfile::tempdir().unwrap();
    let copy = dir.path().join("libonnxruntime.so.9.9.9");
    std::fs::write(&copy, b"").unwrap();
    let error = OnnxEngine::open(&LibrarySearch { explicit: Some(copy), ..Default::default() })
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::FailedPrecondition);
    assert!(error.message().contains(&engine.library().display().to_string()), "{error}");
}

#[test]
fn a_lazy_engine_reports_a_missing_library_at_first_use() {
    let missing =
        LibrarySearch { explicit: Some("/no/such/library.so".into()), ..Default::default() };
    let lazy = LazyOnnxEngine::new(missing.clone());
    assert_eq!((lazy.name(), lazy.capabilities().files), ("onnxruntime", vec!["model.onnx"]));
    let error = lazy.load(&LoadRequest::default()).err().unwrap();
    assert_eq!(error, OnnxEngine::open(&missing).unwrap_err());
}

/// Opens what `EXPLICIT` names and prints the error. A process holds one library, so each case is a
/// process.
#[test]
fn child_opens_explicit() {
    let Some(explicit) = std::env::var_os(EXPLICIT) else { return };
    let search = LibrarySearch { explicit: Some(PathBuf::from(explicit)), ..Default::default() };
    println!("error={:?}", OnnxEngine::open(&search).unwrap_err());
}

fn error_with(explicit: &Path) -> String {
    let text = child("library::child_opens_explicit", EXPLICIT, explicit.as_os_str());
    let line =
        text.lines().find_map(|line| line.split_once("error=")).map(|(_, error)| error.to_owned());
    line.unwrap_or_else(|| panic!("no error in {text}"))
}

#[test]
fn unfit_libraries_are_refused_with_the_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let text = dir.path().join("libonnxruntime.so.1.31.1");
    std::fs::write(&text, b"this is no library").unwrap();
    let error = error_with(&text);
    assert!(error.contains("does not load") && error.contains("make build"), "{error}");
    // A library that loads, but is not ONNX Runtime.
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let other = maps
        .lines()
        .find_map(|line| line.split_whitespace().last().filter(|path| path.contains("/libc.so")));
    let error = error_with(other.unwrap().as_ref());
    assert!(error.contains("is not ONNX Runtime") && error.contains("--onnxruntime"), "{error}");
}
