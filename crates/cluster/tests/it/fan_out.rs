//! Reads of shards: one request for each, others after failures and beside slow ones.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use cluster::{CallReason, NodeCall, NodeLatencies, ReadFanOut};

type FanOut = ReadFanOut<&'static str, &'static str>;

/// Time after which a second request may be sent.
const LATE: Duration = Duration::from_millis(500);
/// Time after which a node counts as failed.
const STALLED: Duration = Duration::from_secs(5);

struct Run {
    fan_out: FanOut,
    latencies: NodeLatencies,
    now: Instant,
}

impl Run {
    /// Reads shards that the nodes `holders` serve, with a budget for second requests. The number
    /// of the read makes the first one of them the first.
    fn new(shards: &[u32]) -> Run {
        let mut latencies = NodeLatencies::default();
        (0..1000).for_each(|_| latencies.count_request());
        Run { fan_out: FanOut::new(60, shards), latencies, now: Instant::now() }
    }

    fn round(&mut self, shards: &[u32], holders: &[&str]) -> Vec<NodeCall> {
        let holders = shards.iter().map(|shard| (*shard, holders.to_vec())).collect();
        self.fan_out.start_round(&holders, |_| "unserved", &mut self.latencies, self.now)
    }

    fn wait(&mut self, time: Duration) -> Vec<NodeCall> {
        self.now += time;
        self.fan_out.timers_fired(&mut self.latencies, self.now)
    }

    fn answer(&mut self, call: &NodeCall, result: Result<&'static str, &'static str>) -> Vec<u32> {
        let results = call.shards.iter().map(|shard| (*shard, result)).collect();
        self.fan_out.answered(call.id, results, &mut self.latencies, self.now).counted
    }

    fn fail(&mut self, call: &NodeCall) -> Vec<NodeCall> {
        self.fan_out.failed(call.id, &"refused", &mut self.latencies, self.now)
    }

    fn finish(mut self) -> BTreeMap<u32, Result<&'static str, Option<&'static str>>> {
        self.fan_out.finish(&mut self.latencies, self.now)
    }
}

/// Returns the node and the reason of the only request.
fn only(calls: &[NodeCall]) -> (&str, CallReason) {
    match calls {
        [call] => (&call.node, call.reason),
        other => panic!("not one request: {other:?}"),
    }
}

#[test]
fn shards_of_one_holder_share_a_request() {
    let mut run = Run::new(&[1, 2, 7]);
    let calls = run.round(&[1, 2, 7], &["a", "b"]);
    assert_eq!((only(&calls), &*calls[0].shards), (("a", CallReason::First), &[1, 2, 7][..]));
    assert_eq!(run.answer(&calls[0], Ok("x")), [1, 2, 7]);
    assert!(run.fan_out.unanswered().is_empty() && run.fan_out.is_idle());
}

#[test]
fn the_first_answer_counts() {
    let mut run = Run::new(&[1]);
    let first = run.round(&[1], &["a", "b"]);
    let second = run.wait(LATE);
    assert_eq!(only(&second), ("b", CallReason::Hedge));
    assert_eq!(run.answer(&second[0], Ok("second")), [1]);
    assert!(run.answer(&first[0], Ok("first")).is_empty(), "the slower answer is ignored");
    assert_eq!(run.finish()[&1], Ok("second"));
}

#[test]
fn a_failure_is_followed_by_the_next_holder() {
    let mut run = Run::new(&[1]);
    let first = run.round(&[1], &["a", "b", "c"]);
    let second = run.fail(&first[0]);
    assert_eq!(only(&second), ("b", CallReason::Retry));
    let third = run.fail(&second[0]);
    assert_eq!(only(&third), ("c", CallReason::Retry));
    assert!(run.fail(&third[0]).is_empty());
    assert_eq!(run.fan_out.next_pause(), Some(Duration::from_millis(50)));
    let again = run.round(&[1], &["a"]);
    assert_eq!(only(&again), ("a", CallReason::Retry));
    assert_eq!(run.answer(&again[0], Err("behind")), [0; 0]);
    assert_eq!(run.finish()[&1], Err(Some("behind")));
}

/// Found by the simulation: a first and a second request, both to nodes that do not answer.
#[test]
fn two_stuck_holders_are_followed_by_the_third() {
    let mut run = Run::new(&[1]);
    assert_eq!(only(&run.round(&[1], &["a", "b", "c"])), ("a", CallReason::First));
    assert_eq!(only(&run.wait(LATE)), ("b", CallReason::Hedge));
    assert_eq!(only(&run.wait(STALLED)), ("c", CallReason::Retry));
}

/// Found by the simulation: the second holder fails while the first does not answer.
#[test]
fn a_failure_beside_a_stuck_holder_is_followed_by_the_third() {
    let mut run = Run::new(&[1]);
    let first = run.round(&[1], &["a", "b", "c"]);
    let second = run.wait(STALLED);
    assert_eq!(only(&second), ("b", CallReason::Retry));
    assert_eq!(only(&run.fail(&second[0])), ("c", CallReason::Retry));
    assert_eq!(run.answer(&first[0], Ok("late")), [1], "a late answer still counts");
}

#[test]
fn an_empty_budget_allows_no_second_request() {
    let mut run = Run::new(&[1]);
    run.latencies = NodeLatencies::default();
    run.round(&[1], &["a", "b"]);
    assert!(run.wait(LATE).is_empty());
    assert_eq!(only(&run.wait(STALLED)), ("b", CallReason::Retry));
}

#[test]
fn a_shard_without_holders_has_its_own_error() {
    let mut run = Run::new(&[1]);
    assert!(run.round(&[1], &[]).is_empty());
    assert_eq!(run.fan_out.failure(1), Some(&"unserved"));
    assert_eq!(run.finish()[&1], Err(Some("unserved")));
}
