//! A version that can answer: what `lifecycle` publishes and `schedule` runs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use base::{NamedTensor, Result, Signature, VersionId};

use crate::Session;

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
    session: Box<dyn Session>,
}

impl Servable {
    /// Joins an identity and a session.
    pub fn new(
        id: VersionId,
        engine: &'static str,
        parameter_bytes: u64,
        session: Box<dyn Session>,
    ) -> Servable {
        Servable { id, engine, parameter_bytes, ready_at: SystemTime::now(), session }
    }

    /// What it takes and gives.
    pub fn signature(&self) -> &Signature {
        self.session.signature()
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
