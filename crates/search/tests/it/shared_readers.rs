//! Readers of search threads, which collections share.

use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use search::Metric;
use search::collection::CollectionQuery;
use search::points::{NewPoint, PointId};
use search::registry::{CollectionSettings, NamedCollection, Registry, RegistryOptions};

use crate::points::TIMEOUT;
use crate::registry::{got, open_with, options, put, settings};

/// More collections than a thread keeps readers.
const COLLECTIONS: usize = 12;
const POINTS: u64 = 40;

/// Returns the ids of the points that are nearest to a stored one, from a search thread.
fn nearest(registry: &Registry, name: &str, number: u64) -> Vec<u64> {
    let (sender, answer) = mpsc::channel();
    let work = move |named: &NamedCollection, thread: &mut _| {
        let embedding = got(PointId::Number(0), number).embedding;
        let query = CollectionQuery {
            exact: true,
            ..CollectionQuery::nearest(&embedding, POINTS as usize)
        };
        let found = named.collection().nearest(thread, &query).unwrap();
        sender.send(found.hits.iter().map(|hit| hit.id).collect()).unwrap();
    };
    registry.submit(&registry.get(name).unwrap(), Box::new(work)).unwrap();
    answer.recv().unwrap()
}

fn fill(registry: &Registry, name: &str, first: u64) {
    let named = registry.create(name, settings()).unwrap();
    let points: Vec<_> = (first..first + POINTS).map(|id| got(PointId::Number(id), id)).collect();
    put(&named, &points).unwrap();
    named.collection().flush().unwrap();
}

/// Returns the number of open descriptors of files below a directory.
fn open_files(directory: &Path) -> usize {
    let links = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let targets = links.filter_map(|link| std::fs::read_link(link.path()).ok());
    targets.filter(|target| target.starts_with(directory)).count()
}

#[test]
fn many_collections_share_the_readers_of_a_thread() {
    let directory = tempfile::tempdir().unwrap();
    let registry = open_with(options(directory.path()));
    for number in 0..COLLECTIONS {
        fill(&registry, &format!("c{number}"), number as u64 * 100);
    }
    for _ in 0..3 {
        for number in 0..COLLECTIONS as u64 {
            let found = nearest(&registry, &format!("c{number}"), number * 100 + 7);
            assert_eq!((found.len(), found[0]), (POINTS as usize, number * 100 + 7));
        }
    }
    assert_eq!(registry.stats().readers, 1);
    // Longer embeddings need longer buffers, which then serve short ones too.
    let long = CollectionSettings::new(4000, Metric::L2);
    registry.create("long", long).unwrap();
    let (sender, answer) = mpsc::channel();
    let work = move |_: &NamedCollection, _: &mut _| sender.send(()).unwrap();
    registry.submit(&registry.get("long").unwrap(), Box::new(work)).unwrap();
    answer.recv().unwrap();
    for number in 0..COLLECTIONS as u64 {
        assert_eq!(nearest(&registry, &format!("c{number}"), number * 100)[0], number * 100);
    }
    assert_eq!(registry.stats().readers, 2);
}

#[test]
fn shared_readers_close_removed_files() {
    let directory = tempfile::tempdir().unwrap();
    let registry = open_with(RegistryOptions { threads: 1, ..options(directory.path()) });
    fill(&registry, "a", 0);
    fill(&registry, "b", 100);
    assert_eq!((nearest(&registry, "a", 3)[0], nearest(&registry, "b", 103)[0]), (3, 103));
    let removed = directory.path().join("a");
    registry.remove("a").unwrap();
    let deadline = Instant::now() + TIMEOUT;
    while open_files(&removed) > 0 {
        assert!(Instant::now() < deadline, "files of a removed collection are open");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(nearest(&registry, "b", 105)[0], 105);
}

/// Returns the number of open descriptors of files of removed collections.
fn open_removed_files(directory: &Path) -> usize {
    let links = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let targets = links.filter_map(|link| std::fs::read_link(link.path()).ok());
    let is_removed = |target: &Path| {
        let below = target.strip_prefix(directory).ok();
        below.is_some_and(|below| below.to_string_lossy().starts_with(".gone-"))
    };
    targets.filter(|target| is_removed(target)).count()
}

#[test]
fn a_busy_thread_closes_removed_files() {
    let directory = tempfile::tempdir().unwrap();
    let registry = open_with(RegistryOptions { threads: 1, ..options(directory.path()) });
    fill(&registry, "b", 100);
    assert_eq!(nearest(&registry, "b", 103)[0], 103);
    // Longer embeddings have readers of their own, which searches of the other do not use.
    let long = registry.create("long", CollectionSettings::new(4000, Metric::L2)).unwrap();
    let embedding = vec![1.0; 4000];
    let payload = serde_json::Map::new();
    let id = PointId::Number(1);
    long.upsert(&[NewPoint { id, embedding: &embedding, record: &[], payload: &payload }]).unwrap();
    long.collection().flush().unwrap();
    let (sender, answer) = mpsc::channel();
    let work = move |named: &NamedCollection, thread: &mut _| {
        let query = CollectionQuery { exact: true, ..CollectionQuery::nearest(&embedding, 1) };
        sender.send(named.collection().nearest(thread, &query).unwrap().hits.len()).unwrap();
    };
    registry.submit(&long, Box::new(work)).unwrap();
    assert_eq!(answer.recv().unwrap(), 1);
    drop(long);
    assert!(registry.remove("long").unwrap());
    let deadline = Instant::now() + TIMEOUT;
    while open_removed_files(directory.path()) > 0 {
        assert!(Instant::now() < deadline, "files of a removed collection are open");
        assert_eq!(nearest(&registry, "b", 105)[0], 105);
    }
}
