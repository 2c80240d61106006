//! Settings of a node of a cluster.

use cluster_node::Roles;
use etcd::EtcdUser;
use http_client::ClientTlsFiles;
use model_store::StoreOptions;
use transport::PemSource;

/// The cluster that a server is a node of.
#[derive(Clone, PartialEq)]
pub struct ClusterConfig {
    /// Directory or URL of the cluster's store.
    pub store: String,
    /// Options of that URL.
    pub store_options: StoreOptions,
    /// Addresses of etcd.
    pub etcd: Vec<String>,
    /// Certificates for etcd, or `None` if it is reached without TLS.
    pub etcd_tls: Option<ClientTlsFiles>,
    /// User of etcd, or `None` if it has no users.
    pub etcd_user: Option<EtcdUser>,
    /// Issuers of the nodes' certificates, or `None` if the nodes do not use TLS.
    pub tls_ca: Option<PemSource>,
    /// Name of the cluster in etcd.
    pub name: String,
    /// Name of this node. `None` is its address.
    pub node: Option<String>,
    /// Work of this node.
    pub roles: Roles,
    /// `HOST:PORT` at which other nodes reach this one. `None` is the address of the HTTP port.
    pub address: Option<String>,
    /// Share of the shards, relative to the other nodes.
    pub weight: u32,
    /// Entries of a shard's log between two snapshots.
    pub snapshot_entries: u64,
    /// Key that the nodes show to each other.
    pub key: Option<String>,
}

impl ClusterConfig {
    /// Returns the store as a URL, or as a directory if it is one.
    pub(super) fn directory(&self) -> &str {
        self.store.strip_prefix("file://").unwrap_or(&self.store)
    }
}

impl std::fmt::Debug for ClusterConfig {
    /// Leaves out the key, as the text may be logged.
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("ClusterConfig")
            .field("store", &self.store)
            .field("etcd", &self.etcd)
            .field("name", &self.name)
            .field("node", &self.node)
            .field("roles", &self.roles)
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

impl Default for ClusterConfig {
    fn default() -> Self {
        ClusterConfig {
            store: String::new(),
            store_options: StoreOptions::default(),
            etcd: Vec::new(),
            etcd_tls: None,
            etcd_user: None,
            tls_ca: None,
            name: "millpond".to_owned(),
            node: None,
            roles: Roles::ALL,
            address: None,
            weight: 1,
            snapshot_entries: 4096,
            key: None,
        }
    }
}
