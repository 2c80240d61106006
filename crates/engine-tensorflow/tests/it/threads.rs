//! Threads of TensorFlow. Each test runs in a process of its own, in which no other test has
//! threads.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use base::{NamedTensor, Tensor};
use engine::threads::idle_threads;
use engine::{Engine, LoadRequest, Session, SessionOptions};
use os::background::{Attempt, BackgroundRunner};

use crate::support::{engine, model};

/// Set in such a process.
pub(crate) const CHILD: &str = "MILLPOND_TEST_CHILD";
/// Flag of a thread that is ending (PF_EXITING in the kernel's sched.h).
const ENDING: u64 = 4;

/// Runs the test `name` in a process of its own, with `CHILD` set.
pub(crate) fn run_child(name: &str) {
    let program = std::env::current_exe().unwrap();
    let args = ["--exact", name, "--nocapture", "--test-threads", "1"];
    let output = Command::new(program).args(args).env(CHILD, "1").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let passed = String::from_utf8_lossy(&output.stdout);
    assert!(passed.contains("1 passed"), "{name}: {passed}");
}

/// Returns true if the thread counts. A joined thread is still listed for a moment. Threads of
/// jemalloc, which is linked if the whole workspace is built, come and go by themselves.
pub(crate) fn counts(task: &Path) -> bool {
    let Ok(stat) = std::fs::read_to_string(task.join("stat")) else { return false };
    // The second field, the name, ends with the last parenthesis. The ninth field holds the flags.
    let Some((name, fields)) = stat.rsplit_once(')') else { return false };
    let flags = fields.split_whitespace().nth(6).and_then(|flags| flags.parse::<u64>().ok());
    !name.contains("(jemalloc") && flags.is_some_and(|flags| flags & ENDING == 0)
}

/// Returns how often each thread but this one has been scheduled, by its number.
fn switches() -> BTreeMap<String, u64> {
    let own = std::fs::read_link("/proc/thread-self").unwrap();
    let own = own.file_name().unwrap().to_owned();
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().map(|entry| entry.unwrap());
    tasks
        .filter(|entry| entry.file_name() != own && counts(&entry.path()))
        .filter_map(|entry| {
            // Fails if the thread has ended since.
            let status = std::fs::read_to_string(entry.path().join("schedstat")).ok()?;
            let turns = status.split_whitespace().nth(2)?.parse::<u64>().ok()?;
            Some((entry.file_name().to_string_lossy().into_owned(), turns))
        })
        .collect()
}

fn load(engine: &dyn Engine, intra: usize, inter: usize) -> Box<dyn Session> {
    let options = SessionOptions {
        intra_op_threads: intra,
        inter_op_threads: inter,
        ..SessionOptions::default()
    };
    let graph = model("dense_1").join("saved_model.pb");
    engine.load(&LoadRequest { graph, options, ..LoadRequest::default() }).unwrap()
}

fn run(session: &dyn Session) {
    let x = Tensor::from_vec([64, 1024].as_slice(), vec![1f32; 64 * 1024]).unwrap();
    session.run(&[NamedTensor::new("x", x)], &[]).unwrap();
}

#[test]
fn a_run_uses_the_calling_thread() {
    let Some(engine) = engine() else { return };
    if std::env::var_os(CHILD).is_none() {
        return run_child("threads::a_run_uses_the_calling_thread");
    }
    let session = load(&engine, 1, 1);
    run(&*session);
    let before = switches();
    const RUNS: u64 = 100;
    for _ in 0..RUNS {
        run(&*session);
    }
    let after = switches();
    let known = after.keys().all(|thread| before.contains_key(thread));
    assert!(known, "a thread was started: {before:?}, {after:?}");
    // A thread that takes part in runs wakes at least once a run. Other threads of the process
    // (the test harness, TensorFlow's timers) wake now and then for reasons of their own.
    for (thread, turns) in &after {
        let woken = turns - before[thread];
        assert!(woken < RUNS / 2, "thread {thread} ran {woken} times: {before:?}, {after:?}");
    }
}

#[test]
fn threads_of_a_model_have_ordinary_priority() {
    let Some(engine) = engine() else { return };
    if std::env::var_os(CHILD).is_none() {
        return run_child("threads::threads_of_a_model_have_ordinary_priority");
    }
    let engine = Arc::new(engine);
    let first = load(&*engine, 1, 1);
    let before = switches();
    let mut runner = BackgroundRunner::new("test", "loading", Duration::from_secs(3600));
    let work = move |_: &Attempt| Ok(load(&*engine, 3, 1));
    let second = runner.run("test", &Arc::default(), work).unwrap();
    let new = switches().into_keys().filter(|thread| !before.contains_key(thread)).count();
    assert!(new > 3, "the runner's threads, and those of the model: {new}");
    assert_eq!(idle_threads(), ["test-idle"]);
    run(&*first);
    run(&*second);
}
