//! Calls in which each message of the client has one answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use base::{Error, Result};
use bytes::Bytes;
use os::CpuAccount;
use tokio::sync::{mpsc, watch};
use transport::{RequestBody, ResponseBody, StreamAnswers};

use super::messages::Messages;
use super::response::{self, Response};
use crate::models::ModelsState;

/// Maximum unread answers of one stream.
const STREAM_ANSWERS_MAX: usize = 8;

/// Answers the messages of a call in turn by `answer`, for the current caller.
pub(super) fn respond<F, A>(
    state: &Arc<ModelsState>,
    stopped: watch::Receiver<bool>,
    request: http::Request<RequestBody>,
    answer: F,
) -> Response
where
    F: Fn(Bytes) -> A + Send + Sync + 'static,
    A: Future<Output = Result<ResponseBody>> + Send,
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

/// Sends the answers of a stream. Its connection is closed if the client does not read them.
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

/// Receives the answers of a stream.
pub(super) struct AnswerReceiver {
    answers: mpsc::Receiver<Result<ResponseBody>>,
    panicked: Arc<AtomicBool>,
}

impl AnswerReceiver {
    /// Polls the next answer, or the error that ends the stream; `None` at its end.
    pub(super) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<ResponseBody>>> {
        let polled = self.answers.poll_recv(cx);
        if matches!(polled, Poll::Ready(None)) && self.panicked.load(Ordering::Relaxed) {
            let error = Error::internal("answering this stream ended in a panic");
            return Poll::Ready(Some(Err(error)));
        }
        polled
    }
}

impl AnswerSender {
    /// Sends an answer, or the error that ends the stream. Waits while too many answers are unread.
    /// Returns false if the client has disconnected.
    pub(super) async fn send(&self, mut answer: Result<ResponseBody>) -> bool {
        let held = answer.as_mut().ok().and_then(ResponseBody::take_held);
        if let (Some(unread), Some(held)) = (&self.unread, held) {
            unread.add(held);
        }
        self.sender.send(answer).await.is_ok()
    }
}

/// Answers messages until the stream ends, the client disconnects, or the server stops. The first
/// error ends the stream.
async fn converse<A>(
    state: &Arc<ModelsState>,
    mut messages: Messages,
    answers: &AnswerSender,
    mut stopped: watch::Receiver<bool>,
    answer: impl Fn(Bytes) -> A,
) where
    A: Future<Output = Result<ResponseBody>>,
{
    loop {
        let message = tokio::select! {
            biased;
            _ = stopped.wait_for(|stopped| *stopped) => {
                Err(Error::unavailable("the server is shutting down"))
            }
            () = answers.sender.closed() => return,
            message = messages.next(&state.requests) => message,
        };
        let (answer, last) = match message {
            Ok(None) => return,
            // A broken message ends the stream with its error.
            Err(error) => (Err(error), true),
            Ok(Some(message)) => tokio::select! {
                answer = answer(message) => {
                    let last = answer.is_err();
                    (answer, last)
                }
                // Dropping the request removes it from its queue.
                () = answers.sender.closed() => return,
            },
        };
        if !answers.send(answer).await || last {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::Waker;

    use hyper::body::Body;

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
