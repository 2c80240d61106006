//! A process of a node: its view, its registration in etcd and its copies of shards.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use cluster::{
    DamagedCopyUse, DecisionAge, EntryNumber, Epoch, FullShardTimer, StallMark,
    StoreAccessDecision, UnneededTimer,
};

use super::etcd::{EtcdRequest, EtcdView, NodeRecord};
use super::logs::ShardWriter;
use super::stores::StoreReadings;
use super::{LEASE, Sender};

/// Requests of one kind follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Channel {
    View,
    Registration,
    Ownership,
}

/// A request to etcd that has no answer yet.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    pub(super) id: u64,
    pub(super) asked: u64,
    pub(super) request: EtcdRequest,
}

/// A copy of a shard.
#[derive(Default)]
pub(super) struct HeldCopy {
    /// True once the end of the log was reached. The service of a stalled copy changes it too.
    pub(super) is_caught_up: bool,
    /// True once it was restored, so that it has data.
    pub(super) is_restored: bool,
    /// True if it has taken the place of a damaged copy and follows the log to its end.
    pub(super) is_replaying: bool,
    /// Next entry of the log to apply.
    pub(super) next: EntryNumber,
    pub(super) unneeded: UnneededTimer,
    /// Number of the restore that runs or ran last.
    pub(super) restore: u64,
    pub(super) damage: Option<Damage>,
    pub(super) stall: Option<StallMark>,
}

impl HeldCopy {
    /// Returns true if it has all data and follows the end of the log.
    pub(super) fn is_whole(&self) -> bool {
        self.is_caught_up && self.damage.is_none() && self.stall.is_none()
    }

    /// Returns true if reads of its node find it.
    pub(super) fn is_served(&self) -> bool {
        let is_withdrawn = |damage: &Damage| matches!(damage.used, DamagedCopyUse::Withdrawn);
        self.is_caught_up && !self.damage.as_ref().is_some_and(is_withdrawn)
    }
}

/// Damage of a copy, until it is replaced.
pub(super) struct Damage {
    pub(super) since: u64,
    pub(super) used: DamagedCopyUse,
    decision: Option<SimulatedDecision>,
    /// True once its replacement has begun.
    pub(super) is_replacing: bool,
}

/// Times of a decision about a damaged copy.
#[derive(Clone, Copy)]
struct SimulatedDecision {
    /// Time of the decision to serve, or to withdraw, the copy.
    decided: u64,
    /// Time of the request for the view that confirmed it last.
    confirmed: u64,
}

impl Damage {
    pub(super) fn new(since: u64) -> Damage {
        Damage { since, used: DamagedCopyUse::default(), decision: None, is_replacing: false }
    }

    /// Takes a decision at `now` on a view that was requested at `asked`.
    pub(super) fn decide(&mut self, used: DamagedCopyUse, asked: u64, now: u64) {
        let is_switched = used.is_served() != self.used.is_served();
        let decided = self.decision.filter(|_| !is_switched).map_or(now, |times| times.decided);
        self.decision = Some(SimulatedDecision { decided, confirmed: asked });
        self.used = used;
    }

    /// Returns true if the copy may be replaced at `now`.
    pub(super) fn may_be_replaced(&self, now: u64) -> bool {
        let age = self.decision.map(|times| DecisionAge {
            decided: Duration::from_millis(now - times.decided),
            confirmed: Duration::from_millis(now - times.confirmed),
        });
        age.is_some_and(|age| self.used.may_be_replaced(age))
    }
}

/// An ownership that a process knows as its own.
#[derive(Clone, Copy, Debug)]
pub(super) struct KnownOwner {
    pub(super) epoch: Epoch,
    pub(super) lease: u64,
}

#[derive(Default)]
pub(super) struct Process {
    pub(super) node: usize,
    pub(super) incarnation: u64,
    pub(super) is_alive: bool,
    pub(super) paused_until: u64,
    /// Time until which it cannot reach etcd.
    pub(super) cut_until: u64,
    pub(super) weight: u32,
    pub(super) drains: bool,
    pub(super) view: Rc<EtcdView>,
    pub(super) times: ViewTimes,
    pub(super) pending: [Option<Pending>; 3],
    pub(super) lease: Option<u64>,
    pub(super) is_lease_doubtful: bool,
    pub(super) is_lease_ended: bool,
    pub(super) kept: u64,
    /// Description that etcd has.
    pub(super) written: Option<NodeRecord>,
    pub(super) owned: BTreeMap<u32, KnownOwner>,
    pub(super) orphans: BTreeMap<u32, Epoch>,
    pub(super) releases: VecDeque<(u32, Epoch)>,
    /// Shards whose log refused this process, and until when it waits.
    pub(super) refused: BTreeMap<u32, u64>,
    pub(super) writers: BTreeMap<u64, ShardWriter>,
    /// Writers that take writes, by shard.
    pub(super) active: BTreeMap<u32, u64>,
    pub(super) held: BTreeMap<u32, HeldCopy>,
    /// Time since which all holders of a shard are stalled, for the shards that it writes.
    pub(super) full_timers: BTreeMap<u32, FullShardTimer>,
    /// Shards whose writes it refuses.
    pub(super) refuses: BTreeSet<u32>,
    /// Time of its start.
    pub(super) started: u64,
    pub(super) readings: StoreReadings,
    /// Access to the store.
    pub(super) store: StoreAccessDecision,
}

/// Times of the readings of the view.
#[derive(Default)]
pub(super) struct ViewTimes {
    answered: Option<u64>,
    returned: Option<u64>,
    /// Time of the request for the newest reading; `None` if that reading kept absent nodes.
    certain: Option<u64>,
}

impl ViewTimes {
    /// Takes a reading. Returns true if absent nodes are kept: for one lease after an outage.
    pub(super) fn read(&mut self, asked: u64, now: u64) -> bool {
        if self.answered.is_some_and(|last| now - last > LEASE / 2) {
            self.returned = Some(now);
        }
        self.answered = Some(now);
        self.returned = self.returned.filter(|returned| now - returned < LEASE);
        self.certain = self.returned.is_none().then_some(asked);
        self.returned.is_some()
    }

    pub(super) fn is_certain(&self, now: u64) -> bool {
        self.certain_since(now).is_some()
    }

    /// Returns the time of the request for the view; `None` if the view is not certain.
    pub(super) fn certain_since(&self, now: u64) -> Option<u64> {
        self.certain.filter(|asked| now - asked <= LEASE / 2)
    }
}

impl Process {
    pub(super) fn sender(&self) -> Sender {
        Sender { node: self.node, incarnation: self.incarnation }
    }

    pub(super) fn pending(&mut self, channel: Channel) -> &mut Option<Pending> {
        &mut self.pending[channel as usize]
    }

    /// Returns true if a request of the channel can be sent.
    pub(super) fn is_free(&self, channel: Channel) -> bool {
        self.pending[channel as usize].is_none()
    }

    /// Returns true if its view is certain at `now` and has this node.
    pub(super) fn knows_members(&self, now: u64) -> bool {
        self.times.is_certain(now) && self.view.nodes.contains_key(&self.node)
    }

    /// Returns true if it has a whole copy of the shard.
    pub(super) fn has_whole(&self, shard: u32) -> bool {
        self.is_alive && self.held.get(&shard).is_some_and(HeldCopy::is_whole)
    }

    /// Returns true if it has a copy of the shard without damage. A stalled one can apply the rest
    /// of the log once its disk has space.
    pub(super) fn has_undamaged(&self, shard: u32) -> bool {
        let is_undamaged = |copy: &HeldCopy| copy.is_restored && copy.damage.is_none();
        self.is_alive && self.held.get(&shard).is_some_and(is_undamaged)
    }

    /// Returns true if reads find a copy of the shard on it, which may be damaged.
    pub(super) fn serves(&self, shard: u32) -> bool {
        self.is_alive && self.held.get(&shard).is_some_and(HeldCopy::is_served)
    }

    fn announces(&self, shard: u32, copy: &HeldCopy) -> bool {
        let is_announced =
            self.written.as_ref().is_some_and(|written| written.serving.contains(&shard));
        let damage = copy.damage.as_ref();
        copy.is_caught_up && damage.is_none_or(|damage| damage.used.announces(is_announced))
    }

    /// Returns the description that etcd should have.
    pub(super) fn record(&self) -> NodeRecord {
        let serving = self.held.iter().filter(|held| self.announces(*held.0, held.1));
        let stalled = self.held.iter().filter(|(_, copy)| copy.stall.is_some());
        let marked =
            self.held.iter().filter(|(_, copy)| copy.damage.is_some() || copy.stall.is_some());
        NodeRecord {
            weight: if self.drains { 0 } else { self.weight },
            serving: serving.map(|(shard, _)| *shard).collect(),
            damaged: marked.map(|(shard, _)| *shard).collect(),
            stalled: stalled.map(|(shard, _)| *shard).collect(),
            store: self.store.reading(),
        }
    }

    /// Returns the next request that keeps the registration, in the order of the product: the
    /// lease, the node's key, the keys of owners that ended with an earlier lease, and keys that
    /// the process does not know as its own.
    pub(super) fn registration_step(&self, now: u64) -> Option<EtcdRequest> {
        let Some(lease) = self.lease else { return Some(EtcdRequest::Enter) };
        if self.is_lease_ended {
            return Some(EtcdRequest::Grant);
        }
        if self.is_lease_doubtful || now - self.kept >= LEASE * 3 / 10 {
            return Some(EtcdRequest::KeepAlive(lease));
        }
        let record = self.record();
        match &self.written {
            None => return Some(EtcdRequest::Register(lease, record)),
            Some(written) if *written != record => return Some(EtcdRequest::Put(lease, record)),
            Some(_) => {}
        }
        if !self.is_free(Channel::Ownership) {
            return None;
        }
        let ended = self.owned.iter().find(|(_, owner)| owner.lease != lease);
        if let Some((shard, _)) = ended {
            return Some(EtcdRequest::Own { shard: *shard, lease, replaces: false });
        }
        let orphan = self.orphans.first_key_value();
        orphan.map(|(shard, epoch)| EtcdRequest::Disown(*shard, *epoch))
    }

    /// Removes an ownership from the process's knowledge. Returns false if it is unknown.
    pub(super) fn forget_owner(&mut self, shard: u32, epoch: Epoch) -> bool {
        if self.owned.get(&shard).is_none_or(|owner| owner.epoch != epoch) {
            return false;
        }
        self.owned.remove(&shard);
        let is_own = self
            .view
            .owners
            .get(&shard)
            .is_some_and(|it| it.node == self.node && it.epoch == epoch);
        if is_own {
            Rc::make_mut(&mut self.view).owners.remove(&shard);
        }
        true
    }
}
