//! Collections by name: made, found, renamed by aliases, removed, and searched on threads of their own, all within one
//! limit on memory.
//!
//! # On disk
//! The directory has one directory for each collection, called by its name: `settings` says what it is, `points-…`
//! holds its data; doors may keep files of theirs beside these. Names of the registry's own files begin with a dot,
//! which names of collections do not: `.lock` keeps a second process out, `.aliases` has the other names, `.new-…` is a
//! collection that is being made, `.gone-…` one that is being removed. A collection is made aside and renamed, and
//! renamed before it is removed, so that after a crash it is either there or not.
//!
//! # What is broken
//! A collection whose settings or list of segments cannot be read is named with its reason and left alone; the others
//! are served, and the start goes on.
//!
//! # Threads
//! `search-N` run queries ([`Registry::submit`]); `search-open`, `search-flush` and `search-merge` work for all
//! collections, the latter two at low priority; `search-stall-s` and `search-stall-m` take over where that is too little. A thousand collections need no more threads than one.

mod aliases;
mod background;
mod core;
mod files;
mod named;
mod options;
mod pool;
mod write;

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use base::{Error, Result};

use self::core::RegistryCore;
use self::pool::SearchPool;
use crate::budget::BudgetStats;
use crate::collection::StallStats;
use crate::rerank::{BlockStats, CacheStats};

pub use self::aliases::{ALIASES_MAX, AliasChange};
pub use self::files::{CollectionSettings, NAME_BYTES_MAX, SETTINGS_BYTES_MAX};
pub use self::named::{NamedCollection, ScrollPage};
pub use self::options::{MediumChoice, RegistryOptions};
pub use self::pool::PoolTask;

/// A collection's name and how it is.
#[derive(Clone, Debug)]
pub struct ListedCollection {
    /// Its name.
    pub name: String,
    /// How it is.
    pub state: ListedState,
}

/// How a collection is.
#[derive(Clone, Debug)]
pub enum ListedState {
    /// Its log is being read.
    Opening,
    /// It is served. Its segments may still be opened one by one, which its status tells.
    Ready(Arc<NamedCollection>),
    /// It is not served, for this reason.
    Broken(Error),
}

/// What a registry has done and has to do.
#[derive(Clone, Copy, Debug)]
pub struct RegistryStats {
    /// Collections by state: opening, ready, broken.
    pub collections: [usize; 3],
    /// Work that waits for a search thread, and how much may.
    pub queued: usize,
    /// Most work that may wait.
    pub queue_max: usize,
    /// Work done since the start.
    pub done: u64,
    /// Work refused since the start because too much waited.
    pub refused: u64,
    /// Writes that found no room.
    pub stalls: StallStats,
    /// Memory of all collections and the caches.
    pub memory: BudgetStats,
    /// The record cache, where there is one.
    pub cache: Option<CacheStats>,
    /// The cache of blocks of record files, where there is one.
    pub blocks: Option<BlockStats>,
}

/// A collection whose points are being changed, under a name that goes on standing for it meanwhile.
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

/// All collections of one directory.
pub struct Registry {
    core: Arc<RegistryCore>,
    pool: SearchPool,
    threads: Vec<JoinHandle<()>>,
}

impl Registry {
    /// Opens the collections of a directory, which is made where it is missing. Returns before they are open: that goes
    /// on in the background, and one that cannot be opened does not hinder the others.
    ///
    /// # Errors
    /// `FailedPrecondition` where another process has the directory, `InvalidArgument` for options that cannot work,
    /// otherwise what the file system says.
    pub fn open(options: RegistryOptions) -> Result<Arc<Registry>> {
        let threads = options.threads();
        let queue_max = options.queue_max;
        let core = RegistryCore::open(options)?;
        let pool = SearchPool::start(core.clone(), threads, queue_max)?;
        let threads = background::start(&core)?;
        Ok(Arc::new(Registry { core, pool, threads }))
    }

    /// Makes a collection. Once this returns it survives a loss of power.
    ///
    /// # Errors
    /// `AlreadyExists` where a collection or an alias has the name, `InvalidArgument` for a name or settings that cannot
    /// be, `ResourceExhausted` where there are too many collections, otherwise what the file system says.
    pub fn create(&self, name: &str, settings: CollectionSettings) -> Result<Arc<NamedCollection>> {
        self.core.create(name, settings)
    }

    /// Removes a collection with everything in its directory, broken ones too, and the aliases that name it. False where
    /// there is none. Queries that are under way end as if nothing had happened.
    ///
    /// # Errors
    /// `Unavailable` while it is being opened, otherwise what the file system says.
    pub fn remove(&self, name: &str) -> Result<bool> {
        self.core.remove(name)
    }

    /// The collection of a name or an alias.
    ///
    /// # Errors
    /// `NotFound`; `Unavailable` with advice when to come again while it is being opened; for a broken one the reason.
    pub fn get(&self, name: &str) -> Result<Arc<NamedCollection>> {
        self.core.get(name)
    }

    /// All collections, by name.
    pub fn list(&self) -> Vec<ListedCollection> {
        self.core.list()
    }

    /// All aliases and what they stand for, by alias.
    pub fn aliases(&self) -> Vec<(String, String)> {
        self.core.aliases()
    }

    /// Changes aliases, all or none; durable once this returns. A query sees all of the change or nothing of it.
    ///
    /// # Errors
    /// `NotFound` for a collection or alias that is not there, `AlreadyExists` for an alias that is a collection's name,
    /// `ResourceExhausted` for too many; `Unavailable` where a write is under way for longer than
    /// [`RegistryOptions::alias_wait_max`]; otherwise what the file system says.
    pub fn change_aliases(&self, changes: &[AliasChange]) -> Result<()> {
        self.core.change_aliases(changes, || true).map(drop)
    }

    /// The same, but only if `still` holds at a moment when nobody writes ([`Registry::writing`]); whether it did. Such
    /// is how an alias goes over to a copy of a collection that has everything which was acknowledged.
    ///
    /// # Errors
    /// As [`Registry::change_aliases`].
    pub fn change_aliases_if(&self, changes: &[AliasChange], still: impl FnOnce() -> bool) -> Result<bool> {
        self.core.change_aliases(changes, still)
    }

    /// The collection of a name or an alias, to change its points. Held while that is done: aliases wait until then, so
    /// that what is written is where the name leads. Whoever holds one must not change aliases.
    ///
    /// # Errors
    /// As [`Registry::get`].
    pub fn writing(&self, name: &str) -> Result<WritingCollection<'_>> {
        let (named, aliases) = self.core.writing(name)?;
        Ok(WritingCollection { named, _aliases: aliases })
    }

    /// Has a search thread do `work` on a collection. Work that cannot be done, because the thread finds no memory for
    /// its readers or the process ends, is dropped without being called; who waits for its answer should notice that.
    ///
    /// # Errors
    /// `ResourceExhausted` with advice when to come again where too much waits already.
    pub fn submit(&self, named: &Arc<NamedCollection>, work: PoolTask) -> Result<()> {
        self.pool.submit(named, work)
    }

    /// Waits until no collection is being opened, segments included; false where that takes longer than `timeout`.
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

    /// What it has done and has to do.
    pub fn stats(&self) -> RegistryStats {
        let (queued, queue_max, done, refused) = self.pool.stats();
        RegistryStats {
            collections: self.core.states(),
            queued,
            queue_max,
            done,
            refused,
            stalls: self.core.resources.stall_stats(),
            memory: self.core.resources.memory(),
            cache: self.core.shared.cache_stats(),
            blocks: self.core.shared.block_stats(),
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
