//! All environment variables that Millpond reads. No other module or crate reads the environment.

#![allow(missing_docs, reason = "each variable has its help text")]

use std::env::VarError;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

use base::unix_time;
use engine::LibrarySearch;
use loadgen::tls::TlsArgs;
use model_store::StoreOptions;

use crate::exit::{CommandError, CommandResult};

/// An environment variable.
pub struct Variable {
    /// Name of the variable.
    pub name: &'static str,
    /// Help text. Flags take precedence over variables.
    pub help: &'static str,
}

pub const ADMIN_KEY: Variable = Variable::new(
    "MILLPOND_ADMIN_KEY",
    "default of `serve --admin-key`, and the key that `models load`, `unload` and `rollout`, `collections` and `cluster \
     drain` send; other client commands send it if there is no MILLPOND_API_KEY",
);
pub const API_KEY: Variable = Variable::new(
    "MILLPOND_API_KEY",
    "default of `serve --api-key`, and the key that client commands send",
);
pub const AUDIO_DATA: Variable = Variable::new(
    "MILLPOND_AUDIO_DATA",
    "default of `bench audio --clips`: a folder of recordings",
);
const CA: Variable = Variable::new("MILLPOND_CA", "default of --ca");
pub const CACHE_DIR: Variable =
    Variable::new("MILLPOND_CACHE_DIR", "default of --cache-dir [else the user's cache directory]");
pub const CONFIG: Variable = Variable::new("MILLPOND_CONFIG", "default of `serve --config`");
pub const DEMO_SECONDS: Variable =
    Variable::new("MILLPOND_DEMO_SECONDS", "`demo` ends by itself after this many seconds");
pub const ETCD_PASSWORD: Variable =
    Variable::new("MILLPOND_ETCD_PASSWORD", "password of MILLPOND_ETCD_USER");
pub const ETCD_USER: Variable =
    Variable::new("MILLPOND_ETCD_USER", "user of etcd for --cluster-etcd and --update-etcd");
const LIBTORCH: Variable = Variable::new("MILLPOND_LIBTORCH", "default of --libtorch");
pub const LOG: Variable = Variable::new("MILLPOND_LOG", "default of --log");
pub const MALLOC_CONF: Variable =
    Variable::new("MALLOC_CONF", "jemalloc's settings, in place of Millpond's own");
pub const NOTIFY_SOCKET: Variable = Variable::new(
    "NOTIFY_SOCKET",
    "socket of systemd, to which the server reports that models serve, reloads and its stop",
);
const NVRTC: Variable = Variable::new(
    "MILLPOND_NVRTC",
    "NVIDIA's run-time compiler (libnvrtc) or its directory, for `serve --gpu`",
);
const ONNXRUNTIME: Variable = Variable::new("MILLPOND_ONNXRUNTIME", "default of --onnxruntime");
const OTEL_DISABLED: Variable =
    Variable::new("OTEL_SDK_DISABLED", "true: no traces are exported, unless --otlp is given");
const OTEL_EXPORTER: Variable = Variable::new(
    "OTEL_TRACES_EXPORTER",
    "otlp, or none: no traces are exported, unless --otlp is given",
);
const OTEL_ENDPOINT: Variable = Variable::new(
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "default of `serve --otlp`: address of an OpenTelemetry collector",
);
const OTEL_HEADERS: Variable = Variable::new(
    "OTEL_EXPORTER_OTLP_HEADERS",
    "headers of each export of traces, KEY=VALUE,KEY=VALUE",
);
const OTEL_PROTOCOL: Variable = Variable::new(
    "OTEL_EXPORTER_OTLP_PROTOCOL",
    "http/protobuf; with another value `serve` does not start",
);
const OTEL_TIMEOUT: Variable = Variable::new(
    "OTEL_EXPORTER_OTLP_TIMEOUT",
    "time limit of an export of traces in milliseconds [else 10000]",
);
const OTEL_TRACES_ENDPOINT: Variable = Variable::new(
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "full address for traces, in place of OTEL_EXPORTER_OTLP_ENDPOINT, as in http://localhost:4318/v1/traces",
);
const OTEL_TRACES_HEADERS: Variable =
    Variable::new("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "in place of OTEL_EXPORTER_OTLP_HEADERS");
const OTEL_TRACES_PROTOCOL: Variable =
    Variable::new("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "in place of OTEL_EXPORTER_OTLP_PROTOCOL");
const OTEL_TRACES_TIMEOUT: Variable =
    Variable::new("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "in place of OTEL_EXPORTER_OTLP_TIMEOUT");
const OTEL_RESOURCE: Variable = Variable::new(
    "OTEL_RESOURCE_ATTRIBUTES",
    "attributes of this server in traces, KEY=VALUE,KEY=VALUE",
);
const OTEL_SERVICE: Variable =
    Variable::new("OTEL_SERVICE_NAME", "name of this server in traces [else millpond]");
const OTEL_SAMPLER: Variable = Variable::new(
    "OTEL_TRACES_SAMPLER",
    "default of `serve --trace-sample`: always_on, always_off or traceidratio, each also with the prefix parentbased_",
);
const OTEL_SAMPLER_ARG: Variable =
    Variable::new("OTEL_TRACES_SAMPLER_ARG", "share of the requests for traceidratio, 0 to 1");
pub const PROGRAM: Variable =
    Variable::new("MILLPOND_PROGRAM", "set for millpond-bench: the `millpond` to measure");
pub const PATH: Variable =
    Variable::new("PATH", "search path of millpond-bench if it is not beside this program");
pub const RECOGNISERS: Variable =
    Variable::new("MILLPOND_RECOGNISERS", "default of --recognisers [else see `audio --help`]");
pub const REQUIRE_KEY: Variable =
    Variable::new("MILLPOND_REQUIRE_KEY", "set to anything: `serve` does not start without a key");
const SPEAKERS: Variable =
    Variable::new("MILLPOND_SPEAKERS", "default of --speakers [else in the user's data directory]");
const TENSORFLOW: Variable = Variable::new("MILLPOND_TENSORFLOW", "default of --tensorflow");
pub const URL: Variable = Variable::new("MILLPOND_URL", "default of --url");
const VIRTUAL_ENV: Variable =
    Variable::new("VIRTUAL_ENV", "first place to search for the engines' libraries");
const XDG_CACHE_HOME: Variable =
    Variable::new("XDG_CACHE_HOME", "the user's cache directory [else ~/.cache]");
const XDG_DATA_HOME: Variable =
    Variable::new("XDG_DATA_HOME", "the user's data directory [else ~/.local/share]");
const HOME: Variable = Variable::new("HOME", "the user's home directory");
pub const NO_COLOR: Variable = Variable::new("NO_COLOR", "set to anything: no colours");
pub const COLORTERM: Variable =
    Variable::new("COLORTERM", "truecolor or 24bit: `images search` shows images as mosaics");
pub const TERM: Variable =
    Variable::new("TERM", "xterm-kitty: `images search` shows images in kitty's protocol");
pub const TERM_PROGRAM: Variable =
    Variable::new("TERM_PROGRAM", "iTerm.app: `images search` shows images in iTerm2's protocol");

/// All variables, in the order of the help text.
const ALL: [&Variable; 44] = [
    &ADMIN_KEY,
    &API_KEY,
    &AUDIO_DATA,
    &CA,
    &CACHE_DIR,
    &CONFIG,
    &DEMO_SECONDS,
    &ETCD_PASSWORD,
    &ETCD_USER,
    &LIBTORCH,
    &LOG,
    &MALLOC_CONF,
    &NOTIFY_SOCKET,
    &NVRTC,
    &ONNXRUNTIME,
    &OTEL_DISABLED,
    &OTEL_EXPORTER,
    &OTEL_ENDPOINT,
    &OTEL_HEADERS,
    &OTEL_PROTOCOL,
    &OTEL_TIMEOUT,
    &OTEL_TRACES_ENDPOINT,
    &OTEL_TRACES_HEADERS,
    &OTEL_TRACES_PROTOCOL,
    &OTEL_TRACES_TIMEOUT,
    &OTEL_RESOURCE,
    &OTEL_SERVICE,
    &OTEL_SAMPLER,
    &OTEL_SAMPLER_ARG,
    &PATH,
    &PROGRAM,
    &RECOGNISERS,
    &REQUIRE_KEY,
    &SPEAKERS,
    &TENSORFLOW,
    &URL,
    &VIRTUAL_ENV,
    &XDG_CACHE_HOME,
    &XDG_DATA_HOME,
    &HOME,
    &NO_COLOR,
    &COLORTERM,
    &TERM,
    &TERM_PROGRAM,
];

impl Variable {
    const fn new(name: &'static str, help: &'static str) -> Variable {
        Variable { name, help }
    }

    /// Returns the value of the variable. `None` if it is unset, empty or not UTF-8.
    pub fn text(&self) -> Option<String> {
        std::env::var(self.name).ok().filter(|value| !value.is_empty())
    }

    /// Returns the key that the variable holds, or `None` if it is unset or empty.
    ///
    /// # Errors
    /// Returns a usage error if the value is not UTF-8. Otherwise a server whose key is mistyped
    /// would run without a key.
    pub fn secret(&self) -> CommandResult<Option<String>> {
        match std::env::var(self.name) {
            Err(VarError::NotUnicode(_)) => Err(CommandError::usage(format!(
                "{} is not UTF-8; a key must be printable ASCII",
                self.name
            ))),
            value => Ok(value.ok().filter(|value| !value.is_empty())),
        }
    }

    /// Returns the name of a value in errors: `flag` if the flag or the settings file has it, else
    /// the name of the variable.
    pub fn source(&self, flag: &'static str, is_given: bool) -> &'static str {
        if is_given { flag } else { self.name }
    }

    /// Returns its value as a path; `None` if it is unset or empty.
    pub fn path(&self) -> Option<PathBuf> {
        std::env::var_os(self.name).filter(|value| !value.is_empty()).map(PathBuf::from)
    }
}

/// Returns the name of this machine; empty if it cannot be read.
pub fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}

/// Returns the directory for files that can be recreated. It is that of the variable, else the
/// user's cache directory. A user without a home gets one below the system's temporary directory.
pub fn cache_dir() -> PathBuf {
    CACHE_DIR
        .path()
        .or_else(|| XDG_CACHE_HOME.path().map(|dir| dir.join("millpond")))
        .or_else(|| HOME.path().map(|dir| dir.join(".cache/millpond")))
        .unwrap_or_else(|| {
            temporary_cache(&std::env::temp_dir(), rustix::process::geteuid().as_raw())
        })
}

/// Returns the cache directory of `user` below `temporary`. It has the number of the user, since
/// users cannot share a cache from which the server loads models.
fn temporary_cache(temporary: &Path, user: u32) -> PathBuf {
    // Makes a name that cannot be predicted, and that is the same for each call of this process.
    static FIRST_CALL: OnceLock<Duration> = OnceLock::new();
    // Earlier versions used this directory for all users. It has copies of models and the state of
    // rollouts, so its owner keeps it.
    let shared = temporary.join("millpond");
    if is_directory_of(&shared, user) {
        return shared;
    }
    let own = temporary.join(format!("millpond-{user}"));
    // Another user who creates the directory first could put models into it. An error needs no
    // message: a directory that does not exist is not used.
    let _ = os::private::create_dir_all(&own);
    if is_directory_of(&own, user) {
        return own;
    }
    let time = FIRST_CALL.get_or_init(|| unix_time(SystemTime::now())).as_nanos();
    temporary.join(format!("millpond-{user}-{}-{time}", std::process::id()))
}

/// Returns true if `path` is a directory of `user`, or a link of `user` to a directory.
fn is_directory_of(path: &Path, user: u32) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|found| found.uid() == user) && path.is_dir()
}

/// Returns the certificates of a client, with the variable's issuers if no flag names any. The
/// variable counts only if one of `urls` uses TLS.
pub fn with_ca(tls: &TlsArgs, urls: &[&str]) -> TlsArgs {
    let mut tls = tls.clone();
    let is_tls = |url: &&str| url.starts_with("https://") || url.starts_with("grpcs://");
    if tls.ca.is_none() && urls.iter().any(is_tls) {
        tls.ca = CA.path();
        tls.ca_source = Some(CA.name);
    }
    tls
}

/// Returns the key that a client command sends: the key of its flag, else the key of a variable.
pub fn client_key(flag: Option<&String>) -> Option<String> {
    flag.cloned().or_else(|| API_KEY.text()).or_else(|| ADMIN_KEY.text())
}

/// Returns the key that a client command sends with an admin call: the key of its flag, else the
/// key of a variable. With both variables set, the API key has no right to such calls.
pub fn admin_client_key(flag: Option<&String>) -> Option<String> {
    flag.cloned().or_else(|| ADMIN_KEY.text()).or_else(|| API_KEY.text())
}

/// Returns the file of enrolled voices: the variable, else one in the user's data directory; `None`
/// for users without a home.
pub fn speakers_file() -> Option<PathBuf> {
    SPEAKERS.path().or_else(|| data_dir().map(|dir| dir.join("speakers.json")))
}

/// OpenTelemetry's variables.
#[derive(Clone, Debug, Default)]
pub struct OtelVariables {
    pub disabled: bool,
    pub exporter: Option<String>,
    pub endpoint: Option<String>,
    pub headers: Option<String>,
    pub protocol: Option<String>,
    pub timeout: Option<String>,
    pub traces_endpoint: Option<String>,
    pub traces_headers: Option<String>,
    pub traces_protocol: Option<String>,
    pub traces_timeout: Option<String>,
    pub resource: Option<String>,
    pub service: Option<String>,
    pub sampler: Option<String>,
    pub sampler_arg: Option<String>,
}

/// Reads OpenTelemetry's variables.
pub fn otel() -> OtelVariables {
    OtelVariables {
        disabled: OTEL_DISABLED.text().is_some_and(|value| value.eq_ignore_ascii_case("true")),
        exporter: OTEL_EXPORTER.text(),
        endpoint: OTEL_ENDPOINT.text(),
        headers: OTEL_HEADERS.text(),
        protocol: OTEL_PROTOCOL.text(),
        timeout: OTEL_TIMEOUT.text(),
        traces_endpoint: OTEL_TRACES_ENDPOINT.text(),
        traces_headers: OTEL_TRACES_HEADERS.text(),
        traces_protocol: OTEL_TRACES_PROTOCOL.text(),
        traces_timeout: OTEL_TRACES_TIMEOUT.text(),
        resource: OTEL_RESOURCE.text(),
        service: OTEL_SERVICE.text(),
        sampler: OTEL_SAMPLER.text(),
        sampler_arg: OTEL_SAMPLER_ARG.text(),
    }
}

/// Returns the variables of object storage providers, with lower-case names.
pub fn object_stores() -> StoreOptions {
    let theirs =
        |name: &str| ["AWS_", "AZURE_", "GOOGLE_"].iter().any(|prefix| name.starts_with(prefix));
    let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
        let name = name.into_string().ok().filter(|name| theirs(name))?;
        Some((name.to_ascii_lowercase(), value.into_string().ok()?))
    };
    std::env::vars_os().filter_map(text).collect()
}

/// Returns the default directory of collections, in the user's data directory; `None` for users
/// without a home.
pub fn collections_dir() -> Option<PathBuf> {
    data_dir().map(|dir| dir.join("collections"))
}

fn data_dir() -> Option<PathBuf> {
    let own = || HOME.path().map(|home| home.join(".local/share"));
    XDG_DATA_HOME.path().or_else(own).map(|dir| dir.join("millpond"))
}

/// Returns the places to search for the LibTorch shim: `explicit`, else the environment's path,
/// else the places around this process.
pub fn torch_search(explicit: Option<PathBuf>) -> LibrarySearch {
    engine_search(explicit, "--libtorch", &LIBTORCH)
}

/// Returns the places to search for TensorFlow: `explicit`, else the environment's path, else the
/// places around this process.
pub fn tensorflow_search(explicit: Option<PathBuf>) -> LibrarySearch {
    engine_search(explicit, "--tensorflow", &TENSORFLOW)
}

/// Returns the places to search for ONNX Runtime: `explicit`, else the environment's path, else the
/// places around this process.
pub fn library_search(explicit: Option<PathBuf>) -> LibrarySearch {
    engine_search(explicit, "--onnxruntime", &ONNXRUNTIME)
}

/// Returns the places to search for installed recognisers: those around this process, as for the
/// engines.
pub fn recogniser_search() -> LibrarySearch {
    search(None)
}

fn engine_search(
    explicit: Option<PathBuf>,
    flag: &'static str,
    variable: &Variable,
) -> LibrarySearch {
    let explicit_source = Some(variable.source(flag, explicit.is_some()));
    LibrarySearch { explicit_source, ..search(explicit.or_else(|| variable.path())) }
}

fn search(explicit: Option<PathBuf>) -> LibrarySearch {
    let user = HOME.path().map(|home| home.join(".local"));
    LibrarySearch::around_process(explicit, VIRTUAL_ENV.path()).with_user_prefix(user)
}

/// Returns the places to search for NVIDIA's run-time compiler.
pub fn compiler_search() -> gpu::CompilerSearch {
    gpu::CompilerSearch { explicit: NVRTC.path(), virtual_env: VIRTUAL_ENV.path() }
}

/// Formats the list of variables for `--help`.
pub fn help() -> String {
    let width = ALL.iter().map(|variable| variable.name.len()).max().unwrap_or(0);
    let lines: Vec<String> = ALL
        .iter()
        .map(|variable| format!("  {:width$}  {}", variable.name, variable.help))
        .collect();
    format!("Environment (flags and the settings file override it):\n{}", lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_flag_or_the_variable() {
        assert_eq!(LOG.source("--log", true), "--log");
        assert_eq!(LOG.source("--log", false), "MILLPOND_LOG");
        let given = library_search(Some("/given.so".into()));
        assert_eq!(given.explicit_source, Some("--onnxruntime"));
        assert_eq!(library_search(None).explicit_source, Some("MILLPOND_ONNXRUNTIME"));
    }

    #[test]
    fn the_owner_of_the_shared_cache_keeps_it() {
        let dir = tempfile::tempdir().unwrap();
        let user = std::fs::metadata(dir.path()).unwrap().uid();
        let own = dir.path().join(format!("millpond-{user}"));
        assert_eq!(temporary_cache(dir.path(), user), own);
        let missing = dir.path().join("missing");
        assert_eq!(temporary_cache(&missing, user), missing.join(format!("millpond-{user}")));
        let shared = dir.path().join("millpond");
        std::fs::create_dir(&shared).unwrap();
        assert_eq!(temporary_cache(dir.path(), user), shared);
        let other = user ^ 1;
        let others = dir.path().join(format!("millpond-{other}"));
        std::fs::create_dir(&others).unwrap();
        let unused = temporary_cache(dir.path(), other);
        assert_ne!(unused, others, "it belongs to another user");
        assert!(!unused.exists() && unused.starts_with(dir.path()), "{}", unused.display());
        assert_eq!(temporary_cache(dir.path(), other), unused);
    }
}
