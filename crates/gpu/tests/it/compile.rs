//! The kernels compile, without a warning, for the devices of several generations.

use std::path::Path;
use std::process::Command;

use gpu::{CompileTarget, CompilerNeeds, CompilerSearch, Nvrtc};

use crate::{search, skipped};

#[test]
fn kernels_compile_without_a_warning() {
    let compiler = match Nvrtc::open(&search(), CompilerNeeds::default()) {
        Ok(compiler) => compiler,
        Err(error) => return skipped("kernels_compile_without_a_warning", error),
    };
    println!("NVRTC is {}", compiler.found());
    for architecture in [80, 90] {
        let text = compiler.compile(CompileTarget::Intermediate(architecture)).unwrap();
        assert_eq!(text.log, "");
        let text = String::from_utf8(text.bytes).unwrap();
        for name in
            ["rank_bytes_1", "rank_bytes_8", "rank_bfloats_1", "rank_bfloats_8", "merge_lists"]
        {
            assert!(text.contains(&format!(".entry {name}(")), "{name}");
        }
        assert!(text.contains("dp4a"));
    }
    let machine = compiler.compile(CompileTarget::Machine(80)).unwrap();
    assert!(machine.bytes.starts_with(b"\x7fELF") && machine.log.is_empty());
    let unknown = compiler.compile(CompileTarget::Machine(3)).unwrap_err();
    assert_eq!(unknown.kind(), base::ErrorKind::Unimplemented, "{unknown}");
}

/// NVRTC before 12.4 has a declaration of this function and no code.
#[test]
fn kernels_do_not_call_dp4a_by_its_function() {
    assert!(!gpu::SOURCE.contains("__dp4a("));
}

#[test]
fn a_compiler_that_does_not_load_is_not_a_missing_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("libnvrtc.so.12");
    std::fs::write(&path, "not a library").unwrap();
    let search = CompilerSearch { explicit: Some(path), virtual_env: None };
    let error = Nvrtc::open(&search, CompilerNeeds::default()).unwrap_err();
    assert_eq!(error.kind(), base::ErrorKind::FailedPrecondition, "{error}");
    assert!(error.message().contains("libnvrtc.so.12 does not load ("), "{error}");
}

#[test]
fn a_missing_compiler_is_reported() {
    let search =
        CompilerSearch { explicit: Some("/nowhere/libnvrtc.so".into()), virtual_env: None };
    let error = Nvrtc::open(&search, CompilerNeeds::default()).unwrap_err();
    assert_eq!(error.kind(), base::ErrorKind::NotFound);
    assert!(error.message().contains("libnvrtc"), "{error}");
}

/// Builds a library that says that it is NVRTC of this version and compiles for devices of the
/// compute capabilities `first` / 10 and 9.0. Returns false without a compiler.
fn build_version(directory: &Path, major: u32, first: u32) -> bool {
    let source = directory.join(format!("version_{major}.cpp"));
    let text = format!(
        "extern \"C\" {{\n\
         int nvrtcVersion(int *major, int *minor) {{ *major = {major}; *minor = 0; return 0; }}\n\
         int nvrtcGetNumSupportedArchs(int *count) {{ *count = 2; return 0; }}\n\
         int nvrtcGetSupportedArchs(int *list) {{ list[0] = {first}; list[1] = 90; return 0; }}\n\
         }}"
    );
    std::fs::write(&source, text).unwrap();
    let library = directory.join(format!("libnvrtc.so.{major}"));
    let built =
        Command::new("g++").args(["-shared", "-fPIC", "-o"]).arg(library).arg(source).status();
    built.is_ok_and(|status| status.success())
}

#[test]
fn a_compiler_of_the_drivers_version_is_preferred() {
    let dir = tempfile::tempdir().unwrap();
    if !build_version(dir.path(), 13, 75) || !build_version(dir.path(), 12, 50) {
        return skipped("a_compiler_of_the_drivers_version_is_preferred", "there is no g++");
    }
    let search = CompilerSearch { explicit: Some(dir.path().to_owned()), virtual_env: None };
    for (driver_major, capability, expected) in [
        (None, None, 13),
        (Some(13), None, 13),
        (Some(12), None, 12),
        (Some(11), None, 13),
        (Some(13), Some(90), 13),
        (Some(12), Some(90), 12),
        // NVRTC 13 does not compile for Pascal and Volta.
        (Some(13), Some(61), 12),
        (Some(13), Some(70), 12),
        (Some(13), Some(75), 13),
        (Some(11), Some(70), 12),
        (None, Some(30), 13),
    ] {
        let needs = CompilerNeeds { driver_major, capability };
        let compiler = Nvrtc::open(&search, needs).unwrap();
        let name = format!("libnvrtc.so.{expected}");
        assert!(compiler.found().ends_with(&name), "{needs:?}: {}", compiler.found());
    }
}
