//! The handlers of background jobs of a collection: rebuilds and searches for duplicates.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use axum::Extension;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use http::HeaderMap;
use transport::access::KeyGrant;
use transport::result_stream::result_channel;
use transport::{Reply, Shared};

use super::{answer, parsed};
use crate::bulk_requests::line_response;
use crate::state::ImagesState;
use crate::{duplicates, rebuild};

pub(super) async fn begin_rebuild(
    State(state): Shared<ImagesState>,
    Path(collection): Path<String>,
    grant: Option<Extension<KeyGrant>>,
    headers: HeaderMap,
    body: Body,
) -> Reply {
    let begun = async {
        let request: rebuild::RebuildRequest = parsed(&state.services, &headers, body).await?;
        grant.as_deref().map_or(Ok(()), |grant| grant.check_model(&request.model))?;
        rebuild::begin(&state, &collection, &request)
    };
    let begun = begun
        .await
        .map(|body| Reply::json(body.to_string()).with_status(http::StatusCode::ACCEPTED));
    Reply::of(begun)
}

pub(super) async fn rebuild_progress(
    State(state): Shared<ImagesState>,
    Path(collection): Path<String>,
) -> Reply {
    answer(state.rebuilds.progress(&collection))
}

pub(super) async fn begin_duplicates(
    State(state): Shared<ImagesState>,
    Path(collection): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Reply {
    let begun = async {
        let request = parsed(&state.services, &headers, body).await?;
        let own = state.clone();
        // It may remove the files of an earlier result.
        state.services.pool.run(move || duplicates::begin(&own, &collection, &request)).await
    };
    let begun = begun
        .await
        .map(|body| Reply::json(body.to_string()).with_status(http::StatusCode::ACCEPTED));
    Reply::of(begun)
}

pub(super) async fn duplicates_progress(
    State(state): Shared<ImagesState>,
    Path(collection): Path<String>,
) -> Reply {
    let progress = async {
        if let Some(running) = duplicates::running_progress(&state, &collection)? {
            return Ok(running);
        }
        let own = state.clone();
        state.services.pool.run_wanted(move || duplicates::progress(&own, &collection)).await
    };
    answer(progress.await)
}

pub(super) async fn cancel_duplicates(
    State(state): Shared<ImagesState>,
    Path(collection): Path<String>,
) -> Reply {
    let own = state.clone();
    answer(state.services.pool.run(move || duplicates::cancel(&own, &collection)).await)
}

pub(super) async fn duplicate_groups(
    State(state): Shared<ImagesState>,
    Path(collection): Path<String>,
) -> Response {
    let begun = async {
        let permit = state.bulk_permit().await?;
        let (writer, results) = result_channel(Arc::new(AtomicBool::new(false)));
        let own = state.clone();
        let begin = move || duplicates::write_groups(&own, &collection, permit, writer);
        state.services.pool.run(begin).await?;
        line_response(results).await
    };
    begun.await.unwrap_or_else(|error| Reply::error(&error).into_response())
}
