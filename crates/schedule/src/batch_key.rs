//! The batch key of a request: requests with equal keys can share a run without padding.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use base::{NamedTensor, Shape};
use engine::{BatchPlan, InputPlan, Servable};

use crate::merge;

/// Maximum bytes of a request's inputs without a batch axis. They are compared with those of other
/// requests in the queue. A request with more bytes runs alone.
pub(crate) const SHARED_BYTES_MAX: usize = 4096;

/// Sizes of every input's axes but the first, in the order of the plan, or `None` for an optional
/// input that is left out.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct BatchKey(Vec<Option<Shape>>);

impl BatchKey {
    /// Returns the key of `inputs` with buckets applied, and their number of items: the common size
    /// of axis 0. `None` if the request cannot be joined with others. The inputs have different
    /// numbers of items or none, or the shared inputs have more than [`SHARED_BYTES_MAX`] bytes.
    pub(crate) fn of(plan: &BatchPlan, inputs: &[NamedTensor]) -> Option<(BatchKey, usize)> {
        let items = items(plan, inputs)?;
        if shared(plan, inputs).map(|(_, sent)| shared_bytes(sent)).sum::<usize>()
            > SHARED_BYTES_MAX
        {
            return None;
        }
        let rest = |sent: &NamedTensor| sent.tensor.shape().get(1..).map(Shape::from_slice);
        let sizes =
            |input: &InputPlan| inputs.iter().find(|sent| sent.name == input.name).and_then(rest);
        let mut batch_key = BatchKey(plan.inputs.iter().map(sizes).collect());
        if !batch_key.masks_fit(plan) {
            return None;
        }
        batch_key.round_up(plan);
        Some((batch_key, items))
    }

    /// Rounds the sizes of padded axes up to the next bucket.
    fn round_up(&mut self, plan: &BatchPlan) {
        for (index, input) in plan.inputs.iter().enumerate() {
            let Some(rule) = &input.rule else { continue };
            let Some(sizes) = &mut self.0[index] else { continue };
            for axis in &input.axes {
                if let Some(size) = sizes.get_mut(axis.axis - 1) {
                    *size = merge::round_up(*size, &rule.buckets);
                }
            }
        }
        self.follow(plan);
    }

    /// Returns true if masks from the client have the sizes of the masked inputs.
    fn masks_fit(&self, plan: &BatchPlan) -> bool {
        plan.inputs.iter().enumerate().filter(|(_, input)| input.rule.is_none()).all(
            |(index, input)| {
                input.axes.iter().all(|axis| {
                    let own = self.sizes(index).and_then(|sizes| sizes.get(axis.axis - 1));
                    let source =
                        self.sizes(axis.source).and_then(|sizes| sizes.get(axis.source_axis - 1));
                    own.is_none() || own == source
                })
            },
        )
    }

    /// Sets the sizes of masks to the sizes of the inputs that they mask.
    fn follow(&mut self, plan: &BatchPlan) {
        for (index, input) in
            plan.inputs.iter().enumerate().filter(|(_, input)| input.rule.is_none())
        {
            for axis in &input.axes {
                let source = self
                    .sizes(axis.source)
                    .and_then(|sizes| sizes.get(axis.source_axis - 1))
                    .copied();
                let own = self.0[index].as_mut().and_then(|sizes| sizes.get_mut(axis.axis - 1));
                if let (Some(source), Some(own)) = (source, own) {
                    *own = source;
                }
            }
        }
    }

    /// Returns the sizes of input `index` without axis 0.
    pub(crate) fn sizes(&self, index: usize) -> Option<&[usize]> {
        self.0.get(index)?.as_deref()
    }

    /// Returns the smallest key that covers both, if only axes that may grow differ.
    pub(crate) fn cover(&self, other: &BatchKey, plan: &BatchPlan) -> Option<BatchKey> {
        let mut covered = Vec::with_capacity(self.0.len());
        for (input, (a, b)) in plan.inputs.iter().zip(self.0.iter().zip(&other.0)) {
            covered.push(match (a, b) {
                (None, None) => None,
                (Some(a), Some(b)) => {
                    let grows =
                        |axis: usize| input.axes.iter().any(|growing| growing.axis == axis + 1);
                    if (0..a.len().min(b.len())).any(|axis| a[axis] != b[axis] && !grows(axis)) {
                        return None;
                    }
                    Some(Shape::from_vec(merge::cover(a, b)?))
                }
                _ => return None,
            });
        }
        Some(BatchKey(covered))
    }

    /// Returns true if a request with this key may be padded to `padded`.
    pub(crate) fn may_pad(&self, padded: &BatchKey, plan: &BatchPlan) -> bool {
        plan.inputs.iter().zip(self.0.iter().zip(&padded.0)).all(|(input, pair)| {
            match (&input.rule, pair) {
                (Some(rule), (Some(own), Some(padded))) => {
                    own == padded
                        || (rule.merge
                            && merge::may_pad(
                                own,
                                padded,
                                input.dtype.bytes_for(1).unwrap_or(1),
                                rule,
                            ))
                }
                _ => true,
            }
        })
    }

    /// Returns the elements of an item: of its padded inputs, or of all inputs if none is padded.
    pub(crate) fn elements(&self, plan: &BatchPlan) -> f64 {
        let pads = plan.pads();
        let counted =
            plan.inputs.iter().zip(&self.0).filter(|(input, _)| !pads || input.rule.is_some());
        let elements = |sizes: &Shape| sizes.iter().map(|&size| size as f64).product::<f64>();
        counted.filter_map(|(_, sizes)| sizes.as_ref().map(elements)).sum()
    }

    /// Returns the hash of the key, which is the same in every version of a model.
    pub(crate) fn key(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        hasher.finish()
    }

    /// Formats the sizes for people: "x[3,48,320] m[320]".
    pub(crate) fn describe(&self, plan: &BatchPlan) -> String {
        let one = |(input, sizes): (&InputPlan, &Option<Shape>)| {
            let sizes = sizes.as_ref()?.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
            Some(format!("{}[{sizes}]", input.name))
        };
        plan.inputs.iter().zip(&self.0).filter_map(one).collect::<Vec<_>>().join(" ")
    }
}

/// Returns true if axis 0 of `input` has the items of the request. If requests are only padded and
/// not joined, that matters for padded inputs and their masks only. Others may be scalars.
pub(crate) fn has_items(plan: &BatchPlan, input: &InputPlan) -> bool {
    !input.shared && (plan.batchable || !input.axes.is_empty())
}

/// Returns the number of items of `inputs`: the common size of axis 0. `None` if it is not common
/// or not positive.
pub(crate) fn items(plan: &BatchPlan, inputs: &[NamedTensor]) -> Option<usize> {
    let mut items = None;
    for input in plan.inputs.iter().filter(|input| has_items(plan, input)) {
        let Some(sent) = inputs.iter().find(|sent| sent.name == input.name) else { continue };
        let &count = sent.tensor.shape().first()?;
        if *items.get_or_insert(count) != count {
            return None;
        }
    }
    items.filter(|&items| items > 0)
}

/// Returns the sizes of axis 0 of the inputs that have the items there.
pub(crate) fn first_sizes(plan: &BatchPlan, inputs: &[NamedTensor]) -> Vec<usize> {
    let counted = plan.inputs.iter().filter(|input| has_items(plan, input));
    let sent = counted.filter_map(|input| inputs.iter().find(|sent| sent.name == input.name));
    sent.filter_map(|sent| sent.tensor.shape().first().copied()).collect()
}

/// Returns the inputs without a batch axis, with their names.
fn shared<'a>(
    plan: &'a BatchPlan,
    inputs: &'a [NamedTensor],
) -> impl Iterator<Item = (&'a str, &'a NamedTensor)> {
    let shared = plan.inputs.iter().filter(|input| input.shared);
    shared.filter_map(|input| {
        Some((&*input.name, inputs.iter().find(|sent| sent.name == input.name)?))
    })
}

fn shared_bytes(sent: &NamedTensor) -> usize {
    let strings = sent.tensor.strings().unwrap_or_default();
    let texts = strings.iter().map(|text| text.len() + size_of_val(text)).sum::<usize>();
    texts + sent.tensor.bytes().map_or(0, |bytes| bytes.len())
}

/// Returns true if two requests have the same bits in every input without a batch axis.
pub(crate) fn same_shared(plan: &BatchPlan, a: &[NamedTensor], b: &[NamedTensor]) -> bool {
    !plan.shares()
        || shared(plan, a).map(|(_, sent)| sent).eq(shared(plan, b).map(|(_, sent)| sent))
}

/// Returns true if two requests request the same outputs of the same version.
pub(crate) fn same_outputs(
    a: (&Arc<Servable>, &[Arc<str>]),
    b: (&Arc<Servable>, &[Arc<str>]),
) -> bool {
    Arc::ptr_eq(a.0, b.0) && a.1 == b.1
}
