//! Damage of the local collection, and its replacement from the store beside its service.

use std::sync::Arc;
use std::time::{Duration, Instant};

use base::{Error, Result};
use search::registry::NamedCollection;
use tokio::task::JoinError;

use super::POLL_INTERVAL;
use super::follower::ShardFollower;
use crate::node::copy_loader::CopyLoader;
use crate::node::local;

/// Shortest time from the end of a try to replace a damaged local collection to the next try. A
/// disk that damages every copy must not cause one restore after the other.
const REPLACE_INTERVAL: Duration = Duration::from_secs(600);

impl ShardFollower {
    /// Marks the local collection if it lacks data, and begins its replacement once that is
    /// permitted.
    pub(super) fn attend_to_damage(&mut self, named: &Arc<NamedCollection>) {
        while let Some(ended) = self.replacement.try_join_next() {
            self.record_replacement(ended);
        }
        let Some(loss) = named.collection().loss() else { return };
        self.mark_damaged(&loss.to_string());
        self.begin_replacement_if_due(named);
    }

    /// Marks the local collection as damaged, so that the node announces the mark.
    pub(super) fn mark_damaged(&self, reason: &str) {
        if self.state.damage.mark(reason, Instant::now()) {
            tracing::error!(
                shard = %self.key, reason,
                "the local copy is damaged and stays until it can be replaced from the store"
            );
            self.services.serving_changed();
        }
    }

    /// Waits until a try to replace the local collection has ended.
    pub(super) async fn wait_for_replacement(&mut self, named: &Arc<NamedCollection>) {
        self.begin_replacement_if_due(named);
        while self.replacement.is_empty() && !named.removed() {
            tokio::time::sleep(POLL_INTERVAL).await;
            self.begin_replacement_if_due(named);
        }
        self.end_replacement().await;
    }

    /// Begins to replace the damaged local collection beside its service, if the decision about the
    /// copy and the time since the last try permit it.
    fn begin_replacement_if_due(&mut self, named: &Arc<NamedCollection>) {
        let is_due =
            self.state.damage.may_be_replaced(Instant::now()) && self.until_replacement().is_zero();
        if !is_due || !self.replacement.is_empty() || named.removed() {
            return;
        }
        tracing::warn!(shard = %self.key, "the damaged local copy is replaced from the store");
        let loader = self.loader();
        let applied = local::position(named).unwrap_or_default().next;
        let state = self.state.clone();
        self.replacement.spawn(async move {
            let floor = loader.log.floor().await?;
            let loaded = loader.load(floor, applied).await;
            state.wake.notify_one();
            loaded.map(drop)
        });
    }

    /// Waits until the task that replaces the local collection has ended, if there is one.
    pub(super) async fn end_replacement(&mut self) {
        while let Some(ended) = self.replacement.join_next().await {
            self.record_replacement(ended);
        }
    }

    /// Records the end of a try to replace the local collection. The next try comes later.
    fn record_replacement(&mut self, ended: Result<Result<()>, JoinError>) {
        self.replaced = Some(Instant::now());
        let outcome = ended.unwrap_or_else(|error| {
            Err(Error::internal("the replacement ended early").caused_by(error))
        });
        if let Err(error) = outcome {
            tracing::error!(
                shard = %self.key, %error,
                "the damaged local copy stays, because it cannot be replaced now"
            );
        }
    }

    pub(super) fn loader(&self) -> CopyLoader {
        CopyLoader {
            services: self.services.clone(),
            record: self.record.clone(),
            key: self.key.clone(),
            log: self.log.clone(),
        }
    }

    /// Returns the time until the local collection may be replaced because of damage.
    pub(super) fn until_replacement(&self) -> Duration {
        let since = self.replaced.map(|at| at.elapsed());
        since.map_or(Duration::ZERO, |since| REPLACE_INTERVAL.saturating_sub(since))
    }
}
