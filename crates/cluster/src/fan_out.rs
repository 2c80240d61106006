//! One read of some shards. It sends a request to one holder of each shard. It asks another holder
//! after a failure, and a second holder in parallel if the first is slow.
//!
//! The caller sends the requests and reports their outcomes. The first result of a shard counts,
//! and later ones are ignored.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use crate::latency::NodeLatencies;

/// Maximum times that the holders of a shard are asked again after all of them failed.
const ROUNDS_MAX: u32 = 3;
/// Pause before they are asked again; doubled each time.
const ROUND_PAUSE: Duration = Duration::from_millis(50);

/// Reason of a request to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallReason {
    /// First request for its shards.
    First,
    /// Second request, in parallel to a slow one.
    Hedge,
    /// Request after one that failed or did not answer for a long time.
    Retry,
}

/// Number of a request of one read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CallId(u64);

/// A request to a node, which the caller sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeCall {
    /// Number of the request.
    pub id: CallId,
    /// Name of the node that receives the request.
    pub node: String,
    /// Shards to read.
    pub shards: Vec<u32>,
    /// Reason of the request.
    pub reason: CallReason,
}

/// A request that runs.
#[derive(Debug)]
struct RunningCall {
    call: NodeCall,
    started: Instant,
    /// Time of a second request; `None` after it.
    hedge_at: Option<Instant>,
    /// Time after which the node counts as failed; `None` after it. The answer still counts if it
    /// comes.
    stall_at: Option<Instant>,
}

/// State of one shard.
#[derive(Debug)]
struct ReadProgress<T, E> {
    /// Holders that were not asked yet, in the order in which they will be asked.
    candidates: VecDeque<String>,
    /// Number of requests that run and whose nodes do not count as failed.
    running: u32,
    result: Option<T>,
    failure: Option<E>,
}

impl<T, E> ReadProgress<T, E> {
    fn new() -> ReadProgress<T, E> {
        ReadProgress { candidates: VecDeque::new(), running: 0, result: None, failure: None }
    }
}

/// Effect of a node's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnswerTaken {
    /// Shards whose result is the one of this answer. Another answer was faster for the others.
    pub counted: Vec<u32>,
    /// Requests to send.
    pub calls: Vec<NodeCall>,
}

/// State of one read. `T` is the result of a shard, and `E` its error.
#[derive(Debug)]
pub struct ReadFanOut<T, E> {
    /// Number of the read. Reads with different numbers begin with different holders.
    number: u64,
    shards: BTreeMap<u32, ReadProgress<T, E>>,
    /// Nodes that failed as a whole since the last round.
    failed: BTreeSet<String>,
    calls: BTreeMap<CallId, RunningCall>,
    next_call: u64,
    rounds: u32,
}

impl<T, E: Clone> ReadFanOut<T, E> {
    /// Creates the state of read number `number` of the shards.
    pub fn new(number: u64, shards: &[u32]) -> ReadFanOut<T, E> {
        ReadFanOut {
            number,
            shards: shards.iter().map(|shard| (*shard, ReadProgress::new())).collect(),
            failed: BTreeSet::new(),
            calls: BTreeMap::new(),
            next_call: 0,
            rounds: 0,
        }
    }

    /// Returns the shards without a result, in ascending order.
    pub fn unanswered(&self) -> Vec<u32> {
        let open = self.shards.iter().filter(|(_, progress)| progress.result.is_none());
        open.map(|(shard, _)| *shard).collect()
    }

    /// Returns true if no request runs.
    pub fn is_idle(&self) -> bool {
        self.calls.is_empty()
    }

    /// Returns a request that runs.
    pub fn running(&self, id: CallId) -> Option<&NodeCall> {
        self.calls.get(&id).map(|running| &running.call)
    }

    /// Returns the last error of a shard.
    pub fn failure(&self, shard: u32) -> Option<&E> {
        self.shards.get(&shard)?.failure.as_ref()
    }

    /// Returns the pause before the holders are asked again after all of them failed, or `None`
    /// after [`ROUNDS_MAX`] rounds.
    pub fn next_pause(&mut self) -> Option<Duration> {
        if self.rounds >= ROUNDS_MAX {
            return None;
        }
        let pause = ROUND_PAUSE * (1 << self.rounds);
        self.rounds += 1;
        Some(pause)
    }

    /// Starts a round: asks the first holder of each shard without a result. `holders` are the
    /// nodes that serve each shard, and `unserved` is the error of a shard without one.
    pub fn start_round(
        &mut self,
        holders: &BTreeMap<u32, Vec<&str>>,
        unserved: impl Fn(u32) -> E,
        latencies: &mut NodeLatencies,
        now: Instant,
    ) -> Vec<NodeCall> {
        self.failed.clear();
        let shards = self.unanswered();
        for shard in &shards {
            let names = holders.get(shard).map(Vec::as_slice).unwrap_or_default();
            let Some(progress) = self.shards.get_mut(shard) else { continue };
            progress.candidates = latencies.order(names, self.number, now).into();
            if names.is_empty() {
                progress.failure = Some(unserved(*shard));
            }
        }
        let reason = if self.rounds == 0 { CallReason::First } else { CallReason::Retry };
        self.dispatch(&shards, reason, latencies, now)
    }

    /// Takes the results of the shards of a request. Shards that are absent from `results` failed
    /// without an error of their own.
    pub fn answered(
        &mut self,
        id: CallId,
        mut results: BTreeMap<u32, Result<T, E>>,
        latencies: &mut NodeLatencies,
        now: Instant,
    ) -> AnswerTaken {
        let mut counted = Vec::new();
        let Some(RunningCall { call, started, .. }) = self.end_call(id) else {
            return AnswerTaken { counted, calls: Vec::new() };
        };
        let mut is_whole = true;
        for shard in &call.shards {
            let Some(progress) = self.shards.get_mut(shard) else { continue };
            match results.remove(shard) {
                Some(Ok(_)) if progress.result.is_some() => {}
                Some(Ok(result)) => {
                    progress.result = Some(result);
                    counted.push(*shard);
                }
                Some(Err(error)) => {
                    is_whole = false;
                    progress.failure = Some(error);
                }
                None => is_whole = false,
            }
        }
        // A node that refuses at once is not fast.
        if is_whole {
            latencies.record(&call.node, now.saturating_duration_since(started));
        }
        let calls = self.ask_others(&call.shards, latencies, now);
        AnswerTaken { counted, calls }
    }

    /// Takes the failure of a request as a whole. Returns the requests to send.
    pub fn failed(
        &mut self,
        id: CallId,
        error: &E,
        latencies: &mut NodeLatencies,
        now: Instant,
    ) -> Vec<NodeCall> {
        let Some(RunningCall { call, .. }) = self.end_call(id) else { return Vec::new() };
        latencies.record_failure(&call.node, now);
        for shard in &call.shards {
            if let Some(progress) = self.shards.get_mut(shard) {
                progress.failure = Some(error.clone());
            }
        }
        self.failed.insert(call.node);
        self.ask_others(&call.shards, latencies, now)
    }

    /// Forgets a request whose answer ends the whole read.
    pub fn forget(&mut self, id: CallId) {
        self.end_call(id);
    }

    /// Returns the time of the next second request, if one may come.
    pub fn next_timer(&self) -> Option<Instant> {
        self.calls.values().flat_map(|call| [call.hedge_at, call.stall_at]).flatten().min()
    }

    /// Returns the requests to send in parallel to late ones.
    pub fn timers_fired(&mut self, latencies: &mut NodeLatencies, now: Instant) -> Vec<NodeCall> {
        let mut hedged = BTreeSet::new();
        let mut stalled = BTreeSet::new();
        for running in self.calls.values_mut() {
            let shards = &running.call.shards;
            if running.hedge_at.take_if(|at| *at <= now).is_some() {
                hedged.extend(shards.iter().copied());
            }
            if running.stall_at.take_if(|at| *at <= now).is_some() {
                latencies.record_failure(&running.call.node, now);
                stalled.extend(shards.iter().copied());
                decrement_running(&mut self.shards, shards);
            }
        }
        let stalled: Vec<u32> = stalled.into_iter().collect();
        let mut calls = self.ask_others(&stalled, latencies, now);
        let alone = |shard: &u32| self.is_open(*shard, 1) && !stalled.contains(shard);
        let hedged: Vec<u32> = hedged.into_iter().filter(alone).collect();
        calls.extend(self.dispatch(&hedged, CallReason::Hedge, latencies, now));
        calls
    }

    /// Ends the read. Requests that still run show that their nodes are slow. Returns the result of
    /// each shard, or its last error if there was one.
    pub fn finish(
        self,
        latencies: &mut NodeLatencies,
        now: Instant,
    ) -> BTreeMap<u32, Result<T, Option<E>>> {
        for running in self.calls.values() {
            let elapsed = now.saturating_duration_since(running.started);
            let RunningCall { call, hedge_at, .. } = running;
            if call.reason == CallReason::First && hedge_at.is_none() {
                latencies.record_overtaken(&call.node, elapsed);
            } else {
                latencies.record_unfinished(&call.node, elapsed);
            }
        }
        let outcome = |progress: ReadProgress<T, E>| progress.result.ok_or(progress.failure);
        self.shards.into_iter().map(|(shard, progress)| (shard, outcome(progress))).collect()
    }

    /// Removes a request that ended.
    fn end_call(&mut self, id: CallId) -> Option<RunningCall> {
        let ended = self.calls.remove(&id)?;
        if ended.stall_at.is_some() {
            decrement_running(&mut self.shards, &ended.call.shards);
        }
        Some(ended)
    }

    /// Returns true if a shard has no result and `running` requests.
    fn is_open(&self, shard: u32, running: u32) -> bool {
        let progress = self.shards.get(&shard);
        progress.is_some_and(|it| it.result.is_none() && it.running == running)
    }

    /// Asks the next holder of each of `shards` that has no result and no request.
    fn ask_others(
        &mut self,
        shards: &[u32],
        latencies: &mut NodeLatencies,
        now: Instant,
    ) -> Vec<NodeCall> {
        let open: Vec<u32> =
            shards.iter().copied().filter(|shard| self.is_open(*shard, 0)).collect();
        self.dispatch(&open, CallReason::Retry, latencies, now)
    }

    /// Starts requests for shards to their next holders, one request a node.
    fn dispatch(
        &mut self,
        shards: &[u32],
        reason: CallReason,
        latencies: &mut NodeLatencies,
        now: Instant,
    ) -> Vec<NodeCall> {
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
        let mut calls = Vec::new();
        for (node, shards) in groups {
            if reason == CallReason::Hedge && !latencies.spend() {
                for shard in &shards {
                    if let Some(progress) = self.shards.get_mut(shard) {
                        progress.candidates.push_front(node.clone());
                    }
                }
                continue;
            }
            if reason == CallReason::First {
                latencies.count_request();
            }
            calls.push(self.start(node, shards, reason, latencies, now));
        }
        calls
    }

    /// Registers a request for `shards` to `node` as running, and starts its timers. Returns the
    /// request, which the caller sends.
    fn start(
        &mut self,
        node: String,
        shards: Vec<u32>,
        reason: CallReason,
        latencies: &NodeLatencies,
        now: Instant,
    ) -> NodeCall {
        let others: BTreeSet<&str> = shards
            .iter()
            .filter_map(|shard| self.shards.get(shard))
            .flat_map(|progress| progress.candidates.iter().map(String::as_str))
            .collect();
        let others: Vec<&str> = others.into_iter().collect();
        let timers = latencies.timers(&node, &others);
        for shard in &shards {
            if let Some(progress) = self.shards.get_mut(shard) {
                progress.running += 1;
            }
        }
        self.next_call += 1;
        let call = NodeCall { id: CallId(self.next_call), node, shards, reason };
        let running = RunningCall {
            call: call.clone(),
            started: now,
            hedge_at: (reason == CallReason::First).then_some(now + timers.hedge),
            stall_at: Some(now + timers.stall),
        };
        self.calls.insert(call.id, running);
        call
    }
}

/// Decrements the count of running requests of each of `shards`.
fn decrement_running<T, E>(progress: &mut BTreeMap<u32, ReadProgress<T, E>>, shards: &[u32]) {
    for shard in shards {
        if let Some(progress) = progress.get_mut(shard) {
            progress.running = progress.running.saturating_sub(1);
        }
    }
}
