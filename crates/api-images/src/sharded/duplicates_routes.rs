//! The steps of a search for duplicates in the local collection of a shard, over HTTP. Roots call
//! these routes; they are not for clients.
//!
//! Each request runs on a thread of its own at low priority, so that it takes no search thread from
//! a query. A node limits how many run at the same time. A request ends early if the root has
//! disconnected.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::routing::post;
use base::{Error, ErrorKind, Result};
use http::HeaderMap;
use matching::Scratch;
use search::collection::PointParts;
use search::duplicates::{NEIGHBOURS_MAX, NeighbourSearch, PairOutcome, PairVerifier};
use search::registry::NamedCollection;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::oneshot;
use transport::{Reply, Shared};

use super::duplicates::{
    AcceptedNeighbour, EmbeddingsPage, EmbeddingsRequest, GroupImage, GroupImagesRequest,
    NeighboursAnswer, NeighboursRequest, RecordsAnswer, RecordsRequest, StoredRecord, VerifyAnswer,
    VerifyRequest,
};
use super::routes::encoded;
use crate::duplicates_wire::duplicate_image;
use crate::endpoints::parsed;
use crate::state::ImagesState;

/// Maximum points of one request.
const POINTS_MAX: usize = 1024;
/// Maximum pairs of one request.
const PAIRS_MAX: usize = POINTS_MAX * NEIGHBOURS_MAX;

/// Returns the routes, below the name of a shard's local collection.
pub(super) fn routes() -> Router<Arc<ImagesState>> {
    let at = |step: &str| format!("/v1/shards/{{collection}}/duplicates/{step}");
    Router::new()
        .route(&at("embeddings"), post(read_embeddings))
        .route(&at("neighbours"), post(read_neighbours))
        .route(&at("records"), post(read_records))
        .route(&at("verify"), post(verify))
        .route(&at("images"), post(read_images))
}

async fn read_embeddings(
    state: Shared<ImagesState>,
    name: Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Reply {
    answer(state, name, headers, body, embeddings).await
}

async fn read_neighbours(
    state: Shared<ImagesState>,
    name: Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Reply {
    answer(state, name, headers, body, neighbours).await
}

async fn read_records(
    state: Shared<ImagesState>,
    name: Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Reply {
    answer(state, name, headers, body, records).await
}

async fn verify(
    state: Shared<ImagesState>,
    name: Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Reply {
    answer(state, name, headers, body, verified).await
}

async fn read_images(
    state: Shared<ImagesState>,
    name: Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Reply {
    answer(state, name, headers, body, images).await
}

/// One step in the local collection.
type ShardStep<Q, A> = fn(&NamedCollection, Q, &CallerWatch) -> Result<A>;

/// Answers with the outcome of a step on a thread of its own.
async fn answer<Q, A>(
    State(state): Shared<ImagesState>,
    Path(name): Path<String>,
    headers: HeaderMap,
    body: Body,
    step: ShardStep<Q, A>,
) -> Reply
where
    Q: DeserializeOwned + Send + 'static,
    A: Serialize + Send + 'static,
{
    let found = async {
        let request: Q = parsed(&state.services, &headers, body).await?;
        let named = state.services.registry()?.get(&name)?;
        at_low_priority(move |caller| {
            check_open(&named)?;
            encoded(&step(&named, request, caller)?)
        })
        .await
    };
    Reply::of(found.await.map(Reply::json))
}

/// Flag that tells a step if its caller has disconnected.
struct CallerWatch(Arc<AtomicBool>);

impl CallerWatch {
    /// Checks that the caller is still connected.
    ///
    /// # Errors
    /// `Cancelled` if the caller has disconnected.
    fn check(&self) -> Result<()> {
        if self.0.load(Ordering::Relaxed) {
            Err(Error::cancelled("the root has disconnected"))
        } else {
            Ok(())
        }
    }
}

/// Caller of a step. Dropping it tells [`CallerWatch`] that the caller has disconnected.
struct StepCaller(Arc<AtomicBool>);

impl Drop for StepCaller {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs `work` on a thread of its own at low priority.
///
/// # Errors
/// `ResourceExhausted` if no thread can be started; the errors of `work`.
async fn at_low_priority<T: Send + 'static>(
    work: impl FnOnce(&CallerWatch) -> Result<T> + Send + 'static,
) -> Result<T> {
    let (sender, receiver) = oneshot::channel();
    let disconnected = Arc::new(AtomicBool::new(false));
    let watch = CallerWatch(disconnected.clone());
    let _caller = StepCaller(disconnected);
    let body = move || {
        // Not idle priority, because it takes locks of queries.
        os::thread::enter_low_priority("finding duplicates");
        drop(sender.send(work(&watch)));
    };
    os::thread::spawn("duplicates-step", body)?;
    receiver.await.unwrap_or_else(|_| Err(Error::internal("a step of the search panicked")))
}

/// Checks that all segments are open. Otherwise a step would miss points without notice.
///
/// # Errors
/// `Unavailable` while segments are being opened.
fn check_open(named: &NamedCollection) -> Result<()> {
    let list = named.collection().ids_from(u64::MAX, 0, None)?;
    match list.unseen {
        Some(error) if error.kind() == ErrorKind::Unavailable => Err(error),
        _ => Ok(()),
    }
}

/// Checks the number of `what` of a request.
fn check_count(what: &str, count: usize, most: usize) -> Result<()> {
    if count > most {
        return Err(Error::invalid(format!("{count} {what} are more than {most}")));
    }
    Ok(())
}

/// Returns the embeddings of the next points from an internal id on. Counts points that cannot be
/// read.
fn embeddings(
    named: &NamedCollection,
    request: EmbeddingsRequest,
    _: &CallerWatch,
) -> Result<EmbeddingsPage> {
    check_count("points", request.max, POINTS_MAX)?;
    let list = named.collection().ids_from(request.from, request.max.max(1), None)?;
    let last = list.ids.last().filter(|_| list.more);
    let mut page = EmbeddingsPage {
        next: last.and_then(|last| last.checked_add(1)),
        ..EmbeddingsPage::default()
    };
    let parts = PointParts { embedding: true, ..PointParts::NONE };
    for point in named.collection().points(&list.ids, parts) {
        match point {
            Ok(Some(point)) => {
                page.ids.push(point.id);
                page.embeddings
                    .extend(point.embedding.iter().flat_map(|value| value.to_le_bytes()));
            }
            // The point was removed meanwhile.
            Ok(None) => {}
            Err(error) if error.kind() == ErrorKind::Unavailable => return Err(error),
            Err(_) => page.unreadable += 1,
        }
    }
    Ok(page)
}

/// Returns the values of embeddings of `dims` values.
fn values(bytes: &[u8], dims: usize) -> Result<Vec<f32>> {
    let size = dims.max(1) * size_of::<f32>();
    if !bytes.len().is_multiple_of(size) {
        return Err(Error::invalid(format!(
            "{} bytes are not embeddings of {dims} values",
            bytes.len()
        )));
    }
    check_count("embeddings", bytes.len() / size, POINTS_MAX)?;
    let values = bytes.as_chunks().0.iter();
    Ok(values.map(|value| f32::from_le_bytes(*value)).collect())
}

/// Finds the points of the local collection that are similar to each embedding of the request.
fn neighbours(
    named: &NamedCollection,
    request: NeighboursRequest,
    caller: &CallerWatch,
) -> Result<NeighboursAnswer> {
    let settings = named.settings();
    let NeighboursRequest { threshold, embeddings } = request;
    if !threshold.is_finite() {
        return Err(Error::invalid("\"threshold\" is not a finite 32-bit number"));
    }
    let values = values(&embeddings, settings.dims)?;
    let mut search = NeighbourSearch::new(named.collection(), settings.metric, threshold)?;
    let mut answer = NeighboursAnswer::default();
    for embedding in values.chunks_exact(settings.dims.max(1)) {
        caller.check()?;
        let found = search.near(embedding, |_| true)?;
        answer.unreadable += found.unreadable;
        answer.near.push(found.points);
    }
    Ok(answer)
}

/// Returns the records of points. `None` for points that do not exist.
fn stored_records(named: &NamedCollection, ids: &[u64]) -> Vec<Result<Option<Vec<u8>>>> {
    let parts = PointParts { record: true, ..PointParts::NONE };
    let points = named.collection().points(ids, parts).into_iter();
    points.map(|point| point.map(|point| point.map(|point| point.record))).collect()
}

/// Returns the records of points, until they have `bytes_max` bytes together. The caller requests
/// the others again.
fn records(
    named: &NamedCollection,
    request: RecordsRequest,
    _: &CallerWatch,
) -> Result<RecordsAnswer> {
    check_count("points", request.ids.len(), POINTS_MAX)?;
    let mut answer = RecordsAnswer::default();
    let mut bytes = 0;
    for id in request.ids {
        // One record at a time: the records of all points may take much memory.
        for record in stored_records(named, &[id]) {
            answer.records.push(match record {
                Ok(Some(record)) => {
                    bytes += record.len();
                    StoredRecord::Present(record)
                }
                Ok(None) => StoredRecord::Removed,
                Err(error) if error.kind() == ErrorKind::Unavailable => return Err(error),
                Err(_) => StoredRecord::Unreadable,
            });
        }
        if bytes >= request.bytes_max {
            break;
        }
    }
    Ok(answer)
}

/// Compares the keypoints of each probe with those of its candidates.
fn verified(
    named: &NamedCollection,
    request: VerifyRequest,
    caller: &CallerWatch,
) -> Result<VerifyAnswer> {
    let VerifyRequest { accept, probes } = request;
    if !accept.is_finite() {
        return Err(Error::invalid("\"accept\" is not a finite 32-bit number"));
    }
    check_count("pairs", probes.iter().map(|probe| probe.ids.len()).sum(), PAIRS_MAX)?;
    let mut answer = VerifyAnswer::default();
    let mut scratch = Scratch::new();
    for (at, probe) in probes.iter().enumerate() {
        caller.check()?;
        let verifier = PairVerifier::new(&probe.record, accept)
            .map_err(|error| Error::invalid(format!("probes[{at}]")).caused_by(error))?;
        for (id, record) in probe.ids.iter().zip(stored_records(named, &probe.ids)) {
            match verifier.compare(record, &mut scratch) {
                PairOutcome::Accepted(score) => {
                    answer.accepted.push(AcceptedNeighbour { probe: at, id: *id, score });
                }
                PairOutcome::Refused => answer.refused += 1,
                // The point was removed, or it is in another shard.
                PairOutcome::Removed => {}
                PairOutcome::Unreadable => answer.unreadable += 1,
            }
        }
    }
    Ok(answer)
}

/// Returns the images of points as they are shown. Leaves out points that are not in this shard or
/// cannot be read.
fn images(
    named: &NamedCollection,
    request: GroupImagesRequest,
    _: &CallerWatch,
) -> Result<Vec<GroupImage>> {
    check_count("points", request.ids.len(), POINTS_MAX)?;
    let mut images = Vec::new();
    let points = named.resolve(&request.ids, PointParts::PAYLOAD);
    for (key, point) in request.ids.iter().zip(points) {
        match point {
            Ok(Some(point)) => {
                images.push(GroupImage { key: *key, shown: duplicate_image(&point) });
            }
            Err(error) if error.kind() == ErrorKind::Unavailable => return Err(error),
            // The point was removed, it is in another shard, or it is damaged and cannot be shown.
            Ok(None) | Err(_) => {}
        }
    }
    Ok(images)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn embeddings_have_the_length_of_the_collection() {
        let bytes: Vec<u8> =
            [1.0_f32, -2.5, 0.0, 3.0].iter().flat_map(|it| it.to_le_bytes()).collect();
        assert_eq!(values(&bytes, 2).unwrap(), [1.0, -2.5, 0.0, 3.0]);
        assert!(values(&bytes, 3).is_err());
        let many = vec![0; (POINTS_MAX + 1) * 4];
        assert!(values(&many, 1).unwrap_err().message().contains("1025 embeddings"));
        assert!(values(&many[4..], 1).is_ok());
    }

    #[test]
    fn a_step_learns_that_its_caller_has_disconnected() {
        let flag = Arc::new(AtomicBool::new(false));
        let (caller, watch) = (StepCaller(flag.clone()), CallerWatch(flag));
        assert!(watch.check().is_ok());
        drop(caller);
        assert_eq!(watch.check().unwrap_err().kind(), ErrorKind::Cancelled);
    }
}
