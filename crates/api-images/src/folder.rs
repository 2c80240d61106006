//! A directory of the server's machine, which only administrators may read. Links are not followed.

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
    /// Paths that are still to be read, last first, with their depths.
    waiting: Vec<(PathBuf, usize)>,
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
        let mut folder = Folder { root: root.clone(), waiting: Vec::new() };
        folder.enter(&root, 0, ENTRIES_MAX)?;
        Ok(folder)
    }

    fn enter(&mut self, directory: &Path, depth: usize, entries_max: usize) -> Result<()> {
        let wrong = |error: std::io::Error| {
            Error::invalid(directory.display().to_string()).caused_by(error)
        };
        let mut paths = Vec::new();
        for (number, entry) in std::fs::read_dir(directory).map_err(wrong)?.enumerate() {
            if number >= entries_max {
                return Err(Error::too_large(format!(
                    "{}: a directory has at most {entries_max} entries; divide it",
                    directory.display()
                )));
            }
            paths.extend(wanted(&entry.map_err(wrong)?));
        }
        paths.sort_unstable_by(|a, b| b.cmp(a));
        self.waiting.extend(paths.into_iter().map(|path| (path, depth)));
        Ok(())
    }

    fn name(&self, path: &Path) -> String {
        let name = path.strip_prefix(&self.root).unwrap_or(path).to_string_lossy();
        end_of_name(name.into_owned())
    }

    fn visit(&mut self, path: &Path, depth: usize) -> SourceEntry {
        let name = self.name(path);
        if path.is_dir() {
            if depth >= DEPTH_MAX {
                return SourceEntry::Failed(
                    name,
                    Error::invalid(format!(
                        "directories are nested deeper than {DEPTH_MAX} levels; send this one as a \
                         folder of its own"
                    )),
                );
            }
            return match self.enter(path, depth + 1, ENTRIES_MAX) {
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
        let (path, depth) = folder.waiting.pop()?;
        Some(folder.visit(&path, depth))
    }
}

/// Returns the path of a regular file or a directory; `None` for links and devices.
fn wanted(entry: &DirEntry) -> Option<PathBuf> {
    let kind = entry.file_type().ok()?;
    (kind.is_file() || kind.is_dir()).then(|| entry.path())
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
        let folder = Folder { root: "/images".into(), waiting: Vec::new() };
        let long = format!("/images/{}/a.png", vec!["d".repeat(100); 9].join("/"));
        let name = folder.name(Path::new(&long));
        assert!(name.len() == 512 && long.ends_with(&name), "{name}");
        assert_eq!(folder.name(Path::new("/images/d/a.png")), "d/a.png");
    }

    #[test]
    fn a_directory_with_too_many_entries_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        for number in 0..3 {
            std::fs::write(dir.path().join(format!("{number}.png")), b"x").unwrap();
        }
        let mut folder = Folder { root: dir.path().into(), waiting: Vec::new() };
        assert!(folder.enter(dir.path(), 0, 3).is_ok());
        let refused = folder.enter(dir.path(), 0, 2).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::TooLarge);
    }
}
