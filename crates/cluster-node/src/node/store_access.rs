//! Access of this node to the store. A node that does not reach it leaves its logs to other nodes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cluster::StoreAccessDecision;

use super::catalog::StoreCatalog;
use crate::collection_catalog::CollectionCatalog;
use crate::membership::Membership;
use crate::types::{ClusterView, NodeInfo, StoreAccess, ViewSource};

/// Time between two checks.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Announces the access of this node to the store until the task is dropped.
pub(super) async fn run(
    name: String,
    catalog: Arc<StoreCatalog>,
    membership: Arc<Membership>,
    view: ViewSource,
) {
    let mut decision = StoreAccessDecision::default();
    loop {
        tokio::time::sleep(CHECK_INTERVAL).await;
        let failing_for = catalog.failing_for();
        if failing_for.is_none() && !catalog.is_loaded() {
            // The first reading has not ended.
            continue;
        }
        let is_certain = membership.view_certain_since().is_some();
        let others_write = is_certain && others_can_write(&view.current(), &name);
        let before = StoreAccess::from(decision.reading());
        decision.record(Instant::now(), failing_for, others_write);
        let access = StoreAccess::from(decision.reading());
        if access != before {
            log_change(&before, &access);
            membership.set_store_access(access);
        }
    }
}

/// Logs a change of this node's access to the store.
fn log_change(before: &StoreAccess, access: &StoreAccess) {
    match access {
        StoreAccess::Working if before.is_failing() => {
            tracing::info!("this node reads the store again");
        }
        StoreAccess::Working | StoreAccess::Unknown => {}
        StoreAccess::Failing => tracing::warn!(
            "this node cannot read the store: its copies of shards and the logs that it writes get no changes"
        ),
        StoreAccess::Lost => tracing::error!(
            "this node cannot read the store, and other nodes can: they take the logs that it writes; check its \
             network and its credentials"
        ),
    }
}

/// Returns true if the node `name` writes logs, and another node that reads the store can write
/// them.
fn others_can_write(view: &ClusterView, name: &str) -> bool {
    let can_write =
        |node: &NodeInfo| node.name != name && node.takes_logs() && node.store.is_working();
    view.nodes.get(name).is_some_and(|own| own.roles.ingest) && view.nodes.values().any(can_write)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Roles;

    #[test]
    fn another_writer_has_the_role_a_weight_and_the_store() {
        let node = |name: &str| NodeInfo {
            name: name.to_owned(),
            roles: Roles::ALL,
            weight: 1,
            store: StoreAccess::Working,
            ..NodeInfo::default()
        };
        let writes = |other: NodeInfo| {
            let mut view = ClusterView::default();
            for node in [node("a"), other] {
                view.nodes.insert(node.name.clone(), node);
            }
            others_can_write(&view, "a")
        };
        assert!(writes(node("b")));
        assert!(!writes(node("a")), "this node itself");
        assert!(!writes(NodeInfo { weight: 0, ..node("b") }), "it drains");
        let roles = Roles { ingest: false, ..Roles::ALL };
        assert!(!writes(NodeInfo { roles, ..node("b") }));
        // A node without an announcement may be one of an earlier version, which takes no such log.
        for store in [StoreAccess::Failing, StoreAccess::Lost, StoreAccess::Unknown] {
            assert!(!writes(NodeInfo { store, ..node("b") }));
        }
        let mut view = ClusterView::default();
        view.nodes.insert("a".to_owned(), NodeInfo { roles, ..node("a") });
        view.nodes.insert("b".to_owned(), node("b"));
        assert!(!others_can_write(&view, "a"), "it writes no logs");
    }
}
