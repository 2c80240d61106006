//! `/v1/audio`: which recognisers there are, and recordings that are sent to them.

use std::sync::Arc;

use audio::recogniser::RecogniserKind;
use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use axum::{Extension, Router};
use base::{Error, Result};
use http::{HeaderMap, HeaderValue, header};

use super::answer::{self, Form};
use super::listen::{Listening, Request};
use super::{find, voices};
use crate::app::App;
use transport::HeaderTimeout;
use transport::Reply;
use transport::result_stream::result_channel;

use crate::app::Shared;

/// Where the routes are described.
const OPENAPI: &str = include_str!("openapi.json");

/// The routes, with their paths as [`OPENAPI`] has them.
pub(crate) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/v1/audio", get(list))
        .route("/v1/audio/openapi.json", get(|| async { Reply::json(OPENAPI) }))
        .route("/v1/audio/{recogniser}", post(recognise))
        .route("/v1/audio/{recogniser}/speakers", get(voices::list))
        .route(
            "/v1/audio/{recogniser}/speakers/{speaker}",
            put(voices::enrol).delete(voices::forget),
        )
        .route("/v1/audio/{recogniser}/identify", post(voices::identify))
        .route("/v1/audio/{recogniser}/verify/{speaker}", post(voices::verify))
}

/// The word for a kind in settings and answers.
fn kind_name(kind: RecogniserKind) -> &'static str {
    match kind {
        RecogniserKind::Events => "events",
        RecogniserKind::Scenes => "scenes",
        RecogniserKind::Embeddings => "embeddings",
    }
}

async fn list(State(app): Shared) -> Reply {
    let catalog = app.lifecycle.catalog();
    let entry = |name: &Arc<str>| match find::find(catalog, name) {
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
    let recognisers: Vec<serde_json::Value> = find::names(catalog).iter().map(entry).collect();
    let config = &app.recordings.config;
    let limits = serde_json::json!({
        "recordings": config.recordings_max, "bytes": config.bytes_max, "spool_bytes": config.spool_bytes_max,
    });
    Reply::json(serde_json::json!({ "recognisers": recognisers, "limits": limits }).to_string())
}

/// What a recording's query may say.
#[derive(Default, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Asked {
    /// Whether labels come with their embeddings.
    embeddings: Option<String>,
    /// How the answer is written.
    format: Option<String>,
    /// Whether all of the upload is taken into a file before anything is listened to.
    spool: Option<String>,
}

fn flag(name: &str, value: Option<&str>) -> Result<bool> {
    match value {
        None | Some("0" | "false") => Ok(false),
        Some("" | "1" | "true") => Ok(true),
        Some(other) => Err(Error::invalid(format!("{name}={other} is neither 0 nor 1"))),
    }
}

async fn recognise(
    State(app): Shared,
    Path(name): Path<String>,
    asked: std::result::Result<Query<Asked>, QueryRejection>,
    Extension(watch): Extension<HeaderTimeout>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let request = Request { headers, body, watch };
    match answered(&app, &name, asked, request).await {
        Ok(response) => response,
        Err(error) => Reply::error(&error).into_response(),
    }
}

async fn answered(
    app: &Arc<App>,
    name: &str,
    asked: std::result::Result<Query<Asked>, QueryRejection>,
    request: Request,
) -> Result<Response> {
    let Query(asked) = asked.map_err(|error| Error::invalid(error.body_text()))?;
    let form = Form::parse(asked.format.as_deref().unwrap_or("ndjson"))?;
    let embeddings = flag("embeddings", asked.embeddings.as_deref())?;
    let spool = flag("spool", asked.spool.as_deref())?;
    let mut listening = Listening::begin(app, name, request).await?;
    listening.options.embeddings = embeddings;
    let (writer, results) = result_channel(listening.stop());
    listening.on_thread(move |listening| answer::recognise(listening, form, spool, &writer))?;
    results.begun().await?;
    let mut response = Response::new(Body::from_stream(results));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(form.content_type()));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_0_or_1() {
        assert_eq!(
            [None, Some("0"), Some("1"), Some("")].map(|value| flag("x", value).unwrap()),
            [false, false, true, true]
        );
        assert!(flag("x", Some("maybe")).is_err());
    }
}
