//! On a pretended GPU (`tests/host/driver.cpp`). Each test starts processes that find it instead of
//! NVIDIA's driver and compiler.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use base::ErrorKind;
use gpu::{Coding, Gpu, GpuOptions, RowPlacement};

use crate::case::Case;
use crate::{search, skipped};

/// Hits for which the pretended driver refuses to start a kernel.
const REFUSED_HITS: usize = 77;
/// Hits for which a kernel accesses a wrong address.
const LOST_HITS: usize = 78;
/// Variable with the bytes of the largest allocation that succeeds.
const LARGEST: &str = "PRETEND_GPU_LARGEST";

/// Builds the driver and the compiler. Returns false without a C++ compiler.
fn build(directory: &Path) -> bool {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/host/driver.cpp");
    let driver = directory.join("libcuda.so");
    let flags = ["-std=c++17", "-O2", "-fPIC", "-shared", "-Wno-unknown-pragmas"];
    let Ok(built) = Command::new("g++").args(flags).arg("-o").arg(&driver).arg(source).output()
    else {
        return false;
    };
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    std::fs::copy(&driver, directory.join("libnvrtc.so.12")).unwrap();
    true
}

/// Runs tests of this binary in a process that finds the pretended GPU.
fn run(directory: &Path, largest: usize, tests: &[&str]) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(tests)
        .args(["--exact", "--include-ignored", "--nocapture", "--test-threads=1"])
        .env("LD_LIBRARY_PATH", directory)
        .env("MILLPOND_NVRTC", directory.join("libnvrtc.so.12"))
        .env(LARGEST, largest.to_string())
        .output()
        .unwrap();
    let out = String::from_utf8_lossy(&output.stdout);
    let err = String::from_utf8_lossy(&output.stderr);
    let passed = out.contains(&format!("{} passed", tests.len())) && !out.contains("SKIPPED");
    assert!(output.status.success() && passed, "{tests:?}: {}: {out}\n{err}", output.status);
}

#[test]
fn a_pretended_gpu_is_used_without_a_mistake() {
    let dir = tempfile::tempdir().unwrap();
    if !build(dir.path()) {
        return skipped("a_pretended_gpu_is_used_without_a_mistake", "there is no g++");
    }
    let tests = [
        "device::another_thread_may_drop_rows",
        "device::oversized_rows_are_refused_without_harm",
        "pretended::dropped_rows_are_free",
        "pretended::a_failed_device_takes_no_rows",
        "pretended::a_search_continues_after_a_hit",
        "pretended::scales_and_squares_need_room_too",
    ];
    run(dir.path(), usize::MAX, &tests);
    run(dir.path(), 1 << 20, &["pretended::codes_move_if_others_take_the_memory"]);
    // CUDA refuses all later calls of that process.
    run(dir.path(), usize::MAX, &["pretended::a_lost_device_is_reported"]);
}

fn open() -> Arc<Gpu> {
    let options =
        GpuOptions { compiler: search(), pinned_bytes_max: 1 << 30, ..GpuOptions::default() };
    Gpu::open(&options).unwrap()
}

fn small() -> Case {
    Case::new(7, (Coding::Bytes, 32, 300, 2, 10), 120, true, 0)
}

#[test]
#[ignore = "needs the pretended GPU"]
fn dropped_rows_are_free() {
    let gpu = open();
    let left = gpu.device_bytes_left().unwrap();
    let case = small();
    let rows = gpu.upload(&case.rows(), RowPlacement::Device).unwrap();
    assert_eq!(rows.search(&case.queries(), case.k, None).unwrap(), case.naive());
    assert!(gpu.device_bytes_left().unwrap() < left);
    drop(rows);
    // No search follows.
    assert_eq!(gpu.device_bytes_left().unwrap(), left);
}

#[test]
#[ignore = "needs the pretended GPU"]
fn scales_and_squares_need_room_too() {
    let case = small();
    let needed = case.coding().device_bytes(300, 32, true);
    assert_eq!(needed, 300 * (32 + 4 + 4));
    for (room, fits) in [(needed, true), (needed - 1, false)] {
        let options =
            GpuOptions { compiler: search(), device_bytes_max: room, ..GpuOptions::default() };
        let gpu = Gpu::open(&options).unwrap();
        assert_eq!(gpu.upload(&case.rows(), RowPlacement::Device).is_ok(), fits, "{room}");
    }
}

#[test]
#[ignore = "needs the pretended GPU"]
fn a_search_continues_after_a_hit() {
    let gpu = open();
    let case = small().behind_its_answer();
    let rows = gpu.upload(&case.rows(), RowPlacement::Device).unwrap();
    let found = rows.search_after(&case.queries(), case.k, None, &case.after).unwrap();
    assert_eq!(found, case.naive());
    let few = &case.after[..1];
    let error = rows.search_after(&case.queries(), case.k, None, few).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
}

#[test]
#[ignore = "needs the pretended GPU"]
fn a_failed_device_takes_no_rows() {
    let gpu = open();
    let case = small();
    let rows = gpu.upload(&case.rows(), RowPlacement::Device).unwrap();
    let error = rows.search(&case.queries(), REFUSED_HITS, None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Internal, "{error}");
    // The context still works, but no search uses the device any more.
    let error = rows.search(&case.queries(), case.k, None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert_eq!(gpu.device_bytes_left().unwrap_err().kind(), ErrorKind::Unavailable);
    let error = gpu.upload(&case.rows(), RowPlacement::Auto).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}

/// The driver says that more memory is free than an allocation gets.
#[test]
#[ignore = "needs the pretended GPU"]
fn codes_move_if_others_take_the_memory() {
    let gpu = open();
    let case = Case::new(5, (Coding::Bytes, 64, 20_000, 1, 10), 120, false, 0);
    let error = gpu.upload(&case.rows(), RowPlacement::Device).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::ResourceExhausted, "{error}");
    let rows = gpu.upload(&case.rows(), RowPlacement::Auto).unwrap();
    assert_eq!((gpu.device_bytes(), gpu.pinned_bytes()), (0, 20_000 * 64));
    assert_eq!(rows.search(&case.queries(), case.k, None).unwrap(), case.naive());
}

#[test]
#[ignore = "needs the pretended GPU"]
fn a_lost_device_is_reported() {
    let gpu = open();
    let case = small();
    let rows = gpu.upload(&case.rows(), RowPlacement::Device).unwrap();
    let error = rows.search(&case.queries(), LOST_HITS, None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Internal, "{error}");
    assert!(error.message().contains("an illegal memory access"), "{error}");
    let error = rows.search(&case.queries(), case.k, None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    drop(rows);
    assert_eq!(gpu.device_bytes_left().unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!((gpu.device_bytes(), gpu.pinned_bytes()), (0, 0));
}
