//! Runs requests with examples, for gRPC and REST.

use std::sync::Arc;
use std::time::Duration;

use base::{Moment, Result};
use engine::Servable;
use inference::{InferenceRequest, InferenceService, RequestTicket};
use lifecycle::RolloutPart;
use protocol::tfs::{self, ExampleResult, Examples};
use transport::{CodecStep, INLINE_BYTES_MAX, RequestResources, Reservation};

use crate::examples::ExamplePlan;

/// A request with examples whose version was found.
pub struct ExampleCall<'a> {
    /// Shared resources of requests, such as the threads that decode and encode.
    pub requests: &'a RequestResources,
    /// Runs and counts the request.
    pub inference: &'a InferenceService,
    /// The request as it is counted and traced.
    pub ticket: &'a RequestTicket,
    /// The version under its default signature.
    pub servable: Arc<Servable>,
    /// Part of the request in a rollout. All runs of a request have the same part.
    pub rollout: Option<RolloutPart>,
    /// Examples of all tasks of the request.
    pub examples: Arc<Examples>,
    /// Time until the deadline; `None` if there is none.
    pub timeout: Option<Duration>,
    /// True if the examples are too many for a connection's thread.
    pub large: bool,
}

impl ExampleCall<'_> {
    /// Runs one plan. `reservation` grows by the memory of its inputs and results.
    ///
    /// # Errors
    /// Returns the errors of the plan, of the run and of the budget.
    pub async fn run(
        &self,
        plan: ExamplePlan,
        mut reservation: Reservation,
    ) -> Result<(ExampleResult, Reservation)> {
        let ExampleCall { requests, inference, ticket, .. } = *self;
        let id = &self.servable.id;
        let servable = self.servable.with_signature(&plan.signature)?;
        let plan = Arc::new(plan);
        let planned = plan.clone();
        let run = servable.clone();
        let examples = self.examples.clone();
        let decode = move || {
            let reserve = &mut |bytes| reservation.cover(bytes);
            let inputs = planned.inputs(&examples, run.signature(), reserve)?;
            Ok((inputs, reservation))
        };
        let codec = &requests.codec;
        let (inputs, mut reservation) = codec
            .run_if(self.large, CodecStep::Decode, decode)
            .await
            .map_err(|error| error.context(id))
            .inspect_err(|error| inference.reject_version(ticket, id, error))?;
        ticket.mark(Moment::Decoded);
        let call = InferenceRequest {
            servable,
            inputs,
            outputs: plan.outputs(),
            timeout: self.timeout,
            priority: 0,
            rollout: self.rollout.clone(),
        };
        let answer = inference.infer(ticket, call).await?;
        let bytes = tfs::result_bytes_max(answer.outputs.iter().map(|output| &output.tensor));
        reservation.cover(bytes)?;
        let count = self.examples.count();
        let encode = move || plan.result(count, &answer.outputs);
        let large = bytes > INLINE_BYTES_MAX as u64;
        let result = codec.run_if(large, CodecStep::Encode, encode).await;
        Ok((result.map_err(|error| error.context(id))?, reservation))
    }
}
