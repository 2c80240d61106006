//! Named collections: created, found, aliased, removed, and searched by a pool of threads, all
//! within one memory limit.
//!
//! # On disk
//! The directory has one directory per collection with its name. There `settings` has its settings
//! and `points-…` its data. APIs may keep files beside these. Names of the registry's own files
//! begin with a dot, which names of collections do not. `.lock` locks out a second process,
//! `.aliases` has the aliases, `.new-…` is a collection that is being created, `.gone-…` one that
//! is being removed. A collection is created under a temporary name and renamed, and renamed before
//! it is removed, so after a crash it either exists or does not.
//!
//! # Damage
//! A collection whose settings or list of segments cannot be read is reported with the reason and
//! not changed. The others are served.
//!
//! # Threads
//! `search-N` run queries ([`Registry::submit`]). `search-open` opens segments and reads codes,
//! embeddings and payloads into memory. `search-flush` and `search-merge` have low priority.
//! `search-flush-hi` and `search-merge-hi` take over if that is too slow. Each thread works for all
//! collections, so their number does not depend on that of collections.

mod aliases;
mod background;
mod conditional;
mod core;
pub(crate) mod files;
mod media;
mod named;
mod options;
mod pool;
mod restore;
mod write;

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use base::{Error, Result};

use self::core::RegistryCore;
use self::pool::SearchPool;
use crate::budget::BudgetStats;
use crate::collection::{FilterStats, StallStats};
use crate::rerank::{BlockStats, CacheStats};
use crate::segment_cache::SegmentCacheStats;

pub use self::aliases::{AliasChange, changed_aliases};
pub use self::files::{CollectionSettings, NAME_BYTES_MAX, check_name, is_version_of};
pub use self::media::{MediumChoice, medium_name, probe_dax};
pub use self::named::{NamedCollection, ScrollPage};
pub use self::options::RegistryOptions;
pub use self::pool::{PoolTask, SlicedTask, TaskProgress};
pub use self::restore::RestoringCollection;
pub use self::write::MatchingPoints;

/// A collection of a registry by name, open or not.
#[derive(Clone, Debug)]
pub struct ListedCollection {
    /// Name of the collection, not an alias.
    pub name: String,
    /// Progress of its opening, or the reason why it is not served.
    pub state: ListedState,
}

/// Progress of a collection from the start to service.
#[derive(Clone, Debug)]
pub enum ListedState {
    /// The log of the collection is being read.
    Opening,
    /// The collection is served. Some of its segments may still be closed, as its status shows.
    Ready(Arc<NamedCollection>),
    /// The collection is not served because of this error.
    Broken(Error),
}

/// Number of collections by their state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CollectionCounts {
    /// Collections that are being opened or replaced.
    pub opening: usize,
    /// Collections that are served.
    pub ready: usize,
    /// Collections that cannot be served.
    pub broken: usize,
}

/// Numbers of collections, and use of the search threads.
#[derive(Clone, Copy, Debug)]
pub struct RegistryStats {
    /// Collections by progress of their opening.
    pub collections: CollectionCounts,
    /// Tasks that wait for a search thread.
    pub queued: usize,
    /// Maximum waiting tasks.
    pub queue_max: usize,
    /// Tasks run since the start.
    pub done: u64,
    /// Tasks refused since the start because the queue was full.
    pub refused: u64,
    /// Parts of queries since the start that a second thread did.
    pub helped: u64,
    /// Sets of readers that search threads made since the start.
    pub readers: u64,
    /// Writes that waited for room, were refused or were slowed down.
    pub stalls: StallStats,
    /// Filters evaluated, by the source of the result.
    pub filters: FilterStats,
    /// Memory of all collections and the caches.
    pub memory: BudgetStats,
    /// Counts of the record cache, if there is one.
    pub record_cache: Option<CacheStats>,
    /// Counts of the cache of blocks of record files, if there is one.
    pub record_blocks: Option<BlockStats>,
    /// Counts of the cache of blocks of segment files.
    pub segment_cache: SegmentCacheStats,
}

/// Collection whose points are being changed. Its aliases stay unchanged meanwhile.
pub struct WritingCollection<'a> {
    named: Arc<NamedCollection>,
    _aliases: core::AliasesKept<'a>,
}

impl std::ops::Deref for WritingCollection<'_> {
    type Target = NamedCollection;

    fn deref(&self) -> &NamedCollection {
        &self.named
    }
}

/// Collections of one directory.
pub struct Registry {
    core: Arc<RegistryCore>,
    pool: SearchPool,
    threads: Vec<JoinHandle<()>>,
}

/// Lookup of the collections of a registry. Unlike a registry, it may be dropped on a search
/// thread.
#[derive(Clone)]
pub struct CollectionLookup {
    core: Arc<RegistryCore>,
}

impl CollectionLookup {
    /// Returns the collection of a name or an alias.
    ///
    /// # Errors
    /// As [`Registry::get`].
    pub fn get(&self, name: &str) -> Result<Arc<NamedCollection>> {
        self.core.get(name)
    }
}

impl Registry {
    /// Opens the collections of a directory, and creates the directory if it is missing. Returns
    /// before they are open. That continues in the background. A collection that cannot be opened
    /// does not affect the others.
    ///
    /// # Errors
    /// `FailedPrecondition` if another process uses the directory, `InvalidArgument` for invalid
    /// options. Otherwise the error of the file system.
    pub fn open(options: RegistryOptions) -> Result<Arc<Registry>> {
        let threads = options.threads();
        let queue_max = options.queue_max;
        let core = RegistryCore::open(options)?;
        let pool = SearchPool::start(core.clone(), threads, queue_max)?;
        let threads = background::start(&core)?;
        Ok(Arc::new(Registry { core, pool, threads }))
    }

    /// Creates a collection. Durable when this returns.
    ///
    /// # Errors
    /// `AlreadyExists` if a collection or an alias has the name. `InvalidArgument` for an invalid
    /// name or settings. `ResourceExhausted` if there are too many collections. Otherwise the error
    /// of the file system.
    pub fn create(&self, name: &str, settings: CollectionSettings) -> Result<Arc<NamedCollection>> {
        self.core.create(name, settings)
    }

    /// Copies a collection as it is now to another name. Segments are linked if the file system
    /// can, so the copy takes little room. Durable when this returns.
    ///
    /// # Errors
    /// `NotFound` or `AlreadyExists`. Also as [`crate::collection::Collection::pin`] and
    /// [`RestoringCollection::finish`].
    pub fn clone_collection(&self, from: &str, to: &str) -> Result<Arc<NamedCollection>> {
        self.core.clone_collection(from, to)
    }

    /// Checks that files of `bytes` bytes beside the collections leave the disk's reserve free.
    ///
    /// # Errors
    /// `StorageFull` if they do not; otherwise the error of the file system.
    pub fn check_room(&self, bytes: u64) -> Result<()> {
        self.core.check_room(bytes)
    }

    /// Begins a collection of files that the caller writes, of `bytes` together. If `replaces` is
    /// true it may take the name of an existing collection, which is removed at the end.
    ///
    /// # Errors
    /// `AlreadyExists` if the name is taken, `InvalidArgument` for an invalid name or settings,
    /// `ResourceExhausted` if there are too many collections, `StorageFull` without room.
    pub fn restore(
        &self,
        name: &str,
        settings: CollectionSettings,
        bytes: u64,
        replaces: bool,
    ) -> Result<RestoringCollection> {
        RestoringCollection::begin(&self.core, name, settings, bytes, replaces)
    }

    /// Returns the settings of the collections that [`Registry::restore`] and
    /// [`Registry::clone_collection`] have begun. A collection that is missing here afterwards is
    /// one of [`Registry::list`], or was abandoned.
    pub fn restoring(&self) -> Vec<CollectionSettings> {
        self.core.restoring.lock().values().cloned().collect()
    }

    /// Removes a collection, even a broken one, with all files in its directory and its aliases.
    /// Returns false if there is none. Running queries complete normally.
    ///
    /// # Errors
    /// `Unavailable` while it is being opened. Otherwise the error of the file system.
    pub fn remove(&self, name: &str) -> Result<bool> {
        self.core.remove(name)
    }

    /// Returns the collection of a name or an alias.
    ///
    /// # Errors
    /// `NotFound`. `Unavailable` with a retry delay while it is being opened. Also the error of a
    /// broken one.
    pub fn get(&self, name: &str) -> Result<Arc<NamedCollection>> {
        self.core.get(name)
    }

    /// Returns a handle that finds the collections.
    pub fn lookup(&self) -> CollectionLookup {
        CollectionLookup { core: self.core.clone() }
    }

    /// Returns all collections, by name.
    pub fn list(&self) -> Vec<ListedCollection> {
        self.core.list()
    }

    /// Returns all aliases and their collections, by alias.
    pub fn aliases(&self) -> Vec<(String, String)> {
        self.core.aliases()
    }

    /// Changes aliases, all or none. Durable when this returns. A query sees all of it or nothing.
    ///
    /// # Errors
    /// `NotFound` for a missing collection, and for a missing alias to be renamed. `AlreadyExists`
    /// for an alias that is a collection's name. `ResourceExhausted` for too many. `Unavailable` if
    /// a write is in progress for longer than [`RegistryOptions::alias_wait_max`]. Otherwise the
    /// error of the file system.
    pub fn change_aliases(&self, changes: &[AliasChange]) -> Result<()> {
        self.core.change_aliases(changes, || true).map(drop)
    }

    /// Changes aliases only if `still` returns true while no write ([`Registry::writing`]) is in
    /// progress. Returns the result of `still`. So an alias can move to a copy of a collection that
    /// has all acknowledged changes.
    ///
    /// # Errors
    /// As [`Registry::change_aliases`].
    pub fn change_aliases_if(
        &self,
        changes: &[AliasChange],
        still: impl FnOnce() -> bool,
    ) -> Result<bool> {
        self.core.change_aliases(changes, still)
    }

    /// Returns the collection of a name or an alias for changes of its points. Aliases cannot
    /// change until the result is dropped, so changes reach the collection of this name. The caller
    /// must not change aliases before that.
    ///
    /// # Errors
    /// As [`Registry::get`].
    pub fn writing(&self, name: &str) -> Result<WritingCollection<'_>> {
        let (named, aliases) = self.core.writing(name)?;
        Ok(WritingCollection { named, _aliases: aliases })
    }

    /// Runs `work` on a search thread. The work is dropped without a call if no thread can make
    /// readers for it or the process ends, so a caller should detect the drop.
    ///
    /// # Errors
    /// `ResourceExhausted` with a retry delay if the queue is full.
    pub fn submit(&self, named: &Arc<NamedCollection>, work: PoolTask) -> Result<()> {
        self.pool.submit(named, work)
    }

    /// Runs `work` on a search thread as [`Registry::submit`] does, in slices with other tasks in
    /// between.
    ///
    /// # Errors
    /// As [`Registry::submit`].
    pub fn submit_sliced(&self, named: &Arc<NamedCollection>, work: SlicedTask) -> Result<()> {
        self.pool.submit_sliced(named, work)
    }

    /// Waits until no collection or segment is being opened. Returns false after `timeout`.
    pub fn wait_open(&self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        loop {
            let seen = self.core.resources.events();
            if !self.core.opening() {
                return true;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if !self.core.resources.wait_past(seen, left) && left.is_zero() {
                return false;
            }
        }
    }

    /// Returns the counts.
    pub fn stats(&self) -> RegistryStats {
        let pool = self.pool.stats();
        RegistryStats {
            collections: self.core.counts(),
            queued: pool.queued,
            queue_max: pool.queue_max,
            done: pool.done,
            refused: pool.refused,
            helped: pool.helped,
            readers: pool.readers,
            stalls: self.core.resources.stall_stats(),
            filters: self.core.resources.filter_stats(),
            memory: self.core.resources.memory(),
            record_cache: self.core.caches.cache_stats(),
            record_blocks: self.core.caches.block_stats(),
            segment_cache: self.core.resources.segment_cache_stats(),
        }
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.core.stop();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the collections ended in a panic");
            }
        }
    }
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registry").field("stats", &self.stats()).finish_non_exhaustive()
    }
}
