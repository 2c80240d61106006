//! Finds the ONNX Runtime library: a path from the caller, the project's virtual environment, or an
//! installation.

use std::path::{Path, PathBuf};

use base::{Error, Result};
use engine::{LibrarySearch, package_dirs};

/// File name of the library up to its version.
const FILE_PREFIX: &str = "libonnxruntime.so";
/// Directories of system-wide installations.
const SYSTEM_DIRS: [&str; 6] = [
    "/usr/local/lib",
    "/usr/local/lib64",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
];
/// Directory of the library below the directory of Python packages.
const IN_PACKAGES: &str = "onnxruntime/capi";
/// Remedy for an unfit library.
pub(crate) const REMEDY: &str = "run `pip install --upgrade onnxruntime` in its environment (in a checkout, `make build`), or \
     give --onnxruntime PATH";

/// Returns the library's absolute path.
///
/// # Errors
/// `NotFound` with the remedy.
pub(crate) fn find(search: &LibrarySearch) -> Result<PathBuf> {
    if let Some(explicit) = &search.explicit {
        return find_explicit(explicit, search.explicit_source.unwrap_or("--onnxruntime"));
    }
    search
        .find(|dir| newest_in(&dir.join(IN_PACKAGES)).or_else(|| newest_in(dir)))
        .or_else(|| SYSTEM_DIRS.iter().find_map(|dir| newest_in(Path::new(dir))))
        .and_then(|path| std::fs::canonicalize(path).ok())
        .ok_or_else(|| not_found_error(search))
}

/// Returns the error that lists the searched places and the remedy.
fn not_found_error(search: &LibrarySearch) -> Error {
    let places = search.places().into_iter().chain(SYSTEM_DIRS.map(str::to_owned));
    let places = places.collect::<Vec<_>>().join(", ");
    let remedy = search.remedy("onnxruntime", "build", "--onnxruntime");
    Error::not_found(format!("ONNX Runtime was not found: {remedy}. Looked in {places}"))
}

/// Returns the library at `path`. Errors begin with `source`, the flag or variable that has it.
fn find_explicit(path: &Path, source: &str) -> Result<PathBuf> {
    let real = std::fs::canonicalize(path).map_err(|e| {
        Error::not_found(format!(
            "{source} {}: {e}; it names {FILE_PREFIX}.* or its directory",
            path.display()
        ))
        .with_source(e)
    })?;
    if !real.is_dir() {
        return Ok(real);
    }
    let inside =
        newest_in(&real).or_else(|| newest_in(&real.join("lib"))).or_else(|| in_virtual_env(&real));
    inside.ok_or_else(|| {
        Error::not_found(format!(
            "{source} {}: there is no {FILE_PREFIX}.* in this directory",
            path.display()
        ))
    })
}

/// Returns the library of the `onnxruntime` package in a virtual environment.
fn in_virtual_env(environment: &Path) -> Option<PathBuf> {
    package_dirs(environment).iter().find_map(|packages| newest_in(&packages.join(IN_PACKAGES)))
}

/// Returns the file of the highest version in `dir`.
fn newest_in(dir: &Path) -> Option<PathBuf> {
    std::fs::read_dir(dir)
        .ok()?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter_map(|path| Some((file_version(path.file_name()?.to_str()?)?, path)))
        .max()
        .map(|(_, path)| path)
}

/// Returns the numbers after the prefix: `[1, 31, 1]` for "libonnxruntime.so.1.31.1", none for
/// "libonnxruntime.so".
fn file_version(name: &str) -> Option<Vec<u32>> {
    let rest = name.strip_prefix(FILE_PREFIX)?;
    if rest.is_empty() {
        return Some(Vec::new());
    }
    rest.strip_prefix('.')?.split('.').map(|number| number.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::ErrorKind;

    fn environment(root: &Path, version: &str) {
        let capi = root.join("lib/python3.11/site-packages/onnxruntime/capi");
        std::fs::create_dir_all(&capi).unwrap();
        std::fs::write(capi.join(format!("{FILE_PREFIX}.{version}")), b"").unwrap();
        std::fs::write(capi.join("libonnxruntime_providers_shared.so"), b"").unwrap();
    }

    fn found(search: &LibrarySearch) -> String {
        find(search).unwrap().file_name().unwrap().to_string_lossy().into_owned()
    }

    #[test]
    fn newest_version_is_numeric() {
        let dir = tempfile::tempdir().unwrap();
        for name in [
            "libonnxruntime.so.1.9.1",
            "libonnxruntime.so.1.31.1",
            "libonnxruntime.so",
            "libonnxruntime.so.x",
        ] {
            std::fs::write(dir.path().join(name), b"").unwrap();
        }
        assert_eq!(newest_in(dir.path()).unwrap().file_name().unwrap(), "libonnxruntime.so.1.31.1");
    }

    #[test]
    fn the_order_is_explicit_active_above() {
        let dir = tempfile::tempdir().unwrap();
        let (active, project) = (dir.path().join("active"), dir.path().join("project"));
        environment(&active, "1.20.0");
        environment(&project.join(".venv"), "1.31.1");
        let below = project.join("target/release");
        std::fs::create_dir_all(&below).unwrap();
        let mut search = LibrarySearch { start_dirs: vec![below], ..Default::default() };
        assert_eq!(found(&search), "libonnxruntime.so.1.31.1");
        search.virtual_env = Some(active.clone());
        assert_eq!(found(&search), "libonnxruntime.so.1.20.0");
        search.explicit = Some(project.join(".venv"));
        assert_eq!(found(&search), "libonnxruntime.so.1.31.1");
        search.explicit = Some(active.join("lib/python3.11/site-packages/onnxruntime/capi"));
        assert_eq!(found(&search), "libonnxruntime.so.1.20.0");
    }

    #[test]
    fn environments_and_system_packages_are_searched() {
        let dir = tempfile::tempdir().unwrap();
        let (tool, system) = (dir.path().join("tool"), dir.path().join("system"));
        environment(&tool, "1.20.0");
        let packages = system.join("lib/python3/dist-packages/onnxruntime/capi");
        std::fs::create_dir_all(&packages).unwrap();
        std::fs::write(packages.join(format!("{FILE_PREFIX}.1.19.2")), b"").unwrap();
        let mut search = LibrarySearch { system_prefixes: vec![system], ..Default::default() };
        assert_eq!(found(&search), "libonnxruntime.so.1.19.2");
        search.program_prefix = Some(tool);
        assert_eq!(
            found(&search),
            "libonnxruntime.so.1.20.0",
            "the environment that has the program, not active"
        );
    }

    #[test]
    fn a_missing_library_error_names_the_paths() {
        let error = not_found_error(&LibrarySearch {
            start_dirs: vec!["/a/project".into()],
            ..Default::default()
        });
        for part in [
            ".venv in or above /a/project",
            "/usr/lib64",
            "pip install onnxruntime",
            "--onnxruntime",
        ] {
            assert!(error.message().contains(part), "{part}: {error}");
        }
    }

    #[test]
    fn an_explicit_path_is_not_replaced_by_another() {
        let dir = tempfile::tempdir().unwrap();
        environment(&dir.path().join(".venv"), "1.31.1");
        for wrong in ["nowhere.so", "."] {
            let explicit = Some(dir.path().join(wrong));
            let mut search = LibrarySearch {
                explicit,
                start_dirs: vec![dir.path().to_owned()],
                ..Default::default()
            };
            for (source, named) in
                [(None, "--onnxruntime "), (Some("MILLPOND_ONNXRUNTIME"), "MILLPOND_ONNXRUNTIME ")]
            {
                search.explicit_source = source;
                let error = find(&search).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::NotFound);
                assert!(error.message().starts_with(named), "{error}");
            }
        }
    }
}
