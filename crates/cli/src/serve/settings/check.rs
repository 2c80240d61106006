//! Checks the values of flags and settings, alone and against each other.

use std::path::Path;
use std::time::Duration;

use command_line::exit::{CommandError, CommandResult};
use command_line::values::{ByteSize, TimeSpan, check_home};
use lifecycle::Transition;
use server::{CorsPolicy, ListenerConfig};

use super::ServeSettings;
use crate::serve::options::{GpuUse, MediumName};

/// Maximum number of threads of one kind.
const THREADS_MAX: usize = 1024;
/// Maximum of `--queue` and `--max-requests`.
const REQUESTS_MAX: usize = 1 << 20;
/// Maximum of `--max-connections`.
const CONNECTIONS_MAX: usize = 1 << 20;
/// Maximum of `--recordings`.
const RECORDINGS_MAX: usize = 1024;
/// Maximum of `--max-body`: gRPC's own limit of a message.
const BODY_BYTES_MAX: u64 = i32::MAX as u64;
/// Minimum of `--request-memory`.
const REQUEST_MEMORY_MIN: u64 = 1 << 20;
/// Minimum of `--request-log-size`.
const REQUEST_LOG_MIN: u64 = 1 << 20;
/// Maximum backups that `--backup-keep` may keep.
const BACKUPS_MAX: usize = 100_000;
/// Shortest interval between the backups of a schedule.
const BACKUP_INTERVAL_MIN: Duration = Duration::from_secs(60);
/// Maximum of `--search-merge-segments`.
const MERGE_SEGMENTS_MAX: usize = 64;
/// Minimum of `--search-segment-rows`; smaller segments cost more than they save.
const SEGMENT_ROWS_MIN: usize = 10_000;
/// Maximum of `--search-segment-rows`: row numbers of an index.
const SEGMENT_ROWS_MAX: usize = 1 << 30;
/// Minimum of `--poll`.
const POLL_MIN: Duration = Duration::from_millis(10);
/// Minimum of `--load-timeout`.
const LOAD_TIMEOUT_MIN: Duration = Duration::from_secs(1);
/// Hint for settings of collections on a server without collections.
pub(in crate::serve) const COLLECTIONS_HINT: &str = "name the directory of collections with \
     --collections-dir DIR; `millpond tfs` has none by default";
/// Maximum of all durations.
const SPAN_MAX: Duration = Duration::from_secs(24 * 3600);

impl ServeSettings {
    /// Checks all settings but those of models, alone and against each other.
    pub(super) fn check_values(&self) -> CommandResult {
        let server = &self.server;
        let lifecycle = &self.lifecycle;
        check_number("connection-threads", server.connection_threads, 0, THREADS_MAX)?;
        check_number("threads", self.inference.threads, 0, THREADS_MAX)?;
        check_number("runtime-threads", self.inference.runtime_threads, 0, THREADS_MAX)?;
        check_number("load-threads", lifecycle.load_threads, 1, THREADS_MAX)?;
        check_number("unload-threads", lifecycle.unload_threads, 1, THREADS_MAX)?;
        check_number("queue", self.inference.queue, 1, REQUESTS_MAX)?;
        check_number("max-requests", server.max_requests, 1, REQUESTS_MAX)?;
        self.check_search()?;
        check_number("recordings", self.audio.recordings, 1, RECORDINGS_MAX)?;
        check_number("max-connections", server.max_connections, 1, CONNECTIONS_MAX)?;
        check_number("backup-keep", self.search.backup_keep, 1, BACKUPS_MAX)?;
        check_span("backup-every", self.search.backup_every, BACKUP_INTERVAL_MIN)?;
        self.check_backups()?;
        self.check_cluster()?;
        self.check_updates()?;
        self.check_access()?;
        self.check_request_log()?;
        self.check_directories()?;
        let transition: Transition = lifecycle.transition.map(Into::into).unwrap_or_default();
        transition
            .check_rollout(&self.rollout)
            .map_err(|error| CommandError::usage(format!("[rollout]: {error}")))?;
        check_span("request-timeout", server.request_timeout, Duration::from_millis(1))?;
        check_span("client-timeout", server.client_timeout, Duration::from_millis(1))?;
        check_span("shutdown-grace", server.shutdown_grace, Duration::ZERO)?;
        check_span("poll", lifecycle.poll, POLL_MIN)?;
        check_span("load-retry-interval", lifecycle.load_retry_interval, Duration::ZERO)?;
        check_span("load-timeout", lifecycle.load_timeout, LOAD_TIMEOUT_MIN)?;
        if let Some(ByteSize(bytes)) = server.max_body
            && !(1..=BODY_BYTES_MAX).contains(&bytes)
        {
            return Err(CommandError::usage(
                "--max-body must be between 1 byte and 2 GiB less one",
            ));
        }
        if let Some(ByteSize(bytes)) = server.request_memory
            && bytes < REQUEST_MEMORY_MIN
        {
            return Err(CommandError::usage("--request-memory must be at least 1 MiB"));
        }
        if let Some(ByteSize(bytes)) = self.inference.request_log_size
            && bytes < REQUEST_LOG_MIN
        {
            return Err(CommandError::usage(
                "--request-log-size must be at least 1 MiB: a record without room is not logged",
            ));
        }
        if let (Some(ByteSize(pool)), Some(ByteSize(reserve))) =
            (self.memory.pool, self.memory.swap_reserve)
            && reserve > pool
        {
            return Err(CommandError::usage(
                "--swap-reserve is larger than --pool: it is a part of the pool",
            ));
        }
        self.check_listeners()
    }

    /// Checks the paths of directories that the server creates.
    fn check_directories(&self) -> CommandResult {
        let directories = [
            ("--collections-dir", &self.search.collections_dir),
            ("--cache-dir", &self.lifecycle.cache_dir),
            ("--speakers-dir", &self.audio.speakers_dir),
            ("--request-log", &self.inference.request_log),
        ];
        let places = [
            ("--originals", &self.search.originals),
            ("--backup-dir", &self.search.backup_dir),
            ("--cluster-store", &self.cluster.cluster_store),
        ];
        let directories =
            directories.into_iter().filter_map(|(flag, path)| Some((flag, path.as_deref()?)));
        let places = places.into_iter().filter_map(|(flag, place)| {
            let path = place.as_deref().filter(|place| !model_store::is_url(place))?;
            Some((flag, Path::new(path)))
        });
        for (flag, path) in directories.chain(places) {
            check_home(flag, path).map_err(|error| CommandError::usage(error.message()))?;
        }
        Ok(())
    }

    /// Checks that the directory of recordings exists. A settings file that is read again needs no
    /// such check, because the directory in it takes effect after a restart.
    pub(in crate::serve) fn check_spool_dir(&self) -> CommandResult {
        match &self.audio.spool_dir {
            Some(dir) if !dir.is_dir() => Err(CommandError::usage(format!(
                "--spool-dir {} is not a directory; create it, or leave the setting out",
                dir.display()
            ))),
            _ => Ok(()),
        }
    }

    /// Checks that each setting of backups has an effect.
    fn check_backups(&self) -> CommandResult {
        let search = &self.search;
        if search.backup_keep.is_some() && search.backup_every.is_none() {
            return Err(CommandError::usage("--backup-keep has no effect without --backup-every")
                .hint("`millpond collections prune NAME --keep N` removes other backups"));
        }
        if self.has_no_collections()
            && (search.backup_dir.is_some() || search.backup_every.is_some())
        {
            return Err(CommandError::usage(
                "--backup-dir and --backup-every have no effect with --collections-dir none",
            )
            .hint(COLLECTIONS_HINT));
        }
        Ok(())
    }

    /// Returns true if the server has no collections, neither of its own nor those of a cluster.
    pub(super) fn has_no_collections(&self) -> bool {
        self.search.collections_dir.as_deref() == Some(Path::new("none"))
            && self.cluster.cluster_store.is_none()
    }

    /// Checks the limits of searches, and that settings of memory and of images have an effect.
    fn check_search(&self) -> CommandResult {
        let search = &self.search;
        check_number("search-threads", search.search_threads, 0, THREADS_MAX)?;
        check_number("search-build-threads", search.search_build_threads, 1, THREADS_MAX)?;
        check_number("search-merge-segments", search.search_merge_segments, 2, MERGE_SEGMENTS_MAX)?;
        let rows = search.search_segment_rows.map(|rows| rows as usize);
        check_number("search-segment-rows", rows, SEGMENT_ROWS_MIN, SEGMENT_ROWS_MAX)?;
        if search.gpu_pinned.is_some() && search.gpu != Some(GpuUse::Auto) {
            return Err(CommandError::usage("--gpu-pinned has no effect without --gpu auto"));
        }
        if self.has_no_collections() && search.originals.is_some() {
            return Err(CommandError::usage(
                "--originals has no effect with --collections-dir none",
            )
            .hint(COLLECTIONS_HINT));
        }
        if search.search_memory_node.is_some() && search.search_medium != Some(MediumName::Dram) {
            return Err(CommandError::usage(
                "--search-memory-node places files in memory: use it with --search-medium dram",
            ));
        }
        Ok(())
    }

    /// Checks that listeners have different addresses, and that each listener with settings exists.
    fn check_listeners(&self) -> CommandResult {
        let server = &self.server;
        let ports = [
            ("--http-port", server.http_port),
            ("--grpc-port", server.grpc_port),
            ("--admin-port", server.admin_port),
        ];
        check_different_ports(&ports)?;
        if server.admin_host.is_some() && server.admin_port.is_none() {
            return Err(CommandError::usage("--admin-host needs --admin-port PORT"));
        }
        match (&server.http_socket, &server.grpc_socket) {
            (Some(http), Some(grpc)) if http == grpc => Err(CommandError::usage(format!(
                "--http-socket and --grpc-socket are both {}",
                http.display()
            ))),
            (None, None) if server.socket_mode.is_some() => {
                Err(CommandError::usage("--socket-mode needs --http-socket or --grpc-socket"))
            }
            _ => Ok(()),
        }
    }

    /// Checks that the ports of `millpond serve` are different, those without a setting included.
    pub(super) fn check_default_ports(&self) -> CommandResult {
        let server = &self.server;
        let default = ListenerConfig::default();
        // On an address of its own, the admin port may have the number of another port.
        let admin = server.admin_port.filter(|_| server.admin_host.is_none());
        check_different_ports(&[
            ("--http-port", server.http_port.or(default.http_port)),
            ("--grpc-port", server.grpc_port.or(default.grpc_port)),
            ("--admin-port", admin),
        ])
    }

    /// Checks the rates of the request log, of the server and of each model. Checks that a
    /// directory is given if other settings need one.
    pub(super) fn check_request_log(&self) -> CommandResult {
        let options = &self.inference;
        let models = self.models.iter().map(|(name, model)| {
            (format!("models.{name}: request-log-rate"), model.options.request_log_rate)
        });
        let rates = std::iter::once(("--request-log-rate".to_owned(), options.request_log_rate));
        for (setting, rate) in rates.chain(models) {
            let Some(rate) = rate else { continue };
            if options.request_log.is_none() {
                return Err(CommandError::usage(format!("{setting} needs --request-log DIR")));
            }
            if !(0.0..=1.0).contains(&rate) {
                return Err(CommandError::usage(format!(
                    "{setting} is {rate}; it must be 0 to 1, the share of the requests"
                )));
            }
        }
        let others = [
            ("--request-log-size", options.request_log_size.is_some()),
            ("--request-log-format", options.request_log_format.is_some()),
        ];
        match others.into_iter().find(|(_, given)| *given) {
            Some((flag, _)) if options.request_log.is_none() => {
                Err(CommandError::usage(format!("{flag} needs --request-log DIR")))
            }
            _ => Ok(()),
        }
    }

    /// Checks that there is a key.
    ///
    /// # Errors
    /// Returns a usage error if no flag, setting or variable has one.
    pub(super) fn check_has_key(&self) -> CommandResult {
        let server = &self.server;
        if server.keys.is_some() || server.admin_key.is_some() || self.search.api_key.is_some() {
            return Ok(());
        }
        Err(CommandError::usage(
            "MILLPOND_REQUIRE_KEY is set, but there is no key: MILLPOND_API_KEY and MILLPOND_ADMIN_KEY are unset or \
             empty",
        )
        .hint("in Kubernetes, put a key that is not empty into the Secret of `keysSecret`, as `api-key`"))
    }

    /// Checks the rules of access, and host names.
    fn check_access(&self) -> CommandResult {
        let server = &self.server;
        if server.allow_remote_admin && server.admin_key.is_none() && server.keys.is_none() {
            return Err(CommandError::usage("--allow-remote-admin needs a key that admin calls show").hint(
                "give --admin-key KEY, MILLPOND_ADMIN_KEY or --keys FILE; clients send \"authorization: Bearer KEY\"",
            ));
        }
        let cors = CorsPolicy::parse(&server.cors)
            .map_err(|error| CommandError::usage(format!("--cors: {}", error.message())))?;
        if cors == CorsPolicy::Any && server.keys.is_some() {
            return Err(CommandError::usage("--cors '*' cannot be combined with --keys")
                .hint("list the origins of your pages, as in --cors https://app.example"));
        }
        if server.tls_cert.is_some() != server.tls_key.is_some() {
            return Err(CommandError::usage("--tls-cert and --tls-key need each other"));
        }
        if server.tls_client_ca.is_some() && server.tls_cert.is_none() {
            return Err(CommandError::usage("--tls-client-ca needs --tls-cert and --tls-key"));
        }
        let is_name = |name: &String| !name.is_empty() && !name.contains([':', '/', ' ', '*']);
        match server.allowed_hosts.iter().find(|name| !is_name(name)) {
            Some(name) => Err(CommandError::usage(format!("--allowed-hosts: \"{name}\" is not a host name"))
                .hint(
                    "give names without scheme and port, as in --allowed-hosts mill.example,other.example",
                )),
            None => Ok(()),
        }
    }
}

/// Returns `key` if clients can send it in a header. `source` is its flag or variable.
///
/// # Errors
/// Returns a usage error that names `source`, and not the key.
pub(super) fn sendable_key(source: &str, key: String) -> CommandResult<String> {
    let printable = key.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic());
    // A header's value loses spaces at its ends.
    if !key.is_empty() && key.trim() == key && printable {
        return Ok(key);
    }
    Err(CommandError::usage(format!(
        "{source} must be printable ASCII, not empty, and without spaces at its ends"
    )))
}

/// Checks that no two ports are equal, except ports that the system picks.
///
/// # Errors
/// Returns a usage error that names the flags and the port.
fn check_different_ports(ports: &[(&str, Option<u16>)]) -> CommandResult {
    for (at, (flag, port)) in ports.iter().enumerate() {
        let same = |(_, other): &&(&str, Option<u16>)| other == port;
        if let (Some(1..), Some((other, _))) = (port, ports[..at].iter().find(same)) {
            return Err(CommandError::usage(format!(
                "{other} and {flag} are both {}",
                port.unwrap_or_default()
            )));
        }
    }
    Ok(())
}

/// Checks that the number of the flag `--NAME` is between `min` and `max`.
///
/// # Errors
/// Returns a usage error that names the flag and the range.
pub(in crate::serve) fn check_number(
    name: &str,
    value: Option<usize>,
    min: usize,
    max: usize,
) -> CommandResult {
    match value {
        Some(value) if !(min..=max).contains(&value) => {
            Err(CommandError::usage(format!("--{name} is {value}; it must be {min} to {max}")))
        }
        _ => Ok(()),
    }
}

/// Checks that the duration of the flag `--NAME` is between `min` and [`SPAN_MAX`].
///
/// # Errors
/// Returns a usage error that names the flag and the range.
pub(in crate::serve) fn check_span(
    name: &str,
    value: Option<TimeSpan>,
    min: Duration,
) -> CommandResult {
    match value {
        Some(TimeSpan(value)) if !(min..=SPAN_MAX).contains(&value) => Err(CommandError::usage(
            format!("--{name} is {value:?}; it must be {min:?} to 24 hours"),
        )),
        _ => Ok(()),
    }
}
