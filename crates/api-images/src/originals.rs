//! Images as they were sent: in a directory, or wherever `object_store` can reach.
//!
//! An original's key is made of its own hash, so writing it twice changes nothing, and one whose
//! point never came to be hinders nobody: the next upload of the same image takes its place.

use std::path::Path as FilePath;
use std::sync::{Arc, OnceLock};

use base::{Error, ErrorKind, Result};
use bytes::Bytes;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutPayload};
use tokio_stream::StreamExt;

use super::config::ImagesConfig;

/// The directory beside the collections, where no other place is named. The dot keeps it apart from
/// collections.
const DIRECTORY: &str = ".originals";

/// Where originals are.
pub(crate) struct Originals {
    config: ImagesConfig,
    place: OnceLock<Place>,
}

#[derive(Clone)]
struct Place {
    store: Arc<dyn ObjectStore>,
    /// What keys begin with.
    prefix: Path,
}

impl Originals {
    pub(crate) fn new(config: ImagesConfig) -> Originals {
        Originals { config, place: OnceLock::new() }
    }

    /// Keeps an image; durable once this returns.
    ///
    /// # Errors
    /// Those of the place.
    pub(crate) async fn put(&self, key: &str, bytes: Bytes) -> Result<()> {
        let place = self.place()?;
        let put = place.store.put(&place.path(key)?, PutPayload::from_bytes(bytes)).await;
        put.map(drop).map_err(|error| failed(&error))
    }

    /// An image.
    ///
    /// # Errors
    /// `NotFound` where it is not there, otherwise those of the place.
    pub(crate) async fn get(&self, key: &str) -> Result<Bytes> {
        let place = self.place()?;
        let got = place.store.get(&place.path(key)?).await.map_err(|error| failed(&error))?;
        got.bytes().await.map_err(|error| failed(&error))
    }

    /// Removes an image, if it is there.
    ///
    /// # Errors
    /// Those of the place.
    pub(crate) async fn delete(&self, key: &str) -> Result<()> {
        let place = self.place()?;
        match place.store.delete(&place.path(key)?).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(failed(&error)),
        }
    }

    /// Removes all images of a space.
    ///
    /// # Errors
    /// Those of the place.
    pub(crate) async fn delete_all(&self, space: &str) -> Result<()> {
        let place = self.place()?;
        let prefix = place.path(space)?;
        let mut objects = place.store.list(Some(&prefix));
        while let Some(object) = objects.next().await {
            let object = object.map_err(|error| failed(&error))?;
            place.store.delete(&object.location).await.map_err(|error| failed(&error))?;
        }
        Ok(())
    }

    fn place(&self) -> Result<&Place> {
        if let Some(place) = self.place.get() {
            return Ok(place);
        }
        // What cannot be opened now is tried again by the next caller.
        let place = open(&self.config)?;
        Ok(self.place.get_or_init(|| place))
    }
}

impl Place {
    fn path(&self, key: &str) -> Result<Path> {
        let parts = self.prefix.parts().map(|part| part.as_ref().to_owned());
        let whole: Vec<String> = parts.chain(key.split('/').map(str::to_owned)).collect();
        Ok(whole.iter().map(String::as_str).collect())
    }
}

fn open(config: &ImagesConfig) -> Result<Place> {
    match &config.originals {
        Some(url) if url.contains("://") => remote(url, config),
        Some(directory) => local(FilePath::new(directory)),
        None => {
            let directory = config.directory.as_deref().ok_or_else(|| {
                Error::precondition(
                    "this server has no place for images; start it with --originals DIR or URL",
                )
            })?;
            local(&directory.join(DIRECTORY))
        }
    }
}

fn local(directory: &FilePath) -> Result<Place> {
    os::private::create_dir_all(directory).map_err(|error| Error::io(directory, &error))?;
    let store = LocalFileSystem::new_with_prefix(directory).map_err(|error| failed(&error))?;
    // An acknowledged image survives a loss of power.
    let store = store.with_fsync(true).with_automatic_cleanup(true);
    Ok(Place { store: Arc::new(store), prefix: Path::default() })
}

#[cfg(feature = "object-storage")]
fn remote(url: &str, config: &ImagesConfig) -> Result<Place> {
    let wrong =
        |error: &dyn std::fmt::Display| Error::invalid(format!("--originals {url}: {error}"));
    let parsed = url::Url::parse(url).map_err(|error| wrong(&error))?;
    // reqwest asks for a provider and brings none here; an error only says that there is one
    // already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let options = config.originals_options.iter().cloned();
    let (store, prefix) =
        object_store::parse_url_opts(&parsed, options).map_err(|error| wrong(&error))?;
    Ok(Place { store: store.into(), prefix })
}

#[cfg(not(feature = "object-storage"))]
fn remote(url: &str, _config: &ImagesConfig) -> Result<Place> {
    Err(Error::precondition(format!(
        "--originals {url}: this program was built without object storage; build it with --features object-storage, or name a \
         directory"
    )))
}

fn failed(error: &object_store::Error) -> Error {
    let kind = match error {
        object_store::Error::NotFound { .. } => ErrorKind::NotFound,
        object_store::Error::PermissionDenied { .. }
        | object_store::Error::Unauthenticated { .. } => ErrorKind::FailedPrecondition,
        error if is_full(error) => {
            return Error::storage_full(format!(
                "the images' place is full: {error}; make room, or give it another disk"
            ));
        }
        _ => ErrorKind::Unavailable,
    };
    Error::new(kind, format!("the images' place: {error}"))
}

/// Returns whether an error stems from a disk or a quota that is used up.
fn is_full(error: &object_store::Error) -> bool {
    use std::io::{Error as IoError, ErrorKind::QuotaExceeded, ErrorKind::StorageFull};
    let causes =
        std::iter::successors(Some(error as &(dyn std::error::Error + 'static)), |error| {
            error.source()
        });
    causes
        .filter_map(|cause| cause.downcast_ref::<IoError>())
        .any(|cause| matches!(cause.kind(), StorageFull | QuotaExceeded))
}
