//! State that the routes share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use api_images::ImagesState;
use base::{Error, Result};
use cluster::NodeLatencies;
use cluster_node::backups::ClusterBackups;
use cluster_node::{
    ClusterView, CollectionCatalog, CollectionRecord, ShardKey, ViewSource, WaitingWrites,
};
use http_client::HttpClient;
use metrics::KindLabels;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use transport::RequestResources;
use transport::access::AccessPolicy;

use super::served::ServedCollections;
use super::shard_read::ReadPriority;
use super::written::WrittenEntries;

/// Retry advice before the collections are known.
const LOAD_RETRY: Duration = Duration::from_secs(1);
/// Time after the start of this node in which requests wait for the collections.
const LOAD_WAIT_MAX: Duration = Duration::from_secs(5);
/// Time between two checks if the collections are known.
const LOAD_CHECK: Duration = Duration::from_millis(20);
/// Longest wait of a request for a reading of the collections, if it names an unknown one.
const NAME_WAIT_MAX: Duration = Duration::from_secs(2);
/// Maximum number of requests that wait for the collections at the same time. Further ones do not
/// wait, so that requests of unknown names cannot hold all connections if the store is slow.
const NAME_WAITS_AT_ONCE_MAX: usize = 256;
/// Divisor of the memory of requests. The quotient is for writes of points that wait for their
/// owners.
const WAITING_PARTS: u64 = 2;

struct NodeImages {
    /// Extraction, and the store of originals.
    state: Arc<ImagesState>,
    /// True if this node has the role extract.
    extracts: bool,
}

/// Rules and settings of recoveries from a location.
pub(super) struct LocationAccess {
    pub(super) access: Arc<AccessPolicy>,
    /// Names and values of the store provider's variables, in lower case.
    pub(super) options: Vec<(String, String)>,
}

/// Figures by which a request chooses among nodes.
#[derive(Default)]
struct NodeChoice {
    /// Times of nodes that answer requests of clients.
    client_latencies: Mutex<NodeLatencies>,
    /// Times of nodes that answer at low priority.
    background_latencies: Mutex<NodeLatencies>,
    /// Number of the next query.
    query_number: AtomicU64,
}

/// State of the routes.
pub struct RootState {
    /// Name of this node.
    pub node: String,
    /// Limits and memory of the requests of this node.
    pub requests: Arc<RequestResources>,
    /// Client of the other nodes.
    pub client: HttpClient,
    /// Nodes, collections and owners that this node sees.
    pub view: ViewSource,
    /// Records of the collections in the store.
    pub catalog: Arc<dyn CollectionCatalog>,
    choice: NodeChoice,
    written: WrittenEntries,
    /// Memory of writes of points.
    pub(super) waiting_writes: WaitingWrites,
    served: ServedCollections,
    images: Option<NodeImages>,
    pub(super) backups: Option<Arc<ClusterBackups>>,
    /// Recoveries from a location; `None` if there are none.
    pub(super) locations: Option<LocationAccess>,
    /// Permits of requests that wait for a reading of the collections, or for holders.
    name_waits: Semaphore,
    /// End of the time in which requests wait for the collections.
    start_wait_end: Instant,
}

impl RootState {
    /// Creates the state of the node called `node`. `client` must show the key that the other
    /// nodes require.
    pub fn new(
        node: &str,
        requests: Arc<RequestResources>,
        client: HttpClient,
        view: ViewSource,
        catalog: Arc<dyn CollectionCatalog>,
    ) -> RootState {
        RootState {
            node: node.to_owned(),
            waiting_writes: WaitingWrites::new(requests.clone(), WAITING_PARTS),
            requests,
            client,
            view,
            catalog,
            choice: NodeChoice::default(),
            written: WrittenEntries::default(),
            served: ServedCollections::default(),
            images: None,
            backups: None,
            locations: None,
            name_waits: Semaphore::new(NAME_WAITS_AT_ONCE_MAX),
            start_wait_end: Instant::now() + LOAD_WAIT_MAX,
        }
    }

    /// Sets the images of this node, whose store of originals is that of the cluster. `extracts` is
    /// true if the node has the role extract. Without images, requests that extract go to other
    /// nodes, and originals of deleted points stay.
    #[must_use]
    pub fn with_images(self, state: Arc<ImagesState>, extracts: bool) -> RootState {
        RootState { images: Some(NodeImages { state, extracts }), ..self }
    }

    /// Sets the backups of the cluster's collections.
    #[must_use]
    pub fn with_backups(self, backups: Arc<ClusterBackups>) -> RootState {
        RootState { backups: Some(backups), ..self }
    }

    /// Lets administrators recover snapshots from a file or a URL. `options` are the names and
    /// values of the store provider's variables, in lower case.
    #[must_use]
    pub fn with_locations(
        self,
        access: Arc<AccessPolicy>,
        options: Vec<(String, String)>,
    ) -> RootState {
        RootState { locations: Some(LocationAccess { access, options }), ..self }
    }

    /// Returns the times of nodes for reads of this priority.
    pub(super) fn latencies_of(&self, priority: ReadPriority) -> &Mutex<NodeLatencies> {
        match priority {
            ReadPriority::Client => &self.choice.client_latencies,
            ReadPriority::Background => &self.choice.background_latencies,
        }
    }

    /// Returns the images of this node with the store of originals; `None` without images.
    pub fn images(&self) -> Option<&Arc<ImagesState>> {
        self.images.as_ref().map(|images| &images.state)
    }

    /// Returns the extraction of this node, if it has the role.
    pub fn extraction(&self) -> Option<&Arc<ImagesState>> {
        self.images.as_ref().filter(|images| images.extracts).map(|images| &images.state)
    }

    /// Counts a request to nodes, or an answer to a client. `kind` is a kind of
    /// [`metrics::ClusterMetrics::requests`].
    pub fn count(&self, kind: &'static str) {
        self.requests.metrics.cluster.requests.get_or_create(&KindLabels { kind }).inc();
    }

    /// Returns the number of the next query. Queries with different numbers begin with different
    /// holders.
    pub(super) fn next_query(&self) -> u64 {
        self.choice.query_number.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns nodes in the order in which the next request asks them: by turns. Slow nodes and
    /// nodes that have just failed come last.
    pub fn order_nodes(&self, names: &[&str]) -> Vec<String> {
        self.choice.client_latencies.lock().order(names, self.next_query(), Instant::now())
    }

    /// Returns true if `node` failed a moment ago.
    pub fn has_failed(&self, node: &str) -> bool {
        self.choice.client_latencies.lock().is_down(node, Instant::now())
    }

    /// Records a failure of a node. Later requests ask it last for a while.
    pub fn record_failure(&self, node: &str) {
        self.choice.client_latencies.lock().record_failure(node, Instant::now());
    }

    /// Records the number of an entry of a shard that later reads at this root must see.
    pub fn record_written(&self, key: &ShardKey, entry: u64) {
        self.written.record(key, entry, &self.view.current());
    }

    /// Returns the number of the last entry that reads at this root must see; 0 if this root knows
    /// none.
    pub fn last_written(&self, key: &ShardKey) -> u64 {
        self.written.last(key)
    }

    /// Waits until the collections were read from the store, at most until `deadline`. A starting
    /// node accepts connections a moment earlier, and clients use a restarted node at once. If the
    /// store does not answer by [`LOAD_WAIT_MAX`] after the start, requests do not wait.
    pub(super) async fn wait_loaded(&self, deadline: Instant) {
        let deadline = deadline.min(self.start_wait_end);
        if self.catalog.is_loaded() || Instant::now() >= deadline {
            return;
        }
        self.requests.metrics.cluster.start_waits.inc();
        while !self.catalog.is_loaded() && Instant::now() < deadline {
            tokio::time::sleep(LOAD_CHECK).await;
        }
    }

    /// Reads the collections once more if `name` is not known, at most until `deadline`. Another
    /// root may have created the collection or alias a moment ago. Then waits until this root sees
    /// its holders, as the root that created it did. It waits even if it knew the collection, but
    /// has not seen all of its holders. Ends without them after [`NAME_WAIT_MAX`] or
    /// `UNSEEN_HOLDERS_WAIT_MAX`, and at once if [`NAME_WAITS_AT_ONCE_MAX`] requests wait.
    pub(super) async fn wait_known(&self, name: &str, deadline: Instant) {
        if !self.catalog.is_loaded() {
            return;
        }
        let view = self.view.current();
        let known = view.collection(name);
        let until = match known {
            None => Some(Instant::now() + NAME_WAIT_MAX),
            Some(record) => self.served.wait_end(record, &view),
        };
        let Some(until) = until else { return };
        let Ok(_permit) = self.name_waits.try_acquire() else { return };
        self.requests.metrics.cluster.name_waits.inc();
        let wait = async {
            if known.is_none() {
                self.catalog.read_again().await;
            }
            self.wait_served(name).await;
        };
        // An error is the end of the wait: the view stays as it is.
        let _ = tokio::time::timeout_at(deadline.min(until).into(), wait).await;
    }

    /// Lets the view have the newest collection that clients call `name`. Another root may have
    /// removed the collection a moment ago, and created another one of its name. Has no effect if
    /// the view does not know the name.
    ///
    /// # Errors
    /// `Unavailable` with retry advice if the view does not have it in time.
    pub async fn see_newest(&self, name: &str, deadline: Instant) -> Result<()> {
        let known = self.view.current().collection(name).cloned();
        let Some(record) = known else { return Ok(()) };
        if self.is_current(&record, deadline).await {
            return Ok(());
        }
        let wait = async {
            self.read_again(deadline).await;
            self.wait_served(name).await;
        };
        let until = deadline.min(Instant::now() + NAME_WAIT_MAX);
        // A missing holder is an error of the request itself.
        let _ = tokio::time::timeout_at(until.into(), wait).await;
        let is_seen = self.view.current().by_id(&record.id).is_some();
        if is_seen { Err(replaced(&record)) } else { Ok(()) }
    }

    /// Checks that no other root has removed a collection. If one has, reads the collections once
    /// more, so that the next request finds the newest.
    ///
    /// # Errors
    /// `Unavailable` with retry advice for a removed collection.
    pub async fn check_current(&self, record: &CollectionRecord, deadline: Instant) -> Result<()> {
        if self.is_current(record, deadline).await {
            return Ok(());
        }
        Err(self.removed(record, deadline).await)
    }

    /// Reads the collections once more. Returns the error of a request for a removed collection.
    pub async fn removed(&self, record: &CollectionRecord, deadline: Instant) -> Error {
        self.read_again(deadline).await;
        replaced(record)
    }

    /// Returns false if the store has no record of this collection. Returns true if the store does
    /// not answer this root within [`NAME_WAIT_MAX`]. The holders and owners that this root knows
    /// may reach the store.
    pub(super) async fn is_current(&self, record: &CollectionRecord, deadline: Instant) -> bool {
        let until = deadline.min(Instant::now() + NAME_WAIT_MAX);
        let read = tokio::time::timeout_at(until.into(), self.catalog.is_current(record)).await;
        match read {
            Ok(Ok(is_current)) => is_current,
            Ok(Err(error)) => {
                tracing::debug!(collection = record.name, %error, "a record is not compared");
                true
            }
            Err(_) => true,
        }
    }

    /// Reads the collections once more, for at most [`NAME_WAIT_MAX`]. Has no effect if
    /// [`NAME_WAITS_AT_ONCE_MAX`] requests wait.
    pub async fn read_again(&self, deadline: Instant) {
        let Ok(_permit) = self.name_waits.try_acquire() else { return };
        let until = deadline.min(Instant::now() + NAME_WAIT_MAX);
        // At the end of the time the view stays as it is.
        let _ = tokio::time::timeout_at(until.into(), self.catalog.read_again()).await;
    }

    /// Waits until the view has a holder of each shard of a collection. Ends at once if the view
    /// does not have the collection.
    async fn wait_served(&self, name: &str) {
        let mut source = self.view.clone();
        loop {
            let view = source.current();
            let record = view.collection(name);
            if record.is_none_or(|record| self.served.wait_end(record, &view).is_none()) {
                return;
            }
            source.changed().await;
        }
    }

    /// Returns the view, once it has the collections.
    ///
    /// # Errors
    /// `Unavailable` with retry advice before.
    pub fn loaded_view(&self) -> Result<Arc<ClusterView>> {
        if !self.catalog.is_loaded() {
            return Err(Error::unavailable(
                "the collections of the cluster were not read from the store yet; try again",
            )
            .with_retry_after(LOAD_RETRY));
        }
        Ok(self.view.current())
    }

    /// Returns the record of the collection that clients call `name`, which may be an alias.
    ///
    /// # Errors
    /// `NotFound` if the view has none; as [`RootState::loaded_view`].
    pub fn record(&self, name: &str) -> Result<Arc<CollectionRecord>> {
        let view = self.loaded_view()?;
        let record = view.collection(name).cloned().map(Arc::new);
        record.ok_or_else(|| {
            let shown: String = name.chars().take(80).collect();
            Error::not_found(format!("there is no collection {shown:?}"))
        })
    }
}

/// Returns the error of a request for a collection that another root has removed.
fn replaced(record: &CollectionRecord) -> Error {
    let name = &record.name;
    Error::unavailable(format!(
        "collection \"{name}\" was just removed or created again; send the request again"
    ))
    .with_retry_after(LOAD_RETRY)
}
