//! Outputs with a size that follows the number of items of a run.

use std::hash::{DefaultHasher, Hash, Hasher};

use base::NamedTensor;
use engine::Servable;

use super::{call, rows_of, sizes_vary};
use crate::batch_key::BatchKey;
use crate::entry::{self, Entry, Finish};

/// Returns true if an output has another size because its run had other items than the request.
/// Such an output has the scores of all items of a run against each other: a column for each item.
///
/// Runs that are not one whole request are checked. If a size is a multiple of the number of items,
/// the first item runs alone, once for the same outputs of a version.
pub(super) fn sizes_follow_items(
    servable: &Servable,
    entries: &[Entry],
    batch_key: Option<&BatchKey>,
    answers: &[Vec<NamedTensor>],
) -> bool {
    let plan = servable.plan();
    let ([first, ..], Some(_), [outputs, ..]) = (entries, batch_key, answers) else { return false };
    let items: usize = entries.iter().map(|entry| entry.items).sum();
    let rows = rows_of(servable, items);
    let is_whole = matches!(first.finish, Finish::Whole(_));
    if !plan.batchable
        || servable.schedule().data_dependent_shapes
        || rows < 2
        || (is_whole && entries.len() == 1 && rows == items)
    {
        return false;
    }
    if sizes_vary(servable, batch_key, answers) {
        // Outputs of a run without added items are those of its items.
        return rows != items;
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
    let alone = entry::piece(plan, &first.inputs, 0, 1)
        .and_then(|inputs| call(servable, &inputs, &first.outputs));
    if let Ok(alone) = alone
        && !have_sizes_of(&alone, outputs)
    {
        return true;
    }
    // A model that refuses a single item cannot be compared.
    servable.set_output_sizes_compared(names);
    false
}

/// Returns true if an axis of the output without a fixed size or a rule has a multiple of `rows`.
fn may_follow(servable: &Servable, output: &NamedTensor, rows: usize) -> bool {
    let Some(spec) = servable.signature().output(&output.name) else { return false };
    let mut sizes = output.tensor.shape().iter().enumerate();
    sizes.any(|(axis, &size)| {
        size > 0 && size.is_multiple_of(rows) && servable.plan().is_open(spec, axis)
    })
}

/// Returns true if the outputs of one item have the sizes of `outputs` behind axis 0.
fn have_sizes_of(alone: &[NamedTensor], outputs: &[NamedTensor]) -> bool {
    alone.len() == outputs.len()
        && alone.iter().zip(outputs).all(|(alone, output)| {
            let shape = alone.tensor.shape();
            shape.first() == Some(&1) && shape.get(1..) == output.tensor.shape().get(1..)
        })
}
