//! State that the registry's threads share: the collections, and the code that creates and removes
//! them.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry as MapEntry;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use base::{Error, ErrorKind, Result};
use os::private;
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use storage::UringMedium;

use super::aliases::{self, AliasChange, Aliases};
use super::files::{self, CollectionSettings, StoredSettings, check_name};
use super::media::{FileLayout, Media};
use super::named::NamedCollection;
use super::options::RegistryOptions;
use super::{ListedCollection, ListedState};
use crate::budget::{BudgetReservation, MemoryBudget};
use crate::collection::{Collection, CollectionOptions, Resources, check_room_to_create};
use crate::rerank::SharedCaches;

/// File of a collection's settings, in its directory.
pub(super) const SETTINGS: &str = "settings";
pub(super) const SETTINGS_KIND: &str = "settings of the collection";
/// Time between attempts to open collections and segments that could not be opened.
pub(super) const OPEN_AGAIN: Duration = Duration::from_secs(5);
/// Time after a move of codes to the medium in which no codes are read into memory, or the two
/// would alternate.
const LOAD_CODES_AGAIN: Duration = Duration::from_secs(600);
/// Retry delay for callers while a collection is being opened.
const OPENING_RETRY: Duration = Duration::from_secs(1);
/// A broken collection is retried after this many times [`OPEN_AGAIN`], because its whole log is
/// read again.
const BROKEN_ROUNDS: u32 = 6;
/// Maximum bytes of a memtable. A collection has at most two.
const MEMTABLE_BYTES_MAX: u64 = 32 << 20;
/// Divisor of the memory for a memtable. Two memtables of a few collections and a flush leave most
/// of the memory for codes.
const MEMTABLE_SHARE: u64 = 20;
/// Minimum memory.
const MEMORY_BYTES_MIN: u64 = 32 << 20;
/// Expected bytes of a cached record: keypoint graphs of photographs.
const RECORD_BYTES: u32 = 8 << 10;

/// State of a registry. Its threads and its callers share it.
pub(super) struct RegistryCore {
    pub(super) options: RegistryOptions,
    pub(super) resources: Resources,
    pub(super) shared: Arc<SharedCaches>,
    pub(super) media: Media,
    pub(super) map: RwLock<CollectionMap>,
    /// Read-locked while points change under a name, and write-locked while aliases change, before
    /// `changing`. An acknowledged change is therefore in the collection that the name stands for.
    writers: RwLock<()>,
    /// Locked while a collection is created, replaced or removed, before a broken one is opened
    /// again, and while aliases change. Locked before `map`.
    pub(super) changing: Mutex<()>,
    /// True once all collections of the start and their segments are open.
    opened: AtomicBool,
    /// Time of the last move of codes to the medium.
    codes_moved: Mutex<Option<Instant>>,
    stop: AtomicBool,
    /// Number of the next collection that is opened, from 1.
    serial: AtomicU64,
    /// Directories that the last process was creating or removing when it ended.
    leftovers: Mutex<Vec<PathBuf>>,
    /// Lock of the directory, held until the registry is dropped.
    _lock: File,
    /// Memory of the caches in `shared`.
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
    /// `InvalidArgument` for too little memory; the errors of the file system and of the media.
    pub(super) fn open(options: RegistryOptions) -> Result<Arc<RegistryCore>> {
        if options.memory_bytes < MEMORY_BYTES_MIN || options.cache_bytes > options.memory_bytes / 2
        {
            return Err(Error::invalid(format!(
                "collections need {MEMORY_BYTES_MIN} bytes of memory at least, and their cache may have half of it, \
                  not {} of {}",
                options.cache_bytes, options.memory_bytes
            )));
        }
        let directory = &options.directory;
        private::create_dir_all(directory).map_err(|error| Error::io(directory, &error))?;
        let lock = files::lock(directory)?;
        let leftovers = leftovers(directory);
        let budget = MemoryBudget::new(options.memory_bytes);
        let media = Media::new(options.medium, options.memory_node, directory, &budget)?;
        let shared = Arc::new(SharedCaches::new(options.cache_bytes, RECORD_BYTES));
        let cache = budget.reserve(shared.cache_bytes(), "the record cache")?;
        let memtable_bytes = match options.memtable_bytes {
            0 => (budget.free() / MEMTABLE_SHARE).min(MEMTABLE_BYTES_MAX),
            bytes => bytes,
        };
        let resources = Resources::new(budget, memtable_bytes, options.background_rate)?;
        let names = collections(directory)?;
        let aliases = sound_aliases(directory, &names)?;
        let entries = names.into_iter().map(|name| (name, RegistryEntry::Opening)).collect();
        Ok(Arc::new(RegistryCore {
            resources,
            shared,
            media,
            map: RwLock::new(CollectionMap { entries, aliases }),
            writers: RwLock::new(()),
            changing: Mutex::new(()),
            opened: AtomicBool::new(false),
            codes_moved: Mutex::new(None),
            stop: AtomicBool::new(false),
            serial: AtomicU64::new(1),
            leftovers: Mutex::new(leftovers),
            _lock: lock,
            _cache: cache,
            options,
        }))
    }

    /// Opens all collections one after the other, retries failed ones later, and reads codes into
    /// memory if it has room for them, until the registry stops.
    pub(super) fn open_all(&self) {
        let names: Vec<String> = self.map.read().entries.keys().cloned().collect();
        let mut again = Vec::new();
        let mut broken = Vec::new();
        self.open_each(names, &mut again, &mut broken);
        if self.stopped() {
            return;
        }
        self.opened.store(true, Ordering::Relaxed);
        self.resources.notify();
        // Last, because there may be a million files.
        let leftovers = std::mem::take(&mut *self.leftovers.lock());
        leftovers.into_iter().take_while(|_| !self.stopped()).for_each(remove_directory);
        let mut round = 0u32;
        while !self.stopped() {
            let next = Instant::now() + OPEN_AGAIN;
            let lacks_memory = |named: &Arc<NamedCollection>| named.collection().lacks_memory();
            let complete = !again.iter().any(lacks_memory);
            while complete && Instant::now() < next && self.load_codes() {}
            self.pause(next.saturating_duration_since(Instant::now()));
            if again.iter().any(lacks_memory) {
                self.move_codes();
            }
            again.retain(|named| !named.removed() && named.collection().open_segments());
            round += 1;
            if round.is_multiple_of(BROKEN_ROUNDS) {
                let names = std::mem::take(&mut broken)
                    .into_iter()
                    .filter(|name| self.mark_opening(name))
                    .collect();
                self.open_each(names, &mut again, &mut broken);
            }
        }
    }

    /// Opens collections. Collections with segments to retry are added to `again`, collections to
    /// retry as a whole to `broken`.
    fn open_each(
        &self,
        names: Vec<String>,
        again: &mut Vec<Arc<NamedCollection>>,
        broken: &mut Vec<String>,
    ) {
        for name in names {
            if self.stopped() {
                return;
            }
            let opened = self.open_one(&name);
            self.insert(&name, &opened);
            match opened {
                Ok(named) if named.collection().open_segments() => again.push(named),
                Err(error) if error.is_retryable() => broken.push(name),
                _ => {}
            }
        }
    }

    /// Moves codes of the collection with the most movable codes to the medium. Returns false if
    /// there are none, or if that failed.
    pub(super) fn move_codes(&self) -> bool {
        let sizes =
            self.ready().into_iter().map(|named| (named.collection().movable_codes(), named));
        let Some((bytes, named)) = sizes.max_by_key(|(bytes, _)| *bytes) else { return false };
        let moved = if bytes > 0 { named.collection().move_codes() } else { Ok(false) };
        *self.codes_moved.lock() = Some(Instant::now());
        moved.unwrap_or_else(|error| {
            tracing::warn!(collection = named.name(), %error, "codes cannot be moved to the medium");
            false
        })
    }

    /// Reads the codes of one segment into memory. Returns false if there are none that fit, or if
    /// memory was short a while ago.
    fn load_codes(&self) -> bool {
        if self.codes_moved.lock().is_some_and(|moved| moved.elapsed() < LOAD_CODES_AGAIN) {
            return false;
        }
        let collections = self.ready();
        collections.iter().take_while(|_| !self.stopped()).any(|named| {
            named.collection().load_codes().unwrap_or_else(|error| {
                tracing::warn!(collection = named.name(), %error, "codes stay on the medium");
                false
            })
        })
    }

    /// Records the outcome of opening a collection.
    pub(super) fn insert(&self, name: &str, opened: &Result<Arc<NamedCollection>>) {
        let entry = match opened {
            Ok(named) => RegistryEntry::Ready(named.clone()),
            Err(error) => {
                tracing::error!(collection = name, %error, "a collection is not served");
                RegistryEntry::Broken(error.clone())
            }
        };
        self.map.write().entries.insert(name.to_owned(), entry);
        self.resources.notify();
    }

    /// Ends all changes of a collection that is being replaced. Until the new one is open, callers
    /// are told to try again.
    pub(super) fn retire(&self, name: &str) {
        let entry = self.map.write().entries.insert(name.to_owned(), RegistryEntry::Opening);
        if let Some(RegistryEntry::Ready(named)) = entry {
            named.retire();
        }
    }

    /// Marks a broken collection as being opened. Returns false if it is no longer broken, for
    /// example because it was removed.
    fn mark_opening(&self, name: &str) -> bool {
        // A restore replaces the directory under this lock. A collection that this thread opened
        // meanwhile would be open twice.
        let _changing = self.changing.lock();
        match self.map.write().entries.get_mut(name) {
            Some(entry @ RegistryEntry::Broken(_)) => {
                *entry = RegistryEntry::Opening;
                true
            }
            _ => false,
        }
    }

    /// Waits for `time`, or until the registry stops.
    pub(super) fn pause(&self, time: Duration) {
        let until = Instant::now() + time;
        while !self.stopped() && Instant::now() < until {
            self.resources.wait_past(self.resources.events(), until - Instant::now());
        }
    }

    /// Opens the collection in the directory with its name.
    ///
    /// # Errors
    /// As [`RegistryCore::open_at`].
    pub(super) fn open_one(&self, name: &str) -> Result<Arc<NamedCollection>> {
        self.open_at(name, &self.options.directory.join(name))
    }

    /// Opens the collection in `directory`.
    ///
    /// # Errors
    /// `DataLoss` if settings or points are missing; the errors of the file system, of the medium
    /// and of [`Collection::open`].
    pub(super) fn open_at(&self, name: &str, directory: &Path) -> Result<Arc<NamedCollection>> {
        let directory = directory.to_owned();
        let stored: Option<StoredSettings> = files::read(SETTINGS_KIND, &directory.join(SETTINGS))?;
        let stored = stored.ok_or_else(|| {
            Error::data_loss(format!(
                "{} has no settings; restore them from a copy",
                directory.display()
            ))
        })?;
        let settings = stored.settings()?;
        let points = directory.join(&stored.points);
        check_points(&points)?;
        let medium = self.media.open(settings.medium, stored.layout(), &points)?;
        let options = CollectionOptions {
            records: settings.records,
            codes: self.options.codes,
            build_threads: self.options.build_threads,
            merging: self.options.merging,
            disk_reserve: self.options.disk_reserve,
            ..CollectionOptions::new(settings.dims, settings.metric)
        };
        let collection = Collection::open(medium, options, &self.resources, self.shared.clone())?;
        let serial = self.serial.fetch_add(1, Ordering::Relaxed);
        let hash = self.options.uuid_hash;
        Ok(Arc::new(NamedCollection::new(
            name,
            directory,
            settings,
            stored.points,
            collection,
            hash,
            serial,
        )))
    }

    /// Creates a collection. It is durable when this returns.
    ///
    /// # Errors
    /// `AlreadyExists` for a name that a collection or an alias has; `InvalidArgument` for an
    /// invalid name or invalid settings; `ResourceExhausted` for too many collections; the errors
    /// of the file system and of [`RegistryCore::open_one`].
    pub(super) fn create(
        &self,
        name: &str,
        settings: CollectionSettings,
    ) -> Result<Arc<NamedCollection>> {
        check_name(name)?;
        settings.check()?;
        let _changing = self.changing.lock();
        let (taken, alias, count) = {
            let map = self.map.read();
            (map.entries.contains_key(name), map.aliases.contains_key(name), map.entries.len())
        };
        if taken || alias {
            let what = if taken { "collection" } else { "alias" };
            let message =
                format!("{what} \"{name}\" already exists; remove it, or use another name");
            return Err(Error::new(ErrorKind::AlreadyExists, message));
        }
        if count >= self.options.collections_max {
            return Err(self.too_many(count));
        }
        let root = &self.options.directory;
        check_room_to_create(&UringMedium::plain(root.clone())?, self.options.disk_reserve)?;
        let layout = self.media.layout(settings.medium, root)?;
        self.make_directory(name, &settings, layout)?;
        let opened = self.open_one(name);
        if let Err(error) = &opened {
            tracing::error!(collection = name, %error, "a new collection cannot be opened and is taken back");
            self.set_aside(name).map(remove_directory)?;
        }
        let named = opened?;
        self.map.write().entries.insert(name.to_owned(), RegistryEntry::Ready(named.clone()));
        Ok(named)
    }

    /// Returns the refusal of one more than `count` collections.
    pub(super) fn too_many(&self, count: usize) -> Error {
        Error::exhausted(format!(
            "there are {count} collections, the maximum; remove some. The maximum is {}, or less if the limit of open \
             files is low (ulimit -Hn)",
            super::options::COLLECTIONS_MAX
        ))
    }

    /// Creates the directory of a collection under a temporary name and renames it.
    ///
    /// # Errors
    /// `AlreadyExists` if there is such a directory; the error of the file system.
    fn make_directory(
        &self,
        name: &str,
        settings: &CollectionSettings,
        layout: FileLayout,
    ) -> Result<()> {
        let root = &self.options.directory;
        let aside = self.aside("new");
        let place = root.join(name);
        if place.exists() {
            return Err(Error::new(
                ErrorKind::AlreadyExists,
                format!("{} is there and no collection; move it away", place.display()),
            ));
        }
        let points = format!("points-{:016x}", random());
        let made = private::create_dir(&aside)
            .and_then(|()| private::create_dir(&aside.join(&points)))
            .map_err(|error| Error::io(&aside, &error))
            .and_then(|()| {
                files::replace(
                    SETTINGS_KIND,
                    &aside.join(SETTINGS),
                    &StoredSettings::new(settings, &points, layout),
                )
            })
            .and_then(|()| {
                std::fs::rename(&aside, &place).map_err(|error| Error::io(&place, &error))
            });
        if made.is_err() {
            remove_directory(aside);
        }
        made?;
        files::sync(root)
    }

    /// Returns the path of a temporary directory that is hidden and has a new name.
    pub(super) fn aside(&self, what: &str) -> PathBuf {
        self.options.directory.join(format!(".{what}-{:016x}", random()))
    }

    /// Renames a collection's directory away, durably.
    fn set_aside(&self, name: &str) -> Result<PathBuf> {
        let place = self.options.directory.join(name);
        let aside = self.aside("gone");
        std::fs::rename(&place, &aside).map_err(|error| Error::io(&place, &error))?;
        files::sync(&self.options.directory)?;
        Ok(aside)
    }

    /// Removes a collection, its files and its aliases. Returns false if there is none.
    ///
    /// # Errors
    /// `Unavailable` while it is being opened; the error of the file system.
    pub(super) fn remove(&self, name: &str) -> Result<bool> {
        let (aside, aliases_stored) = {
            let _changing = self.changing.lock();
            let entry = {
                let mut map = self.map.write();
                match map.entries.entry(name.to_owned()) {
                    MapEntry::Vacant(_) => return Ok(false),
                    MapEntry::Occupied(entry) if matches!(entry.get(), RegistryEntry::Opening) => {
                        return Err(opening_error(name));
                    }
                    MapEntry::Occupied(entry) => entry.remove(),
                }
            };
            if let RegistryEntry::Ready(named) = &entry {
                named.retire();
            }
            let aside = match self.set_aside(name) {
                Ok(aside) => aside,
                Err(error) => {
                    let broken = error.clone().context("it could not be removed");
                    self.map.write().entries.insert(name.to_owned(), RegistryEntry::Broken(broken));
                    return Err(error);
                }
            };
            (aside, self.remove_aliases_of(name))
        };
        remove_directory(aside);
        if aliases_stored.is_err() {
            // A full disk has room after the removal. If this fails too, the next start drops the
            // aliases.
            let _changing = self.changing.lock();
            let aliases = self.map.read().aliases.clone();
            aliases::store(&self.options.directory, &aliases)?;
        }
        Ok(true)
    }

    /// Removes the aliases of a collection and stores the others. The caller holds `changing`.
    ///
    /// # Errors
    /// The error of the file system. The aliases are then removed in memory only.
    fn remove_aliases_of(&self, name: &str) -> Result<()> {
        let mut aliases = self.map.read().aliases.clone();
        let before = aliases.len();
        aliases.retain(|_, collection| collection != name);
        if aliases.len() == before {
            return Ok(());
        }
        let stored = aliases::store(&self.options.directory, &aliases);
        self.map.write().aliases = aliases;
        stored
    }

    /// Returns the collection of a name or an alias.
    ///
    /// # Errors
    /// `NotFound`; `Unavailable` with a retry delay while it is being opened; the error of a broken
    /// one.
    pub(super) fn get(&self, name: &str) -> Result<Arc<NamedCollection>> {
        let map = self.map.read();
        // A collection's own name comes first: no alias may hide it.
        let alias = map.aliases.get(name).filter(|_| !map.entries.contains_key(name));
        let name = alias.map_or(name, String::as_str);
        match map.entries.get(name) {
            Some(RegistryEntry::Ready(named)) => Ok(named.clone()),
            Some(RegistryEntry::Opening) => Err(opening_error(name)),
            Some(RegistryEntry::Broken(error)) => {
                Err(error.clone().context(format!("collection \"{name}\"")))
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

    /// Counts the collections that are opening, ready and broken.
    pub(super) fn states(&self) -> [usize; 3] {
        let mut counts = [0; 3];
        for entry in self.map.read().entries.values() {
            let at = match entry {
                RegistryEntry::Opening => 0,
                RegistryEntry::Ready(_) => 1,
                RegistryEntry::Broken(_) => 2,
            };
            counts[at] += 1;
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

    /// Returns all aliases with the names of their collections, by alias.
    pub(super) fn aliases(&self) -> Vec<(String, String)> {
        self.map.read().aliases.iter().map(|(alias, name)| (alias.clone(), name.clone())).collect()
    }

    /// Returns the collection of a name, and a guard that keeps aliases unchanged.
    ///
    /// # Errors
    /// As [`RegistryCore::get`].
    pub(super) fn writing(&self, name: &str) -> Result<(Arc<NamedCollection>, AliasesKept<'_>)> {
        let guard = self.writers.read();
        Ok((self.get(name)?, guard))
    }

    /// Changes aliases, all or none, if `still` returns true once no write is in progress. Returns
    /// the result of `still`.
    ///
    /// # Errors
    /// `Unavailable` with a retry delay if a write takes longer than
    /// [`RegistryOptions::alias_wait_max`]; the errors of [`aliases::changed_aliases`] and of the
    /// file system.
    pub(super) fn change_aliases(
        &self,
        changes: &[AliasChange],
        still: impl FnOnce() -> bool,
    ) -> Result<bool> {
        let timeout = self.options.alias_wait_max;
        let _writers = self.writers.try_write_for(timeout).ok_or_else(|| {
            Error::unavailable(format!(
                "a write has been under way for {timeout:?}, and aliases change between writes"
            ))
            .with_retry_after(timeout)
        })?;
        if !still() {
            return Ok(false);
        }
        let _changing = self.changing.lock();
        let new = {
            let map = self.map.read();
            aliases::changed_aliases(&map.aliases, changes, |name| map.entries.contains_key(name))?
        };
        aliases::store(&self.options.directory, &new)?;
        self.map.write().aliases = new;
        Ok(true)
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
    Error::unavailable(format!("collection \"{name}\" is still being opened"))
        .with_retry_after(OPENING_RETRY)
}

/// Returns the names of directories that may be collections, ascending.
///
/// # Errors
/// The error of the file system.
fn collections(directory: &Path) -> Result<Vec<String>> {
    let fail = |error: std::io::Error| Error::io(directory, &error);
    let mut names = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(fail)? {
        let entry = entry.map_err(fail)?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        if check_name(&name).is_ok() && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// Reads the aliases of a directory with these collections. A power loss may have left aliases of a
/// removed collection; they must not apply to a later collection of the same name.
///
/// # Errors
/// The errors of [`aliases::load`].
fn sound_aliases(directory: &Path, names: &[String]) -> Result<Aliases> {
    let mut aliases = aliases::load(directory)?;
    let before = aliases.len();
    aliases.retain(|alias, collection| names.contains(collection) && !names.contains(alias));
    if aliases.len() < before
        && let Err(error) = aliases::store(directory, &aliases)
    {
        tracing::warn!(%error, "aliases of removed collections stay until the next change");
    }
    Ok(aliases)
}

/// Returns the directories that the last process was creating or removing. They only cost space.
fn leftovers(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    let is_left = |name: &str| name.starts_with(".new-") || name.starts_with(".gone-");
    let left = entries.flatten().filter(|entry| is_left(&entry.file_name().to_string_lossy()));
    left.map(|entry| entry.path()).collect()
}

/// Removes a directory with its files. A failure is only logged, since the next start tries again.
pub(super) fn remove_directory(path: PathBuf) {
    if let Err(error) = std::fs::remove_dir_all(&path)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        tracing::warn!(%error, path = %path.display(), "the remaining files of a collection stay until the next start");
    }
}

/// Returns a random number: a hash with a key drawn by the system.
pub(super) fn random() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one((std::process::id(), std::time::SystemTime::now()))
}

/// Checks that the directory of points exists. A medium would create an empty directory, and the
/// points would be missing without an error.
///
/// # Errors
/// `DataLoss` if the directory is missing; the error of the file system.
fn check_points(points: &Path) -> Result<()> {
    match std::fs::metadata(points) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(Error::data_loss(
            format!("{} is missing; restore it from a copy", points.display()),
        )),
        Err(error) => Err(Error::io(points, &error)),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::coarse::Metric;

    /// Opens a registry with little memory.
    pub(in super::super) fn small_core(directory: &Path) -> Arc<RegistryCore> {
        let options = RegistryOptions {
            memory_bytes: 64 << 20,
            cache_bytes: 0,
            ..RegistryOptions::new(directory)
        };
        RegistryCore::open(options).unwrap()
    }

    #[test]
    fn a_missing_points_directory_is_damage() {
        let directory = tempfile::tempdir().unwrap();
        let core = small_core(directory.path());
        let named = core.create("a", CollectionSettings::new(2, Metric::L2)).unwrap();
        std::fs::remove_dir_all(named.points_directory()).unwrap();
        let error = core.open_one("a").map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::DataLoss);
        core.retire("a");
        let error = core.get("a").map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "it is being replaced");
    }

    #[test]
    fn a_removal_frees_the_disk_if_no_alias_can_be_stored() {
        let directory = tempfile::tempdir().unwrap();
        let core = small_core(directory.path());
        drop(core.create("a", CollectionSettings::new(2, Metric::L2)).unwrap());
        let alias = AliasChange::Create { alias: "b".into(), collection: "a".into() };
        assert!(core.change_aliases(&[alias], || true).unwrap());
        // The file of aliases is written under this name.
        std::fs::create_dir(directory.path().join(".aliases.tmp")).unwrap();
        assert!(core.remove("a").is_err(), "the aliases are not stored");
        assert_eq!(leftovers(directory.path()), Vec::<PathBuf>::new());
        assert!(core.aliases().is_empty());
        assert_eq!(core.get("a").map(drop).unwrap_err().kind(), ErrorKind::NotFound);
    }

    #[test]
    fn a_broken_collection_is_retried() {
        let directory = tempfile::tempdir().unwrap();
        let core = small_core(directory.path());
        drop(core.create("a", CollectionSettings::new(2, Metric::L2)).unwrap());
        assert!(!core.mark_opening("a"), "it is served");
        core.map
            .write()
            .entries
            .insert("a".into(), RegistryEntry::Broken(Error::exhausted("no memory")));
        assert!(core.mark_opening("a") && !core.mark_opening("a"), "once");
        assert_eq!(
            core.remove("a").unwrap_err().kind(),
            ErrorKind::Unavailable,
            "not while it is opened"
        );
        let mut again = Vec::new();
        let mut broken = Vec::new();
        core.open_each(vec!["a".into()], &mut again, &mut broken);
        assert!(core.get("a").is_ok() && again.is_empty() && broken.is_empty());
        assert!(core.remove("a").unwrap());
        assert!(!core.mark_opening("a"));
    }
}
