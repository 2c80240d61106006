//! External files of a model.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use base::{Error, Result};

use super::source::{COPY_BYTES, WindowedFile};
use super::tensor::ExternalLocation;

/// External files of a model, which must be in the model's directory. So publishing a model reads
/// no file that its author could not see.
pub(super) struct ExternalFiles {
    dir: PathBuf,
    roots: ExternalRoots,
    known: HashMap<Vec<u8>, (PathBuf, u64)>,
}

/// Directories that may contain files after links are resolved. These are the model's directory,
/// and the directory of the model's own file if that is a link. Model caches link every file of a
/// model into one store.
#[derive(Clone, Debug)]
pub(super) struct ExternalRoots(Vec<PathBuf>);

impl ExternalRoots {
    fn contain(&self, real: &Path) -> bool {
        self.0.iter().any(|root| real.starts_with(root))
    }

    /// Opens the external file at `path`, which was found before.
    ///
    /// # Errors
    /// `InvalidArgument` if the opened file is not in these directories: a link may have taken its
    /// place. The errors of opening it.
    pub(super) fn open(&self, path: &Path, direct: bool) -> Result<WindowedFile> {
        let file = WindowedFile::open(path, COPY_BYTES, direct)?;
        if self.contain(&file.real_path()?) { Ok(file) } else { Err(is_outside(path)) }
    }
}

fn is_outside(path: &Path) -> Error {
    Error::invalid(format!(
        "external data in \"{}\" is a link out of the model's directory; copy the file there",
        path.display()
    ))
}

impl ExternalFiles {
    /// Prepares to find files beside `model`. `opened` is the path of the opened model, without
    /// links, if it is known.
    pub(super) fn beside(model: &Path, opened: Option<&Path>) -> Result<ExternalFiles> {
        let dir = match model.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
            _ => PathBuf::from("."),
        };
        let real_dir = dir.canonicalize().map_err(|e| Error::io(&dir, &e))?;
        let roots = [Some(real_dir.as_path()), opened.and_then(Path::parent)];
        let roots = ExternalRoots(roots.into_iter().flatten().map(Path::to_owned).collect());
        Ok(ExternalFiles { dir, roots, known: HashMap::new() })
    }

    /// Returns the directories of the files.
    pub(super) fn roots(&self) -> &ExternalRoots {
        &self.roots
    }

    /// Returns the file and the range of `wanted` bytes that `location` names.
    pub(super) fn resolve(
        &mut self,
        location: &ExternalLocation,
        wanted: u64,
    ) -> Result<(PathBuf, Range<u64>)> {
        let (path, length) = match self.known.get(&location.path) {
            Some(known) => known.clone(),
            None => {
                let found = self.find(&location.path)?;
                self.known.insert(location.path.clone(), found.clone());
                found
            }
        };
        // The length is optional. Other tensors may follow in the file.
        let given = location.length.unwrap_or(wanted);
        if given != wanted {
            return Err(Error::data_loss(format!(
                "{given} bytes at offset {} of {}, type and shape take {wanted}",
                location.offset,
                path.display()
            )));
        }
        match location.offset.checked_add(given) {
            Some(end) if end <= length => Ok((path, location.offset..end)),
            _ => Err(Error::data_loss(format!(
                "offset {} and length {given} lie outside {}, which has {length} bytes",
                location.offset,
                path.display()
            ))),
        }
    }

    /// Returns the real path of the file at `location`, and its length in bytes.
    ///
    /// # Errors
    /// `InvalidArgument` for a file outside of the permitted directories or not regular; I/O
    /// errors.
    fn find(&self, location: &[u8]) -> Result<(PathBuf, u64)> {
        let relative = Path::new(OsStr::from_bytes(location));
        let plain = relative
            .components()
            .all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
        if !plain || location.contains(&0) {
            return Err(Error::invalid(format!(
                "external data in \"{}\": only files below the model's own directory are read",
                relative.display()
            )));
        }
        let path = self.dir.join(relative);
        let real = path.canonicalize().map_err(|e| Error::io(&path, &e))?;
        if !self.roots.contain(&real) {
            return Err(is_outside(relative));
        }
        let meta = std::fs::metadata(&real).map_err(|e| Error::io(&path, &e))?;
        if !meta.is_file() {
            return Err(Error::invalid(format!("{}: not a regular file", path.display())));
        }
        Ok((real, meta.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::ErrorKind;

    fn at(path: &str, offset: u64, length: Option<u64>) -> ExternalLocation {
        ExternalLocation { path: path.as_bytes().to_vec(), offset, length }
    }

    fn beside(model: &Path) -> ExternalFiles {
        ExternalFiles::beside(model, Some(&model.canonicalize().unwrap())).unwrap()
    }

    /// The writer of a model may change its links at any time.
    #[test]
    fn a_link_in_the_place_of_a_found_file_is_not_read() {
        let outer = tempfile::tempdir().unwrap();
        let dir = outer.path().join("model");
        std::fs::create_dir(&dir).unwrap();
        for file in ["model/model.onnx", "model/data", "model/more", "secret"] {
            std::fs::write(outer.path().join(file), [7u8; 100]).unwrap();
        }
        let mut files = beside(&dir.join("model.onnx"));
        let (path, range) = files.resolve(&at("data", 0, None), 100).unwrap();
        let open = |files: &ExternalFiles| files.roots().open(&path, false).map(drop);
        open(&files).unwrap();
        for (target, kind) in [("../secret", Some(ErrorKind::InvalidArgument)), ("more", None)] {
            std::fs::remove_file(dir.join("data")).unwrap();
            std::os::unix::fs::symlink(target, dir.join("data")).unwrap();
            assert_eq!(open(&files).err().map(|error| error.kind()), kind, "{target}");
        }
        assert_eq!(range, 0..100);
    }

    #[test]
    fn only_files_inside_are_found() {
        let outer = tempfile::tempdir().unwrap();
        let dir = outer.path().join("model");
        std::fs::create_dir_all(dir.join("sub")).unwrap();
        std::fs::write(dir.join("model.onnx"), b"").unwrap();
        std::fs::write(dir.join("sub/data"), [0u8; 100]).unwrap();
        std::fs::write(outer.path().join("secret"), [0u8; 100]).unwrap();
        std::os::unix::fs::symlink("../secret", dir.join("link")).unwrap();
        std::os::unix::fs::symlink("sub/data", dir.join("inner")).unwrap();
        let mut files = beside(&dir.join("model.onnx"));
        assert_eq!(files.resolve(&at("./sub/data", 4, Some(96)), 96).unwrap().1, 4..100);
        assert_eq!(files.resolve(&at("inner", 90, None), 10).unwrap().1, 90..100);
        assert_eq!(files.resolve(&at("inner", 4, None), 10).unwrap().1, 4..14);
        let absolute = outer.path().join("secret");
        for (location, kind) in [
            (at("../secret", 0, None), ErrorKind::InvalidArgument),
            (at("sub/../../secret", 0, None), ErrorKind::InvalidArgument),
            (at(absolute.to_str().unwrap(), 0, None), ErrorKind::InvalidArgument),
            (at("link", 0, None), ErrorKind::InvalidArgument),
            (at("sub", 0, None), ErrorKind::InvalidArgument),
            (at("sub/data\0", 0, None), ErrorKind::InvalidArgument),
            (at("absent", 0, None), ErrorKind::NotFound),
            (at("sub/data", 1, Some(100)), ErrorKind::DataLoss),
            (at("sub/data", u64::MAX, Some(100)), ErrorKind::DataLoss),
            (at("sub/data", 0, Some(99)), ErrorKind::DataLoss),
            (at("sub/data", 1, None), ErrorKind::DataLoss),
        ] {
            assert_eq!(files.resolve(&location, 100).unwrap_err().kind(), kind, "{location:?}");
        }
    }

    #[test]
    fn a_store_of_links_is_understood() {
        let outer = tempfile::tempdir().unwrap();
        let (blobs, snapshot) = (outer.path().join("blobs"), outer.path().join("snapshots/1"));
        std::fs::create_dir_all(&blobs).unwrap();
        std::fs::create_dir_all(&snapshot).unwrap();
        for name in ["model.onnx", "model.onnx_data"] {
            std::fs::write(blobs.join(name), [0u8; 8]).unwrap();
            std::os::unix::fs::symlink(blobs.join(name), snapshot.join(name)).unwrap();
        }
        let mut files = beside(&snapshot.join("model.onnx"));
        assert_eq!(files.resolve(&at("model.onnx_data", 0, None), 8).unwrap().1, 0..8);
    }
}
