//! Caches of stores that no process follows, and their removal.

use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use base::{Error, Result};

use super::{CachedVersion, DIRECTORIES, StoreCache, bytes_of, names_in};

/// Directory of copies that are being removed.
const EVICTED: &str = "evicted";

impl StoreCache {
    /// Returns the caches of other stores in the same directory that no process uses and that have
    /// copies.
    pub(crate) fn unused_neighbours(&self) -> Vec<UnusedCache> {
        unused_caches(self.root.parent().unwrap_or(&self.root))
    }

    /// Locks a cache that is there. Returns `None` if another follower uses it, in this process or
    /// in another one, or if the file system has no locks.
    pub(super) fn lock_unused(&self) -> Option<File> {
        let lock = File::options().write(true).open(self.root.join("lock")).ok()?;
        lock.try_lock().is_ok().then_some(lock)
    }
}

/// Returns the caches in the directory `stores` that no process uses and that have copies.
pub(crate) fn unused_caches(stores: &Path) -> Vec<UnusedCache> {
    let caches = names_in(stores).into_iter().map(|name| StoreCache { root: stores.join(name) });
    let unused = caches.filter(|cache| cache.lock_unused().is_some());
    let with_copies = unused.filter_map(|cache| {
        let directories = DIRECTORIES.into_iter().chain([EVICTED]);
        let bytes: u64 = directories.map(|name| bytes_of(&cache.root.join(name))).sum();
        let versions = cache.versions();
        (bytes > 0).then_some(UnusedCache { cache, versions, bytes })
    });
    with_copies.collect()
}

/// The cache of a store that no process follows.
#[derive(Clone, Debug)]
pub(crate) struct UnusedCache {
    cache: StoreCache,
    pub(crate) versions: Vec<CachedVersion>,
    /// Bytes of all files.
    pub(crate) bytes: u64,
}

impl UnusedCache {
    /// Returns the directory of the whole cache.
    pub(crate) fn root(&self) -> &Path {
        self.cache.root()
    }

    /// Returns the directory of the copied models.
    pub(crate) fn models_dir(&self) -> PathBuf {
        self.cache.root.join("models")
    }

    /// Returns the last time at which a version was wanted.
    pub(crate) fn last_wanted(&self) -> SystemTime {
        let times = self.versions.iter().map(|version| version.last_wanted);
        times.max().unwrap_or(SystemTime::UNIX_EPOCH)
    }

    /// Returns true if no server has followed the store for `time`. If the last time is not known,
    /// it is this moment.
    pub(crate) fn is_unused_for(&self, time: Duration) -> bool {
        let mark = std::fs::metadata(self.cache.followed_mark());
        let Ok(last) = mark.and_then(|mark| mark.modified()) else {
            self.cache.note_followed();
            return false;
        };
        SystemTime::now().duration_since(last).is_ok_and(|unused| unused >= time)
    }

    /// Removes all copies. The lock and empty directories stay, so that a server that starts at the
    /// same moment finds a whole cache. Returns false if a process uses the cache by now.
    ///
    /// # Errors
    /// I/O errors.
    pub(crate) fn evict(&self) -> Result<bool> {
        let root = &self.cache.root;
        let evicted = root.join(EVICTED);
        {
            let Some(_lock) = self.cache.lock_unused() else { return Ok(false) };
            // First, so that a server that follows the store again waits for its copies.
            change_if_there(std::fs::remove_file, &self.cache.synced_mark())?;
            // Left by a process that was killed.
            change_if_there(std::fs::remove_dir_all, &evicted)?;
            os::private::create_dir_all(&evicted).map_err(|error| Error::io(&evicted, &error))?;
            for name in DIRECTORIES {
                let rename = |from: &Path| std::fs::rename(from, evicted.join(name));
                change_if_there(rename, &root.join(name))?;
            }
            self.cache.make_directories()?;
        }
        // The lock is not held, because large files take time and a server may start meanwhile.
        change_if_there(std::fs::remove_dir_all, &evicted)?;
        Ok(true)
    }
}

/// Changes `path` by `change`, which removes or renames it. A missing path is not an error.
fn change_if_there<'a>(
    change: impl FnOnce(&'a Path) -> std::io::Result<()>,
    path: &'a Path,
) -> Result<()> {
    match change(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(Error::io(path, &error)),
        _ => Ok(()),
    }
}
