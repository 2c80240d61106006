//! One picture that a caller waits for: decoded on a thread for pictures, embedded by the scheduler
//! like any request.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use base::{Error, Result};
use bytes::Bytes;
use serde_json::{Map, Value};
use tokio::sync::oneshot;

use super::embedder::Embedder;
use super::features::{self, Features};
use super::ingest::{Job, Piece};
use super::store::{self, Outcome, Ready};
use super::target::{Kind, Target, Wanted};
use inference::{InferenceRequest, RequestTicket};

use crate::app::App;

/// The protocol's name in metrics.
pub(super) const PROTOCOL: &str = "images";

/// A picture and what is to become of it.
pub(super) struct New {
    pub(super) wanted: Wanted,
    pub(super) name: String,
    pub(super) payload: Map<String, Value>,
    pub(super) bytes: Bytes,
}

/// The model that embeds for a collection, or for one that is to be made.
///
/// # Errors
/// Those of [`Embedder::find`].
pub(super) fn embedder(
    app: &App,
    target: Option<&Target>,
    wanted: Option<&str>,
) -> Result<Embedder> {
    let configured = app.collections.config().embedding_model.as_deref();
    let name = target.map(|target| target.model.as_str()).or(wanted).or(configured);
    Embedder::find(app.lifecycle.catalog(), name)
}

/// A vector, by the scheduler.
///
/// # Errors
/// Those of [`App::answer`] and of the model's answer.
pub(super) async fn embed(app: &App, embedder: &Embedder, tensor: Vec<f32>) -> Result<Vec<f32>> {
    let call = InferenceRequest {
        servable: embedder.servable.clone(),
        inputs: embedder.inputs(&[tensor])?,
        outputs: embedder.wanted(),
        timeout: None,
        priority: 0,
    };
    let answer = app.inference.infer(&RequestTicket::start(PROTOCOL), call).await?;
    let embedding = embedder.embeddings(&answer.outputs, 1)?.into_iter().next();
    embedding.ok_or_else(|| Error::internal("a model gave no vector"))
}

/// Puts a picture in; durable once this returns.
///
/// # Errors
/// Those of the picture, the model, the place of originals and the collection.
pub(super) async fn add(app: &Arc<App>, new: New) -> Result<Outcome> {
    let outcome = now(app, new).await;
    super::count(&app.metrics, &outcome);
    outcome
}

/// What is known of a picture once it was looked at.
enum Looked {
    Present(Outcome),
    New(Box<Features>, Embedder),
}

async fn now(app: &Arc<App>, new: New) -> Result<Outcome> {
    let registry = app.registry()?;
    let New { wanted, name, payload, bytes } = new;
    let existing = Target::existing(&registry, &wanted)?;
    let look = {
        let (app, existing, bytes) = (app.clone(), existing.clone(), bytes.clone());
        let (model, kind) = (wanted.model.clone(), wanted.kind);
        move || {
            let known = existing
                .as_ref()
                .map(|target| store::present(&target.named, &[features::id_of(&bytes)]));
            if let Some(outcome) = known.into_iter().flatten().next().transpose()?.flatten() {
                return Ok(Looked::Present(outcome));
            }
            let embedder = embedder(&app, existing.as_ref(), model.as_deref())?;
            let kind = existing.as_ref().map(|target| target.kind).or(kind).unwrap_or(Kind::Photo);
            let memory = features::reserve(&app.requests.memory, kind, &bytes, &name)?;
            let features = features::extract(&memory, kind, &bytes, &name, &embedder)?;
            Ok(Looked::New(Box::new(features), embedder))
        }
    };
    let (mut features, embedder) = match app.images.pool.run(look).await? {
        Looked::Present(outcome) => return Ok(outcome),
        Looked::New(features, embedder) => (features, embedder),
    };
    let embedding = embed(app, &embedder, std::mem::take(&mut features.tensor)).await?;
    let collection = wanted.name.clone();
    let target = match existing {
        Some(target) => target,
        None => {
            let (registry, dims, model) =
                (registry.clone(), embedding.len(), embedder.name().to_owned());
            app.images.pool.run(move || Target::make(&registry, &wanted, dims, &model)).await?
        }
    };
    target.check_dims(embedding.len())?;
    app.images.originals.put(&features.facts.original(&target.space), bytes).await?;
    let write = move || {
        let _writing = target.writing(&registry, &collection)?;
        let payload = features.facts.payload(&payload, &target.space);
        let picture = Ready { features: *features, embedding, payload };
        store::write(&target.named, &picture)?;
        Ok(Outcome::added(&picture.features))
    };
    app.images.pool.run(write).await
}

/// The same at idle priority.
///
/// # Errors
/// As [`add`], and `ResourceExhausted` where too much is being put in already.
pub(super) async fn add_in_background(app: &Arc<App>, new: New) -> Result<Outcome> {
    let (sender, receiver) = oneshot::channel();
    let job = Job::new(app, new.wanted, Arc::new(AtomicBool::new(false)));
    // A send fails only when the caller has gone; the picture is put in all the same.
    let done = Box::new(move |outcome| drop(sender.send(outcome)));
    app.images.ingest.try_send(Piece {
        job,
        name: new.name,
        bytes: new.bytes,
        payload: new.payload,
        done,
    })?;
    receiver
        .await
        .unwrap_or_else(|_| Err(Error::internal("putting this picture in ended in a panic")))
}
