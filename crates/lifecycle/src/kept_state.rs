//! State of models in a file, so that a restart knows it.
//!
//! The file is read at the start, and written when the state of a model changes. Servers that share
//! the file change the entries of their own models only. Entries that only another version of this
//! program can read stay as they are.
//!
//! The key of a model is its directory, or `DIRECTORY/#NAME` if the model has another name than its
//! directory. In a file without [`FIRST_LINE`], which an earlier program wrote, the key is always
//! the directory. Its state is that of each model of the directory, until the model replaces it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Maximum bytes of the file that are read.
const FILE_BYTES_MAX: u64 = 16 << 20;
/// Time before a file that could not be written is written again.
const RETRY_PAUSE: Duration = Duration::from_secs(60);

/// First line of a file whose keys contain names of models.
const FIRST_LINE: &str = "# The key of a model is its directory, or DIRECTORY/#NAME.\n";

/// State of type `T` by the key of the model, which contains its directory.
pub(crate) struct KeptState<T> {
    /// `None` keeps nothing.
    file: Option<PathBuf>,
    known: BTreeMap<PathBuf, T>,
    /// Entries of the file that this program cannot read.
    unread: toml::Table,
    /// State by directory, if an earlier program wrote the file that was there at the start.
    of_directories: BTreeMap<PathBuf, T>,
    /// Keys that have replaced the state of their directory. At most one for each model.
    replaced: BTreeSet<PathBuf>,
    /// Changes that the file does not have, since it could not be written. At most one per model.
    unwritten: BTreeMap<PathBuf, Option<T>>,
    /// Time of the next try to write them.
    retry_at: Instant,
}

/// Content of the file.
struct KeptFile<T> {
    known: BTreeMap<PathBuf, T>,
    unread: toml::Table,
    /// True if an earlier program wrote it.
    has_directories_only: bool,
}

impl<T> Default for KeptFile<T> {
    fn default() -> KeptFile<T> {
        let unread = toml::Table::new();
        KeptFile { known: BTreeMap::new(), unread, has_directories_only: false }
    }
}

impl<T: Clone + DeserializeOwned + Serialize + PartialEq> KeptState<T> {
    /// Reads the state in `file`. State that cannot be read is logged and left out, so that the
    /// server starts. Without a file, nothing is kept.
    pub(crate) fn open(file: Option<PathBuf>) -> KeptState<T> {
        let read = |file: &Path| {
            read(file).unwrap_or_else(|error| {
                tracing::error!(
                    file = %file.display(), %error,
                    "the state of rollouts cannot be read, and the server starts without it"
                );
                KeptFile::default()
            })
        };
        let content: KeptFile<T> = file.as_deref().map(read).unwrap_or_default();
        for key in content.unread.keys() {
            tracing::error!(
                key,
                "the state of rollouts of one model is from another version of this program, and \
                 the server starts without it"
            );
        }
        let mut of_directories = BTreeMap::new();
        if content.has_directories_only {
            of_directories.clone_from(&content.known);
        }
        KeptState {
            file,
            known: content.known,
            unread: content.unread,
            of_directories,
            replaced: BTreeSet::new(),
            unwritten: BTreeMap::new(),
            retry_at: Instant::now(),
        }
    }

    pub(crate) fn get(&self, key: &Path) -> Option<&T> {
        self.known.get(key).or_else(|| self.of_directory(key))
    }

    /// Returns the state that an earlier program kept for the directory of the model.
    fn of_directory(&self, key: &Path) -> Option<&T> {
        let has_name = key.file_name().is_some_and(|name| name.as_bytes().starts_with(b"#"));
        if !has_name || self.replaced.contains(key) {
            return None;
        }
        self.of_directories.get(key.parent()?)
    }

    /// Copies the state that an earlier program kept for the directory to the key of the model. The
    /// next write stores the copy in the file that it writes. There a directory is the key of one
    /// model.
    pub(crate) fn adopt(&mut self, key: &Path) {
        let Some(state) = self.of_directory(key).cloned() else { return };
        if !self.known.contains_key(key) {
            self.unwritten.entry(key.to_owned()).or_insert(Some(state));
        }
    }

    /// Replaces the state of a model. If the file cannot be written, calls after [`RETRY_PAUSE`]
    /// write it again, also those without a change.
    pub(crate) fn replace(&mut self, key: &Path, state: Option<T>) {
        let Some(file) = &self.file else { return };
        let is_changed = match self.known.get(key) {
            // The file gets the key of the model in place of the directory.
            None => state.is_some() || self.of_directory(key).is_some(),
            known => known != state.as_ref(),
        };
        let is_retry = !self.unwritten.is_empty() && self.retry_at <= Instant::now();
        if !is_changed && !is_retry {
            return;
        }
        if is_changed {
            self.replaced.insert(key.to_owned());
            self.unwritten.insert(key.to_owned(), state);
        }
        // Another server may have changed its models meanwhile.
        match read(file) {
            Ok(content) => {
                self.known = content.known;
                self.unread = content.unread;
            }
            // The new file then has the state of all models of this server, and not of one.
            Err(error) => {
                tracing::error!(file = %file.display(), %error, "the state of rollouts cannot be read again");
            }
        }
        for (key, state) in &self.unwritten {
            self.unread.remove(&*key.to_string_lossy());
            match state {
                None => self.known.remove(key),
                Some(state) => self.known.insert(key.clone(), state.clone()),
            };
        }
        match write(file, &self.known, &self.unread) {
            Ok(()) => self.unwritten.clear(),
            Err(error) => {
                self.retry_at = Instant::now() + RETRY_PAUSE;
                tracing::error!(
                    file = %file.display(), %error,
                    "the state of rollouts cannot be written, and a restart loses it; the next try is in {} s",
                    RETRY_PAUSE.as_secs()
                );
            }
        }
    }
}

/// Reads the file. A file that does not exist has no state.
fn read<T: DeserializeOwned>(file: &Path) -> std::io::Result<KeptFile<T>> {
    let text = std::fs::metadata(file).and_then(|meta| {
        if meta.len() > FILE_BYTES_MAX {
            Err(std::io::Error::other("the file is too large"))
        } else {
            std::fs::read_to_string(file)
        }
    });
    match text {
        Ok(text) => parse(&text).map_err(std::io::Error::other),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(KeptFile::default()),
        Err(error) => Err(error),
    }
}

/// Reads the entries of the file one by one, so that one of another version costs no other entry.
fn parse<T: DeserializeOwned>(text: &str) -> Result<KeptFile<T>, toml::de::Error> {
    let has_directories_only = !text.starts_with(FIRST_LINE);
    let mut content = KeptFile { has_directories_only, ..KeptFile::default() };
    for (key, value) in toml::from_str::<toml::Table>(text)? {
        match value.clone().try_into::<T>() {
            Ok(state) => {
                content.known.insert(PathBuf::from(key), state);
            }
            Err(_) => {
                content.unread.insert(key, value);
            }
        }
    }
    Ok(content)
}

/// Writes the file in one step. It is durable afterwards. A loss of power would otherwise leave an
/// empty file, which a restart reads as no state.
fn write<T: Serialize>(
    file: &Path,
    known: &BTreeMap<PathBuf, T>,
    unread: &toml::Table,
) -> std::io::Result<()> {
    let text = toml::to_string(known).map_err(std::io::Error::other)?;
    let mut entries: toml::Table = toml::from_str(&text).map_err(std::io::Error::other)?;
    entries.extend(unread.clone());
    let text = toml::to_string(&entries).map_err(std::io::Error::other)?;
    let dir = file.parent().filter(|dir| !dir.as_os_str().is_empty());
    if let Some(dir) = dir {
        os::private::create_dir_all(dir)?;
    }
    let aside = file.with_extension(format!("new-{}", std::process::id()));
    let mut new = os::private::options().write(true).create(true).truncate(true).open(&aside)?;
    new.write_all(FIRST_LINE.as_bytes())?;
    new.write_all(text.as_bytes())?;
    new.sync_all()?;
    std::fs::rename(aside, file)?;
    dir.map_or(Ok(()), |dir| File::open(dir)?.sync_all())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_cannot_be_read_again_loses_no_state() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("kept.toml");
        let mut kept: KeptState<Vec<u64>> = KeptState::open(Some(file.clone()));
        kept.replace(Path::new("/a"), Some(vec![1]));
        std::fs::write(&file, [0xff]).unwrap();
        kept.replace(Path::new("/b"), Some(vec![2]));
        let mut again: KeptState<Vec<u64>> = KeptState::open(Some(file.clone()));
        assert_eq!(again.get(Path::new("/a")), Some(&vec![1]));
        assert_eq!(again.get(Path::new("/b")), Some(&vec![2]));
        // A file that was removed has no state.
        std::fs::remove_file(&file).unwrap();
        again.replace(Path::new("/c"), Some(vec![3]));
        assert_eq!(again.get(Path::new("/a")), None);
    }

    #[test]
    fn state_of_a_directory_is_that_of_its_models() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("kept.toml");
        // An earlier program wrote this for models of other names than their directory, too.
        std::fs::write(&file, "\"/dir\" = [3]\n").unwrap();
        let open = || KeptState::<Vec<u64>>::open(Some(file.clone()));
        let mut kept = open();
        for key in ["/dir", "/dir/#prod", "/dir/#other"] {
            assert_eq!(kept.get(Path::new(key)), Some(&vec![3]), "{key}");
        }
        kept.replace(Path::new("/dir/#prod"), Some(vec![3]));
        kept.replace(Path::new("/dir/#other"), None);
        for kept in [kept, open()] {
            assert_eq!(kept.get(Path::new("/dir/#prod")), Some(&vec![3]));
            assert_eq!(kept.get(Path::new("/dir/#other")), None);
        }
    }

    #[test]
    fn adopted_state_outlives_a_write_for_another_model() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("kept.toml");
        std::fs::write(&file, "\"/dir\" = [3]\n").unwrap();
        let open = || KeptState::<Vec<u64>>::open(Some(file.clone()));
        let prod = Path::new("/dir/#prod");
        let mut kept = open();
        kept.adopt(prod);
        kept.adopt(Path::new("/none/#prod"));
        kept.replace(Path::new("/other"), Some(vec![4]));
        let mut kept = open();
        assert_eq!(kept.get(prod), Some(&vec![3]));
        assert_eq!(kept.get(Path::new("/none/#prod")), None);
        kept.adopt(prod);
        kept.replace(prod, None);
        assert_eq!((kept.get(prod), open().get(prod)), (None, None));
    }

    #[test]
    fn entries_of_another_version_stay() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("kept.toml");
        std::fs::write(&file, "\"/a\" = [1]\n\"/later\" = { numbers = [2] }\n").unwrap();
        let mut kept: KeptState<Vec<u64>> = KeptState::open(Some(file.clone()));
        assert_eq!(kept.get(Path::new("/a")), Some(&vec![1]));
        kept.replace(Path::new("/b"), Some(vec![3]));
        let text = std::fs::read_to_string(&file).unwrap();
        let entries: toml::Table = toml::from_str(&text).unwrap();
        assert_eq!(entries["/a"].as_array().map(Vec::len), Some(1));
        assert_eq!(entries["/b"].as_array().map(Vec::len), Some(1));
        assert_eq!(entries["/later"]["numbers"].as_array().map(Vec::len), Some(1));
        // A model that writes its state replaces its entry.
        kept.replace(Path::new("/later"), Some(vec![4]));
        let kept: KeptState<Vec<u64>> = KeptState::open(Some(file));
        assert_eq!(kept.get(Path::new("/later")), Some(&vec![4]));
    }

    #[test]
    fn state_that_could_not_be_written_is_written_later() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("cache");
        let file = dir.join("kept.toml");
        let written = || KeptState::<Vec<u64>>::open(Some(file.clone())).known;
        let a = (PathBuf::from("/a"), vec![1]);
        let b = (PathBuf::from("/b"), vec![2]);
        let mut kept: KeptState<Vec<u64>> = KeptState::open(Some(file.clone()));
        // No file can be written below a file.
        std::fs::write(&dir, "").unwrap();
        kept.replace(&a.0, Some(a.1.clone()));
        std::fs::remove_file(&dir).unwrap();
        kept.replace(&a.0, Some(a.1.clone()));
        assert!(written().is_empty(), "the pause has not passed");
        // A call for another model writes it too.
        kept.retry_at = Instant::now();
        kept.replace(&b.0, None);
        assert_eq!(written(), [a.clone()].into());
        kept.replace(&b.0, Some(b.1.clone()));
        assert_eq!(written(), [a, b].into());
    }
}
