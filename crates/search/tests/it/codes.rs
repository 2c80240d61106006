//! Codes on the medium: the same answers as with codes in memory, within the memory, and without
//! damaged pages.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use search::codes::CodesPlace;
use search::collection::{
    Collection, CollectionOptions, CollectionQuery, Merging, PointParts, QueryHits, Resources,
};
use search::filter::{Condition, Filter, Match};
use search::ingest::{Op, StoredPoint};
use search::points::{NewPoint, PointId};
use search::registry::{CollectionSettings, RegistryOptions};
use search::{CoarseKind, Metric, ScanParams};
use storage::page::PAGE_BYTES;
use storage::superblock::Superblock;
use storage::{FaultMedium, FaultPlan, Medium, ReadFault, UringMedium};

use crate::points::{
    MEMORY_BYTES, MEMTABLE_BYTES, TIMEOUT, TestCollection, limits, memory_medium, mix, open,
    options, point, resources, stored, try_open,
};

const METRICS: [Metric; 3] = [Metric::Cosine, Metric::Dot, Metric::L2];
const KINDS: [CoarseKind; 3] = [CoarseKind::IvfPq, CoarseKind::Rabitq, CoarseKind::Flat];
/// First section of a coarse index with codes, and the one after the last.
const CODES: std::ops::Range<u32> = 0x110..0x140;

fn shape(metric: Metric, kind: CoarseKind, codes: CodesPlace) -> CollectionOptions {
    let shape = CollectionOptions::new(crate::points::DIMS, metric).shape;
    CollectionOptions { shape, kind, codes, ..options() }
}

fn files() -> (tempfile::TempDir, Arc<dyn Medium>) {
    let directory = tempfile::tempdir().unwrap();
    let medium = Arc::new(UringMedium::plain(directory.path().to_owned()).unwrap());
    (directory, medium)
}

/// Points of a collection.
const POINTS: u64 = 4200;
/// Points written at once.
const BATCH: u64 = 500;

/// Fills a collection with two segments. Many points are similar, so that their list has several
/// parts.
fn fill(medium: &Arc<dyn Medium>, metric: Metric, kind: CoarseKind, points: u64) {
    let collection = open(medium, shape(metric, kind, CodesPlace::Dram));
    for first in (0..points).step_by(BATCH as usize) {
        let batch: Vec<StoredPoint> = (first..points.min(first + BATCH))
            .map(|id| {
                let alike = id % 5 < 4 && id < points / 4 * 3;
                let embedding = stored(if alike { 7 } else { id }, 1).embedding;
                StoredPoint { record: Vec::new(), embedding, ..stored(id, 1) }
            })
            .collect();
        let ops: Vec<Op<'_>> = batch.iter().map(|stored| Op::Upsert(point(stored))).collect();
        collection.write(&ops).unwrap();
        if first == 0 {
            collection.flush().unwrap();
        }
    }
    collection.flush().unwrap();
    while collection.merge().unwrap() {}
    let deleted: Vec<Op<'_>> = (0..points).step_by(7).map(Op::Delete).collect();
    collection.write(&deleted).unwrap();
    collection.flush().unwrap();
}

/// Returns the same files in mapped memory.
fn copied(medium: &Arc<dyn Medium>) -> Arc<dyn Medium> {
    let copy = memory_medium();
    for (name, _) in medium.list().unwrap() {
        let mut writer = copy.create(&name).unwrap();
        writer.append(&medium.load(&name).unwrap()).unwrap();
        writer.persist().unwrap();
    }
    copy.persist_names().unwrap();
    copy
}

fn bits(found: &QueryHits) -> Vec<(u64, u32)> {
    found.hits.iter().map(|hit| (hit.id, hit.score.to_bits())).collect()
}

/// Runs every kind of query that an index supports.
fn ask_all(collection: &Collection, seed: u64) -> Vec<QueryHits> {
    let mut thread = collection.thread(limits()).unwrap();
    let like = stored(mix(seed) % 900, 2 + seed % 2);
    let value = |value: u64| Match::Value(value.into());
    let colour = Condition::Match { key: "colour".into(), matching: value(3) };
    let rare = Condition::Match { key: "id".into(), matching: value(11) };
    let filters = [colour, rare].map(|one| Filter { must: vec![one], ..Filter::default() });
    let mut found = Vec::new();
    for filter in [None, Some(&filters[0]), Some(&filters[1])] {
        for exact in [true, false] {
            for (k, params) in [
                (10, ScanParams::default()),
                (70, ScanParams { probes: 3, refine: 90 }),
                (400, ScanParams { probes: 10_000, refine: 2000 }),
            ] {
                let nearest = CollectionQuery::nearest(&like.embedding, k);
                let query = CollectionQuery { params, filter, exact, candidates: k, ..nearest };
                found.push(collection.nearest(&mut thread, &query).unwrap());
            }
        }
    }
    found
}

fn opened(
    medium: &Arc<dyn Medium>,
    metric: Metric,
    kind: CoarseKind,
    codes: CodesPlace,
    memory_bytes: u64,
) -> (TestCollection, Resources) {
    let resources = resources(memory_bytes, MEMTABLE_BYTES);
    (try_open(medium.clone(), shape(metric, kind, codes), &resources).unwrap(), resources)
}

fn on_medium(collection: &Collection) -> u64 {
    collection.status().segments.iter().map(|segment| segment.codes_on_medium).sum()
}

#[test]
fn answers_do_not_depend_on_the_place_of_codes() {
    for (metric, kind) in METRICS.into_iter().flat_map(|it| KINDS.map(|kind| (it, kind))) {
        let (_directory, medium) = files();
        let flat = kind == CoarseKind::Flat;
        fill(&medium, metric, kind, if flat { 300 } else { POINTS });
        let (memory, _) = opened(&medium, metric, kind, CodesPlace::Dram, MEMORY_BYTES);
        assert_eq!(on_medium(&memory), 0);
        let wanted: Vec<QueryHits> = (0..2).flat_map(|seed| ask_all(&memory, seed)).collect();
        drop(memory);
        for medium in [copied(&medium), medium] {
            let (collection, resources) =
                opened(&medium, metric, kind, CodesPlace::Medium, MEMORY_BYTES);
            assert_eq!(on_medium(&collection) > 0, !flat, "{kind:?}");
            let found = (0..2).flat_map(|seed| ask_all(&collection, seed));
            for (found, wanted) in found.zip(&wanted) {
                assert_eq!(bits(&found), bits(wanted), "{metric:?} {kind:?}");
                assert!(!found.partial && found.damaged == 0);
            }
            let stats = resources.segment_cache_stats().codes;
            let reads = !flat && medium.kind() == storage::MediumKind::Nvme;
            assert_eq!(stats.reads > 0 && stats.hits > 0, reads, "{stats:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn any_query_finds_the_same(
        seed in any::<u64>(), k in 1_usize..300, probes in 0_usize..60, refine in 0_usize..400,
        kind in 0_usize..2, memory in 56_u64..99, exact: bool,
    ) {
        let (medium, metric, kind) = any_files(kind);
        let params = ScanParams { probes, refine };
        let like = stored(seed % 3000, seed % 3);
        let nearest = CollectionQuery::nearest(&like.embedding, k);
        let query = CollectionQuery { params, exact, ..nearest };
        let answers = [(CodesPlace::Dram, MEMORY_BYTES), (CodesPlace::Medium, (memory * 100) << 10)];
        let answers = answers.map(|(place, memory_bytes)| {
            let (collection, resources) = opened(&medium, metric, kind, place, memory_bytes);
            let mut thread = collection.thread(limits()).unwrap();
            let found = collection.nearest(&mut thread, &query).unwrap();
            let stats = resources.memory();
            assert!(stats.peak <= stats.limit);
            bits(&found)
        });
        prop_assert_eq!(&answers[0], &answers[1]);
    }
}

/// Returns a filled medium, which all cases share.
fn any_files(kind: usize) -> (Arc<dyn Medium>, Metric, CoarseKind) {
    type Filled = (tempfile::TempDir, Arc<dyn Medium>);
    static FILES: [std::sync::OnceLock<Filled>; 2] = [const { std::sync::OnceLock::new() }; 2];
    let metric = METRICS[kind + 1];
    let (_, medium) = FILES[kind].get_or_init(|| {
        let (directory, medium) = files();
        fill(&medium, metric, KINDS[kind], POINTS);
        (directory, medium)
    });
    (medium.clone(), metric, KINDS[kind])
}

#[test]
fn auto_uses_memory_while_it_has_room() {
    for kind in 0..2 {
        let (medium, metric, kind) = any_files(kind);
        let mut places = Vec::new();
        // Flushes keep the first 5.2 MiB.
        for memory_bytes in (5500_u64..9000).step_by(50).map(|it| it << 10) {
            let (collection, resources) =
                opened(&medium, metric, kind, CodesPlace::Auto, memory_bytes);
            // Ids of both segments need room in any case.
            if collection.status().segments.iter().all(|segment| segment.open) {
                places.push(on_medium(&collection));
                let stats = resources.memory();
                assert!(stats.peak <= stats.limit, "{stats:?}");
            }
        }
        // More memory never moves codes to the medium.
        assert!(places.is_sorted_by(|less, more| less >= more), "{places:?}");
        assert!(places[0] > 0 && places.last() == Some(&0), "{places:?}");
    }
}

#[test]
fn queries_share_blocks_and_memory_takes_them_back() {
    let (medium, metric, kind) = any_files(0);
    let (collection, resources) = opened(&medium, metric, kind, CodesPlace::Medium, MEMORY_BYTES);
    let wanted: Vec<_> = ask_all(&collection, 5).iter().map(bits).collect();
    let first = resources.segment_cache_stats();
    assert!(first.codes.reads > 0 && first.bytes > 0 && first.refused == 0, "{first:?}");
    let ask = || {
        let found: Vec<_> = ask_all(&collection, 5).iter().map(bits).collect();
        assert_eq!(found, wanted);
    };
    std::thread::scope(|scope| scope.spawn(ask).join().unwrap());
    let second = resources.segment_cache_stats();
    assert_eq!(second.codes.reads, first.codes.reads, "all blocks are cached");
    assert!(second.codes.hits > first.codes.hits);
    // Threads that search at once may read a block again rather than wait long for a lock of the
    // cache. None of them evicts blocks.
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(ask);
        }
    });
    let third = resources.segment_cache_stats();
    assert_eq!((third.bytes, third.evicted), (second.bytes, 0));
    assert!(third.codes.hits > second.codes.hits);
    // Changes need memory. They take the memory of the blocks.
    let used = resources.memory();
    assert!(used.used >= first.bytes && used.peak <= used.limit);
    drop(collection);
    assert_eq!(resources.segment_cache_stats().bytes, 0, "a closed segment leaves none");
}

#[test]
fn queries_read_each_vector_once_while_memory_is_free() {
    for kind in 0..2 {
        let (medium, metric, kind) = any_files(kind);
        let (collection, resources) = opened(&medium, metric, kind, CodesPlace::Dram, MEMORY_BYTES);
        let ask = || ask_all(&collection, 5).iter().map(bits).collect::<Vec<_>>();
        let wanted = ask();
        let first = resources.segment_cache_stats();
        assert!(first.vectors.reads > 0 && first.vectors.read_bytes > 0, "{first:?}");
        assert_eq!((first.codes.reads, resources.memory().cached), (0, first.bytes));
        assert_eq!(ask(), wanted);
        let second = resources.segment_cache_stats();
        assert_eq!(second.vectors.reads, first.vectors.reads, "all pages are cached");
        assert!(second.vectors.hits > first.vectors.hits);
        drop(collection);
        assert_eq!(resources.segment_cache_stats().bytes, 0, "a closed segment leaves none");
    }
}

#[test]
fn payloads_are_read_once_while_memory_is_free() {
    let (medium, metric, kind) = any_files(0);
    let (collection, resources) = opened(&medium, metric, kind, CodesPlace::Dram, MEMORY_BYTES);
    let ids: Vec<u64> = (1..POINTS).step_by(6).collect();
    let payloads = || {
        let points = collection.points(&ids, PointParts::PAYLOAD).into_iter();
        points.map(|point| point.unwrap().map(|it| it.payload)).collect::<Vec<_>>()
    };
    let wanted = payloads();
    let first = resources.segment_cache_stats();
    assert!(first.payloads.reads > 0 && first.bytes >= first.payloads.read_bytes, "{first:?}");
    assert_eq!(payloads(), wanted);
    let second = resources.segment_cache_stats();
    assert_eq!(second.payloads.reads, first.payloads.reads, "all pages are cached");
    // Each payload is that of its point.
    let is_own = |(payload, id): (&Option<Vec<u8>>, &u64)| {
        payload.as_ref().is_none_or(|payload| *payload == stored(*id, 1).payload)
    };
    assert!(wanted.iter().zip(&ids).all(is_own) && wanted.iter().flatten().count() > 100);
    drop(collection);
    let (collection, resources) =
        opened(&copied(&medium), metric, kind, CodesPlace::Dram, MEMORY_BYTES);
    assert_eq!(collection.points(&ids, PointParts::ALL).len(), ids.len());
    let stats = resources.segment_cache_stats();
    let lookups = (stats.payloads.lookups, stats.vectors.lookups);
    assert_eq!(lookups, (0, 0), "mapped memory needs no cache");
}

#[test]
fn a_damaged_page_of_codes_costs_its_rows() {
    for kind in 0..2 {
        let (medium, metric, kind) = any_files(kind);
        let name = medium.list().unwrap().into_iter().map(|(name, _)| name);
        let name = name.filter(|name| name.starts_with("segment-")).max().unwrap();
        let superblock = Superblock::decode(&medium.load(&name).unwrap()).unwrap();
        let large = |bytes: u64| bytes > 2 * PAGE_BYTES as u64;
        let sections = superblock.sections.iter();
        let sections: Vec<_> = sections
            .filter(|it| CODES.contains(&it.kind) && large(it.bytes) && it.kind != 0x111)
            .collect();
        assert!(sections.len() >= 3);
        let (sound, _) = opened(&medium, metric, kind, CodesPlace::Dram, MEMORY_BYTES);
        let known: BTreeSet<_> = ask_much(&sound).iter().flat_map(bits).collect();
        for section in sections {
            let pages = section.bytes / PAGE_BYTES as u64;
            for fault in [ReadFault::Flip, ReadFault::Error] {
                let page = section.offset / PAGE_BYTES as u64 + pages / 2;
                let damage = vec![(name.clone(), page, fault)];
                let plan = FaultPlan { damage, ..FaultPlan::default() };
                let faulty: Arc<dyn Medium> =
                    Arc::new(FaultMedium::new(medium.clone(), plan).unwrap());
                let (collection, _) =
                    opened(&faulty, metric, kind, CodesPlace::Medium, MEMORY_BYTES);
                assert!(!collection.status().partial, "nothing of it was read yet");
                let found = ask_much(&collection);
                assert!(found.iter().any(|found| found.damaged > 0), "{:#x}", section.kind);
                for found in found {
                    assert_eq!(found.partial, found.damaged > 0);
                    assert!(found.hits.len() >= 300, "{:#x}: {}", section.kind, found.hits.len());
                    assert!(bits(&found).iter().all(|hit| known.contains(hit)));
                }
                let status = collection.status();
                let named = status.quarantined.iter().find(|what| what.file == name);
                assert_eq!(
                    named.and_then(|named| named.page),
                    Some(page),
                    "{:?}",
                    status.quarantined
                );
            }
        }
    }
}

/// Queries all points, which reads single rows, and some of them in all lists.
fn ask_much(collection: &Collection) -> [QueryHits; 2] {
    let mut thread = collection.thread(limits()).unwrap();
    let like = stored(3, 9);
    [(POINTS as usize, 16_000), (400, 500)].map(|(k, refine)| {
        let params = ScanParams { probes: 10_000, refine };
        let nearest = CollectionQuery::nearest(&like.embedding, k);
        collection.nearest(&mut thread, &CollectionQuery { params, ..nearest }).unwrap()
    })
}

#[test]
fn a_merge_makes_damaged_codes_whole() {
    for kind in 0..2 {
        let (medium, metric, kind) = any_files(kind);
        // The other tests share these files.
        let medium = copied(&medium);
        let (sound, _) = opened(&medium, metric, kind, CodesPlace::Dram, MEMORY_BYTES);
        let wanted = ask_much(&sound).map(|found| found.hits.len());
        drop(sound);
        let name = medium.list().unwrap().into_iter().map(|(name, _)| name);
        let name = name.filter(|name| name.starts_with("segment-")).max().unwrap();
        let superblock = Superblock::decode(&medium.load(&name).unwrap()).unwrap();
        let sections = superblock.sections.iter();
        let codes = sections.filter(|it| [0x113, 0x122].contains(&it.kind));
        let page = codes.map(|it| it.offset / PAGE_BYTES as u64).max().unwrap();
        let damage = vec![(name.clone(), page, ReadFault::Flip)];
        let plan = FaultPlan { damage, ..FaultPlan::default() };
        let faulty: Arc<dyn Medium> = Arc::new(FaultMedium::new(medium, plan).unwrap());
        let (collection, _) = opened(&faulty, metric, kind, CodesPlace::Medium, MEMORY_BYTES);
        assert!(ask_much(&collection).iter().any(|found| found.partial && found.damaged > 0));
        assert!(collection.status().quarantined.iter().any(|what| what.page == Some(page)));
        while collection.merge().unwrap() {}
        let status = collection.status();
        assert!(status.quarantined.is_empty(), "{:?}", status.quarantined);
        assert!(on_medium(&collection) > 0);
        let found = ask_much(&collection);
        assert!(found.iter().all(|found| !found.partial && found.damaged == 0));
        assert_eq!(found.map(|found| found.hits.len()), wanted);
    }
}

/// A registry opens large segments without their codes, and reads these in the background.
#[test]
fn a_registry_reads_codes_after_the_start() {
    const DIMS: usize = 1024;
    let directory = tempfile::tempdir().unwrap();
    let options = || RegistryOptions {
        memory_bytes: 1 << 30,
        cache_bytes: 0,
        ..crate::registry::options(directory.path())
    };
    let registry = crate::registry::open_with(options());
    let named = registry.create("a", CollectionSettings::new(DIMS, Metric::L2)).unwrap();
    let payload = serde_json::Map::new();
    for first in (0..6000_u64).step_by(500) {
        let row = |id: u64| (0..DIMS as u64).map(move |at| (mix(id << 10 | at) & 255) as f32);
        let vectors: Vec<Vec<f32>> = (first..first + 500).map(|id| row(id).collect()).collect();
        let points: Vec<NewPoint<'_>> = (first..)
            .zip(&vectors)
            .map(|(id, embedding)| NewPoint {
                id: PointId::Number(id),
                embedding,
                record: &[],
                payload: &payload,
            })
            .collect();
        named.upsert(&points).unwrap();
    }
    named.collection().flush().unwrap();
    drop((named, registry));
    let registry = crate::registry::open_with(options());
    let named = registry.get("a").unwrap();
    let deadline = Instant::now() + TIMEOUT;
    while on_medium(named.collection()) > 0 {
        assert!(Instant::now() < deadline, "{:?}", named.collection().status().segments);
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(named.collection().count(), 6000);
    assert!(registry.stats().memory.used > 4 << 20);
}

#[test]
fn no_codes_are_read_after_the_deadline() {
    for kind in 0..2 {
        let (medium, metric, kind) = any_files(kind);
        for medium in [copied(&medium), medium] {
            let (collection, resources) =
                opened(&medium, metric, kind, CodesPlace::Medium, MEMORY_BYTES);
            let mut thread = collection.thread(limits()).unwrap();
            let like = stored(3, 9);
            for exact in [true, false] {
                let nearest = CollectionQuery::nearest(&like.embedding, 10);
                let query = CollectionQuery { exact, ..nearest };
                let late = CollectionQuery { deadline: Some(Instant::now()), ..query };
                let found = collection.nearest(&mut thread, &late).unwrap();
                assert!(found.partial && found.damaged == 0 && found.hits.is_empty(), "{found:?}");
                assert_eq!(resources.segment_cache_stats().codes.reads, 0);
            }
            let later = Instant::now() + std::time::Duration::from_secs(3600);
            let nearest = CollectionQuery::nearest(&like.embedding, 10);
            let timely = CollectionQuery { deadline: Some(later), ..nearest };
            let found = collection.nearest(&mut thread, &timely).unwrap();
            assert!(!found.partial && found.hits.len() == 10, "{found:?}");
        }
    }
}

/// Segments of [`fill_many`], and rows of each.
const MANY: u64 = 60;
const FEW_ROWS: u64 = 600;

/// Fills a collection with many small segments, which are not merged.
fn fill_many(medium: &Arc<dyn Medium>, metric: Metric, kind: CoarseKind) {
    let merging = Merging { fan_in: 1000, ..Merging::default() };
    let options = CollectionOptions { merging, ..shape(metric, kind, CodesPlace::Dram) };
    let resources = resources(2 * MEMORY_BYTES, 1 << 20);
    let collection = try_open(medium.clone(), options, &resources).unwrap();
    for segment in 0..MANY {
        let ids = segment * FEW_ROWS..(segment + 1) * FEW_ROWS;
        let batch: Vec<StoredPoint> =
            ids.map(|id| StoredPoint { record: Vec::new(), ..stored(id, 1) }).collect();
        let ops: Vec<Op<'_>> = batch.iter().map(|stored| Op::Upsert(point(stored))).collect();
        collection.write(&ops).unwrap();
        collection.flush().unwrap();
    }
    assert_eq!(collection.status().segments.len(), MANY as usize);
}

#[test]
fn auto_leaves_memory_for_all_segments() {
    let (metric, kind) = (Metric::L2, CoarseKind::IvfPq);
    let medium = memory_medium();
    fill_many(&medium, metric, kind);
    let places = |codes: CodesPlace, memory_kib: u64| {
        let (collection, resources) = opened(&medium, metric, kind, codes, memory_kib << 10);
        let stats = resources.memory();
        assert!(stats.peak <= stats.limit, "{stats:?}");
        let segments = collection.status().segments;
        (segments.iter().filter(|segment| !segment.open).count(), on_medium(&collection))
    };
    let closed = |codes, memory_kib| places(codes, memory_kib).0;
    // The least memory in which codes on the medium leave room for all segments.
    let mut sizes = (5500..12_000).step_by(50);
    let least = sizes.find(|&kib| closed(CodesPlace::Medium, kib) == 0).unwrap();
    assert!(least > 5600 && closed(CodesPlace::Dram, least) > 0, "{least}");
    for more in [0, 100, 200, 400, 800, 1600] {
        assert_eq!(closed(CodesPlace::Auto, least + more), 0, "{least} and {more} KiB");
    }
    assert_eq!(places(CodesPlace::Auto, 4 * least), (0, 0), "all codes are in memory");
}
