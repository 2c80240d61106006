//! The local collection of a shard: opened, loaded from the store, or replaced if it is damaged.

use std::sync::Arc;
use std::time::{Duration, Instant};

use base::{Error, ErrorKind, Result};
use cluster::EntryNumber;
use cluster_log::{FollowPosition, LogFloor};
use search::registry::NamedCollection;
use search::segment::Quarantined;

use super::follower::{OpenedShard, ShardFollower};
use super::local::{self, blocking};
use super::snapshot;

/// Shortest time from the end of a try to replace a damaged local collection to the next try. A
/// disk that damages every copy must not cause one restore after the other.
const REPLACE_INTERVAL: Duration = Duration::from_secs(600);

impl ShardFollower {
    /// Returns the local collection: the present one, or one loaded from the store. A damaged one
    /// is replaced. If that fails, it is served until the next try.
    pub(super) async fn open(&mut self) -> Result<OpenedShard> {
        let floor = self.log.floor().await?;
        let mut damaged = None;
        if let Some(named) = self.present().await? {
            match local::position(&named) {
                Some(position) if position.next >= floor.entry => {
                    let Some(loss) = self.loss_to_repair(&named) else {
                        return Ok(OpenedShard { named, floor });
                    };
                    tracing::error!(shard = %self.key, %loss, "the local copy is damaged and is replaced");
                    damaged = Some(named);
                }
                _ => self.services.local.remove(&self.key).await?,
            }
        }
        let loaded = self.load(floor).await;
        if damaged.is_some() {
            // At the end: a try may take longer than the interval.
            self.replaced = Some(Instant::now());
        }
        match (loaded, damaged) {
            (Err(error), Some(named)) if !named.removed() => {
                tracing::error!(shard = %self.key, %error, "the damaged local copy cannot be replaced now");
                Ok(OpenedShard { named, floor })
            }
            (loaded, _) => loaded,
        }
    }

    /// Loads the local collection from the store: from a snapshot, or an empty one if the log has
    /// all entries. Takes the place of the present one.
    async fn load(&self, floor: LogFloor) -> Result<OpenedShard> {
        let restored = snapshot::restore(&self.services, &self.key, &self.record, floor).await?;
        if let Some(named) = restored {
            return Ok(OpenedShard { named, floor });
        }
        if floor.entry > EntryNumber::default() {
            return Err(Error::data_loss(format!(
                "the log of shard {} begins at entry {}, and there is no snapshot of what was before; restore the \
                 cluster's store from a copy",
                self.key, floor.entry
            )));
        }
        self.services.local.remove(&self.key).await?;
        let named = self.services.local.create(&self.key, &self.record).await?;
        let empty = named.clone();
        blocking(move || local::store_position(&empty, FollowPosition::default())).await?;
        Ok(OpenedShard { named, floor })
    }

    /// Returns the local collection if there is one. Removes a damaged one, since the store has all
    /// of it. Other errors, such as too little memory, may pass.
    async fn present(&self) -> Result<Option<Arc<NamedCollection>>> {
        match self.services.local.find(&self.key) {
            Err(error) if error.kind() == ErrorKind::DataLoss => {
                tracing::error!(shard = %self.key, %error, "the local copy is damaged and is replaced");
                self.services.local.remove(&self.key).await?;
                Ok(None)
            }
            found => found,
        }
    }

    /// Removes the local collection once it may be replaced. Damage stopped an operation of the
    /// log, so the collection is not served.
    pub(super) async fn remove_damaged(&mut self) -> Result<()> {
        self.state.reopen();
        self.services.serving_changed();
        tokio::time::sleep(self.until_replacement()).await;
        self.services.local.remove(&self.key).await?;
        self.replaced = Some(Instant::now());
        Ok(())
    }

    /// Returns the damage of the local collection, if it is to be replaced because of it.
    pub(super) fn loss_to_repair(&self, named: &NamedCollection) -> Option<Quarantined> {
        named.collection().loss().filter(|_| self.until_replacement().is_zero())
    }

    /// Returns the time until the local collection may be replaced because of damage.
    fn until_replacement(&self) -> Duration {
        let since = self.replaced.map(|at| at.elapsed());
        since.map_or(Duration::ZERO, |since| REPLACE_INTERVAL.saturating_sub(since))
    }

    /// Returns true if the store answers, so that a damaged collection can be replaced. Otherwise
    /// the collection is served until the next try.
    pub(super) async fn store_answers(&mut self) -> bool {
        // A step does not show it: the writer may have passed the entry on.
        let Err(error) = self.log.floor().await else { return true };
        tracing::error!(shard = %self.key, %error, "the damaged local copy cannot be replaced now");
        self.replaced = Some(Instant::now());
        false
    }
}

#[cfg(test)]
#[path = "local_copy_tests.rs"]
mod tests;
