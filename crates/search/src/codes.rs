//! Setting for the place of the codes of coarse indexes.

use serde::{Deserialize, Serialize};

/// Place of the codes of a segment's coarse index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CodesPlace {
    /// In memory if it has room for them, and otherwise on the medium. The place is chosen for each
    /// segment. After a start, codes above 4 MiB a segment are read into memory in the background.
    #[default]
    Auto,
    /// In memory. A segment whose codes do not fit is not opened.
    Dram,
    /// On the medium: queries read the lists that they scan.
    Medium,
}

impl CodesPlace {
    /// Returns its name in settings.
    pub fn name(self) -> &'static str {
        match self {
            CodesPlace::Auto => "auto",
            CodesPlace::Dram => "dram",
            CodesPlace::Medium => "medium",
        }
    }
}
