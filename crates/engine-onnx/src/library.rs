//! Where the ONNX Runtime library is: named by the caller, in the project's virtual environment, or installed.

use std::path::{Path, PathBuf};

use base::{Error, Result};
use engine::LibrarySearch;

/// What a file of the library is called, up to its version.
const FILE_PREFIX: &str = "libonnxruntime.so";
/// Where a system-wide installation puts it.
const SYSTEM_DIRS: [&str; 6] = [
    "/usr/local/lib",
    "/usr/local/lib64",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
];
/// What to do about a missing or unfit library.
pub(crate) const REMEDY: &str = "run `make build`, or `pip install onnxruntime` in the virtual environment, or give \
                                 --onnxruntime PATH";

/// The library's absolute path.
///
/// # Errors
/// `NotFound` with the remedy.
pub(crate) fn find(search: &LibrarySearch) -> Result<PathBuf> {
    if let Some(explicit) = &search.explicit {
        return find_explicit(explicit);
    }
    search
        .environments()
        .find_map(|environment| in_virtual_env(&environment))
        .or_else(|| SYSTEM_DIRS.iter().find_map(|dir| newest_in(Path::new(dir))))
        .and_then(|path| std::fs::canonicalize(path).ok())
        .ok_or_else(|| Error::not_found(format!("ONNX Runtime was not found: {REMEDY}")))
}

fn find_explicit(path: &Path) -> Result<PathBuf> {
    let real = std::fs::canonicalize(path).map_err(|e| {
        Error::not_found(format!(
            "--onnxruntime {}: {e}; it names {FILE_PREFIX}.* or its directory",
            path.display()
        ))
    })?;
    if !real.is_dir() {
        return Ok(real);
    }
    let inside = newest_in(&real).or_else(|| newest_in(&real.join("lib"))).or_else(|| in_virtual_env(&real));
    inside.ok_or_else(|| {
        Error::not_found(format!(
            "--onnxruntime {}: there is no {FILE_PREFIX}.* in this directory",
            path.display()
        ))
    })
}

/// The library that the `onnxruntime` package brings into a virtual environment.
fn in_virtual_env(environment: &Path) -> Option<PathBuf> {
    let mut pythons: Vec<PathBuf> = std::fs::read_dir(environment.join("lib"))
        .ok()?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("python3")))
        .collect();
    pythons.sort();
    pythons.iter().rev().find_map(|python| newest_in(&python.join("site-packages/onnxruntime/capi")))
}

/// The file of the highest version in `dir`.
fn newest_in(dir: &Path) -> Option<PathBuf> {
    std::fs::read_dir(dir)
        .ok()?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter_map(|path| Some((file_version(path.file_name()?.to_str()?)?, path)))
        .max()
        .map(|(_, path)| path)
}

/// The numbers after the prefix: "libonnxruntime.so.1.31.1" is `[1, 31, 1]`, "libonnxruntime.so" is empty.
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
    fn an_explicit_path_is_not_replaced_by_another() {
        let dir = tempfile::tempdir().unwrap();
        environment(&dir.path().join(".venv"), "1.31.1");
        for wrong in ["nowhere.so", "."] {
            let explicit = Some(dir.path().join(wrong));
            let search =
                LibrarySearch { explicit, virtual_env: None, start_dirs: vec![dir.path().to_owned()] };
            let error = find(&search).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NotFound);
            assert!(error.message().contains("--onnxruntime"), "{error}");
        }
    }
}
