//! Calls in which each message of the client has one answer.

use std::sync::Arc;

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
    let (sender, receiver) = mpsc::channel(STREAM_ANSWERS_MAX);
    let answers = AnswerSender { sender, unread: head.extensions.get().cloned() };
    let state = state.clone();
    let conversation = async move { converse(&state, messages, &answers, stopped, answer).await };
    match CpuAccount::current() {
        Some(account) => drop(tokio::spawn(account.wrap(conversation))),
        None => drop(tokio::spawn(conversation)),
    }
    response::stream(receiver)
}

/// Sends the answers of a stream. Its connection is closed if the client does not read them.
pub(super) struct AnswerSender {
    pub(super) sender: mpsc::Sender<Result<ResponseBody>>,
    pub(super) unread: Option<StreamAnswers>,
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
