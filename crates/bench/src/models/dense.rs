//! A plain chain of layers whose time depends on the number of rows in a request.

use std::path::Path;

use base::{DType, Dim, NamedTensor, Result, Tensor};
use engine_onnx::publish::build::ModelBuilder;
use engine_onnx::publish::{WriteOptions, layout_writer};

use demo::layers::Layers;
use loadgen::random::signed_unit;

/// Number of values in a row of input. They are few, so that a request is small beside its compute.
const WIDTH: usize = 128;
/// Version of the operator set.
const OPSET: i64 = 18;

#[derive(Clone, Debug)]
pub(crate) struct DenseModel {
    layers: Layers,
}

impl DenseModel {
    pub(crate) fn new() -> DenseModel {
        DenseModel { layers: Layers { widths: vec![WIDTH, 1024, 1024, 1024, 64], sigmoid: false } }
    }

    /// Returns the cache key without the seed.
    pub(crate) fn key(&self) -> String {
        let widths: Vec<String> = self.layers.widths.iter().map(usize::to_string).collect();
        format!("dense-{}", widths.join("-"))
    }

    /// Writes the mappable layout into the empty directory `dir`.
    pub(crate) fn write_layout(&self, seed: u64, dir: &Path) -> Result<()> {
        let mut writer = layout_writer(dir, WriteOptions::default())?;
        let rows = || Dim::Dynamic(Some("rows".into()));
        let builder = ModelBuilder::new("dense", OPSET)
            .input("x", DType::F32, &[rows(), Dim::Fixed(WIDTH)])
            .output("y", DType::F32, &[rows(), Dim::Fixed(64)]);
        let builder = self.layers.nodes(builder, "x", "y");
        let builder = self.layers.write(seed, &mut writer, builder)?;
        writer.finish(&builder.encode())?;
        Ok(())
    }

    /// Returns the inputs of request `index`.
    pub(crate) fn inputs(&self, seed: u64, index: u64, rows: usize) -> Result<Vec<NamedTensor>> {
        let stream = loadgen::random::at(seed, index);
        let values: Vec<f32> =
            (0..(rows * WIDTH) as u64).map(|position| signed_unit(stream, position)).collect();
        Ok(vec![NamedTensor::new("x", Tensor::from_vec([rows, WIDTH].as_slice(), values)?)])
    }
}
