//! The handlers of `/v1/audio`: recognisers, and recordings that are sent to them.

use std::sync::Arc;

use audio::recogniser::RecogniserKind;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use axum::{Extension, Router};
use base::Result;
use http::{HeaderMap, HeaderValue, header};
use transport::access::KeyGrant;
use transport::result_stream::result_channel;
use transport::{
    HeaderTimeout, QueryResult, Reply, Shared, query_flag, query_parameters, set_stream_headers,
};

use super::response::{self, ResponseFormat};
use super::state::AudioState;
use super::upload::{AudioRequest, AudioUpload};
use super::{recognisers, speakers};

/// Description of the routes as OpenAPI 3.1.
pub const OPENAPI: &str = include_str!("openapi.json");

/// Returns the routes, with the paths of the OpenAPI description.
pub fn routes() -> Router<Arc<AudioState>> {
    Router::new()
        .route("/v1/audio", get(list))
        .route("/v1/audio/openapi.json", get(|| async { Reply::json(OPENAPI) }))
        .route("/v1/audio/{recogniser}", post(recognise))
        .route("/v1/audio/{recogniser}/speakers", get(speakers::list))
        .route(
            "/v1/audio/{recogniser}/speakers/{speaker}",
            put(speakers::enrol).delete(speakers::forget),
        )
        .route("/v1/audio/{recogniser}/identify", post(speakers::identify))
        .route("/v1/audio/{recogniser}/verify/{speaker}", post(speakers::verify))
}

fn kind_name(kind: RecogniserKind) -> &'static str {
    match kind {
        RecogniserKind::Events => "events",
        RecogniserKind::Scenes => "scenes",
        RecogniserKind::Embeddings => "embeddings",
    }
}

/// Lists the recognisers that the request's key may use.
async fn list(State(state): Shared<AudioState>, grant: Option<Extension<KeyGrant>>) -> Reply {
    let catalog = state.catalog();
    let grant = grant.as_deref();
    let seen = |name: &&Arc<str>| grant.is_none_or(|grant| grant.sees_model(name));
    let entry = |name: &Arc<str>| match recognisers::find_recogniser(catalog, name) {
        Ok((recogniser, servable)) => serde_json::json!({
            "name": &**name,
            "title": recogniser.title,
            "kind": kind_name(recogniser.kind),
            "model": &*servable.id.model,
            "version": servable.id.version,
            "rate": recogniser.rate,
            "classes": recogniser.classes(),
        }),
        Err(error) => serde_json::json!({ "name": &**name, "error": error.message() }),
    };
    let recognisers: Vec<serde_json::Value> =
        recognisers::names(catalog).iter().filter(seen).map(entry).collect();
    let config = &state.config;
    let limits = serde_json::json!({
        "recordings": config.recordings_max, "bytes": config.bytes_max, "spool_bytes": config.spool_bytes_max,
    });
    Reply::json(serde_json::json!({ "recognisers": recognisers, "limits": limits }).to_string())
}

#[derive(Default, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RecogniseParameters {
    /// True to return the embedding of each label.
    embeddings: Option<String>,
    format: Option<String>,
    /// True to copy the whole upload to a file first.
    spool: Option<String>,
}

async fn recognise(
    State(state): Shared<AudioState>,
    Path(name): Path<String>,
    query: QueryResult<RecogniseParameters>,
    Extension(watch): Extension<HeaderTimeout>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let request = AudioRequest::new(&state, headers, body, watch);
    match answered(&state, &name, query, request).await {
        Ok(response) => response,
        Err(error) => Reply::error(&error).into_response(),
    }
}

/// Starts the recognition, and returns the response whose body has its results.
async fn answered(
    state: &AudioState,
    name: &str,
    query: QueryResult<RecogniseParameters>,
    request: AudioRequest,
) -> Result<Response> {
    let parameters = query_parameters(query)?;
    let format = ResponseFormat::parse(parameters.format.as_deref().unwrap_or("ndjson"))?;
    let embeddings = query_flag("embeddings", parameters.embeddings.as_deref())?;
    let spool = query_flag("spool", parameters.spool.as_deref())?;
    let mut upload = AudioUpload::begin(state, name, request).await?;
    upload.options.embeddings = embeddings;
    let (writer, results) = result_channel(upload.stop());
    upload.on_thread(move |upload| response::recognise(upload, format, spool, &writer))?;
    results.begun().await?;
    let mut response = Response::new(Body::from_stream(results));
    let headers = response.headers_mut();
    set_stream_headers(headers, format.content_type());
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    Ok(response)
}
