//! Model files (ONNX's protobuf, TorchScript's zip archive and TensorFlow's SavedModel), and zip
//! archives of images.

use std::path::PathBuf;

use engine_onnx::publish::{self, WriteOptions};
use os::Rate;
use tempfile::TempDir;

use crate::bounded;

/// Creates a directory with `data` as the file `name`, in memory if possible.
fn file_of(name: &str, data: &[u8]) -> (TempDir, PathBuf) {
    let memory = std::path::Path::new("/dev/shm");
    let made = if memory.is_dir() { TempDir::new_in(memory) } else { TempDir::new() };
    let directory = made.expect("a temporary directory");
    let path = directory.path().join(name);
    std::fs::write(&path, data).expect("a temporary file");
    (directory, path)
}

/// Fuzzes ONNX models as `millpond publish` reads them.
///
/// Asserts that `inspect` accepts a model that converts, and that its published version is
/// complete.
pub fn onnx(data: &[u8]) {
    let (directory, path) = file_of("model.onnx", data);
    let inspected = bounded(data, 0, || publish::inspect(&path));
    let version = directory.path().join("version");
    std::fs::create_dir(&version).expect("a temporary directory");
    let options = WriteOptions { rate: Rate::unlimited(), direct: false };
    let converted =
        bounded(data, 0, || publish::convert_into(&path, &version, options, &mut |_| {}));
    if converted.is_ok() {
        assert!(inspected.is_ok(), "converted, but not inspected: {inspected:?}");
        let summary = publish::inspect(&version).expect("own version");
        assert!(summary.published);
    }
}

/// Fuzzes TorchScript archives as a load opens them, without LibTorch. Asserts only bounded memory
/// and no panic.
pub fn torch_archive(data: &[u8]) {
    let (_directory, path) = file_of("model.pt", data);
    let _ = bounded(data, 0, || engine_torch::fuzzing::archive(&path));
}

/// Fuzzes SavedModels as `millpond publish` reads and rewrites them, without TensorFlow. Asserts
/// only bounded memory and no panic.
pub fn saved_model(data: &[u8]) {
    let _ = bounded(data, 0, || engine_tensorflow::fuzzing::saved_model(data));
}

/// Bytes of the largest image of an archive, which is held in memory.
const IMAGE_BYTES_MAX: usize = 64 << 20;
/// Maximum entries read of an archive: entries may overlap, so few bytes can hold many.
const ARCHIVE_ENTRIES_MAX: usize = 64;

/// Fuzzes zip archives of images as an upload of many images reads them. Asserts only bounded
/// memory and no panic.
pub fn image_archive(data: &[u8]) {
    let (_directory, path) = file_of("images.zip", data);
    let file = std::fs::File::open(path).expect("the file");
    let _ = bounded(data, IMAGE_BYTES_MAX, || {
        api_images::fuzzing::archive(file, data.len() as u64, ARCHIVE_ENTRIES_MAX)
    });
}
