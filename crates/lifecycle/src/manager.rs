//! The `lifecycle` thread. It owns all state, handles one message at a time and never waits for
//! another thread.

mod admin;
mod apply_settings;
mod configure;
mod ignored;
mod load;
mod load_stop;
mod model;
mod prefault;
mod resume;
mod rollout;
mod scan;
mod scan_times;
mod slow_warmup;
mod sources;
mod stop;
mod unload;
mod update_state;
mod updates;
mod wake;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use base::VersionId;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};

use crate::admission::Ledger;
use crate::kept_state::KeptState;
use crate::message::{LoadJob, Message, Retired, SourceReport};
use crate::policy::{self, ModelAction};
use crate::settled::Settled;
use crate::source_thread::ScanRequests;
use crate::status::LifecycleEvent;
use crate::withdrawals::Withdrawals;
use crate::{Catalog, ConfigSet, LifecycleConfig, LifecycleState, Observer, UpdateConfig};

use admin::AdminWaiter;
use configure::Reconfiguration;
use ignored::IgnoredModels;
use model::Model;
use prefault::Prefault;
use resume::KeptRollout;
use scan_times::ScanTimes;
use update_state::UpdateStage;
use wake::NextWork;

/// Longest time between two rounds without a message.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// Time before a load that did not fit is tried again.
const DEFER_PAUSE: Duration = Duration::from_millis(50);
/// Time after which the first load counts as finished, even if a version without a manifest never
/// stops changing.
const FIRST_LOAD_WAIT_MAX: Duration = Duration::from_secs(30);
/// Maximum steps that one model takes at once. It never needs as many.
const STEPS_MAX: usize = 4 * crate::source::VERSIONS_MAX;

/// Settings for repeated tries of a load.
#[derive(Clone, Copy, Debug)]
struct RetrySettings {
    max: u32,
    interval: Duration,
}

/// Channels and flags to the other threads.
pub(crate) struct ManagerChannels {
    pub(crate) inbox: Receiver<Message>,
    pub(crate) jobs: Sender<LoadJob>,
    pub(crate) retired: Sender<Retired>,
    pub(crate) scans: ScanRequests,
    /// Bytes up to which the pool is to be faulted in.
    pub(crate) prefault: Sender<u64>,
    /// Set at shutdown. The unload threads then stop waiting for versions that are still in use.
    pub(crate) abandon: Arc<AtomicBool>,
}

/// State that models need to act. It is separate from the models, so that a model and this can be
/// borrowed at once.
pub(crate) struct ManagerContext {
    observer: Arc<dyn Observer>,
    ledger: Arc<Ledger>,
    retries: RetrySettings,
    /// Number of inference workers.
    workers: usize,
    threads_max: usize,
    /// Loads that wait for a thread.
    queue: VecDeque<VersionId>,
    retired: Sender<Retired>,
    /// Retired versions for which the channel had no room.
    backlog: VecDeque<Retired>,
    withdrawals: Withdrawals,
    rollouts: KeptState<KeptRollout>,
    updates: UpdateConfig,
}

/// State of the `lifecycle` thread.
pub(crate) struct Manager {
    catalog: Arc<Catalog>,
    models: BTreeMap<Arc<str>, Model>,
    context: ManagerContext,
    /// True if foreign versions are converted.
    converts: bool,
    inbox: Receiver<Message>,
    jobs: Sender<LoadJob>,
    /// Number of load threads without a job.
    free_loaders: usize,
    scans: ScanRequests,
    /// Number of the last scan request that has been answered, or `None` before the first scan.
    answered: Option<u64>,
    waiters: Vec<AdminWaiter>,
    /// Models and roots, which the `source` thread reads at each scan.
    configured: Arc<ArcSwap<ConfigSet>>,
    reconfigurations: Vec<Reconfiguration>,
    prefault: Prefault,
    settled: Arc<Settled>,
    /// Scan with which the first load begins, or `None` until the directories have content.
    first_scan: Option<u64>,
    /// Start of the first load.
    started: Instant,
    /// Name of the model that the end of the first load waited for at the last check.
    awaited: Arc<str>,
    /// Last report about the stores that directories mirror.
    sources: SourceReport,
    ignored_models: IgnoredModels,
    scan_times: ScanTimes,
    abandon: Arc<AtomicBool>,
}

/// Objects that a manager shares with other threads.
pub(crate) struct ManagerShared {
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) observer: Arc<dyn Observer>,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) settled: Arc<Settled>,
    pub(crate) configured: Arc<ArcSwap<ConfigSet>>,
}

impl Manager {
    /// Creates a manager. The pool has at most `pool_bytes_max` bytes.
    pub(crate) fn new(
        config: &LifecycleConfig,
        pool_bytes_max: u64,
        shared: ManagerShared,
        channels: ManagerChannels,
    ) -> Manager {
        let ManagerShared { catalog, observer, ledger, settled, configured } = shared;
        let context = ManagerContext {
            observer,
            ledger,
            retries: RetrySettings { max: config.retries, interval: config.retry_interval },
            workers: config.workers.max(1),
            threads_max: config.threads_max,
            queue: VecDeque::new(),
            retired: channels.retired,
            backlog: VecDeque::new(),
            withdrawals: Withdrawals::open(config.withdrawn_file.clone()),
            rollouts: KeptState::open(config.rollouts_file.clone()),
            updates: config.updates.clone(),
        };
        let bytes_max = if config.uses_pool() { pool_bytes_max } else { 0 };
        Manager {
            catalog,
            models: BTreeMap::new(),
            context,
            converts: config.uses_pool(),
            inbox: channels.inbox,
            jobs: channels.jobs,
            free_loaders: config.load_threads.max(1),
            scans: channels.scans,
            answered: None,
            waiters: Vec::new(),
            configured,
            reconfigurations: Vec::new(),
            prefault: Prefault::new(channels.prefault, bytes_max, config.swap_reserve),
            settled,
            first_scan: (!config.awaits_sources).then_some(0),
            started: Instant::now(),
            awaited: Arc::default(),
            sources: SourceReport::default(),
            ignored_models: IgnoredModels::default(),
            scan_times: ScanTimes::default(),
            abandon: channels.abandon,
        }
    }

    /// Handles messages and due times until the lifecycle stops.
    pub(crate) fn run(mut self) {
        let mut round = Instant::now();
        loop {
            let mut decides_all = true;
            // The next work is not computed while messages wait, because that reads all versions.
            let received = self.inbox.try_recv().or_else(|_| {
                let next = self.next_work(Instant::now());
                decides_all = next.decides_all;
                self.inbox.recv_timeout(next.pause)
            });
            let mut touched = match received {
                Ok(Message::Stop) | Err(RecvTimeoutError::Disconnected) => break,
                Ok(message) => self.handle(message),
                // Rollouts, turns, waiting requests or queued loads are due.
                Err(RecvTimeoutError::Timeout) if !decides_all && round.elapsed() < PAUSE_MAX => {
                    TouchedModels::Nothing
                }
                Err(RecvTimeoutError::Timeout) => TouchedModels::All,
            };
            if matches!(touched, TouchedModels::All) {
                round = Instant::now();
            }
            for model in self.judge_rollouts(Instant::now()).into_iter().chain(self.turn_takers()) {
                touched = touched.and(model);
            }
            self.advance(touched);
        }
        self.stop();
    }

    /// Handles one message. Returns the models whose next step must be decided again.
    fn handle(&mut self, message: Message) -> TouchedModels {
        match message {
            Message::Scanned(snapshot) => {
                self.on_scan(snapshot);
                return TouchedModels::All;
            }
            Message::Stage { id, state, reason } => {
                return self.with_model(&id, |model, context| {
                    model.stage(context, id.version, state, reason)
                });
            }
            Message::LoadEnded { id, outcome } => {
                self.free_loaders += 1;
                return self.with_model(&id, |model, context| {
                    model.load_ended(context, id.version, outcome)
                });
            }
            Message::Released { id, drain, unload } => {
                return self.with_model(&id, |model, context| {
                    model.released(context, id.version, drain, unload)
                });
            }
            Message::DrainSlow { id } => {
                tracing::warn!(model = %id.model, version = id.version, "a retired version is still in use");
                self.context
                    .observer
                    .event(&LifecycleEvent::DrainSlow { model: id.model, version: id.version });
            }
            Message::LoadAbandoned { id } => {
                let VersionId { model, version } = id;
                self.context.observer.event(&LifecycleEvent::LoadAbandoned { model, version });
            }
            Message::Prefaulted { bytes } => self.prefault.done_to(bytes),
            Message::Load { name, spec, done } => self.admin_load(name.into(), spec, done),
            Message::Unload { name, done } => return self.admin_unload(name.into(), done),
            Message::Rollout { name, action, done } => {
                return self.admin_rollout(name.into(), action, done);
            }
            Message::Configure { set, origin, done } => self.configure(set, origin, done),
            Message::Sources(report) => {
                self.on_sources(report);
                return TouchedModels::All;
            }
            Message::Stop => {}
        }
        TouchedModels::Nothing
    }

    /// Runs `act` on the model of `id`, if there is one.
    fn with_model(
        &mut self,
        id: &VersionId,
        act: impl FnOnce(&mut Model, &mut ManagerContext),
    ) -> TouchedModels {
        if let Some(model) = self.models.get_mut(&id.model) {
            act(model, &mut self.context);
        }
        TouchedModels::One(id.model.clone())
    }

    /// Takes every step that is possible now.
    fn advance(&mut self, touched: TouchedModels) {
        self.begin_loads();
        let all = matches!(touched, TouchedModels::All);
        let names: BTreeSet<Arc<str>> = match touched {
            TouchedModels::Nothing => {
                self.waiters.iter().map(|waiter| waiter.model.clone()).collect()
            }
            TouchedModels::One(name) => {
                self.waiters.iter().map(|w| w.model.clone()).chain([name]).collect()
            }
            TouchedModels::All => self.models.keys().cloned().collect(),
        };
        for name in &names {
            self.step(name);
        }
        self.context.flush();
        self.dispatch();
        self.answer_waiters();
        self.answer_reconfigurations();
        if all {
            self.prefault.want(self.models.values());
        }
        self.check_settled();
        self.context.observer.event(&LifecycleEvent::Reported);
    }

    /// Takes the steps of one model's policy and reports its status.
    fn step(&mut self, name: &Arc<str>) {
        let by_hand = self.reconfigurations.iter().any(|change| change.by_hand.contains(name));
        let first_stage = if by_hand { UpdateStage::ByHand } else { UpdateStage::Window };
        let Some(model) = self.models.get_mut(name) else { return };
        model.report_slow_loads(&self.context, Instant::now());
        model.end_impossible_rollouts(&self.context);
        for _ in 0..STEPS_MAX {
            let now = Instant::now();
            model.take_turns(&self.context, now, first_stage);
            model.drop_pointless_loads(&self.context, now);
            model.drop_impossible_reloads();
            let views = model.views(now);
            let choice = model.choice(&views);
            match policy::plan(model.config.transition, &views, &choice) {
                Some(ModelAction::Load(version)) => model.begin_load(&mut self.context, version),
                Some(ModelAction::Unload(version)) => model.unload(&mut self.context, version),
                None => break,
            }
        }
        model.report();
        model.keep_withdrawals(&mut self.context);
        model.keep_rollout(&mut self.context);
        if model.removed && model.at_rest() {
            self.models.remove(name);
            self.catalog.remove(name);
            tracing::info!(model = %name, "its directory or its configuration was removed");
            self.context.observer.event(&LifecycleEvent::Forgotten { model: name.clone() });
        }
    }

    /// Returns the next work that no message announces.
    fn next_work(&self, now: Instant) -> NextWork {
        let versions = || self.models.values().flat_map(|model| model.versions.values());
        let retries = versions().filter_map(|version| version.failure.as_ref()?.retry_at);
        let windows = versions().filter_map(|version| version.update.as_ref()?.window_end());
        let decision = retries.filter(|at| *at > now).chain(windows).min();
        let deferred = versions().filter_map(|version| version.load.as_ref()?.not_before);
        let deferred = deferred.filter(|_| self.free_loaders > 0).min();
        let until = |at: Instant| at.saturating_duration_since(now);
        let waiting = !self.waiters.is_empty() || !self.reconfigurations.is_empty();
        let turns = self.models.values().any(Model::waits_for_turn);
        let rolling = self.models.values().any(|model| model.rollout.running());
        let others = [
            deferred.map(until),
            waiting.then_some(admin::PAUSE),
            turns.then_some(updates::TURN_PAUSE),
            rolling.then_some(rollout::JUDGE_PAUSE),
        ];
        NextWork::earliest(decision.map(until), others.into_iter().flatten())
    }

    /// Sets the flag that the first load is finished, once no version of any model is on its way.
    fn check_settled(&mut self) {
        if self.settled.get() || !self.prefault.done() {
            return;
        }
        // An answer is `None` before the first scan, which is less than any scan.
        if self.first_scan.is_none() || self.answered < self.first_scan {
            return;
        }
        let now = Instant::now();
        let may_wait = now.duration_since(self.started) < FIRST_LOAD_WAIT_MAX;
        let is_starting = |model: &Model| model.starting(now, may_wait);
        match wake::first_from(&self.models, &self.awaited, is_starting).cloned() {
            Some(name) => self.awaited = name,
            None => {
                tracing::info!(models = self.models.len(), "the first load is finished");
                self.settled.set();
            }
        }
    }
}

/// Models that may act after a message.
enum TouchedModels {
    Nothing,
    One(Arc<str>),
    All,
}

impl TouchedModels {
    /// Adds a model to the models whose next step must be decided again.
    fn and(self, model: Arc<str>) -> TouchedModels {
        match self {
            TouchedModels::Nothing => TouchedModels::One(model),
            TouchedModels::One(other) if other == model => TouchedModels::One(other),
            TouchedModels::One(_) | TouchedModels::All => TouchedModels::All,
        }
    }
}

impl ManagerContext {
    /// Sets and reports a state. See [`Model::set_state`].
    fn set_state(
        &self,
        model: &mut Model,
        version: u64,
        state: LifecycleState,
        reason: Option<String>,
    ) {
        model.set_state(&*self.observer, version, state, reason);
    }

    /// Passes a version to the unload threads, after versions that wait for room in their queue.
    fn retire(&mut self, retired: Retired) {
        self.backlog.push_back(retired);
        self.flush();
    }

    /// Passes on as many waiting versions as the queue of the unload threads has room for.
    fn flush(&mut self) {
        use crossbeam_channel::TrySendError;
        while let Some(retired) = self.backlog.pop_front() {
            if let Err(TrySendError::Full(retired) | TrySendError::Disconnected(retired)) =
                self.retired.try_send(retired)
            {
                self.backlog.push_front(retired);
                return;
            }
        }
    }
}
