//! Settings of sessions: `--tensorflow_session_config_file` and `--platform_config_file`.

use std::path::Path;

use base::{Error, Result};
use protocol::Message;
use protocol::tensorflow::ConfigProto;
use protocol::tensorflow::serving as pb;

use crate::text;

/// Name of the platform whose settings are taken.
const PLATFORM: &str = "tensorflow";

/// Reads the settings of the platform "tensorflow".
///
/// # Errors
/// `InvalidArgument` for a file that is wrong or has no such platform.
pub(crate) fn read(path: &Path) -> Result<pb::SessionBundleConfig> {
    let mut map: pb::PlatformConfigMap = text::read(path)?;
    let wrong = |why: &str| Error::invalid(format!("{}: {why}", path.display()));
    let any = map
        .platform_configs
        .remove(PLATFORM)
        .and_then(|config| config.source_adapter_config)
        .ok_or_else(|| wrong("has no source_adapter_config of platform \"tensorflow\""))?;
    if !any.type_url.ends_with("/tensorflow.serving.SavedModelBundleSourceAdapterConfig") {
        return Err(wrong(&format!(
            "{} is not a SavedModelBundleSourceAdapterConfig",
            any.type_url
        )));
    }
    let adapter = pb::SavedModelBundleSourceAdapterConfig::decode(any.value.as_slice())
        .map_err(|error| wrong(&error.to_string()))?;
    Ok(adapter.legacy_config.unwrap_or_default())
}

/// Threads of a run that a session's settings ask for; 0 leaves the choice to the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SessionThreads {
    pub(crate) intra_op: i64,
    pub(crate) inter_op: i64,
}

impl SessionThreads {
    /// Takes the threads from a session's settings. The second value names the other settings.
    pub(crate) fn of(config: &ConfigProto) -> (SessionThreads, Option<String>) {
        let threads = SessionThreads {
            intra_op: config.intra_op_parallelism_threads.into(),
            inter_op: config.inter_op_parallelism_threads.into(),
        };
        let rest = ConfigProto {
            intra_op_parallelism_threads: 0,
            inter_op_parallelism_threads: 0,
            ..config.clone()
        };
        let note =
            "only intra_op_parallelism_threads and inter_op_parallelism_threads have an effect";
        (threads, (rest != ConfigProto::default()).then(|| note.to_owned()))
    }
}
