//! Identifiers.

use std::sync::Arc;

/// Version number, the name of a version's directory. It fits an `int64`, as in TensorFlow Serving.
pub type VersionNumber = u64;

/// One version of one model. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VersionId {
    /// Name of the model.
    pub model: Arc<str>,
    /// Number of the version.
    pub version: VersionNumber,
}

impl std::fmt::Display for VersionId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.model, self.version)
    }
}
