//! Runs of requests on the calling thread, without a scheduler.

use std::sync::Arc;

use base::{Error, NamedTensor, Result};
use engine::Servable;

use super::item_sizes::ComparedRun;
use super::{VARYING, is_filled, mixing_evidence_of, rows_of, set_mixes_items};
use crate::batch::{self, Misfit, Part};
use crate::batch_key::{self, BatchKey};

/// Runs a request on the calling thread as a worker runs it alone. See [`crate::run_alone`].
pub(crate) fn run_alone(
    servable: &Servable,
    inputs: &[NamedTensor],
    outputs: &[Arc<str>],
) -> Result<Vec<NamedTensor>> {
    let plan = servable.plan();
    // A worker does not change the sizes of a request to a model that mixes its items.
    let changes_sizes = (plan.pads() || is_filled(servable)) && !servable.mixes_items();
    let key = if changes_sizes { BatchKey::of(plan, inputs) } else { None };
    let unfit = key.filter(|(batch_key, items)| {
        rows_of(servable, *items) != *items || !batch::fits(plan, batch_key, inputs)
    });
    let Some((batch_key, items)) = unfit else {
        let answered = [servable.run(inputs, outputs)?];
        note_mixing(servable, inputs, &answered);
        let [answered] = answered;
        return Ok(answered);
    };
    let rows = rows_of(servable, items);
    let parts = [Part { inputs, items }];
    let padded = batch::join(plan, &batch_key, &parts, rows)?;
    let answered = [servable.run(&padded, outputs)?];
    note_mixing(servable, &padded, &answered);
    let [answered] = answered;
    let compared = ComparedRun { batch_key: &batch_key, inputs, outputs, items };
    match batch::split(plan, &batch_key, &parts, rows, answered) {
        Ok(answers) if rows != items && compared.sizes_follow_items(servable, &answers) => {
            set_mixes_items(servable, VARYING);
            servable.run(inputs, outputs)
        }
        Ok(mut answers) => answers.pop().ok_or_else(|| Error::internal("a run without an answer")),
        // A rule for its outputs is wrong, so a worker does not pad it either.
        Err(Misfit(_)) => servable.run(inputs, outputs),
    }
}

/// Records that the model mixes its items if the answer to a request that ran alone shows that.
fn note_mixing(servable: &Servable, inputs: &[NamedTensor], answers: &[Vec<NamedTensor>]) {
    let plan = servable.plan();
    if !plan.batchable || servable.mixes_items() {
        return;
    }
    let key = BatchKey::of(plan, inputs);
    let (batch_key, items) = key.map_or((None, 1), |(batch_key, items)| (Some(batch_key), items));
    let part = Part { inputs, items };
    if let Some(why) = mixing_evidence_of(servable, part, batch_key.as_ref(), answers) {
        set_mixes_items(servable, why);
    }
}

/// Runs requests on the calling thread in one run. See [`crate::run_joined`].
pub(crate) fn run_joined(
    servable: &Servable,
    requests: &[&[NamedTensor]],
    outputs: &[Arc<str>],
) -> Option<Result<Vec<Vec<NamedTensor>>>> {
    let plan = servable.plan();
    let first = requests.first().filter(|_| plan.batchable && !servable.mixes_items())?;
    let (batch_key, _) = BatchKey::of(plan, first)?;
    let mut parts = Vec::with_capacity(requests.len());
    for inputs in requests {
        let (own, items) = BatchKey::of(plan, inputs)?;
        let fits = own == batch_key && batch_key::same_shared(plan, first, inputs);
        parts.push(fits.then_some(Part { inputs, items })?);
    }
    let items = parts.iter().map(|part| part.items).sum();
    (items <= servable.schedule().max_batch).then(|| {
        let rows = rows_of(servable, items);
        let inputs = batch::join(plan, &batch_key, &parts, rows)?;
        let answered = servable.run(&inputs, outputs)?;
        batch::split(plan, &batch_key, &parts, rows, answered)
            .map_err(|Misfit(why)| Error::internal(why))
    })
}
