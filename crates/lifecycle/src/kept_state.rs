//! State of models in a file, so that a restart knows it.
//!
//! The file is read at the start, and written when the state of a model changes. Servers that share
//! the file change the entries of their own models only.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Most bytes of the file that are read.
const FILE_BYTES_MAX: u64 = 16 << 20;
/// Time before a file that could not be written is written again.
const RETRY_PAUSE: Duration = Duration::from_secs(60);

/// State of type `T` by the key of the model, which contains its directory.
pub(crate) struct KeptState<T> {
    /// `None` keeps nothing.
    file: Option<PathBuf>,
    known: BTreeMap<PathBuf, T>,
    /// Changes that the file does not have, since it could not be written. At most one for each
    /// model.
    unwritten: BTreeMap<PathBuf, Option<T>>,
    /// Time of the next try to write them.
    retry_at: Instant,
}

impl<T: Clone + DeserializeOwned + Serialize + PartialEq> KeptState<T> {
    pub(crate) fn open(file: Option<PathBuf>) -> KeptState<T> {
        let read = |file: &Path| {
            read(file).unwrap_or_else(|error| {
                tracing::error!(
                    file = %file.display(), %error,
                    "the state of rollouts cannot be read, and the server starts without it"
                );
                BTreeMap::new()
            })
        };
        let known = file.as_deref().map(read).unwrap_or_default();
        KeptState { file, known, unwritten: BTreeMap::new(), retry_at: Instant::now() }
    }

    pub(crate) fn get(&self, key: &Path) -> Option<&T> {
        self.known.get(key)
    }

    /// Replaces the state of a model. If the file cannot be written, calls after [`RETRY_PAUSE`]
    /// write it again, also those without a change.
    pub(crate) fn replace(&mut self, key: &Path, state: Option<T>) {
        let Some(file) = &self.file else { return };
        let is_changed = self.known.get(key) != state.as_ref();
        let is_retry = !self.unwritten.is_empty() && self.retry_at <= Instant::now();
        if !is_changed && !is_retry {
            return;
        }
        if is_changed {
            self.unwritten.insert(key.to_owned(), state);
        }
        // Another server may have changed its models meanwhile.
        match read(file) {
            Ok(known) => self.known = known,
            // The new file then has the state of all models of this server, and not only of one
            // model.
            Err(error) => {
                tracing::error!(file = %file.display(), %error, "the state of rollouts cannot be read again");
            }
        }
        for (dir, state) in &self.unwritten {
            match state {
                None => self.known.remove(dir),
                Some(state) => self.known.insert(dir.clone(), state.clone()),
            };
        }
        match write(file, &self.known) {
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
fn read<T: DeserializeOwned>(file: &Path) -> std::io::Result<BTreeMap<PathBuf, T>> {
    let text = std::fs::metadata(file).and_then(|meta| {
        if meta.len() > FILE_BYTES_MAX {
            Err(std::io::Error::other("the file is too large"))
        } else {
            std::fs::read_to_string(file)
        }
    });
    match text {
        Ok(text) => toml::from_str(&text).map_err(std::io::Error::other),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(BTreeMap::new()),
        Err(error) => Err(error),
    }
}

/// Writes the file in one step. It is durable afterwards: a loss of power would otherwise leave an
/// empty file, which a restart reads as no state.
fn write<T: Serialize>(file: &Path, known: &BTreeMap<PathBuf, T>) -> std::io::Result<()> {
    let text = toml::to_string(known).map_err(std::io::Error::other)?;
    let dir = file.parent().filter(|dir| !dir.as_os_str().is_empty());
    if let Some(dir) = dir {
        os::private::create_dir_all(dir)?;
    }
    let aside = file.with_extension(format!("new-{}", std::process::id()));
    let mut new = os::private::options().write(true).create(true).truncate(true).open(&aside)?;
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
