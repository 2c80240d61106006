//! A loaded model and its runs. A model without a state takes no lock: LibTorch allows concurrent
//! runs, and nothing here changes after loading.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ops::Range;
use std::sync::Arc;

use base::{DType, Error, NamedTensor, Result, Signature};
use bytes::Bytes;
use engine::{Device, Session, SessionOptions};
use memory::{Region, RegionMut};
use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::api::{BOOL, FLOAT, INT, RawValue, RawView, TENSOR, text};
use crate::module::{RunResults, TorchModule};
use crate::signature::{self, ForwardPlan, ModuleOutput, ObservedOutput};
use crate::{element, outputs};

/// Maximum inputs or outputs of a run whose bookkeeping needs no allocation.
const INLINE_MAX: usize = 8;

/// Memory of a model's parameters; dropped after the module.
pub(crate) enum ParameterMemory {
    /// LibTorch's own allocator.
    Heap,
    /// The slot pool, sealed against writes.
    Sealed(Region),
    /// The slot pool; runs may write to it.
    Writable(
        #[expect(dead_code, reason = "LibTorch uses it through pointers; it only has to live")]
        RegionMut,
    ),
}

/// A module, and the memory of its parameters.
pub(crate) struct LoadedModule {
    /// Dropped before the memory that it points into, also after an error.
    pub(crate) module: TorchModule,
    pub(crate) memory: ParameterMemory,
}

/// State that a session and its forks share.
struct TorchModel {
    /// The module as loaded. If it has a state, only its forks are run.
    module: TorchModule,
    /// Memory of the parameters. It is dropped after the module.
    memory: ParameterMemory,
    plan: ForwardPlan,
    device: Device,
    threads: usize,
    stateful: bool,
    parameter_bytes: u64,
    metadata: BTreeMap<String, String>,
}

/// A model in LibTorch. Dropping it releases the module first, then the memory of its parameters.
pub(crate) struct TorchSession {
    model: Arc<TorchModel>,
}

/// Session of a model for one stream, with a state of its own.
struct ForkedSession {
    /// Dropped before the model whose parameters it uses.
    module: Mutex<TorchModule>,
    model: Arc<TorchModel>,
}

impl TorchSession {
    /// Creates the session, with the inputs and outputs that the module states.
    ///
    /// # Errors
    /// Returns the errors of [`signature::plan`]; `InvalidArgument` if the outputs are unknown.
    pub(crate) fn new(loaded: LoadedModule, options: &SessionOptions) -> Result<TorchSession> {
        let description = loaded.module.describe()?;
        let package = description.declaration.is_empty();
        let plan = signature::plan(&description, &options.signature, package)?;
        let parameter_bytes = match loaded.memory {
            ParameterMemory::Heap => 0,
            ParameterMemory::Sealed(_) | ParameterMemory::Writable(_) => {
                description.arena_used as u64
            }
        };
        let metadata = [("forward".to_owned(), description.declaration)];
        let mut model = TorchModel {
            module: loaded.module,
            memory: loaded.memory,
            plan,
            device: options.device,
            threads: options.intra_op_threads,
            stateful: description.stateful,
            parameter_bytes,
            metadata: metadata.into_iter().filter(|(_, value)| !value.is_empty()).collect(),
        };
        if model.plan.provisional {
            model.try_out()?;
        }
        Ok(TorchSession { model: Arc::new(model) })
    }
}

impl TorchModel {
    /// Determines the outputs by a run on zeros, if that is possible.
    fn try_out(&mut self) -> Result<()> {
        let learnt = match self.plan.trial() {
            Some(inputs) => self.observe(&inputs),
            None => Err(Error::invalid("the shapes of its inputs are not known")),
        };
        match learnt {
            Ok(outputs) => self.plan.learn(&outputs),
            Err(error) if self.plan.outputs.is_empty() => {
                return Err(Error::invalid(format!(
                    "the outputs of forward are unknown ({error}): list the outputs, or the inputs' shapes, in \
                     [signature]"
                )));
            }
            Err(error) => {
                tracing::debug!(%error, "a trial run did not show the types of the outputs")
            }
        }
        Ok(())
    }

    /// Runs once and returns the outputs, without their elements.
    fn observe(&self, inputs: &[NamedTensor]) -> Result<Vec<ObservedOutput>> {
        let (answer, _) = self.answer(inputs)?;
        let view = |index| {
            let view = answer.view(index).ok_or_else(|| Error::internal("an output is missing"))?;
            let dtype = element::from_torch(view.dtype).ok_or_else(|| {
                Error::invalid(format!("an output has element type {} of LibTorch", view.dtype))
            })?;
            let rank = outputs::shape(&view)?.len();
            Ok(ObservedOutput { name: name_of(&view), dtype, rank })
        };
        (0..answer.len()).map(view).collect()
    }

    /// Runs once from the state as loaded.
    fn answer(&self, inputs: &[NamedTensor]) -> Result<(RunResults, TorchFeeds)> {
        if self.stateful {
            self.answer_of(&self.module.fork()?, inputs)
        } else {
            self.answer_of(&self.module, inputs)
        }
    }

    /// Runs `module` once. Returns its results, and the inputs, whose memory results may share.
    fn answer_of(
        &self,
        module: &TorchModule,
        inputs: &[NamedTensor],
    ) -> Result<(RunResults, TorchFeeds)> {
        let feeds = TorchFeeds::new(&self.plan, inputs)?;
        let values = feeds.values(&self.plan);
        // SAFETY: the feeds have a value for each argument of forward, of its kind, and hold its
        // bytes and sizes.
        let answer = unsafe { module.run(&values, self.threads) }?;
        Ok((answer, feeds))
    }

    /// Returns the wanted outputs.
    fn take(
        &self,
        answer: &RunResults,
        feeds: &TorchFeeds,
        wanted: &[Arc<str>],
    ) -> Result<Vec<NamedTensor>> {
        let mut borrowed: SmallVec<[Range<usize>; INLINE_MAX]> = feeds.ranges().collect();
        let parameters = match &self.memory {
            ParameterMemory::Heap => None,
            ParameterMemory::Sealed(region) => Some((region.as_ptr().addr(), region.len())),
            // Outputs of a module with a state share no memory with it.
            ParameterMemory::Writable(_) => None,
        };
        borrowed.extend(parameters.map(|(start, bytes)| start..start + bytes));
        let take = |source: &ModuleOutput| {
            let (index, view) = self.find(answer, source)?;
            let tensor = outputs::take(answer, index, &view, &borrowed)?;
            Ok(NamedTensor { name: source.name.clone(), tensor })
        };
        if wanted.is_empty() {
            self.check_outputs(answer)?;
            return self.plan.outputs.iter().map(take).collect();
        }
        let named = |(guess, name): (usize, &Arc<str>)| {
            let outputs = &self.plan.outputs;
            let source = outputs.get(guess).filter(|source| source.name == *name);
            let source = source.or_else(|| outputs.iter().find(|source| source.name == *name));
            take(
                source
                    .ok_or_else(|| Error::invalid(format!("the model has no output \"{name}\"")))?,
            )
        };
        wanted.iter().enumerate().map(named).collect()
    }

    /// Checks that the results have no output that the trial run did not give. It would be lost.
    fn check_outputs(&self, answer: &RunResults) -> Result<()> {
        let outputs = &self.plan.outputs;
        if !self.plan.observed || answer.len() <= outputs.len() {
            return Ok(());
        }
        let is_known = |name: &String| outputs.iter().any(|output| *output.name == **name);
        let Some(other) = self.names(answer).find(|name| !is_known(name)) else {
            return Ok(());
        };
        Err(Error::invalid(format!(
            "the model gave \"{other}\", which a run on zeros at its load did not give: list the outputs that \
             requests get in [signature]"
        )))
    }

    /// Finds an output in the results.
    fn find(&self, answer: &RunResults, source: &ModuleOutput) -> Result<(usize, RawView)> {
        let there = answer.view(source.position);
        let is = |view: &RawView, name: &str| name_of(view) == name;
        let found = match &source.key {
            Some(key) => match there.filter(|view| is(view, key)) {
                Some(view) => Some((source.position, view)),
                None => self.search(answer, key),
            },
            // In a list or dictionary: by its key, or by its position if there are no keys.
            None => self.search(answer, &source.name).or_else(|| {
                let view = there.filter(|view| name_of(view).starts_with("output"))?;
                Some((source.position, view))
            }),
        };
        found.ok_or_else(|| {
            let names: Vec<String> = self.names(answer).collect();
            let name = &source.name;
            let names = names.join(", ");
            Error::invalid(format!("the model gave no \"{name}\" this time, but {names}"))
        })
    }

    fn search(&self, answer: &RunResults, name: &str) -> Option<(usize, RawView)> {
        let index = self.names(answer).position(|there| there == name)?;
        Some((index, answer.view(index)?))
    }

    fn names(&self, answer: &RunResults) -> impl Iterator<Item = String> {
        (0..answer.len()).filter_map(|index| answer.view(index)).map(|view| name_of(&view))
    }

    /// Returns true if no run can succeed any more. Models on the processor continue.
    fn needs_new_process(&self) -> bool {
        self.device != Device::Cpu && self.module.has_lost_its_device()
    }

    fn fork(self: &Arc<TorchModel>) -> Result<Box<dyn Session>> {
        if !self.stateful {
            return Err(Error::unimplemented("the model keeps no state inside"));
        }
        Ok(Box::new(ForkedSession { module: Mutex::new(self.module.fork()?), model: self.clone() }))
    }
}

fn name_of(view: &RawView) -> String {
    // SAFETY: views are used while their answer is alive, and its names are NUL-terminated.
    unsafe { text(view.name) }
}

impl Session for TorchSession {
    fn signature(&self) -> &Signature {
        &self.model.plan.signature
    }

    fn metadata(&self) -> &BTreeMap<String, String> {
        &self.model.metadata
    }

    fn parameter_bytes(&self) -> u64 {
        self.model.parameter_bytes
    }

    fn needs_new_process(&self) -> bool {
        self.model.needs_new_process()
    }

    fn stateful(&self) -> bool {
        self.model.stateful
    }

    fn fork(&self) -> Result<Box<dyn Session>> {
        self.model.fork()
    }

    fn run(&self, inputs: &[NamedTensor], outputs: &[Arc<str>]) -> Result<Vec<NamedTensor>> {
        let (answer, feeds) = self.model.answer(inputs)?;
        self.model.take(&answer, &feeds, outputs)
    }
}

impl Session for ForkedSession {
    fn signature(&self) -> &Signature {
        &self.model.plan.signature
    }

    fn metadata(&self) -> &BTreeMap<String, String> {
        &self.model.metadata
    }

    fn needs_new_process(&self) -> bool {
        self.model.needs_new_process()
    }

    fn stateful(&self) -> bool {
        true
    }

    fn fork(&self) -> Result<Box<dyn Session>> {
        self.model.fork()
    }

    fn run(&self, inputs: &[NamedTensor], outputs: &[Arc<str>]) -> Result<Vec<NamedTensor>> {
        let module = self.module.lock();
        let (answer, feeds) = self.model.answer_of(&module, inputs)?;
        self.model.take(&answer, &feeds, outputs)
    }
}

/// One argument of a run.
struct TorchFeed {
    /// Index of the argument.
    argument: usize,
    /// LibTorch's number of the element type.
    dtype: i32,
    bytes: Bytes,
    dims: SmallVec<[i64; 6]>,
}

/// The inputs of one run in LibTorch's form.
struct TorchFeeds(SmallVec<[TorchFeed; INLINE_MAX]>);

impl TorchFeeds {
    fn new(plan: &ForwardPlan, inputs: &[NamedTensor]) -> Result<TorchFeeds> {
        let mut feeds: SmallVec<[TorchFeed; INLINE_MAX]> = SmallVec::new();
        for input in inputs {
            let argument = *plan.inputs.get(&*input.name).ok_or_else(|| {
                Error::invalid(format!("the model has no input \"{}\"", input.name))
            })?;
            let feed = TorchFeed::new(plan, argument, input)
                .map_err(|e| e.context(format!("input \"{}\"", input.name)))?;
            feeds.push(feed);
        }
        for (index, argument) in plan.arguments.iter().enumerate() {
            if argument.required && !feeds.iter().any(|feed| feed.argument == index) {
                let name =
                    plan.inputs.iter().find(|(_, at)| **at == index).map_or("", |(name, _)| name);
                return Err(Error::invalid(format!("input \"{name}\" is missing")));
            }
        }
        Ok(TorchFeeds(feeds))
    }

    /// Returns a value for every argument of forward. The values point into the feeds.
    fn values(&self, plan: &ForwardPlan) -> SmallVec<[RawValue; INLINE_MAX]> {
        let absent = RawValue {
            data: std::ptr::null(),
            dims: std::ptr::null(),
            rank: 0,
            dtype: 0,
            given: 0,
        };
        let mut values = SmallVec::from_elem(absent, plan.arguments.len());
        for feed in &self.0 {
            if let Some(value) = values.get_mut(feed.argument) {
                *value = RawValue {
                    data: feed.bytes.as_ptr().cast::<c_void>(),
                    dims: feed.dims.as_ptr(),
                    rank: feed.dims.len() as i32,
                    dtype: feed.dtype,
                    given: 1,
                };
            }
        }
        values
    }

    /// Returns the address ranges of the inputs.
    fn ranges(&self) -> impl Iterator<Item = Range<usize>> {
        self.0.iter().map(|feed| {
            let range = feed.bytes.as_ptr_range();
            range.start.addr()..range.end.addr()
        })
    }
}

impl TorchFeed {
    fn new(plan: &ForwardPlan, argument: usize, input: &NamedTensor) -> Result<TorchFeed> {
        let tensor = &input.tensor;
        let dtype = element::to_torch(tensor.dtype())
            .ok_or_else(|| Error::invalid(format!("LibTorch has no {} tensors", tensor.dtype())))?;
        let scalar = match plan.arguments.get(argument).map_or(TENSOR, |argument| argument.kind) {
            INT => Some(DType::I64),
            FLOAT => Some(DType::F64),
            BOOL => Some(DType::Bool),
            _ => None,
        };
        if let Some(wanted) = scalar
            && (tensor.dtype() != wanted || !tensor.shape().is_empty())
        {
            let dtype = tensor.dtype();
            let shape = tensor.shape();
            return Err(Error::invalid(format!(
                "is {dtype} of shape {shape:?}, it must be one {wanted}"
            )));
        }
        let bytes = tensor
            .aligned_bytes()
            .ok_or_else(|| Error::invalid("LibTorch has no string tensors"))?;
        // In C++ a bool other than 0 and 1 is undefined behaviour.
        if tensor.dtype() == DType::Bool && bytes.iter().any(|&byte| byte > 1) {
            return Err(Error::invalid("a bool element is neither 0 nor 1"));
        }
        let dims = tensor.shape().iter().map(|&size| size as i64).collect();
        Ok(TorchFeed { argument, dtype, bytes, dims })
    }
}
