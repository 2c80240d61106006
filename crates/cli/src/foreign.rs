//! Flags of TensorFlow Serving and Triton, with their equivalents here.

use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::exit::CommandError;

/// Name of the server whose flags `millpond tfs` takes.
const TENSORFLOW_SERVING: &str = "TensorFlow Serving";
/// Its flags, without the dashes.
const TENSORFLOW_SERVING_FLAGS: [(&str, &str); 30] = [
    ("port", "--grpc-port PORT sets the gRPC port"),
    ("rest_api_port", "--http-port PORT sets the HTTP port"),
    ("model_name", "write the model as NAME=DIR: millpond serve NAME=DIR"),
    ("model_base_path", "give the model's directory without a flag: millpond serve NAME=DIR"),
    (
        "model_config_file",
        "--config FILE reads a settings file, whose [models.NAME] sections name the models",
    ),
    (
        "model_config_file_poll_wait_seconds",
        "give a directory of models: it is read again every --poll TIME",
    ),
    (
        "enable_batching",
        "--runtime-threads N merges requests, or mode = \"async\" in [schedule] of a model's millpond.toml",
    ),
    (
        "batching_parameters_file",
        "[schedule] in the --config file or a model's millpond.toml has these settings",
    ),
    (
        "enable_per_model_batching_parameters",
        "[schedule] in a model's millpond.toml has these settings",
    ),
    ("file_system_poll_wait_seconds", "--poll TIME sets how often the model directories are read"),
    ("max_num_load_retries", "--load-retries N sets the tries after a load that failed"),
    ("load_retry_interval_micros", "--load-retry-interval TIME sets the time between tries"),
    ("num_load_threads", "--load-threads N sets the threads that load"),
    ("num_unload_threads", "--unload-threads N sets the threads that release"),
    ("rest_api_num_threads", "--connection-threads N sets the threads of HTTP and gRPC"),
    ("rest_api_timeout_in_ms", "--request-timeout TIME sets the longest time of a request"),
    (
        "rest_api_enable_cors_support",
        "`millpond tfs` has it; or put a proxy that adds the headers before the server",
    ),
    ("grpc_socket_path", "--grpc-socket PATH opens a Unix socket"),
    ("grpc_max_threads", "--connection-threads N sets the threads of HTTP and gRPC"),
    ("ssl_config_file", "the server speaks no TLS; put a proxy that does before it"),
    ("monitoring_config_file", "metrics are always at /metrics on the HTTP port"),
    ("enable_model_warmup", "models are always warmed before they serve"),
    ("num_request_iterations_for_warmup", "[warmup] in a model's millpond.toml sets the warm-up"),
    ("tensorflow_session_parallelism", "--threads N sets the inference threads"),
    (
        "tensorflow_intra_op_parallelism",
        "intra-op-threads in [models.NAME] of the --config file sets them",
    ),
    (
        "tensorflow_inter_op_parallelism",
        "inter-op-threads in [models.NAME] of the --config file sets them",
    ),
    (
        "per_process_gpu_memory_fraction",
        "--pool BYTES bounds parameter memory; there is no setting for a GPU's",
    ),
    (
        "flush_filesystem_caches",
        "weights are read past the page cache unless --no-direct-io is given",
    ),
    (
        "allow_version_labels_for_unavailable_models",
        "labels in [models.NAME] of the --config file may name versions that are not loaded",
    ),
    ("use_tflite_model", "TensorFlow Lite models are not served; convert them to ONNX"),
];

/// Triton's flags, without the dashes.
const TRITON: [(&str, &str); 35] = [
    ("model-repository", "give the directory of models without a flag: millpond serve DIR"),
    ("model-store", "give the directory of models without a flag: millpond serve DIR"),
    (
        "model-control-mode",
        "models are loaded as their directories change and by load and unload requests; there are no modes",
    ),
    ("repository-poll-secs", "--poll TIME sets how often the model directories are read"),
    ("load-model", "write each model as NAME=DIR: millpond serve NAME=DIR"),
    ("model-load-thread-count", "--load-threads N sets the threads that load"),
    ("model-load-retry-count", "--load-retries N sets the tries after a load that failed"),
    ("strict-readiness", "/v2/health/ready is always strict"),
    (
        "strict-model-config",
        "inputs and outputs are always read from the model; millpond.toml beside its versions has the settings",
    ),
    (
        "disable-auto-complete-config",
        "inputs and outputs are always read from the model; millpond.toml beside its versions has the settings",
    ),
    ("model-config-name", "a model's settings are in millpond.toml beside its versions"),
    ("http-address", "--host ADDRESS sets the address of both ports"),
    ("grpc-address", "--host ADDRESS sets the address of both ports"),
    ("metrics-port", "metrics are at /metrics on the HTTP port: --http-port PORT"),
    ("metrics-address", "metrics are at /metrics on the HTTP port: --host ADDRESS"),
    ("allow-http", "HTTP is always on"),
    ("allow-grpc", "gRPC is always on"),
    ("allow-metrics", "metrics are always at /metrics on the HTTP port"),
    ("allow-gpu-metrics", "metrics are always at /metrics on the HTTP port"),
    ("allow-cpu-metrics", "metrics are always at /metrics on the HTTP port"),
    ("http-thread-count", "--connection-threads N sets the threads of HTTP and gRPC"),
    ("grpc-infer-thread-count", "--connection-threads N sets the threads of HTTP and gRPC"),
    ("http-max-input-size", "--max-body BYTES sets the largest request body"),
    ("exit-timeout-secs", "--shutdown-grace TIME sets how long a shutdown waits for requests"),
    (
        "exit-on-error",
        "a model that fails to load does not end the server; /v2/health/ready says so",
    ),
    (
        "backend-directory",
        "--onnxruntime, --libtorch and --tensorflow PATH name the engines' libraries",
    ),
    ("backend-config", "a model's settings are in millpond.toml beside its versions"),
    (
        "pinned-memory-pool-byte-size",
        "--pool BYTES bounds parameter memory; there is no setting for a GPU's",
    ),
    (
        "cuda-memory-pool-byte-size",
        "--pool BYTES bounds parameter memory; there is no setting for a GPU's",
    ),
    ("rate-limit", "--threads N and --queue N bound what runs and what waits"),
    ("cache-config", "answers are not cached"),
    ("trace-config", "requests are not traced; --log debug logs more"),
    ("log-verbose", "--log debug logs more"),
    ("log-info", "--log LEVEL sets the level"),
    ("grpc-use-ssl", "the server speaks no TLS; put a proxy that does before it"),
];

/// Returns a usage error for an unknown flag that belongs to another server, or `None` for any
/// other error.
pub(crate) fn explain(error: &clap::Error) -> Option<CommandError> {
    if error.kind() != ErrorKind::UnknownArgument {
        return None;
    }
    let Some(ContextValue::String(typed)) = error.get(ContextKind::InvalidArg) else { return None };
    let flag = typed.split('=').next().unwrap_or_default();
    let (server, equivalent) = find(flag.trim_start_matches('-'))?;
    let error = CommandError::usage(format!("{flag} is a flag of {server}"));
    Some(match server {
        TENSORFLOW_SERVING => {
            error.hint(format!("{equivalent}; `millpond tfs` takes the flag as it is"))
        }
        _ => error.hint(equivalent),
    })
}

/// Returns the server that has the flag, and the equivalent here. `-` and `_` count as equal, since
/// people mix them up.
fn find(flag: &str) -> Option<(&'static str, &'static str)> {
    let named = |table: &'static [(&str, &'static str)]| {
        let same = |known: &str| known.replace('_', "-") == flag.replace('_', "-");
        table.iter().find(|(known, _)| same(known)).map(|(_, equivalent)| *equivalent)
    };
    let tensorflow =
        named(&TENSORFLOW_SERVING_FLAGS).map(|equivalent| (TENSORFLOW_SERVING, equivalent));
    tensorflow.or_else(|| named(&TRITON).map(|equivalent| ("Triton", equivalent)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::command;

    fn flags() -> Vec<String> {
        let serve = command().find_subcommand("serve").unwrap().clone();
        let long = |argument: &clap::Arg| {
            argument.get_long_and_visible_aliases().unwrap_or_default().join(" ")
        };
        serve
            .get_arguments()
            .map(long)
            .flat_map(|names| names.split(' ').map(str::to_owned).collect::<Vec<_>>())
            .collect()
    }

    #[test]
    fn no_flag_of_ours_is_said_to_be_anothers() {
        for flag in flags() {
            assert_eq!(find(&flag), None, "{flag}");
        }
    }

    #[test]
    fn every_equivalent_is_a_flag_of_ours() {
        let flags = flags();
        for (flag, equivalent) in TENSORFLOW_SERVING_FLAGS.iter().chain(&TRITON) {
            let words =
                equivalent.split([' ', ':', ';', ',']).filter_map(|word| word.strip_prefix("--"));
            for word in words {
                assert!(flags.iter().any(|known| known == word), "{flag}: there is no --{word}");
            }
        }
    }
}
