//! A directory in an object store, opened from its URL, and the errors of stores with remedies.

use std::sync::Arc;
use std::time::Duration;

use base::{Error, ErrorKind, Result};
use engine::layout::{LayoutManifest, MANIFEST_BYTES_MAX, MANIFEST_NAME};
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};
use tokio_stream::StreamExt;

/// Longest time of a listing.
const LIST_TIMEOUT: Duration = Duration::from_secs(60);

/// Settings of which one must be present, or the machine must have a role, for S3.
const S3_CREDENTIALS: [&str; 6] = [
    "aws_access_key_id",
    "aws_web_identity_token_file",
    "aws_container_credentials_relative_uri",
    "aws_container_credentials_full_uri",
    "aws_skip_signature",
    "aws_bearer_token_bedrock",
];

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
    /// Remedy if the store refuses or does not answer.
    remedy: &'static str,
}

impl StorePlace {
    /// Opens the directory at `url`. `options` are names and values of the provider's variables
    /// (such as `aws_region`), in lower case. Does not connect.
    ///
    /// # Errors
    /// `InvalidArgument` for a URL that no store has; `FailedPrecondition` if this program has no
    /// support for the store.
    pub fn open(url: &str, options: &[(String, String)]) -> Result<StorePlace> {
        let wrong = |error: &dyn std::fmt::Display| {
            Error::invalid(format!(
                "{url}: {error}; use s3://BUCKET/PATH, gs://BUCKET/PATH, az://CONTAINER/PATH, \
                 https://HOST/PATH or file:///PATH"
            ))
        };
        let parsed = url::Url::parse(url).map_err(|error| wrong(&error))?;
        let supported =
            ["s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "http", "https", "file"];
        if !supported.contains(&parsed.scheme()) {
            return Err(wrong(&format!("\"{}\" is no kind of store", parsed.scheme())));
        }
        if cfg!(not(feature = "object-storage")) && parsed.scheme() != "file" {
            return Err(Error::precondition(format!(
                "{url}: this program was built without object storage; build it with --features object-storage"
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
        let (store, prefix) = object_store::parse_url_opts(&parsed, options.iter().cloned())
            .map_err(|error| wrong(&error))?;
        Ok(StorePlace {
            objects: store.into(),
            prefix,
            shown: shown(&parsed).into(),
            remedy: remedy(parsed.scheme(), &options),
        })
    }

    /// Wraps `objects`, whose keys begin with `prefix`.
    pub fn new(objects: Arc<dyn ObjectStore>, prefix: &str, shown: &str) -> StorePlace {
        StorePlace {
            objects,
            prefix: prefix.into(),
            shown: shown.into(),
            remedy: "check the store",
        }
    }

    /// Returns the URL without query and password.
    pub fn shown(&self) -> &str {
        &self.shown
    }

    /// Returns the key of `name` below this directory. `name` may have several levels.
    pub(crate) fn key(&self, name: &str) -> Path {
        let parts = self.prefix.parts().map(|part| part.as_ref().to_owned());
        let whole: Vec<String> = parts.chain(name.split('/').map(str::to_owned)).collect();
        whole.iter().map(String::as_str).collect()
    }

    /// Lists all objects below this directory.
    ///
    /// # Errors
    /// Returns the store's error, with a remedy.
    pub(crate) async fn list(&self) -> Result<Vec<ObjectMeta>> {
        let prefix = (!self.prefix.as_ref().is_empty()).then_some(&self.prefix);
        let all = async {
            let mut objects = self.objects.list(prefix);
            let mut found = Vec::new();
            while let Some(object) = objects.next().await {
                found.push(object.map_err(|error| self.failed(&error))?);
            }
            Ok(found)
        };
        tokio::time::timeout(LIST_TIMEOUT, all).await.unwrap_or_else(|_| {
            Err(Error::unavailable(format!(
                "{}: no answer within {} s; {}",
                self.shown,
                LIST_TIMEOUT.as_secs(),
                self.remedy
            )))
        })
    }

    /// Reads the manifest of this directory, which is a published version. Blocks the thread.
    ///
    /// # Errors
    /// `NotFound` without a manifest; otherwise those of the store and of the manifest.
    pub fn manifest(&self) -> Result<LayoutManifest> {
        block_on(async {
            let key = self.key(MANIFEST_NAME);
            let got = self.objects.get(&key).await.map_err(|error| match error {
                object_store::Error::NotFound { .. } => Error::not_found(format!(
                    "{}: holds no {MANIFEST_NAME}, so it is no published version; millpond publish makes one",
                    self.shown
                )),
                error => self.failed(&error),
            })?;
            if got.meta.size > MANIFEST_BYTES_MAX {
                return Err(Error::data_loss(format!(
                    "{}: {MANIFEST_NAME} is larger than a manifest can be",
                    self.shown
                )));
            }
            let bytes = got.bytes().await.map_err(|error| self.failed(&error))?;
            LayoutManifest::parse(&bytes).map_err(|error| error.context(&self.shown))
        })
    }

    /// Converts an error of the store, and adds a remedy.
    pub(crate) fn failed(&self, error: &object_store::Error) -> Error {
        use object_store::Error as StoreError;
        let text = error.to_string();
        // The addresses of the services that give a machine's role.
        let no_role = text.contains("169.254.169.254") || text.contains("metadata.google.internal");
        let (kind, remedy) = match error {
            StoreError::NotFound { .. } => (
                ErrorKind::NotFound,
                "check bucket, path and region in the URL and the environment",
            ),
            StoreError::PermissionDenied { .. } | StoreError::Unauthenticated { .. } => {
                (ErrorKind::FailedPrecondition, self.remedy)
            }
            _ if no_role => (ErrorKind::FailedPrecondition, self.remedy),
            StoreError::Precondition { .. } => {
                (ErrorKind::Unavailable, "the object changed meanwhile; it is read again")
            }
            StoreError::AlreadyExists { .. } => {
                (ErrorKind::AlreadyExists, "versions never change; publish under another number")
            }
            _ => (ErrorKind::Unavailable, "the store may be unreachable or overloaded"),
        };
        Error::new(kind, format!("{}: {text}; {remedy}", self.shown))
    }
}

/// Runs `work` on this thread.
pub(crate) fn block_on<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let failed = |error| Error::exhausted(format!("a runtime for the store: {error}"));
    runtime.map_err(failed)?.block_on(work)
}

/// Returns `url` without query and password.
fn shown(url: &url::Url) -> String {
    let mut url = url.clone();
    url.set_query(None);
    let _ = url.set_password(None);
    url.to_string().trim_end_matches('/').to_owned()
}

fn remedy(scheme: &str, options: &[(String, String)]) -> &'static str {
    let has = |names: &[&str]| options.iter().any(|(name, _)| names.contains(&name.as_str()));
    match scheme {
        "s3" | "s3a" if !has(&S3_CREDENTIALS) => {
            "no credentials are set: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, give this machine \
             a role, or set AWS_SKIP_SIGNATURE=true for a public bucket"
        }
        "s3" | "s3a" => {
            "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION and AWS_ENDPOINT_URL; the key \
             needs s3:ListBucket and s3:GetObject"
        }
        "gs" => {
            "set GOOGLE_SERVICE_ACCOUNT to the path of a key file, or give this machine a service account"
        }
        "az" | "azure" | "abfs" | "abfss" => {
            "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or give this machine an identity"
        }
        "http" | "https" => {
            "check host and path; the server must answer PROPFIND, as WebDAV servers do"
        }
        _ => "check the path and its permissions",
    }
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
        assert!(error.message().contains("\"ftp\" is no kind of store; use s3://"), "{error}");
    }

    #[test]
    fn secrets_of_a_url_are_not_shown() {
        let url = url::Url::parse("https://user:secret@host/models?sig=secret").unwrap();
        assert!(!shown(&url).contains("secret"), "{}", shown(&url));
    }

    #[test]
    fn refusals_name_the_variables() {
        let denied =
            || object_store::Error::PermissionDenied { path: "p".to_owned(), source: "403".into() };
        let place = StorePlace {
            remedy: remedy("s3", &[]),
            ..StorePlace::new(Arc::new(object_store::memory::InMemory::new()), "", "s3://b")
        };
        let error = place.failed(&denied());
        assert_eq!(error.kind(), ErrorKind::FailedPrecondition);
        assert!(error.message().contains("no credentials are set: set AWS_ACCESS_KEY_ID"));
        let key = ("aws_access_key_id".to_owned(), "k".to_owned());
        assert!(remedy("s3", &[key]).contains("s3:ListBucket"));
    }
}
