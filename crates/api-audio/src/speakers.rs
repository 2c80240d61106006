//! Speakers of a recogniser of embeddings: enrols, forgets, identifies and verifies them.

use audio::recogniser::RecogniserKind;
use audio::speakers::{Speakers, check_name};
use axum::Extension;
use axum::body::Body;
use axum::extract::{Path, State};
use base::{Error, Result};
use http::{HeaderMap, Uri};
use inference::CancelOnDrop;
use serde_json::json;
use tokio::sync::oneshot;
use transport::access::{AdminRequest, Caller};
use transport::{HeaderTimeout, Peer, Reply, Shared, check_no_query};

use super::recognisers::find_recogniser;
use super::state::AudioState;
use super::upload::{AudioRequest, AudioUpload};

/// Description of the admin calls of this module in errors.
const ADMIN_CALL: &str = "speakers are enrolled and removed";

fn request<'a>(action: &'a str, subject: &'a str, caller: Caller<'a>) -> AdminRequest<'a> {
    AdminRequest { calls: ADMIN_CALL, action, subject, caller }
}

/// The enrolled speakers of a recogniser.
struct RecogniserSpeakers {
    speakers: Speakers,
    /// Smallest similarity that is accepted.
    threshold: f32,
}

/// Returns the speakers of the recogniser `name`.
///
/// # Errors
/// `FailedPrecondition` if the recogniser does not distinguish speakers; the errors of
/// [`find_recogniser`] and of the file of speakers.
async fn speakers_of(state: &AudioState, name: &str) -> Result<RecogniserSpeakers> {
    let (recogniser, _) = find_recogniser(state.catalog(), name)?;
    let threshold =
        recogniser.threshold().filter(|_| recogniser.kind == RecogniserKind::Embeddings);
    let threshold = threshold.ok_or_else(|| {
        Error::precondition(format!(
            "recogniser \"{name}\" does not distinguish speakers; use one of the kind \
             embeddings, such as voiceprint"
        ))
    })?;
    Ok(RecogniserSpeakers { speakers: state.speakers.get(name).await?, threshold })
}

pub(crate) async fn list(State(state): Shared<AudioState>, Path(name): Path<String>) -> Reply {
    Reply::of(speakers_of(&state, &name).await.map(|found| {
        let RecogniserSpeakers { speakers, threshold } = found;
        let body =
            json!({ "recogniser": name, "speakers": speakers.names(), "threshold": threshold });
        Reply::json(body.to_string())
    }))
}

/// Outcome of work with the embedding of a recording.
struct EmbeddingOutcome<T> {
    value: T,
    /// True if a part of the recording is damaged, so that the embedding lacks it.
    partial: bool,
}

/// Embeds a whole recording, and calls `then` with the embedding on the recording's thread.
async fn with_embedding<T: Send + 'static>(
    state: &AudioState,
    name: &str,
    request: AudioRequest,
    then: impl FnOnce(Vec<f32>) -> Result<T> + Send + 'static,
) -> Result<EmbeddingOutcome<T>> {
    let upload = Box::pin(AudioUpload::begin(state, name, request)).await?;
    let _guard = CancelOnDrop(upload.stop());
    let (sender, receiver) = oneshot::channel();
    let work = |upload: AudioUpload| {
        let embedding = upload.embed()?;
        let partial = embedding.summary.partial;
        then(embedding.vector).map(|value| EmbeddingOutcome { value, partial })
    };
    // The send fails only if the client has disconnected.
    upload.on_thread(move |upload| drop(sender.send(work(upload))))?;
    receiver.await.map_err(|_| Error::internal("the recording's thread ended without an answer"))?
}

pub(crate) async fn enrol(
    State(state): Shared<AudioState>,
    Path((name, speaker)): Path<(String, String)>,
    Extension(peer): Extension<Peer>,
    Extension(watch): Extension<HeaderTimeout>,
    uri: Uri,
    headers: HeaderMap,
    body: Body,
) -> Reply {
    let upload = AudioRequest::new(&state, headers.clone(), body, watch);
    let enrolled = async {
        check_no_query(&uri)?;
        let speakers = speakers_of(&state, &name).await?.speakers;
        // An upload may take minutes.
        check_name(&speaker)?;
        let known = speaker.clone();
        let then = move |embedding: Vec<f32>| speakers.enrol(&known, &embedding);
        with_embedding(&state, &name, upload, then).await
    };
    let caller = Caller { peer: Some(peer), headers: &headers };
    let subject = format!("{name}/{speaker}");
    let enrolled = state.access.admin(request("enrol speaker", &subject, caller), enrolled);
    let body = |enrolled: EmbeddingOutcome<()>| {
        let partial = enrolled.partial;
        let body = json!({ "recogniser": name, "speaker": speaker, "partial": partial });
        Reply::json(body.to_string())
    };
    Reply::of(enrolled.await.map(body))
}

pub(crate) async fn forget(
    State(state): Shared<AudioState>,
    Path((name, speaker)): Path<(String, String)>,
    Extension(peer): Extension<Peer>,
    headers: HeaderMap,
) -> Reply {
    let forgotten = async {
        let speakers = speakers_of(&state, &name).await?.speakers;
        let known = speaker.clone();
        // Writing the file would block a connection thread.
        let removed = tokio::task::spawn_blocking(move || speakers.remove(&known)).await;
        if removed.map_err(|error| Error::internal("the file of speakers").caused_by(error))?? {
            Ok(Reply::json(json!({ "recogniser": name, "speaker": speaker }).to_string()))
        } else {
            Err(unknown(&name, &speaker))
        }
    };
    let caller = Caller { peer: Some(peer), headers: &headers };
    let subject = format!("{name}/{speaker}");
    let forgotten = state.access.admin(request("forget speaker", &subject, caller), forgotten);
    Reply::of(forgotten.await)
}

fn unknown(name: &str, speaker: &str) -> Error {
    Error::not_found(format!(
        "recogniser \"{name}\" has no speaker \"{speaker}\"; GET /v1/audio/{name}/speakers lists them"
    ))
}

pub(crate) async fn identify(
    State(state): Shared<AudioState>,
    Path(name): Path<String>,
    Extension(watch): Extension<HeaderTimeout>,
    uri: Uri,
    headers: HeaderMap,
    body: Body,
) -> Reply {
    let upload = AudioRequest::new(&state, headers, body, watch);
    let identified = async {
        check_no_query(&uri)?;
        let RecogniserSpeakers { speakers, threshold } = speakers_of(&state, &name).await?;
        let then = move |embedding: Vec<f32>| {
            speakers.check_dimension(&embedding)?;
            Ok(speakers.nearest(&embedding))
        };
        let EmbeddingOutcome { value: nearest, partial } =
            with_embedding(&state, &name, upload, then).await?;
        let (speaker, similarity) = nearest.unzip();
        let accepted = similarity.is_some_and(|similarity| similarity >= threshold);
        let body = json!({
            "speaker": speaker, "similarity": similarity, "accepted": accepted, "threshold": threshold,
            "partial": partial,
        });
        Ok(Reply::json(body.to_string()))
    };
    Reply::of(identified.await)
}

pub(crate) async fn verify(
    State(state): Shared<AudioState>,
    Path((name, speaker)): Path<(String, String)>,
    Extension(watch): Extension<HeaderTimeout>,
    uri: Uri,
    headers: HeaderMap,
    body: Body,
) -> Reply {
    let upload = AudioRequest::new(&state, headers, body, watch);
    let verified = async {
        check_no_query(&uri)?;
        let RecogniserSpeakers { speakers, threshold } = speakers_of(&state, &name).await?;
        if !speakers.names().contains(&speaker) {
            return Err(unknown(&name, &speaker));
        }
        let known = speaker.clone();
        let then = move |embedding: Vec<f32>| {
            speakers.check_dimension(&embedding)?;
            Ok(speakers.similarity(&known, &embedding))
        };
        let EmbeddingOutcome { value: similarity, partial } =
            with_embedding(&state, &name, upload, then).await?;
        // The speaker may have been forgotten during the upload.
        let similarity = similarity.ok_or_else(|| unknown(&name, &speaker))?;
        let body = json!({
            "speaker": speaker, "similarity": similarity, "accepted": similarity >= threshold, "threshold": threshold,
            "partial": partial,
        });
        Ok(Reply::json(body.to_string()))
    };
    Reply::of(verified.await)
}
