//! The settings file: `millpond.toml`.
//!
//! Sections are the groups of flags, keys the names of flags. `[models.NAME]` adds models and the
//! settings of one model. Paths are relative to the file's directory, so that it can be moved with
//! its models.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use command_line::exit::{CommandError, CommandResult};
use command_line::values::{Versions, check_name};
use engine::ScheduleFile;
use lifecycle::RolloutFile;
use serde::Deserialize;

use crate::serve::file_error;
use crate::serve::options::{
    AudioOptions, ClusterOptions, InferenceOptions, LifecycleOptions, MemoryOptions, SearchOptions,
    ServerOptions, TransitionOrder,
};

/// Maximum size of a settings file.
pub(super) const FILE_BYTES_MAX: u64 = 1 << 20;

/// A parsed settings file.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub(crate) struct SettingsFile {
    pub(crate) server: ServerOptions,
    pub(crate) inference: InferenceOptions,
    pub(crate) memory: MemoryOptions,
    pub(crate) lifecycle: LifecycleOptions,
    pub(crate) audio: AudioOptions,
    pub(crate) search: SearchOptions,
    pub(crate) cluster: ClusterOptions,
    /// Scheduling of all models without settings of their own.
    pub(crate) schedule: ScheduleFile,
    /// Rollouts of all models without settings of their own.
    pub(crate) rollout: RolloutFile,
    /// Directories, or URLs of object stores, whose subdirectories are models.
    pub(crate) roots: Vec<PathBuf>,
    pub(crate) models: BTreeMap<String, ModelOptions>,
}

/// `[models.NAME]`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub(crate) struct ModelOptions {
    /// The model's directory, or its URL in an object store. Optional if the command line or a root
    /// has the model.
    pub(crate) path: Option<PathBuf>,
    /// Version policy.
    pub(crate) versions: Option<Versions>,
    /// Order of load and unload.
    pub(crate) transition: Option<TransitionOrder>,
    /// Names for versions, as in `stable = 3`.
    pub(crate) labels: BTreeMap<String, u64>,
    /// Number of threads inside one operator.
    pub(crate) intra_op_threads: Option<usize>,
    /// Number of operators of one run that run concurrently.
    pub(crate) inter_op_threads: Option<usize>,
    /// Run it in a worker process.
    pub(crate) isolate: Option<bool>,
    /// Part of its requests for the request log.
    pub(crate) request_log_rate: Option<f64>,
    /// Scheduling of this model.
    pub(crate) schedule: ScheduleFile,
    /// Rollouts of this model's versions.
    pub(crate) rollout: RolloutFile,
}

impl SettingsFile {
    /// Reads and parses `path`.
    ///
    /// # Errors
    /// Returns a usage error that names file, line and key.
    pub(crate) fn read(path: &Path) -> CommandResult<SettingsFile> {
        let unreadable = |why: &dyn std::fmt::Display| {
            CommandError::usage(format!("settings file {}: {why}", path.display()))
        };
        let meta = std::fs::metadata(path).map_err(|error| unreadable(&error))?;
        if !meta.is_file() {
            return Err(unreadable(&"is not a file"));
        }
        if meta.len() > FILE_BYTES_MAX {
            return Err(unreadable(&"larger than 1 MiB"));
        }
        let text = std::fs::read_to_string(path).map_err(|error| unreadable(&error))?;
        let mut file = SettingsFile::parse(&text, path)?;
        file.resolve_paths(path.parent().unwrap_or(Path::new("")));
        Ok(file)
    }

    pub(crate) fn parse(text: &str, path: &Path) -> CommandResult<SettingsFile> {
        let file: SettingsFile =
            toml::from_str(text).map_err(|error| file_error::describe(&error, text, path))?;
        for name in file.models.keys() {
            check_name(name).map_err(|error| {
                CommandError::usage(format!("{}: [models]: {}", path.display(), error.message()))
            })?;
        }
        Ok(file)
    }

    /// Makes the relative paths of the file relative to the directory `base`, in which the file is.
    fn resolve_paths(&mut self, base: &Path) {
        let models = self.models.values_mut().filter_map(|model| model.path.as_mut());
        let server = &mut self.server;
        let audio = &mut self.audio;
        let cluster = &mut self.cluster;
        // "none" is a keyword and a URL is not a path, so both stay as they are.
        let search =
            self.search.collections_dir.as_mut().filter(|dir| dir.as_path() != Path::new("none"));
        let others = [
            server.onnxruntime.as_mut(),
            server.libtorch.as_mut(),
            server.tensorflow.as_mut(),
            server.http_socket.as_mut(),
            server.grpc_socket.as_mut(),
            server.tls_cert.as_mut(),
            server.tls_key.as_mut(),
            server.tls_client_ca.as_mut(),
            server.keys.as_mut(),
            self.lifecycle.cache_dir.as_mut(),
            self.inference.request_log.as_mut(),
            audio.spool_dir.as_mut(),
            audio.speakers_dir.as_mut(),
            cluster.cluster_etcd_ca.as_mut(),
            cluster.cluster_etcd_cert.as_mut(),
            cluster.cluster_etcd_key.as_mut(),
            cluster.cluster_tls_ca.as_mut(),
            search,
        ];
        let stores =
            [&mut self.search.originals, &mut self.search.backup_dir, &mut cluster.cluster_store];
        for place in stores.into_iter().flatten().filter(|place| !place.contains("://")) {
            *place = base.join(&*place).to_string_lossy().into_owned();
        }
        let places = models.chain(self.roots.iter_mut()).filter(|path| !is_url(path));
        for path in places.chain(others.into_iter().flatten()) {
            *path = base.join(&*path);
        }
    }
}

/// Returns true for the URL of a store.
pub(super) fn is_url(path: &Path) -> bool {
    path.to_str().is_some_and(model_store::is_url)
}

#[cfg(test)]
const EXAMPLE: &str = include_str!("../../../../docs/millpond.toml");

/// Parses `docs/millpond.toml` with all commented lines enabled.
#[cfg(test)]
pub(super) fn example() -> SettingsFile {
    let setting = |rest: &&str| rest.contains(" = ") || rest.starts_with('[');
    let lines = EXAMPLE.lines().map(|line| line.strip_prefix("# ").filter(setting).unwrap_or(line));
    SettingsFile::parse(&lines.collect::<Vec<_>>().join("\n"), Path::new("docs/millpond.toml"))
        .unwrap()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::serve::options::ScheduleFlags;
    use command_line::values::{ByteSize, TimeSpan};

    fn parse(text: &str) -> Result<SettingsFile, String> {
        SettingsFile::parse(text, Path::new("m.toml"))
            .map_err(|failure| failure.message().to_owned())
    }

    #[test]
    fn sections_and_keys_are_read() {
        let mut file = parse(
            r#"
            roots = ["all", "s3://bucket/all"]
            [server]
            http-port = 0
            request-timeout = "250ms"
            client-timeout = 3
            allow-remote-admin = true
            [memory]
            pool = "2GiB"
            [models.ctr]
            path = "ctr"
            versions = "latest:2"
            labels = { stable = 3 }
            [schedule]
            queue = 7
            [models.ctr.schedule]
            mode = "async"
            [inference]
            workers = 3
            "#,
        )
        .unwrap();
        file.resolve_paths(Path::new("/etc/millpond"));
        assert_eq!(file.server.http_port, Some(0));
        assert_eq!(file.server.request_timeout, Some(TimeSpan(Duration::from_millis(250))));
        assert_eq!(file.server.client_timeout, Some(TimeSpan(Duration::from_secs(3))));
        assert!(file.server.allow_remote_admin);
        assert_eq!(file.memory.pool, Some(ByteSize(2 << 30)));
        assert_eq!(file.models["ctr"].versions, Some(Versions::Latest(2)));
        assert_eq!(file.models["ctr"].path.as_deref(), Some(Path::new("/etc/millpond/ctr")));
        let roots = ["/etc/millpond/all", "s3://bucket/all"].map(PathBuf::from);
        assert_eq!(file.roots, roots, "a URL stays as it is");
        assert_eq!((file.schedule.queue, file.schedule.mode), (Some(7), None));
        assert_eq!(file.models["ctr"].schedule.mode, Some(engine::ModeText::Async));
        assert_eq!(file.inference.threads, Some(3), "the key's earlier name");
    }

    #[test]
    fn stores_are_relative_to_the_file_unless_they_are_urls() {
        let text = "[search]\nbackup-dir = \"backups\"\noriginals = \"s3://bucket/originals\"\n\
                    [cluster]\ncluster-store = \"store\"\n";
        let mut file = parse(text).unwrap();
        file.resolve_paths(Path::new("/etc/millpond"));
        assert_eq!(file.search.backup_dir.as_deref(), Some("/etc/millpond/backups"));
        assert_eq!(file.search.originals.as_deref(), Some("s3://bucket/originals"));
        assert_eq!(file.cluster.cluster_store.as_deref(), Some("/etc/millpond/store"));
    }

    #[test]
    fn errors_name_file_line_and_key() {
        let error = parse("[server]\nhttp-port = 1\nhtp-port = 2\n").unwrap_err();
        assert!(
            error.starts_with("m.toml:3: unknown key `htp-port`; did you mean `http-port`?"),
            "{error}"
        );
        let error = parse("[sever]\n").unwrap_err();
        assert!(error.starts_with("m.toml:1: unknown key `sever`"), "{error}");
        let error = parse("[models.m.schedule]\nmax-bach = 2\n").unwrap_err();
        assert!(error.starts_with("m.toml:2: unknown key `max-bach`"), "{error}");
        let error = parse("[inference]\nthreads = 2\nworkers = 2\n").unwrap_err();
        assert!(error.contains("duplicate field `threads`"), "{error}");
        let error = parse("[memory]\npool = \"5 parsecs\"\n").unwrap_err();
        assert!(error.starts_with("m.toml:2: ") && error.contains("unknown size unit"), "{error}");
        let error = parse("[server]\nhttp-port = 70000\n").unwrap_err();
        assert!(error.starts_with("m.toml:2: "), "{error}");
        let error = parse("[models.\"a/b\"]\npath = \"x\"\n").unwrap_err();
        assert!(error.contains("\"a/b\" is not a model name"), "{error}");
    }

    /// The example parses with all lines enabled, and has every flag.
    #[test]
    fn the_example_is_whole() {
        use clap::Args as _;
        let file = example();
        // Destructured, so that a new key must be documented too.
        let ModelOptions {
            path,
            versions,
            transition,
            labels,
            intra_op_threads,
            inter_op_threads,
            isolate,
            request_log_rate,
            schedule: _,
            rollout: _,
        } = file.models["ctr"].clone();
        assert_eq!(labels["canary"], 4);
        assert!(path.is_some() && versions.is_some() && transition.is_some());
        assert!(intra_op_threads.is_some() && inter_op_threads.is_some());
        assert!(isolate.is_some() && request_log_rate.is_some());
        let sections = [
            ServerOptions::augment_args(clap::Command::new("")),
            InferenceOptions::augment_args(clap::Command::new("")),
            MemoryOptions::augment_args(clap::Command::new("")),
            LifecycleOptions::augment_args(clap::Command::new("")),
            AudioOptions::augment_args(clap::Command::new("")),
            SearchOptions::augment_args(clap::Command::new("")),
            ScheduleFlags::augment_args(clap::Command::new("")),
        ];
        for flag in
            sections.iter().flat_map(clap::Command::get_arguments).filter_map(clap::Arg::get_long)
        {
            assert!(EXAMPLE.contains(&format!("\n# {flag} = ")), "{flag}");
        }
    }

    #[test]
    fn the_example_has_every_key_of_the_schedule() {
        // Destructured, so that a new key must be documented too.
        let ScheduleFile {
            mode,
            threads,
            weight,
            max_batch,
            max_queue_delay,
            preferred_batch_sizes,
            allowed_batch_sizes,
            always_merge,
            data_dependent_shapes,
            queue,
            timeout,
            default_priority,
            priorities,
            merge,
            inputs: _,
            outputs: _,
        } = example().schedule;
        assert!(mode.is_some() && threads.is_some() && weight.is_some());
        assert!(max_batch.is_some() && max_queue_delay.is_some());
        assert!(preferred_batch_sizes.is_some() && allowed_batch_sizes.is_some());
        assert!(always_merge.is_some() && data_dependent_shapes.is_some());
        assert!(queue.is_some() && timeout.is_some() && default_priority.is_some());
        assert!(priorities.is_some() && merge.is_some());
    }
}
