//! Loads on a machine whose cores are busy with other programs.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use lifecycle::{LifecycleEvent, LoadCost};

use crate::world::{MIB, Setting, World, cold, eventually};

/// Starvation limit.
const LIMIT: Duration = Duration::from_secs(2);
/// Maximum tries to get a load into the engine within [`LIMIT`]. Other programs may keep all cores
/// busy, which leaves no time to a thread of idle priority.
const TRIES_MAX: usize = 10;

/// Runs the tests of this file one after the other. The hogs of another test could make a load
/// starve before it is inside the engine.
fn alone() -> MutexGuard<'static, ()> {
    static RUNNING: Mutex<()> = Mutex::new(());
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps all cores busy.
struct Hogs(Arc<AtomicBool>, Vec<JoinHandle<()>>);

impl Hogs {
    fn start() -> Hogs {
        let stop = Arc::new(AtomicBool::new(false));
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let hog = |_| {
            let stop = stop.clone();
            std::thread::spawn(move || while !stop.load(Ordering::Relaxed) {})
        };
        let hogs = (0..2 * cores).map(hog).collect();
        Hogs(stop, hogs)
    }
}

impl Drop for Hogs {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
        self.1.drain(..).for_each(|hog| hog.join().unwrap());
    }
}

/// Waits until the second load is inside the engine. Returns false, and stops the world, if it
/// starved before, so that a thread of ordinary priority began it.
fn is_idle_inside(world: &World) -> bool {
    let loads = || world.threads.loads.lock().unwrap().clone();
    eventually("a thread is inside the engine", || loads().len() >= 2);
    let is_idle = loads()[1].starts_with("load-0-idle ");
    if !is_idle {
        world.threads.busy.store(false, Ordering::Relaxed);
        world.lifecycle().shutdown();
    }
    is_idle
}

fn cost(world: &World, wanted: u64) -> LoadCost {
    let cost = world.events.all().into_iter().find_map(|event| match event {
        LifecycleEvent::Loaded { version, cost, .. } if version == wanted => Some(cost),
        _ => None,
    });
    cost.unwrap()
}

#[test]
fn a_load_that_starves_in_an_engine_escalates_beside_it() {
    let _alone = alone();
    assert!((0..TRIES_MAX).any(|_| escalates_beside_the_engine()));
}

/// Returns false if the load starved before it was inside the engine.
fn escalates_beside_the_engine() -> bool {
    let mut world = World::prepare(64 * MIB);
    world.publish_tables("m", 1, &[1.0, 2.0]);
    let models = vec![cold(&world, "m")];
    world.start(Setting {
        models,
        change: |config| config.starvation_limit = LIMIT,
        ..Setting::default()
    });
    world.until_ready("m", 1);
    assert!(world.lifecycle().wait_settled(Duration::from_secs(30)));
    let used = world.used();
    world.threads.busy.store(true, Ordering::Relaxed);
    world.publish_tables("m", 2, &[3.0, 4.0]);
    if !is_idle_inside(&world) {
        return false;
    }
    let hogs = Hogs::start();
    world.until_ready("m", 2);
    assert_eq!(world.ask("m").unwrap(), 2.0);
    drop(hogs);
    let escalated = cost(&world, 2);
    let limit = LIMIT.as_secs_f64();
    assert!(escalated.escalated && escalated.load_seconds > limit, "{escalated:?}");
    assert_eq!(escalated.bytes_shared, 4 * MIB, "the other thread has read them: {escalated:?}");
    world.remove("m", 1);
    eventually("the old version is gone", || world.status("m").unwrap().versions.len() == 1);
    // The other thread ends, and its objects are dropped with it.
    world.threads.busy.store(false, Ordering::Relaxed);
    let ended = || {
        world.threads.releases.lock().unwrap().iter().any(|name| name.starts_with("load-0-idle "))
    };
    eventually("the session that nobody wants is dropped", ended);
    eventually("nothing is kept twice", || world.used() == used);
    assert_eq!(world.ask("m").unwrap(), 2.0);
    // Other programs may keep the cores busy too, but not all the time.
    let gentle = (3..20).any(|version| {
        world.publish_tables("m", version, &[5.0]);
        world.until_ready("m", version);
        !cost(&world, version).escalated
    });
    assert!(gentle);
    let loads = world.threads.loads.lock().unwrap().clone();
    let names: Vec<&str> = loads.iter().filter_map(|name| name.split(' ').next()).collect();
    assert_eq!(names[..3], ["load-0-hi", "load-0-idle", "load-0-hi"]);
    assert_eq!(names.last(), Some(&"load-0-idle"));
    world.lifecycle().shutdown();
    true
}

#[test]
fn a_stopped_load_inside_an_engine_is_not_started_again() {
    let _alone = alone();
    assert!((0..TRIES_MAX).any(|_| stays_stopped_inside_the_engine()));
}

/// Returns false if the load starved before it was inside the engine.
fn stays_stopped_inside_the_engine() -> bool {
    let mut world = World::prepare(64 * MIB);
    world.publish("m", 1);
    let models = vec![cold(&world, "m")];
    world.start(Setting {
        models,
        change: |config| config.starvation_limit = LIMIT,
        ..Setting::default()
    });
    world.until_ready("m", 1);
    assert!(world.lifecycle().wait_settled(Duration::from_secs(30)));
    world.threads.busy.store(true, Ordering::Relaxed);
    world.publish("m", 2);
    if !is_idle_inside(&world) {
        return false;
    }
    let loads = || world.threads.loads.lock().unwrap().len();
    world.remove("m", 2);
    let note = || world.version("m", 2).and_then(|version| version.note).unwrap_or_default();
    eventually("the load is stopped", || note().contains("has not ended"));
    let hogs = Hogs::start();
    eventually("the load thread waits no longer", || world.version("m", 2).is_none());
    drop(hogs);
    world.publish("m", 2);
    let reason = || world.version("m", 2).and_then(|version| version.reason).unwrap_or_default();
    eventually("the reason", || reason().contains("was stopped and has not ended"));
    assert_eq!(loads(), 2, "a second load has not begun");
    world.threads.busy.store(false, Ordering::Relaxed);
    world.until_ready("m", 2);
    assert!(loads() > 2);
    world.lifecycle().shutdown();
    true
}
