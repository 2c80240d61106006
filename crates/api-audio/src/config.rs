//! Settings.

use std::path::PathBuf;

use base::units::GIB;

/// Audio: limits and directories.
#[derive(Clone, Debug)]
pub struct AudioConfig {
    /// Maximum recordings that are processed at the same time. A further one is refused.
    pub recordings_max: usize,
    /// Largest recording in bytes.
    pub bytes_max: u64,
    /// Largest recording in bytes that goes to a temporary file, as its format or its client
    /// requires.
    pub spool_bytes_max: u64,
    /// Directory of temporary files, which are unnamed; `None` is the system's temporary directory.
    pub spool_dir: Option<PathBuf>,
    /// Directory of the enrolled speakers, with one file per recogniser; `None` disables enrolment.
    pub speakers_dir: Option<PathBuf>,
}

impl Default for AudioConfig {
    fn default() -> Self {
        AudioConfig {
            recordings_max: 4,
            bytes_max: 8 * GIB,
            spool_bytes_max: 2 * GIB,
            spool_dir: None,
            speakers_dir: None,
        }
    }
}
