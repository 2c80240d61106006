//! The handler that adds images: one, an archive or a folder.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use axum::body::Body;
use axum::extract::{FromRequestParts, Path, State};
use axum::response::{IntoResponse, Response};
use base::{Error, Result};
use http::HeaderMap;
use http::request::Parts;
use image_features::collection::CollectionSpec;
use image_features::features::{checked_name, checked_payload, checked_quality};
use image_features::settings::ImageKind;
use serde_json::{Map, Value};
use transport::access::KeyGrant;
use transport::{HeaderTimeout, Peer, QueryResult, Reply, Shared, query_flag, query_parameters};

use super::{check_creates, media, read_file};
use crate::add::NewImage;
use crate::bulk_requests::{BulkRequest, check_bulk_params};
use crate::extraction::ExtractionPriority;
use crate::file_upload;
use crate::ingest_target::IngestTarget;
use crate::job::IngestJob;
use crate::state::ImagesState;

#[derive(Default, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PutParameters {
    name: Option<String>,
    kind: Option<String>,
    model: Option<String>,
    background: Option<String>,
    payload: Option<String>,
    quality_min: Option<u8>,
}

pub(super) async fn put_in(
    State(state): Shared<ImagesState>,
    Path(collection): Path<String>,
    query: QueryResult<PutParameters>,
    caller: PutCaller,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let PutCaller { peer, header_timeout, grant } = caller;
    if let Err(error) = check_creates(&state.services, grant.as_ref(), &collection) {
        return Reply::error(&error).into_response();
    }
    let sent = PutRequest { collection, peer, header_timeout, headers, body };
    match sent.answered(&state, query).await {
        Ok(response) => response,
        Err(error) => Reply::error(&error).into_response(),
    }
}

/// Sender of an upload, and the timer of its headers.
pub(super) struct PutCaller {
    peer: Peer,
    header_timeout: HeaderTimeout,
    grant: Option<KeyGrant>,
}

impl<S: Sync> FromRequestParts<S> for PutCaller {
    type Rejection = Reply;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<PutCaller, Reply> {
        let peer = parts.extensions.get().copied();
        let peer = peer
            .ok_or_else(|| Reply::error(&Error::internal("the sender of a request is unknown")))?;
        let header_timeout = parts.extensions.get().cloned().unwrap_or_default();
        Ok(PutCaller { peer, header_timeout, grant: parts.extensions.get().cloned() })
    }
}

struct PutRequest {
    collection: String,
    peer: Peer,
    header_timeout: HeaderTimeout,
    headers: HeaderMap,
    body: Body,
}

impl PutRequest {
    /// Adds the images of the request. Its media type decides if it is an archive, a folder or one
    /// file.
    async fn answered(
        self,
        state: &Arc<ImagesState>,
        query: QueryResult<PutParameters>,
    ) -> Result<Response> {
        let parameters = query_parameters(query)?;
        let kind = parameters.kind.as_deref().map(ImageKind::parse).transpose()?;
        let wanted = CollectionSpec {
            name: self.collection.clone(),
            kind,
            model: parameters.model.clone(),
            quality_min: checked_quality(parameters.quality_min)?,
        };
        match media(&self.headers).as_str() {
            "application/zip" | "application/x-zip-compressed" => {
                self.archive(state, ManyImages::new(wanted, &parameters)?).await
            }
            "application/json" => self.folder(state, ManyImages::new(wanted, &parameters)?).await,
            ""
            | "application/octet-stream"
            | "application/x-www-form-urlencoded"
            | "application/cbor" => self.image(state, wanted, parameters).await,
            image if image.starts_with("image/") => self.image(state, wanted, parameters).await,
            other => Err(Error::invalid(format!(
                "the body's type is \"{other}\"; send an image as image/* or application/octet-stream, many as \
                 application/zip, or {{\"folder\": PATH}} as application/json"
            ))),
        }
    }

    /// Adds the file in the body.
    async fn image(
        self,
        state: &Arc<ImagesState>,
        wanted: CollectionSpec,
        parameters: PutParameters,
    ) -> Result<Response> {
        state.services.requests.check_room()?;
        let name = checked_name(parameters.name.as_deref().unwrap_or_default())?;
        let payload = checked_payload(parameters.payload.as_deref())?;
        let is_background = query_flag("background", parameters.background.as_deref())?;
        let priority =
            if is_background { ExtractionPriority::Idle } else { ExtractionPriority::Ordinary };
        let bytes = read_file(&state.services, &self.headers, self.body).await?;
        let _admitted = state.services.requests.admit()?;
        let new = NewImage { wanted, name, payload, bytes };
        let answer = file_upload::put_file(state, new, priority).await?;
        Ok(Reply::json(answer.to_string()).into_response())
    }

    async fn archive(self, state: &Arc<ImagesState>, new: ManyImages) -> Result<Response> {
        state.services.registry()?;
        state.bulk.archive(self.bulk(), |stop| Ok(new.target(state, stop))).await
    }

    async fn folder(self, state: &Arc<ImagesState>, new: ManyImages) -> Result<Response> {
        let target = |stop| {
            state.services.registry()?;
            Ok(new.target(state, stop))
        };
        state.bulk.folder(self.bulk(), target).await
    }

    fn bulk(self) -> BulkRequest {
        let PutRequest { collection, peer, header_timeout, headers, body } = self;
        BulkRequest { collection, peer: Some(peer), header_timeout, headers, body }
    }
}

/// Properties that the images of an archive or a folder share.
struct ManyImages {
    wanted: CollectionSpec,
    payload: Map<String, Value>,
}

impl ManyImages {
    fn new(wanted: CollectionSpec, parameters: &PutParameters) -> Result<ManyImages> {
        check_bulk_params(parameters.name.as_deref(), parameters.background.as_deref())?;
        Ok(ManyImages { wanted, payload: checked_payload(parameters.payload.as_deref())? })
    }

    fn target(self, state: &Arc<ImagesState>, stop: Arc<AtomicBool>) -> IngestTarget {
        let job = IngestJob::new(&state.services, self.wanted, stop);
        IngestTarget { state: state.clone(), job, payload: self.payload }
    }
}
