//! The state of the routes of models: the Open Inference Protocol, TensorFlow Serving and admin
//! calls, over HTTP and gRPC.

use std::sync::Arc;
use std::time::Duration;

use base::{Error, ErrorKind};
use inference::InferenceService;
use lifecycle::Lifecycle;
use metrics::{KindLabels, Metrics};
use transport::RequestResources;
use transport::access::AccessPolicy;

use crate::readiness::{Readiness, ReadinessWatchers};
use crate::reconfigure::ModelConfigurator;

pub(crate) struct ModelsState {
    pub(crate) requests: Arc<RequestResources>,
    pub(crate) access: Arc<AccessPolicy>,
    pub(crate) inference: Arc<InferenceService>,
    pub(crate) lifecycle: Arc<Lifecycle>,
    pub(crate) readiness: Arc<Readiness>,
    pub(crate) watchers: ReadinessWatchers,
    pub(crate) configurator: Arc<ModelConfigurator>,
    /// Name and version of the engine, for people.
    pub(crate) engine_version: String,
    /// Encode responses of Predict over gRPC with `tensor_content`.
    pub(crate) tfs_tensor_content: bool,
    /// Refuse signatures whose method is not that of the request.
    pub(crate) tfs_method_check: bool,
    /// Deadline of requests to TensorFlow Serving's REST API, besides the server's.
    pub(crate) rest_timeout: Option<Duration>,
    pub(crate) metrics: Arc<Metrics>,
}

impl ModelsState {
    /// Counts a request that was refused because its key has made too many.
    pub(crate) fn count_refusal(&self, error: &Error) {
        if error.kind() == ErrorKind::ResourceExhausted {
            self.metrics.refused.get_or_create(&KindLabels { kind: "key_rate" }).inc();
        }
    }
}
