//! One root that reads shards from nodes. The nodes are slow, stuck, behind or dead for a while.
//!
//! Time is in microseconds.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use cluster::{
    BURST_MAX, CallId, CallReason, HEDGED_PERCENT_MAX, NodeCall, NodeLatencies, ReadFanOut,
};

use super::numbers::Numbers;
use super::schedule::Schedule;
use super::{Planted, WorldOutcome};

const NODES: usize = 4;
const SHARDS: u32 = 6;
const MILLISECOND: u64 = 1_000;
const SECOND: u64 = 1_000 * MILLISECOND;
/// Time in which clients send queries.
const LENGTH: u64 = 10 * SECOND;
/// Mean time between two queries.
const PAUSE_OF_CLIENTS: u64 = 10 * MILLISECOND;
/// Mean time between two changes of a node.
const PAUSE_OF_NODES: u64 = 2 * SECOND;
/// Time for a query.
const TIMEOUT: u64 = 10 * SECOND;
/// Longest latency of a node that is neither stuck nor dead.
const LATENCY_MAX: u64 = 400 * MILLISECOND;

/// Health of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Health {
    /// Answers within some milliseconds.
    Fast,
    /// Answers late.
    Slow,
    /// Never answers what it gets.
    Stuck,
    /// Refuses connections.
    Dead,
    /// Answers at once that its shards are behind the log.
    Behind,
}

struct ReadNode {
    name: String,
    health: Health,
    since: u64,
    shards: BTreeSet<u32>,
}

/// Result of a shard: the request that it came from.
type ShardResult = CallId;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReadFailure {
    Unserved,
    Refused,
    Behind,
}

/// Outcome of a request.
#[derive(Debug)]
enum CallEnd {
    Results,
    Behind,
    Refused,
}

/// A query that runs.
struct Query {
    fan_out: ReadFanOut<ShardResult, ReadFailure>,
    asks: QueryAsks,
    /// First whole answer of each shard.
    first: BTreeMap<u32, CallId>,
    /// Results that were counted.
    counted: BTreeMap<u32, u32>,
    /// Time of the next check of the timers.
    wake: Option<u64>,
}

/// Requests of a query.
#[derive(Default)]
struct QueryAsks {
    begun: u64,
    /// Nodes that were asked for each shard in this round, and when.
    asked: BTreeMap<(u32, String), u64>,
    /// Time at which the last node that was asked for a shard counts as failed.
    stalls: BTreeMap<u32, u64>,
}

enum Item {
    Client,
    Change(usize),
    End(u64, CallId, CallEnd),
    Timers(u64),
    Round(u64),
    Deadline(u64),
}

struct World {
    random: Numbers,
    planted: Option<Planted>,
    schedule: Schedule<Item>,
    /// Instant of the time 0.
    zero: Instant,
    nodes: Vec<ReadNode>,
    latencies: NodeLatencies,
    queries: BTreeMap<u64, Query>,
    number: u64,
    budget: BudgetCheck,
    whole: u64,
    partial: u64,
    hedges_won: u64,
    retries: u64,
    violation: Option<String>,
}

/// Checks that second requests stay within 5 % and the burst, in any part of the run.
#[derive(Default)]
struct BudgetCheck {
    firsts: u64,
    hedges: u64,
    balance: i64,
    least: i64,
}

impl BudgetCheck {
    fn send(&mut self, reason: CallReason) -> Option<String> {
        match reason {
            CallReason::First => {
                self.firsts += 1;
                self.balance -= i64::from(HEDGED_PERCENT_MAX);
            }
            CallReason::Hedge => {
                self.hedges += 1;
                self.balance += 100;
            }
            CallReason::Retry => {}
        }
        self.least = self.least.min(self.balance);
        let over = self.balance - self.least > i64::from(BURST_MAX) * 100;
        over.then(|| format!("{} second requests for {} first ones", self.hedges, self.firsts))
    }
}

/// Runs the world of a seed.
pub(super) fn run(seed: u64, planted: Option<Planted>) -> WorldOutcome {
    let mut world = World::new(seed, planted);
    while let Some(item) = world.schedule.next() {
        world.happens(item);
        if world.violation.is_some() {
            break;
        }
    }
    let figures = [
        ("whole", world.whole),
        ("partial", world.partial),
        ("first_requests", world.budget.firsts),
        ("hedged_requests", world.budget.hedges),
        ("hedges_won", world.hedges_won),
        ("retries", world.retries),
    ];
    WorldOutcome { violation: world.violation, figures: figures.into() }
}

impl World {
    fn new(seed: u64, planted: Option<Planted>) -> World {
        let mut random = Numbers::new(seed);
        let copies = random.between(2, 4) as usize;
        let mut nodes: Vec<ReadNode> = (0..NODES)
            .map(|node| ReadNode {
                name: format!("n{node}"),
                health: Health::Fast,
                since: 0,
                shards: BTreeSet::new(),
            })
            .collect();
        for shard in 0..SHARDS {
            let first = random.below(NODES as u64) as usize;
            for copy in 0..copies {
                nodes[(first + copy) % NODES].shards.insert(shard);
            }
        }
        let mut world = World {
            random,
            planted,
            schedule: Schedule::new(),
            zero: Instant::now(),
            nodes,
            latencies: NodeLatencies::default(),
            queries: BTreeMap::new(),
            number: 0,
            budget: BudgetCheck::default(),
            whole: 0,
            partial: 0,
            hedges_won: 0,
            retries: 0,
            violation: None,
        };
        world.schedule.at(0, Item::Client);
        for node in 0..NODES {
            let delay = world.random.below(2 * PAUSE_OF_NODES);
            world.schedule.at(delay, Item::Change(node));
        }
        world
    }

    fn instant(&self) -> Instant {
        self.zero + Duration::from_micros(self.schedule.now())
    }

    fn happens(&mut self, item: Item) {
        match item {
            Item::Client => self.client(),
            Item::Change(node) => self.change(node),
            Item::End(number, id, end) => self.ended(number, id, &end),
            Item::Timers(number) => self.timers(number),
            Item::Round(number) => self.round(number),
            Item::Deadline(number) => self.finish(number),
        }
    }

    fn client(&mut self) {
        self.number += 1;
        let number = self.number;
        let shards: Vec<u32> = if self.random.percent(80) {
            (0..SHARDS).collect()
        } else {
            vec![self.random.below(u64::from(SHARDS)) as u32]
        };
        let query = Query {
            fan_out: ReadFanOut::new(number, &shards),
            asks: QueryAsks { begun: self.schedule.now(), ..QueryAsks::default() },
            first: BTreeMap::new(),
            counted: BTreeMap::new(),
            wake: None,
        };
        self.queries.insert(number, query);
        self.schedule.at(TIMEOUT, Item::Deadline(number));
        self.round(number);
        let delay = self.random.below(2 * PAUSE_OF_CLIENTS);
        if self.schedule.now() + delay < LENGTH {
            self.schedule.at(delay, Item::Client);
        }
    }

    /// Changes the health of a node. The first node of all is always fast.
    fn change(&mut self, at: usize) {
        let health = match self.random.below(10) {
            0..5 => Health::Fast,
            5..7 => Health::Slow,
            7 => Health::Stuck,
            8 => Health::Dead,
            _ => Health::Behind,
        };
        let node = &mut self.nodes[at];
        if node.health != health {
            node.health = health;
            node.since = self.schedule.now();
        }
        let delay = self.random.below(2 * PAUSE_OF_NODES);
        if self.schedule.now() + delay < LENGTH {
            self.schedule.at(delay, Item::Change(at));
        }
    }

    fn round(&mut self, number: u64) {
        let now = self.instant();
        let Some(query) = self.queries.get_mut(&number) else { return };
        let mut holders: BTreeMap<u32, Vec<&str>> = BTreeMap::new();
        for node in &self.nodes {
            for shard in &node.shards {
                holders.entry(*shard).or_default().push(&node.name);
            }
        }
        query.asks.asked.clear();
        let unserved = |_| ReadFailure::Unserved;
        let calls = query.fan_out.start_round(&holders, unserved, &mut self.latencies, now);
        self.send(number, calls);
    }

    /// Sends requests, which the nodes answer after a while, or not.
    fn send(&mut self, number: u64, calls: Vec<NodeCall>) {
        for call in calls {
            self.check_call(number, &call);
            let Some(node) = self.nodes.iter().find(|node| node.name == call.node) else {
                continue;
            };
            let end = match node.health {
                Health::Fast | Health::Slow => CallEnd::Results,
                Health::Behind => CallEnd::Behind,
                Health::Dead => CallEnd::Refused,
                Health::Stuck => continue,
            };
            let delay = match node.health {
                Health::Slow => self.random.below(LATENCY_MAX),
                _ if self.random.percent(1) => self.random.below(LATENCY_MAX),
                _ => self.random.between(MILLISECOND, 6 * MILLISECOND),
            };
            self.schedule.at(delay, Item::End(number, call.id, end));
        }
        self.proceed(number);
    }

    fn check_call(&mut self, number: u64, call: &NodeCall) {
        if call.reason == CallReason::First && self.planted == Some(Planted::BudgetGrows) {
            (0..BURST_MAX).for_each(|_| self.latencies.count_request());
        }
        self.retries += u64::from(call.reason == CallReason::Retry);
        if let Some(why) = self.budget.send(call.reason) {
            self.violation = Some(why);
        }
        let Some(query) = self.queries.get_mut(&number) else {
            self.violation = Some(format!("query {number} sends a request after its end"));
            return;
        };
        let now = self.schedule.now();
        let stall = now + self.latencies.timers(&call.node, &[]).stall.as_micros() as u64;
        for shard in &call.shards {
            let latest = query.asks.stalls.entry(*shard).or_default();
            *latest = stall.max(*latest);
            if query.asks.asked.insert((*shard, call.node.clone()), now).is_some() {
                self.violation = Some(format!("query {number}: {} is asked twice", call.node));
            }
        }
    }

    /// Does the next step of a query: the next round, its end, or waiting for its timers.
    fn proceed(&mut self, number: u64) {
        let Some(query) = self.queries.get_mut(&number) else { return };
        if query.fan_out.unanswered().is_empty() {
            return self.finish(number);
        }
        if query.fan_out.is_idle() {
            return match query.fan_out.next_pause() {
                Some(pause) => self.schedule.at(pause.as_micros() as u64, Item::Round(number)),
                None => self.finish(number),
            };
        }
        let wake = query.fan_out.next_timer().filter(|_| self.planted != Some(Planted::NoTimers));
        let Some(wake) = wake else { return };
        let wake = wake.saturating_duration_since(self.zero).as_micros() as u64 + 1;
        if query.wake.is_none_or(|earlier| wake < earlier) {
            query.wake = Some(wake);
            let delay = wake.saturating_sub(self.schedule.now());
            self.schedule.at(delay, Item::Timers(number));
        }
    }

    fn timers(&mut self, number: u64) {
        let now = self.instant();
        let Some(query) = self.queries.get_mut(&number) else { return };
        query.wake = query.wake.filter(|wake| *wake > self.schedule.now());
        let calls = query.fan_out.timers_fired(&mut self.latencies, now);
        self.send(number, calls);
    }

    fn ended(&mut self, number: u64, id: CallId, end: &CallEnd) {
        let now = self.instant();
        // A request of a query that ended was dropped.
        let Some(query) = self.queries.get_mut(&number) else { return };
        let Some(call) = query.fan_out.running(id).cloned() else { return };
        let result = match end {
            CallEnd::Refused => {
                let refused = &ReadFailure::Refused;
                let calls = query.fan_out.failed(id, refused, &mut self.latencies, now);
                return self.send(number, calls);
            }
            CallEnd::Behind => Err(ReadFailure::Behind),
            CallEnd::Results => Ok(id),
        };
        let results = call.shards.iter().map(|shard| (*shard, result)).collect();
        let taken = query.fan_out.answered(id, results, &mut self.latencies, now);
        let mut counted = &taken.counted;
        if self.planted == Some(Planted::LosersCount) && result.is_ok() {
            counted = &call.shards;
        }
        for shard in counted {
            *query.counted.entry(*shard).or_default() += 1;
        }
        if result.is_ok() {
            for shard in &call.shards {
                query.first.entry(*shard).or_insert(id);
            }
        }
        let won = call.reason == CallReason::Hedge && !taken.counted.is_empty();
        self.hedges_won += u64::from(won);
        self.send(number, taken.calls);
    }

    /// Ends a query and checks its results.
    fn finish(&mut self, number: u64) {
        let now = self.instant();
        let Some(query) = self.queries.remove(&number) else { return };
        let mut is_whole = true;
        for (shard, outcome) in query.fan_out.finish(&mut self.latencies, now) {
            let counted = query.counted.get(&shard).copied().unwrap_or(0);
            if counted != u32::from(outcome.is_ok()) {
                self.violation = Some(format!("query {number}: a shard counts {counted} times"));
            }
            if outcome.ok() != query.first.get(&shard).copied() {
                self.violation = Some(format!("query {number}: not the first answer counts"));
            }
            is_whole &= outcome.is_ok();
            let forgotten = outcome.is_err().then(|| self.forgotten(&query.asks, shard)).flatten();
            if let Some(node) = forgotten {
                self.violation =
                    Some(format!("query {number}: no answer, although {node} is well"));
            }
        }
        self.whole += u64::from(is_whole);
        self.partial += u64::from(!is_whole);
    }

    /// Returns the name of a node that should have answered a shard: it was healthy and fast since
    /// the query began, and it was asked or could have been asked.
    fn forgotten(&self, asks: &QueryAsks, shard: u32) -> Option<String> {
        let now = self.schedule.now();
        let should_answer = |node: &&ReadNode| {
            let is_well = node.health == Health::Fast
                && node.since <= asks.begun
                && node.shards.contains(&shard);
            let due = match asks.asked.get(&(shard, node.name.clone())) {
                Some(asked) => asked + LATENCY_MAX,
                None => asks.stalls.get(&shard).copied().unwrap_or(0),
            };
            is_well && due < now
        };
        self.nodes.iter().find(should_answer).map(|node| node.name.clone())
    }
}
