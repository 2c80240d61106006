//! The parser of the keys in etcd, for the fuzz targets.

use etcd::EtcdEntry;

use super::keys::{ClusterKeys, ClusterSnapshot};
use crate::types::ClusterView;

/// Returns the nodes and owners of the cluster `c`, as a node reads them. Leaves out keys that it
/// cannot read.
pub fn cluster_view(entries: &[EtcdEntry]) -> ClusterView {
    let snapshot = ClusterSnapshot::new(&ClusterKeys::new("c"), entries);
    ClusterView { nodes: snapshot.nodes, owners: snapshot.owners, ..ClusterView::default() }
}
