//! Nodes that lose the store: their readings of it, the decision on their access, and the checks.

use std::time::Duration;

use cluster::{StoreReading, WriterAction, WriterEvent, first_with_store};

use super::etcd::EtcdView;
use super::logs::{TIMEOUT, Write, WriterAddress};
use super::{Fleet, FleetItem, NODES, Sender};
use crate::worlds::Planted;

/// Longest time for which a node does not reach the store. It is longer than the time after which
/// logs move and the return of the logs together.
const CUT_MAX: u64 = 120_000;
/// Share of the cuts that hit all nodes at the same time.
const ALL_CUT_PERCENT: u64 = 40;
/// Longest time of a reading. A cut node may get no answer to a reading until then.
const READING_MAX: u64 = 10_000;
/// Pause between two readings.
const READING_PAUSE: u64 = 1_000;
/// Time between two tries of a request of a writer without an answer.
const RETRY: u64 = 1_000;
/// Longest time from the start of a cut until all other nodes have seen that the node announces it,
/// or that it ended before it could.
const CUT_SEEN_MAX: u64 = 40_000;
/// Shortest time for which another node must have reached the store before a log moves, less the
/// time in which its announcement arrives.
const OTHERS_WRITE_MIN: u64 = 10_000;
/// Longest time from the start of a cut until the logs of the node have moved, if another node
/// reaches the store all the time.
const MOVED_MAX: u64 = 90_000;

/// Access of a node to the store. A restart of its process does not change it.
#[derive(Clone, Debug, Default)]
pub(super) struct StoreCuts {
    /// In order. Cuts that overlap are one.
    cuts: Vec<StoreCut>,
}

/// Time in which a node does not reach the store.
#[derive(Clone, Copy, Debug)]
struct StoreCut {
    start: u64,
    end: u64,
}

impl StoreCuts {
    /// Adds a cut that starts at `now`.
    fn add(&mut self, now: u64, end: u64) {
        match self.cuts.last_mut() {
            Some(last) if last.end >= now => last.end = last.end.max(end),
            _ => self.cuts.push(StoreCut { start: now, end }),
        }
    }

    /// Ends the cut that is under way.
    pub(super) fn end(&mut self, now: u64) {
        if let Some(last) = self.cuts.last_mut() {
            last.end = last.end.min(now);
        }
    }

    fn is_cut(&self, now: u64) -> bool {
        self.cuts.last().is_some_and(|cut| now < cut.end)
    }

    /// Returns true if the node reached the store at no time from `from` to `to`.
    fn covers(&self, from: u64, to: u64) -> bool {
        self.cuts.iter().any(|cut| cut.start <= from && to <= cut.end)
    }

    /// Returns true if the node reached the store all the time from `from` to `to`.
    fn is_open(&self, from: u64, to: u64) -> bool {
        self.cuts.iter().all(|cut| cut.end <= from || to <= cut.start)
    }
}

/// Readings of the store by a process.
#[derive(Clone, Debug, Default)]
pub(super) struct StoreReadings {
    is_running: bool,
    ended: Option<u64>,
    failing_since: Option<u64>,
}

impl Fleet {
    /// Cuts a node, or all nodes, from the store.
    pub(super) fn lose_store(&mut self, node: usize) {
        let now = self.schedule.now();
        let hits_all = self.random.percent(ALL_CUT_PERCENT);
        let end = now + self.random.below(CUT_MAX);
        let nodes = if hits_all { 0..NODES } else { node..node + 1 };
        self.store_cuts[nodes].iter_mut().for_each(|cuts| cuts.add(now, end));
        self.figures.stores_lost += 1;
    }

    /// Returns the node that should own a shard.
    pub(super) fn log_owner(&mut self, view: &EtcdView, shard: u32) -> Option<usize> {
        let ordered = self.placed(view, shard, NODES);
        if self.planted == Some(Planted::LossIgnored) {
            return ordered.first().copied();
        }
        let reading = |node: &usize| view.nodes.get(node).map(|it| it.store).unwrap_or_default();
        let ordered: Vec<(usize, StoreReading)> =
            ordered.iter().map(|node| (*node, reading(node))).collect();
        first_with_store(&ordered)
    }

    /// Begins the next reading of the store, and decides on the access.
    pub(super) fn look_at_store(&mut self, sender: Sender) {
        let now = self.schedule.now();
        let instant = self.instant();
        let delay = self.random.between(1, 40);
        let times_out = self.random.percent(50);
        let is_cut = self.store_cuts[sender.node].is_cut(now);
        let process = &mut self.processes[sender.node];
        let readings = &mut process.readings;
        let is_due = readings.ended.is_none_or(|ended| now >= ended + READING_PAUSE);
        if !readings.is_running && is_due {
            readings.is_running = true;
            let delay = if is_cut && times_out { READING_MAX } else { delay };
            self.schedule.at(delay, FleetItem::StoreRead(sender, !is_cut));
        }
        let process = &self.processes[sender.node];
        if process.readings.ended.is_none() {
            return;
        }
        let failing_for =
            process.readings.failing_since.map(|since| Duration::from_millis(now - since));
        let others_write = self.others_write(sender.node, now);
        let process = &mut self.processes[sender.node];
        let before = process.store.reading();
        process.store.record(instant, failing_for, others_write);
        if process.store.reading() == StoreReading::Lost && before != StoreReading::Lost {
            self.figures.logs_left += 1;
            self.check_loss(sender.node, now);
        }
        self.check_moved(sender.node, now);
    }

    /// Takes the end of a reading.
    pub(super) fn store_read(&mut self, sender: Sender, succeeds: bool) {
        let now = self.schedule.now();
        let Some(process) = self.process(sender) else { return };
        let readings = &mut process.readings;
        readings.is_running = false;
        readings.ended = Some(now);
        let since = readings.failing_since.unwrap_or(now);
        readings.failing_since = (!succeeds).then_some(since);
    }

    /// Returns true if the view of a process is certain and has another node that can write logs.
    fn others_write(&self, node: usize, now: u64) -> bool {
        let process = &self.processes[node];
        let ignores_others = self.planted == Some(Planted::OthersIgnored);
        ignores_others
            || process.knows_members(now)
                && process.view.nodes.iter().any(|(other, record)| {
                    *other != node && record.weight > 0 && record.store == StoreReading::Working
                })
    }

    /// Checks that a node leaves its logs only if another node has reached the store. So an outage
    /// of the store for all nodes moves no log, and neither does its end.
    fn check_loss(&mut self, node: usize, now: u64) {
        let from = now.saturating_sub(CUT_SEEN_MAX);
        let to = now.saturating_sub(OTHERS_WRITE_MIN);
        let mut others = (0..NODES).filter(|other| *other != node);
        if others.all(|other| self.store_cuts[other].covers(from, to)) {
            let why = format!("{node} leaves its logs at {now}, and no other node has the store");
            self.violation = self.violation.take().or(Some(why));
        }
    }

    /// Checks that a node without the store writes no log if another node reaches the store.
    fn check_moved(&mut self, node: usize, now: u64) {
        let Some(from) = now.checked_sub(MOVED_MAX) else { return };
        let is_lost = self.store_cuts[node].covers(from, now)
            && self.processes[node].started <= from
            && !self.processes[node].active.is_empty();
        let can_write = |other: &usize| {
            let process = &self.processes[*other];
            let is_running = process.is_alive && process.started <= from && !process.drains;
            *other != node && is_running && self.store_cuts[*other].is_open(from, now)
        };
        if is_lost && (0..NODES).any(|other| can_write(&other)) {
            let why = format!("{node} has no store since {from} and writes logs at {now}");
            self.violation = self.violation.take().or(Some(why));
        }
    }

    /// Drops a request of a writer whose node does not reach the store. Returns the request
    /// otherwise. The outcome of a create is unknown to the writer, and reads are repeated.
    pub(super) fn unless_cut(
        &mut self,
        address: WriterAddress,
        shard: u32,
        request: WriterAction<Write>,
    ) -> Option<WriterAction<Write>> {
        if !self.store_cuts[address.sender.node].is_cut(self.schedule.now()) {
            return Some(request);
        }
        match request {
            WriterAction::Create(id, ..) => {
                let unknown = WriterEvent::NotCreated(id);
                self.schedule.at(TIMEOUT, FleetItem::StoreAnswer(address, unknown));
            }
            read => self.schedule.at(RETRY, FleetItem::Store(address, shard, read)),
        }
        None
    }
}
