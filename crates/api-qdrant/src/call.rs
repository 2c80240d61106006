//! One request: reads it within its limits, runs it on the right thread, and answers in Qdrant's
//! envelope.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::{FromRequest, FromRequestParts, RawPathParams, Request};
use base::{Error, ErrorKind, Result};
use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use metrics::KindLabels;
use search::collection::{SearchThread, SliceOutcome, SliceProgress, in_slice, until};
use search::registry::{CollectionLookup, NamedCollection, Registry, TaskProgress};
use serde::Serialize;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use transport::Reply;
use transport::access::KeyGrant;

use crate::json::{self, QueryRequest};
use crate::params::RequestParams;
use crate::response_memory::ResponseMemory;
use crate::state::{CollectionsState, ImageCollections};
use crate::write_threads::WriteJob;

/// Maximum objects in the body of a query: searches of a batch, and conditions of filters, two
/// objects each.
const QUERY_OBJECTS_MAX: usize = 1 << 16;
/// Longest wait of a request for a collection that is being opened.
const OPENING_WAIT_MAX: Duration = Duration::from_secs(5);
/// Time between two checks if a collection is open.
const OPENING_CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// Retry advice for a collection that was not open in time.
const OPENING_RETRY: Duration = Duration::from_secs(1);

/// Parts of a collection that a read needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NeededParts {
    /// All parts. The read waits for them, and is refused after [`OPENING_WAIT_MAX`].
    All,
    /// The open parts. The read waits only while the registry opens the collection.
    Open,
}

/// Extension of a request that a node of a cluster makes to the collection of a shard. Requests
/// with the same body share clones of it, so that the query in the body is parsed once.
#[derive(Clone, Debug, Default)]
pub struct ShardCall {
    query: Arc<OnceLock<QueryRequest>>,
}

/// The parts of a request that its handler uses besides the body.
pub(crate) struct CallContext {
    /// The collection's name or alias; empty if the path has none.
    pub(crate) collection: String,
    /// The part of the collection in the path, such as a point or a field; empty if the path has
    /// none.
    pub(crate) item: String,
    /// The earlier end of the client's timeout and the server's.
    pub(crate) deadline: Instant,
    /// True if the client waits for a change.
    pub(crate) wait: bool,
    /// Collections of images, whose points this interface does not write.
    pub(crate) images: Arc<dyn ImageCollections>,
    /// Rights of the request's key; `None` if the server needs no keys.
    pub(crate) grant: Option<KeyGrant>,
    /// All collections, for reads that name another one; `None` for other requests.
    pub(crate) collections: Option<CollectionLookup>,
    /// The call of a node to the collection of a shard; `None` for other requests.
    pub(crate) shard_call: Option<ShardCall>,
    /// Memory of the points of the response.
    pub(crate) memory: Arc<ResponseMemory>,
}

impl CallContext {
    /// Returns true if a root of a cluster merges the response with those of other shards.
    pub(crate) fn for_root(&self) -> bool {
        self.shard_call.is_some()
    }

    /// Parses the query in `body`, unless another call with the same body has parsed it.
    ///
    /// # Errors
    /// As [`json::parse`].
    pub(crate) fn parse_query(&self, body: &[u8]) -> Result<QueryRequest> {
        let Some(ShardCall { query }) = &self.shard_call else { return json::parse(body) };
        if let Some(known) = query.get() {
            return Ok(known.clone());
        }
        let parsed = json::parse(body)?;
        Ok(query.get_or_init(|| parsed).clone())
    }

    /// Returns true if the request's key may use the collection `name`.
    pub(crate) fn sees(&self, name: &str) -> bool {
        self.grant.as_ref().is_none_or(|grant| grant.sees_collection(name))
    }

    /// Returns the collection `name`, which the request names in addition to its own.
    ///
    /// # Errors
    /// `PermissionDenied` if the request's key may not use it; `NotFound`; `Unavailable` while it
    /// is being opened.
    pub(crate) fn other_collection(&self, name: &str) -> Result<Arc<NamedCollection>> {
        let shown: String = name.chars().take(80).collect();
        if !self.sees(name) {
            let message = format!("the key may not use the collection {shown:?}");
            return Err(Error::denied(message));
        }
        let absent = || Error::not_found(format!("there is no collection {shown:?}"));
        let named = self.collections.as_ref().ok_or_else(absent)?.get(name)?;
        if named.collection().opening() {
            let message = format!("the collection {shown:?} is still being opened; try again");
            return Err(Error::unavailable(message).with_retry_after(OPENING_RETRY));
        }
        Ok(named)
    }
}

/// A request that is not handled yet.
pub(crate) struct RestCall {
    state: Arc<CollectionsState>,
    context: CallContext,
    headers: HeaderMap,
    body: Body,
    started: Instant,
}

/// Handler that keeps its progress in a `P` while a slice of its work pauses.
type StepHandler<T, P> =
    fn(&NamedCollection, &mut SearchThread, &CallContext, &[u8], &mut P) -> Result<T>;

/// JSON text of a result.
pub(crate) type EncodedResult = Result<Vec<u8>>;

impl FromRequest<Arc<CollectionsState>> for RestCall {
    type Rejection = Reply;

    async fn from_request(
        request: Request,
        state: &Arc<CollectionsState>,
    ) -> Result<RestCall, Reply> {
        let started = Instant::now();
        let (mut parts, body) = request.into_parts();
        let path = RawPathParams::from_request_parts(&mut parts, state).await;
        let mut context = path
            .map_err(|error| Error::invalid(format!("Invalid URL: {}", error.body_text())))
            .and_then(|path| {
                let grant = parts.extensions.get().cloned();
                context(state, &path, RequestParams::parse(&parts.uri)?, started, grant)
            })
            .map_err(|error| refuse(&error, started.elapsed()))?;
        context.shard_call = parts.extensions.get().cloned();
        Ok(RestCall { state: state.clone(), context, headers: parts.headers, body, started })
    }
}

/// Builds the context of a request from its path, its parameters and its key.
fn context(
    state: &CollectionsState,
    path: &RawPathParams,
    params: RequestParams,
    started: Instant,
    grant: Option<KeyGrant>,
) -> Result<CallContext> {
    let part = |name: &str| -> String {
        let found = path.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| value.to_owned()).unwrap_or_default()
    };
    let collection = part("collection");
    if collection.len() > json::NAME_BYTES_MAX {
        return Err(json::name_too_long(collection.len()));
    }
    let time_max = state.requests.limits.request_timeout;
    Ok(CallContext {
        collection,
        item: part("item"),
        deadline: started + params.timeout.map_or(time_max, |timeout| timeout.min(time_max)),
        wait: params.wait,
        images: state.images.clone(),
        grant,
        collections: None,
        shard_call: None,
        memory: ResponseMemory::new(&state.requests.memory),
    })
}

impl RestCall {
    /// Answers from memory, on the thread of the connection.
    pub(crate) async fn at_once<T: Serialize>(
        self,
        handler: fn(&Registry, &CallContext) -> Result<T>,
    ) -> Reply {
        let registry = self.state.registry.registry();
        let result = registry.and_then(|registry| encode(&handler(&registry, &self.context)?));
        reply(result, self.started)
    }

    /// Answers from a collection's points, on a search thread. Waits for a collection that is being
    /// opened, for at most [`OPENING_WAIT_MAX`]. A result from its open part would lack points
    /// without notice.
    pub(crate) async fn read<T: Serialize + 'static>(
        self,
        handler: fn(&NamedCollection, &mut SearchThread, &CallContext, &[u8]) -> Result<T>,
    ) -> Reply {
        let started = self.started;
        reply(self.run_on_search_thread(handler, NeededParts::All).await, started)
    }

    /// Answers as [`RestCall::read`] does. After a pause, `handler` continues from its progress.
    pub(crate) async fn read_in_steps<T: Serialize + 'static, P: Default + Send + 'static>(
        self,
        handler: StepHandler<T, P>,
    ) -> Reply {
        let started = self.started;
        let mut progress = P::default();
        let step =
            move |named: &NamedCollection,
                  thread: &mut SearchThread,
                  context: &CallContext,
                  body: &[u8]| { handler(named, thread, context, body, &mut progress) };
        reply(self.run_on_search_thread(step, NeededParts::All).await, started)
    }

    /// Answers as [`RestCall::read`] does. Parts of the collection may be closed.
    pub(crate) async fn inspect<T: Serialize + 'static>(
        self,
        handler: fn(&NamedCollection, &mut SearchThread, &CallContext, &[u8]) -> Result<T>,
    ) -> Reply {
        let started = self.started;
        reply(self.run_on_search_thread(handler, NeededParts::Open).await, started)
    }

    /// Reads the body, and runs `handler` on a search thread in slices. The client gets the error
    /// of the deadline if the result is late. Work of a client that disconnects is dropped.
    ///
    /// # Errors
    /// The errors of the body and of `handler`; `ResourceExhausted` if the queue of searches is
    /// full; `Unavailable` if `needed` parts of the collection are not open in time.
    async fn run_on_search_thread<T, H>(self, mut handler: H, needed: NeededParts) -> EncodedResult
    where
        T: Serialize + 'static,
        H: FnMut(&NamedCollection, &mut SearchThread, &CallContext, &[u8]) -> Result<T>
            + Send
            + 'static,
    {
        let RestCall { state, mut context, headers, body, started } = self;
        state.requests.check_room()?;
        let registry = state.registry.registry()?;
        context.collections = Some(registry.lookup());
        let open_by = context.deadline.min(started + OPENING_WAIT_MAX);
        let named = match needed {
            NeededParts::All => {
                wait_until_open(|| open_collection(&registry, &context.collection), open_by).await?
            }
            NeededParts::Open => {
                wait_while_opening(|| is_opening(&registry, &context.collection), open_by).await;
                registry.get(&context.collection)?
            }
        };
        let body: Bytes = state.requests.read_json_body(&headers, body).await?;
        let _admitted = state.requests.admit()?;
        let (sender, receiver) = oneshot::channel();
        let deadline = context.deadline;
        let mut sender = Some(sender);
        let progress = Arc::<SliceProgress>::default();
        let job = move |named: &NamedCollection, thread: &mut SearchThread| {
            // The client may have disconnected.
            if sender.as_ref().is_none_or(oneshot::Sender::is_closed) {
                return TaskProgress::Done;
            }
            let answer =
                || check_objects(&body).and_then(|()| handler(named, thread, &context, &body));
            let SliceOutcome::Done(result) = in_slice(deadline, &progress, answer) else {
                return TaskProgress::Paused;
            };
            let encoded = result.and_then(|result| encode(&result));
            context.memory.release();
            if let Some(sender) = sender.take() {
                // Sending fails if the client has disconnected. Then the result is not needed.
                let _ = sender.send(encoded);
            }
            TaskProgress::Done
        };
        registry
            .submit_sliced(&named, Box::new(job))
            .inspect_err(|error| count_refusal(&state, error, "search_queue"))?;
        await_result(receiver, deadline).await
    }

    /// Makes a change, on a thread that may wait for the disk. Waits for a collection that is being
    /// opened, for at most [`OPENING_WAIT_MAX`]: Qdrant's clients do not repeat a refused write.
    pub(crate) async fn write<T: Serialize + 'static>(
        self,
        handler: fn(&Registry, &CallContext, &[u8]) -> Result<T>,
    ) -> Reply {
        let started = self.started;
        reply(self.run_on_write_thread(handler, WriteKind::Named).await, started)
    }

    /// Makes a change as [`RestCall::write`] does, of points that the request may select by a
    /// filter. Some threads remain free for other writes. If the deadline passes while the points
    /// are selected, nothing is changed.
    pub(crate) async fn write_selected<T: Serialize + 'static>(
        self,
        handler: fn(&Registry, &CallContext, &[u8]) -> Result<T>,
    ) -> Reply {
        let started = self.started;
        reply(self.run_on_write_thread(handler, WriteKind::Selected).await, started)
    }

    /// Makes a change as [`RestCall::write_selected`] does, which may delete points. In a
    /// collection of images, this waits for the store of originals, and some threads remain free
    /// for other writes.
    pub(crate) async fn write_deleting<T: Serialize + 'static>(
        self,
        handler: fn(&Registry, &CallContext, &[u8]) -> Result<T>,
    ) -> Reply {
        let started = self.started;
        reply(self.run_on_write_thread(handler, WriteKind::Deleting).await, started)
    }

    /// Removes the collection. `handler` removes one that holds no images.
    pub(crate) async fn remove(
        self,
        handler: fn(&Registry, &CallContext, &[u8]) -> Result<bool>,
    ) -> Reply {
        match self.state.images.remove(&self.context.collection).await {
            Ok(false) => self.write(handler).await,
            outcome => reply(outcome.and_then(|removed| encode(&removed)), self.started),
        }
    }

    /// Reads the body, and runs `handler` on a write thread. A change that has begun is completed,
    /// even if the client disconnects.
    ///
    /// # Errors
    /// The errors of the body and of `handler`; `ResourceExhausted` if too many writes wait.
    async fn run_on_write_thread<T: Serialize + 'static>(
        self,
        handler: fn(&Registry, &CallContext, &[u8]) -> Result<T>,
        kind: WriteKind,
    ) -> EncodedResult {
        let RestCall { state, context, headers, body, started } = self;
        state.requests.check_room()?;
        let registry = state.registry.registry()?;
        let open_by = context.deadline.min(started + OPENING_WAIT_MAX);
        wait_while_opening(|| is_opening(&registry, &context.collection), open_by).await;
        let body: Bytes = state.requests.read_json_body(&headers, body).await?;
        let _admitted = state.requests.admit()?;
        let (sender, receiver) = oneshot::channel();
        let deadline = context.deadline;
        let has_selection = kind != WriteKind::Named;
        let selection = has_selection.then(|| body.clone());
        let holds_images = || {
            let named = registry.get(&context.collection);
            named.is_ok_and(|named| context.images.holds_images(&named))
        };
        let deletes_images = kind == WriteKind::Deleting && holds_images();
        let refused_by = state.clone();
        let runtime = Handle::current();
        let run = move |admitted: Result<()>| {
            if !sender.is_closed() {
                // For requests to the store of original images.
                let _runtime = runtime.enter();
                let make = || {
                    if has_selection {
                        until(deadline, || handler(&registry, &context, &body))
                    } else {
                        handler(&registry, &context, &body)
                    }
                };
                let result = admitted
                    .inspect_err(|error| count_refusal(&refused_by, error, "write_queue"))
                    .and_then(|()| make())
                    .and_then(|result| encode(&result));
                // Sending fails if the client has disconnected. The change is still made.
                let _ = sender.send(result);
            }
        };
        state
            .write_threads
            .submit(WriteJob { selection, deletes_images, run: Box::new(run) })
            .inspect_err(|error| count_refusal(&state, error, "write_queue"))?;
        await_result(receiver, deadline).await
    }
}

/// Kind of a change, which decides on its threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WriteKind {
    /// The change names its points.
    Named,
    /// It may select its points by a filter.
    Selected,
    /// It may select its points by a filter, and may delete them.
    Deleting,
}

/// Checks the number of objects in a query before they are parsed. As a tree they take a hundred
/// times the memory of their text.
///
/// # Errors
/// `InvalidArgument` for more than [`QUERY_OBJECTS_MAX`].
fn check_objects(body: &[u8]) -> Result<()> {
    let count = body.iter().filter(|byte| **byte == b'{').count();
    if count > QUERY_OBJECTS_MAX {
        return Err(Error::invalid(format!(
            "the query has {count} JSON objects, and at most {QUERY_OBJECTS_MAX} are taken; send fewer searches \
             or conditions"
        )));
    }
    Ok(())
}

/// Returns a collection if all of it is open, or `None` while it is being opened.
fn open_collection(registry: &Registry, name: &str) -> Result<Option<Arc<NamedCollection>>> {
    match registry.get(name) {
        Ok(named) if named.collection().opening() => Ok(None),
        Ok(named) => Ok(Some(named)),
        Err(error) if is_opening_error(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns true while the registry opens the collection. Parts of it may be closed after that.
fn is_opening(registry: &Registry, name: &str) -> bool {
    registry.get(name).is_err_and(|error| is_opening_error(&error))
}

/// Returns true for the error of a collection that is being opened.
fn is_opening_error(error: &Error) -> bool {
    error.kind() == ErrorKind::Unavailable && error.retry_after().is_some()
}

/// Waits until `is_opening` returns false, at most until `until`.
async fn wait_while_opening(mut is_opening: impl FnMut() -> bool, until: Instant) {
    while is_opening() && Instant::now() < until {
        tokio::time::sleep(OPENING_CHECK_INTERVAL).await;
    }
}

/// Calls `open` until it returns a collection.
///
/// # Errors
/// `Unavailable` with retry advice after `until`; errors of `open`.
async fn wait_until_open<T>(
    mut open: impl FnMut() -> Result<Option<T>>,
    until: Instant,
) -> Result<T> {
    loop {
        if let Some(opened) = open()? {
            return Ok(opened);
        }
        if Instant::now() >= until {
            return Err(Error::unavailable(
                "the collection is still being opened, and an answer now would lack points; try again",
            )
            .with_retry_after(OPENING_RETRY));
        }
        tokio::time::sleep(OPENING_CHECK_INTERVAL).await;
    }
}

fn count_refusal(state: &CollectionsState, error: &Error, kind: &'static str) {
    if error.kind() == ErrorKind::ResourceExhausted {
        state.requests.metrics.refused.get_or_create(&KindLabels { kind }).inc();
    }
}

/// Waits for the result of a thread, until `deadline`.
///
/// # Errors
/// `Unavailable` if the thread dropped the request; `DeadlineExceeded` after `deadline`; the error
/// of the request.
async fn await_result(
    receiver: oneshot::Receiver<EncodedResult>,
    deadline: Instant,
) -> EncodedResult {
    match tokio::time::timeout_at(deadline.into(), receiver).await {
        Ok(Ok(result)) => result,
        // The thread could not make a collection's readers, or panicked.
        Ok(Err(_)) => Err(Error::unavailable(
            "the request was dropped before it was answered, and the log of the server has the reason; try again",
        )),
        Err(_) => Err(Error::deadline(
            "the request took longer than its timeout or --request-timeout allows",
        )),
    }
}

pub(crate) fn encode<T: Serialize>(result: &T) -> EncodedResult {
    serde_json::to_vec(result)
        .map_err(|error| Error::internal("an answer cannot be written").caused_by(error))
}

/// Answers in Qdrant's envelope.
pub(crate) fn reply(result: EncodedResult, started: Instant) -> Reply {
    match result {
        Ok(result) => Reply::json(json::envelope(&result, started.elapsed())),
        Err(error) => refuse(&error, started.elapsed()),
    }
}

/// Returns an error in Qdrant's envelope.
pub fn refuse(error: &Error, took: Duration) -> Reply {
    let reply = Reply::error_with_body(error, json::error(error.message(), took));
    if error.kind() == ErrorKind::InvalidArgument && json::is_validation(error.message()) {
        return reply.with_status(StatusCode::UNPROCESSABLE_ENTITY);
    }
    reply
}

#[cfg(test)]
mod tests {
    use axum::response::IntoResponse;

    use super::*;

    fn wait<T>(open: impl FnMut() -> Result<Option<T>>, limit: Duration) -> Result<T> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(wait_until_open(open, Instant::now() + limit))
    }

    #[test]
    fn reads_wait_for_a_collection_for_a_limited_time() {
        let mut checks = 0;
        let mut third = || {
            checks += 1;
            Ok((checks == 3).then_some("all points"))
        };
        assert_eq!(wait(&mut third, Duration::from_secs(60)).unwrap(), "all points");
        assert_eq!(checks, 3);
        let never = wait(|| Ok(None::<()>), Duration::from_millis(1)).unwrap_err();
        assert_eq!(
            (never.kind(), never.retry_after()),
            (ErrorKind::Unavailable, Some(OPENING_RETRY))
        );
        let removed =
            wait(|| Err::<Option<()>, _>(Error::not_found("removed")), Duration::from_secs(60));
        assert_eq!(removed.unwrap_err().kind(), ErrorKind::NotFound);
    }

    #[test]
    fn writes_wait_for_a_collection_for_a_limited_time() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let mut checks = 0;
        let opens_at_third = || {
            checks += 1;
            checks < 3
        };
        let until = Instant::now() + Duration::from_secs(60);
        runtime.block_on(wait_while_opening(opens_at_third, until));
        assert_eq!(checks, 3);
        let mut checks = 0;
        let never_opens = || {
            checks += 1;
            true
        };
        runtime.block_on(wait_while_opening(never_opens, Instant::now()));
        assert_eq!(checks, 1);
    }

    #[test]
    fn only_values_outside_their_limits_are_422() {
        let status = |error: &Error| refuse(error, Duration::ZERO).into_response().status();
        assert_eq!(
            status(&json::out_of_limits("limit", "value 0 invalid")),
            StatusCode::UNPROCESSABLE_ENTITY
        );
        assert_eq!(status(&json::name_too_long(256)), StatusCode::UNPROCESSABLE_ENTITY);
        assert_eq!(status(&Error::invalid("no JSON")), StatusCode::BAD_REQUEST);
        assert_eq!(status(&Error::unimplemented("no such thing")), StatusCode::NOT_IMPLEMENTED);
    }

    #[test]
    fn a_query_of_too_many_objects_is_refused() {
        assert!(check_objects("{}".repeat(QUERY_OBJECTS_MAX).as_bytes()).is_ok());
        let error = check_objects("{".repeat(QUERY_OBJECTS_MAX + 1).as_bytes()).unwrap_err();
        assert!(error.message().contains("65537 JSON objects"), "{error}");
    }
}
