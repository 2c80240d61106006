//! Recognises model files of other programs by name and content, so that messages can name the
//! format and the way to serve it.

mod triton;

use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use zip::ZipArchive;
use zip::read::{ArchiveOffset, Config};
use zip::result::ZipResult;

pub use triton::{TritonSetting, settings as triton_settings};

/// Bytes at the start of a file that identify its content.
const START_BYTES: usize = 64;
/// Maximum length of a Git LFS pointer.
const POINTER_BYTES_MAX: u64 = 1024;
/// Maximum number of files of one directory that are opened.
const OPENED_MAX: usize = 64;
/// Maximum number of files of one directory that are compared by name.
const LISTED_MAX: usize = 1000;
/// Maximum number of records of an archive.
const RECORDS_MAX: usize = 1 << 20;
/// Versions of ONNX's format. An ONNX file begins with its version.
const ONNX_VERSIONS: std::ops::RangeInclusive<u8> = 3..=20;

/// A format that is not served as it is, and the way to serve such a model. In `remedy`, NAME is
/// the model's directory and FILE the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForeignFormat {
    /// Noun phrase, such as "a Keras model".
    pub format: &'static str,
    /// The way to serve it, as an imperative.
    pub remedy: &'static str,
}

/// Signs of a format.
struct Recognition {
    /// Whole file names.
    names: &'static [&'static str],
    /// Extensions in lower case.
    extensions: &'static [&'static str],
    /// Bytes at an offset.
    starts: &'static [(usize, &'static [u8])],
    /// Endings of record names that an archive has.
    records: &'static [&'static str],
    format: ForeignFormat,
}

const fn row(format: &'static str, remedy: &'static str) -> Recognition {
    Recognition {
        names: &[],
        extensions: &[],
        starts: &[],
        records: &[],
        format: ForeignFormat { format, remedy },
    }
}

const POINTER: &[u8] = b"version https://git-lfs.github.com/spec";
const ZIP: &[u8] = b"PK\x03\x04";
const TENSORRT: &str = "it runs on one kind of GPU and one version of TensorRT: publish the ONNX file that it was built from";
const PICKLE: &str = "its code is never run; convert a scikit-learn model with skl2onnx.to_onnx(model, X), an XGBoost or \
                      LightGBM model with onnxmltools, a PyTorch model with torch.onnx.export";

const COPY_AGAIN: &str = "copy or export the file again";

/// All formats. The first row that fits counts.
const TABLE: &[Recognition] = &[
    Recognition { starts: &[(0, POINTER)], ..row(LFS_POINTER.format, LFS_POINTER.remedy) },
    Recognition {
        records: &["/constants.pkl"],
        ..row("a TorchScript model", "it is served as it is: copy it to NAME/1/model.pt")
    },
    Recognition {
        records: &[".so"],
        ..row(
            "a compiled PyTorch package",
            "it is served as it is: copy it to NAME/1/model.pt2, and set trusted = true in NAME/millpond.toml",
        )
    },
    Recognition {
        records: &["/archive_format", "serialized_exported_program.json", "/models/model.json"],
        ..row(
            "an exported PyTorch program",
            "write ONNX with torch.onnx.export(program), or compile it with torch._inductor.aoti_compile_and_package",
        )
    },
    Recognition {
        extensions: &["keras"],
        records: &["model.weights.h5"],
        ..row("a Keras model", "save it as a SavedModel with model.export(DIR), and publish DIR")
    },
    Recognition {
        extensions: &["mar"],
        records: &["MAR-INF/MANIFEST.json"],
        ..row(
            "a TorchServe archive",
            "unzip it and copy its TorchScript file to NAME/1/model.pt; its handler's Python code is not run",
        )
    },
    Recognition {
        records: &["/data.pkl"],
        ..row(
            "PyTorch weights without a graph (torch.save)",
            "load them into the module in Python, and write it with torch.jit.save(torch.jit.script(module), \"NAME/1/model.pt\") or \
             torch.onnx.export",
        )
    },
    Recognition {
        names: &["saved_model.pb"],
        ..row(
            "a TensorFlow SavedModel",
            "it is served as it is: put saved_model.pb and variables/ into NAME/1/ itself, or publish their directory with \
             millpond publish DIR --to NAME",
        )
    },
    Recognition {
        names: &["saved_model.pbtxt"],
        ..row(
            "a TensorFlow SavedModel as text",
            "write it as saved_model.pb with tf.saved_model.save",
        )
    },
    Recognition {
        names: &["__model__", "inference.json"],
        extensions: &["pdmodel", "pdiparams"],
        ..row(
            "a Paddle model",
            "convert it with paddle2onnx --model_dir DIR --model_filename MODEL --params_filename PARAMS --save_file \
             model.onnx, and publish that",
        )
    },
    Recognition {
        extensions: &["engine", "plan", "trt"],
        starts: &[(0, b"ptrt"), (0, b"ftrt")],
        ..row("a TensorRT engine", TENSORRT)
    },
    Recognition {
        extensions: &["safetensors"],
        // The length of the JSON header, below 2^40, and its start.
        starts: &[(5, b"\0\0\0{\"")],
        ..row(
            "weights without a graph (safetensors)",
            "export the model with optimum-cli export onnx --model DIR OUT, and publish OUT/model.onnx",
        )
    },
    Recognition {
        extensions: &["pkl", "pickle", "joblib"],
        starts: &[(0, b"\x80\x02"), (0, b"\x80\x03"), (0, b"\x80\x04"), (0, b"\x80\x05")],
        ..row("a pickled Python object", PICKLE)
    },
    Recognition {
        extensions: &["tflite"],
        starts: &[(4, b"TFL3")],
        ..row(
            "a TensorFlow Lite model",
            "convert it with python -m tf2onnx.convert --tflite FILE --output model.onnx, and publish that",
        )
    },
    Recognition {
        extensions: &["h5", "hdf5"],
        starts: &[(0, b"\x89HDF")],
        ..row(
            "a Keras or HDF5 file",
            "save the Keras model as a SavedModel with model.export(DIR), and publish DIR",
        )
    },
    Recognition {
        extensions: &["gguf"],
        starts: &[(0, b"GGUF")],
        ..row(
            "a language model for llama.cpp",
            "text generation is not offered; llama-server serves it",
        )
    },
    Recognition {
        extensions: &["pb"],
        ..row(
            "a frozen TensorFlow graph",
            "convert it with python -m tf2onnx.convert --graphdef FILE --inputs X:0 --outputs Y:0 --output model.onnx, and \
             publish that",
        )
    },
    Recognition {
        extensions: &["xml"],
        starts: &[(0, b"<?xml"), (0, b"<net ")],
        ..row("an OpenVINO model", "publish the ONNX file that it was converted from")
    },
    Recognition {
        extensions: &["ubj", "bst", "xgb", "cbm"],
        ..row(
            "a model of gradient-boosted trees",
            "convert it with onnxmltools (XGBoost, LightGBM) or model.save_model(FILE, format=\"onnx\") (CatBoost)",
        )
    },
    Recognition {
        extensions: &["pt", "pt2", "pth", "ckpt"],
        ..row("a damaged PyTorch file", COPY_AGAIN)
    },
];

const LFS_POINTER: ForeignFormat = ForeignFormat {
    format: "a Git LFS pointer and not the file that it stands for",
    remedy: "fetch the file with git lfs pull",
};
/// A zip archive that no row of the table describes.
const ARCHIVE: ForeignFormat = ForeignFormat {
    format: "a zip archive of an unknown kind",
    remedy: "unpack it; ONNX, SavedModel and TorchScript are served",
};
const EMPTY: ForeignFormat = ForeignFormat { format: "empty", remedy: COPY_AGAIN };
/// ONNX files whose name a version does not accept.
const OTHER_NAME: ForeignFormat =
    ForeignFormat { format: "an ONNX model by another name", remedy: "name it model.onnx" };
/// ONNX files in a directory of the version, where Triton keeps a model with external data.
const NESTED: ForeignFormat = ForeignFormat {
    format: "an ONNX model below the version's directory",
    remedy: "put model.onnx and the files beside it into the version itself, or publish their directory with \
             millpond publish DIR --to NAME",
};

impl std::fmt::Display for ForeignFormat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.format, self.remedy)
    }
}

/// Identifies a file by its content, or else by its name. Returns `None` for ONNX and for an
/// unknown format, and for a file that cannot be read.
pub fn identify(path: &Path) -> Option<ForeignFormat> {
    let start = start(path)?;
    if start.is_empty() {
        return Some(EMPTY);
    }
    if start.starts_with(ZIP) {
        return Some(archive(path));
    }
    let by_content = TABLE.iter().find(|row| row.fits_start(&start));
    if by_content.is_none() && is_onnx(&start) {
        return None;
    }
    by_content.or_else(|| by_name(path)).map(|row| row.format)
}

/// Identifies the model in a directory with `files`, paths relative to `dir`. Returns a sentence
/// such as "saved.h5 is a Keras or HDF5 file: save ...", or `None` if no format is recognised.
pub fn identify_in<'a>(
    dir: &Path,
    files: impl Iterator<Item = &'a Path> + Clone,
) -> Option<String> {
    let named = |row: &&Recognition| files.clone().find(|path| row.fits_name(path));
    let found = TABLE.iter().find_map(|row| Some((named(&row)?, row.format)));
    let (path, format) = match found {
        Some((path, format)) => (path, identify(&dir.join(path)).unwrap_or(format)),
        None => {
            let path = files.clone().find(|path| extension(path) == "onnx")?;
            (path, if is_nested(path) { NESTED } else { OTHER_NAME })
        }
    };
    Some(format!("{} is {format}", path.display()))
}

/// Identifies the model whose files lie in `dir` itself, as [`identify_in`] does.
pub fn identify_dir(dir: &Path) -> Option<String> {
    let names = std::fs::read_dir(dir).ok()?.filter_map(|entry| Some(entry.ok()?.file_name()));
    let files: Vec<_> = names.filter(|name| dir.join(name).is_file()).take(LISTED_MAX).collect();
    identify_in(dir, files.iter().map(Path::new))
}

/// Identifies the model whose files lie in a directory of `dir`, as [`identify_in`] does.
pub fn identify_below(dir: &Path) -> Option<String> {
    let names = |dir: &Path| {
        let entries = std::fs::read_dir(dir).ok()?.filter_map(Result::ok);
        Some(entries.map(|entry| entry.file_name()).take(LISTED_MAX).collect::<Vec<_>>())
    };
    let inside = |name: OsString| {
        let files = names(&dir.join(&name)).unwrap_or_default().into_iter();
        files.map(move |file| Path::new(&name).join(file))
    };
    let mut files: Vec<PathBuf> =
        names(dir)?.into_iter().flat_map(inside).take(LISTED_MAX).collect();
    files.retain(|file| dir.join(file).is_file());
    identify_in(dir, files.iter().map(PathBuf::as_path))
}

/// Finds a Git LFS pointer among `files`, paths relative to `dir` with their lengths. Returns a
/// sentence as [`identify_in`] does.
pub fn pointer_in<'a>(dir: &Path, files: impl Iterator<Item = (&'a Path, u64)>) -> Option<String> {
    let small = files.filter(|(_, bytes)| (1..=POINTER_BYTES_MAX).contains(bytes));
    let is_pointer = |path: &Path| start(path).is_some_and(|start| start.starts_with(POINTER));
    let (path, _) = small.take(OPENED_MAX).find(|(path, _)| is_pointer(&dir.join(path)))?;
    Some(format!("{} is {LFS_POINTER}", path.display()))
}

/// Reads the first bytes of a file, or returns `None` if it is not a file or cannot be read.
fn start(path: &Path) -> Option<Vec<u8>> {
    if !std::fs::metadata(path).ok()?.is_file() {
        return None;
    }
    let mut bytes = Vec::with_capacity(START_BYTES);
    File::open(path).ok()?.take(START_BYTES as u64).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// Returns true if a file begins as ONNX files do: with the version of the format.
fn is_onnx(start: &[u8]) -> bool {
    matches!(start, [8, version, ..] if ONNX_VERSIONS.contains(version))
}

/// Opens the directory of a zip archive that begins with its file.
///
/// The start is stated, since the reader takes a wrong one for some files of PyTorch. PyTorch
/// writes the records of zip64 although no size needs them. If the first entry of the directory has
/// the length of these records (its name has 30 bytes), the reader starts at the second entry.
///
/// # Errors
/// Returns an error if the file is not an archive, or cannot be read.
pub fn open_archive(file: File) -> ZipResult<ZipArchive<File>> {
    ZipArchive::with_config(Config { archive_offset: ArchiveOffset::Known(0) }, file)
}

/// Identifies an archive by the names of its records.
fn archive(path: &Path) -> ForeignFormat {
    let open = || open_archive(File::open(path).ok()?).ok();
    let Some(archive) = open().filter(|archive| archive.len() <= RECORDS_MAX) else {
        return ForeignFormat { format: "a damaged zip archive", remedy: COPY_AGAIN };
    };
    let has =
        |ending: &&str| archive.file_names_raw().any(|name| name.ends_with(ending.as_bytes()));
    let row = TABLE.iter().find(|row| row.records.iter().any(&has));
    row.map_or(ARCHIVE, |row| row.format)
}

/// Returns true for a path with a directory.
fn is_nested(path: &Path) -> bool {
    path.components().count() > 1
}

fn by_name(path: &Path) -> Option<&'static Recognition> {
    TABLE.iter().find(|row| row.fits_name(path))
}

fn extension(path: &Path) -> String {
    path.extension().map(|it| it.to_string_lossy().to_ascii_lowercase()).unwrap_or_default()
}

impl Recognition {
    fn fits_name(&self, path: &Path) -> bool {
        let is = |name: &&str| path.file_name().is_some_and(|file| file == *name);
        self.names.iter().any(is) || self.extensions.contains(&extension(path).as_str())
    }

    fn fits_start(&self, start: &[u8]) -> bool {
        let has =
            |&(at, bytes): &(usize, &[u8])| start.get(at..).is_some_and(|it| it.starts_with(bytes));
        self.starts.iter().any(has)
    }
}

#[cfg(test)]
mod tests;
