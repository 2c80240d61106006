//! A ranking model that is small enough for thousands of requests a second and larger than the L2
//! cache: the click-through model with wider layers. One row reads all 17 MB of its layers for two
//! operations a weight; a batch reads them once for all its rows.

use std::path::PathBuf;

use base::{NamedTensor, Result};

use demo::ctr::{Ctr, CtrContent};
use loadgen::BenchEnv;
use loadgen::cache;

const MODEL_SEED: u64 = 31;
const REQUEST_SEED: u64 = 32;

/// Publishes the model into the cache if it is not there, and returns its path.
///
/// # Errors
/// Returns an error if the disk is too small or cannot be written.
pub(crate) fn publish(env: &BenchEnv) -> Result<PathBuf> {
    let ctr = Ctr::ranking();
    let key = format!("{}-s{MODEL_SEED}", ctr.key());
    cache::ensure(&env.cache_dir, &key, ctr.bytes(), |dir| {
        ctr.write_layout(CtrContent::of(MODEL_SEED), dir, &|_| {})
    })
}

/// Returns `count` different requests of `rows` items each.
pub(crate) fn requests(count: u64, rows: usize) -> Result<Vec<Vec<NamedTensor>>> {
    let ctr = Ctr::ranking();
    (0..count).map(|index| ctr.inputs(REQUEST_SEED, index, rows).tensors()).collect()
}
