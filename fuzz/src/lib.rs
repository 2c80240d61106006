//! Entry points of the fuzz targets: one function for each parser of foreign bytes.
//!
//! A function takes any bytes and returns. It panics if the parser does, if the parser holds more
//! memory than the input justifies, or if the result changes when it is written and parsed again.
//! libFuzzer (`fuzz_targets/NAME.rs`) and the replay of the seeds (`tests/replay.rs`) call the same
//! functions.

mod archives;
mod cluster_bytes;
mod media;
mod memory;
mod protocols;
mod settings;
mod storage_files;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};

pub use archives::{image_archive, onnx, saved_model, torch_archive};
pub use cluster_bytes::{
    cluster_answer, cluster_backup, cluster_etcd, cluster_log_entry, cluster_record,
};
pub use media::{audio_decode, image_decode, iso_template, nist_parse, wsq_decode};
pub use protocols::{
    golden_json, oip_json, oip_protobuf, qdrant_json, qdrant_protobuf, tfs_examples, tfs_json,
    tfs_protobuf, tfs_warmup,
};
pub use settings::{key_file, key_token, model_toml, recogniser_toml, tfs_config, triton_config};
pub use storage_files::{
    coarse_index, log_frames, manifest, record_page, segment_parts, superblock,
};

/// Entry point of a target.
pub type TargetEntry = fn(&[u8]);

/// Every target by name, in the order in which `make fuzz` runs them. Each has a file in
/// `fuzz_targets`.
pub const TARGETS: &[(&str, TargetEntry)] = &[
    ("oip_json", oip_json),
    ("golden_json", golden_json),
    ("tfs_examples", tfs_examples),
    ("tfs_json", tfs_json),
    ("oip_protobuf", oip_protobuf),
    ("tfs_protobuf", tfs_protobuf),
    ("tfs_warmup", tfs_warmup),
    ("qdrant_json", qdrant_json),
    ("qdrant_protobuf", qdrant_protobuf),
    ("onnx", onnx),
    ("torch_archive", torch_archive),
    ("saved_model", saved_model),
    ("image_archive", image_archive),
    ("audio_decode", audio_decode),
    ("image_decode", image_decode),
    ("wsq_decode", wsq_decode),
    ("nist_parse", nist_parse),
    ("iso_template", iso_template),
    ("record_page", record_page),
    ("superblock", superblock),
    ("manifest", manifest),
    ("log_frames", log_frames),
    ("coarse_index", coarse_index),
    ("segment_parts", segment_parts),
    ("cluster_log_entry", cluster_log_entry),
    ("cluster_etcd", cluster_etcd),
    ("cluster_answer", cluster_answer),
    ("cluster_record", cluster_record),
    ("cluster_backup", cluster_backup),
    ("key_file", key_file),
    ("key_token", key_token),
    ("model_toml", model_toml),
    ("recogniser_toml", recogniser_toml),
    ("tfs_config", tfs_config),
    ("triton_config", triton_config),
];

/// Bytes that a parser may hold for an input of any length.
const MEMORY_BYTES_FREE: usize = 64 << 20;
/// Bytes that a parser may hold for each byte of input.
const MEMORY_PER_BYTE_MAX: usize = 64;

/// Runs a parser. Panics if it held more than the usual bound plus `beyond` bytes: the documented
/// limit of the format, or 0.
fn bounded<T>(data: &[u8], beyond: usize, parse: impl FnOnce() -> T) -> T {
    let (result, peak) = memory::peak_of(parse);
    let most = MEMORY_BYTES_FREE + MEMORY_PER_BYTE_MAX * data.len() + beyond;
    assert!(
        peak <= most,
        "{} bytes of input made the parser hold {peak} bytes, at most {most} are allowed",
        data.len()
    );
    result
}

/// Message and place of the last panic.
static LAST_PANIC: Mutex<String> = Mutex::new(String::new());

/// Makes panics silent until one leaves an entry point. Decoders of other crates may panic inside a
/// guard that turns the panic into an error; libFuzzer's own hook would end the run there. Called
/// once at the start of a process.
pub fn start() {
    std::panic::set_hook(Box::new(|info| {
        *LAST_PANIC.lock().unwrap_or_else(PoisonError::into_inner) = info.to_string();
    }));
}

/// Calls `entry`. A panic that leaves it is printed and aborts the process, which libFuzzer reports
/// with the input.
pub fn run(entry: TargetEntry, data: &[u8]) {
    if catch_unwind(AssertUnwindSafe(|| entry(data))).is_err() {
        eprintln!("{}", LAST_PANIC.lock().unwrap_or_else(PoisonError::into_inner));
        std::process::abort();
    }
}
