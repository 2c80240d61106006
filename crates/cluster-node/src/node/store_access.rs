//! Access of this node to the store. A node that does not reach it leaves its logs to other nodes.

use std::sync::Arc;
use std::time::Duration;

use super::catalog::StoreCatalog;
use crate::membership::Membership;
use crate::types::{ClusterView, NodeInfo, StoreAccess, ViewSource};

/// Time between two checks.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Time of failed readings after which a node announces that the store fails.
const FAILING_AFTER: Duration = Duration::from_secs(10);
/// Time of failed readings after which the logs of a node move to other nodes. If the store fails
/// for all nodes, all of them have announced it by then: a reading fails 10 s after its begin at
/// the latest, and the next reading begins 1 s later. So an outage of the store moves no log.
const LOST_AFTER: Duration = Duration::from_secs(30);

/// Announces the access of this node to the store until the task is dropped.
pub(super) async fn run(
    name: String,
    catalog: Arc<StoreCatalog>,
    membership: Arc<Membership>,
    view: ViewSource,
) {
    let mut announced = StoreAccess::Working;
    loop {
        tokio::time::sleep(CHECK_INTERVAL).await;
        let is_certain = membership.view_certain_since().is_some();
        let others_write = is_certain.then(|| others_can_write(&view.current(), &name));
        let access = decide(catalog.failing_for(), others_write, &announced);
        if access == announced {
            continue;
        }
        match access {
            StoreAccess::Working => tracing::info!("this node reaches the store again"),
            StoreAccess::Failing => tracing::warn!(
                "this node cannot read the store: its copies of shards and the logs that it writes get no changes"
            ),
            StoreAccess::Lost => tracing::error!(
                "this node cannot read the store, and other nodes can: they take the logs that it writes; check its \
                 network and its credentials"
            ),
        }
        announced = access.clone();
        membership.set_store_access(access);
    }
}

/// Returns true if the node `name` writes logs, and another node that reads the store can write
/// them.
fn others_can_write(view: &ClusterView, name: &str) -> bool {
    let can_write =
        |node: &NodeInfo| node.name != name && node.takes_logs() && node.store.is_working();
    view.nodes.get(name).is_some_and(|own| own.roles.ingest) && view.nodes.values().any(can_write)
}

/// Returns the access of a node whose readings have failed for `failing_for`. `others_write` is
/// true if another node that reads the store can write the logs of this node; `None` if this node
/// cannot read etcd. Logs that have moved stay then.
fn decide(
    failing_for: Option<Duration>,
    others_write: Option<bool>,
    announced: &StoreAccess,
) -> StoreAccess {
    let others_write = others_write.unwrap_or(*announced == StoreAccess::Lost);
    match failing_for {
        Some(time) if time >= LOST_AFTER && others_write => StoreAccess::Lost,
        Some(time) if time >= FAILING_AFTER => StoreAccess::Failing,
        _ => StoreAccess::Working,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Roles;

    #[test]
    fn logs_move_only_if_another_node_reads_the_store() {
        let after = |seconds: u64, others_write: bool| {
            let announced = StoreAccess::Failing;
            decide(Some(Duration::from_secs(seconds)), Some(others_write), &announced)
        };
        assert_eq!(decide(None, Some(true), &StoreAccess::Lost), StoreAccess::Working);
        assert_eq!(after(9, true), StoreAccess::Working);
        assert_eq!(after(10, true), StoreAccess::Failing);
        assert_eq!(after(29, true), StoreAccess::Failing);
        assert_eq!(after(30, true), StoreAccess::Lost);
        assert_eq!(after(3_600, false), StoreAccess::Failing, "the store is down for all nodes");
        for announced in [StoreAccess::Failing, StoreAccess::Lost] {
            let access = decide(Some(Duration::from_secs(60)), None, &announced);
            assert_eq!(access, announced, "no log moves while etcd does not answer");
        }
    }

    #[test]
    fn another_writer_has_the_role_a_weight_and_the_store() {
        let node = |name: &str| NodeInfo {
            name: name.to_owned(),
            roles: Roles::ALL,
            weight: 1,
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
        for store in [StoreAccess::Failing, StoreAccess::Lost] {
            assert!(!writes(NodeInfo { store, ..node("b") }));
        }
        let mut view = ClusterView::default();
        view.nodes.insert("a".to_owned(), NodeInfo { roles, ..node("a") });
        view.nodes.insert("b".to_owned(), node("b"));
        assert!(!others_can_write(&view, "a"), "it writes no logs");
    }
}
