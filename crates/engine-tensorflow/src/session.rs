//! A loaded model and its runs.

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use base::{Error, NamedTensor, Result, Signature, Tensor};
use bytes::Bytes;
use engine::{NamedSignature, SKIPPED_SIGNATURES_KEY, Session};
use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::api::{RawOutput, RawTensor};
use crate::fault;
use crate::opened::{INLINE_MAX, OpenedModel, RawRun, buffer};
use crate::signature::ReadSignatures;
use crate::tensor::TfTensor;

/// Maximum sets of outputs of one signature that are fetched without the other outputs. TensorFlow
/// keeps a compiled graph for each set. For any further set, all outputs are fetched.
const SUBSETS_MAX: usize = 16;

/// Key of the metadata that names the variables which runs change.
pub(crate) const CHANGED_KEY: &str = "variables that runs change";
/// Key of the metadata that names the operations with which runs change tables.
pub(crate) const TABLES_KEY: &str = "operations of runs that change tables";

/// A model in TensorFlow.
pub(crate) struct TfSession {
    /// Dropped before the model.
    plans: Vec<SignaturePlan>,
    model: OpenedModel,
    signatures: Vec<NamedSignature>,
    default: usize,
    metadata: BTreeMap<String, String>,
    regions: Vec<Range<usize>>,
    copies_outputs: bool,
}

/// A model whose variables have their values.
pub(crate) struct LoadedModel {
    pub(crate) model: OpenedModel,
    /// Addresses of the parameters, ascending. An output that lies there is copied, because a
    /// client that reads slowly would keep the region of an old version.
    pub(crate) regions: Vec<Range<usize>>,
    /// True if an output may be a variable that a later run changes in place.
    pub(crate) copies_outputs: bool,
    pub(crate) metadata: BTreeMap<String, String>,
}

impl TfSession {
    /// Finds the tensors of the signatures.
    ///
    /// # Errors
    /// `InvalidArgument` if the graph does not have them.
    pub(crate) fn new(loaded: LoadedModel, read: ReadSignatures) -> Result<TfSession> {
        let LoadedModel { model, regions, copies_outputs, mut metadata } = loaded;
        if !read.skipped.is_empty() {
            metadata.insert(SKIPPED_SIGNATURES_KEY.to_owned(), read.skipped.join("; "));
        }
        let plan = |(signature, defaults): (&NamedSignature, &BTreeMap<String, Bytes>)| {
            SignaturePlan::new(&model, signature, defaults)
                .map_err(|e| e.context(format!("signature \"{}\"", signature.name)))
        };
        let plans = read.signatures.iter().zip(&read.defaults).map(plan).collect::<Result<_>>()?;
        Ok(TfSession {
            plans,
            model,
            signatures: read.signatures,
            default: read.default,
            metadata,
            regions,
            copies_outputs,
        })
    }

    /// Returns true if an output at `address` must not be kept there.
    fn is_borrowed(&self, address: usize) -> bool {
        let after = self.regions.partition_point(|region| region.start <= address);
        let inside = |region: &Range<usize>| region.contains(&address);
        self.copies_outputs || self.regions[..after].last().is_some_and(inside)
    }
}

impl Session for TfSession {
    fn signature(&self) -> &Signature {
        &self.signatures[self.default].signature
    }

    fn signatures(&self) -> &[NamedSignature] {
        &self.signatures
    }

    fn default_signature(&self) -> usize {
        self.default
    }

    fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    fn changes_state(&self) -> bool {
        [CHANGED_KEY, TABLES_KEY].iter().any(|key| self.metadata.contains_key(*key))
    }

    fn run(&self, inputs: &[NamedTensor], outputs: &[Arc<str>]) -> Result<Vec<NamedTensor>> {
        self.run_signature(self.default, inputs, outputs)
    }

    fn run_signature(
        &self,
        number: usize,
        inputs: &[NamedTensor],
        outputs: &[Arc<str>],
    ) -> Result<Vec<NamedTensor>> {
        let plan = self.plans.get(number).ok_or_else(|| {
            Error::internal(format!("the model has no signature number {number}"))
        })?;
        let feeds = plan.feed(&self.model, inputs)?;
        let wanted = plan.positions_of(outputs)?;
        let chosen = plan.chosen(&wanted);
        let fetches: SmallVec<[RawOutput; INLINE_MAX]> =
            chosen.iter().map(|&at| plan.fetches[at]).collect();
        let values: SmallVec<[*mut RawTensor; INLINE_MAX]> =
            feeds.iter().map(|feed| feed.as_ptr()).collect();
        let run = RawRun { places: &plan.places, values: &values, fetches: &fetches, targets: &[] };
        // TensorFlow refuses a run without a fetch: all outputs are inputs.
        let results = if fetches.is_empty() {
            SmallVec::new()
        } else {
            self.model.run(run, fault::of_run)?
        };
        let mut tensors: SmallVec<[Option<Tensor>; INLINE_MAX]> =
            SmallVec::from_elem(None, plan.fetches.len());
        for (&at, result) in chosen.iter().zip(results) {
            tensors[at] = Some(result.into_tensor(|address| self.is_borrowed(address))?);
        }
        let take = |&output: &usize| {
            let tensor = match plan.sources[output] {
                OutputSource::Fetch(at) => tensors.get(at).cloned().flatten(),
                OutputSource::Input(at) => {
                    let name = &plan.inputs[at];
                    let given = inputs.iter().find(|input| input.name == *name);
                    given.map(|input| input.tensor.clone())
                }
            };
            let tensor = tensor.ok_or_else(|| Error::internal("an output was not computed"))?;
            Ok(NamedTensor { name: plan.outputs[output].clone(), tensor })
        };
        wanted.iter().map(take).collect()
    }
}

/// Source of an output of a signature.
#[derive(Clone, Copy)]
enum OutputSource {
    /// Position in the fetches.
    Fetch(usize),
    /// Position in the inputs, for an output that is the same tensor.
    Input(usize),
}

/// Names and tensors of a signature. Feeds and fetches are in the order of the tensors' names.
struct SignaturePlan {
    inputs: Vec<Arc<str>>,
    /// Position in the feeds of each input.
    slots: Vec<usize>,
    places: Vec<RawOutput>,
    /// Values of inputs that a request may omit, by feed.
    defaults: Vec<Option<TfTensor>>,
    outputs: Vec<Arc<str>>,
    sources: Vec<OutputSource>,
    fetches: Vec<RawOutput>,
    /// Sets of fetches that were requested alone.
    subsets: Mutex<HashSet<SmallVec<[usize; INLINE_MAX]>>>,
}

// SAFETY: the operations belong to the graph, which the session keeps; they are only compared and
// passed on.
unsafe impl Send for SignaturePlan {}
// SAFETY: as above.
unsafe impl Sync for SignaturePlan {}

enum FeedValue<'a> {
    Sent(TfTensor),
    Default(&'a TfTensor),
}

type FeedValues<'a> = SmallVec<[FeedValue<'a>; INLINE_MAX]>;

impl FeedValue<'_> {
    fn as_ptr(&self) -> *mut RawTensor {
        match self {
            FeedValue::Sent(tensor) => tensor.as_ptr(),
            FeedValue::Default(tensor) => tensor.as_ptr(),
        }
    }
}

impl SignaturePlan {
    /// Plans the runs of a signature. `defaults` has the values of inputs that a request may omit.
    ///
    /// # Errors
    /// The error of [`OpenedModel::output`] for a tensor that the graph does not have, and of
    /// [`OpenedModel::constant`] for a default value.
    fn new(
        model: &OpenedModel,
        named: &NamedSignature,
        defaults: &BTreeMap<String, Bytes>,
    ) -> Result<SignaturePlan> {
        let names = |specs: &[base::TensorSpec]| {
            specs.iter().map(|spec| Arc::from(spec.name.as_str())).collect::<Vec<Arc<str>>>()
        };
        let inputs = names(&named.signature.inputs);
        let outputs = names(&named.signature.outputs);
        let mut order: Vec<usize> = (0..inputs.len()).collect();
        order.sort_by_key(|&at| &named.input_tensors[at]);
        let mut slots = vec![0; inputs.len()];
        let mut places = Vec::new();
        let mut values = Vec::new();
        for (slot, &at) in order.iter().enumerate() {
            slots[at] = slot;
            places.push(model.output(&named.input_tensors[at])?);
            let value = defaults.get(&*inputs[at]);
            values.push(value.map(|value| model.constant(value)).transpose()?);
        }
        let mut fetched: Vec<&String> = named
            .output_tensors
            .iter()
            .filter(|name| !named.input_tensors.contains(name))
            .collect();
        fetched.sort();
        fetched.dedup();
        let source = |name: &String| match fetched.binary_search(&name) {
            Ok(at) => OutputSource::Fetch(at),
            Err(_) => OutputSource::Input(
                named.input_tensors.iter().position(|input| input == name).unwrap_or(0),
            ),
        };
        let sources = named.output_tensors.iter().map(source).collect();
        let fetches = fetched.iter().map(|name| model.output(name)).collect::<Result<_>>()?;
        Ok(SignaturePlan {
            inputs,
            slots,
            places,
            defaults: values,
            outputs,
            sources,
            fetches,
            subsets: Mutex::default(),
        })
    }

    /// Makes the values of all feeds.
    fn feed(&self, model: &OpenedModel, inputs: &[NamedTensor]) -> Result<FeedValues<'_>> {
        let mut sent: SmallVec<[Option<TfTensor>; INLINE_MAX]> = SmallVec::new();
        sent.resize_with(self.slots.len(), || None);
        for (guess, input) in inputs.iter().enumerate() {
            let at = position(&self.inputs, &input.name, guess).ok_or_else(|| {
                Error::invalid(format!("the model has no input \"{}\"", input.name))
            })?;
            let tensor = TfTensor::new(model.library, &input.tensor)
                .map_err(|e| e.context(format!("input \"{}\"", input.name)))?;
            sent[self.slots[at]] = Some(tensor);
        }
        let mut values = FeedValues::new();
        for (slot, sent) in sent.into_iter().enumerate() {
            values.push(match (sent, &self.defaults[slot]) {
                (Some(tensor), _) => FeedValue::Sent(tensor),
                (None, Some(default)) => FeedValue::Default(default),
                (None, None) => {
                    let at = self.slots.iter().position(|&there| there == slot);
                    let name = at.map_or("", |at| &*self.inputs[at]);
                    return Err(Error::invalid(format!("input \"{name}\" is missing")));
                }
            });
        }
        Ok(values)
    }

    /// Returns the positions of the requested outputs.
    fn positions_of(&self, outputs: &[Arc<str>]) -> Result<SmallVec<[usize; INLINE_MAX]>> {
        if outputs.is_empty() {
            return Ok((0..self.outputs.len()).collect());
        }
        let find = |(guess, name): (usize, &Arc<str>)| {
            position(&self.outputs, name, guess)
                .ok_or_else(|| Error::invalid(format!("the model has no output \"{name}\"")))
        };
        outputs.iter().enumerate().map(find).collect()
    }

    /// Returns the fetches of a run that must give the outputs `wanted`.
    fn chosen(&self, wanted: &[usize]) -> SmallVec<[usize; INLINE_MAX]> {
        let mut chosen: SmallVec<[usize; INLINE_MAX]> = wanted
            .iter()
            .filter_map(|&output| match self.sources[output] {
                OutputSource::Fetch(at) => Some(at),
                OutputSource::Input(_) => None,
            })
            .collect();
        chosen.sort_unstable();
        chosen.dedup();
        if chosen.is_empty() || chosen.len() == self.fetches.len() {
            return chosen;
        }
        let mut subsets = self.subsets.lock();
        if subsets.contains(&chosen) {
            return chosen;
        }
        if subsets.len() < SUBSETS_MAX {
            subsets.insert(chosen.clone());
            return chosen;
        }
        (0..self.fetches.len()).collect()
    }
}

/// Returns the position of `name`. Tries `guess` first, because most requests use the model's
/// order.
fn position(names: &[Arc<str>], name: &str, guess: usize) -> Option<usize> {
    match names.get(guess) {
        Some(there) if **there == *name => Some(guess),
        _ => names.iter().position(|there| **there == *name),
    }
}

impl OpenedModel {
    /// Makes a tensor from TensorFlow's message.
    fn constant(&self, message: &Bytes) -> Result<TfTensor> {
        let buffer = buffer(message);
        let dims: [i64; 0] = [];
        // SAFETY: an empty tensor of bytes, which the library replaces by the message's.
        let tensor = unsafe {
            TfTensor::own(
                self.library,
                (self.library.call.TF_AllocateTensor)(4, dims.as_ptr(), 0, 1),
            )?
        };
        let fill = |status| {
            // SAFETY: buffer and tensor are alive.
            unsafe { (self.library.call.TF_TensorFromProto)(&buffer, tensor.as_ptr(), status) }
        };
        self.library.call(fill, fault::of_load)?;
        Ok(tensor)
    }
}
