//! Backups of a schedule: one node of the cluster backs up each collection that has changed.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use base::Result;

use super::catalog::StoreCatalog;
use super::garbage::is_collector;
use super::services::NodeServices;
use crate::backups::{BackupSchedule, ClusterBackups};
use crate::types::CollectionRecord;

/// Time between two looks for a collection whose backup is due.
const LOOK_INTERVAL: Duration = Duration::from_secs(10);

/// Makes backups until the task is dropped.
pub(super) async fn run(
    services: Arc<NodeServices>,
    catalog: Arc<StoreCatalog>,
    backups: Arc<ClusterBackups>,
) {
    let Some(schedule) = backups.schedule() else { return };
    loop {
        tokio::time::sleep(LOOK_INTERVAL.min(schedule.every)).await;
        let view = services.view.current();
        if !catalog.is_whole() || !is_collector(&view, &services.name) {
            continue;
        }
        for record in view.collections.values() {
            if let Err(error) = back_up_if_due(&backups, record, schedule).await {
                tracing::error!(collection = record.name, %error, "a scheduled backup has failed");
            }
        }
    }
}

async fn back_up_if_due(
    backups: &ClusterBackups,
    record: &CollectionRecord,
    schedule: BackupSchedule,
) -> Result<()> {
    let sets = backups.list(&record.name).await?;
    if let Some(newest) = sets.last() {
        let created = SystemTime::from(newest.id.created());
        let age = SystemTime::now().duration_since(created).unwrap_or_default();
        if age < schedule.every || !backups.has_changed(record, newest).await? {
            return Ok(());
        }
    }
    backups.create(record).await?;
    let Some(keep) = schedule.keep_newest else { return Ok(()) };
    // The new one is not among them.
    let stay = keep.max(1) - 1;
    for old in &sets[..sets.len().saturating_sub(stay)] {
        backups.delete(&record.name, &old.id).await?;
    }
    Ok(())
}
