//! TensorFlow Serving's flags as the server's configuration.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base::Error;
use clap::FromArgMatches as _;
use command_line::exit::{CommandError, CommandResult};
use command_line::values::TimeSpan;
use engine::{ScheduleMode, ScheduleOptions};
use import::text;
use import::tfs::{Flags, ModelListRules, SessionSettings, VersionBatching, log_dir};
use os::WatchedFiles;
use protocol::tensorflow::serving as pb;
use server::{
    Config, ConfigWatch, CorsPolicy, PemSource, RequestLogConfig, Secret, TFS_METRICS, TlsFiles,
};

use super::list::ListSource;
use crate::layout;
use crate::serve::ServeArgs;
use crate::serve::file::SettingsFile;
use crate::serve::log::LogSetup;
use crate::serve::options::LifecycleOptions;
use crate::serve::settings::{ServeSettings, with_flags};

/// TensorFlow Serving listens on every interface.
const HOST: IpAddr = IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED);
/// Default of `--port`.
const GRPC_PORT: i64 = 8500;
/// Default of `--rest_api_timeout_in_ms`.
const REST_TIMEOUT_MS: i64 = 30_000;
/// Default of `--max_num_load_retries`.
const RETRIES: i64 = 5;
/// Default of `--load_retry_interval_micros`.
const RETRY_INTERVAL_US: i64 = 60_000_000;
/// Maximum number of load threads, and of unload threads.
const LOAD_THREADS_MAX: i64 = lifecycle::THREADS_MAX as i64;
/// Longest deadline of a call over gRPC. TensorFlow Serving has none.
const GRPC_TIMEOUT_MAX: Duration = Duration::from_secs(3600);
/// Largest message of gRPC, as in TensorFlow Serving.
const BODY_BYTES_MAX: usize = i32::MAX as usize;
/// Argument of gRPC's channels for the largest message.
const MESSAGE_LENGTH: &str = "grpc.max_receive_message_length";
/// Argument of gRPC's channels for the age of connections.
const CONNECTION_AGE: &str = "grpc.max_connection_age_ms";

/// Everything to start with.
pub(super) struct TfsSetup {
    pub(super) config: Config,
    pub(super) watch: Option<ConfigWatch>,
    pub(super) log: LogSetup,
    /// Flags and settings without effect, a line for each.
    pub(super) warnings: Vec<String>,
}

/// Converts the flags, and reads the files that they name.
///
/// # Errors
/// Returns a usage error that names the flag, or the file with the line.
pub(super) fn resolve(flags: &Flags) -> CommandResult<TfsSetup> {
    let own = own_flags(&flags.rest)?;
    let settings = ServeSettings::join(&own, SettingsFile::default())?;
    let log = settings.log.clone();
    let mut warnings = flags.without_effect();
    warnings.extend(settings.unused_pool_settings());
    warnings.extend(settings.unused_search_settings());
    warnings.extend(settings.unknown_exporter());
    let mut setup = TfsSetup { config: settings.into_config()?, watch: None, log, warnings };
    apply_listeners(flags, &own, &mut setup)?;
    apply_encryption(flags, &mut setup)?;
    apply_load_flags(flags, &own.lifecycle, &mut setup.config)?;
    configure_models(flags, &own, &mut setup)?;
    // A base path that cannot be read is reported by the scan.
    let listed = setup.config.models.models.iter();
    let local = listed.filter(|model| model.store.is_none() && model.base_path.is_dir());
    setup.warnings.extend(local.flat_map(|model| layout::model_advice(&model.base_path)));
    Ok(setup)
}

/// Applies `--ssl_config_file`, which encrypts gRPC only. Its fields hold PEM texts.
///
/// # Errors
/// Returns a usage error for ALTS, which would otherwise be ignored, and for missing fields.
fn apply_encryption(flags: &Flags, setup: &mut TfsSetup) -> CommandResult {
    if flags.bool("use_alts_credentials") == Some(true) {
        return Err(CommandError::usage(
            "--use_alts_credentials: ALTS is not supported, and serving without encryption would expose requests",
        )
        .hint("use --ssl_config_file FILE"));
    }
    let Some(path) = flags.text("ssl_config_file") else { return Ok(()) };
    let ssl: pb::SslConfig = text::read(Path::new(path)).map_err(|error| wrong(&error))?;
    let required = |name: &'static str, text: String| {
        if text.is_empty() {
            Err(CommandError::usage(format!("--ssl_config_file {path}: {name} is missing")).hint(
                "give the PEM text itself, as in server_cert: \"-----BEGIN CERTIFICATE-----...\"",
            ))
        } else {
            Ok(PemSource::Text(name, Secret(text)))
        }
    };
    let listeners = &mut setup.config.listeners;
    if listeners.tls.is_some() {
        return Err(CommandError::usage("--ssl_config_file and --tls-cert exclude each other"));
    }
    listeners.tls = Some(TlsFiles {
        cert: required("server_cert", ssl.server_cert)?,
        key: required("server_key", ssl.server_key)?,
        client_ca: if ssl.client_verify {
            Some(required("custom_ca", ssl.custom_ca)?)
        } else {
            None
        },
    });
    listeners.plain_http = true;
    if listeners.http_port.is_some() {
        setup.warnings.push(
            "--ssl_config_file encrypts gRPC only, as in TensorFlow Serving; for both ports append \
             -- --tls-cert FILE --tls-key FILE in its place"
                .to_owned(),
        );
    }
    Ok(())
}

/// Parses flags of `millpond serve`. Without `--collections-dir`, the server has no collections.
fn own_flags(rest: &[String]) -> CommandResult<ServeArgs> {
    let command = <ServeArgs as clap::Args>::augment_args(clap::Command::new("millpond tfs --"));
    let words = std::iter::once("millpond tfs --").chain(rest.iter().map(String::as_str));
    let parsed = command.try_get_matches_from(words);
    let args = parsed.and_then(|matches| ServeArgs::from_arg_matches(&matches));
    let mut args =
        args.map_err(|error| CommandError::usage(error.to_string().trim_end().to_owned()))?;
    args.search.collections_dir.get_or_insert_with(|| PathBuf::from("none"));
    if !args.sources.is_empty() || args.config.is_some() || !args.audio.recogniser.is_empty() {
        return Err(CommandError::usage(
            "models come from --model_config_file or --model_base_path, not from after --",
        ));
    }
    if args.lifecycle.versions.is_some() {
        return Err(CommandError::usage(
            "--versions has no effect after --: model_version_policy in the file of --model_config_file selects versions",
        ));
    }
    Ok(args)
}

/// Applies the flags of listeners. Flags of `millpond serve` take precedence.
fn apply_listeners(flags: &Flags, own: &ServeArgs, setup: &mut TfsSetup) -> CommandResult {
    let listeners = &mut setup.config.listeners;
    if own.server.host.is_none() {
        listeners.host = HOST;
    }
    listeners.grpc_port = own.server.grpc_port.or(port(flags, "port", GRPC_PORT)?);
    listeners.http_port = own.server.http_port.or(port(flags, "rest_api_port", 0)?);
    if listeners.http_port.is_some_and(|port| port != 0)
        && listeners.http_port == listeners.grpc_port
    {
        setup.warnings.push(
            "--rest_api_port is also --port: the REST API is not offered; choose another port"
                .to_owned(),
        );
        listeners.http_port = None;
    }
    if let Some(path) = flags.text("grpc_socket_path")
        && own.server.grpc_socket.is_none()
    {
        let path = path.strip_prefix("unix:").unwrap_or(path);
        listeners.grpc_socket = Some(PathBuf::from(path));
    }
    if listeners.grpc_port.is_none() && listeners.grpc_socket.is_none() {
        return Err(CommandError::usage(
            "at least one of --port and --grpc_socket_path must be set",
        ));
    }
    let rest_ms = flags.int("rest_api_timeout_in_ms").unwrap_or(REST_TIMEOUT_MS);
    listeners.rest_timeout = (rest_ms > 0).then(|| Duration::from_millis(rest_ms as u64));
    if own.server.request_timeout.is_none() {
        listeners.request_timeout = GRPC_TIMEOUT_MAX;
    }
    if own.server.max_body.is_none() {
        listeners.body_bytes_max = BODY_BYTES_MAX;
    }
    listeners.listen_when_settled = true;
    if flags.bool("rest_api_enable_cors_support") == Some(true) {
        if listeners.cors != CorsPolicy::Closed || listeners.keys.is_some() {
            return Err(CommandError::usage(
                "--rest_api_enable_cors_support admits all pages; without it, -- --cors ORIGIN admits some",
            ));
        }
        listeners.cors = CorsPolicy::Any;
    }
    listeners.tfs_tensor_content |=
        flags.bool("enable_serialization_as_tensor_content").unwrap_or(false);
    listeners.tfs_method_check = flags.bool("enable_signature_method_name_check").unwrap_or(false);
    listeners.tfs_metrics = metrics_path(flags)?;
    if listeners.tfs_metrics.is_some() && listeners.http_port.is_none() {
        setup.warnings.push(
            "--monitoring_config_file has no effect: metrics are on the REST port; give --rest_api_port"
                .to_owned(),
        );
    }
    if listeners.http_port.is_none() && listeners.http_socket.is_none() {
        let rest = ["rest_api_timeout_in_ms", "rest_api_enable_cors_support"];
        setup.warnings.extend(flags.unused(&rest, "without --rest_api_port"));
    }
    apply_channel_arguments(flags, own, setup)
}

/// Returns the port of a flag; `None` for 0, which opens no port.
fn port(flags: &Flags, name: &str, default: i64) -> CommandResult<Option<u16>> {
    let number = flags.int(name).unwrap_or(default);
    match u16::try_from(number) {
        Ok(port) => Ok(Some(port).filter(|port| *port != 0)),
        Err(_) => Err(CommandError::usage(format!("--{name} is {number}; it must be 0 to 65535"))),
    }
}

/// Returns the path of `--monitoring_config_file`; `None` if it does not enable metrics.
fn metrics_path(flags: &Flags) -> CommandResult<Option<String>> {
    let Some(file) = flags.text("monitoring_config_file") else { return Ok(None) };
    let config: pb::MonitoringConfig =
        text::read(Path::new(file)).map_err(|error| wrong(&error))?;
    let prometheus = config.prometheus_config.unwrap_or_default();
    match prometheus.path.as_str() {
        _ if !prometheus.enable => Ok(None),
        "" => Ok(Some(TFS_METRICS.to_owned())),
        path if path.starts_with('/') => Ok(Some(path.to_owned())),
        path => {
            Err(CommandError::usage(format!("{file}: path is \"{path}\"; it must begin with /")))
        }
    }
}

/// Applies the known arguments of gRPC's channels, and warns of the others. `--max-body` takes
/// precedence.
fn apply_channel_arguments(flags: &Flags, own: &ServeArgs, setup: &mut TfsSetup) -> CommandResult {
    for argument in flags.text("grpc_channel_arguments").unwrap_or_default().split(',') {
        if argument.is_empty() {
            continue;
        }
        let Some((key, value)) = argument.split_once('=') else {
            return Err(CommandError::usage(format!(
                "--grpc_channel_arguments: \"{argument}\" is not KEY=VALUE"
            )));
        };
        match (key, value.parse::<i64>()) {
            (MESSAGE_LENGTH, Ok(_)) if own.server.max_body.is_some() => {}
            (MESSAGE_LENGTH, Ok(bytes)) => {
                let bytes = usize::try_from(bytes).unwrap_or(BODY_BYTES_MAX).min(BODY_BYTES_MAX);
                setup.config.listeners.body_bytes_max = bytes.max(1);
            }
            (CONNECTION_AGE, Ok(millis)) => {
                setup.config.listeners.grpc_connection_age = connection_age(millis);
            }
            (MESSAGE_LENGTH | CONNECTION_AGE, Err(_)) => {
                let unit = if key == MESSAGE_LENGTH { "bytes" } else { "milliseconds" };
                return Err(CommandError::usage(format!(
                    "--grpc_channel_arguments: {key} must be a number of {unit}"
                )));
            }
            _ => setup.warnings.push(format!(
                "--grpc_channel_arguments: {key} has no effect; only {MESSAGE_LENGTH} and \
                 {CONNECTION_AGE} have one"
            )),
        }
    }
    Ok(())
}

/// Returns the age of a connection. For gRPC, its largest number and those below 1 mean no limit.
fn connection_age(millis: i64) -> Option<Duration> {
    let is_limit = (1..i64::from(i32::MAX)).contains(&millis);
    is_limit.then(|| Duration::from_millis(millis as u64))
}

/// Applies the flags of loads. Flags of `millpond serve` take precedence.
fn apply_load_flags(flags: &Flags, own: &LifecycleOptions, config: &mut Config) -> CommandResult {
    let models = &mut config.models;
    let threads = |name| match flags.int(name).unwrap_or(0) {
        count @ 0..=LOAD_THREADS_MAX => Ok(count.max(1) as usize),
        count => Err(CommandError::usage(format!(
            "--{name} is {count}; it must be 0 to {LOAD_THREADS_MAX}"
        ))),
    };
    models.load_threads = own.load_threads.unwrap_or(threads("num_load_threads")?);
    models.unload_threads = own.unload_threads.unwrap_or(threads("num_unload_threads")?);
    let retries = flags.int("max_num_load_retries").unwrap_or(RETRIES);
    let retries = u32::try_from(retries).map_err(|_| {
        CommandError::usage(format!("--max_num_load_retries is {retries}; it must be 0 or more"))
    })?;
    models.load_retries = own.load_retries.unwrap_or(retries);
    let interval = flags.int("load_retry_interval_micros").unwrap_or(RETRY_INTERVAL_US);
    let interval = Duration::from_micros(u64::try_from(interval).unwrap_or(0));
    models.load_retry_interval = own.load_retry_interval.map_or(interval, |TimeSpan(time)| time);
    match flags.int("file_system_poll_wait_seconds").unwrap_or(1) {
        seconds @ 0.. => match own.poll {
            Some(TimeSpan(poll)) => models.poll = poll,
            None if seconds == 0 => models.poll_once = true,
            None => models.poll = Duration::from_secs(seconds as u64),
        },
        seconds => {
            return Err(CommandError::usage(format!(
                "--file_system_poll_wait_seconds is {seconds}; it must be 0 or more"
            )));
        }
    }
    Ok(())
}

/// Configures the models and their settings, which both follow their files.
fn configure_models(flags: &Flags, own: &ServeArgs, setup: &mut TfsSetup) -> CommandResult {
    let mut sessions = SessionSettings::read(flags)?;
    let threads = inference_threads(&setup.config);
    let mut template = setup.config.models.lists.template.clone();
    sessions.apply(&mut template, threads, &mut setup.warnings)?;
    template.schedule = own_batches(own, template.schedule)?;
    let per_model = sessions.per_model && own.inference.runtime_threads != Some(0);
    setup.warnings.extend(unused_batch_flags(own, per_model, template.schedule.mode));
    let mut rules = ModelListRules {
        labels_of_missing_versions: flags
            .bool("allow_version_labels_for_unavailable_models")
            .unwrap_or(false),
        template,
        ..setup.config.models.lists.clone()
    };
    let file = flags.text("model_config_file").map(PathBuf::from);
    setup.warnings.extend(if file.is_some() {
        flags.unused(&["model_name", "model_base_path"], "with --model_config_file")
    } else {
        flags.unused(&["model_config_file_poll_wait_seconds"], "without --model_config_file")
    });
    // Before the file is read, so that a change in between is seen.
    let watched = WatchedFiles::new(file.iter().cloned().collect());
    let list = list(flags, file.as_deref())?;
    let mut models = match &list.config {
        Some(_) => rules.models(&list, &[]).map_err(|error| wrong(&error))?,
        None => Vec::new(),
    };
    apply_request_log(&list, setup);
    rules.log_dir = setup.config.data.request_log.as_ref().map(|log| log.dir.clone());
    let version_batching =
        per_model.then_some(VersionBatching { threads, runs: rules.template.schedule.threads });
    let mut noted = Vec::new();
    if let Some(batching) = version_batching {
        let remarks = batching.apply(&mut models, &BTreeMap::new());
        if let Some(mistake) = remarks.mistakes.first() {
            return Err(wrong(mistake));
        }
        noted = remarks.notes;
        setup.warnings.extend(noted.clone());
    }
    let source = ListSource {
        file,
        watched,
        rules: rules.clone(),
        version_batching,
        serving: BTreeMap::new(),
        is_new: false,
        noted,
        reported: Vec::new(),
    };
    let list_poll = flags.int("model_config_file_poll_wait_seconds").unwrap_or(0);
    let list_poll = (list_poll > 0).then(|| Duration::from_secs(list_poll as u64));
    let config = &mut setup.config.models;
    let batching_poll = version_batching.map(|_| config.poll).filter(|_| !config.poll_once);
    let poll = list_poll.into_iter().chain(batching_poll).min();
    config.models = models;
    config.lists = rules;
    setup.watch = Some(ConfigWatch { source: Box::new(source), poll });
    Ok(())
}

/// Returns `schedule`, which the batching parameters give, with the flags of batches after `--`.
///
/// # Errors
/// Returns a usage error if the allowed batch sizes do not permit the value of `--max-batch`.
fn own_batches(own: &ServeArgs, mut schedule: ScheduleOptions) -> CommandResult<ScheduleOptions> {
    if let Some(max) = own.schedule.max_batch {
        // They are the allowed sizes up to the earlier maximum, and not a setting of the user.
        schedule.preferred_batch_sizes.retain(|size| *size <= max);
    }
    with_flags(&schedule, own, own.inference.runtime_threads)
        .map_err(|error| CommandError::usage(format!("--max-batch after --: {}", error.message())))
}

/// Returns a warning if flags of batches after `--` have no effect. With `per_model`, each version
/// has its own batching parameters.
fn unused_batch_flags(own: &ServeArgs, per_model: bool, mode: ScheduleMode) -> Option<String> {
    let flags = &own.schedule;
    if flags.max_batch.is_none() && flags.max_queue_delay.is_none() {
        return None;
    }
    let reason = if per_model {
        "with --enable_per_model_batching_parameters, the file of each version has both"
    } else if mode == ScheduleMode::Async {
        return None;
    } else if own.inference.runtime_threads == Some(0) {
        "--runtime-threads 0 merges no requests"
    } else {
        "give --enable_batching too, which merges requests"
    };
    Some(format!("--max-batch and --max-queue-delay have no effect: {reason}"))
}

/// Logs requests where the first `logging_config` says, unless `--request-log` names a directory.
/// Models without one are not logged then.
fn apply_request_log(list: &pb::ModelServerConfig, setup: &mut TfsSetup) {
    let Some(pb::model_server_config::Config::ModelConfigList(list)) = &list.config else { return };
    for model in list.config.iter() {
        if model.logging_config.is_none() {
            continue;
        }
        let dir = log_dir(model);
        match (&setup.config.data.request_log, dir) {
            (Some(log), Some(dir)) if log.dir != dir => setup.warnings.push(format!(
                "logging_config of model {}: filename_prefix has no effect; the requests of all models are \
                 logged in {}",
                model.name,
                log.dir.display()
            )),
            (None, Some(dir)) => {
                let log = RequestLogConfig { rate: 0.0, ..RequestLogConfig::new(dir) };
                setup.config.data.request_log = Some(log);
            }
            (None, None) => setup.warnings.push(format!(
                "logging_config of model {} has no effect: it has no filename_prefix with a directory; add one, \
                 or append -- --request-log DIR",
                model.name
            )),
            (Some(_), _) => {}
        }
    }
}

/// Returns the list of models: from its file, or of the one model that the flags name.
fn list(flags: &Flags, file: Option<&Path>) -> CommandResult<pb::ModelServerConfig> {
    if let Some(file) = file {
        return text::read(file).map_err(|error| wrong(&error));
    }
    let Some(base_path) = flags.text("model_base_path") else {
        return Err(CommandError::usage(
            "--model_base_path and --model_config_file are both empty",
        )
        .hint(
            "millpond tfs --model_name=NAME --model_base_path=/DIR, or --model_config_file=FILE",
        ));
    };
    let absolute = if base_path.contains("://") {
        base_path.to_owned()
    } else {
        std::path::absolute(base_path)
            .map_err(|error| CommandError::usage(format!("--model_base_path: {error}")))?
            .to_string_lossy()
            .into_owned()
    };
    let model = pb::ModelConfig {
        name: flags.text("model_name").unwrap_or("default").to_owned(),
        base_path: absolute,
        model_platform: "tensorflow".to_owned(),
        ..pb::ModelConfig::default()
    };
    let list = pb::ModelConfigList { config: vec![model] };
    Ok(pb::ModelServerConfig {
        config: Some(pb::model_server_config::Config::ModelConfigList(list)),
    })
}

/// Returns the number of inference threads, which also bounds the threads of a run.
fn inference_threads(config: &Config) -> usize {
    match config.data.workers {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        workers => workers,
    }
}

fn wrong(error: &Error) -> CommandError {
    CommandError::usage(error.message())
}

#[cfg(test)]
mod tests {
    use lifecycle::VersionPolicy;

    use super::*;

    fn setup(arguments: &[&str]) -> TfsSetup {
        let words: Vec<String> = arguments.iter().map(|word| (*word).to_owned()).collect();
        match resolve(&Flags::parse(&words).unwrap()) {
            Ok(setup) => setup,
            Err(error) => panic!("{}", error.message()),
        }
    }

    #[test]
    fn defaults_are_those_of_the_reference() {
        let TfsSetup { config, watch, warnings, .. } = setup(&["--model_base_path=/m"]);
        let listeners = &config.listeners;
        assert_eq!((listeners.grpc_port, listeners.http_port), (Some(8500), None));
        assert_eq!(listeners.host, HOST);
        assert_eq!(listeners.rest_timeout, Some(Duration::from_secs(30)));
        assert_eq!(listeners.body_bytes_max, BODY_BYTES_MAX);
        assert!(listeners.listen_when_settled && listeners.cors == CorsPolicy::Closed);
        assert_eq!(listeners.tfs_metrics, None);
        assert_eq!(config.search.directory, None);
        let models = &config.models;
        assert_eq!((models.load_threads, models.unload_threads, models.load_retries), (1, 1, 5));
        assert_eq!(models.load_retry_interval, Duration::from_secs(60));
        assert_eq!((models.poll, models.poll_once), (Duration::from_secs(1), false));
        let [model] = &models.models[..] else { panic!("one model") };
        assert_eq!((&*model.name, &model.policy), ("default", &VersionPolicy::Latest(1)));
        assert_eq!(model.schedule.mode, ScheduleMode::Sync);
        assert_eq!(watch.unwrap().poll, None, "SIGHUP only");
        assert!(warnings.is_empty(), "{warnings:?}");
    }

    #[test]
    fn a_base_path_without_a_version_is_explained() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("7")).unwrap();
        std::fs::write(dir.path().join("7/saved_model.pb"), "").unwrap();
        let warnings =
            |path: &Path| setup(&[&format!("--model_base_path={}", path.display())]).warnings;
        assert!(warnings(dir.path()).is_empty());
        let wrong = warnings(&dir.path().join("7"));
        assert_eq!(wrong.len(), 1, "{wrong:?}");
        assert!(wrong[0].contains("so it is a version: serve its parent, "), "{wrong:?}");
    }

    #[test]
    fn flags_reach_the_configuration() {
        let TfsSetup { config, warnings, .. } = setup(&[
            "--model_base_path=models/m",
            "--model_name=m",
            "--port=9000",
            "--rest_api_port=9001",
            "--rest_api_timeout_in_ms=0",
            "--grpc_socket_path=/run/tfs.sock",
            "--grpc_channel_arguments=grpc.max_receive_message_length=1000,grpc.so_reuseport=1,\
             grpc.max_connection_age_ms=2000",
            "--enable_batching",
            "--num_load_threads=3",
            "--load_retry_interval_micros=-1",
            "--file_system_poll_wait_seconds=0",
            "--enable_model_warmup=false",
            "--num_request_iterations_for_warmup=7",
            "--tensorflow_session_parallelism=1000",
            "--allow_version_labels_for_unavailable_models",
            "--enable_serialization_as_tensor_content",
            "--",
            "--host",
            "127.0.0.1",
            "--threads",
            "2",
        ]);
        let listeners = &config.listeners;
        assert_eq!((listeners.grpc_port, listeners.http_port), (Some(9000), Some(9001)));
        assert_eq!(listeners.rest_timeout, None);
        assert_eq!(listeners.grpc_socket.as_deref(), Some(Path::new("/run/tfs.sock")));
        assert_eq!(listeners.body_bytes_max, 1000);
        assert_eq!(listeners.grpc_connection_age, Some(Duration::from_secs(2)));
        assert_eq!(connection_age(i32::MAX.into()), None);
        assert!(listeners.host.is_loopback() && listeners.tfs_tensor_content);
        let models = &config.models;
        assert_eq!((models.load_threads, models.poll_once), (3, true));
        assert_eq!(models.load_retry_interval, Duration::ZERO);
        assert!(models.lists.labels_of_missing_versions);
        let model = &models.models[0];
        assert!(&*model.name == "m" && model.base_path.ends_with("models/m"));
        assert!(model.base_path.is_absolute());
        assert_eq!((model.schedule.mode, model.schedule.max_batch), (ScheduleMode::Async, 1000));
        assert_eq!((model.warmup.enabled, model.warmup.iterations), (false, Some(7)));
        assert_eq!(model.session.intra_op_threads, 2, "as many as there are inference threads");
        let [socket, intra, inter] = &warnings[..] else { panic!("{warnings:?}") };
        assert!(socket.contains("grpc.so_reuseport has no effect"), "{socket}");
        assert!(intra.starts_with("1000 intra-op") && inter.starts_with("1000 inter-op"));
    }

    #[test]
    fn flags_of_serve_take_precedence() {
        let words = "--model_base_path=/m --num_load_threads=2 -- --load-threads 4 --unload-threads 3 \
                     --load-retries 7 --load-retry-interval 2s --poll 9s";
        let TfsSetup { config, .. } = setup(&words.split_whitespace().collect::<Vec<_>>());
        let models = &config.models;
        assert_eq!((models.load_threads, models.unload_threads, models.load_retries), (4, 3, 7));
        assert_eq!(models.load_retry_interval, Duration::from_secs(2));
        assert_eq!(models.poll, Duration::from_secs(9));
        let words = "--model_base_path=/m --grpc_socket_path=/theirs --file_system_poll_wait_seconds=0 \
                     --grpc_channel_arguments=grpc.max_receive_message_length=1000 \
                     -- --grpc-socket /own --max-body 5MiB --poll 9s";
        let TfsSetup { config, .. } = setup(&words.split_whitespace().collect::<Vec<_>>());
        assert_eq!(config.listeners.grpc_socket.as_deref(), Some(Path::new("/own")));
        assert_eq!(config.listeners.body_bytes_max, 5 << 20);
        assert_eq!((config.models.poll, config.models.poll_once), (Duration::from_secs(9), false));
        for wrong in ["--versions all", "--recogniser vad", "/models"] {
            let words = format!("--model_base_path=/m -- {wrong}");
            let words: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
            assert!(resolve(&Flags::parse(&words).unwrap()).is_err(), "{wrong}");
        }
    }

    fn refusal(arguments: &str) -> String {
        let words: Vec<String> = arguments.split_whitespace().map(str::to_owned).collect();
        let error = resolve(&Flags::parse(&words).unwrap()).err().unwrap();
        error.message().to_owned()
    }

    #[test]
    fn batches_follow_flags_of_serve() {
        let batching = "--model_base_path=/m --enable_batching";
        let own = "--max-batch 64 --max-queue-delay 5ms --runtime-threads 1";
        let flags = format!("{batching} -- {own}");
        let TfsSetup { config, warnings, .. } =
            setup(&flags.split_whitespace().collect::<Vec<_>>());
        let schedule = &config.models.models[0].schedule;
        assert_eq!((schedule.max_batch, schedule.threads), (64, Some(1)));
        assert_eq!(schedule.max_queue_delay, Duration::from_millis(5));
        assert!(warnings.is_empty(), "{warnings:?}");
        let sync = setup(&["--model_base_path=/m", "--", "--max-batch", "64"]).warnings;
        assert!(sync.len() == 1 && sync[0].contains("give --enable_batching too"), "{sync:?}");
        let flags = "--model_base_path=/m --enable_batching --enable_per_model_batching_parameters \
                     -- --max-batch 64";
        let own = setup(&flags.split_whitespace().collect::<Vec<_>>()).warnings;
        assert!(own.len() == 1 && own[0].contains("the file of each version has both"), "{own:?}");
    }

    #[test]
    fn flags_of_batches_precede_the_parameters() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("batching.config");
        std::fs::write(&file, "max_batch_size { value: 16 } allowed_batch_sizes: [8, 16]").unwrap();
        let flags = |own: &str| {
            let file = file.display();
            format!(
                "--model_base_path=/m --enable_batching --batching_parameters_file={file} -- {own}"
            )
        };
        let schedule = |own: &str| {
            let setup = setup(&flags(own).split_whitespace().collect::<Vec<_>>());
            setup.config.models.models[0].schedule.clone()
        };
        let small = schedule("--max-batch 8");
        assert_eq!((small.max_batch, small.preferred_batch_sizes), (8, vec![8]));
        assert_eq!(schedule("--runtime-threads 0").mode, ScheduleMode::Sync);
        let refused = refusal(&flags("--max-batch 64"));
        assert!(refused.starts_with("--max-batch after --: allowed-batch-sizes: "), "{refused}");
    }

    #[test]
    fn settings_of_collections_need_a_directory() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().display();
        let originals = format!("--model_base_path=/m -- --originals {place}");
        assert!(refusal(&originals).starts_with("--originals has no effect"));
        let cluster = format!(
            "--model_base_path=/m -- --cluster-store {place} --cluster-etcd http://127.0.0.1:1"
        );
        assert!(refusal(&cluster).contains("--collections-dir, which is none"));
        let memory = ["--model_base_path=/m", "--", "--search-memory", "1GiB"];
        let warnings = setup(&memory).warnings;
        assert!(
            warnings.len() == 1 && warnings[0].starts_with("--search-memory: no effect"),
            "{warnings:?}"
        );
        let collections = format!("{originals} --collections-dir {place}");
        let setup = setup(&collections.split_whitespace().collect::<Vec<_>>());
        assert_eq!(setup.config.search.directory.as_deref(), Some(dir.path()));
    }

    #[test]
    fn files_of_sessions_and_platforms_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            path.display().to_string()
        };
        let session =
            write("session", "intra_op_parallelism_threads: 2\nlog_device_placement: true");
        let flag = format!("--tensorflow_session_config_file={session}");
        let TfsSetup { config, warnings, .. } =
            setup(&["--model_base_path=/m", &flag, "--", "--threads", "2"]);
        assert_eq!(config.models.models[0].session.intra_op_threads, 2);
        assert!(
            warnings.len() == 1 && warnings[0].contains("session: only intra_op"),
            "{warnings:?}"
        );
        let platform = write(
            "platform",
            "platform_configs { key: 'tensorflow' value { source_adapter_config {\n\
             [type.googleapis.com/tensorflow.serving.SavedModelBundleSourceAdapterConfig] {\n\
             legacy_config { batching_parameters { max_batch_size { value: 7 } }\n\
             enable_model_warmup: true } } } } }",
        );
        let flag = format!("--platform_config_file={platform}");
        let TfsSetup { config, warnings, .. } =
            setup(&["--model_base_path=/m", &flag, "--saved_model_tags=a"]);
        let model = &config.models.models[0];
        assert_eq!((model.schedule.max_batch, model.warmup.enabled), (7, true));
        assert_eq!(warnings, ["--saved_model_tags has no effect with --platform_config_file"]);
    }

    #[test]
    fn flags_that_depend_on_others_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let list = dir.path().join("models.config");
        std::fs::write(&list, "model_config_list {}").unwrap();
        let list = format!("--model_config_file={}", list.display());
        let wait = "--model_config_file_poll_wait_seconds=5";
        let warnings = setup(&[&list, wait, "--model_name=m"]).warnings;
        assert_eq!(warnings, ["--model_name has no effect with --model_config_file"]);
        let warnings = setup(&["--model_base_path=/m", wait]).warnings;
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].contains("seconds has no effect without --model_config_file"));
        let warnings = setup(&["--model_base_path=/m", "--rest_api_timeout_in_ms=5"]).warnings;
        assert_eq!(warnings, ["--rest_api_timeout_in_ms has no effect without --rest_api_port"]);
    }
}
