//! The cluster that this server is a node of: its settings made a node, and its routes.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use api_images::ImageRemoval;
use api_qdrant::CollectionsState;
use axum::Router;
use axum::handler::Handler;
use axum::routing::any;
use backup::BackupStore;
use base::{Error, Result};
use cluster_images::{ImageRootState, image_routes};
use cluster_node::backups::{BackupSchedule, ClusterBackupSettings};
use cluster_node::node::{ClusterNode, LocalCollections, NodeOptions};
use cluster_node::{NodeInfo, PROTOCOL, Roles};
use cluster_root::{self as root, OriginalCleanup, RootState};
use http::Uri;
use http_client::ClientTls;
use os::Rate;
use tokio::task::JoinHandle;
use tracing::warn;
use transport::{Reply, RequestLimits, RequestResources};

use crate::cluster_clients::ClusterClients;
use crate::compose::Server;
use crate::config::{BackupSettings, ClusterConfig, Config};

/// Maximum reads of local collections for nodes of the cluster at the same time.
const LOCAL_REQUESTS_MAX: usize = 1024;

/// Directory of backups in the cluster's store, if the settings name no other one.
const BACKUPS: &str = "backups";

/// Returns why a node is not ready.
pub(crate) type NodeReadiness = Box<dyn Fn() -> Option<String> + Send + Sync>;

/// A node that works, and its routes.
pub(crate) struct ClusterServing {
    node: Arc<ClusterNode>,
    /// Routes of clients.
    clients: Router,
    /// Certificates of this node as a client of others.
    tls: Vec<Arc<ClientTls>>,
    /// Task that removes originals without a point, or `None` without the role ingest.
    cleanup: Option<JoinHandle<()>>,
}

impl ClusterServing {
    /// Starts the node of `config` on the current runtime, if there is one. `address` is the
    /// address of the HTTP port.
    ///
    /// # Errors
    /// `InvalidArgument` for settings that cannot work. Also the error of the store.
    pub(crate) async fn start(
        config: &Config,
        server: &Server,
        address: Option<SocketAddr>,
    ) -> Result<Option<ClusterServing>> {
        let Some(cluster) = &config.cluster else { return Ok(None) };
        let address = reachable(cluster, address)?;
        if is_out_of_reach(&address, &cluster.etcd) {
            warn!(
                address,
                "nodes on other machines cannot reach this node, because its address is a loopback address; if \
                 there are such nodes, give --host ADDRESS, or --cluster-address HOST:PORT"
            );
        }
        let ClusterClients { nodes, etcd, tls } = ClusterClients::open(config, cluster, &address)?;
        let info = NodeInfo {
            name: cluster.node.clone().unwrap_or_else(|| default_name(&address)),
            address,
            roles: cluster.roles,
            weight: cluster.weight,
            build: crate::VERSION.to_owned(),
            protocol: PROTOCOL,
            ..NodeInfo::default()
        };
        let store = BackupStore::open(&cluster.store, &cluster.store_options)?;
        let backups = backups(config, &store)?;
        let place = store.place().clone();
        let images = server.images.clone();
        let routes = api_qdrant::routes()
            .with_state(local_state(config, server))
            .merge(api_images::routes().with_state(images.clone()))
            .merge(api_images::shard_routes().with_state(images.clone()));
        let node = ClusterNode::start(NodeOptions {
            store,
            backups,
            etcd,
            cluster: cluster.name.clone(),
            info,
            snapshot_entries: cluster.snapshot_entries,
            background_rate: Rate::per_second(config.search.background_rate),
            client: nodes,
            local: LocalCollections::new(routes, server.collections.clone()),
            images,
            requests: server.requests.clone(),
        })
        .await?;
        let state = root_state(&node, server, cluster.roles);
        let cleanup =
            cluster.roles.ingest.then(|| tokio::spawn(OriginalCleanup::run(state.clone())));
        let points = if cluster.roles.root {
            root::routes().with_state(state.clone())
        } else {
            refused("/collections", not_a_root)
        };
        let images = if cluster.roles.root || cluster.roles.extract {
            let state = ImageRootState::new(state).with_store(place);
            image_routes().with_state(Arc::new(state))
        } else {
            refused("/v1/images", takes_no_images)
        };
        Ok(Some(ClusterServing { node, clients: points.merge(images), tls, cleanup }))
    }

    /// Returns the certificates of this node as a client of other nodes and of etcd.
    pub(crate) fn tls(&self) -> &[Arc<ClientTls>] {
        &self.tls
    }

    /// Returns the routes of collections and images in a cluster, and the routes between its nodes.
    pub(crate) fn routes(&self) -> Router {
        self.clients.clone().merge(self.node.routes())
    }

    /// Returns a function that returns the reason why this node is not ready, or `None` once it was
    /// ready.
    pub(crate) fn readiness(&self) -> NodeReadiness {
        let node = self.node.clone();
        Box::new(move || node.unready())
    }

    /// Releases the logs that this node writes to other nodes, as [`ClusterNode::leave`]. Called
    /// before the listeners end.
    pub(crate) async fn leave(&self) {
        self.node.leave().await;
    }

    /// Ends all tasks, after the last request.
    pub(crate) fn stop(&self) {
        if let Some(cleanup) = &self.cleanup {
            cleanup.abort();
        }
        self.node.stop();
    }
}

/// Returns the state of the routes over local collections. Reads of shards have a limit of their
/// own, because a client's request at a root must not take the places of its shards' reads.
fn local_state(config: &Config, server: &Server) -> Arc<CollectionsState> {
    let limits =
        RequestLimits { requests_max: LOCAL_REQUESTS_MAX, ..config.listeners.request_limits() };
    let memory = config.listeners.request_memory();
    let requests = RequestResources::new(limits, memory, server.core.metrics.clone());
    let images = Arc::new(ImageRemoval::new(&server.images));
    let access = server.access.clone();
    let backups = server.backups.clone();
    let registry = server.collections.clone();
    Arc::new(CollectionsState::new(Arc::new(requests), registry, images, access, backups))
}

/// Returns the address at which other nodes reach this one. `bound` is that of the HTTP port.
fn reachable(cluster: &ClusterConfig, bound: Option<SocketAddr>) -> Result<String> {
    // `millpond tfs` opens no HTTP port by default.
    let bound = bound.ok_or_else(|| {
        Error::invalid("the nodes of a cluster reach each other by HTTP: give --http-port PORT")
    })?;
    if let Some(address) = &cluster.address {
        return node_address(address);
    }
    if bound.ip().is_unspecified() {
        return Err(Error::invalid(
            "--host names no single address: give --cluster-address HOST:PORT, at which the other nodes reach this one",
        ));
    }
    Ok(bound.to_string())
}

/// Returns the address that `--cluster-address` names, as URIs have it. An address of IPv6 without
/// brackets gets them. Kubernetes passes a pod's address without brackets.
fn node_address(text: &str) -> Result<String> {
    let wrong = || {
        Error::invalid(format!(
            "--cluster-address {text}: write HOST:PORT, such as 10.0.0.7:8501, [fd00::7]:8501 or node-1.example:8501"
        ))
    };
    let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
    port.parse::<u16>().ok().filter(|port| *port != 0).ok_or_else(wrong)?;
    if host.parse::<Ipv6Addr>().is_ok() {
        return Ok(format!("[{host}]:{port}"));
    }
    let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let is_host = match inner {
        Some(inner) => inner.parse::<Ipv6Addr>().is_ok(),
        None => !host.is_empty() && !host.contains(['/', ':', '@', '[', ']', ' ']),
    };
    is_host.then(|| text.to_owned()).ok_or_else(wrong)
}

/// Returns true if `address` is a loopback address and etcd runs on another machine, so that the
/// cluster probably has nodes on other machines.
fn is_out_of_reach(address: &str, etcd: &[String]) -> bool {
    let is_remote = |endpoint: &String| {
        let uri: Option<Uri> = endpoint.parse().ok();
        uri.and_then(|uri| uri.host().map(is_loopback)).is_some_and(|is_loopback| !is_loopback)
    };
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    is_loopback(host) && etcd.iter().any(is_remote)
}

/// Returns true if `host` names this machine for its own programs only.
fn is_loopback(host: &str) -> bool {
    let inner = host.trim_start_matches('[').trim_end_matches(']');
    inner == "localhost" || inner.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Returns the name of a node without `--cluster-node`: its address, in characters of a name.
fn default_name(address: &str) -> String {
    address.replace(':', "-").replace(['[', ']'], "")
}

/// Returns the state of the routes of clients.
fn root_state(node: &ClusterNode, server: &Server, roles: Roles) -> Arc<RootState> {
    let state = RootState::new(
        node.name(),
        server.requests.clone(),
        node.client().clone(),
        node.view(),
        node.catalog().clone(),
    );
    let state = state.with_images(server.images.clone(), roles.extract);
    let options = server.backups.store_options().to_vec();
    let state = state.with_locations(server.access.clone(), options);
    Arc::new(state.with_backups(node.backups().clone()))
}

/// Returns the settings of backups. The place is the directory or store that the settings name, or
/// else the cluster's store.
fn backups(config: &Config, cluster: &BackupStore) -> Result<ClusterBackupSettings> {
    let BackupSettings { place, options, rate, every, keep_newest } = &config.search.backups;
    let store = match place {
        Some(place) => BackupStore::open(place, options)?,
        None => cluster.below(BACKUPS),
    };
    let schedule = every.map(|every| BackupSchedule { every, keep_newest: *keep_newest });
    Ok(ClusterBackupSettings { store, rate: *rate, schedule })
}

/// Returns routes that refuse every request below `path`.
fn refused<H: Handler<T, ()>, T: 'static>(path: &str, refusal: H) -> Router {
    Router::new()
        .route(path, any(refusal.clone()))
        .route(&format!("{path}/{{*rest}}"), any(refusal))
}

async fn not_a_root() -> Reply {
    Reply::error(&Error::precondition(
        "this node does not have the role root; send requests for collections to a node with this role, or start \
         this node with --cluster-roles root,...",
    ))
}

async fn takes_no_images() -> Reply {
    Reply::error(&Error::precondition(
        "this node has neither the role root nor extract; send images and searches to a node with one of them, or \
         start this node with --cluster-roles root,...",
    ))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn addresses_of_nodes_are_those_of_uris() {
        for (text, wanted) in [
            ("10.0.0.7:8501", "10.0.0.7:8501"),
            ("node-1.example:80", "node-1.example:80"),
            ("fd00::7:8501", "[fd00::7]:8501"),
            ("fd00:1:2:3:4:5:6:7:8501", "[fd00:1:2:3:4:5:6:7]:8501"),
            ("[fd00::7]:8501", "[fd00::7]:8501"),
        ] {
            assert_eq!(node_address(text).unwrap(), wanted);
        }
        for wrong in
            ["node-1", ":8501", "a:0", "a:b", "http://a:1", "a:1/", "[fd00::7]", "[a]:1", ""]
        {
            let error = node_address(wrong).unwrap_err();
            assert!(error.message().contains("write HOST:PORT"), "{error}");
        }
    }

    #[test]
    fn a_node_needs_an_http_port() {
        let address = Some("10.0.0.7:8501".to_owned());
        let cluster = ClusterConfig { address, ..ClusterConfig::default() };
        let bound = |text: &str| text.parse::<SocketAddr>().ok();
        assert_eq!(reachable(&cluster, bound("0.0.0.0:80")).unwrap(), "10.0.0.7:8501");
        let error = reachable(&cluster, None).unwrap_err();
        assert!(error.message().contains("give --http-port"), "{error}");
        let own = ClusterConfig::default();
        assert_eq!(reachable(&own, bound("10.0.0.8:80")).unwrap(), "10.0.0.8:80");
        assert!(reachable(&own, bound("0.0.0.0:80")).is_err());
    }

    #[test]
    fn loopback_address_is_out_of_reach_of_a_remote_etcd() {
        for (address, etcd, wanted) in [
            ("127.0.0.1:8501", "http://10.0.0.1:2379", true),
            ("localhost:8501", "https://etcd.example:2379", true),
            ("[::1]:8501", "http://[fd00::1]:2379", true),
            ("127.0.0.1:8501", "http://127.0.0.1:2379", false),
            ("[::1]:8501", "http://[::1]:2379", false),
            ("10.0.0.7:8501", "http://10.0.0.1:2379", false),
            ("node-1.example:8501", "http://127.0.0.1:2379", false),
        ] {
            assert_eq!(is_out_of_reach(address, &[etcd.to_owned()]), wanted, "{address} {etcd}");
        }
    }

    #[test]
    fn addresses_become_names_of_nodes() {
        assert_eq!(default_name("10.0.0.7:8501"), "10.0.0.7-8501");
        let name = default_name("[fd00::7]:8501");
        assert_eq!(name, "fd00--7-8501");
        etcd::check_name("node", &name).unwrap();
    }
}
