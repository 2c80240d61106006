//! Directories of originals that belong to no collection. They remain if a collection that cannot
//! be opened is removed, or if the record of a removal is lost. They are reported and not removed:
//! an administrator copies originals back before the collection is restored.
//!
//! Only the directory beside the collections is searched, because other servers may use another
//! store of originals.

use std::collections::BTreeSet;
use std::io::ErrorKind as IoErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base::{Error, ErrorKind, Result};
use image_features::collection::ImageCollection;

use super::services::ImageServices;

/// Maximum files beside the collections that are compared with them.
const DIRECTORIES_MAX: usize = 100_000;
/// Maximum names in the log.
const NAMES_MAX: usize = 10;
/// First wait for collections that are not open. Each further wait is twice as long.
const WAIT_FIRST: Duration = Duration::from_millis(100);
/// Maximum wait between two checks.
const WAIT_MAX: Duration = Duration::from_secs(30);
/// Maximum checks. The last one is made after about an hour.
const CHECKS_MAX: u32 = 128;

/// Reports the directories of originals that belong to no collection. Waits until all collections
/// are open.
pub(crate) async fn report(services: Arc<ImageServices>) {
    let mut wait = WAIT_FIRST;
    for _ in 0..CHECKS_MAX {
        let own = services.clone();
        let checked = tokio::task::spawn_blocking(move || report_now(&own)).await;
        let checked = checked
            .unwrap_or_else(|error| Err(Error::internal("the check ended early").caused_by(error)));
        match checked {
            Ok(()) => return,
            Err(error) if error.kind() == ErrorKind::Unavailable => {}
            Err(error) => {
                tracing::warn!(%error, "unused directories of originals are not reported");
                return;
            }
        }
        tokio::time::sleep(wait).await;
        wait = wait.saturating_mul(2).min(WAIT_MAX);
    }
    tracing::warn!(
        "unused directories of originals are not reported, because not all collections are open"
    );
}

/// Reports the directories of originals that belong to no collection.
///
/// # Errors
/// `Unavailable` if a collection is not open; the errors of the file system.
fn report_now(services: &ImageServices) -> Result<()> {
    let Some(directory) = services.originals.own_directory() else { return Ok(()) };
    let registry = services.registry.opened();
    let registry = registry.ok_or_else(|| Error::unavailable("the collections are not open"))?;
    // Checked before the directories are read, which can take long.
    ImageCollection::known(&registry)?;
    // Read before the collections: a collection is created before its first original.
    let names = directories(&directory)?;
    let known = ImageCollection::known(&registry)?.into_iter().map(|target| target.space);
    let mut spaces: Vec<String> = known.collect();
    spaces.extend(services.removed.spaces());
    let unused = unused(names, &spaces);
    services.removed.count_unused(unused.len());
    if !unused.is_empty() {
        let names: Vec<&str> = unused.iter().take(NAMES_MAX).map(String::as_str).collect();
        tracing::warn!(
            count = unused.len(),
            names = names.join(", "),
            path = %directory.display(),
            "directories of originals belong to no collection: restore the collections, or remove these directories"
        );
    }
    Ok(())
}

/// Returns the names that are not the first directory of one of `spaces`.
fn unused(names: BTreeSet<String>, spaces: &[String]) -> Vec<String> {
    let used: BTreeSet<&str> = spaces.iter().filter_map(|space| space.split('/').next()).collect();
    names.into_iter().filter(|name| !used.contains(name.as_str())).collect()
}

/// Returns the names of the directories among the first [`DIRECTORIES_MAX`] files of `directory`.
/// Returns none if it does not exist.
///
/// # Errors
/// Returns the errors of the file system.
fn directories(directory: &Path) -> Result<BTreeSet<String>> {
    let failed = |error: std::io::Error| Error::io(directory, &error);
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == IoErrorKind::NotFound => return Ok(BTreeSet::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut names = BTreeSet::new();
    for entry in entries.take(DIRECTORIES_MAX) {
        let entry = entry.map_err(failed)?;
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            names.insert(entry.file_name().to_string_lossy().into_owned());
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_used_by_collections_below_it() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["photos", "prints", "old"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        std::fs::write(dir.path().join("file"), "").unwrap();
        let spaces = ["photos".to_owned(), "prints/originals".to_owned(), "missing".to_owned()];
        let names = directories(dir.path()).unwrap();
        assert_eq!(names.len(), 3);
        assert_eq!(unused(names, &spaces), ["old"]);
        assert!(directories(&dir.path().join("none")).unwrap().is_empty());
    }
}
