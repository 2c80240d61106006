//! Marks in the store: a backup and a removal of objects must not run at the same time, even on
//! different servers.
//!
//! Each puts its mark first and then looks for marks of the other kind. At least one of two that
//! start together therefore sees the other. A removal that sees a backup ends without removing
//! objects. A backup that sees a removal waits for its end. A mark that is older than [`STALE`]
//! belongs to a program that has died.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use base::{Error, Result};
use chrono::{DateTime, Utc};
use object_store::path::Path as Key;
use object_store::{ObjectStoreExt, PutPayload};

use crate::list::BackupId;
use crate::store::BackupStore;
use crate::transfer::BackupProgress;

/// Age from which a mark is ignored. Work in progress renews its mark.
pub(crate) const STALE: Duration = Duration::from_secs(3600);
/// Interval at which work in progress renews its mark.
const RENEW: Duration = Duration::from_secs(600);
/// Longest wait of a backup for the end of a removal.
const REMOVAL_WAIT_MAX: Duration = Duration::from_secs(120);
/// Time between two reads of the marks.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Kind of work that a mark stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MarkKind {
    /// A backup in progress.
    Backup,
    /// A removal of objects in progress.
    Removal,
}

impl MarkKind {
    fn directory(self) -> &'static str {
        match self {
            MarkKind::Backup => "running",
            MarkKind::Removal => "pruning",
        }
    }
}

/// A mark of this program.
pub(crate) struct Mark<'a> {
    store: &'a BackupStore,
    collection: String,
    key: Key,
    put: Instant,
}

impl<'a> Mark<'a> {
    /// Puts a mark.
    pub(crate) async fn put(
        store: &'a BackupStore,
        collection: &str,
        kind: MarkKind,
        id: &BackupId,
    ) -> Result<Mark<'a>> {
        let key = store.mark_key(collection, kind.directory(), id);
        store.put(&key, PutPayload::from_static(b"in progress")).await?;
        Ok(Mark { store, collection: collection.to_owned(), key, put: Instant::now() })
    }

    /// Puts the mark again if it may soon be stale.
    pub(crate) async fn renew(&mut self) -> Result<()> {
        if self.put.elapsed() >= RENEW {
            self.store.put(&self.key, PutPayload::from_static(b"in progress")).await?;
            self.put = Instant::now();
        }
        Ok(())
    }

    /// Does `work` and puts the mark again meanwhile, so that it never becomes stale, however long
    /// one file takes.
    ///
    /// # Errors
    /// The errors of `work`; the store's error if the mark cannot be put.
    pub(crate) async fn during<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        let mut work = pin!(work);
        let mut kept = pin!(self.keep());
        poll_fn(|context| match work.as_mut().poll(context) {
            Poll::Ready(outcome) => Poll::Ready(outcome),
            Poll::Pending => kept.as_mut().poll(context).map(Err),
        })
        .await
    }

    /// Puts the mark again in intervals. Ends only with the error of the store.
    async fn keep(&self) -> Error {
        loop {
            tokio::time::sleep(RENEW).await;
            let put = self.store.put(&self.key, PutPayload::from_static(b"in progress"));
            if let Err(error) = put.await {
                return error;
            }
        }
    }

    /// Returns the time of the store's clock.
    pub(crate) async fn store_time(&self) -> Result<DateTime<Utc>> {
        let head = self.store.raw().head(&self.key).await;
        head.map(|meta| meta.last_modified).map_err(|error| self.store.failed(&error))
    }

    /// Returns true if work of this kind is in progress. Removes stale marks.
    pub(crate) async fn sees(&self, kind: MarkKind) -> Result<bool> {
        let now = self.store_time().await?;
        let mut seen = false;
        for (name, mark) in self.store.names(&self.collection, kind.directory()).await? {
            if (now - mark.modified).to_std().unwrap_or_default() < STALE {
                seen = true;
            } else if let Ok(id) = name.parse() {
                let key = self.store.mark_key(&self.collection, kind.directory(), &id);
                self.store.remove(&key).await?;
            }
        }
        Ok(seen)
    }

    /// Waits until no removal is in progress.
    ///
    /// # Errors
    /// `Unavailable` with a retry delay after two minutes.
    pub(crate) async fn wait_for_removals(&self, progress: &BackupProgress) -> Result<()> {
        let deadline = Instant::now() + REMOVAL_WAIT_MAX;
        while self.sees(MarkKind::Removal).await? {
            progress.check()?;
            if Instant::now() >= deadline {
                return Err(Error::unavailable(format!(
                    "objects of {:?} are being removed from {} by another program; try again",
                    self.collection,
                    self.store.shown()
                ))
                .with_retry_after(REMOVAL_WAIT_MAX));
            }
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
        Ok(())
    }

    /// Removes the mark. A failure only delays the next removal of objects.
    pub(crate) async fn remove(self) {
        if let Err(error) = self.store.remove(&self.key).await {
            tracing::warn!(%error, "the mark of a backup stays until it is stale");
        }
    }
}
