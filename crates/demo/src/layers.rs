//! Fully connected layers: parameters from a seed, ONNX nodes, and the reference for answers.

use base::{DType, Result};
use engine_onnx::publish::LayoutWriter;
use engine_onnx::publish::build::{ModelBuilder, Node, OnnxParameter};

use loadgen::random::signed_unit;

/// Tolerance between an answer of the engine and the reference: sums in another order, not another
/// model.
pub const TOLERANCE: f32 = 1e-4;
/// First random stream of biases; streams of layers' weights are below.
const BIAS_STREAM: u64 = 1 << 16;

/// A chain of `Gemm` layers with `Relu` between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layers {
    /// Sizes of the input, of each layer's output in between, and of the output.
    pub widths: Vec<usize>,
    /// True if the last layer ends in `Sigmoid`.
    pub sigmoid: bool,
}

impl Layers {
    fn pairs(&self) -> impl Iterator<Item = (usize, usize, usize)> + '_ {
        self.widths.windows(2).enumerate().map(|(layer, pair)| (layer, pair[0], pair[1]))
    }

    /// Returns the number of bytes of all weights and biases.
    pub fn bytes(&self) -> u64 {
        self.pairs().map(|(_, rows, columns)| 4 * (rows * columns + columns) as u64).sum()
    }

    /// Returns the parameters in file order: w0, b0, w1, b1, ...
    pub(crate) fn parameters(&self) -> Vec<OnnxParameter> {
        self.pairs()
            .flat_map(|(layer, rows, columns)| {
                [
                    OnnxParameter::new(format!("w{layer}"), DType::F32, [rows, columns]),
                    OnnxParameter::new(format!("b{layer}"), DType::F32, [columns]),
                ]
            })
            .collect()
    }

    /// Returns the values of parameter `index` in file order, scaled so that activations keep their
    /// size from layer to layer.
    pub fn values(&self, seed: u64, index: usize) -> Vec<f32> {
        let layer = index / 2;
        let rows = self.widths[index / 2];
        let columns = self.widths[index / 2 + 1];
        if index % 2 == 1 {
            return stream(seed, BIAS_STREAM + layer as u64, columns, 0.1);
        }
        stream(seed, layer as u64, rows * columns, (6.0 / rows as f32).sqrt())
    }

    /// Adds the nodes. `input` is the name of the first value, `output` of the last.
    pub fn nodes(&self, mut builder: ModelBuilder, input: &str, output: &str) -> ModelBuilder {
        let last = self.widths.len() - 2;
        let mut value = input.to_owned();
        for layer in 0..=last {
            let sum = format!("sum{layer}");
            let next = format!("layer{layer}");
            let weights = format!("w{layer}");
            let bias = format!("b{layer}");
            let (activation, next) = match (layer == last, self.sigmoid) {
                (false, _) => (Some("Relu"), next),
                (true, true) => (Some("Sigmoid"), output.to_owned()),
                (true, false) => (None, output.to_owned()),
            };
            let sum = if activation.is_none() { next.clone() } else { sum };
            builder = builder.node(Node::new("Gemm", &[&value, &weights, &bias], &[&sum]));
            if let Some(activation) = activation {
                builder = builder.node(Node::new(activation, &[&sum], &[&next]));
            }
            value = next;
        }
        builder
    }

    /// Writes all parameters and names them in the graph.
    pub fn write(
        &self,
        seed: u64,
        writer: &mut LayoutWriter,
        mut builder: ModelBuilder,
    ) -> Result<ModelBuilder> {
        for (index, parameter) in self.parameters().iter().enumerate() {
            let values = self.values(seed, index);
            let bytes = values.iter().map(|value| value.to_le_bytes());
            let entry = writer.tensor(&parameter.name, parameter.dtype, &parameter.dims, bytes)?;
            builder = builder.external(parameter, engine::layout::WEIGHTS_NAME, entry.offset)?;
        }
        Ok(builder)
    }

    /// Returns the reference output for one row of input.
    pub fn reference(&self, parameters: &[Vec<f32>], input: &[f32]) -> Vec<f32> {
        let last = self.widths.len() - 2;
        let mut value = input.to_vec();
        for (layer, _, columns) in self.pairs() {
            let mut sum = parameters[2 * layer + 1].clone();
            for (x, row) in value.iter().zip(parameters[2 * layer].chunks_exact(columns)) {
                sum.iter_mut().zip(row).for_each(|(s, w)| *s += x * w);
            }
            if layer < last {
                sum.iter_mut().for_each(|s| *s = s.max(0.0));
            } else if self.sigmoid {
                sum.iter_mut().for_each(|s| *s = 1.0 / (1.0 + (-*s).exp()));
            }
            value = sum;
        }
        value
    }
}

/// Returns `count` values of stream `stream` of `seed`, uniform within plus or minus `scale`.
fn stream(seed: u64, stream: u64, count: usize, scale: f32) -> Vec<f32> {
    let seed = loadgen::random::at(seed, stream);
    (0..count as u64).map(|index| signed_unit(seed, index) * scale).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_is_a_matrix_product() {
        let layers = Layers { widths: vec![2, 2, 1], sigmoid: false };
        let parameters = [vec![1.0, 2.0, 3.0, -4.0], vec![0.5, 0.0], vec![2.0, 1.0], vec![-1.0]];
        // [1, 1] * w0 + b0 = [4.5, -2] -> relu [4.5, 0] -> 9 - 1
        assert_eq!(layers.reference(&parameters, &[1.0, 1.0]), [8.0]);
        assert_eq!(layers.bytes(), 4 * (4 + 2 + 2 + 1));
    }

    #[test]
    fn seeds_differ_and_activations_keep_their_size() {
        let layers = Layers { widths: vec![64, 64, 64, 1], sigmoid: true };
        let parameters = |seed| (0..6).map(|index| layers.values(seed, index)).collect::<Vec<_>>();
        let input: Vec<f32> = (0..64).map(|index| signed_unit(5, index)).collect();
        let (one, two) = (
            layers.reference(&parameters(1), &input)[0],
            layers.reference(&parameters(2), &input)[0],
        );
        assert!((one - two).abs() > 100.0 * TOLERANCE, "{one} {two}");
        assert!((0.02..0.98).contains(&one), "{one}");
    }
}
