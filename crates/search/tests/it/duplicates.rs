//! Duplicates of a whole collection against a comparison of all pairs, and jobs that are
//! interrupted.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use base::ErrorKind;
use matching::{MatchOptions, Probe, Scratch, synthetic};
use search::Metric;
use search::duplicates::{
    DuplicateControl, DuplicateOptions, DuplicateProgress, DuplicateState, DuplicateStore, groups,
    run,
};
use search::points::{NewPoint, PointId};
use search::registry::{CollectionSettings, NamedCollection};
use tempfile::TempDir;

use crate::points::mix;
use crate::registry::open;

const DIMS: usize = 24;
const ACCEPT: f32 = 125.0;

fn options(threshold: f32, accept: Option<f32>) -> DuplicateOptions {
    DuplicateOptions { threshold, accept, points_per_second: 0, threads: 2 }
}

/// Returns the embedding of a point: every third one is near the one before.
fn embedding(id: u64) -> Vec<f32> {
    let value = |id: u64, at: usize| (mix(id * 1000 + at as u64) % 2001) as f32 / 1000.0 - 1.0;
    let source = if id % 3 == 1 { id - 1 } else { id };
    (0..DIMS)
        .map(|at| value(source, at) + if source == id { 0.0 } else { 0.2 * value(id, at) })
        .collect()
}

fn put(named: &NamedCollection, id: u64, embedding: &[f32], record: &[u8]) {
    let payload = &serde_json::Map::new();
    named.upsert(&[NewPoint { id: PointId::Number(id), embedding, record, payload }]).unwrap();
}

fn cosine(a: &[f32], b: &[f32]) -> f32 {
    let dot = |a: &[f32], b: &[f32]| -> f32 { a.iter().zip(b).map(|(a, b)| a * b).sum() };
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

fn found(named: &NamedCollection, progress: &DuplicateProgress) -> BTreeSet<(u64, u64)> {
    let pairs = DuplicateStore::of(named).pairs(progress.pairs).unwrap();
    let found: BTreeSet<(u64, u64)> = pairs.iter().map(|pair| (pair.a, pair.b)).collect();
    assert_eq!(found.len(), pairs.len(), "each pair once");
    found
}

/// Returns the pairs above the threshold.
fn naive(ids: &[u64], threshold: f32) -> BTreeSet<(u64, u64)> {
    let mut pairs = BTreeSet::new();
    let embeddings: Vec<(u64, Vec<f32>)> = ids.iter().map(|&id| (id, embedding(id))).collect();
    for (at, (a, own)) in embeddings.iter().enumerate() {
        for (b, other) in embeddings.iter().skip(at + 1) {
            if cosine(own, other) >= threshold {
                pairs.insert((*a.min(b), *a.max(b)));
            }
        }
    }
    pairs
}

#[test]
fn pairs_equal_a_comparison_of_all_points() {
    let dir = TempDir::new().unwrap();
    let registry = open(dir.path());
    let named = registry.create("c", CollectionSettings::new(DIMS, Metric::Cosine)).unwrap();
    // Two segments, a memtable, a deleted point.
    for id in 0..700 {
        put(&named, id, &embedding(id), &[]);
        if id == 250 || id == 500 {
            named.collection().flush().unwrap();
        }
    }
    named.delete(&[PointId::Number(300)]).unwrap();
    let ids: Vec<u64> = (0..700).filter(|id| *id != 300).collect();
    for threshold in [0.75, 0.9] {
        let control = DuplicateControl::default();
        let progress = run(&named, options(threshold, None), &control).unwrap();
        assert_eq!(progress.state, DuplicateState::Done);
        let expected = naive(&ids, threshold);
        assert!(expected.len() > 100, "{}", expected.len());
        assert_eq!(found(&named, &progress), expected);
        assert_eq!((progress.pairs, progress.refused), (expected.len() as u64, 0));
        assert!(progress.done >= progress.total && progress.total == 699);
        assert_eq!(control.progress().map(|last| last.pairs), Some(progress.pairs));
    }
}

#[test]
fn keypoints_refuse_lookalikes() {
    let dir = TempDir::new().unwrap();
    let registry = open(dir.path());
    let named = registry.create("c", CollectionSettings::new(DIMS, Metric::Cosine)).unwrap();
    let record = |graph: &matching::Graph| {
        let mut bytes = Vec::new();
        graph.encode(&mut bytes);
        bytes
    };
    let photo = synthetic::photo(1);
    let copy = (0..).map(|seed| synthetic::distorted(&photo, seed)).find(|copy| {
        let probe = Probe::new(&photo, MatchOptions::default());
        matching::score(&probe, &record(copy), &mut Scratch::new()).unwrap() >= ACCEPT
    });
    // One embedding for all: a photograph, its copy, another photograph, two points without image.
    let same = embedding(0);
    put(&named, 10, &same, &record(&photo));
    put(&named, 11, &same, &record(&copy.unwrap()));
    put(&named, 12, &same, &record(&synthetic::photo(2)));
    put(&named, 20, &embedding(5), &[]);
    put(&named, 21, &embedding(5), &[]);
    let progress = run(&named, options(0.9, Some(ACCEPT)), &DuplicateControl::default()).unwrap();
    assert_eq!(found(&named, &progress), BTreeSet::from([(10, 11), (20, 21)]));
    assert!(progress.refused >= 2, "{progress:?}");
    let pairs = DuplicateStore::of(&named).pairs(progress.pairs).unwrap();
    for pair in &pairs {
        assert_eq!(pair.score.is_some(), pair.a == 10, "{pair:?}");
    }
    let ids: Vec<Vec<u64>> = groups(&pairs).into_iter().map(|group| group.ids).collect();
    assert_eq!(ids, [[10, 11], [20, 21]]);
}

#[test]
fn a_cancelled_job_continues_after_a_restart() {
    let dir = TempDir::new().unwrap();
    let first = open(dir.path());
    let named = first.create("c", CollectionSettings::new(DIMS, Metric::Cosine)).unwrap();
    for id in 0..2400 {
        put(&named, id, &embedding(id), &[]);
    }
    named.collection().flush().unwrap();
    let control = DuplicateControl::default();
    std::thread::scope(|scope| {
        // Cancels after the first step.
        scope.spawn(|| {
            while control.progress().is_none_or(|progress| progress.done == 0) {
                std::thread::yield_now();
            }
            control.stop.store(true, Ordering::Relaxed);
        });
        // One thread and a low rate: the rest of the walk takes 40 seconds, so that the thread
        // above cancels it on a busy machine too.
        let slow = DuplicateOptions { points_per_second: 60, threads: 1, ..options(0.8, None) };
        let progress = run(&named, slow, &control).unwrap();
        assert_eq!(progress.state, DuplicateState::Cancelled);
        assert!(progress.done < 2400);
    });
    let before = DuplicateProgress::read(&DuplicateStore::of(&named)).unwrap().unwrap();
    drop(named);
    drop(first);
    let second = open(dir.path());
    let named = second.get("c").unwrap();
    let progress = run(&named, options(0.8, None), &DuplicateControl::default()).unwrap();
    assert_eq!((progress.state, progress.done), (DuplicateState::Done, 2400));
    assert!(before.done > 0 && before.pairs <= progress.pairs);
    let ids: Vec<u64> = (0..2400).collect();
    let expected = naive(&ids, 0.8);
    let found = found(&named, &progress);
    let missed = expected.difference(&found).count();
    assert!(found.is_subset(&expected));
    assert!(missed * 50 <= expected.len(), "{missed} of {} missed", expected.len());
    // An ended job starts anew, another threshold too.
    let again = run(&named, options(0.95, None), &DuplicateControl::default()).unwrap();
    assert_eq!(again.done, 2400);
    assert!(again.pairs < progress.pairs);
}

#[test]
fn damaged_pairs_are_named_and_invalid_options_refused() {
    let dir = TempDir::new().unwrap();
    let registry = open(dir.path());
    let named = registry.create("c", CollectionSettings::new(DIMS, Metric::Cosine)).unwrap();
    put(&named, 1, &embedding(0), &[]);
    put(&named, 2, &embedding(0), &[]);
    let progress = run(&named, options(0.9, None), &DuplicateControl::default()).unwrap();
    assert_eq!(progress.pairs, 1);
    let file = named.directory().join("duplicates/pairs");
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[3] ^= 1;
    std::fs::write(&file, &bytes).unwrap();
    let store = DuplicateStore::of(&named);
    assert_eq!(store.pairs(1).unwrap_err().kind(), ErrorKind::DataLoss);
    store.remove().unwrap();
    assert_eq!(DuplicateProgress::read(&store).unwrap(), None);
    for wrong in [
        options(f32::NAN, None),
        options(1.5, None),
        options(0.5, Some(-1.0)),
        DuplicateOptions { threads: 0, ..options(0.5, None) },
    ] {
        let error = run(&named, wrong, &DuplicateControl::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    }
}
