//! Writes one version in the mappable layout.

use std::path::{Path, PathBuf};

use base::{DType, Error, Result};
use os::sync_directory;

use crate::layout::{FORMAT, FileEntry, LayoutManifest, MANIFEST_NAME, TensorEntry, WEIGHTS_NAME};

use super::sink::{PacedFileWriter, WriteOptions, write_small};

/// Names that an engine gives to its versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayoutNames {
    /// Name of the engine in the manifest.
    pub engine: &'static str,
    /// File name of the graph.
    pub graph: &'static str,
}

/// A version being written: parameters one after another, then the graph, then the manifest.
///
/// Writes into an existing directory that holds none of the layout's files. The version is complete
/// only after [`LayoutWriter::finish`]. A dropped writer leaves files without a manifest, which no
/// reader accepts.
///
/// # Example: a version with one parameter
/// ```
/// use base::DType;
/// use millpond_engine::layout::Artifact;
/// use millpond_engine::publish::{LayoutNames, LayoutWriter, WriteOptions};
///
/// let dir = tempfile::tempdir()?;
/// let names = LayoutNames { engine: "onnxruntime", graph: "model.onnx" };
/// let mut writer = LayoutWriter::create(dir.path(), names, WriteOptions::default())?;
/// writer.tensor("table", DType::F32, &[1024, 32], (0..32).map(|_| vec![0u8; 4096]))?;
/// writer.finish(b"the bytes of the graph")?;
///
/// let artifact = Artifact::open(dir.path())?;
/// assert_eq!(artifact.parameter_bytes(), 1024 * 32 * 4);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct LayoutWriter {
    dir: PathBuf,
    names: LayoutNames,
    options: WriteOptions,
    weights: Option<PacedFileWriter>,
    tensors: Vec<TensorEntry>,
    open: Option<OpenTensor>,
    direct: bool,
}

struct OpenTensor {
    entry: TensorEntry,
    hasher: blake3::Hasher,
    received: u64,
}

impl LayoutWriter {
    /// Starts a version in `dir`, an existing directory.
    ///
    /// # Errors
    /// `NotFound` without the directory; `AlreadyExists` if it has a manifest.
    pub fn create(dir: &Path, names: LayoutNames, options: WriteOptions) -> Result<LayoutWriter> {
        let meta = std::fs::metadata(dir).map_err(|e| Error::io(dir, &e))?;
        if !meta.is_dir() {
            return Err(Error::invalid(format!("{}: not a directory", dir.display())));
        }
        if dir.join(MANIFEST_NAME).exists() {
            return Err(Error::new(
                base::ErrorKind::AlreadyExists,
                format!("{}: holds a version already", dir.display()),
            ));
        }
        Ok(LayoutWriter {
            dir: dir.to_owned(),
            names,
            options,
            weights: None,
            tensors: Vec::new(),
            open: None,
            direct: options.direct,
        })
    }

    /// Writes one parameter whose bytes come in any number of chunks of any size. Returns its
    /// location, which the graph may need to name.
    ///
    /// # Errors
    /// `InvalidArgument` for a type without fixed size or if the chunks do not have exactly the
    /// bytes of type and shape; I/O errors.
    pub fn tensor<C: AsRef<[u8]>>(
        &mut self,
        name: &str,
        dtype: DType,
        dims: &[usize],
        chunks: impl IntoIterator<Item = C>,
    ) -> Result<TensorEntry> {
        self.begin(name, dtype, dims)?;
        for chunk in chunks {
            self.write(chunk.as_ref())?;
        }
        self.end()
    }

    /// Starts a parameter; [`LayoutWriter::write`] and [`LayoutWriter::end`] follow.
    ///
    /// # Errors
    /// `InvalidArgument` for a type without fixed size or a shape too large; `FailedPrecondition`
    /// while another parameter is open; I/O errors.
    pub fn begin(&mut self, name: &str, dtype: DType, dims: &[usize]) -> Result<()> {
        if self.open.is_some() {
            return Err(Error::precondition(format!(
                "tensor \"{name}\" begins before the one before it ended"
            )));
        }
        let elements = dims.iter().try_fold(1usize, |product, &dim| product.checked_mul(dim));
        let bytes = elements.and_then(|count| dtype.bytes_for(count)).ok_or_else(|| {
            Error::invalid(format!("tensor \"{name}\": {dtype} of shape {dims:?} has no byte size"))
        })?;
        let weights = match &mut self.weights {
            Some(weights) => weights,
            none => {
                none.insert(PacedFileWriter::create(&self.dir.join(WEIGHTS_NAME), self.options)?)
            }
        };
        weights.align()?;
        let entry = TensorEntry {
            name: name.to_owned(),
            dtype: dtype.name().to_owned(),
            dims: dims.to_vec(),
            offset: weights.position(),
            bytes: bytes as u64,
            blake3: String::new(),
        };
        self.open = Some(OpenTensor { entry, hasher: blake3::Hasher::new(), received: 0 });
        Ok(())
    }

    /// Appends bytes to the open parameter.
    ///
    /// # Errors
    /// `InvalidArgument` for more bytes than the parameter has; `FailedPrecondition` if none is
    /// open; I/O errors.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let (Some(open), Some(weights)) = (&mut self.open, &mut self.weights) else {
            return Err(Error::precondition("no tensor was begun"));
        };
        open.received += bytes.len() as u64;
        if open.received > open.entry.bytes {
            return Err(size_error(&open.entry, open.received));
        }
        open.hasher.update(bytes);
        weights.put(bytes)
    }

    /// Ends the open parameter and returns its location.
    ///
    /// # Errors
    /// `InvalidArgument` if bytes are missing; `FailedPrecondition` if none is open.
    pub fn end(&mut self) -> Result<TensorEntry> {
        let mut open =
            self.open.take().ok_or_else(|| Error::precondition("no tensor was begun"))?;
        if open.received != open.entry.bytes {
            return Err(size_error(&open.entry, open.received));
        }
        open.entry.blake3 = open.hasher.finalize().to_hex().to_string();
        self.tensors.push(open.entry.clone());
        Ok(open.entry)
    }

    /// Returns the last written parameter.
    pub fn last(&self) -> Option<&TensorEntry> {
        self.tensors.last()
    }

    /// Returns the number of written parameters.
    pub fn count(&self) -> usize {
        self.tensors.len()
    }

    /// Writes the graph and the manifest. Then the version is complete and durable.
    ///
    /// # Errors
    /// `FailedPrecondition` while a parameter is open; I/O errors.
    pub fn finish(self, graph: &[u8]) -> Result<LayoutManifest> {
        self.finish_with(|out| out.put(graph))
    }

    /// Finishes as [`LayoutWriter::finish`] does, with a graph that is written in pieces.
    ///
    /// # Errors
    /// The errors of [`LayoutWriter::finish`] and of `graph`.
    pub fn finish_with(
        mut self,
        graph: impl FnOnce(&mut GraphWriter) -> Result<()>,
    ) -> Result<LayoutManifest> {
        if let Some(open) = &self.open {
            return Err(Error::precondition(format!("tensor \"{}\" has no end", open.entry.name)));
        }
        let weights = match self.weights.take() {
            None => None,
            Some(mut file) => {
                file.align()?;
                self.direct &= file.direct();
                Some(FileEntry {
                    name: WEIGHTS_NAME.to_owned(),
                    bytes: file.finish()?,
                    blake3: None,
                })
            }
        };
        let file = PacedFileWriter::create(&self.dir.join(self.names.graph), self.options)?;
        let mut out = GraphWriter { file, hasher: blake3::Hasher::new() };
        graph(&mut out)?;
        let hash = out.hasher.finalize().to_hex().to_string();
        self.direct &= out.file.direct();
        let graph = FileEntry {
            name: self.names.graph.to_owned(),
            bytes: out.file.finish()?,
            blake3: Some(hash),
        };
        let manifest = LayoutManifest {
            format: FORMAT,
            engine: self.names.engine.to_owned(),
            created_by: concat!("millpond ", env!("CARGO_PKG_VERSION")).to_owned(),
            graph,
            weights,
            tensors: std::mem::take(&mut self.tensors),
        };
        write_manifest(&self.dir, &manifest)?;
        if self.options.direct && !self.direct {
            tracing::info!(dir = %self.dir.display(), "O_DIRECT was refused here; wrote through the page cache");
        }
        Ok(manifest)
    }
}

/// Writer and hasher of the graph file.
pub struct GraphWriter {
    file: PacedFileWriter,
    hasher: blake3::Hasher,
}

impl GraphWriter {
    /// Appends bytes.
    ///
    /// # Errors
    /// I/O errors.
    pub fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.hasher.update(bytes);
        self.file.put(bytes)
    }
}

/// Writes the manifest of `dir` as its last file.
fn write_manifest(dir: &Path, manifest: &LayoutManifest) -> Result<()> {
    let text = serde_json::to_vec_pretty(manifest)
        .map_err(|e| Error::internal("the manifest does not serialise").caused_by(e))?;
    if text.len() as u64 > crate::layout::MANIFEST_BYTES_MAX {
        return Err(Error::too_large(format!(
            "{} tensors need a manifest of {}, more than a server reads",
            manifest.tensors.len(),
            base::units::format_bytes(text.len() as u64)
        )));
    }
    // The other files' directory entries must be durable before the manifest declares the version
    // complete.
    sync_directory(dir)?;
    write_small(&dir.join(MANIFEST_NAME), &text)?;
    sync_directory(dir)
}

fn size_error(entry: &TensorEntry, received: u64) -> Error {
    Error::invalid(format!(
        "tensor \"{}\": {} of shape {:?} takes {} bytes, got {received}{}",
        entry.name,
        entry.dtype,
        entry.dims,
        entry.bytes,
        if received > entry.bytes { " or more" } else { "" }
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{Artifact, TENSOR_ALIGNMENT};

    const NAMES: LayoutNames = LayoutNames { engine: "test", graph: "graph" };

    fn writer(dir: &Path) -> LayoutWriter {
        LayoutWriter::create(dir, NAMES, WriteOptions::default()).unwrap()
    }

    #[test]
    fn a_written_layout_opens() {
        let dir = tempfile::tempdir().unwrap();
        let mut out = writer(dir.path());
        out.tensor(
            "a",
            DType::U8,
            &[3],
            [[1u8, 2], [3, 0]].iter().map(|c| &c[..if c[1] == 0 { 1 } else { 2 }]),
        )
        .unwrap();
        out.tensor("b", DType::F32, &[2000], std::iter::repeat_n([7u8; 100], 80)).unwrap();
        out.tensor("empty", DType::I64, &[0, 4], std::iter::empty::<&[u8]>()).unwrap();
        let manifest = out.finish(b"graph").unwrap();
        let artifact = Artifact::open(dir.path()).unwrap();
        assert_eq!(artifact.manifest, manifest);
        assert_eq!(artifact.parameter_bytes(), 8003);
        let weights = std::fs::read(artifact.weights().unwrap()).unwrap();
        assert_eq!(weights.len() as u64 % TENSOR_ALIGNMENT, 0);
        for tensor in &manifest.tensors {
            let bytes = &weights[tensor.offset as usize..(tensor.offset + tensor.bytes) as usize];
            assert_eq!(blake3::hash(bytes), tensor.hash().unwrap());
        }
        assert_eq!(manifest.graph.blake3.unwrap(), blake3::hash(b"graph").to_hex().to_string());
    }

    #[test]
    fn wrong_sizes_and_orders_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let mut out = writer(dir.path());
        assert!(out.end().is_err());
        assert!(out.tensor("short", DType::F32, &[2], [[0u8; 7]]).is_err());
        assert!(out.tensor("long", DType::F32, &[2], [[0u8; 9]]).is_err());
        assert!(out.begin("next", DType::F32, &[2]).is_err(), "the long one is still open");
        assert!(out.finish(b"").is_err());
        assert!(!dir.path().join(MANIFEST_NAME).exists());
        let other = tempfile::tempdir().unwrap();
        assert!(writer(other.path()).begin("s", DType::String, &[2]).is_err());
        writer(other.path()).finish(b"").unwrap();
        assert!(LayoutWriter::create(other.path(), NAMES, WriteOptions::default()).is_err());
    }
}
