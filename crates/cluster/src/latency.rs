//! Latencies of nodes: the order in which holders are asked, and the time after which a second one
//! is asked.
//!
//! Second requests are limited to 5 %, so they cannot hide a node that is slow all the time. Such a
//! node is asked last, except by one query in [`PROBE_INTERVAL`], which checks if it is fast again.
//! The second request of such a query is sent as soon as the other holder would be late.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::hedge::{HedgeBudget, LatencyEstimate};

/// Latency of a node before its first answer.
const GUESS: Duration = Duration::from_millis(20);
/// Time for which a node that failed is asked last.
const DOWN_TIME: Duration = Duration::from_secs(1);
/// Queries between two that begin with a slow node. Probes are so rare that they do not affect the
/// 99th percentile, even without a second request.
const PROBE_INTERVAL: u64 = 256;
/// Weight of the newest latency in the mean.
const NEWEST_WEIGHT: f64 = 0.2;
/// A node is slow if its mean exceeds this many times the mean of another holder plus
/// [`SLOW_MARGIN_S`].
const SLOW_FACTOR: f64 = 3.0;
/// Seconds that are added to the limit of [`SLOW_FACTOR`].
const SLOW_MARGIN_S: f64 = 0.005;
/// One latency counts as at most this many times the mean plus [`OUTLIER_MARGIN_S`], so that one
/// outlier makes no node slow.
const OUTLIER_FACTOR: f64 = 4.0;
/// Seconds that are added to the limit of [`OUTLIER_FACTOR`].
const OUTLIER_MARGIN_S: f64 = 0.01;
/// An overtaken request is dropped, so its latency is not known. It counts as this many times the
/// time for which it ran. Three in a row then make a node slow, if the second request was sent at
/// the 95th percentile. With the time alone, it took about 14: more than 1 % of the queries in the
/// minute after a node became slow.
const OVERTAKEN_FACTOR: u32 = 4;
/// A request is sent to another holder without a budget after this many estimates of the 95th
/// percentile.
const STALL_FACTOR: u32 = 4;
/// Minimum time before a request is sent to another holder without a budget.
const STALL_TIME_MIN: Duration = Duration::from_secs(1);
/// Maximum nodes that are remembered.
const NODES_MAX: usize = 4096;

#[derive(Clone, Debug)]
struct NodeLatency {
    p95: LatencyEstimate,
    mean_s: f64,
    down_until: Option<Instant>,
}

impl NodeLatency {
    fn new() -> NodeLatency {
        NodeLatency { p95: LatencyEstimate::new(GUESS), mean_s: 0.0, down_until: None }
    }

    fn record(&mut self, latency: Duration) {
        self.p95.record(latency);
        let most = self.mean_s * OUTLIER_FACTOR + OUTLIER_MARGIN_S;
        let latency_s = latency.as_secs_f64().min(most);
        self.mean_s += NEWEST_WEIGHT * (latency_s - self.mean_s);
    }

    fn is_down(&self, now: Instant) -> bool {
        self.down_until.is_some_and(|until| now < until)
    }

    fn is_slow(&self, fastest_s: f64) -> bool {
        self.mean_s > SLOW_FACTOR * fastest_s + SLOW_MARGIN_S
    }
}

/// Times after which an unanswered request is sent to other holders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallTimers {
    /// A second request may be sent after this time, if the budget allows.
    pub hedge: Duration,
    /// The node counts as failed after this time.
    pub stall: Duration,
}

/// Latencies of all nodes, and the budget of second requests.
#[derive(Clone, Debug, Default)]
pub struct NodeLatencies {
    nodes: HashMap<String, NodeLatency>,
    budget: HedgeBudget,
}

impl NodeLatencies {
    /// Returns the holders in the order in which query number `number` asks them.
    pub fn order(&self, holders: &[&str], number: u64, now: Instant) -> Vec<String> {
        let nodes = &self.nodes;
        let fastest_s = fastest(nodes, holders);
        let rank = |name: &str| {
            let node = nodes.get(name);
            let is_slow = node.is_some_and(|node| node.is_slow(fastest_s));
            let is_probe = number.is_multiple_of(PROBE_INTERVAL);
            (node.is_some_and(|node| node.is_down(now)), is_slow != is_probe)
        };
        let mut order = holders.to_vec();
        if !order.is_empty() {
            order.rotate_left((number % holders.len() as u64) as usize);
        }
        order.sort_by_key(|name| rank(name));
        order.into_iter().map(str::to_owned).collect()
    }

    /// Returns true if `node` failed a moment ago.
    pub fn is_down(&self, node: &str, now: Instant) -> bool {
        self.nodes.get(node).is_some_and(|node| node.is_down(now))
    }

    /// Returns the timers of a request to `node`, whose shards `others` hold too.
    pub fn timers(&self, node: &str, others: &[&str]) -> CallTimers {
        let nodes = &self.nodes;
        let p95 = |name: &str| nodes.get(name).map_or(GUESS, |node| node.p95.value());
        let own = p95(node);
        let is_slow = nodes.get(node).is_some_and(|node| node.is_slow(fastest(nodes, others)));
        let other = others.iter().map(|name| p95(name)).min().filter(|_| is_slow);
        CallTimers {
            hedge: other.map_or(own, |other| other.min(own)),
            stall: (own * STALL_FACTOR).max(STALL_TIME_MIN),
        }
    }

    /// Takes the latency of a whole answer.
    pub fn record(&mut self, node: &str, latency: Duration) {
        self.change(node, |node| {
            node.record(latency);
            node.down_until = None;
        });
    }

    /// Takes the time for which an unfinished request has run. It counts only if it shows that the
    /// node is slower than known.
    pub(crate) fn record_unfinished(&mut self, node: &str, elapsed: Duration) {
        self.change(node, |node| {
            if elapsed > node.p95.value() {
                node.record(elapsed);
            }
        });
    }

    /// Takes the time for which a request ran until the answer to a second request replaced it. It
    /// counts only if it makes the mean larger. The dropped request could have taken any time, so
    /// it does not show that a slow node is fast again.
    pub(crate) fn record_overtaken(&mut self, node: &str, elapsed: Duration) {
        let assumed = elapsed * OVERTAKEN_FACTOR;
        self.change(node, |node| {
            if assumed.as_secs_f64() > node.mean_s {
                node.record(assumed);
            }
        });
    }

    /// Takes a failure of the whole node.
    pub fn record_failure(&mut self, node: &str, now: Instant) {
        self.change(node, |node| node.down_until = Some(now + DOWN_TIME));
    }

    /// Changes the latency of a node, which is added if it is unknown. Forgets all nodes if they
    /// are too many.
    fn change(&mut self, name: &str, change: impl FnOnce(&mut NodeLatency)) {
        if let Some(node) = self.nodes.get_mut(name) {
            change(node);
            return;
        }
        if self.nodes.len() >= NODES_MAX {
            self.nodes.clear();
        }
        let mut node = NodeLatency::new();
        change(&mut node);
        self.nodes.insert(name.to_owned(), node);
    }

    /// Counts a first request for the budget of second requests.
    pub fn count_request(&mut self) {
        self.budget.count_request();
    }

    /// Returns true if a second request may be sent, and takes it from the budget.
    pub fn spend(&mut self) -> bool {
        self.budget.spend()
    }
}

/// Returns the smallest known mean latency in seconds; infinity if none is known.
fn fastest(nodes: &HashMap<String, NodeLatency>, names: &[&str]) -> f64 {
    let known = names.iter().filter_map(|name| nodes.get(*name)).map(|node| node.mean_s);
    known.filter(|mean_s| *mean_s > 0.0).fold(f64::INFINITY, f64::min)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAST: Duration = Duration::from_millis(2);
    const SLOW: Duration = Duration::from_millis(200);

    fn known() -> NodeLatencies {
        let mut latencies = NodeLatencies::default();
        for node in ["a", "b"] {
            (0..100).for_each(|_| latencies.record(node, FAST));
        }
        latencies
    }

    #[test]
    fn queries_rotate_over_the_holders() {
        let latencies = known();
        let now = Instant::now();
        assert_eq!(latencies.order(&["a", "b"], 2, now), ["a", "b"]);
        assert_eq!(latencies.order(&["a", "b"], 3, now), ["b", "a"]);
        assert_eq!(latencies.order(&["a", "b"], PROBE_INTERVAL, now), ["a", "b"]);
        assert!(latencies.order(&[], 3, now).is_empty());
    }

    #[test]
    fn one_outlier_makes_no_node_slow() {
        let mut latencies = known();
        latencies.record("a", SLOW);
        assert_eq!(latencies.order(&["a", "b"], 2, Instant::now()), ["a", "b"]);
    }

    #[test]
    fn a_slow_node_is_asked_last_except_by_probes() {
        let mut latencies = known();
        (0..10).for_each(|_| latencies.record("a", SLOW));
        let now = Instant::now();
        assert_eq!(latencies.order(&["a", "b"], 2, now), ["b", "a"]);
        assert_eq!(latencies.order(&["a", "b"], 3, now), ["b", "a"]);
        assert_eq!(latencies.order(&["a", "b"], PROBE_INTERVAL, now), ["a", "b"]);
        let fast = latencies.timers("b", &["a"]);
        assert_eq!(latencies.timers("a", &["b"]).hedge, fast.hedge, "as soon as b would be late");
        assert_eq!(fast.stall, STALL_TIME_MIN);
        (0..100).for_each(|_| latencies.record("a", FAST));
        assert_eq!(latencies.order(&["a", "b"], 2, now), ["a", "b"]);
    }

    #[test]
    fn unfinished_requests_show_a_slow_node() {
        let mut latencies = known();
        (0..100).for_each(|_| latencies.record_unfinished("a", Duration::ZERO));
        assert_eq!(latencies.order(&["a", "b"], 2, Instant::now()), ["a", "b"]);
        (0..10).for_each(|_| latencies.record_unfinished("a", SLOW));
        assert_eq!(latencies.order(&["a", "b"], 2, Instant::now()), ["b", "a"]);
    }

    #[test]
    fn three_overtaken_requests_show_a_slow_node() {
        let mut latencies = known();
        let slow = |latencies: &NodeLatencies| {
            latencies.order(&["a", "b"], 2, Instant::now()) == ["b", "a"]
        };
        for _ in 0..2 {
            latencies.record_overtaken("a", 3 * FAST);
            assert!(!slow(&latencies));
        }
        latencies.record_overtaken("a", 3 * FAST);
        assert!(slow(&latencies));
        latencies.record("a", FAST);
        assert!(!slow(&latencies), "a short pause of a node has no effect for long");
    }

    /// The probes of a slow node are overtaken soon, because the other node is fast.
    #[test]
    fn overtaken_probes_leave_a_slow_node_slow() {
        let fast = Duration::from_micros(500);
        let overtaken = Duration::from_micros(1500);
        let mut latencies = NodeLatencies::default();
        (0..100).for_each(|_| latencies.record("a", fast));
        (0..100).for_each(|_| latencies.record("b", fast));
        (0..10).for_each(|_| latencies.record("a", SLOW));
        (0..100).for_each(|_| latencies.record_overtaken("a", overtaken));
        assert_eq!(latencies.order(&["a", "b"], 2, Instant::now()), ["b", "a"]);
    }

    #[test]
    fn a_failed_node_is_asked_last_for_a_while() {
        let mut latencies = known();
        let now = Instant::now();
        latencies.record_failure("a", now);
        assert_eq!([latencies.is_down("a", now), latencies.is_down("b", now)], [true, false]);
        assert_eq!(latencies.order(&["a", "b"], 2, now), ["b", "a"]);
        assert_eq!(latencies.order(&["a", "b"], 2, now + DOWN_TIME), ["a", "b"]);
        latencies.record("a", FAST);
        assert_eq!(latencies.order(&["a", "b"], 2, now), ["a", "b"]);
    }
}
