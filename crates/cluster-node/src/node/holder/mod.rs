//! A shard that this node holds: its local collection, and the task that follows its log.

mod end_probe;
mod follower;
mod opening;
mod pauses;
mod replacement;
mod state;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use tokio::task::{JoinHandle, JoinSet};

use self::end_probe::EndProbe;
use self::follower::ShardFollower;
pub(super) use self::state::HolderState;
use super::services::NodeServices;
use super::snapshot::SnapshotState;
use crate::types::{CollectionRecord, ShardKey};

/// Time between two reads of the log's end if no writer announced an entry.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// First pause after a failure. Doubled each time.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// Longest pause after a failure.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// A shard that this node holds. Dropping it ends the follower.
pub(super) struct Holder {
    pub(super) record: CollectionRecord,
    pub(super) state: Arc<HolderState>,
    task: JoinHandle<()>,
}

impl Holder {
    /// Starts to follow the shard's log.
    pub(super) fn start(
        services: Arc<NodeServices>,
        record: CollectionRecord,
        key: ShardKey,
    ) -> Holder {
        let state = Arc::new(HolderState::new());
        let log = services.log(&key);
        let follower = ShardFollower {
            services,
            record: record.clone(),
            key,
            log,
            state: state.clone(),
            snapshots: SnapshotState::default(),
            replacement: JoinSet::new(),
            replaced: None,
            end_probe: EndProbe::default(),
            is_skip_logged: false,
        };
        Holder { record, state, task: tokio::spawn(follower.run()) }
    }

    /// Ends the follower. Reads that still run get no answer, because they may find the next copy
    /// of the shard, which is behind.
    pub(super) fn end(self) {
        self.state.reopen();
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.task.abort();
    }
}
