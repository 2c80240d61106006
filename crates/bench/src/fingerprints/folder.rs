//! Finding databases of templates in a folder.

use std::path::{Path, PathBuf};

use base::{Error, Result};
use matching::iso;

use super::{IMPRESSIONS_MAX, Impression};

/// Folders within folders at most.
const DEPTH_MAX: usize = 8;

/// All FINGER_IMPRESSION.iso below `dir`, ordered by path. A database is a folder and has its name; where two have the
/// same one, their paths below `dir`.
pub(super) fn read(dir: &Path) -> Result<Vec<Impression>> {
    if !dir.is_dir() {
        return Err(Error::invalid(format!("--dir {}: there is no such folder", dir.display())));
    }
    let mut files = Vec::new();
    collect(dir, DEPTH_MAX, &mut files)?;
    files.sort();
    if files.is_empty() {
        return Err(Error::invalid(format!(
            "--dir {}: no file below it is named FINGER_IMPRESSION.iso",
            dir.display()
        )));
    }
    if files.len() > IMPRESSIONS_MAX {
        return Err(Error::invalid(format!(
            "--dir {}: {} templates, at most {IMPRESSIONS_MAX} are compared: name a folder with fewer",
            dir.display(),
            files.len()
        )));
    }
    let mut folders: Vec<&Path> = files.iter().filter_map(|(path, _)| path.parent()).collect();
    folders.dedup();
    files.iter().map(|(path, finger)| impression(dir, path, finger, &folders)).collect()
}

fn collect(dir: &Path, depth: usize, files: &mut Vec<(PathBuf, String)>) -> Result<()> {
    for entry in std::fs::read_dir(dir).map_err(|e| Error::io(dir, &e))? {
        let path = entry.map_err(|e| Error::io(dir, &e))?.path();
        if path.is_dir() && depth > 0 {
            collect(&path, depth - 1, files)?;
        } else if let Some(finger) = finger_of(&path) {
            files.push((path, finger));
        }
    }
    Ok(())
}

/// The finger in a file's name, where it is that of a template.
fn finger_of(path: &Path) -> Option<String> {
    let stem = path.extension().filter(|extension| *extension == "iso").and(path.file_stem())?.to_str()?;
    let (finger, impression) = stem.rsplit_once('_')?;
    (!finger.is_empty() && impression.parse::<u32>().is_ok()).then(|| finger.to_owned())
}

fn impression(dir: &Path, path: &Path, finger: &str, folders: &[&Path]) -> Result<Impression> {
    let bytes = std::fs::read(path).map_err(|e| Error::io(path, &e))?;
    let graph = iso::read(&bytes)
        .and_then(|views| {
            views.into_iter().next().ok_or_else(|| Error::invalid("the template holds no finger view"))
        })
        .map_err(|error| error.context(path.display()))?;
    let folder = path.parent().unwrap_or(dir);
    let name = folder.file_name();
    let shared = folders.iter().filter(|other| other.file_name() == name).count() > 1;
    let name = match (shared, name) {
        (false, Some(name)) => Path::new(name),
        _ => folder.strip_prefix(dir).unwrap_or(folder),
    };
    Ok(Impression::new(name.display().to_string(), finger.to_owned(), graph))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(dir: &Path, name: &str) {
        std::fs::create_dir_all(dir).unwrap();
        let bytes = iso::write(&matching::synthetic::fingerprint(1)).unwrap();
        std::fs::write(dir.join(name), bytes).unwrap();
    }

    fn found(dir: &Path) -> Vec<(String, String)> {
        read(dir).unwrap().into_iter().map(|i| (i.database, i.finger)).collect()
    }

    #[test]
    fn databases_are_found_at_any_depth_and_named_apart() {
        let root = tempfile::tempdir().unwrap();
        template(&root.path().join("a/DB1"), "101_1.iso");
        template(&root.path().join("a/DB1"), "101_x.iso");
        template(&root.path().join("a/DB2"), "7_2.iso");
        let pair = |database: &str, finger: &str| (database.to_owned(), finger.to_owned());
        assert_eq!(found(root.path()), [pair("DB1", "101"), pair("DB2", "7")]);
        assert_eq!(found(&root.path().join("a")), [pair("DB1", "101"), pair("DB2", "7")]);
        assert_eq!(found(&root.path().join("a/DB2")), [pair("", "7")].map(|_| pair("DB2", "7")));
        template(&root.path().join("b/DB1"), "101_1.iso");
        assert_eq!(found(root.path()), [pair("a/DB1", "101"), pair("DB2", "7"), pair("b/DB1", "101")]);
    }

    #[test]
    fn nothing_to_read_and_damage_are_said() {
        let root = tempfile::tempdir().unwrap();
        let said = |dir: &Path| read(dir).unwrap_err().to_string();
        assert!(said(&root.path().join("none")).contains("no such folder"));
        assert!(said(root.path()).contains("FINGER_IMPRESSION.iso"));
        std::fs::write(root.path().join("1_1.iso"), b"FMR").unwrap();
        assert!(said(root.path()).contains("1_1.iso"), "{}", said(root.path()));
    }
}
