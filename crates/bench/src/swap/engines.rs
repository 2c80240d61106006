//! Engines of the swapped models: one entry a form of files.
//!
//! All engines serve the same click-through model with the same parameters, so the same requests
//! have the same expected answers.

use base::Result;
use clap::ValueEnum;
use demo::contents::{ContentPair, SwapContents};
use demo::ctr::Ctr;
use demo::module;
use loadgen::BenchEnv;

/// Engine of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum EngineName {
    /// ONNX Runtime.
    Onnx,
    /// LibTorch.
    Torch,
}

impl EngineName {
    /// Returns the name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            EngineName::Onnx => "onnx",
            EngineName::Torch => "torch",
        }
    }

    /// Returns both contents in the form that is served from the pool without a conversion.
    pub(crate) fn published(
        self,
        env: &BenchEnv,
        ctr: &Ctr,
        pair: ContentPair,
    ) -> Result<SwapContents> {
        match self {
            EngineName::Onnx => SwapContents::layouts(env, ctr, pair),
            EngineName::Torch => SwapContents::modules(env, ctr, pair),
        }
    }

    /// Returns both contents as the engine's own framework writes them.
    pub(crate) fn plain(
        self,
        env: &BenchEnv,
        ctr: &Ctr,
        pair: ContentPair,
    ) -> Result<SwapContents> {
        match self {
            EngineName::Onnx => SwapContents::embedded(env, ctr, pair),
            EngineName::Torch => SwapContents::modules(env, ctr, pair),
        }
    }

    /// Returns the `millpond.toml` that the model needs, if any.
    pub(crate) fn settings(self) -> Option<String> {
        (self == EngineName::Torch).then(module::settings)
    }

    /// True if versions share equal parameters.
    pub(crate) fn shares(self) -> bool {
        self != EngineName::Torch
    }

    /// Minimum of the heap arm's p999 over the pool's.
    pub(crate) fn heap_over_pool_min(self) -> f64 {
        match self {
            EngineName::Onnx | EngineName::Torch => 10.0,
        }
    }
}
