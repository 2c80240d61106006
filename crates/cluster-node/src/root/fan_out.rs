//! One read of some shards: a request to one holder of each, to another one after a failure, and to
//! another one beside a slow one.
//!
//! The first answer of a shard counts, and later ones are ignored. If all shards have answered, or
//! the client disconnects, the requests that still run are dropped.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::{Error, ErrorKind, Result};
use bytes::Bytes;
use serde_json::value::RawValue;
use tokio::task::{Id, JoinError, JoinSet};
use transport::Reservation;

use super::envelope::ReadCoverage;
use super::shard_read::{ReadBody, ShardAnswers, ShardRead};
use super::state::RootState;
use super::wire::{NodeReadAnswer, NodeReadBody, is_final, read_node, timeout_ms};
use crate::types::{ClusterView, ShardKey};

/// Maximum times that the holders of a shard are asked again after all of them failed.
const ROUNDS_MAX: u32 = 3;
/// Pause before they are asked again; doubled each time.
const ROUND_PAUSE: Duration = Duration::from_millis(50);

/// Reads shards until all have answered, no holder is left, or the deadline has passed.
///
/// # Errors
/// A shard's refusal of the request; `ResourceExhausted` if the answers take too much memory.
pub(super) async fn read_shards(state: &RootState, read: &ShardRead) -> Result<ShardAnswers> {
    let mut fan_out = FanOut::new(state, read);
    let run = fan_out.run().await;
    // They say that their nodes are slow.
    for call in fan_out.calls.values() {
        state.latencies.record_unfinished(&call.node, call.started.elapsed());
    }
    run?;
    Ok(fan_out.into_answers())
}

/// Reason of a request to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallReason {
    First,
    Hedge,
    Retry,
}

impl CallReason {
    /// Returns the label of the metric.
    fn kind(self) -> &'static str {
        match self {
            CallReason::First => "first",
            CallReason::Hedge => "hedged",
            CallReason::Retry => "retried",
        }
    }
}

/// A request that runs.
struct NodeCall {
    node: String,
    shards: Vec<u32>,
    reason: CallReason,
    started: Instant,
    /// Time of a second request; `None` after it.
    hedge_at: Option<Instant>,
    /// Time after which the node counts as failed; `None` after it.
    stall_at: Option<Instant>,
}

/// State of one shard.
#[derive(Default)]
struct ReadProgress {
    /// Holders that were not asked, in the order in which they are.
    candidates: VecDeque<String>,
    /// Requests that run.
    running: u32,
    result: Option<Box<RawValue>>,
    failure: Option<Error>,
}

type CallOutcome = Result<NodeReadAnswer>;

/// Returns the names of the nodes that serve each of `shards`, which are in ascending order.
fn holders<'v>(
    view: &'v ClusterView,
    collection: &str,
    shards: &[u32],
) -> BTreeMap<u32, Vec<&'v str>> {
    let mut holders: BTreeMap<u32, Vec<&str>> = BTreeMap::new();
    for node in view.nodes.values() {
        let Some(serving) = node.serving.get(collection) else { continue };
        let mut add = |shard: u32| holders.entry(shard).or_default().push(&node.name);
        if shards.len() < serving.len() {
            shards.iter().filter(|shard| serving.contains(shard)).for_each(|shard| add(*shard));
        } else {
            let asked = serving.iter().filter(|shard| shards.binary_search(shard).is_ok());
            asked.for_each(|shard| add(*shard));
        }
    }
    holders
}

struct FanOut<'a> {
    state: &'a RootState,
    read: &'a ShardRead,
    view: Arc<ClusterView>,
    number: u64,
    shards: BTreeMap<u32, ReadProgress>,
    /// Nodes that failed as a whole since the last round.
    failed: BTreeSet<String>,
    running: JoinSet<CallOutcome>,
    calls: HashMap<Id, NodeCall>,
    rounds: u32,
    reservation: Reservation,
}

impl<'a> FanOut<'a> {
    fn new(state: &'a RootState, read: &'a ShardRead) -> FanOut<'a> {
        let shards = read.shards.iter().map(|shard| (*shard, ReadProgress::default()));
        FanOut {
            view: state.view.current(),
            number: state.next_query(),
            shards: shards.collect(),
            failed: BTreeSet::new(),
            running: JoinSet::new(),
            calls: HashMap::new(),
            rounds: 0,
            reservation: state.requests.memory.empty(),
            state,
            read,
        }
    }

    async fn run(&mut self) -> Result<()> {
        if Instant::now() >= self.read.deadline {
            return Ok(());
        }
        self.start_round(CallReason::First)?;
        while !self.unanswered().is_empty() {
            if self.calls.is_empty() {
                if self.next_round().await? {
                    // Holders may have gone during the pause, so that nothing runs.
                    continue;
                }
                break;
            }
            let wake = self.next_timer();
            tokio::select! {
                ended = self.running.join_next_with_id(), if !self.calls.is_empty() => {
                    if let Some(ended) = ended {
                        self.ended(ended)?;
                    }
                }
                () = tokio::time::sleep_until(wake.into()) => self.timers_fired(Instant::now())?,
            }
            if Instant::now() >= self.read.deadline {
                break;
            }
        }
        Ok(())
    }

    fn unanswered(&self) -> Vec<u32> {
        let open = self.shards.iter().filter(|(_, progress)| progress.result.is_none());
        open.map(|(shard, _)| *shard).collect()
    }

    /// Takes the holders from the view, and asks the first of each shard without an answer.
    fn start_round(&mut self, reason: CallReason) -> Result<()> {
        let now = Instant::now();
        self.view = self.state.view.current();
        self.failed.clear();
        let shards = self.unanswered();
        let mut holders = holders(&self.view, &self.read.record.id, &shards);
        for shard in &shards {
            let names = holders.remove(shard).unwrap_or_default();
            let Some(progress) = self.shards.get_mut(shard) else { continue };
            progress.candidates = self.state.latencies.order(&names, self.number, now).into();
            if names.is_empty() {
                let message = format!("no node serves shard {shard}; start more search nodes");
                progress.failure = Some(Error::unavailable(message));
            }
        }
        self.dispatch(&shards, reason)
    }

    /// Asks the holders again after a pause. Returns false if that is of no use: an overloaded node
    /// needs fewer requests, and a shard without a holder needs minutes.
    async fn next_round(&mut self) -> Result<bool> {
        let pause = ROUND_PAUSE * (1 << self.rounds);
        self.rounds += 1;
        let view = self.state.view.current();
        let overloaded = |shard: &u32| {
            let failure = self.shards.get(shard).and_then(|progress| progress.failure.as_ref());
            failure.is_some_and(|error| error.kind() == ErrorKind::ResourceExhausted)
        };
        let mut shards = self.unanswered();
        shards.retain(|shard| !overloaded(shard));
        if self.rounds > ROUNDS_MAX
            || Instant::now() + pause >= self.read.deadline
            || holders(&view, &self.read.record.id, &shards).is_empty()
        {
            return Ok(false);
        }
        tokio::time::sleep(pause).await;
        self.start_round(CallReason::Retry)?;
        Ok(true)
    }

    /// Sends requests for shards to their next holders, one request a node.
    fn dispatch(&mut self, shards: &[u32], reason: CallReason) -> Result<()> {
        let mut groups: BTreeMap<String, Vec<u32>> = BTreeMap::new();
        for shard in shards {
            let Some(progress) = self.shards.get_mut(shard) else { continue };
            while let Some(node) = progress.candidates.pop_front() {
                if !self.failed.contains(&node) {
                    groups.entry(node).or_default().push(*shard);
                    break;
                }
            }
        }
        for (node, shards) in groups {
            if reason == CallReason::Hedge && !self.state.latencies.spend() {
                for shard in &shards {
                    if let Some(progress) = self.shards.get_mut(shard) {
                        progress.candidates.push_front(node.clone());
                    }
                }
                continue;
            }
            self.start(node, shards, reason)?;
        }
        Ok(())
    }

    fn start(&mut self, node: String, shards: Vec<u32>, reason: CallReason) -> Result<()> {
        let Some(info) = self.view.nodes.get(&node) else { return Ok(()) };
        let address = info.address.clone();
        let body = self.body(&shards)?;
        if reason == CallReason::First {
            self.state.latencies.earn();
        }
        self.state.count(reason.kind());
        let others: BTreeSet<&str> = shards
            .iter()
            .filter_map(|shard| self.shards.get(shard))
            .flat_map(|progress| progress.candidates.iter().map(String::as_str))
            .collect();
        let others: Vec<&str> = others.into_iter().collect();
        let timers = self.state.latencies.timers(&node, &others);
        let started = Instant::now();
        let left = self.read.deadline.saturating_duration_since(started);
        let (client, requests) = (self.state.client.clone(), self.state.requests.clone());
        let handle = self.running.spawn(read_node(client, requests, address, body, left));
        for shard in &shards {
            if let Some(progress) = self.shards.get_mut(shard) {
                progress.running += 1;
            }
        }
        let hedge_at = (reason == CallReason::First).then_some(started + timers.hedge);
        let stall_at = Some(started + timers.stall);
        let call = NodeCall { node, shards, reason, started, hedge_at, stall_at };
        self.calls.insert(handle.id(), call);
        Ok(())
    }

    fn body(&self, shards: &[u32]) -> Result<Bytes> {
        let record = &self.read.record;
        let at_least =
            |shard: &u32| (*shard, self.state.written.last(&ShardKey::new(&record.id, *shard)));
        let of_ids;
        let body = match &self.read.body {
            ReadBody::Same(body) => &**body,
            ReadBody::Ids(ids) => {
                of_ids = ids.of(shards)?;
                &*of_ids
            }
        };
        let body = NodeReadBody {
            collection: &record.id,
            shards: shards.iter().map(at_least).collect(),
            path: self.read.path,
            body,
            timeout_ms: timeout_ms(self.read.deadline),
            strong: self.read.strong,
        };
        serde_json::to_vec(&body)
            .map(Bytes::from)
            .map_err(|error| Error::internal(format!("a read cannot be written: {error}")))
    }

    /// Takes the outcome of a request, and asks other holders of the shards that failed.
    fn ended(&mut self, ended: Result<(Id, CallOutcome), JoinError>) -> Result<()> {
        let (id, outcome) = match ended {
            Ok(ended) => ended,
            Err(error) => {
                (error.id(), Err(Error::internal(format!("a read ended early: {error}"))))
            }
        };
        let Some(call) = self.calls.remove(&id) else { return Ok(()) };
        for shard in &call.shards {
            if let Some(progress) = self.shards.get_mut(shard) {
                progress.running -= 1;
            }
        }
        match outcome {
            Ok(answer) => self.take(&call, answer)?,
            // Another holder's answer would be as large.
            Err(error) if error.kind() == ErrorKind::TooLarge => return Err(error),
            Err(error) => {
                tracing::debug!(node = call.node, %error, "a node did not answer a read");
                self.state.latencies.record_failure(&call.node, Instant::now());
                self.failed.insert(call.node.clone());
                for shard in &call.shards {
                    self.failed_at(*shard, &error);
                }
            }
        }
        let open = |shard: &u32| {
            self.shards.get(shard).is_some_and(|it| it.result.is_none() && it.running == 0)
        };
        let open: Vec<u32> = call.shards.iter().copied().filter(open).collect();
        self.dispatch(&open, CallReason::Retry)
    }

    fn failed_at(&mut self, shard: u32, error: &Error) {
        if let Some(progress) = self.shards.get_mut(&shard) {
            progress.failure = Some(error.clone());
        }
    }

    fn take(&mut self, call: &NodeCall, mut answer: NodeReadAnswer) -> Result<()> {
        self.reservation.cover(answer.bytes)?;
        let mut won = false;
        let mut is_whole = true;
        for shard in &call.shards {
            match answer.shards.remove(shard) {
                Some(Ok(result)) => {
                    let progress = self.shards.get_mut(shard);
                    if let Some(progress) = progress.filter(|it| it.result.is_none()) {
                        progress.result = Some(result);
                        won = true;
                    }
                }
                Some(Err(error)) if is_final(&error) => return Err(error),
                Some(Err(error)) => {
                    is_whole = false;
                    self.failed_at(*shard, &error.context(&call.node));
                }
                None => {
                    is_whole = false;
                    let error = format!("{} answered without shard {shard}", call.node);
                    self.failed_at(*shard, &Error::unavailable(error));
                }
            }
        }
        // A node that refuses at once is not fast.
        if is_whole {
            self.state.latencies.record(&call.node, call.started.elapsed());
        }
        if won && call.reason == CallReason::Hedge {
            self.state.count("hedge_won");
        }
        Ok(())
    }

    /// Returns the time of the next second request, or the deadline.
    fn next_timer(&self) -> Instant {
        let timers = self.calls.values().flat_map(|call| [call.hedge_at, call.stall_at]);
        timers.flatten().chain([self.read.deadline]).min().unwrap_or(self.read.deadline)
    }

    /// Sends second requests for calls that are late.
    fn timers_fired(&mut self, now: Instant) -> Result<()> {
        let latencies = &self.state.latencies;
        let mut hedged = BTreeSet::new();
        let mut stalled = BTreeSet::new();
        for call in self.calls.values_mut() {
            if call.hedge_at.take_if(|at| *at <= now).is_some() {
                hedged.extend(call.shards.iter().copied());
            }
            if call.stall_at.take_if(|at| *at <= now).is_some() {
                latencies.record_failure(&call.node, now);
                stalled.extend(call.shards.iter().copied());
            }
        }
        let alone = |shard: &u32| {
            self.shards.get(shard).is_some_and(|it| it.result.is_none() && it.running == 1)
        };
        let stalled: Vec<u32> = stalled.into_iter().filter(alone).collect();
        let hedged: Vec<u32> =
            hedged.into_iter().filter(|shard| alone(shard) && !stalled.contains(shard)).collect();
        self.dispatch(&stalled, CallReason::Retry)?;
        self.dispatch(&hedged, CallReason::Hedge)
    }

    fn into_answers(self) -> ShardAnswers {
        let of = self.shards.len();
        let mut results = BTreeMap::new();
        let mut failure = None;
        for (shard, progress) in self.shards {
            match progress.result {
                Some(result) => {
                    results.insert(shard, result);
                }
                None => {
                    let late = || Error::deadline("the time was up before the shard answered");
                    failure.get_or_insert_with(|| progress.failure.unwrap_or_else(late));
                }
            }
        }
        let coverage = ReadCoverage { shards: results.len(), of };
        ShardAnswers { results, coverage, failure, reservation: self.reservation }
    }
}
