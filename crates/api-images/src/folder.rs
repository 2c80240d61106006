//! A directory of the server's machine, for callers who may administer it. Links are not followed.

use std::fs::{DirEntry, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use base::{Error, Result};
use bytes::Bytes;
use vision::Format;

use super::archive::looks_like_an_image;
use super::bulk::{Source, SourceEntry};
use super::features::IMAGE_BYTES_MAX;

/// Directories below each other.
const DEPTH_MAX: usize = 64;
/// Entries of one directory.
const ENTRIES_MAX: usize = 1_000_000;
/// Bytes that tell what a file is.
const HEAD_BYTES: u64 = 16;

/// A directory that is being walked, in the order of names.
pub(crate) struct Folder {
    root: PathBuf,
    /// What is still to be looked at, last first, with its depth.
    waiting: Vec<(PathBuf, usize)>,
}

impl Folder {
    /// # Errors
    /// `InvalidArgument` for what is no absolute path of a directory that can be read.
    pub(crate) fn open(path: &str) -> Result<Folder> {
        let root = PathBuf::from(path);
        if !root.is_absolute() || !root.is_dir() {
            return Err(Error::invalid(format!(
                "\"{path}\" is no directory of this machine; give its whole path"
            )));
        }
        let mut folder = Folder { root: root.clone(), waiting: Vec::new() };
        folder.enter(&root, 0)?;
        Ok(folder)
    }

    fn enter(&mut self, directory: &Path, depth: usize) -> Result<()> {
        let wrong =
            |error: std::io::Error| Error::invalid(format!("{}: {error}", directory.display()));
        let entries = std::fs::read_dir(directory).map_err(wrong)?.take(ENTRIES_MAX);
        let mut paths: Vec<PathBuf> = entries.filter_map(|entry| wanted(&entry.ok()?)).collect();
        paths.sort_unstable_by(|a, b| b.cmp(a));
        self.waiting.extend(paths.into_iter().map(|path| (path, depth)));
        Ok(())
    }

    fn name(&self, path: &Path) -> String {
        path.strip_prefix(&self.root).unwrap_or(path).to_string_lossy().into_owned()
    }

    fn look(&mut self, path: &Path, depth: usize) -> SourceEntry {
        let name = self.name(path);
        if path.is_dir() {
            if depth >= DEPTH_MAX {
                return SourceEntry::Failed(
                    name,
                    Error::invalid("directories below each other end here"),
                );
            }
            return match self.enter(path, depth + 1) {
                Ok(()) => SourceEntry::Nothing,
                Err(error) => SourceEntry::Failed(name, error),
            };
        }
        match read(path) {
            Ok(Some(bytes)) => SourceEntry::Image(name, bytes),
            Ok(None) => SourceEntry::Ignored,
            Err(error) => SourceEntry::Failed(name, error),
        }
    }
}

impl Source for Folder {
    fn next(&mut self) -> Option<SourceEntry> {
        let (path, depth) = self.waiting.pop()?;
        Some(self.look(&path, depth))
    }
}

/// Regular files and directories, no links and no devices.
fn wanted(entry: &DirEntry) -> Option<PathBuf> {
    let kind = entry.file_type().ok()?;
    (kind.is_file() || kind.is_dir()).then(|| entry.path())
}

/// A file's bytes; `None` for what is no image.
fn read(path: &Path) -> Result<Option<Bytes>> {
    let wrong = |error: std::io::Error| Error::invalid(format!("it cannot be read: {error}"));
    let mut file = File::open(path).map_err(wrong)?;
    let mut bytes = Vec::new();
    file.by_ref().take(HEAD_BYTES).read_to_end(&mut bytes).map_err(wrong)?;
    let named = path.file_name().is_some_and(|name| looks_like_an_image(&name.to_string_lossy()));
    if Format::sniff(&bytes).is_none() && !named {
        return Ok(None);
    }
    let rest = IMAGE_BYTES_MAX as u64 + 1 - bytes.len() as u64;
    file.take(rest).read_to_end(&mut bytes).map_err(wrong)?;
    if bytes.len() > IMAGE_BYTES_MAX {
        return Err(Error::too_large(format!("an image has at most {IMAGE_BYTES_MAX} bytes")));
    }
    Ok(Some(Bytes::from(bytes)))
}
