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

/// Returns a note for each member of `bundle` that is set and has no effect, with the reason.
pub(crate) fn without_effect(bundle: &pb::SessionBundleConfig) -> Vec<String> {
    // This pattern names each member, so that a new member cannot be forgotten.
    let pb::SessionBundleConfig {
        session_target,
        session_config: _,
        batching_parameters,
        session_run_load_threadpool_index,
        experimental_transient_ram_bytes_during_load,
        saved_model_tags: _,
        enable_model_warmup: _,
        model_warmup_options: _,
        enable_session_metadata,
        remove_unused_fields_from_bundle_metagraph,
        prefer_tflite_model,
        num_tflite_interpreters_per_pool,
        num_tflite_pools,
        wrap_session_with_no_threading_params,
        enable_per_model_batching_params,
        enable_saved_model_config,
        mixed_precision,
    } = bundle;
    let mut notes = Vec::new();
    let mut note = |is_set: bool, member: &str, reason: &str| {
        if is_set {
            notes.push(format!("{member} has no effect: {reason}"));
        }
    };
    let tflite = "TensorFlow Lite models are not served";
    note(!session_target.is_empty(), "session_target", "sessions run in this process");
    note(
        session_run_load_threadpool_index.is_some(),
        "session_run_load_threadpool_index",
        "loads have threads of their own",
    );
    note(
        *experimental_transient_ram_bytes_during_load > 0,
        "experimental_transient_ram_bytes_during_load",
        "the memory of a load follows from the model's files",
    );
    note(*enable_session_metadata, "enable_session_metadata", "the log names model and version");
    note(
        *remove_unused_fields_from_bundle_metagraph,
        "remove_unused_fields_from_bundle_metagraph",
        "the graph's description is not kept in memory",
    );
    note(*prefer_tflite_model, "prefer_tflite_model", tflite);
    note(*num_tflite_interpreters_per_pool != 0, "num_tflite_interpreters_per_pool", tflite);
    note(*num_tflite_pools != 0, "num_tflite_pools", tflite);
    note(
        *wrap_session_with_no_threading_params,
        "wrap_session_with_no_threading_params",
        "session_config sets the threads of a run",
    );
    note(
        *enable_per_model_batching_params && batching_parameters.is_none(),
        "enable_per_model_batching_params",
        "batching_parameters is not set, so requests are not merged",
    );
    note(
        *enable_saved_model_config,
        "enable_saved_model_config",
        "saved_model_config.pb is not read; a millpond.toml beside the versions has a model's settings",
    );
    note(!mixed_precision.is_empty(), "mixed_precision", "models run in their graph's precision");
    notes
}

/// Threads of a run that a session's settings request. 0 leaves the choice to the server.
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
            // Sessions always have it.
            allow_soft_placement: false,
            ..config.clone()
        };
        let note =
            "only intra_op_parallelism_threads and inter_op_parallelism_threads have an effect";
        (threads, (rest != ConfigProto::default()).then(|| note.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_without_effect_are_named() {
        let bundle = pb::SessionBundleConfig {
            session_target: "grpc://other:2222".to_owned(),
            num_tflite_pools: 2,
            enable_per_model_batching_params: true,
            ..pb::SessionBundleConfig::default()
        };
        assert_eq!(
            without_effect(&bundle),
            [
                "session_target has no effect: sessions run in this process",
                "num_tflite_pools has no effect: TensorFlow Lite models are not served",
                "enable_per_model_batching_params has no effect: batching_parameters is not set, so requests \
                 are not merged",
            ]
        );
        let used = pb::SessionBundleConfig {
            batching_parameters: Some(pb::BatchingParameters::default()),
            saved_model_tags: vec!["serve".to_owned()],
            enable_model_warmup: true,
            enable_per_model_batching_params: true,
            ..pb::SessionBundleConfig::default()
        };
        assert_eq!(without_effect(&used), [""; 0]);
    }
}
