//! `millpond-bench` as `millpond bench` starts it.

#![expect(clippy::unwrap_used, reason = "a test's helper may panic as the test does")]

use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use coarse::Metric;
use search::points::{NewPoint, PointId};
use search::registry::{CollectionSettings, Registry, RegistryOptions};

/// Longest wait for something that takes a second.
const WAIT_MAX: Duration = Duration::from_secs(120);

fn run(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_millpond-bench"));
    command.args(arguments).env_clear().env("MILLPOND_CACHE_DIR", env!("CARGO_TARGET_TMPDIR"));
    command.env("MILLPOND_PROGRAM", "/no/such/millpond").output().unwrap()
}

/// Runs the program, and checks its exit code, that its standard error contains `text`, and that
/// its standard output is empty.
fn check_error(arguments: &[&str], code: i32, text: &str) {
    let output = run(arguments);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {stderr}");
    assert!(stderr.contains(text), "{arguments:?}: {stderr}");
    assert!(output.stdout.is_empty(), "{arguments:?}");
}

/// A process that is killed if a test fails.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    fn start(command: &mut Command) -> Running {
        let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Running(quiet.spawn().unwrap())
    }

    /// Sends SIGTERM.
    fn terminate(&self) {
        let pid = rustix::process::Pid::from_raw(self.0.id() as i32).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    }

    fn end(&mut self) -> ExitStatus {
        wait_for(|| self.0.try_wait().unwrap())
    }
}

/// Waits until `of` returns a value.
fn wait_for<T>(mut of: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + WAIT_MAX;
    loop {
        if let Some(value) = of() {
            return value;
        }
        assert!(Instant::now() < deadline, "it takes too long");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_signal_removes_the_files_of_a_run() {
    let cache = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_millpond-bench"));
    // Few values, so that the run needs little free disk.
    command.args(["duplicates", "--rows", "200000", "--dims", "8"]);
    command.arg("--cache-dir").arg(cache.path());
    command.env_clear().env("MILLPOND_PROGRAM", "/no/such/millpond");
    let mut running = Running::start(&mut command);
    let files = || std::fs::read_dir(cache.path()).unwrap().count();
    wait_for(|| (files() > 0).then_some(()));
    running.terminate();
    assert_eq!((running.end().code(), files()), (Some(143), 0));
}

#[test]
fn a_signal_ends_the_writer_of_bench_crash() {
    let folder = tempfile::tempdir().unwrap();
    let writer = folder.path().join("millpond");
    // A shell writes the program, so that no other test's child holds it open for writing.
    // The pause lets bench crash note the process before this test sees it.
    let text = "printf '#!/bin/sh\\nsleep 1\\necho $$ > \"$0.pid\"\\nexec sleep 600\\n' > \"$0\" \
                && chmod +x \"$0\"";
    assert!(Command::new("/bin/sh").args(["-c", text]).arg(&writer).status().unwrap().success());
    let mut command = Command::new(env!("CARGO_BIN_EXE_millpond-bench"));
    command.args(["crash", "--cache-dir"]).arg(folder.path().join("cache"));
    command.env_clear().env("PATH", "/usr/bin:/bin").env("MILLPOND_PROGRAM", &writer);
    let mut running = Running::start(&mut command);
    let id = wait_for(|| {
        let id = std::fs::read_to_string(writer.with_extension("pid")).ok()?;
        id.strip_suffix('\n').map(str::to_owned)
    });
    running.terminate();
    assert_eq!(running.end().code(), Some(143));
    // An ended process stays until its new parent has noticed the end.
    wait_for(|| {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        (stat.is_empty() || stat.contains(") Z ")).then_some(())
    });
}

#[test]
fn a_program_to_be_killed_ends_with_its_parent() {
    let folder = tempfile::tempdir().unwrap();
    let registry = Registry::open(RegistryOptions::new(folder.path().join("collections"))).unwrap();
    let collection = registry.create("backup", CollectionSettings::new(4, Metric::Cosine)).unwrap();
    let payload = serde_json::Map::new();
    let point = |id| {
        let embedding = &[1.0, 2.0, 3.0, 4.0];
        NewPoint { id: PointId::Number(id), embedding, record: &[], payload: &payload }
    };
    collection.upsert(&(0..1000).map(point).collect::<Vec<_>>()).unwrap();
    drop((collection, registry));
    let mut command = Command::new(env!("CARGO_BIN_EXE_millpond-bench"));
    command.args(["backup", "--rows", "1000", "--dims", "4", "--child"]).arg(folder.path());
    command.env_clear().env("MILLPOND_PROGRAM", "/no/such/millpond");
    command.env("MILLPOND_CACHE_DIR", folder.path());
    // Its standard input has ended, as after the end of the process that holds the other end.
    assert!(Running::start(&mut command).end().success());
}

#[test]
fn definitions_are_consistent() {
    millpond_bench::arguments::command().debug_assert();
}

#[test]
fn wrong_arguments_are_usage_errors() {
    check_error(&["swap", "--load", "7"], 2, "error: --load must be above 0");
    check_error(&["swap", "--lood", "7"], 2, "Usage: millpond bench swap");
    for flag in ["--tls", "--tracing"] {
        check_error(&["overhead", flag, "--model", "light"], 2, "cannot be used with");
        check_error(&["overhead", flag, "--compute", "2ms"], 2, "cannot be used with");
    }
    check_error(&["audio", "--minutes", "0"], 2, "--minutes");
    check_error(&["audio", "--threads", "1,1"], 2, "different numbers");
    check_error(&["audio", "--clips", "/no/such/clips"], 1, "no such directory of clips");
}

#[test]
fn a_wrong_library_is_named_by_its_variable() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_millpond-bench"));
    command.args(["swap", "--quick"]).env_clear();
    command.env("MILLPOND_CACHE_DIR", env!("CARGO_TARGET_TMPDIR"));
    command.env("MILLPOND_PROGRAM", "/no/such/millpond").env("MILLPOND_ONNXRUNTIME", "/no/such.so");
    let output = command.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("MILLPOND_ONNXRUNTIME /no/such.so: "), "{stderr}");
}

#[test]
fn only_millpond_starts_it() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_millpond-bench"));
    let output = command.arg("vectors").env_clear().output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("start this as `millpond bench`"));
}
