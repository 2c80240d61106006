//! One request for images: its parameters, and its body within the limits of the server.

use std::sync::Arc;
use std::time::Instant;

use api_images::BulkRequest;
use axum::body::Body;
use axum::extract::{FromRequest, Request};
use base::{Error, Result};
use bytes::Bytes;
use cluster_root::{RootContext, RouteQuery};
use http::{HeaderMap, header};
use serde::de::DeserializeOwned;
use tokio::sync::OwnedSemaphorePermit;
use transport::{HeaderTimeout, Peer, Reply};

use super::state::ImageRootState;

/// A request whose body is not read yet.
pub(super) struct ImageCall {
    pub(super) context: RootContext,
    pub(super) state: Arc<ImageRootState>,
    pub(super) query: RouteQuery,
    pub(super) head: CallHead,
    peer: Option<Peer>,
    header_timeout: HeaderTimeout,
    body: Body,
}

/// Parts of a request that go with it if it is passed on.
pub(super) struct CallHead {
    pub(super) headers: HeaderMap,
    /// Path and query, as the client sent them.
    pub(super) target: String,
}

impl FromRequest<Arc<ImageRootState>> for ImageCall {
    type Rejection = Reply;

    async fn from_request(
        request: Request,
        state: &Arc<ImageRootState>,
    ) -> Result<ImageCall, Reply> {
        let started = Instant::now();
        let refused = |error: Error| Reply::error(&error);
        let (mut parts, body) = request.into_parts();
        let query = RouteQuery::split(&parts.uri, &parts.headers).map_err(refused)?;
        let context = RootContext::read(&mut parts, &state.root, query.params, started).await;
        let context = context.map_err(refused)?;
        let target = parts.uri.path_and_query().map(ToString::to_string).unwrap_or_default();
        let peer = parts.extensions.remove();
        let header_timeout = parts.extensions.remove().unwrap_or_default();
        let head = CallHead { headers: parts.headers, target };
        let state = state.clone();
        Ok(ImageCall { context, state, query, head, peer, header_timeout, body })
    }
}

impl ImageCall {
    /// Answers with the outcome of `handler`. If the client disconnects, the handler stops at its
    /// next wait.
    pub(super) async fn answer<F: Future<Output = Result<Reply>>>(
        self,
        handler: impl FnOnce(ImageCall) -> F,
    ) -> Reply {
        Reply::of(Box::pin(handler(self)).await)
    }

    /// Returns the type of the body in lower case, without its parameters; empty if it is missing.
    pub(super) fn media(&self) -> String {
        let value = self.head.headers.get(header::CONTENT_TYPE);
        let text = value.and_then(|value| value.to_str().ok()).unwrap_or_default();
        text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
    }

    /// Reads the file that is the body.
    ///
    /// # Errors
    /// As [`api_images::check_file_body`]; `ResourceExhausted` if no request could be answered now;
    /// the errors of [`transport::RequestResources::read_body`].
    pub(super) async fn bytes(&mut self) -> Result<Bytes> {
        api_images::check_file_body(&self.head.headers)?;
        let requests = &self.context.state.requests;
        requests.check_room()?;
        requests.read_body(&self.head.headers, std::mem::take(&mut self.body)).await
    }

    /// Reads the whole body, which becomes a tree of JSON values.
    ///
    /// # Errors
    /// As [`ImageCall::bytes`].
    pub(super) async fn json_bytes(&mut self) -> Result<Bytes> {
        let requests = &self.context.state.requests;
        requests.check_room()?;
        requests.read_json_body(&self.head.headers, std::mem::take(&mut self.body)).await
    }

    /// Reads the JSON of the body.
    ///
    /// # Errors
    /// As [`ImageCall::bytes`]; `InvalidArgument` if it is not the JSON of a `T`.
    pub(super) async fn json<T: DeserializeOwned + Send + 'static>(&mut self) -> Result<T> {
        let body = self.json_bytes().await?;
        self.context.state.requests.parse_json(body).await
    }

    /// Reads the JSON of the body, and converts it where it is parsed
    /// ([`transport::RequestResources::convert_json`]).
    ///
    /// # Errors
    /// As [`ImageCall::json`]; the errors of `convert`.
    pub(super) async fn converted<T: DeserializeOwned + 'static, U: Send + 'static>(
        &mut self,
        convert: impl FnOnce(T) -> Result<U> + Send + 'static,
    ) -> Result<U> {
        let body = self.json_bytes().await?;
        self.context.state.requests.convert_json(body, convert).await
    }

    /// Returns the request as one with many images, whose body is not read yet.
    pub(super) fn into_bulk(self) -> BulkRequest {
        BulkRequest {
            collection: self.context.collection,
            peer: self.peer,
            header_timeout: self.header_timeout,
            headers: self.head.headers,
            body: self.body,
        }
    }

    /// Admits the request, whose body is complete, until the permit is dropped.
    ///
    /// # Errors
    /// `ResourceExhausted` with retry advice if too many requests are being answered.
    pub(super) fn admit(&self) -> Result<OwnedSemaphorePermit> {
        self.context.state.requests.admit()
    }
}

/// Parameters of a route that has none of its own.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NoRouteParams {}
