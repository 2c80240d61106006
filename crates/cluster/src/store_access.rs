//! Access of a node to the store, and the choice of a writer if a node has lost the store.

use std::time::{Duration, Instant};

/// Time of failed readings after which a node announces that the store fails.
const FAILING_AFTER: Duration = Duration::from_secs(10);
/// Time of failed readings after which the logs of a node move to other nodes. If the store fails
/// for all nodes, etcd names none that reads the store by then, so an outage of the store moves no
/// log. A reading begins 1 s after the one before and fails 10 s later. A node announces this after
/// 10 s more, and etcd and the other nodes take up to 5 s. If the node ended just before, etcd
/// names it until its lease of 10 s ends, and other nodes for 3 s more.
const LOST_AFTER: Duration = Duration::from_secs(40);
/// Time for which another node must be able to write the logs before they move. After an outage of
/// the store for all nodes, some of them read it up to 11 s later than others. Their last request
/// has no answer. No log moves in this time.
const OTHERS_WRITE_FOR: Duration = Duration::from_secs(20);
/// Time of successful readings after which moved logs return. If a node reaches the store at times
/// only, its logs stay at the other nodes.
const RETURN_AFTER: Duration = Duration::from_secs(10);

/// Access of a node to the store, as its readings show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StoreReading {
    /// The node has read nothing yet, or its program is of an earlier version.
    #[default]
    Unknown,
    /// The readings succeed, or they have failed for a short time only.
    Working,
    /// The readings fail. The store may be down for all nodes.
    Failing,
    /// The readings fail, and succeed on another node that can write logs.
    Lost,
}

impl StoreReading {
    /// Returns true if a node takes the logs of a node that has lost the store. A node of an
    /// earlier version does not see the loss.
    pub fn takes_over(self) -> bool {
        matches!(self, StoreReading::Working | StoreReading::Failing)
    }
}

/// Returns the node that writes a log. `ordered` lists the nodes that can write it, in the order of
/// preference. The result is the first of them, or the first that takes over if the first of all
/// has lost the store.
pub fn first_with_store<T: Copy>(ordered: &[(T, StoreReading)]) -> Option<T> {
    let (first, reading) = *ordered.first()?;
    let next = ordered.iter().find(|node| node.1.takes_over());
    let is_lost = reading == StoreReading::Lost;
    Some(next.filter(|_| is_lost).map_or(first, |node| node.0))
}

/// Decision on the access of a node to the store.
#[derive(Clone, Debug, Default)]
pub struct StoreAccessDecision {
    reading: StoreReading,
    /// Time since which another node can write the logs; `None` if none can.
    others_write_since: Option<Instant>,
    /// Time since which the readings succeed; `None` if they fail.
    reads_since: Option<Instant>,
}

impl StoreAccessDecision {
    /// Returns the last decision.
    pub fn reading(&self) -> StoreReading {
        self.reading
    }

    /// Decides on the access at the time `now`. The readings have failed for `failing_for`; `None`
    /// if the last one succeeded. `others_write` is true if another node that reads the store can
    /// write the logs of this node, as etcd says at this moment.
    ///
    /// Lost access stays lost until the readings succeed, so an outage of etcd, or one of the store
    /// for the other nodes, moves no log.
    pub fn record(&mut self, now: Instant, failing_for: Option<Duration>, others_write: bool) {
        self.others_write_since = others_write.then(|| self.others_write_since.unwrap_or(now));
        self.reads_since = failing_for.is_none().then(|| self.reads_since.unwrap_or(now));
        let lasts = |since: Option<Instant>, time: Duration| {
            since.is_some_and(|since| now.saturating_duration_since(since) >= time)
        };
        if self.reading == StoreReading::Lost && !lasts(self.reads_since, RETURN_AFTER) {
            return;
        }
        self.reading = match failing_for {
            None => StoreReading::Working,
            Some(time)
                if time >= LOST_AFTER && lasts(self.others_write_since, OTHERS_WRITE_FOR) =>
            {
                StoreReading::Lost
            }
            Some(time) if time >= FAILING_AFTER => StoreReading::Failing,
            // A node that has never read the store writes no logs of others.
            Some(_) if self.reading == StoreReading::Unknown => StoreReading::Unknown,
            Some(_) => StoreReading::Working,
        };
    }
}
