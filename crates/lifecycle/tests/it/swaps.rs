//! Swaps of versions under load, without a failed request.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use lifecycle::{LifecycleEvent, LifecycleState};

use crate::world::{MIB, NEVER, Setting, World, cold, eventually, input};

#[test]
fn requests_never_fail_while_versions_change() {
    let world = World::with_model();
    let (stop, answers) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut last = 0.0;
                while !stop.load(Ordering::Relaxed) {
                    let version = world.ask("m").expect("an answer at any time");
                    assert!(version >= last, "version {version} after {last}");
                    last = version;
                    answers.fetch_add(1, Ordering::Relaxed);
                    std::thread::yield_now();
                }
            });
        }
        for version in 2..=6 {
            let before = answers.load(Ordering::Relaxed);
            world.publish("m", version);
            world.until_ready("m", version);
            world.until("m", version - 1, LifecycleState::Released);
            eventually("answers go on", || answers.load(Ordering::Relaxed) > before + 10);
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(world.ready("m"), "6");
    let expected = "1:discovered 1:admitted 1:loading 1:warming 1:ready \
                    2:discovered 2:admitted 2:loading 2:warming 2:ready 1:draining 1:released";
    assert!(world.events.states("m").starts_with(expected), "{}", world.events.states("m"));
}

#[test]
fn only_the_unload_thread_releases() {
    let mut world = World::prepare(64 * MIB);
    world.publish("m", 1);
    world.start(Setting { change: |config| config.starvation_limit = NEVER, ..Setting::default() });
    world.until_ready("m", 1);
    let held = world.lifecycle().catalog().get("m", None).unwrap();
    world.publish("m", 2);
    world.until("m", 1, LifecycleState::Draining);
    assert_eq!(world.ask("m").unwrap(), 2.0);
    assert_eq!(held.run(&[input(3.0)], &[]).unwrap()[0].tensor.to_vec::<f32>().unwrap(), [3.0]);
    assert!(world.threads.releases.lock().unwrap().is_empty());
    drop(held);
    world.until("m", 1, LifecycleState::Released);
    let releases = world.threads.releases.lock().unwrap().clone();
    assert_eq!(releases.len(), 1);
    assert!(releases[0].starts_with("unload-0 "), "{releases:?}");
    let loads = world.threads.loads.lock().unwrap().clone();
    assert_eq!(loads.len(), 2);
    assert!(
        loads[0].starts_with("load-0-hi ") && loads[1].starts_with("load-0-idle "),
        "{loads:?}"
    );
}

#[test]
fn a_slow_request_delays_its_own_version_only() {
    let mut world = World::prepare(64 * MIB);
    world.publish("a", 1);
    world.publish("b", 1);
    let models = vec![cold(&world, "a"), cold(&world, "b")];
    world.start(Setting { models, ..Setting::default() });
    world.until_ready("a", 1);
    world.until_ready("b", 1);
    let slow = world.lifecycle().catalog().get("a", None).unwrap();
    world.fake.run_gate().close();
    std::thread::scope(|scope| {
        let request = scope.spawn(|| slow.run(&[input(1.0)], &[]));
        world.fake.run_gate().wait_for(1);
        world.publish("a", 2);
        world.until("a", 1, LifecycleState::Draining);
        world.publish("b", 2);
        world.until_ready("b", 2);
        world.until("b", 1, LifecycleState::Released);
        world.publish("a", 3);
        world.until_ready("a", 3);
        world.until("a", 2, LifecycleState::Released);
        assert_eq!(world.state("a", 1), Some(LifecycleState::Draining));
        world.fake.run_gate().open();
        assert!(request.join().unwrap().is_ok());
    });
    drop(slow);
    world.until("a", 1, LifecycleState::Released);
}

#[test]
fn two_hundred_swaps_leave_no_trace() {
    let mut world = World::prepare(64 * MIB);
    world.publish("m", 1);
    let models = vec![cold(&world, "m")];
    world.start(Setting {
        models,
        change: |config| config.starvation_limit = NEVER,
        ..Setting::default()
    });
    world.until_ready("m", 1);
    let used = world.used();
    for version in 2..=201 {
        world.publish("m", version);
        world.until_ready("m", version);
        world.remove("m", version - 1);
        eventually("the old version is gone", || world.status("m").unwrap().versions.len() == 1);
        assert_eq!(world.used(), used, "after version {version}");
        assert_eq!(world.fake.counters().live(), 1);
    }
    let pool = world.store.pool().stats();
    assert!(pool.backed <= 3 * used, "the pool recycles: {pool:?}");
    let threads = |names: &[String]| names.iter().cloned().collect::<BTreeSet<_>>().len();
    assert_eq!(threads(&world.threads.loads.lock().unwrap()), 2, "the first load, and all others");
    assert_eq!(threads(&world.threads.releases.lock().unwrap()), 1);
    assert_eq!(world.lifecycle().catalog().names().len(), 1);
    let swaps = world
        .events
        .all()
        .into_iter()
        .filter(|event| matches!(event, LifecycleEvent::Swapped(_)))
        .count();
    assert_eq!(swaps, 200);
}

#[test]
fn common_parameters_are_shared() {
    let mut world = World::prepare(64 * MIB);
    world.publish_tables("m", 1, &[1.0, 2.0, 3.0]);
    world.start(Setting::default());
    world.until_ready("m", 1);
    world.publish_tables("m", 2, &[1.0, 2.0, 4.0]);
    world.until("m", 1, LifecycleState::Released);
    let report = world.events.all().into_iter().find_map(|event| match event {
        LifecycleEvent::Swapped(report) => Some(report),
        _ => None,
    });
    let report = report.expect("a swap was reported");
    assert_eq!((report.from, report.to, &*report.model), (1, 2, "m"));
    assert_eq!(report.bytes_shared, 4 * MIB);
    assert_eq!(report.bytes_read, 2 * MIB + 8, "one table and two numbers");
    assert!(
        report.load_seconds > 0.0 && report.warm_seconds > 0.0 && report.loader_cpu_seconds > 0.0
    );
    assert_eq!(world.version("m", 2).unwrap().parameter_bytes, 6 * MIB + 8);
    assert_eq!(world.version("m", 1).unwrap().parameter_bytes, 0);
}

#[test]
fn the_pool_is_backed_before_the_first_load_is_finished() {
    let mut world = World::prepare(64 * MIB);
    world.publish_tables("m", 1, &[1.0, 2.0]);
    world.start(Setting::default());
    assert!(world.lifecycle().wait_settled(std::time::Duration::from_secs(30)));
    assert!(world.lifecycle().settled());
    assert_eq!(world.ready("m"), "1");
    let pool = world.store.pool().stats();
    assert_eq!((pool.used, pool.backed), (6 * MIB, 12 * MIB), "room for one more of the same size");
}
