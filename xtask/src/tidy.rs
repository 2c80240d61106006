//! `cargo xtask tidy`: the rules of the workspace that no compiler checks, listed in [`rules`].

mod checks;
mod comments;
mod items;
mod module_list;
mod modules;
mod report;
mod rules;
mod source;
mod workspace;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use checks::Complaint;

/// Checks the repository at `root` and prints every complaint.
///
/// # Errors
/// If a rule is broken, or if the repository cannot be read.
pub(crate) fn run(root: &Path) -> Result<()> {
    let complaints = check(root)?;
    for Complaint { place, text } in &complaints {
        eprintln!("{place}: {text}");
    }
    ensure!(complaints.is_empty(), "{} rules broken", complaints.len());
    println!("tidy: no complaints");
    Ok(())
}

/// Writes the figures behind the rules to `out`, as JSON.
///
/// # Errors
/// If the repository cannot be read or `out` cannot be written.
pub(crate) fn write_report(root: &Path, out: &Path) -> Result<()> {
    let paths = files(root)?;
    let mut totals = report::CommentTotals { wide: 0, refused: 0 };
    for path in paths.iter().filter(|path| path.ends_with(".rs") && !rules::is_generated(path)) {
        let Ok(text) = std::fs::read_to_string(root.join(path)) else { continue };
        totals.wide += comments::wide_lines(&text).len();
        totals.refused +=
            comments::refused_words(&text).len() + comments::refused_beginnings(&text).len();
    }
    let report = report::of(&workspace::read(root, &paths)?, &totals);
    let json = serde_json::to_string_pretty(&report)?;
    std::fs::write(out, json + "\n").with_context(|| out.display().to_string())
}

/// Checks all rules. Returns the violations.
fn check(root: &Path) -> Result<Vec<Complaint>> {
    let crates = crate_names(root)?;
    let workspace = workspace_crates(root)?;
    let mut complaints = Vec::new();
    let read = |path: &str| std::fs::read_to_string(root.join(path)).ok();
    let paths = files(root)?;
    complaints.extend(checks::stale_rows(&crates));
    for krate in &crates {
        let manifest = manifest(root, krate)?;
        let dependencies = dependencies(&manifest, &workspace);
        complaints.extend(checks::edges(krate, &dependencies));
        complaints.extend(checks::stale_edges(krate, &dependencies));
        complaints.extend(checks::lints(krate, &manifest));
        let sources = format!("crates/{krate}/src/");
        let sources = paths.iter().filter(|path| path.starts_with(&sources));
        let mut texts = sources.filter(|path| path.ends_with(".rs")).filter_map(|path| read(path));
        let has_examples = texts.any(|text| comments::has_example(&text));
        if root.join(format!("crates/{krate}/src/lib.rs")).exists() {
            complaints.extend(checks::doc_tests(krate, &manifest, has_examples));
        }
    }
    for path in &paths {
        // Files that are not text have no rules; a listed file may be missing in the work tree.
        let Some(text) = read(path) else { continue };
        complaints.extend(checks::registry_hosts(path, &text));
        if path.ends_with(".rs") {
            complaints.extend(checks::rust_file(path, &text));
        }
    }
    complaints.extend(checks::stale_exceptions(read));
    let architecture = read("ARCHITECTURE.md").context("ARCHITECTURE.md cannot be read")?;
    complaints.extend(checks::architecture(&architecture, &crates));
    complaints.extend(style(root)?);
    Ok(complaints)
}

/// Checks the rules of STYLE.md that a program can check.
fn style(root: &Path) -> Result<Vec<Complaint>> {
    let paths = files(root)?;
    let production = workspace::read(root, &paths)?;
    let mut complaints = checks::duplicate_types(&production);
    complaints.extend(checks::tuple_parameters(&production));
    complaints.extend(checks::module_rings(&production));
    complaints.extend(checks::module_lists(&production));
    complaints.extend(checks::crate_lengths(&production));
    for path in paths.iter().filter(|path| path.ends_with(".rs") && !rules::is_generated(path)) {
        let Ok(text) = std::fs::read_to_string(root.join(path)) else { continue };
        complaints.extend(checks::comments(path, &text));
    }
    Ok(complaints)
}

/// Returns the names of the directories under `crates/` that hold a crate, sorted.
fn crate_names(root: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(root.join("crates"))? {
        let entry = entry?;
        if entry.path().join("Cargo.toml").exists() {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    names.sort();
    ensure!(!names.is_empty(), "no crates under {}", root.join("crates").display());
    Ok(names)
}

fn manifest(root: &Path, krate: &str) -> Result<toml::Table> {
    let path: PathBuf = ["crates", krate, "Cargo.toml"].iter().collect();
    let text =
        std::fs::read_to_string(root.join(&path)).with_context(|| path.display().to_string())?;
    toml::from_str(&text).with_context(|| path.display().to_string())
}

/// Returns the workspace's crates that a manifest names, for building or for tests, also of one
/// target.
fn dependencies(manifest: &toml::Table, workspace: &BTreeMap<String, String>) -> Vec<String> {
    let targets = manifest.get("target").and_then(toml::Value::as_table);
    let targets = targets.into_iter().flat_map(|targets| targets.values());
    let parents = std::iter::once(manifest).chain(targets.filter_map(toml::Value::as_table));
    let mut found = Vec::new();
    for parent in parents {
        for table in ["dependencies", "dev-dependencies", "build-dependencies"] {
            let Some(table) = parent.get(table).and_then(toml::Value::as_table) else { continue };
            found.extend(table.keys().filter_map(|name| workspace.get(name).cloned()));
        }
    }
    found
}

/// Returns the dependency names of the workspace that point into `crates/`, with the directory of
/// each.
fn workspace_crates(root: &Path) -> Result<BTreeMap<String, String>> {
    let manifest: toml::Table = toml::from_str(&std::fs::read_to_string(root.join("Cargo.toml"))?)?;
    let Some(dependencies) =
        manifest["workspace"].get("dependencies").and_then(toml::Value::as_table)
    else {
        bail!("the workspace lists no dependencies");
    };
    let path = |value: &toml::Value| {
        Some(value.get("path")?.as_str()?.strip_prefix("crates/")?.to_owned())
    };
    Ok(dependencies.iter().filter_map(|(name, value)| Some((name.clone(), path(value)?))).collect())
}

/// Returns the files of the repository: tracked files, and files that `git add` would add.
fn files(root: &Path) -> Result<Vec<String>> {
    let listing = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"];
    let output = Command::new("git").arg("-C").arg(root).args(listing).output().context("git")?;
    ensure!(
        output.status.success(),
        "git ls-files: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    let names = String::from_utf8_lossy(&output.stdout);
    Ok(names.split('\0').filter(|name| !name.is_empty()).map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dependency_of_one_target_is_a_dependency() {
        let text = "[dependencies]\nbase.workspace = true\n\
                    [target.'cfg(unix)'.dev-dependencies]\nos.workspace = true\n";
        let manifest: toml::Table = toml::from_str(text).unwrap();
        let workspace: BTreeMap<String, String> =
            ["base", "os"].into_iter().map(|name| (name.to_owned(), name.to_owned())).collect();
        assert_eq!(dependencies(&manifest, &workspace), ["base", "os"]);
    }
}
