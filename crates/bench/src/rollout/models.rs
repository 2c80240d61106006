//! Versions of one model: the old one, and new ones that are slower, fail or answer differently.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use base::{DType, Dim, Error, NamedTensor, Result, Tensor};
use engine_onnx::publish::build::{ModelBuilder, Node};
use engine_onnx::publish::{WriteOptions, layout_writer};

use crate::bare::Bare;
use demo::layers::Layers;
use loadgen::BenchEnv;
use loadgen::cache;
use loadgen::random::{at, signed_unit};

const WIDTH: usize = 128;
const HIDDEN: usize = 1024;
const OUTPUTS: usize = 64;
const OPSET: i64 = 18;
const SEED: u64 = 71;
/// Seed of the parameters of the version that drifts.
const OTHER_SEED: u64 = 72;
/// Number of requests. One of them makes the failing version fail.
pub(super) const REQUESTS: u64 = 100;
/// First input of the request that makes the failing version fail.
const POISON: f32 = 5.0;
/// Layers added to the model to measure the time of one layer.
const PROBE_LAYERS: usize = 32;
/// Maximum number of layers that make a version slow.
const LAYERS_MAX: usize = 20_000;
/// Number of runs of a measurement.
const PROBES: usize = 20;

/// A version of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VersionKind {
    Stable,
    /// The same answers after this many more layers.
    Slow(usize),
    /// The same answers, except to one of [`REQUESTS`], which fails.
    Failing,
    /// Other parameters, so its answers differ.
    Drifting,
}

impl VersionKind {
    fn key(self) -> String {
        match self {
            VersionKind::Stable => "rollout-stable".into(),
            VersionKind::Slow(layers) => format!("rollout-slow-{layers}"),
            VersionKind::Failing => "rollout-failing".into(),
            VersionKind::Drifting => "rollout-drifting".into(),
        }
    }

    /// Publishes the version into the cache if it is not there, and returns its path.
    pub(super) fn publish(self, env: &BenchEnv) -> Result<PathBuf> {
        let layers = Layers { widths: vec![WIDTH, HIDDEN, HIDDEN, OUTPUTS], sigmoid: false };
        cache::ensure(&env.cache_dir, &self.key(), layers.bytes(), |dir| {
            let mut writer = layout_writer(dir, WriteOptions::default())?;
            let rows = || Dim::Dynamic(Some("rows".into()));
            let builder = ModelBuilder::new("rollout", OPSET)
                .input("x", DType::F32, &[rows(), Dim::Fixed(WIDTH)])
                .output("y", DType::F32, &[rows(), Dim::Fixed(OUTPUTS)]);
            let builder = self.end(layers.nodes(builder, "x", "core"));
            let seed = if self == VersionKind::Drifting { OTHER_SEED } else { SEED };
            let builder = layers.write(seed, &mut writer, builder)?;
            writer.finish(&builder.encode())?;
            Ok(())
        })
    }

    /// Adds the nodes from the value "core" to the output "y".
    fn end(self, builder: ModelBuilder) -> ModelBuilder {
        match self {
            VersionKind::Stable | VersionKind::Drifting => {
                builder.node(Node::new("Identity", &["core"], &["y"]))
            }
            VersionKind::Slow(layers) => slowed(builder, layers),
            // The row of a table with one row, numbered by the first input.
            VersionKind::Failing => builder
                .ints("first", &[1], &[0])
                .floats("table", &[1], &[0.0])
                .node(Node::new("Gather", &["x", "first"], &["number"]).int("axis", 1))
                .node(Node::new("Cast", &["number"], &["row"]).int("to", 7))
                .node(Node::new("Gather", &["table", "row"], &["nothing"]).int("axis", 0))
                .node(Node::new("Add", &["core", "nothing"], &["y"])),
        }
    }
}

/// Adds layers whose result is multiplied by 0 and added to the answer.
fn slowed(mut builder: ModelBuilder, layers: usize) -> ModelBuilder {
    let mut value = "layer0".to_owned();
    for layer in 0..layers {
        let sum = format!("more{layer}");
        let next = format!("extra{layer}");
        builder = builder.node(Node::new("Gemm", &[&value, "w1", "b1"], &[&sum])).node(Node::new(
            "Relu",
            &[&sum],
            &[&next],
        ));
        value = next;
    }
    builder
        .floats("zeros", &[HIDDEN, 1], &[0.0; HIDDEN])
        .node(Node::new("MatMul", &[&value, "zeros"], &["nothing"]))
        .node(Node::new("Add", &["core", "nothing"], &["y"]))
}

/// Returns the version that takes `extra` longer than [`VersionKind::Stable`] on this machine.
pub(super) fn slower_by(env: &BenchEnv, extra: Duration) -> Result<VersionKind> {
    let plain = run_time(env, VersionKind::Stable)?;
    let probe = run_time(env, VersionKind::Slow(PROBE_LAYERS))?;
    let layer = probe.saturating_sub(plain).as_secs_f64() / PROBE_LAYERS as f64;
    if layer <= 0.0 {
        return Err(Error::internal("more layers take no more time; try again"));
    }
    let layers = (extra.as_secs_f64() / layer).ceil() as usize;
    Ok(VersionKind::Slow(layers.clamp(1, LAYERS_MAX)))
}

/// Returns the shortest time of a run.
fn run_time(env: &BenchEnv, kind: VersionKind) -> Result<Duration> {
    let bare = Bare::open(env, &kind.publish(env)?)?;
    let request = requests()?.split_off(REQUESTS as usize - 1);
    let mut best = Duration::MAX;
    for _ in 0..PROBES {
        let started = Instant::now();
        bare.first_outputs(&request)?;
        best = best.min(started.elapsed());
    }
    Ok(best)
}

/// Returns the requests, of one row each. The first one makes [`VersionKind::Failing`] fail.
pub(super) fn requests() -> Result<Vec<Vec<NamedTensor>>> {
    let request = |index: u64| {
        let stream = at(SEED, index);
        let mut row: Vec<f32> =
            (0..WIDTH as u64).map(|position| signed_unit(stream, position)).collect();
        if index == 0 {
            row[0] = POISON;
        }
        Ok(vec![NamedTensor::new("x", Tensor::from_vec([1, WIDTH].as_slice(), row)?)])
    };
    (0..REQUESTS).map(request).collect()
}
