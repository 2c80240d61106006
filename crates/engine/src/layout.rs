//! The mappable layout: how a published version lies on disk.
//!
//! A version directory holds a manifest ([`MANIFEST_NAME`]), a graph without its large parameters, and one
//! weights file in which every tensor starts at a multiple of [`TENSOR_ALIGNMENT`], so that it can be read with
//! O_DIRECT into its final place and used there. The manifest is written last and the directory renamed into
//! place, so a directory that has a manifest whose files have the stated sizes is complete.

use std::path::{Path, PathBuf};

use base::{DType, Error, Result};
use serde::{Deserialize, Serialize};

/// The manifest's file name.
pub const MANIFEST_NAME: &str = "millpond.json";
/// The weights file's usual name.
pub const WEIGHTS_NAME: &str = "weights.bin";
/// Every tensor of the weights file starts at a multiple of this; so does the file's length.
pub const TENSOR_ALIGNMENT: u64 = 4096;
/// The layout version this build writes and reads.
pub const FORMAT: u32 = 1;
/// A manifest larger than this is refused.
pub const MANIFEST_BYTES_MAX: u64 = 64 << 20;

/// What a published version consists of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayoutManifest {
    /// Layout version; see [`FORMAT`].
    pub format: u32,
    /// The engine that runs the graph ("onnxruntime").
    pub engine: String,
    /// What wrote it, for people.
    pub created_by: String,
    /// The graph.
    pub graph: FileEntry,
    /// The weights; absent where the graph needs none.
    pub weights: Option<FileEntry>,
    /// The tensors in the weights file, in file order.
    pub tensors: Vec<TensorEntry>,
}

/// A file of the version directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// File name, without any directory.
    pub name: String,
    /// Length in bytes.
    pub bytes: u64,
    /// BLAKE3 of the whole file, hexadecimal; absent for the weights file, whose tensors have their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blake3: Option<String>,
}

/// One tensor of the weights file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorEntry {
    /// Its name in the graph.
    pub name: String,
    /// [`DType::name`].
    pub dtype: String,
    /// Its axes.
    pub dims: Vec<usize>,
    /// Where it starts; a multiple of [`TENSOR_ALIGNMENT`].
    pub offset: u64,
    /// How many bytes it has.
    pub bytes: u64,
    /// BLAKE3 of its bytes, hexadecimal. Equal hashes mean equal parameters, which versions may share.
    pub blake3: String,
}

impl TensorEntry {
    /// The element type.
    ///
    /// # Errors
    /// `DataLoss` for a name this build does not know.
    pub fn dtype(&self) -> Result<DType> {
        DType::from_name(&self.dtype).ok_or_else(|| {
            Error::data_loss(format!("tensor \"{}\" has unknown type \"{}\"", self.name, self.dtype))
        })
    }

    /// The hash as bytes.
    ///
    /// # Errors
    /// `DataLoss` where it is not 64 hexadecimal digits.
    pub fn hash(&self) -> Result<blake3::Hash> {
        blake3::Hash::from_hex(&self.blake3)
            .map_err(|_| Error::data_loss(format!("tensor \"{}\" has a malformed hash", self.name)))
    }
}

/// A published version: a directory and its checked manifest.
#[derive(Clone, Debug)]
pub struct Artifact {
    /// The version directory.
    pub dir: PathBuf,
    /// Its manifest.
    pub manifest: LayoutManifest,
}

impl Artifact {
    /// Reads and checks the manifest of `dir`: format, names without directories, tensors inside the file,
    /// aligned, in order and of the size their type and shape take, files present with the stated lengths.
    /// Hashes are checked while loading.
    ///
    /// # Errors
    /// `NotFound` without a manifest; `DataLoss` when anything disagrees, saying what.
    pub fn open(dir: &Path) -> Result<Artifact> {
        let path = dir.join(MANIFEST_NAME);
        let meta = std::fs::metadata(&path).map_err(|e| Error::io(&path, &e))?;
        if meta.len() > MANIFEST_BYTES_MAX {
            return Err(Error::data_loss(format!("{}: larger than a manifest can be", path.display())));
        }
        let text = std::fs::read(&path).map_err(|e| Error::io(&path, &e))?;
        let manifest: LayoutManifest = serde_json::from_slice(&text)
            .map_err(|e| Error::data_loss(format!("{}: {e}", path.display())))?;
        manifest.check().map_err(|e| e.context(path.display()))?;
        let artifact = Artifact { dir: dir.to_owned(), manifest };
        artifact.check_files()?;
        Ok(artifact)
    }

    /// The graph's path.
    pub fn graph(&self) -> PathBuf {
        self.dir.join(&self.manifest.graph.name)
    }

    /// The weights file's path, if there is one.
    pub fn weights(&self) -> Option<PathBuf> {
        self.manifest.weights.as_ref().map(|file| self.dir.join(&file.name))
    }

    /// Bytes of all parameters.
    pub fn parameter_bytes(&self) -> u64 {
        self.manifest.tensors.iter().map(|tensor| tensor.bytes).sum()
    }

    fn check_files(&self) -> Result<()> {
        for file in [Some(&self.manifest.graph), self.manifest.weights.as_ref()].into_iter().flatten() {
            let path = self.dir.join(&file.name);
            let meta = std::fs::metadata(&path).map_err(|e| Error::io(&path, &e))?;
            if meta.len() != file.bytes {
                return Err(Error::data_loss(format!(
                    "{}: {} bytes, the manifest says {}",
                    path.display(),
                    meta.len(),
                    file.bytes
                )));
            }
        }
        Ok(())
    }
}

impl LayoutManifest {
    fn check(&self) -> Result<()> {
        if self.format != FORMAT {
            return Err(Error::data_loss(format!("format {}, this build reads {FORMAT}", self.format)));
        }
        for file in [Some(&self.graph), self.weights.as_ref()].into_iter().flatten() {
            let plain = Path::new(&file.name).file_name().is_some_and(|name| name == file.name.as_str());
            if !plain {
                return Err(Error::data_loss(format!("file name \"{}\" is not a plain name", file.name)));
            }
        }
        let limit = self.weights.as_ref().map_or(0, |file| file.bytes);
        let mut end = 0u64;
        for tensor in &self.tensors {
            let elements = tensor.dims.iter().try_fold(1usize, |product, &dim| product.checked_mul(dim));
            let wanted = elements.and_then(|count| tensor.dtype().ok()?.bytes_for(count));
            if wanted != usize::try_from(tensor.bytes).ok() || wanted.is_none() {
                return Err(Error::data_loss(format!(
                    "tensor \"{}\": {} bytes do not fit {} of shape {:?}",
                    tensor.name, tensor.bytes, tensor.dtype, tensor.dims
                )));
            }
            let next = tensor.offset.checked_add(tensor.bytes);
            if tensor.offset < end
                || !tensor.offset.is_multiple_of(TENSOR_ALIGNMENT)
                || next.is_none_or(|n| n > limit)
            {
                return Err(Error::data_loss(format!("tensor \"{}\" lies outside its place", tensor.name)));
            }
            tensor.hash()?;
            end = next.unwrap_or(limit);
        }
        Ok(())
    }
}
