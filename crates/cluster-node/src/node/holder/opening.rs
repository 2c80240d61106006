//! Opening of the local collection of a shard.

use std::sync::Arc;

use base::{Error, ErrorKind, Result};
use cluster::EntryNumber;
use cluster_log::{FollowPosition, LogFloor};
use search::registry::NamedCollection;

use super::follower::ShardFollower;
use crate::node::copy_loader::OpenedShard;
use crate::node::local;

impl ShardFollower {
    /// Returns the local collection: the present one if it can follow the log, or one loaded from
    /// the store. A damaged one that can follow the log is returned too. It is served until it is
    /// replaced. Another one stays on the disk until the loaded one takes its place.
    pub(super) async fn open(&mut self) -> Result<OpenedShard> {
        // It changes the collection of this name.
        self.end_replacement().await;
        // A directory that is not mounted looks like a log that begins.
        self.log.check_marker().await?;
        let floor = self.log.floor().await?;
        let applied = match self.present(floor)? {
            PresentCopy::Follows(named) => {
                let position = local::position(&named).unwrap_or_default();
                if self.has_last_applied(position).await? {
                    return Ok(OpenedShard { named, floor });
                }
                self.mark_damaged(&format!(
                    "the log in the store does not have the last entry before {} that the copy has \
                     applied: the store was restored to an older state, or has lost entries",
                    position.next
                ));
                Some(position.next)
            }
            PresentCopy::Absent => None,
            PresentCopy::Unusable { applied } => Some(applied),
        };
        self.check_wanted()?;
        let loaded = self.loader().load(floor, applied.unwrap_or_default()).await;
        if let (Err(error), Some(_)) = (&loaded, applied)
            && error.kind() == ErrorKind::DataLoss
        {
            self.mark_damaged(error.message());
        }
        loaded
    }

    /// Checks that this node should hold the shard. A node that only serves its copy until other
    /// nodes have theirs does not restore one. The others restore the shard meanwhile.
    ///
    /// # Errors
    /// `Unavailable` if it should not.
    fn check_wanted(&self) -> Result<()> {
        let view = self.services.view.current();
        let wanted = view.wanted_holders(&self.key, self.record.copies);
        // Without nodes, the view is not known yet.
        if wanted.is_empty() || wanted.contains(&self.services.name) {
            return Ok(());
        }
        Err(Error::unavailable(
            "no local copy can follow the log, and other nodes restore the shard",
        ))
    }

    /// Returns true if the log has the last entry that the local collection has applied. If it is
    /// missing, or a later owner's entry is in its place, the log has been replaced. Its later
    /// entries are no changes of the state that the collection has.
    ///
    /// # Errors
    /// Errors of the store that may pass.
    async fn has_last_applied(&self, position: FollowPosition) -> Result<bool> {
        let Some(last) = position.next.0.checked_sub(1).map(EntryNumber) else { return Ok(true) };
        match self.log.read(last).await {
            Ok(Some(entry)) => Ok(entry.epoch <= position.epoch),
            // A snapshot may cover it, and it may be removed.
            Ok(None) => Ok(self.log.floor().await?.entry > last),
            Err(error) if error.is_retryable() => Err(error),
            // It is damaged, or of a newer program, and was applied before.
            Err(_) => Ok(true),
        }
    }

    /// Returns the local collection as it is on this machine.
    ///
    /// # Errors
    /// Errors that may pass, such as too little memory.
    fn present(&self, floor: LogFloor) -> Result<PresentCopy> {
        let named = match self.services.local.find(&self.key) {
            Ok(Some(named)) => named,
            Ok(None) => return Ok(PresentCopy::Absent),
            Err(error) if error.kind() == ErrorKind::DataLoss => {
                self.mark_damaged(&format!("it cannot be opened: {}", error.message()));
                // Its position is not known. A shard that was written has the entry 0.
                return Ok(PresentCopy::Unusable { applied: EntryNumber(1) });
            }
            Err(error) => return Err(error),
        };
        let position = local::position(&named);
        if position.is_some_and(|position| position.next >= floor.entry) {
            return Ok(PresentCopy::Follows(named));
        }
        Ok(PresentCopy::Unusable { applied: position.unwrap_or_default().next })
    }
}

/// The local collection of a shard before it is opened.
enum PresentCopy {
    /// There is no local collection.
    Absent,
    /// The log has the entries that follow the collection.
    Follows(Arc<NamedCollection>),
    /// The collection cannot be opened, has no position, or is below the floor of the log.
    Unusable {
        /// Next entry of the log after it.
        applied: EntryNumber,
    },
}
