//! A directory in an object store, opened from its URL.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base::{Error, ErrorKind, Result};
use engine::layout::{LayoutManifest, MANIFEST_BYTES_MAX, MANIFEST_NAME};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};
use tokio_stream::StreamExt;

use crate::listing::group;
use crate::store_error::{self, StoreRefusal};

/// Longest time until the next object of a listing. A listing of many objects takes longer, since
/// it has a request for each thousand of them.
const LIST_TIMEOUT: Duration = Duration::from_secs(60);

/// Maximum objects of a store of models, whose listing a server keeps in memory.
const OBJECTS_MAX: usize = 1 << 20;

/// Schemes of the URLs of stores.
pub const STORE_SCHEMES: [&str; 10] =
    ["s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "http", "https", "file"];

/// Returns true if `text` is a URL and not a path of this machine.
pub fn is_url(text: &str) -> bool {
    text.contains("://")
}

/// A directory in an object store.
#[derive(Clone, Debug)]
pub struct StorePlace {
    pub(crate) objects: Arc<dyn ObjectStore>,
    /// Prefix of its keys.
    pub(crate) prefix: Path,
    /// URL without query and password, for messages.
    shown: Arc<str>,
    /// Error if the store refuses or does not answer.
    refusal: StoreRefusal,
    /// Directory of a `file://` URL.
    local: Option<Arc<std::path::Path>>,
    /// True while a read of that directory has not ended.
    is_read: Arc<AtomicBool>,
}

/// Objects below a directory in a store, as versions of a model and as models of a root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlaceContent {
    /// Version numbers, complete or not, if the directory is a model.
    pub versions: BTreeSet<u64>,
    /// Names of models, if the directory is a root.
    pub models: BTreeSet<String>,
}

/// The manifest of a published version in a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredManifest {
    /// Checked content.
    pub layout: LayoutManifest,
    /// Length of its text.
    pub bytes: u64,
}

impl StorePlace {
    /// Opens the directory at `url`. `options` are names and values of the provider's variables
    /// (such as `aws_region`), in lower case. Does not connect.
    ///
    /// # Errors
    /// `InvalidArgument` for a URL that no store has. `FailedPrecondition` if this program has no
    /// support for the store.
    pub fn open(url: &str, options: &[(String, String)]) -> Result<StorePlace> {
        let wrong = |error: &dyn std::fmt::Display| {
            let url = without_secrets(url);
            Error::invalid(format!(
                "{url}: {error}; use s3://BUCKET/PATH, gs://BUCKET/PATH, az://CONTAINER/PATH, \
                 https://HOST/PATH or file:///PATH"
            ))
        };
        let parsed = url::Url::parse(url).map_err(|error| wrong(&error))?;
        if !STORE_SCHEMES.contains(&parsed.scheme()) {
            return Err(wrong(&format!(
                "\"{}\" is not a supported kind of store",
                parsed.scheme()
            )));
        }
        if cfg!(not(feature = "object-storage")) && parsed.scheme() != "file" {
            return Err(Error::precondition(format!(
                "{}: this program was built without object storage; build it with --features object-storage",
                redacted_url(&parsed)
            )));
        }
        install_tls();
        let mut options = options.to_vec();
        let plain = |(name, value): &(String, String)| {
            name.contains("endpoint") && value.starts_with("http://")
        };
        if parsed.scheme() == "http" || options.iter().any(plain) {
            options.push(("allow_http".to_owned(), "true".to_owned()));
        }
        let is_local = parsed.scheme() == "file";
        let local = is_local.then(|| parsed.to_file_path().ok()).flatten();
        let (store, prefix) = object_store::parse_url_opts(&parsed, options.iter().cloned())
            .map_err(|error| {
                // Errors of the library can repeat the URL.
                let error = error.to_string().replace(parsed.as_str(), &redacted_url(&parsed));
                wrong(&error)
            })?;
        // The library's client of a directory does not sync. A written object must survive a power
        // loss, since other writes name it.
        let objects: Arc<dyn ObjectStore> =
            if is_local { Arc::new(LocalFileSystem::new().with_fsync(true)) } else { store.into() };
        Ok(StorePlace {
            objects,
            prefix,
            shown: redacted_url(&parsed).into(),
            refusal: StoreRefusal::of(parsed.scheme(), &options),
            local: local.map(Into::into),
            is_read: Arc::default(),
        })
    }

    /// Wraps `objects`, whose keys begin with `prefix`.
    pub fn new(objects: Arc<dyn ObjectStore>, prefix: &str, shown: &str) -> StorePlace {
        StorePlace {
            objects,
            prefix: prefix.into(),
            shown: shown.into(),
            refusal: StoreRefusal {
                kind: ErrorKind::FailedPrecondition,
                remedy: "check the store",
            },
            local: None,
            is_read: Arc::default(),
        }
    }

    /// Returns the same place for requests of clients. If the store refuses the credentials, its
    /// error is `Unavailable`. The state of a collection is not the reason, and no client can
    /// correct the credentials.
    #[must_use]
    pub fn for_clients(self) -> StorePlace {
        let refusal = StoreRefusal { kind: ErrorKind::Unavailable, ..self.refusal };
        StorePlace { refusal, ..self }
    }

    /// Returns the URL without query and password.
    pub fn shown(&self) -> &str {
        &self.shown
    }

    /// Returns the client of the store.
    pub fn objects(&self) -> &Arc<dyn ObjectStore> {
        &self.objects
    }

    /// Returns the key of `name` below this directory. `name` may have several levels.
    pub fn key(&self, name: &str) -> Path {
        // The parts of the prefix are those of the URL, which must not be encoded again.
        name.split('/').fold(self.prefix.clone(), |key, part| key.join(part))
    }

    /// Returns the directory `name` of this one.
    #[must_use]
    pub fn below(&self, name: &str) -> StorePlace {
        let local = self.local.as_ref().map(|dir| dir.join(name).into());
        StorePlace { prefix: self.key(name), local, ..self.clone() }
    }

    /// Lists all objects below this directory.
    ///
    /// # Errors
    /// Returns the store's error, with a remedy.
    pub async fn list(&self) -> Result<Vec<ObjectMeta>> {
        self.list_at_most(usize::MAX).await
    }

    /// Lists the objects of this place. It is an error if there are more than `objects_max`.
    async fn list_at_most(&self, objects_max: usize) -> Result<Vec<ObjectMeta>> {
        let prefix = (!self.prefix.as_ref().is_empty()).then_some(&self.prefix);
        let mut objects = self.objects.list(prefix);
        let mut found = Vec::new();
        loop {
            let next = tokio::time::timeout(LIST_TIMEOUT, objects.next()).await;
            let next = next.map_err(|_| self.no_answer_error())?;
            let Some(object) = next else { return Ok(found) };
            if found.len() == objects_max {
                return Err(Error::precondition(format!(
                    "{}: more than {objects_max} objects; name the directory of the models, or of one model",
                    self.shown
                )));
            }
            found.push(object.map_err(|error| self.failed(error))?);
        }
    }

    /// Lists a store of models. Requires that the directory of a `file://` URL exists. The listing
    /// of a missing directory is empty, which would remove all copies. Its file system may not be
    /// mounted.
    ///
    /// # Errors
    /// As [`StorePlace::list`], `NotFound` or `InvalidArgument` if there is no directory, and
    /// `FailedPrecondition` for more than [`OBJECTS_MAX`] objects.
    pub(crate) async fn list_existing(&self) -> Result<Vec<ObjectMeta>> {
        self.read_directory().await?;
        let found = self.list_at_most(OBJECTS_MAX).await?;
        if found.is_empty() {
            self.read_directory().await?;
        }
        Ok(found)
    }

    /// Checks that the store does not have the object `key` any more, since a listing has no object
    /// at all. The page of a proxy that answers in place of the store reads like such a listing.
    ///
    /// # Errors
    /// `Unavailable` unless the store answers that it does not have the object.
    pub(crate) async fn confirm_removed(&self, key: &Path) -> Result<()> {
        let head = tokio::time::timeout(LIST_TIMEOUT, self.objects.head(key)).await;
        let cause = match head.map_err(|_| self.no_answer_error())? {
            Err(object_store::Error::NotFound { .. }) => return Ok(()),
            Err(error) => {
                format!("the store does not confirm it: {}", self.failed(error).message())
            }
            Ok(_) => "the store has it".to_owned(),
        };
        Err(Error::unavailable(format!(
            "{}: its listing lacks \"{key}\" and all other objects, but {cause}; check if a proxy \
             answers in place of the store",
            self.shown
        )))
    }

    /// Reads the directory of a `file://` URL on a thread of its own. If its file system is a mount
    /// that does not answer, one thread waits for it, and not one more for each listing.
    async fn read_directory(&self) -> Result<()> {
        let Some(dir) = self.local.clone() else { return Ok(()) };
        if self.is_read.swap(true, Ordering::SeqCst) {
            return Err(self.no_answer_error());
        }
        let is_read = self.is_read.clone();
        let read = tokio::task::spawn_blocking(move || {
            let read = std::fs::read_dir(&dir).map(drop);
            is_read.store(false, Ordering::SeqCst);
            read.map_err(|error| (Error::io(&dir, &error).kind(), error))
        });
        let read =
            tokio::time::timeout(LIST_TIMEOUT, read).await.map_err(|_| self.no_answer_error())?;
        let read = read.map_err(|error| Error::internal("a listing").caused_by(error))?;
        read.map_err(|(kind, error)| {
            Error::new(kind, format!("{}: {error}; {}", self.shown, self.refusal.remedy))
        })
    }

    /// Returns the error for a store that did not answer in time.
    fn no_answer_error(&self) -> Error {
        Error::unavailable(format!(
            "{}: no answer within {} s; {}",
            self.shown,
            LIST_TIMEOUT.as_secs(),
            self.refusal.remedy
        ))
    }

    /// Lists the versions and the models below this directory. Blocks the thread.
    ///
    /// # Errors
    /// Returns the store's error, with a remedy.
    pub fn content(&self) -> Result<PlaceContent> {
        let objects = block_on(self.list())?;
        let versions = |(_, model): (_, crate::listing::RemoteModel)| model.versions.into_keys();
        let as_model = group(&objects, &self.prefix, Some("")).models;
        let as_root = group(&objects, &self.prefix, None).models;
        Ok(PlaceContent {
            versions: as_model.into_iter().flat_map(versions).collect(),
            models: as_root.into_keys().collect(),
        })
    }

    /// Reads the manifest of this directory, which is a published version. Blocks the thread.
    ///
    /// # Errors
    /// `NotFound` without a manifest. Otherwise the errors of the store and of the manifest.
    pub fn manifest(&self) -> Result<StoredManifest> {
        block_on(async {
            let key = self.key(MANIFEST_NAME);
            let got = self.objects.get(&key).await.map_err(|error| match error {
                object_store::Error::NotFound { .. } => Error::not_found(format!(
                    "{}: holds no {MANIFEST_NAME}, so it is not a published version; millpond publish makes one",
                    self.shown
                )),
                error => self.failed(error),
            })?;
            if got.meta.size > MANIFEST_BYTES_MAX {
                return Err(Error::data_loss(format!(
                    "{}: {MANIFEST_NAME} is larger than a manifest can be",
                    self.shown
                )));
            }
            let bytes = got.bytes().await.map_err(|error| self.failed(error))?;
            let layout =
                LayoutManifest::parse(&bytes).map_err(|error| error.context(&self.shown))?;
            Ok(StoredManifest { layout, bytes: bytes.len() as u64 })
        })
    }

    /// Converts an error of the store, and adds a remedy.
    pub fn failed(&self, error: object_store::Error) -> Error {
        store_error::convert(error, &self.shown, self.refusal)
    }

    /// Converts an error of reading the file `path` of a version, and adds a remedy.
    pub(crate) fn failed_at(&self, path: &str, error: object_store::Error) -> Error {
        store_error::convert(error, &format!("{}: {path}", self.shown), self.refusal)
    }
}

/// Runs `work` on this thread, which blocks.
///
/// # Errors
/// `ResourceExhausted` if the system has no room for a runtime. Also the errors of `work`.
pub fn block_on<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let failed = |error| Error::exhausted("a runtime for the store").caused_by(error);
    runtime.map_err(failed)?.block_on(work)
}

/// Returns the text of a URL, valid or not, without query and password.
pub fn without_secrets(text: &str) -> String {
    if let Ok(url) = url::Url::parse(text) {
        return redacted_url(&url);
    }
    let before_query = text.find(['?', '#']).map_or(text, |at| &text[..at]);
    // A password can have a slash, which ends the host of an invalid URL too early.
    let password = before_query.find("://").and_then(|at| {
        let user = at + "://".len();
        let end = before_query.rfind('@').filter(|&end| end > user)?;
        let start = before_query[user..end].find(':')?;
        Some(user + start..end)
    });
    match password {
        Some(range) => format!("{}{}", &before_query[..range.start], &before_query[range.end..]),
        None => before_query.to_owned(),
    }
}

/// Returns `url` without query and password, for messages.
fn redacted_url(url: &url::Url) -> String {
    let mut url = url.clone();
    url.set_query(None);
    let _ = url.set_password(None);
    url.to_string().trim_end_matches('/').to_owned()
}

#[cfg(feature = "object-storage")]
fn install_tls() {
    // reqwest needs a provider and brings none here. An error means that one is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

#[cfg(not(feature = "object-storage"))]
fn install_tls() {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_open_without_a_connection() {
        let dir = tempfile::tempdir().unwrap();
        let url = format!("file://{}/models/", dir.path().display());
        let place = StorePlace::open(&url, &[]).unwrap();
        assert_eq!(place.shown(), url.trim_end_matches('/'));
        assert!(place.key("a/1/model.onnx").as_ref().ends_with("/models/a/1/model.onnx"));
        let error = StorePlace::open("ftp://host/models", &[]).unwrap_err();
        assert!(
            error.message().contains("\"ftp\" is not a supported kind of store; use s3://"),
            "{error}"
        );
    }

    #[test]
    fn objects_of_a_directory_are_synced() {
        let place = StorePlace::open("file:///models", &[]).unwrap();
        let client = format!("{:?}", place.objects);
        assert!(client.contains("fsync: true"), "{client}");
    }

    #[test]
    fn keys_begin_with_the_prefix_of_the_url() {
        let place = StorePlace::open("file:///models/~me", &[]).unwrap();
        assert_eq!(place.key("a/1/..").as_ref(), "models/~me/a/1/%2E%2E");
        assert!(place.key("a").prefix_matches(&place.prefix));
    }

    #[test]
    fn a_listing_has_a_maximum_of_objects() {
        let place =
            StorePlace::new(Arc::new(object_store::memory::InMemory::new()), "m", "mem://m");
        let listed = |objects_max| {
            block_on(async {
                for name in ["1/a", "1/b", "2/a"] {
                    let put = place.objects.put(&place.key(name), "x".into()).await;
                    put.map_err(|error| place.failed(error))?;
                }
                place.list_at_most(objects_max).await
            })
        };
        assert_eq!(listed(3).unwrap().len(), 3);
        let error = listed(2).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::FailedPrecondition);
        assert!(error.message().starts_with("mem://m: more than 2 objects; "), "{error}");
    }

    #[test]
    fn one_read_at_most_waits_for_a_directory() {
        let dir = tempfile::tempdir().unwrap();
        let place = StorePlace::open(&format!("file://{}", dir.path().display()), &[]).unwrap();
        assert!(block_on(place.list_existing()).unwrap().is_empty());
        // A mount that does not answer: an earlier read has not ended.
        place.is_read.store(true, Ordering::SeqCst);
        let error = block_on(place.list_existing()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.message().contains("no answer within 60 s"), "{error}");
        place.is_read.store(false, Ordering::SeqCst);
        assert!(block_on(place.list_existing()).unwrap().is_empty());
    }

    #[test]
    fn secrets_of_a_url_are_not_shown() {
        let url = url::Url::parse("https://user:secret@host/models?sig=secret").unwrap();
        assert!(!redacted_url(&url).contains("secret"), "{}", redacted_url(&url));
        for (wrong, without) in [
            ("ftp://user:secret@host/models", "ftp://user@host/models"),
            ("https://user:secret@host:99999/m?sig=secret", "https://user@host:99999/m"),
            ("https://key:a/secret@host/m", "https://key@host/m"),
            ("s3://my bucket/a@b:c", "s3://my bucket/a@b:c"),
            ("words?sig=secret", "words"),
            ("file://host/models?sig=secret", "file://host/models"),
        ] {
            assert_eq!(without_secrets(wrong), without);
            let error = StorePlace::open(wrong, &[]).unwrap_err();
            assert!(error.message().starts_with(&format!("{without}: ")), "{error}");
            assert!(!error.message().contains("secret"), "{error}");
        }
    }

    #[test]
    fn a_full_directory_has_its_own_remedy() {
        let place = StorePlace::new(Arc::new(object_store::memory::InMemory::new()), "", "/store");
        for kind in [std::io::ErrorKind::StorageFull, std::io::ErrorKind::QuotaExceeded] {
            let source = Box::new(std::io::Error::from(kind));
            let full = place.failed(object_store::Error::Generic { store: "file", source });
            assert_eq!(full.kind(), ErrorKind::Unavailable, "the same request may succeed later");
            assert!(full.message().ends_with("is full; free space on it"), "{full}");
        }
        let source = Box::new(std::io::Error::from(std::io::ErrorKind::ConnectionRefused));
        let other = place.failed(object_store::Error::Generic { store: "file", source });
        assert!(other.message().ends_with("unreachable or overloaded"), "{other}");
    }

    #[test]
    fn refusals_name_the_variables() {
        let denied =
            || object_store::Error::PermissionDenied { path: "p".to_owned(), source: "403".into() };
        let place = StorePlace {
            refusal: StoreRefusal::of("s3", &[]),
            ..StorePlace::new(Arc::new(object_store::memory::InMemory::new()), "", "s3://b")
        };
        let error = place.failed(denied());
        assert_eq!(error.kind(), ErrorKind::FailedPrecondition);
        assert!(error.message().contains("no credentials are set: set AWS_ACCESS_KEY_ID"));
        let for_client = place.for_clients().below("a").failed(denied());
        assert_eq!(for_client.kind(), ErrorKind::Unavailable);
        assert_eq!(for_client.message(), error.message());
        let key = ("aws_access_key_id".to_owned(), "k".to_owned());
        assert!(StoreRefusal::of("s3", &[key]).remedy.contains("s3:ListBucket"));
    }
}
