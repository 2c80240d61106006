//! Flags of other servers, with their equivalents here, as data.

/// A flag without dashes, and its equivalent.
pub type ForeignFlag = (&'static str, &'static str);

/// Name of the server whose flags `millpond tfs` takes.
pub const TENSORFLOW_SERVING: &str = "TensorFlow Serving";
/// Servers and their flags.
pub const SERVERS: [(&str, &[ForeignFlag]); 4] = [
    (TENSORFLOW_SERVING, TENSORFLOW_SERVING_FLAGS),
    ("Triton", TRITON),
    ("Paddle Serving", PADDLE_SERVING),
    ("OpenVINO Model Server", OPENVINO),
];

/// Returns the servers that have the flag, each with the equivalent here. `-` and `_` count as
/// equal, since people mix them up.
pub fn find(flag: &str) -> Vec<(&'static str, &'static str)> {
    let same = |known: &str| known.replace('_', "-") == flag.replace('_', "-");
    let of = |(server, flags): (&'static str, &'static [ForeignFlag])| {
        let (_, equivalent) = flags.iter().find(|(known, _)| same(known))?;
        Some((server, *equivalent))
    };
    SERVERS.into_iter().filter_map(of).collect()
}

/// Flags of TensorFlow Serving. `millpond tfs` takes them as they are.
const TENSORFLOW_SERVING_FLAGS: &[ForeignFlag] = &[
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
        "--cors ORIGIN lets the pages of an origin use the HTTP API; '*' admits all pages",
    ),
    ("grpc_socket_path", "--grpc-socket PATH opens a Unix socket"),
    ("grpc_max_threads", "--connection-threads N sets the threads of HTTP and gRPC"),
    ("ssl_config_file", "--tls-cert FILE and --tls-key FILE set PEM files for both ports"),
    ("monitoring_config_file", "metrics are always at /metrics on the HTTP port"),
    (
        "enable_model_warmup",
        "models are warmed before they serve; enabled = false in [warmup] of a model's millpond.toml skips it",
    ),
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
        "weights are read without the page cache unless --no-direct-io is given",
    ),
    (
        "allow_version_labels_for_unavailable_models",
        "labels in [models.NAME] of the --config file may name versions that are not loaded",
    ),
    ("use_tflite_model", "TensorFlow Lite models are not served; convert them to ONNX"),
];

/// Flags of `tritonserver`. Those of the same name and meaning here are left out.
const TRITON: &[ForeignFlag] = &[
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
    ("strict-readiness", "--readiness all|any|server sets the models that must serve"),
    (
        "strict-model-config",
        "inputs and outputs are always read from the model; `millpond import triton DIR` converts the other settings",
    ),
    (
        "disable-auto-complete-config",
        "inputs and outputs are always read from the model; `millpond import triton DIR` converts the other settings",
    ),
    ("model-config-name", "`millpond import triton DIR` converts config.pbtxt"),
    ("http-address", "--host ADDRESS sets the address of both ports"),
    ("grpc-address", "--host ADDRESS sets the address of both ports"),
    ("metrics-port", "--admin-port PORT moves /metrics, admin calls and pages from the HTTP port"),
    (
        "metrics-address",
        "--admin-host ADDRESS sets the address of --admin-port PORT, which has /metrics",
    ),
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
    (
        "backend-config",
        "`millpond import triton DIR` converts the settings of a model in config.pbtxt",
    ),
    (
        "pinned-memory-pool-byte-size",
        "--pool BYTES bounds parameter memory; there is no setting for a GPU's",
    ),
    (
        "cuda-memory-pool-byte-size",
        "--pool BYTES bounds parameter memory; there is no setting for a GPU's",
    ),
    ("rate-limit", "--threads N and --queue N bound the running and the waiting requests"),
    ("cache-config", "answers are not cached"),
    ("trace-config", "--otlp URL --trace-sample PART sends traces to an OpenTelemetry collector"),
    ("log-verbose", "--log debug logs more"),
    ("log-info", "--log LEVEL sets the level"),
    ("grpc-use-ssl", "--tls-cert FILE and --tls-key FILE encrypt both ports"),
    ("id", "the server is named millpond; --host and --http-port tell servers apart"),
    (
        "model-namespacing",
        "names are unique in a server; write NAME=DIR for a model of the same name",
    ),
    (
        "model-load-gpu-limit",
        "a TorchScript uses the GPU that device in its millpond.toml names, without a limit",
    ),
    ("reuse-http-port", "a port belongs to one server; it uses all cores"),
    ("reuse-grpc-port", "a port belongs to one server; it uses all cores"),
    ("http-header-forward-pattern", "headers are not passed to models"),
    ("grpc-header-forward-pattern", "headers are not passed to models"),
    (
        "http-restricted-api",
        "--keys FILE gives each caller a key with a role; load and unload need the role admin",
    ),
    (
        "grpc-restricted-protocol",
        "--keys FILE gives each caller a key with a role; load and unload need the role admin",
    ),
    (
        "grpc-infer-allocation-pool-size",
        "memory of requests is reused without a setting; --request-memory BYTES bounds it",
    ),
    ("grpc-use-ssl-mutual", "--tls-client-ca FILE requires certificates of clients"),
    ("grpc-server-cert", "--tls-cert FILE sets the certificate of both ports"),
    ("grpc-server-key", "--tls-key FILE sets the private key of both ports"),
    ("grpc-root-cert", "--tls-client-ca FILE sets the issuers of client certificates"),
    ("grpc-infer-response-compression-level", "responses are not compressed"),
    ("grpc-keepalive-time", "--client-timeout TIME closes connections that make no progress"),
    ("grpc-keepalive-timeout", "--client-timeout TIME closes connections that make no progress"),
    ("grpc-keepalive-permit-without-calls", "pings of clients are always answered"),
    ("grpc-http2-max-pings-without-data", "pings of clients are always answered"),
    ("grpc-http2-min-recv-ping-interval-without-data", "pings of clients are always answered"),
    ("grpc-http2-max-ping-strikes", "pings of clients are always answered"),
    (
        "grpc-max-connection-age",
        "connections have no age limit; --client-timeout TIME closes idle requests",
    ),
    (
        "grpc-max-connection-age-grace",
        "connections have no age limit; --client-timeout TIME closes idle requests",
    ),
    ("allow-sagemaker", "SageMaker's interface is not offered; /v2 and /v1/models are"),
    ("sagemaker-port", "SageMaker's interface is not offered; /v2 and /v1/models are"),
    ("sagemaker-safe-port-range", "SageMaker's interface is not offered; /v2 and /v1/models are"),
    ("sagemaker-thread-count", "SageMaker's interface is not offered; /v2 and /v1/models are"),
    ("allow-vertex-ai", "Vertex AI's interface is not offered; /v2 and /v1/models are"),
    ("vertex-ai-port", "Vertex AI's interface is not offered; /v2 and /v1/models are"),
    ("vertex-ai-thread-count", "Vertex AI's interface is not offered; /v2 and /v1/models are"),
    ("vertex-ai-default-model", "Vertex AI's interface is not offered; /v2 and /v1/models are"),
    ("metrics-interval-ms", "metrics are current at every scrape"),
    ("metrics-config", "metrics are always at /metrics on the HTTP port"),
    ("trace-file", "--otlp URL sends traces to an OpenTelemetry collector"),
    ("trace-level", "--otlp URL sends traces to an OpenTelemetry collector"),
    ("trace-rate", "--otlp URL --trace-sample PART sends traces to an OpenTelemetry collector"),
    ("trace-count", "--otlp URL --trace-sample PART sends traces to an OpenTelemetry collector"),
    ("trace-log-frequency", "--otlp URL sends traces to an OpenTelemetry collector"),
    ("rate-limit-resource", "--threads N and --queue N bound the running and the waiting requests"),
    ("response-cache-byte-size", "answers are not cached"),
    ("cache-directory", "answers are not cached"),
    (
        "cuda-virtual-address-size",
        "--pool BYTES bounds parameter memory; there is no setting for a GPU's",
    ),
    ("min-supported-compute-capability", "LibTorch decides which GPUs it supports"),
    ("repoagent-directory", "model files are read as they are"),
    ("buffer-manager-thread-count", "--connection-threads N sets the threads of HTTP and gRPC"),
    ("host-policy", "--pin runs each inference thread on a core of its own"),
    ("log-warning", "--log LEVEL sets the level"),
    ("log-error", "--log LEVEL sets the level"),
    ("log-file", "the log goes to standard error: millpond serve DIR 2> FILE"),
];

/// Flags of `python -m paddle_serving_server.serve`.
const PADDLE_SERVING: &[ForeignFlag] = &[
    (
        "model",
        "convert each model with paddle2onnx, give it to `millpond publish`, then millpond serve DIR",
    ),
    (
        "thread",
        "--connection-threads N sets the threads of HTTP and gRPC; --threads N those of inference",
    ),
    (
        "runtime_thread_num",
        "--runtime-threads N merges requests and bounds the runs of a model, as there",
    ),
    (
        "batch_infer_size",
        "max-batch = N in [schedule] of the --config file or of a model's millpond.toml",
    ),
    ("port", "--http-port PORT and --grpc-port PORT set the ports"),
    (
        "gpu_ids",
        "device = \"cuda:N\" in a TorchScript model's millpond.toml names its GPU; other models run on the processor",
    ),
    (
        "device",
        "device = \"cuda:N\" in a TorchScript model's millpond.toml names its GPU; other models run on the processor",
    ),
    ("op", "a model is served alone; clients call several in turn"),
    ("workdir", "--cache-dir DIR holds converted models; nothing else is written"),
    ("use_mkl", "ONNX Runtime has its own kernels; nothing to set"),
    ("precision", "a model runs in the types of its file: quantise or convert the ONNX file"),
    ("use_calib", "a model runs in the types of its file: quantise or convert the ONNX file"),
    ("mem_optim", "ONNX Runtime always reuses memory; nothing to set"),
    ("mem_optim_off", "ONNX Runtime always reuses memory; nothing to set"),
    ("ir_optim", "graphs are always optimised when they are loaded; nothing to set"),
    ("max_body_size", "--max-body BYTES sets the largest request body"),
    ("use_encryption_model", "encrypted models are not read; keep the files on an encrypted disk"),
    ("use_trt", "TensorRT is not used"),
    ("use_lite", "Paddle Lite is not used; models run in ONNX Runtime"),
    ("use_xpu", "models run on the processor, TorchScript on CUDA"),
    ("use_ascend_cl", "models run on the processor, TorchScript on CUDA"),
    (
        "product_name",
        "product names are not checked; --keys FILE gives each caller a key of its own",
    ),
    (
        "container_id",
        "container names are not checked; --keys FILE gives each caller a key of its own",
    ),
    ("gpu_multi_stream", "the runs of a model share its GPU without a setting"),
    ("enable_prometheus", "metrics are always at /metrics on the HTTP port"),
    (
        "prometheus_port",
        "--admin-port PORT moves /metrics, admin calls and pages from the HTTP port",
    ),
];

/// Flags of OpenVINO Model Server (`ovms`) that TensorFlow Serving lacks.
const OPENVINO: &[ForeignFlag] = &[
    (
        "model_path",
        "give the model's directory without a flag: millpond serve NAME=DIR; it holds ONNX, TorchScript or SavedModel",
    ),
    ("rest_port", "--http-port PORT sets the HTTP port"),
    ("rest_bind_address", "--host ADDRESS sets the address of both ports"),
    ("grpc_bind_address", "--host ADDRESS sets the address of both ports"),
    ("rest_workers", "--connection-threads N sets the threads of HTTP and gRPC"),
    ("grpc_workers", "--connection-threads N sets the threads of HTTP and gRPC"),
    (
        "config_path",
        "--config FILE reads a settings file (TOML), whose [models.NAME] sections name the models",
    ),
    ("model_repository_path", "give the directory of models without a flag: millpond serve DIR"),
    (
        "batch_size",
        "the model decides which batch sizes it takes; [schedule] in its millpond.toml merges requests",
    ),
    ("shape", "the model decides which shapes it takes; export it with dynamic axes"),
    ("layout", "send tensors in the model's own layout"),
    ("model_version_policy", "--versions latest:N, all or 3,5 sets the versions"),
    (
        "plugin_config",
        "intra-op-threads in a model's millpond.toml sets its threads; engines have no other options",
    ),
    ("nireq", "--threads N sets the runs in parallel, --queue N the requests that wait"),
    (
        "target_device",
        "models run on the processor; device = \"cuda\" in a TorchScript model's millpond.toml runs it on a GPU",
    ),
    ("stateful", "requests are independent; keep the state in the client and pass it as an input"),
    (
        "idle_sequence_cleanup",
        "requests are independent; keep the state in the client and pass it as an input",
    ),
    (
        "max_sequence_number",
        "requests are independent; keep the state in the client and pass it as an input",
    ),
    (
        "low_latency_transformation",
        "requests are independent; keep the state in the client and pass it as an input",
    ),
    (
        "sequence_cleaner_poll_wait_minutes",
        "requests are independent; keep the state in the client and pass it as an input",
    ),
    (
        "custom_node_resources_cleaner_interval_seconds",
        "models are not chained; clients call several in turn",
    ),
    ("cpu_extension", "custom operators are not loaded"),
    ("metrics_enable", "metrics are always at /metrics on the HTTP port"),
    ("metrics_list", "metrics are always at /metrics on the HTTP port"),
    ("log_level", "--log LEVEL sets the level"),
    ("log_path", "the log goes to standard error: millpond serve DIR 2> FILE"),
    (
        "grpc_channel_arguments",
        "gRPC has no options of its own; --client-timeout TIME and --max-connections N bound connections",
    ),
    ("grpc_max_threads", "--connection-threads N sets the threads of HTTP and gRPC"),
    (
        "allowed_local_media_path",
        "images are sent in requests; they are not read from the server's disk",
    ),
    ("source_model", "download the model, give it to `millpond publish`, then millpond serve DIR"),
];

#[cfg(test)]
mod tests {
    use super::*;

    /// After `--`, `millpond serve` takes flags for directories of models.
    #[test]
    fn no_flag_is_put_after_two_dashes() {
        for (flag, equivalent) in SERVERS.iter().flat_map(|(_, flags)| *flags) {
            assert!(!equivalent.split(' ').any(|word| word == "--"), "{flag}: {equivalent}");
        }
    }

    #[test]
    fn each_flag_is_named_once() {
        for (server, flags) in SERVERS {
            let names: std::collections::BTreeSet<_> = flags.iter().map(|(flag, _)| flag).collect();
            assert_eq!(names.len(), flags.len(), "{server}");
        }
    }

    /// The flag `--` separates flags of `millpond tfs` only.
    #[test]
    fn equivalents_are_flags_of_serve() {
        for (flag, equivalent) in SERVERS.iter().flat_map(|(_, flags)| *flags) {
            assert!(!equivalent.contains("-- "), "{flag}: {equivalent}");
        }
    }
}
