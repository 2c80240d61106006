//! Writes version directories that the fake can load, in the mappable layout.

use std::path::Path;

use base::{DType, Error, Result};

use crate::layout::{
    FORMAT, FileEntry, LayoutManifest, MANIFEST_NAME, TENSOR_ALIGNMENT, TensorEntry, WEIGHTS_NAME,
};

/// File name of the graph.
pub const GRAPH_NAME: &str = "model.fake";

/// A parameter to write.
#[derive(Clone, Debug)]
pub struct FakeParameter {
    /// Name in the graph.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Sizes of its axes.
    pub dims: Vec<usize>,
    /// Elements.
    pub bytes: Vec<u8>,
}

impl FakeParameter {
    /// Builds a float32 parameter.
    pub fn floats(name: &str, dims: &[usize], elements: &[f32]) -> FakeParameter {
        let bytes = elements.iter().flat_map(|element| element.to_le_bytes()).collect();
        FakeParameter { name: name.to_owned(), dtype: DType::F32, dims: dims.to_vec(), bytes }
    }
}

/// Graph of `y = x * half + two` for any number of singles, with both numbers as parameters.
pub const HALF_PLUS_TWO: &str = "millpond-fake 1\n\
    input x float32 n\n\
    output y float32 n\n\
    parameter half float32 1\n\
    parameter two float32 1\n\
    y = affine x half two\n";

/// Publishes [`HALF_PLUS_TWO`] with other numbers, so that a response shows which version made it.
///
/// # Errors
/// Returns the errors of [`publish`].
pub fn affine(dir: &Path, scale: f32, offset: f32) -> Result<()> {
    publish(
        dir,
        HALF_PLUS_TWO,
        &[
            FakeParameter::floats("half", &[1], &[scale]),
            FakeParameter::floats("two", &[1], &[offset]),
        ],
    )
}

/// Writes `graph` and `parameters` into `dir`, the manifest last. Makes the directory if it is
/// missing.
///
/// # Errors
/// Returns the errors of the file system.
pub fn publish(dir: &Path, graph: &str, parameters: &[FakeParameter]) -> Result<()> {
    std::fs::create_dir_all(dir).map_err(|e| Error::io(dir, &e))?;
    let write = |name: &str, bytes: &[u8]| {
        let path = dir.join(name);
        std::fs::write(&path, bytes).map_err(|e| Error::io(&path, &e))
    };
    let (weights, tensors) = lay_out(parameters);
    write(GRAPH_NAME, graph.as_bytes())?;
    if !parameters.is_empty() {
        write(WEIGHTS_NAME, &weights)?;
    }
    let file = |name: &str, bytes: usize| FileEntry {
        name: name.to_owned(),
        bytes: bytes as u64,
        blake3: None,
    };
    let manifest = LayoutManifest {
        format: FORMAT,
        engine: super::NAME.to_owned(),
        created_by: "the fake engine".to_owned(),
        graph: FileEntry {
            blake3: Some(blake3::hash(graph.as_bytes()).to_hex().to_string()),
            ..file(GRAPH_NAME, graph.len())
        },
        weights: (!parameters.is_empty()).then(|| file(WEIGHTS_NAME, weights.len())),
        tensors,
    };
    let text = serde_json::to_vec_pretty(&manifest).map_err(|e| Error::internal(e.to_string()))?;
    write(MANIFEST_NAME, &text)
}

fn lay_out(parameters: &[FakeParameter]) -> (Vec<u8>, Vec<TensorEntry>) {
    let mut weights = Vec::new();
    let mut tensors = Vec::new();
    for parameter in parameters {
        tensors.push(TensorEntry {
            name: parameter.name.clone(),
            dtype: parameter.dtype.name().to_owned(),
            dims: parameter.dims.clone(),
            offset: weights.len() as u64,
            bytes: parameter.bytes.len() as u64,
            blake3: blake3::hash(&parameter.bytes).to_hex().to_string(),
        });
        weights.extend_from_slice(&parameter.bytes);
        weights.resize(weights.len().next_multiple_of(TENSOR_ALIGNMENT as usize), 0);
    }
    (weights, tensors)
}
