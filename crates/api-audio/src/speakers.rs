//! Speakers of a recogniser that gives embeddings: enrolling, forgetting, telling who it is.

use std::sync::Arc;

use audio::recogniser::RecogniserKind;
use audio::speakers::Speakers;
use axum::Extension;
use axum::body::Body;
use axum::extract::{Path, State};
use base::{Error, Result};
use http::HeaderMap;
use serde_json::json;
use tokio::sync::oneshot;

use super::find::find;
use super::listen::{Listening, Request};
use inference::CancelOnDrop;

use crate::app::App;
use transport::HeaderTimeout;
use transport::Reply;

use crate::app::Shared;
use transport::Peer;

/// Describes the admin calls of this module in errors.
const ADMIN_CALL: &str = "speakers are enrolled and forgotten";

/// The store of a recogniser, and from which similarity a voice is accepted.
fn store(app: &App, name: &str) -> Result<(Speakers, f32)> {
    let (recogniser, _) = find(app.lifecycle.catalog(), name)?;
    let threshold =
        recogniser.threshold().filter(|_| recogniser.kind == RecogniserKind::Embeddings);
    let threshold = threshold.ok_or_else(|| {
        Error::precondition(format!(
            "recogniser \"{name}\" tells no speakers apart: its kind is not embeddings"
        ))
    })?;
    Ok((app.recordings.speakers(name)?, threshold))
}

pub(super) async fn list(State(app): Shared, Path(name): Path<String>) -> Reply {
    Reply::of(store(&app, &name).map(|(speakers, threshold)| {
        let body =
            json!({ "recogniser": name, "speakers": speakers.names(), "threshold": threshold });
        Reply::json(body.to_string())
    }))
}

/// Listens to a whole recording, and does `then` with its embedding on the recording's thread.
async fn heard<T: Send + 'static>(
    app: &Arc<App>,
    name: &str,
    request: Request,
    then: impl FnOnce(Vec<f32>) -> Result<T> + Send + 'static,
) -> Result<T> {
    let listening = Listening::begin(app, name, request).await?;
    let _guard = CancelOnDrop(listening.stop());
    let (sender, receiver) = oneshot::channel();
    // A send fails only when the client has gone, and then nobody is left to tell.
    listening.on_thread(move |listening| drop(sender.send(listening.embed().and_then(then))))?;
    receiver.await.map_err(|_| Error::internal("the recording's thread ended without an answer"))?
}

pub(super) async fn enrol(
    State(app): Shared,
    Path((name, speaker)): Path<(String, String)>,
    Extension(peer): Extension<Peer>,
    Extension(watch): Extension<HeaderTimeout>,
    headers: HeaderMap,
    body: Body,
) -> Reply {
    let enrolled = async {
        app.access.check_admin(ADMIN_CALL, Some(peer), &headers)?;
        app.access.check_admin_page(&headers)?;
        let (speakers, _) = store(&app, &name)?;
        let known = speaker.clone();
        let then = move |embedding: Vec<f32>| speakers.enrol(&known, &embedding);
        heard(&app, &name, Request { headers, body, watch }, then).await
    };
    let body = |()| Reply::json(json!({ "recogniser": name, "speaker": speaker }).to_string());
    Reply::of(enrolled.await.map(body))
}

pub(super) async fn forget(
    State(app): Shared,
    Path((name, speaker)): Path<(String, String)>,
    Extension(peer): Extension<Peer>,
    headers: HeaderMap,
) -> Reply {
    let forgotten = async {
        app.access.check_admin(ADMIN_CALL, Some(peer), &headers)?;
        app.access.check_admin_page(&headers)?;
        let (speakers, _) = store(&app, &name)?;
        let known = speaker.clone();
        // Writing a file is nothing for a door's thread.
        let removed = tokio::task::spawn_blocking(move || speakers.remove(&known)).await;
        match removed
            .map_err(|error| Error::internal(format!("the file of speakers: {error}")))??
        {
            true => Ok(Reply::json(json!({ "recogniser": name, "speaker": speaker }).to_string())),
            false => Err(unknown(&name, &speaker)),
        }
    };
    Reply::of(forgotten.await)
}

fn unknown(name: &str, speaker: &str) -> Error {
    Error::not_found(format!("recogniser \"{name}\" knows no speaker \"{speaker}\""))
}

pub(super) async fn identify(
    State(app): Shared,
    Path(name): Path<String>,
    Extension(watch): Extension<HeaderTimeout>,
    headers: HeaderMap,
    body: Body,
) -> Reply {
    let identified = async {
        let (speakers, threshold) = store(&app, &name)?;
        let then = move |embedding: Vec<f32>| Ok(speakers.nearest(&embedding));
        let nearest = heard(&app, &name, Request { headers, body, watch }, then).await?;
        let (speaker, similarity) = nearest.unzip();
        let accepted = similarity.is_some_and(|similarity| similarity >= threshold);
        let body = json!({
            "speaker": speaker, "similarity": similarity, "accepted": accepted, "threshold": threshold,
        });
        Ok(Reply::json(body.to_string()))
    };
    Reply::of(identified.await)
}

pub(super) async fn verify(
    State(app): Shared,
    Path((name, speaker)): Path<(String, String)>,
    Extension(watch): Extension<HeaderTimeout>,
    headers: HeaderMap,
    body: Body,
) -> Reply {
    let verified = async {
        let (speakers, threshold) = store(&app, &name)?;
        if !speakers.names().contains(&speaker) {
            return Err(unknown(&name, &speaker));
        }
        let known = speaker.clone();
        let then = move |embedding: Vec<f32>| Ok(speakers.similarity(&known, &embedding));
        let similarity = heard(&app, &name, Request { headers, body, watch }, then).await?;
        // Forgotten while the recording was sent.
        let similarity = similarity.ok_or_else(|| unknown(&name, &speaker))?;
        let body = json!({
            "speaker": speaker, "similarity": similarity, "accepted": similarity >= threshold, "threshold": threshold,
        });
        Ok(Reply::json(body.to_string()))
    };
    Reply::of(verified.await)
}
