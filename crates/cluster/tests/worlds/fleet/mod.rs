//! Nodes that come and go: placement, copies of shards, ownership and logs, over a model of etcd.
//!
//! Faults: processes end, stop for a while, restart and drain; nodes come and change their weight;
//! one copy or all copies of a shard get damaged; etcd stops, or some nodes cannot reach it;
//! requests and answers are late or lost. The world `stalls` also fills the disk of a node, or the
//! disks of all nodes. In the world `stores`, one node or all nodes do not reach the store for a
//! while, and etcd always answers. Time is in milliseconds. After [`LENGTH`] all is well again, and
//! the fleet must settle. In some worlds with full disks, all disks stay full, and the copies must
//! be served.

mod etcd;
mod faults;
mod logs;
mod look;
mod process;
mod registration;
mod stalls;
mod stores;

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use cluster::{SearchServer, WriterAction, WriterEvent, holders};

use self::etcd::{Etcd, EtcdAnswer, EtcdRequest, EtcdView};
use self::logs::{ShardLog, Write, WriterAddress};
use self::process::{Channel, Process};
use self::stores::StoreCuts;
use super::numbers::Numbers;
use super::schedule::Schedule;
use super::{Planted, WorldOutcome};

const NODES: usize = 5;
const NAMES: [&str; NODES] = ["n0", "n1", "n2", "n3", "n4"];
const SHARDS: u32 = 3;
/// Time in which faults happen.
const LENGTH: u64 = 240_000;
/// Time after it in which the fleet must settle: a lease, the replacements of two damaged copies
/// after each other, and the time for which copies stay.
const QUIET: u64 = 180_000;
/// Time between two checks by a node.
const LOOK: u64 = 500;
/// Time of a lease in etcd.
const LEASE: u64 = 10_000;
/// Time after which a node stops waiting for etcd.
const ETCD_TIMEOUT: u64 = 2_000;
/// Longest restore of a copy.
const RESTORE_MAX: u64 = 25_000;
/// Longest time in which a replaced copy follows the log to its end.
const REPLAY_MAX: u64 = 3_000;
/// Share of the worlds with full disks in which all disks stay full at the end.
const STAYS_FULL_PERCENT: u64 = 25;
/// Age up to which a view is certain, and longest time of a request on the way.
const VIEW_AGE_MAX: u64 = LEASE / 2;
/// Time after its end within which a process may be in a certain view: its last keep-alive was on
/// its way, and its lease and the view had to end.
const DEATH_SEEN_MAX: u64 = LEASE + VIEW_AGE_MAX + 3 * ETCD_TIMEOUT;
/// Time after its end within which a process may be in the certain view of a process that started
/// later: etcd was down, and its lease began again.
const LOSS_SEEN_MAX: u64 = DEATH_SEEN_MAX + faults::FAULT_MAX;

/// A process of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sender {
    node: usize,
    incarnation: u64,
}

/// Something that happens at a time.
enum FleetItem {
    Look(Sender),
    /// A request reaches etcd.
    Etcd(Sender, Channel, u64),
    /// A request reaches etcd after its sender has stopped waiting.
    EtcdLate(Sender, EtcdRequest),
    EtcdAnswer(Sender, Channel, u64, EtcdAnswer),
    EtcdTimeout(Sender, Channel, u64),
    Store(WriterAddress, u32, WriterAction<Write>),
    StoreAnswer(WriterAddress, WriterEvent<Write>),
    /// A reading of the store ends, with success or without.
    StoreRead(Sender, bool),
    Restored(Sender, u32, u64),
    DiskFreed(usize),
    Fault,
    EtcdBack,
    Restart(usize),
    Quiet,
    End,
}

#[derive(Default)]
struct FleetFigures {
    copies_dropped: u64,
    copies_damaged: u64,
    copies_withdrawn: u64,
    owners: u64,
    deaths: u64,
    writes_acknowledged: u64,
    etcd_outages: u64,
    disks_filled: u64,
    copies_stalled: u64,
    stalled_withdrawn: u64,
    stalled_served: u64,
    reads_answered: u64,
    reads_refused: u64,
    writes_refused: u64,
    stores_lost: u64,
    logs_left: u64,
}

struct Fleet {
    random: Numbers,
    planted: Option<Planted>,
    /// True if disks get full.
    fills_disks: bool,
    /// True if nodes lose the store.
    loses_store: bool,
    /// Cuts of each node from the store.
    store_cuts: Vec<StoreCuts>,
    /// True if all disks are full from [`LENGTH`] on.
    stays_full: bool,
    /// Nodes whose disk is full.
    full_disks: BTreeSet<usize>,
    schedule: Schedule<FleetItem>,
    /// Instant of the time 0.
    zero: Instant,
    copies: usize,
    etcd: Etcd,
    processes: Vec<Process>,
    logs: Vec<ShardLog>,
    numbers: u64,
    /// Time at which a node lost a whole copy by a fault.
    died: HashMap<(usize, u32), u64>,
    /// Last time at which a copy of a shard disappeared, damaged or not.
    lost: HashMap<u32, u64>,
    /// Last time at which a late write may have changed the description of a node.
    wrote_late: Option<u64>,
    placements: HashMap<Vec<(usize, u32)>, Vec<Vec<usize>>>,
    figures: FleetFigures,
    violation: Option<String>,
}

/// Runs the world of a seed.
pub(super) fn run(seed: u64, planted: Option<Planted>) -> WorldOutcome {
    let mut fleet = Fleet::new(seed, planted, false);
    fleet.run();
    WorldOutcome { violation: fleet.violation, figures: fleet.figures.of_nodes() }
}

/// Runs the world of a seed with full disks.
pub(super) fn run_with_full_disks(seed: u64, planted: Option<Planted>) -> WorldOutcome {
    let mut fleet = Fleet::new(seed, planted, true);
    fleet.run();
    let mut figures = fleet.figures.of_nodes();
    figures.extend(fleet.figures.of_disks());
    WorldOutcome { violation: fleet.violation, figures }
}

/// Runs the world of a seed in which nodes lose the store.
pub(super) fn run_with_lost_stores(seed: u64, planted: Option<Planted>) -> WorldOutcome {
    let mut fleet = Fleet::new(seed, planted, false);
    fleet.loses_store = true;
    fleet.run();
    let mut figures = fleet.figures.of_nodes();
    figures.push(("stores_lost", fleet.figures.stores_lost));
    figures.push(("logs_left", fleet.figures.logs_left));
    WorldOutcome { violation: fleet.violation, figures }
}

impl FleetFigures {
    fn of_nodes(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("copies_dropped", self.copies_dropped),
            ("copies_damaged", self.copies_damaged),
            ("copies_withdrawn", self.copies_withdrawn),
            ("owners", self.owners),
            ("deaths", self.deaths),
            ("writes_acknowledged", self.writes_acknowledged),
            ("etcd_outages", self.etcd_outages),
        ]
    }

    fn of_disks(&self) -> [(&'static str, u64); 7] {
        [
            ("disks_filled", self.disks_filled),
            ("copies_stalled", self.copies_stalled),
            ("stalled_withdrawn", self.stalled_withdrawn),
            ("stalled_served", self.stalled_served),
            ("reads_answered", self.reads_answered),
            ("reads_refused", self.reads_refused),
            ("writes_refused", self.writes_refused),
        ]
    }
}

impl Fleet {
    fn new(seed: u64, planted: Option<Planted>, fills_disks: bool) -> Fleet {
        let mut random = Numbers::new(seed);
        let copies = random.between(1, 3) as usize;
        let stays_full = fills_disks && random.percent(STAYS_FULL_PERCENT);
        let mut fleet = Fleet {
            random,
            planted,
            fills_disks,
            loses_store: false,
            store_cuts: vec![StoreCuts::default(); NODES],
            stays_full,
            full_disks: BTreeSet::new(),
            schedule: Schedule::new(),
            zero: Instant::now(),
            copies,
            etcd: Etcd::default(),
            processes: (0..NODES).map(|node| Process { node, ..Process::default() }).collect(),
            logs: (0..SHARDS).map(|_| ShardLog::default()).collect(),
            numbers: 0,
            died: HashMap::new(),
            lost: HashMap::new(),
            wrote_late: None,
            placements: HashMap::new(),
            figures: FleetFigures::default(),
            violation: None,
        };
        // The last nodes come later.
        for node in 0..NODES - 2 {
            fleet.restart(node);
        }
        fleet.schedule.at(30_000, FleetItem::Fault);
        fleet.schedule.at(LENGTH, FleetItem::Quiet);
        fleet.schedule.at(LENGTH + QUIET, FleetItem::End);
        fleet
    }

    /// Runs to the end, or to the first violation.
    fn run(&mut self) {
        while let Some(item) = self.schedule.next() {
            let ends = matches!(item, FleetItem::End);
            self.happens(item);
            if ends || self.violation.is_some() {
                break;
            }
        }
    }

    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    fn instant(&self) -> Instant {
        self.zero + Duration::from_millis(self.schedule.now())
    }

    /// Returns the process of a sender, if it is the same and alive.
    fn process(&mut self, sender: Sender) -> Option<&mut Process> {
        let process = &mut self.processes[sender.node];
        (process.is_alive && process.incarnation == sender.incarnation).then_some(process)
    }

    fn happens(&mut self, item: FleetItem) {
        let now = self.schedule.now();
        // A stopped process receives everything when it continues.
        let receiver = match &item {
            FleetItem::Look(sender)
            | FleetItem::EtcdAnswer(sender, ..)
            | FleetItem::EtcdTimeout(sender, ..)
            | FleetItem::StoreRead(sender, ..)
            | FleetItem::Restored(sender, ..) => Some(*sender),
            FleetItem::StoreAnswer(address, _) => Some(address.sender),
            _ => None,
        };
        if let Some(sender) = receiver {
            let Some(process) = self.process(sender) else { return };
            if now < process.paused_until {
                let rest = process.paused_until - now;
                return self.schedule.at(rest, item);
            }
        }
        match item {
            FleetItem::Look(sender) => self.look(sender),
            FleetItem::Etcd(sender, channel, id) => self.etcd_takes(sender, channel, id),
            FleetItem::EtcdLate(sender, request) => {
                if !self.etcd.is_down {
                    if matches!(request, EtcdRequest::Register(..) | EtcdRequest::Put(..)) {
                        self.wrote_late = Some(now);
                    }
                    self.etcd.take(sender.node, request, now);
                }
            }
            FleetItem::EtcdAnswer(sender, channel, id, answer) => {
                self.etcd_answered(sender, channel, id, Some(answer));
            }
            FleetItem::EtcdTimeout(sender, channel, id) => {
                self.etcd_answered(sender, channel, id, None);
            }
            FleetItem::Store(address, shard, request) => self.store(address, shard, request),
            FleetItem::StoreAnswer(address, event) => self.handle(address, event),
            FleetItem::StoreRead(sender, succeeds) => self.store_read(sender, succeeds),
            FleetItem::Restored(sender, shard, restore) => self.restored(sender, shard, restore),
            FleetItem::DiskFreed(node) => self.disk_freed(node),
            FleetItem::Fault => self.fault(),
            FleetItem::EtcdBack => self.etcd_back(),
            FleetItem::Restart(node) => self.restart(node),
            FleetItem::Quiet => self.quiet(),
            FleetItem::End => self.end(),
        }
    }

    /// Returns the nodes that should hold a shard, in the order of preference: the first one of
    /// them should own it.
    fn placed(&mut self, view: &EtcdView, shard: u32, copies: usize) -> Vec<usize> {
        let servers: Vec<(usize, u32)> =
            view.nodes.iter().map(|(node, record)| (*node, record.weight)).collect();
        let placements = self.placements.entry(servers).or_insert_with_key(|servers| {
            let named = |server: &(usize, u32)| SearchServer {
                name: NAMES[server.0].to_owned(),
                weight: server.1,
            };
            let searchers: Vec<SearchServer> = servers.iter().map(named).collect();
            let of_shard = |shard: u32| {
                let chosen = holders(&[shard as u8 + 1; 16], &searchers, NODES);
                chosen.into_iter().map(|at| servers[at].0).collect()
            };
            (0..SHARDS).map(of_shard).collect()
        });
        placements[shard as usize].iter().copied().take(copies).collect()
    }

    /// Checks that the fleet has settled: each shard is held by the nodes that should, and the node
    /// that should own it writes its log. With full disks, other rules count.
    fn end(&mut self) {
        let now = self.schedule.now();
        self.violation = self.wrong_log();
        self.etcd.expire(now);
        let view = self.etcd.view();
        if self.stays_full {
            for shard in 0..SHARDS {
                let wrong = self.wrong_full_shard(shard, &view);
                self.violation = self.violation.take().or(wrong);
            }
            return;
        }
        for shard in 0..SHARDS {
            let mut wanted = self.placed(&view, shard, self.copies);
            let Some(owner) = self.log_owner(&view, shard) else { continue };
            wanted.sort_unstable();
            let holds = |process: &&Process| process.is_alive && process.held.contains_key(&shard);
            let held: Vec<usize> =
                self.processes.iter().filter(holds).map(|process| process.node).collect();
            let announced = view.nodes.iter().filter(|(_, record)| record.serving.contains(&shard));
            let announced: Vec<usize> = announced.map(|(node, _)| *node).collect();
            let log = &self.logs[shard as usize];
            let writes = self.is_writing(owner, shard) && now - log.acknowledged_at < 20_000;
            if held != wanted || announced != wanted || !writes {
                self.violation = Some(format!(
                    "shard {shard} should be held by {wanted:?}, and is by {held:?}; announced by \
                     {announced:?}; {owner} should write, which is {writes}"
                ));
            }
        }
    }
}
