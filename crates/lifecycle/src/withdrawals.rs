//! Withdrawn versions, in a file, so that a restart does not serve them.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::kept_state::KeptState;
use crate::source::Fingerprint;

/// Withdrawn versions by the key of their model.
pub(crate) struct Withdrawals(KeptState<Vec<WithdrawnVersion>>);

/// A version that a rollout withdrew.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) struct WithdrawnVersion {
    pub(crate) version: u64,
    /// Fingerprint of its files, as text.
    pub(crate) files: String,
    pub(crate) reason: String,
}

impl Withdrawals {
    pub(crate) fn open(file: Option<PathBuf>) -> Withdrawals {
        Withdrawals(KeptState::open(file))
    }

    /// Copies the state that an earlier program kept for the directory of the model to its key.
    pub(crate) fn adopt(&mut self, key: &Path) {
        self.0.adopt(key);
    }

    /// Returns why a version with these files was withdrawn, if it was.
    pub(crate) fn reason(&self, key: &Path, version: u64, files: Fingerprint) -> Option<String> {
        let known = self.find(key, version)?;
        (known.files == files.to_string()).then(|| known.reason.clone())
    }

    /// Returns the entry of a version, whose files may have changed.
    pub(crate) fn find(&self, key: &Path, version: u64) -> Option<&WithdrawnVersion> {
        self.0.get(key)?.iter().find(|known| known.version == version)
    }

    /// Replaces the withdrawn versions of a model.
    pub(crate) fn replace(&mut self, key: &Path, withdrawn: Vec<WithdrawnVersion>) {
        self.0.replace(key, (!withdrawn.is_empty()).then_some(withdrawn));
    }
}
