//! Requests of processes to etcd, and their answers.

use std::rc::Rc;

use cluster::{Epoch, KnownOwnership, OwnerReading, SeenOwner};

use super::etcd::{EtcdAnswer, EtcdRequest, EtcdView, OwnerRecord};
use super::process::{Channel, KnownOwner, Pending, Process};
use super::{ETCD_TIMEOUT, Fleet, FleetItem, NAMES, Sender};
use crate::worlds::Planted;

impl Fleet {
    /// Sends a request. It arrives soon, late or never.
    pub(super) fn ask_etcd(&mut self, sender: Sender, channel: Channel, request: EtcdRequest) {
        let id = self.number();
        let asked = self.schedule.now();
        let process = &mut self.processes[sender.node];
        let is_cut = asked < process.cut_until;
        *process.pending(channel) = Some(Pending { id, asked, request: request.clone() });
        self.schedule.at(ETCD_TIMEOUT, FleetItem::EtcdTimeout(sender, channel, id));
        if is_cut || self.etcd.is_down {
            return;
        }
        match self.random.below(200) {
            0 => {}
            1 => {
                let delay = self.random.between(ETCD_TIMEOUT, 2 * ETCD_TIMEOUT);
                self.schedule.at(delay, FleetItem::EtcdLate(sender, request));
            }
            _ => {
                let delay = self.random.between(1, 20);
                self.schedule.at(delay, FleetItem::Etcd(sender, channel, id));
            }
        }
    }

    /// etcd carries out a request, whose answer may get lost.
    pub(super) fn etcd_takes(&mut self, sender: Sender, channel: Channel, id: u64) {
        let now = self.schedule.now();
        let process = &mut self.processes[sender.node];
        let is_cut = now < process.cut_until;
        let is_same = process.incarnation == sender.incarnation;
        let pending = process.pending(channel).as_ref();
        let Some(pending) = pending.filter(|pending| is_same && pending.id == id) else { return };
        if is_cut || self.etcd.is_down {
            return;
        }
        let answer = self.etcd.take(sender.node, pending.request.clone(), now);
        if !self.random.percent(1) {
            let delay = self.random.between(1, 20);
            self.schedule.at(delay, FleetItem::EtcdAnswer(sender, channel, id, answer));
        }
    }

    /// Takes an answer, or `None` if there is none in time.
    pub(super) fn etcd_answered(
        &mut self,
        sender: Sender,
        channel: Channel,
        id: u64,
        answer: Option<EtcdAnswer>,
    ) {
        let Some(process) = self.process(sender) else { return };
        let pending = process.pending(channel).take_if(|pending| pending.id == id);
        let Some(Pending { asked, request, .. }) = pending else { return };
        match (request, answer) {
            (EtcdRequest::View, Some(EtcdAnswer::View(view))) => self.viewed(sender, asked, view),
            (EtcdRequest::Own { shard, lease, replaces }, Some(EtcdAnswer::Owned(epoch))) => {
                match epoch {
                    Some(epoch) => {
                        self.owned(sender, shard, KnownOwner { epoch, lease });
                        if replaces {
                            self.figures.owners += 1;
                            self.start_writer(sender.node, shard, epoch);
                        }
                    }
                    // Another node owns it now.
                    None if !replaces => drop(self.processes[sender.node].owned.remove(&shard)),
                    None => {}
                }
            }
            (request, answer) => {
                registered(&mut self.processes[sender.node], asked, request, answer)
            }
        }
    }

    /// Records an ownership. A reading that is on its way may not show it, so it does not count.
    fn owned(&mut self, sender: Sender, shard: u32, owner: KnownOwner) {
        let process = &mut self.processes[sender.node];
        process.owned.insert(shard, owner);
        *process.pending(Channel::View) = None;
        let record = OwnerRecord { node: sender.node, epoch: owner.epoch, lease: owner.lease };
        Rc::make_mut(&mut process.view).owners.insert(shard, record);
    }

    fn viewed(&mut self, sender: Sender, asked: u64, mut view: EtcdView) {
        let now = self.schedule.now();
        let reuses = self.planted == Some(Planted::EpochsReused);
        let process = &mut self.processes[sender.node];
        let keeps_absent = process.times.read(asked, now);
        process.orphans.clear();
        if self.planted != Some(Planted::LatePutsStay) && process.written.is_some() {
            // An earlier write may arrive after a later one.
            process.written = view.nodes.get(&process.node).cloned().or(process.written.take());
        }
        let lease = process.lease.unwrap_or_default();
        view.owners.retain(|shard, owner| {
            let epoch = process.owned.get(shard).map(|owned| owned.epoch);
            let known = KnownOwnership { node: NAMES[process.node], lease, epoch };
            let seen = SeenOwner { node: NAMES[owner.node], epoch: owner.epoch };
            match OwnerReading::of(&known, seen, Some(&owner.lease)) {
                OwnerReading::Own => true,
                OwnerReading::Other => {
                    process.owned.remove(shard);
                    true
                }
                _ if reuses => true,
                OwnerReading::Orphan => {
                    process.orphans.insert(*shard, owner.epoch);
                    false
                }
                OwnerReading::Earlier => false,
            }
        });
        if keeps_absent {
            for (node, record) in &process.view.nodes {
                view.nodes.entry(*node).or_insert_with(|| record.clone());
            }
            for (shard, owner) in &process.view.owners {
                view.owners.entry(*shard).or_insert_with(|| owner.clone());
            }
        }
        process.view = Rc::new(view);
    }

    /// Releases an ownership, if the process knows it.
    pub(super) fn release(&mut self, sender: Sender, shard: u32, epoch: Epoch) {
        let process = &mut self.processes[sender.node];
        if process.forget_owner(shard, epoch) {
            *process.pending(Channel::View) = None;
            self.ask_etcd(sender, Channel::Ownership, EtcdRequest::Disown(shard, epoch));
        }
    }
}

/// Takes the answer to a request that keeps the registration.
fn registered(process: &mut Process, asked: u64, request: EtcdRequest, answer: Option<EtcdAnswer>) {
    match (request, answer) {
        (EtcdRequest::Enter | EtcdRequest::Grant, Some(EtcdAnswer::Lease(lease))) => {
            process.lease = Some(lease);
            process.kept = asked;
            process.written = None;
            process.is_lease_doubtful = false;
            process.is_lease_ended = false;
        }
        (EtcdRequest::KeepAlive(_), Some(EtcdAnswer::Done(exists))) => {
            process.kept = asked;
            process.is_lease_doubtful = false;
            process.is_lease_ended = !exists;
        }
        (
            EtcdRequest::Register(_, record) | EtcdRequest::Put(_, record),
            Some(EtcdAnswer::Done(is_written)),
        ) => {
            if is_written {
                process.written = Some(record);
            } else {
                process.is_lease_doubtful = true;
            }
        }
        (EtcdRequest::Disown(shard, _), Some(_)) => drop(process.orphans.remove(&shard)),
        _ => {}
    }
}
