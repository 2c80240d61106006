//! A plain chain of layers whose time is set by the number of rows in a request.

use std::path::Path;

use base::{DType, Dim, NamedTensor, Result, Tensor};
use engine_onnx::publish::build::ModelBuilder;
use engine_onnx::publish::{LayoutWriter, WriteOptions};

use demo::layers::Layers;
use loadgen::random::signed_unit;

/// Numbers in a row of input: few, so that a request stays small beside its compute.
const WIDTH: usize = 128;
/// Operators' version.
const OPSET: i64 = 18;

/// The model.
#[derive(Clone, Debug)]
pub(crate) struct DenseModel {
    layers: Layers,
}

impl DenseModel {
    pub(crate) fn new() -> DenseModel {
        DenseModel { layers: Layers { widths: vec![WIDTH, 1024, 1024, 1024, 64], sigmoid: false } }
    }

    /// What names it in a cache, seed aside.
    pub(crate) fn key(&self) -> String {
        let widths: Vec<String> = self.layers.widths.iter().map(usize::to_string).collect();
        format!("dense-{}", widths.join("-"))
    }

    /// Writes the mappable layout into `dir`, which is empty.
    pub(crate) fn write_layout(&self, seed: u64, dir: &Path) -> Result<()> {
        let mut writer = LayoutWriter::create(dir, WriteOptions::default())?;
        let rows = || Dim::Dynamic(Some("rows".into()));
        let builder = ModelBuilder::new("dense", OPSET)
            .input("x", DType::F32, &[rows(), Dim::Fixed(WIDTH)])
            .output("y", DType::F32, &[rows(), Dim::Fixed(64)]);
        let builder = self.layers.nodes(builder, "x", "y");
        let builder = self.layers.write(seed, &mut writer, builder)?;
        writer.finish(&builder.encode())?;
        Ok(())
    }

    /// The inputs of request `index`.
    pub(crate) fn inputs(&self, seed: u64, index: u64, rows: usize) -> Result<Vec<NamedTensor>> {
        let stream = loadgen::random::at(seed, index);
        let values: Vec<f32> =
            (0..(rows * WIDTH) as u64).map(|position| signed_unit(stream, position)).collect();
        Ok(vec![NamedTensor::new("x", Tensor::from_vec([rows, WIDTH].as_slice(), values)?)])
    }
}
