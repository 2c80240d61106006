//! A pass gives the same answers with and without pauses.

use std::fmt::Debug;
use std::time::Instant;

use base::ErrorKind;
use coarse::Metric;
use os::Rate;
use serde_json::json;
use storage::UringMedium;

use super::*;
use crate::budget::MemoryBudget;
use crate::collection::scan::{SliceOutcome, in_ended_slice, until};
use crate::collection::slice_progress::SliceProgress;
use crate::collection::{CollectionOptions, PointOrder, Resources};
use crate::filter::{Condition, Range};
use crate::ingest::{Op, PointRef};
use crate::payload_index::FIELDS_MAX;
use crate::rerank::SharedCaches;

/// Pauses of a pass over all points of [`collection`], of which it reads 512 a slice.
const PAUSES: u32 = 5;

fn payload(id: u64) -> Vec<u8> {
    // The last field of each point has no index.
    let value = |at| match at {
        2 => id % 600,
        3 => id % 3,
        _ => 0,
    };
    let fields = (0..FIELDS_MAX).map(|at| (format!("f{at}"), json!(value(at))));
    let late = ("late".to_owned(), json!(id * 7 % 13));
    let members: serde_json::Map<String, Value> = fields.chain([late]).collect();
    serde_json::to_vec(&members).unwrap()
}

/// Returns a collection with two segments and a memtable, without one point of each.
fn collection(root: &std::path::Path) -> Collection {
    let medium = Arc::new(UringMedium::plain(root.to_owned()).unwrap());
    let resources =
        Resources::new(MemoryBudget::new(256 << 20), 8 << 20, Rate::unlimited()).unwrap();
    let shared = Arc::new(SharedCaches::new(0, 512));
    let options = CollectionOptions::new(2, Metric::L2);
    let collection = Collection::open(medium, options, &resources, shared).unwrap();
    for (ids, is_flushed) in [(0..1500, true), (1500..2100, true), (2100..2800, false)] {
        let points: Vec<(u64, Vec<u8>)> = ids.map(|id| (id, payload(id))).collect();
        let ops: Vec<Op<'_>> = points
            .iter()
            .map(|(id, payload)| {
                Op::Upsert(PointRef { id: *id, embedding: &[1.0, 0.0], record: &[], payload })
            })
            .collect();
        collection.apply(&ops).unwrap().commit().unwrap();
        if is_flushed {
            collection.flush().unwrap();
        }
    }
    [3, 1503, 2103].into_iter().for_each(|id| collection.delete(id).unwrap());
    collection
}

/// Runs `work` in slices that end after one turn of each pass. Returns its pauses and its result.
fn in_slices<T>(progress: &Arc<SliceProgress>, mut work: impl FnMut() -> Result<T>) -> (u32, T) {
    let mut pauses = 0;
    loop {
        match in_ended_slice(progress, &mut work) {
            SliceOutcome::Paused => pauses += 1,
            SliceOutcome::Done(result) => return (pauses, result.unwrap()),
        }
        assert!(pauses < 100, "it makes no progress");
    }
}

/// Runs `work` in slices and at once. Returns its pauses in slices and its result.
///
/// # Panics
/// If the two results differ.
#[track_caller]
fn exact_in_slices<T: PartialEq + Debug>(work: impl Fn() -> Result<T>) -> (u32, T) {
    let (pauses, result) = in_slices(&Arc::default(), &work);
    assert_eq!(result, work().unwrap());
    (pauses, result)
}

/// Returns a filter of the points whose field `key` is less than `bound`.
fn below(key: &str, bound: f64) -> Filter {
    let range = Range { lt: Some(bound), ..Range::default() };
    let must = vec![Condition::Range { key: key.into(), range }];
    Filter { must, ..Filter::default() }
}

#[test]
fn a_filter_of_new_points_ends_at_the_deadline() {
    let root = tempfile::tempdir().unwrap();
    let collection = collection(root.path());
    let filter = below("f2", 300.0);
    let count = || collection.count_where(Some(&filter)).map(|counted| counted.count);
    // Afterwards the rows of the segments are cached, and only the memtable is read.
    assert!(count().is_ok());
    let list = || collection.ids_from(0, 10_000, Some(&filter)).map(|list| list.ids.len());
    let late = until(Instant::now(), || [count().err(), list().err()]);
    for error in late {
        assert_eq!(error.map(|it| it.kind()), Some(ErrorKind::DeadlineExceeded));
    }
    assert!(list().is_ok());
}

#[test]
fn a_count_of_new_points_with_a_value_ends_at_the_deadline() {
    let root = tempfile::tempdir().unwrap();
    let collection = collection(root.path());
    // The segments have an index on this field.
    let count = || collection.count_filled("f3").map(|counted| counted.count);
    let late = until(Instant::now(), count);
    assert_eq!(late.map_err(|error| error.kind()), Err(ErrorKind::DeadlineExceeded));
    assert_eq!(count(), Ok(2797));
}

#[test]
fn a_facet_without_an_index_pauses_and_is_exact() {
    let root = tempfile::tempdir().unwrap();
    let collection = collection(root.path());
    let filter = below("late", 5.0);
    for filter in [None, Some(&filter)] {
        let (pauses, facet) = exact_in_slices(|| collection.facet("late", filter, 20));
        assert_eq!(facet.hits.len(), if filter.is_none() { 13 } else { 5 });
        assert!(pauses >= 3, "{pauses}");
    }
    let progress = Arc::default();
    let (pauses, _) = in_slices(&progress, || collection.facet("late", None, 20));
    assert_eq!(pauses, PAUSES, "each point is read once");
}

#[test]
fn a_facet_of_an_index_pauses_and_is_exact() {
    let root = tempfile::tempdir().unwrap();
    let collection = collection(root.path());
    collection.flush().unwrap();
    let filter = below("f2", 300.0);
    // A part is at least a block of rare values, as of f2, or a frequent value, as of f3. Without a
    // filter and a deleted row, as in the third segment, the counts of frequent values are in
    // memory.
    for (key, filter, least, values) in [
        ("f2", None, 2, 600),
        ("f2", Some(&filter), 2, 300),
        ("f3", None, 3, 3),
        ("f3", Some(&filter), 5, 3),
    ] {
        let (paused, facet) = exact_in_slices(|| collection.facet(key, filter, 1000));
        assert_eq!(facet.hits.len(), values, "{key}");
        assert!(paused >= least, "{key}: {paused} pauses");
    }
}

#[test]
fn an_order_without_an_index_pauses_and_is_exact() {
    let root = tempfile::tempdir().unwrap();
    let collection = collection(root.path());
    let order = |descending| PointOrder { key: "late", descending, from: None };
    let expected = [false, true].map(|way| collection.ordered(&order(way), None, 300).unwrap());
    // Two orders of one work: the first one is not read again after a pause of the second one.
    let progress = Arc::default();
    let mut is_changed = false;
    let (pauses, found) = in_slices(&progress, || {
        let first = collection.ordered(&order(false), None, 300);
        if !is_changed {
            // The pass continues with the points that existed when it began.
            is_changed = true;
            collection.delete(0).unwrap();
        }
        let first = first?;
        Ok((first, collection.ordered(&order(true), None, 300)?, collection.get(0)?))
    });
    assert_eq!(found.0, expected[0]);
    assert!(found.0.points.iter().any(|point| point.id == 0));
    assert!(found.2.is_some(), "all slices read the points that existed at the beginning");
    assert_eq!(collection.get(0).unwrap(), None);
    assert_eq!(pauses, 2 * PAUSES);
    assert_eq!(found.1, collection.ordered(&order(true), None, 300).unwrap());
    assert_eq!(found.1, expected[1], "point 0 is not among the last ones");
}

#[test]
fn an_order_of_new_points_is_read_once() {
    let root = tempfile::tempdir().unwrap();
    let collection = collection(root.path());
    // The segments have an index of the field, which is one part of each. Payloads of the memtable
    // are read in two turns.
    let order = |descending| PointOrder { key: "f1", descending, from: None };
    let progress = Arc::default();
    let (pauses, _) = in_slices(&progress, || {
        collection.ordered(&order(false), None, 300)?;
        collection.ordered(&order(true), None, 300)
    });
    assert_eq!(pauses, 6, "the first order is not read again after the pauses of the second one");
}

#[test]
fn an_order_of_an_index_pauses_and_is_exact() {
    let root = tempfile::tempdir().unwrap();
    let collection = collection(root.path());
    collection.flush().unwrap();
    let filter = below("f2", 300.0);
    // A part is at most 64 rare values, as of f2, or a frequent value, as each of the three of f3.
    // There are at least two segments, because small ones may be merged.
    for (key, parts) in [("f2", 2 * 600 / 64), ("f3", 6)] {
        for filter in [None, Some(&filter)] {
            for descending in [false, true] {
                let order = PointOrder { key, descending, from: None };
                let (pauses_of_all, points) =
                    exact_in_slices(|| collection.ordered(&order, filter, 3000));
                assert_eq!(points.points.len() == 2797, filter.is_none(), "{key}");
                assert!(pauses_of_all >= parts - 1, "{key}: {pauses_of_all} pauses");
                // The visit ends after the first points of each segment.
                let (pauses, points) = exact_in_slices(|| collection.ordered(&order, filter, 1));
                assert_eq!(points.points.len(), 1);
                assert!(pauses < pauses_of_all, "{key}: {pauses} of {pauses_of_all} pauses");
            }
        }
    }
}

#[test]
fn a_request_keeps_the_rows_of_merged_segments() {
    let root = tempfile::tempdir().unwrap();
    let collection = collection(root.path());
    let filter = below("late", 5.0);
    let count = || collection.count_where(Some(&filter)).map(|counted| counted.count);
    let progress = Arc::<SliceProgress>::default();
    let (pauses, counted) = in_slices(&progress, &count);
    assert!(pauses > 0);
    // Many deleted rows, so that the first segment is written anew.
    let ops: Vec<Op<'_>> = (0..600).map(Op::Delete).collect();
    collection.apply(&ops).unwrap().commit().unwrap();
    assert!(collection.merge().unwrap());
    assert_eq!(in_slices(&progress, &count), (0, counted), "no payload is read again");
    assert_eq!(collection.retired.lock().len(), 1);
    drop(progress);
    collection.retire(Vec::new());
    assert!(collection.retired.lock().is_empty());
}

#[test]
fn work_with_too_many_passes_does_not_pause() {
    let passes = KeptPasses::default();
    (0..PASSES_MAX).for_each(|pass| passes.keep(pass));
    let reads_all = |pass| {
        in_ended_slice(&Arc::default(), || {
            let kept = passes.take(|kept| *kept == pass);
            let mut scan = PayloadScan::in_slices();
            let read = (0..2000).filter(|_| scan.next_row() == ScanStep::Read).count();
            (read == 2000, kept.is_some())
        })
    };
    assert_eq!(reads_all(PASSES_MAX), SliceOutcome::Done((true, false)));
    assert_eq!(reads_all(3), SliceOutcome::Done((false, true)));
    assert_eq!(reads_all(PASSES_MAX), SliceOutcome::Done((false, false)), "one has room");
    assert_eq!(passes.count(), PASSES_MAX - 1);
}
