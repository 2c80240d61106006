//! Names of things.

use std::sync::Arc;

/// A version number: the name of a version's directory. TensorFlow Serving's is an `int64`, so ours
/// fits one.
pub type VersionNumber = u64;

/// One version of one model. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VersionId {
    /// The model's name.
    pub model: Arc<str>,
    /// The version's number.
    pub version: VersionNumber,
}

impl std::fmt::Display for VersionId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.model, self.version)
    }
}
