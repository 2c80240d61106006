//! Access of this node to the store. A node that does not reach it leaves its logs to other nodes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::catalog::StoreCatalog;
use crate::collection_catalog::CollectionCatalog;
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
/// Time for which another node must be able to write the logs before they move. After an outage of
/// the store for all nodes, some of them read it up to 11 s later than others, because their last
/// request has no answer. No log moves in this time.
const OTHERS_WRITE_FOR: Duration = Duration::from_secs(20);
/// Time of successful readings after which moved logs return. If a node reaches the store at times
/// only, its logs stay at the other nodes.
const RETURN_AFTER: Duration = Duration::from_secs(10);

/// Announces the access of this node to the store until the task is dropped.
pub(super) async fn run(
    name: String,
    catalog: Arc<StoreCatalog>,
    membership: Arc<Membership>,
    view: ViewSource,
) {
    let mut decision = AccessDecision::default();
    loop {
        tokio::time::sleep(CHECK_INTERVAL).await;
        let failing_for = catalog.failing_for();
        if failing_for.is_none() && !catalog.is_loaded() {
            // The first reading has not ended.
            continue;
        }
        let is_certain = membership.view_certain_since().is_some();
        let others_write = is_certain && others_can_write(&view.current(), &name);
        let before = decision.access.clone();
        decision.record(Instant::now(), failing_for, others_write);
        if decision.access != before {
            log_change(&before, &decision.access);
            membership.set_store_access(decision.access.clone());
        }
    }
}

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

/// Decision on the access of a node to the store.
#[derive(Default)]
struct AccessDecision {
    access: StoreAccess,
    /// Time since which another node can write the logs; `None` if none can.
    others_write_since: Option<Instant>,
    /// Time since which the readings succeed; `None` if they fail.
    reads_since: Option<Instant>,
}

impl AccessDecision {
    /// Decides on the access at the time `now`. The readings have failed for `failing_for`; `None`
    /// if the last one succeeded. `others_write` is true if another node that reads the store can
    /// write the logs of this node, as etcd says at this moment.
    ///
    /// Lost access stays lost until the readings succeed, so an outage of etcd, or one of the store
    /// for the other nodes, moves no log.
    fn record(&mut self, now: Instant, failing_for: Option<Duration>, others_write: bool) {
        self.others_write_since = others_write.then(|| self.others_write_since.unwrap_or(now));
        self.reads_since = failing_for.is_none().then(|| self.reads_since.unwrap_or(now));
        let lasts = |since: Option<Instant>, time: Duration| {
            since.is_some_and(|since| now.saturating_duration_since(since) >= time)
        };
        if self.access == StoreAccess::Lost && !lasts(self.reads_since, RETURN_AFTER) {
            return;
        }
        self.access = match failing_for {
            None => StoreAccess::Working,
            Some(time)
                if time >= LOST_AFTER && lasts(self.others_write_since, OTHERS_WRITE_FOR) =>
            {
                StoreAccess::Lost
            }
            Some(time) if time >= FAILING_AFTER => StoreAccess::Failing,
            // A node that has never read the store writes no logs of others.
            Some(_) if self.access.is_unknown() => StoreAccess::Unknown,
            Some(_) => StoreAccess::Working,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Roles;

    /// A node with a check in each second.
    struct CheckedNode {
        decision: AccessDecision,
        now: Instant,
        failing_since: Option<Instant>,
    }

    impl CheckedNode {
        fn new() -> CheckedNode {
            let now = Instant::now();
            CheckedNode { decision: AccessDecision::default(), now, failing_since: None }
        }

        /// Checks each second of `seconds`. Returns the access after each check.
        fn check(&mut self, seconds: u64, reads: bool, others_write: bool) -> Vec<StoreAccess> {
            let checks = (0..seconds).map(|_| {
                self.now += CHECK_INTERVAL;
                let since = self.failing_since.unwrap_or(self.now);
                self.failing_since = (!reads).then_some(since);
                let failing_for = self.failing_since.map(|since| self.now.duration_since(since));
                self.decision.record(self.now, failing_for, others_write);
                self.decision.access.clone()
            });
            checks.collect()
        }

        fn after(&mut self, seconds: u64, reads: bool, others_write: bool) -> StoreAccess {
            self.check(seconds, reads, others_write).pop().unwrap()
        }
    }

    #[test]
    fn logs_move_only_if_another_node_reads_the_store() {
        let mut node = CheckedNode::new();
        assert_eq!(node.after(1, false, true), StoreAccess::Unknown, "it has read nothing yet");
        assert_eq!(node.after(60, true, true), StoreAccess::Working);
        // The first failed reading has the age 0.
        assert_eq!(node.after(10, false, true), StoreAccess::Working);
        assert_eq!(node.after(20, false, true), StoreAccess::Failing);
        assert_eq!(node.after(1, false, true), StoreAccess::Lost);
        let mut alone = CheckedNode::new();
        assert_eq!(alone.after(3_600, false, false), StoreAccess::Failing, "the store is down");
    }

    #[test]
    fn the_return_of_the_store_moves_no_log() {
        let mut node = CheckedNode::new();
        node.check(60, true, true);
        node.check(20, false, true);
        // All nodes have announced failures.
        assert_eq!(node.after(600, false, false), StoreAccess::Failing);
        // Another node reads the store first. The last request of this node has no answer yet.
        let late = node.check(20, false, true);
        assert!(late.iter().all(|access| *access == StoreAccess::Failing), "{late:?}");
        assert_eq!(node.after(1, true, true), StoreAccess::Working);
    }

    #[test]
    fn moved_logs_return_after_steady_readings_alone() {
        let mut node = CheckedNode::new();
        node.check(60, true, true);
        assert_eq!(node.after(60, false, true), StoreAccess::Lost);
        // etcd does not answer, or the other nodes do not read the store either.
        assert_eq!(node.after(60, false, false), StoreAccess::Lost);
        for _ in 0..3 {
            assert_eq!(node.after(10, true, true), StoreAccess::Lost);
            assert_eq!(node.after(1, false, true), StoreAccess::Lost, "it reads at times only");
        }
        assert_eq!(node.after(11, true, true), StoreAccess::Working);
    }

    #[test]
    fn single_errors_move_no_log() {
        let mut node = CheckedNode::new();
        node.check(60, true, true);
        for _ in 0..60 {
            let checks = [node.check(5, false, true), node.check(1, true, true)].concat();
            assert!(checks.iter().all(StoreAccess::is_working), "{checks:?}");
        }
    }

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
