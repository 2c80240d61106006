//! Requests with many images: the reading of archives and folders, and the permits and the memory
//! that all requests share.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use api_qdrant::RegistrySource;
use axum::body::Body;
use axum::response::Response;
use base::{Error, Result};
use http::HeaderMap;
use metrics::KindLabels;
use transport::access::{AccessPolicy, AdminRequest, Caller};
use transport::result_stream::{ResultStream, result_channel};
use transport::upload::{UploadLimits, UploadPieces, upload_channel};
use transport::{
    HeaderTimeout, Peer, RequestResources, UploadPermit, UploadPermits, query_flag,
    set_stream_headers,
};

use super::archive::{ARCHIVE_BYTES_MAX, Archive};
use super::bulk::{self, BulkResponse, BulkTarget, ImageFiles};
use super::folder::Folder;
use super::held_files::HeldFiles;

/// Maximum archives, folders, rebuilds and searches for duplicates at the same time. A further one
/// is refused.
const BULKS_MAX: usize = 4;
/// Retry advice to a refused client.
const RETRY_AFTER: Duration = Duration::from_secs(10);

/// Limits that the requests with many images of a server share.
pub struct BulkResources {
    requests: Arc<RequestResources>,
    access: Arc<AccessPolicy>,
    /// Directory of archives that are read. If it does not exist, the system's for temporary files.
    directory: Option<PathBuf>,
    /// Collections whose disk keeps a reserve free while archives are in `directory`.
    registry: Option<Arc<dyn RegistrySource>>,
    permits: Arc<UploadPermits>,
    files: Arc<HeldFiles>,
}

/// A request with an archive, or with the name of a folder.
pub struct BulkRequest {
    /// Name of the collection.
    pub collection: String,
    /// Client of the connection.
    pub peer: Option<Peer>,
    /// Time limit of the connection's heads.
    pub header_timeout: HeaderTimeout,
    /// Headers.
    pub headers: HeaderMap,
    /// Body, not read yet.
    pub body: Body,
}

/// Checks parameters of a request with many images that are for one image.
///
/// # Errors
/// `InvalidArgument` for a parameter that can have no effect.
pub fn check_bulk_params(name: Option<&str>, background: Option<&str>) -> Result<()> {
    if name.is_some() {
        return Err(Error::invalid(
            "name= is for one image; the images of an archive or a folder have the names of their files",
        ));
    }
    if background.is_some() && !query_flag("background", background)? {
        return Err(Error::invalid(
            "background=0 is for one image; images of an archive or a folder are always added at idle priority: leave it out",
        ));
    }
    Ok(())
}

impl BulkResources {
    /// Creates the resources. Archives are kept in `directory` while they are read.
    pub fn new(
        requests: Arc<RequestResources>,
        access: Arc<AccessPolicy>,
        directory: Option<PathBuf>,
    ) -> BulkResources {
        let permits = UploadPermits::new(BULKS_MAX);
        let files = Arc::new(HeldFiles::new(requests.memory.clone()));
        BulkResources { requests, access, directory, registry: None, permits, files }
    }

    /// Returns the same resources for archives that leave the disk reserve of `registry` free.
    pub(crate) fn with_registry(self, registry: Arc<dyn RegistrySource>) -> BulkResources {
        BulkResources { registry: Some(registry), ..self }
    }

    /// Returns the files of bulk work in memory.
    pub(crate) fn files(&self) -> &HeldFiles {
        &self.files
    }

    /// Returns a permit for an archive, a folder, a rebuild or a search for duplicates. Waits a
    /// moment if all are taken.
    ///
    /// # Errors
    /// `ResourceExhausted` with retry advice if none is returned in that time.
    pub(crate) async fn permit(&self) -> Result<UploadPermit> {
        self.permits.acquire().await.ok_or_else(|| self.refused())
    }

    /// Returns a permit as [`BulkResources::permit`] does, but does not wait for one.
    pub(crate) fn permit_now(&self) -> Result<UploadPermit> {
        self.permits.try_acquire().ok_or_else(|| self.refused())
    }

    /// Counts a refused request for bulk work, and returns its error.
    fn refused(&self) -> Error {
        let kind = KindLabels { kind: "images_bulk_max" };
        self.requests.metrics.refused.get_or_create(&kind).inc();
        Error::exhausted(
            "several archives, folders, rebuilds or searches for duplicates are worked on already; try again later",
        )
        .with_retry_after(RETRY_AFTER)
    }

    /// Adds the images of the archive in the body to the target that `make` returns. The argument
    /// of `make` is set once the client does not want the remaining images.
    ///
    /// # Errors
    /// `ResourceExhausted` with retry advice if too many requests with many images are being
    /// processed; the error that ended the upload; `InvalidArgument` for a body that is not an
    /// archive; the error of `make`.
    pub async fn archive<T: BulkTarget>(
        self: &Arc<Self>,
        request: BulkRequest,
        make: impl FnOnce(Arc<AtomicBool>) -> Result<T>,
    ) -> Result<Response> {
        let permit = self.permit().await?;
        let limits = UploadLimits {
            noun: "archive",
            bytes_max: ARCHIVE_BYTES_MAX,
            piece_timeout: self.requests.limits.client_timeout,
        };
        // Until the body is complete, its bytes do not belong to a next request.
        let receiving = request.header_timeout.complete();
        let (sender, reader, failure) = upload_channel(None);
        let pieces = UploadPieces::raw(request.body);
        tokio::spawn(async move {
            sender.feed(pieces, limits).await;
            drop(receiving);
        });
        let directory = self.directory.clone().filter(|directory| directory.is_dir());
        // The system's directory for temporary files has no reserve.
        let source = self.registry.clone().filter(|_| directory.is_some());
        let check_room = move |bytes: u64| {
            let registry = source.as_ref().and_then(|source| source.opened());
            registry.map_or(Ok(()), |registry| registry.check_room(bytes))
        };
        let open = move || {
            Archive::receive(reader, directory.as_deref(), check_room)
                .map_err(|error| failure.get().unwrap_or(error))
        };
        self.lines(permit, make, open).await
    }

    /// Adds the images of the folder of this machine that the body names to the target that `make`
    /// returns, as [`BulkResources::archive`] does. Only administrators may.
    ///
    /// # Errors
    /// `PermissionDenied`; the errors of the body; `InvalidArgument` for a path that is not a
    /// folder; `ResourceExhausted` with retry advice if too many requests with many images are
    /// being processed; the error of `make`.
    pub async fn folder<T: BulkTarget>(
        self: &Arc<Self>,
        request: BulkRequest,
        make: impl FnOnce(Arc<AtomicBool>) -> Result<T>,
    ) -> Result<Response> {
        #[derive(serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        struct FolderName {
            folder: String,
        }
        let BulkRequest { collection, peer, headers, body, .. } = request;
        let admin = AdminRequest {
            calls: "folders of the server are read",
            action: "add a folder of the server",
            subject: &collection,
            caller: Caller { peer, headers: &headers },
        };
        let begun = async {
            let named: FolderName = self.requests.read_json(&headers, body).await?;
            let permit = self.permit().await?;
            self.lines(permit, make, move || Folder::open(&named.folder)).await
        };
        self.access.admin(admin, begun).await
    }

    /// Returns a response of lines that a thread writes. The thread opens the source first, whose
    /// error becomes the status of the response.
    async fn lines<S: ImageFiles, T: BulkTarget>(
        self: &Arc<Self>,
        permit: UploadPermit,
        make: impl FnOnce(Arc<AtomicBool>) -> Result<T>,
        open: impl FnOnce() -> Result<S> + Send + 'static,
    ) -> Result<Response> {
        let stop = Arc::new(AtomicBool::new(false));
        let (writer, results) = result_channel(stop.clone());
        let target = make(stop.clone())?;
        bulk::start(&self.files, target, BulkResponse { permit, writer, stop }, open)?;
        line_response(results).await
    }
}

/// Returns a response of lines of JSON. An error before the first line becomes the status.
pub(crate) async fn line_response(results: ResultStream) -> Result<Response> {
    results.begun().await?;
    let mut response = Response::new(Body::from_stream(results));
    set_stream_headers(response.headers_mut(), "application/x-ndjson");
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_of_one_image_are_refused() {
        assert!(
            check_bulk_params(None, None).is_ok() && check_bulk_params(None, Some("1")).is_ok()
        );
        for (name, background, word) in
            [(Some("a"), None, "name="), (None, Some("0"), "background=0"), (None, Some("x"), "=x")]
        {
            let error = check_bulk_params(name, background).unwrap_err();
            assert!(error.message().contains(word), "{error}");
        }
    }
}
