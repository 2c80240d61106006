//! Calls with one message in and one out. This module reads the message, admits the request, and
//! sends the answer.

use std::sync::Arc;
use std::time::Duration;

use api_models::request_key;
use base::{Error, Moment, Result};
use http::HeaderMap;
use inference::RequestTicket;
use lifecycle::RequestKey;
use observe::TracedCall;
use protocol::Message;
use protocol::weigh::{EXPANSION_MAX, Weighed};
use tokio::sync::OwnedSemaphorePermit;
use transport::access::{Caller, KeyGrant};
use transport::{Peer, RequestBody, Reservation};

use super::authorize::{NamesModels, check_models, log_refused};
use super::messages::{self, DecodedMessage};
use super::response::{self, Response};
use crate::models::ModelsState;

/// Largest message of a call that runs no model, in bytes: the default of gRPC's own servers.
pub(super) const SMALL_BYTES_MAX: usize = 4 << 20;

/// A call that runs a model, once its message has arrived and it was admitted.
pub(super) struct InferenceCall<M> {
    pub(super) ticket: RequestTicket,
    pub(super) decoded: DecodedMessage<M>,
    /// Time until the client's deadline, or `None` if the client set none.
    pub(super) timeout: Option<Duration>,
    /// The key for rollouts.
    pub(super) key: Option<RequestKey>,
    _permit: OwnedSemaphorePermit,
}

impl<M: Weighed + NamesModels + Send + 'static> InferenceCall<M> {
    /// Reads a call and admits it. Failures are counted.
    ///
    /// # Errors
    /// `TooLarge` and `ClientTimeout` as for any body. `InvalidArgument` for a body that is not one
    /// message. `ResourceExhausted` if the budget is used up or too many requests are being
    /// answered.
    pub(super) async fn read(
        state: &ModelsState,
        protocol: &'static str,
        request: http::Request<RequestBody>,
    ) -> Result<InferenceCall<M>> {
        let (head, body) = request.into_parts();
        let call = || TracedCall::Grpc { path: head.uri.path().to_owned() };
        let mut ticket = state.starter.start(protocol, &head.headers, call);
        let frame =
            messages::frame(&state.requests, body, state.requests.limits.body_bytes_max).await;
        ticket.mark(Moment::BodyComplete);
        ticket.count_from_now();
        let read = async {
            let message =
                messages::message(&state.requests, messages::coding(&head.headers)?, frame?)
                    .await?;
            let decoded: DecodedMessage<M> = messages::decode(&state.requests, message).await?;
            check_models(head.extensions.get::<KeyGrant>(), &decoded.message)?;
            let key = request_key::of_headers(&head.headers)?;
            Ok((decoded, key, state.requests.admit()?))
        };
        let (decoded, key, permit) =
            read.await.inspect_err(|error| state.inference.reject(&ticket, error))?;
        let timeout = timeout(&head.headers);
        Ok(InferenceCall { ticket, decoded, timeout, key, _permit: permit })
    }

    /// Sets the method of TensorFlow Serving's API, if it is not Predict.
    pub(super) fn for_method(self, method: &'static str) -> InferenceCall<M> {
        InferenceCall { ticket: self.ticket.for_method(method), ..self }
    }
}

/// A call that runs no model.
pub(super) struct SmallCall<M> {
    pub(super) message: M,
    pub(super) headers: HeaderMap,
    pub(super) peer: Option<Peer>,
    /// Rights of the call's key.
    pub(super) grant: Option<KeyGrant>,
}

impl<M> SmallCall<M> {
    /// Returns the sender of the call.
    pub(super) fn caller(&self) -> Caller<'_> {
        Caller { peer: self.peer, headers: &self.headers }
    }
}

impl<M: Message + Default + NamesModels> SmallCall<M> {
    /// Reads a call, and reserves the largest size of its decoded message.
    pub(super) async fn read(
        state: &ModelsState,
        request: http::Request<RequestBody>,
    ) -> Result<(SmallCall<M>, Reservation)> {
        let (head, body) = request.into_parts();
        let coding = messages::coding(&head.headers)?;
        let frame = messages::frame(&state.requests, body, SMALL_BYTES_MAX).await?;
        let message = messages::message(&state.requests, coding, frame).await?;
        if message.len() > SMALL_BYTES_MAX {
            return Err(Error::too_large(format!(
                "the message is larger than {SMALL_BYTES_MAX} bytes when decompressed, the limit of this call; \
                 send less"
            )));
        }
        let mut reservation = state.requests.memory.empty();
        reservation.cover(message.len() as u64 * EXPANSION_MAX)?;
        let message: M = messages::parse(message)?;
        let grant = head.extensions.get::<KeyGrant>().cloned();
        let peer = head.extensions.get::<Peer>().copied();
        let call = SmallCall { message, headers: head.headers, peer, grant };
        check_models(call.grant.as_ref(), &call.message)
            .inspect_err(|error| log_refused(state, call.caller(), head.uri.path(), error))?;
        Ok((call, reservation))
    }
}

/// Reads a call that runs no model and answers it by `handle`.
pub(super) async fn answer<M, R>(
    state: Arc<ModelsState>,
    request: http::Request<RequestBody>,
    handle: impl AsyncFnOnce(SmallCall<M>) -> Result<R>,
) -> Response
where
    M: Message + Default + NamesModels,
    R: Message,
{
    let answered = async {
        let (call, reservation) = SmallCall::read(&state, request).await?;
        Ok((handle(call).await?, reservation))
    };
    response::single(&state.requests, answered.await, None)
}

/// Returns the client's deadline from the `grpc-timeout` header: digits and one of H, M, S, m, u,
/// n.
pub(crate) fn timeout(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    // The protocol allows eight digits.
    let value: u64 = if digits.len() <= 8 { digits.parse().ok()? } else { return None };
    Some(match unit {
        "H" => Duration::from_secs(value * 3600),
        "M" => Duration::from_secs(value * 60),
        "S" => Duration::from_secs(value),
        "m" => Duration::from_millis(value),
        "u" => Duration::from_micros(value),
        "n" => Duration::from_nanos(value),
        _ => return None,
    })
}
