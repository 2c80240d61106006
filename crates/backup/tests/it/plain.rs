//! Backups of objects that never change.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use backup::{BackupId, BackupList, ObjectDirectory, block_on};
use base::{ErrorKind, Result};

use crate::common::TestStore;

/// A directory with objects, and their backups.
struct Objects {
    directory: tempfile::TempDir,
    source: TestStore,
    backups: TestStore,
}

impl Objects {
    fn new() -> Objects {
        let directory = tempfile::tempdir().unwrap();
        let source = TestStore::open(&directory.path().join("source"));
        let backups = TestStore::open(&directory.path().join("backups"));
        Objects { directory, source, backups }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn put(&self, object: &str, content: &str) {
        let path = self.path("source/ab").join(object);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    fn back_up(&self) -> BackupList {
        let directory = ObjectDirectory { store: &self.source.store, name: "ab" };
        let id = BackupId::now();
        block_on(backup::back_up_objects(&self.backups.context(), directory, "ab", &id)).unwrap()
    }

    fn restore(&self, id: &BackupId, to: &str) -> Result<Vec<(String, String)>> {
        let target = TestStore::open(&self.path(to));
        let directory = ObjectDirectory { store: &target.store, name: "ab" };
        block_on(backup::restore_objects(&self.backups.context(), "ab", id, directory))?;
        Ok(files(&self.path(to).join("ab")))
    }
}

/// Returns the names and contents of all files below a directory.
fn files(directory: &Path) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut open = vec![directory.to_owned()];
    while let Some(next) = open.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else {
                let name = path.strip_prefix(directory).unwrap().display().to_string();
                found.push((name, fs::read_to_string(path).unwrap()));
            }
        }
    }
    found.sort();
    found
}

fn contents(of: &[(&str, &str)]) -> Vec<(String, String)> {
    of.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
}

#[test]
fn backups_share_objects_and_are_restored() {
    let objects = Objects::new();
    assert_eq!(objects.back_up().files, []);
    objects.put("1/a.png", "one");
    objects.put("2/b.png", "two");
    let first = objects.back_up();
    let stored = files(&objects.path("backups/ab/objects"));
    assert_eq!(stored, contents(&[("1/a.png", "one"), ("2/b.png", "two")]));
    fs::remove_file(objects.path("source/ab/1/a.png")).unwrap();
    objects.put("3/c.png", "three");
    let before = fs::metadata(objects.path("backups/ab/objects/2/b.png")).unwrap();
    let second = objects.back_up();
    let after = fs::metadata(objects.path("backups/ab/objects/2/b.png")).unwrap();
    assert_eq!(after.modified().unwrap(), before.modified().unwrap(), "it was copied again");
    assert_eq!(second.bytes(), 8);

    let one = contents(&[("1/a.png", "one"), ("2/b.png", "two")]);
    assert_eq!(objects.restore(&first.id, "one").unwrap(), one);
    let two = contents(&[("2/b.png", "two"), ("3/c.png", "three")]);
    assert_eq!(objects.restore(&second.id, "two").unwrap(), two);

    let context = objects.backups.context();
    let delete = backup::delete(&context, "ab", &first.id, Duration::ZERO);
    assert_eq!(block_on(delete).unwrap().objects, 1);
    assert_eq!(objects.restore(&second.id, "three").unwrap(), two);
    assert_eq!(objects.restore(&first.id, "four").unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn damage_is_found_and_repaired_by_the_next_backup() {
    let objects = Objects::new();
    objects.put("1/a.png", "one");
    objects.put("2/b.png", "two");
    let backup = objects.back_up();
    fs::write(objects.path("backups/ab/objects/1/a.png"), "0ne").unwrap();
    fs::remove_file(objects.path("backups/ab/objects/2/b.png")).unwrap();
    let damaged = objects.restore(&backup.id, "one").unwrap_err();
    assert_eq!(damaged.kind(), ErrorKind::DataLoss);
    assert!(damaged.message().contains("1/a.png"), "{damaged}");
    objects.put("1/a.png", "one and more");
    let next = objects.back_up();
    let all = contents(&[("1/a.png", "one and more"), ("2/b.png", "two")]);
    assert_eq!(objects.restore(&next.id, "two").unwrap(), all);
    fs::remove_file(objects.path("backups/ab/objects/2/b.png")).unwrap();
    let missing = objects.restore(&next.id, "three").unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::DataLoss);
    assert!(missing.message().contains("2/b.png"), "{missing}");
}

#[test]
fn a_stopped_backup_is_not_listed() {
    let objects = Objects::new();
    objects.put("1/a.png", "one");
    let first = objects.back_up();
    // The store has all objects, so only the list is left to write.
    objects.backups.progress.stop();
    let directory = ObjectDirectory { store: &objects.source.store, name: "ab" };
    let id = BackupId::now();
    let context = objects.backups.context();
    let stopped = block_on(backup::back_up_objects(&context, directory, "ab", &id));
    assert_eq!(stopped.unwrap_err().kind(), ErrorKind::Cancelled);
    assert_eq!(block_on(objects.backups.store.ids("ab")).unwrap(), [first.id]);
}
