//! Builds small ONNX models without Python, for benchmarks and tests.
//!
//! The builder keeps the graph in memory. Large parameters are written by a [`super::LayoutWriter`]
//! and named with [`ModelBuilder::external`], or streamed into one file with
//! [`ModelBuilder::write_embedded`].

use std::path::Path;

use base::{DType, Dim, Error, Result};

use super::encode;
use super::schema::{self, attribute, attribute_type, graph, model, node, tensor};
use engine::publish::{PacedFileWriter, WriteOptions};

/// Smallest size in bytes of a message that protobuf, and thus ONNX Runtime, refuses.
pub const MODEL_BYTES_MAX: u64 = i32::MAX as u64;
/// ONNX format version of the output: the oldest that has all element types of Millpond.
const IR_VERSION: i64 = 9;

/// Function that receives the next bytes of a parameter.
pub type PutBytes<'a> = dyn FnMut(&[u8]) -> Result<()> + 'a;

/// One operator of a graph.
#[derive(Clone, Debug)]
pub struct Node {
    bytes: Vec<u8>,
}

impl Node {
    /// Builds an operator of ONNX's own set with its input and output names. An empty name omits an
    /// optional input or output.
    pub fn new(operator: &str, inputs: &[&str], outputs: &[&str]) -> Node {
        let mut bytes = Vec::new();
        for input in inputs {
            encode::bytes(&mut bytes, node::INPUT, input.as_bytes());
        }
        for output in outputs {
            encode::bytes(&mut bytes, node::OUTPUT, output.as_bytes());
        }
        encode::bytes(&mut bytes, node::OP_TYPE, operator.as_bytes());
        Node { bytes }
    }

    /// Names the operator.
    pub fn named(mut self, name: &str) -> Node {
        encode::bytes(&mut self.bytes, node::NAME, name.as_bytes());
        self
    }

    /// Selects an operator set other than that of ONNX.
    #[cfg(test)]
    pub(crate) fn domain(mut self, domain: &str) -> Node {
        encode::bytes(&mut self.bytes, node::DOMAIN, domain.as_bytes());
        self
    }

    /// Sets an integer attribute.
    pub fn int(self, name: &str, value: i64) -> Node {
        self.attribute(name, attribute_type::INT, |out| encode::int(out, attribute::I, value))
    }

    /// Sets an attribute that is a list of integers.
    pub fn ints(self, name: &str, values: &[i64]) -> Node {
        self.attribute(name, attribute_type::INTS, |out| {
            for value in values {
                encode::int(out, attribute::INTS, *value);
            }
        })
    }

    /// Sets an attribute that is a list of floats.
    pub fn floats(self, name: &str, values: &[f32]) -> Node {
        self.attribute(name, attribute_type::FLOATS, |out| {
            for value in values {
                encode::float(out, attribute::FLOATS, *value);
            }
        })
    }

    /// Sets an attribute that is a list of strings.
    pub fn strings(self, name: &str, values: &[&str]) -> Node {
        self.attribute(name, attribute_type::STRINGS, |out| {
            for value in values {
                encode::bytes(out, attribute::STRINGS, value.as_bytes());
            }
        })
    }

    fn attribute(mut self, name: &str, kind: i64, value: impl FnOnce(&mut Vec<u8>)) -> Node {
        encode::message(&mut self.bytes, node::ATTRIBUTE, |out| {
            encode::bytes(out, attribute::NAME, name.as_bytes());
            value(out);
            encode::int(out, attribute::TYPE, kind);
        });
        self
    }
}

/// Name, type and shape of a parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnnxParameter {
    /// Name in the graph.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Sizes of its axes.
    pub dims: Vec<usize>,
}

impl OnnxParameter {
    /// Describes a parameter.
    pub fn new(
        name: impl Into<String>,
        dtype: DType,
        dims: impl Into<Vec<usize>>,
    ) -> OnnxParameter {
        OnnxParameter { name: name.into(), dtype, dims: dims.into() }
    }

    /// Returns its size in bytes.
    ///
    /// # Errors
    /// `InvalidArgument` for strings and for shapes too large to count.
    pub fn bytes(&self) -> Result<u64> {
        let elements = self.dims.iter().try_fold(1usize, |product, &dim| product.checked_mul(dim));
        elements.and_then(|count| self.dtype.bytes_for(count)).map(|bytes| bytes as u64).ok_or_else(
            || {
                Error::invalid(format!(
                    "\"{}\": {} of shape {:?} has no byte size",
                    self.name, self.dtype, self.dims
                ))
            },
        )
    }

    /// Appends the `TensorProto` fields other than data.
    fn encode(&self, out: &mut Vec<u8>) {
        for dim in &self.dims {
            encode::int(out, tensor::DIMS, *dim as i64);
        }
        encode::int(out, tensor::DATA_TYPE, schema::code(self.dtype));
        encode::bytes(out, tensor::NAME, self.name.as_bytes());
    }
}

/// A model being built. Keeps the order of the nodes, which must be an order in which they can run.
#[derive(Clone, Debug)]
pub struct ModelBuilder {
    graph: Vec<u8>,
    opset: i64,
    metadata: Vec<(String, String)>,
    ir_version: i64,
}

impl ModelBuilder {
    /// Starts an empty graph called `name` with version `opset` of ONNX's operators (18 is a good
    /// choice).
    pub fn new(name: &str, opset: i64) -> ModelBuilder {
        let mut bytes = Vec::new();
        encode::bytes(&mut bytes, graph::NAME, name.as_bytes());
        ModelBuilder { graph: bytes, opset, metadata: Vec::new(), ir_version: IR_VERSION }
    }

    /// Sets the ONNX format version, for tests of old models.
    #[cfg(test)]
    pub(crate) fn ir_version(mut self, version: i64) -> ModelBuilder {
        self.ir_version = version;
        self
    }

    /// Adds a free-form fact.
    pub fn metadata(mut self, key: &str, value: &str) -> ModelBuilder {
        self.metadata.push((key.to_owned(), value.to_owned()));
        self
    }

    /// Adds an operator.
    pub fn node(mut self, node: Node) -> ModelBuilder {
        encode::bytes(&mut self.graph, graph::NODE, &node.bytes);
        self
    }

    /// Adds an input.
    pub fn input(self, name: &str, dtype: DType, dims: &[Dim]) -> ModelBuilder {
        self.value(graph::INPUT, name, dtype, dims)
    }

    /// Adds an output.
    pub fn output(self, name: &str, dtype: DType, dims: &[Dim]) -> ModelBuilder {
        self.value(graph::OUTPUT, name, dtype, dims)
    }

    /// Adds a small parameter whose little-endian bytes `raw` lie in the graph.
    pub(crate) fn initializer(mut self, parameter: &OnnxParameter, raw: &[u8]) -> ModelBuilder {
        encode::message(&mut self.graph, graph::INITIALIZER, |out| {
            parameter.encode(out);
            encode::bytes(out, tensor::RAW_DATA, raw);
        });
        self
    }

    /// Adds a parameter of float32 values.
    pub fn floats(self, name: &str, dims: &[usize], values: &[f32]) -> ModelBuilder {
        let raw: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.initializer(&OnnxParameter::new(name, DType::F32, dims), &raw)
    }

    /// Adds a parameter of int64 values: shapes, axes, split sizes.
    pub fn ints(self, name: &str, dims: &[usize], values: &[i64]) -> ModelBuilder {
        let raw: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.initializer(&OnnxParameter::new(name, DType::I64, dims), &raw)
    }

    /// Adds a parameter that lies at `offset` of the file `location` beside the graph. For the
    /// layout, take both from [`super::LayoutWriter::tensor`] and [`engine::layout::WEIGHTS_NAME`].
    ///
    /// # Errors
    /// As [`OnnxParameter::bytes`].
    pub fn external(
        mut self,
        parameter: &OnnxParameter,
        location: &str,
        offset: u64,
    ) -> Result<ModelBuilder> {
        let bytes = parameter.bytes()?;
        encode::message(&mut self.graph, graph::INITIALIZER, |out| {
            parameter.encode(out);
            external_data(out, location, offset, bytes);
        });
        Ok(self)
    }

    /// Returns the whole model.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = self.head(self.graph.len() as u64);
        out.extend_from_slice(&self.graph);
        out
    }

    /// Writes the model with `parameters` embedded as raw bytes, streaming. Calls `fill` once for
    /// each parameter, in order. `fill` writes the bytes in chunks of any size. Returns the file's
    /// length. ONNX Runtime copies parameters in this form into its own heap.
    ///
    /// # Errors
    /// `TooLarge` if the file would have [`MODEL_BYTES_MAX`] bytes or more (nothing is written
    /// then). `InvalidArgument` if `fill` writes another number of bytes than the parameter has.
    /// I/O errors; an existing file is not replaced.
    pub fn write_embedded(
        &self,
        path: &Path,
        parameters: &[OnnxParameter],
        options: WriteOptions,
        fill: &mut dyn FnMut(usize, &mut PutBytes<'_>) -> Result<()>,
    ) -> Result<u64> {
        let mut prefixes = Vec::with_capacity(parameters.len());
        let mut length = self.graph.len() as u64;
        for parameter in parameters {
            let bytes = parameter.bytes()?;
            let prefix = embedded_prefix(parameter, bytes);
            length = length.saturating_add(prefix.len() as u64).saturating_add(bytes);
            prefixes.push((prefix, bytes));
        }
        let head = self.head(length);
        let total = length.saturating_add(head.len() as u64);
        if total >= MODEL_BYTES_MAX {
            return Err(Error::too_large(format!(
                "the model would take {total} bytes, ONNX allows fewer than {MODEL_BYTES_MAX} in one file"
            )));
        }
        let mut file = PacedFileWriter::create(path, options)?;
        file.put(&head)?;
        file.put(&self.graph)?;
        for (index, (prefix, bytes)) in prefixes.iter().enumerate() {
            file.put(prefix)?;
            let end = file.position() + bytes;
            fill(index, &mut |chunk| {
                if file.position() + chunk.len() as u64 > end {
                    return Err(Error::invalid(format!(
                        "\"{}\" takes {bytes} bytes",
                        parameters[index].name
                    )));
                }
                file.put(chunk)
            })?;
            if file.position() != end {
                return Err(Error::invalid(format!(
                    "\"{}\" takes {bytes} bytes",
                    parameters[index].name
                )));
            }
        }
        file.finish()
    }

    /// Returns all of the model before the graph's `length` bytes.
    fn head(&self, length: u64) -> Vec<u8> {
        let mut out = Vec::new();
        encode::int(&mut out, model::IR_VERSION, self.ir_version);
        encode::bytes(&mut out, model::PRODUCER_NAME, b"millpond");
        encode::bytes(&mut out, model::PRODUCER_VERSION, env!("CARGO_PKG_VERSION").as_bytes());
        encode::message(&mut out, model::OPSET_IMPORT, |out| {
            encode::bytes(out, 1, b"");
            encode::int(out, 2, self.opset);
        });
        for (key, value) in &self.metadata {
            encode::entry(&mut out, model::METADATA, key, value);
        }
        encode::header(&mut out, model::GRAPH, length);
        out
    }

    /// Appends a `ValueInfoProto` of tensor type.
    fn value(mut self, field: u32, name: &str, dtype: DType, dims: &[Dim]) -> ModelBuilder {
        encode::message(&mut self.graph, field, |out| {
            encode::bytes(out, 1, name.as_bytes());
            // A `TypeProto`, and in it a `TypeProto.Tensor`.
            encode::message(out, 2, |out| {
                encode::message(out, 1, |out| tensor_type(out, dtype, dims));
            });
        });
        self
    }
}

/// Appends the fields of a `TypeProto.Tensor`: the element type and the shape.
fn tensor_type(out: &mut Vec<u8>, dtype: DType, dims: &[Dim]) {
    encode::int(out, 1, schema::code(dtype));
    encode::message(out, 2, |out| {
        for dim in dims {
            encode::message(out, 1, |out| dimension(out, dim));
        }
    });
}

/// Appends the fields of a `TensorShapeProto.Dimension`. A size without a name has none.
fn dimension(out: &mut Vec<u8>, dim: &Dim) {
    match dim {
        Dim::Fixed(size) => encode::int(out, 1, *size as i64),
        Dim::Dynamic(Some(symbol)) => encode::bytes(out, 2, symbol.as_bytes()),
        Dim::Dynamic(None) => {}
    }
}

/// Returns an embedded initialiser without its raw bytes.
fn embedded_prefix(parameter: &OnnxParameter, bytes: u64) -> Vec<u8> {
    let mut fields = Vec::new();
    parameter.encode(&mut fields);
    encode::header(&mut fields, tensor::RAW_DATA, bytes);
    let mut prefix = Vec::new();
    encode::header(&mut prefix, graph::INITIALIZER, (fields.len() as u64).saturating_add(bytes));
    prefix.extend_from_slice(&fields);
    prefix
}

/// Appends the `TensorProto` fields that locate external bytes.
pub(super) fn external_data(out: &mut Vec<u8>, location: &str, offset: u64, bytes: u64) {
    encode::entry(out, tensor::EXTERNAL_DATA, "location", location);
    encode::entry(out, tensor::EXTERNAL_DATA, "offset", &offset.to_string());
    encode::entry(out, tensor::EXTERNAL_DATA, "length", &bytes.to_string());
    encode::int(out, tensor::DATA_LOCATION, schema::LOCATION_EXTERNAL);
}
