//! Converts settings to the server's configuration. Unset values keep the server's defaults.

use std::path::{Path, PathBuf};

use command_line::environment;
use command_line::environment::{library_search, tensorflow_search, torch_search};
use command_line::exit::CommandResult;
use command_line::values::{ByteRate, ByteSize, FileMode, Host, TimeSpan, Versions};
use lifecycle::{
    ConfigSet, Converter, LifecycleConfig, ModelConfig, ModelRoot, Transition, VersionPolicy,
};
use server::{
    AudioConfig, BackupSettings, CodesPlace, Config, CorsPolicy, DataConfig, ListenerConfig,
    MemoryConfig, MetricNames, ModelListRules, ModelsConfig, PemSource, RequestLogConfig,
    SearchConfig, SearchMedium, Secret, StoreCopies, StoresConfig, TlsFiles, UpdateSettings,
};

use super::file::ModelOptions;
use super::options::{
    AudioOptions, CodesName, GpuUse, InferenceOptions, MediumName, MemoryOptions, MetricNamesOf,
    ParameterPlacementName, SearchOptions, ServerOptions, TransitionOrder,
};
use super::settings::{ListedModel, ServeSettings};
use super::traces::trace_config;
use super::worker_command;
use crate::child_process;
use crate::publish;

impl ServeSettings {
    /// Builds the server's configuration.
    ///
    /// # Errors
    /// Returns [`command_line::exit::ExitStatus::CannotStart`] if this program's path is unknown,
    /// and usage errors for settings that are checked at the start only.
    pub(crate) fn into_config(self) -> CommandResult<Config> {
        self.check_spool_dir()?;
        let traces = trace_config(&self.server)?;
        let cluster = self.cluster_config()?;
        let updates = self.update_settings(cluster.as_ref())?;
        let models = ModelsConfig { updates, ..models(&self)? };
        Ok(Config {
            listeners: listeners(&self.server),
            data: data(&self.inference),
            memory: memory(&self.memory),
            models,
            onnxruntime: library_search(self.server.onnxruntime),
            libtorch: torch_search(self.server.libtorch),
            tensorflow: tensorflow_search(self.server.tensorflow),
            audio: audio(self.audio),
            search: search(self.search),
            cluster,
            traces,
            log: None,
        })
    }
}

/// Returns the settings of the listeners, with the defaults of missing options.
fn listeners(options: &ServerOptions) -> ListenerConfig {
    let default = ListenerConfig::default();
    let time = |span: Option<TimeSpan>, default| span.map_or(default, |TimeSpan(time)| time);
    ListenerConfig {
        host: options.host.map_or(default.host, |Host(address)| address),
        http_port: options.http_port.or(default.http_port),
        grpc_port: options.grpc_port.or(default.grpc_port),
        admin_port: options.admin_port,
        admin_host: options.admin_host.map(|Host(address)| address),
        http_socket: options.http_socket.clone(),
        grpc_socket: options.grpc_socket.clone(),
        socket_mode: options.socket_mode.map_or(default.socket_mode, |FileMode(mode)| mode),
        tls: tls(options),
        keys: options.keys.clone(),
        allowed_hosts: options.allowed_hosts.clone(),
        allow_remote_admin: options.allow_remote_admin,
        admin_key: options.admin_key.clone().map(Secret),
        body_bytes_max: options
            .max_body
            .map_or(default.body_bytes_max, |ByteSize(bytes)| bytes as usize),
        connections_max: options.max_connections.unwrap_or(default.connections_max),
        requests_max: options.max_requests.unwrap_or(default.requests_max),
        request_memory_bytes: options.request_memory.map(|ByteSize(bytes)| bytes),
        request_timeout: time(options.request_timeout, default.request_timeout),
        rest_timeout: default.rest_timeout,
        listen_when_settled: default.listen_when_settled,
        readiness: options.readiness.map_or(default.readiness, Into::into),
        // Checked before.
        cors: CorsPolicy::parse(&options.cors).unwrap_or_default(),
        tfs_metrics: default.tfs_metrics,
        metric_names: MetricNames {
            triton: options.metric_names.contains(&MetricNamesOf::Triton),
            tfs: options.metric_names.contains(&MetricNamesOf::Tfs),
        },
        client_timeout: time(options.client_timeout, default.client_timeout),
        answer_window: default.answer_window,
        shutdown_grace: time(options.shutdown_grace, default.shutdown_grace),
        drain_time: default.drain_time,
        threads: options.connection_threads.unwrap_or(default.threads),
        tfs_tensor_content: options.tfs_tensor_content,
        ..ListenerConfig::default()
    }
}

/// Returns the certificates, if both `--tls-cert` and `--tls-key` are set.
fn tls(options: &ServerOptions) -> Option<TlsFiles> {
    let file = |path: &PathBuf| PemSource::File(path.clone());
    Some(TlsFiles {
        cert: options.tls_cert.as_ref().map(file)?,
        key: options.tls_key.as_ref().map(file)?,
        client_ca: options.tls_client_ca.as_ref().map(file),
    })
}

fn data(options: &InferenceOptions) -> DataConfig {
    let default = DataConfig::default();
    DataConfig {
        workers: options.threads.unwrap_or(default.workers),
        runtime_threads: options.runtime_threads.unwrap_or(default.runtime_threads),
        queue_max: options.queue.unwrap_or(default.queue_max),
        pin: options.pin,
        oversubscribe: options.oversubscribe,
        request_log: options.request_log.as_ref().map(|dir| request_log(dir, options)),
    }
}

fn request_log(dir: &Path, options: &InferenceOptions) -> RequestLogConfig {
    let default = RequestLogConfig::new(dir);
    RequestLogConfig {
        rate: options.request_log_rate.unwrap_or(default.rate),
        bytes_max: options.request_log_size.map_or(default.bytes_max, |ByteSize(bytes)| bytes),
        format: options.request_log_format.map_or(default.format, Into::into),
        ..default
    }
}

fn memory(options: &MemoryOptions) -> MemoryConfig {
    let default = MemoryConfig::default();
    let rate = |rate: Option<ByteRate>, default| rate.map_or(default, |ByteRate(bytes)| bytes);
    MemoryConfig {
        placement: match options.parameter_home {
            None => default.placement,
            Some(ParameterPlacementName::Pool) => lifecycle::ParameterPlacement::Pool,
            Some(ParameterPlacementName::Heap) => lifecycle::ParameterPlacement::Heap,
        },
        pool_bytes_max: options.pool.map(|ByteSize(bytes)| bytes),
        swap_reserve: options.swap_reserve.map(|ByteSize(bytes)| bytes),
        load_rate: rate(options.load_rate, default.load_rate),
        fault_rate: rate(options.fault_rate, default.fault_rate),
        huge_pages: !options.no_huge_pages,
        direct: !options.no_direct_io,
        spare_workers: !options.no_spare_workers,
    }
}

fn audio(options: AudioOptions) -> AudioConfig {
    let default = AudioConfig::default();
    let bytes = |size: Option<ByteSize>, default| size.map_or(default, |ByteSize(bytes)| bytes);
    AudioConfig {
        recordings_max: options.recordings.unwrap_or(default.recordings_max),
        bytes_max: bytes(options.max_recording, default.bytes_max),
        spool_bytes_max: bytes(options.max_spool, default.spool_bytes_max),
        spool_dir: options.spool_dir.or(default.spool_dir),
        speakers_dir: options.speakers_dir,
    }
}

/// Returns the settings of the search, with the defaults of missing options.
fn search(options: SearchOptions) -> SearchConfig {
    let default = SearchConfig::default();
    let bytes = |size: Option<ByteSize>, default| size.map_or(default, |ByteSize(bytes)| bytes);
    let backups = backups(&options);
    let required = options.collections_dir.is_some();
    let remote = options.originals.as_ref().is_some_and(|place| place.contains("://"));
    let directory = options.collections_dir.or_else(environment::collections_dir);
    let gpu = (options.gpu == Some(GpuUse::Auto)).then(|| gpu::GpuOptions {
        compiler: environment::compiler_search(),
        pinned_bytes_max: bytes(options.gpu_pinned, 0),
        ..gpu::GpuOptions::default()
    });
    let medium = options.search_medium.map_or(default.medium, Into::into);
    // Files in memory take half of it. Flushes and search threads need a part of the other half.
    let cache_share = if medium == SearchMedium::Dram { 4 } else { 2 };
    // On a machine with little memory, a stated cache raises the default of --search-memory.
    let for_cache = bytes(options.search_cache, 0).saturating_mul(cache_share);
    let least = default.memory_bytes.max(for_cache.min(SearchConfig::MEMORY_BYTES));
    let memory_bytes = bytes(options.search_memory, least);
    let cache_bytes = default.cache_bytes.min(memory_bytes / cache_share);
    SearchConfig {
        directory: directory.filter(|dir| dir != Path::new("none")),
        required,
        memory_bytes,
        cache_bytes: bytes(options.search_cache, cache_bytes),
        disk_reserve: options
            .search_disk_reserve
            .map(|ByteSize(bytes)| bytes)
            .or(default.disk_reserve),
        threads: options.search_threads.unwrap_or(default.threads),
        medium,
        memory_node: options.search_memory_node,
        codes: options.search_codes.map_or(default.codes, Into::into),
        build_threads: options.search_build_threads.unwrap_or(default.build_threads),
        background_rate: options
            .search_background_rate
            .map_or(default.background_rate, |ByteRate(bytes)| bytes),
        merge_segments: options.search_merge_segments.unwrap_or(default.merge_segments),
        segment_rows: options.search_segment_rows.unwrap_or(default.segment_rows),
        originals: options.originals,
        originals_options: remote.then(environment::object_stores).unwrap_or_default(),
        embedding_model: options.embedding_model,
        collections_max: default.collections_max,
        api_key: options.api_key,
        gpu,
        backups,
    }
}

fn backups(options: &SearchOptions) -> BackupSettings {
    let default = BackupSettings::default();
    let remote = options.backup_dir.as_ref().is_some_and(|place| place.contains("://"));
    BackupSettings {
        place: options.backup_dir.clone(),
        options: remote.then(environment::object_stores).unwrap_or_default(),
        rate: options
            .backup_rate
            .map_or(default.rate, |ByteRate(bytes)| os::Rate::per_second(bytes)),
        every: options.backup_every.map(|TimeSpan(time)| time),
        keep_newest: options.backup_keep,
    }
}

impl From<CodesName> for CodesPlace {
    fn from(name: CodesName) -> CodesPlace {
        match name {
            CodesName::Auto => CodesPlace::Auto,
            CodesName::Dram => CodesPlace::Dram,
            CodesName::Medium => CodesPlace::Medium,
        }
    }
}

impl From<MediumName> for SearchMedium {
    fn from(name: MediumName) -> SearchMedium {
        match name {
            MediumName::Auto => SearchMedium::Auto,
            MediumName::Nvme => SearchMedium::Nvme,
            MediumName::Dram => SearchMedium::Dram,
            MediumName::Mmap => SearchMedium::Mmap,
            MediumName::Dax => SearchMedium::Dax,
        }
    }
}

/// Returns the settings of models and their loads, with the defaults of missing options.
fn models(settings: &ServeSettings) -> CommandResult<ModelsConfig> {
    let program = child_process::program()?;
    let options = &settings.lifecycle;
    let cache_dir = options.cache_dir.clone().unwrap_or_else(environment::cache_dir);
    let default = LifecycleConfig::new(cache_dir.join("converted"), Converter::default());
    let ConfigSet { models, roots } = config_set(settings);
    let template =
        ListedModel { dir: PathBuf::new(), options: ModelOptions::default(), has_section: false };
    let template = model_config("", &template, settings);
    Ok(ModelsConfig {
        models,
        roots,
        poll: options.poll.map_or(default.poll, |TimeSpan(time)| time),
        poll_once: false,
        load_threads: options.load_threads.unwrap_or(default.load_threads),
        unload_threads: options.unload_threads.unwrap_or(default.unload_threads),
        load_retries: options.load_retries.unwrap_or(default.retries),
        load_retry_interval: options
            .load_retry_interval
            .map_or(default.retry_interval, |TimeSpan(time)| time),
        load_timeout: options.load_timeout.map_or(default.load_timeout, |TimeSpan(time)| time),
        // Parameters on the heap are the baseline of other servers, which load at normal priority.
        background: default.background
            && settings.memory.parameter_home != Some(ParameterPlacementName::Heap),
        cache_dir: default.cache_dir,
        converter: publish::converter(&program, settings.server.tensorflow.as_deref()),
        worker: worker_command(
            &program,
            settings.server.onnxruntime.as_deref(),
            settings.server.libtorch.as_deref(),
            settings.server.tensorflow.as_deref(),
        ),
        lists: ModelListRules {
            template,
            stores: Some(StoreCopies { cache_dir, options: environment::object_stores() }),
            log_dir: settings.inference.request_log.clone(),
            ..ModelListRules::default()
        },
        stores: stores(settings),
        updates: UpdateSettings::default(),
    })
}

fn stores(settings: &ServeSettings) -> StoresConfig {
    let default = StoresConfig::default();
    let bytes = settings.lifecycle.store_cache.map(|ByteSize(bytes)| bytes);
    // A file that is read again can add a store later.
    StoresConfig {
        options: environment::object_stores(),
        cache_bytes_max: bytes.unwrap_or(default.cache_bytes_max),
        awaits_copies: false,
    }
}

/// Builds the models and roots, which are the part of the configuration that can change while
/// serving.
pub(super) fn config_set(settings: &ServeSettings) -> ConfigSet {
    let model = |(name, model): (&String, &ListedModel)| model_config(name, model, settings);
    ConfigSet {
        models: settings.models.iter().map(model).collect(),
        roots: settings.roots.iter().map(|dir| root(dir, settings)).collect(),
    }
}

/// Returns the configuration of a model: its own options, then those of all models, then defaults.
fn model_config(name: &str, model: &ListedModel, settings: &ServeSettings) -> ModelConfig {
    let mut config = ModelConfig::new(name, &model.dir);
    config.store = settings.stores.get(&model.dir).cloned();
    let own = &model.options;
    let all = &settings.lifecycle;
    config.schedule = own.schedule.apply(&settings.schedule);
    config.rollout = own.rollout.over(&settings.rollout);
    config.policy = policy(own.versions.as_ref().or(all.versions.as_ref()));
    config.transition = transition(own.transition.or(all.transition));
    config.session.intra_op_threads =
        own.intra_op_threads.unwrap_or(config.session.intra_op_threads);
    config.session.inter_op_threads =
        own.inter_op_threads.unwrap_or(config.session.inter_op_threads);
    config.session.isolate = own.isolate.unwrap_or(config.session.isolate);
    config.in_process = own.isolate == Some(false);
    config.has_section = model.has_section;
    config.request_log_rate = own.request_log_rate;
    config.labels = own.labels.clone();
    config
}

/// Builds the configuration of a directory of models. Models that appear later get the same
/// settings.
fn root(dir: &Path, settings: &ServeSettings) -> ModelRoot {
    let all = &settings.lifecycle;
    ModelRoot {
        dir: dir.to_owned(),
        store: settings.stores.get(dir).cloned(),
        policy: policy(all.versions.as_ref()),
        transition: transition(all.transition),
        schedule: settings.schedule.clone(),
        rollout: settings.rollout.clone(),
    }
}

fn policy(versions: Option<&Versions>) -> VersionPolicy {
    match versions {
        None => VersionPolicy::default(),
        Some(Versions::Latest(count)) => VersionPolicy::Latest(*count),
        Some(Versions::All) => VersionPolicy::All,
        Some(Versions::Specific(numbers)) => VersionPolicy::Specific(numbers.clone()),
    }
}

fn transition(order: Option<TransitionOrder>) -> Transition {
    order.map(Into::into).unwrap_or_default()
}

impl From<TransitionOrder> for Transition {
    fn from(order: TransitionOrder) -> Transition {
        match order {
            TransitionOrder::AvailabilityPreserving => Transition::AvailabilityPreserving,
            TransitionOrder::ResourcePreserving => Transition::ResourcePreserving,
        }
    }
}

#[cfg(test)]
mod tests {
    use engine::{ScheduleFile, ScheduleOptions};

    use super::*;
    use crate::serve::file::example;
    use crate::serve::options::LifecycleOptions;

    #[test]
    fn settings_for_all_reach_roots() {
        let settings = ServeSettings {
            lifecycle: LifecycleOptions {
                versions: Some(Versions::All),
                transition: Some(TransitionOrder::ResourcePreserving),
                ..LifecycleOptions::default()
            },
            schedule: ScheduleOptions { max_batch: 9, ..ScheduleOptions::default() },
            ..ServeSettings::default()
        };
        let root = root(Path::new("/models"), &settings);
        assert_eq!(
            (root.policy, root.transition),
            (VersionPolicy::All, Transition::ResourcePreserving)
        );
        assert_eq!(root.schedule.max_batch, 9);
        let schedule = ScheduleFile { weight: Some(5), ..ScheduleFile::default() };
        let options = ModelOptions { schedule, ..ModelOptions::default() };
        let model = model_config(
            "m",
            &ListedModel { dir: "/m".into(), options, has_section: true },
            &settings,
        );
        assert_eq!((model.schedule.max_batch, model.schedule.weight), (9, 5));
    }

    #[test]
    fn spare_workers_can_be_turned_off() {
        let options = MemoryOptions { no_spare_workers: true, ..MemoryOptions::default() };
        assert!(!memory(&options).spare_workers);
        assert!(memory(&MemoryOptions::default()).spare_workers);
    }

    #[test]
    fn the_default_cache_fits_in_little_search_memory() {
        let size = |bytes| Some(ByteSize(bytes));
        let options = SearchOptions { search_memory: size(64 << 20), ..SearchOptions::default() };
        assert_eq!(search(options.clone()).cache_bytes, 32 << 20);
        let dram = SearchOptions { search_medium: Some(MediumName::Dram), ..options.clone() };
        assert_eq!(search(dram).cache_bytes, 16 << 20);
        let stated = SearchOptions { search_cache: size(64 << 20), ..options };
        assert_eq!(search(stated).cache_bytes, 64 << 20);
        let much = SearchOptions { search_memory: size(2 << 30), ..SearchOptions::default() };
        assert_eq!(search(much).cache_bytes, 256 << 20);
    }

    #[test]
    fn a_stated_cache_fits_in_the_default_search_memory() {
        let size = |bytes| Some(ByteSize(bytes));
        let cache = SearchOptions { search_cache: size(1 << 30), ..SearchOptions::default() };
        let config = search(cache);
        assert_eq!((config.memory_bytes, config.cache_bytes), (2 << 30, 1 << 30));
        // Too large for any default: the server refuses it, and names both settings.
        let much = SearchOptions { search_cache: size(64 << 30), ..SearchOptions::default() };
        assert_eq!(search(much).memory_bytes, 2 << 30);
        // By default, a machine with little memory has less.
        let config = search(SearchOptions::default());
        assert!(config.memory_bytes <= 2 << 30 && config.cache_bytes <= config.memory_bytes / 2);
    }

    /// The commented values of the example are the defaults, and each sets its own field.
    #[test]
    fn the_example_shows_the_defaults() {
        let mut file = example();
        (file.server.request_memory, file.server.admin_key) = (None, None);
        (file.server.grpc_socket, file.server.http_socket) = (None, None);
        (file.server.admin_port, file.server.admin_host) = (None, None);
        (file.server.cors, file.server.metric_names) = (Vec::new(), Vec::new());
        (file.server.tls_cert, file.server.tls_key) = (None, None);
        (file.server.tls_client_ca, file.server.keys) = (None, None);
        assert_eq!(
            format!("{:?}", listeners(&file.server)),
            format!("{:?}", ListenerConfig::default())
        );
        let data = data(&file.inference);
        let dir = data.request_log.as_ref().map(|log| log.dir.clone()).unwrap();
        assert_eq!(data.request_log, Some(RequestLogConfig::new(dir)));
        let wanted = DataConfig { request_log: data.request_log.clone(), ..DataConfig::default() };
        assert_eq!(format!("{data:?}"), format!("{wanted:?}"));
        (file.memory.pool, file.memory.swap_reserve) = (None, None);
        (file.schedule.threads, file.schedule.queue, file.schedule.timeout) = (None, None, None);
        assert_eq!(file.schedule.apply(&ScheduleOptions::default()), ScheduleOptions::default());
        (file.audio.spool_dir, file.audio.speakers_dir) = (None, None);
        (file.search.originals, file.search.embedding_model, file.search.api_key) =
            (None, None, None);
        file.search.search_disk_reserve = None;
        file.search.search_memory_node = None;
        // Their defaults depend on the machine.
        (file.search.search_memory, file.search.search_cache) = (None, None);
        file.search.search_build_threads = None;
        (file.search.backup_dir, file.search.backup_every, file.search.backup_keep) =
            (None, None, None);
        file.search.collections_dir = Some("none".into());
        let wanted = SearchConfig { required: true, ..SearchConfig::default() };
        assert_eq!(search(file.search.clone()), wanted);
        assert_eq!(
            format!("{:?}", audio(file.audio.clone())),
            format!("{:?}", AudioConfig::default())
        );
        assert_eq!(format!("{:?}", memory(&file.memory)), format!("{:?}", MemoryConfig::default()));
    }
}
