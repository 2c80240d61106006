//! Faults of processes and of etcd.

use super::etcd::EtcdRequest;
use super::process::{Damage, Process};
use super::{Fleet, FleetItem, LENGTH, NODES, SHARDS, Sender};

/// Mean time between two faults.
const PAUSE_OF_FAULTS: u64 = 12_000;
/// Longest time of a fault.
pub(super) const FAULT_MAX: u64 = 60_000;
/// Share of the damages that hit all copies of a shard at the same time.
const ALL_DAMAGED_PERCENT: u64 = 50;
/// Longest time for which a disk is full. It is longer than the time after which a stalled copy
/// leaves service.
const FULL_MAX: u64 = 200_000;
/// Share of these faults that hit the disks of all nodes at the same time.
const ALL_FULL_PERCENT: u64 = 50;
/// Kinds of faults without full disks.
const KINDS: u64 = 11;
/// Kinds of faults with full disks.
const KINDS_WITH_DISKS: u64 = 14;

impl Fleet {
    pub(super) fn fault(&mut self) {
        if self.schedule.now() >= LENGTH {
            return;
        }
        let delay = self.random.below(2 * PAUSE_OF_FAULTS);
        self.schedule.at(delay, FleetItem::Fault);
        let node = self.random.below(NODES as u64) as usize;
        let time = self.random.below(FAULT_MAX);
        let now = self.schedule.now();
        let process = &mut self.processes[node];
        if !process.is_alive {
            return self.restart(node);
        }
        if self.loses_store {
            return self.fault_of_store(node, time);
        }
        let kinds = if self.fills_disks { KINDS_WITH_DISKS } else { KINDS };
        match self.random.below(kinds) {
            0 | 1 => self.end_process(node, time),
            2 => self.leave(node, time),
            3 => process.drains = true,
            4 => process.paused_until = now + time,
            5 | 6 => process.cut_until = now + time,
            7 | 8 => self.damage(node),
            KINDS.. => self.fill_disks(node),
            _ if !self.etcd.is_down => {
                self.etcd.is_down = true;
                self.figures.etcd_outages += 1;
                self.schedule.at(time, FleetItem::EtcdBack);
            }
            _ => {}
        }
    }

    /// Makes a fault in a world in which nodes lose the store. etcd works there, and no process
    /// stops for a while: otherwise a node may see late that another one has lost the store too.
    fn fault_of_store(&mut self, node: usize, time: u64) {
        match self.random.below(8) {
            0 => self.end_process(node, time),
            1 => self.leave(node, time),
            2 => self.processes[node].drains = true,
            _ => self.lose_store(node),
        }
    }

    pub(super) fn etcd_back(&mut self) {
        let now = self.schedule.now();
        self.etcd.is_down = false;
        if self.random.percent(50) {
            self.etcd.prolong(now);
        }
        self.etcd.expire(now);
    }

    /// Ends a process by signal 9. It restarts after `time` in most cases.
    fn end_process(&mut self, node: usize, time: u64) {
        let now = self.schedule.now();
        self.figures.deaths += 1;
        for shard in 0..SHARDS {
            if self.processes[node].has_undamaged(shard) {
                self.died.insert((node, shard), now);
            }
            if self.processes[node].held.contains_key(&shard) {
                self.lost.insert(shard, now);
            }
        }
        let incarnation = self.processes[node].incarnation;
        self.processes[node] = Process { node, incarnation, ..Process::default() };
        if self.random.percent(80) {
            self.schedule.at(time, FleetItem::Restart(node));
        }
    }

    /// Ends a process by SIGTERM: it leaves the cluster first.
    fn leave(&mut self, node: usize, time: u64) {
        let now = self.schedule.now();
        let process = &self.processes[node];
        let is_cut = now < process.cut_until || self.etcd.is_down;
        if let Some(lease) = process.lease.filter(|_| !is_cut) {
            self.etcd.take(node, EtcdRequest::Revoke(lease), now);
        }
        self.end_process(node, time);
    }

    /// Damages the copy of a shard on a node, or the copies on all nodes.
    fn damage(&mut self, node: usize) {
        let shard = self.random.below(u64::from(SHARDS)) as u32;
        let now = self.schedule.now();
        let hits_all = self.random.percent(ALL_DAMAGED_PERCENT);
        let nodes = if hits_all { 0..NODES } else { node..node + 1 };
        let whole = nodes.filter(|node| self.processes[*node].has_whole(shard));
        for node in whole.collect::<Vec<usize>>() {
            self.died.insert((node, shard), now);
            if let Some(copy) = self.processes[node].held.get_mut(&shard) {
                copy.damage = Some(Damage::new(now));
                self.figures.copies_damaged += 1;
            }
        }
    }

    /// Fills the disk of a node, or the disks of all nodes.
    fn fill_disks(&mut self, node: usize) {
        let hits_all = self.random.percent(ALL_FULL_PERCENT);
        let nodes = if hits_all { 0..NODES } else { node..node + 1 };
        for node in nodes {
            let time = self.random.below(FULL_MAX);
            self.full_disks.insert(node);
            self.figures.disks_filled += 1;
            self.schedule.at(time, FleetItem::DiskFreed(node));
        }
    }

    /// Gives the disk of a node space again.
    pub(super) fn disk_freed(&mut self, node: usize) {
        if self.schedule.now() < LENGTH || !self.stays_full {
            self.full_disks.remove(&node);
        }
    }

    /// Starts a process of a node.
    pub(super) fn restart(&mut self, node: usize) {
        if self.processes[node].is_alive {
            return;
        }
        let incarnation = self.processes[node].incarnation + 1;
        let weight = self.random.between(1, 4) as u32;
        let started = self.schedule.now();
        let process =
            Process { node, incarnation, is_alive: true, weight, started, ..Process::default() };
        self.processes[node] = process;
        let delay = self.random.below(500);
        self.schedule.at(delay, FleetItem::Look(Sender { node, incarnation }));
    }

    /// Ends all faults. In some worlds, all disks are full from here on.
    pub(super) fn quiet(&mut self) {
        let now = self.schedule.now();
        self.etcd.is_down = false;
        self.full_disks.clear();
        if self.stays_full {
            self.full_disks.extend(0..NODES);
        }
        self.store_cuts.iter_mut().for_each(|cuts| cuts.end(now));
        for process in &mut self.processes {
            process.paused_until = process.paused_until.min(now);
            process.cut_until = process.cut_until.min(now);
        }
    }
}
