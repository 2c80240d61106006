//! Calls in which each message of the client has one answer.
//!
//! The requests of a stream run at the same time, as in Triton. Their answers are sent in the order
//! of the requests. Triton's Python client does not pass on the id of a failed request, so a client
//! can only count. The stream is not read while its requests reach a limit.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use base::{Error, Result};
use bytes::Bytes;
use hyper::body::Body;
use metrics::KindLabels;
use os::CpuAccount;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use transport::{RequestBody, ResponseBody, StreamAnswers};

use super::messages::Messages;
use super::response::{self, Response};
use crate::models::ModelsState;

/// Maximum unread answers of one stream.
const STREAM_ANSWERS_MAX: usize = 8;
/// Maximum requests of one stream that run, or that wait until the answers before theirs are sent.
const STREAM_REQUESTS_MAX: usize = 64;
/// The same maximum until an answer shows how much memory the answers take.
const STREAM_FIRST_REQUESTS_MAX: usize = 8;
/// The requests of one stream and their answers may take the memory of requests divided by this.
const STREAM_MEMORY_DIVISOR: u64 = 8;
/// A stream runs one request at a time while the requests of the server take their maximum number
/// divided by this.
const STREAM_PERMITS_DIVISOR: usize = 2;
/// A stream also runs one request at a time while the requests of the server take their memory
/// divided by this.
const ALL_MEMORY_DIVISOR: u64 = 2;
/// A further request runs only if its answer is expected within the maximum deadline divided by
/// this. The deadline begins when the request is read.
const STREAM_TIME_DIVISOR: u32 = 2;
/// Number of answers over which the time of an answer is averaged.
const PACE_ANSWERS: u32 = 8;

/// Answers the messages of a call by `answer`, for the current caller. Several run at the same
/// time, and the answers are sent in their order.
pub(super) fn respond<F, A>(
    state: &Arc<ModelsState>,
    stopped: watch::Receiver<bool>,
    request: http::Request<RequestBody>,
    answer: F,
) -> Response
where
    F: Fn(Bytes) -> A + Send + Sync + 'static,
    A: Future<Output = Result<ResponseBody>> + Send + 'static,
{
    let (head, body) = request.into_parts();
    let messages = match Messages::new(&head.headers, body) {
        Ok(messages) => messages,
        Err(error) => return response::failed(&error),
    };
    let unread = head.extensions.get().cloned();
    let (answers, receiver) = answer_channel(STREAM_ANSWERS_MAX, unread);
    let state = state.clone();
    let conversation = async move { converse(&state, messages, &answers, stopped, answer).await };
    match CpuAccount::current() {
        Some(account) => drop(tokio::spawn(account.wrap(conversation))),
        None => drop(tokio::spawn(conversation)),
    }
    response::stream(receiver)
}

/// Creates both ends of the answers of a stream, of which `unread_max` may be unread.
pub(super) fn answer_channel(
    unread_max: usize,
    unread: Option<StreamAnswers>,
) -> (AnswerSender, AnswerReceiver) {
    let (sender, answers) = mpsc::channel(unread_max);
    let panicked = Arc::new(AtomicBool::new(false));
    (
        AnswerSender { sender, unread, panicked: panicked.clone() },
        AnswerReceiver { answers, panicked },
    )
}

/// Sender of the answers of a stream. Its connection is closed if the client does not read them.
pub(super) struct AnswerSender {
    pub(super) sender: mpsc::Sender<Result<ResponseBody>>,
    unread: Option<StreamAnswers>,
    /// True once the task that answers has panicked.
    panicked: Arc<AtomicBool>,
}

impl Drop for AnswerSender {
    fn drop(&mut self) {
        // Before the channel closes, which otherwise means that every message was answered.
        if std::thread::panicking() {
            self.panicked.store(true, Ordering::Relaxed);
        }
    }
}

/// Receiver of the answers of a stream.
pub(super) struct AnswerReceiver {
    answers: mpsc::Receiver<Result<ResponseBody>>,
    panicked: Arc<AtomicBool>,
}

impl AnswerReceiver {
    /// Polls the next answer, or the error that ends the stream. Returns `None` at its end.
    pub(super) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<ResponseBody>>> {
        let polled = self.answers.poll_recv(cx);
        if matches!(polled, Poll::Ready(None)) && self.panicked.load(Ordering::Relaxed) {
            let error = Error::internal("answering this stream ended in a panic");
            return Poll::Ready(Some(Err(error)));
        }
        polled
    }
}

/// Room for one answer of a stream.
type StreamRoom<'a> = mpsc::Permit<'a, Result<ResponseBody>>;

impl AnswerSender {
    /// Sends an answer, or the error that ends the stream. Waits while too many answers are unread.
    /// Returns false if the client has disconnected.
    pub(super) async fn send(&self, mut answer: Result<ResponseBody>) -> bool {
        self.mark(&mut answer);
        self.sender.send(answer).await.is_ok()
    }

    /// Waits while too many answers are unread. `None` if the client has disconnected.
    async fn room(&self) -> Option<StreamRoom<'_>> {
        self.sender.reserve().await.ok()
    }

    /// Sends an answer, or the error that ends the stream, without a wait.
    fn send_in(&self, room: StreamRoom<'_>, mut answer: Result<ResponseBody>) {
        self.mark(&mut answer);
        room.send(answer);
    }

    /// Adds an answer to the unread answers of its connection.
    fn mark(&self, answer: &mut Result<ResponseBody>) {
        let held = answer.as_mut().ok().and_then(ResponseBody::take_held);
        if let (Some(unread), Some(held)) = (&self.unread, held) {
            unread.add(held);
        }
    }
}

/// The requests of a stream whose answers are not sent yet, in order.
struct StreamRequests {
    state: Arc<ModelsState>,
    running: VecDeque<RunningRequest>,
    /// Number of the next request.
    next: u64,
    /// Number of the first request in `running`.
    first: Arc<AtomicU64>,
    /// Bytes of the largest message.
    message_bytes_max: u64,
    /// Bytes of the largest answer.
    answer_bytes_max: u64,
    pace: AnswerPace,
    /// True from the decision to read a message until the message is complete. A message that has
    /// begun is read to its end, because the time of the client for it runs.
    is_reading: bool,
    /// True after the pause was counted.
    is_paused: bool,
    /// Result that ends the stream after the last answer. Set once no further message is read.
    end: Option<Result<()>>,
}

/// A request that runs in a task of its own. It is cancelled on drop.
struct RunningRequest {
    task: JoinHandle<Result<ResponseBody>>,
    started: Instant,
}

impl Drop for RunningRequest {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Average time of an answer, from the answer before it or from the start of its request.
#[derive(Default)]
struct AnswerPace {
    /// Time of the last answer.
    last: Option<Instant>,
    average: Duration,
}

impl AnswerPace {
    /// Adds an answer at `now` to a request that started at `started`.
    fn add(&mut self, started: Instant, now: Instant) {
        let time = now.saturating_duration_since(self.last.map_or(started, |it| it.max(started)));
        self.average = match self.last.replace(now) {
            Some(_) => (self.average * (PACE_ANSWERS - 1) + time) / PACE_ANSWERS,
            None => time,
        };
    }

    /// Returns the expected time until the answer to a further request, after `running` requests.
    fn wait(&self, running: usize) -> Duration {
        self.average.saturating_mul(u32::try_from(running).unwrap_or(u32::MAX).saturating_add(1))
    }
}

impl StreamRequests {
    fn new(state: Arc<ModelsState>) -> StreamRequests {
        StreamRequests {
            state,
            running: VecDeque::new(),
            next: 0,
            first: Arc::default(),
            message_bytes_max: 0,
            answer_bytes_max: 0,
            pace: AnswerPace::default(),
            is_reading: false,
            is_paused: false,
            end: None,
        }
    }

    /// Returns the limit that forbids to read the next message now. A stream without requests is
    /// always read.
    fn limit(&self) -> Option<&'static str> {
        let requests = &self.state.requests;
        let running = self.running.len();
        let request_bytes = self.message_bytes_max + self.answer_bytes_max;
        let bytes = request_bytes.saturating_mul(running as u64 + 1);
        let permits = requests.limits.requests_max / STREAM_PERMITS_DIVISOR;
        let memory = &requests.memory;
        let is_full = bytes > memory.max() / STREAM_MEMORY_DIVISOR
            || memory.used() >= memory.max() / ALL_MEMORY_DIVISOR;
        let is_slow =
            self.pace.wait(running) > requests.limits.request_timeout / STREAM_TIME_DIVISOR;
        let is_first = self.answer_bytes_max == 0;
        let running_max = if is_first { STREAM_FIRST_REQUESTS_MAX } else { STREAM_REQUESTS_MAX };
        match running {
            0 => None,
            _ if running >= running_max => Some("stream_requests_max"),
            _ if is_full => Some("request_memory"),
            _ if is_slow => Some("request_timeout"),
            _ if requests.admitted() >= permits => Some("requests_max"),
            _ => None,
        }
    }

    /// Returns true if the next message may be read now. Counts each pause once.
    fn may_read(&mut self) -> bool {
        if self.end.is_some() || self.is_reading {
            return self.end.is_none();
        }
        match self.limit() {
            None => self.is_reading = true,
            Some(kind) if !self.is_paused => {
                let pauses = &self.state.requests.metrics.stream_pauses;
                pauses.get_or_create(&KindLabels { kind }).inc();
                self.is_paused = true;
            }
            Some(_) => {}
        }
        self.is_reading
    }

    /// Takes the next message, whose answer `answer` computes.
    fn take<A>(&mut self, message: Result<Option<Bytes>>, answer: impl Fn(Bytes) -> A)
    where
        A: Future<Output = Result<ResponseBody>> + Send + 'static,
    {
        self.is_reading = false;
        self.is_paused = false;
        match message {
            Ok(Some(message)) => {
                self.message_bytes_max = self.message_bytes_max.max(message.len() as u64);
                let (answer, number, first) = (answer(message), self.next, self.first.clone());
                self.next += 1;
                let task = async move { in_turn(answer.await, number, &first) };
                let started = Instant::now();
                self.running.push_back(RunningRequest { task: tokio::spawn(task), started });
            }
            Ok(None) => self.end = Some(Ok(())),
            // A broken message ends the stream with its error.
            Err(error) => self.end = Some(Err(error)),
        }
    }

    /// Waits for the answer to the first request, and removes the request. Waits for ever without
    /// a request. If the future is dropped early, the request stays.
    async fn answered(&mut self) -> Result<ResponseBody> {
        let Some(first) = self.running.front_mut() else { return std::future::pending().await };
        let ended = (&mut first.task).await;
        self.pace.add(first.started, Instant::now());
        self.running.pop_front();
        self.first.fetch_add(1, Ordering::Relaxed);
        let answer = ended.unwrap_or_else(|error| {
            let kind = if error.is_panic() { "in a panic" } else { "early" };
            Err(Error::internal(format!("answering this stream ended {kind}")))
        });
        let bytes = answer.as_ref().ok().and_then(|answer| answer.size_hint().exact());
        self.answer_bytes_max = self.answer_bytes_max.max(bytes.unwrap_or(0));
        answer
    }
}

/// Ends the clock of the answer to request `number` if it waits for the answers before it. Neither
/// its client nor its model causes that wait.
fn in_turn(answer: Result<ResponseBody>, number: u64, first: &AtomicU64) -> Result<ResponseBody> {
    if number == first.load(Ordering::Relaxed) {
        return answer;
    }
    answer.map(|body| body.with_clock(None))
}

/// Waits for room for an answer, and then for the answer to the first request. `None` if the client
/// has disconnected. A future that is dropped early takes no answer. A message is read meanwhile,
/// because the time of the client for it runs.
async fn next_answer<'a>(
    requests: &mut StreamRequests,
    answers: &'a AnswerSender,
) -> Option<(StreamRoom<'a>, Result<ResponseBody>)> {
    let room = answers.room().await?;
    Some((room, requests.answered().await))
}

/// Reads the next message.
async fn read(
    mut messages: Messages,
    state: Arc<ModelsState>,
) -> (Messages, Result<Option<Bytes>>) {
    let message = messages.next(&state.requests).await;
    (messages, message)
}

/// Answers messages until the stream ends, the client disconnects, or the server stops. The first
/// error ends the stream.
async fn converse<A>(
    state: &Arc<ModelsState>,
    messages: Messages,
    answers: &AnswerSender,
    mut stopped: watch::Receiver<bool>,
    answer: impl Fn(Bytes) -> A,
) where
    A: Future<Output = Result<ResponseBody>> + Send + 'static,
{
    let mut requests = StreamRequests::new(state.clone());
    let mut reading = Box::pin(read(messages, state.clone()));
    loop {
        if requests.running.is_empty()
            && let Some(end) = requests.end.take()
        {
            if let Err(error) = end {
                answers.send(Err(error)).await;
            }
            return;
        }
        let may_read = requests.may_read();
        tokio::select! {
            biased;
            _ = stopped.wait_for(|stopped| *stopped), if requests.end.is_none() => {
                requests.end = Some(Err(Error::unavailable("the server is shutting down")));
            }
            // Dropping the requests removes them from their queues.
            () = answers.sender.closed() => return,
            next = next_answer(&mut requests, answers) => {
                let Some((room, answered)) = next else { return };
                let is_last = answered.is_err();
                answers.send_in(room, answered);
                if is_last {
                    return;
                }
            }
            (messages, message) = &mut reading, if may_read => {
                requests.take(message, &answer);
                reading.set(read(messages, state.clone()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::Waker;

    use base::{RequestClock, RequestTimeline, TimelineSink};
    use transport::{RequestLimits, RequestResources};

    use super::super::status::GRPC_STATUS;
    use super::*;

    /// Returns the status that ends a stream whose task runs `work`.
    fn status(work: impl FnOnce(&AnswerSender) + Send + 'static) -> String {
        let (answers, receiver) = answer_channel(1, None);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        // An error is the panic of `work`.
        let _ = runtime.block_on(runtime.spawn(async move { work(&answers) }));
        let mut body = response::stream(receiver).into_body();
        let polled = Pin::new(&mut body).poll_frame(&mut Context::from_waker(Waker::noop()));
        let Poll::Ready(Some(Ok(frame))) = polled else { panic!("no frame") };
        frame.trailers_ref().unwrap()[GRPC_STATUS].to_str().unwrap().to_owned()
    }

    #[derive(Default)]
    struct EndedClocks(AtomicU64);

    impl TimelineSink for EndedClocks {
        fn ended(&self, _: &RequestTimeline) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn no_clock_counts_the_wait_for_earlier_answers() {
        let limits = RequestLimits {
            body_bytes_max: 1024,
            requests_max: 1,
            client_timeout: Duration::from_secs(10),
            request_timeout: Duration::from_secs(60),
            answer_window: Duration::from_secs(30),
        };
        let resources = RequestResources::new(limits, 1 << 20, Arc::default());
        let ended = Arc::new(EndedClocks::default());
        let answer = || {
            let clock = RequestClock::start("oip-grpc", Some(ended.clone()));
            let bytes = Bytes::from_static(b"answer");
            let body = ResponseBody::of_stream(&resources, bytes, resources.memory.empty());
            Ok(body.with_clock(Some(clock)))
        };
        let first = AtomicU64::new(7);
        let is_first = in_turn(answer(), 7, &first);
        assert_eq!(ended.0.load(Ordering::Relaxed), 0);
        let waits = in_turn(answer(), 8, &first);
        assert_eq!(ended.0.load(Ordering::Relaxed), 1);
        drop((is_first, waits));
        assert_eq!(ended.0.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn a_wait_follows_from_the_times_of_answers() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let mut pace = AnswerPace::default();
        assert_eq!(pace.wait(7), Duration::ZERO);
        for number in 1..=4 {
            pace.add(start, at(2 * number));
        }
        assert_eq!(pace.wait(7), Duration::from_secs(16));
        // The stream had no request for some time.
        pace.add(at(100), at(102));
        assert_eq!(pace.wait(7), Duration::from_secs(16));
        pace.add(at(100), at(102));
        assert_eq!(pace.wait(7), Duration::from_secs(14));
    }

    #[test]
    fn a_panic_does_not_end_a_stream_with_success() {
        assert_eq!(status(|_| ()), "0");
        assert_eq!(status(|_| panic!("told to")), "13");
        let refused = status(|answers| {
            assert!(answers.sender.try_send(Err(Error::unavailable("stops"))).is_ok());
            panic!("told to");
        });
        assert_eq!(refused, "14", "the first error ends the stream");
    }
}
