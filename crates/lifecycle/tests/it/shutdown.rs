//! The end.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use base::ErrorKind;
use lifecycle::LoadSpec;

use crate::world::{World, eventually, input};

#[test]
fn everything_is_released() {
    let world = World::with_model();
    world.publish("n", 3);
    world.until_ready("n", 3);
    world.lifecycle().shutdown();
    assert_eq!((world.fake.counters().live(), world.used()), (0, 0));
    assert_eq!(
        world.lifecycle().catalog().get("m", None).unwrap_err().kind(),
        ErrorKind::Unavailable
    );
    assert_eq!(world.load("m", LoadSpec::default()).unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(world.unload("m").unwrap_err().kind(), ErrorKind::Unavailable);
    // A thread of idle priority may hold the work of a load for a moment after it.
    eventually("the cache is removed", || {
        std::fs::read_dir(world.cache.path()).unwrap().next().is_none()
    });
    world.lifecycle().shutdown();
}

#[test]
fn a_running_request_is_waited_for() {
    let world = World::with_model();
    let held = world.lifecycle().catalog().get("m", None).unwrap();
    std::thread::scope(|scope| {
        let stopping = scope.spawn(|| world.lifecycle().shutdown());
        eventually("out of the catalogue", || world.lifecycle().catalog().get("m", None).is_err());
        assert!(!stopping.is_finished());
        assert!(held.run(&[input(1.0)], &[]).is_ok());
        drop(held);
        stopping.join().unwrap();
    });
    assert_eq!(world.fake.counters().live(), 0);
    assert!(world.threads.releases.lock().unwrap()[0].starts_with("unload-"));
}

#[test]
fn a_starving_unload_thread_holds_up_its_own_version_only() {
    let world = World::with_model();
    for model in ["n", "o"] {
        world.publish(model, 1);
        world.until_ready(model, 1);
    }
    world.threads.starved.store(true, Ordering::Relaxed);
    std::thread::scope(|scope| {
        let stopping = scope.spawn(|| world.lifecycle().shutdown());
        let of_last_thread = |name: &String| name.starts_with("unload-stop ");
        eventually("the others are released", || {
            let releases = world.threads.releases.lock().unwrap();
            releases.iter().filter(|name| of_last_thread(name)).count() >= 2
        });
        world.threads.starved.store(false, Ordering::Relaxed);
        stopping.join().unwrap();
    });
    assert_eq!((world.fake.counters().live(), world.used()), (0, 0));
}

#[test]
fn a_running_load_is_stopped() {
    let world = World::with_model();
    world.fake.load_gate().close();
    world.publish("m", 2);
    let load = world.load_later("m", LoadSpec::default());
    world.fake.load_gate().wait_for(1);
    std::thread::scope(|scope| {
        let stopping = scope.spawn(|| world.lifecycle().shutdown());
        assert_eq!(load.recv().unwrap().unwrap_err().kind(), ErrorKind::Unavailable);
        world.fake.load_gate().open();
        stopping.join().unwrap();
    });
    assert_eq!((world.fake.counters().live(), world.used()), (0, 0));
}

#[test]
fn a_request_that_never_ends_is_abandoned() {
    let world = World::with_model();
    let held = world.lifecycle().catalog().get("m", None).unwrap();
    let started = Instant::now();
    world.lifecycle().shutdown();
    assert!(started.elapsed() < lifecycle::SHUTDOWN_WAIT_MAX + Duration::from_secs(10));
    drop(held);
    assert_eq!(world.fake.counters().releases(), 0, "not released by the request's thread");
}
