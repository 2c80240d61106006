use std::time::{Duration, Instant};

use engine::conformance::resident_bytes;

use crate::support::{bind, engine, floats, load, model, output, publish, run, store};

/// Most bytes by which the process may grow over all cycles.
const GROWTH_MAX: usize = 24 << 20;
/// Longest wait for the threads of closed sessions to end.
const WAIT_MAX: Duration = Duration::from_secs(30);

#[test]
fn loads_and_closes_leave_nothing_behind() {
    let Some(engine) = engine() else { return };
    if std::env::var_os(crate::threads::CHILD).is_none() {
        return crate::threads::run_child("cycles::loads_and_closes_leave_nothing_behind");
    }
    let dir = publish(&engine, &model("half_plus_two"));
    let store = store(16 << 20);
    let cycle = || {
        let bound = bind(&engine, &store, dir.path());
        let plain = load(&engine, &model("half_plus_two")).unwrap();
        for session in [&bound.session, &plain] {
            let outputs = run(&**session, "serving_default", &[floats("x", &[2.0])]);
            assert_eq!(output(&outputs, "y"), [3.0]);
        }
    };
    for _ in 0..40 {
        cycle();
    }
    let before = resident_bytes();
    let threads = || {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        tasks.filter(|task| crate::threads::counts(&task.as_ref().unwrap().path())).count()
    };
    let threads_before = threads();
    for _ in 0..200 {
        cycle();
    }
    assert_eq!(store.pool().stats().used, 0);
    let until = Instant::now() + WAIT_MAX;
    while threads() > threads_before && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(threads() <= threads_before, "{} threads after {threads_before}", threads());
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < GROWTH_MAX, "the process grew by {grown} bytes in 200 cycles");
    eprintln!("grew by {grown} bytes");
}
