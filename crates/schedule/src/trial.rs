//! Test support: a model that returns its input, and requests to it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use base::{DType, Dim, NamedTensor, Result, Signature, Tensor, TensorSpec, VersionId};
use engine::{ScheduleMode, ScheduleOptions, Servable, Session};

use crate::Job;
use crate::entry::Entry;

/// Longer than any test takes.
const DEADLINE: Duration = Duration::from_secs(600);

struct Echo {
    signature: Signature,
    metadata: BTreeMap<String, String>,
    /// True to return one item for all items of the input.
    mixes: bool,
}

impl Session for Echo {
    fn signature(&self) -> &Signature {
        &self.signature
    }
    fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }
    fn run(&self, inputs: &[NamedTensor], _: &[Arc<str>]) -> Result<Vec<NamedTensor>> {
        if self.mixes {
            let x = Tensor::from_vec([1usize, 3].as_slice(), vec![1f32; 3])?;
            return Ok(vec![NamedTensor::new("x", x)]);
        }
        Ok(inputs.to_vec())
    }
}

/// Builds a model whose input `x` of floats is its output.
pub(crate) fn model(name: &str, options: ScheduleOptions) -> Arc<Servable> {
    model_of(name, options, DType::F32)
}

/// Builds a model whose input `x` of this type is its output.
pub(crate) fn model_of(name: &str, options: ScheduleOptions, dtype: DType) -> Arc<Servable> {
    build(name, options, dtype, false)
}

/// Builds a model that makes one item of all items of its input `x`.
pub(crate) fn mixing_model(name: &str, options: ScheduleOptions) -> Arc<Servable> {
    build(name, options, DType::F32, true)
}

fn build(name: &str, options: ScheduleOptions, dtype: DType, mixes: bool) -> Arc<Servable> {
    let shape = Some(vec![Dim::Dynamic(None); 2]);
    let x = TensorSpec { name: "x".into(), dtype, shape, optional: false };
    let signature = Signature { inputs: vec![x.clone()], outputs: vec![x] };
    let session = Box::new(Echo { signature, metadata: BTreeMap::new(), mixes });
    let id = VersionId { model: name.into(), version: 1 };
    Arc::new(Servable::new(id, "test", session, options).unwrap())
}

/// Returns settings that merge, with this delay.
pub(crate) fn lingering(max_queue_delay: Duration) -> ScheduleOptions {
    ScheduleOptions {
        mode: ScheduleMode::Async,
        max_batch: 8,
        max_queue_delay,
        ..ScheduleOptions::default()
    }
}

/// Builds a request of `rows` rows submitted at `now`, whose answer is dropped.
pub(crate) fn request(servable: &Arc<Servable>, rows: usize, now: Instant) -> Vec<Entry> {
    let x = Tensor::from_vec([rows, 3].as_slice(), vec![1f32; rows * 3]).unwrap();
    let job = Job {
        servable: servable.clone(),
        inputs: vec![NamedTensor::new("x", x)],
        outputs: vec![],
        priority: 0,
        deadline: now + DEADLINE,
        cancelled: Arc::new(AtomicBool::new(false)),
        done: Box::new(|_| {}),
    };
    Entry::from_job(job, now).unwrap()
}
