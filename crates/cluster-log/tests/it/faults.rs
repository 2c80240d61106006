//! Several writers of one log, a reader that cuts it, and faults from a seed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cluster::{EntryNumber, Epoch};
use cluster_log::{
    FollowStep, LogFloor, LogFollower, ShardLog, ShardWriter, WriterOptions, was_not_made,
};
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::support::{
    Applied, Faults, Line, PlantedFault, Random, TestStore, operations, options, read_to_end, soon,
};

const SEEDS: u64 = 8;
const NODES: u64 = 3;
const CLIENTS: u64 = 6;
const WRITES_OF_A_CLIENT: u64 = 60;
const FAULTS: Faults = Faults { refused: 4, answers_lost: 3, late: 2 };

/// Answer to a write of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Answer {
    Acknowledged(EntryNumber),
    NotMade,
    Unknown,
}

/// Writer that clients use, if there is one.
type CurrentWriter = watch::Sender<Option<ShardWriter>>;

struct World {
    store: TestStore,
    current: CurrentWriter,
    /// Older writers, which some clients still use.
    older: Mutex<Vec<ShardWriter>>,
    answers: Mutex<BTreeMap<String, Answer>>,
    owners: AtomicU64,
    seed: u64,
    planted: Option<PlantedFault>,
}

fn quick() -> WriterOptions {
    WriterOptions {
        gather: Duration::from_millis(1),
        batch_bytes_max: 300,
        request_timeout: Duration::from_millis(150),
        ..options()
    }
}

impl World {
    /// Writes one operation after the other, through the newest writer or through one that should
    /// have ended.
    async fn client(self: Arc<World>, client: u64) {
        let mut random = Random(self.seed * 1000 + client);
        for number in 0..WRITES_OF_A_CLIENT {
            let mut writer = self.current.borrow().clone();
            if random.percent(15) {
                let older = self.older.lock();
                let at = random.below(older.len().max(1) as u64) as usize;
                writer = older.get(at).cloned().or(writer);
            }
            let Some(writer) = writer else {
                tokio::time::sleep(Duration::from_millis(5)).await;
                continue;
            };
            let text = format!("c{client} {number:03}");
            let deadline = Instant::now() + Duration::from_millis(20 + random.below(400));
            let answer = match writer.write(operations(&[&text]), deadline).await {
                Ok(entry) => Answer::Acknowledged(entry),
                Err(error) if was_not_made(&error) => Answer::NotMade,
                Err(_) => Answer::Unknown,
            };
            if answer == Answer::NotMade {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            self.answers.lock().insert(text, answer);
        }
    }

    /// Starts one owner after the other. The older ones are stopped, expired or not informed.
    async fn owners(self: Arc<World>, mut done: watch::Receiver<bool>) {
        let mut random = Random(self.seed);
        let nodes: Vec<(ShardLog, Arc<Line>)> =
            (0..NODES).map(|node| self.store.connect(self.seed * 10 + node)).collect();
        for (_, line) in &nodes {
            line.set_faults(FAULTS);
            line.plant(self.planted);
        }
        while !*done.borrow() {
            let epoch = self.owners.fetch_add(1, Ordering::Relaxed) + 1;
            let node = &nodes[random.below(NODES) as usize];
            node.1.go_on();
            let writer = ShardWriter::start(node.0.clone(), Epoch(epoch), quick());
            if let Some(before) = self.current.send_replace(Some(writer)) {
                if random.percent(30) {
                    before.expire();
                }
                self.older.lock().push(before);
            }
            let pause = Duration::from_millis(50 + random.below(400));
            let _ = tokio::time::timeout(pause, done.wait_for(|done| *done)).await;
            if random.percent(50) {
                node.1.stop();
            }
        }
        nodes.iter().for_each(|node| node.1.go_on());
    }

    /// Follows the log, and cuts it at a position that it has passed. Returns all operations.
    async fn reader(self: Arc<World>, done: watch::Receiver<bool>) -> Vec<Applied> {
        let mut random = Random(self.seed + 77);
        let log = self.store.log();
        let mut applied: Vec<Applied> = Vec::new();
        let mut follower = LogFollower::new(log.clone(), EntryNumber(0), Epoch(0));
        let mut passed = vec![follower.position()];
        loop {
            let last = *done.borrow();
            applied.extend(read_to_end(&mut follower).await);
            passed.push(follower.position());
            if last {
                return applied;
            }
            if random.percent(20) {
                let cut = passed[passed.len() - 1 - random.below(passed.len() as u64) as usize];
                log.raise_floor(LogFloor { entry: cut.next, epoch: cut.epoch }).await.unwrap();
                let floor = log.floor().await.unwrap();
                log.remove_below(floor.entry).await.unwrap();
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Follows the log through faults. Restores the state of the other reader if it is too slow.
    async fn second_reader(self: Arc<World>, done: watch::Receiver<bool>) -> Vec<Applied> {
        let (log, line) = self.store.connect(self.seed + 5);
        line.set_faults(FAULTS);
        let mut follower = LogFollower::new(log.clone(), EntryNumber(0), Epoch(0));
        let mut applied = Vec::new();
        loop {
            let last = *done.borrow();
            match follower.next().await {
                Ok(FollowStep::Entry { number, batch }) => {
                    let batch = batch.unwrap_or_default();
                    let text = |text: &bytes::Bytes| String::from_utf8(text.to_vec()).unwrap();
                    applied.extend(batch.0.iter().map(|it| (number, text(it))));
                }
                Ok(FollowStep::End) if last => return applied,
                Ok(FollowStep::End) => tokio::time::sleep(Duration::from_millis(3)).await,
                Ok(FollowStep::Removed(floor)) => {
                    follower = LogFollower::new(log.clone(), floor.entry, floor.epoch);
                }
                Err(error) => assert!(error.is_retryable(), "{error}"),
            }
        }
    }
}

/// Numbers of a run without a violation.
#[derive(Clone, Copy, Debug, Default)]
struct RunSummary {
    acknowledged: u64,
    unknown: u64,
    not_made: u64,
    owners: u64,
}

/// Runs a world. Returns the first violation as an error.
async fn run(seed: u64, planted: Option<PlantedFault>) -> Result<RunSummary, String> {
    let world = Arc::new(World {
        store: TestStore::in_memory(),
        current: watch::Sender::new(None),
        older: Mutex::default(),
        answers: Mutex::default(),
        owners: AtomicU64::new(0),
        seed,
        planted,
    });
    let (done, is_done) = watch::channel(false);
    let (settled, is_settled) = watch::channel(false);
    let owners = tokio::spawn(world.clone().owners(is_done));
    let reader = tokio::spawn(world.clone().reader(is_settled.clone()));
    let second = tokio::spawn(world.clone().second_reader(is_settled));
    let clients: Vec<_> =
        (0..CLIENTS).map(|client| tokio::spawn(world.clone().client(client))).collect();
    for client in clients {
        soon(client).await.unwrap();
    }
    done.send_replace(true);
    soon(owners).await.unwrap();
    world.current.send_replace(None);
    world.older.lock().clear();
    // Requests of ended writers may still arrive. A new owner fails if the reader cuts the log
    // while it reads.
    let mut epoch = 1_000_000;
    let last = loop {
        let writer = ShardWriter::start(world.store.log(), Epoch(epoch), options());
        if soon(writer.started()).await {
            break writer;
        }
        epoch += 1;
    };
    settled.send_replace(true);
    let log = soon(reader).await.unwrap();
    let second = soon(second).await.unwrap();
    drop(last);
    let summary = check(&world, &log)?;
    let entries: BTreeMap<&str, EntryNumber> = log.iter().map(|it| (it.1.as_str(), it.0)).collect();
    for (number, text) in second {
        if entries.get(text.as_str()) != Some(&number) {
            return Err(format!("only the second reader has {text} in entry {number}"));
        }
    }
    Ok(summary)
}

fn check(world: &World, log: &[Applied]) -> Result<RunSummary, String> {
    let answers = world.answers.lock();
    let mut found: BTreeMap<&str, EntryNumber> = BTreeMap::new();
    for (number, text) in log {
        if found.insert(text, *number).is_some() {
            return Err(format!("{text} twice"));
        }
        if answers.get(text) == Some(&Answer::NotMade) {
            return Err(format!("{text} was not made, and is in entry {number}"));
        }
    }
    let mut summary = RunSummary {
        owners: world.owners.load(Ordering::Relaxed),
        unknown: answers.values().filter(|answer| **answer == Answer::Unknown).count() as u64,
        not_made: answers.values().filter(|answer| **answer == Answer::NotMade).count() as u64,
        acknowledged: 0,
    };
    let mut before: BTreeMap<&str, EntryNumber> = BTreeMap::new();
    for (text, answer) in &*answers {
        let Answer::Acknowledged(number) = answer else { continue };
        summary.acknowledged += 1;
        if found.get(text.as_str()) != Some(number) {
            let at = found.get(text.as_str());
            return Err(format!("{text} was acknowledged in entry {number}, and is in {at:?}"));
        }
        // A client sends one write after the other, so the log has them in this order.
        let client = &text[..text.find(' ').unwrap()];
        let earlier = before.insert(client, *number).unwrap_or_default();
        if earlier >= *number {
            return Err(format!("{text} in entry {number} is not behind {earlier}"));
        }
    }
    Ok(summary)
}

/// Runs the worlds of some seeds at the same time.
async fn run_seeds(
    seeds: std::ops::Range<u64>,
    planted: Option<PlantedFault>,
) -> Vec<Result<RunSummary, String>> {
    let worlds: Vec<_> = seeds.map(|seed| tokio::spawn(run(seed, planted))).collect();
    let mut outcomes = Vec::new();
    for world in worlds {
        outcomes.push(soon(world).await.unwrap());
    }
    outcomes
}

/// No acknowledged write is lost, doubled or in another entry, and none that was not made appears.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_fault_loses_an_acknowledged_write() {
    let mut total = RunSummary::default();
    for (seed, outcome) in run_seeds(0..SEEDS, None).await.into_iter().enumerate() {
        let summary = outcome.unwrap_or_else(|violation| panic!("seed {seed}: {violation}"));
        total.acknowledged += summary.acknowledged;
        total.unknown += summary.unknown;
        total.not_made += summary.not_made;
        total.owners += summary.owners;
    }
    println!("{total:?}");
    // The faults reached every kind of answer.
    let least = total.acknowledged.min(total.unknown).min(total.not_made).min(total.owners);
    assert!(least > SEEDS, "{total:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn planted_faults_are_found() {
    for planted in [PlantedFault::Overwrites, PlantedFault::HidesFloors] {
        let mut violation = None;
        // Each round has other seeds. One is enough, if the machine is not very slow.
        for round in 1..=10 {
            let outcomes = run_seeds(round * SEEDS..(round + 1) * SEEDS, Some(planted)).await;
            violation = outcomes.into_iter().find_map(Result::err);
            if violation.is_some() {
                break;
            }
        }
        println!("{planted:?}: {violation:?}");
        assert!(violation.is_some(), "{planted:?} is not found");
    }
}

#[tokio::test]
async fn a_reader_of_an_empty_log_is_at_its_end() {
    let log = TestStore::in_memory().log();
    let mut follower = LogFollower::new(log, EntryNumber(0), Epoch(0));
    assert!(read_to_end(&mut follower).await.is_empty());
}
