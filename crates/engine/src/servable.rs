//! A version that can answer: what `lifecycle` publishes and `schedule` runs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use base::{NamedTensor, Result, Signature, VersionId};

use crate::{BatchPlan, ScheduleOptions, Session, SessionOptions};

/// A loaded, warmed version. Held in an `Arc` by the catalogue and by each request that uses it; dropped only by
/// the unload thread, which waits until it is the last holder.
pub struct Servable {
    /// Which version of which model.
    pub id: VersionId,
    /// The engine's name.
    pub engine: &'static str,
    /// Bytes of parameters in regions of ours.
    pub parameter_bytes: u64,
    /// When it became ready.
    pub ready_at: SystemTime,
    /// Threads inside one run.
    pub threads_per_run: usize,
    session: Box<dyn Session>,
    signature: Signature,
    schedule: ScheduleOptions,
    plan: BatchPlan,
}

impl Servable {
    /// Joins an identity, a session and the settings of its model.
    ///
    /// # Errors
    /// Those of [`BatchPlan::new`].
    pub fn new(
        id: VersionId,
        engine: &'static str,
        parameter_bytes: u64,
        session: Box<dyn Session>,
        (schedule, threads): (ScheduleOptions, &SessionOptions),
    ) -> Result<Servable> {
        let mut signature = session.signature().clone();
        let plan = BatchPlan::new(&signature, &schedule)?;
        for (spec, input) in signature.inputs.iter_mut().zip(&plan.inputs) {
            spec.optional |= input.fill.is_some();
        }
        Ok(Servable {
            id,
            engine,
            parameter_bytes,
            ready_at: SystemTime::now(),
            threads_per_run: threads.intra_op_threads.max(1),
            session,
            signature,
            schedule,
            plan,
        })
    }

    /// What it takes and gives; inputs that the server fills are optional.
    pub fn signature(&self) -> &Signature {
        &self.signature
    }

    /// How its requests are queued, merged and run.
    pub fn schedule(&self) -> &ScheduleOptions {
        &self.schedule
    }

    /// What merging means for it.
    pub fn plan(&self) -> &BatchPlan {
        &self.plan
    }

    /// Free-form facts that the model carries.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        self.session.metadata()
    }

    /// Runs once on the calling thread; see [`Session::run`].
    ///
    /// # Errors
    /// Those of [`Session::run`].
    pub fn run(&self, inputs: &[NamedTensor], outputs: &[Arc<str>]) -> Result<Vec<NamedTensor>> {
        self.session.run(inputs, outputs)
    }
}

impl std::fmt::Debug for Servable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Servable({})", self.id)
    }
}
