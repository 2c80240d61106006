//! Opening of the local collection of a shard.

use std::sync::Arc;

use base::{ErrorKind, Result};
use cluster::EntryNumber;
use cluster_log::LogFloor;
use search::registry::NamedCollection;

use super::follower::ShardFollower;
use crate::node::copy_loader::OpenedShard;
use crate::node::local;

impl ShardFollower {
    /// Returns the local collection: the present one if it can follow the log, or one loaded from
    /// the store. A damaged one that can follow the log is returned too: it is served until it is
    /// replaced. Another one stays on the disk until the loaded one takes its place.
    pub(super) async fn open(&mut self) -> Result<OpenedShard> {
        // It changes the collection of this name.
        self.end_replacement().await;
        let floor = self.log.floor().await?;
        let applied = match self.present(floor)? {
            PresentCopy::Follows(named) => return Ok(OpenedShard { named, floor }),
            PresentCopy::Absent => None,
            PresentCopy::Unusable { applied } => Some(applied),
        };
        let loaded = self.loader().load(floor, applied.unwrap_or_default()).await;
        if let (Err(error), Some(_)) = (&loaded, applied)
            && error.kind() == ErrorKind::DataLoss
        {
            self.mark_damaged(error.message());
        }
        loaded
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
    /// There is none.
    Absent,
    /// The log has the entries after it.
    Follows(Arc<NamedCollection>),
    /// It cannot be opened, has no position, or is below the floor of the log.
    Unusable {
        /// Next entry of the log after it.
        applied: EntryNumber,
    },
}
