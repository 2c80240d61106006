//! Calls in which each message of the client has one answer.

use std::sync::Arc;

use base::{Error, Result};
use bytes::Bytes;
use os::CpuAccount;
use tokio::sync::{mpsc, watch};
use transport::{RequestBody, ResponseBody};

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
    let state = state.clone();
    let conversation = async move { converse(&state, messages, &sender, stopped, answer).await };
    match CpuAccount::current() {
        Some(account) => drop(tokio::spawn(account.wrap(conversation))),
        None => drop(tokio::spawn(conversation)),
    }
    response::stream(receiver)
}

/// Answers messages until the stream ends, the client disconnects, or the server stops. The first
/// error ends the stream.
async fn converse<A>(
    state: &Arc<ModelsState>,
    mut messages: Messages,
    answers: &mpsc::Sender<Result<ResponseBody>>,
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
            () = answers.closed() => return,
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
                () = answers.closed() => return,
            },
        };
        if answers.send(answer).await.is_err() || last {
            return;
        }
    }
}
