//! `/v1/images`: requests become calls of the service, and their outcomes answers.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use ::search::points::PointId;
use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use axum::{Extension, Router};
use base::{Error, Result};
use http::{HeaderMap, HeaderValue, header};
use serde_json::{Value, json};

use super::add::{self, New};
use super::features::{checked_name, checked_payload};
use super::folder::Folder;
use super::search::{Asked, Sample};
use super::target::{Kind, Wanted};
use super::zip::{ARCHIVE_BYTES_MAX, Archive};
use super::{browse, bulk, rebuild, search};
use crate::app::App;
use crate::app::Shared;
use transport::HeaderTimeout;
use transport::Peer;
use transport::Reply;
use transport::UploadPermit;
use transport::result_stream::result_channel;
use transport::upload::{UploadLimits, UploadPieces, upload_channel};

/// Where the routes are described.
const OPENAPI: &str = include_str!("openapi.json");
/// Pictures of a page, and the side of a thumbnail, where the caller does not say.
const PAGE_DEFAULT: usize = 50;
const SIDE_DEFAULT: u32 = 256;
const HITS_DEFAULT: usize = 10;

/// The routes, with their paths as [`OPENAPI`] has them.
pub(crate) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/v1/images", get(collections))
        .route("/v1/images/openapi.json", get(|| async { Reply::json(OPENAPI) }))
        .route("/v1/images/{collection}", put(put_in).get(page).delete(drop_collection))
        .route("/v1/images/{collection}/search", post(find))
        .route("/v1/images/{collection}/missing", post(missing))
        .route("/v1/images/{collection}/rebuild", post(begin_rebuild).get(rebuild_progress))
        .route("/v1/images/{collection}/{id}", get(original).delete(delete))
        .route("/v1/images/{collection}/{id}/thumbnail", get(small))
        .route("/v1/images/{collection}/{id}/keypoints", get(keypoints))
}

type Given<T> = std::result::Result<Query<T>, QueryRejection>;

fn given<T>(query: Given<T>) -> Result<T> {
    query.map(|Query(given)| given).map_err(|error| Error::invalid(error.body_text()))
}

fn flag(name: &str, value: Option<&str>) -> Result<bool> {
    match value {
        None | Some("0" | "false") => Ok(false),
        Some("" | "1" | "true") => Ok(true),
        Some(other) => Err(Error::invalid(format!("{name}={other} is neither 0 nor 1"))),
    }
}

fn answer(outcome: Result<Value>) -> Reply {
    Reply::of(outcome.map(|body| Reply::json(body.to_string())))
}

/// The body, where it is read whole. A body that ends early puts nothing in.
async fn whole(app: &App, headers: &HeaderMap, body: Body) -> Result<bytes::Bytes> {
    app.requests.read_body(headers, body).await
}

fn media(headers: &HeaderMap) -> String {
    let text =
        headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

async fn collections(State(app): Shared) -> Reply {
    answer(browse::collections(&app))
}

/// What the query of a PUT may say.
#[derive(Default, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Put {
    name: Option<String>,
    kind: Option<String>,
    model: Option<String>,
    background: Option<String>,
    payload: Option<String>,
}

async fn put_in(
    State(app): Shared,
    Path(collection): Path<String>,
    asked: Given<Put>,
    Extension(peer): Extension<Peer>,
    Extension(watch): Extension<HeaderTimeout>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let sent = Sent { collection, peer, watch, headers, body };
    match sent.answered(&app, asked).await {
        Ok(response) => response,
        Err(error) => Reply::error(&error).into_response(),
    }
}

struct Sent {
    collection: String,
    peer: Peer,
    watch: HeaderTimeout,
    headers: HeaderMap,
    body: Body,
}

impl Sent {
    async fn answered(self, app: &Arc<App>, asked: Given<Put>) -> Result<Response> {
        let asked = given(asked)?;
        let kind = asked.kind.as_deref().map(Kind::parse).transpose()?;
        let wanted = Wanted { name: self.collection.clone(), kind, model: asked.model.clone() };
        match media(&self.headers).as_str() {
            "application/zip" | "application/x-zip-compressed" => self.archive(app, wanted).await,
            "application/json" => self.folder(app, wanted).await,
            "" | "application/octet-stream" | "application/x-www-form-urlencoded" => {
                self.picture(app, wanted, asked).await
            }
            image if image.starts_with("image/") => self.picture(app, wanted, asked).await,
            other => Err(Error::invalid(format!(
                "the body's type is \"{other}\"; send a picture as image/* or application/octet-stream, many as \
                 application/zip, or {{\"folder\": PATH}} as application/json"
            ))),
        }
    }

    async fn picture(self, app: &Arc<App>, wanted: Wanted, asked: Put) -> Result<Response> {
        app.requests.check_room()?;
        let name = checked_name(asked.name.as_deref().unwrap_or_default())?;
        let payload = checked_payload(asked.payload.as_deref())?;
        let background = flag("background", asked.background.as_deref())?;
        let bytes = whole(app, &self.headers, self.body).await?;
        let _admitted = app.requests.admit()?;
        let new = New { wanted, name, payload, bytes };
        let outcome = if background {
            add::add_in_background(app, new).await
        } else {
            add::add(app, new).await
        };
        Ok(Reply::json(outcome?.to_json().to_string()).into_response())
    }

    async fn archive(self, app: &Arc<App>, wanted: Wanted) -> Result<Response> {
        app.registry()?;
        let permit = bulk::permit(app)?;
        let limits = UploadLimits {
            noun: "archive",
            bytes_max: ARCHIVE_BYTES_MAX,
            piece_timeout: app.requests.limits.client_timeout,
        };
        // While the body comes, its bytes are not those of a next request.
        let receiving = self.watch.complete();
        let (sender, reader, failure) = upload_channel(None);
        let pieces = UploadPieces::raw(self.body);
        tokio::spawn(async move {
            sender.feed(pieces, limits).await;
            drop(receiving);
        });
        let directory =
            app.collections.config().directory.clone().filter(|directory| directory.is_dir());
        lines(app, wanted, permit, move || {
            Archive::receive(reader, directory.as_deref())
                .map_err(|error| failure.get().unwrap_or(error))
        })
        .await
    }

    async fn folder(self, app: &Arc<App>, wanted: Wanted) -> Result<Response> {
        #[derive(serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Named {
            folder: String,
        }
        app.access.check_admin("folders of the server are read", Some(self.peer), &self.headers)?;
        app.access.check_admin_page(&self.headers)?;
        app.registry()?;
        let named: Named = parsed(app, &self.headers, self.body).await?;
        let permit = bulk::permit(app)?;
        lines(app, wanted, permit, move || Folder::open(&named.folder)).await
    }
}

/// An answer of lines, made by a thread that opens the source first: what is wrong with that is the
/// answer's status.
async fn lines<S: bulk::Source>(
    app: &Arc<App>,
    wanted: Wanted,
    permit: UploadPermit,
    open: impl FnOnce() -> Result<S> + Send + 'static,
) -> Result<Response> {
    let stop = Arc::new(AtomicBool::new(false));
    let (writer, results) = result_channel(stop.clone());
    bulk::start(app, wanted, permit, writer, stop, open)?;
    results.begun().await?;
    let mut response = Response::new(Body::from_stream(results));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

/// Reads a body that is JSON.
async fn parsed<T>(app: &App, headers: &HeaderMap, body: Body) -> Result<T>
where
    T: serde::de::DeserializeOwned + Send + 'static,
{
    app.requests.parse_json(app.requests.read_json_body(headers, body).await?).await
}

/// What the query of a page may say.
#[derive(Default, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Page {
    limit: Option<usize>,
    offset: Option<String>,
    filter: Option<String>,
}

async fn page(State(app): Shared, Path(collection): Path<String>, asked: Given<Page>) -> Reply {
    let page = async {
        let asked = given(asked)?;
        let offset = asked.offset.as_deref().map(str::parse::<PointId>).transpose()?;
        let limit = asked.limit.unwrap_or(PAGE_DEFAULT);
        browse::page(&app, &collection, limit, offset, asked.filter).await
    };
    answer(page.await)
}

async fn drop_collection(State(app): Shared, Path(collection): Path<String>) -> Reply {
    answer(
        browse::drop_collection(&app, &collection).await.map(|()| json!({ "deleted": collection })),
    )
}

/// What the query of a search may say.
#[derive(Default, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Find {
    k: Option<usize>,
    threshold: Option<f32>,
    candidates: Option<usize>,
    explain: Option<String>,
    filter: Option<String>,
}

async fn find(
    State(app): Shared,
    Path(collection): Path<String>,
    asked: Given<Find>,
    headers: HeaderMap,
    body: Body,
) -> Reply {
    let found = async {
        let asked = given(asked)?;
        app.requests.check_room()?;
        let explain = flag("explain", asked.explain.as_deref())?;
        let sample = if media(&headers) == "application/json" {
            #[derive(serde::Deserialize)]
            #[serde(deny_unknown_fields)]
            struct Named {
                id: PointId,
            }
            Sample::Point(parsed::<Named>(&app, &headers, body).await?.id)
        } else {
            Sample::File(whole(&app, &headers, body).await?)
        };
        let _admitted = app.requests.admit()?;
        let asked = Asked {
            k: asked.k.unwrap_or(HITS_DEFAULT),
            threshold: asked.threshold,
            candidates: asked.candidates,
            explain,
            filter: asked.filter,
        };
        search::search(&app, &collection, asked, sample).await
    };
    answer(found.await)
}

async fn missing(
    State(app): Shared,
    Path(collection): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Reply {
    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Ids {
        ids: Vec<Value>,
    }
    let missing = async {
        let asked: Ids = parsed(&app, &headers, body).await?;
        browse::missing(&app, &collection, asked.ids).await
    };
    answer(missing.await)
}

async fn begin_rebuild(
    State(app): Shared,
    Path(collection): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Reply {
    let begun = async {
        let asked: rebuild::Asked = parsed(&app, &headers, body).await?;
        rebuild::begin(&app, &collection, &asked)
    };
    let begun = begun
        .await
        .map(|body| Reply::json(body.to_string()).with_status(http::StatusCode::ACCEPTED));
    Reply::of(begun)
}

async fn rebuild_progress(State(app): Shared, Path(collection): Path<String>) -> Reply {
    answer(rebuild::progress(&app, &collection))
}

/// A picture's bytes never change under its id.
fn kept(reply: Reply) -> Reply {
    reply
        .with_header(header::CACHE_CONTROL, HeaderValue::from_static("private, max-age=86400"))
        .with_header(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"))
}

async fn original(State(app): Shared, Path((collection, id)): Path<(String, String)>) -> Reply {
    let found = async { browse::original(&app, &collection, id.parse()?).await };
    Reply::of(found.await.map(|(media, bytes)| kept(Reply::body(media, bytes))))
}

async fn delete(State(app): Shared, Path((collection, id)): Path<(String, String)>) -> Reply {
    let deleted = async { browse::delete(&app, &collection, id.parse()?).await };
    answer(deleted.await.map(|()| json!({ "deleted": id })))
}

/// What the query of a thumbnail may say.
#[derive(Default, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Small {
    size: Option<u32>,
}

async fn small(
    State(app): Shared,
    Path((collection, id)): Path<(String, String)>,
    asked: Given<Small>,
) -> Reply {
    let made = async {
        let size = given(asked)?.size.unwrap_or(SIDE_DEFAULT);
        browse::small(&app, &collection, id.parse()?, size).await
    };
    Reply::of(made.await.map(|bytes| kept(Reply::body("image/jpeg", bytes))))
}

async fn keypoints(State(app): Shared, Path((collection, id)): Path<(String, String)>) -> Reply {
    let found = async { browse::keypoints(&app, &collection, id.parse()?).await };
    answer(found.await)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_description_names_every_route() {
        crate::loopback::describes(OPENAPI, include_str!("door.rs"));
    }
}
