//! Tasks of the workspace: `cargo xtask tidy [--report OUT]`, `cargo xtask codegen [--check]`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[cfg(feature = "codegen")]
mod codegen;
mod tidy;

const USAGE: &str = "usage: cargo xtask tidy [--report OUT] | codegen [--check]";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match arguments[..] {
        ["tidy"] => tidy::run(&root()),
        ["tidy", "--report", out] => {
            tidy::write_report(&root(), Path::new(out)).and_then(|()| tidy::run(&root()))
        }
        ["codegen"] => codegen(false),
        ["codegen", "--check"] => codegen(true),
        _ => Err(anyhow::anyhow!(USAGE)),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Returns the root of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the repository").to_owned()
}

#[cfg(feature = "codegen")]
fn codegen(check: bool) -> anyhow::Result<()> {
    codegen::run(&root(), check)
}

/// Starts xtask built with the generator, which a plain build leaves out because it is heavy.
#[cfg(not(feature = "codegen"))]
fn codegen(check: bool) -> anyhow::Result<()> {
    let mut cargo = std::process::Command::new(env!("CARGO"));
    cargo.args(["run", "--quiet", "--package", "xtask", "--features", "codegen", "--", "codegen"]);
    cargo.args(check.then_some("--check")).current_dir(root());
    anyhow::ensure!(cargo.status()?.success(), "the generator failed");
    Ok(())
}
