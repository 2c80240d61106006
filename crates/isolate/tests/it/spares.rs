//! Spare worker processes of an engine whose library opens slowly.

use base::ErrorKind;
use engine::Session;
use engine::fake::NAME;
use rustix::process::{Pid, Signal, kill_process};

use crate::support::{ECHO, HANGING_LIBRARY, Host, WITHOUT_LIBRARY, recovered, vector, wait_until};

fn kill(process: u32) {
    kill_process(Pid::from_raw(process as i32).unwrap(), Signal::KILL).unwrap();
}

/// Ends the process of the model, and waits until another one serves.
fn restart(host: &Host, session: &dyn Session) {
    let before = host.restarts();
    kill(host.isolation.processes()[0]);
    wait_until(|| host.restarts() > before && session.run(&vector(&[1.0]), &[]).is_ok());
}

#[test]
fn a_spare_takes_the_place_of_an_ended_process() {
    let host = Host::with_spares(NAME);
    let session = host.load(ECHO);
    for round in 1..=3 {
        wait_until(|| host.spares("started") == round);
        let processes = host.isolation.processes();
        assert_eq!(processes.len(), 2, "one model and one spare process");
        restart(&host, &*session);
        assert_eq!((host.restarts(), host.spares("used")), (round, round));
        assert_eq!(host.isolation.processes()[0], processes[1]);
    }
    assert!(host.restart_seconds() > 0.0);
    assert_eq!(host.spares("failed"), 0);
    drop(session);
    wait_until(|| host.isolation.processes().is_empty());
}

#[test]
fn models_of_an_engine_share_one_spare() {
    let host = Host::with_spares(NAME);
    let first = host.load(ECHO);
    let second = host.load(ECHO);
    wait_until(|| host.spares("started") == 1);
    assert_eq!(host.isolation.processes().len(), 3);
    drop(first);
    assert_eq!(host.isolation.processes().len(), 2, "the spare stays while a model needs it");
    second.run(&vector(&[1.0]), &[]).unwrap();
    drop(second);
    wait_until(|| host.isolation.processes().is_empty());
    assert_eq!((host.spares("started"), host.spares("failed")), (1, 0));
}

#[test]
fn an_ended_spare_is_replaced() {
    let host = Host::with_spares(NAME);
    let session = host.load(ECHO);
    wait_until(|| host.spares("started") == 1);
    kill(host.isolation.processes()[1]);
    wait_until(|| host.spares("started") == 2);
    assert_eq!((host.spares("failed"), host.restarts()), (1, 0));
    restart(&host, &*session);
    assert_eq!(host.spares("used"), 1);
}

#[test]
fn a_spare_can_end_while_it_opens_its_library() {
    let host = Host::with_spares(HANGING_LIBRARY);
    let session = host.load(ECHO);
    wait_until(|| host.isolation.processes().len() == 2);
    kill(host.isolation.processes()[1]);
    wait_until(|| host.spares("failed") == 1 && host.isolation.processes().len() == 2);
    restart(&host, &*session);
    drop(session);
    wait_until(|| host.isolation.processes().is_empty());
    let counts = ["started", "used", "failed"].map(|kind| host.spares(kind));
    assert_eq!(counts, [0, 0, 1], "the end of the last session is no failure of a spare");
}

#[test]
fn a_new_process_serves_without_a_spare() {
    let hosts = [(Host::without_spares(), 0), (Host::with_spares(WITHOUT_LIBRARY), 1)];
    for (host, failures_min) in hosts {
        let session = host.load(ECHO);
        wait_until(|| host.spares("failed") >= failures_min);
        restart(&host, &*session);
        assert_eq!((host.spares("started"), host.spares("used")), (0, 0));
    }
}

/// The files do not fit the version when the spare process opens them.
#[test]
fn a_new_process_follows_a_refused_spare() {
    let host = Host::with_spares(NAME);
    let session = host.load(ECHO);
    wait_until(|| host.spares("started") == 1);
    host.graph(&format!("{ECHO}run-delay 1\n"));
    kill(host.isolation.processes()[0]);
    wait_until(|| match session.run(&vector(&[1.0]), &[]) {
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            error.message().contains("files have changed")
        }
        Ok(_) => false,
    });
    host.graph(ECHO);
    recovered(&*session);
    assert_eq!(host.spares("used"), 1);
    assert!(host.restarts() > 1);
}
