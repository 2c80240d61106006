//! One request, from its head to its envelope: read within the door's limits, done on the right thread,
//! answered.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use api_qdrant::json;
use axum::body::Body;
use axum::extract::{FromRequest, FromRequestParts, Path, Request};
use base::{Error, ErrorKind, Result};
use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use metrics::KindLabels;
use search::collection::{SearchThread, until};
use search::registry::{NamedCollection, Registry};
use serde::Serialize;
use tokio::sync::oneshot;

use super::write_threads::WriteThreads;
use crate::app::{App, CancelOnDrop};
use crate::images::drop_pictures;
use transport::Reply;

/// What a request's path says, and until when its answer is wanted.
pub(super) struct CallContext {
    /// The collection's name or alias; empty where the path has none.
    pub(super) collection: String,
    /// What the path names inside it: a point, a field.
    pub(super) item: String,
    /// The client's progress, or the server's.
    pub(super) deadline: Instant,
}

/// A request that is still to be done.
pub(super) struct Call {
    app: Arc<App>,
    writers: Arc<WriteThreads>,
    context: CallContext,
    headers: HeaderMap,
    body: Body,
    started: Instant,
}

type EncodedResult = Result<Vec<u8>>;

/// Objects in the body of a query: searches of a batch, and conditions of filters, which have two each.
const QUERY_OBJECTS_MAX: usize = 1 << 16;

/// Refuses a query of too many objects before it becomes a tree of them, which takes a hundred times its text.
///
/// # Errors
/// `InvalidArgument` with the limit.
fn check_objects(body: &[u8]) -> Result<()> {
    let count = body.iter().filter(|byte| **byte == b'{').count();
    if count > QUERY_OBJECTS_MAX {
        return Err(Error::invalid(format!(
            "the query has {count} JSON objects, and at most {QUERY_OBJECTS_MAX} are taken; send fewer searches or conditions"
        )));
    }
    Ok(())
}

/// How long a read waits for a collection that is still being opened, unless the request's own time is shorter.
const OPENING_WAIT_MAX: Duration = Duration::from_secs(5);
/// How often such a read looks again.
const OPENING_LOOK: Duration = Duration::from_millis(20);
/// When a client is advised to come again whose collection was not open in time.
const OPENING_RETRY: Duration = Duration::from_secs(1);

impl FromRequest<Arc<App>> for Call {
    type Rejection = Reply;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Call, Reply> {
        let started = Instant::now();
        let (mut parts, body) = request.into_parts();
        let path = Path::<HashMap<String, String>>::from_request_parts(&mut parts, app).await;
        let Path(mut path) =
            path.map_err(|error| refuse(&Error::invalid(error.body_text()), started.elapsed()))?;
        let writers = parts.extensions.get::<Arc<WriteThreads>>().cloned().unwrap_or_default();
        let name_bytes = path.get("collection").map_or(0, String::len);
        if name_bytes > json::NAME_BYTES_MAX {
            return Err(refuse(&json::name_too_long(name_bytes), started.elapsed()));
        }
        let context = CallContext {
            collection: path.remove("collection").unwrap_or_default(),
            item: path.remove("item").unwrap_or_default(),
            deadline: started + app.requests.limits.request_timeout,
        };
        Ok(Call { app: app.clone(), writers, context, headers: parts.headers, body, started })
    }
}

impl Call {
    /// Answers from what is in memory, on the door's own thread.
    pub(super) async fn at_once<T: Serialize>(self, work: fn(&Registry, &CallContext) -> Result<T>) -> Reply {
        let answer = self.app.registry().and_then(|registry| encode(&work(&registry, &self.context)?));
        reply(answer, self.started)
    }

    /// Answers from a collection's points, on a search thread. Waits for a collection that is still being opened, for
    /// at most [`OPENING_WAIT_MAX`]: an answer from the part that is open would lack points in silence.
    pub(super) async fn read<T: Serialize + 'static>(
        self,
        work: fn(&NamedCollection, &mut SearchThread, &CallContext, &[u8]) -> Result<T>,
    ) -> Reply {
        let started = self.started;
        reply(self.read_inner(work, true).await, started)
    }

    /// As [`Call::read`], about a collection in whatever state it is.
    pub(super) async fn inspect<T: Serialize + 'static>(
        self,
        work: fn(&NamedCollection, &mut SearchThread, &CallContext, &[u8]) -> Result<T>,
    ) -> Reply {
        let started = self.started;
        reply(self.read_inner(work, false).await, started)
    }

    async fn read_inner<T: Serialize + 'static>(
        self,
        work: fn(&NamedCollection, &mut SearchThread, &CallContext, &[u8]) -> Result<T>,
        wait: bool,
    ) -> EncodedResult {
        self.app.requests.check_room()?;
        let registry = self.app.registry()?;
        let named = if wait {
            let limit = OPENING_WAIT_MAX.min(self.app.requests.limits.request_timeout);
            opened(|| open_now(&registry, &self.context.collection), self.started + limit).await?
        } else {
            registry.get(&self.context.collection)?
        };
        let body: Bytes = self.app.requests.read_json_body(&self.headers, self.body).await?;
        let _admitted = self.app.requests.admit()?;
        let (waiting, cancelled) = PendingReply::new();
        let (context, deadline) = (self.context, self.app.requests.limits.request_timeout);
        let job = move |named: &NamedCollection, thread: &mut SearchThread| {
            if !cancelled.is_cancelled() {
                let answer = check_objects(&body)
                    .and_then(|()| until(context.deadline, || work(named, thread, &context, &body)));
                cancelled.answer(answer.and_then(|result| encode(&result)));
            }
        };
        registry
            .submit(&named, Box::new(job))
            .inspect_err(|error| refused(&self.app, error, "search_queue"))?;
        waiting.answer(self.started + deadline).await
    }

    /// Changes something, on a thread that may wait for the disk.
    pub(super) async fn write<T: Serialize + 'static>(
        self,
        work: fn(&Registry, &CallContext, &[u8]) -> Result<T>,
    ) -> Reply {
        let started = self.started;
        reply(self.write_inner(work).await, started)
    }

    /// Removes the collection; one of pictures with its originals, which `by_itself` knows nothing of.
    pub(super) async fn remove(self, by_itself: fn(&Registry, &CallContext, &[u8]) -> Result<bool>) -> Reply {
        let started = self.started;
        match drop_pictures(&self.app, &self.context.collection).await {
            Ok(false) => self.write(by_itself).await,
            outcome => reply(outcome.and_then(|removed| encode(&removed)), started),
        }
    }

    async fn write_inner<T: Serialize + 'static>(
        self,
        work: fn(&Registry, &CallContext, &[u8]) -> Result<T>,
    ) -> EncodedResult {
        self.app.requests.check_room()?;
        let registry = self.app.registry()?;
        let body: Bytes = self.app.requests.read_json_body(&self.headers, self.body).await?;
        let _admitted = self.app.requests.admit()?;
        let (waiting, cancelled) = PendingReply::new();
        let (context, deadline) = (self.context, self.app.requests.limits.request_timeout);
        let job = move || {
            if !cancelled.is_cancelled() {
                cancelled.answer(work(&registry, &context, &body).and_then(|result| encode(&result)));
            }
        };
        self.writers.submit(Box::new(job)).inspect_err(|error| refused(&self.app, error, "write_queue"))?;
        waiting.answer(self.started + deadline).await
    }
}

/// Returns a collection that is open as a whole; `None` while it is being opened.
fn open_now(registry: &Registry, name: &str) -> Result<Option<Arc<NamedCollection>>> {
    match registry.get(name) {
        Ok(named) if named.collection().opening() => Ok(None),
        Ok(named) => Ok(Some(named)),
        Err(error) if error.kind() == ErrorKind::Unavailable && error.retry_after().is_some() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Waits until `look` finds what it looks for.
///
/// # Errors
/// `Unavailable` with advice when to come again if `until` has passed; what `look` returns.
async fn opened<T>(mut look: impl FnMut() -> Result<Option<T>>, until: Instant) -> Result<T> {
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        if Instant::now() >= until {
            return Err(Error::unavailable(
                "the collection is still being opened, and an answer now would lack points; try again",
            )
            .with_retry_after(OPENING_RETRY));
        }
        tokio::time::sleep(OPENING_LOOK).await;
    }
}

fn refused(app: &App, error: &Error, kind: &'static str) {
    if error.kind() == ErrorKind::ResourceExhausted {
        app.metrics.refused.get_or_create(&KindLabels { kind }).inc();
    }
}

/// The door's side of a job; dropping it tells the job that nobody waits.
struct PendingReply {
    receiver: oneshot::Receiver<EncodedResult>,
    _guard: CancelOnDrop,
}

/// The job's side.
struct ReplySender {
    sender: oneshot::Sender<EncodedResult>,
    cancelled: Arc<AtomicBool>,
}

impl PendingReply {
    fn new() -> (PendingReply, ReplySender) {
        let cancelled = Arc::new(AtomicBool::new(false));
        let (sender, receiver) = oneshot::channel();
        (
            PendingReply { receiver, _guard: CancelOnDrop(cancelled.clone()) },
            ReplySender { sender, cancelled },
        )
    }

    async fn answer(self, deadline: Instant) -> EncodedResult {
        match tokio::time::timeout_at(deadline.into(), self.receiver).await {
            Ok(Ok(answer)) => answer,
            // A search thread that finds no memory for a collection's readers drops its work, and so does a
            // panic.
            Ok(Err(_)) => {
                Err(Error::unavailable("the request was given up before it was answered; try again"))
            }
            Err(_) => Err(Error::deadline("the request took longer than --request-timeout allows")),
        }
    }
}

impl ReplySender {
    fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    fn answer(self, answer: EncodedResult) {
        // It fails only when the door has gone, and then nobody is left to tell.
        let _ = self.sender.send(answer);
    }
}

fn encode<T: Serialize>(result: &T) -> EncodedResult {
    serde_json::to_vec(result)
        .map_err(|error| Error::internal(format!("an answer cannot be written: {error}")))
}

fn reply(answer: EncodedResult, started: Instant) -> Reply {
    match answer {
        Ok(result) => Reply::json(api_qdrant::json::envelope(&result, started.elapsed())),
        Err(error) => refuse(&error, started.elapsed()),
    }
}

/// An error in Qdrant's envelope.
pub(super) fn refuse(error: &Error, took: Duration) -> Reply {
    let reply = Reply::error_with_body(error, api_qdrant::json::error(error.message(), took));
    if error.kind() == ErrorKind::InvalidArgument && json::is_validation(error.message()) {
        return reply.with_status(StatusCode::UNPROCESSABLE_ENTITY);
    }
    reply
}

#[cfg(test)]
mod tests {
    use axum::response::IntoResponse;

    use super::*;

    fn wait<T>(look: impl FnMut() -> Result<Option<T>>, progress: Duration) -> Result<T> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(opened(look, Instant::now() + progress))
    }

    #[test]
    fn a_read_waits_for_a_collection_that_is_being_opened_and_not_for_ever() {
        let mut looks = 0;
        let mut third = || {
            looks += 1;
            Ok((looks == 3).then_some("all points"))
        };
        assert_eq!(wait(&mut third, Duration::from_secs(60)).unwrap(), "all points");
        assert_eq!(looks, 3);
        let never = wait(|| Ok(None::<()>), Duration::from_millis(1)).unwrap_err();
        assert_eq!((never.kind(), never.retry_after()), (ErrorKind::Unavailable, Some(OPENING_RETRY)));
        let gone = wait(|| Err::<Option<()>, _>(Error::not_found("gone")), Duration::from_secs(60));
        assert_eq!(gone.unwrap_err().kind(), ErrorKind::NotFound);
    }

    #[test]
    fn a_value_outside_its_limits_is_422_and_other_mistakes_are_400() {
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
    fn a_query_of_too_many_objects_is_refused_before_it_is_parsed() {
        assert!(check_objects("{}".repeat(QUERY_OBJECTS_MAX).as_bytes()).is_ok());
        let error = check_objects("{".repeat(QUERY_OBJECTS_MAX + 1).as_bytes()).unwrap_err();
        assert!(error.message().contains("65537 JSON objects"), "{error}");
    }
}
