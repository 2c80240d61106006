//! Marks in the store. They keep a backup and a removal of objects from running at the same time,
//! even on different servers.
//!
//! Each writes its mark first and then searches for marks of the other kind. At least one of two
//! that start together therefore sees the other. A removal that sees a backup ends without removing
//! objects. A backup that sees a removal waits for its end. A mark that is older than [`STALE`]
//! belongs to a program that was killed.
//!
//! A program that was stopped for so long and then continues finds that its mark is stale, or
//! missing. It then ends with an error: others did not see its work and may have made or removed
//! objects. It lists no backup and removes no further backup and no further object.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use base::{Error, Result};
use chrono::{DateTime, Utc};
use object_store::path::Path as Key;
use object_store::{ObjectStoreExt, PutPayload};
use parking_lot::Mutex;

use crate::list::{BackupFile, BackupId, BackupList};
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

/// Kind of work that a mark announces.
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
    /// Time before the last request that put the mark.
    put: Mutex<Instant>,
    /// True once the list is written. An error of the mark does not end the work then, because the
    /// work itself removes the list again.
    is_listing: AtomicBool,
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
        let put = Instant::now();
        store.put(&key, PutPayload::from_static(b"in progress")).await?;
        Ok(Mark {
            store,
            collection: collection.to_owned(),
            key,
            put: Mutex::new(put),
            is_listing: AtomicBool::new(false),
        })
    }

    /// Returns the key of the mark.
    pub(crate) fn key(&self) -> &Key {
        &self.key
    }

    /// Puts the mark again if it may soon be stale.
    ///
    /// # Errors
    /// As [`Mark::check`].
    pub(crate) async fn renew(&self) -> Result<()> {
        let age = self.put.lock().elapsed();
        if age >= RENEW { self.put_again().await } else { Ok(()) }
    }

    async fn put_again(&self) -> Result<()> {
        self.check().await?;
        let before = *self.put.lock();
        let put = Instant::now();
        self.store.put(&self.key, PutPayload::from_static(b"in progress")).await?;
        // This process may have been stopped since the check.
        if before.elapsed() >= STALE {
            return Err(self.lost());
        }
        *self.put.lock() = put;
        Ok(())
    }

    /// Checks that the mark was never stale, so that other programs have seen this work.
    ///
    /// # Errors
    /// `Unavailable` if it was; the store's error.
    pub(crate) async fn check(&self) -> Result<()> {
        let found = self.store.raw().head(&self.key).await;
        let is_stale = self.put.lock().elapsed() >= STALE;
        match found {
            Ok(_) if !is_stale => Ok(()),
            // Another program removes a mark that it finds stale.
            Ok(_) | Err(object_store::Error::NotFound { .. }) => Err(self.lost()),
            Err(error) => Err(self.store.failed(error)),
        }
    }

    /// Returns the error of work whose mark has expired.
    fn lost(&self) -> Error {
        Error::unavailable(format!(
            "{}: this program was stopped for too long during its work on {:?}, and others may have \
             removed objects that it needs; try again",
            self.store.shown(),
            self.collection
        ))
    }

    /// Writes the list of a backup. Other programs saw the mark of the backup until then, so none
    /// of them has removed its objects.
    ///
    /// # Errors
    /// As [`Mark::check`]; the backup is not listed then.
    pub(crate) async fn put_list(&self, list: &BackupList) -> Result<()> {
        self.is_listing.store(true, Ordering::Relaxed);
        self.check().await?;
        self.store.put_list(list).await?;
        // This process may have been stopped since the check.
        match self.check().await {
            Ok(()) => Ok(()),
            Err(error) => self.keep_if_whole(list, error).await,
        }
    }

    /// Does the same as [`Mark::put_list`]. If the progress was stopped before the list was
    /// written, removes the list again. The caller that stopped the work may have looked for the
    /// list before, and no later removal would find it.
    ///
    /// # Errors
    /// As [`Mark::put_list`]; `Cancelled` if the progress was stopped; the store's error.
    pub(crate) async fn put_list_unless_stopped(
        &self,
        list: &BackupList,
        progress: &BackupProgress,
    ) -> Result<()> {
        self.put_list(list).await?;
        let stopped = progress.check();
        if stopped.is_err() {
            self.store.remove(&self.store.list_key(&list.collection, &list.id)).await?;
        }
        stopped
    }

    /// Keeps a list that was written under a stale mark if its objects are there and no removal
    /// runs. Otherwise removes it.
    ///
    /// # Errors
    /// `error` if the list is removed; the store's error.
    async fn keep_if_whole(&self, list: &BackupList, error: Error) -> Result<()> {
        // Removals that begin from here on see this work.
        self.store.put(&self.key, PutPayload::from_static(b"in progress")).await?;
        if !self.sees(MarkKind::Removal).await? {
            let stored = self.store.objects(&list.collection).await?;
            let is_there = |file: &BackupFile| {
                stored.get(&file.object).is_some_and(|found| found.bytes == file.bytes)
            };
            if list.files.iter().all(is_there) {
                return Ok(());
            }
        }
        self.store.remove(&self.store.list_key(&list.collection, &list.id)).await?;
        Err(error)
    }

    /// Does `work` and renews the mark meanwhile, so that it never becomes stale, even if one file
    /// takes long.
    ///
    /// # Errors
    /// The errors of `work`; as [`Mark::check`]; the store's error if the mark cannot be put.
    pub(crate) async fn during<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        let mut work = pin!(work);
        let mut kept = pin!(self.keep());
        poll_fn(|context| match work.as_mut().poll(context) {
            Poll::Ready(outcome) => Poll::Ready(outcome),
            Poll::Pending => kept.as_mut().poll(context).map(Err),
        })
        .await
    }

    /// Puts the mark again in intervals. Ends only with an error.
    async fn keep(&self) -> Error {
        loop {
            tokio::time::sleep(RENEW).await;
            if let Err(error) = self.put_again().await
                && !self.is_listing.load(Ordering::Relaxed)
            {
                return error;
            }
        }
    }

    /// Returns the time of the store's clock.
    pub(crate) async fn store_time(&self) -> Result<DateTime<Utc>> {
        let head = self.store.raw().head(&self.key).await;
        head.map(|meta| meta.last_modified).map_err(|error| self.store.failed(error))
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use base::ErrorKind;
    use model_store::block_on;
    use os::{Pacer, Rate};

    use super::*;
    use crate::prune::remove_marked;
    use crate::transfer::BackupContext;

    #[test]
    fn a_backup_that_slept_is_not_listed() {
        let directory = tempfile::tempdir().unwrap();
        let store = BackupStore::open(directory.path().to_str().unwrap(), &[]).unwrap();
        let work = async {
            let id = BackupId::now();
            let mark = Mark::put(&store, "c", MarkKind::Backup, &id).await?;
            mark.put_list(&BackupList::empty(&id)).await?;
            assert_eq!(store.ids("c").await?, std::slice::from_ref(&id));

            // A removal has found the mark stale.
            let other = BackupId::after(Some(&id));
            let mark = Mark::put(&store, "c", MarkKind::Backup, &other).await?;
            store.remove(&mark.key).await?;
            let error = mark.put_list(&BackupList::empty(&other)).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            assert_eq!(store.ids("c").await?, [id]);

            // The same, while the list was written. All of its objects are there.
            let mut listed = BackupList::empty(&other);
            store.put_list(&listed).await?;
            mark.keep_if_whole(&listed, mark.lost()).await?;
            assert_eq!(store.ids("c").await?.len(), 2);
            listed.files.push(BackupFile {
                name: "a".to_owned(),
                object: "a".to_owned(),
                bytes: 1,
                blake3: String::new(),
            });
            mark.keep_if_whole(&listed, mark.lost()).await.unwrap_err();
            assert_eq!(store.ids("c").await?.len(), 1);
            Ok(())
        };
        block_on(work).unwrap();
    }

    #[test]
    fn a_removal_that_slept_removes_no_further_object() {
        let directory = tempfile::tempdir().unwrap();
        let store = BackupStore::open(directory.path().to_str().unwrap(), &[]).unwrap();
        let work = async {
            let mark = Mark::put(&store, "c", MarkKind::Removal, &BackupId::now()).await?;
            let ago = |age: Duration| Instant::now().checked_sub(age).unwrap();
            *mark.put.lock() = ago(RENEW);
            mark.renew().await?;
            assert!(mark.put.lock().elapsed() < RENEW);
            *mark.put.lock() = ago(STALE);
            let error = mark.renew().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            // The mark stays stale.
            mark.renew().await.unwrap_err();
            let id = BackupId::now();
            store.put_list(&BackupList::empty(&id)).await?;
            let pacer = Pacer::new(Rate::unlimited());
            let progress = BackupProgress::default();
            let context = BackupContext { store: &store, pacer: &pacer, progress: &progress };
            let all = |lists: &BTreeMap<BackupId, DateTime<Utc>>,
                       _: DateTime<Utc>|
             -> Vec<BackupId> { lists.keys().cloned().collect() };
            remove_marked(&context, "c", Duration::ZERO, &mark, all).await.unwrap_err();
            assert_eq!(store.ids("c").await?, [id]);
            Ok(())
        };
        block_on(work).unwrap();
    }
}
