//! Server reflection over gRPC: the descriptors of all services.

use std::sync::Arc;

use base::Result;
use bytes::Bytes;
use protocol::weigh::EXPANSION_MAX;
use tokio::sync::watch;
use transport::{RequestBody, ResponseBody};

use super::response::{self, Response};
use super::{messages, stream};
use crate::models::ModelsState;

/// Answers the requests of one stream. The messages of v1 and v1alpha are the same.
pub(super) fn info(
    state: &Arc<ModelsState>,
    stopped: watch::Receiver<bool>,
    request: http::Request<RequestBody>,
) -> Response {
    let own = state.clone();
    stream::respond(state, stopped, request, move |message| {
        std::future::ready(answer(&own, message))
    })
}

fn answer(state: &ModelsState, message: Bytes) -> Result<ResponseBody> {
    let mut reservation = state.requests.memory.empty();
    reservation.cover(message.len() as u64 * EXPANSION_MAX)?;
    let response = protocol::reflection::respond(messages::parse(message)?);
    response::encode_streamed(&state.requests, &response, reservation)
}
