//! The running server, as its handlers see it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use api_audio::AudioState;
use api_images::ImagesState;
use base::{Error, Result};
use inference::InferenceService;
use lifecycle::{Lifecycle, ParameterPlacement};
use metrics::Metrics;
use schedule::Scheduler;
use search::registry::Registry;
use transport::RequestResources;
use transport::access::AccessPolicy;

use crate::collections::Collections;
use crate::compose::Core;
use crate::config::Config;
use crate::page::Page;

/// State that the handlers of all routes share.
pub(crate) type Shared = transport::Shared<App>;

/// The running server, as its handlers see it.
pub(crate) struct App {
    /// Limits and resources of all requests.
    pub(crate) requests: Arc<RequestResources>,
    /// Rules by which requests are accepted.
    pub(crate) access: Arc<AccessPolicy>,
    /// Encode answers of Predict over gRPC with `tensor_content`.
    pub(crate) tfs_tensor_content: bool,
    pub(crate) inference: Arc<InferenceService>,
    pub(crate) lifecycle: Arc<Lifecycle>,
    pub(crate) scheduler: Arc<Scheduler>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) page: Arc<Page>,
    pub(crate) memory: Arc<memory::ParameterStore>,
    pub(crate) engine_version: String,
    /// True if parameters live in the slot pool (otherwise in malloc).
    pub(crate) parameters_in_pool: bool,
    /// State of audio requests.
    pub(crate) audio: Arc<AudioState>,
    /// State of image requests.
    pub(crate) images: Arc<ImagesState>,
    /// Collections and their settings.
    pub(crate) collections: Arc<Collections>,
    /// Held while gauges are rebuilt and encoded, so that scrapes do not clear each other's series.
    pub(crate) scrape: Mutex<()>,
    stopping: AtomicBool,
}

impl App {
    pub(crate) fn new(config: &Config, core: Core) -> App {
        crate::exporter::started();
        let limits = config.listeners.request_limits();
        let requests = Arc::new(RequestResources::new(
            limits,
            config.listeners.request_memory(),
            core.metrics.clone(),
        ));
        let access = Arc::new(config.access_policy());
        let inference = Arc::new(InferenceService::new(
            core.lifecycle.clone(),
            core.scheduler.clone(),
            core.metrics.clone(),
            core.stats.clone(),
            limits.request_timeout,
        ));
        let collections = Arc::new(Collections::new(config.search.clone()));
        let images = Arc::new(ImagesState::new(
            config.search.images(),
            requests.clone(),
            access.clone(),
            inference.clone(),
            collections.clone(),
        ));
        let audio = Arc::new(AudioState::new(
            config.audio.clone(),
            requests.clone(),
            access.clone(),
            inference.clone(),
            core.scheduler.clone(),
        ));
        App {
            audio,
            images,
            collections,
            scrape: Mutex::new(()),
            stopping: AtomicBool::new(false),
            parameters_in_pool: config.memory.placement == ParameterPlacement::Pool,
            requests,
            access,
            tfs_tensor_content: config.listeners.tfs_tensor_content,
            inference,
            lifecycle: core.lifecycle,
            scheduler: core.scheduler,
            metrics: core.metrics,
            page: core.page,
            memory: core.memory,
            engine_version: core.engine_version,
        }
    }

    /// Checks that every model that should serve does, and that the server is not stopping. A model
    /// whose old version serves while a new one failed counts as serving.
    ///
    /// # Errors
    /// `Unavailable` with the reason.
    pub(crate) fn ready(&self) -> Result<()> {
        if self.stopping.load(Ordering::Relaxed) {
            return Err(Error::unavailable("the server is shutting down"));
        }
        if !self.lifecycle.settled() {
            return Err(Error::unavailable("the first load is not finished"));
        }
        match self.lifecycle.catalog().failure() {
            Some((model, reason)) => {
                Err(Error::unavailable(format!("model \"{model}\" does not serve: {reason}")))
            }
            None => Ok(()),
        }
    }

    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    /// The collections.
    ///
    /// # Errors
    /// `FailedPrecondition`, with the remedy, if this server has none.
    pub(crate) fn registry(&self) -> Result<Arc<Registry>> {
        self.collections.registry()
    }
}
