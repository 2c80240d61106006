//! Running the binary, and models for it.

use std::path::Path;
use std::process::{Command, Output};

use base::{DType, Dim};
use engine_onnx::publish::build::{ModelBuilder, Node};

/// The binary with `arguments`, without the environment of the user.
pub(crate) fn command(arguments: &[&str]) -> Command {
    command_of(Path::new(env!("CARGO_BIN_EXE_millpond")), arguments)
}

/// The binary at `program` with `arguments`, without the environment of the user.
pub(crate) fn command_of(program: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).env_clear().env("MILLPOND_CACHE_DIR", env!("CARGO_TARGET_TMPDIR"));
    // The library of the virtual environment that runs the tests, for tests that need a real
    // engine.
    if let Some(environment) = std::env::var_os("VIRTUAL_ENV") {
        command.env("VIRTUAL_ENV", environment);
    }
    command
}

/// Result of a finished run.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl From<Output> for Run {
    fn from(output: Output) -> Run {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Run {
            code: output.status.code().unwrap_or(-1),
            stdout: text(&output.stdout),
            stderr: text(&output.stderr),
        }
    }
}

/// Runs the binary to its end.
pub(crate) fn run(arguments: &[&str]) -> Run {
    command(arguments).output().unwrap().into()
}

/// Runs the binary, and checks its exit code, that its standard error contains `stderr`, and that
/// its standard output is empty.
pub(crate) fn check_error(arguments: &[&str], code: i32, stderr: &str) {
    let run = run(arguments);
    assert_eq!(run.code, code, "{arguments:?}: {run:?}");
    assert!(run.stderr.contains(stderr), "{arguments:?}: {run:?}");
    assert_eq!(run.stdout, "", "{arguments:?}: nothing but results goes to standard output");
}

/// Writes a model that gives `x * factor + 2` for `x` of any length.
pub(crate) fn write_model(path: &Path, factor: f32) {
    let open = [Dim::Dynamic(Some("n".into()))];
    let model = ModelBuilder::new("half_plus_two", 18)
        .input("x", DType::F32, &open)
        .output("y", DType::F32, &open)
        .floats("factor", &[1], &[factor])
        .floats("two", &[1], &[2.0])
        .node(Node::new("Mul", &["x", "factor"], &["half"]))
        .node(Node::new("Add", &["half", "two"], &["y"]));
    std::fs::write(path, model.encode()).unwrap();
}
