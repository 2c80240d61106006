//! Checks directories against the layout ROOT/NAME/VERSION/model.onnx, and explains misplaced
//! files.

use std::path::Path;

use engine::foreign::identify_dir;

/// Files that make a directory a version.
const MODEL_FILES: [&str; 5] =
    ["millpond.json", "model.onnx", "model.pt", "model.pt2", "saved_model.pb"];
/// Maximum number of subdirectories of a root named in advice.
const NAMED_MAX: usize = 5;

struct Subdirectory {
    name: String,
    dir: std::path::PathBuf,
}

/// Returns true if `name` is a version number.
pub(crate) fn is_version(name: &str) -> bool {
    name.parse::<u64>().is_ok()
}

/// Returns true if `dir` has a numbered subdirectory, which makes it a model.
pub(crate) fn is_model(dir: &Path) -> bool {
    subdirectories(dir).is_ok_and(|inside| inside.iter().any(|inside| is_version(&inside.name)))
}

/// Returns the name of the subdirectory with the highest number.
pub(crate) fn latest_version(dir: &Path) -> Option<String> {
    let names = subdirectories(dir).ok()?.into_iter().map(|inside| inside.name);
    names.filter(|name| is_version(name)).max_by_key(|name| name.parse::<u64>().ok())
}

/// Returns the names of `dir`'s subdirectories that are models.
pub(crate) fn models_in(dir: &Path) -> Vec<String> {
    let inside = subdirectories(dir).unwrap_or_default();
    let models =
        inside.into_iter().filter(|inside| !is_version(&inside.name) && is_model(&inside.dir));
    models.map(|inside| inside.name).collect()
}

/// Explains why models in a directory of models will not be served, and what to do. Also lists
/// misplaced models beside others that will be served. Empty if there is nothing to correct.
pub(crate) fn root_advice(root: &Path) -> Vec<String> {
    advice(root, DirectoryRole::Root)
}

/// Explains why files in the directory of a model will not be served, and what to do. Empty if the
/// directory has a version and nothing to correct.
pub(crate) fn model_advice(dir: &Path) -> Vec<String> {
    advice(dir, DirectoryRole::Model)
}

/// Role that the user gave a directory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DirectoryRole {
    /// Directory of models.
    Root,
    /// Directory of the versions of one model.
    Model,
}

/// Explains as [`root_advice`] or [`model_advice`], by the role of `dir`.
fn advice(dir: &Path, role: DirectoryRole) -> Vec<String> {
    let shown = dir.display();
    let inside = match subdirectories(dir) {
        Ok(inside) => inside,
        Err(error) => return vec![format!("{shown} cannot be read: {error}")],
    };
    let own_number = dir.file_name().is_some_and(|name| is_version(&name.to_string_lossy()));
    match model_file(dir) {
        Some(file) if own_number => {
            let parent = dir.parent().unwrap_or(dir).display();
            return vec![format!(
                "{shown} holds {file}, so it is a version: serve its parent, {parent}"
            )];
        }
        Some(file) if role == DirectoryRole::Root => {
            return vec![format!("{shown} holds {file} itself: put it into {shown}/NAME/1/")];
        }
        Some(file) => return vec![format!("{shown} holds {file} itself: put it into {shown}/1/")],
        None => {}
    }
    if models_in(dir).is_empty()
        && !is_model(dir)
        && let Some(foreign) = identify_dir(dir)
    {
        return vec![format!("{shown} is not served: {foreign}")];
    }
    if role == DirectoryRole::Root {
        return advice_below(dir, &inside);
    }
    if inside.iter().any(|inside| is_version(&inside.name)) {
        Vec::new()
    } else {
        wrong_versions(dir, &inside).map_or_else(
            || vec![format!("{shown} has no version yet: a directory 1, 2, 3...")],
            |one| vec![one],
        )
    }
}

/// Explains for each subdirectory of the directory of models `root` why it will not be served.
fn advice_below(root: &Path, inside: &[Subdirectory]) -> Vec<String> {
    let mut advice: Vec<String> = Vec::new();
    let mut models = 0;
    for Subdirectory { dir, .. } in inside {
        match subdirectories(dir) {
            Err(error) => advice.push(format!("{} cannot be read: {error}", dir.display())),
            Ok(below) if below.iter().any(|below| is_version(&below.name)) => models += 1,
            Ok(below) => advice.extend(unversioned_advice(dir, &below)),
        }
    }
    if advice.len() > NAMED_MAX {
        let more = advice.len() - NAMED_MAX;
        advice.truncate(NAMED_MAX);
        advice.push(format!("and {more} more in {}", root.display()));
    }
    if advice.is_empty() && models == 0 {
        let root = root.display();
        advice.push(format!(
            "{root} has no models yet: millpond publish model.onnx --to {root}/NAME"
        ));
    }
    advice
}

/// Explains why `dir`, which has no version, will not be served. Returns `None` if it contains no
/// file of a model.
fn unversioned_advice(dir: &Path, inside: &[Subdirectory]) -> Option<String> {
    let shown = dir.display();
    if let Some(file) = model_file(dir) {
        return Some(format!("{shown} holds {file} itself: put it into {shown}/1/"));
    }
    wrong_versions(dir, inside)
        .or_else(|| Some(format!("{shown} is not served: {}", identify_dir(dir)?)))
}

/// Finds a subdirectory that would be a version if its name were a number.
fn wrong_versions(dir: &Path, inside: &[Subdirectory]) -> Option<String> {
    let found = inside.iter().find(|inside| model_file(&inside.dir).is_some())?;
    let from = found.dir.display();
    let dir = dir.display();
    Some(format!("{from} is not a version, as its name is not a number: call it {dir}/1"))
}

/// Returns the first file that makes `dir` a version.
fn model_file(dir: &Path) -> Option<&'static str> {
    MODEL_FILES.into_iter().find(|file| dir.join(file).is_file())
}

/// Returns the subdirectories, sorted by name, without hidden ones.
fn subdirectories(dir: &Path) -> std::io::Result<Vec<Subdirectory>> {
    let mut inside = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let dir = entry.path();
        // An unreadable entry (a dangling link) is not a reason to skip the others.
        if dir.is_dir() && !name.starts_with('.') {
            inside.push(Subdirectory { name, dir });
        }
    }
    inside.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(inside)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(places: &[&str]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for place in places {
            let path = root.path().join(place);
            if place.ends_with('/') {
                std::fs::create_dir_all(path).unwrap();
            } else {
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, "x").unwrap();
            }
        }
        root
    }

    fn said(places: &[&str], below: &str, is_root: bool) -> String {
        let root = made(places);
        let role = if is_root { DirectoryRole::Root } else { DirectoryRole::Model };
        advice(&root.path().join(below), role)
            .join("; ")
            .replace(root.path().to_str().unwrap(), "R")
    }

    #[test]
    fn misplaced_files_get_advice() {
        for (places, below, is_root, wanted) in [
            (&["a/1/model.onnx", "b/2/model.pt"][..], "", true, ""),
            (&["a/1/model.onnx", "docs/"], "", true, ""),
            (&["a/1/model.onnx"], "a", false, ""),
            (
                &["x/"],
                "x",
                true,
                "R/x has no models yet: millpond publish model.onnx --to R/x/NAME",
            ),
            (
                &["a/1/model.onnx"],
                "a/1",
                true,
                "R/a/1 holds model.onnx, so it is a version: serve its parent, R/a",
            ),
            (&["a/model.onnx"], "", true, "R/a holds model.onnx itself: put it into R/a/1/"),
            (&["a/model.onnx"], "a", true, "R/a holds model.onnx itself: put it into R/a/NAME/1/"),
            (&["a/model.onnx"], "a", false, "R/a holds model.onnx itself: put it into R/a/1/"),
            (
                &["a/v1/model.pt"],
                "",
                true,
                "R/a/v1 is not a version, as its name is not a number: call it R/a/1",
            ),
            (
                &["a/v1/model.pt"],
                "a",
                false,
                "R/a/v1 is not a version, as its name is not a number: call it R/a/1",
            ),
            (&["a/"], "a", false, "R/a has no version yet: a directory 1, 2, 3..."),
        ] {
            assert_eq!(said(places, below, is_root), wanted, "{places:?} {below}");
        }
        let many: Vec<String> = (0..9).map(|n| format!("m{n}/model.onnx")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert!(said(&many, "", true).ends_with("and 4 more in R/"), "{}", said(&many, "", true));
    }

    #[test]
    fn models_differ_from_versions() {
        let root = made(&["a/1/model.onnx", "b/notes/", "7/1/model.onnx", ".x/1/model.onnx"]);
        std::os::unix::fs::symlink("loop", root.path().join("a/loop")).unwrap();
        assert_eq!(models_in(root.path()), ["a"]);
        assert!(
            is_model(root.path())
                && is_model(&root.path().join("a"))
                && !is_model(&root.path().join("b"))
        );
    }
}
