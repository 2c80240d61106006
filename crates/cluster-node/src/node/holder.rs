//! A shard that this node holds: its state, and the task that follows its log.

use std::sync::Arc;

use cluster_log::ShardLog;
use tokio::task::JoinHandle;

use super::follower::ShardFollower;
use super::holder_state::HolderState;
use super::services::NodeServices;
use super::snapshot::SnapshotState;
use crate::types::{CollectionRecord, ShardKey};

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
        let log = ShardLog::new(services.store.place(), &key);
        let follower = ShardFollower {
            services,
            record: record.clone(),
            key,
            log,
            state: state.clone(),
            snapshots: SnapshotState::default(),
            replaced: None,
        };
        Holder { record, state, task: tokio::spawn(follower.run()) }
    }

    /// Ends the follower. Reads that still run get no answer: they may find the next copy of the
    /// shard, which is behind.
    pub(super) fn end(self) {
        self.state.reopen();
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use base::ErrorKind;
    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn reads_of_an_ended_holder_do_not_count() {
        let key = ShardKey::new("1", 0);
        let record = CollectionRecord {
            name: "photos".to_owned(),
            id: "1".to_owned(),
            shards: 1,
            copies: 1,
            create: json!({}),
            images: None,
        };
        let state = Arc::new(HolderState::new());
        state.caught_up.store(true, Ordering::Release);
        let task = tokio::spawn(std::future::pending());
        let holder = Holder { record, state: state.clone(), task };
        let before = state.generation();
        state.check_generation(&key, before).unwrap();
        holder.end();
        assert!(!state.is_caught_up());
        let error = state.check_generation(&key, before).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
    }
}
