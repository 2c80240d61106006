//! The mappable layout: the files of a published version.
//!
//! A version directory holds a manifest ([`MANIFEST_NAME`]), a graph without its large parameters,
//! and one weights file. In it every tensor starts at a multiple of [`TENSOR_ALIGNMENT`], so that
//! it can be read with O_DIRECT into its final place and used there. The manifest is written last
//! and the directory is renamed into place. So a directory is complete if it has a manifest whose
//! files have the stated sizes.

use std::path::{Path, PathBuf};

use base::{DType, Error, Result};
use memory::{Chunk, Loaded, Placement};
use serde::{Deserialize, Serialize};

use crate::BoundTensor;

/// File name of the manifest.
pub const MANIFEST_NAME: &str = "millpond.json";
/// Usual file name of the weights.
pub const WEIGHTS_NAME: &str = "weights.bin";
/// Alignment in bytes of every tensor of the weights file and of the file's length.
pub const TENSOR_ALIGNMENT: u64 = 4096;
/// Layout version that this build writes and reads.
pub const FORMAT: u32 = 1;
/// Maximum bytes of a manifest.
pub const MANIFEST_BYTES_MAX: u64 = 64 << 20;

/// Contents of a published version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayoutManifest {
    /// Layout version; see [`FORMAT`].
    pub format: u32,
    /// Engine that runs the graph, such as "onnxruntime".
    pub engine: String,
    /// Program that wrote it, for display.
    pub created_by: String,
    /// File of the graph, without the parameters of the weights file.
    pub graph: FileEntry,
    /// Weights file; absent if the graph needs none.
    pub weights: Option<FileEntry>,
    /// Tensors of the weights file, in file order.
    pub tensors: Vec<TensorEntry>,
}

/// A file of the version directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// File name, without any directory.
    pub name: String,
    /// Length in bytes.
    pub bytes: u64,
    /// BLAKE3 of the whole file, hexadecimal; absent for the weights file, whose tensors have their
    /// own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blake3: Option<String>,
}

/// One tensor of the weights file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorEntry {
    /// Name in the graph.
    pub name: String,
    /// [`DType::name`] of the element type.
    pub dtype: String,
    /// Sizes of its axes.
    pub dims: Vec<usize>,
    /// Offset in bytes; a multiple of [`TENSOR_ALIGNMENT`].
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// BLAKE3 of its bytes, hexadecimal. Equal hashes mean equal parameters, which versions may
    /// share.
    pub blake3: String,
}

impl TensorEntry {
    /// Returns the element type.
    ///
    /// # Errors
    /// `DataLoss` for a name that this build does not know.
    pub fn dtype(&self) -> Result<DType> {
        DType::from_name(&self.dtype).ok_or_else(|| {
            Error::data_loss(format!(
                "tensor \"{}\" has unknown type \"{}\"",
                self.name, self.dtype
            ))
        })
    }

    /// Returns the hash.
    ///
    /// # Errors
    /// `DataLoss` if it is not 64 hexadecimal digits.
    pub fn hash(&self) -> Result<blake3::Hash> {
        blake3::Hash::from_hex(&self.blake3).map_err(|error| {
            Error::data_loss(format!("tensor \"{}\" has a malformed hash", self.name))
                .with_source(error)
        })
    }
}

/// A published version: a directory and its checked manifest.
#[derive(Clone, Debug)]
pub struct Artifact {
    /// Version directory.
    pub dir: PathBuf,
    /// Checked manifest.
    pub manifest: LayoutManifest,
}

impl Artifact {
    /// Reads and checks the manifest of `dir`: the format is known, and names have no directories.
    /// Tensors lie inside the file, aligned, in order and with the size that type and shape need.
    /// Files are present with the stated lengths. Hashes are checked while loading.
    ///
    /// # Errors
    /// `NotFound` without a manifest; `DataLoss` that names the first contradiction.
    pub fn open(dir: &Path) -> Result<Artifact> {
        let path = dir.join(MANIFEST_NAME);
        let meta = std::fs::metadata(&path).map_err(|e| Error::io(&path, &e))?;
        if meta.len() > MANIFEST_BYTES_MAX {
            return Err(Error::data_loss(format!(
                "{}: larger than a manifest can be",
                path.display()
            )));
        }
        let text =
            os::read_regular_file(&path, MANIFEST_BYTES_MAX).map_err(|e| Error::io(&path, &e))?;
        let manifest = LayoutManifest::parse(&text).map_err(|e| e.context(path.display()))?;
        let artifact = Artifact { dir: dir.to_owned(), manifest };
        artifact.check_files()?;
        Ok(artifact)
    }

    /// Returns the graph's path.
    pub fn graph(&self) -> PathBuf {
        self.dir.join(&self.manifest.graph.name)
    }

    /// Returns the path of the weights file, if there is one.
    pub fn weights(&self) -> Option<PathBuf> {
        self.manifest.weights.as_ref().map(|file| self.dir.join(&file.name))
    }

    /// Returns the number of bytes of all parameters.
    pub fn parameter_bytes(&self) -> u64 {
        self.manifest.tensors.iter().map(|tensor| tensor.bytes).sum()
    }

    /// Returns the parameters as chunks of the weights file, in the manifest's order.
    ///
    /// # Errors
    /// `DataLoss` for an invalid hash.
    pub fn chunks(&self) -> Result<Vec<Chunk>> {
        let chunk = |tensor: &TensorEntry| {
            Ok(Chunk { hash: tensor.hash()?, offset: tensor.offset, bytes: tensor.bytes })
        };
        self.manifest.tensors.iter().map(chunk).collect()
    }

    /// Returns the parameters at their positions in memory. `loaded` has the chunks of
    /// [`Artifact::chunks`].
    ///
    /// # Errors
    /// `DataLoss` for an unknown element type.
    pub fn bind(&self, loaded: Loaded) -> Result<Vec<BoundTensor>> {
        let bind = |(tensor, placement): (&TensorEntry, Placement)| {
            Ok(BoundTensor {
                name: tensor.name.clone(),
                dtype: tensor.dtype()?,
                dims: tensor.dims.clone(),
                region: placement.region,
                offset: placement.offset,
                bytes: placement.bytes,
            })
        };
        self.manifest.tensors.iter().zip(loaded.placed).map(bind).collect()
    }

    /// Checks that the files of the graph and of the weights have the sizes of the manifest.
    fn check_files(&self) -> Result<()> {
        for file in
            [Some(&self.manifest.graph), self.manifest.weights.as_ref()].into_iter().flatten()
        {
            let path = self.dir.join(&file.name);
            let meta = std::fs::metadata(&path).map_err(|e| Error::io(&path, &e))?;
            os::check_regular_file(&meta).map_err(|e| Error::io(&path, &e))?;
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
    /// Parses a manifest and checks it against itself, as [`Artifact::open`] does.
    ///
    /// # Errors
    /// `DataLoss` that names the first contradiction.
    pub fn parse(text: &[u8]) -> Result<LayoutManifest> {
        /// The part that all formats have.
        #[derive(Deserialize)]
        struct LayoutFormat {
            format: u32,
        }
        let manifest: LayoutManifest = serde_json::from_slice(text).map_err(|error| {
            // Another format may have other members.
            match serde_json::from_slice(text) {
                Ok(LayoutFormat { format }) if format != FORMAT => other_format(format),
                _ => Error::data_loss(error.to_string()).with_source(error),
            }
        })?;
        manifest.check()?;
        Ok(manifest)
    }

    /// Checks the format, the names of the files, and that each tensor lies within the weights,
    /// aligned and after the one before it.
    fn check(&self) -> Result<()> {
        if self.format != FORMAT {
            return Err(other_format(self.format));
        }
        for file in [Some(&self.graph), self.weights.as_ref()].into_iter().flatten() {
            let plain =
                Path::new(&file.name).file_name().is_some_and(|name| name == file.name.as_str());
            if !plain {
                return Err(Error::data_loss(format!(
                    "file name \"{}\" is not a plain name",
                    file.name
                )));
            }
        }
        let limit = self.weights.as_ref().map_or(0, |file| file.bytes);
        let mut end = 0u64;
        for tensor in &self.tensors {
            let elements =
                tensor.dims.iter().try_fold(1usize, |product, &dim| product.checked_mul(dim));
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
                return Err(Error::data_loss(format!(
                    "tensor \"{}\" lies outside its place",
                    tensor.name
                )));
            }
            tensor.hash()?;
            end = next.unwrap_or(limit);
        }
        Ok(())
    }
}

fn other_format(format: u32) -> Error {
    Error::data_loss(format!(
        "the layout has format {format}, and this program reads format {FORMAT}; publish the model \
         again with `millpond publish` of this program"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_format_is_named_despite_other_members() {
        let text = br#"{"format":2,"engine":"onnxruntime","parts":["graph"]}"#;
        let error = LayoutManifest::parse(text).unwrap_err();
        assert!(error.message().contains("has format 2"), "{error}");
        let error = LayoutManifest::parse(br#"{"format":1,"engine":"onnxruntime"}"#).unwrap_err();
        assert!(error.message().contains("missing field"), "{error}");
    }
}
