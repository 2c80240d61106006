//! Exact scores of chosen points.

use std::sync::Arc;
use std::time::{Duration, Instant};

use base::{Error, ErrorKind};
use search::Scorer;
use search::collection::{CANDIDATES_MAX, Collection, CollectionQuery, QueryHits};
use storage::Medium;
use storage::page::PAGE_BYTES;

use crate::points::{
    MEMORY_BYTES, MEMTABLE_BYTES, Model, Sum, TestCollection, limits, memory_medium, mix, open,
    options, point, resources, stored, try_open,
};

/// Returns a collection of two segments and unflushed points, with deleted and replaced ones.
fn filled(medium: &Arc<dyn Medium>) -> (TestCollection, Model) {
    let collection = open(medium, options());
    let mut model = Model::new();
    for id in 0..80_u64 {
        collection.upsert(point(&stored(id, 1))).unwrap();
        model.insert(id, stored(id, 1));
        if id == 34 || id == 69 {
            collection.flush().unwrap();
        }
    }
    for id in (0..80).step_by(10) {
        collection.delete(id).unwrap();
        model.remove(&id);
    }
    for id in [3, 42, 75] {
        collection.upsert(point(&stored(id, 2))).unwrap();
        model.insert(id, stored(id, 2));
    }
    assert_eq!(collection.status().segments.len(), 2);
    assert!(collection.status().unflushed > 0);
    (collection, model)
}

fn scored<S: Scorer + Clone + 'static>(
    collection: &Collection,
    ids: &[u64],
    k: usize,
    scorer: &S,
) -> QueryHits {
    let mut thread = collection.thread(limits()).unwrap();
    collection.score_points(&mut thread, ids, k, scorer, None).unwrap()
}

fn found(hits: &QueryHits) -> Vec<(u64, f32)> {
    hits.hits.iter().map(|hit| (hit.id, hit.score)).collect()
}

#[test]
fn the_scores_are_those_of_a_search_with_the_same_candidates() {
    let (collection, model) = filled(&memory_medium());
    let mut thread = collection.thread(limits()).unwrap();
    let scorer = Sum(7);
    for seed in 0..6 {
        let like = stored(seed, 9);
        for k in [1, 5, 30] {
            let query =
                CollectionQuery { candidates: 30, ..CollectionQuery::nearest(&like.embedding, k) };
            let searched = collection.search(&mut thread, &query, &scorer).unwrap();
            let near =
                collection.nearest(&mut thread, &CollectionQuery { k: 30, ..query }).unwrap();
            let mut ids: Vec<u64> = near.hits.iter().map(|hit| hit.id).collect();
            // The order and repetitions change nothing.
            ids.sort_by_key(|id| mix(*id ^ seed));
            ids.extend_from_within(..10);
            let chosen = scored(&collection, &ids, k, &scorer);
            assert_eq!(found(&chosen), found(&searched));
            assert_eq!(chosen.hits.len(), k);
            assert!(chosen.hits.iter().all(|hit| hit.coarse == 0.0));
            assert_eq!((chosen.candidates, chosen.compared), (30, 30));
            assert!(!chosen.partial && chosen.damaged == 0);
        }
    }
    let all: Vec<u64> = (0..200).collect();
    let mut wanted: Vec<(u64, f32)> =
        model.values().map(|point| (point.id, scorer.of(&point.record))).collect();
    wanted.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    assert_eq!(found(&scored(&collection, &all, 200, &scorer)), wanted);
}

#[test]
fn ids_of_no_point_are_left_out() {
    let (collection, model) = filled(&memory_medium());
    let scorer = Sum(1);
    let ids = [10, 11, 40, 71, 70, 69, 500, u64::MAX, 3];
    let chosen = scored(&collection, &ids, 9, &scorer);
    let mut hits: Vec<u64> = chosen.hits.iter().map(|hit| hit.id).collect();
    hits.sort_unstable();
    assert_eq!(hits, [3, 11, 69, 71]);
    assert_eq!((chosen.candidates, chosen.compared, chosen.partial), (4, 4, false));
    // A replaced point has the score of its newest record.
    let replaced = chosen.hits.iter().find(|hit| hit.id == 3).unwrap();
    assert_eq!(replaced.score, scorer.of(&model[&3].record));
    let none = scored(&collection, &[], 5, &scorer);
    assert!(none.hits.is_empty() && !none.partial);
    assert!(scored(&collection, &[11], 0, &scorer).hits.is_empty());
}

/// Scorer whose bound is the coarse score, and that refuses some records.
#[derive(Clone)]
struct Strict {
    sum: Sum,
    refused: Vec<u8>,
}

impl Scorer for Strict {
    type Scratch = ();

    fn scratch(&self) {}

    fn score(&self, record: &[u8], (): &mut ()) -> base::Result<f32> {
        if record == self.refused {
            return Err(Error::data_loss("refused"));
        }
        Ok(self.sum.of(record))
    }

    fn bound(&self, coarse: f32) -> f32 {
        coarse
    }
}

#[test]
fn bounds_of_a_scorer_leave_no_point_out() {
    let (collection, _) = filled(&memory_medium());
    let ids: Vec<u64> = (0..80).collect();
    let strict = Strict { sum: Sum(3), refused: b"none".to_vec() };
    let wanted = scored(&collection, &ids, 3, &Sum(3));
    let chosen = scored(&collection, &ids, 3, &strict);
    assert_eq!(found(&chosen), found(&wanted));
}

#[test]
fn a_record_that_cannot_be_scored_makes_the_result_partial() {
    let (collection, model) = filled(&memory_medium());
    // One in a segment, one in a memtable.
    for id in [11, 74] {
        let strict = Strict { sum: Sum(3), refused: model[&id].record.clone() };
        let chosen = scored(&collection, &[1, id, 77], 3, &strict);
        assert!(chosen.partial, "{chosen:?}");
        assert_eq!((chosen.candidates, chosen.compared, chosen.damaged), (3, 2, 1));
        assert!(chosen.hits.iter().all(|hit| hit.id != id));
        assert!(!scored(&collection, &[1, 77], 3, &strict).partial);
    }
}

/// Opens a copy of the files of `medium` with one changed byte. `place` returns the offset of the
/// byte, and `None` for a file to copy unchanged.
fn damaged(
    medium: &Arc<dyn Medium>,
    place: impl Fn(&str, &[u8]) -> Option<usize>,
) -> TestCollection {
    let copy = memory_medium();
    let mut changed = 0;
    for (name, _) in medium.list().unwrap() {
        let mut bytes = medium.load(&name).unwrap();
        if let Some(at) = place(&name, &bytes) {
            bytes[at] ^= 1;
            changed += 1;
        }
        let mut writer = copy.create(&name).unwrap();
        writer.append(&bytes).unwrap();
        writer.persist().unwrap();
    }
    assert_eq!(changed, 1);
    copy.persist_names().unwrap();
    try_open(copy, options(), &resources(MEMORY_BYTES, MEMTABLE_BYTES)).unwrap()
}

#[test]
fn a_damaged_page_makes_the_result_partial() {
    let medium = memory_medium();
    let (collection, model) = filled(&medium);
    drop(collection);
    let (id, record) = model
        .iter()
        .find(|(id, point)| **id < 70 && **id > 3 && point.record.len() > 200)
        .map(|(id, point)| (*id, point.record.clone()))
        .unwrap();
    let collection = damaged(&medium, |name, bytes| {
        let at = bytes.windows(record.len()).position(|window| window == record);
        at.filter(|_| !name.starts_with("log-"))
    });
    let chosen = scored(&collection, &[id, 74], 2, &Sum(1));
    assert!(chosen.partial && chosen.damaged == 1, "{chosen:?}");
    assert_eq!(found(&chosen), [(74, Sum(1).of(&model[&74].record))]);
    assert!(collection.status().quarantined.iter().any(|damage| damage.page.is_some()));
}

#[test]
fn a_segment_that_cannot_be_opened_makes_the_result_partial() {
    let medium = memory_medium();
    let (collection, model) = filled(&medium);
    let first = collection.status().segments[0].name.clone();
    drop(collection);
    // Every page of the first segment that the ids need: the superblock names all others.
    let collection =
        damaged(&medium, |name, bytes| (name == first && bytes.len() > PAGE_BYTES).then_some(8));
    let chosen = scored(&collection, &[11, 74], 2, &Sum(1));
    assert!(chosen.partial, "{chosen:?}");
    assert_eq!(found(&chosen), [(74, Sum(1).of(&model[&74].record))]);
    // A point that is known is not in doubt.
    assert!(!scored(&collection, &[74, 42], 2, &Sum(1)).partial);
}

#[test]
fn an_expired_deadline_makes_the_result_partial() {
    let (collection, _) = filled(&memory_medium());
    let mut thread = collection.thread(limits()).unwrap();
    let past = Instant::now().checked_sub(Duration::from_secs(1));
    // Of segments, where the first records are scored before the time is read, of memtables, and
    // of both.
    for ids in [(0..70).collect(), vec![71, 72], (0..80).collect::<Vec<u64>>()] {
        let late = collection.score_points(&mut thread, &ids, 5, &Sum(1), past).unwrap();
        assert!(late.partial && late.compared < late.candidates, "{late:?}");
    }
    let later = Some(Instant::now() + Duration::from_secs(60));
    let ids: Vec<u64> = (0..80).collect();
    let chosen = collection.score_points(&mut thread, &ids, 5, &Sum(1), later).unwrap();
    assert!(!chosen.partial && chosen.hits.len() == 5, "{chosen:?}");
}

#[test]
fn too_many_ids_are_refused() {
    let (collection, _) = filled(&memory_medium());
    let mut thread = collection.thread(limits()).unwrap();
    let ids = vec![1; CANDIDATES_MAX + 1];
    let error = collection.score_points(&mut thread, &ids, 5, &Sum(1), None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
}
