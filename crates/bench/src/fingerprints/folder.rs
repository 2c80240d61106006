//! Search for databases of templates or images in a folder.

use std::path::{Path, PathBuf};

use base::{Error, Result};
use matching::{Graph, iso};

use super::{IMPRESSIONS_MAX, Impression};

/// Maximum depth of folders.
const DEPTH_MAX: usize = 8;

/// Reads all files below `dir` that are named FINGER_IMPRESSION and have one of the `extensions`,
/// ordered by path. A database is a folder and has its name; databases of equal names have their
/// paths below `dir`. `graph` converts the database's name and a file's bytes to a graph.
pub(super) fn read(
    dir: &Path,
    extensions: &[&str],
    mut graph: impl FnMut(&str, &[u8]) -> Result<Graph>,
) -> Result<Vec<Impression>> {
    if !dir.is_dir() {
        return Err(Error::invalid(format!("--dir {}: there is no such folder", dir.display())));
    }
    let mut files = Vec::new();
    collect(dir, DEPTH_MAX, extensions, &mut files)?;
    files.sort();
    if files.is_empty() {
        return Err(Error::invalid(format!(
            "--dir {}: no file below it is named FINGER_IMPRESSION.{}",
            dir.display(),
            extensions.join(" or .")
        )));
    }
    if files.len() > IMPRESSIONS_MAX {
        return Err(Error::invalid(format!(
            "--dir {}: {} impressions, at most {IMPRESSIONS_MAX} are compared: name a folder with fewer",
            dir.display(),
            files.len()
        )));
    }
    let mut folders: Vec<&Path> = files.iter().filter_map(|(path, _)| path.parent()).collect();
    folders.dedup();
    files
        .iter()
        .map(|(path, finger)| {
            let database = database(dir, path, &folders);
            let bytes = std::fs::read(path).map_err(|e| Error::io(path, &e))?;
            let graph = graph(&database, &bytes).map_err(|error| error.context(path.display()))?;
            Ok(Impression::new(database, finger.clone(), graph))
        })
        .collect()
}

/// Decodes a template's file.
pub(super) fn template(bytes: &[u8]) -> Result<Graph> {
    let first = iso::read(bytes)?.into_iter().next();
    first.ok_or_else(|| Error::invalid("the template holds no finger view"))
}

/// Adds the files of prints below `dir`, each with the name of its finger. Descends at most `depth`
/// levels.
fn collect(
    dir: &Path,
    depth: usize,
    extensions: &[&str],
    files: &mut Vec<(PathBuf, String)>,
) -> Result<()> {
    for entry in std::fs::read_dir(dir).map_err(|e| Error::io(dir, &e))? {
        let path = entry.map_err(|e| Error::io(dir, &e))?.path();
        if path.is_dir() && depth > 0 {
            collect(&path, depth - 1, extensions, files)?;
        } else if let Some(finger) = finger_of(&path, extensions) {
            files.push((path, finger));
        }
    }
    Ok(())
}

/// Returns the finger in a file's name, if it has one of the extensions.
fn finger_of(path: &Path, extensions: &[&str]) -> Option<String> {
    let extension = path.extension()?.to_str()?.to_ascii_lowercase();
    let stem = extensions.contains(&extension.as_str()).then_some(path.file_stem()?.to_str()?)?;
    let (finger, impression) = stem.rsplit_once('_')?;
    (!finger.is_empty() && impression.parse::<u32>().is_ok()).then(|| finger.to_owned())
}

fn database(dir: &Path, path: &Path, folders: &[&Path]) -> String {
    let folder = path.parent().unwrap_or(dir);
    let name = folder.file_name();
    let shared = folders.iter().filter(|other| other.file_name() == name).count() > 1;
    let name = match (shared, name) {
        (false, Some(name)) => Path::new(name),
        _ => folder.strip_prefix(dir).unwrap_or(folder),
    };
    name.display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(dir: &Path, name: &str) {
        std::fs::create_dir_all(dir).unwrap();
        let bytes = iso::write(&matching::synthetic::fingerprint(1)).unwrap();
        std::fs::write(dir.join(name), bytes).unwrap();
    }

    fn templates(dir: &Path) -> Result<Vec<Impression>> {
        read(dir, &["iso"], |_, bytes| template(bytes))
    }

    fn found(dir: &Path) -> Vec<(String, String)> {
        templates(dir).unwrap().into_iter().map(|i| (i.database, i.finger)).collect()
    }

    #[test]
    fn databases_are_found_at_any_depth_and_named_apart() {
        let root = tempfile::tempdir().unwrap();
        put(&root.path().join("a/DB1"), "101_1.iso");
        put(&root.path().join("a/DB1"), "101_x.iso");
        put(&root.path().join("a/DB2"), "7_2.iso");
        let pair = |database: &str, finger: &str| (database.to_owned(), finger.to_owned());
        assert_eq!(found(root.path()), [pair("DB1", "101"), pair("DB2", "7")]);
        assert_eq!(found(&root.path().join("a")), [pair("DB1", "101"), pair("DB2", "7")]);
        assert_eq!(found(&root.path().join("a/DB2")), [pair("", "7")].map(|_| pair("DB2", "7")));
        put(&root.path().join("b/DB1"), "101_1.iso");
        assert_eq!(
            found(root.path()),
            [pair("a/DB1", "101"), pair("DB2", "7"), pair("b/DB1", "101")]
        );
    }

    #[test]
    fn empty_folders_and_damaged_files_are_errors() {
        let root = tempfile::tempdir().unwrap();
        let said = |dir: &Path| templates(dir).unwrap_err().to_string();
        assert!(said(&root.path().join("none")).contains("no such folder"));
        assert!(said(root.path()).contains("FINGER_IMPRESSION.iso"));
        std::fs::write(root.path().join("1_1.iso"), b"FMR").unwrap();
        assert!(said(root.path()).contains("1_1.iso"), "{}", said(root.path()));
    }
}
