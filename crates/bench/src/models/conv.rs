//! A small residual network over images of any size that padding cannot change.
//!
//! Beside the image `x` it takes a `mask`, which is 1 inside the image and 0 in the padding. Every
//! layer's result is multiplied by the mask, so beyond an image there are zeros, as beyond any
//! edge. All convolutions pad by one on each side at every size. So position i of a layer with
//! stride 2 covers 2i-1 to 2i+1, and the mask of that layer is every second element. The mean at
//! the end is over real positions only. The network is not trained; the measurement does not depend
//! on the values.

use std::path::{Path, PathBuf};

use base::{DType, Dim, NamedTensor, Result, Tensor};
use engine_onnx::publish::build::{ModelBuilder, Node, OnnxParameter};
use engine_onnx::publish::{WriteOptions, layout_writer};

use loadgen::BenchEnv;
use loadgen::cache;
use loadgen::random::{RandomSequence, at, signed_unit};

/// Input that clients send.
pub(crate) const IMAGE: &str = "x";
/// Input that the server fills.
pub(crate) const MASK: &str = "mask";
/// Output of the model.
const LOGITS: &str = "logits";
/// Number of colours of a pixel.
const COLOURS: usize = 3;
/// Channels of the stages: a quarter of ResNet-18's.
const CHANNELS: [usize; 4] = [16, 32, 64, 128];
/// Number of residual blocks of a stage.
const BLOCKS: usize = 2;
/// Number of values in an answer.
const CLASSES: usize = 100;
/// Smallest side of an image in pixels: 224 minus 50.
const SIDE_MIN: usize = 174;
/// Largest side of an image in pixels: 224 plus 50.
const SIDE_MAX: usize = 274;
/// Version of the operator set.
const OPSET: i64 = 18;
/// Seed of the parameters.
const MODEL_SEED: u64 = 41;
/// Seed of the requests.
const REQUEST_SEED: u64 = 42;
/// Revision of the graph, part of the cache key.
const REVISION: u32 = 1;

/// Publishes the model into the cache if it is not there, and returns its path.
///
/// # Errors
/// Returns an error if the disk cannot be written.
pub(crate) fn publish(env: &BenchEnv) -> Result<PathBuf> {
    let key = format!("conv-r{REVISION}-s{MODEL_SEED}");
    cache::ensure(&env.cache_dir, &key, 0, |dir| write_layout(MODEL_SEED, dir))
}

/// Returns `count` images of random sizes, one a request, without masks.
pub(crate) fn requests(count: u64) -> Result<Vec<Vec<NamedTensor>>> {
    (0..count)
        .map(|index| {
            let mut random = RandomSequence::new(at(REQUEST_SEED, index));
            let mut side = || SIDE_MIN + random.bits() as usize % (SIDE_MAX - SIDE_MIN + 1);
            let (height, width) = (side(), side());
            Ok(vec![image(at(REQUEST_SEED, index), height, width)?])
        })
        .collect()
}

fn image(seed: u64, height: usize, width: usize) -> Result<NamedTensor> {
    let values: Vec<f32> =
        (0..(COLOURS * height * width) as u64).map(|place| signed_unit(seed, place)).collect();
    Ok(NamedTensor::new(IMAGE, Tensor::from_vec([1, COLOURS, height, width].as_slice(), values)?))
}

/// Adds a mask of ones to `request`: the model's input if no server fills the mask.
///
/// # Errors
/// Returns an error if the request's shape is not that of an image.
pub(crate) fn with_mask(request: &[NamedTensor]) -> Result<Vec<NamedTensor>> {
    let mut inputs = request.to_vec();
    for input in request {
        if let [items, _, height, width] = *input.tensor.shape() {
            let ones = vec![1.0f32; items * height * width];
            inputs.push(NamedTensor::new(
                MASK,
                Tensor::from_vec([items, 1, height, width].as_slice(), ones)?,
            ));
        }
    }
    Ok(inputs)
}

#[derive(Clone, Debug)]
struct Layer {
    name: String,
    from: usize,
    to: usize,
    kernel: usize,
    stride: i64,
}

impl Layer {
    fn new(name: impl Into<String>, from: usize, to: usize, kernel: usize, stride: i64) -> Layer {
        Layer { name: name.into(), from, to, kernel, stride }
    }

    fn fan_in(&self) -> usize {
        self.from * self.kernel * self.kernel
    }

    fn weights(&self) -> OnnxParameter {
        OnnxParameter::new(
            format!("{}.w", self.name),
            DType::F32,
            [self.to, self.from, self.kernel, self.kernel],
        )
    }

    /// Returns true if the layer has a bias. Only layers with a mask after them have one, because a
    /// bias is not zero beyond the edge.
    fn biased(&self) -> bool {
        self.kernel == 3
    }
}

/// Residual block: two layers, and one in parallel if the shape changes.
#[derive(Clone, Debug)]
struct ResidualBlock {
    first: Layer,
    second: Layer,
    shortcut: Option<Layer>,
}

fn stem() -> Layer {
    Layer::new("stem", COLOURS, CHANNELS[0], 3, 2)
}

/// Returns the residual blocks of the network, in order.
fn blocks() -> Vec<ResidualBlock> {
    let mut from = CHANNELS[0];
    let mut blocks = Vec::with_capacity(CHANNELS.len() * BLOCKS);
    for (stage, to) in CHANNELS.into_iter().enumerate() {
        for block in 0..BLOCKS {
            let stride = if block == 0 { 2 } else { 1 };
            let name = |part: &str| format!("stage{stage}.block{block}.{part}");
            blocks.push(ResidualBlock {
                first: Layer::new(name("first"), from, to, 3, stride),
                second: Layer::new(name("second"), to, to, 3, 1),
                shortcut: (stride == 2).then(|| Layer::new(name("shortcut"), from, to, 1, stride)),
            });
            from = to;
        }
    }
    blocks
}

fn layers() -> Vec<Layer> {
    let in_block = |block: ResidualBlock| [Some(block.first), Some(block.second), block.shortcut];
    std::iter::once(stem()).chain(blocks().into_iter().flat_map(in_block).flatten()).collect()
}

/// A graph under construction, and the mask that fits its last value.
struct Drawing {
    builder: ModelBuilder,
    mask: String,
}

impl Drawing {
    fn add(&mut self, node: Node) {
        self.builder = self.builder.clone().node(node);
    }

    /// Applies `layer` to `value` and returns the result's name.
    fn convolve(&mut self, layer: &Layer, value: &str) -> String {
        let weights = format!("{}.w", layer.name);
        let bias = format!("{}.b", layer.name);
        let inputs: &[&str] =
            if layer.biased() { &[value, &weights, &bias] } else { &[value, &weights] };
        let pad = (layer.kernel / 2) as i64;
        let node = Node::new("Conv", inputs, &[&layer.name])
            .ints("kernel_shape", &[layer.kernel as i64; 2])
            .ints("strides", &[layer.stride; 2])
            .ints("pads", &[pad; 4]);
        self.add(node);
        layer.name.clone()
    }

    /// Takes every second element of the mask, as stride 2 does with a value.
    fn halve_mask(&mut self, name: &str) {
        let node = Node::new("MaxPool", &[&self.mask], &[name])
            .ints("kernel_shape", &[1, 1])
            .ints("strides", &[2, 2]);
        self.add(node);
        self.mask = name.to_owned();
    }

    /// Applies ReLU and the mask.
    fn activate(&mut self, value: &str) -> String {
        let positive = format!("{value}.relu");
        let masked = format!("{value}.masked");
        self.add(Node::new("Relu", &[value], &[&positive]));
        let mask = self.mask.clone();
        self.add(Node::new("Mul", &[&positive, &mask], &[&masked]));
        masked
    }

    /// Adds a residual block after `value`, and returns the name of its output.
    fn block(&mut self, block: &ResidualBlock, value: &str) -> String {
        let beside = match &block.shortcut {
            Some(shortcut) => self.convolve(shortcut, value),
            None => value.to_owned(),
        };
        let first = self.convolve(&block.first, value);
        if block.first.stride == 2 {
            self.halve_mask(&format!("{}.mask", block.first.name));
        }
        let first = self.activate(&first);
        let second = self.convolve(&block.second, &first);
        let sum = format!("{second}.sum");
        self.add(Node::new("Add", &[&second, &beside], &[&sum]));
        self.activate(&sum)
    }

    /// Appends the mean over real positions and a last layer.
    fn classify(&mut self, value: &str) {
        let mask = self.mask.clone();
        self.add(Node::new("ReduceSum", &[value, "plane"], &["total"]).int("keepdims", 0));
        self.add(Node::new("ReduceSum", &[&mask, "plane"], &["area"]).int("keepdims", 0));
        self.add(Node::new("Div", &["total", "area"], &["mean"]));
        self.add(Node::new("Gemm", &["mean", "classes.w", "classes.b"], &[LOGITS]));
    }
}

/// Returns the graph without its convolutions' weights.
fn graph(seed: u64) -> ModelBuilder {
    let free = |symbol: &str| Dim::Dynamic(Some(symbol.into()));
    let plane = |channels| [free("batch"), Dim::Fixed(channels), free("height"), free("width")];
    let features = CHANNELS[CHANNELS.len() - 1];
    let mut builder = ModelBuilder::new("conv", OPSET)
        .input(IMAGE, DType::F32, &plane(COLOURS))
        .input(MASK, DType::F32, &plane(1))
        .output(LOGITS, DType::F32, &[free("batch"), Dim::Fixed(CLASSES)])
        .ints("plane", &[2], &[2, 3])
        .floats(
            "classes.w",
            &[features, CLASSES],
            &uniform(seed, "classes.w", features * CLASSES, 0.3),
        )
        .floats("classes.b", &[CLASSES], &uniform(seed, "classes.b", CLASSES, 0.1));
    for layer in layers().iter().filter(|layer| layer.biased()) {
        let name = format!("{}.b", layer.name);
        builder = builder.floats(&name, &[layer.to], &uniform(seed, &name, layer.to, 0.1));
    }
    let mut drawing = Drawing { builder, mask: MASK.into() };
    drawing.add(Node::new("Mul", &[IMAGE, MASK], &["seen"]));
    let stem = drawing.convolve(&stem(), "seen");
    drawing.halve_mask("stem.mask");
    let mut value = drawing.activate(&stem);
    for block in blocks() {
        value = drawing.block(&block, &value);
    }
    drawing.classify(&value);
    drawing.builder
}

/// Returns `count` values of the stream `name`, uniform within plus or minus `scale`.
fn uniform(seed: u64, name: &str, count: usize, scale: f32) -> Vec<f32> {
    let stream = name.bytes().fold(seed, |hash, byte| at(hash, u64::from(byte)));
    (0..count as u64).map(|index| signed_unit(stream, index) * scale).collect()
}

/// Writes the mappable layout into the empty directory `dir`.
fn write_layout(seed: u64, dir: &Path) -> Result<()> {
    let mut writer = layout_writer(dir, WriteOptions::default())?;
    let mut builder = graph(seed);
    for layer in layers() {
        let parameter = layer.weights();
        let count = layer.to * layer.fan_in();
        // Values keep their size from layer to layer: half of them survive the activation, and two
        // paths are added.
        let scale = (3.0 / layer.fan_in() as f32).sqrt();
        let values = uniform(seed, &parameter.name, count, scale);
        let bytes = values.iter().map(|value| value.to_le_bytes());
        let entry = writer.tensor(&parameter.name, parameter.dtype, &parameter.dims, bytes)?;
        builder = builder.external(&parameter, engine::layout::WEIGHTS_NAME, entry.offset)?;
    }
    writer.finish(&builder.encode())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bare::{Bare, tests::env};

    /// `request` in the corner of a larger image of zeros, with the mask that says so.
    fn padded(request: &[NamedTensor], height: usize, width: usize) -> Vec<NamedTensor> {
        let place = |tensor: &Tensor| {
            let [_, channels, own_height, own_width] = *tensor.shape() else { panic!("no image") };
            let values = tensor.to_vec::<f32>().unwrap();
            let mut larger = vec![0.0; channels * height * width];
            for (row, line) in values.chunks_exact(own_width).enumerate() {
                let start = (row / own_height * height + row % own_height) * width;
                larger[start..start + own_width].copy_from_slice(line);
            }
            Tensor::from_vec([1, channels, height, width].as_slice(), larger).unwrap()
        };
        let larger =
            |input: &NamedTensor| NamedTensor::new(input.name.clone(), place(&input.tensor));
        with_mask(request).unwrap().iter().map(larger).collect()
    }

    #[test]
    fn padding_with_a_mask_changes_no_answer() {
        let dir = tempfile::tempdir().unwrap();
        write_layout(MODEL_SEED, dir.path()).unwrap();
        let bare = Bare::open(&env(dir.path()), dir.path()).unwrap();
        // Odd and even sides test every way of halving.
        for (height, width) in [(33, 50), (64, 47), (40, 41)] {
            let request = [image(7, height, width).unwrap()];
            let alone = with_mask(&request).unwrap();
            let others = [padded(&request, 64, 61), padded(&request, 65, 96)];
            let answers = bare.answers(&[vec![alone], others.to_vec()].concat()).unwrap();
            assert_eq!(answers[0].len(), CLASSES);
            assert!(answers[0].iter().any(|value| value.abs() > 0.1), "the answer says something");
            for padded in &answers[1..] {
                let near = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-4 * a.abs().max(1.0);
                assert!(answers[0].iter().zip(padded).all(near), "{height}x{width}");
            }
        }
        // Without the mask the same padding is another image: the test can fail.
        let request = [image(7, 33, 50).unwrap()];
        let mut unmasked = padded(&request, 64, 61);
        unmasked[1] = with_mask(&unmasked[..1]).unwrap()[1].clone();
        let answers = bare.answers(&[with_mask(&request).unwrap(), unmasked]).unwrap();
        assert!(answers[0].iter().zip(&answers[1]).any(|(a, b)| (a - b).abs() > 1e-2));
    }

    #[test]
    fn images_have_all_sizes_and_their_own_content() {
        let requests = requests(24).unwrap();
        let sides: Vec<usize> =
            requests.iter().flat_map(|request| request[0].tensor.shape()[2..].to_vec()).collect();
        assert!(sides.iter().all(|side| (SIDE_MIN..=SIDE_MAX).contains(side)));
        assert!(sides.iter().min() < Some(&195) && sides.iter().max() > Some(&253), "{sides:?}");
    }
}
