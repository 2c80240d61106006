//! One read of some shards: sends the requests of a [`ReadFanOut`] and takes their answers.
//!
//! If all shards have answered, or the client disconnects, the requests that still run are dropped.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Instant;

use base::{Error, ErrorKind, Result};
use bytes::Bytes;
use cluster::{CallId, CallReason, NodeCall, ReadFanOut};
use cluster_node::{ClusterView, ShardKey};
use serde_json::value::RawValue;
use tokio::task::{Id, JoinError, JoinSet};

use super::envelope::ReadCoverage;
use super::read_memory::ReadMemory;
use super::shard_read::{ReadBody, ReadPriority, ShardAnswers, ShardRead};
use super::state::RootState;
use super::wire::{NodeReadAnswer, NodeReadBody, is_final, read_node, timeout_ms};

/// Reads shards until all have answered, no holder is left, or the deadline has passed.
///
/// # Errors
/// A shard's refusal of the request; `ResourceExhausted` if the answers take too much memory.
pub async fn read_shards(state: &RootState, read: &ShardRead) -> Result<ShardAnswers> {
    let mut run = ReadRun::new(state, read);
    let outcome = run.run().await;
    let answers = run.finish();
    outcome.map(|()| answers)
}

/// Returns the label of the metric.
fn kind(priority: ReadPriority, reason: CallReason) -> &'static str {
    match (priority, reason) {
        (ReadPriority::Background, _) => "background",
        (ReadPriority::Client, CallReason::First) => "first",
        (ReadPriority::Client, CallReason::Hedge) => "hedged",
        (ReadPriority::Client, CallReason::Retry) => "retried",
    }
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

/// Result of a shard, as JSON text, and the node that answered.
struct NodeResult {
    node: String,
    text: Box<RawValue>,
}

struct ReadRun<'a> {
    state: &'a RootState,
    read: &'a ShardRead,
    view: Arc<ClusterView>,
    fan_out: ReadFanOut<NodeResult, Error>,
    running: JoinSet<CallOutcome>,
    calls: HashMap<Id, CallId>,
    memory: Arc<ReadMemory>,
}

impl<'a> ReadRun<'a> {
    fn new(state: &'a RootState, read: &'a ShardRead) -> ReadRun<'a> {
        ReadRun {
            view: state.view.current(),
            fan_out: ReadFanOut::new(state.next_query(), &read.shards),
            running: JoinSet::new(),
            calls: HashMap::new(),
            memory: ReadMemory::new(state.requests.clone()),
            state,
            read,
        }
    }

    /// Sends requests until each shard has answered, no holder is left to ask, or the deadline has
    /// passed.
    async fn run(&mut self) -> Result<()> {
        if Instant::now() >= self.read.deadline {
            return Ok(());
        }
        self.start_round()?;
        while !self.fan_out.unanswered().is_empty() {
            if self.fan_out.is_idle() {
                if self.next_round().await? {
                    // Holders may have left during the pause. Then no request runs.
                    continue;
                }
                break;
            }
            let wake = self.fan_out.next_timer().unwrap_or(self.read.deadline);
            let wake = wake.min(self.read.deadline);
            tokio::select! {
                ended = self.running.join_next_with_id(), if !self.running.is_empty() => {
                    if let Some(ended) = ended {
                        self.ended(ended)?;
                    }
                }
                () = tokio::time::sleep_until(wake.into()) => {
                    let now = Instant::now();
                    let calls = self.fan_out.timers_fired(&mut self.state.latencies_of(self.read.priority).lock(), now);
                    self.send(calls)?;
                }
            }
            if Instant::now() >= self.read.deadline {
                break;
            }
        }
        Ok(())
    }

    /// Takes the holders from the view, and asks the first of each shard without an answer.
    fn start_round(&mut self) -> Result<()> {
        self.view = self.state.view.current();
        let holders = holders(&self.view, &self.read.record.id, &self.fan_out.unanswered());
        let unserved = |shard: u32| {
            Error::unavailable(format!("no node serves shard {shard}; start more search nodes"))
        };
        let now = Instant::now();
        let mut latencies = self.state.latencies_of(self.read.priority).lock();
        let calls = self.fan_out.start_round(&holders, unserved, &mut latencies, now);
        drop(latencies);
        self.send(calls)
    }

    /// Asks the holders again after a pause. Returns false if that is of no use. An overloaded node
    /// needs fewer requests, and a shard without a holder needs minutes.
    async fn next_round(&mut self) -> Result<bool> {
        let Some(pause) = self.fan_out.next_pause() else { return Ok(false) };
        let view = self.state.view.current();
        let overloaded = |shard: &u32| {
            let failure = self.fan_out.failure(*shard);
            failure.is_some_and(|error| error.kind() == ErrorKind::ResourceExhausted)
        };
        let mut shards = self.fan_out.unanswered();
        shards.retain(|shard| !overloaded(shard));
        if Instant::now() + pause >= self.read.deadline
            || holders(&view, &self.read.record.id, &shards).is_empty()
        {
            return Ok(false);
        }
        tokio::time::sleep(pause).await;
        self.start_round()?;
        Ok(true)
    }

    /// Sends requests to nodes, each in a task of its own.
    fn send(&mut self, calls: Vec<NodeCall>) -> Result<()> {
        for call in calls {
            let Some(info) = self.view.nodes.get(&call.node) else {
                let error = format!("{} is not in the view any more", call.node);
                return Err(Error::internal(error));
            };
            let address = info.address.clone();
            let body = self.body(&call.shards)?;
            self.state.count(kind(self.read.priority, call.reason));
            let left = self.read.deadline.saturating_duration_since(Instant::now());
            let client = self.state.client.clone();
            let requests = self.state.requests.clone();
            let memory = self.memory.answer();
            let read = read_node(client, requests, address, body, left, memory);
            let handle = self.running.spawn(read);
            self.calls.insert(handle.id(), call.id);
        }
        Ok(())
    }

    /// Returns the body of a request to a node for `shards`.
    fn body(&self, shards: &[u32]) -> Result<Bytes> {
        let record = &self.read.record;
        let at_least =
            |shard: &u32| (*shard, self.state.last_written(&ShardKey::new(&record.id, *shard)));
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
            .map_err(|error| Error::internal("a read cannot be written").caused_by(error))
    }

    /// Takes the outcome of a request, and asks other holders of the shards that failed.
    fn ended(&mut self, ended: Result<(Id, CallOutcome), JoinError>) -> Result<()> {
        let (id, outcome) = match ended {
            Ok(ended) => ended,
            Err(error) => (error.id(), Err(Error::internal("a read ended early").caused_by(error))),
        };
        let Some(id) = self.calls.remove(&id) else { return Ok(()) };
        let calls = match outcome {
            Ok(answer) => self.take(id, answer),
            // Another holder's answer would be as large.
            Err(error) if error.kind() == ErrorKind::TooLarge => Err(error),
            Err(error) => match self.memory.refusal() {
                Some(refusal) => Err(refusal),
                None => {
                    let node = self.fan_out.running(id).map(|call| &call.node);
                    tracing::debug!(?node, %error, "a node did not answer a read");
                    let now = Instant::now();
                    Ok(self.fan_out.failed(
                        id,
                        &error,
                        &mut self.state.latencies_of(self.read.priority).lock(),
                        now,
                    ))
                }
            },
        };
        if calls.is_err() {
            self.fan_out.forget(id);
        }
        self.send(calls?)
    }

    /// Takes a node's answer. Returns the requests to send.
    fn take(&mut self, id: CallId, mut answer: NodeReadAnswer) -> Result<Vec<NodeCall>> {
        let Some(call) = self.fan_out.running(id) else { return Ok(Vec::new()) };
        let mut results = BTreeMap::new();
        for shard in &call.shards {
            let result = match answer.shards.remove(shard) {
                Some(Err(error)) if is_final(&error) => return Err(error),
                Some(result) => result
                    .map(|text| NodeResult { node: call.node.clone(), text })
                    .map_err(|error| error.context(&call.node)),
                None => {
                    let error = format!("{} answered without shard {shard}", call.node);
                    Err(Error::unavailable(error))
                }
            };
            results.insert(*shard, result);
        }
        let is_hedge = call.reason == CallReason::Hedge;
        let now = Instant::now();
        let taken = self.fan_out.answered(
            id,
            results,
            &mut self.state.latencies_of(self.read.priority).lock(),
            now,
        );
        if !taken.counted.is_empty() {
            answer.memory.keep();
            if is_hedge && self.read.priority == ReadPriority::Client {
                self.state.count("hedge_won");
            }
        }
        Ok(taken.calls)
    }

    /// Returns the results of the shards that answered, and the first failure.
    fn finish(self) -> ShardAnswers {
        let outcomes = self
            .fan_out
            .finish(&mut self.state.latencies_of(self.read.priority).lock(), Instant::now());
        let of = outcomes.len();
        let mut results = BTreeMap::new();
        let mut nodes = BTreeMap::new();
        let mut failure = None;
        for (shard, outcome) in outcomes {
            match outcome {
                Ok(NodeResult { node, text }) => {
                    results.insert(shard, text);
                    nodes.insert(shard, node);
                }
                Err(error) => {
                    let late = || {
                        Error::deadline(
                            "the request timed out before the shard answered; try again, or allow \
                             more time with timeout=",
                        )
                    };
                    failure.get_or_insert_with(|| error.unwrap_or_else(late));
                }
            }
        }
        let coverage = ReadCoverage { shards: results.len(), of };
        let reservation = self.memory.finish();
        ShardAnswers { results, nodes, coverage, failure, reservation }
    }
}
