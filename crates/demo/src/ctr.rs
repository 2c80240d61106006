//! The click-through model: 26 embedding tables of very different sizes, joined with 13 dense
//! features, and three layers. There is no trained model of this size to download, so the tables
//! are seeded. The measurements (bytes moved, cache misses, small matrices) do not depend on the
//! values, and the right answers follow from the seed.

use std::path::Path;

use base::{DType, Dim, NamedTensor, Result, Tensor};
use engine_onnx::publish::build::{ModelBuilder, Node, OnnxParameter};
use engine_onnx::publish::{WriteOptions, layout_writer};

use super::layers::Layers;
use loadgen::random::{RandomSequence, at, signed_unit};

/// Number of embedding tables.
pub(crate) const TABLES: usize = 26;
/// Number of numbers in one embedding.
const DIMENSION: usize = 32;
/// Number of dense features.
pub(crate) const DENSE: usize = 13;
/// Rows of the tables at the natural size (1.6 GB): six large, ten medium, ten small.
const NATURAL_ROWS: [(usize, u64); 3] = [(6, 1_600_000), (10, 310_000), (10, 4_000)];
/// Version of the operator set.
const OPSET: i64 = 18;
/// Size of a chunk of written bytes.
const CHUNK_BYTES: usize = 1 << 20;
/// First random stream of the tables, beyond the streams of the layers.
const TABLE_STREAM: u64 = 1 << 32;
/// Embeddings are uniform within plus or minus this.
const TABLE_SCALE: f32 = 0.5;
/// Tables that differ between a content and its [`CtrContent::with_tenth`]: four of medium size,
/// which hold 9.7 % of the bytes.
const TENTH: std::ops::Range<usize> = 6..10;

/// Values of all parameters of a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CtrContent {
    seed: u64,
    /// Seed of the tables in [`TENTH`].
    tenth: u64,
}

impl CtrContent {
    /// Returns the content of `seed`. Two seeds share no values.
    pub const fn of(seed: u64) -> CtrContent {
        CtrContent { seed, tenth: seed }
    }

    /// Returns this content with the tables that hold a tenth of the bytes taken from `seed`.
    #[must_use]
    pub const fn with_tenth(self, seed: u64) -> CtrContent {
        CtrContent { seed: self.seed, tenth: seed }
    }

    /// Returns the cache key.
    pub fn key(self) -> String {
        let tenth = (self.tenth != self.seed).then(|| format!("-t{}", self.tenth));
        format!("s{}{}", self.seed, tenth.unwrap_or_default())
    }

    fn table_stream(self, table: usize) -> u64 {
        let seed = if TENTH.contains(&table) { self.tenth } else { self.seed };
        at(seed, TABLE_STREAM + table as u64)
    }
}

/// Sizes of a click-through model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ctr {
    rows: Vec<u64>,
    layers: Layers,
}

impl Ctr {
    /// Returns a model whose parameters take about `bytes`.
    pub fn of_bytes(bytes: u64) -> Ctr {
        let layers = Ctr::layers(512, 256);
        let natural: u64 = NATURAL_ROWS.iter().map(|(count, rows)| *count as u64 * rows).sum();
        let scale =
            bytes.saturating_sub(layers.bytes()) as f64 / (natural * Ctr::row_bytes()) as f64;
        let rows = NATURAL_ROWS
            .iter()
            .flat_map(|&(count, rows)| {
                std::iter::repeat_n(((rows as f64 * scale) as u64).max(2), count)
            })
            .collect();
        Ctr { rows, layers }
    }

    /// Returns a light model: about 0.075 ms a request of one row.
    pub fn light() -> Ctr {
        Ctr { rows: vec![10_000; TABLES], layers: Ctr::layers(1024, 512) }
    }

    /// Returns a model whose layers (17 MB) are far larger than the L2 cache.
    pub fn ranking() -> Ctr {
        let widths = vec![TABLES * DIMENSION + DENSE, 2048, 1024, 512, 1];
        Ctr { rows: vec![10_000; TABLES], layers: Layers { widths, sigmoid: true } }
    }

    fn layers(first: usize, second: usize) -> Layers {
        Layers { widths: vec![TABLES * DIMENSION + DENSE, first, second, 1], sigmoid: true }
    }

    fn row_bytes() -> u64 {
        4 * DIMENSION as u64
    }

    /// Returns the number of bytes of all parameters.
    pub fn bytes(&self) -> u64 {
        self.rows.iter().sum::<u64>() * Ctr::row_bytes() + self.layers.bytes()
    }

    /// Returns the cache key without the seed.
    pub fn key(&self) -> String {
        let rows: Vec<String> = self.rows.iter().map(u64::to_string).collect();
        let shape = format!("{} {:?}", rows.join(","), self.layers.widths);
        let hash = shape.bytes().fold(0, |hash, byte| at(hash, u64::from(byte)));
        format!("ctr-{}m-{:08x}", self.bytes() >> 20, hash >> 32)
    }

    /// Writes the mappable layout into the empty directory `dir`. `progress` gets the bytes of each
    /// chunk.
    pub fn write_layout(
        &self,
        content: CtrContent,
        dir: &Path,
        progress: &dyn Fn(u64),
    ) -> Result<()> {
        let mut writer = layout_writer(dir, WriteOptions::default())?;
        let mut builder = self.graph();
        for (table, parameter) in self.table_parameters().iter().enumerate() {
            writer.begin(&parameter.name, parameter.dtype, &parameter.dims)?;
            self.table_chunks(content, table, &mut |chunk| {
                progress(chunk.len() as u64);
                writer.write(chunk)
            })?;
            let entry = writer.end()?;
            builder = builder.external(parameter, engine::layout::WEIGHTS_NAME, entry.offset)?;
        }
        builder = self.layers.write(content.seed, &mut writer, builder)?;
        writer.finish(&builder.encode())?;
        Ok(())
    }

    /// Writes one ordinary ONNX file with everything embedded to `path`.
    pub fn write_embedded(
        &self,
        content: CtrContent,
        path: &Path,
        progress: &dyn Fn(u64),
    ) -> Result<()> {
        let mut parameters = self.table_parameters();
        parameters.extend(self.layers.parameters());
        self.graph().write_embedded(
            path,
            &parameters,
            WriteOptions::default(),
            &mut |index, put| {
                if index < TABLES {
                    return self.table_chunks(content, index, &mut |chunk| {
                        progress(chunk.len() as u64);
                        put(chunk)
                    });
                }
                let values = self.layers.values(content.seed, index - TABLES);
                put(&values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>())
            },
        )?;
        Ok(())
    }

    /// Returns the inputs of request `index` of the stream `seed`. Popular rows are much more
    /// frequent than others.
    pub fn inputs(&self, seed: u64, index: u64, batch: usize) -> CtrInputs {
        let mut random = RandomSequence::new(at(seed, index));
        let sparse = (0..batch)
            .flat_map(|_| self.rows.iter())
            .map(|&rows| random.skewed(rows) as i64)
            .collect();
        let dense = (0..batch * DENSE).map(|_| (random.unit() * 2.0 - 1.0) as f32).collect();
        CtrInputs { batch, sparse, dense }
    }

    /// Returns the expected answers of `content`.
    pub fn reference<'a>(
        &'a self,
        content: CtrContent,
        requests: impl IntoIterator<Item = &'a CtrInputs>,
    ) -> Vec<Vec<f32>> {
        let parameters: Vec<Vec<f32>> = (0..self.layers.parameters().len())
            .map(|index| self.layers.values(content.seed, index))
            .collect();
        let answer = |request: &CtrInputs| {
            let row = |row: usize| {
                self.layers.reference(&parameters, &self.joined(content, request, row))
            };
            (0..request.batch).flat_map(row).collect()
        };
        requests.into_iter().map(answer).collect()
    }

    /// Returns row `row` of a request as the input of the first layer.
    fn joined(&self, content: CtrContent, request: &CtrInputs, row: usize) -> Vec<f32> {
        let mut joined = Vec::with_capacity(TABLES * DIMENSION + DENSE);
        for (table, &index) in request.sparse[row * TABLES..(row + 1) * TABLES].iter().enumerate() {
            let stream = content.table_stream(table);
            let start = index as u64 * DIMENSION as u64;
            joined.extend(
                (0..DIMENSION as u64)
                    .map(|column| signed_unit(stream, start + column) * TABLE_SCALE),
            );
        }
        joined.extend_from_slice(&request.dense[row * DENSE..(row + 1) * DENSE]);
        joined
    }

    /// Returns the tables of `content`, in order.
    pub(crate) fn tables(&self, content: CtrContent) -> Vec<EmbeddingTable> {
        let table = |(index, &rows): (usize, &u64)| EmbeddingTable {
            dims: [rows as usize, DIMENSION],
            stream: content.table_stream(index),
        };
        self.rows.iter().enumerate().map(table).collect()
    }

    /// Returns the layers' parameters of `content`, with their values.
    pub(crate) fn layer_values(&self, content: CtrContent) -> Vec<(OnnxParameter, Vec<f32>)> {
        let parameters = self.layers.parameters().into_iter().enumerate();
        parameters
            .map(|(index, parameter)| (parameter, self.layers.values(content.seed, index)))
            .collect()
    }

    /// Returns the layers.
    pub(crate) fn own_layers(&self) -> &Layers {
        &self.layers
    }

    fn table_parameters(&self) -> Vec<OnnxParameter> {
        let table = |(index, &rows): (usize, &u64)| {
            OnnxParameter::new(format!("emb_{index}"), DType::F32, [rows as usize, DIMENSION])
        };
        self.rows.iter().enumerate().map(table).collect()
    }

    fn table_chunks(
        &self,
        content: CtrContent,
        table: usize,
        put: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let stream = content.table_stream(table);
        let count = self.rows[table] * DIMENSION as u64;
        let mut chunk = Vec::with_capacity(CHUNK_BYTES);
        for start in (0..count).step_by(CHUNK_BYTES / 4) {
            let end = count.min(start + CHUNK_BYTES as u64 / 4);
            chunk.clear();
            chunk.extend(
                (start..end)
                    .flat_map(|index| (signed_unit(stream, index) * TABLE_SCALE).to_le_bytes()),
            );
            put(&chunk)?;
        }
        Ok(())
    }

    /// Returns the graph without its large parameters.
    fn graph(&self) -> ModelBuilder {
        let batch = || Dim::Dynamic(Some("batch".into()));
        let names = |prefix: &str| -> Vec<String> {
            (0..TABLES).map(|table| format!("{prefix}{table}")).collect()
        };
        let split = names("s");
        let embedded = names("e");
        let as_strs = |names: &[String]| -> Vec<String> { names.to_vec() };
        let mut builder = ModelBuilder::new("ctr", OPSET)
            .input("sparse", DType::I64, &[batch(), Dim::Fixed(TABLES)])
            .input("dense", DType::F32, &[batch(), Dim::Fixed(DENSE)])
            .output("prob", DType::F32, &[batch(), Dim::Fixed(1)])
            .ints("shape", &[2], &[-1, (TABLES * DIMENSION) as i64]);
        let outputs = as_strs(&split);
        let outputs: Vec<&str> = outputs.iter().map(String::as_str).collect();
        builder = builder.node(
            Node::new("Split", &["sparse"], &outputs)
                .int("axis", 1)
                .int("num_outputs", TABLES as i64),
        );
        for table in 0..TABLES {
            let name = format!("emb_{table}");
            let node =
                Node::new("Gather", &[&name, &split[table]], &[&embedded[table]]).int("axis", 0);
            builder = builder.node(node);
        }
        let inputs: Vec<&str> = embedded.iter().map(String::as_str).collect();
        builder = builder
            .node(Node::new("Concat", &inputs, &["embeddings"]).int("axis", 1))
            .node(Node::new("Reshape", &["embeddings", "shape"], &["flat"]))
            .node(Node::new("Concat", &["flat", "dense"], &["features"]).int("axis", 1));
        self.layers.nodes(builder, "features", "prob")
    }
}

/// One embedding table of one content.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EmbeddingTable {
    /// Number of rows, and of numbers in a row.
    pub(crate) dims: [usize; 2],
    stream: u64,
}

impl EmbeddingTable {
    /// Returns the number at `place`, row by row.
    pub(crate) fn value(&self, place: u64) -> f32 {
        signed_unit(self.stream, place) * TABLE_SCALE
    }
}

/// Inputs of one request.
#[derive(Clone, Debug)]
pub struct CtrInputs {
    batch: usize,
    sparse: Vec<i64>,
    dense: Vec<f32>,
}

impl CtrInputs {
    /// Converts the inputs to tensors.
    pub fn tensors(&self) -> Result<Vec<NamedTensor>> {
        Ok(vec![
            NamedTensor::new(
                "sparse",
                Tensor::from_vec([self.batch, TABLES].as_slice(), self.sparse.clone())?,
            ),
            NamedTensor::new(
                "dense",
                Tensor::from_vec([self.batch, DENSE].as_slice(), self.dense.clone())?,
            ),
        ])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_has_the_requested_size() {
        let natural = Ctr::of_bytes(1_632_000_000);
        assert_eq!(natural.rows.len(), TABLES);
        for bytes in [20_000_000u64, 1_717_986_918] {
            let got = Ctr::of_bytes(bytes).bytes();
            assert!(got <= bytes && got > bytes - bytes / 100, "{got} of {bytes}");
        }
        assert_ne!(Ctr::of_bytes(20_000_000).key(), Ctr::of_bytes(20_100_000).key());
    }

    #[test]
    fn a_tenth_of_the_bytes_changes() {
        let ctr = Ctr::of_bytes(1_632_000_000);
        let (one, other) = (CtrContent::of(1), CtrContent::of(1).with_tenth(2));
        let changed = |table: &usize| one.table_stream(*table) != other.table_stream(*table);
        let rows: u64 = (0..TABLES).filter(changed).map(|table| ctr.rows[table]).sum();
        let share = (rows * Ctr::row_bytes()) as f64 / ctr.bytes() as f64;
        assert!((0.095..0.1).contains(&share), "{share}");
        assert_eq!((one.key(), other.key()), ("s1".into(), "s1-t2".into()));
    }

    #[test]
    fn versions_answer_differently_and_chunks_are_the_rows() {
        let ctr = Ctr::of_bytes(4_000_000);
        let request = ctr.inputs(1, 0, 3);
        let one = ctr.reference(CtrContent::of(1), [&request]);
        let two = ctr.reference(CtrContent::of(2), [&request]);
        assert_eq!((one.len(), one[0].len()), (1, 3));
        let apart = one[0].iter().zip(&two[0]).filter(|(a, b)| (*a - *b).abs() > 0.01).count();
        assert!(apart > 0, "{one:?} {two:?}");
        let mut bytes = Vec::new();
        ctr.table_chunks(CtrContent::of(1), 3, &mut |chunk| {
            bytes.extend_from_slice(chunk);
            Ok(())
        })
        .unwrap();
        assert_eq!(bytes.len() as u64, ctr.rows[3] * Ctr::row_bytes());
        let last =
            signed_unit(CtrContent::of(1).table_stream(3), ctr.rows[3] * DIMENSION as u64 - 1)
                * TABLE_SCALE;
        assert_eq!(bytes[bytes.len() - 4..], last.to_le_bytes());
    }
}
