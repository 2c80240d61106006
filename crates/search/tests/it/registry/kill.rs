//! Acknowledged writes of a process that is killed.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use search::points::{PayloadChange, PointSelection};
use serde_json::json;

use super::{got, id, object, open, put, settings};

/// Not a test: the process that the next test kills. Writes until it is killed and prints
/// acknowledged writes.
#[test]
fn child_that_writes() {
    let Ok(directory) = std::env::var("MILLPOND_SEARCH_TEST_DIRECTORY") else { return };
    let registry = open(Path::new(&directory));
    let named = registry.get("c").or_else(|_| registry.create("c", settings())).unwrap();
    let there = named.count(None).unwrap().count;
    // The last one may come from a process that was killed before it changed its payload.
    for number in there.saturating_sub(1).. {
        if number >= there {
            put(&named, &[got(id(number), number)]).unwrap();
        }
        if number % 7 == 0 {
            let payload = object(json!({"acknowledged": number}));
            named
                .change_payload(
                    &PointSelection::Ids(vec![id(number)]),
                    &PayloadChange::Overwrite(payload),
                )
                .unwrap();
        }
        if number % 50 == 49 {
            named.collection().flush().unwrap();
        }
        println!("written {number}");
    }
}

#[test]
fn acknowledged_writes_survive_a_kill() {
    let directory = tempfile::tempdir().unwrap();
    let mut acknowledged = 0;
    for round in 1..4_u64 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["registry::kill::child_that_writes", "--exact", "--nocapture"])
            .env("MILLPOND_SEARCH_TEST_DIRECTORY", directory.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut numbers = lines
            .map_while(Result::ok)
            .filter_map(|line| line.strip_prefix("written ")?.parse::<u64>().ok());
        let enough = 60 * round;
        let reached =
            numbers.find(|number| *number >= enough).expect("it writes until it is killed");
        child.kill().unwrap();
        child.wait().unwrap();
        // The process continued until it was killed. The pipe holds the remaining acknowledgements.
        acknowledged = numbers.last().unwrap_or(reached) + 1;
        let registry = open(directory.path());
        let named = registry.get("c").unwrap();
        for number in 0..acknowledged {
            let found = named.get(&id(number)).unwrap().unwrap();
            let wanted = got(id(number), number);
            assert_eq!(
                (found.id, &found.embedding, &found.record),
                (wanted.id, &wanted.embedding, &wanted.record)
            );
            let changed = object(json!({"acknowledged": number}));
            assert_eq!(found.payload, if number % 7 == 0 { changed } else { wanted.payload });
        }
        assert!(named.count(None).unwrap().count <= acknowledged + 1, "nothing was made up");
    }
    assert!(acknowledged > 100);
}
