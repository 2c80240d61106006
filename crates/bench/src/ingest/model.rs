//! A small convolutional network that makes a vector of an image. It is not trained: the
//! measurement does not depend on the values, and features of random filters distinguish made-up
//! images well enough.

use std::path::{Path, PathBuf};

use base::{DType, Dim, Result};
use engine_onnx::publish::build::{ModelBuilder, Node, OnnxParameter};
use engine_onnx::publish::{WriteOptions, layout_writer};

use loadgen::BenchEnv;
use loadgen::cache;
use loadgen::random::{at, signed_unit};

/// Name under which the model is served.
pub(super) const NAME: &str = "embedder";
/// Channels before and after each layer. Every layer halves both sides. The first one quarters
/// them.
const CHANNELS: [usize; 5] = [3, 32, 64, 128, 256];
/// Side of a filter.
const KERNEL: usize = 3;
/// Side of an input image in pixels.
const SIDE: usize = 224;
/// Version of the operator set.
const OPSET: i64 = 18;
/// Seed of the parameters.
const SEED: u64 = 61;
/// Revision of the graph, part of the cache key.
const REVISION: u32 = 1;

/// Publishes the model into the cache if it is not there, and returns its path.
///
/// # Errors
/// Returns an error if the disk cannot be written.
pub(super) fn publish(env: &BenchEnv) -> Result<PathBuf> {
    let key = format!("embedder-r{REVISION}-s{SEED}");
    cache::ensure(&env.cache_dir, &key, 0, write_layout)
}

fn weights(layer: usize, from: usize, to: usize) -> OnnxParameter {
    OnnxParameter::new(format!("layer{layer}.w"), DType::F32, [to, from, KERNEL, KERNEL])
}

/// Writes the mappable layout into the empty directory `dir`.
fn write_layout(dir: &Path) -> Result<()> {
    let mut writer = layout_writer(dir, WriteOptions::default())?;
    let mut builder = graph();
    for (layer, pair) in CHANNELS.windows(2).enumerate() {
        let &[from, to] = pair else { continue };
        let parameter = weights(layer, from, to);
        let fan_in = from * KERNEL * KERNEL;
        // Values keep their size from layer to layer: half of them survive the activation.
        let scale = (6.0 / fan_in as f32).sqrt();
        let stream = at(SEED, layer as u64);
        let values = (0..(to * fan_in) as u64).map(|index| signed_unit(stream, index) * scale);
        let bytes = values.map(f32::to_le_bytes);
        let entry = writer.tensor(&parameter.name, parameter.dtype, &parameter.dims, bytes)?;
        builder = builder.external(&parameter, engine::layout::WEIGHTS_NAME, entry.offset)?;
    }
    writer.finish(&builder.encode())?;
    Ok(())
}

/// Returns the graph without its filters.
fn graph() -> ModelBuilder {
    let batch = || Dim::Dynamic(Some("batch".into()));
    let dims = CHANNELS[CHANNELS.len() - 1];
    let image = [batch(), Dim::Fixed(CHANNELS[0]), Dim::Fixed(SIDE), Dim::Fixed(SIDE)];
    let mut builder = ModelBuilder::new(NAME, OPSET)
        .input("image", DType::F32, &image)
        .output("embedding", DType::F32, &[batch(), Dim::Fixed(dims)])
        .ints("plane", &[2], &[2, 3])
        .ints("values", &[1], &[1]);
    let mut value = "image".to_owned();
    for layer in 0..CHANNELS.len() - 1 {
        let filters = format!("layer{layer}.w");
        let result = format!("layer{layer}");
        let positive = format!("layer{layer}.relu");
        let stride = if layer == 0 { 4 } else { 2 };
        let node = Node::new("Conv", &[&value, &filters], &[&result])
            .ints("kernel_shape", &[KERNEL as i64; 2])
            .ints("strides", &[stride; 2])
            .ints("pads", &[1; 4]);
        builder = builder.node(node).node(Node::new("Relu", &[&result], &[&positive]));
        value = positive;
    }
    builder
        .node(Node::new("ReduceMean", &[&value, "plane"], &["mean"]).int("keepdims", 0))
        .node(Node::new("ReduceL2", &["mean", "values"], &["length"]).int("keepdims", 1))
        .node(Node::new("Div", &["mean", "length"], &["embedding"]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bare::{Bare, tests::env};
    use base::{NamedTensor, Tensor};

    #[test]
    fn different_images_get_different_vectors_of_length_one() {
        let dir = tempfile::tempdir().unwrap();
        write_layout(dir.path()).unwrap();
        let bare = Bare::open(&env(dir.path()), dir.path()).unwrap();
        let image = |seed: u64| {
            let values: Vec<f32> =
                (0..(3 * SIDE * SIDE) as u64).map(|at| signed_unit(seed, at / 97)).collect();
            vec![NamedTensor::new(
                "image",
                Tensor::from_vec([1, 3, SIDE, SIDE].as_slice(), values).unwrap(),
            )]
        };
        let answers = bare.answers(&[image(1), image(2)]).unwrap();
        for answer in &answers {
            assert_eq!(answer.len(), CHANNELS[CHANNELS.len() - 1]);
            assert!((answer.iter().map(|value| value * value).sum::<f32>() - 1.0).abs() < 1e-4);
        }
        assert!(answers[0].iter().zip(&answers[1]).any(|(a, b)| (a - b).abs() > 1e-4));
    }
}
