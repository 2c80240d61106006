//! The decision on the access of a node to the store.

use std::time::{Duration, Instant};

use cluster::{StoreAccessDecision, StoreReading, first_with_store};

/// Time between two checks.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// A node with a check in each second.
struct CheckedNode {
    decision: StoreAccessDecision,
    now: Instant,
    failing_since: Option<Instant>,
}

impl CheckedNode {
    fn new() -> CheckedNode {
        let now = Instant::now();
        CheckedNode { decision: StoreAccessDecision::default(), now, failing_since: None }
    }

    /// Checks each second of `seconds`. Returns the access after each check.
    fn check(&mut self, seconds: u64, reads: bool, others_write: bool) -> Vec<StoreReading> {
        let checks = (0..seconds).map(|_| {
            self.now += CHECK_INTERVAL;
            let since = self.failing_since.unwrap_or(self.now);
            self.failing_since = (!reads).then_some(since);
            let failing_for = self.failing_since.map(|since| self.now.duration_since(since));
            self.decision.record(self.now, failing_for, others_write);
            self.decision.reading()
        });
        checks.collect()
    }

    fn after(&mut self, seconds: u64, reads: bool, others_write: bool) -> StoreReading {
        self.check(seconds, reads, others_write).pop().unwrap_or_default()
    }
}

#[test]
fn logs_move_only_if_another_node_reads_the_store() {
    let mut node = CheckedNode::new();
    assert_eq!(node.after(1, false, true), StoreReading::Unknown, "it has read nothing yet");
    assert_eq!(node.after(60, true, true), StoreReading::Working);
    // The first failed reading has the age 0.
    assert_eq!(node.after(10, false, true), StoreReading::Working);
    assert_eq!(node.after(30, false, true), StoreReading::Failing);
    assert_eq!(node.after(1, false, true), StoreReading::Lost);
    let mut alone = CheckedNode::new();
    assert_eq!(alone.after(3_600, false, false), StoreReading::Failing, "the store is down");
}

#[test]
fn the_return_of_the_store_moves_no_log() {
    let mut node = CheckedNode::new();
    node.check(60, true, true);
    node.check(20, false, true);
    // All nodes have announced failures.
    assert_eq!(node.after(600, false, false), StoreReading::Failing);
    // Another node reads the store first. The last request of this node has no answer yet.
    let late = node.check(20, false, true);
    assert!(late.iter().all(|access| *access == StoreReading::Failing), "{late:?}");
    assert_eq!(node.after(1, true, true), StoreReading::Working);
}

#[test]
fn moved_logs_return_after_steady_readings_alone() {
    let mut node = CheckedNode::new();
    node.check(60, true, true);
    assert_eq!(node.after(60, false, true), StoreReading::Lost);
    // etcd does not answer, or the other nodes do not read the store either.
    assert_eq!(node.after(60, false, false), StoreReading::Lost);
    for _ in 0..3 {
        assert_eq!(node.after(10, true, true), StoreReading::Lost);
        assert_eq!(node.after(1, false, true), StoreReading::Lost, "it reads at times only");
    }
    assert_eq!(node.after(11, true, true), StoreReading::Working);
}

#[test]
fn single_errors_move_no_log() {
    let mut node = CheckedNode::new();
    node.check(60, true, true);
    for _ in 0..60 {
        let checks = [node.check(5, false, true), node.check(1, true, true)].concat();
        assert!(checks.iter().all(|reading| *reading == StoreReading::Working), "{checks:?}");
    }
}

#[test]
fn the_first_node_with_the_store_writes() {
    use StoreReading::{Failing, Lost, Unknown, Working};
    let first = |readings: &[StoreReading]| {
        let nodes: Vec<(usize, StoreReading)> = readings.iter().copied().enumerate().collect();
        first_with_store(&nodes)
    };
    assert_eq!(first(&[]), None);
    for reading in [Unknown, Working, Failing] {
        assert_eq!(first(&[reading, Working]), Some(0), "{reading:?}");
    }
    assert_eq!(first(&[Lost, Unknown, Lost, Failing, Working]), Some(3));
    assert_eq!(first(&[Lost, Unknown, Lost]), Some(0));
}
