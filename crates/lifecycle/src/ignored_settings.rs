//! Settings of other servers beside a model's versions, which the server does not read.

use std::collections::BTreeSet;
use std::io::Read;
use std::path::Path;

use parking_lot::Mutex;

use crate::message::LoadJob;
use crate::model_file::MODEL_FILE;

/// Triton's settings of a model, in the directory above its versions.
const TRITON_FILE: &str = "config.pbtxt";
/// Maximum bytes read of that file.
const TRITON_FILE_BYTES_MAX: u64 = 1 << 20;
/// Maximum number of warnings that are remembered.
const WARNINGS_MAX: usize = 100_000;

/// Warnings about ignored settings, each given once.
#[derive(Default)]
pub(crate) struct IgnoredSettings {
    warned: Mutex<BTreeSet<String>>,
}

impl IgnoredSettings {
    /// Returns a note about Triton's settings of a model, unless the model has settings here. Logs
    /// each setting that matters.
    pub(crate) fn of(&self, job: &LoadJob) -> Option<String> {
        let dir = job.dir.parent()?;
        if job.has_section || dir.join(MODEL_FILE).exists() {
            return None;
        }
        let settings = engine::foreign::triton_settings(&text(&dir.join(TRITON_FILE))?);
        let root = dir.parent().unwrap_or(dir).display();
        for setting in &settings {
            let warning = format!(
                "{}: {} = {} in {TRITON_FILE} has no effect; equivalent: {}. `millpond import triton {root}` \
                 converts the file",
                job.id.model, setting.key, setting.value, setting.equivalent
            );
            let mut warned = self.warned.lock();
            if warned.len() < WARNINGS_MAX && warned.insert(warning.clone()) {
                tracing::warn!("{warning}");
            }
        }
        let keys: BTreeSet<&str> = settings.iter().map(|setting| setting.key).collect();
        let keys = keys.into_iter().collect::<Vec<_>>().join(", ");
        let note = format!(
            "{TRITON_FILE} is not read ({keys}); `millpond import triton {root}` converts it"
        );
        (!settings.is_empty()).then_some(note)
    }
}

/// Reads the start of a file, or returns `None` if it is not a regular file or cannot be read.
fn text(path: &Path) -> Option<String> {
    os::check_regular_file(&std::fs::metadata(path).ok()?).ok()?;
    let mut bytes = Vec::new();
    std::fs::File::open(path).ok()?.take(TRITON_FILE_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}
