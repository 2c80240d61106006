//! The local copy of a store's directory.
//!
//! The lifecycle watches `models/NAME/VERSION`. A version is fetched into `staging/NAME/VERSION`
//! and renamed when it is complete. `records/NAME/VERSION` holds the fingerprint of the listing
//! that a copy came from. The modification time of a record is the last time at which the version
//! was wanted. That of the file `followed` is the last time at which a server followed the store.

mod former;
mod unused;

use std::collections::BTreeSet;
use std::fs::{File, Metadata};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use base::{Error, Result};
use os::sync_directory;
use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::listing::{RemoteFile, WARMUP_DIR, number};
use crate::place::without_secrets;

pub(crate) use former::adopt_former_copies;
pub(crate) use unused::{UnusedCache, unused_caches};

/// Directories of a cache.
const DIRECTORIES: [&str; 3] = ["models", "staging", "records"];
/// Prefix of the names in `staging` of versions that are being removed.
const TRASH_PREFIX: &str = ".old-";
/// Characters of each URL with a password or a query. The directories of other URLs keep the names
/// that they have.
const SECRET_MARKS: [char; 2] = ['@', '?'];
/// Longest wait for the lock of a cache. Other servers lock it for a moment to check if it is
/// unused.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(1);

/// The local copy of one store.
#[derive(Clone, Debug)]
pub(crate) struct StoreCache {
    root: PathBuf,
}

/// Exchanges `new` and `old`, in one step if the file system can exchange names.
fn exchange(new: &Path, old: &Path, spare: &Path) -> Result<()> {
    if renameat_with(CWD, new, CWD, old, RenameFlags::EXCHANGE).is_ok() {
        return Ok(());
    }
    let _ = std::fs::remove_dir_all(spare);
    let moved = std::fs::rename(old, spare)
        .and_then(|()| std::fs::rename(new, old))
        .and_then(|()| std::fs::rename(spare, new));
    moved.map_err(|error| Error::io(old, &error))
}

/// A copied version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CachedVersion {
    pub(crate) model: String,
    pub(crate) version: u64,
    pub(crate) bytes: u64,
    pub(crate) last_wanted: SystemTime,
}

/// Returns the directory that mirrors `url` and that a server watches. `model` is the name of the
/// model if the URL is the directory of a single one. Then it is that model's directory.
pub fn watched_dir(cache_dir: &Path, url: &str, model: Option<&str>) -> PathBuf {
    let models = cache_dir.join("stores").join(cache_name(url, model)).join("models");
    model.map_or(models.clone(), |model| models.join(model))
}

/// Returns the name of the directory of a store's cache.
fn cache_name(url: &str, model: Option<&str>) -> String {
    let url = url.trim_end_matches('/');
    // Logs and pages show the directory.
    let shown = if url.contains(SECRET_MARKS) { without_secrets(url) } else { url.to_owned() };
    named_after(&shown, url, model)
}

/// Returns a name that begins like the end of `shown` and differs for each `url` and `model`. No
/// slash ends `url`.
fn named_after(shown: &str, url: &str, model: Option<&str>) -> String {
    let hash = blake3::hash(format!("{url}\0{}", model.unwrap_or_default()).as_bytes()).to_hex();
    let tail: String = shown.rsplit('/').next().unwrap_or_default().chars().take(32).collect();
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    format!("{}-{}", tail.chars().map(plain).collect::<String>(), &hash[..16])
}

impl StoreCache {
    /// Opens the cache whose directory of models is `models`, and removes nothing.
    ///
    /// # Errors
    /// I/O errors.
    pub(crate) fn open(models: &Path) -> Result<StoreCache> {
        let root = models.parent().unwrap_or(models).to_owned();
        let cache = StoreCache { root };
        cache.make_directories()?;
        Ok(cache)
    }

    fn make_directories(&self) -> Result<()> {
        for name in DIRECTORIES {
            let dir = self.root.join(name);
            os::private::create_dir_all(&dir).map_err(|error| Error::io(&dir, &error))?;
        }
        Ok(())
    }

    /// Locks the cache until the returned file is closed.
    ///
    /// # Errors
    /// `FailedPrecondition` if another process has locked it for [`LOCK_WAIT_MAX`].
    pub(crate) fn lock(&self) -> Result<File> {
        let path = self.root.join("lock");
        let file = os::private::options().write(true).create(true).truncate(false).open(&path);
        let file = file.map_err(|error| Error::io(&path, &error))?;
        match os::lock_file(&file, LOCK_WAIT_MAX) {
            Ok(false) => Err(Error::precondition(format!(
                "{}: another server uses this cache; give each its own with --cache-dir",
                self.root.display()
            ))),
            // File systems without locks are used by one server at a time.
            Ok(true) | Err(_) => Ok(file),
        }
    }

    pub(crate) fn model_dir(&self, model: &str) -> PathBuf {
        self.root.join("models").join(model)
    }

    pub(crate) fn version_dir(&self, model: &str, version: u64) -> PathBuf {
        self.model_dir(model).join(version.to_string())
    }

    pub(crate) fn staging(&self, model: &str, version: u64) -> PathBuf {
        self.root.join("staging").join(model).join(version.to_string())
    }

    fn trash(&self, model: &str, version: u64) -> PathBuf {
        self.root.join("staging").join(format!("{TRASH_PREFIX}{model}-{version}"))
    }

    fn record(&self, model: &str, name: &str) -> PathBuf {
        self.root.join("records").join(model).join(name)
    }

    fn synced_mark(&self) -> PathBuf {
        self.root.join("synced")
    }

    /// Returns true if a whole sync has succeeded once.
    pub(crate) fn is_synced(&self) -> bool {
        self.synced_mark().exists()
    }

    /// Remembers that a whole sync has succeeded.
    pub(crate) fn set_synced(&self) -> Result<()> {
        write(&self.synced_mark(), "")
    }

    fn followed_mark(&self) -> PathBuf {
        self.root.join("followed")
    }

    /// Notes that a server follows the store at this moment.
    pub(crate) fn note_followed(&self) {
        let mark = os::private::options()
            .write(true)
            .create(true)
            .truncate(false)
            .open(self.followed_mark());
        // Without the time, the copies are only removed at another time after the store is left.
        let _ = mark.and_then(|mark| mark.set_modified(SystemTime::now()));
    }

    /// Returns true if the version is here and came from a listing of this fingerprint. Notes that
    /// it is wanted.
    ///
    /// # Errors
    /// As [`recorded_text`].
    pub(crate) fn has(&self, model: &str, version: u64, fingerprint: &str) -> Result<bool> {
        let record = self.record(model, &version.to_string());
        let same = recorded_text(&record, std::fs::read_to_string(&record))? == fingerprint;
        let here = same && self.version_dir(model, version).is_dir();
        if here && let Ok(file) = File::options().write(true).open(&record) {
            // Without the time, the version only counts as less recently wanted.
            let _ = file.set_modified(SystemTime::now());
        }
        Ok(here)
    }

    /// Returns true if the version has all `files` with their lengths.
    pub(crate) fn is_whole(&self, model: &str, version: u64, files: &[RemoteFile]) -> bool {
        let dir = self.version_dir(model, version);
        files.iter().all(|file| {
            std::fs::metadata(dir.join(&file.path)).is_ok_and(|meta| meta.len() == file.bytes)
        })
    }

    /// Removes the record of a version, so that the next listing fetches it again.
    ///
    /// # Errors
    /// I/O errors.
    pub(crate) fn forget(&self, model: &str, version: u64) -> Result<()> {
        let record = self.record(model, &version.to_string());
        match std::fs::remove_file(&record) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(Error::io(&record, &error)),
            _ => Ok(()),
        }
    }

    /// Moves a fetched version from staging to the models, in place of an earlier copy. The version
    /// is there as a whole at every moment.
    ///
    /// # Errors
    /// I/O errors.
    pub(crate) fn commit(&self, model: &str, version: u64, fingerprint: &str) -> Result<()> {
        let from = self.staging(model, version);
        let to = self.version_dir(model, version);
        let parent = self.model_dir(model);
        os::private::create_dir_all(&parent).map_err(|error| Error::io(&parent, &error))?;
        let record = self.record(model, &version.to_string());
        if !to.exists() {
            // A record without a version is harmless; a version without a record is fetched again.
            write(&record, fingerprint)?;
            std::fs::rename(&from, &to).map_err(|error| Error::io(&to, &error))?;
            return sync_directory(&parent);
        }
        // If neither record nor journal is there after a kill, the version is fetched again.
        let _ = std::fs::remove_file(&record);
        let _ = std::fs::remove_file(from.with_extension("journal"));
        exchange(&from, &to, &self.trash(model, version))?;
        sync_directory(&parent)?;
        write(&record, fingerprint)?;
        let _ = std::fs::remove_dir_all(&from);
        Ok(())
    }

    /// Returns true if the file at `path` beside a model's versions is here and came from an object
    /// of this fingerprint.
    pub(crate) fn has_file(&self, model: &str, path: &str, fingerprint: &str) -> bool {
        let record = self.record(model, &file_record(path));
        std::fs::read_to_string(record).is_ok_and(|text| text == fingerprint)
            && self.model_dir(model).join(path).is_file()
    }

    /// Replaces the file at `path` beside a model's versions. The file is durable before its record
    /// is written.
    ///
    /// # Errors
    /// I/O errors.
    pub(crate) fn put_file(
        &self,
        model: &str,
        path: &str,
        content: &[u8],
        fingerprint: &str,
    ) -> Result<()> {
        let (dir, name) = match path.rsplit_once('/') {
            Some((dir, name)) => (self.model_dir(model).join(dir), name),
            None => (self.model_dir(model), path),
        };
        let hidden = dir.join(format!(".{name}.new"));
        write(&hidden, content)?;
        let synced = File::open(&hidden).and_then(|file| file.sync_all());
        synced.map_err(|error| Error::io(&hidden, &error))?;
        let to = dir.join(name);
        std::fs::rename(&hidden, &to).map_err(|error| Error::io(&to, &error))?;
        sync_directory(&dir)?;
        write(&self.record(model, &file_record(path)), fingerprint)
    }

    /// Returns the paths of the copied files beside a model's versions.
    pub(crate) fn files(&self, model: &str) -> Vec<String> {
        let records = names_in(&self.root.join("records").join(model));
        records.iter().filter_map(|name| file_of_record(name)).collect()
    }

    /// Removes copied files beside a model's versions that are not in `paths`.
    pub(crate) fn retain_files(&self, model: &str, paths: &[&str]) {
        let kept: BTreeSet<String> = paths.iter().map(|path| file_record(path)).collect();
        for name in names_in(&self.root.join("records").join(model)) {
            if let Some(path) = file_of_record(&name)
                && !kept.contains(&name)
            {
                let _ = std::fs::remove_file(self.model_dir(model).join(path));
                let _ = std::fs::remove_file(self.record(model, &name));
                // Fails while a file is left.
                let _ = std::fs::remove_dir(self.model_dir(model).join(WARMUP_DIR));
            }
        }
    }

    /// Removes a version. It vanishes in one step, so that no reader sees a part of it.
    ///
    /// # Errors
    /// I/O errors.
    pub(crate) fn remove(&self, model: &str, version: u64) -> Result<()> {
        let dir = self.version_dir(model, version);
        let trash = self.trash(model, version);
        let _ = std::fs::remove_dir_all(&trash);
        match std::fs::rename(&dir, &trash) {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            moved => moved.map_err(|error| Error::io(&dir, &error))?,
        }
        let _ = std::fs::remove_file(self.record(model, &version.to_string()));
        match std::fs::remove_dir_all(&trash) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(Error::io(&trash, &error)),
            _ => Ok(()),
        }
    }

    /// Removes versions whose removal failed, or did not end because the process was killed.
    pub(crate) fn remove_trash(&self) {
        let entries = std::fs::read_dir(self.root.join("staging")).into_iter().flatten().flatten();
        for entry in entries {
            if entry.file_name().to_string_lossy().starts_with(TRASH_PREFIX)
                && let Err(error) = std::fs::remove_dir_all(entry.path())
            {
                let dir = entry.path();
                tracing::warn!(dir = %dir.display(), %error, "a removed version stays on the disk");
            }
        }
    }

    /// Removes a model without versions.
    pub(crate) fn remove_model(&self, model: &str) {
        let _ = std::fs::remove_dir_all(self.root.join("records").join(model));
        let _ = std::fs::remove_dir_all(self.root.join("staging").join(model));
        let _ = std::fs::remove_dir_all(self.model_dir(model));
    }

    /// Makes the directory of a model, so that its state is visible before its first version.
    ///
    /// # Errors
    /// I/O errors.
    pub(crate) fn make_model(&self, model: &str) -> Result<()> {
        let dir = self.model_dir(model);
        os::private::create_dir_all(&dir).map_err(|error| Error::io(&dir, &error))
    }

    /// Removes all versions that were fetched in part.
    pub(crate) fn clear_staging(&self) {
        for model in names_in(&self.root.join("staging")) {
            let _ = std::fs::remove_dir_all(self.root.join("staging").join(model));
        }
    }

    /// Removes a version that was fetched in part, and its journal.
    pub(crate) fn remove_staging(&self, model: &str, version: u64) {
        let staging = self.staging(model, version);
        let _ = std::fs::remove_file(staging.with_extension("journal"));
        let _ = std::fs::remove_dir_all(staging);
    }

    /// Removes the versions that were fetched in part and that `is_kept` returns false for.
    pub(crate) fn retain_staging(&self, is_kept: impl Fn(&str, u64) -> bool) {
        let staging = self.root.join("staging");
        for model in names_in(&staging) {
            // A journal is removed with its version.
            let names = names_in(&staging.join(&model));
            for version in names.iter().filter_map(|name| number(name)) {
                if !is_kept(&model, version) {
                    self.remove_staging(&model, version);
                }
            }
        }
    }

    /// Returns the bytes on disk of a version that was fetched in part.
    pub(crate) fn staged_bytes(&self, model: &str, version: u64) -> u64 {
        use std::os::unix::fs::MetadataExt;
        // Blocks have 512 bytes here. The files are sparse.
        sum_of_files(&self.staging(model, version), &|file: &Metadata| file.blocks() * 512)
    }

    /// Returns the bytes that are free on the disk for this user, or `None` if it is not known.
    pub(crate) fn free_bytes(&self) -> Option<u64> {
        let disk = rustix::fs::statvfs(&self.root).ok()?;
        Some(disk.f_bavail * disk.f_frsize)
    }

    /// Returns the directory of the whole cache.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the names of the copied models.
    pub(crate) fn models(&self) -> Vec<String> {
        names_in(&self.root.join("models"))
    }

    /// Returns true if a version of the model is here.
    pub(crate) fn has_version(&self, model: &str) -> bool {
        !self.numbers(model).is_empty()
    }

    /// Returns the numbers of the copied versions of a model, without reading their files.
    pub(crate) fn numbers(&self, model: &str) -> Vec<u64> {
        names_in(&self.model_dir(model)).iter().filter_map(|name| number(name)).collect()
    }

    /// Returns all copied versions.
    pub(crate) fn versions(&self) -> Vec<CachedVersion> {
        let mut versions = Vec::new();
        for model in self.models() {
            for name in names_in(&self.model_dir(&model)) {
                let Some(version) = number(&name) else { continue };
                let record = std::fs::metadata(self.record(&model, &name));
                versions.push(CachedVersion {
                    version,
                    bytes: bytes_of(&self.version_dir(&model, version)),
                    last_wanted: record
                        .and_then(|record| record.modified())
                        .unwrap_or(SystemTime::UNIX_EPOCH),
                    model: model.clone(),
                });
            }
        }
        versions
    }

    /// Returns the name of a model and the path of one of its files, below its directory. The file
    /// belongs to a copied version.
    pub(crate) fn some_file(&self) -> Option<(String, String)> {
        self.models().into_iter().find_map(|model| {
            let version = *self.numbers(&model).first()?;
            let dir = self.version_dir(&model, version);
            let name = names_in(&dir).into_iter().find(|name| dir.join(name).is_file())?;
            Some((model, format!("{version}/{name}")))
        })
    }

    /// Returns the directories of all copied versions.
    pub(crate) fn version_dirs(&self) -> Vec<PathBuf> {
        let mut dirs = Vec::new();
        for model in self.models() {
            let numbers = self.numbers(&model).into_iter();
            dirs.extend(numbers.map(|version| self.version_dir(&model, version)));
        }
        dirs
    }
}

/// Returns the name of the record of a file beside a model's versions. A record is not a directory,
/// so its name has no "/".
fn file_record(path: &str) -> String {
    format!("file-{}", path.replace('%', "%25").replace('/', "%2F"))
}

/// Returns the path of the file that [`file_record`] got, or `None` for the record of a version.
fn file_of_record(name: &str) -> Option<String> {
    let path = name.strip_prefix("file-")?;
    Some(path.replace("%2F", "/").replace("%25", "%"))
}

/// Returns the text of the small file `path`, which was `read`. It is empty for a file that is
/// missing or damaged.
///
/// # Errors
/// `ResourceExhausted` if the process has no file descriptor or memory for it. The file may be
/// whole, and what it records would be fetched again.
pub(crate) fn recorded_text(path: &Path, read: std::io::Result<String>) -> Result<String> {
    read.or_else(|error| {
        let error = Error::io(path, &error);
        if error.kind() == base::ErrorKind::ResourceExhausted {
            Err(error)
        } else {
            Ok(String::new())
        }
    })
}

/// Writes a whole small file and makes its directory.
fn write(path: &Path, content: impl AsRef<[u8]>) -> Result<()> {
    let dir = path.parent().unwrap_or(path);
    os::private::create_dir_all(dir).map_err(|error| Error::io(dir, &error))?;
    std::fs::write(path, content).map_err(|error| Error::io(path, &error))
}

/// Returns the names of the entries of `dir` without hidden ones, in order.
fn names_in(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> = names.filter(|name| !name.starts_with('.')).collect();
    names.sort();
    names
}

/// Returns the lengths of all files below `dir`.
fn bytes_of(dir: &Path) -> u64 {
    sum_of_files(dir, &Metadata::len)
}

/// Returns the sum of `bytes` of all files below `dir`.
fn sum_of_files(dir: &Path, bytes: &dyn Fn(&Metadata) -> u64) -> u64 {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let of_entry = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(meta) if meta.is_dir() => sum_of_files(&entry.path(), bytes),
        Ok(meta) => bytes(&meta),
        Err(_) => 0,
    };
    entries.map(of_entry).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_there_while_it_is_replaced() {
        use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
        let dir = tempfile::tempdir().unwrap();
        let cache = StoreCache::open(&dir.path().join("s/models")).unwrap();
        let stage = || {
            (0..3000).for_each(|at| {
                write(&cache.staging("m", 7).join(at.to_string()), "x").unwrap();
            });
        };
        stage();
        cache.commit("m", 7, "one").unwrap();
        stage();
        let (done, misses) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let is_missing = !cache.version_dir("m", 7).is_dir();
                    misses.fetch_add(u64::from(is_missing), Ordering::Relaxed);
                }
            });
            let replaced = cache.commit("m", 7, "two");
            done.store(true, Ordering::Relaxed);
            replaced.unwrap();
        });
        assert_eq!(misses.into_inner(), 0);
        assert!(cache.has("m", 7, "two").unwrap() && !cache.staging("m", 7).exists());
    }

    #[test]
    fn a_version_is_replaced_and_removed_as_a_whole() {
        let dir = tempfile::tempdir().unwrap();
        let watched = watched_dir(dir.path(), "s3://bucket/models/", None);
        assert!(watched.to_str().unwrap().contains("/stores/models-"), "{watched:?}");
        assert_eq!(watched, watched_dir(dir.path(), "s3://bucket/models", None));
        assert_ne!(watched, watched_dir(dir.path(), "s3://other/models", None));
        for url in ["https://host/m?token=s3cret", "https://me:s3cret@host"] {
            let secret = watched_dir(dir.path(), url, None);
            assert!(!secret.to_string_lossy().contains("s3cret"), "{}", secret.display());
        }
        let cache = StoreCache::open(&watched).unwrap();
        for content in ["one", "two"] {
            write(&cache.staging("m", 7).join("model.onnx"), content).unwrap();
            cache.commit("m", 7, content).unwrap();
            assert!(cache.has("m", 7, content).unwrap());
        }
        assert!(!cache.has("m", 7, "one").unwrap());
        let versions = cache.versions();
        assert_eq!((versions[0].version, versions[0].bytes), (7, 3));
        assert_eq!((cache.numbers("m"), cache.numbers("n")), (vec![7], vec![]));
        assert_eq!(cache.version_dirs(), [cache.version_dir("m", 7)]);
        cache.remove("m", 7).unwrap();
        assert!(cache.versions().is_empty() && !cache.has("m", 7, "two").unwrap());
    }

    #[test]
    fn a_record_without_a_free_descriptor_is_not_lost() {
        let read = |code| {
            let error = std::io::Error::from_raw_os_error(code);
            recorded_text(Path::new("record"), Err(error)).map_err(|error| error.kind())
        };
        // EMFILE and ENFILE.
        for code in [24, 23] {
            assert_eq!(read(code), Err(base::ErrorKind::ResourceExhausted));
        }
        // ENOENT and EIO.
        for code in [2, 5] {
            assert_eq!(read(code), Ok(String::new()));
        }
    }

    /// The variables of a SavedModel are in a directory.
    #[test]
    fn staged_bytes_include_directories() {
        let dir = tempfile::tempdir().unwrap();
        let cache = StoreCache::open(&dir.path().join("s/models")).unwrap();
        let put = |name: &str| {
            let path = cache.staging("m", 7).join(name);
            write(&path, vec![1u8; 1 << 16]).unwrap();
            File::open(path).unwrap().sync_all().unwrap();
            cache.staged_bytes("m", 7)
        };
        let one = put("saved_model.pb");
        let both = put("variables/variables.data-00000-of-00001");
        assert!(one > 0 && both == 2 * one, "{one} {both}");
    }

    #[test]
    fn files_beside_the_versions_may_have_a_directory() {
        let dir = tempfile::tempdir().unwrap();
        let cache = StoreCache::open(&dir.path().join("s/models")).unwrap();
        let paths = ["a%2Fb.txt", "warmup/one.json", "warmup/two.json"];
        for path in paths {
            cache.put_file("m", path, path.as_bytes(), "stamp").unwrap();
            assert!(cache.has_file("m", path, "stamp") && !cache.has_file("m", path, "other"));
            assert_eq!(std::fs::read_to_string(cache.model_dir("m").join(path)).unwrap(), path);
        }
        cache.retain_files("m", &paths[..2]);
        let there = paths.map(|path| cache.has_file("m", path, "stamp"));
        assert_eq!(there, [true, true, false]);
        assert!(!cache.model_dir("m").join(paths[2]).exists());
        cache.retain_files("m", &[]);
        assert_eq!(std::fs::read_dir(cache.model_dir("m")).unwrap().count(), 0);
    }

    #[test]
    fn one_server_uses_a_cache() {
        let dir = tempfile::tempdir().unwrap();
        let cache = StoreCache::open(&dir.path().join("s/models")).unwrap();
        let held = cache.lock().unwrap();
        assert!(cache.lock().unwrap_err().message().contains("--cache-dir"));
        drop(held);
        assert!(cache.lock().is_ok());
    }

    #[test]
    fn a_cache_that_another_server_checks_can_be_locked() {
        let dir = tempfile::tempdir().unwrap();
        let cache = StoreCache::open(&dir.path().join("s/models")).unwrap();
        drop(cache.lock().unwrap());
        let locked_after_check = |_| {
            let checked = cache.lock_unused().unwrap();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(Duration::from_millis(5));
                    drop(checked);
                });
                cache.lock().is_ok()
            })
        };
        // On a busy machine, the thread may begin only after the wait for the lock.
        assert!((0..5).any(locked_after_check));
    }
}
