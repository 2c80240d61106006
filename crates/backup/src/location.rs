//! A file at a location: a path of this machine, or a URL.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::pin::Pin;

use base::{Error, Result};
use bytes::{Buf, Bytes};
use model_store::{StorePlace, without_secrets};
use object_store::ObjectStoreExt;
use tokio::runtime::Runtime;
use tokio_stream::{Stream, StreamExt};

/// Longest time of a download.
const DOWNLOAD_TIME_MAX: &str = "24 hours";

type Pieces = Pin<Box<dyn Stream<Item = object_store::Result<Bytes>> + Send>>;

/// Reader of a file at a location. Blocks the thread.
pub enum LocationReader {
    /// File of this machine.
    File(File),
    /// Object of a store or file of a server.
    Remote(Box<RemoteReader>),
}

/// Reader of a file that arrives from the network.
pub struct RemoteReader {
    runtime: Runtime,
    pieces: Pieces,
    current: Bytes,
}

impl std::fmt::Debug for RemoteReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RemoteReader").finish_non_exhaustive()
    }
}

/// Opens the file at `location`: `file:///PATH`, `http://HOST/PATH`, or a URL of a store.
/// `options` are names and values of the provider's variables, in lower case.
///
/// # Errors
/// `InvalidArgument` for another location and for a file of this machine that is not a regular one,
/// `NotFound` if there is no file; otherwise the error of the file system or of the store.
pub fn open_location(location: &str, options: &[(String, String)]) -> Result<LocationReader> {
    if let Some(path) = location.strip_prefix("file://") {
        return Ok(LocationReader::File(open_file(Path::new(path))?));
    }
    let wrong = || {
        Error::invalid(format!(
            "{:?} is not a location of a snapshot; use file:///PATH, http://HOST/PATH or a URL of a store",
            without_secrets(location)
        ))
    };
    let (directory, name) = location.rsplit_once('/').ok_or_else(wrong)?;
    if !directory.contains("://") || name.is_empty() {
        return Err(wrong());
    }
    let mut options = options.to_vec();
    options.push(("timeout".to_owned(), DOWNLOAD_TIME_MAX.to_owned()));
    let place = StorePlace::open(directory, &options)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Error::exhausted("a runtime").caused_by(error))?;
    let got = runtime.block_on(async { place.objects().get(&place.key(name)).await });
    let pieces = got.map_err(|error| place.failed(error))?.into_stream();
    let reader = RemoteReader { runtime, pieces: Box::pin(pieces), current: Bytes::new() };
    Ok(LocationReader::Remote(Box::new(reader)))
}

/// Opens a regular file. Opening a named pipe would wait for its writer without a limit, and a
/// device can have bytes without end.
///
/// # Errors
/// `InvalidArgument` for another kind of file, and for a path that cannot be one; the errors of the
/// file system.
fn open_file(path: &Path) -> Result<File> {
    let failed = |error: io::Error| match error.kind() {
        // A NUL byte; or too many bytes.
        io::ErrorKind::InvalidInput | io::ErrorKind::InvalidFilename => {
            Error::invalid(format!("the path of the file of a snapshot: {error}"))
        }
        _ => Error::io(path, &error),
    };
    if !std::fs::metadata(path).map_err(failed)?.is_file() {
        return Err(Error::invalid(format!(
            "{}: it is not a regular file; use the path of the file of a snapshot",
            path.display()
        )));
    }
    File::open(path).map_err(failed)
}

impl Read for RemoteReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.current.is_empty() {
            match self.runtime.block_on(self.pieces.next()) {
                None => return Ok(0),
                Some(piece) => self.current = piece.map_err(download_ended_early)?,
            }
        }
        let count = self.current.len().min(buffer.len());
        self.current.copy_to_slice(&mut buffer[..count]);
        Ok(count)
    }
}

/// Returns the error of a download that ended early. The reader of the archive finds the error of
/// this program in it.
fn download_ended_early(error: object_store::Error) -> io::Error {
    let message = format!("the download of the snapshot broke off: {error}");
    io::Error::other(Error::unavailable(message).with_source(error))
}

impl Read for LocationReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            LocationReader::File(file) => file.read(buffer),
            LocationReader::Remote(remote) => remote.read(buffer),
        }
    }
}

#[cfg(test)]
mod tests {
    use base::ErrorKind;

    use super::*;

    #[test]
    fn secrets_of_a_location_are_not_shown() {
        for location in ["http://user:secret@host", "host/a?sig=secret", "ftp://user:secret@host/a"]
        {
            let error = open_location(location, &[]).err().unwrap();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
            assert!(!error.message().contains("secret"), "{error}");
        }
    }

    #[test]
    fn only_regular_files_are_opened() {
        let directory = tempfile::tempdir().unwrap();
        let error = |path: &Path| {
            open_location(&format!("file://{}", path.display()), &[]).err().map(|it| it.kind())
        };
        let file = directory.path().join("a.snapshot");
        std::fs::write(&file, b"x").unwrap();
        assert_eq!(error(&file), None);
        assert_eq!(error(&directory.path().join("missing")), Some(ErrorKind::NotFound));
        for other in [directory.path(), Path::new("/dev/zero")] {
            assert_eq!(error(other), Some(ErrorKind::InvalidArgument), "{}", other.display());
        }
        for name in ["a\0b".to_owned(), "n".repeat(5000)] {
            assert_eq!(error(&directory.path().join(name)), Some(ErrorKind::InvalidArgument));
        }
    }
}
