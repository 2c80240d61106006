//! TensorFlow Serving's flags, in its own style: `--flag=value`, `--flag value`, `--noflag`.

use std::collections::BTreeMap;
use std::str::FromStr;

use base::nearest;

use crate::ImportError;

/// Kind of a flag's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FlagType {
    Bool,
    /// 32 bits.
    Int,
    /// 64 bits.
    Long,
    Float,
    Text,
}

struct Flag {
    name: &'static str,
    value: FlagType,
    /// Effect in this server, for the help.
    help: &'static str,
    /// Reason why it has no effect.
    ignored: Option<&'static str>,
}

const fn flag(name: &'static str, value: FlagType, help: &'static str) -> Flag {
    Flag { name, value, help, ignored: None }
}

const fn ignored(name: &'static str, value: FlagType, reason: &'static str) -> Flag {
    Flag { name, value, help: "no effect", ignored: Some(reason) }
}

use FlagType::{Bool, Float, Int, Long, Text};

/// All flags of TensorFlow Serving 2.20, in its order.
const FLAGS: &[Flag] = &[
    flag("port", Int, "gRPC port; 0 offers none [default: 8500]"),
    flag("grpc_socket_path", Text, "Unix socket for gRPC"),
    flag("rest_api_port", Int, "port of the REST API; 0 offers none [default: 0]"),
    ignored(
        "rest_api_num_threads",
        Int,
        "threads do not wait for models here, so one per core is enough; -- --connection-threads N sets them",
    ),
    flag("rest_api_timeout_in_ms", Int, "deadline of REST requests [default: 30000]"),
    flag("rest_api_enable_cors_support", Bool, "let pages of other sites use the REST API"),
    flag("enable_batching", Bool, "merge requests into batches"),
    flag(
        "allow_version_labels_for_unavailable_models",
        Bool,
        "accept labels of versions that are not loaded",
    ),
    flag("batching_parameters_file", Text, "BatchingParameters as text, with --enable_batching"),
    flag(
        "enable_per_model_batching_parameters",
        Bool,
        "read batching_params.pbtxt in a model's newest version, with --enable_batching",
    ),
    flag("model_config_file", Text, "ModelServerConfig as text: the list of models"),
    flag(
        "model_config_file_poll_wait_seconds",
        Int,
        "time between two reads of that file; 0 reads it at SIGHUP only [default: 0]",
    ),
    flag("model_name", Text, "name of the model [default: default]"),
    flag("model_base_path", Text, "directory of the model's versions"),
    flag("num_load_threads", Int, "load threads; at least 1 [default: 0]"),
    flag("num_unload_threads", Int, "unload threads; at least 1 [default: 0]"),
    flag("max_num_load_retries", Int, "retries of a failed load [default: 5]"),
    flag("load_retry_interval_micros", Long, "time between two retries [default: 60000000]"),
    flag(
        "file_system_poll_wait_seconds",
        Int,
        "time between two searches for versions; 0 searches at the start only [default: 1]",
    ),
    ignored(
        "flush_filesystem_caches",
        Bool,
        "parameters are read without the page cache, so there is nothing to flush",
    ),
    flag("tensorflow_session_parallelism", Long, "threads inside one run and across its operators"),
    flag("tensorflow_session_config_file", Text, "ConfigProto as text, for its threads"),
    flag("tensorflow_intra_op_parallelism", Long, "threads inside one operator [default: 1]"),
    flag("tensorflow_inter_op_parallelism", Long, "operators of a run at a time [default: 1]"),
    flag("use_alts_credentials", Bool, "refused: ALTS is not supported"),
    flag("ssl_config_file", Text, "SSLConfig as text: encrypts gRPC, with PEM texts in its fields"),
    flag(
        "platform_config_file",
        Text,
        "PlatformConfigMap as text, for batching, threads and warm-up of \"tensorflow\"",
    ),
    ignored(
        "per_process_gpu_memory_fraction",
        Float,
        "memory of a GPU is not divided; -- --pool BYTES bounds parameter memory",
    ),
    flag("saved_model_tags", Text, "tags of the graph in a SavedModel [default: serve]"),
    flag(
        "grpc_channel_arguments",
        Text,
        "KEY=VALUE,... of grpc.max_receive_message_length, grpc.max_connection_age_ms",
    ),
    ignored(
        "grpc_max_threads",
        Int,
        "threads do not wait for models here, so one per core is enough; -- --connection-threads N sets them",
    ),
    flag("enable_model_warmup", Bool, "warm versions up before they serve [default: true]"),
    flag("num_request_iterations_for_warmup", Int, "runs of each warm-up request"),
    flag("version", Bool, "print the version"),
    flag("monitoring_config_file", Text, "MonitoringConfig as text: path of the metrics"),
    ignored(
        "remove_unused_fields_from_bundle_metagraph",
        Bool,
        "the graph's description is not kept in memory",
    ),
    ignored("prefer_tflite_model", Bool, "TensorFlow Lite models are not served"),
    ignored("num_tflite_pools", Int, "TensorFlow Lite models are not served"),
    ignored("num_tflite_interpreters_per_pool", Int, "TensorFlow Lite models are not served"),
    flag(
        "enable_signature_method_name_check",
        Bool,
        "refuse Classify and Regress on signatures of other methods",
    ),
    ignored("xla_cpu_compilation_enabled", Bool, "XLA is not used"),
    ignored("xla_gpu_compilation_enabled", Bool, "XLA is not used"),
    ignored("enable_profiler", Bool, "there is no profiler service"),
    ignored(
        "thread_pool_factory_config_file",
        Text,
        "all runs share the inference threads; -- --threads N sets them",
    ),
    ignored("mixed_precision", Text, "models run in the precision of their graph"),
    ignored("skip_initialize_tpu", Bool, "TPUs are not used"),
    ignored("enable_grpc_healthcheck_service", Bool, "grpc.health.v1.Health is always offered"),
    flag(
        "enable_serialization_as_tensor_content",
        Bool,
        "answer Predict over gRPC with tensor_content",
    ),
];

/// The flags of one command line.
#[derive(Debug, Default)]
pub struct Flags {
    values: BTreeMap<&'static str, String>,
    /// Arguments after "--": flags of `millpond serve`.
    pub rest: Vec<String>,
}

impl Flags {
    /// Parses the arguments of the program.
    ///
    /// # Errors
    /// Returns a usage error for an unknown flag and a value of the wrong kind.
    pub fn parse(arguments: &[String]) -> Result<Flags, ImportError> {
        let mut flags = Flags::default();
        let mut arguments = arguments.iter().peekable();
        while let Some(argument) = arguments.next() {
            if argument == "--" {
                flags.rest = arguments.cloned().collect();
                break;
            }
            let Some(text) = argument.strip_prefix("--") else {
                return Err(ImportError::usage(format!("unknown argument: {argument}"))
                    .hint("flags begin with --; flags of `millpond serve` come after --"));
            };
            let (name, value) = match text.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (text, None),
            };
            let (flag, off) = find(name)?;
            let value = match (flag.value, value) {
                (Bool, None) if off => "false".to_owned(),
                (Bool, Some(value)) if !off => boolean(flag, &value)?,
                (Bool, None) => match arguments.peek().map(|next| next.as_str()) {
                    Some(next @ ("true" | "false")) => {
                        arguments.next();
                        next.to_owned()
                    }
                    _ => "true".to_owned(),
                },
                (Bool, Some(_)) => {
                    return Err(ImportError::usage(format!("--no{} takes no value", flag.name)));
                }
                (_, Some(value)) => value,
                (_, None) => arguments.next().cloned().ok_or_else(|| {
                    ImportError::usage(format!("--{} needs a value: --{0}=VALUE", flag.name))
                })?,
            };
            check(flag, &value)?;
            flags.values.insert(flag.name, value);
        }
        Ok(flags)
    }

    /// Returns the text of a flag; `None` if it is not given or empty.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// Returns the number of a flag; `None` if it is not given.
    pub fn int(&self, name: &str) -> Option<i64> {
        self.parsed(name)
    }

    /// Returns the value of a switch; `None` if it is not given.
    pub fn bool(&self, name: &str) -> Option<bool> {
        self.parsed(name)
    }

    fn parsed<T: FromStr>(&self, name: &str) -> Option<T> {
        self.values.get(name)?.parse().ok()
    }

    /// Returns a line for each flag of `names` that is given. The line says that the flag has no
    /// effect, and ends with `reason`.
    pub fn unused(&self, names: &[&str], reason: &str) -> Vec<String> {
        let given = names.iter().filter(|name| self.values.contains_key(**name));
        given.map(|name| format!("--{name} has no effect {reason}")).collect()
    }

    /// Explains the given flags that have no effect, a line for each.
    pub fn without_effect(&self) -> Vec<String> {
        let given = FLAGS.iter().filter(|flag| self.values.contains_key(flag.name));
        given
            .filter_map(|flag| Some(format!("--{} has no effect: {}", flag.name, flag.ignored?)))
            .collect()
    }
}

/// Finds a flag by its name, or by "no" and the name of a switch, which is then off.
fn find(name: &str) -> Result<(&'static Flag, bool), ImportError> {
    let named = |name: &str| FLAGS.iter().find(|flag| flag.name == name);
    let off = || name.strip_prefix("no").and_then(named).filter(|flag| flag.value == Bool);
    if let Some(flag) = named(name) {
        return Ok((flag, false));
    }
    off().map(|flag| (flag, true)).ok_or_else(|| {
        let error = ImportError::usage(format!("unknown argument: --{name}"));
        match nearest(name, FLAGS.iter().map(|flag| flag.name)) {
            Some(near) => error.hint(format!("did you mean --{near}?")),
            None => error.hint(
                "`millpond tfs --help` lists the flags; flags of `millpond serve` come after --",
            ),
        }
    })
}

fn boolean(flag: &Flag, value: &str) -> Result<String, ImportError> {
    match value {
        "true" | "True" | "1" => Ok("true".to_owned()),
        "false" | "False" | "0" => Ok("false".to_owned()),
        _ => Err(ImportError::usage(format!(
            "--{} is \"{value}\"; it must be true or false",
            flag.name
        ))),
    }
}

fn check(flag: &Flag, value: &str) -> Result<(), ImportError> {
    let (right, wanted) = match flag.value {
        Int => (value.parse::<i32>().is_ok(), "a whole number of 32 bits"),
        Long => (value.parse::<i64>().is_ok(), "a whole number"),
        Float => (value.parse::<f64>().is_ok_and(f64::is_finite), "a number"),
        Bool | Text => (true, ""),
    };
    if right {
        Ok(())
    } else {
        Err(ImportError::usage(format!("--{} is \"{value}\"; it must be {wanted}", flag.name)))
    }
}

/// Formats the list of flags for `--help`.
pub fn help() -> String {
    let line = |flag: &Flag| {
        let text =
            flag.ignored.map_or_else(|| flag.help.to_owned(), |why| format!("no effect: {why}"));
        format!("  --{}\n          {text}\n", flag.name)
    };
    FLAGS.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> Result<Flags, String> {
        let arguments: Vec<String> = arguments.iter().map(|text| (*text).to_owned()).collect();
        Flags::parse(&arguments).map_err(|error| error.message)
    }

    #[test]
    fn all_styles_of_flags() {
        let flags = parse(&[
            "--port=1",
            "--port=2",
            "--model_name",
            "m",
            "--enable_batching",
            "--enable_model_warmup=false",
            "--noenable_profiler",
            "--rest_api_enable_cors_support",
            "true",
            "--load_retry_interval_micros=3600000000",
            "--model_base_path=/a=b",
            "--",
            "--pool",
            "1",
        ])
        .unwrap();
        assert_eq!((flags.int("port"), flags.text("model_name")), (Some(2), Some("m")));
        assert_eq!(flags.bool("enable_batching"), Some(true));
        assert_eq!(flags.bool("enable_model_warmup"), Some(false));
        assert_eq!(flags.bool("rest_api_enable_cors_support"), Some(true));
        assert_eq!(flags.int("load_retry_interval_micros"), Some(3_600_000_000), "an hour");
        assert_eq!(flags.text("model_base_path"), Some("/a=b"));
        assert_eq!(flags.rest, ["--pool", "1"]);
        assert_eq!(
            flags.without_effect(),
            ["--enable_profiler has no effect: there is no profiler service"]
        );
    }

    #[test]
    fn mistakes_are_usage_errors() {
        for (arguments, wanted) in [
            (&["--prot=1"][..], "unknown argument: --prot"),
            (
                &["--port=3600000000"],
                "--port is \"3600000000\"; it must be a whole number of 32 bits",
            ),
            (&["--port=x"], "--port is \"x\"; it must be a whole number"),
            (&["--port"], "--port needs a value: --port=VALUE"),
            (&["--enable_batching=maybe"], "--enable_batching is \"maybe\""),
            (&["--noport"], "unknown argument: --noport"),
            (&["--noenable_batching=1"], "--noenable_batching takes no value"),
            (&["models"], "unknown argument: models"),
        ] {
            assert_eq!(parse(arguments).unwrap_err().get(..wanted.len()), Some(wanted));
        }
        let own = Flags::parse(&["--host=::".to_owned()]).unwrap_err();
        assert!(own.hint.unwrap().ends_with("flags of `millpond serve` come after --"));
    }
}
