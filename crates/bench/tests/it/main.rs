//! `millpond-bench` as `millpond bench` starts it.

#![expect(clippy::unwrap_used, reason = "a test's helper may panic as the test does")]

use std::process::{Command, Output};

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
fn only_millpond_starts_it() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_millpond-bench"));
    let output = command.arg("vectors").env_clear().output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("start this as `millpond bench`"));
}
