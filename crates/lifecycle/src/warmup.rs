//! Exercising a version before it takes requests.

use std::path::Path;

use base::{NamedTensor, Result, Signature};

/// Where recorded requests come from.
pub trait WarmupSource: Send + Sync {
    /// The recorded requests of the version in `version_dir`, each a full set of inputs. None: requests are
    /// generated from the signature.
    ///
    /// # Errors
    /// When there are some and they cannot be used; that fails the load.
    fn requests(&self, version_dir: &Path, signature: &Signature) -> Result<Vec<Vec<NamedTensor>>>;
}

/// No recorded requests.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unrecorded;

impl WarmupSource for Unrecorded {
    fn requests(&self, _version_dir: &Path, _signature: &Signature) -> Result<Vec<Vec<NamedTensor>>> {
        Ok(Vec::new())
    }
}
