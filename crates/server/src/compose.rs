//! Composes the server: the state of each router, above models and workers.

use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use api_audio::AudioState;
use api_images::{ImageRemoval, ImagesState};
use api_qdrant::CollectionsState;
use backup::BackupService;
use console::{Page, PageSources};
use inference::{InferenceService, RequestObserver};
use observe::{EndpointLoad, Exporter, RequestStarter};
use transport::RequestResources;
use transport::access::AccessPolicy;

use crate::MetricNames;
use crate::cluster::ClusterServing;
use crate::collections::Collections;
use crate::config::Config;
use crate::core::Core;
use crate::first_copies::FirstCopies;
use crate::log_filter::LogFilter;
use crate::models::ModelsState;
use crate::readiness::{Readiness, ReadinessWatchers};
use crate::reconfigure::ModelConfigurator;
use crate::shown_config::{sections, shown_config, with_models};
use crate::stores::StoreLinks;
use crate::trace_settings::TraceSettings;

/// A running server without its listeners. Each router gets its own state only.
pub(crate) struct Server {
    pub(crate) core: Core,
    pub(crate) requests: Arc<RequestResources>,
    pub(crate) access: Arc<AccessPolicy>,
    pub(crate) readiness: Arc<Readiness>,
    pub(crate) collections: Arc<Collections>,
    pub(crate) models: Arc<ModelsState>,
    pub(crate) audio: Arc<AudioState>,
    pub(crate) images: Arc<ImagesState>,
    pub(crate) qdrant: Arc<CollectionsState>,
    pub(crate) backups: Arc<BackupService>,
    /// The node of a cluster, once it works.
    pub(crate) cluster: OnceLock<ClusterServing>,
    pub(crate) page: Arc<Page>,
    pub(crate) exporter: Arc<Exporter>,
    pub(crate) http_options: HttpOptions,
}

/// Settings of the HTTP routes.
#[derive(Clone, Debug, Default)]
pub(crate) struct HttpOptions {
    /// Path of the metrics under TensorFlow Serving's names.
    pub(crate) tfs_metrics: Option<String>,
    /// Other servers whose metric names `/metrics` has too.
    pub(crate) metric_names: MetricNames,
    /// Filter of the program's log.
    pub(crate) log: Option<Arc<dyn LogFilter>>,
    /// True if the HTTP port is encrypted.
    pub(crate) encrypted: bool,
    /// Address of the admin port, if it has one of its own.
    pub(crate) admin_host: Option<IpAddr>,
}

impl HttpOptions {
    fn of(config: &Config) -> HttpOptions {
        let listeners = &config.listeners;
        HttpOptions {
            tfs_metrics: listeners.tfs_metrics.clone(),
            metric_names: listeners.metric_names,
            log: config.log.clone(),
            encrypted: listeners.encrypts_http(),
            admin_host: listeners.admin_host,
        }
    }
}

fn inference(core: &Core, request_timeout: Duration) -> Arc<InferenceService> {
    let service = InferenceService::new(
        core.lifecycle.clone(),
        core.scheduler.clone(),
        core.metrics.clone(),
        core.stats.clone(),
        request_timeout,
    );
    let observer = core.request_log.clone().map(|log| log as Arc<dyn RequestObserver>);
    Arc::new(service.with_observer(observer).with_sink(Some(core.slow.clone())))
}

fn requests(config: &Config, core: &Core) -> Arc<RequestResources> {
    Arc::new(RequestResources::new(
        config.listeners.request_limits(),
        config.listeners.request_memory(),
        core.metrics.clone(),
    ))
}

/// Returns a reader of the work in progress of audio and images.
fn endpoint_load(
    audio: &Arc<AudioState>,
    images: &Arc<ImagesState>,
) -> impl Fn() -> EndpointLoad + Send + Sync + 'static {
    let audio = audio.clone();
    let images = images.clone();
    move || EndpointLoad {
        recordings: audio.active(),
        interactive_images: images.interactive_waiting(),
        bulk_images: images.bulk_waiting(),
    }
}

fn readiness(config: &Config, core: &Core, copies: FirstCopies) -> Arc<Readiness> {
    let policy = config.listeners.readiness;
    Arc::new(Readiness::new(core.lifecycle.clone(), policy, copies))
}

/// Returns the state of the server's page.
fn page(
    core: &Core,
    models: &ModelsState,
    collections: &Arc<Collections>,
    config: &Config,
) -> Arc<Page> {
    let readiness = models.readiness.clone();
    let configurator = models.configurator.clone();
    let started = sections(config);
    Arc::new(Page::new(PageSources {
        parts: core.observed(),
        journal: core.journal.clone(),
        requests: models.requests.clone(),
        access: models.access.clone(),
        registry: collections.reader(),
        ready: Box::new(move || readiness.check().is_ok()),
        settings: Box::new(move || with_models(&started, &configurator.current())),
        shown: shown_config(config, core.engine_version.clone()),
    }))
}

fn backups(config: &Config, core: &Core, collections: &Arc<Collections>) -> Arc<BackupService> {
    let mut settings = config.search.backups();
    if config.cluster.is_some() {
        // The cluster backs up whole collections, and not the shards of each node.
        settings.every = None;
    }
    Arc::new(BackupService::new(settings, collections.clone(), core.metrics.clone()))
}

fn qdrant(
    requests: &Arc<RequestResources>,
    collections: &Arc<Collections>,
    removal: Arc<ImageRemoval>,
    access: &Arc<AccessPolicy>,
    backups: &Arc<BackupService>,
) -> Arc<CollectionsState> {
    let requests = requests.clone();
    let registry = collections.clone();
    Arc::new(CollectionsState::new(requests, registry, removal, access.clone(), backups.clone()))
}

fn starter(config: &Config, core: &Core, inference: &Arc<InferenceService>) -> RequestStarter {
    let encrypted = config.listeners.encrypts_http();
    RequestStarter::new(inference.clone(), core.tracer.clone(), encrypted)
}

fn configurator(config: &Config, core: &Core) -> Arc<ModelConfigurator> {
    let lifecycle = core.lifecycle.clone();
    let metrics = core.metrics.clone();
    let journal = core.journal.clone();
    Arc::new(ModelConfigurator::new(lifecycle, metrics, journal, &config.models))
}

/// Returns the rules of the server with its counters. If it has keys, errors name no other models.
fn access_policy(core: &Core, access: AccessPolicy) -> Arc<AccessPolicy> {
    if access.keys.is_some() {
        core.lifecycle.catalog().hide_names();
    }
    Arc::new(AccessPolicy { metrics: core.metrics.clone(), ..access })
}

impl Server {
    /// Composes the state of all routers.
    pub(crate) fn new(
        config: &Config,
        core: Core,
        access: AccessPolicy,
        links: StoreLinks,
    ) -> Server {
        let requests = requests(config, &core);
        let access = access_policy(&core, access);
        let inference = inference(&core, config.listeners.request_limits().request_timeout);
        let readiness = readiness(config, &core, links.copies);
        let are_shards = config.cluster.is_some();
        let collections = Arc::new(Collections::new(config.search.clone(), are_shards));
        let audio = Arc::new(AudioState::new(
            config.audio.clone(),
            requests.clone(),
            access.clone(),
            inference.clone(),
            core.scheduler.clone(),
        ));
        let images = Arc::new(ImagesState::new(
            config.images(),
            requests.clone(),
            access.clone(),
            inference.clone(),
            collections.clone(),
        ));
        let backups = backups(config, &core, &collections);
        let removal = Arc::new(ImageRemoval::new(&images));
        let qdrant = qdrant(&requests, &collections, removal, &access, &backups);
        let models = Arc::new(ModelsState {
            requests: requests.clone(),
            access: access.clone(),
            starter: starter(config, &core, &inference),
            traces: TraceSettings::new(core.tracer.clone()),
            log: config.log.clone(),
            inference,
            lifecycle: core.lifecycle.clone(),
            listings: links.listings,
            readiness: readiness.clone(),
            watchers: ReadinessWatchers::new(core.changes.clone()),
            configurator: configurator(config, &core),
            engine_version: core.engine_version.clone(),
            tfs_tensor_content: config.listeners.tfs_tensor_content,
            tfs_method_check: config.listeners.tfs_method_check,
            rest_timeout: config.listeners.rest_timeout,
        });
        let exporter = Arc::new(Exporter::new(
            core.observed(),
            requests.clone(),
            collections.reader(),
            access.keys.clone(),
            endpoint_load(&audio, &images),
        ));
        Server {
            page: page(&core, &models, &collections, config),
            core,
            requests,
            access,
            readiness,
            collections,
            models,
            audio,
            images,
            qdrant,
            backups,
            cluster: OnceLock::new(),
            exporter,
            http_options: HttpOptions::of(config),
        }
    }

    /// Ends the background work. Called after the listeners have ended.
    pub(crate) fn shutdown(&self) {
        self.audio.wait_ended();
        // Before the collections, which it uses.
        self.backups.shutdown();
        self.collections.close();
        self.core.scheduler.shutdown();
        if let Some(log) = &self.core.request_log {
            log.shutdown();
        }
        self.core.lifecycle.shutdown();
        if let Some(turns) = &self.core.turns {
            turns.stop();
        }
        // After all that ends with a trace.
        if let Some(tracer) = &self.core.tracer {
            tracer.shutdown();
        }
    }
}
