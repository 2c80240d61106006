//! A process checks its view: copies of shards, ownership, registration.

use cluster::{
    CopyNeed, DamagedCopyUse, EntryNumber, HolderReading, OwnershipStep, SeenOwner,
    keeps_ownership, ownership_step,
};

use super::etcd::{EtcdRequest, EtcdView};
use super::process::{Channel, HeldCopy, Process};
use super::{
    DEATH_SEEN_MAX, Fleet, FleetItem, LOOK, LOSS_SEEN_MAX, NAMES, REPLAY_MAX, RESTORE_MAX, SHARDS,
    Sender, VIEW_AGE_MAX,
};
use crate::worlds::Planted;

/// Pause before a process tries to own a log again that has refused it.
const REFUSED_PAUSE: u64 = 2_000;

impl Fleet {
    pub(super) fn look(&mut self, sender: Sender) {
        let jitter = self.random.below(100);
        self.schedule.at(LOOK + jitter, FleetItem::Look(sender));
        self.look_at_copies(sender);
        for shard in 0..SHARDS {
            self.look_at_damage(sender, shard);
        }
        if self.fills_disks {
            self.look_at_stalls(sender);
        }
        if self.loses_store {
            self.look_at_store(sender);
        }
        self.look_at_ownership(sender);
        self.look_at_registration(sender);
        if self.processes[sender.node].is_free(Channel::View) {
            self.ask_etcd(sender, Channel::View, EtcdRequest::View);
        }
        if self.random.percent(50) {
            self.write(sender.node);
        }
    }

    fn look_at_copies(&mut self, sender: Sender) {
        let now = self.schedule.now();
        let instant = self.instant();
        let believes = self.planted == Some(Planted::OldViewsCount);
        let process = &self.processes[sender.node];
        let view = process.view.clone();
        let is_member = view.nodes.contains_key(&sender.node);
        let is_certain = is_member && (believes || process.times.is_certain(now));
        for shard in 0..SHARDS {
            let wanted = self.placed(&view, shard, self.copies);
            let is_wanted = is_member && wanted.contains(&sender.node);
            let process = &mut self.processes[sender.node];
            if is_wanted && !process.held.contains_key(&shard) {
                process.held.insert(shard, HeldCopy::default());
                self.restore(sender, shard);
                continue;
            }
            let Some(copy) = process.held.get_mut(&shard) else { continue };
            let names: Vec<String> = wanted.iter().map(|node| NAMES[*node].to_owned()).collect();
            let announces = |name: &str| {
                let node = NAMES.iter().position(|other| *other == name);
                let record = node.and_then(|node| view.nodes.get(&node));
                record.is_some_and(|record| record.serves_whole(shard))
            };
            let serves =
                |name: &str| self.planted == Some(Planted::DropsUnannounced) || announces(name);
            let need = if is_certain {
                CopyNeed::of(NAMES[sender.node], &names, serves)
            } else {
                CopyNeed::Unknown
            };
            if copy.unneeded.record(need, &names, instant) {
                process.held.remove(&shard);
                self.lost.insert(shard, now);
                self.figures.copies_dropped += 1;
                self.check_drop(sender.node, shard, &wanted);
            }
        }
    }

    /// Checks that a copy is dropped only after the new holders have announced the shard. It must
    /// not be the last one, unless all new holders died a moment ago.
    fn check_drop(&mut self, node: usize, shard: u32, relied: &[usize]) {
        let now = self.schedule.now();
        self.etcd.expire(now);
        for holder in relied {
            let announced = self.etcd.announced(*holder, shard, now);
            if announced.is_none_or(|announced| announced + VIEW_AGE_MAX < now) {
                let why = format!("{node} drops shard {shard} which {holder} does not announce");
                self.violation = Some(format!("{why}: last at {announced:?}, now {now}"));
            }
        }
        let is_held = self.processes.iter().any(|process| process.has_undamaged(shard));
        let died = |holder: &usize| {
            let died = self.died.get(&(*holder, shard));
            died.is_some_and(|died| died + DEATH_SEEN_MAX >= now)
        };
        if !is_held && !relied.iter().all(died) {
            let why = format!("{node} drops the last copy of shard {shard} at {now}");
            self.violation = Some(format!("{why}; it relied on {relied:?}"));
        }
    }

    /// Decides on a damaged copy of a process, and begins its replacement once that is permitted.
    fn look_at_damage(&mut self, sender: Sender, shard: u32) {
        let now = self.schedule.now();
        let own = NAMES[sender.node];
        let process = &mut self.processes[sender.node];
        let view = process.view.clone();
        let asked = process.times.certain_since(now);
        let asked = asked.filter(|_| view.nodes.contains_key(&sender.node));
        let copy = process.held.get_mut(&shard);
        let Some(damage) = copy.and_then(|copy| copy.damage.as_mut()) else { return };
        let mut holders = readings(&view, shard);
        let ignores_marks = self.planted == Some(Planted::MarksIgnored);
        let asked = asked.filter(|asked| ignores_marks || *asked > damage.since);
        if ignores_marks {
            holders.iter_mut().for_each(|holder| holder.is_damaged = false);
            holders.push(HolderReading { node: own, serves: true, is_damaged: true });
        }
        let before = damage.used;
        if let Some(asked) = asked
            && holders.iter().any(|holder| holder.is_mark_of(own))
        {
            damage.decide(before.next(own, &holders), asked, now);
        }
        let begins = damage.may_be_replaced(now) && !damage.is_replacing;
        damage.is_replacing |= begins;
        let is_withdrawn = damage.used == DamagedCopyUse::Withdrawn;
        if begins {
            self.restore(sender, shard);
        }
        if is_withdrawn && before != DamagedCopyUse::Withdrawn {
            self.figures.copies_withdrawn += 1;
            self.check_withdrawal(sender.node, shard);
        }
    }

    /// Checks that another node serves a shard whose copy a node withdraws, unless copies have
    /// disappeared, or a late write has changed a description, a moment ago.
    pub(super) fn check_withdrawal(&mut self, node: usize, shard: u32) {
        let now = self.schedule.now();
        let is_served = self.processes.iter().any(|process| process.serves(shard));
        let is_recent = |time: Option<u64>| time.is_some_and(|time| time + LOSS_SEEN_MAX >= now);
        let is_excused = is_recent(self.lost.get(&shard).copied()) || is_recent(self.wrote_late);
        if !is_served && !is_excused {
            let why = format!("{node} withdraws the last served copy of shard {shard} at {now}");
            self.violation = Some(why);
        }
    }

    /// Starts to restore a copy, which takes a while. A damaged copy is served meanwhile.
    pub(super) fn restore(&mut self, sender: Sender, shard: u32) {
        let number = self.number();
        let delay = self.random.between(100, RESTORE_MAX);
        if let Some(copy) = self.processes[sender.node].held.get_mut(&shard) {
            copy.restore = number;
        }
        self.schedule.at(delay, FleetItem::Restored(sender, shard, number));
    }

    /// Takes a restored copy. One that takes the place of a damaged copy follows the log first. If
    /// the disk is full, the restore or the log is tried again.
    pub(super) fn restored(&mut self, sender: Sender, shard: u32, restore: u64) {
        let delay = self.random.between(100, REPLAY_MAX);
        let is_full = self.full_disks.contains(&sender.node);
        let Some(process) = self.process(sender) else { return };
        let copy = process.held.get_mut(&shard).filter(|copy| copy.restore == restore);
        let Some(copy) = copy else { return };
        if is_full {
            if copy.damage.is_none() || copy.is_replaying {
                self.stall(sender, shard);
            }
            self.schedule.at(delay, FleetItem::Restored(sender, shard, restore));
        } else if copy.damage.is_some() && !copy.is_replaying {
            copy.is_caught_up = false;
            copy.is_replaying = true;
            if let Some(mark) = copy.stall.as_mut() {
                mark.resume();
            }
            copy.next = EntryNumber::default();
            self.schedule.at(delay, FleetItem::Restored(sender, shard, restore));
        } else {
            copy.is_restored = true;
            copy.is_replaying = false;
            copy.damage = None;
            self.reach_end(sender, shard);
        }
    }

    fn look_at_ownership(&mut self, sender: Sender) {
        let now = self.schedule.now();
        for shard in 0..SHARDS {
            self.give_up(sender, shard);
        }
        let process = &mut self.processes[sender.node];
        process.refused.retain(|_, until| now < *until);
        let is_repairing =
            process.pending[Channel::Registration as usize].as_ref().is_some_and(|pending| {
                matches!(pending.request, EtcdRequest::Own { .. } | EtcdRequest::Disown(..))
            });
        if is_repairing || !process.is_free(Channel::Ownership) {
            return;
        }
        if let Some((shard, epoch)) = process.releases.pop_front() {
            return self.release(sender, shard, epoch);
        }
        let own = NAMES[sender.node];
        let view = process.view.clone();
        for shard in 0..SHARDS {
            let wanted = self.log_owner(&view, shard).map(|node| NAMES[node]);
            let process = &mut self.processes[sender.node];
            if process.active.contains_key(&shard) || process.refused.contains_key(&shard) {
                continue;
            }
            let seen = seen(&view, shard);
            match ownership_step(own, seen, wanted) {
                OwnershipStep::Wait => {}
                OwnershipStep::Release(epoch) if self.planted == Some(Planted::EpochsReused) => {
                    self.start_writer(sender.node, shard, epoch);
                }
                OwnershipStep::Release(epoch) => {
                    self.release(sender, shard, epoch);
                    if !self.processes[sender.node].is_free(Channel::Ownership) {
                        return;
                    }
                }
                OwnershipStep::Acquire => {
                    let Some(lease) = process.lease.filter(|_| process.written.is_some()) else {
                        return;
                    };
                    if !process.drains {
                        let own = EtcdRequest::Own { shard, lease, replaces: true };
                        return self.ask_etcd(sender, Channel::Ownership, own);
                    }
                }
            }
        }
    }

    /// Ends the writer of a shard that another process should own, or whose log has refused the
    /// writer.
    fn give_up(&mut self, sender: Sender, shard: u32) {
        let now = self.schedule.now();
        let process = &self.processes[sender.node];
        let Some(number) = process.active.get(&shard).copied() else { return };
        let Some(writer) = process.writers.get(&number) else { return };
        let (epoch, is_lost) = (writer.epoch, writer.is_lost);
        let view = process.view.clone();
        let seen = seen(&view, shard);
        let wanted = self.log_owner(&view, shard).map(|node| NAMES[node]);
        let own = NAMES[sender.node];
        if !is_lost && keeps_ownership(own, epoch, seen, wanted) {
            return;
        }
        self.end_writer(sender.node, shard);
        let process: &mut Process = &mut self.processes[sender.node];
        if is_lost {
            process.writers.remove(&number);
            if seen == Some(SeenOwner { node: own, epoch }) {
                process.refused.insert(shard, now + REFUSED_PAUSE);
            }
        }
        process.releases.push_back((shard, epoch));
    }

    fn look_at_registration(&mut self, sender: Sender) {
        let now = self.schedule.now();
        let process = &self.processes[sender.node];
        if !process.is_free(Channel::Registration) {
            return;
        }
        if let Some(request) = process.registration_step(now) {
            self.ask_etcd(sender, Channel::Registration, request);
        }
    }
}

/// Returns the nodes that serve a shard or have marked their copy as damaged.
pub(super) fn readings(view: &EtcdView, shard: u32) -> Vec<HolderReading<'static>> {
    let readings = view.nodes.iter().map(|(node, record)| HolderReading {
        node: NAMES[*node],
        serves: record.serving.contains(&shard),
        is_damaged: record.damaged.contains(&shard),
    });
    readings.filter(|reading| reading.serves || reading.is_damaged).collect()
}

/// Returns the owner of a shard in a view.
fn seen(view: &EtcdView, shard: u32) -> Option<SeenOwner<'static>> {
    let owner = view.owners.get(&shard)?;
    Some(SeenOwner { node: NAMES[owner.node], epoch: owner.epoch })
}
