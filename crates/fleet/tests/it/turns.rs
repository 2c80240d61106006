//! Turns of several processes of a fleet against a real etcd.

use std::time::{Duration, Instant};

use base::{ErrorKind, VersionId};
use etcd::testing::{EtcdServer, WAIT_MAX};
use etcd::{Etcd, LeaseId};
use fleet::{FleetOptions, FleetTimes, FleetUpdates};
use http_client::HttpClient;
use lifecycle::{TurnState, UpdateEnd, UpdateTurns};
use metrics::{ModelLabels, UpdateMetrics};

/// Intervals of tests: no long pauses, and a lease that outlives the stalls of a busy machine.
const SHORT: FleetTimes = FleetTimes {
    lease: Duration::from_secs(3),
    keep_alive: Duration::from_millis(200),
    poll: Duration::from_millis(20),
    watch: Duration::from_millis(50),
    silence: Duration::from_secs(3600),
    turn: Duration::from_secs(3600),
    hold: Duration::from_secs(3600),
};

/// Intervals of tests in which no lease ends by itself, however long a process is paused.
const LASTING: FleetTimes = FleetTimes { lease: Duration::from_secs(60), ..SHORT };

/// A process of the fleet.
struct Process {
    updates: FleetUpdates,
    metrics: UpdateMetrics,
}

impl Process {
    fn start(etcd: Etcd, process: &str, concurrency: u32, times: FleetTimes) -> Process {
        let metrics = UpdateMetrics::default();
        let (fleet, process) = ("test".to_owned(), process.to_owned());
        let options = FleetOptions { fleet, process, concurrency, times };
        let updates = FleetUpdates::start(etcd, options, metrics.clone()).unwrap();
        Process { updates, metrics }
    }

    fn ask(&self, id: &VersionId) -> TurnState {
        self.updates.request(id, true)
    }

    fn end(&self, id: &VersionId, end: UpdateEnd) {
        self.updates.end(id, end);
    }

    /// Asks until the state passes the check.
    async fn until(&self, id: &VersionId, check: impl Fn(&TurnState) -> bool) -> TurnState {
        let deadline = Instant::now() + WAIT_MAX;
        loop {
            let state = self.ask(id);
            if check(&state) {
                return state;
            }
            assert!(Instant::now() < deadline, "{id} is {state:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn until_granted(&self, id: &VersionId) {
        self.until(id, |state| *state == TurnState::Granted).await;
    }

    async fn until_waiting(&self, id: &VersionId, reason: &str) {
        self.until(id, |state| *state == TurnState::Waiting(reason.to_owned())).await;
    }

    async fn until_held_back(&self, id: &VersionId) -> String {
        match self.until(id, |state| matches!(state, TurnState::HeldBack(_))).await {
            TurnState::HeldBack(reason) => reason,
            other => panic!("{other:?}"),
        }
    }
}

fn id(model: &str, version: u64) -> VersionId {
    VersionId { model: model.into(), version }
}

fn fleet(server: &EtcdServer, concurrency: u32) -> [Process; 3] {
    ["a", "b", "c"].map(|name| Process::start(server.client(), name, concurrency, LASTING))
}

const LOADED: UpdateEnd = UpdateEnd::Loaded { by_hand: false };

/// Waits until etcd has, or has not, keys of the fleet.
async fn until_keys(server: &EtcdServer, part: &str, exist: bool) {
    let etcd = server.client();
    let prefix = format!("millpond-updates/test/{part}");
    let wait = async {
        while etcd.range(&prefix).await.unwrap().entries.is_empty() == exist {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(WAIT_MAX, wait).await.expect("the keys change");
}

#[tokio::test]
async fn one_process_updates_a_model_at_a_time() {
    let server = EtcdServer::start().await;
    let [a, b, c] = ["a", "b", "c"].map(|name| Process::start(server.client(), name, 1, SHORT));
    let (m2, n2) = (id("m", 2), id("n", 2));
    a.until_granted(&m2).await;
    for other in [&b, &c] {
        other.until_waiting(&m2, "a updates the model").await;
    }
    b.until_granted(&n2).await;
    b.end(&n2, LOADED);
    // Not only for the time of one lease.
    tokio::time::sleep(SHORT.lease * 2).await;
    b.until_waiting(&m2, "a updates the model").await;
    a.end(&m2, LOADED);
    // One of both, and then the other.
    let granted = |process: &Process| process.ask(&m2) == TurnState::Granted;
    b.until(&m2, |state| *state == TurnState::Granted || granted(&c)).await;
    let (first, name, last) = if granted(&b) { (&b, "b", &c) } else { (&c, "c", &b) };
    last.until_waiting(&m2, &format!("{name} updates the model")).await;
    first.end(&m2, UpdateEnd::Dropped);
    last.until_granted(&m2).await;
    last.end(&m2, LOADED);
    until_keys(&server, "slots/", false).await;
}

#[tokio::test]
async fn as_many_processes_update_as_there_are_slots() {
    let server = EtcdServer::start().await;
    let [a, b, c] = fleet(&server, 2);
    let m2 = id("m", 2);
    a.until_granted(&m2).await;
    b.until_granted(&m2).await;
    c.until_waiting(&m2, "a, b update the model").await;
    a.end(&m2, LOADED);
    c.until_granted(&m2).await;
}

#[tokio::test]
async fn a_bad_version_is_held_back_until_one_loads_by_hand() {
    let server = EtcdServer::start().await;
    let [a, b, c] = fleet(&server, 1);
    let m2 = id("m", 2);
    a.until_granted(&m2).await;
    b.until_waiting(&m2, "a updates the model").await;
    // Within its window, a process sees the hold too.
    c.updates.request(&m2, false);
    a.end(&m2, UpdateEnd::Failed("no operator bad".to_owned()));
    let reason = b.until_held_back(&m2).await;
    assert!(reason.starts_with("it failed in a at 2"), "{reason}");
    assert!(reason.ends_with("UTC: no operator bad"), "{reason}");
    c.until(&m2, |_| matches!(c.updates.request(&m2, false), TurnState::HeldBack(_))).await;
    until_keys(&server, "slots/", false).await;
    let hold = server.client().get("millpond-updates/test/holds/m/2").await.unwrap().unwrap();
    assert_ne!(hold.lease, LeaseId(0), "it ends by itself");

    // A newer version is not held back, and the failed process may try changed files.
    b.until_granted(&id("m", 3)).await;
    b.end(&id("m", 3), LOADED);
    a.until_granted(&m2).await;
    a.end(&m2, UpdateEnd::Dropped);
    b.end(&m2, UpdateEnd::Loaded { by_hand: true });
    c.until_granted(&m2).await;
}

#[tokio::test]
async fn a_success_of_the_failed_process_ends_its_hold() {
    let server = EtcdServer::start().await;
    let [a, b, _] = fleet(&server, 1);
    let m2 = id("m", 2);
    // This also holds for a version without a request for a turn, such as one that a rollout
    // withdraws.
    a.end(&m2, UpdateEnd::Failed("slow".to_owned()));
    // Otherwise a question of b can be answered before the failure is known.
    until_keys(&server, "holds/m/2", true).await;
    b.until_held_back(&m2).await;
    b.end(&m2, UpdateEnd::Dropped);
    b.until_held_back(&m2).await;
    a.until_granted(&m2).await;
    a.end(&m2, LOADED);
    b.until_granted(&m2).await;
}

#[tokio::test]
async fn turns_of_ended_processes_are_free() {
    let server = EtcdServer::start().await;
    let [a, b, c] = fleet(&server, 1);
    let m2 = id("m", 2);
    a.until_granted(&m2).await;
    a.updates.stop();
    until_keys(&server, "slots/", false).await;
    // A process that was killed has a lease without keep-alives.
    let etcd = server.client();
    let lease = etcd.grant(SHORT.lease).await.unwrap();
    etcd.create("millpond-updates/test/slots/m/0", b"{}", lease).await.unwrap().unwrap();
    b.until_waiting(&m2, "another process updates the model").await;
    b.until_granted(&m2).await;
    c.until_waiting(&m2, "b updates the model").await;
}

/// The version may be the reason why the process ended, for example because of its memory.
#[tokio::test]
async fn a_process_that_ends_during_a_load_holds_back() {
    let server = EtcdServer::start().await;
    let [a, b, _] = fleet(&server, 1);
    let (m2, m3) = (id("m", 2), id("m", 3));
    // Neither a load that ends nor a stop leaves a trial.
    a.until_granted(&m3).await;
    until_keys(&server, "trials/m/3/", true).await;
    a.end(&m3, LOADED);
    until_keys(&server, "trials/", false).await;
    a.until_granted(&m2).await;
    a.updates.stop();
    until_keys(&server, "trials/", false).await;

    // A killed process leaves the trial, and its slot has ended with the lease.
    let etcd = server.client();
    let lease = etcd.grant(LASTING.turn).await.unwrap();
    let killed = br#"{"process":"killed","version":2}"#;
    etcd.create("millpond-updates/test/trials/m/2/0", killed, lease).await.unwrap().unwrap();
    assert_eq!(b.until_held_back(&m2).await, "killed ended while it loaded the version");
    b.until_granted(&m3).await;
    b.end(&m3, LOADED);
    let restarted = Process::start(server.client(), "killed", 1, LASTING);
    restarted.end(&m2, LOADED);
    b.until_granted(&m2).await;
}

#[tokio::test]
async fn a_failure_just_before_the_stop_holds_back() {
    let server = EtcdServer::start().await;
    let [a, b, _] = fleet(&server, 1);
    let m2 = id("m", 2);
    a.until_granted(&m2).await;
    a.end(&m2, UpdateEnd::Failed("bad".to_owned()));
    a.updates.stop();
    let hold = server.client().get("millpond-updates/test/holds/m/2").await.unwrap();
    assert!(hold.is_some(), "the process has ended");
    assert!(b.until_held_back(&m2).await.ends_with("UTC: bad"));
    until_keys(&server, "slots/", false).await;
}

#[tokio::test]
async fn a_turn_has_a_longest_time() {
    let server = EtcdServer::start().await;
    let times = FleetTimes { turn: Duration::from_millis(300), ..LASTING };
    let a = Process::start(server.client(), "a", 1, times);
    let b = Process::start(server.client(), "b", 1, LASTING);
    let m2 = id("m", 2);
    a.until_granted(&m2).await;
    b.until_granted(&m2).await;
    assert_eq!(a.ask(&m2), TurnState::Granted, "its load continues");
}

#[tokio::test]
async fn a_failure_after_the_turn_holds_back_for_one_turn() {
    let server = EtcdServer::start().await;
    let times = FleetTimes { turn: Duration::from_secs(3), ..LASTING };
    let a = Process::start(server.client(), "a", 1, times);
    let [_, b, c] = fleet(&server, 1);
    let (m2, m3) = (id("m", 2), id("m", 3));
    a.until_granted(&m2).await;
    b.until_granted(&m2).await;
    b.end(&m2, LOADED);
    until_keys(&server, "slots/m/", false).await;
    a.end(&m2, UpdateEnd::Failed("out of memory".to_owned()));
    until_keys(&server, "holds/m/2", true).await;
    c.until_granted(&m2).await;
    c.end(&m2, LOADED);

    // It replaces no hold of a process that failed within its turn.
    a.until_granted(&m3).await;
    b.until_granted(&m3).await;
    b.end(&m3, UpdateEnd::Failed("bad".to_owned()));
    until_keys(&server, "holds/m/3", true).await;
    a.end(&m3, UpdateEnd::Failed("bad after the turn".to_owned()));
    // The ends of a process are written in the order of the versions.
    a.end(&id("m", 4), UpdateEnd::Failed("bad".to_owned()));
    until_keys(&server, "holds/m/4", true).await;
    assert!(c.until_held_back(&m3).await.ends_with("UTC: bad"));
}

#[tokio::test]
async fn without_etcd_an_update_waits_for_a_limit() {
    let mut server = EtcdServer::start().await;
    let times = FleetTimes { silence: Duration::from_millis(300), ..SHORT };
    let (a, b) = (
        Process::start(server.client(), "a", 1, times),
        Process::start(server.client(), "b", 1, times),
    );
    let (m2, m3) = (id("m", 2), id("m", 3));
    a.end(&m2, UpdateEnd::Failed("bad".to_owned()));
    until_keys(&server, "holds/m/2", true).await;
    b.until_held_back(&m2).await;
    server.kill();
    assert!(matches!(b.ask(&m3), TurnState::Waiting(_)));
    b.until_granted(&m3).await;
    let without = |process: &Process| {
        let labels = ModelLabels { model: "m".into() };
        process.metrics.without_turn.get_or_create(&labels).get()
    };
    assert_eq!((without(&a), without(&b)), (0, 1));
    assert!(matches!(b.ask(&m2), TurnState::HeldBack(_)), "it stays held back");
    // The end is written once etcd answers again.
    a.end(&m3, UpdateEnd::Failed("bad too".to_owned()));
    server.restart().await;
    until_keys(&server, "holds/m/3", true).await;
}

#[test]
fn names_and_numbers_are_checked() {
    let refused = |fleet: &str, concurrency| {
        let etcd = Etcd::new(&["http://127.0.0.1:1".to_owned()], HttpClient::new(None));
        let (fleet, process, times) = (fleet.to_owned(), "a".to_owned(), SHORT);
        let options = FleetOptions { fleet, process, concurrency, times };
        FleetUpdates::start(etcd.unwrap(), options, UpdateMetrics::default())
            .err()
            .map(|e| e.kind())
    };
    assert_eq!(refused("a/b", 1), Some(ErrorKind::InvalidArgument));
    assert_eq!(refused("f", 0), Some(ErrorKind::InvalidArgument));
    assert_eq!(refused("f", 1), None);
}
