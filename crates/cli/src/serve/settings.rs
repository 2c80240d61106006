//! Joins flags, settings file and environment, and checks them against each other and the disk.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use engine::{ScheduleFile, ScheduleMode, ScheduleOptions};
use lifecycle::RolloutFile;
use model_store::{StorePlace, watched_dir};
use server::CorsPolicy;

use super::ServeArgs;
use super::file::{ModelOptions, SettingsFile, is_url};
use super::options::{
    AudioOptions, ClusterOptions, GpuUse, InferenceOptions, LifecycleOptions, LogFormat,
    MediumName, MemoryOptions, ScheduleFlags, SearchOptions, ServerOptions,
};
use crate::audio::recognisers::RecogniserDirArgs;
use crate::environment;
use crate::exit::{CommandError, CommandResult, ExitStatus, user};
use crate::layout;
use crate::values::{ByteSize, ModelSource, TimeSpan, check_name};

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
/// Maximum of all durations.
const SPAN_MAX: Duration = Duration::from_secs(24 * 3600);

/// The resolved settings of `serve`.
#[derive(Debug, Default)]
pub(crate) struct ServeSettings {
    pub(super) server: ServerOptions,
    pub(super) inference: InferenceOptions,
    pub(super) memory: MemoryOptions,
    pub(super) lifecycle: LifecycleOptions,
    pub(super) audio: AudioOptions,
    pub(super) search: SearchOptions,
    pub(super) cluster: ClusterOptions,
    /// Scheduling of all models without settings of their own.
    pub(super) schedule: ScheduleOptions,
    /// Rollouts of all models without settings of their own.
    pub(super) rollout: RolloutFile,
    pub(crate) log_format: LogFormat,
    pub(crate) log: String,
    pub(super) models: BTreeMap<String, ServedModel>,
    pub(super) roots: Vec<PathBuf>,
    /// URLs of object stores by the directory of `models` or `roots` that mirrors them.
    pub(super) stores: BTreeMap<PathBuf, Arc<str>>,
}

/// A model given by name or directory.
#[derive(Clone, Debug)]
pub(super) struct ServedModel {
    pub(super) dir: PathBuf,
    pub(super) options: ModelOptions,
    /// True if the settings file has a section for it.
    pub(super) has_section: bool,
}

/// Returns the scheduling of models without settings of their own: flags over `[schedule]`.
///
/// # Errors
/// Returns a usage error that names the setting.
fn schedule(
    flags: ScheduleFlags,
    file: ScheduleFile,
    inference: &InferenceOptions,
) -> CommandResult<ScheduleOptions> {
    let mut options = flags.over(file).apply(&ScheduleOptions::default());
    if let Some(threads @ 1..) = inference.runtime_threads {
        (options.mode, options.threads) = (ScheduleMode::Async, Some(threads));
    }
    options
        .check()
        .map_err(|error| CommandError::usage(format!("[schedule]: {}", error.message())))?;
    Ok(options)
}

impl ServeSettings {
    /// Joins and checks all settings.
    ///
    /// # Errors
    /// Returns a usage error that names the flag, the key or the directory.
    pub(super) fn resolve(args: &ServeArgs) -> CommandResult<ServeSettings> {
        let file =
            args.config_path().as_deref().map(SettingsFile::read).transpose()?.unwrap_or_default();
        let (roots, models) = (file.roots.clone(), file.models.clone());
        let mut settings = ServeSettings::join(args, file)?;
        for root in roots {
            settings.add(ModelSource { name: None, dir: root })?;
        }
        for source in &args.sources {
            settings.add(source.clone())?;
        }
        for name in settings.audio.recogniser.clone() {
            settings.add_recogniser(&name)?;
        }
        settings.add_models_of_file(models)?;
        // Again, as the models have rates of their own.
        settings.check_request_log()?;
        let collections = settings.cluster.cluster_store.is_some()
            || settings
                .search
                .collections_dir
                .as_deref()
                .is_some_and(|dir| dir != Path::new("none"));
        if settings.models.is_empty() && settings.roots.is_empty() && !collections {
            return Err(CommandError::new(
                ExitStatus::Usage,
                "nothing to serve: no directory is given",
            )
            .hint(
                "millpond serve DIR, or --recogniser NAME, or roots and [models.NAME] in the file given \
                 with --config",
            ));
        }
        Ok(settings)
    }

    /// Joins and checks all settings but the models.
    ///
    /// # Errors
    /// Returns a usage error that names the flag or the key.
    pub(crate) fn join(args: &ServeArgs, file: SettingsFile) -> CommandResult<ServeSettings> {
        let inference = args.inference.clone().over(file.inference);
        let mut settings = ServeSettings {
            log_format: LogFormat::Text,
            log: String::new(),
            server: args.server.clone().over(file.server),
            schedule: schedule(args.schedule.clone(), file.schedule, &inference)?,
            rollout: file.rollout,
            inference,
            memory: args.memory.clone().over(file.memory),
            lifecycle: args.lifecycle.clone().over(file.lifecycle),
            audio: args.audio.clone().over(file.audio),
            search: args.search.clone().over(file.search),
            cluster: args.cluster.clone().over(file.cluster),
            models: BTreeMap::new(),
            roots: Vec::new(),
            stores: BTreeMap::new(),
        };
        settings.log_format = settings.server.log_format.unwrap_or(LogFormat::Text);
        settings.log = settings
            .server
            .log
            .clone()
            .or_else(|| environment::LOG.text())
            .unwrap_or_else(|| "info".to_owned());
        settings.search.api_key =
            settings.search.api_key.take().or_else(|| environment::API_KEY.text());
        settings.server.admin_key =
            settings.server.admin_key.take().or_else(|| environment::ADMIN_KEY.text());
        settings.check_values()?;
        Ok(settings)
    }

    /// Explains which directories will not be served, and what to do.
    pub(super) fn advice(&self) -> Vec<String> {
        // The copy of a store may be empty still.
        let is_local = |dir: &Path| !self.stores.keys().any(|copy| dir.starts_with(copy));
        let roots = self.roots.iter().filter(|root| is_local(root));
        let roots = roots.flat_map(|root| layout::advice(root, true));
        let models = self.models.iter().filter(|(_, model)| is_local(&model.dir));
        let models = models.flat_map(|(name, model)| {
            let mut advice = layout::advice(&model.dir, false);
            let hidden = layout::models_in(&model.dir);
            if let Some(first) = hidden.first().filter(|_| layout::is_model(&model.dir)) {
                let (dir, count) = (model.dir.display(), hidden.len());
                advice.push(format!(
                    "{dir} is model \"{name}\", as it has numbered directories; the {count} models in it \
                     ({first}...) are not served: move the numbered ones into a directory of their own"
                ));
            }
            advice
        });
        roots.chain(models).collect()
    }

    fn check_values(&self) -> CommandResult {
        let (server, lifecycle) = (&self.server, &self.lifecycle);
        number("connection-threads", server.connection_threads, 0, THREADS_MAX)?;
        number("threads", self.inference.threads, 0, THREADS_MAX)?;
        number("runtime-threads", self.inference.runtime_threads, 0, THREADS_MAX)?;
        number("load-threads", lifecycle.load_threads, 1, THREADS_MAX)?;
        number("unload-threads", lifecycle.unload_threads, 1, THREADS_MAX)?;
        number("queue", self.inference.queue, 1, REQUESTS_MAX)?;
        number("max-requests", server.max_requests, 1, REQUESTS_MAX)?;
        self.check_search()?;
        number("recordings", self.audio.recordings, 1, RECORDINGS_MAX)?;
        number("max-connections", server.max_connections, 1, CONNECTIONS_MAX)?;
        number("backup-keep", self.search.backup_keep, 1, BACKUPS_MAX)?;
        span("backup-every", self.search.backup_every, BACKUP_INTERVAL_MIN)?;
        self.check_backups()?;
        self.check_cluster()?;
        self.check_updates()?;
        self.check_access()?;
        self.check_request_log()?;
        let transition = lifecycle.transition.map(Into::into).unwrap_or_default();
        self.rollout
            .check(transition)
            .map_err(|error| CommandError::usage(format!("[rollout]: {error}")))?;
        span("request-timeout", server.request_timeout, Duration::from_millis(1))?;
        span("client-timeout", server.client_timeout, Duration::from_millis(1))?;
        span("shutdown-grace", server.shutdown_grace, Duration::ZERO)?;
        span("poll", lifecycle.poll, POLL_MIN)?;
        span("load-retry-interval", lifecycle.load_retry_interval, Duration::ZERO)?;
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

    /// Checks that no setting of backups is without effect.
    fn check_backups(&self) -> CommandResult {
        let search = &self.search;
        if search.backup_keep.is_some() && search.backup_every.is_none() {
            return Err(CommandError::usage("--backup-keep has no effect without --backup-every")
                .hint("`millpond collections prune NAME --keep N` removes other backups"));
        }
        // The nodes of a cluster make and restore backups from its store.
        let none = search.collections_dir.as_deref() == Some(Path::new("none"))
            && self.cluster.cluster_store.is_none();
        if none && (search.backup_dir.is_some() || search.backup_every.is_some()) {
            return Err(CommandError::usage(
                "--backup-dir and --backup-every have no effect with --collections-dir none",
            ));
        }
        Ok(())
    }

    fn check_search(&self) -> CommandResult {
        let search = &self.search;
        number("search-threads", search.search_threads, 0, THREADS_MAX)?;
        number("search-build-threads", search.search_build_threads, 1, THREADS_MAX)?;
        number("search-merge-segments", search.search_merge_segments, 2, MERGE_SEGMENTS_MAX)?;
        let rows = search.search_segment_rows.map(|rows| rows as usize);
        number("search-segment-rows", rows, SEGMENT_ROWS_MIN, SEGMENT_ROWS_MAX)?;
        if search.gpu_pinned.is_some() && search.gpu != Some(GpuUse::Auto) {
            return Err(CommandError::usage("--gpu-pinned has no effect without --gpu auto"));
        }
        if search.search_memory_node.is_some() && search.search_medium != Some(MediumName::Dram) {
            return Err(CommandError::usage(
                "--search-memory-node places files in memory: use it with --search-medium dram",
            ));
        }
        Ok(())
    }

    /// Checks that no two listeners share an address, and that no setting is without a listener.
    fn check_listeners(&self) -> CommandResult {
        let server = &self.server;
        let ports = [
            ("--http-port", server.http_port),
            ("--grpc-port", server.grpc_port),
            ("--admin-port", server.admin_port),
        ];
        for (at, (flag, port)) in ports.iter().enumerate() {
            let same = |(_, other): &&(&str, Option<u16>)| other == port;
            if let (Some(1..), Some((other, _))) = (port, ports[..at].iter().find(same)) {
                return Err(CommandError::usage(format!(
                    "{other} and {flag} are both {}",
                    port.unwrap_or_default()
                )));
            }
        }
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

    fn check_request_log(&self) -> CommandResult {
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
                    "{setting} is {rate}; it must be 0 to 1, the part of the requests"
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

    /// Checks keys and host names.
    fn check_access(&self) -> CommandResult {
        let server = &self.server;
        for (flag, key) in [("--admin-key", &server.admin_key), ("--api-key", &self.search.api_key)]
        {
            // A header's value loses spaces at its ends.
            let printable =
                |key: &String| key.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic());
            let sendable = |key: &String| !key.is_empty() && key.trim() == key && printable(key);
            if key.as_ref().is_some_and(|key| !sendable(key)) {
                return Err(CommandError::usage(format!(
                    "{flag} must be printable ASCII, not empty, and without spaces at its ends"
                )));
            }
        }
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
            Some(name) => Err(CommandError::usage(format!("--allowed-hosts: \"{name}\" is no host name"))
                .hint(
                    "give names without scheme and port, as in --allowed-hosts mill.example,other.example",
                )),
            None => Ok(()),
        }
    }

    /// Adds a directory as a model or a root.
    fn add(&mut self, source: ModelSource) -> CommandResult {
        if is_url(&source.dir) {
            return self.add_store(source);
        }
        let dir = existing(&source.dir)?;
        if source.name.is_none() && !layout::is_model(&dir) {
            self.roots.push(dir);
            return Ok(());
        }
        let name = match source.name {
            Some(name) => name,
            None => name_of(&dir)?,
        };
        self.add_model(name, dir)
    }

    /// Adds a model, and refuses a second directory under its name.
    fn add_model(&mut self, name: String, dir: PathBuf) -> CommandResult {
        if self.models.get(&name).is_some_and(|other| other.dir != dir) {
            return Err(CommandError::usage(format!("two directories are model \"{name}\""))
                .hint("give one of them another name with NAME=DIR"));
        }
        let model = ServedModel { dir, options: ModelOptions::default(), has_section: false };
        self.models.insert(name, model);
        Ok(())
    }

    /// Adds an installed recogniser, and the model that it uses if that is not its own.
    fn add_recogniser(&mut self, name: &str) -> CommandResult {
        let found = RecogniserDirArgs { recognisers: None }
            .find(name)
            .map_err(|error| error.with_exit(ExitStatus::Usage))?;
        let beside = |model: String| (found.dir.with_file_name(&model), model);
        let other = found.model.clone().filter(|model| *model != found.name).map(beside);
        for (dir, name) in [(found.dir.clone(), found.name.clone())].into_iter().chain(other) {
            self.add(ModelSource { name: Some(name), dir })?;
        }
        Ok(())
    }

    /// Adds a directory of an object store: a model if it has a name, else a root.
    fn add_store(&mut self, source: ModelSource) -> CommandResult {
        let url = source.dir.to_string_lossy().into_owned();
        let dir = self.mirror(&url, source.name.as_deref())?;
        match source.name {
            None => self.roots.push(dir),
            Some(name) => self.add_model(name, dir)?,
        }
        Ok(())
    }

    /// Returns the directory that mirrors a URL, and makes it.
    fn mirror(&mut self, url: &str, model: Option<&str>) -> CommandResult<PathBuf> {
        StorePlace::open(url, &environment::object_stores())
            .map_err(|error| CommandError::usage(format!("cannot serve {}", error.message())))?;
        let cache = self.lifecycle.cache_dir.clone().unwrap_or_else(environment::cache_dir);
        let dir = watched_dir(&cache, url, model);
        make(&dir)?;
        self.stores.insert(dir.clone(), url.into());
        Ok(dir)
    }

    /// Adds `[models.NAME]`: settings of a known model, or a new model.
    fn add_models_of_file(&mut self, models: BTreeMap<String, ModelOptions>) -> CommandResult {
        for (name, options) in models {
            options.schedule.apply(&self.schedule).check().map_err(|error| {
                CommandError::usage(format!("[models.{name}.schedule]: {}", error.message()))
            })?;
            let transition = options.transition.or(self.lifecycle.transition);
            options
                .rollout
                .over(&self.rollout)
                .check(transition.map(Into::into).unwrap_or_default())
                .map_err(|error| {
                    CommandError::usage(format!("[models.{name}.rollout]: {error}"))
                })?;
            let dir = match (self.models.get(&name), &options.path) {
                // The command line takes precedence over the file, as for flags.
                (Some(model), _) => model.dir.clone(),
                (None, Some(path)) if is_url(path) => {
                    self.mirror(&path.to_string_lossy(), Some(&name))?
                }
                (None, Some(path)) => existing(path)?,
                (None, None) => {
                    let inside =
                        self.roots.iter().map(|root| root.join(&name)).find(|dir| dir.is_dir());
                    // The model can be in a store that has not been listed yet.
                    let in_store =
                        || self.roots.iter().find(|root| self.stores.contains_key(*root));
                    let inside = inside.or_else(|| in_store().map(|root| root.join(&name)));
                    let dir = inside.ok_or_else(|| {
                        CommandError::usage(format!(
                            "[models.{name}] has no path and no root has a model of that name"
                        ))
                    })?;
                    make(&dir)?;
                    dir
                }
            };
            self.models.insert(name, ServedModel { dir, options, has_section: true });
        }
        Ok(())
    }
}

/// Makes the directory of a store's copy if it is missing.
fn make(dir: &Path) -> CommandResult {
    os::private::create_dir_all(dir).map_err(|error| {
        CommandError::usage(format!("cannot create {}: {error}", dir.display()))
            .hint("name a directory for copies of models with --cache-dir DIR")
    })
}

/// Returns the directory's real path.
fn existing(dir: &Path) -> CommandResult<PathBuf> {
    let real = std::fs::canonicalize(dir).map_err(|error| {
        let failure = |why: &dyn std::fmt::Display| {
            CommandError::usage(format!("cannot serve {}: {why}", dir.display()))
        };
        match error.kind() {
            std::io::ErrorKind::NotFound => failure(&"No such file or directory").hint(
                "check the path; millpond publish model.onnx --to DIR/NAME makes a directory of models",
            ),
            std::io::ErrorKind::PermissionDenied => unreadable(dir),
            _ => failure(&error),
        }
    })?;
    if !real.is_dir() {
        return Err(no_directory(dir, &real));
    }
    match std::fs::read_dir(&real) {
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => Err(unreadable(dir)),
        _ => Ok(real),
    }
}

/// Returns the error for a file in place of a directory, with the way to serve it.
fn no_directory(file: &Path, real: &Path) -> CommandError {
    let shown = file.display();
    match engine::foreign::identify(real) {
        Some(foreign) => {
            CommandError::usage(format!("cannot serve {shown}: it is {}", foreign.format))
                .hint(foreign.remedy.replace("NAME", "DIR/NAME"))
        }
        None => CommandError::usage(format!("cannot serve {shown}: it is not a directory")).hint(
            format!("publish it as a version: millpond publish {shown} --to DIR/NAME, then millpond serve DIR"),
        ),
    }
}

/// Returns the error for a directory that this user may not read.
fn unreadable(dir: &Path) -> CommandError {
    CommandError::usage(format!("cannot read {}: Permission denied", dir.display())).hint(format!(
        "this runs as {}; give that user read and execute permission on the directory and those above it",
        user()
    ))
}

fn name_of(dir: &Path) -> CommandResult<String> {
    let name = dir.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    check_name(&name).map_err(|error| {
        CommandError::usage(format!("{}: {error}", dir.display()))
            .hint("give it a name: millpond serve NAME=DIR")
    })?;
    Ok(name)
}

pub(super) fn number(name: &str, value: Option<usize>, min: usize, max: usize) -> CommandResult {
    match value {
        Some(value) if !(min..=max).contains(&value) => {
            Err(CommandError::usage(format!("--{name} is {value}; it must be {min} to {max}")))
        }
        _ => Ok(()),
    }
}

pub(super) fn span(name: &str, value: Option<TimeSpan>, min: Duration) -> CommandResult {
    match value {
        Some(TimeSpan(value)) if !(min..=SPAN_MAX).contains(&value) => Err(CommandError::usage(
            format!("--{name} is {value:?}; it must be {min:?} to 24 hours"),
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::values::Versions;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        serve: ServeArgs,
    }

    fn resolve(arguments: &[&str]) -> Result<ServeSettings, String> {
        let line = Line::try_parse_from(std::iter::once("serve").chain(arguments.iter().copied()))
            .unwrap();
        ServeSettings::resolve(&line.serve).map_err(|failure| failure.message().to_owned())
    }

    /// Creates a root with models "a" (version 1) and "b" (version 2).
    fn root() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for version in ["a/1", "b/2", "notes"] {
            std::fs::create_dir_all(root.path().join(version)).unwrap();
        }
        root
    }

    #[test]
    fn directories_are_models_or_roots() {
        let root = root();
        let path = root.path().to_str().unwrap();
        let settings = resolve(&[path]).unwrap();
        assert_eq!((settings.roots.len(), settings.models.len()), (1, 0));
        let settings = resolve(&[&format!("{path}/a"), &format!("x={path}/b")]).unwrap();
        assert!(settings.roots.is_empty());
        assert_eq!(settings.models.keys().collect::<Vec<_>>(), ["a", "x"]);
        assert!(
            resolve(&["/no/such/place"]).unwrap_err().starts_with("cannot serve /no/such/place")
        );
        assert!(
            resolve(&[&format!("a={path}/b"), &format!("{path}/a")])
                .unwrap_err()
                .contains("two directories")
        );
        let stores = [format!("a=file://{path}/a"), format!("a=file://{path}/b")];
        let cache = format!("{path}/cache");
        assert!(
            resolve(&[&stores[0], &stores[1], "--cache-dir", &cache])
                .unwrap_err()
                .contains("two directories")
        );
        assert!(resolve(&[]).unwrap_err().starts_with("nothing to serve"));
    }

    #[test]
    fn flags_win_over_the_file() {
        let root = root();
        let file = root.path().join("millpond.toml");
        let text = "roots = [\".\"]\n[server]\nhttp-port = 1\ngrpc-port = 2\n[models.a]\nversions = \"all\"\n\
                    [models.c]\npath = \"b\"\n";
        std::fs::write(&file, text).unwrap();
        let settings = resolve(&["--config", file.to_str().unwrap(), "--http-port", "7"]).unwrap();
        assert_eq!((settings.server.http_port, settings.server.grpc_port), (Some(7), Some(2)));
        assert_eq!(settings.models["a"].options.versions, Some(Versions::All));
        assert!(settings.models["c"].dir.ends_with("b"));
        std::fs::write(&file, "[models.nowhere]\n").unwrap();
        assert!(
            resolve(&["--config", file.to_str().unwrap()])
                .unwrap_err()
                .contains("[models.nowhere]")
        );
    }

    #[test]
    fn rates_of_models_are_checked() {
        let root = root();
        let file = root.path().join("millpond.toml");
        let logged = root.path().join("logged");
        for (rate, flags, wanted) in [
            ("0.5", &[] as &[&str], Some("models.a: request-log-rate needs --request-log DIR")),
            ("5.0", &["--request-log", logged.to_str().unwrap()], Some("request-log-rate is 5")),
            ("0.5", &["--request-log", logged.to_str().unwrap()], None),
        ] {
            let text = format!("roots = [\".\"]\n[models.a]\nrequest-log-rate = {rate}\n");
            std::fs::write(&file, text).unwrap();
            let result = resolve(&[&["--config", file.to_str().unwrap()], flags].concat());
            match wanted {
                Some(wanted) => assert!(result.unwrap_err().contains(wanted)),
                None => assert!(result.is_ok()),
            }
        }
    }

    #[test]
    fn schedules_are_laid_over_each_other() {
        let root = root();
        let file = root.path().join("millpond.toml");
        let text = "roots = [\".\"]\n[schedule]\nmode = \"sync\"\nmax-batch = 8\nweight = 2\n\
                    [models.a.schedule]\nmax-batch = 4\n";
        std::fs::write(&file, text).unwrap();
        let config = ["--config", file.to_str().unwrap()];
        let settings = resolve(&config).unwrap();
        assert_eq!((settings.schedule.mode, settings.schedule.max_batch), (ScheduleMode::Sync, 8));
        let flags = ["--runtime-threads", "1", "--max-batch", "64", "--max-queue-delay", "1ms"];
        let settings = resolve(&[&config[..], &flags].concat()).unwrap();
        let wanted = ScheduleOptions {
            mode: ScheduleMode::Async,
            threads: Some(1),
            max_batch: 64,
            max_queue_delay: Duration::from_millis(1),
            weight: 2,
            ..ScheduleOptions::default()
        };
        assert_eq!(settings.schedule, wanted);
        let own = settings.models["a"].options.schedule.apply(&settings.schedule);
        assert_eq!(own, ScheduleOptions { max_batch: 4, ..wanted });
        std::fs::write(&file, text.replace("max-batch = 4", "preferred-batch-sizes = [9]"))
            .unwrap();
        let error = resolve(&config).unwrap_err();
        assert!(error.starts_with("[models.a.schedule]: preferred-batch-sizes: 9"), "{error}");
        let workers = resolve(&[root.path().to_str().unwrap(), "--workers", "1"]).unwrap();
        assert_eq!(workers.inference.threads, Some(1), "the flag's earlier name");
    }

    #[test]
    fn values_are_checked() {
        let root = root();
        let path = root.path().to_str().unwrap();
        for (flags, wanted) in [
            (&["--queue", "0"][..], "--queue is 0; it must be 1 to"),
            (&["--poll", "1ms"], "--poll is 1ms"),
            (&["--http-port", "5", "--grpc-port", "5"], "both 5"),
            (&["--grpc-port", "5", "--admin-port", "5"], "--grpc-port and --admin-port are both 5"),
            (&["--admin-host", "127.0.0.1"], "--admin-host needs --admin-port"),
            (&["--http-socket", "/s", "--grpc-socket", "/s"], "are both /s"),
            (&["--socket-mode", "0660"], "--socket-mode needs --http-socket"),
            (&["--pool", "1GiB", "--swap-reserve", "2GiB"], "--swap-reserve is larger"),
            (&["--max-body", "3GiB"], "--max-body"),
            (&["--request-memory", "1KiB"], "--request-memory must be at least"),
            (&["--allow-remote-admin"], "--allow-remote-admin needs a key"),
            (&["--admin-key", ""], "--admin-key must be printable"),
            (&["--api-key", "a "], "--api-key must be printable"),
            (&["--allowed-hosts", "a.example,b.example:80"], "\"b.example:80\" is no host name"),
            (&["--cors", "app.example"], "\"app.example\" is no origin"),
            (&["--cors", "*", "--cors", "https://a"], "* cannot be listed with others"),
            (&["--cors", "*", "--keys", "keys.toml"], "--cors '*' cannot be combined with --keys"),
            (&["--threads", "1025"], "--threads is 1025"),
            (&["--max-batch", "0"], "[schedule]: max-batch must be 1 to"),
            (&["--max-queue-delay", "1m"], "[schedule]: max-queue-delay must be at most 10 s"),
        ] {
            let error = resolve(&[&[path], flags].concat()).unwrap_err();
            assert!(error.contains(wanted), "{error}");
        }
        assert!(resolve(&[path, "--http-port", "0", "--grpc-port", "0"]).is_ok());
        let settings =
            resolve(&[path, "--allow-remote-admin", "--admin-key", "k", "--allowed-hosts", "a,b"])
                .unwrap();
        assert_eq!(settings.server.allowed_hosts, ["a", "b"]);
    }
}
