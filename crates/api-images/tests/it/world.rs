//! A server of images without sockets: a registry, the routes, and a model of the fake engine.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use api_images::{
    ExtractedQuery, ImageSettings, ImagesConfig, ImagesState, LoggedPoint, apply_image_operation,
    features_operation, images_operation, read_features, routes, shard_routes,
};
use api_qdrant::RegistrySource;
use axum::Router;
use axum::body::Body;
use engine::Servable;
use engine::fake::FakeEngine;
use engine::fake::publish::publish;
use http::{Method, Request, StatusCode, header};
use http_body_util::BodyExt;
use image_features::testing::{open, photos};
use inference::{InferenceService, InferenceStats};
use lifecycle::{
    Converter, Lifecycle, LifecycleConfig, LifecycleEvent, ModelRoot, Observer, WarmupSet,
    WarmupSource,
};
use memory::{ParameterStore, PoolConfig, SlotPool, StoreConfig};
use metrics::{KindLabels, Metrics};
use model_store::StorePlace;
use object_store::ObjectStore;
use os::Rate;
use schedule::{Scheduler, SchedulerConfig};
use search::points::PointId;
use search::registry::{NamedCollection, Registry};
use serde_json::Value;
use tokio::task::JoinHandle;
use tower::ServiceExt;
use transport::access::{AccessPolicy, CorsPolicy};
use transport::{HeaderTimeout, Peer, RequestLimits, RequestResources};
use vision::{Image, thumbnail};

const WAIT_MAX: Duration = Duration::from_secs(60);
/// Name of the model, which gives [`DIMS`] values: the colours of six regions.
pub(crate) const MODEL: &str = image_features::testing::MODEL;
pub(crate) const DIMS: usize = 18;
const COLOUR: &str =
    "millpond-fake 1\ninput x float32 n 3 2 3\noutput y float32 n 18\ny = echo x\n";

struct NoEvents;

impl Observer for NoEvents {
    fn event(&self, _: &LifecycleEvent) {}
}

struct NoRequests;

impl WarmupSource for NoRequests {
    fn requests(&self, _: &Path, _: &Servable) -> base::Result<WarmupSet> {
        Ok(WarmupSet::default())
    }
}

struct OneRegistry(Arc<Registry>);

impl RegistrySource for OneRegistry {
    fn registry(&self) -> base::Result<Arc<Registry>> {
        Ok(self.0.clone())
    }

    fn opened(&self) -> Option<Arc<Registry>> {
        Some(self.0.clone())
    }
}

pub(crate) struct World {
    pub(crate) registry: Arc<Registry>,
    pub(crate) images: Arc<ImagesState>,
    pub(crate) requests: Arc<RequestResources>,
    pub(crate) directory: tempfile::TempDir,
    metrics: Arc<Metrics>,
    router: Router,
    runtime: tokio::runtime::Runtime,
    _lifecycle: Arc<Lifecycle>,
}

fn start_lifecycle(directory: &Path) -> Arc<Lifecycle> {
    let models = directory.join("models");
    publish(&models.join(MODEL).join("1"), COLOUR, &[]).unwrap();
    let none = Converter { program: directory.join("none").into(), args: Vec::new() };
    let mut config = LifecycleConfig::new(directory.join("cache"), none);
    config.roots = vec![ModelRoot::new(models)];
    let pool = PoolConfig { bytes_max: 64 << 20, huge_pages: false, fault_rate: Rate::unlimited() };
    let store = ParameterStore::new(
        SlotPool::new(pool).unwrap(),
        StoreConfig { read_rate: Rate::unlimited(), direct: false },
    );
    let engines: Vec<Arc<dyn engine::Engine>> = vec![Arc::new(FakeEngine::new())];
    let lifecycle =
        Lifecycle::start(config, engines, store, Arc::new(NoRequests), Arc::new(NoEvents)).unwrap();
    assert!(lifecycle.wait_settled(WAIT_MAX));
    lifecycle
}

impl World {
    pub(crate) fn start() -> World {
        World::start_in(tempfile::tempdir().unwrap())
    }

    /// Starts a server with the collections in `directory`.
    pub(crate) fn start_in(directory: tempfile::TempDir) -> World {
        World::start_with(directory, None)
    }

    /// Starts a server that keeps originals in `originals`.
    pub(crate) fn with_originals(originals: Arc<dyn ObjectStore>) -> World {
        let place = StorePlace::new(originals, "", "a store of a test");
        World::start_with(tempfile::tempdir().unwrap(), Some(place))
    }

    fn start_with(directory: tempfile::TempDir, originals: Option<StorePlace>) -> World {
        let lifecycle = start_lifecycle(directory.path());
        let metrics = Arc::new(Metrics::default());
        let config =
            SchedulerConfig { workers: 1, queue_max: 64, pin: false, count_threads: false };
        let scheduler = Scheduler::start(&config).unwrap();
        let inference = Arc::new(InferenceService::new(
            lifecycle.clone(),
            scheduler,
            metrics.clone(),
            Arc::new(InferenceStats::default()),
            WAIT_MAX,
        ));
        let limits = RequestLimits {
            body_bytes_max: 16 << 20,
            requests_max: 1024,
            client_timeout: WAIT_MAX,
            request_timeout: WAIT_MAX,
            answer_window: WAIT_MAX,
        };
        let requests = Arc::new(RequestResources::new(limits, 256 << 20, metrics.clone()));
        let access = Arc::new(AccessPolicy {
            host: IpAddr::from([127, 0, 0, 1]),
            allowed_hosts: Vec::new(),
            allow_remote_admin: false,
            keys: None,
            cors: CorsPolicy::default(),
            metrics: metrics.clone(),
        });
        let registry = open(&directory.path().join("collections"));
        let config = ImagesConfig {
            directory: Some(directory.path().join("collections")),
            ..ImagesConfig::default()
        };
        let source = Arc::new(OneRegistry(registry.clone()));
        let images =
            Arc::new(ImagesState::new(config, requests.clone(), access, inference, source));
        originals.into_iter().for_each(|store| images.use_originals(store));
        let router = Router::new().merge(routes()).merge(shard_routes()).with_state(images.clone());
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        images.resume_removals(runtime.handle());
        World {
            registry,
            images,
            requests,
            directory,
            metrics,
            router,
            runtime,
            _lifecycle: lifecycle,
        }
    }

    /// Ends the server. Returns its directory.
    pub(crate) fn stop(self) -> tempfile::TempDir {
        self.directory
    }

    /// Returns the count `kind` of the removal of originals in the background.
    pub(crate) fn removals(&self, kind: &'static str) -> u64 {
        self.metrics.images.removals.get_or_create(&KindLabels { kind }).get()
    }

    /// Returns the number of removed collections whose originals are not all checked.
    pub(crate) fn waiting_removals(&self) -> i64 {
        self.metrics.images.removals_waiting.get()
    }

    /// Waits until all originals of removed collections are checked.
    #[track_caller]
    pub(crate) fn wait_for_removals(&self) {
        self.wait_until(|| self.waiting_removals() == 0);
    }

    /// Waits until `is_done` returns true.
    #[track_caller]
    pub(crate) fn wait_until(&self, is_done: impl Fn() -> bool) {
        let deadline = Instant::now() + WAIT_MAX;
        while !is_done() {
            assert!(Instant::now() < deadline, "the removals stay as they are");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits for the result of `work`.
    pub(crate) fn run<T>(&self, work: impl Future<Output = T>) -> T {
        let within = async { tokio::time::timeout(WAIT_MAX, work).await };
        self.runtime.block_on(within).unwrap()
    }

    /// Extracts a query of photographs.
    pub(crate) fn query(&self, file: Vec<u8>) -> ExtractedQuery {
        self.run(async { self.images.extract_query(&photos(), DIMS, file.into()).await }).unwrap()
    }

    /// Sends a request. Returns the status and the body.
    pub(crate) fn send(
        &self,
        method: Method,
        path: &str,
        media: &str,
        body: impl Into<Body>,
    ) -> (StatusCode, Vec<u8>) {
        let request = request(method, path, media, body.into());
        self.run(async {
            let Ok(response) = self.router.clone().oneshot(request).await;
            let status = response.status();
            (status, response.into_body().collect().await.unwrap().to_bytes().to_vec())
        })
    }

    /// Starts to send a request, which ends with the status.
    pub(crate) fn begin(
        &self,
        method: Method,
        path: &str,
        body: impl Into<Body>,
    ) -> JoinHandle<StatusCode> {
        let request = request(method, path, "image/jpeg", body.into());
        let router = self.router.clone();
        self.runtime.spawn(async move {
            let Ok(response) = router.oneshot(request).await;
            response.status()
        })
    }

    /// Sends JSON. Returns the JSON of the answer.
    pub(crate) fn json(&self, method: Method, path: &str, body: &Value) -> (StatusCode, Value) {
        let (status, body) = self.send(method, path, "application/json", body.to_string());
        (status, serde_json::from_slice(&body).unwrap())
    }

    /// Adds a file, as on one server.
    #[track_caller]
    pub(crate) fn put(&self, path: &str, file: &[u8]) -> Value {
        let (status, body) = self.send(Method::PUT, path, "image/jpeg", file.to_vec());
        assert_eq!(status, StatusCode::OK, "{}", String::from_utf8_lossy(&body));
        serde_json::from_slice(&body).unwrap()
    }

    /// Sends JSON that is accepted.
    #[track_caller]
    pub(crate) fn good(&self, path: &str, body: &Value) -> Value {
        let (status, answer) = self.json(Method::POST, path, body);
        assert_eq!(status, StatusCode::OK, "{answer}");
        answer
    }

    /// Sends JSON that is refused.
    #[track_caller]
    pub(crate) fn refused(&self, path: &str, body: &Value, status: u16, words: &str) {
        let (found, answer) = self.json(Method::POST, path, body);
        let text = answer.to_string();
        assert!(found.as_u16() == status && text.contains(words), "{found} {text}, not {words}");
    }

    /// Creates the local collections of `count` shards of the collection "ID".
    pub(crate) fn shards(
        &self,
        id: &str,
        settings: &ImageSettings,
        dims: usize,
        count: u64,
    ) -> Shards {
        let make = |shard: u64| {
            let name = format!("{id}.{shard:04}");
            let space = format!("{id}/originals");
            settings.create_shard(&self.registry, &name, dims, &space).unwrap()
        };
        Shards { named: (0..count).map(make).collect() }
    }
}

fn request(method: Method, path: &str, media: &str, body: Body) -> Request<Body> {
    let mut request = Request::builder()
        .method(method)
        .uri(path)
        .header(header::CONTENT_TYPE, media)
        .body(body)
        .unwrap();
    request.extensions_mut().insert(Peer::Unix(None));
    request.extensions_mut().insert(HeaderTimeout::default());
    request
}

pub(crate) struct Shards {
    pub(crate) named: Vec<Arc<NamedCollection>>,
}

/// Operation that a point is an element of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum OperationKind {
    Features,
    Images,
}

impl Shards {
    pub(crate) fn of(&self, id: &PointId) -> &Arc<NamedCollection> {
        &self.named[(id.internal() % self.named.len() as u64) as usize]
    }

    /// Writes points to their shards.
    pub(crate) fn write(&self, kind: OperationKind, points: &[LoggedPoint]) {
        for point in points {
            let text = match kind {
                OperationKind::Features => features_operation(&[&point.text]),
                OperationKind::Images => images_operation(&[&point.text]),
            };
            apply_image_operation(self.of(&point.id), text.as_bytes()).unwrap();
        }
    }
}

/// Reads a body of features for a collection with these settings.
pub(crate) fn read(
    settings: &ImageSettings,
    dims: usize,
    body: &Value,
) -> base::Result<Vec<LoggedPoint>> {
    let body = body.to_string();
    let wanted = api_images::WantedImages::default();
    Ok(read_features(body.as_bytes(), "c", &wanted, Some((settings, dims)))?.points)
}

fn mixed(seed: u64) -> u64 {
    let mixed = (seed ^ (seed >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^ (mixed >> 29)
}

/// Returns a file of a mosaic of random tiles on a tint, different for each seed.
pub(crate) fn picture(seed: u64) -> Vec<u8> {
    let (width, height) = (160_u32, 120_u32);
    let mut rgb = Vec::new();
    for y in 0..height {
        for x in 0..width {
            let tile = u64::from(x / 9) << 32 | u64::from(y / 11) << 16 | seed << 48;
            for colour in 0..3 {
                let tint = mixed(seed * 3 + colour + 1) % 200;
                rgb.push((tint + mixed(tile | colour) % 128) as u8 | 1);
            }
        }
    }
    thumbnail(&Image { width, height, rgb }, width).unwrap()
}
