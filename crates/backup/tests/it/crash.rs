//! Programs that are killed during backups and restores.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use backup::{RestoreTarget, block_on};
use os::Rate;

use crate::common::{TestStore, contents, create, open, put};

/// Environment variable with the directory of the child.
const DIRECTORY: &str = "MILLPOND_BACKUP_TEST_DIRECTORY";
/// Environment variable with the work of the child: "backup" or "restore".
const WORK: &str = "MILLPOND_BACKUP_TEST_WORK";
/// Kills of each kind.
const KILLS: u64 = 3;
/// Environment variable with the number of kills of each kind.
const KILLS_VARIABLE: &str = "MILLPOND_BACKUP_TEST_KILLS";

/// Not a test: the process that the next tests kill. Its rate makes the work take long enough.
#[test]
fn child_that_works() {
    let Ok(directory) = std::env::var(DIRECTORY) else { return };
    let directory = Path::new(&directory);
    let registry = open(&directory.join("collections"));
    let store = TestStore::with_rate(&directory.join("store"), Rate::per_second(4 << 20));
    for round in 0_u64.. {
        if std::env::var(WORK).as_deref() == Ok("backup") {
            let named = registry.get("c").unwrap();
            put(&named, round * 50..round * 50 + 50, 1000 + round);
            store.back_up(&named);
        } else {
            let target = RestoreTarget { name: "c".to_owned(), replaces: true };
            let context = store.context();
            block_on(backup::restore(&context, &registry, "c", None, &target)).unwrap();
        }
    }
}

fn child(directory: &Path, work: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["crash::child_that_works", "--exact", "--nocapture"])
        .env(DIRECTORY, directory)
        .env(WORK, work)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

fn kills() -> u64 {
    let set = std::env::var(KILLS_VARIABLE).ok().and_then(|text| text.parse().ok());
    set.unwrap_or(KILLS)
}

/// Runs the child for a time that differs each round, and kills it.
fn killed(directory: &Path, work: &str, round: u64) {
    let mut child = child(directory, work);
    std::thread::sleep(Duration::from_millis(150 + round * 397 % 900));
    child.kill().unwrap();
    child.wait().unwrap();
}

fn begin(directory: &Path) {
    let registry = open(&directory.join("collections"));
    let named = create(&registry, "c");
    put(&named, 0..1500, 1);
    named.collection().flush().unwrap();
    put(&named, 0..1500, 2);
    TestStore::open(&directory.join("store")).back_up(&named);
}

#[test]
fn every_listed_backup_is_whole_after_kills() {
    let directory = tempfile::tempdir().unwrap();
    begin(directory.path());
    for round in 0..kills() {
        killed(directory.path(), "backup", round);
        let store = TestStore::open(&directory.path().join("store"));
        let report = block_on(backup::verify(&store.context(), "c", None)).unwrap();
        assert_eq!(report.problem_count, 0, "{:?}", report.problems);
        assert!(report.backups >= 1);
        let registry = open(&directory.path().join("collections"));
        let name = format!("restored{round}");
        store.restore(&registry, "c", &name).unwrap();
        // The next backup continues, and restores to the same content.
        let named = registry.get("c").unwrap();
        store.back_up(&named);
        let last = format!("last{round}");
        store.restore(&registry, "c", &last).unwrap();
        assert_eq!(contents(&registry.get(&last).unwrap()), contents(&named));
        assert!(registry.remove(&name).unwrap() && registry.remove(&last).unwrap());
    }
}

#[test]
fn a_killed_restore_leaves_one_whole_collection() {
    let directory = tempfile::tempdir().unwrap();
    begin(directory.path());
    let wanted = contents(&open(&directory.path().join("collections")).get("c").unwrap());
    for round in 0..kills() {
        killed(directory.path(), "restore", round);
        let registry = open(&directory.path().join("collections"));
        assert_eq!(contents(&registry.get("c").unwrap()), wanted, "round {round}");
    }
    // The start removes what the killed programs left, in the background.
    let registry = open(&directory.path().join("collections"));
    let deadline = Instant::now() + Duration::from_secs(60);
    while !temporary(directory.path()).is_empty() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(registry);
    assert_eq!(temporary(directory.path()), Vec::<String>::new());
}

/// Returns the temporary directories in that of the collections.
fn temporary(directory: &Path) -> Vec<String> {
    std::fs::read_dir(directory.join("collections"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.starts_with(".new-") || name.starts_with(".gone-"))
        .collect()
}
