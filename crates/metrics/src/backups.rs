//! Metrics of backups of collections.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::{Registry, Unit};

use crate::{KindLabels, SecondsGauge};

/// Work on backups and its outcome.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct BackupWorkLabels {
    /// "backup", "restore", "clone", "verify", "prune" or "delete". In a cluster also "upload" and
    /// "download".
    pub work: &'static str,
    /// "ok" or "failed".
    pub outcome: &'static str,
}

/// Metrics of backups of collections. Clones share their values.
#[derive(Clone, Default)]
pub struct BackupMetrics {
    /// Work that has ended.
    pub work: Family<BackupWorkLabels, Counter>,
    /// Bytes: "uploaded", "present" (the store had them), "restored", "verified".
    pub bytes: Family<KindLabels, Counter>,
    /// Time of the last backup by outcome, "ok" or "failed", since the epoch.
    pub time: Family<KindLabels, SecondsGauge>,
}

impl BackupMetrics {
    pub(crate) fn register(&self, registry: &mut Registry) {
        let r = registry;
        r.register(
            "backup_work",
            "Backups, restores, clones, verifications, removals and transfers of collections that have ended",
            self.work.clone(),
        );
        r.register_with_unit(
            "backup",
            "Bytes of backups: uploaded, already present in the store, restored, verified",
            Unit::Bytes,
            self.bytes.clone(),
        );
        r.register_with_unit(
            "backup_time",
            "Time of the last backup by outcome, since the epoch",
            Unit::Seconds,
            self.time.clone(),
        );
    }
}
