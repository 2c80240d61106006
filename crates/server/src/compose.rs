//! Composes the server: the state of each router, above models and workers.

use std::sync::Arc;
use std::time::Duration;

use api_audio::AudioState;
use api_images::{ImageRemoval, ImagesState};
use api_qdrant::CollectionsState;
use inference::{InferenceService, RequestObserver};
use transport::RequestResources;
use transport::access::AccessPolicy;

use crate::collections::Collections;
use crate::config::Config;
use crate::core::Core;
use crate::exporter::Exporter;
use crate::log_filter::LogFilter;
use crate::models::ModelsState;
use crate::page::Page;
use crate::readiness::{Readiness, ReadinessWatchers};
use crate::reconfigure::ModelConfigurator;

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
    pub(crate) page: Arc<Page>,
    pub(crate) exporter: Arc<Exporter>,
    pub(crate) http_options: HttpOptions,
}

/// Settings of the HTTP routes.
#[derive(Clone, Debug, Default)]
pub(crate) struct HttpOptions {
    /// Let pages of other sites use the API.
    pub(crate) cors: bool,
    /// Path of the metrics under TensorFlow Serving's names.
    pub(crate) tfs_metrics: Option<String>,
    /// Filter of the program's log.
    pub(crate) log: Option<Arc<dyn LogFilter>>,
}

impl HttpOptions {
    fn of(config: &Config) -> HttpOptions {
        let listeners = &config.listeners;
        HttpOptions {
            cors: listeners.cors,
            tfs_metrics: listeners.tfs_metrics.clone(),
            log: config.log.clone(),
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
    Arc::new(service.with_observer(observer))
}

impl Server {
    /// Composes the state of all routers.
    pub(crate) fn new(config: &Config, core: Core, access: AccessPolicy) -> Server {
        let limits = config.listeners.request_limits();
        let requests = Arc::new(RequestResources::new(
            limits,
            config.listeners.request_memory(),
            core.metrics.clone(),
        ));
        let access = Arc::new(access);
        let inference = inference(&core, limits.request_timeout);
        let readiness =
            Arc::new(Readiness::new(core.lifecycle.clone(), config.listeners.readiness));
        let collections = Arc::new(Collections::new(config.search.clone()));
        let audio = Arc::new(AudioState::new(
            config.audio.clone(),
            requests.clone(),
            access.clone(),
            inference.clone(),
            core.scheduler.clone(),
        ));
        let images = Arc::new(ImagesState::new(
            config.search.images(),
            requests.clone(),
            access.clone(),
            inference.clone(),
            collections.clone(),
        ));
        let qdrant = Arc::new(CollectionsState::new(
            requests.clone(),
            collections.clone(),
            Arc::new(ImageRemoval::new(&images)),
        ));
        let (lifecycle, metrics) = (core.lifecycle.clone(), core.metrics.clone());
        let configurator = Arc::new(ModelConfigurator::new(lifecycle, metrics, &config.models));
        let models = Arc::new(ModelsState {
            requests: requests.clone(),
            access: access.clone(),
            inference,
            lifecycle: core.lifecycle.clone(),
            readiness: readiness.clone(),
            watchers: ReadinessWatchers::new(core.changes.clone()),
            configurator,
            engine_version: core.engine_version.clone(),
            tfs_tensor_content: config.listeners.tfs_tensor_content,
            tfs_method_check: config.listeners.tfs_method_check,
            rest_timeout: config.listeners.rest_timeout,
            metrics: core.metrics.clone(),
        });
        let exporter = Arc::new(Exporter::new(
            core.clone(),
            requests.clone(),
            audio.clone(),
            images.clone(),
            collections.clone(),
        ));
        Server {
            page: Arc::new(Page::new(core.clone(), readiness.clone())),
            core,
            requests,
            access,
            readiness,
            collections,
            models,
            audio,
            images,
            qdrant,
            exporter,
            http_options: HttpOptions::of(config),
        }
    }

    /// Ends the background work. Called after the listeners have ended.
    pub(crate) fn shutdown(&self) {
        self.audio.wait_ended();
        self.collections.close();
        self.core.scheduler.shutdown();
        if let Some(log) = &self.core.request_log {
            log.shutdown();
        }
        self.core.lifecycle.shutdown();
    }
}
