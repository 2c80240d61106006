//! Full disks: stalled copies, reads that need an entry of the log, and refused writes.

use std::time::Duration;

use cluster::{
    AppliedReadStep, CertainHolders, EntryNumber, HolderReading, StallMark, StalledServiceChange,
};

use super::etcd::EtcdView;
use super::look::readings;
use super::process::Process;
use super::{Fleet, LOSS_SEEN_MAX, NAMES, NODES, SHARDS, Sender};
use crate::worlds::Planted;

/// Share of a process's checks at which a client reads a shard, in percent.
const READS_PERCENT: u64 = 20;
/// Time before the end of a world with full disks in which no write may be acknowledged.
const REFUSED_BEFORE_END: u64 = 5_000;

impl Fleet {
    /// Applies the logs of the process's copies, decides on stalled ones and on writes, and reads a
    /// shard.
    pub(super) fn look_at_stalls(&mut self, sender: Sender) {
        for shard in 0..SHARDS {
            self.apply_log(sender, shard);
            self.decide_on_stall(sender, shard);
            self.look_at_full_shard(sender, shard);
        }
        if self.random.percent(READS_PERCENT) {
            let shard = self.random.below(u64::from(SHARDS)) as u32;
            self.read(sender, shard);
        }
    }

    /// Marks a copy as stalled. If it has data, its next entry waits for space.
    pub(super) fn stall(&mut self, sender: Sender, shard: u32) {
        let now = self.instant();
        let copy = self.processes[sender.node].held.get_mut(&shard);
        let Some(copy) = copy else { return };
        self.figures.copies_stalled += u64::from(copy.stall.is_none());
        let mark = copy.stall.get_or_insert_with(|| StallMark::new(now));
        if copy.is_restored {
            mark.stop(now);
        }
    }

    /// Applies the log of a copy to its end.
    pub(super) fn reach_end(&mut self, sender: Sender, shard: u32) {
        let log = &self.logs[shard as usize];
        if let Some(copy) = self.processes[sender.node].held.get_mut(&shard) {
            copy.next = log.end_from(copy.next);
            copy.is_caught_up = true;
            copy.stall = None;
        }
    }

    /// Applies the log of a copy that follows it, or stalls the copy.
    fn apply_log(&mut self, sender: Sender, shard: u32) {
        let is_full = self.full_disks.contains(&sender.node);
        let copy = self.processes[sender.node].held.get(&shard);
        let Some(copy) = copy.filter(|copy| copy.is_restored && !copy.is_replaying) else { return };
        if is_full && self.logs[shard as usize].end_from(copy.next) > copy.next {
            self.stall(sender, shard);
        } else {
            self.reach_end(sender, shard);
        }
    }

    /// Decides on the service of a stalled copy.
    fn decide_on_stall(&mut self, sender: Sender, shard: u32) {
        let now = self.schedule.now();
        let instant = self.instant();
        let zero = self.zero;
        let own = NAMES[sender.node];
        let process = &mut self.processes[sender.node];
        let view = process.view.clone();
        let requested_at = process.times.certain_since(now);
        let requested_at = requested_at.filter(|_| view.nodes.contains_key(&sender.node));
        let Some(requested_at) = requested_at else { return };
        let copy = process.held.get_mut(&shard).filter(|copy| copy.is_restored);
        let Some(copy) = copy else { return };
        let Some(mark) = copy.stall.as_mut() else { return };
        let mut holders = readings(&view, shard);
        if self.planted == Some(Planted::StallMarksIgnored) {
            holders.iter_mut().for_each(|holder| holder.is_damaged = false);
            holders.push(HolderReading { node: own, serves: true, is_damaged: true });
        }
        let requested_at = zero + Duration::from_millis(requested_at);
        let view = CertainHolders { own, holders: &holders, requested_at };
        let change = mark.decide(&view, copy.is_caught_up, instant);
        match change {
            None => {}
            Some(StalledServiceChange::Withdraw) => {
                copy.is_caught_up = false;
                self.figures.stalled_withdrawn += 1;
                self.check_withdrawal(sender.node, shard);
            }
            Some(StalledServiceChange::Serve) => {
                copy.is_caught_up = true;
                self.figures.stalled_served += 1;
            }
        }
    }

    /// Decides on the writes of a shard that the process owns.
    fn look_at_full_shard(&mut self, sender: Sender, shard: u32) {
        let now = self.schedule.now();
        let instant = self.instant();
        let is_ignored = self.planted == Some(Planted::FullShardsWritten);
        let process = &mut self.processes[sender.node];
        if !process.active.contains_key(&shard) {
            process.full_timers.remove(&shard);
            process.refuses.remove(&shard);
            return;
        }
        let is_certain = process.knows_members(now);
        let view = process.view.clone();
        let mut holders = self.placed(&view, shard, self.copies);
        let serving = view.nodes.iter().filter(|(_, record)| record.serving.contains(&shard));
        holders.extend(serving.map(|(node, _)| *node));
        let is_stalled =
            |node: usize| view.nodes.get(&node).is_some_and(|it| it.stalled.contains(&shard));
        let stalled = holders.into_iter().filter(|_| is_certain).map(is_stalled);
        let process = &mut self.processes[sender.node];
        let is_full = process.full_timers.entry(shard).or_default().record(stalled, instant);
        if is_full && !is_ignored {
            process.refuses.insert(shard);
        } else {
            process.refuses.remove(&shard);
        }
    }

    /// Returns true if a process refuses the writes of one of its writers.
    pub(super) fn refuses_write(&self, at: usize, number: u64) -> bool {
        let process = &self.processes[at];
        let writer = process.writers.get(&number);
        writer.is_some_and(|writer| process.refuses.contains(&writer.shard))
    }

    /// Reads a shard at a holder of the process's view. The read needs the last acknowledged write.
    fn read(&mut self, sender: Sender, shard: u32) {
        let now = self.schedule.now();
        let view = self.processes[sender.node].view.clone();
        let serving = view.nodes.iter().filter(|(_, record)| record.serving.contains(&shard));
        let serving: Vec<usize> = serving.map(|(node, _)| *node).collect();
        if serving.is_empty() {
            return;
        }
        let node = serving[self.random.below(serving.len() as u64) as usize];
        let needed = self.logs[shard as usize].acknowledged_entry;
        let process = &self.processes[node];
        if !process.serves(shard) || now < process.paused_until {
            self.figures.reads_refused += 1;
            return;
        }
        let holder = process.sender();
        if self.answers(holder, shard, needed) {
            self.figures.reads_answered += 1;
            self.check_read(node, shard, needed);
        } else {
            self.figures.reads_refused += 1;
        }
    }

    /// Returns true if the copy of a process answers a read that needs an entry. The copy applies
    /// its log before, if it can.
    fn answers(&mut self, sender: Sender, shard: u32, needed: Option<EntryNumber>) -> bool {
        let Some(needed) = needed else { return true };
        // The second step is the one after the wait.
        for _ in 0..2 {
            let Some(copy) = self.processes[sender.node].held.get(&shard) else { return false };
            match AppliedReadStep::of(copy.next, needed, copy.stall.is_some()) {
                AppliedReadStep::Answer => return true,
                AppliedReadStep::Refuse => {
                    return self.planted == Some(Planted::StalledReadsAnswered);
                }
                AppliedReadStep::Wait => self.apply_log(sender, shard),
            }
        }
        false
    }

    /// Checks that a copy that answered a read has the entry that the read needs.
    fn check_read(&mut self, node: usize, shard: u32, needed: Option<EntryNumber>) {
        let next = self.processes[node].held.get(&shard).map(|copy| copy.next);
        if next.zip(needed).is_some_and(|(next, needed)| next <= needed) {
            let now = self.schedule.now();
            self.violation = Some(format!(
                "{node} answers a read of shard {shard} at {now} without the entry {needed:?}: its \
                 next one is {next:?}"
            ));
        }
    }

    /// Checks a shard at the end of a world whose disks stay full: a copy with data is served, and
    /// the owner refuses writes. Returns an explanation of a violation.
    pub(super) fn wrong_full_shard(&mut self, shard: u32, view: &EtcdView) -> Option<String> {
        let has_copy = |process: &Process| {
            process.is_alive && process.held.get(&shard).is_some_and(|copy| copy.is_restored)
        };
        let is_announced = view.nodes.values().any(|record| record.serving.contains(&shard));
        if self.processes.iter().any(has_copy) && !is_announced {
            return Some(format!("no node serves the full shard {shard}, which has a copy"));
        }
        let now = self.schedule.now();
        let acknowledged_at = self.logs[shard as usize].acknowledged_at;
        let grows = acknowledged_at + REFUSED_BEFORE_END > now;
        // A late write may have removed the mark of a holder from its description.
        let is_excused = self.wrote_late.is_some_and(|time| time + LOSS_SEEN_MAX >= now);
        for node in 0..NODES {
            let sender = self.processes[node].sender();
            self.look_at_full_shard(sender, shard);
            let process = &self.processes[node];
            let takes = process.active.contains_key(&shard) && !process.refuses.contains(&shard);
            if takes && grows && !is_excused && process.is_alive && process.knows_members(now) {
                return Some(format!(
                    "{node} takes writes of the full shard {shard}, the last at {acknowledged_at}"
                ));
            }
        }
        None
    }
}
