//! Requests to a store for small objects, each with a time limit.

use std::time::{Duration, Instant};

use base::{Error, ErrorKind, Result};
use bytes::Bytes;
use object_store::path::Path as Key;
use object_store::{Error as StoreError, ObjectStoreExt, PutMode, PutOptions, PutPayload};

use crate::place::StorePlace;

/// Small objects of a store: records, lists, versions of a document.
#[derive(Clone, Debug)]
pub struct SmallObjects {
    place: StorePlace,
    /// Longest time of one request.
    limit: Duration,
}

impl SmallObjects {
    /// Creates the objects of `place`. Does not connect.
    pub fn new(place: StorePlace, limit: Duration) -> SmallObjects {
        SmallObjects { place, limit }
    }

    /// Returns the directory of the store.
    pub fn place(&self) -> &StorePlace {
        &self.place
    }

    /// Returns the key of `name` below the directory. `name` may have several levels.
    pub fn key(&self, name: &str) -> Key {
        self.place.key(name)
    }

    /// Creates an object. Returns false if the object exists.
    ///
    /// # Errors
    /// `FailedPrecondition` if the store cannot create an object only if it is absent. Otherwise
    /// the store's error. The object may have been created nevertheless.
    pub async fn create(&self, key: &Key, bytes: impl Into<PutPayload>) -> Result<bool> {
        let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        let put = self.place.objects().put_opts(key, bytes.into(), options);
        match self.within(put).await? {
            Ok(_) => Ok(true),
            Err(StoreError::AlreadyExists { .. } | StoreError::Precondition { .. }) => Ok(false),
            Err(StoreError::NotImplemented { .. } | StoreError::NotSupported { .. }) => {
                Err(Error::precondition(format!(
                    "{} cannot create an object only if it is absent; use S3, Google Cloud Storage, \
                     Azure Blob Storage or a directory",
                    self.place.shown()
                )))
            }
            Err(error) => Err(self.place.failed(error)),
        }
    }

    /// Does the same as [`SmallObjects::create`], and also returns true if the object is there with
    /// the same bytes. The client of a store repeats a request after an error of the server, and
    /// may then find its own object.
    ///
    /// # Errors
    /// As [`SmallObjects::create`].
    pub async fn create_own(&self, key: &Key, bytes: Vec<u8>) -> Result<bool> {
        if self.create(key, bytes.clone()).await? {
            return Ok(true);
        }
        match self.read(key, bytes.len() as u64).await {
            Ok(found) => Ok(found.is_some_and(|found| *found == *bytes)),
            // The object there is larger.
            Err(error) if error.kind() == ErrorKind::DataLoss => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Reads an object of at most `bytes_max` bytes. Returns `None` if it is not there.
    ///
    /// # Errors
    /// `DataLoss` for a larger object. Also the store's error.
    pub async fn read(&self, key: &Key, bytes_max: u64) -> Result<Option<Bytes>> {
        let read = async {
            let got = self.place.objects().get(key).await?;
            if got.meta.size <= bytes_max { got.bytes().await.map(Some) } else { Ok(None) }
        };
        match self.within(read).await? {
            Ok(Some(bytes)) => Ok(Some(bytes)),
            Ok(None) => Err(Error::data_loss(format!("object {key}: more than {bytes_max} bytes"))),
            Err(StoreError::NotFound { .. }) => Ok(None),
            Err(error) => Err(self.place.failed(error)),
        }
    }

    /// Removes an object if it is there.
    ///
    /// # Errors
    /// The store's error.
    pub async fn remove(&self, key: &Key) -> Result<()> {
        match self.within(self.place.objects().delete(key)).await? {
            Ok(()) | Err(StoreError::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.place.failed(error)),
        }
    }

    /// Returns the names of the directories in `directory`.
    ///
    /// # Errors
    /// The store's error.
    pub async fn directories(&self, directory: &str) -> Result<Vec<String>> {
        let prefix = self.key(directory);
        let listed = self.within(self.place.objects().list_with_delimiter(Some(&prefix))).await?;
        let listed = listed.map_err(|error| self.place.failed(error))?;
        let names = listed.common_prefixes.iter().filter_map(Key::filename);
        Ok(names.map(str::to_owned).collect())
    }

    /// Waits for a request, for the time limit at most.
    ///
    /// # Errors
    /// `Unavailable` after the time limit, even if a process that was stopped finds an answer when
    /// it continues. The store may have changed in the meantime.
    pub async fn within<T>(&self, request: impl Future<Output = T>) -> Result<T> {
        let began = Instant::now();
        match tokio::time::timeout(self.limit, request).await {
            Ok(answer) if began.elapsed() <= self.limit.saturating_mul(2) => Ok(answer),
            _ => Err(Error::unavailable(format!(
                "{}: no answer within {} s; the store may be unreachable or overloaded",
                self.place.shown(),
                self.limit.as_secs()
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use object_store::memory::InMemory;

    use super::*;

    #[tokio::test]
    async fn objects_are_created_once_and_read_within_their_size() {
        let place = StorePlace::new(Arc::new(InMemory::new()), "cluster", "memory");
        let objects = SmallObjects::new(place, Duration::from_secs(10));
        let key = objects.key("data/1/a");
        assert_eq!(objects.read(&key, 3).await.unwrap(), None);
        assert!(objects.create(&key, b"one".to_vec()).await.unwrap());
        assert!(!objects.create(&key, b"two".to_vec()).await.unwrap());
        assert_eq!(objects.read(&key, 3).await.unwrap().as_deref(), Some(&b"one"[..]));
        let error = objects.read(&key, 2).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::DataLoss, "{error}");
        assert_eq!(objects.directories("data").await.unwrap(), ["1"]);
        objects.remove(&key).await.unwrap();
        objects.remove(&key).await.unwrap();
        assert_eq!(objects.directories("data").await.unwrap(), [""; 0]);
    }

    #[tokio::test]
    async fn a_repeated_create_finds_its_own_object() {
        let place = StorePlace::new(Arc::new(InMemory::new()), "", "memory");
        let objects = SmallObjects::new(place, Duration::from_secs(10));
        let key = objects.key("a");
        assert!(objects.create_own(&key, b"one".to_vec()).await.unwrap());
        assert!(objects.create_own(&key, b"one".to_vec()).await.unwrap());
        for other in ["two", "on", "three"] {
            assert!(!objects.create_own(&key, other.into()).await.unwrap(), "{other}");
        }
    }

    #[tokio::test]
    async fn a_store_without_an_answer_is_unavailable() {
        let place = StorePlace::new(Arc::new(InMemory::new()), "", "memory");
        let objects = SmallObjects::new(place, Duration::ZERO);
        let error = objects.within(std::future::pending::<()>()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.message().contains("within 0 s"), "{error}");
    }

    #[tokio::test]
    async fn an_old_answer_does_not_count() {
        let place = StorePlace::new(Arc::new(InMemory::new()), "", "memory");
        let objects = SmallObjects::new(place, Duration::from_millis(1));
        // The process is stopped, and finds the answer when it continues.
        let stopped = async { std::thread::sleep(Duration::from_millis(20)) };
        let error = objects.within(stopped).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
    }
}
