//! Joins flags, settings file and environment, and checks them against each other and the disk.

mod answering;
mod check;
mod models;
mod unused;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use command_line::environment::{self, Variable};
use command_line::exit::{CommandError, CommandResult, ExitStatus};
use command_line::values::ModelSource;
use engine::{ScheduleFile, ScheduleMode, ScheduleOptions};
use lifecycle::RolloutFile;

use super::ServeArgs;
use super::file::{ModelOptions, SettingsFile};
use super::log::LogSetup;
use super::options::{
    AudioOptions, ClusterOptions, InferenceOptions, LifecycleOptions, LogFormat, MemoryOptions,
    SearchOptions, ServerOptions,
};
use crate::layout;

pub(super) use check::{COLLECTIONS_HINT, check_number, check_span};

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
    /// Names of the stated settings for all models that concern merged requests only.
    pub(super) batch_settings: Vec<&'static str>,
    /// Rollouts of all models without settings of their own.
    pub(super) rollout: RolloutFile,
    pub(crate) log: LogSetup,
    pub(super) models: BTreeMap<String, ListedModel>,
    pub(super) roots: Vec<PathBuf>,
    /// URLs of object stores by the directory of `models` or `roots` that mirrors them.
    pub(super) stores: BTreeMap<PathBuf, Arc<str>>,
}

/// A model given by name or directory.
#[derive(Clone, Debug)]
pub(super) struct ListedModel {
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
    args: &ServeArgs,
    file: &ScheduleFile,
    inference: &InferenceOptions,
) -> CommandResult<ScheduleOptions> {
    let under = file.apply(&ScheduleOptions::default());
    with_flags(&under, args, inference.runtime_threads)
        .map_err(|error| CommandError::usage(format!("[schedule]: {}", error.message())))
}

/// Returns `under` with the flags of scheduling in `args`, which take precedence.
/// `runtime_threads` is the value of the flag or of the settings file.
///
/// # Errors
/// Returns an error that names the setting.
pub(crate) fn with_flags(
    under: &ScheduleOptions,
    args: &ServeArgs,
    runtime_threads: Option<usize>,
) -> base::Result<ScheduleOptions> {
    let mut options = args.schedule.clone().over(ScheduleFile::default()).apply(under);
    match (args.inference.runtime_threads, runtime_threads) {
        (Some(0), _) => {
            options.mode = ScheduleMode::Sync;
            // It is a condition of merging, and the check refuses it alone.
            options.data_dependent_shapes = false;
        }
        (_, Some(threads @ 1..)) => {
            options.mode = ScheduleMode::Async;
            options.threads = Some(threads);
        }
        _ => {}
    }
    options.check()?;
    Ok(options)
}

/// Returns the log of the flags, the settings file and the variable.
fn log_setup(server: &ServerOptions) -> LogSetup {
    let own = server.log.clone().filter(|filter| !filter.is_empty());
    LogSetup {
        format: server.log_format.unwrap_or(LogFormat::Text),
        source: environment::LOG.source("--log", own.is_some()),
        filter: own.or_else(|| environment::LOG.text()).unwrap_or_else(|| "info".to_owned()),
    }
}

/// Returns the key that `flag` or the settings file has, else the key of the variable.
///
/// # Errors
/// Returns a usage error that names the flag or the variable if no client can send the key.
fn key(
    flag: &'static str,
    given: Option<String>,
    variable: &Variable,
) -> CommandResult<Option<String>> {
    let source = variable.source(flag, given.is_some());
    let key = given.map_or_else(|| variable.secret(), |key| Ok(Some(key)))?;
    key.map(|key| check::sendable_key(source, key)).transpose()
}

impl ServeSettings {
    /// Joins and checks all settings.
    ///
    /// # Errors
    /// Returns a usage error that names the flag, the key or the directory.
    pub(super) fn resolve(args: &ServeArgs) -> CommandResult<ServeSettings> {
        let file =
            args.config_path().as_deref().map(SettingsFile::read).transpose()?.unwrap_or_default();
        let roots = file.roots.clone();
        let models = file.models.clone();
        let mut settings = ServeSettings::join(args, file)?;
        settings.check_default_ports()?;
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
        let server = args.server.clone().over(file.server);
        let mut settings = ServeSettings {
            log: log_setup(&server),
            server,
            schedule: schedule(args, &file.schedule, &inference)?,
            batch_settings: unused::batch_settings(&args.schedule, &file.schedule),
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
        let api_key = settings.search.api_key.take();
        settings.search.api_key = key("--api-key", api_key, &environment::API_KEY)?;
        let admin_key = settings.server.admin_key.take();
        settings.server.admin_key = key("--admin-key", admin_key, &environment::ADMIN_KEY)?;
        if environment::REQUIRE_KEY.text().is_some() {
            settings.check_has_key()?;
        }
        settings.check_values()?;
        Ok(settings)
    }

    /// Explains which directories will not be served and which settings have no effect, and what to
    /// do.
    pub(super) fn advice(&self) -> Vec<String> {
        // The copy of a store may still be empty.
        let is_local = |dir: &Path| !self.stores.keys().any(|copy| dir.starts_with(copy));
        let roots = self.roots.iter().filter(|root| is_local(root));
        let roots = roots.flat_map(|root| layout::root_advice(root));
        let models = self.models.iter().filter(|(_, model)| is_local(&model.dir));
        let models = models.flat_map(|(name, model)| {
            let mut advice = layout::model_advice(&model.dir);
            let hidden = layout::models_in(&model.dir);
            if let Some(first) = hidden.first().filter(|_| layout::is_model(&model.dir)) {
                let dir = model.dir.display();
                let count = hidden.len();
                advice.push(format!(
                    "{dir} is model \"{name}\", as it has numbered directories; the {count} models in it \
                     ({first}...) are not served: move the numbered ones into a directory of their own"
                ));
            }
            advice
        });
        let unused = [
            self.unused_batch_settings(),
            self.unused_pool_settings(),
            self.unused_search_settings(),
            self.unknown_exporter(),
        ];
        let unused = unused.into_iter().flatten().chain(self.long_timeouts());
        roots.chain(models).chain(unused).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::Parser;

    use super::*;
    use command_line::values::Versions;

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
    fn flags_take_precedence_over_the_file() {
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
    fn schedules_are_merged_field_by_field() {
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
    fn a_flag_of_0_runtime_threads_ends_merging() {
        let root = root();
        let file = root.path().join("millpond.toml");
        let text = "roots = [\".\"]\n[schedule]\nmode = \"async\"\ndata-dependent-shapes = true\n";
        std::fs::write(&file, text).unwrap();
        let config = ["--config", file.to_str().unwrap()];
        assert_eq!(resolve(&config).unwrap().schedule.mode, ScheduleMode::Async);
        let flags = [&config[..], &["--runtime-threads", "0"]].concat();
        assert_eq!(resolve(&flags).unwrap().schedule.mode, ScheduleMode::Sync);
    }

    #[test]
    fn only_the_start_needs_the_directory_of_recordings() {
        let root = root();
        let path = root.path().to_str().unwrap();
        let settings = resolve(&[path, "--spool-dir", "/no/such/place"]).unwrap();
        let refused = settings.into_config().err().unwrap();
        let wanted = "--spool-dir /no/such/place is not a directory";
        assert!(refused.message().starts_with(wanted), "{}", refused.message());
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
            (&["--collections-dir", "none", "--originals", "/o"], "--originals has no effect"),
            (&["--grpc-port", "8501"], "--http-port and --grpc-port are both 8501"),
            (&["--admin-port", "8500"], "--grpc-port and --admin-port are both 8500"),
            (&["--admin-host", "127.0.0.1"], "--admin-host needs --admin-port"),
            (&["--http-socket", "/s", "--grpc-socket", "/s"], "are both /s"),
            (&["--socket-mode", "0660"], "--socket-mode needs --http-socket"),
            (&["--pool", "1GiB", "--swap-reserve", "2GiB"], "--swap-reserve is larger"),
            (&["--max-body", "3GiB"], "--max-body"),
            (&["--request-memory", "1KiB"], "--request-memory must be at least"),
            (&["--request-log", "r", "--request-log-size", "0"], "--request-log-size must be at"),
            (&["--allow-remote-admin"], "--allow-remote-admin needs a key"),
            (&["--admin-key", ""], "--admin-key must be printable"),
            (&["--api-key", "a "], "--api-key must be printable"),
            (&["--allowed-hosts", "a.example,b.example:80"], "\"b.example:80\" is not a host name"),
            (&["--cors", "app.example"], "\"app.example\" is not an origin"),
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
        let own_address = ["--admin-host", "127.0.0.2", "--admin-port", "8501"];
        assert!(resolve(&[&[path][..], &own_address].concat()).is_ok());
        let settings =
            resolve(&[path, "--allow-remote-admin", "--admin-key", "k", "--allowed-hosts", "a,b"])
                .unwrap();
        assert_eq!(settings.server.allowed_hosts, ["a", "b"]);
    }
}
