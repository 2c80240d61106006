//! State that the registry's threads share: the collections by name.

mod alias_changes;
mod codes;
mod create;
mod directories;
mod opening;

use std::collections::BTreeMap;
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use base::{Error, ErrorKind, Result};
use os::private;
use parking_lot::{Mutex, RwLock, RwLockReadGuard};

use self::alias_changes::sound_aliases;
use self::directories::{collections, leftovers};
use super::aliases::Aliases;
use super::files::{self, CollectionSettings};
use super::media::Media;
use super::named::NamedCollection;
use super::options::RegistryOptions;
use super::{CollectionCounts, ListedCollection, ListedState};
use crate::budget::{BudgetReservation, MemoryBudget};
use crate::collection::Resources;
use crate::rerank::SharedCaches;

pub(super) use self::directories::{random, remove_directory};

/// File of a collection's settings, in its directory.
pub(super) const SETTINGS: &str = "settings";
pub(super) const SETTINGS_KIND: &str = "settings of the collection";
/// Time between attempts to open collections and segments that could not be opened.
pub(super) const OPEN_AGAIN: Duration = Duration::from_secs(5);
/// Retry delay for callers while a collection is being opened.
const OPENING_RETRY: Duration = Duration::from_secs(1);
/// Maximum bytes of a memtable. A collection has at most two.
const MEMTABLE_BYTES_MAX: u64 = 32 << 20;
/// Divisor of the memory for a memtable. Two memtables of a few collections and a flush leave most
/// of the memory for codes.
const MEMTABLE_SHARE: u64 = 20;
/// Expected bytes of a cached record: keypoint graphs of photographs.
const RECORD_BYTES: u32 = 8 << 10;

/// State of a registry. Its threads and its callers share it.
pub(super) struct RegistryCore {
    pub(super) options: RegistryOptions,
    pub(super) resources: Resources,
    pub(super) caches: Arc<SharedCaches>,
    pub(super) media: Media,
    pub(super) map: RwLock<CollectionMap>,
    /// Read-locked while points change under a name, and write-locked while aliases change, before
    /// `changing`. An acknowledged change is therefore in the collection that the name stands for.
    writers: RwLock<()>,
    /// Locked while a collection is created, replaced or removed, before a broken one is opened
    /// again, and while aliases change. Locked before `map`.
    pub(super) changing: Mutex<()>,
    /// Settings of collections whose files are being written, by the random name of the directory.
    pub(super) restoring: Mutex<BTreeMap<String, CollectionSettings>>,
    /// Restored collections whose segments could not all be opened, for the thread that opens them.
    pub(super) unopened: Mutex<Vec<Arc<NamedCollection>>>,
    /// Collections that were there at the start and wait to be opened. Other collections are open.
    /// If they were opened again, the changes of one instance would be missing in the other one.
    waiting: Mutex<Vec<String>>,
    /// True once all collections of the start and their segments are open.
    opened: AtomicBool,
    /// Time at which memory was last short, so that codes were to be moved to the medium.
    codes_moved: Mutex<Option<Instant>>,
    stop: AtomicBool,
    /// Number of the next collection that is opened, from 1.
    serial: AtomicU64,
    /// Directories that the last process was creating or removing when it ended.
    leftovers: Mutex<Vec<PathBuf>>,
    /// Lock of the directory, held until the registry is dropped.
    lock: File,
    /// Memory that `caches` take.
    _cache: BudgetReservation,
}

/// Guard that keeps aliases unchanged while it lives.
pub(super) type AliasesKept<'a> = RwLockReadGuard<'a, ()>;

/// Collections by name, and other names for them.
pub(super) struct CollectionMap {
    pub(super) entries: BTreeMap<String, RegistryEntry>,
    pub(super) aliases: Aliases,
}

/// State of a collection in the map.
pub(super) enum RegistryEntry {
    /// The collection is being opened or replaced.
    Opening,
    /// The collection is served.
    Ready(Arc<NamedCollection>),
    /// The collection cannot be opened or removed.
    Broken(Error),
}

impl RegistryEntry {
    pub(super) fn is_opening(&self) -> bool {
        matches!(self, RegistryEntry::Opening)
    }
}

impl RegistryCore {
    /// Locks and reads the directory. Opens no collection: that is the work of
    /// [`RegistryCore::open_all`].
    ///
    /// # Errors
    /// `InvalidArgument` for too little memory. Also errors of the file system and the media.
    pub(super) fn open(options: RegistryOptions) -> Result<Arc<RegistryCore>> {
        options.check_memory()?;
        let directory = &options.directory;
        private::create_dir_all(directory).map_err(|error| Error::io(directory, &error))?;
        let lock = files::lock(directory)?;
        let leftovers = leftovers(directory);
        let budget = MemoryBudget::new(options.memory_bytes);
        let media = Media::new(options.medium, options.memory_node, directory, &budget)?;
        let caches = Arc::new(SharedCaches::new(options.cache_bytes, RECORD_BYTES));
        let cache = budget.reserve(caches.cache_bytes(), "the record cache")?;
        let memtable_bytes = match options.memtable_bytes {
            0 => (budget.free() / MEMTABLE_SHARE).min(MEMTABLE_BYTES_MAX),
            bytes => bytes,
        };
        let resources = Resources::new(budget, memtable_bytes, options.background_rate)?;
        let names = collections(directory)?;
        let aliases = sound_aliases(directory, &names)?;
        let opening = |name: &String| (name.clone(), RegistryEntry::Opening);
        let entries = names.iter().map(opening).collect();
        Ok(Arc::new(RegistryCore {
            resources,
            caches,
            media,
            map: RwLock::new(CollectionMap { entries, aliases }),
            writers: RwLock::new(()),
            changing: Mutex::new(()),
            restoring: Mutex::default(),
            unopened: Mutex::default(),
            waiting: Mutex::new(names),
            opened: AtomicBool::new(false),
            codes_moved: Mutex::new(None),
            stop: AtomicBool::new(false),
            serial: AtomicU64::new(1),
            leftovers: Mutex::new(leftovers),
            lock,
            _cache: cache,
            options,
        }))
    }

    /// Records the outcome of opening a collection. Closes the collection if the registry has
    /// stopped meanwhile, so that its segments are not opened.
    pub(super) fn insert(&self, name: &str, opened: &Result<Arc<NamedCollection>>) {
        let entry = match opened {
            Ok(named) => RegistryEntry::Ready(named.clone()),
            Err(error) => {
                tracing::error!(collection = name, %error, "a collection is not served");
                RegistryEntry::Broken(error.clone())
            }
        };
        self.map.write().entries.insert(name.to_owned(), entry);
        // `stop` closes the collections that are in the map.
        if let Ok(named) = opened
            && self.stopped()
        {
            named.collection().close();
        }
        self.resources.notify();
    }

    /// Ends all changes of a collection that is being replaced. Until the new one is open, callers
    /// get `Unavailable` with a retry delay.
    pub(super) fn retire(&self, name: &str) {
        let entry = self.map.write().entries.insert(name.to_owned(), RegistryEntry::Opening);
        if let Some(RegistryEntry::Ready(named)) = entry {
            named.retire();
        }
    }

    /// Waits for `time`, or until the registry stops.
    pub(super) fn pause(&self, time: Duration) {
        let until = Instant::now() + time;
        while !self.stopped() && Instant::now() < until {
            self.resources.wait_past(self.resources.events(), until - Instant::now());
        }
    }

    /// Returns the collection of a name or an alias.
    ///
    /// # Errors
    /// `NotFound`. `Unavailable` with a retry delay while it is being opened. Also the error of a
    /// broken one.
    pub(super) fn get(&self, name: &str) -> Result<Arc<NamedCollection>> {
        let map = self.map.read();
        // A collection's own name comes first, because no alias may hide it.
        let alias = map.aliases.get(name).filter(|_| !map.entries.contains_key(name));
        let name = alias.map_or(name, String::as_str);
        match map.entries.get(name) {
            Some(RegistryEntry::Ready(named)) => Ok(named.clone()),
            Some(RegistryEntry::Opening) => Err(opening_error(name)),
            Some(RegistryEntry::Broken(error)) => {
                Err(not_permitted(error.clone()).context(format!("collection \"{name}\"")))
            }
            None => {
                let shown: String = name.chars().take(80).collect();
                Err(Error::not_found(format!("there is no collection {shown:?}")))
            }
        }
    }

    /// Returns all collections with their states, by name.
    pub(super) fn list(&self) -> Vec<ListedCollection> {
        let state = |entry: &RegistryEntry| match entry {
            RegistryEntry::Opening => ListedState::Opening,
            RegistryEntry::Ready(named) => ListedState::Ready(named.clone()),
            RegistryEntry::Broken(error) => ListedState::Broken(error.clone()),
        };
        let map = self.map.read();
        map.entries
            .iter()
            .map(|(name, entry)| ListedCollection { name: name.clone(), state: state(entry) })
            .collect()
    }

    /// Counts the collections by their state.
    pub(super) fn counts(&self) -> CollectionCounts {
        let mut counts = CollectionCounts::default();
        for entry in self.map.read().entries.values() {
            match entry {
                RegistryEntry::Opening => counts.opening += 1,
                RegistryEntry::Ready(_) => counts.ready += 1,
                RegistryEntry::Broken(_) => counts.broken += 1,
            }
        }
        counts
    }

    /// Returns the collections that are served.
    pub(super) fn ready(&self) -> Vec<Arc<NamedCollection>> {
        let map = self.map.read();
        let ready = |entry: &RegistryEntry| match entry {
            RegistryEntry::Ready(named) => Some(named.clone()),
            _ => None,
        };
        map.entries.values().filter_map(ready).collect()
    }

    /// Returns true until all collections of the start were opened, or the registry stops.
    pub(super) fn opening(&self) -> bool {
        !self.opened.load(Ordering::Relaxed) && !self.stopped()
    }

    /// Returns true once the threads should end.
    pub(super) fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Makes the threads end, and closes the collections.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        self.ready().iter().for_each(|named| named.collection().close());
        self.resources.notify();
    }
}

/// Returns the error for callers while a collection is being opened.
pub(super) fn opening_error(name: &str) -> Error {
    Error::unavailable(format!("collection \"{name}\" is still being opened; try again"))
        .with_retry_after(OPENING_RETRY)
}

/// Returns the error for a caller if the system refuses the server a file. The caller's key may
/// have all rights, so it must not get the error of a key without them (403).
fn not_permitted(error: Error) -> Error {
    if error.kind() != ErrorKind::PermissionDenied {
        return error;
    }
    Error::unavailable(format!(
        "{}; give the user of the server read and write permission for its files",
        error.message()
    ))
}

#[cfg(test)]
pub(super) mod tests {
    use std::path::Path;

    use super::*;

    /// Opens a registry with little memory.
    pub(in super::super) fn small_core(directory: &Path) -> Arc<RegistryCore> {
        let options = RegistryOptions {
            memory_bytes: 64 << 20,
            cache_bytes: 0,
            ..RegistryOptions::new(directory)
        };
        RegistryCore::open(options).unwrap()
    }
}
