//! A directory of the server's machine, which only administrators may read. Links are not followed.

use std::ffi::OsString;
use std::fs::{DirEntry, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use base::{Error, Result};
use bytes::Bytes;
use image_features::features::{IMAGE_BYTES_MAX, end_of_name};
use image_features::template_file::FileFormat;

use super::archive::looks_like_an_image;
use super::bulk::{BulkImage, ImageFiles, ImageSource, SourceEntry};

/// Maximum levels of directories.
const DEPTH_MAX: usize = 64;
/// Maximum entries of one directory.
const ENTRIES_MAX: usize = 1_000_000;
/// Bytes at the start of a file that show its format.
const HEAD_BYTES: u64 = 16;

/// A walk of a directory in the order of names.
pub(crate) struct Folder {
    root: PathBuf,
    /// Directories that are being read, each in the one before it.
    levels: Vec<FolderLevel>,
}

/// A directory that is being read. A million names take half of the memory of their paths.
struct FolderLevel {
    path: PathBuf,
    /// Names that are still to be read, last first.
    names: Vec<OsString>,
}

/// Images of a folder that are still to be read.
struct FolderImages<'a>(&'a mut Folder);

impl Folder {
    /// Starts a walk of the directory `path`.
    ///
    /// # Errors
    /// `InvalidArgument` if `path` is not an absolute path of a readable directory, `TooLarge` if
    /// the directory has too many entries.
    pub(crate) fn open(path: &str) -> Result<Folder> {
        let root = PathBuf::from(path);
        if !root.is_absolute() || !root.is_dir() {
            return Err(Error::invalid(format!(
                "\"{path}\" is not a directory of this machine; give an absolute path"
            )));
        }
        let mut folder = Folder { root: root.clone(), levels: Vec::new() };
        folder.enter(&root, ENTRIES_MAX)?;
        Ok(folder)
    }

    /// Lists `directory`, whose entries are visited next, in the order of their names.
    fn enter(&mut self, directory: &Path, entries_max: usize) -> Result<()> {
        let wrong = |error: std::io::Error| {
            Error::invalid(directory.display().to_string()).caused_by(error)
        };
        let mut names = Vec::new();
        for (number, entry) in std::fs::read_dir(directory).map_err(wrong)?.enumerate() {
            if number >= entries_max {
                return Err(Error::too_large(format!(
                    "{}: a directory has at most {entries_max} entries; divide it",
                    directory.display()
                )));
            }
            names.extend(listed_name(&entry.map_err(wrong)?));
        }
        names.sort_unstable_by(|a, b| b.cmp(a));
        self.levels.push(FolderLevel { path: directory.to_owned(), names });
        Ok(())
    }

    fn name(&self, path: &Path) -> String {
        let name = path.strip_prefix(&self.root).unwrap_or(path).to_string_lossy();
        end_of_name(name.into_owned())
    }

    /// Returns the next path.
    fn next_path(&mut self) -> Option<PathBuf> {
        while let Some(level) = self.levels.last_mut() {
            if let Some(name) = level.names.pop() {
                return Some(level.path.join(name));
            }
            self.levels.pop();
        }
        None
    }

    /// Enters a directory, or reads a file.
    fn visit(&mut self, path: &Path) -> SourceEntry {
        let name = self.name(path);
        if path.is_dir() {
            if self.levels.len() > DEPTH_MAX {
                return SourceEntry::Failed(
                    name,
                    Error::invalid(format!(
                        "directories are nested deeper than {DEPTH_MAX} levels; send this one as a \
                         folder of its own"
                    )),
                );
            }
            return match self.enter(path, ENTRIES_MAX) {
                Ok(()) => SourceEntry::Nothing,
                Err(error) => SourceEntry::Failed(name, error),
            };
        }
        match read(path) {
            Ok(Some(bytes)) => SourceEntry::Image(BulkImage { name, bytes }),
            Ok(None) => SourceEntry::Ignored,
            Err(error) => SourceEntry::Failed(name, error),
        }
    }
}

impl ImageFiles for Folder {
    fn images(&mut self) -> Result<impl ImageSource> {
        Ok(FolderImages(self))
    }
}

impl ImageSource for FolderImages<'_> {
    fn next(&mut self) -> Option<SourceEntry> {
        let FolderImages(folder) = self;
        let path = folder.next_path()?;
        Some(folder.visit(&path))
    }
}

/// Returns the name of a regular file or a directory; `None` for links and devices.
fn listed_name(entry: &DirEntry) -> Option<OsString> {
    let kind = entry.file_type().ok()?;
    (kind.is_file() || kind.is_dir()).then(|| entry.file_name())
}

/// Reads a file; `None` if it is not an image.
fn read(path: &Path) -> Result<Option<Bytes>> {
    let wrong = |error: std::io::Error| Error::invalid("it cannot be read").caused_by(error);
    let mut file = File::open(path).map_err(wrong)?;
    let mut bytes = Vec::new();
    file.by_ref().take(HEAD_BYTES).read_to_end(&mut bytes).map_err(wrong)?;
    let named = path.file_name().is_some_and(|name| looks_like_an_image(&name.to_string_lossy()));
    if !FileFormat::has_magic(&bytes) && !named {
        return Ok(None);
    }
    let rest = IMAGE_BYTES_MAX as u64 + 1 - bytes.len() as u64;
    file.take(rest).read_to_end(&mut bytes).map_err(wrong)?;
    if bytes.len() > IMAGE_BYTES_MAX {
        return Err(Error::too_large(format!("an image has at most {IMAGE_BYTES_MAX} bytes")));
    }
    Ok(Some(Bytes::from(bytes)))
}

#[cfg(test)]
mod tests {
    use base::ErrorKind;

    use super::*;

    #[test]
    fn a_long_path_is_cut_to_a_name() {
        let folder = Folder { root: "/images".into(), levels: Vec::new() };
        let long = format!("/images/{}/a.png", vec!["d".repeat(100); 9].join("/"));
        let name = folder.name(Path::new(&long));
        assert!(name.len() == 512 && long.ends_with(&name), "{name}");
        assert_eq!(folder.name(Path::new("/images/d/a.png")), "d/a.png");
    }

    #[test]
    fn a_walk_holds_names_of_the_current_directories_only() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("b/c")).unwrap();
        for name in ["a.png", "b/c/1.png", "b/d.png", "z.png"] {
            std::fs::write(dir.path().join(name), b"x").unwrap();
        }
        let mut folder = Folder::open(dir.path().to_str().unwrap()).unwrap();
        let mut found = Vec::new();
        while let Some(path) = folder.next_path() {
            if let SourceEntry::Image(image) = folder.visit(&path) {
                let names: usize = folder.levels.iter().map(|level| level.names.len()).sum();
                found.push((image.name, folder.levels.len(), names));
            }
        }
        let wanted = [("a.png", 1, 2), ("b/c/1.png", 3, 2), ("b/d.png", 2, 1), ("z.png", 1, 0)];
        let wanted = wanted.map(|(name, levels, names)| (name.to_owned(), levels, names));
        assert_eq!(found, wanted);
    }

    #[test]
    fn a_directory_with_too_many_entries_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        for number in 0..3 {
            std::fs::write(dir.path().join(format!("{number}.png")), b"x").unwrap();
        }
        let mut folder = Folder { root: dir.path().into(), levels: Vec::new() };
        assert!(folder.enter(dir.path(), 3).is_ok());
        let refused = folder.enter(dir.path(), 2).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::TooLarge);
    }
}
