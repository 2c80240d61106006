//! The state of the routes of models: the Open Inference Protocol, TensorFlow Serving and admin
//! calls, over HTTP and gRPC.

use std::sync::Arc;
use std::time::Duration;

use inference::InferenceService;
use lifecycle::Lifecycle;
use model_store::ListingRequests;
use observe::RequestStarter;
use transport::RequestResources;
use transport::access::AccessPolicy;

use crate::log_filter::LogFilter;
use crate::readiness::{Readiness, ReadinessWatchers};
use crate::reconfigure::ModelConfigurator;
use crate::trace_settings::TraceSettings;

pub(crate) struct ModelsState {
    pub(crate) requests: Arc<RequestResources>,
    pub(crate) access: Arc<AccessPolicy>,
    pub(crate) inference: Arc<InferenceService>,
    pub(crate) starter: RequestStarter,
    pub(crate) traces: TraceSettings,
    /// Filter of the program's log.
    pub(crate) log: Option<Arc<dyn LogFilter>>,
    pub(crate) lifecycle: Arc<Lifecycle>,
    /// Asks for a listing of the models' stores.
    pub(crate) listings: ListingRequests,
    pub(crate) readiness: Arc<Readiness>,
    pub(crate) watchers: ReadinessWatchers,
    pub(crate) configurator: Arc<ModelConfigurator>,
    /// Name and version of the engine, for people.
    pub(crate) engine_version: String,
    /// True if responses of Predict over gRPC have `tensor_content`.
    pub(crate) tfs_tensor_content: bool,
    /// True to refuse signatures whose method differs from the method of the request.
    pub(crate) tfs_method_check: bool,
    /// Deadline of requests to TensorFlow Serving's REST API, besides the server's.
    pub(crate) rest_timeout: Option<Duration>,
}
