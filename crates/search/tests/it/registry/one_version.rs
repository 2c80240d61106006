//! Reads of one request, which use one version of each point.

use std::collections::BTreeMap;
use std::time::Instant;

use search::collection::{CollectionQuery, SliceOutcome, in_slice};

use super::*;
use crate::points::limits;

/// Points of the test.
const POINTS: u64 = 12;

/// Returns version 0 or 1 of a point.
fn version(number: u64, version: u64) -> FetchedPoint {
    got(id(number), number + version * 100)
}

fn put_version(named: &NamedCollection, new: u64) {
    let points: Vec<FetchedPoint> = (0..POINTS).map(|number| version(number, new)).collect();
    put(named, &points).unwrap();
}

/// Overwrites, deletes, flushes and merges on another thread.
fn change_all(named: &NamedCollection) {
    let change = || {
        put_version(named, 1);
        named.delete(&[id(0), id(1)]).unwrap();
        named.collection().flush().unwrap();
        named.collection().merge().unwrap();
    };
    std::thread::scope(|scope| scope.spawn(change).join().unwrap());
}

#[test]
fn points_of_a_page_match_its_filter() {
    // A page takes so long that some of its points change meanwhile.
    const MANY: u64 = 800;
    const PAGES: usize = 40;
    let directory = tempfile::tempdir().unwrap();
    let registry = open(directory.path());
    let named = registry.create("c", settings()).unwrap();
    let put_colour = |shade: u64| {
        let payload = object(json!({"colour": shade}));
        let point = |number| FetchedPoint { payload: payload.clone(), ..version(number, 0) };
        put(&named, &(0..MANY).map(point).collect::<Vec<_>>()).unwrap();
    };
    put_colour(1);
    let stop = AtomicBool::new(false);
    // A failed read does not set `stop`.
    let deadline = Instant::now() + TIMEOUT;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for shade in (1..3).cycle() {
                put_colour(shade);
                if stop.load(Ordering::Relaxed) || Instant::now() > deadline {
                    return;
                }
            }
        });
        let others = (0..PAGES).flat_map(|_| {
            let page = named.scroll(None, 1000, Some(&colour(1)), PointParts::PAYLOAD).unwrap();
            page.points.into_iter().filter(|point| point.payload["colour"] != 1)
        });
        let others = others.count();
        stop.store(true, Ordering::Relaxed);
        assert_eq!(others, 0, "a point changed after its page was chosen");
    });
}

#[test]
fn a_request_reads_one_version_of_each_point() {
    for is_flushed in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let registry = open(directory.path());
        let named = registry.create("c", settings()).unwrap();
        put_version(&named, 0);
        if is_flushed {
            named.collection().flush().unwrap();
        }
        let query = version(3, 0).embedding;
        let read = || {
            let collection = named.collection();
            let mut thread = collection.thread(limits()).unwrap();
            let nearest = CollectionQuery::nearest(&query, POINTS as usize);
            let found = collection.nearest(&mut thread, &nearest).unwrap().hits;
            change_all(&named);
            let ids: Vec<u64> = found.iter().map(|hit| hit.id).collect();
            let points = named.resolve(&ids, PointParts::ALL);
            let scores = collection.scores(&mut thread, &query, &ids).unwrap();
            assert_eq!(points.len() as u64, POINTS);
            for ((hit, point), score) in found.iter().zip(points).zip(scores) {
                let point = point.unwrap().expect("it was there when the request began");
                let squares = point.embedding.iter().zip(&query).map(|(a, b)| (a - b) * (a - b));
                assert_eq!([Some(hit.score), score], [Some(-squares.sum::<f32>()); 2]);
                let number = (0..POINTS).find(|number| id(*number) == point.id).unwrap();
                assert_eq!(point, version(number, 0));
            }
            for shade in 1..4 {
                let filter = Some(colour(shade));
                let page = named.scroll(None, 100, filter.as_ref(), PointParts::PAYLOAD).unwrap();
                assert!(page.points.iter().all(|point| point.payload["colour"] == shade));
                assert_eq!(named.count(filter.as_ref()).unwrap().count, page.points.len() as u64);
            }
        };
        let deadline = Instant::now() + TIMEOUT;
        assert_eq!(in_slice(deadline, &Arc::default(), read), SliceOutcome::Done(()));
        // The next request reads the changes.
        let points: BTreeMap<u64, FetchedPoint> =
            (2..POINTS).map(|number| (named.internal(&id(number)), version(number, 1))).collect();
        let read = || all(&named, None, 5);
        let SliceOutcome::Done(found) = in_slice(deadline, &Arc::default(), read) else {
            panic!("nothing pauses");
        };
        assert!(found.iter().eq(points.values()), "{found:?}");
    }
}
