//! The form of a request: what decides with which others it can share a run.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use base::{NamedTensor, Shape};
use engine::{BatchPlan, InputPlan, Servable};

use crate::merge;

/// Bytes of a request's inputs without a batch axis, for it to be compared with others in the
/// queue; one with more runs alone.
pub(crate) const SHARED_BYTES_MAX: usize = 4096;

/// The sizes of every input's axes but the first, in the order of the plan; `None` where an
/// optional input is left out.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct BatchKey(Vec<Option<Shape>>);

impl BatchKey {
    /// The form of `inputs` with buckets applied, and the items they hold: the common size of axis
    /// 0. `None` where the request cannot be joined with others: no common, or no positive, number
    /// of items, or shared inputs of more than [`SHARED_BYTES_MAX`] bytes.
    pub(crate) fn of(plan: &BatchPlan, inputs: &[NamedTensor]) -> Option<(BatchKey, usize)> {
        let items = items(plan, inputs)?;
        if shared(plan, inputs).map(|(_, given)| shared_bytes(given)).sum::<usize>()
            > SHARED_BYTES_MAX
        {
            return None;
        }
        let rest = |given: &NamedTensor| given.tensor.shape().get(1..).map(Shape::from_slice);
        let sizes =
            |input: &InputPlan| inputs.iter().find(|given| given.name == input.name).and_then(rest);
        let mut form = BatchKey(plan.inputs.iter().map(sizes).collect());
        if !form.masks_fit(plan) {
            return None;
        }
        form.round_up(plan);
        Some((form, items))
    }

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

    /// Whether masks that clients sent have the sizes of what they mask.
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

    /// Gives masks the sizes of what they mask.
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

    /// The sizes of input `index` without axis 0.
    pub(crate) fn sizes(&self, index: usize) -> Option<&[usize]> {
        self.0.get(index)?.as_deref()
    }

    /// The smallest form that holds both, where only axes that may grow differ.
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

    /// Whether a request of this form may be padded to `padded`.
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

    /// Elements an item has: of the inputs that are padded, or of all where none is.
    pub(crate) fn elements(&self, plan: &BatchPlan) -> f64 {
        let pads = plan.pads();
        let counted =
            plan.inputs.iter().zip(&self.0).filter(|(input, _)| !pads || input.rule.is_some());
        let elements = |sizes: &Shape| sizes.iter().map(|&size| size as f64).product::<f64>();
        counted.filter_map(|(_, sizes)| sizes.as_ref().map(elements)).sum()
    }

    /// A number for this form, the same in every version of a model.
    pub(crate) fn key(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        hasher.finish()
    }

    /// For people: "x[3,48,320] m[320]".
    pub(crate) fn describe(&self, plan: &BatchPlan) -> String {
        let one = |(input, sizes): (&InputPlan, &Option<Shape>)| {
            let sizes = sizes.as_ref()?.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
            Some(format!("{}[{sizes}]", input.name))
        };
        plan.inputs.iter().zip(&self.0).filter_map(one).collect::<Vec<_>>().join(" ")
    }
}

/// The items that `inputs` hold: the common size of axis 0. `None` where there is no common, or no
/// positive, one.
pub(crate) fn items(plan: &BatchPlan, inputs: &[NamedTensor]) -> Option<usize> {
    let mut items = None;
    for input in plan.inputs.iter().filter(|input| !input.shared) {
        let Some(given) = inputs.iter().find(|given| given.name == input.name) else { continue };
        let &count = given.tensor.shape().first()?;
        if *items.get_or_insert(count) != count {
            return None;
        }
    }
    items.filter(|&items| items > 0)
}

/// The inputs without a batch axis, with their names.
fn shared<'a>(
    plan: &'a BatchPlan,
    inputs: &'a [NamedTensor],
) -> impl Iterator<Item = (&'a str, &'a NamedTensor)> {
    let shared = plan.inputs.iter().filter(|input| input.shared);
    shared.filter_map(|input| {
        Some((&*input.name, inputs.iter().find(|given| given.name == input.name)?))
    })
}

fn shared_bytes(given: &NamedTensor) -> usize {
    let strings = given.tensor.strings().unwrap_or_default();
    let texts = strings.iter().map(|text| text.len() + size_of_val(text)).sum::<usize>();
    texts + given.tensor.bytes().map_or(0, |bytes| bytes.len())
}

/// Whether two requests have the same bits in every input without a batch axis.
pub(crate) fn same_shared(plan: &BatchPlan, a: &[NamedTensor], b: &[NamedTensor]) -> bool {
    !plan.shares()
        || shared(plan, a).map(|(_, given)| given).eq(shared(plan, b).map(|(_, given)| given))
}

/// Whether two requests ask the same of the same version.
pub(crate) fn same_question(
    a: (&Arc<Servable>, &[Arc<str>]),
    b: (&Arc<Servable>, &[Arc<str>]),
) -> bool {
    Arc::ptr_eq(a.0, b.0) && a.1 == b.1
}
