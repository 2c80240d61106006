//! Turns of this node's backups, restores and transfers of archives.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use base::{Error, Result};
use tokio::sync::{OwnedSemaphorePermit, SemaphorePermit};

use super::{ClusterBackups, RETRY_AFTER};

/// Maximum backups and restores that wait for their turn on this node.
pub(super) const WAITING_MAX: usize = 16;
/// Maximum number of archives that are received or sent at the same time.
pub(super) const TRANSFERS_MAX: usize = 1;
/// Longest wait for the end of another transfer.
const TRANSFER_WAIT_MAX: Duration = Duration::from_secs(2);

impl ClusterBackups {
    /// Waits for the turn of this node's next backup or restore.
    pub(super) async fn turn(&self) -> Result<SemaphorePermit<'_>> {
        let waiting = WaitingCount::begin(&self.waiting)?;
        let turn = self.turn.acquire().await;
        drop(waiting);
        turn.map_err(|_| Error::unavailable("the server is shutting down"))
    }

    /// Returns the permit of a transfer of an archive. Waits for a moment only, because the client
    /// sends or reads meanwhile. The last transfer returns its permit a moment after its answer.
    ///
    /// # Errors
    /// `ResourceExhausted` with retry advice if another archive is being transferred.
    pub(super) async fn transfer(&self) -> Result<OwnedSemaphorePermit> {
        let permit = self.transfers.clone().acquire_owned();
        match tokio::time::timeout(TRANSFER_WAIT_MAX, permit).await {
            Ok(Ok(permit)) => Ok(permit),
            Ok(Err(_)) => Err(Error::unavailable("the server is shutting down")),
            Err(_) => Err(Error::exhausted(format!(
                "this node transfers {TRANSFERS_MAX} snapshot already; try again later, or use another root"
            ))
            .with_retry_after(RETRY_AFTER)),
        }
    }
}

/// A request that waits for its turn.
pub(super) struct WaitingCount<'a>(&'a AtomicUsize);

impl WaitingCount<'_> {
    /// Counts a waiting backup or restore.
    ///
    /// # Errors
    /// `ResourceExhausted` if [`WAITING_MAX`] of them wait already.
    pub(super) fn begin(waiting: &AtomicUsize) -> Result<WaitingCount<'_>> {
        let count = WaitingCount(waiting);
        if waiting.fetch_add(1, Ordering::AcqRel) >= WAITING_MAX {
            return Err(Error::exhausted(format!(
                "{WAITING_MAX} backups and restores are waiting on this node; try again later"
            ))
            .with_retry_after(RETRY_AFTER));
        }
        Ok(count)
    }
}

impl Drop for WaitingCount<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
