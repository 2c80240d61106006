//! Engines of the swapped models: one entry a form of files.
//!
//! All engines serve the same click-through model with the same parameters, so the same requests
//! have the same expected answers.

use std::path::Path;

use base::Result;
use clap::ValueEnum;
use demo::contents::{ContentPair, SwapContents};
use demo::ctr::Ctr;
use demo::module;
use loadgen::BenchEnv;

use super::saved_model;

/// Parameters of making a model's files.
pub(crate) struct ContentFiles<'a> {
    pub(crate) env: &'a BenchEnv,
    pub(crate) ctr: Ctr,
    /// Python with TensorFlow, if the usual one is not wanted.
    pub(crate) python: Option<&'a Path>,
}

/// Engine of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum EngineName {
    /// ONNX Runtime.
    Onnx,
    /// LibTorch.
    Torch,
    /// TensorFlow.
    Tensorflow,
}

impl EngineName {
    /// Returns the name in JSON.
    pub(crate) fn name(self) -> &'static str {
        match self {
            EngineName::Onnx => "onnx",
            EngineName::Torch => "torch",
            EngineName::Tensorflow => "tensorflow",
        }
    }

    /// Returns both contents in the form that is served from the pool without a conversion.
    pub(crate) fn published(
        self,
        files: &ContentFiles<'_>,
        pair: ContentPair,
    ) -> Result<SwapContents> {
        let ContentFiles { env, ctr, .. } = files;
        match self {
            EngineName::Onnx => SwapContents::layouts(env, ctr, pair),
            EngineName::Torch => SwapContents::modules(env, ctr, pair),
            EngineName::Tensorflow => saved_model::published(files, pair),
        }
    }

    /// Returns both contents as the engine's own framework writes them.
    pub(crate) fn plain(self, files: &ContentFiles<'_>, pair: ContentPair) -> Result<SwapContents> {
        let ContentFiles { env, ctr, .. } = files;
        match self {
            EngineName::Onnx => SwapContents::embedded(env, ctr, pair),
            EngineName::Torch => SwapContents::modules(env, ctr, pair),
            EngineName::Tensorflow => saved_model::plain(files, pair),
        }
    }

    /// Returns the `millpond.toml` that the model needs, if any.
    pub(crate) fn settings(self) -> Option<String> {
        (self == EngineName::Torch).then(module::settings)
    }

    /// Returns true if versions share equal parameters.
    pub(crate) fn shares(self) -> bool {
        self != EngineName::Torch
    }

    /// Returns true if the loader's thread takes all page faults of a load. TensorFlow restores
    /// variables on threads of its own.
    pub(crate) fn loads_on_one_thread(self) -> bool {
        self != EngineName::Tensorflow
    }

    /// Returns the least ratio of the heap arm's p999 to the pool's p999.
    pub(crate) fn heap_over_pool_min(self) -> f64 {
        match self {
            EngineName::Onnx | EngineName::Torch => 10.0,
            EngineName::Tensorflow => 5.0,
        }
    }
}
