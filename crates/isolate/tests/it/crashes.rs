//! Worker processes that end.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use base::ErrorKind;
use engine::fake::NAME;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};

use crate::support::{ECHO, Host, children, recovered, vector, wait_until};

const POISON: f32 = 13.0;

fn poisonable() -> String {
    format!("{ECHO}abort-run {POISON}\n")
}

#[test]
fn an_abort_costs_its_own_model_only() {
    let host = Host::new();
    let (session, other) = (host.load(&poisonable()), host.load(ECHO));
    // Both have one file.
    host.graph(&poisonable());
    let error = session.run(&vector(&[POISON]), &[]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.retry_after().is_some());
    for part in ["SIGABRT", "Check failed: a value of this graph"] {
        assert!(error.message().contains(part), "{error}");
    }
    other.run(&vector(&[POISON]), &[]).unwrap();
    recovered(&*session);
    assert_eq!(host.restarts(), 1);
}

/// CUDA refuses every call of a process after the failure of a kernel.
#[test]
fn a_lost_device_ends_its_process() {
    let host = Host::new();
    let session = host.load(&format!("{ECHO}lose-run {POISON}\n"));
    session.run(&vector(&[1.0]), &[]).unwrap();
    let error = session.run(&vector(&[POISON]), &[]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.message().contains("the device of this fake has failed"), "{error}");
    recovered(&*session);
    assert_eq!(host.restarts(), 1);
}

#[test]
fn a_run_that_needs_too_much_memory_ends_its_process_only() {
    let host = Host::new();
    let options =
        engine::SessionOptions { isolate: true, run_memory: Some(64 << 20), ..Default::default() };
    let limited = host.open_with(host.graph(ECHO), options).unwrap();
    let unlimited = host.load(ECHO);
    let large = vector(&vec![1.0; 20 << 20]);
    let error = limited.run(&large, &[]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.message().contains("SIGABRT"), "{error}");
    recovered(&*limited);
    assert_eq!(host.restarts(), 1);
    // The limit holds for the new process too.
    assert_eq!(limited.run(&large, &[]).unwrap_err().kind(), ErrorKind::Unavailable);
    unlimited.run(&large, &[]).unwrap();
}

#[test]
fn an_abort_while_loading_is_a_failed_load() {
    let host = Host::new();
    let text = format!("{ECHO}abort-load Check failed: 1 == 2\n");
    let load = || host.open(host.graph(&text)).err().unwrap();
    let mut error = load();
    for _ in 0..5 {
        if error.message().contains("Check failed") {
            break;
        }
        // The reader of the process's output waited for a core for seconds, and the host went on.
        error = load();
    }
    assert_eq!(error.kind(), ErrorKind::Internal);
    for part in ["SIGABRT", "Check failed: 1 == 2", "loaded"] {
        assert!(error.message().contains(part), "{error}");
    }
    assert_eq!((host.restarts(), host.isolation.resident_bytes()), (0, 0));
}

#[test]
fn a_stopped_load_ends_its_process() {
    let host = Host::new();
    let graph = host.graph(&format!("{ECHO}load-delay 60000\n"));
    let stop = Arc::new(AtomicBool::new(false));
    let options = engine::SessionOptions { isolate: true, ..Default::default() };
    let request = engine::LoadRequest {
        model: "m".into(),
        graph,
        options,
        stop: stop.clone(),
        ..Default::default()
    };
    std::thread::scope(|scope| {
        let load = scope.spawn(|| engine::Engine::load(&host.engine, &request).err());
        let _stop = StopOnDrop(&stop);
        wait_until(|| !host.isolation.processes().is_empty());
        let process = host.isolation.processes()[0];
        stop.store(true, Ordering::Relaxed);
        let error = load.join().unwrap().unwrap();
        assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");
        assert!(!children().contains(&process));
    });
    assert_eq!((host.isolation.processes().len(), host.restarts()), (0, 0));
}

/// LibTorch copies a compiled package into this directory, and a killed process leaves it.
#[test]
fn temporary_files_of_a_process_are_removed() {
    let host = Host::new();
    let session = host.load(ECHO);
    let process = host.isolation.processes()[0];
    let variables = std::fs::read(format!("/proc/{process}/environ")).unwrap();
    let mut variables = variables.split(|&byte| byte == 0);
    let directory = variables.find_map(|variable| variable.strip_prefix(b"TMPDIR=")).unwrap();
    let directory = Path::new(OsStr::from_bytes(directory));
    std::fs::write(directory.join("package"), "a copy").unwrap();
    drop(session);
    wait_until(|| !directory.exists());
}

/// The caller keeps its stop flag until the end of the warm-up.
#[test]
fn a_stopped_warm_up_ends_its_process() {
    let host = Host::new();
    let graph = host.graph(&format!("{ECHO}run-delay 60000\n"));
    let stop = Arc::new(AtomicBool::new(false));
    let options = engine::SessionOptions { isolate: true, ..Default::default() };
    let request = engine::LoadRequest {
        model: "m".into(),
        graph,
        options,
        stop: stop.clone(),
        ..Default::default()
    };
    let session = engine::Engine::load(&host.engine, &request).unwrap();
    let process = host.isolation.processes()[0];
    let begins = std::sync::Barrier::new(2);
    std::thread::scope(|scope| {
        let run = scope.spawn(|| {
            begins.wait();
            session.run(&vector(&[1.0]), &[]).unwrap_err()
        });
        begins.wait();
        stop.store(true, Ordering::Relaxed);
        let error = run.join().unwrap();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.message().contains("the load was stopped"), "{error}");
    });
    assert!(!children().contains(&process));
    // Longer than the delay after which another process would be started.
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!((host.isolation.processes().len(), host.restarts()), (0, 0));
    drop(session);
}

#[test]
fn a_missing_program_is_named() {
    let config = millpond_isolate::IsolationConfig {
        program: "/nonexistent/millpond".into(),
        args: Vec::new(),
        runs: 1,
        run_time_max: Duration::from_secs(1),
        memory: millpond_isolate::WorkerMemory {
            read_rate: 0,
            fault_rate: 0,
            huge_pages: false,
            direct: false,
        },
        spares: false,
    };
    let isolation = millpond_isolate::Isolation::new(config, Default::default()).unwrap();
    let fake = std::sync::Arc::new(engine::fake::FakeEngine::new());
    let engine = millpond_isolate::IsolatingEngine::new(fake, isolation);
    let options = engine::SessionOptions { isolate: true, ..Default::default() };
    let request = engine::LoadRequest { options, ..Default::default() };
    let error = engine::Engine::load(&engine, &request).err().unwrap();
    assert!(error.message().contains("/nonexistent/millpond"), "{error}");
}

#[test]
fn a_killed_process_is_replaced_under_load() {
    let host = Host::new();
    let session = host.load(ECHO);
    let (stop, answered) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    match session.run(&vector(&[2.0]), &[]) {
                        Ok(outputs) => {
                            assert_eq!(outputs[0].tensor.to_vec::<f32>().unwrap(), [2.0]);
                            answered.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(error) => {
                            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
                            std::thread::sleep(Duration::from_millis(1));
                        }
                    }
                }
            });
        }
        let _stop = StopOnDrop(&stop);
        for round in 1..=3 {
            kill_newest(&host, Signal::SEGV);
            wait_until(|| host.restarts() == round && session.run(&vector(&[1.0]), &[]).is_ok());
            let before = answered.load(Ordering::Relaxed);
            wait_until(|| answered.load(Ordering::Relaxed) > before);
        }
    });
    assert_eq!(host.restarts(), 3);
}

/// Sets a flag when it is dropped, also by a failed assertion.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Sends a signal to the only worker process of `host`.
fn kill_newest(host: &Host, signal: Signal) {
    let processes = host.isolation.processes();
    assert_eq!(processes.len(), 1);
    kill_process(Pid::from_raw(processes[0] as i32).unwrap(), signal).unwrap();
}

#[test]
fn changed_files_do_not_serve_under_the_old_signature() {
    let host = Host::new();
    let session = host.load(ECHO);
    host.graph(&ECHO.replace("float32", "float64"));
    kill_newest(&host, Signal::KILL);
    wait_until(|| match session.run(&vector(&[1.0]), &[]) {
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Unavailable);
            error.message().contains("files have changed")
        }
        Ok(_) => false,
    });
    host.graph(ECHO);
    recovered(&*session);
}

#[test]
fn a_session_is_unavailable_until_its_process_is_replaced() {
    let host = Host::new();
    let session = host.load(ECHO);
    assert!(session.is_available());
    // No new process can serve these files.
    host.graph(&ECHO.replace("float32", "float64"));
    kill_newest(&host, Signal::KILL);
    wait_until(|| !session.is_available());
    host.graph(ECHO);
    wait_until(|| session.is_available());
    assert!(session.run(&vector(&[1.0]), &[]).is_ok());
}

#[test]
fn changed_files_with_the_same_signature_do_not_serve_either() {
    let host = Host::new();
    let session = host.load(ECHO);
    host.graph(&format!("{ECHO}run-delay 1\n"));
    kill_newest(&host, Signal::KILL);
    wait_until(|| host.restarts() > 0);
    wait_until(|| match session.run(&vector(&[1.0]), &[]) {
        Err(error) => error.message().contains("files have changed"),
        Ok(_) => false,
    });
}

#[test]
fn a_run_that_hangs_ends_its_process() {
    let host = Host::with_run_time(Duration::from_millis(300));
    let session = host.load(&format!("{ECHO}run-delay 60000\n"));
    let error = session.run(&vector(&[1.0]), &[]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
    wait_until(|| host.restarts() > 0);
}

#[test]
fn dropping_the_session_ends_its_process() {
    let host = Host::new();
    let session = host.load(&format!("{ECHO}run-delay 20\n"));
    let process = host.isolation.processes()[0];
    session.run(&vector(&[1.0]), &[]).unwrap();
    drop(session);
    assert!(!children().contains(&process));
    assert_eq!((host.isolation.processes().len(), host.restarts()), (0, 0));
}

/// The parent is a second copy of this program, killed with SIGKILL.
#[test]
fn a_killed_server_leaves_no_worker_process() {
    use std::io::{BufRead, BufReader};
    let mut server = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["crashes::server_with_a_worker", "--exact", "--ignored", "--nocapture"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
    let line = lines.find_map(|line| line.unwrap().split("worker ").nth(1).map(str::to_owned));
    let line = line.unwrap();
    let pids = line.split_whitespace().map(|pid| Pid::from_raw(pid.parse().unwrap()).unwrap());
    let workers: Vec<Pid> = pids.collect();
    assert_eq!(workers.len(), 2, "the process of the model, and a spare one");
    workers.iter().for_each(|&worker| test_kill_process(worker).unwrap());
    server.kill().unwrap();
    server.wait().unwrap();
    wait_until(|| !workers.iter().any(|&worker| running(worker)));
}

/// Returns true unless the process has ended, whether its new parent has waited for it or not.
fn running(process: Pid) -> bool {
    let stat = format!("/proc/{}/stat", process.as_raw_nonzero());
    std::fs::read_to_string(stat).is_ok_and(|stat| !stat.contains(") Z "))
}

#[test]
#[ignore = "started by another test as a server"]
fn server_with_a_worker() {
    let host = Host::with_spares(NAME);
    let _session = host.load(ECHO);
    wait_until(|| host.spares("started") == 1);
    let processes = host.isolation.processes();
    println!("worker {} {}", processes[0], processes[1]);
    std::thread::sleep(Duration::from_secs(60));
}

/// Name of a program that replaces its own file.
const REPLACED: &str = "replaced-program";

/// The parent is this program under another path, where another file takes its place.
#[test]
fn a_replaced_program_starts_workers_of_its_own() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let program = dir.path().join(REPLACED);
    // A link, since a file that is open for writing cannot be started.
    std::fs::hard_link(std::env::current_exe().unwrap(), &program).unwrap();
    let server = std::process::Command::new(&program)
        .args(["crashes::server_of_a_replaced_program", "--exact", "--ignored"])
        .output()
        .unwrap();
    assert!(server.status.success(), "{}", String::from_utf8_lossy(&server.stdout));
    assert!(std::fs::read_to_string(&program).unwrap().ends_with("exit 1\n"), "it was replaced");
}

#[test]
#[ignore = "started by another test as a server"]
fn server_of_a_replaced_program() {
    let program = std::env::current_exe().unwrap();
    if !program.ends_with(REPLACED) {
        return;
    }
    let host = Host::new();
    let other = program.with_extension("new");
    std::fs::write(&other, "#!/bin/sh\nexit 1\n").unwrap();
    std::fs::set_permissions(&other, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::rename(&other, &program).unwrap();
    let session = host.load(ECHO);
    assert!(session.run(&vector(&[1.0]), &[]).is_ok());
}
