//! Metrics of a node of a cluster.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use crate::{KindLabels, LevelGauge};

/// Metrics of a node of a cluster. Clones share their values.
#[derive(Clone, Default)]
pub struct ClusterMetrics {
    /// Requests to holders, by kind:
    /// * "first": sent to a first holder.
    /// * "hedged": sent to a second holder, because the first was slow.
    /// * "hedge_won": the second holder was faster.
    /// * "retried": sent again, because a holder failed.
    /// * "confirmed": points that a holder did not have were read again with a strong read.
    /// * "partial": the answer lacks shards.
    /// * "refused": too few shards answered.
    /// * "background": for searches for duplicates, or to remove originals without a point.
    pub requests: Family<KindLabels, Counter>,
    /// Operations of the logs: "applied", and "skipped", which change nothing on any holder.
    pub operations: Family<KindLabels, Counter>,
    /// Entries of logs that were applied.
    pub entries: Counter,
    /// Entries that their writer passed on, so that this node did not read the log.
    pub passed_entries: Counter,
    /// Requests that waited for the collections after the start of this root.
    pub start_waits: Counter,
    /// Requests that waited for another read of the collections, because they named an unknown one,
    /// or for the holders of a new one.
    pub name_waits: Counter,
    /// Writes of images that the owner of a shard refused, because an entry that this node had not
    /// seen may have added the image.
    pub write_conflicts: Counter,
    /// Writes that this owner refused, because the disks of all holders of the shard are full.
    pub full_disk_refusals: Counter,
    /// Logs of shards that this node writes, and whose entries the store refuses.
    pub failing_logs: LevelGauge,
    /// Originals without a point that this node removed from the store.
    pub abandoned_originals: Counter,
    /// Snapshots of shards: "taken", "failed", "restored".
    pub snapshots: Family<KindLabels, Counter>,
    /// Shards whose copy on this node is damaged or being replaced.
    pub damaged_shards: LevelGauge,
    /// Shards whose copy on this node lacks changes of its log, because the disk is full.
    pub stalled_shards: LevelGauge,
    /// Shards whose copy on this node lacks changes of its log, because the log has an operation
    /// that only a newer version knows.
    pub outdated_shards: LevelGauge,
}

impl ClusterMetrics {
    pub(crate) fn register(&self, registry: &mut Registry) {
        let r = registry;
        // Alerts use these counters, and Prometheus sees no increase from a missing series.
        for kind in ["partial", "refused"] {
            drop(self.requests.get_or_create(&KindLabels { kind }));
        }
        drop(self.snapshots.get_or_create(&KindLabels { kind: "failed" }));
        r.register(
            "cluster_requests",
            "Requests of a root to holders of shards, by kind",
            self.requests.clone(),
        );
        r.register(
            "cluster_operations",
            "Operations of shards' logs: applied, or skipped because they change nothing",
            self.operations.clone(),
        );
        r.register(
            "cluster_entries",
            "Entries of shards' logs that this node has applied",
            self.entries.clone(),
        );
        r.register(
            "cluster_passed_entries",
            "Entries that this node received from the writer of the log, instead of reading them from the store",
            self.passed_entries.clone(),
        );
        r.register(
            "cluster_start_waits",
            "Requests that waited for the collections after the start of this root",
            self.start_waits.clone(),
        );
        r.register(
            "cluster_name_waits",
            "Requests that named an unknown collection and waited for another read of the list, or that waited for the holders of a new collection",
            self.name_waits.clone(),
        );
        r.register(
            "cluster_write_conflicts",
            "Writes of images that the owner of a shard refused, because another node may have added the image",
            self.write_conflicts.clone(),
        );
        r.register(
            "cluster_full_disk_refusals",
            "Writes that the owner of a shard refused, because the disks of all holders of the shard are full",
            self.full_disk_refusals.clone(),
        );
        r.register(
            "cluster_failing_logs",
            "Logs of shards that this node writes, while the store refuses its entries or does not answer",
            self.failing_logs.clone(),
        );
        r.register(
            "cluster_abandoned_originals",
            "Originals without a point that this node removed from the store; a killed node can leave such originals",
            self.abandoned_originals.clone(),
        );
        r.register("cluster_snapshots", "Snapshots of shards, by outcome", self.snapshots.clone());
        self.register_copies(r);
    }

    /// Registers the metrics of the copies of shards.
    fn register_copies(&self, r: &mut Registry) {
        r.register(
            "cluster_damaged_shards",
            "Shards whose copy on this node is damaged or being replaced",
            self.damaged_shards.clone(),
        );
        r.register(
            "cluster_stalled_shards",
            "Shards whose copy on this node lacks changes of its log, because the disk is full",
            self.stalled_shards.clone(),
        );
        r.register(
            "cluster_outdated_shards",
            "Shards whose copy on this node lacks changes of its log, because the log has an operation of a newer version",
            self.outdated_shards.clone(),
        );
    }
}
