//! A loaded version: `lifecycle` publishes it and `schedule` runs it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::SystemTime;

use base::{CarriedInput, Error, NamedTensor, Result, Signature, VersionId};

use crate::named_signature::{
    DEFAULT_SIGNATURE, NamedSignature, SKIPPED_SIGNATURES_KEY, SignatureSession, unknown_signature,
};
use crate::output_sizes::OutputSizes;
use crate::stream::StreamSession;
use crate::{BatchPlan, ExampleSettings, ScheduleMode, ScheduleOptions, Session};

/// A loaded, warmed version. The catalog and each request that uses it hold it in an `Arc`. Only
/// the unload thread drops it, once it is the last holder.
pub struct Servable {
    /// Model name and version.
    pub id: VersionId,
    /// Name of the engine.
    pub engine: &'static str,
    /// Directory of the version, which must stay while it is in use. Only the servable of the
    /// default signature has it.
    pub dir: Option<PathBuf>,
    /// Bytes of parameters in regions.
    pub parameter_bytes: u64,
    /// Time at which it became ready.
    pub ready_at: SystemTime,
    /// Text of the section `[recogniser]` of the model's settings, for the audio endpoints.
    pub recogniser: Option<Arc<str>>,
    /// Rules for Classify and Regress from the model's settings. Only the servable of the default
    /// signature has them.
    pub examples: Option<Arc<ExampleSettings>>,
    threads_per_run: usize,
    request_log_rate: Option<f64>,
    instance: u64,
    session: Arc<dyn Session>,
    /// Session that is released with the version. The servable of a stream holds the session of its
    /// version here.
    watched: Weak<dyn Session>,
    signature: Signature,
    schedule: ScheduleOptions,
    plan: BatchPlan,
    /// See [`Servable::set_mixes_items`]. Shared with servables of other settings.
    mixes_items: Arc<AtomicBool>,
    /// True after [`Servable::take_new_mixing`] has returned true. Shared in the same way.
    mixing_taken: Arc<AtomicBool>,
    /// See [`Servable::output_sizes_differ`]. Shared with servables of other settings.
    output_sizes: Arc<OutputSizes>,
    /// Position in [`Session::signatures`] of the signature that requests run.
    number: usize,
    /// The same version under its other signatures.
    others: Vec<Arc<Servable>>,
}

/// Settings of a model that change without a load.
#[derive(Clone, Debug, Default)]
pub struct ServableSettings {
    /// Queueing, merging and running of requests.
    pub schedule: ScheduleOptions,
    /// See [`Servable::recogniser`].
    pub recogniser: Option<Arc<str>>,
    /// See [`Servable::request_log_rate`].
    pub request_log_rate: Option<f64>,
    /// See [`Servable::examples`].
    pub examples: Option<Arc<ExampleSettings>>,
}

/// Next value of [`Servable::instance`].
static INSTANCES: AtomicU64 = AtomicU64::new(0);

fn next_instance() -> u64 {
    INSTANCES.fetch_add(1, Ordering::Relaxed)
}

/// The parts that all servables of a version share.
#[derive(Clone)]
struct VersionParts {
    id: VersionId,
    engine: &'static str,
    schedule: ScheduleOptions,
    /// Session that runs all signatures.
    session: Arc<dyn Session>,
    watched: Weak<dyn Session>,
    threads_per_run: usize,
    request_log_rate: Option<f64>,
}

impl VersionParts {
    /// Builds the servable of every signature. Returns the servable of the default signature, which
    /// holds the others.
    fn build(self) -> Result<Servable> {
        let default = self.session.default_signature();
        let mut main = self.servable(default, self.session.clone())?;
        for number in (0..self.session.signatures().len()).filter(|&number| number != default) {
            let session = Arc::new(SignatureSession::new(self.session.clone(), number));
            main.others.push(Arc::new(self.servable(number, session)?));
        }
        main.check_shapes()?;
        Ok(main)
    }

    fn servable(&self, number: usize, session: Arc<dyn Session>) -> Result<Servable> {
        let (signature, plan) = planned(&*session, &self.schedule)?;
        Ok(Servable {
            id: self.id.clone(),
            engine: self.engine,
            dir: None,
            parameter_bytes: 0,
            ready_at: SystemTime::now(),
            recogniser: None,
            examples: None,
            threads_per_run: self.threads_per_run,
            request_log_rate: self.request_log_rate,
            instance: next_instance(),
            session,
            watched: self.watched.clone(),
            signature,
            schedule: self.schedule.clone(),
            plan,
            mixes_items: Arc::default(),
            mixing_taken: Arc::default(),
            output_sizes: Arc::default(),
            number,
            others: Vec::new(),
        })
    }
}

/// Returns the signature, with inputs that the server fills made optional, and the batch plan.
fn planned(session: &dyn Session, schedule: &ScheduleOptions) -> Result<(Signature, BatchPlan)> {
    schedule.check()?;
    let mut signature = session.signature().clone();
    let options = schedule.for_signature(&signature, session.signatures());
    let mut plan = BatchPlan::new(&signature, &options)?;
    // A joined run that fails is repeated for each request, and would change the state twice.
    if session.changes_state() {
        plan.batchable = false;
        plan.inputs.iter_mut().for_each(|input| input.shared = false);
    }
    for (spec, input) in signature.inputs.iter_mut().zip(&plan.inputs) {
        spec.optional |= input.fill.is_some();
    }
    Ok((signature, plan))
}

impl Servable {
    /// Joins a session with its identity and settings. The caller sets `dir`, `parameter_bytes`,
    /// `recogniser` and `examples`. Runs have one thread, and the request log gets the server's
    /// share, until they are set.
    ///
    /// # Errors
    /// Returns the errors of [`BatchPlan::new`].
    pub fn new(
        id: VersionId,
        engine: &'static str,
        session: Box<dyn Session>,
        schedule: ScheduleOptions,
    ) -> Result<Servable> {
        let session: Arc<dyn Session> = Arc::from(session);
        let watched = Arc::downgrade(&session);
        let parts = VersionParts {
            id,
            engine,
            schedule,
            session,
            watched,
            threads_per_run: 1,
            request_log_rate: None,
        };
        parts.build()
    }

    /// Checks that `data-dependent-shapes`, if it is set, has an effect on a signature.
    fn check_shapes(&self) -> Result<()> {
        let others = self.others.iter().map(|servable| &**servable);
        let mut servables = std::iter::once(self).chain(others);
        if !self.schedule.data_dependent_shapes
            || servables.any(|servable| servable.plan.has_open_outputs(&servable.signature))
        {
            return Ok(());
        }
        Err(Error::invalid(
            "data-dependent-shapes has no effect on this model: its requests are not merged, or share an input \
             without a batch axis, or no output has a dynamic axis besides axis 0 and without a rule; remove it",
        ))
    }

    /// Returns the threads of one run.
    pub fn threads_per_run(&self) -> usize {
        self.threads_per_run
    }

    /// Sets the threads of one run of each signature. Call it before the version is shared.
    pub fn set_threads_per_run(&mut self, threads: usize) {
        self.each_signature(|servable| servable.threads_per_run = threads);
    }

    /// Returns the share of the model's requests that goes into the request log; `None` uses the
    /// server's share.
    pub fn request_log_rate(&self) -> Option<f64> {
        self.request_log_rate
    }

    /// Sets the share of the requests to each signature that goes into the request log. Call it
    /// before the version is shared.
    pub fn set_request_log_rate(&mut self, rate: Option<f64>) {
        self.each_signature(|servable| servable.request_log_rate = rate);
    }

    /// Changes this servable and those of the other signatures, which no request holds yet.
    fn each_signature(&mut self, change: impl Fn(&mut Servable)) {
        self.others.iter_mut().filter_map(Arc::get_mut).for_each(&change);
        change(self);
    }

    /// Returns the same loaded version under other settings. Session and parameters are shared.
    /// Requests that hold `self` keep its settings until they end.
    ///
    /// # Errors
    /// Returns the errors of [`BatchPlan::new`].
    pub fn with_settings(&self, settings: ServableSettings) -> Result<Servable> {
        let ServableSettings { schedule, recogniser, request_log_rate, examples } = settings;
        let parts = VersionParts {
            id: self.id.clone(),
            engine: self.engine,
            schedule,
            session: self.session.clone(),
            watched: self.watched.clone(),
            threads_per_run: self.threads_per_run,
            request_log_rate,
        };
        let mut changed = parts.build()?;
        changed.keep_evidence(self);
        Ok(Servable {
            dir: self.dir.clone(),
            parameter_bytes: self.parameter_bytes,
            ready_at: self.ready_at,
            recogniser,
            examples,
            ..changed
        })
    }

    /// Keeps what runs of `earlier`, with the same session, have shown about the items of the
    /// model. Under other batching rules it does not count, because a rule may keep the items
    /// apart.
    fn keep_evidence(&mut self, earlier: &Servable) {
        let accepts_shapes = |servable: &Servable| servable.schedule.data_dependent_shapes;
        if self.plan == earlier.plan && accepts_shapes(self) == accepts_shapes(earlier) {
            self.mixes_items = earlier.mixes_items.clone();
            self.mixing_taken = earlier.mixing_taken.clone();
            self.output_sizes = earlier.output_sizes.clone();
        }
        for (servable, earlier) in self.others.iter_mut().zip(&earlier.others) {
            if let Some(servable) = Arc::get_mut(servable) {
                servable.keep_evidence(earlier);
            }
        }
    }

    /// Returns a number that no other servable of this process has. Another load, or other
    /// settings, give another number.
    pub fn instance(&self) -> u64 {
        self.instance
    }

    /// Returns true if other servables use the same session, so that dropping this one does not
    /// release it.
    pub fn shares_session(&self) -> bool {
        Arc::strong_count(&self.session) > 1 + self.others.len()
    }

    /// Returns the version under its signature `name`: itself, or a servable that shares the
    /// session, with a queue of its own.
    ///
    /// # Errors
    /// `FailedPrecondition` that names the signatures, if there is none of that name.
    pub fn with_signature(self: &Arc<Self>, name: &str) -> Result<Arc<Servable>> {
        std::iter::once(self)
            .chain(&self.others)
            .find(|servable| servable.signature_name() == name)
            .cloned()
            .ok_or_else(|| unknown_signature(name, self.signatures(), self.skipped_signatures()))
    }

    /// Returns the version under its signature `name` for a run on the calling thread.
    ///
    /// # Errors
    /// As [`Servable::with_signature`].
    pub fn signature_servable(&self, name: &str) -> Result<&Servable> {
        std::iter::once(self)
            .chain(self.others.iter().map(|servable| &**servable))
            .find(|servable| servable.signature_name() == name)
            .ok_or_else(|| unknown_signature(name, self.signatures(), self.skipped_signatures()))
    }

    /// Returns all signatures of the version. Empty for an engine whose models have one signature,
    /// which is then called [`crate::DEFAULT_SIGNATURE`].
    pub fn signatures(&self) -> &[NamedSignature] {
        self.session.signatures()
    }

    /// Returns the name of the signature that requests to this servable run.
    pub fn signature_name(&self) -> &str {
        self.signatures().get(self.number).map_or(DEFAULT_SIGNATURE, |named| &named.name)
    }

    /// Returns true if a request that names no signature can only mean this one. It has the name
    /// [`DEFAULT_SIGNATURE`], or the model's file has no other signature.
    pub fn is_default_signature(&self) -> bool {
        self.signature_name() == DEFAULT_SIGNATURE
            || (self.signatures().len() == 1 && self.skipped_signatures().is_none())
    }

    /// Returns the signatures that the engine cannot run, with the reasons, if there are any.
    fn skipped_signatures(&self) -> Option<&str> {
        self.session.metadata().get(SKIPPED_SIGNATURES_KEY).map(String::as_str)
    }

    /// Returns true if a request holds the version under one of its other signatures.
    pub fn signatures_in_use(&self) -> bool {
        self.others.iter().any(|servable| Arc::strong_count(servable) > 1)
    }

    /// Returns a weak reference to the version's session (for a stream, to the session of its
    /// version), to check if it still exists. Do not upgrade it: dropping the last holder releases
    /// the session.
    pub fn session_watch(&self) -> Weak<dyn Session> {
        self.watched.clone()
    }

    /// Returns true if the calling thread's processor time does not measure a run, because other
    /// threads or another process take part.
    pub fn runs_elsewhere(&self) -> bool {
        self.threads_per_run != 1 || self.session.runs_elsewhere()
    }

    /// Returns false while every run fails; see [`Session::is_available`].
    pub fn is_available(&self) -> bool {
        self.session.is_available()
    }

    /// Returns true if a run leaves state inside the model; see [`Session::stateful`].
    pub fn stateful(&self) -> bool {
        self.session.stateful()
    }

    /// Returns true if a run changes values that later runs see; see [`Session::changes_state`].
    pub fn changes_state(&self) -> bool {
        self.session.changes_state()
    }

    /// Returns the same version for one stream of requests. The items of a run (axis 0) run one
    /// after the other, and the state passes from item to item and from run to run. An item is
    /// `lanes` rows of axis 0. They are as many streams side by side, in the batch of a model whose
    /// state has a batch axis.
    ///
    /// The state is inside a [`Servable::stateful`] model; otherwise `carried` names the outputs
    /// that become inputs. Runs are not merged with others, and inputs are not checked against the
    /// signature. The version is not released while a stream of it exists.
    ///
    /// # Errors
    /// `InvalidArgument` for a carried tensor that the model does not have; the errors of
    /// [`Session::fork`].
    pub fn stream(
        self: &Arc<Self>,
        carried: Vec<CarriedInput>,
        lanes: usize,
    ) -> Result<Arc<Servable>> {
        Ok(Arc::new(Servable {
            id: self.id.clone(),
            engine: self.engine,
            dir: self.dir.clone(),
            parameter_bytes: self.parameter_bytes,
            ready_at: self.ready_at,
            threads_per_run: self.threads_per_run,
            recogniser: self.recogniser.clone(),
            request_log_rate: self.request_log_rate,
            examples: self.examples.clone(),
            instance: next_instance(),
            session: Arc::new(StreamSession::new(self, carried, lanes)?),
            watched: self.watched.clone(),
            signature: self.signature.clone(),
            schedule: ScheduleOptions {
                mode: ScheduleMode::Sync,
                max_batch: usize::MAX,
                ..self.schedule.clone()
            },
            plan: BatchPlan { batchable: false, ..self.plan.clone() },
            mixes_items: Arc::default(),
            mixing_taken: Arc::default(),
            output_sizes: Arc::default(),
            number: self.number,
            others: Vec::new(),
        }))
    }

    pub(crate) fn fork_session(&self) -> Result<Box<dyn Session>> {
        self.session.fork()
    }

    /// Returns the model's inputs and outputs. Inputs that the server fills are optional.
    pub fn signature(&self) -> &Signature {
        &self.signature
    }

    /// Returns its scheduling settings.
    pub fn schedule(&self) -> &ScheduleOptions {
        &self.schedule
    }

    /// Returns its batching rules.
    pub fn plan(&self) -> &BatchPlan {
        &self.plan
    }

    /// Returns the reason why requests are not joined, although the settings ask for it.
    pub fn unjoined_reason(&self) -> Option<String> {
        if self.plan.batchable || self.schedule.mode != ScheduleMode::Async {
            return None;
        }
        if self.session.changes_state() {
            return Some("a request changes the model's state".to_owned());
        }
        self.plan.obstacle(&self.signature)
    }

    /// Records that a run has shown that the model mixes its items. Its requests must be neither
    /// joined nor split. Returns true at the first call.
    pub fn set_mixes_items(&self) -> bool {
        !self.mixes_items.swap(true, Ordering::Relaxed)
    }

    /// Returns true after a call of [`Servable::set_mixes_items`].
    pub fn mixes_items(&self) -> bool {
        self.mixes_items.load(Ordering::Relaxed)
    }

    /// Returns true once after [`Servable::set_mixes_items`], to count the version.
    pub fn take_new_mixing(&self) -> bool {
        self.mixes_items() && !self.mixing_taken.swap(true, Ordering::Relaxed)
    }

    /// Returns true if an earlier run had outputs of other sizes. `question` is the hash of the
    /// sizes of the inputs and of the names of the outputs, `sizes` that of the outputs' sizes.
    pub fn output_sizes_differ(&self, question: u64, sizes: u64) -> bool {
        self.output_sizes.differ(question, sizes)
    }

    /// Returns true if the sizes of these outputs need no comparison with those of a run of one
    /// item any more. `outputs` is the hash of their names.
    pub fn output_sizes_compared(&self, outputs: u64) -> bool {
        self.output_sizes.are_compared(outputs)
    }

    /// Records that the sizes of these outputs were compared with those of a run of one item.
    pub fn set_output_sizes_compared(&self, outputs: u64) {
        self.output_sizes.set_compared(outputs);
    }

    /// Returns the free-form facts that the model carries.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        self.session.metadata()
    }

    /// Runs once on the calling thread; see [`Session::run`].
    ///
    /// # Errors
    /// Returns the errors of [`Session::run`].
    pub fn run(&self, inputs: &[NamedTensor], outputs: &[Arc<str>]) -> Result<Vec<NamedTensor>> {
        self.session.run(inputs, outputs)
    }
}

impl std::fmt::Debug for Servable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Servable({})", self.id)
    }
}
