//! Outputs with a size that follows the number of items of a run.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use base::NamedTensor;
use engine::Servable;

use super::{call, rows_of, sizes_vary};
use crate::batch_key::BatchKey;
use crate::entry::{self, Entry, Finish};

/// Returns true if an output has another size because its run had other items than the request.
/// See [`ComparedRun::sizes_follow_items`].
///
/// Runs that are not one whole request are checked.
pub(super) fn sizes_follow_items(
    servable: &Servable,
    entries: &[Entry],
    batch_key: Option<&BatchKey>,
    answers: &[Vec<NamedTensor>],
) -> bool {
    let ([first, ..], Some(batch_key)) = (entries, batch_key) else { return false };
    let items: usize = entries.iter().map(|entry| entry.items).sum();
    let is_whole = entries.len() == 1 && matches!(first.finish, Finish::Whole(_));
    if is_whole && rows_of(servable, items) == items {
        return false;
    }
    let run = ComparedRun { batch_key, inputs: &first.inputs, outputs: &first.outputs, items };
    run.sizes_follow_items(servable, answers)
}

/// A run that is not one whole request: of several, of a piece, or with added items.
pub(super) struct ComparedRun<'a> {
    pub(super) batch_key: &'a BatchKey,
    /// Inputs of the first request.
    pub(super) inputs: &'a [NamedTensor],
    /// Names of the requested outputs.
    pub(super) outputs: &'a [Arc<str>],
    /// Number of items of all requests.
    pub(super) items: usize,
}

impl ComparedRun<'_> {
    /// Returns true if an output has another size because the run had other items than the request.
    /// Such an output has the scores of all items of a run against each other: a column for each
    /// item. `answers` are those of all requests of the run.
    ///
    /// If a size is a multiple of the number of items, the first item runs alone, once for the same
    /// outputs of a version.
    pub(super) fn sizes_follow_items(
        &self,
        servable: &Servable,
        answers: &[Vec<NamedTensor>],
    ) -> bool {
        let plan = servable.plan();
        let [outputs, ..] = answers else { return false };
        let rows = rows_of(servable, self.items);
        if !plan.batchable || servable.schedule().data_dependent_shapes || rows < 2 {
            return false;
        }
        if sizes_vary(servable, Some(self.batch_key), answers) {
            // Outputs of a run without added items are those of its items.
            return rows != self.items;
        }
        if !outputs.iter().any(|output| may_follow(servable, output, rows)) {
            return false;
        }
        let mut hasher = DefaultHasher::new();
        outputs.iter().for_each(|output| output.name.hash(&mut hasher));
        let names = hasher.finish();
        if servable.output_sizes_compared(names) {
            return false;
        }
        let alone = entry::piece(plan, self.inputs, 0, 1)
            .and_then(|inputs| call(servable, &inputs, self.outputs));
        if let Ok(alone) = alone
            && !have_sizes_of(&alone, outputs)
        {
            return true;
        }
        // A model that refuses a single item cannot be compared.
        servable.set_output_sizes_compared(names);
        false
    }
}

/// Returns true if an axis of the output without a fixed size or a rule has a multiple of `rows`.
fn may_follow(servable: &Servable, output: &NamedTensor, rows: usize) -> bool {
    let Some(spec) = servable.signature().output(&output.name) else { return false };
    let mut sizes = output.tensor.shape().iter().enumerate();
    sizes.any(|(axis, &size)| {
        size > 0 && size.is_multiple_of(rows) && servable.plan().is_open(spec, axis)
    })
}

/// Returns true if the outputs of one item have the sizes of `outputs` after axis 0.
fn have_sizes_of(alone: &[NamedTensor], outputs: &[NamedTensor]) -> bool {
    alone.len() == outputs.len()
        && alone.iter().zip(outputs).all(|(alone, output)| {
            let shape = alone.tensor.shape();
            shape.first() == Some(&1) && shape.get(1..) == output.tensor.shape().get(1..)
        })
}
