//! Isolated models of a real server: the worker process is the program itself.

use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::program::{Run, write_model};
use crate::serve::{Server, publish};

const HALF: [&str; 3] = ["infer", "half_plus_two", "x=[1,2,5]"];
const OTHER: [&str; 3] = ["infer", "other", "x=[1,2,5]"];
const WAIT_MAX: Duration = Duration::from_secs(30);

fn answers(run: &Run) -> bool {
    run.code == 0 && run.stdout.ends_with("2.50000  3.00000  4.50000\n")
}

/// Returns the worker processes of a server.
fn workers(server: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{server}/task")).unwrap();
    let children = tasks.map(|task| {
        std::fs::read_to_string(task.unwrap().path().join("children")).unwrap_or_default()
    });
    let children: String = children.collect();
    let is_worker = |process: &u32| {
        let line = std::fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
        line.split(|&byte| byte == 0).nth(1) == Some(b"worker")
    };
    children.split_whitespace().map(|pid| pid.parse().unwrap()).filter(is_worker).collect()
}

fn kill(signal: &str, process: u32) {
    let arguments = [format!("-{signal}"), process.to_string()];
    assert!(std::process::Command::new("kill").args(arguments).status().unwrap().success());
}

fn runs(process: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat"));
    stat.is_ok_and(|stat| !stat.contains(") Z "))
}

fn wait_for_end(process: u32) {
    let deadline = Instant::now() + WAIT_MAX;
    while runs(process) {
        assert!(Instant::now() < deadline, "process {process} lives on");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_dead_worker_process_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    publish(dir.path(), 0.5);
    let models = dir.path().join("models");
    let settings = models.join("half_plus_two/millpond.toml");
    std::fs::create_dir_all(models.join("other")).unwrap();
    let copied = std::process::Command::new("cp")
        .args(["-r".as_ref(), models.join("half_plus_two/1").as_os_str()])
        .arg(models.join("other/1"))
        .status();
    assert!(copied.unwrap().success());
    std::fs::write(settings, "isolate = true\n").unwrap();
    let server = Server::start_logged(&[models.to_str().unwrap()], Stdio::null());
    server.wait_until("ready", &["models", "status", "half_plus_two"], |run| run.code == 0);
    server.wait_until("ready", &["models", "status", "other"], |run| run.code == 0);
    let [worker] = workers(server.id())[..] else { panic!("there is one worker process") };
    assert!(answers(&server.client(&HALF)) && answers(&server.client(&OTHER)));

    kill("SEGV", worker);
    assert!(answers(&server.client(&OTHER)), "the other model serves on");
    server.wait_until("the model is back", &HALF, answers);
    let metrics = server.metrics("/metrics");
    let restarts = "millpond_worker_restarts_total{model=\"half_plus_two\"} 1";
    assert!(metrics.contains(restarts), "{metrics}");
    let [second] = workers(server.id())[..] else { panic!("there is one worker process") };
    assert_ne!(second, worker);

    // SIGTERM of a service manager goes to all processes; the worker process serves until the end.
    kill("TERM", second);
    assert!(answers(&server.client(&HALF)));
    assert_eq!(server.terminate(), Some(0));
    wait_for_end(second);
}

#[test]
fn a_killed_server_ends_its_worker_processes() {
    let dir = tempfile::tempdir().unwrap();
    publish(dir.path(), 0.5);
    let models = dir.path().join("models");
    std::fs::write(models.join("half_plus_two/millpond.toml"), "isolate = true\n").unwrap();
    let server = Server::start_logged(&[models.to_str().unwrap()], Stdio::null());
    server.wait_until("ready", &["models", "status", "half_plus_two"], |run| run.code == 0);
    let [worker] = workers(server.id())[..] else { panic!("there is one worker process") };
    server.signal("KILL");
    wait_for_end(worker);
}

/// An upgrade replaces the program, and the server is not restarted.
#[test]
fn a_replaced_program_starts_children_of_its_own() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let program = dir.path().join("millpond");
    // A link, since a file that is open for writing cannot be started.
    std::fs::hard_link(env!("CARGO_BIN_EXE_millpond"), &program).unwrap();
    publish(dir.path(), 0.5);
    let models = dir.path().join("models");
    std::fs::write(models.join("half_plus_two/millpond.toml"), "isolate = true\n").unwrap();
    let server = Server::start_at(&program, models.to_str().unwrap());
    server.wait_until("ready", &["models", "status", "half_plus_two"], |run| run.code == 0);

    let other = dir.path().join("other");
    std::fs::write(&other, "#!/bin/sh\nexit 1\n").unwrap();
    std::fs::set_permissions(&other, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::rename(&other, &program).unwrap();
    let [worker] = workers(server.id())[..] else { panic!("there is one worker process") };
    kill("KILL", worker);
    server.wait_until("the model is back", &HALF, answers);
    let [worker] = workers(server.id())[..] else { panic!("there is one worker process") };
    let name = std::fs::read_to_string(format!("/proc/{worker}/comm")).unwrap();
    assert_eq!(name, "millpond\n");

    let unpublished = models.join("other/1");
    std::fs::create_dir_all(&unpublished).unwrap();
    write_model(&unpublished.join("model.onnx"), 0.5);
    server.wait_until("converted", &["models", "status", "other"], |run| run.code == 0);
    assert!(answers(&server.client(&OTHER)));
}
