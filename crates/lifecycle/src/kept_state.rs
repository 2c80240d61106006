//! State of models in a file, so that a restart knows it.
//!
//! The file is read at the start, and written when the state of a model changes. Servers that share
//! the file change the entries of their own models only.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Most bytes of the file that are read.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// State of type `T` by the directory of the model.
pub(crate) struct KeptState<T> {
    /// `None` keeps nothing.
    file: Option<PathBuf>,
    known: BTreeMap<PathBuf, T>,
}

impl<T: DeserializeOwned + Serialize + PartialEq> KeptState<T> {
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
        KeptState { file, known }
    }

    pub(crate) fn get(&self, model_dir: &Path) -> Option<&T> {
        self.known.get(model_dir)
    }

    /// Replaces the state of a model.
    pub(crate) fn replace(&mut self, model_dir: &Path, state: Option<T>) {
        let Some(file) = &self.file else { return };
        if self.known.get(model_dir) == state.as_ref() {
            return;
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
        match state {
            None => self.known.remove(model_dir),
            Some(state) => self.known.insert(model_dir.to_owned(), state),
        };
        if let Err(error) = write(file, &self.known) {
            tracing::error!(file = %file.display(), %error, "the state of rollouts is lost at a restart");
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
}
